"""The differences between replicas as a Parquet table: a row for each replica and range that is not the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from waltzctl.engine.columns.record_columns import RECORD
from waltzctl.engine.compare.comparison import PartitionComparison
from waltzctl.engine.compare.side_by_side import Side
from waltzctl.engine.errors import UnavailableError
from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Kept, Run

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 10_000
_OF_A_RECORD = tuple(
    one for one in RECORD.columns
    if not one.given and one.name not in ("partition", "transaction_id")
)  # fmt: skip
"""The record columns of the Spark data source, without optional ones that describe more than the record."""


def load_arrow() -> Any:
    """The module pyarrow.  Raises UnavailableError where it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise UnavailableError(
            "a Parquet table is written by pyarrow, which is not installed", advice="pip install 'waltzctl[spark]'"
        ) from error
    return pyarrow


def schema() -> pa.Schema:
    """The table's columns.

    A row gives the `state` of one replica (`node`) for transactions `first_transaction_id` to `last_transaction_id`:

    ========  =======================================================
    kept      holds the kept version
    outvoted  holds another version
    damaged   has lost the records
    missing   does not have the records
    beyond    intact, and after the last kept transaction
    open      holds one of several versions that cannot be decided
    ========  =======================================================

    Replicas with the same `version` hold the same bytes.  The record columns describe the record of the first transaction, where
    versions differ: checksums as eight hex digits, `data` its first 64 KiB, only for a partition's first difference.
    """
    pa = load_arrow()
    from waltzctl.engine.spark.view_schemas import arrow_type

    record = [(one.name, arrow_type(one.kind.spark)) for one in _OF_A_RECORD]
    return pa.schema(
        [
            ("partition", pa.int32()),
            ("first_transaction_id", pa.int64()),
            ("last_transaction_id", pa.int64()),
            ("node", pa.string()),
            ("state", pa.string()),
            ("version", pa.int32()),
            ("restore_from", pa.string()),
            *record,
        ]
    )


def rows(comparison: PartitionComparison) -> Iterator[dict[str, Any]]:
    """The rows of one partition, in the order of transactions and replicas; none of a replica that could not be read."""
    chosen = {one.run.first: one for one in comparison.decision.kept}
    sides = {one.transaction_id: one.sides for one in comparison.differences}
    paths = [one.path for one in comparison.replicas]
    for run in comparison.runs:
        kept = chosen.get(run.first)
        read = [pair for pair, own in zip(enumerate(run.versions), comparison.replicas, strict=True) if not own.unread]
        if kept is not None and all(version == kept.version for _, version in read):
            continue
        holder = kept.run.versions.index(kept.version) if kept and kept.version in run.versions else None
        for number, version in read:
            state = _state(version, run, kept)
            source = None if holder is None or state not in ("damaged", "outvoted") else str(paths[holder])
            yield {
                "partition": comparison.partition,
                "first_transaction_id": run.first,
                "last_transaction_id": run.stop - 1,
                "node": str(paths[number]),
                "state": state,
                "version": version if version >= 0 else None,
                "restore_from": source,
                **_record(next((one for one in sides.get(run.first, ()) if one.replica == version), None)),
            }


def _state(version: int, run: Run, kept: Kept | None) -> str:
    if version in (ABSENT, DAMAGED):
        return "missing" if version == ABSENT else "damaged"
    if kept is None:
        return "beyond"
    if kept.version is None:
        return "open"
    return "kept" if version == kept.version else "outvoted"


def _record(side: Side | None) -> dict[str, Any]:
    return {} if side is None else {one.name: one.of(side) for one in _OF_A_RECORD}


def write_table(comparisons: Iterable[PartitionComparison], target: BinaryIO) -> int:
    """Write the table and return the number of rows.  Raises UnavailableError, and what writing to `target` raises."""
    pa = load_arrow()
    from pyarrow import parquet

    columns = schema()
    count = 0
    with parquet.ParquetWriter(target, columns) as writer:
        held: list[dict[str, Any]] = []
        for comparison in comparisons:
            for row in rows(comparison):
                held.append(row)
                count += 1
                if len(held) >= _BATCH:
                    writer.write_table(pa.Table.from_pylist(held, columns))
                    held = []
        writer.write_table(pa.Table.from_pylist(held, columns))
    return count
