"""The objects about nodes: partitions, sessions, metrics, checks of their ports, and plans for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from waltzctl.engine.columns.column import ABSENT, Column, ColumnKind, Object, ObjectType, Stands, or_null
from waltzctl.engine.columns.column_kinds import BOOLEAN, COUNT, COUNT32, INT64, INTEGER, TEXT, one_of
from waltzctl.engine.columns.plan_columns import ARGUMENTS, PLAN, STEP
from waltzctl.objects.command_kinds import ADDRESS
from waltzctl.values import printable

if TYPE_CHECKING:
    from waltzctl.engine.client.change_plan import NodePlan
    from waltzctl.engine.errors import WaltzError
    from waltzctl.engine.net.addresses import Address
    from waltzctl.formats.wire.records import SessionInfo

_NODE = Column("node", ADDRESS, "the node's admin port", given=True)
_PARTITION = Column("partition", COUNT32, "the partition", title="P")


def _online(shown: Object) -> str:
    if not shown["assigned"]:
        return "not assigned"
    return {None: "?", True: "yes", False: "no"}[shown["available"]]


NODE_PARTITION = ObjectType(
    name="node-partition",
    meaning="A partition as a node tells it (node list); what it does not tell is null.",
    columns=(
        _NODE,
        _PARTITION,
        Column("online", TEXT, stands=Stands.TABLE_ONLY, title="ONLINE", cell=_online),
        Column("assigned", or_null(BOOLEAN), "whether it is this node's"),
        Column(
            "available",
            or_null(BOOLEAN.described("Reads and writes are both on.")),
            "whether reads and writes are both on",
        ),
        Column("readable", or_null(BOOLEAN), "whether reads are on"),
        Column("writable", or_null(BOOLEAN), "whether writes are on"),
        Column("session_id", or_null(INT64), "the last session; -1: none", title="SESSION"),
        Column("low_water_mark", or_null(INT64), "its low-water mark", title="MARK"),
        Column("local_low_water_mark", or_null(INT64), "its local low-water mark", title="LOCAL"),
        Column(
            "last_transaction_id",
            or_null(INT64.described("-1 where there is none.")),
            "its last transaction",
            title="LAST",
        ),
        Column("queued_requests", or_null(INTEGER), "requests that wait", title="QUEUED"),
        Column(
            "out_of_service",
            or_null(TEXT.described("The failure code of what keeps it out of sessions, such as disk-full.")),
            "what keeps it out of sessions",
            title="OUT",
        ),
    ),
)

NODE_SESSION = ObjectType(
    name="node-session",
    meaning="The last session of a partition of a node (node session); -1 each where there was none.",
    columns=(
        _NODE,
        Column("partition", COUNT32, "the partition", given=True, title="P"),
        Column("session_id", INT64, "the session", title="SESSION"),
        Column("low_water_mark", INT64, "its low-water mark", title="MARK"),
        Column("local_low_water_mark", INT64, "its local low-water mark", title="LOCAL"),
    ),
)


def node_session_object(node: Address, partition: int, info: SessionInfo) -> Object:
    """**node-session**."""
    return NODE_SESSION.shown(info, node=str(node), partition=partition)


MAX_TRANSACTION_ID = ObjectType(
    name="max-transaction-id",
    meaning="The last transaction of a partition of a node, -1 where there is none (node max-transaction-id).",
    columns=(
        _NODE,
        _PARTITION,
        Column("session_id", INT64, "the session that was asked for", title="SESSION"),
        Column("max_transaction_id", INT64, "the last transaction; -1: none", title="LAST"),
        Column("offline", BOOLEAN, "whether it was asked of a partition that is switched off"),
    ),
)


def max_transaction_id_object(
    node: Address, partition: int, session_id: int, transaction_id: int, *, offline: bool
) -> Object:
    """**max-transaction-id**.  -1 is the protocol's own value for a partition without transactions."""
    said = SimpleNamespace(
        partition=partition, session_id=session_id, max_transaction_id=transaction_id, offline=offline
    )
    return MAX_TRANSACTION_ID.shown(said, node=str(node))


def _works(shown: Object) -> str:
    return "yes" if shown["ok"] else "NO"


NODE_PORT = ObjectType(
    name="node-port",
    meaning="Whether a port of a node answers and belongs to the cluster (node validate).",
    columns=(
        Column("node", ADDRESS, "the address of the port", given=True, title="ADDRESS"),
        Column("port", one_of("data", "admin"), "data or admin", title="PORT"),
        Column("tls", BOOLEAN, "whether it was asked through TLS"),
        Column("ok", BOOLEAN, "whether it answers and belongs to the cluster", title="OK", cell=_works),
        Column(
            "code",
            or_null(TEXT.described("The node's word for what is wrong, where it has one.")),
            "the node's word for what is wrong",
        ),
        Column("message", or_null(TEXT), "what is wrong, in words (not stable)", title="WHY NOT"),
    ),
    leading=("port",),
)


def node_port_object(node: Address, port: str, tls: bool, error: WaltzError | None) -> Object:
    """**node-port**.  `port`: data or admin; `code`: the node's error code, if it sent one."""
    said = SimpleNamespace(
        port=port,
        tls=tls,
        ok=error is None,
        code=getattr(error, "code", None),
        message=None if error is None else error.message,
    )
    return NODE_PORT.shown(said, node=str(node))


def _amount(shown: Object) -> str:
    value = shown["count"] if shown["value"] is None else shown["value"]
    if isinstance(value, list):
        return printable(",".join(map(str, value)))
    return "-" if value is None else printable(str(value))


_FIGURE = or_null(ColumnKind("number", {"type": "number"}))
_TITLES = {"m1_rate": "1/S", "p50": "P50", "p99": "P99", "max": "MAX"}


def _figure(column: str, part: str, attribute: str, meaning: str) -> Column:
    """A column of a value that not every kind of metric has."""

    def read(metric: Any) -> Any:
        found = getattr(metric, part)
        return found and getattr(found, attribute)

    def cell(shown: Object) -> str:
        value = shown[column]
        return "-" if value is None else f"{value:.4g}"

    return Column(column, _FIGURE, meaning, read=read, title=_TITLES.get(column, ""), cell=cell)


_RATES = (
    ("mean_rate", "mean"),
    ("m1_rate", "one_minute"),
    ("m5_rate", "five_minutes"),
    ("m15_rate", "fifteen_minutes"),
)
_SAMPLE = ("min", "mean", "max", "stddev", "p50", "p75", "p95", "p98", "p99", "p999")

NODE_METRIC = ObjectType(
    name="node-metric",
    meaning=(
        "A metric of a node (node metrics): a gauge has a value, all others a count. Seconds, and events a second."
    ),
    columns=(
        _NODE,
        Column("partition", or_null(COUNT.described("Null for the node's own.")), "the partition", title="P"),
        Column("name", TEXT, "the metric", title="NAME"),
        Column("kind", one_of("gauge", "counter", "meter", "timer", "histogram"), "what it is", title="KIND"),
        Column(
            "value",
            ColumnKind("any of several", {"type": ["number", "string", "array", "null"], "items": INTEGER.schema}),
            "a gauge's",
            title="VALUE",
            cell=_amount,
        ),
        Column("count", or_null(INTEGER), "of all others"),
        *(_figure(name, "rates", attribute, "events a second") for name, attribute in _RATES),
        *(_figure(name, "distribution", name, "of the sampled values, in seconds for a timer") for name in _SAMPLE),
    ),
)


def node_plan_object(plan: NodePlan) -> Object:
    """**plan**, of a node: `path` is its URL, also that of the steps; `replicas` the node from which records are copied."""
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
