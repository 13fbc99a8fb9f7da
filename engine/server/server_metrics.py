"""Metrics of a log server, under the names of release 0.13.2.

The group ``waltz-server`` is for the server, ``waltz-server.partition-N`` for each partition that it serves now.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from waltzctl.engine.net.metrics import Clock, Gauge, Meter, NamedMetric, Timer

GROUP = "waltz-server"


class ServerPartitionMetrics:
    """Counters of a partition while it is served here.  `latency`: seconds from arrival to commit."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.committed = Meter(clock)
        self.rejected = Meter(clock)
        self.latency = Timer(clock)
        self.feeds_added = 0
        self.feeds_removed = 0
        self.catchups_added = 0
        self.catchups_removed = 0


class CommittedInSecond:
    """The number of transactions committed in the current second or in the one before, whichever is higher."""

    def __init__(self, now: float) -> None:
        self._begun, self._now, self._before = now, 0, 0

    def note(self, now: float, count: int) -> None:
        """`count` transactions are committed at `now`, in seconds."""
        if now - self._begun >= 1.0:
            self._before = self._now if now - self._begun < 2.0 else 0
            self._begun, self._now = now, 0
        self._now += count

    @property
    def committed(self) -> int:
        """The number as of the last `note`."""
        return max(self._now, self._before)


@dataclass(frozen=True, slots=True)
class ServerPartitionReading:
    """A partition at one moment.

    `waits_for`: why no session is open; empty if one is.  `recovering_seconds`: for how long none has been open; None if one is.
    `queued`, `undecided`: appends not sent to storage yet, and those sent and undecided.
    """

    partition: int
    metrics: ServerPartitionMetrics
    generation: int
    session_id: int
    high_water_mark: int
    queued: int
    undecided: int
    waits_for: str
    recovering_seconds: float | None

    def metrics_by_name(self) -> Iterator[tuple[str, Gauge | Meter | Timer]]:
        """Metrics by the release's names.  A feed that begins behind the mark counts first as catch-up, then as real-time."""
        yield "transaction", self.metrics.committed
        yield "successful-append", self.metrics.committed
        yield "rejected-append", self.metrics.rejected
        yield "response-latency", self.metrics.latency
        yield "pending-append", Gauge(self.undecided)
        yield "append-queue-size", Gauge(self.queued)
        yield "is-closed", Gauge(0)
        yield "generation", Gauge(self.generation)
        yield "session-id", Gauge(self.session_id)
        yield "high-water-mark", Gauge(self.high_water_mark)
        yield "total-real-time-feed-context-added", Gauge(self.metrics.feeds_added)
        yield "total-real-time-feed-context-removed", Gauge(self.metrics.feeds_removed)
        yield "total-catchup-feed-context-added", Gauge(self.metrics.catchups_added)
        yield "total-catchup-feed-context-removed", Gauge(self.metrics.catchups_removed)


@dataclass(frozen=True, slots=True)
class ServerReading:
    """A server at one moment.

    `server_id`: -1 before it is registered.  `replicas`: the storage nodes of every partition of the cluster, also of those that
    other servers have, as in the release, whose tool lists them.  `cached`: bytes of feed frames, and of data.
    """

    version: str
    cluster: str
    server_id: int
    endpoint: str
    partitions: tuple[ServerPartitionReading, ...]
    replicas: Mapping[int, tuple[str, ...]]
    feed_misses: Meter
    data_misses: Meter
    cached: tuple[int, int]
    connections: int

    def metrics(self) -> Iterator[NamedMetric]:
        """All metrics, by group and name."""
        yield NamedMetric(GROUP, "feed-cache-miss", self.feed_misses)
        yield NamedMetric(GROUP, "transaction-cache-miss", self.data_misses)
        yield NamedMetric(GROUP, "is-closed", Gauge(0))
        yield NamedMetric(GROUP, "cluster-name", Gauge(self.cluster))
        yield NamedMetric(GROUP, "server-id", Gauge(self.server_id))
        yield NamedMetric(GROUP, "endpoint", Gauge(self.endpoint))
        yield NamedMetric(GROUP, "waltz-server-num-partitions", Gauge(len(self.partitions)))
        yield NamedMetric(GROUP, "replica-info", Gauge({str(number): nodes for number, nodes in self.replicas.items()}))
        yield NamedMetric(GROUP, "waltz-version-id", Gauge(self.version))
        for one in self.partitions:
            for name, metric in one.metrics_by_name():
                yield NamedMetric(f"{GROUP}.partition-{one.partition}", name, metric)
