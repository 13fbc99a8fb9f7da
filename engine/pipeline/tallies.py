"""Counts of records, from which `completeness` and `activity` are computed without reading `records`.

A materialized view is computed from the beginning at every run; over `records` it would read every record each time.  So each
task counts its records into `tallies`, a streaming table with a few rows for each batch, and the views add these up.  The sums do
not depend on how the records are divided into batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from waltzctl.engine.findings import Code
from waltzctl.engine.pipeline.quarantine_rows import BAD_BYTES
from waltzctl.engine.pipeline.schemas import TALLY

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNTED = (
    "node", "partition", "segment", "transaction_id", "size", "request_id", "header", "data_length", "finding", "missing",
)  # fmt: skip
"""Columns of `records` that are needed for counting."""
KINDS = ("partition", "segment", "client", "header")
_SUMS = ("records", "bytes", "data_bytes", "missing", "damaged")


def tally(rows: pa.StructArray) -> pa.ListArray:
    """Count rows, structs of the columns `COUNTED`: a list of `TALLY` for the first row, an empty list for each other row."""
    kind = pa.struct(list(TALLY))
    if len(rows) == 0:
        return pa.array([], pa.list_(kind))
    found = (
        _joined(list(_counted(pa.Table.from_struct_array(rows)))).combine_chunks().to_struct_array().combine_chunks()
    )
    ends = pa.array([0, *[len(found)] * len(rows)], pa.int32())
    return pa.ListArray.from_arrays(ends, found.cast(kind))


def _counted(rows: pa.Table) -> Iterator[pa.Table]:
    finding = rows["finding"]
    bad = pc.fill_null(pc.is_in(finding, pa.array([one.value for one in BAD_BYTES])), False)
    intact = pc.and_(pc.is_null(finding), pc.is_valid(rows["data_length"]))
    told = pc.fill_null(rows["missing"], 0)
    wrong_data = pc.fill_null(pc.equal(finding, Code.DATA_CHECKSUM.value), False)
    lost = pc.if_else(wrong_data, 1, told)
    after = pc.add(rows["transaction_id"], pc.if_else(intact, 1, lost))
    one = pa.scalar(1, pa.int64())
    zero = pa.scalar(0, pa.int64())
    counted = {
        "node": rows["node"],
        "partition": rows["partition"],
        "records": pc.if_else(intact, one, zero),
        "bytes": pc.if_else(intact, _size(rows), zero),
        "data_bytes": pc.if_else(intact, pc.fill_null(pc.cast(rows["data_length"], pa.int64()), 0), zero),
        "missing": pc.if_else(bad, zero, lost),
        "damaged": pc.if_else(bad, lost, zero),
        "first_transaction_id": rows["transaction_id"],
        "next_transaction_id": after,
    }
    request = rows["request_id"].combine_chunks()
    values = {
        "partition": pa.nulls(rows.num_rows, pa.int64()),
        "segment": rows["segment"],
        "client": pc.cast(pc.struct_field(request, "client"), pa.int64()),
        "header": pc.cast(rows["header"], pa.int64()),
    }
    for kind in KINDS:
        whole = pa.table({"kind": pa.array([kind] * rows.num_rows), "value": values[kind], **counted})
        yield _joined([whole if kind == "partition" else whole.filter(intact)])


def _size(rows: pa.Table) -> pa.ChunkedArray:
    """Bytes of each record on disk; for a node, which tells no sizes, its data and the 40 bytes of header and checksum."""
    around = pc.add(pc.cast(rows["data_length"], pa.int64()), 40)
    return pc.fill_null(pc.coalesce(rows["size"], around), 0)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    grouped = pa.concat_tables([one.select(sorted(TALLY.names)) for one in tables], promote_options="permissive")
    keys = ["kind", "node", "partition", "value"]
    found = grouped.group_by(keys).aggregate(
        [*((name, "sum") for name in _SUMS), ("first_transaction_id", "min"), ("next_transaction_id", "max")]
    )
    names = [name.removesuffix("_sum").removesuffix("_min").removesuffix("_max") for name in found.column_names]
    return found.rename_columns(names).select(TALLY.names).cast(TALLY)
