"""What a node counts, of each partition and of itself, under the names of release 0.13.2."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields

from waltzctl.engine.net.metrics import Clock, Counter, Histogram, Meter, Timer
from waltzctl.formats.control import FLAG_AVAILABLE


class PartitionMetrics:
    """What is counted of one partition while it is loaded."""

    __slots__ = (
        "append",
        "append_latency",
        "flush_latency",
        "flush_requests",
        "last_session_info_request",
        "max_transaction_request",
        "partition",
        "record_header_list_request",
        "record_header_request",
        "record_list_request",
        "record_request",
        "set_low_water_mark_request",
        "truncate_request",
    )

    def __init__(self, partition: int, clock: Clock = time.monotonic) -> None:
        self.partition = partition
        self.append = Meter(clock)
        """Append requests."""
        self.append_latency = Timer(clock)
        """From the arrival of an append request to its answer."""
        self.flush_latency = Timer(clock)
        """One write and sync of a group commit (ours; not in the release's JSON)."""
        self.flush_requests = Histogram(clock)
        """Append requests that shared one group commit (ours)."""
        self.last_session_info_request = Counter()
        self.set_low_water_mark_request = Counter()
        self.truncate_request = Counter()
        self.record_header_request = Counter()
        self.record_request = Counter()
        self.max_transaction_request = Counter()
        self.record_header_list_request = Counter()
        self.record_list_request = Counter()

    def counters(self) -> dict[str, Counter]:
        """The counters of requests by the release's names."""
        return {name.replace("_", "-"): getattr(self, name) for name in REQUEST_COUNTERS}


REQUEST_COUNTERS = (
    "last_session_info_request",
    "set_low_water_mark_request",
    "truncate_request",
    "record_header_request",
    "record_request",
    "max_transaction_request",
    "record_header_list_request",
    "record_list_request",
)
"""Attributes of `PartitionMetrics` that count requests; the release's names have hyphens instead of underscores."""


@dataclass(frozen=True, slots=True)
class PartitionGauges:
    """Present values of one partition.  The names are the release's, with hyphens instead of underscores."""

    flags: int
    local_low_water_mark: int
    low_water_mark: int
    max_transaction_id: int
    process_queue_size: int
    sequence_number: int
    session_id: int

    @property
    def available(self) -> bool:
        """The flag of that name."""
        return bool(self.flags & FLAG_AVAILABLE)

    def items(self) -> list[tuple[str, int]]:
        """Names and values."""
        return [(field.name.replace("_", "-"), getattr(self, field.name)) for field in fields(self)]


class NodeMetrics:
    """Everything that one node counts."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._partitions: dict[int, PartitionMetrics] = {}
        self.started = clock()

    def partition(self, partition: int) -> PartitionMetrics:
        """The metrics of a partition; they begin with the first call."""
        with self._lock:
            found = self._partitions.get(partition)
            if found is None:
                found = self._partitions[partition] = PartitionMetrics(partition, self._clock)
            return found

    def forget(self, partition: int) -> None:
        """Drop a partition's metrics: it is no longer loaded.  Whoever still holds them counts for nobody."""
        with self._lock:
            self._partitions.pop(partition, None)

    def partitions(self) -> Mapping[int, PartitionMetrics]:
        """All partitions with metrics, in ascending order; a copy."""
        with self._lock:
            return dict(sorted(self._partitions.items()))

    @property
    def uptime(self) -> float:
        """Seconds since the metrics began."""
        return self._clock() - self.started
