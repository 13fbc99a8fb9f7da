"""Chunks of which all replicas hold the same bytes, as of nearly all: read side by side, and rows made of one of them.

A batch of the first replica is compared with the others', and made into rows, while its bytes are in the processor's cache and
where the scan read them.  Where anything is out of the ordinary nothing comes of it, and the chunk is read anew by
`replica_copies`, which can tell what differs.
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
"""A replica, and the parts that are to be read of it."""


def equal_rows(readings: Sequence[Reading], first: int, stop: int, names: Sequence[str]) -> list[pa.RecordBatch] | None:
    """The columns `names` of the records `first` to `stop` - 1, which every replica holds intact and alike; else None.

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
                if copy is None or not _intact(copy, following) or not _shared(copy.records, records):
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
    """Whether these are records from the id `first` on, of which none is told of."""
    return (
        isinstance(piece, ScannedRows)
        and int(piece.records.transaction_id[0]) == first
        and bool(piece.records.data_ok.all())
    )


def _shared(one: RecordBatch, other: RecordBatch) -> bool:
    return one.data is other.data and len(one) == len(other)
