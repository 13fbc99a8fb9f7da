"""What a reading tells of the ends of segments: how far each goes, by its records and by its index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records
from tests.compare.test_reading import RECORDS as ALL
from tests.compare.test_reading import SIZE, at, flip, idx, read, seg
from waltzctl.engine.compare import replica_reading
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.assess import Stretch, begun
from waltzctl.engine.scan import scanner
from waltzctl.engine.scan.columns import Damage
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader

FIRST = Stretch(0, 0, 10, 9, listed=10)
MIDDLE = Stretch(10, 10, 20, 19, listed=20)
LAST = Stretch(20, 20, 30, 29, listed=30)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Transactions 0 to 29 in three segments."""
    return build_directory(tmp_path / "s", {0: [ALL[:10], ALL[10:20], ALL[20:]]}, local_low_water_mark=-1)


def stretches(storage: Path, low: int = 0, high: int | None = None) -> list[Stretch]:
    return read(storage, low, high)[1].stretches


def test_whole_segments(storage: Path) -> None:
    assert stretches(storage) == [FIRST, MIDDLE, LAST]
    assert stretches(storage, 10) == [MIDDLE, LAST]
    assert stretches(storage, 9) == [FIRST, MIDDLE, LAST]
    assert stretches(storage, 0, 20) == [FIRST, MIDDLE]
    assert stretches(storage, 0, 21) == [FIRST, MIDDLE, LAST]
    for first, size in ((0, 0), (10, HEADER_SIZE - 1), (20, HEADER_SIZE - 1)):
        os.truncate(idx(storage, first), size)
    assert stretches(storage) == [replace(one, listed=None) for one in (FIRST, MIDDLE, LAST)]
    idx(storage, 20).unlink()
    assert stretches(storage, 20) == [replace(LAST, listed=None)]


def opening_fails(monkeypatch: pytest.MonkeyPatch, error: Callable[[Path], Exception | None]) -> None:
    """Of a path for which there is an error."""
    opened = replica_reading.open_source

    def failing(path: Path) -> object:
        if (found := error(path)) is not None:
            raise found
        return opened(path)

    monkeypatch.setattr(replica_reading, "open_source", failing)


def unreadable(path: Path) -> DiskReadError:
    return DiskReadError(path, 7, OSError(5, "no"))


def test_an_index_that_cannot_be_read_is_none(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening_fails(monkeypatch, lambda path: unreadable(path) if path.suffix == ".idx" else None)
    assert stretches(storage) == [replace(one, listed=None) for one in (FIRST, MIDDLE, LAST)]


@pytest.mark.parametrize("first", [10, 20])
@pytest.mark.parametrize("how", ["gone", "unreadable", "cut"])
def test_a_data_file_that_cannot_be_read_was_begun(
    storage: Path, first: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "cut":
        header = replica_reading.read_segment_header
        monkeypatch.setattr(
            replica_reading,
            "read_segment_header",
            lambda file: None if file.path == seg(storage, first) else header(file),
        )
    else:
        kind = unreadable if how == "unreadable" else FileNotFoundError
        opening_fails(monkeypatch, lambda path: kind(path) if path == seg(storage, first) else None)
    found, reading = read(storage, 0, None)
    assert ("broken", first, first + 10) in found
    assert begun(first, first) in reading.stretches
    assert [(one.code, one.offset) for one in reading.findings] == (
        [(Code.READ_ERROR, 7)] if how == "unreadable" else []
    )
    assert reading.open_end == (first == 20)


def test_a_range_that_ends_in_front_of_a_byte_leaves_it_to_others(storage: Path) -> None:
    with seg(storage, 20).open("ab") as file:
        file.write(b"x")
    assert stretches(storage, 0, 30)[2] == begun(20, 20)
    assert stretches(storage, 0, 31)[2].torn


def test_a_segment_without_a_record_is_whole(storage: Path) -> None:
    for path in (seg(storage, 20), idx(storage, 20)):
        os.truncate(path, HEADER_SIZE)
    found, reading = read(storage, 0, None)
    assert (found, reading.findings, reading.open_end) == ([("held", 0, 20)], [], False)


def test_of_two_wrong_headers_that_of_the_data_is_told_once(storage: Path) -> None:
    for path, partition in ((seg(storage, 20), 4), (idx(storage, 20), 5)):
        raw = bytearray(path.read_bytes())
        raw[31] = partition
        raw[127] = 1  # reserved, which is a note
        path.write_bytes(bytes(raw))
    told = {one.path for one in verify([storage]) if isinstance(one, Finding)}
    assert told >= {seg(storage, 20), idx(storage, 20)}
    found = read(storage, 0, None)[1].findings
    assert [(one.path, one.severity) for one in found] == [(seg(storage, 20), Severity.DAMAGE)]


@pytest.mark.parametrize("rows", [1, 3, 10, 100])
def test_a_segment_that_goes_on_behind_the_next_ones_first_is_told_to_its_end(
    storage: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "BATCH_ROWS", rows)
    with seg(storage, 10).open("ab") as file:
        file.write(b"".join(one.encode() for one in ALL[20:24]))
    found, reading = read(storage, 0, None)
    assert (found, reading.stretches[1:]) == ([("held", 0, 30)], [replace(MIDDLE, next_id=24, accounted=23), LAST])
    assert {stretches(storage, 0, high)[1].next_id for high in (20, 21)} == {24}
    assert stretches(storage, 0, 15)[1] == (begun(10, 10) if rows < 14 else replace(MIDDLE, next_id=24, accounted=23))


@pytest.mark.parametrize(
    ("entries", "next_id", "accounted", "excess"),
    [(10, 29, 28, True), (9, 29, 28, False), (8, None, 28, False), (0, None, 28, False)],
)
def test_a_torn_end_is_told_with_what_the_index_says_of_it(
    storage: Path, entries: int, next_id: int | None, accounted: int, excess: bool
) -> None:
    os.truncate(seg(storage, 20), at(28) + 7)
    os.truncate(idx(storage, 20), HEADER_SIZE + 8 * entries)
    torn = Stretch(20, 20, next_id, accounted, listed=20 + entries, excess=excess, torn=True)
    assert stretches(storage)[2] == torn
    assert stretches(storage, 28)[-1] == torn
    idx(storage, 20).unlink()
    assert stretches(storage)[2] == Stretch(20, 20, None, 28, torn=True)


@pytest.mark.parametrize("entries", [7, 8, 9])
def test_a_segment_that_ends_behind_a_record(storage: Path, entries: int) -> None:
    os.truncate(seg(storage, 20), at(28))
    os.truncate(idx(storage, 20), HEADER_SIZE + 8 * entries)
    assert stretches(storage)[2] == Stretch(20, 20, 28, 27, listed=20 + entries, excess=entries > 8)


def test_damage_in_a_segment_does_not_change_its_end(storage: Path) -> None:
    for number in (10, 14, 18):
        flip(seg(storage, 10), at(number) + 40)
    assert stretches(storage) == [FIRST, MIDDLE, LAST]


@pytest.mark.parametrize("entries", [0, 4, 10])
def test_what_was_not_read_was_only_begun(storage: Path, entries: int) -> None:
    os.truncate(idx(storage, 20), HEADER_SIZE + 8 * entries)
    os.truncate(seg(storage, 20), HEADER_SIZE - 1)
    assert stretches(storage)[2] == Stretch(20, 20, None, 19 + entries)
    (short,) = read(storage, 0, None)[1].findings
    assert (short.code, short.segment, short.path) == (Code.SEGMENT_HEADER_SHORT, 20, seg(storage, 20))
    seg(storage, 20).unlink()
    seg(storage, 20).mkdir()
    assert len(stretches(storage)) == 2


def test_a_data_file_that_is_empty_and_last_was_only_begun(storage: Path) -> None:
    os.truncate(seg(storage, 20), 0)
    os.truncate(idx(storage, 20), HEADER_SIZE)
    found, reading = read(storage, 0, None)
    assert (found, reading.findings) == ([("held", 0, 20)], [])
    assert reading.stretches[2] == Stretch(20, 20, None, 19)
    for entries, size in ((1, 0), (0, 1)):
        os.truncate(seg(storage, 20), size)
        os.truncate(idx(storage, 20), HEADER_SIZE + 8 * entries)
        assert len(read(storage, 0, None)[1].findings) == 1
    os.truncate(seg(storage, 10), 0)
    os.truncate(seg(storage, 20), 0)
    os.truncate(idx(storage, 20), HEADER_SIZE)
    for entries in (10, 0):
        os.truncate(idx(storage, 10), HEADER_SIZE + 8 * entries)
        assert [one.segment for one in read(storage, 0, None)[1].findings] == [10]


def test_a_file_under_a_wrong_name_begins_where_its_records_do(storage: Path) -> None:
    for path in (seg(storage, 20), idx(storage, 20)):
        raw = path.read_bytes()
        header = replace(SegmentHeader.decode(raw), first_transaction_id=21, partition=7)
        path.write_bytes(header.encode() + make_records(3, first=21, size=20)[0].encode() * (path.suffix == ".seg"))
    found, reading = read(storage, 0, None)
    assert found == [("held", 0, 20)]
    assert reading.stretches[2] == begun(20, 21)
    assert reading.open_end


@pytest.mark.parametrize(("high", "known"), [(19, False), (20, True), (21, True)])
def test_who_reads_up_to_the_next_segment_reads_the_end(
    storage: Path, high: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "BATCH_ROWS", 3)
    found = {one.segment: one for one in stretches(storage, 0, high)}
    assert found[10] == (MIDDLE if known else begun(10, 10))
    assert stretches(storage, 0, 15)[1] == begun(10, 10)


def test_bytes_are_those_of_the_records_in_the_range(storage: Path) -> None:
    for low, high, count in ((0, None, 30), (3, 4, 1), (3, 17, 14), (29, None, 1), (9, 11, 2)):
        assert read(storage, low, high)[1].bytes == SIZE * count


def test_behind_a_search_that_was_given_up_everything_is_doubtful(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the bytes are built to be expensive."""
    scan = replica_reading.scan_records

    def given_up(*arguments: object, **options: object) -> Iterator[object]:
        for one in scan(*arguments, **options):  # type: ignore[arg-type]
            yield replace(one, proof="budget") if isinstance(one, Damage) else one

    os.truncate(seg(storage, 20), at(28) + 7)
    idx(storage, 20).unlink()
    assert not read(storage, 0, None)[1].open_end
    monkeypatch.setattr(replica_reading, "scan_records", given_up)
    found, reading = read(storage, 0, None)
    assert found == [("held", 0, 28), ("torn", 28, 7)]
    assert reading.open_end
    assert reading.stretches[2] == Stretch(20, 20, None, 28, uncertain=True, torn=True)


@pytest.mark.parametrize("left", [1, 5, 39])
def test_an_end_whose_beginning_may_be_whole_records_may_have_held_more(storage: Path, left: int) -> None:
    """A record's length is damaged, another one stands behind it, and the end of the file is torn."""
    path = seg(storage, 20)
    data = bytearray(path.read_bytes())
    for place in (at(28) + 29, at(28) + 9, at(28) + 40):
        data[place] ^= 1
    path.write_bytes(bytes(data) + bytes([255]) * left)
    idx(storage, 20).unlink()
    told, reading = read(storage, 0, None)
    assert told == [("held", 0, 28), ("torn", 28, 2 * SIZE + left)]
    assert reading.open_end


@pytest.mark.parametrize("sealed", [False, True])
def test_records_inside_a_torn_end_that_lead_nowhere_are_not_held(storage: Path, sealed: bool) -> None:
    """As for verify and recover: a length leads beyond the file, whole records follow, and behind them stands an older one."""
    first = 10 if sealed else 20
    path = seg(storage, first)
    data = bytearray(path.read_bytes())
    for place in (29, 9, 40):
        data[at(first + 5) + place] ^= 1
    path.write_bytes(bytes(data) + data[at(first) : at(first + 1)])
    idx(storage, first).unlink()
    (told,) = [one for one in verify([storage]) if isinstance(one, Finding) and one.code is Code.TORN_TAIL]
    for low in (0, first + 4, first + 5, first + 6):
        found, reading = read(storage, low, None)
        if low > first + 5 and not sealed:
            assert (found, reading.findings) == ([], []), "whoever reads the range in front of it names it"
            continue
        lost = ("broken", max(low, 15), 20) if sealed else ("torn", 25, SIZE * 6)
        held = [("held", low, first + 5)] if low < first + 5 else []
        assert found == [*held, lost, *([("held", 20, 30)] if sealed else [])]
        assert [(one.code, one.offset, one.length) for one in reading.findings] == [
            (told.code, told.offset, told.length)
        ]
        assert reading.open_end is not sealed


@pytest.mark.parametrize(("high", "known"), [(24, False), (25, False), (26, True), (27, True)])
def test_damage_is_for_who_reads_its_first_id(
    storage: Path, high: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(seg(storage, 20), at(25) + 40)
    idx(storage, 20).unlink()
    for low, count in ((25, 1), (26, 0), (27, 0)):
        assert len(read(storage, low, None)[1].findings) == count
    for rows in (1, 5, 100):
        monkeypatch.setattr(scanner, "BATCH_ROWS", rows)
        found, reading = read(storage, 20, high)
        assert found == [
            ("held", 20, min(high, 25)),
            *([("broken", 25, 26)] if known else []),
            *([("held", 26, 27)] if high == 27 else []),
        ]
        assert len(reading.findings) == known


def test_an_end_behind_which_nothing_stands_held_no_more(storage: Path) -> None:
    os.truncate(seg(storage, 20), at(28) + 39)
    idx(storage, 20).unlink()
    told, reading = read(storage, 0, None)
    assert told == [("held", 0, 28), ("torn", 28, 39)]
    assert not reading.open_end
