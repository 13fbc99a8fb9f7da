"""A control file: its header, and each partition's pair of structs, as dump prints them and as rows of the view `control`."""

from __future__ import annotations

from waltzctl.engine.columns.column import Column, Columns, Object, ObjectType, Stands, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import (
    BOOLEAN,
    CHECKSUM,
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

CONTROL = ObjectType(
    name="control",
    meaning="The header of a control file (dump).",
    columns=(
        Column("path", PATH, "the control file"),
        Column("layout", or_null(LAYOUT), "documented or released"),
        Column("version", or_null(INT32), "the header's format version"),
        Column("created", or_null(TIME), "when the file was made"),
        Column("cluster_key", or_null(KEY), "the cluster's key"),
        Column("num_partitions", or_null(INT32), "how many partitions the cluster has"),
        Column("size", SIZE, "how long the file is"),
    ),
)

STRUCT = Columns(
    (
        Column("session_id", INT64, "the last session that wrote"),
        Column("low_water_mark", INT64, "the highest transaction that a quorum had when the session began"),
        Column("local_low_water_mark", INT64, "the highest transaction that was durable here then"),
        Column("available", or_null(BOOLEAN), "whether reads and writes are switched on"),
        Column("assigned", or_null(BOOLEAN), "whether the partition is this storage's"),
        Column("flags", or_null(INT32), "both switches, as stored"),
        Column("sequence", or_null(INT32), "how often the pair was written"),
        Column("checksum", CHECKSUM, "as stored"),
        Column("valid", BOOLEAN, "whether the checksum is right"),
    )
)
"""One of a pair; flags and sequence are unknown to the documented layout."""


def _marks(shown: Object, number: int) -> str:
    struct = shown["structs"][number]
    marks = f"{struct['session_id']}/{struct['low_water_mark']}/{struct['local_low_water_mark']}"
    return marks if struct["valid"] else f"{marks} INVALID"


def _first(shown: Object) -> str:
    return _marks(shown, 0)


def _second(shown: Object) -> str:
    return _marks(shown, 1)


def _flags(shown: Object) -> str:
    if shown["current"] is None:
        return "-"
    struct = shown["structs"][shown["current"] - 1]
    if struct["flags"] is None:
        return "-"
    words = [word for word in ("assigned", "available") if struct[word]]
    return " ".join(words) or "none"


PARTITION_INFO = ObjectType(
    name="partition-info",
    meaning="A partition's pair of structs in a control file (dump); current is the one in force.",
    columns=(
        Column("partition", COUNT32, "the partition, by the place of its info in the file", title="P"),
        Column("stored_partition", INT32, "the partition that the info itself names", title="STORED"),
        Column(
            "current",
            one_of(1, 2, None, spark="int"),
            "which struct is in force: 1 or 2; null if neither is valid",
            title="IN FORCE",
            right=True,
        ),
        Column("structs", listed(struct(STRUCT), exactly=2), "both structs of the pair"),
        Column("first", TEXT, stands=Stands.TABLE_ONLY, title="1: SESSION/MARK/LOCAL", cell=_first, right=True),
        Column("second", TEXT, stands=Stands.TABLE_ONLY, title="2: SESSION/MARK/LOCAL", cell=_second, right=True),
        Column("in_force", TEXT, stands=Stands.TABLE_ONLY, title="FLAGS", cell=_flags),
    ),
)
