"""The objects of the actions of ``log``."""

from __future__ import annotations

from operator import attrgetter

from waltzctl.engine.columns.column import Column, Columns, Form, ObjectType, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import (
    ANYTHING,
    BASE64,
    BOOLEAN,
    CHECKSUM,
    COUNT,
    COUNT32,
    HEX,
    INT32,
    INT64,
    OFFSET,
    REQUEST_ID,
    SIZE,
    TEXT,
    one_of,
)
from waltzctl.objects.bench_objects import LATENCY
from waltzctl.objects.command_kinds import RATE, SECONDS

LOG_RECORD = ObjectType(
    name="log-record",
    meaning=(
        "A committed transaction (log tail, log get). The data's key is as in a record: with --data none there is none; with"
        " hex it is data_hex; with utf8 and json it is data, or data null and data_b64 where the bytes are not that."
    ),
    columns=(
        Column("partition", COUNT32, "the partition", title="P"),
        Column("transaction_id", COUNT, "its id", title="TRANSACTION"),
        Column(
            "request_id",
            REQUEST_ID,
            "who appended it, and where in its own order",
            title="REQUEST ID",
            cell=Form.DOTTED,
            right=False,
        ),
        Column("header", INT32, "the application's own number", title="HEADER"),
        Column("data_b64", BASE64, "its data", given=True, optional=True),
        Column("data_hex", HEX, "its data", given=True, optional=True),
        Column(
            "data",
            ANYTHING.described("Text (utf8) or any JSON value (json); null where the bytes are not that."),
            "its data",
            given=True,
            optional=True,
            title="DATA",
            cell=Form.PAYLOAD,
        ),
    ),
)

HIGH_WATER_MARK = ObjectType(
    name="high-water-mark",
    meaning="The last committed transaction of a partition (log high-water-mark).",
    columns=(
        Column("partition", COUNT32, "the partition", title="P"),
        Column("high_water_mark", INT64, "its last committed transaction; -1: none", title="HIGH-WATER MARK"),
    ),
)

LOG_LOAD = ObjectType(
    name="log-load",
    meaning="What a load of appends on a cluster measured (log bench).",
    columns=(
        Column("partitions", listed(COUNT32), "the partitions"),
        Column("transactions", COUNT, "how many were committed"),
        Column("bytes", SIZE, "their data"),
        Column("seconds", SECONDS, "how long it took"),
        Column("transactions_per_second", RATE, "the rate", given=True),
        Column("retries", COUNT, "how often an append was built again"),
        Column("latency_seconds", struct(LATENCY), "from an append to its commitment", read=attrgetter("latency")),
    ),
)

LOG_VALIDATION = ObjectType(
    name="log-validation",
    meaning="What log validate appended and found to be right.",
    columns=(
        Column("transactions", COUNT, "how many were appended and read"),
        Column("retries", COUNT, "how often somebody was faster, and the append was built again"),
        Column("seconds", SECONDS, "how long it took"),
    ),
)


_REPLICA = Columns(
    (
        Column("node", TEXT, "the storage node"),
        Column(
            "state",
            one_of("equal", "different", "damaged", "missing", "unknown"),
            "what it holds under the id, beside what most replicas hold; unknown where it does not answer",
        ),
        Column("data_checksum", or_null(CHECKSUM), "CRC-32 of its data"),
        Column("problem", or_null(TEXT), "why the node gave no record out: it is damaged, or unknown"),
        Column(
            "segment", or_null(COUNT), "first transaction of the record's segment; null where the node does not tell"
        ),
        Column("offset", or_null(OFFSET), "where the record begins in the data file of that segment"),
    )
)

LOG_TRACE = ObjectType(
    name="log-trace",
    meaning="Where a transaction is in a cluster (log trace).",
    columns=(
        Column("partition", COUNT32, "the partition"),
        Column("transaction_id", COUNT, "its id"),
        Column("request_id", or_null(REQUEST_ID), "who appended it; null where no replica has it"),
        Column("header", or_null(INT32), "the application's own number"),
        Column("committed", or_null(BOOLEAN), "whether it is committed; null where no server tells"),
        Column("high_water_mark", or_null(INT64), "the partition's last committed transaction"),
        Column("server_id", or_null(INT32), "the server that has the partition now"),
        Column("session_id", INT64, "the partition's session now"),
        Column("replicas", listed(struct(_REPLICA)), "what each replica holds"),
        Column(
            "accepted_by",
            or_null(INT32),
            "the server that accepted it; null where another one has the partition by now",
        ),
        Column(
            "written_in",
            or_null(INT64),
            "the session that wrote it: the present one; null: an earlier one, or unknown, as records do not name it",
        ),
    ),
)
