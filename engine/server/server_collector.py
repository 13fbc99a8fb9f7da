"""A log server's metrics as families for Prometheus.

Names begin with ``waltz_server_``, units are base units, a partition's number is the label ``partition``.  Latencies are
histograms with fixed buckets, which add up over servers.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from waltzctl.engine.net.prometheus import add_buckets
from waltzctl.engine.server.server_health import ServerHealthReport
from waltzctl.engine.server.server_metrics import ServerReading

_PREFIX = "waltz_server"
_GAUGES = (
    ("generation", "generation", "Generation under which the partition is served"),
    ("session_id", "session_id", "Store session of the partition"),
    ("high_water_mark", "high_water_mark", "Last committed transaction"),
    ("queued_appends", "queued", "Appends that were not sent to storage yet"),
    ("undecided_appends", "undecided", "Appends that are under way to storage"),
)


class ServerCollector(Collector):
    """One reading as metric families."""

    def __init__(self, reading: ServerReading, report: ServerHealthReport) -> None:
        self._reading, self._report = reading, report

    def describe(self) -> list[Metric]:
        """Nothing: the registry lives for one answer."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, each with every partition."""
        reading = self._reading
        info = {"version": reading.version, "cluster": reading.cluster, "endpoint": reading.endpoint}
        yield InfoMetricFamily(_PREFIX, "The program that serves here", info)
        yield _gauge("healthy", "Whether nothing is wrong", int(self._report.healthy))
        yield _gauge("metadata_connected", "Whether the metadata answers", int(self._report.metadata))
        yield _gauge("id", "Id of this server in its cluster", reading.server_id)
        yield _gauge("partitions", "Partitions that are served here", len(reading.partitions))
        yield _gauge("connections", "Open connections of clients", reading.connections)
        cached = GaugeMetricFamily(f"{_PREFIX}_cached_bytes", "Memory of the caches", labels=["cache"])
        missed = CounterMetricFamily(
            f"{_PREFIX}_cache_misses", "Reads that the caches could not answer", labels=["cache"]
        )
        for name, size, misses in zip(
            ("headers", "data"), reading.cached, (reading.feed_misses, reading.data_misses), strict=True
        ):
            cached.add_metric([name], size)
            missed.add_metric([name], misses.count)
        yield from (cached, missed)
        for name, attribute, text in _GAUGES:
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["partition"])
            for one in reading.partitions:
                gauge.add_metric([str(one.partition)], getattr(one, attribute))
            yield gauge
        yield from self._counted()

    def _counted(self) -> Iterator[Metric]:
        recovering = GaugeMetricFamily(
            f"{_PREFIX}_recovering_seconds",
            "How long the partition has had no session; 0 while it has",
            labels=["partition"],
        )
        outcomes = CounterMetricFamily(
            f"{_PREFIX}_appends", "Appends by their outcome", labels=["partition", "outcome"]
        )
        latency = HistogramMetricFamily(
            f"{_PREFIX}_append_latency_seconds", "From an append's arrival to its commitment", labels=["partition"]
        )
        for one in self._reading.partitions:
            label = str(one.partition)
            recovering.add_metric([label], one.recovering_seconds or 0.0)
            outcomes.add_metric([label, "committed"], one.metrics.committed.count)
            outcomes.add_metric([label, "rejected"], one.metrics.rejected.count)
            add_buckets(latency, label, one.metrics.latency.buckets())
        yield from (recovering, outcomes, latency)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)
