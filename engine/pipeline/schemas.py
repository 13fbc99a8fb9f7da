"""The columns of what the pipeline's own sources and functions hand to Spark."""

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
"""A copy of a record, as it is compared with the others: columns of the data source's records."""
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
"""A row of quarantine.  `missing`: how many transactions from `transaction_id` on it is about; null where nobody knows."""
REPLICAS = pa.schema(
    [("node", pa.string()), ("partition", pa.int32()), ("last_transaction_id", pa.int64()), ("mark", pa.int64())]
)
"""A partition that a replica is to have: its last transaction (-1: none) and the mark that it knows."""
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
"""Rows of `records` counted, by `kind`: partition (`value` null), segment, client or header."""
