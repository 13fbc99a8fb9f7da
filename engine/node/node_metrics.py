"""What a node counts, of each partition and of itself, under the names of release 0.13.2."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from waltzctl.engine.net.metrics import Clock, Counter, Histogram, Meter, Timer
from waltzctl.formats.control import FLAG_AVAILABLE

NOTED = 256
"""Commits of a partition that are noted before they are taken in."""


class NodePartitionMetrics:
    """What is counted of one partition while it is loaded: an attribute for each of `SHOWN` and of `REQUEST_COUNTERS`.

    What commits have noted (`committed`) is taken in when there is much of it, or somebody looks.  Thread-safe.
    """

    last_session_info_request: Counter
    set_low_water_mark_request: Counter
    truncate_request: Counter
    record_header_request: Counter
    record_request: Counter
    max_transaction_request: Counter
    record_header_list_request: Counter
    record_list_request: Counter

    def __init__(self, partition: int, clock: Clock = time.monotonic) -> None:
        self.partition = partition
        self._clock = clock
        self._lock = threading.Lock()
        self._noted: list[tuple[float, int, float, float]] = []  # as `committed` has it; appended to without the lock
        self._append = Meter(clock)
        self._append_latency, self._flush_latency, self._flush_requests = Timer(clock), Timer(clock), Histogram(clock)
        for name in REQUEST_COUNTERS:
            setattr(self, name, Counter())

    @property
    def append(self) -> Meter:
        """Append requests that were admitted."""
        self._take_in()
        return self._append

    @property
    def append_latency(self) -> Timer:
        """From an append request's arrival to its answer."""
        self._take_in()
        return self._append_latency

    @property
    def flush_latency(self) -> Timer:
        """One write and flush, shared by a group of appends."""
        self._take_in()
        return self._flush_latency

    @property
    def flush_requests(self) -> Histogram:
        """Append requests that a flush made durable."""
        self._take_in()
        return self._flush_requests

    def committed(self, requests: int, waited: float, seconds: float) -> None:
        """So many append requests share one write and flush of so many seconds, and were answered `waited` after they came."""
        self._noted.append((waited, requests, seconds, self._clock()))
        if len(self._noted) >= NOTED:
            self._take_in()

    def _take_in(self) -> None:
        with self._lock:  # whoever looks waits for what another thread is taking in
            noted = self._noted.copy()
            if not noted:
                return
            del self._noted[: len(noted)]
            waited, requests, seconds, times = np.array(noted, np.float64).T
            self._append.mark_all(requests, times)
            self._append_latency.update_all(waited, requests, times)
            once = np.ones(len(times))
            self._flush_latency.update_all(seconds, once, times)
            self._flush_requests.update_all(requests, once, times)

    def counters(self) -> dict[str, Counter]:
        """The counters of requests by the release's names."""
        return {name.replace("_", "-"): getattr(self, name) for name in REQUEST_COUNTERS}


@dataclass(frozen=True, slots=True)
class ShownMetric:
    """A metric of a partition, and how Prometheus has it: `name` without prefix and unit, `text` its help.

    A Timer is a histogram of seconds, of a Histogram the sum is a counter.
    """

    attribute: str
    kind: type[Timer | Histogram]
    name: str
    text: str


SHOWN = (
    ShownMetric("append_latency", Timer, "append_latency", "From an append request's arrival to its answer"),
    ShownMetric("flush_latency", Timer, "flush_latency", "One write and flush, shared by a group of appends"),
    ShownMetric("flush_requests", Histogram, "flushed_append_requests", "Append requests that a flush made durable"),
)
"""Beside the counters of requests.  The release's JSON has the first of them only."""
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
"""Attributes of `NodePartitionMetrics` that count requests; the release's names have hyphens instead of underscores."""


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
        self._partitions: dict[int, NodePartitionMetrics] = {}

    def partition(self, partition: int) -> NodePartitionMetrics:
        """The metrics of a partition; they begin with the first call."""
        with self._lock:
            found = self._partitions.get(partition)
            if found is None:
                found = self._partitions[partition] = NodePartitionMetrics(partition, self._clock)
            return found

    def forget(self, partition: int) -> None:
        """Drop a partition's metrics: it is no longer loaded.  Whoever still holds them counts for nobody."""
        with self._lock:
            self._partitions.pop(partition, None)

    def partitions(self) -> Mapping[int, NodePartitionMetrics]:
        """All partitions with metrics, in ascending order; a copy."""
        with self._lock:
            return dict(sorted(self._partitions.items()))
