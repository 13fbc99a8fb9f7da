"""A transaction record, as dump prints it and as a row of the view `records`.

The columns are read from a record of a file (`DumpedRecord`), of a node (`NodeRecord`) or, for a view, from a batch of records
(`RecordBatch`).  In a batch each value is a NumPy column; it has none for `request_id`, `data` and `finding`, which
engine/spark/record_arrays.py makes.
"""

from __future__ import annotations

from waltzctl.engine.columns.column import Column, Form, ObjectType, Stands, or_null
from waltzctl.engine.columns.column_kinds import (
    ANYTHING,
    BASE64,
    BINARY,
    CHECKSUM,
    COUNT,
    HEX,
    INT32,
    INT64,
    LENGTH32,
    OFFSET,
    PARTITION,
    REQUEST_ID,
    SIZE,
    TEXT,
)

RECORD = ObjectType(
    name="record",
    meaning=(
        "A transaction record (dump). With --data none there is no data key; with hex it is data_hex; with utf8 and json it"
        " is data, or data null and data_b64 where the bytes are not that."
    ),
    columns=(
        Column("partition", or_null(PARTITION), "the partition, by its directory", title="P"),
        Column("segment", or_null(COUNT), "first transaction id in the name of the data file"),
        Column(
            "transaction_id",
            INT64,
            "the record's id",
            in_view="of damage: the first id that is expected there",
            title="TRANSACTION",
        ),
        Column(
            "offset",
            or_null(OFFSET.described("Null where the record was read from a node, as segment is.")),
            "where the record begins in the data file",
            in_view="of damage: where it begins",
            title="OFFSET",
        ),
        Column("size", SIZE, "what the record takes in the file", in_view="of damage: its bytes"),
        Column(
            "request_id",
            REQUEST_ID,
            "who appended the record, and where in its own order",
            title="REQUEST ID",
            cell=Form.DOTTED,
            right=False,
        ),
        Column("header", INT32, "the application's own number", title="HEADER"),
        Column("data_length", LENGTH32, "how long the record's data is", title="BYTES"),
        Column("data_checksum", CHECKSUM, "CRC-32 of the data, as stored", title="DATA SUM"),
        Column(
            "record_checksum", or_null(CHECKSUM), "CRC-32 of everything in front of it, as stored", title="RECORD SUM"
        ),
        Column("data_b64", BASE64, "the record's data", given=True, optional=True, stands=Stands.OBJECT),
        Column("data_hex", HEX, "the record's data", given=True, optional=True, stands=Stands.OBJECT),
        Column(
            "data",
            ANYTHING.described("Text (utf8) or any JSON value (json); null where the bytes are not that."),
            "the record's data",
            given=True,
            optional=True,
            stands=Stands.OBJECT,
            title="DATA",
            cell=Form.PAYLOAD,
        ),
        Column("data", BINARY, "the record's data", stands=Stands.VIEW, on_request=True),
        Column("finding", TEXT, "code of what is wrong here; null where all is well", given=True, stands=Stands.VIEW),
        Column(
            "missing",
            COUNT,
            "of damage: how many transactions are missing from there on; null where nobody knows",
            given=True,
            stands=Stands.VIEW,
        ),
    ),
)
