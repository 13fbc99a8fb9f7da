"""The fast path for chunks of which all replicas hold the same bytes, the usual case: rows are made of one replica's records.

The replicas are read in step.  A batch of the first one is compared with the others' batches, and made into rows, while its bytes
are in the processor's cache and in the buffer of the scan.  At the first difference, damage or missing record the fast path
gives up (None), and the chunk is read again by `replica_copies`, which can tell what differs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from typing import Any, TypeGuard

import pyarrow as pa

from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.engine.scan.known_records import KnownRecords
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.record_arrays import arrow_batch
from waltzctl.engine.spark.stream_directory import DirectoryHistory
from waltzctl.engine.spark.stream_rows import ScannedRows

Reading = tuple[DirectoryHistory, Sequence[Any]]
"""A replica, and its parts to read."""


def equal_rows(readings: Sequence[Reading], first: int, stop: int, names: Sequence[str]) -> list[pa.RecordBatch] | None:
    """The columns `names` of the records `first` to `stop` - 1, if every replica holds the same intact bytes of them; else None.

    Raises what reading a part raises.
    """
    known = KnownRecords()
    rows: list[pa.RecordBatch] = []
    following = first
    with ExitStack() as stack:
        leader, *others = (
            stack.enter_context(closing(_pieces(one, known if number else None))) for number, one in enumerate(readings)
        )
        for piece in leader:
            if not _intact(piece, following):
                return None
            records = piece.records
            known.hold([records])
            for other in others:
                copy = next(other, None)
                if copy is None or not _intact(copy, following) or not _same_records(copy.records, records):
                    return None
            following += len(records)
            if names:
                rows.append(arrow_batch(records, names, piece.constants))
        known.hold(())
        return rows if following == stop and all(next(other, None) is None for other in others) else None


def _pieces(reading: Reading, known: KnownRecords | None) -> Generator[pa.RecordBatch | ScannedRows]:
    history, parts = reading
    for part in parts:
        yield from history.scan(part, Losses(), known, borrowed=known is None)


def _intact(piece: pa.RecordBatch | ScannedRows, first: int) -> TypeGuard[ScannedRows]:
    """Whether these are records from the id `first` on, none of which has a finding."""
    return (
        isinstance(piece, ScannedRows)
        and int(piece.records.transaction_id[0]) == first
        and bool(piece.records.data_ok.all())
    )


def _same_records(one: RecordBatch, other: RecordBatch) -> bool:
    """Whether both batches hold the same bytes: the scan of a later replica then returns the data that `KnownRecords` holds."""
    return one.data is other.data and len(one) == len(other)
