"""Offsets and batches over a history told in a line: where a batch ends, what counts as gone, and how tasks are packed."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from waltzctl.engine.errors import InvalidRequestError, StalePlanError
from waltzctl.engine.spark import stream_reader
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.offsets import BEGINNING, Anchor, StreamOffset, parse_starting
from waltzctl.engine.spark.stream_reader import (
    ADMISSION,
    KNOWN,
    StreamOptions,
    TaskParts,
    WaltzStreamReader,
    path_of,
    stream_options,
)
from waltzctl.formats.request_id import RequestId

KEY = uuid.UUID(int=1)
HERE = "/d"


def record(number: int, checksum: int = 1) -> Anchor:
    return Anchor(number, RequestId(1, 2, 3, number), checksum, 0, 100 * number, 100)


@dataclass(frozen=True)
class Part:
    partition: int
    first: int
    last: int

    @property
    def bytes(self) -> int:
        return 10 * (self.last + 1 - self.first)


@dataclass
class Told:
    """A history: of each partition the ids of its intact records, or their anchors.  `lost`: up to there all is lost."""

    records: dict[int, dict[int, Anchor]] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    key: uuid.UUID | None = KEY
    mark: int = 10**6
    place: str = HERE
    asked: list[int] = field(default_factory=list)
    closed: int = 0

    def refresh(self) -> uuid.UUID | None:
        return self.key

    def latest(self, partitions: Collection[int] | None, known: Mapping[int, Anchor], up_to: str) -> dict[int, Anchor]:
        found = {}
        for number in self.records:
            if partitions is None or number in partitions:
                last = self._highest(number, self.mark if up_to == "low-water-mark" else 10**6)
                lost = self.lost.get(number, -1)
                found[number] = Anchor(lost) if lost > last.transaction_id else last
        return found

    def _highest(self, partition: int, most: int) -> Anchor:
        return max(
            (one for number, one in self.records[partition].items() if number <= most),
            default=BEGINNING,
            key=lambda one: one.transaction_id,
        )

    def at_or_before(self, partition: int, transaction_id: int, known: Anchor) -> Anchor:
        self.asked.append(transaction_id)
        return self._highest(partition, transaction_id)

    def record_now(self, partition: int, anchor: Anchor) -> Anchor | None:
        return self.records.get(partition, {}).get(anchor.transaction_id)

    def parts(self, partition: int, start: Anchor, end: Anchor) -> Iterator[Part]:
        for number in range(start.transaction_id + 1, end.transaction_id + 1):
            yield Part(partition, number, number)

    def read(self, part: Any, losses: Losses) -> Iterator[Any]:
        yield part

    def close(self) -> None:
        self.closed += 1


def told(*ids: Collection[int], **more: Any) -> Told:
    return Told({number: {one: record(one) for one in found} for number, found in enumerate(ids)}, **more)


def over(history: Any, **options: Any) -> WaltzStreamReader:
    return WaltzStreamReader(history, StreamOptions(**options))


def offset(*places: Anchor | int, key: uuid.UUID | None = KEY) -> dict[str, Any]:
    anchors = {number: record(one) if isinstance(one, int) else one for number, one in enumerate(places)}
    made: dict[str, Any] = json.loads(json.dumps(StreamOffset(anchors, key).to_json()))
    return made


def latest(reader: WaltzStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    reader._reached = StreamOffset.from_json(start)  # as after the batch in front
    return reader.latestOffset(start) if ADMISSION else reader.latestOffset()


# ---- where a batch ends --------------------------------------------------------------------------------------------------

ALL = range(100)


@pytest.mark.parametrize(
    ("ids", "start", "limit", "end"),
    [
        (ALL, 9, 1, 10),
        (ALL, 9, 5, 14),
        (ALL, 9, 89, 98),
        (ALL, 9, 90, 99),
        (ALL, 9, 91, 99),
        (ALL, 99, 5, 99),
        # what is damaged at the end of a batch comes with the next one
        ([*range(13), *range(15, 100)], 9, 3, 12),
        ([*range(13), *range(15, 100)], 9, 4, 12),
        ([*range(13), *range(15, 100)], 9, 5, 12),
        ([*range(13), *range(15, 100)], 9, 6, 15),
        # damage behind the start that is longer than the limit: beyond it, and as many records as the limit allows
        ([*range(10), *range(20, 100)], 9, 1, 20),
        ([*range(10), *range(20, 100)], 9, 3, 22),
        ([*range(10), *range(20, 100)], 9, 5, 24),
        ([*range(10), *range(20, 100)], 9, 10, 29),
        ([*range(10), *range(20, 100)], 9, 11, 20),
        ([*range(10), 20, 22, 23, *range(40, 100)], 9, 3, 22),
        ([*range(10), 20, *range(30, 100)], 9, 5, 20),
        ([*range(10), 99], 9, 3, 99),
        ([*range(10), 98, 99], 9, 1, 98),
        ([*range(10), 98, 99], 9, 2, 99),
        ([*range(10), 73, *range(90, 100)], 9, 4, 73),
    ],
)
def test_a_batch_ends_with_an_intact_record_within_the_limit_or_as_soon_behind_damage_as_there_is_one(
    ids: Collection[int], start: int, limit: int, end: int
) -> None:
    assert latest(over(told(ids), limit=limit), offset(start)) == offset(end)


def test_what_is_lost_at_the_end_is_one_place_without_a_record() -> None:
    history = told(range(10), lost={0: 19})
    assert latest(over(history), offset(9)) == offset(Anchor(19))
    assert latest(over(history, limit=4), offset(9)) == offset(Anchor(19))
    assert latest(over(history, limit=4), offset(3)) == offset(7)
    assert latest(over(history, limit=4), offset(Anchor(19))) == offset(Anchor(19))
    history.lost[0] = 25
    assert latest(over(history), offset(Anchor(19))) == offset(Anchor(25))
    history.records[0] |= {26: record(26)}
    assert latest(over(history, limit=7), offset(Anchor(19))) == offset(26)


def test_a_limit_is_shared_by_the_partitions() -> None:
    history = told(ALL, range(3), range(50))
    assert latest(over(history, limit=30), offset(9, 1, 9)) == offset(24, 2, 23)
    assert latest(over(history), offset(9, 1, 9)) == offset(99, 2, 49)
    assert latest(over(history, limit=1), offset(9, 2, 49)) == offset(10, 2, 49)


def test_what_was_read_and_is_left_out_now_stays_in_the_checkpoint() -> None:
    history = told(ALL, range(3))
    assert latest(over(history, partitions=frozenset({0})), offset(9, 1)) == offset(99, 1)
    assert latest(over(history, partitions=frozenset({1})), offset(9, 1)) == offset(9, 2)


def test_the_key_of_the_cluster_is_kept_and_another_one_ends_the_query() -> None:
    history = told(range(5))
    assert latest(over(history), offset(2, key=None)) == offset(4)
    history.key = None
    assert latest(over(history), offset(2)) == offset(4)
    history.key = uuid.UUID(int=9)
    with pytest.raises(StalePlanError, match=f"begun on cluster {KEY}"):
        latest(over(history), offset(2))


# ---- what was read must be there -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "start", "said"),
    [
        (told(range(9)), offset(9), "transaction 9 was read, and the partition ends at 8 now: it was truncated"),
        (told(()), offset(9), "transaction 9 was read, and the partition ends at -1 now: it was truncated"),
        (told(), offset(9), "transaction 9 was read, and the partition ends at -1 now: it was truncated"),
        (
            Told({0: {9: record(9, 2)}}),
            offset(9),
            "transaction 9 is not the one that was read: request 1.2.3.9 with checksum 00000002 stands there now, it was request",
        ),
        (told(range(8), lost={0: 20}), offset(9), "transaction 9 was read, and the partition ends at 7 now"),
        (Told({0: {9: record(9, 2)}}, {0: 20}), offset(9), "transaction 9 is not the one that was read"),
    ],
)
def test_nothing_that_was_read_may_be_gone_or_be_another_record(
    history: Told, start: dict[str, Any], said: str
) -> None:
    with pytest.raises(StalePlanError, match=re.escape(f"{HERE}, partition 0: {said}")):
        latest(over(history), start)


def test_what_is_not_there_yet_is_no_difference() -> None:
    wanted = Anchor(50)  # as a query that begins behind the end
    assert latest(over(told(range(9))), offset(wanted)) == offset(wanted)
    assert latest(over(told()), offset(wanted)) == offset(wanted)
    assert latest(over(told(range(51))), offset(wanted)) == offset(50)
    assert latest(over(told(range(52))), offset(wanted)) == offset(51)
    assert latest(over(told(range(9), lost={0: 20})), offset(9 - 1)) == offset(Anchor(20))


def test_the_same_record_in_another_place_is_nothing_new() -> None:
    moved = replace(record(9), offset=5, segment=3)
    assert latest(over(Told({0: {9: moved}})), offset(9)) == offset(9)


def test_a_mark_below_what_was_read_is_no_loss_while_the_record_is_there() -> None:
    up_to = {"up_to": "low-water-mark"}
    assert latest(over(told(range(9), mark=5), **up_to), offset(7)) == offset(7)
    assert latest(over(told(range(9), mark=5), **up_to), offset(3)) == offset(5)
    for history, said in (
        (told(range(7), mark=5), "transaction 7 was read, and the partition ends at 6 now"),
        (Told({0: {7: record(7, 2), 5: record(5)}}, mark=5), "transaction 7 is not the one that was read"),
        (told([0, 9], mark=5), "transaction 7 was read, and there is no intact record of this id any more"),
    ):
        with pytest.raises(StalePlanError, match=said):
            latest(over(history, **up_to), offset(7))


# ---- where a query begins, and what is there when it begins --------------------------------------------------------------


@pytest.mark.parametrize(
    ("starting", "place"),
    [
        ("earliest", BEGINNING),
        ("latest", record(9)),
        ('{"0": 0}', BEGINNING),
        ('{"0": 5}', record(4)),
        ('{"0": 8}', Anchor(7)),  # whose record is damaged
        ('{"0": 9}', record(8)),
        ('{"0": 10}', record(9)),
        ('{"0": 11}', Anchor(10)),
        ('{"0": "latest"}', record(9)),
        ('{"0": "earliest"}', BEGINNING),
    ],
)
def test_a_query_begins_behind_the_transaction_in_front(starting: str, place: Anchor) -> None:
    options = stream_options({"startingtransactions": starting})
    history: Any = told([*range(7), 8, 9])
    reader = WaltzStreamReader(history, options)
    assert reader.initialOffset() == offset(place)
    assert len(history.asked) == (
        0 <= place.transaction_id < 10 and "latest" not in starting
    )  # nothing lies behind the end
    assert reader._reached == StreamOffset({0: place}, KEY)


def test_a_partition_that_the_query_does_not_read_cannot_be_started_at() -> None:
    options = stream_options({"startingtransactions": '{"2": 1, "3": 1}', "partitions": "0-1"})
    reader = WaltzStreamReader(told(ALL, ALL, ALL), options)  # type: ignore[arg-type]
    said = f"{HERE}: startingTransactions names partition 2, and the query reads 0, 1"
    with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}$"):
        reader.initialOffset()
    reader = WaltzStreamReader(told(), stream_options({"startingtransactions": '{"2": 1}'}))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"names partition 2, and the query reads none$"):
        reader.initialOffset()


def test_a_reader_that_is_told_no_beginning_knows_how_far_it_was() -> None:
    history = told(ALL)
    reader = over(history, limit=10)
    assert reader.reportLatestOffset() == offset(99)
    assert reader.latestOffset() == offset(99)  # of a query whose first batch is asked for again: it has no limit
    reader.initialOffset()
    assert reader.latestOffset() == offset(9)
    reader.partitions(offset(BEGINNING), offset(9))
    assert reader.latestOffset() == offset(19)
    reader.commit(offset(29))
    assert reader.latestOffset() == offset(39)
    assert reader.reportLatestOffset() == offset(99)


def test_available_now_is_what_was_there_when_it_began() -> None:
    history = told(range(30), range(5))
    reader = over(history, limit=20)
    reader.prepareForTriggerAvailableNow()
    history.records[0] |= {number: record(number) for number in range(30, 60)}
    assert latest(reader, offset(9, 4)) == offset(29, 4)
    assert latest(reader, offset(29, 4)) == offset(29, 4)
    with pytest.raises(StalePlanError, match="transaction 4 is not the one"):
        latest(reader, offset(9, replace(record(4), record_checksum=7)))


@pytest.mark.parametrize(
    ("starting", "begins"),
    [
        ("latest", record(29)), ("earliest", BEGINNING), ('{"0": 29}', record(28)), ('{"0": 30}', record(29)),
        ('{"0": 31}', Anchor(30)), ('{"0": 45}', Anchor(44)),
    ],
)  # fmt: skip
def test_available_now_begins_no_later_than_it_ends(starting: str, begins: Anchor) -> None:
    """Whatever comes between the two; a place that is named and not there yet is waited for."""
    history = told(range(30))
    reader = over(history, starting=parse_starting(starting))
    reader.prepareForTriggerAvailableNow()
    history.records[0] |= {number: record(number) for number in range(30, 60)}
    begun = reader.initialOffset()
    assert begun == offset(begins)
    ended = latest(reader, begun)
    assert ended == offset(max(begins, record(29), key=lambda one: one.transaction_id))
    rest = range(begins.transaction_id + 1, 30)
    assert [number for task in packed(reader, begun, ended) for number in task] == list(rest)


# ---- batches -------------------------------------------------------------------------------------------------------------


def packed(reader: WaltzStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[int]]:
    tasks = reader.partitions(start, end)
    assert all(isinstance(one, TaskParts) for one in tasks)
    return [[part.first for part in one.parts] for one in tasks]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("weight", "tasks"),
    [(9, [[0], [1], [2], [3], [4]]), (20, [[0, 1], [2, 3], [4]]), (29, [[0, 1], [2, 3], [4]]), (50, [[0, 1, 2, 3, 4]])],
)
def test_neighbours_are_one_task_up_to_its_weight(
    monkeypatch: pytest.MonkeyPatch, weight: int, tasks: list[list[int]]
) -> None:
    monkeypatch.setattr(stream_reader, "TASK_WEIGHT", weight)
    assert packed(over(told(ALL)), offset(BEGINNING), offset(4)) == tasks


def test_a_batch_is_what_lies_between_its_offsets_in_every_partition() -> None:
    reader = over(told(range(9), range(9), range(9)))
    tasks = reader.partitions(offset(3, 8, BEGINNING), offset(5, 8, 1))
    (task,) = tasks
    assert isinstance(task, TaskParts)
    assert task.parts == (Part(0, 4, 4), Part(0, 5, 5), Part(2, 0, 0), Part(2, 1, 1))
    assert repr(task) == "4 parts, 40 bytes"
    assert list(reader.read(task)) == list(task.parts)
    assert packed(reader, offset(3), offset(3)) == [[]]
    reader.stop()
    assert reader._history.closed == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (offset(5), offset(4), "transaction 5 was read, and the partition ends at 4 now"),
        (offset(5), offset(replace(record(5), record_checksum=3)), "transaction 5 is not the one that was read"),
        (offset(Anchor(5)), offset(4), "transaction 5 was read, and the partition ends at 4 now"),
        (offset(replace(record(5), record_checksum=3)), offset(7), "transaction 5 is not the one that was read"),
        (offset(5), offset(replace(record(7), record_checksum=3)), "transaction 7 is not the one that was read"),
        (offset(5), offset(12), "transaction 12 was read, and the partition ends at 8 now"),
        (offset(5, 5), offset(7), "partition 1: transaction 5 was read, and the partition ends at -1 now"),
    ],
)
def test_both_ends_of_a_batch_are_looked_at(start: dict[str, Any], end: dict[str, Any], said: str) -> None:
    with pytest.raises(StalePlanError, match=said):
        over(told(range(9), range(9))).partitions(start, end)


def test_an_end_without_a_record_is_taken_as_it_is() -> None:
    history = told(range(9), lost={0: 12})
    assert packed(over(history), offset(6), offset(Anchor(9))) == [[7, 8, 9]]
    assert packed(over(history), offset(Anchor(9)), offset(Anchor(9))) == [[]]
    assert packed(over(history), offset(Anchor(6)), offset(6)) == [[]], "and so is a beginning"


def test_a_batch_may_forget_only_what_was_never_read() -> None:
    reader = over(told(range(9), range(9)), partitions=frozenset({0}))
    said = (
        f"{HERE}, partition 1: it was read up to 5, and the query leaves it out now; its checkpoint would forget that"
    )
    with pytest.raises(InvalidRequestError, match=re.escape(said)):
        reader.partitions(offset(5, 5), offset(7))
    assert packed(reader, offset(5, Anchor(5)), offset(6)) == [[6]]


def test_a_batch_of_another_cluster_is_refused_at_either_end() -> None:
    other = uuid.UUID(int=9)
    for start, end in ((offset(1, key=other), offset(2)), (offset(1), offset(2, key=other))):
        with pytest.raises(StalePlanError, match=f"begun on cluster {other}"):
            over(told(range(9))).partitions(start, end)


# ---- options -------------------------------------------------------------------------------------------------------------


def test_whoever_goes_through_a_stream_without_spark_sees_what_is_read_and_how() -> None:
    """As a pipeline does."""
    history: Any = told(range(3))
    reader = WaltzStreamReader(history, StreamOptions(limit=7))
    assert reader.history is history
    assert reader.options == StreamOptions(limit=7)


def test_options_are_as_documented() -> None:
    assert stream_options({}) == StreamOptions()
    given = {
        "maxRecordsPerTrigger": " 1 ", "upTo": " Low-Water-Mark", "partitions": "0-1,4", "failOnDataLoss": "true",
        "view": " Records ", "path": "/d", "storage.key": "x", "timeout": "5s",
    }  # fmt: skip
    lower = {name.lower(): value for name, value in given.items()}
    expected = StreamOptions(limit=1, up_to="low-water-mark", partitions=frozenset({0, 1, 4}), fail_on_loss=True)
    assert stream_options(lower, ("timeout",)) == expected
    with pytest.raises(InvalidRequestError) as refused:
        stream_options({"zeta": "1", "Alpha": "2", "timeout": "5s"})
    said = "a stream of format waltz has no option alpha, timeout, zeta; its options are " + ", ".join(KNOWN)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"view": "segments"}, "view 'segments': a stream has records only"),
        ({"maxrecordspertrigger": "0"}, "maxRecordsPerTrigger '0': must be a number of transactions from 1 on"),
        ({"maxrecordspertrigger": "-1"}, "maxRecordsPerTrigger '-1': must be"),
        ({"maxrecordspertrigger": "x"}, "maxRecordsPerTrigger 'x': must be"),
        ({"upto": "now"}, "upTo 'now': must be intact or low-water-mark"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}"):
        stream_options(options)


def test_a_stream_reads_one_storage() -> None:
    assert path_of({"path": " /d "}) == "/d"
    for options in ({}, {"path": " "}, {"path": "/d", "paths": '["/d"]'}):
        with pytest.raises(InvalidRequestError, match="a stream of format waltz reads one storage"):
            path_of(options)


@pytest.mark.skipif(not ADMISSION, reason="PySpark 4.1 has no limits of its own")
def test_the_limit_of_a_trigger_is_that_of_the_option() -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    assert isinstance(over(told()).getDefaultReadLimit(), ReadAllAvailable)
    limit = over(told(), limit=7).getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 7
