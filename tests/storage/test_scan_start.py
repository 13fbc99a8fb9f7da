"""Where the last segment is scanned from at opening: the last checkpoint that proves itself, else the header."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header
from tests.storage.support import damage, data_path, index_path, write_at
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.scan import scanner
from waltzctl.engine.storage.segment_recovery import SegmentPlace, SegmentState, examine_segment
from waltzctl.formats.segment import (
    HEADER_SIZE,
    encode_entries,
    encode_records,
    entry_position,
    index_name,
    segment_name,
)

SIZE = 43
"""Bytes of each record."""


def at(number: int, first: int = 0) -> int:
    """Where a record stands."""
    return HEADER_SIZE + SIZE * (number - first)


def built(path: Path, count: int, first: int = 0) -> Path:
    """A partition whose last segment holds transactions `first` to `count` - 1, all equally long."""
    body = encoded()
    directory = build_directory(path, {0: []}) / "0"
    for begins, end in ((0, first), (first, count)) if first else ((0, count),):
        header = segment_header(0, begins).encode()
        (directory / segment_name(begins)).write_bytes(header + body[begins * SIZE : end * SIZE])
        entries = encode_entries(range(HEADER_SIZE, HEADER_SIZE + (end - begins) * SIZE, SIZE))
        (directory / index_name(begins)).write_bytes(header + entries)
    return path


@cache
def encoded() -> bytes:
    """Every record that any test has, back to back."""
    return encode_records(make_records(9010, size=SIZE - 40))[0]


def examined(path: Path, first: int = 0, *, sealed: int | None = None, durable_to: int = -1) -> SegmentState:
    (view,) = [one for one in view_partition(path / "0", 0).segments if one.first_transaction_id == first]
    place = SegmentPlace(path, 0, KEY, 1 << 20)
    return examine_segment(view, place, next_first=sealed, durable_to=durable_to, mark=-1)


@pytest.mark.parametrize(
    ("first", "count", "start"),
    [
        (0, 0, 0),
        (0, 1, 0),
        (0, 999, 0),
        (0, 1000, 0),  # the record behind it proves a checkpoint
        (0, 1001, 1000),
        (0, 2000, 1000),
        (0, 2001, 2000),
        (0, 5001, 5000),
        (998, 1000, 998),
        (998, 1001, 1000),
        (999, 1000, 999),
        (999, 1001, 1000),  # the checkpoint is the segment's first record
        (1000, 1001, 1000),
        (1000, 2000, 1000),
        (1000, 2001, 2000),
    ],
)
def test_the_last_checkpoint_that_proves_itself(tmp_path: Path, first: int, count: int, start: int) -> None:
    state = examined(built(tmp_path / "s", count, first), first)
    assert state.scanned_from == (start, at(start, first))
    assert (state.trusted, state.findings, state.cut_at, state.index_from) == (True, (), None, None)
    assert state.extent is not None
    assert (state.extent.next_transaction_id, state.extent.end) == (count, at(count, first))
    assert [(run.first_transaction_id, run.next_transaction_id) for run in state.extent.runs] == (
        [(first, count)] if count > first else []
    )


@pytest.mark.parametrize(
    ("spoilt", "start"),
    [
        (5000, 4000),  # what stands behind the checkpoint
        (4999, 4000),  # the checkpoint itself
        (4998, 4000),  # what stands in front of it
        (4997, 5000),
        (5001, 5000),
    ],
)
def test_a_checkpoint_is_proven_by_the_records_on_either_side(tmp_path: Path, spoilt: int, start: int) -> None:
    path = built(tmp_path / "s", 5003)
    damage(data_path(path), at(spoilt) + 20)
    assert examined(path).scanned_from == (start, at(start))


@pytest.mark.parametrize("behind", [4999, 4998])
def test_data_that_does_not_agree_with_its_own_checksum_proves_no_checkpoint(tmp_path: Path, behind: int) -> None:
    path = built(tmp_path / "s", 5003)
    raw = bytearray(data_path(path).read_bytes()[at(behind) : at(behind + 1)])
    raw[32] ^= 1
    raw[-4:] = struct.pack(">I", zlib.crc32(raw[:-4]))
    write_at(data_path(path), at(behind), bytes(raw))
    assert examined(path).scanned_from == (4000, at(4000))


@pytest.mark.parametrize(("behind", "start"), [(5000, 5000), (4999, 4000), (4998, 4000), (4997, 5000)])
def test_the_index_has_to_lead_there(tmp_path: Path, behind: int, start: int) -> None:
    """To the checkpoint and to the record in front of it; the one behind stands where the checkpoint ends."""
    path = built(tmp_path / "s", 5003)
    write_at(index_path(path), entry_position(behind, 0), struct.pack(">q", at(behind) + SIZE))
    assert examined(path).scanned_from == (start, at(start))


def test_a_record_in_between_joins_no_checkpoint(tmp_path: Path) -> None:
    """What the index passes over between the checkpoint and the record in front of it is no part of one row."""
    path = built(tmp_path / "s", 1005)
    data = data_path(path).read_bytes()
    data_path(path).write_bytes(data[: at(999)] + data[at(500) : at(501)] + data[at(999) :])
    for number in range(999, 1005):
        write_at(index_path(path), entry_position(number, 0), struct.pack(">q", at(number) + SIZE))
    assert examined(path).scanned_from == (0, at(0))
    first = built(tmp_path / "t", 1005, 999)
    data = data_path(first, 999).read_bytes()
    data_path(first, 999).write_bytes(data[:HEADER_SIZE] + data[at(5) : at(6)] + data[HEADER_SIZE:])
    for number in range(999, 1005):
        write_at(index_path(first, 999), entry_position(number, 999), struct.pack(">q", at(number, 999) + SIZE))
    assert examined(first, 999).scanned_from == (999, HEADER_SIZE)


@pytest.mark.parametrize(("spoilt", "start"), [(3, 3000), (4, 0)])
def test_four_checkpoints_are_tried(tmp_path: Path, spoilt: int, start: int) -> None:
    path = built(tmp_path / "s", 6003)
    for place in range(spoilt):
        damage(data_path(path), at(6000 - 1000 * place) + 20)
    assert examined(path).scanned_from == (start, at(start))


@pytest.mark.parametrize("records", [0, 999, 1001, 1999, 2001, 4999, 5001])
def test_entries_behind_the_end_of_the_data_say_nothing(tmp_path: Path, records: int) -> None:
    """A truncation cuts the data first; the index may lead far behind it."""
    path = built(tmp_path / "s", 9003)
    os.truncate(data_path(path), at(records))
    start = 0 if records < 1001 else (records - 1) // 1000 * 1000
    assert examined(path).scanned_from == (start, at(start))


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9])
def test_an_index_that_ends_before_the_checkpoint_does_not_know_it(tmp_path: Path, cut: int) -> None:
    path = built(tmp_path / "s", 3005)
    os.truncate(index_path(path), entry_position(3001, 0) - cut)
    start = 3000 if cut <= 8 else 2000
    state = examined(path)
    assert state.scanned_from == (start, at(start))
    assert state.index_from == 3001 - (cut > 0) - (cut > 8)


@pytest.mark.parametrize(("size", "short"), [(127, True), (128, False), (0, True)])
def test_without_an_index_everything_is_scanned(tmp_path: Path, size: int, short: bool) -> None:
    path = built(tmp_path / "s", 1005)
    os.truncate(index_path(path), size)
    state = examined(path)
    assert state.scanned_from == (0, HEADER_SIZE)
    assert state.rebuild_index
    assert state.index_from is None
    assert state.extent is not None
    assert state.extent.index_usable is not short


class TestSealed:
    """A segment in front of another one is believed by its ends."""

    def test_one_that_looks_right_is_not_scanned(self, tmp_path: Path) -> None:
        state = examined(built(tmp_path / "s", 50), sealed=50)
        assert state.scanned_from is None
        assert state.extent is not None
        assert (state.extent.next_transaction_id, state.extent.end) == (50, at(50))
        assert state.stretch == Stretch(0, 0, 50, 49, False, 50, False, False)

    @pytest.mark.parametrize("count", [1, 2])
    def test_one_of_few_records_is_not_scanned_either(self, tmp_path: Path, count: int) -> None:
        state = examined(built(tmp_path / "s", count), sealed=count)
        assert (state.scanned_from, state.findings) == (None, ())

    @pytest.mark.parametrize(
        ("what", "scanned"),
        [("first entry", True), ("second entry", False), ("last entry", True), ("last record", True)],
    )
    def test_what_is_looked_at(self, tmp_path: Path, what: str, scanned: bool) -> None:
        path = built(tmp_path / "s", 50)
        if what == "last record":
            damage(data_path(path), at(49) + 20)
        else:
            number = {"first entry": 0, "second entry": 1, "last entry": 49}[what]
            write_at(index_path(path), entry_position(number, 0), struct.pack(">q", at(number) + 1))
        state = examined(path, sealed=50)
        assert (state.scanned_from is not None) == scanned
        if scanned:
            assert state.scanned_from == (0, HEADER_SIZE)

    @pytest.mark.parametrize("following", [0, 49, 51])
    def test_another_number_of_records_than_fits_leads_to_a_scan(self, tmp_path: Path, following: int) -> None:
        state = examined(built(tmp_path / "s", 50), sealed=following)
        assert state.scanned_from == (0, HEADER_SIZE)

    def test_an_index_of_which_any_entry_is_wrong_is_made_anew_as_a_whole(self, tmp_path: Path) -> None:
        path = built(tmp_path / "s", 50)
        write_at(index_path(path), entry_position(49, 0), struct.pack(">q", 5))
        sealed, last = examined(path, sealed=50), examined(path)
        assert (sealed.rebuild_index, sealed.index_from) == (True, None)
        assert (last.rebuild_index, last.index_from) == (False, 49)


@pytest.mark.parametrize(
    ("wrong", "count", "whole", "start"),
    [
        (1000, 1003, False, 1000),
        (1002, 1003, False, 1000),
        (999, 1003, True, 0),
        (998, 1003, True, 0),
        (5, 999, False, 0),
    ],
)
def test_entries_behind_the_last_checkpoint_are_mended_in_place(
    tmp_path: Path, wrong: int, count: int, whole: bool, start: int
) -> None:
    path = built(tmp_path / "s", count)
    write_at(index_path(path), entry_position(wrong, 0), struct.pack(">q", 5))
    state = examined(path)
    assert (state.rebuild_index, state.index_from) == (whole, None if whole else wrong)
    assert state.scanned_from == (start, at(start))


@pytest.mark.parametrize(("wrong", "whole"), [(999, True), (1000, False), (1001, False)])
def test_what_is_wrong_in_front_of_the_last_checkpoint_is_made_anew_as_a_whole(
    tmp_path: Path, wrong: int, whole: bool
) -> None:
    """Also where everything was scanned, because the record in front of the checkpoint is damaged."""
    path = built(tmp_path / "s", 1003)
    spoilt(998)(path)
    entry(wrong, 5)(path)
    state = examined(path)
    assert state.scanned_from == (0, HEADER_SIZE)
    assert (state.rebuild_index, state.index_from) == (whole, None if whole else wrong)


@pytest.mark.parametrize(("durable_to", "cut"), [(8, at(9)), (9, None), (10, None)])
def test_a_torn_tail_is_cut_where_nothing_proves_that_it_was_durable(
    tmp_path: Path, durable_to: int, cut: int | None
) -> None:
    """Records 0 to 8 are whole, and 9 is torn."""
    path = built(tmp_path / "s", 10)
    os.truncate(data_path(path), at(10) - 1)
    state = examined(path, durable_to=durable_to)
    assert (state.cut_at, state.trusted) == (cut, cut is not None)
    assert [str(one.code) for one in state.findings] == ["torn-tail"]
    assert state.extent is not None
    assert state.extent.next_transaction_id == 9
    assert state.index_from == 9
    assert segment_header(0, 0).encode() == data_path(path).read_bytes()[:HEADER_SIZE]


@dataclass(frozen=True)
class Found:
    """What an examination comes to, of ten records at `at(0)` to `at(9)`; `runs`: ids, `excess`: of the index."""

    codes: list[tuple[str, int | None]]
    runs: list[tuple[int, int]]
    stretch: Stretch
    trusted: bool = True
    cut_at: int | None = None
    index_from: int | None = None
    excess: str | None = None


def stretch(
    next_id: int | None, accounted: int, listed: int = 10, *, long: bool = False, torn: bool = False
) -> Stretch:
    """Without a next id its end is not known."""
    return Stretch(0, 0, next_id, accounted, next_id is None, listed, long, torn)


def comes_to(state: SegmentState) -> Found:
    assert state.extent is not None
    assert state.stretch is not None
    runs = [(run.first_transaction_id, run.next_transaction_id) for run in state.extent.runs]
    assert [(run.start, run.end) for run in state.extent.runs] == [(at(one), at(end)) for one, end in runs]
    assert (state.rebuild_index, state.scanned_from) == (False, (0, HEADER_SIZE))
    return Found(
        [(str(one.code), one.transaction_id) for one in state.findings],
        runs,
        state.stretch,
        state.trusted,
        state.cut_at,
        state.index_from,
        None if state.index_excess is None else state.index_excess.message,
    )


def spoilt(*numbers: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        for number in numbers:
            damage(data_path(path), at(number) + 20)

    return change


def placed(*pairs: tuple[int, int]) -> Callable[[Path], None]:
    """Other records of the log stand at the places of some."""

    def change(path: Path) -> None:
        for place, number in pairs:
            write_at(data_path(path), at(place), encoded()[number * SIZE : (number + 1) * SIZE])

    return change


def entry(number: int, offset: int) -> Callable[[Path], None]:
    return lambda path: write_at(index_path(path), entry_position(number, 0), struct.pack(">q", offset))


def ends(size: int, index: int | None = None) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        os.truncate(data_path(path), size)
        if index is not None:
            os.truncate(index_path(path), index)

    return change


SPAN = [("record-checksum", 3)]
SOUND = [(0, 10)]
AROUND = [(0, 3), (5, 10)]


@pytest.mark.parametrize("rows", [2, 16384])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], Found([], SOUND, stretch(10, 9))),
        ([spoilt(3, 4)], Found(SPAN, AROUND, stretch(10, 9), trusted=False)),
        ([spoilt(3, 4), entry(4, at(5) - 1)], Found(SPAN, AROUND, stretch(10, 9), trusted=False)),
        *(
            (
                [spoilt(3, 4), entry(number, offset)],
                Found([*SPAN, ("index-entry", number)], AROUND, stretch(10, 9), trusted=False, index_from=number),
            )
            for number, offset in ((4, at(5)), (4, at(3)), (3, at(3) + 1))
        ),
        ([spoilt(0)], Found([("record-checksum", 0)], [(1, 10)], stretch(10, 9), trusted=False)),
        ([placed((6, 2))], Found([("record-order", 6)], [(0, 6), (7, 10)], stretch(10, 9), trusted=False)),
        ([placed((9, 5))], Found([("record-order", 9)], [(0, 9)], stretch(9, 8), trusted=False, index_from=9)),
        ([placed((8, 4), (9, 5))], Found([("record-order", 8)], [(0, 8)], stretch(8, 7), trusted=False, index_from=8)),
        (
            [ends(at(10) - 1)],
            Found([("torn-tail", 9)], [(0, 9)], stretch(10, 9, torn=True), cut_at=at(9), index_from=9),
        ),
        (
            [ends(at(9) - 1)],
            Found(
                [("torn-tail", 8)],
                [(0, 8)],
                stretch(9, 8, long=True, torn=True),
                cut_at=at(8),
                index_from=8,
                excess="the index has 10 entries, the segment has 9 records: 1 entries too many",
            ),
        ),
        (
            [ends(at(8))],
            Found(
                [],
                [(0, 8)],
                stretch(8, 7, long=True),
                index_from=8,
                excess="the index has 10 entries, the segment has 8 records: 2 entries too many",
            ),
        ),
        (
            [ends(at(8), entry_position(8, 0) + 3)],
            Found(
                [],
                [(0, 8)],
                stretch(8, 7, listed=8, long=True),
                index_from=8,
                excess="the index has 8 entries, the segment has 8 records: 3 bytes, less than an entry, too many",
            ),
        ),
        (
            [ends(at(10), entry_position(7, 0))],
            Found([("index-short", 7)], SOUND, stretch(10, 9, listed=7), index_from=7),
        ),
        ([entry(2, 5), entry(7, 5)], Found([("index-entry", 2)], SOUND, stretch(10, 9), index_from=2)),
        (
            [entry(8, 5), ends(at(10), entry_position(9, 0))],
            Found([("index-short", 9), ("index-entry", 8)], SOUND, stretch(10, 9, listed=9), index_from=8),
        ),
    ],
)
def test_what_the_last_segment_comes_to(
    tmp_path: Path,
    changes: Sequence[Callable[[Path], None]],
    expected: Found,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything that the opening of a partition hangs on, however many records are looked at together."""
    monkeypatch.setattr(scanner, "RUN_ROWS", rows)
    path = built(tmp_path / "s", 10)
    for change in changes:
        change(path)
    assert comes_to(examined(path)) == expected


@pytest.mark.parametrize(
    ("between", "from_there", "expected", "code"),
    [
        (b"", 5, [(0, 4, at(0), at(4)), (5, 10, at(4), at(9))], ("record-order", 4)),
        (b"\xff" * 50, 4, [(0, 4, at(0), at(4)), (4, 10, at(4) + 50, at(10) + 50)], ("record-length", 4)),
    ],
)
def test_what_does_not_follow_by_id_and_place_is_another_run(
    tmp_path: Path, between: bytes, from_there: int, expected: list[tuple[int, int, int, int]], code: tuple[str, int]
) -> None:
    """A record is missing, and something stands in front of one."""
    path = built(tmp_path / "s", 10)
    raw = data_path(path).read_bytes()
    data_path(path).write_bytes(raw[: at(4)] + between + raw[at(from_there) :])
    state = examined(path)
    assert state.extent is not None
    assert [
        (run.first_transaction_id, run.next_transaction_id, run.start, run.end) for run in state.extent.runs
    ] == expected
    assert [(str(one.code), one.transaction_id) for one in state.findings][:1] == [code]


def test_each_record_whose_data_is_damaged_is_named(tmp_path: Path) -> None:
    path = built(tmp_path / "s", 10)
    for number in (2, 7):
        raw = bytearray(data_path(path).read_bytes()[at(number) : at(number + 1)])
        raw[-9] ^= 1
        raw[-4:] = struct.pack(">I", zlib.crc32(raw[:-4]))
        write_at(data_path(path), at(number), bytes(raw))
    state = examined(path)
    assert [(str(one.code), one.transaction_id, one.offset) for one in state.findings] == [
        ("data-checksum", 2, at(2)),
        ("data-checksum", 7, at(7)),
    ]
    assert state.trusted


def begun_anew(path: Path) -> None:
    """Half of a long record."""
    whole = make_records(1, first=10, size=9000)[0].encode()
    data_path(path).write_bytes(data_path(path).read_bytes() + whole[:5000])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            spoilt(5),
            Found(
                [("record-checksum", 5)],
                [(0, 5)],
                stretch(None, 4, long=True),
                trusted=False,
                index_from=5,
                excess="the index has 10 entries, the segment has 5 records: 5 entries too many",
            ),
        ),
        (placed((6, 2)), Found([("record-order", 6)], [(0, 6)], stretch(None, 5), trusted=False, index_from=6)),
        (begun_anew, Found([("record-length", 10)], SOUND, stretch(None, 9), trusted=False)),
    ],
)
def test_nothing_is_cut_where_the_search_was_given_up(
    tmp_path: Path, change: Callable[[Path], None], expected: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes were made to be expensive: nobody knows what follows."""
    monkeypatch.setattr(scanner, "BUDGET_BASE", 0)
    monkeypatch.setattr(scanner, "BUDGET_PER_BYTE", 0)
    path = built(tmp_path / "s", 10)
    change(path)
    assert comes_to(examined(path)) == expected
