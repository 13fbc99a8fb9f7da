"""The chunks of ids that a task of the stream of what replicas agree on compares, one after another, and their rows.

In memory are one chunk of every replica, and the rows of the chunk before.  Where a replica was behind, its new records are
compared with the other replicas' records of the same ids, which are read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import InputPartition

from waltzctl.engine.pipeline.agreement import (
    AgreedTransactions,
    Differs,
    Nowhere,
    Outcome,
    Seen,
    outcome_of_hole,
    outcomes,
    versions_of,
)
from waltzctl.engine.pipeline.equal_replicas import Reading, equal_rows
from waltzctl.engine.pipeline.quarantine_rows import differing_row, nowhere_row
from waltzctl.engine.pipeline.replica_copies import ReplicaCopies
from waltzctl.engine.pipeline.schemas import AGREED, DIFFERENCES
from waltzctl.engine.scan.known_records import KnownRecords
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.offsets import Anchor
from waltzctl.engine.spark.record_arrays import repeated
from waltzctl.engine.spark.stream_directory import DirectoryHistory
from waltzctl.engine.spark.stream_losses import LostRange
from waltzctl.engine.spark.stream_places import SegmentRange
from waltzctl.engine.spark.stream_reader import History, StreamPart

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ChunkOfReplica:
    """What a task reads of one replica."""

    place: str
    parts: tuple[StreamPart, ...]
    seen: Seen
    """How far the replica was compared before this batch, and after it."""
    end: Anchor
    """The record with which the parts end."""

    @property
    def bytes(self) -> int:
        """Bytes to read, approximately."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class ChunkOfIds:
    """Ids `first` to `stop` - 1, and the copies of them to read, for each replica."""

    first: int
    stop: int
    copies: tuple[ChunkOfReplica, ...]

    @property
    def bytes(self) -> int:
        """Bytes to read, approximately, from the replica with the most."""
        return max((one.bytes for one in self.copies), default=0)

    @property
    def hole(self) -> bool:
        """Whether no replica has anything to read of these ids: they are lost, or before the first segment."""
        parts = (part for one in self.copies for part in one.parts)
        return all(isinstance(part, LostRange) or (isinstance(part, SegmentRange) and part.before) for part in parts)


class AgreementTask(InputPartition):
    """Chunks of a partition, in order.  `decided`, `gone`: the arguments of `agreement.outcomes`."""

    def __init__(self, partition: int, decided: int, gone: int, chunks: Sequence[ChunkOfIds]) -> None:
        super().__init__(None)
        self.partition, self.decided, self.gone, self.chunks = partition, decided, gone, tuple(chunks)


class ChunkComparer:
    """Reads and compares chunks.  `differences`: return the copies that differ, instead of the agreed transactions."""

    def __init__(self, histories: Mapping[str, History], *, differences: bool) -> None:
        self._histories, self._differences = histories, differences

    def rows(self, task: AgreementTask, chunk: ChunkOfIds) -> Iterator[pa.RecordBatch]:
        """The rows of one chunk."""
        import pyarrow as pa

        if chunk.hole:  # of any length: nothing is made for each id
            nowhere = outcome_of_hole(chunk.first, chunk.stop, task.decided)
            if self._differences and nowhere is not None:
                row = nowhere_row(nowhere, task.partition, [one.place for one in chunk.copies])
                yield from pa.Table.from_pylist([row], schema=DIFFERENCES).to_batches()
            return
        whole = _agreed_if_equal(chunk, task)
        if whole is not None and (equal := self._equal(chunk)) is not None:
            yield from (_agreed_rows(rows, whole) for rows in equal)
            return
        tables: list[ReplicaCopies] = []
        for copies_of in chunk.copies:
            most = max(tables, key=lambda copies: len(copies.ids), default=None)
            tables.append(self._copies(copies_of, None if most is None else most.known()))
        found = _compared(chunk, tables, task)
        if not self._differences:
            for one in found:
                if isinstance(one, AgreedTransactions):
                    yield from _transactions(one, tables[one.version])
            return
        places = [one.place for one in chunk.copies]
        rows = [
            _difference_row(one, task.partition, places, tables)
            for one in found
            if not isinstance(one, AgreedTransactions)
        ]
        if rows:
            yield from pa.Table.from_pylist(rows, schema=DIFFERENCES).to_batches()

    def _equal(self, chunk: ChunkOfIds) -> list[pa.RecordBatch] | None:
        """Columns of the chunk's records where all replicas hold the same bytes; None where not, or where one is no directory."""
        readings: list[Reading] = []
        for one in chunk.copies:
            history = self._histories[one.place]
            if not isinstance(history, DirectoryHistory):
                return None
            readings.append((history, one.parts))
        return equal_rows(readings, chunk.first, chunk.stop, () if self._differences else AGREED.names[:-1])

    def _copies(self, chunk: ChunkOfReplica, known: KnownRecords | None) -> ReplicaCopies:
        history = self._histories[chunk.place]
        return ReplicaCopies([piece for part in chunk.parts for piece in history.scan(part, Losses(), known)])


def _compared(chunk: ChunkOfIds, copies: Sequence[ReplicaCopies], task: AgreementTask) -> Iterator[Outcome]:
    found = versions_of(
        chunk.first,
        chunk.stop,
        [one.ids for one in copies],
        lambda row, other: copies[row].same_as(copies[other]),
        [one.damaged for one in copies],
    )
    yield from outcomes(chunk.first, found, [one.seen for one in chunk.copies], task.decided, task.gone)


def _agreed_if_equal(chunk: ChunkOfIds, task: AgreementTask) -> AgreedTransactions | None:
    """The outcome of a chunk if all replicas hold the same bytes; None where it is not one single `AgreedTransactions`."""
    versions = np.zeros((len(chunk.copies), chunk.stop - chunk.first), np.int64)
    found = list(outcomes(chunk.first, versions, [one.seen for one in chunk.copies], task.decided, task.gone))
    only = found[0] if len(found) == 1 else None
    if isinstance(only, AgreedTransactions) and (only.first, only.stop) == (chunk.first, chunk.stop):
        return only if only.replicas == len(chunk.copies) else None
    return None


def _transactions(agreed: AgreedTransactions, copies: ReplicaCopies) -> Iterator[pa.RecordBatch]:
    begin, end = copies.ids.searchsorted([agreed.first, agreed.stop])
    rows = copies.table.slice(begin, end - begin).select(AGREED.names[:-1])
    yield from (_agreed_rows(one, agreed) for one in rows.to_batches())


def _agreed_rows(rows: pa.RecordBatch, agreed: AgreedTransactions) -> pa.RecordBatch:
    import pyarrow as pa

    held = repeated(agreed.replicas, pa.int32(), rows.num_rows)
    return pa.RecordBatch.from_arrays([*rows.columns, held], schema=AGREED)


def _difference_row(
    outcome: Differs | Nowhere, partition: int, places: Sequence[str], copies: Sequence[ReplicaCopies]
) -> dict[str, Any]:
    if isinstance(outcome, Nowhere):
        return nowhere_row(outcome, partition, places)
    mine = copies[outcome.replica]
    at = int(mine.ids.searchsorted(outcome.transaction_id))
    return differing_row(outcome, partition, places, mine.table.slice(at, 1).to_pylist()[0])
