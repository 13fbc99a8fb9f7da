"""The objects of the actions of ``cluster`` other than findings: the metadata, and plans of changes."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from waltzctl.engine.columns.column import ABSENT, Column, Columns, Object, ObjectType, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import BOOLEAN, COUNT, COUNT32, INT32, INT64, KEY, TEXT, TIME
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.columns.plan_columns import ARGUMENTS, PLAN, STEP
from waltzctl.engine.findings import CATALOGUE, Code, Finding
from waltzctl.objects.command_kinds import PORT, RATE

if TYPE_CHECKING:
    from waltzctl.engine.cluster.cluster_plan import ClusterPlan
    from waltzctl.engine.cluster.quorum_recovery import Forecast, RecoveryPlan
    from waltzctl.engine.cluster.synchronisation import SyncPlan

_NODE = Columns(
    (
        Column("node", TEXT, "HOST:PORT of its data port, by which it is known"),
        Column("admin_port", or_null(PORT), "its admin port; null where the metadata does not say"),
        Column("group", or_null(INT32), "its group; null where the metadata does not say"),
        Column("partitions", listed(INT32), "the partitions that it is to hold"),
    )
)
_OWNED = Columns(
    (
        Column("partition", INT32, "the partition"),
        Column("generation", INT32, "how often it has changed servers, from 1"),
    )
)
_SERVER = Columns(
    (
        Column("server_id", INT32, "its id"),
        Column("endpoint", TEXT, "HOST:PORT where clients find it"),
        Column("preferred", listed(INT32), "the partitions that it would like"),
        Column("partitions", listed(struct(_OWNED)), "those that it has"),
    )
)
_REPLICA = Columns(
    (
        Column("node", TEXT, "the storage node"),
        Column("session_id", INT64, "the last session that it took part in; -1: none"),
        Column("closing_high_water_mark", or_null(INT64), "up to where it is right; null while unresolved"),
    )
)
_PARTITION = Columns(
    (
        Column("partition", INT32, "the partition"),
        Column("generation", INT32, "of the server that had it last; -1: none"),
        Column("session_id", INT64, "its last session; -1: none"),
        Column("replicas", listed(struct(_REPLICA)), "its replicas in that session"),
    )
)


_VOTER = Columns(
    (
        Column("node", TEXT, "the storage node"),
        Column("last_transaction_id", INT64, "its last transaction; -1: none"),
    )
)

CLUSTER_STATE = ObjectType(
    name="cluster-state",
    meaning="What a cluster's metadata says (cluster show).",
    columns=(
        Column("name", TEXT, "the cluster's name"),
        Column("cluster_key", KEY, "its key"),
        Column("num_partitions", COUNT32, "how many partitions it has"),
        Column("nodes", listed(struct(_NODE)), "its storage nodes"),
        Column("servers", listed(struct(_SERVER)), "the log servers that live"),
        Column("partitions", listed(struct(_PARTITION)), "its partitions"),
    ),
)

CLUSTER_KEY = ObjectType(
    name="cluster-key",
    meaning="What tells a cluster from another (cluster key).",
    columns=(
        Column("cluster_key", KEY, "its key"),
        Column("num_partitions", COUNT32, "how many partitions it has"),
    ),
)

CLUSTER_CREATED = ObjectType(
    name="cluster-created",
    meaning="What cluster create made.",
    columns=(
        Column("name", TEXT, "the cluster's name"),
        Column("cluster_key", KEY, "its key"),
        Column("num_partitions", COUNT, "how many partitions it has"),
        Column("metadata", TEXT, "where its metadata is"),
    ),
)


def _steps(plan: ClusterPlan) -> list[Object]:
    return [
        STEP.keys(
            step,
            path=plan.where if step.node is None else step.node,
            from_transaction_id=None,
            to_transaction_id=None,
            offset=None,
            length=None,
        )
        for step in plan.steps
    ]


def cluster_plan_object(plan: ClusterPlan) -> Object:
    """**plan**, of metadata: `path` is its location, that of a step the storage node."""
    return PLAN.shown(plan, path=plan.where, steps=_steps(plan), undecided=[], arguments=_arguments(plan))


def sync_plan_object(plan: SyncPlan, where: str) -> Object:
    """**plan**, of several nodes: `path` is the metadata's location, that of a step the node's URL."""
    steps = [
        STEP.keys(step, path=one.address.url, offset=None, length=None) for one in plan.plans for step in one.steps
    ]
    return PLAN.shown(plan, path=where, command="cluster sync", steps=steps, undecided=[], arguments=_arguments(plan))


FORECAST = ObjectType(
    name="recovery-forecast",
    meaning="What recovery would do with a partition that no log server has (recover --metadata).",
    columns=(
        Column("partition", COUNT32, "the partition"),
        Column("high_water_mark", or_null(INT64), "at which its session would open; null where that is undecided"),
        Column("waits_for", TEXT, "who would decide it; empty where nobody is missing"),
        Column("voters", listed(struct(_VOTER)), "the replicas that vote", given=True),
    ),
)


def forecast_object(forecast: Forecast) -> Object:
    """**recovery-forecast**."""
    voters = [{"node": node, "last_transaction_id": last} for node, last in forecast.voters]
    return FORECAST.shown(forecast, voters=voters)


def recovery_plan_object(plan: RecoveryPlan) -> Object:
    """**plan**, of a recovery over storage nodes: `path` is the metadata's location, that of a step the node."""
    steps = [STEP.keys(step, path=step.node, offset=None, length=None) for step in plan.steps]
    undecided = [
        FINDING.keys(
            Finding(
                Code.QUORUM_MISSING,
                CATALOGUE[Code.QUORUM_MISSING].severity,
                plan.where,
                f"it cannot be decided: {one.waits_for}",
                one.partition,
            )
        )
        for one in plan.forecasts
        if one.high_water_mark is None
    ]
    return PLAN.shown(plan, path=plan.where, steps=steps, undecided=undecided, arguments=_arguments(plan))


def _arguments(plan: ClusterPlan | SyncPlan | RecoveryPlan) -> Object:
    from waltzctl.engine.repair.arguments import Arguments

    touched = sorted({step.partition for step in plan.steps if step.partition is not None})
    arguments = Arguments(
        partitions=tuple(touched), replicas=(), allow_data_loss=any(step.loses_data for step in plan.steps)
    )
    return ARGUMENTS.keys(arguments, layout=ABSENT)


_REPLICA_NOW = Columns(
    (
        Column("node", TEXT, "the storage node"),
        Column(
            "last_transaction_id",
            or_null(INT64),
            "its last transaction; null where its node does not answer, or it takes no part",
        ),
        Column("behind", or_null(COUNT), "how many transactions it lacks"),
        Column("why_absent", or_null(TEXT), "why it takes no part, where its node tells; null otherwise"),
    )
)
_PARTITION_NOW = Columns(
    (
        Column("partition", COUNT32, "the partition"),
        Column("server_id", or_null(INT32), "the server that has it"),
        Column("generation", INT32, "how often it has changed servers"),
        Column("session_id", INT64, "its last session"),
        Column("high_water_mark", or_null(INT64), "its last committed transaction; null where it has no session"),
        Column("transactions_per_second", or_null(RATE), "since the object before", read=attrgetter("rate")),
        Column("healthy", BOOLEAN, "whether it has a session"),
        Column("waits_for", listed(TEXT), "storage nodes that are missing where it has none"),
        Column("replicas", listed(struct(_REPLICA_NOW)), "its replicas"),
    )
)
_UNHEARD = Columns(
    (
        Column("address", TEXT, "a storage node, as the metadata names it, or a log server"),
        Column("why", TEXT, "what went wrong, and what helps"),
    )
)

CLUSTER_TOP = ObjectType(
    name="cluster-top",
    meaning="How a cluster does (cluster top); rates since the object before.",
    columns=(
        Column("time", TIME, "now", given=True),
        Column("nodes", COUNT, "storage nodes of the metadata"),
        Column("nodes_answering", COUNT, "those that answer"),
        Column("servers", COUNT, "log servers of the metadata"),
        Column("servers_answering", COUNT, "those that answer"),
        Column("unheard", listed(struct(_UNHEARD)), "those that do not answer"),
        Column("partitions", listed(struct(_PARTITION_NOW)), "each partition"),
    ),
)
