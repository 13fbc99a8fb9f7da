"""A node's metrics as metric families for Prometheus.

Names begin with ``waltz_storage_``, units are base units, a partition's number is the label ``partition``.  Latencies are
histograms with fixed buckets, so that they can be summed over nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from waltzctl.engine.net.metrics import Timer
from waltzctl.engine.net.prometheus import add_buckets
from waltzctl.engine.node.node_metrics import REQUEST_COUNTERS, SHOWN
from waltzctl.engine.node.readings import NodePartitionReading, NodeReading

if TYPE_CHECKING:
    from waltzctl.engine.node.health import NodeHealthReport

_PREFIX = "waltz_storage"
_GAUGES = (
    ("session_id", "session_id", "Session in which the marks were last set"),
    ("low_water_mark", "low_water_mark", "High-water mark of the partition when that session began"),
    ("local_low_water_mark", "local_low_water_mark", "Last transaction of this node when that session began"),
    ("max_transaction_id", "max_transaction_id", "Last durable transaction"),
    ("queued_requests", "process_queue_size", "Requests that wait for the partition or are under way"),
)


@dataclass(frozen=True, slots=True)
class NodeSurroundings:
    """What is shown besides the metrics.

    `healthy`, `free_bytes`: None where unknown.  `connections`: each port's name and number of open connections.  `quarantined`,
    `failed`: partition numbers.  `journal`: whether appends are journaled; None: no commit journal is configured.
    """

    healthy: bool | None = None
    connections: Sequence[tuple[str, int]] = ()
    free_bytes: int | None = None
    quarantined: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    journal: bool | None = None

    @classmethod
    def of(cls, report: NodeHealthReport, connections: Sequence[tuple[str, int]]) -> NodeSurroundings:
        """From a health report."""
        return cls(
            healthy=report.healthy,
            connections=connections,
            free_bytes=report.disk.free_bytes,
            quarantined=frozenset(one.partition for one in report.partitions if one.quarantined),
            failed=frozenset(one.partition for one in report.partitions if one.failed),
            journal=None if report.journal is None else report.journal.fault is None,
        )


class NodeCollector(Collector):
    """Collects one reading."""

    def __init__(self, reading: NodeReading, surroundings: NodeSurroundings) -> None:
        self._reading, self._surroundings = reading, surroundings

    def describe(self) -> list[Metric]:
        """Nothing: the registry lives for one response, and needs no check for duplicate names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, each with the values of every partition."""
        yield InfoMetricFamily(_PREFIX, "The program that serves this node", {"version": self._reading.version})
        yield _gauge("partitions", "Partitions that are assigned to this node", len(self._reading.assigned))
        yield from self._surrounding_families()
        for name, attribute, text in _GAUGES:
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["partition"])
            for one in self._reading.partitions:
                gauge.add_metric([str(one.partition)], getattr(one.gauges, attribute))
            yield gauge
        yield from _flags(self._reading.partitions, self._surroundings)
        yield from _counted(self._reading.partitions)

    def _surrounding_families(self) -> Iterator[Metric]:
        surroundings = self._surroundings
        if surroundings.healthy is not None:
            yield _gauge("healthy", "Whether the last health check found nothing wrong", int(surroundings.healthy))
        if surroundings.free_bytes is not None:
            yield _gauge("disk_free_bytes", "Bytes that may still be written to the disk", surroundings.free_bytes)
        if surroundings.journal is not None:
            yield _gauge("journal", "Whether appends are made durable by the commit journal", int(surroundings.journal))
        connections = GaugeMetricFamily(f"{_PREFIX}_connections", "Open connections", labels=["port"])
        for port, count in surroundings.connections:
            connections.add_metric([port], count)
        yield connections


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _flags(partitions: Sequence[NodePartitionReading], surroundings: NodeSurroundings) -> Iterator[Metric]:
    available = GaugeMetricFamily(f"{_PREFIX}_available", "Whether it may be read and written", labels=["partition"])
    quarantined = GaugeMetricFamily(
        f"{_PREFIX}_quarantined", "Whether damage closed it to writes", labels=["partition"]
    )
    failed = GaugeMetricFamily(f"{_PREFIX}_failed", "Whether a disk error closed it to writes", labels=["partition"])
    out = GaugeMetricFamily(
        f"{_PREFIX}_out_of_service", "Whether damage or the disk keeps it out of sessions", labels=["partition"]
    )
    for one in partitions:
        label = [str(one.partition)]
        out.add_metric(label, int(one.out_of_service is not None))
        available.add_metric(label, int(one.gauges.available))
        quarantined.add_metric(label, int(one.partition in surroundings.quarantined))
        failed.add_metric(label, int(one.partition in surroundings.failed))
    yield from (available, quarantined, failed, out)


def _counted(partitions: Sequence[NodePartitionReading]) -> Iterator[Metric]:
    for shown in SHOWN:
        counted = [(str(one.partition), getattr(one.metrics, shown.attribute)) for one in partitions]
        if shown.kind is Timer:
            latency = HistogramMetricFamily(f"{_PREFIX}_{shown.name}_seconds", shown.text, labels=["partition"])
            for label, timer in counted:
                add_buckets(latency, label, timer.buckets())
            yield latency
        else:
            total = CounterMetricFamily(f"{_PREFIX}_{shown.name}", shown.text, labels=["partition"])
            for label, histogram in counted:
                total.add_metric([label], histogram.sum)
            yield total
    requests = CounterMetricFamily(f"{_PREFIX}_requests", "Requests by kind", labels=["partition", "request"])
    for one in partitions:
        label = str(one.partition)
        requests.add_metric([label, "append"], one.metrics.append.count)
        for name in REQUEST_COUNTERS:
            kind = name.removesuffix("_request").replace("_", "-")
            requests.add_metric([label, kind], getattr(one.metrics, name).count)
    yield requests
