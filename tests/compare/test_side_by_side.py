"""What stands side by side, from pieces that are given: which versions there are, and what is told of the first difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import pytest

from tests.builders import KEY, make_records
from waltzctl.engine.compare import side_by_side
from waltzctl.engine.compare.replica_reading import Broken, PartitionReplica, Piece, Records, Segment, Torn
from waltzctl.engine.compare.side_by_side import RangeResult, RangeTask, Side, compare_range
from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.log.assess import Stretch, begun
from waltzctl.engine.log.view import FileState, SegmentView
from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Run
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.engine.scan.scanner import scan_records
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import Record

GOOD = make_records(9, size=20)
SIZE = 60


def sent_wrong(record: Record) -> Record:
    """The same record with a data checksum that its data does not have."""
    raw = bytearray(replace(record, data_checksum=1).encode())
    return replace(record, data_checksum=1, record_checksum=crc32(raw[:-4]))


def other(record: Record, data: bytes = b"another truth, as lon") -> Record:
    return Record.make(
        record.transaction_id, replace(record.request_id, sequence=99), 5, data[: len(record.data) or None]
    )


def held(
    records: Sequence[Record], low: int = 0, high: int | None = None, *, segment: int = 0, lead: int = 7
) -> Records:
    """Records, of which `low` to `high` (by their places) belong to the piece; `lead` bytes stand in front of them."""
    source = BytesSource(bytes(lead) + b"".join(one.encode() for one in records))
    (batch,) = scan_records(source, first_transaction_id=records[0].transaction_id, start=lead, data=True)
    assert isinstance(batch, RecordBatch)
    first = records[0].transaction_id
    return Records(first + low, first + (len(records) if high is None else high), segment, batch, low)


FINDINGS: dict[int, Finding] = {
    number: make_finding(Code.READ_ERROR, PurePath(f"/{number}"), "made up", partition=3) for number in range(3)
}


@dataclass
class Given:
    """Stands for a reading whose pieces are known."""

    replica: PartitionReplica
    low: int
    high: int | None
    findings: list[Finding]
    stretches: list[Stretch]
    bytes: int
    open_end: bool
    given: Sequence[Piece]
    rivals: frozenset[int] = frozenset()

    def pieces(self) -> Iterator[Piece]:
        return iter(self.given)


def compared(
    *given: Sequence[Piece] | None,
    monkeypatch: pytest.MonkeyPatch,
    open_ends: Sequence[int] = (),
    low: int = 0,
    high: int | None = None,
) -> RangeResult:
    def reading(replica: PartitionReplica, low: int, high: int | None) -> Given:
        number = replica.number
        pieces = given[number]
        assert pieces is not None
        stretch = [begun(number, number)]
        return Given(replica, low, high, [FINDINGS[number]], stretch, number + 1, number in open_ends, pieces)

    monkeypatch.setattr(side_by_side, "RangeReading", reading)
    replicas = tuple(None if one is None else replica(number) for number, one in enumerate(given))
    return compare_range(RangeTask(3, low, high, replicas))


def replica(number: int) -> PartitionReplica:
    directory = PurePath(f"/{number}/3")
    files = [SegmentView(3, first, FileState(directory / f"{first}.seg", 100 + first, 0, 0), None) for first in (0, 5)]
    return PartitionReplica(
        number,
        PurePath(f"/{number}"),
        3,
        KEY,
        None,
        (Segment(files[0], 5), Segment(files[1], None)),
        False,
        -1,
    )


def told(result: RangeResult) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(run.first, run.stop, run.versions) for run in result.runs]


def test_equal_replicas_are_one_run_wherever_their_pieces_end(monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared(
        [held(GOOD)],
        [held(GOOD[:4], lead=0), held(GOOD[4:], lead=11)],
        [held(GOOD, 0, 2), held(GOOD, 2, 9)],
        monkeypatch=monkeypatch,
    )
    assert told(result) == [(0, 9, (0, 0, 0))]
    assert (result.records, result.bytes, result.differences, result.coarse) == (27, 6, (), False)
    assert result.findings == tuple(FINDINGS.values())
    assert result.stretches == tuple((number, begun(number, number)) for number in range(3))
    assert (result.partition, result.open_ends) == (3, ())


def test_what_is_the_same_everywhere_is_not_compared_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(batch: RecordBatch, row: int) -> bytes:
        raise AssertionError(f"record {batch.transaction_id[row]} alone")

    monkeypatch.setattr(RecordBatch, "record_bytes", one_by_one)
    pieces = [held(GOOD, lead=9)], [held(GOOD[:4], lead=0), held(GOOD[4:], lead=11)], [held(GOOD, 0, 2), held(GOOD, 2)]
    assert told(compared(*pieces, monkeypatch=monkeypatch)) == [(0, 9, (0, 0, 0))]


def test_a_replica_that_is_not_there_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared([held(GOOD[:3])], None, [held(GOOD[:3])], monkeypatch=monkeypatch, open_ends=[2])
    assert told(result) == [(0, 3, (0, ABSENT, 0))]
    assert (result.records, result.bytes, result.open_ends) == (6, 4, (2,))
    assert told(compared(None, [], monkeypatch=monkeypatch)) == []


def test_the_kernel_is_chosen_by_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(side_by_side.kernels, "choose", asked.append)
    compared([], None, [], monkeypatch=monkeypatch)
    assert asked == [2 * (100 + 105)]


def test_pieces_begin_and_end_where_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared(
        [held(GOOD[:3]), Broken(3, 5), held(GOOD[5:7])],
        [held(GOOD[:2]), held(GOOD[4:7])],
        [Broken(0, 1), held(GOOD[1:6])],
        monkeypatch=monkeypatch,
    )
    assert told(result) == [
        (0, 1, (0, 0, DAMAGED)),
        (1, 2, (0, 0, 0)),
        (2, 3, (0, ABSENT, 0)),
        (3, 4, (DAMAGED, ABSENT, 2)),
        (4, 5, (DAMAGED, 1, 1)),
        (5, 6, (0, 0, 0)),
        (6, 7, (0, 0, ABSENT)),
    ]
    assert result.records == 5 + 5 + 5


def test_a_range_that_begins_later_begins_there(monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared([held(GOOD[4:], 1)], [held(GOOD[:7], 5)], monkeypatch=monkeypatch, low=5, high=8)
    assert told(result) == [(5, 7, (0, 0)), (7, 9, (0, ABSENT))]


@pytest.mark.parametrize(("length", "counts"), [(SIZE - 1, ABSENT), (SIZE, DAMAGED), (SIZE + 1, ABSENT)])
def test_a_torn_record_of_full_length_was_written(length: int, counts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared([held(GOOD[:4])], [held(GOOD[:3]), Torn(3, length)], [held(GOOD[:3])], monkeypatch=monkeypatch)
    assert told(result) == [(0, 3, (0, 0, 0)), (3, 4, (0, counts, ABSENT))]
    alone = compared([held(GOOD[:3])], [held(GOOD[:3]), Torn(3, length)], monkeypatch=monkeypatch)
    assert told(alone) == [(0, 3, (0, 0)), (3, 4, (ABSENT, ABSENT))]


def test_the_length_of_a_torn_record_is_compared_with_the_record_of_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = [*GOOD[:2], other(GOOD[2], b""), *GOOD[3:5]]
    for number, length, counts in ((2, 40, DAMAGED), (2, SIZE, ABSENT), (3, SIZE, DAMAGED), (3, 40, ABSENT)):
        pieces = held(longer[:number], 1), Torn(number, length)
        result = compared([held(longer, 1)], pieces, monkeypatch=monkeypatch, low=1)
        assert [(first, versions) for first, _, versions in told(result)[:2]] == [(1, (0, 0)), (number, (0, counts))]


def test_versions_are_told_apart_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [*GOOD[:2], other(GOOD[2]), *GOOD[3:5], other(GOOD[5], b""), *GOOD[6:]]
    result = compared([held(GOOD, 1)], [held(changed, 1)], [held(changed[1:], lead=3)], monkeypatch=monkeypatch, low=1)
    assert told(result) == [
        (1, 2, (0, 0, 0)),
        (2, 3, (0, 1, 1)),
        (3, 5, (0, 0, 0)),
        (5, 6, (0, 1, 1)),
        (6, 9, (0, 0, 0)),
    ]
    assert [one.transaction_id for one in result.differences] == [2, 5]
    assert [[side.replica for side in one.sides] for one in result.differences] == [[0, 1], [0, 1]]
    assert [[side.data for side in one.sides] for one in result.differences] == [
        [GOOD[2].data, changed[2].data],
        [None, None],
    ]
    assert not result.coarse


def test_a_side_is_described_from_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = other(GOOD[6])
    result = compared(
        [held(GOOD[5:])],
        [held([GOOD[5], wanted, *GOOD[7:]], segment=5, lead=100)],
        [held(GOOD[5:])],
        monkeypatch=monkeypatch,
        low=5,
    )
    (difference,) = result.differences
    assert difference.sides[1] == Side(
        1, 6, 5, 100 + SIZE, SIZE, wanted.request_id, 5, 20,
        wanted.data_checksum, wanted.record_checksum, True, wanted.data,
    )  # fmt: skip
    assert (difference.sides[0].replica, difference.sides[0].offset, difference.sides[0].segment) == (0, 7 + SIZE, 0)


def test_data_that_is_wrong_everywhere_is_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    same = [GOOD[0], sent_wrong(GOOD[1]), GOOD[2]]
    result = compared([held(same)], [held(same)], monkeypatch=monkeypatch)
    assert (told(result), result.findings) == ([(0, 3, (0, 0))], (FINDINGS[0], FINDINGS[1]))
    differs = [GOOD[0], sent_wrong(other(GOOD[1])), GOOD[2]]
    result = compared([held(same)], [held(differs)], monkeypatch=monkeypatch)
    assert told(result) == [(0, 1, (0, 0)), (1, 2, (0, 1)), (2, 3, (0, 0))]
    assert [side.data_ok for side in result.differences[0].sides] == [False, False]


@pytest.mark.parametrize(("at", "segment"), [(1, 0), (6, 5)])
def test_data_that_is_right_somewhere_is_damaged_elsewhere(
    at: int, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = sent_wrong(GOOD[at])
    mine = [*GOOD[:at], wrong, *GOOD[at + 1 :]]
    result = compared([held(GOOD)], [held(mine, segment=segment, lead=50)], [held(GOOD)], monkeypatch=monkeypatch)
    assert told(result) == [(0, at, (0, 0, 0)), (at, at + 1, (0, DAMAGED, 0)), (at + 1, 9, (0, 0, 0))]
    assert result.differences == ()
    (bad,) = result.findings[3:]
    assert (bad.code, bad.severity) == (Code.DATA_CHECKSUM, Severity.DAMAGE)
    assert (bad.transaction_id, bad.offset, bad.length, bad.segment) == (at, 50 + SIZE * at, SIZE, segment)
    assert f"stored 00000001, computed {crc32(GOOD[at].data):08x}" in bad.message
    assert bad.path == PurePath(f"/1/3/{segment:019}.seg")


def test_of_so_many_differences_the_records_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (side_by_side.MOST_DIFFERENCES, side_by_side.MOST_BYTES, side_by_side.MOST_RUNS) == (100, 64 << 10, 20_000)
    monkeypatch.setattr(side_by_side, "MOST_DIFFERENCES", 2)
    monkeypatch.setattr(side_by_side, "MOST_BYTES", 3)
    result = compared([held(GOOD)], [held([other(one) for one in GOOD])], monkeypatch=monkeypatch)
    assert told(result) == [(0, 9, (0, 1))]
    assert [one.transaction_id for one in result.differences] == [0, 1]
    assert [side.data for side in result.differences[0].sides] == [GOOD[0].data[:3], b"ano"]


def test_places_that_are_too_many_to_be_told_apart_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [other(one) if one.transaction_id % 2 else one for one in GOOD]
    every = [(number, number + 1, (0, number % 2)) for number in range(9)]
    for most, runs in ((9, every), (8, [*every[:7], (7, 9, (0, 1))]), (1, [(0, 9, (0, 1))])):
        monkeypatch.setattr(side_by_side, "MOST_RUNS", most)
        result = compared([held(GOOD)], [held(changed)], monkeypatch=monkeypatch)
        assert (told(result), result.coarse) == (runs, most < 9)


@pytest.mark.parametrize(
    ("pieces", "runs", "coarse"),
    [
        ([Broken(0, 3), held(GOOD[3:5])], [(0, 5, (0, DAMAGED))], True),
        ([held(GOOD[:3]), Broken(3, 5)], [(0, 5, (0, DAMAGED))], True),
        ([held(GOOD[:3])], [(0, 3, (0, 0)), (3, 5, (0, ABSENT))], False),
        ([held([*GOOD[:3], other(GOOD[3]), GOOD[4]])], [(0, 5, (0, 1))], True),
        ([held([other(GOOD[0]), *GOOD[1:5]])], [(0, 5, (0, 1))], True),
    ],
)
def test_what_is_taken_together_is_damaged_or_differs_where_either_does(
    pieces: list[Piece], runs: list[tuple[int, int, tuple[int, ...]]], coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "MOST_RUNS", 1)
    result = compared([held(GOOD[:5])], pieces, monkeypatch=monkeypatch)
    assert (told(result), result.coarse) == (runs, coarse)


def test_what_is_taken_together_has_the_same_replicas_as_the_last_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "MOST_RUNS", 2)
    result = compared([held(GOOD[:4])], [held(GOOD[1:2]), Broken(2, 4)], monkeypatch=monkeypatch)
    assert (told(result), result.coarse) == ([(0, 1, (0, ABSENT)), (1, 4, (0, DAMAGED))], True)


def test_what_is_taken_together_ends_for_nobody_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "MOST_RUNS", 1)
    changed = held([other(GOOD[0]), *GOOD[1:3]])
    result = compared([held(GOOD[:3])], [], [changed], monkeypatch=monkeypatch)
    assert (told(result), result.coarse) == ([(0, 3, (0, ABSENT, 2))], True)
    result = compared([held(GOOD[:6])], [held(GOOD[:3]), held([other(GOOD[5])])], monkeypatch=monkeypatch)
    assert told(result) == [(0, 3, (0, 0)), (3, 5, (0, ABSENT)), (5, 6, (0, 1))]


def test_versions_are_numbered_by_the_lowest_replica_that_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = other(GOOD[0]), other(GOOD[1])
    monkeypatch.setattr(side_by_side, "MOST_RUNS", 1)
    result = compared(
        [held([GOOD[0], GOOD[1]])], [held([first, GOOD[1]])], [held([first, second])], monkeypatch=monkeypatch
    )
    assert result.runs == (Run(0, 2, (0, 1, 2)),)
    same = compared([Broken(0, 2)], [held(GOOD[:2])], [held(GOOD[:1]), held([second])], monkeypatch=monkeypatch)
    assert same.runs == (Run(0, 2, (DAMAGED, 1, 2)),)
