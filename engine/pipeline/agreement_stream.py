"""The stream of what replicas agree on, straight from their logs: transactions, or the copies that differ.

The logs are compared as columns that the scan makes of their files, up to the *committed mark* of the partition: no recovery
removes a transaction at or below it.  It is the highest of

- the replicas' low-water marks (of each replica the lower of its two), and
- where the cluster's metadata is given, the last transaction that a quorum holds in the open session (`committed_marks`).

A stateful operator of Spark would have to keep every transaction above the mark with its data.  Here the offset is the whole
state.  For each partition it has

- `decided`: the id up to which transactions were decided, and
- `seen`: for each replica an anchor of the last record that was compared, which tells whether the replica still has that record.

So a batch is a function of two offsets: Spark may ask for it again, and a killed run continues where it was.  A task has chunks
of one partition, of at most `CHUNK` ids each, which it compares one after another.  In memory are one chunk of every replica,
and the rows of the chunk before.  Where a replica was behind, its new records are compared with the other replicas' records of
the same ids, which are read again.

As JSON: ``{"version": 1, "partitions": {"0": {"decided": 41, "seen": {"/data/node-1": ANCHOR}}}, "keys": {...}}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from waltzctl.engine.errors import StalePlanError
from waltzctl.engine.freed_memory import keep_freed_memory
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
from waltzctl.engine.pipeline.replica_stream import (
    VERSION,
    check_kept,
    check_one_cluster,
    check_there,
    forgotten,
    of_checkpoint,
    replica_readers,
)
from waltzctl.engine.pipeline.schemas import AGREED, DIFFERENCES
from waltzctl.engine.scan import kernels
from waltzctl.engine.scan.known_records import KnownRecords
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.offsets import (
    BEGINNING,
    Anchor,
    StreamOffset,
    behind_loss,
    history_changed,
    issued_again,
    share,
)
from waltzctl.engine.spark.plain_errors import plain_errors
from waltzctl.engine.spark.reading_ahead import made_ahead
from waltzctl.engine.spark.record_arrays import repeated
from waltzctl.engine.spark.splits import pack
from waltzctl.engine.spark.stream_directory import DirectoryHistory
from waltzctl.engine.spark.stream_losses import LostRange
from waltzctl.engine.spark.stream_places import SegmentRange
from waltzctl.engine.spark.stream_reader import (
    ADMISSION,
    INTACT,
    LOW_WATER_MARK,
    TASK_WEIGHT,
    History,
    StreamPart,
    SupportsTriggerAvailableNow,
    limit_of,
)

if ADMISSION:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

CHUNK = 1 << 16
"""Transactions of one chunk, at most."""
CHUNK_BYTES = 16 << 20
"""Bytes of a replica's log in one chunk, approximately; a chunk of a single record may be larger."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a partition was compared."""

    decided: int
    """The last id that was decided; -1: none."""
    seen: Mapping[str, Anchor]
    """The last record that was compared, by replica."""

    def of(self, place: str) -> Anchor:
        """The last record of a replica that was compared; `BEGINNING` for a new replica."""
        return self.seen.get(place, BEGINNING)


NOTHING = Reached(-1, {})
_Offset = dict[int, Reached]


def to_json(partitions: Mapping[int, Reached], keys: Mapping[str, str]) -> dict[str, Any]:
    """The offset, in an order that depends on its value alone: Spark compares offsets by their text."""
    return {
        "version": VERSION,
        "partitions": {
            str(number): {
                "decided": one.decided,
                "seen": StreamOffset(dict(enumerate(one.seen[place] for place in sorted(one.seen)))).to_json()[
                    "partitions"
                ],
                "places": sorted(one.seen),
            }
            for number, one in sorted(partitions.items())
        },
        "keys": dict(sorted(keys.items())),
    }


def from_json(offset: Mapping[str, Any] | None) -> tuple[_Offset, dict[str, str]]:
    """Partitions, and the keys of the replicas' clusters.  Raises InvalidRequestError."""
    found: _Offset = {}
    for number, said in of_checkpoint(offset, "partitions").items():
        anchors = StreamOffset.from_json({"version": 1, "cluster_key": None, "partitions": said["seen"]}).partitions
        found[int(number)] = Reached(
            int(said["decided"]), {place: anchors[at] for at, place in enumerate(said["places"])}
        )
    return found, dict((offset or {}).get("keys", {}))


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


@plain_errors
class AgreementReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module.

    `differences`: return the copies that differ, instead of the agreed transactions.  `metadata`: the cluster's, as
    ``--metadata`` takes it; None: the low-water marks alone tell what is committed.
    """

    def __init__(
        self,
        histories: Mapping[str, History],
        partitions: frozenset[int] | None,
        limit: int | None,
        *,
        differences: bool,
        metadata: str | None = None,
    ) -> None:
        self._histories = dict(histories)
        self._metadata = metadata
        self._partitions = partitions
        self._limit = limit
        self._differences = differences
        self._target: tuple[dict[str, dict[int, Anchor]], dict[int, int]] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """An offset without any partition: nothing is decided."""
        return to_json({}, {})

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends: at the committed marks, or earlier by the limit.

        Raises StalePlanError where a replica no longer has the records that were compared.
        """
        begun, keys = from_json(start)
        keys = self._look(keys)
        latest, marks = self._target or self._ends_and_marks(begun)
        goals = {number: max(mark, begun.get(number, NOTHING).decided) for number, mark in marks.items()}
        rows = limit.max_rows if ADMISSION and isinstance(limit, ReadMaxRows) else self._limit
        if rows is not None and start is not None and not (ADMISSION and isinstance(limit, ReadAllAvailable)):
            queued = {number: goal - begun.get(number, NOTHING).decided for number, goal in goals.items()}
            shares = share(queued, rows)
            goals = {number: begun.get(number, NOTHING).decided + shares[number] for number in goals}
        ends = {
            number: self._end_of_batch(number, goal, begun.get(number, NOTHING), latest)
            for number, goal in goals.items()
        }
        return to_json({**begun, **ends}, keys)

    def _look(self, keys: Mapping[str, str]) -> dict[str, str]:
        """Look at every replica.  Raises MismatchError where one is of another cluster."""
        found = dict(keys)
        for place, history in self._histories.items():
            key = history.refresh()
            if key is not None:
                if keys.get(place, str(key)) != str(key):
                    check_one_cluster({f"what was read of {place}": keys[place], place: str(key)})
                found[place] = str(key)
        check_one_cluster(found)
        return found

    def _ends_and_marks(self, begun: _Offset) -> tuple[dict[str, dict[int, Anchor]], dict[int, int]]:
        """The last record of each replica and partition, and the highest mark of each partition."""
        known = {place: {number: one.of(place) for number, one in begun.items()} for place in self._histories}
        latest: dict[str, dict[int, Anchor]] = {}
        marks: dict[int, int] = {}
        if self._metadata is not None:  # before the replicas' ends, which then are at or above these marks
            from waltzctl.engine.pipeline.committed_marks import committed_marks  # 0.1 s of a stream's beginning

            marks = committed_marks(self._metadata, self._histories, self._partitions, known)
        for place, history in self._histories.items():
            latest[place] = history.latest(self._partitions, known[place], INTACT)
            for number, anchor in history.latest(self._partitions, known[place], LOW_WATER_MARK).items():
                marks[number] = max(marks.get(number, -1), anchor.transaction_id)
        return latest, marks

    def _end_of_batch(
        self, number: int, goal: int, before: Reached, latest: Mapping[str, Mapping[int, Anchor]]
    ) -> Reached:
        """Where a batch ends in partition `number`, when it decides ids up to `goal` and the replicas end at `latest`.

        Raises StalePlanError.
        """
        seen = dict(before.seen)
        for place, history in self._histories.items():
            last = latest[place].get(number)
            known = before.of(place)
            if last is None or last.transaction_id < known.transaction_id:
                if known.identified:
                    raise history_changed(
                        history.place, number, known, None, -1 if last is None else last.transaction_id
                    )
                if last is not None and known.lost:
                    raise issued_again(history.place, number, known, last.transaction_id)
                continue
            seen[place] = known  # the replica is assigned the partition, and so has a vote
            wanted = min(goal, last.transaction_id)
            if wanted > known.transaction_id:
                found = last if wanted == last.transaction_id else self._at(place, number, wanted, known)
                seen[place] = behind_loss(wanted) if last.lost and not found.identified else found
        return Reached(goal, seen)

    def _at(self, place: str, number: int, wanted: int, known: Anchor) -> Anchor:
        """The record of an id; an anchor with the id alone where the replica has no intact record of it."""
        if wanted < 0:
            return BEGINNING
        found = self._histories[place].at_or_before(number, wanted, known)
        return found if found.transaction_id == wanted else Anchor(wanted)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option ``maxRecordsPerTrigger``."""
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query reads what is there now, and ends."""
        self._look({})
        self._target = self._ends_and_marks({})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch.  Raises StalePlanError where a replica no longer has the records that were compared."""
        begun, keys = from_json(start)
        ended, _ = from_json(end)
        self._look(keys)
        self._check_batch(begun, ended)
        tasks: list[InputPartition] = []
        for number, goal in sorted(ended.items()):
            tasks += self._tasks(number, begun.get(number, NOTHING), goal)
        return tasks or [AgreementTask(-1, -1, -1, ())]

    def _check_batch(self, begun: _Offset, ended: _Offset) -> None:
        """Raise StalePlanError where a batch would lose progress, or mark records as compared that it does not read.

        - Progress is lost where `latestOffset` did not know where the batch begins (before PySpark 4.2).
        - Records would be skipped where an interrupted batch was planned with a replica that is no longer a source.
        """
        for number in sorted({*begun, *ended}):
            before, after = begun.get(number, NOTHING), ended.get(number, NOTHING)
            check_there({place: before.of(place) for place in after.seen}, after.seen, self._histories)
            check_kept((place for place, one in before.seen.items() if one.transaction_id >= 0), after.seen)
            if after.decided < before.decided:
                raise forgotten(
                    f"partition {number} was decided up to {before.decided}, and goes back to {after.decided}"
                )

    def _tasks(self, number: int, before: Reached, after: Reached) -> Iterator[AgreementTask]:
        places = [place for place in self._histories if place in after.seen]
        if after == before and self._partitions is not None and number not in self._partitions:
            return  # the query does not read this partition: its records need not be there
        for place in places:
            self._confirm(place, number, before.of(place))
            self._confirm(place, number, after.of(place))
        behind = [
            before.of(place).transaction_id
            for place in places
            if after.of(place).transaction_id > before.of(place).transaction_id
        ]
        low = min([*behind, before.decided]) if behind or after.decided > before.decided else after.decided
        chunks = self._chunks(places, number, low + 1, before, after)
        gone = max(
            (one.transaction_id for place, one in before.seen.items() if place not in self._histories), default=-1
        )
        for packet in pack(chunks, TASK_WEIGHT, attrgetter("bytes")):
            yield AgreementTask(number, before.decided, gone, packet)

    def _chunks(
        self, places: Sequence[str], number: int, first: int, before: Reached, after: Reached
    ) -> Iterator[ChunkOfIds]:
        """Ids from `first` to `after.decided`, in chunks of about `CHUNK_BYTES`; a hole, however large, in a few."""
        count = CHUNK
        ends: dict[str, Anchor] = {}  # the ends of the chunk before, which save a search for its last record

        def planned(last: int) -> ChunkOfIds:
            known = {place: ends.get(place, before.of(place)) for place in places}
            copies = (self._chunk(place, number, first, last, known[place], before, after) for place in places)
            return ChunkOfIds(first, last + 1, tuple(copies))

        while first <= after.decided:
            last = min(first + count - 1, after.decided)
            chunk = planned(last)
            wanted = max(1, (last + 1 - first) * CHUNK_BYTES // max(1, chunk.bytes))
            if (
                chunk.bytes > 2 * CHUNK_BYTES and wanted < last + 1 - first
            ):  # plan the chunk again, by the size of its records
                count = wanted
                continue
            while chunk.hole and last < after.decided:
                # each time twice as long, as long as no replica has anything there
                last = min(first + 2 * (last + 1 - first) - 1, after.decided)
                wider = planned(last)
                if not wider.hole:
                    break
                chunk = wider
            yield chunk
            ends = {one.place: one.end for one in chunk.copies}
            first, count = chunk.stop, min(CHUNK, wanted)

    def _confirm(self, place: str, number: int, anchor: Anchor) -> None:
        if not anchor.identified:
            return
        found = self._histories[place].record_now(number, anchor)
        if found is None or not found.is_record(anchor):
            raise history_changed(place, number, anchor, found, None)

    def _chunk(
        self, place: str, number: int, first: int, last: int, known: Anchor, before: Reached, after: Reached
    ) -> ChunkOfReplica:
        """What is read of a replica for ids `first` to `last`; `known`: a record at or before `first` - 1."""
        goal = after.of(place)
        seen = Seen(before.of(place).transaction_id, goal.transaction_id)
        stop = min(last, goal.transaction_id)
        if stop < first:
            return ChunkOfReplica(place, (), seen, goal)
        start = known if known.transaction_id == first - 1 else self._at(place, number, first - 1, BEGINNING)
        end = goal if goal.transaction_id == stop else self._at(place, number, stop, start)
        return ChunkOfReplica(place, tuple(self._histories[place].parts(number, start, end)), seen, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task."""
        assert isinstance(partition, AgreementTask)
        kernels.choose(sum(one.bytes for chunk in partition.chunks for one in chunk.copies))
        keep_freed_memory()
        yield from made_ahead(partition.chunks, lambda chunk: list(self._rows(partition, chunk)))

    def _rows(self, task: AgreementTask, chunk: ChunkOfIds) -> Iterator[pa.RecordBatch]:
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

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the reader keeps no state of a batch."""

    def stop(self) -> None:
        """The query ends."""
        for history in self._histories.values():
            history.close()


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


def agreement_stream(
    sources: Sequence[str],
    options: Mapping[str, str],
    schema: StructType,
    *,
    differences: bool,
    metadata: str | None = None,
) -> AgreementReader:
    """The stream of what `sources` agree on.  `schema`: the columns of a copy; `metadata`: see `AgreementReader`.

    Raises InvalidRequestError; StalePlanError for an option ``startingTransactions`` other than earliest.
    """
    readers = replica_readers(sources, options, schema)
    first = next(iter(readers.values()))
    if first.options.starting.partitions or first.options.starting.usual != "earliest":
        raise StalePlanError("transactions are agreed upon from the beginning of each partition on")
    return AgreementReader(
        {place: one.history for place, one in readers.items()},
        first.options.partitions,
        limit_of(options),
        differences=differences,
        metadata=metadata,
    )
