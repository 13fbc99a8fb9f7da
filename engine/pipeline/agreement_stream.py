"""The stream of what replicas agree on, straight from their logs: transactions, or the copies that differ.

The logs are compared as columns that the scan makes of their files, up to the *committed mark* of the partition: no recovery
removes a transaction at or below it.  It is the highest of

- the replicas' low-water marks (of each replica the lower of its two), and
- where the cluster's metadata is given, the last transaction that a quorum holds in the open session (`committed_marks`).

A stateful operator of Spark would have to keep every transaction above the mark with its data.  Here the offset is the whole
state (`engine.pipeline.agreement_offset`).  So a batch is a function of two offsets: Spark may ask for it again, and a killed run
continues where it was.  A task has chunks of one partition, of at most `CHUNK` ids each (`engine.pipeline.agreement_chunks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from waltzctl.engine.errors import StalePlanError
from waltzctl.engine.freed_memory import keep_freed_memory
from waltzctl.engine.pipeline.agreement import Seen
from waltzctl.engine.pipeline.agreement_chunks import AgreementTask, ChunkComparer, ChunkOfIds, ChunkOfReplica
from waltzctl.engine.pipeline.agreement_offset import NOTHING, Offset, Reached, from_json, to_json
from waltzctl.engine.pipeline.replica_stream import (
    check_kept,
    check_one_cluster,
    check_there,
    forgotten,
    replica_readers,
)
from waltzctl.engine.scan import kernels
from waltzctl.engine.spark.offsets import (
    BEGINNING,
    Anchor,
    behind_loss,
    history_changed,
    share,
)
from waltzctl.engine.spark.plain_errors import plain_errors
from waltzctl.engine.spark.reading_ahead import made_ahead
from waltzctl.engine.spark.splits import pack
from waltzctl.engine.spark.stream_reader import (
    ADMISSION,
    INTACT,
    LOW_WATER_MARK,
    TASK_WEIGHT,
    History,
    SupportsTriggerAvailableNow,
    check_not_issued_again,
    limit_of,
)

if ADMISSION:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CHUNK = 1 << 16
"""Transactions of one chunk, at most."""
CHUNK_BYTES = 16 << 20
"""Bytes of a replica's log in one chunk, approximately; a chunk of a single record may be larger."""


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

    def _ends_and_marks(self, begun: Offset) -> tuple[dict[str, dict[int, Anchor]], dict[int, int]]:
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
                    if last is not None:
                        history.record_now(number, known)  # raises where it may be in a file that cannot be read
                    raise history_changed(
                        history.place, number, known, None, -1 if last is None else last.transaction_id
                    )
                if last is not None and known.lost:
                    check_not_issued_again(history, number, known, last.transaction_id)
                    seen[place] = known
                continue
            seen[place] = known  # the replica is assigned the partition, and so has a vote
            wanted = min(goal, last.transaction_id)
            if wanted > known.transaction_id:
                whole = wanted == last.transaction_id and not last.lost  # else a record may have the id nevertheless
                found = last if whole else self._at(place, number, wanted, known)
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

    def _check_batch(self, begun: Offset, ended: Offset) -> None:
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
        comparer = ChunkComparer(self._histories, differences=self._differences)
        yield from made_ahead(partition.chunks, lambda chunk: list(comparer.rows(partition, chunk)))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the reader keeps no state of a batch."""

    def stop(self) -> None:
        """The query ends."""
        for history in self._histories.values():
            history.close()


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
