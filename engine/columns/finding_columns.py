"""A finding, as verify, dump, recover and compare print it, as it stands inside other objects, and as a row of `findings`."""

from __future__ import annotations

from waltzctl.engine.columns.column import Column, ColumnKind, ObjectType, or_null
from waltzctl.engine.columns.column_kinds import COUNT, INT64, OFFSET, PARTITION, PATH, SEVERITY, SIZE, TEXT

_CODE = ColumnKind(
    "code",
    {"type": "string", "pattern": "^[a-z-]+$", "description": "See waltzctl-findings(7)."},
    "string",
    str,
    right=False,
)

FINDING = ObjectType(
    name="finding",
    meaning="One place where something is wrong.",
    columns=(
        Column("code", _CODE, "what is wrong"),
        Column("severity", SEVERITY, "damage, repairable or note"),
        Column("path", PATH, "the file or directory"),
        Column("partition", or_null(PARTITION), "the partition, by its directory"),
        Column("segment", or_null(COUNT), "first transaction id in the name of the data file"),
        Column("transaction_id", or_null(INT64), "the first transaction that it concerns"),
        Column("offset", or_null(OFFSET), "where in the file"),
        Column("length", or_null(SIZE), "how many bytes"),
        Column("message", TEXT, "what was found, in words (not stable)"),
        Column(
            "remedy",
            or_null(TEXT.described("A command line.")),
            "the command that mends it; null where a person must decide",
        ),
    ),
)
