"""The stream of a storage, as Spark's micro-batches ask for it, whatever the storage is.

A `History` knows what is there; the reader turns that into offsets and batches.  A batch is what lies between two offsets and
nothing else, so that Spark may ask for it again after a failure and gets the same rows; both ends are looked at before each
batch, and the last record of each of its parts while it is read.
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
except ImportError:  # Spark 4.1 takes what `latestOffset` says
    ADMISSION = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for Spark's class of the same name."""


__all__ = [
    "ADMISSION", "INTACT", "KNOWN", "LIMIT", "LOW_WATER_MARK", "TASK_WEIGHT", "UP_TO", "History", "StreamOptions", "StreamPart",
    "SupportsTriggerAvailableNow", "TaskParts", "WaltzStreamReader", "limit_of", "path_of", "stream_options",
]  # fmt: skip
TASK_WEIGHT = 128 << 20
"""Bytes, about, that ranges are packed together to, for one task: as many as Spark reads of files in one, by its default."""

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
"""Every option of a stream, as documented, beside those about the file system and about connections."""
LIMIT = "maxrecordspertrigger"
"""The option of a limit, as Spark hands it over."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the options of a stream say.

    `limit`: transactions of one batch at most, None without a limit.  `up_to`: `INTACT`, or `LOW_WATER_MARK`.  `partitions`:
    only these, None for all.  `fail_on_loss`: the query ends where transactions are lost.
    """

    starting: Starting = Starting()  # noqa: RUF009  # frozen
    limit: int | None = None
    up_to: str = INTACT
    partitions: frozenset[int] | None = None
    fail_on_loss: bool = False


def stream_options(options: Mapping[str, str], also: Collection[str] = ()) -> StreamOptions:
    """From Spark's options, whose keys are lower-case; `also`: those that the kind of storage has beside these.

    Raises InvalidRequestError for what is unknown or cannot be meant.
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
    """What load() was given.  Raises InvalidRequestError."""
    text = options.get("path", "").strip()
    if not text or options.get("paths"):
        raise InvalidRequestError(
            "a stream of format waltz reads one storage", advice='load("/data/node-1") or load("waltz://host:port")'
        )
    return text


class StreamPart(Protocol):
    """A piece of a batch that one task reads; can be pickled.  `bytes`: how much that is, about."""

    @property
    def bytes(self) -> int:
        """About as many as are read."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The session that a replica is in, and the last transaction that it has; -1: none."""

    session_id: int
    last_transaction_id: int


class History(Protocol):
    """The transactions of a storage's partitions, as they are now.  Can be pickled before it was used."""

    @property
    def place(self) -> str:
        """Path or address, for messages."""

    def look(self) -> uuid.UUID | None:
        """Look at what is there now; the calls below answer from that.  Returns the cluster's key where it is known."""

    def latest(self, partitions: Collection[int] | None, known: Mapping[int, Anchor], up_to: str) -> dict[int, Anchor]:
        """The last transaction of each partition that may be read; `BEGINNING` where there is none.

        An anchor without a record: everything behind the last record up to this id is lost, and can only be told.
        """

    def standings(self, partitions: Collection[int] | None, known: Mapping[int, Anchor]) -> Mapping[int, Standing]:
        """Of the partitions whose session is told."""

    def at_or_before(self, partition: int, transaction_id: int, known: Anchor) -> Anchor:
        """The intact record of the highest id up to this one; `BEGINNING` when there is none."""

    def again(self, partition: int, anchor: Anchor) -> Anchor | None:
        """The record that has an anchor's id now."""

    def parts(self, partition: int, start: Anchor, end: Anchor) -> Iterator[StreamPart]:
        """What lies behind `start` up to `end`, in order."""

    def read(self, part: Any, losses: Losses) -> Iterator[pa.RecordBatch]:
        """The rows of a part; `losses` is to see every finding among them.  Called on executors, without a `look`."""

    def scan(
        self, part: Any, losses: Losses, known: KnownRecords | None = None
    ) -> Iterator[pa.RecordBatch | ScannedRows]:
        """As `read`; records that are read from files stay what the scan made of them.  `known`: those of another replica."""

    def close(self) -> None:
        """Let go; a second call does nothing."""


class TaskParts(InputPartition):
    """The parts that one task reads, in order."""

    def __init__(self, parts: Sequence[StreamPart]) -> None:
        super().__init__(None)
        self.parts = tuple(parts)

    @property
    def bytes(self) -> int:
        """About as many as are read."""
        return sum(part.bytes for part in self.parts)

    def __repr__(self) -> str:
        return f"{len(self.parts)} parts, {self.bytes} bytes"


@plain_errors
class WaltzStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module.  Spark makes one for the driver and one more for the executors."""

    def __init__(self, history: History, options: StreamOptions) -> None:
        self._history = history
        self._options = options
        self._target: StreamOffset | None = None
        self._reached: StreamOffset | None = None
        """As far as this reader knows what was read: Spark 4.1 does not tell it where a batch begins."""

    @property
    def history(self) -> History:
        """What is read."""
        return self._history

    @property
    def options(self) -> StreamOptions:
        """How it is read."""
        return self._options

    # ---- where to begin, and how far one could go ------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins; with ``availableNow`` not behind what it reads, though more has come since."""
        key = self._history.look()
        latest = self._latest(StreamOffset()) if self._target is None else dict(self._target.partitions)
        starting = self._options.starting
        unknown = sorted(set(starting.partitions) - set(latest))
        if unknown:
            raise InvalidRequestError(
                f"{self._history.place}: startingTransactions names partition {unknown[0]}, and the query reads"
                f" {', '.join(map(str, sorted(latest))) or 'none'}"
            )
        places = {number: self._begin(number, starting.of(number), last) for number, last in latest.items()}
        self._reached = StreamOffset(places, key)
        return self._reached.to_json()

    def _begin(self, partition: int, where: int | str, last: Anchor) -> Anchor:
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
        """Where the next batch ends: as far as there is anything, and as the limit allows."""
        begin = self._reached if start is None else StreamOffset.from_json(start)
        key = self._history.look()
        if begin is None:
            begin, rows = StreamOffset({}, key), None
        else:
            rows = self._rows(limit)
        check_same_cluster(begin, key, self._history.place)
        if self._target is not None:
            latest = self._capped(begin)
        else:
            latest = self._latest(begin)
            self._check_present(begin, latest)
        ends = latest if rows is None else self._admitted(begin, latest, rows)
        kept = {number: one for number, one in begin.partitions.items() if number not in ends}
        return StreamOffset({**kept, **ends}, begin.cluster_key or key).to_json()

    def _rows(self, limit: ReadLimit | None) -> int | None:
        if ADMISSION and isinstance(limit, ReadMaxRows):
            return limit.max_rows
        if ADMISSION and isinstance(limit, ReadAllAvailable):
            return None
        return self._options.limit

    def _latest(self, known: StreamOffset) -> dict[int, Anchor]:
        options = self._options
        return self._history.latest(options.partitions, known.partitions, options.up_to)

    def _check_present(self, begin: StreamOffset, latest: dict[int, Anchor]) -> None:
        """Nothing that was read may be gone; what is not there yet but was asked for is no difference."""
        place = self._history.place
        for number, anchor in only_wanted(begin, self._options.partitions).items():
            last = latest.get(number)
            lost = last is not None and anchor.identified and not last.identified
            if last is not None and lost:  # the records end in front of it
                last = self._history.at_or_before(number, last.transaction_id, anchor)
            behind = last is None or last.transaction_id < anchor.transaction_id
            if behind and anchor.identified and self._options.up_to != INTACT and last is not None:
                self._confirm(number, anchor)  # the mark may be below what was read without one
            elif behind and anchor.identified:
                raise history_changed(place, number, anchor, None, -1 if last is None else last.transaction_id)
            elif last is not None and anchor.identified and last.transaction_id == anchor.transaction_id:
                if not last.is_record(anchor):
                    raise history_changed(place, number, anchor, last, None)
                behind = not lost  # the same record, perhaps in another place: nothing is new
            elif behind and anchor.lost and last is not None and self._options.up_to == INTACT:
                raise issued_again(place, number, anchor, last.transaction_id)
            if behind:
                latest[number] = anchor

    def _confirm(self, partition: int, anchor: Anchor) -> Anchor:
        """The record of an anchor where it stands now.  Raises StalePlanError when it is another one, or none."""
        if not anchor.identified:
            return anchor
        found = self._history.again(partition, anchor)
        if found is None or not found.is_record(anchor):
            last = None
            if found is None:
                last = self._history.latest({partition}, {}, INTACT).get(partition, BEGINNING).transaction_id
            raise history_changed(self._history.place, partition, anchor, found, last)
        return found

    def _admitted(self, begin: StreamOffset, latest: dict[int, Anchor], rows: int) -> dict[int, Anchor]:
        queued = {number: last.transaction_id - begin.at(number).transaction_id for number, last in latest.items()}
        return {
            number: self._cut(number, begin.at(number), latest[number], count)
            for number, count in share(queued, rows).items()
        }

    def _cut(self, partition: int, start: Anchor, last: Anchor, count: int) -> Anchor:
        """An intact record at most `count` transactions behind `start`; further only behind what is damaged or missing."""
        if count <= 0:
            return start
        nothing = start.transaction_id  # up to here nothing intact follows `start`
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
        while reach - nothing > 1:  # the first intact one
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
        """How far one could go without a limit; for the progress report."""
        key = self._history.look()
        return StreamOffset(self._latest(self._reached or StreamOffset()), key).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is all that will be read."""
        key = self._history.look()
        self._target = StreamOffset(self._latest(StreamOffset()), key)

    def _capped(self, begin: StreamOffset) -> dict[int, Anchor]:
        assert self._target is not None
        latest = dict(self._target.partitions)
        self._check_present(begin, latest)
        return latest

    # ---- batches ---------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        begin, finish = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._reached = finish
        key = self._history.look()
        for one in (begin, finish):
            check_same_cluster(one, key, self._history.place)
        self._check_kept(begin, finish)
        parts = self._parts(begin, finish)
        return [TaskParts(packet) for packet in pack(parts, TASK_WEIGHT, attrgetter("bytes"))] or [TaskParts(())]

    def _parts(self, begin: StreamOffset, finish: StreamOffset) -> Iterator[StreamPart]:
        """What lies between two offsets, partition by partition.  Raises StalePlanError where it is not there any more."""
        for number in sorted(finish.partitions):
            low, high = begin.at(number), finish.partitions[number]
            if high.transaction_id <= low.transaction_id:
                if high.transaction_id < low.transaction_id or (low.identified and not high.is_record(low)):
                    found = high if high.transaction_id == low.transaction_id else None
                    raise history_changed(self._history.place, number, low, found, high.transaction_id)
                continue
            yield from self._history.parts(number, self._confirm(number, low), self._confirm(number, high))

    def _check_kept(self, begin: StreamOffset, finish: StreamOffset) -> None:
        """No partition is forgotten, as where `latestOffset` did not know where the batch begins."""
        wanted = only_wanted(begin, self._options.partitions)
        for number, anchor in begin.partitions.items():
            if not anchor.identified or number in finish.partitions:
                continue
            if number in wanted:
                raise history_changed(self._history.place, number, anchor, None, -1)
            raise InvalidRequestError(
                f"{self._history.place}, partition {number}: it was read up to {anchor.transaction_id}, and the query leaves it"
                " out now; its checkpoint would forget that",
                advice="begin with a checkpoint of its own, or use PySpark 4.2 or later",
            )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task.  Raises DamageError in the end where transactions are lost and the query is to fail for that."""
        assert isinstance(partition, TaskParts)
        kernels.choose(partition.bytes)  # many small parts, too, are worth compiled code
        losses = Losses(wanted=self._options.fail_on_loss)
        for part in partition.parts:
            yield from self._history.read(part, losses)
        losses.check()

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything up to here; nothing is kept, and so nothing is let go of."""
        self._reached = StreamOffset.from_json(end)

    def stop(self) -> None:
        """The query ends."""
        self._history.close()
