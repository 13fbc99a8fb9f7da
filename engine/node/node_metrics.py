"""The metrics of a node and of each of its partitions, under the names of release 0.13.2."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from waltzctl.engine.net.metrics import Clock, Counter, Histogram, Meter, Timer
from waltzctl.formats.control import FLAG_AVAILABLE

NOTED = 256
"""Rows of a partition that are buffered before they are added to the metrics; adding one takes as long as adding all."""
_Row = tuple[float, int, int, float, int, float]
"""Seconds that admitted appends waited, and how many; appends tried; seconds of a flush, and its appends (0: no flush); time."""


class NodePartitionMetrics:
    """The metrics of one assigned partition: an attribute for each of `SHOWN` and of `REQUEST_COUNTERS`.

    `committed` and `answered` only buffer their arguments, because one of them is called for every commit; they are added to the
    metrics when `NOTED` rows are buffered, or a metric is read.  Thread-safe.
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
        self._buffered: list[_Row] = []  # appended to without the lock
        self._append = Meter(clock)
        self._append_latency, self._flush_latency, self._flush_requests = Timer(clock), Timer(clock), Histogram(clock)
        for name in REQUEST_COUNTERS:
            setattr(self, name, Counter())

    @property
    def append(self) -> Meter:
        """Append requests that passed the permission checks."""
        self._add_buffered()
        return self._append

    @property
    def append_latency(self) -> Timer:
        """Seconds from an append request's arrival to its answer."""
        self._add_buffered()
        return self._append_latency

    @property
    def flush_latency(self) -> Timer:
        """Seconds of one write and flush, which a group of appends shares."""
        self._add_buffered()
        return self._flush_latency

    @property
    def flush_requests(self) -> Histogram:
        """Append requests per flush."""
        self._add_buffered()
        return self._flush_requests

    def committed(self, requests: int, waited: float, seconds: float) -> None:
        """Count `requests` appends that shared a write and flush of `seconds`, answered `waited` seconds after arrival."""
        self._buffer([(waited, requests, requests, seconds, requests, self._clock())])

    def answered(self, waits: Sequence[tuple[float, int]], tried: int, flushed: float | None) -> None:
        """Count appends that were judged together.

        `waits`: seconds from the arrival of admitted appends to their answer, and how many; `tried`: all that count as appends,
        the refused ones included; `flushed`: seconds of the write and flush that the admitted ones shared, None without one.
        """
        now = self._clock()
        rows: list[_Row] = [(waited, requests, 0, 0.0, 0, now) for waited, requests in waits]
        admitted = sum(requests for _, requests in waits)
        rows.append((0.0, 0, tried, flushed or 0.0, admitted if flushed is not None else 0, now))
        self._buffer(rows)

    def _buffer(self, rows: list[_Row]) -> None:
        self._buffered.extend(rows)
        if len(self._buffered) >= NOTED:
            self._add_buffered()

    def _add_buffered(self) -> None:
        with self._lock:  # a reader waits until another thread has added the buffer
            buffered = self._buffered.copy()
            if not buffered:
                return
            del self._buffered[: len(buffered)]
            waited, requests, tried, seconds, flushed, times = np.array(buffered, np.float64).T
            self._append.mark_all(tried, times)
            self._append_latency.update_all(waited, requests, times)
            if (flushes := flushed > 0).any():
                once = np.ones(int(flushes.sum()))
                self._flush_latency.update_all(seconds[flushes], once, times[flushes])
                self._flush_requests.update_all(flushed[flushes], once, times[flushes])

    def counters(self) -> dict[str, Counter]:
        """The counters of requests by the release's names."""
        return {name.replace("_", "-"): getattr(self, name) for name in REQUEST_COUNTERS}


@dataclass(frozen=True, slots=True)
class ShownMetric:
    """A metric of a partition as Prometheus shows it: `name` without prefix and unit; `text`: its help.

    A Timer is shown as a histogram in seconds; a Histogram as a counter of its sum.
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
"""All metrics except the counters of requests.  The release's JSON has only the first one."""
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
    """The gauges of one partition.  The names are the release's, with hyphens instead of underscores."""

    flags: int
    local_low_water_mark: int
    low_water_mark: int
    max_transaction_id: int
    process_queue_size: int
    sequence_number: int
    session_id: int

    @property
    def available(self) -> bool:
        """Whether the flag *available* is set."""
        return bool(self.flags & FLAG_AVAILABLE)

    def items(self) -> list[tuple[str, int]]:
        """Names and values."""
        return [(field.name.replace("_", "-"), getattr(self, field.name)) for field in fields(self)]


class NodeMetrics:
    """The metrics of all partitions of a node.  Thread-safe."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._partitions: dict[int, NodePartitionMetrics] = {}

    def partition(self, partition: int) -> NodePartitionMetrics:
        """The metrics of a partition, made at the first call."""
        with self._lock:
            found = self._partitions.get(partition)
            if found is None:
                found = self._partitions[partition] = NodePartitionMetrics(partition, self._clock)
            return found

    def forget(self, partition: int) -> None:
        """Drop the metrics of a partition that is unassigned.  A service that still holds them counts without effect."""
        with self._lock:
            self._partitions.pop(partition, None)

    def partitions(self) -> Mapping[int, NodePartitionMetrics]:
        """All partitions with metrics, in ascending order; a copy."""
        with self._lock:
            return dict(sorted(self._partitions.items()))
