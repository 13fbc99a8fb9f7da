"""A segment and an entry of its index, as dump prints them and as rows of the views `segments` and `index`."""

from __future__ import annotations

from waltzctl.engine.columns.column import Column, Form, Object, ObjectType, Stands, or_null
from waltzctl.engine.columns.column_kinds import COUNT, INT32, INT64, KEY, PARTITION, PATH, SIZE, TEXT, TIME, one_of


def ids(shown: Object) -> str:
    """The cell with the range of transaction ids of an object: ``first..last``."""
    first, last = shown["first_transaction_id"], shown["last_transaction_id"]
    if last is None:
        return "-"
    return f"..{last}" if first is None else f"{first}..{last}"


_PARTITION = Column("partition", or_null(PARTITION), "the partition, by its directory", title="P")

SEGMENT = ObjectType(
    name="segment",
    meaning="A segment: its header and what it holds (dump --what segments).",
    columns=(
        Column("path", PATH, "the data file", title="FILE", cell=Form.FILE_NAME),
        _PARTITION,
        Column("segment", COUNT, "first transaction id in the name of the data file"),
        Column("version", or_null(INT32), "the header's format version"),
        Column("created", or_null(TIME), "when the file was made", title="CREATED", cell=Form.SECOND),
        Column("cluster_key", or_null(KEY), "the header's cluster key"),
        Column("first_transaction_id", or_null(INT64), "the header's first transaction id"),
        Column("last_transaction_id", or_null(INT64), "id of the last intact record; null if there is none"),
        Column("transactions", TEXT, stands=Stands.TABLE_ONLY, title="TRANSACTIONS", cell=ids, right=True),
        Column("records", COUNT, "intact records, by both ends of the segment", title="RECORDS"),
        Column("data_bytes", SIZE, "how long the data file is", title="DATA", cell=Form.BYTES),
        Column("index_bytes", SIZE, "how long the index file is"),
        Column("index", one_of("ok", "missing", "stale"), "ok, missing or stale", title="INDEX"),
    ),
    leading=("partition",),
)

INDEX_ENTRY = ObjectType(
    name="index-entry",
    meaning="An entry of an index file (dump --what index).",
    columns=(
        _PARTITION,
        Column("segment", or_null(COUNT), "first transaction id in the name of the data file", title="SEGMENT"),
        Column("transaction_id", INT64, "the id whose entry it is", title="TRANSACTION"),
        Column("offset", INT64, "where the entry says that the record begins", title="OFFSET"),
    ),
)
