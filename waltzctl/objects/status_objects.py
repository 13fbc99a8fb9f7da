"""The status object of a storage directory or a node."""

from __future__ import annotations

from typing import Any

from waltzctl.engine.columns.column import Column, Form, Object, ObjectType, Stands, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import (
    BOOLEAN,
    COUNT,
    COUNT32,
    INT32,
    INT64,
    KEY,
    LAYOUT,
    PATH,
    SIZE,
    TEXT,
    TIME,
    one_of,
)
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.columns.segment_columns import ids


def _switches(shown: Object) -> str:
    letters = ((shown["readable"], "r"), (shown["writable"], "w"))
    return "".join("?" if on is None else letter if on else "-" for on, letter in letters)


PARTITION_STATUS = ObjectType(
    name="partition-status",
    meaning="A partition inside a status.",
    columns=(
        Column("partition", COUNT32, "the partition", title="P"),
        Column("assigned", or_null(BOOLEAN), "whether it is this storage's"),
        Column("readable", or_null(BOOLEAN), "whether reads are switched on"),
        Column("writable", or_null(BOOLEAN), "whether writes are switched on"),
        Column("switches", TEXT, stands=Stands.TABLE_ONLY, title="RW", cell=_switches),
        Column("session_id", or_null(INT64), "the last session that wrote; -1: none", title="SESSION"),
        Column("low_water_mark", or_null(INT64), "its low-water mark", title="MARK"),
        Column("local_low_water_mark", or_null(INT64), "its local low-water mark", title="LOCAL"),
        Column("segments", or_null(COUNT), "how many segments it has", title="SEGS"),
        Column("bytes", or_null(SIZE), "what its files take", title="BYTES", cell=Form.BYTES),
        Column("records", or_null(COUNT), "how many records, by the ends of its segments"),
        Column("first_transaction_id", or_null(INT64), "its first transaction"),
        Column("last_transaction_id", or_null(INT64), "its last one"),
        Column("transactions", TEXT, stands=Stands.TABLE_ONLY, title="TXNS", cell=ids, right=True),
        Column("last_written", or_null(TIME), "when a file of it changed last", title="LAST WRITTEN", cell=Form.MINUTE),
        Column(
            "health",
            one_of("ok", "repairable", "damaged", "unassigned", None).described(
                "Null where it is not known: a node does not tell."
            ),
            "ok, repairable, damaged or unassigned",
            title="HEALTH",
        ),
    ),
    leading=("partition", "health"),
)


def _all_findings(status: Any) -> Any:
    return (*status.findings, *(found for one in status.partitions for found in one.findings))


STORAGE_STATUS = ObjectType(
    name="status",
    meaning="What a storage directory holds and how it is.",
    columns=(
        Column("path", PATH, "the storage directory, or the URL of a node"),
        Column("cluster_key", or_null(KEY), "the cluster's key"),
        Column("layout", or_null(LAYOUT), "documented or released"),
        Column("num_partitions", or_null(INT32), "how many partitions the cluster has"),
        Column(
            "locked_by",
            or_null(COUNT.described("Process id; 0 where it is locked and the id is unknown.")),
            "the process that has it open",
        ),
        Column("partitions", listed(struct(PARTITION_STATUS)), "each partition"),
        Column(
            "findings",
            listed(struct(FINDING)),
            "what the healths stand for, the directory's own first",
            read=_all_findings,
        ),
    ),
)
