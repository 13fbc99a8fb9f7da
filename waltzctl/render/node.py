"""The objects about nodes: partitions, sessions, metrics, checks of their ports, and plans for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waltzctl.engine.columns.column import ABSENT, Object
from waltzctl.engine.columns.plan import ARGUMENTS, PLAN, STEP
from waltzctl.render.objects import named

if TYPE_CHECKING:
    from waltzctl.engine.client.addresses import Address
    from waltzctl.engine.client.plan import NodePlan
    from waltzctl.engine.client.readings import MetricReading, PartitionReading
    from waltzctl.engine.errors import WaltzError
    from waltzctl.formats.wire.records import SessionInfo


def node_partition_object(node: Address, reading: PartitionReading) -> Object:
    """**node-partition**.  `available`: reads and writes are both on."""
    return named(
        "node-partition",
        {
            "node": str(node),
            "partition": reading.partition,
            "assigned": reading.assigned,
            "available": reading.available,
            "readable": reading.readable,
            "writable": reading.writable,
            "session_id": reading.session_id,
            "low_water_mark": reading.low_water_mark,
            "local_low_water_mark": reading.local_low_water_mark,
            "last_transaction_id": reading.last_transaction_id,
            "queued_requests": reading.queued_requests,
            "out_of_service": reading.out_of_service,
        },
    )


def node_session_object(node: Address, partition: int, info: SessionInfo) -> Object:
    """**node-session**."""
    return named(
        "node-session",
        {
            "node": str(node),
            "partition": partition,
            "session_id": info.session_id,
            "low_water_mark": info.low_water_mark,
            "local_low_water_mark": info.local_low_water_mark,
        },
    )


def max_transaction_id_object(
    node: Address, partition: int, session_id: int, transaction_id: int, *, offline: bool
) -> Object:
    """**max-transaction-id**.  -1 is the protocol's own value for a partition without transactions."""
    return named(
        "max-transaction-id",
        {
            "node": str(node),
            "partition": partition,
            "session_id": session_id,
            "max_transaction_id": transaction_id,
            "offline": offline,
        },
    )


def node_port_object(node: Address, port: str, tls: bool, error: WaltzError | None) -> Object:
    """**node-port**.  `port`: data or admin; `code`: the node's own word for why not, where it gave one."""
    return named(
        "node-port",
        {
            "node": str(node),
            "port": port,
            "tls": tls,
            "ok": error is None,
            "code": getattr(error, "code", None),
            "message": None if error is None else error.message,
        },
    )


def node_metric_object(node: Address, metric: MetricReading) -> Object:
    """**node-metric**.  Times are in seconds, rates in events a second."""
    rates, sample = metric.rates, metric.distribution
    return named(
        "node-metric",
        {
            "node": str(node),
            "partition": metric.partition,
            "name": metric.name,
            "kind": metric.kind,
            "value": metric.value,
            "count": metric.count,
            "mean_rate": rates and rates.mean,
            "m1_rate": rates and rates.one_minute,
            "m5_rate": rates and rates.five_minutes,
            "m15_rate": rates and rates.fifteen_minutes,
            "min": sample and sample.min,
            "mean": sample and sample.mean,
            "max": sample and sample.max,
            "stddev": sample and sample.stddev,
            "p50": sample and sample.p50,
            "p75": sample and sample.p75,
            "p95": sample and sample.p95,
            "p98": sample and sample.p98,
            "p99": sample and sample.p99,
            "p999": sample and sample.p999,
        },
    )


def node_plan_object(plan: NodePlan) -> Object:
    """**plan**, of a node: `path` is its URL, also that of the steps; `replicas` the node that records come from."""
    from waltzctl.engine.repair.arguments import Arguments

    url = plan.address.url
    arguments = Arguments(
        partitions=tuple(plan.partitions),
        replicas=() if plan.source is None else (plan.source.url,),
        allow_data_loss=any(step.loses_data for step in plan.steps),
    )
    return PLAN.shown(
        plan,
        path=url,
        steps=[STEP.keys(step, path=url, offset=None, length=None) for step in plan.steps],
        undecided=[],
        arguments=ARGUMENTS.keys(arguments, layout=ABSENT),
    )
