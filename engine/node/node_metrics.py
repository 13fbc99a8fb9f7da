"""What a node counts, of each partition and of itself, under the names of release 0.13.2."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields

from waltzctl.engine.net.metrics import Clock, Counter, Histogram, Meter, Timer
from waltzctl.formats.control import FLAG_AVAILABLE


class NodePartitionMetrics:
    """What is counted of one partition while it is loaded: an attribute for each of `SHOWN` and of `REQUEST_COUNTERS`."""

    append: Meter
    append_latency: Timer
    flush_latency: Timer
    flush_requests: Histogram
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
        self.append = Meter(clock)
        for one in SHOWN:
            setattr(self, one.attribute, one.kind(clock))
        for name in REQUEST_COUNTERS:
            setattr(self, name, Counter())

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
