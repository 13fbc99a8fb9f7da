"""The state that a node reports: its metrics, and its partitions as assembled from metrics and other responses.

The metrics are a JSON document, the metric registry of release 0.13.2: under ``gauges``, ``counters``, ``meters``, ``timers`` and
``histograms`` an object for each metric, named ``waltz-storage.NAME`` or ``waltz-storage.partition-P.NAME``.  Times are in
nanoseconds.  A value that is missing or not a number is read as None.  Integers are read in full (the release's tool cuts them to
32 bits: weakness T5).
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.errors import InvalidRequestError, ProtocolError, RefusedError, RemoteError
from waltzctl.engine.node.readings import CLUSTER_KEY, CLUSTER_PARTITIONS, OUT_OF_SERVICE
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, MAX_PARTITIONS
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.records import SessionInfo

_GROUP = re.compile(r"waltz-storage\.partition-([0-9]{1,10})\.(.+)", re.ASCII)
_KINDS = ("gauges", "counters", "meters", "timers", "histograms")
_NANOSECOND = 1e-9
_NOT_OPENED = (FailureCode.IO_ERROR, FailureCode.SYNC_FAILED)
"""What may have kept a node from reading a partition when it was opened; on a full disk it is read."""
_DAMAGED = (FailureCode.QUARANTINED, FailureCode.DAMAGED)
_RATES = {
    "mean": "meanRate",
    "one_minute": "oneMinuteRate",
    "five_minutes": "fiveMinuteRate",
    "fifteen_minutes": "fifteenMinuteRate",
}
_SAMPLE = {
    "min": "min",
    "mean": "mean",
    "max": "max",
    "stddev": "stdDev",
    "p50": "median",
    "p75": "75thPercentile",
    "p95": "95thPercentile",
    "p98": "98thPercentile",
    "p99": "99thPercentile",
    "p999": "999thPercentile",
}


@dataclass(frozen=True, slots=True)
class EventRates:
    """Events per second; None: not reported."""

    mean: float | None
    one_minute: float | None
    five_minutes: float | None
    fifteen_minutes: float | None


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of the sampled values; of a timer in seconds.  None: not reported."""

    min: float | None
    mean: float | None
    max: float | None
    stddev: float | None
    p50: float | None
    p75: float | None
    p95: float | None
    p98: float | None
    p99: float | None
    p999: float | None


@dataclass(frozen=True, slots=True)
class MetricReading:
    """One metric.

    `name`: without its group.  `partition`: None for a metric of the node itself.  `kind`: gauge, counter, meter, timer or
    histogram.  `value`: of a gauge, a number, a text or a list of numbers.  `count`: of all other kinds.
    """

    name: str
    partition: int | None
    kind: str
    value: int | float | str | tuple[int, ...] | None
    count: int | None
    rates: EventRates | None
    distribution: Distribution | None


@dataclass(frozen=True, slots=True)
class PartitionReading:
    """The state of a node's partition as the node reports it; None: not reported.

    `available`: whether reads and writes are both switched on; `readable` and `writable` are only known when they are.
    """

    partition: int
    assigned: bool | None
    available: bool | None
    readable: bool | None
    writable: bool | None
    session_id: int | None
    low_water_mark: int | None
    local_low_water_mark: int | None
    last_transaction_id: int | None
    queued_requests: int | None
    out_of_service: str | None = None
    """The failure code that keeps the partition out of sessions; None: nothing does, or not reported."""
    truncations: int | None = None
    """Truncate requests that were executed since the partition was opened; None: not reported."""

    @property
    def unread(self) -> bool:
        """Whether the node has no transaction of the partition to give, for an error of the disk with which it was opened."""
        return self.last_transaction_id == -1 and self.out_of_service in _NOT_OPENED

    @property
    def damaged(self) -> bool:
        """Whether damage keeps it out of sessions; records behind it may be there, or lost, and the node gives none of them."""
        return self.out_of_service in _DAMAGED

    @property
    def why_absent(self) -> str | None:
        """Why the partition takes part in no session, for people; None when nothing that the node reports prevents it."""
        if self.assigned is False:
            return "the node does not hold it"
        if self.available is False:
            return "switched off"
        return None if self.out_of_service is None else f"out of service: {self.out_of_service}"


def parse_metrics(text: str, peer: str) -> tuple[MetricReading, ...]:
    """All metrics of the document, by kind, then by name.  Raises ProtocolError when it is not a metrics document."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(peer, f"the metrics are no JSON document: {str(error) or type(error).__name__}") from None
    if not isinstance(document, dict) or not any(isinstance(document.get(kind), dict) for kind in _KINDS):
        raise ProtocolError(peer, "the metrics are not those of a storage node")
    return tuple(_metrics(document))


def _metrics(document: dict[str, Any]) -> Iterator[MetricReading]:
    for kind in _KINDS:
        named = document.get(kind)
        if not isinstance(named, dict):
            continue
        for full_name, value in sorted(named.items()):
            if isinstance(value, dict):
                match = _GROUP.fullmatch(full_name)
                partition = int(match[1]) if match else None
                name = match[2] if match else full_name.removeprefix("waltz-storage.")
                yield _metric(kind.removesuffix("s"), name, partition, value)


def _metric(kind: str, name: str, partition: int | None, value: dict[str, Any]) -> MetricReading:
    rates = sample = None
    if kind in ("meter", "timer"):
        rates = EventRates(**{ours: _number(value.get(theirs)) for ours, theirs in _RATES.items()})
    if kind in ("timer", "histogram"):
        found = value.get("snapshot")
        snapshot: dict[str, Any] = found if isinstance(found, dict) else {}
        scale = _NANOSECOND if kind == "timer" else 1
        sample = Distribution(**{ours: _number(snapshot.get(theirs), scale) for ours, theirs in _SAMPLE.items()})
    gauge = kind == "gauge"
    return MetricReading(
        name,
        partition,
        kind,
        _gauge(value.get("value")) if gauge else None,
        None if gauge else _whole(value.get("count")),
        rates,
        sample,
    )


def _gauge(value: Any) -> int | float | str | tuple[int, ...] | None:
    if isinstance(value, list):
        return tuple(whole for one in value if (whole := _whole(one)) is not None)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str) else _whole(value)


def _whole(value: Any) -> int | None:
    """A whole number of at most 64 bits, the longest that Java has."""
    fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value if fits else None


def _number(value: Any, scale: float = 1) -> float | None:
    number = value if isinstance(value, float) else _whole(value)  # a longer one may be no float
    return None if number is None or not math.isfinite(number) else float(number * scale)


async def read_partitions(
    client: AdminClient, partitions: Collection[int] | None = None
) -> tuple[PartitionReading, ...]:
    """The partitions assigned to the node, ascending; or exactly `partitions`, including those not assigned to it.

    Combines three responses: the assigned partitions, the metrics, and a partition's session info where the metrics lack it.
    Raises what the calls raise.
    """
    statuses = dict(await client.assigned_status())
    metrics = parse_metrics(await client.metrics(), str(client.address))
    gauges, outages, truncations = _gauges(metrics), _outages(metrics), _truncations(metrics)
    wanted = sorted(statuses if partitions is None else set(partitions))
    found = [await _partition(client, number, statuses, gauges.get(number, {})) for number in wanted]
    return tuple(
        replace(one, out_of_service=outages.get(one.partition), truncations=truncations.get(one.partition))
        for one in found
    )


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The properties that identify a cluster."""

    cluster_key: uuid.UUID
    num_partitions: int


async def read_cluster(client: AdminClient) -> ClusterIdentity | None:
    """The cluster that the node belongs to; None: not reported (by a released node).  Raises what the call raises."""
    told = {
        metric.name: metric.value
        for metric in parse_metrics(await client.metrics(), str(client.address))
        if metric.kind == "gauge" and metric.partition is None
    }
    key, count = told.get(CLUSTER_KEY), told.get(CLUSTER_PARTITIONS)
    if not isinstance(key, str) or not isinstance(count, int) or not 0 < count <= MAX_PARTITIONS:
        return None
    try:
        return ClusterIdentity(uuid.UUID(key), count)
    except ValueError:
        return None


def _gauges(metrics: tuple[MetricReading, ...]) -> dict[int, dict[str, int]]:
    gauges: dict[int, dict[str, int]] = {}
    for metric in metrics:
        if metric.kind == "gauge" and metric.partition is not None and isinstance(metric.value, int):
            gauges.setdefault(metric.partition, {})[metric.name] = metric.value
    return gauges


def _truncations(metrics: tuple[MetricReading, ...]) -> dict[int, int]:
    return {
        metric.partition: metric.count
        for metric in metrics
        if metric.partition is not None and metric.name == "truncate-request" and metric.count is not None
    }


def _outages(metrics: tuple[MetricReading, ...]) -> dict[int, str]:
    return {
        metric.partition: metric.value
        for metric in metrics
        if metric.partition is not None and metric.name == OUT_OF_SERVICE and isinstance(metric.value, str)
    }


async def _partition(
    client: AdminClient, number: int, statuses: dict[int, bool], gauges: dict[str, int]
) -> PartitionReading:
    if number not in statuses:
        return PartitionReading(number, False, None, None, None, None, None, None, None, None)
    flags = gauges.get("flags")
    available = statuses[number] if flags is None else bool(flags & FLAG_AVAILABLE)
    assigned = True if flags is None else bool(flags & FLAG_ASSIGNED)
    session, mark, local = (gauges.get(name) for name in ("session-id", "low-water-mark", "local-low-water-mark"))
    if session is None or mark is None or local is None:
        info = await _session(client, number)
        if info is not None:
            session, mark, local = info.session_id, info.low_water_mark, info.local_low_water_mark
    return PartitionReading(
        partition=number,
        assigned=assigned,
        available=available,
        readable=True if available else None,
        writable=True if available else None,
        session_id=session,
        low_water_mark=mark,
        local_low_water_mark=local,
        last_transaction_id=gauges.get("max-transaction-id"),
        queued_requests=gauges.get("process-queue-size"),
    )


async def _session(client: AdminClient, number: int) -> SessionInfo | None:
    try:
        return await client.session_info(number)
    except RemoteError as error:
        if error.code == FailureCode.NOT_ASSIGNED:
            return None  # the partition was taken away in between
        raise


def need_read(reading: PartitionReading, place: object) -> None:
    """Raise RefusedError if the node at `place` has nothing of the partition to give (`PartitionReading.unread`)."""
    if reading.unread:
        raise RefusedError(
            f"{place}: the node gives no transaction of partition {reading.partition}, which is out of service:"
            f" {reading.out_of_service}",
            advice="look after its disk, then restart the node, or switch the partition off and on again",
        )


def need_assigned(readings: Collection[PartitionReading], peer: str) -> None:
    """Raise InvalidRequestError unless every partition is assigned to the node."""
    missing = [str(reading.partition) for reading in readings if not reading.assigned]
    if missing:
        raise InvalidRequestError(
            f"{peer}: not assigned to this node: partition{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            advice="waltzctl node HOST:PORT list shows which are",
        )
