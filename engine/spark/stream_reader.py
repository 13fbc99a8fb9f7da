"""The stream of a storage in Spark's micro-batches, for every kind of storage.

A `History` is the interface to the storage; the reader turns its answers into offsets and batches.  A batch is a function of its
two offsets, so that Spark may ask for it again after a failure and gets the same rows.  To ensure this, the records at both
offsets are verified when a batch is planned, and the last record of each part when the part is read.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.scan import kernels
from waltzctl.engine.spark.data_loss import OPTION, Losses, fails_on_loss
from waltzctl.engine.spark.offsets import (
    BEGINNING,
    EARLIEST,
    LATEST,
    Anchor,
    Starting,
    StreamOffset,
    check_same_cluster,
    history_changed,
    issued_again,
    only_wanted,
    parse_starting,
    share,
)
from waltzctl.engine.spark.plain_errors import plain_errors
from waltzctl.engine.spark.read_options import STORAGE_PREFIX, partitions_of
from waltzctl.engine.spark.splits import pack

if TYPE_CHECKING:
    import pyarrow as pa

    from waltzctl.engine.scan.known_records import KnownRecords
    from waltzctl.engine.spark.stream_rows import ScannedRows

try:  # Spark 4.2 and later
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    ADMISSION = True
except ImportError:  # Spark 4.1 has no limits: a batch ends where `latestOffset` says
    ADMISSION = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for Spark's class of the same name."""


__all__ = [
    "ADMISSION", "INTACT", "KNOWN", "LIMIT", "LOW_WATER_MARK", "TASK_WEIGHT", "UP_TO", "History", "StreamOptions", "StreamPart",
    "SupportsTriggerAvailableNow", "TaskParts", "WaltzStreamReader", "check_not_issued_again", "limit_of", "path_of",
    "stream_options",
]  # fmt: skip
TASK_WEIGHT = 128 << 20
"""Bytes of the parts of one task, approximately: the default of Spark's own file sources."""

INTACT = "intact"
LOW_WATER_MARK = "low-water-mark"
UP_TO = (INTACT, LOW_WATER_MARK)
KNOWN = {
    "path": "what load() was given: a storage directory (a path or a URL), or waltz://host:port",
    "startingTransactions": 'where a new query begins: earliest, latest, or JSON such as {"0": 1200, "1": "latest"}',
    "maxRecordsPerTrigger": "transactions of one batch at most",
    "upTo": "intact: every whole record; low-water-mark: only what no recovery takes back",
    OPTION: "true: a query that comes upon lost transactions ends, and names them; false: each loss is a row",
    "partitions": "only these, for instance 0-3,7",
    "view": "records",
    "data": "true: the records' data as well",
    "columns": "names, separated by commas, instead of a schema",
}
"""Every option of a stream, as documented, except those of file systems and of connections."""
LIMIT = "maxrecordspertrigger"
"""The option ``maxRecordsPerTrigger``, in lower case as Spark passes it."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream."""

    starting: Starting = Starting()  # noqa: RUF009  # frozen
    limit: int | None = None
    """Transactions of one batch, at most; None: no limit."""
    up_to: str = INTACT
    """`INTACT`, or `LOW_WATER_MARK`."""
    partitions: frozenset[int] | None = None
    """The partitions to read; None: all."""
    fail_on_loss: bool = False
    """Whether the query fails where transactions are lost."""


def stream_options(options: Mapping[str, str], also: Collection[str] = ()) -> StreamOptions:
    """Parse Spark's options, whose keys are in lower case.  `also`: further options that the kind of storage has.

    Raises InvalidRequestError for an unknown option or an invalid value.
    """
    names = {name.lower() for name in (*KNOWN, *also)}
    unknown = sorted(
        name for name in map(str.lower, options) if name not in names and not name.startswith(STORAGE_PREFIX)
    )
    if unknown:
        raise InvalidRequestError(
            f"a stream of format waltz has no option {', '.join(unknown)}",
            advice=f"its options are {', '.join((*KNOWN, *also))}",
        )
    if options.get("view", "records").strip().lower() != "records":
        raise InvalidRequestError(f"view {options['view']!r}: a stream has records only")
    up_to = options.get("upto", INTACT).strip().lower()
    if up_to not in UP_TO:
        raise InvalidRequestError(f"upTo {up_to!r}: must be {' or '.join(UP_TO)}")
    starting = parse_starting(options.get("startingtransactions"))
    return StreamOptions(starting, limit_of(options), up_to, partitions_of(options), fails_on_loss(options))


def limit_of(options: Mapping[str, str]) -> int | None:
    """The option ``maxRecordsPerTrigger``: transactions, None for no bound.  Raises InvalidRequestError."""
    said = options.get(LIMIT)
    if said is None:
        return None
    if not said.strip().isdecimal() or int(said) < 1:
        raise InvalidRequestError(f"maxRecordsPerTrigger {said!r}: must be a number of transactions from 1 on")
    return int(said)


def path_of(options: Mapping[str, str]) -> str:
    """The argument of ``load()``.  Raises InvalidRequestError."""
    text = options.get("path", "").strip()
    if not text or options.get("paths"):
        raise InvalidRequestError(
            "a stream of format waltz reads one storage", advice='load("/data/node-1") or load("waltz://host:port")'
        )
    return text


class StreamPart(Protocol):
    """A piece of a batch that one task reads; can be pickled."""

    @property
    def bytes(self) -> int:
        """Bytes to read, approximately."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The session of a replica, and its last transaction (-1: none)."""

    session_id: int
    last_transaction_id: int


class History(Protocol):
    """Access to the transactions of a storage's partitions.  Can be pickled before its first use."""

    @property
    def place(self) -> str:
        """The storage's path or address, for messages."""

    def refresh(self) -> uuid.UUID | None:
        """Take a snapshot of the storage, from which the calls below answer.  Returns the cluster's key, None if unknown."""

    def latest(self, partitions: Collection[int] | None, known: Mapping[int, Anchor], up_to: str) -> dict[int, Anchor]:
        """The last transaction of each partition that may be read, by `up_to`; `BEGINNING` for an empty partition.

        An anchor that names no record: all transactions after the last record, up to this id, are lost, and are returned as rows
        with findings.  `known`: records that were read earlier, by partition.
        """

    def standings(self, partitions: Collection[int] | None, known: Mapping[int, Anchor]) -> Mapping[int, Standing]:
        """The session and the last transaction of each partition whose session is known."""

    def at_or_before(self, partition: int, transaction_id: int, known: Anchor) -> Anchor:
        """The intact record with the highest id up to this one; `BEGINNING` when there is none.  `known`: as for `latest`."""

    def record_now(self, partition: int, anchor: Anchor) -> Anchor | None:
        """The intact record that has the anchor's id now, whether it is the same record or another one; None: there is none."""

    def parts(self, partition: int, start: Anchor, end: Anchor) -> Iterator[StreamPart]:
        """The parts with the transactions after `start` up to `end`, in order."""

    def read(self, part: Any, losses: Losses) -> Iterator[pa.RecordBatch]:
        """The rows of a part; every finding among them is added to `losses`.  Called on executors, without a `look` before."""

    def scan(
        self, part: Any, losses: Losses, known: KnownRecords | None = None
    ) -> Iterator[pa.RecordBatch | ScannedRows]:
        """As `read`, but records from files are returned as the scan yields them.

        `known`: records of another replica; those with the same bytes need not be checked again.
        """

    def close(self) -> None:
        """Release connections and files; a second call does nothing."""


def check_not_issued_again(history: History, partition: int, anchor: Anchor, last: int) -> None:
    """Raise StalePlanError where ids up to an anchor that is `lost` were given up: the partition ends at `last`, before them.

    The end of a query with ``availableNow`` is found before its checkpoint is known, and so without what was told as lost.
    """
    now = history.latest({partition}, {partition: anchor}, INTACT).get(partition)
    if now is None or now.transaction_id < anchor.transaction_id:
        raise issued_again(history.place, partition, anchor, last)


class TaskParts(InputPartition):
    """The parts that one task reads, in order."""

    def __init__(self, parts: Sequence[StreamPart]) -> None:
        super().__init__(None)
        self.parts = tuple(parts)

    @property
    def bytes(self) -> int:
        """Bytes to read, approximately."""
        return sum(part.bytes for part in self.parts)

    def __repr__(self) -> str:
        return f"{len(self.parts)} parts, {self.bytes} bytes"


@plain_errors
class WaltzStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module.  Spark creates one for the driver, and another one for the executors."""

    def __init__(self, history: History, options: StreamOptions) -> None:
        self._history = history
        self._options = options
        self._target: StreamOffset | None = None
        """Where a query with the trigger ``availableNow`` ends; None with other triggers."""
        self._reached: StreamOffset | None = None
        """The last offset that Spark named, as Spark 4.1 does not tell `latestOffset` where the next batch begins."""

    @property
    def history(self) -> History:
        """The storage that is read."""
        return self._history

    @property
    def options(self) -> StreamOptions:
        """The options of the stream."""
        return self._options

    # ---- where to begin, and how far one could go ------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins.

        With ``availableNow`` it is at or before the query's end, even when transactions were written after that was fixed.
        """
        key = self._history.refresh()
        latest = self._latest(StreamOffset()) if self._target is None else dict(self._target.partitions)
        starting = self._options.starting
        unknown = sorted(set(starting.partitions) - set(latest))
        if unknown:
            raise InvalidRequestError(
                f"{self._history.place}: startingTransactions names partition {unknown[0]}, and the query reads"
                f" {', '.join(map(str, sorted(latest))) or 'none'}"
            )
        places = {number: self._starting_anchor(number, starting.of(number), last) for number, last in latest.items()}
        self._reached = StreamOffset(places, key)
        return self._reached.to_json()

    def _starting_anchor(self, partition: int, where: int | str, last: Anchor) -> Anchor:
        """The anchor in front of the transaction `where` (or `EARLIEST`, `LATEST`), with its record where that is intact."""
        if where == EARLIEST or where == 0:
            return BEGINNING
        if where == LATEST:
            return last
        assert isinstance(where, int)
        wanted = Anchor(where - 1)
        if last.transaction_id < wanted.transaction_id:
            return wanted
        found = self._history.at_or_before(partition, wanted.transaction_id, BEGINNING)
        return found if found.transaction_id == wanted.transaction_id else wanted

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends: at the last transaction of each partition, or earlier by the limit."""
        begin = self._reached if start is None else StreamOffset.from_json(start)
        key = self._history.refresh()
        if begin is None:
            begin, rows = StreamOffset({}, key), None
        else:
            rows = self._row_limit(limit)
        check_same_cluster(begin, key, self._history.place)
        if self._target is not None:
            latest = self._latest_in_target(begin)
        else:
            latest = self._latest(begin)
            self._check_present(begin, latest)
        ends = latest if rows is None else self._ends_within(begin, latest, rows)
        kept = {number: one for number, one in begin.partitions.items() if number not in ends}
        return StreamOffset({**kept, **ends}, begin.cluster_key or key).to_json()

    def _row_limit(self, limit: ReadLimit | None) -> int | None:
        if ADMISSION and isinstance(limit, ReadMaxRows):
            return limit.max_rows
        if ADMISSION and isinstance(limit, ReadAllAvailable):
            return None
        return self._options.limit

    def _latest(self, known: StreamOffset) -> dict[int, Anchor]:
        options = self._options
        return self._history.latest(options.partitions, known.partitions, options.up_to)

    def _check_present(self, begin: StreamOffset, latest: dict[int, Anchor]) -> None:
        """Compare the storage with what was read; a partition of `latest` never goes back behind `begin` afterwards.

        Raises StalePlanError where a record that was read is gone or another one.  A start that the caller asked for may be
        beyond the last transaction.
        """
        place = self._history.place
        for number, anchor in only_wanted(begin, self._options.partitions).items():
            last = latest.get(number)
            lost = last is not None and anchor.identified and not last.identified
            if last is not None and lost:  # the id of `last` is lost, and the last record is before it
                last = self._history.at_or_before(number, last.transaction_id, anchor)
            behind = last is None or last.transaction_id < anchor.transaction_id
            if behind and anchor.identified and self._options.up_to != INTACT and last is not None:
                self._confirm(number, anchor)  # the mark may be below the offset: an earlier query read without it
            elif behind and anchor.identified:
                if last is not None:
                    self._history.record_now(number, anchor)  # raises where it may be in a file that cannot be read
                raise history_changed(place, number, anchor, None, -1 if last is None else last.transaction_id)
            elif last is not None and anchor.identified and last.transaction_id == anchor.transaction_id:
                if not last.is_record(anchor):
                    raise history_changed(place, number, anchor, last, None)
                behind = not lost  # the same record, perhaps in another file: nothing new but a loss after it
            elif last is None and anchor.lost and anchor.transaction_id >= 0:
                raise history_changed(place, number, anchor, None, -1)  # there were records in front of what was told
            elif behind and anchor.lost and last is not None and self._options.up_to == INTACT:
                check_not_issued_again(self._history, number, anchor, last.transaction_id)
            if behind:
                latest[number] = anchor

    def _confirm(self, partition: int, anchor: Anchor) -> Anchor:
        """The anchor with the record's place as of now.  Raises StalePlanError when the id has another record, or none."""
        if not anchor.identified:
            return anchor
        found = self._history.record_now(partition, anchor)
        if found is None or not found.is_record(anchor):
            last = None
            if found is None:
                last = self._history.latest({partition}, {}, INTACT).get(partition, BEGINNING).transaction_id
            raise history_changed(self._history.place, partition, anchor, found, last)
        return found

    def _ends_within(self, begin: StreamOffset, latest: dict[int, Anchor], rows: int) -> dict[int, Anchor]:
        queued = {number: last.transaction_id - begin.at(number).transaction_id for number, last in latest.items()}
        return {
            number: self._end_within(number, begin.at(number), latest[number], count)
            for number, count in share(queued, rows).items()
        }

    def _end_within(self, partition: int, start: Anchor, last: Anchor, count: int) -> Anchor:
        """An intact record at most `count` transactions after `start`, or after the damage or gap that follows `start`."""
        if count <= 0:
            return last if last.transaction_id == start.transaction_id else start  # its end may have something to tell
        nothing = start.transaction_id  # no id after `start` up to this one has an intact record
        reach, found = nothing + count, start
        while reach < last.transaction_id:
            found = self._history.at_or_before(partition, reach, start)
            if found.transaction_id > start.transaction_id:
                break
            nothing, reach = reach, 2 * reach - start.transaction_id
        else:
            reach, found = last.transaction_id, last
        if nothing == start.transaction_id:
            return found
        while reach - nothing > 1:  # binary search for the first intact record
            middle = (nothing + reach) // 2
            if self._history.at_or_before(partition, middle, start).transaction_id > start.transaction_id:
                reach = middle
            else:
                nothing = middle
        wanted = min(reach + count - 1, last.transaction_id)
        if wanted == last.transaction_id:
            return last
        return self._history.at_or_before(partition, wanted, start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option ``maxRecordsPerTrigger``."""
        return ReadAllAvailable() if self._options.limit is None else ReadMaxRows(self._options.limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The last transactions regardless of the limit; for Spark's progress report."""
        key = self._history.refresh()
        return StreamOffset(self._latest(self._reached or StreamOffset()), key).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: it reads what is there now."""
        key = self._history.refresh()
        self._target = StreamOffset(self._latest(StreamOffset()), key)

    def _latest_in_target(self, begin: StreamOffset) -> dict[int, Anchor]:
        assert self._target is not None
        latest = dict(self._target.partitions)
        self._check_present(begin, latest)
        return latest

    # ---- batches ---------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        begin, finish = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._reached = finish
        key = self._history.refresh()
        for one in (begin, finish):
            check_same_cluster(one, key, self._history.place)
        self._check_kept(begin, finish)
        parts = self._parts(begin, finish)
        return [TaskParts(packet) for packet in pack(parts, TASK_WEIGHT, attrgetter("bytes"))] or [TaskParts(())]

    def _parts(self, begin: StreamOffset, finish: StreamOffset) -> Iterator[StreamPart]:
        """The parts between two offsets, by partition.  Raises StalePlanError where a record at an offset is gone or replaced."""
        for number in sorted(finish.partitions):
            low, high = begin.at(number), finish.partitions[number]
            told = high.lost and not low.lost  # something stands at the end of the partition that is no data file
            if high.transaction_id <= low.transaction_id and not (told and high.transaction_id == low.transaction_id):
                if high.transaction_id < low.transaction_id or (low.identified and not high.is_record(low)):
                    found = high if high.transaction_id == low.transaction_id else None
                    raise history_changed(self._history.place, number, low, found, high.transaction_id)
                continue
            yield from self._history.parts(number, self._confirm(number, low), self._confirm(number, high))

    def _check_kept(self, begin: StreamOffset, finish: StreamOffset) -> None:
        """Raise StalePlanError or InvalidRequestError where a batch's end leaves out a partition that was read.

        Before PySpark 4.2 `latestOffset` is not told where a batch begins, and may return such an end.
        """
        wanted = only_wanted(begin, self._options.partitions)
        for number, anchor in begin.partitions.items():
            told = anchor.lost and anchor.transaction_id >= 0
            if not (anchor.identified or told) or number in finish.partitions:
                continue
            if number in wanted:
                raise history_changed(self._history.place, number, anchor, None, -1)
            raise InvalidRequestError(
                f"{self._history.place}, partition {number}: it was read up to {anchor.transaction_id}, and the query leaves it"
                " out now; its checkpoint would forget that",
                advice="begin with a checkpoint of its own, or use PySpark 4.2 or later",
            )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task.  Raises DamageError after the last row where transactions are lost and `fail_on_loss` is set."""
        assert isinstance(partition, TaskParts)
        kernels.choose(partition.bytes)  # the sum of the parts counts: many small ones justify compiled code, too
        losses = Losses(wanted=self._options.fail_on_loss)
        for part in partition.parts:
            yield from self._history.read(part, losses)
        losses.check()

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has committed the batches up to here.  There is nothing to release."""
        self._reached = StreamOffset.from_json(end)

    def stop(self) -> None:
        """The query ends."""
        self._history.close()
