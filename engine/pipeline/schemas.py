"""The schemas of the rows that the pipeline's own sources and functions return to Spark."""

from __future__ import annotations

import pyarrow as pa

_REQUEST = pa.struct([(name, pa.int32()) for name in ("client", "generation", "partition", "sequence")])
COPY = pa.schema(
    [
        ("partition", pa.int32()),
        ("transaction_id", pa.int64()),
        ("request_id", _REQUEST),
        ("header", pa.int32()),
        ("data_length", pa.int32()),
        ("data_checksum", pa.string()),
        ("data", pa.binary()),
        ("finding", pa.string()),
        ("missing", pa.int64()),
    ]
)
"""A replica's copy of a record, as copies are compared: columns of the data source's records view."""
AGREED = pa.schema(
    [
        ("partition", pa.int32()),
        ("transaction_id", pa.int64()),
        ("request_id", _REQUEST),
        ("header", pa.int32()),
        ("data", pa.binary()),
        ("replicas", pa.int32()),
    ]
)
"""A transaction that was agreed upon."""
DIFFERENCES = pa.schema(
    [
        ("node", pa.string()),
        ("partition", pa.int32()),
        ("transaction_id", pa.int64()),
        ("finding", pa.string()),
        ("message", pa.string()),
        ("remedy", pa.string()),
        ("missing", pa.int64()),
    ]
)
"""A row of quarantine.  `missing`: the number of missing transactions from `transaction_id` on; null: unknown."""
REPLICAS = pa.schema(
    [("node", pa.string()), ("partition", pa.int32()), ("last_transaction_id", pa.int64()), ("mark", pa.int64())]
)
"""A partition assigned to a replica: its last transaction (-1: none) and its committed mark."""
TALLY = pa.schema(
    [
        ("kind", pa.string()),
        ("node", pa.string()),
        ("partition", pa.int32()),
        ("value", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("data_bytes", pa.int64()),
        ("missing", pa.int64()),
        ("damaged", pa.int64()),
        ("first_transaction_id", pa.int64()),
        ("next_transaction_id", pa.int64()),
    ]
)
"""Counts of rows of `records`, by `kind`: partition (`value` null), segment, client or header."""
