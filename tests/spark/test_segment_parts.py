"""Where the parts of a segment begin and end: by its index, else by search, else read from the segment's beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records
from tests.inspect.helpers import cut, flip, idx, seg
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log.index import RecordPlace
from waltzctl.engine.scan import scanner
from waltzctl.engine.spark import segment_parts
from waltzctl.engine.spark.segment_parts import Range, range_of
from waltzctl.engine.spark.splits import SegmentPart
from waltzctl.formats.segment import Record

RECORDS = 40
END = 128 + 60 * RECORDS


def at(number: int) -> int:
    """Where a record begins, each of which has 60 bytes."""
    return 128 + 60 * number


def place(number: int) -> RecordPlace:
    return RecordPlace(at(number), 100 + number)


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One segment with the ids from 100 on; searches look 300 bytes back and believe in a chain of 600."""
    monkeypatch.setattr(segment_parts, "LOOKBACK", 300)
    monkeypatch.setattr(segment_parts, "LOOKAHEAD", 600)
    return build_directory(tmp_path / "s", {0: [make_records(100, size=1), make_records(RECORDS, first=100, size=20)]})


def ranges(
    storage: Path, count: int, *, entries: int | None = RECORDS, first: int | None = None, last: int | None = None
) -> list[Range | None]:
    """Of each part, of a segment that had `END` bytes when this was planned."""
    job = SegmentJob(storage / "0", 100, 0, bytes=END)
    found = []
    for number in range(count):
        with ChunkReader(job, ReadLimits(), data=False) as reader:
            found.append(range_of(reader, SegmentPart("n", job, entries, number, count, first, last)))
    return found


def spoil(storage: Path, entry: int, value: int) -> None:
    """Let an entry of the index say something else."""
    with idx(storage, 0, 100).open("r+b") as file:
        file.seek(128 + 8 * entry)
        file.write(value.to_bytes(8, "big"))


BY_INDEX = [
    Range(place(0), at(10), False),
    Range(place(10), at(20), False),
    Range(place(20), at(30), False),
    Range(place(30), END, True),
]
HEAD = place(0)
# parts of 600 bytes: each begins with the first record at or behind its share
BY_SEARCH = [
    Range(place(0), 728, False),
    Range(place(10), 1328, False),
    Range(place(20), 1928, False),
    Range(place(30), END, True),
]


def test_a_segment_that_is_no_part_is_read_from_what_is_wanted_to_its_end(storage: Path) -> None:
    assert ranges(storage, 1) == [Range(place(0), END, True)]
    assert ranges(storage, 1, first=117) == [Range(place(17), END, True)]
    assert ranges(storage, 1, first=117, entries=None) == [Range(place(17), END, True)]


def test_parts_begin_where_the_index_leads(storage: Path) -> None:
    assert ranges(storage, 4) == BY_INDEX
    assert ranges(storage, 4, first=100, last=139) == BY_INDEX
    assert ranges(storage, 4, first=0, last=999) == BY_INDEX


def test_of_bounded_ids_each_part_has_its_share(storage: Path) -> None:
    assert ranges(storage, 2, first=110, last=129) == [Range(place(10), at(20), False), Range(place(20), END, True)]
    assert ranges(storage, 2, first=120) == [Range(place(20), at(30), False), Range(place(30), END, True)]
    assert ranges(storage, 2, last=119) == [Range(place(0), at(10), False), Range(place(10), END, True)]
    assert ranges(storage, 2, last=118) == [Range(place(0), at(9), False), Range(place(9), END, True)]
    assert ranges(storage, 2, first=111) == [Range(place(11), at(25), False), Range(place(25), END, True)]


@pytest.mark.parametrize("entry", [10, 9])
def test_a_part_whose_place_is_not_proven_is_the_one_in_front(storage: Path, entry: int) -> None:
    """By an entry that leads elsewhere, or by records in front of it that do not lead up to it."""
    if entry == 10:
        spoil(storage, 10, at(11))
    else:
        flip(seg(storage, 0, 100), at(entry) + 50)
    assert ranges(storage, 4) == [Range(place(0), at(20), False), None, *BY_INDEX[2:]]


def test_what_lies_far_in_front_of_a_place_need_not_lead_up_to_it(storage: Path) -> None:
    """Of 64 and 8 records that begin farther away than a search looks back only the last one is looked at."""
    flip(seg(storage, 0, 100), at(15) + 50)
    assert ranges(storage, 4) == BY_INDEX
    spoil(storage, 29, at(28))
    assert ranges(storage, 4) == [*BY_INDEX[:2], Range(place(20), END, True), None]


@pytest.mark.parametrize(
    ("lookback", "spoilt", "proven"),
    [
        (480, None, False),
        (479, None, True),  # only the last one in front is asked
        (480, at(20), False),
        (480, at(20) + 1, True),
    ],
)
def test_of_records_in_front_the_farthest_is_asked_that_a_search_would_reach(
    storage: Path, monkeypatch: pytest.MonkeyPatch, lookback: int, spoilt: int | None, proven: bool
) -> None:
    """The eighth begins 480 bytes in front of the place, if its entry is right, and between them is damage."""
    monkeypatch.setattr(segment_parts, "LOOKBACK", lookback)
    flip(seg(storage, 0, 100), at(15) + 50)
    if spoilt is not None:
        spoil(storage, 12, spoilt)
    assert (ranges(storage, 4)[2] == BY_INDEX[2]) == proven
    assert (ranges(storage, 4)[2] is None) != proven


@pytest.mark.parametrize(
    ("entry", "value", "usable"),
    [
        (39, at(39), True),
        (39, END - 1, True),
        (39, END, False),
        (39, END - 2 * END // 4, True),
        (39, END - 2 * END // 4 - 1, False),
        (39, 0, False),
    ],
)
def test_an_index_is_usable_whose_last_entry_leads_near_the_end(
    storage: Path, entry: int, value: int, usable: bool
) -> None:
    spoil(storage, 39, value)
    flip(seg(storage, 0, 100), at(20) + 50)  # by which the two ways differ
    found = ranges(storage, 4)
    assert (found[2] is None) == usable


@pytest.mark.parametrize(
    ("wrong", "usable"), [((10, 20), True), ((20, 30), True), ((10, 30), True), ((10, 20, 30), False)]
)
def test_an_index_is_usable_of_which_one_quarter_is_right(storage: Path, wrong: tuple[int, ...], usable: bool) -> None:
    for entry in wrong:
        spoil(storage, entry, at(entry) + 1)
    found = ranges(storage, 4)
    if not usable:
        assert found == BY_SEARCH
        return
    assert [number for number in (1, 2, 3) if found[number] is None] == [one // 10 for one in wrong]


def test_an_index_is_usable_that_has_four_entries_for_each_part(storage: Path) -> None:
    flip(seg(storage, 0, 100), at(20) + 50)
    assert ranges(storage, 10)[5] is None
    searched = ranges(storage, 10, entries=None)
    assert searched != ranges(storage, 10)
    assert searched == ranges(storage, 10, entries=39) == ranges(storage, 10, entries=0)


def refused(*_: Any, **__: Any) -> Any:
    raise DiskReadError(Path("x"), None, OSError(5, "Input/output error"))


def test_an_index_that_cannot_be_read_is_not_used(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_parts, "prove", refused)
    assert ranges(storage, 4) == BY_SEARCH


def test_an_index_that_was_cut_since_is_not_used(storage: Path) -> None:
    cut(idx(storage, 0, 100), 128 + 8 * (RECORDS - 1))
    assert ranges(storage, 4) == BY_SEARCH


# ---- by search -----------------------------------------------------------------------------------------------------------


def test_without_an_index_parts_begin_with_the_first_record_behind_their_share(storage: Path) -> None:
    idx(storage, 0, 100).unlink()
    assert ranges(storage, 4) == BY_SEARCH
    third = (END - 128) // 3  # 800, between records 13 and 14
    assert ranges(storage, 3) == [
        Range(place(0), 128 + third, False),
        Range(place(14), 128 + 2 * third, False),
        Range(place(27), END, True),
    ]


def test_a_part_near_the_beginning_is_read_from_there(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a search would look back to the header."""
    idx(storage, 0, 100).unlink()
    found = ranges(storage, 8)  # of 300 bytes
    assert found[:3] == [Range(HEAD, 428, False), Range(HEAD, 728, False, 428), Range(place(10), 1028, False)]
    monkeypatch.setattr(segment_parts, "LOOKBACK", 299)
    assert ranges(storage, 8)[1] == Range(place(5), 728, False)


def test_damage_near_a_part_lets_it_be_read_from_the_beginning(storage: Path) -> None:
    idx(storage, 0, 100).unlink()
    flip(seg(storage, 0, 100), at(22) + 50)  # behind the beginning of the third
    found = ranges(storage, 4)
    assert found[2] == Range(HEAD, 1928, False, 1328)
    assert found[3] == BY_SEARCH[3]


def test_damage_in_front_of_a_part_is_passed_over(storage: Path) -> None:
    idx(storage, 0, 100).unlink()
    flip(seg(storage, 0, 100), at(17) + 50)
    assert ranges(storage, 4)[2:] == BY_SEARCH[2:]


def test_a_search_that_is_given_up_lets_the_part_be_read_from_the_beginning(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idx(storage, 0, 100).unlink()
    from_beginning = Range(HEAD, 1928, False, 1328)
    with monkeypatch.context() as patched:
        patched.setattr(segment_parts, "_chain", refused)
        assert ranges(storage, 4)[2] == from_beginning
    flip(seg(storage, 0, 100), at(17) + 50)
    assert ranges(storage, 4)[2] == BY_SEARCH[2]
    for tries, found in ((2, BY_SEARCH[2]), (1, from_beginning)):
        monkeypatch.setattr(segment_parts, "_TRIES", tries)
        assert ranges(storage, 4)[2] == found
    monkeypatch.setattr(segment_parts, "SEARCH_BUDGET", 0)
    assert ranges(storage, 4)[3] == Range(HEAD, END, True, 1928)


def test_a_segment_that_was_cut_has_no_parts_behind_its_end(storage: Path) -> None:
    idx(storage, 0, 100).unlink()
    cut(seg(storage, 0, 100), 1329)
    assert ranges(storage, 4)[2:] == [Range(HEAD, 1928, False, 1328), None], "what begins with the last byte is told"
    cut(seg(storage, 0, 100), 1328)
    assert ranges(storage, 4)[2:] == [None, None]
    flip(seg(storage, 0, 100), at(19) + 50)  # damage up to there is the part's in front
    assert ranges(storage, 4)[2:] == [None, None]
    cut(seg(storage, 0, 100), 1000)
    assert ranges(storage, 4)[2:] == [None, None]


def sized(tmp_path: Path, sizes: list[int]) -> tuple[Path, list[int]]:
    """A segment whose records have data of these sizes, without an index, and where they begin."""
    records = [make_records(1, first=100 + place, size=size)[0] for place, size in enumerate(sizes)]
    storage = build_directory(tmp_path / "sized", {0: [make_records(100, size=1), records]})
    idx(storage, 0, 100).unlink()
    return storage, [128 + sum(40 + size for size in sizes[:place]) for place in range(len(sizes))]


@pytest.mark.parametrize("large", [0, 15, 20, 37, 39])
@pytest.mark.parametrize(("count", "rows"), [(3, 1000), (5, 1000), (5, 1), (8, 1000), (13, 1000), (13, 1)])
def test_a_record_that_reaches_over_whole_parts_is_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, count: int, rows: int
) -> None:
    """Each part begins with the first record at or behind its share; where that is behind the next share, it is empty."""
    monkeypatch.setattr(scanner, "RUN_ROWS", rows)
    monkeypatch.setattr(segment_parts, "LOOKBACK", 1600)
    monkeypatch.setattr(segment_parts, "LOOKAHEAD", 600)
    storage, begins = sized(tmp_path, [1480 if place == large else 20 for place in range(40)])
    size = seg(storage, 0, 100).stat().st_size
    job = SegmentJob(storage / "0", 100, 0, bytes=size)
    shares = [128 + (size - 128) * number // count for number in range(count + 1)]
    for number in range(count):
        with ChunkReader(job, ReadLimits(), data=False) as reader:
            found = range_of(reader, SegmentPart("n", job, None, number, count))
        low, high, last = shares[number], shares[number + 1], number == count - 1
        first = next((place for place, begin in enumerate(begins) if begin >= low), None)
        if number == 0:
            assert found == Range(place(0), high, last)
        elif low - 1600 <= 128:
            assert found == Range(place(0), high, last, low)
        elif first is None or (begins[first] >= high and not last):
            assert found is None
        else:
            assert found == Range(RecordPlace(begins[first], 100 + first), high, last)


def test_a_record_that_stands_right_behind_what_only_looks_like_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte earlier its header reads as one as well, with id 0, which the segment has, and length 0."""
    monkeypatch.setattr(segment_parts, "LOOKBACK", 40)
    monkeypatch.setattr(segment_parts, "LOOKAHEAD", 600)
    records = make_records(RECORDS, size=20)
    of = records[16]
    tried = (Record.make(16, of.request_id, of.header, bytes(18) + at.to_bytes(2)) for at in range(1 << 16))
    records[16] = next(one for one in tried if one.encode()[-1] == 0)
    records[17] = Record.make(17, of.request_id, 0, bytes(20))
    storage = build_directory(tmp_path / "s", {0: [records]})
    idx(storage, 0, 0).unlink()
    job = SegmentJob(storage / "0", 0, 0, bytes=END)
    with ChunkReader(job, ReadLimits(), data=False) as reader:
        found = range_of(reader, SegmentPart("n", job, None, 3, 7))
    assert at(17) < 128 + (END - 128) * 3 // 7 <= at(18)
    assert found is not None
    assert found.begin == RecordPlace(at(18), 18)


@pytest.mark.parametrize(("large", "own"), [(58, True), (59, True), (60, False), (61, False)])
def test_a_part_has_what_begins_up_to_its_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, own: bool
) -> None:
    """Three parts of 600 bytes; the record in front of the second one's share is so large that the next begins near its end."""
    monkeypatch.setattr(segment_parts, "LOOKBACK", 400)
    monkeypatch.setattr(segment_parts, "LOOKAHEAD", 600)
    storage, begins = sized(tmp_path, [20] * 9 + [560 + large] + [20] * 9 + [80 - large])
    job = SegmentJob(storage / "0", 100, 0, bytes=1928)
    assert seg(storage, 0, 100).stat().st_size == 1928
    assert begins[10] == 1268 + large
    with ChunkReader(job, ReadLimits(), data=False) as reader:
        found = range_of(reader, SegmentPart("n", job, None, 1, 3))
    assert found == (Range(RecordPlace(begins[10], 110), 1328, False) if begins[10] < 1328 else None)
    assert (found is not None) == own


@pytest.mark.parametrize(("more", "last", "ends"), [(0, 139, 140), (0, None, 140), (0, 138, 140), (1, 139, None)])
def test_where_a_segment_ends_is_known_once_its_last_byte_was_seen(
    storage: Path, more: int, last: int | None, ends: int | None
) -> None:
    with seg(storage, 0, 100).open("ab") as file:
        file.write(bytes(more))
    job = SegmentJob(storage / "0", 100, 0, bytes=END + more)
    part = SegmentPart("n", job, RECORDS, 0, 1, None, last)
    with ChunkReader(job, ReadLimits(), data=False) as reader:
        whole = range_of(reader, part)
        assert whole == Range(place(0), END + more, True)
        (batch,) = segment_parts.items_of(reader, part, whole, data=False)
        assert (len(batch), reader.next_id) == (RECORDS, ends)  # type: ignore[arg-type]


def chained(storage: Path, number: int, target: int) -> tuple[RecordPlace | None, int | None]:
    job = SegmentJob(storage / "0", 100, 0, bytes=END)
    with ChunkReader(job, ReadLimits(), data=False) as reader:
        return segment_parts._chain(reader, place(number), target)


@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_a_chain_convinces_that_goes_on_far_enough_or_to_the_last_byte(
    storage: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """However many records are looked at together."""
    monkeypatch.setattr(scanner, "RUN_ROWS", rows)
    assert chained(storage, 10, at(12)) == (place(12), None)
    assert chained(storage, 10, at(12) - 1) == (place(12), None)
    assert chained(storage, 10, at(12) + 1) == (place(13), None)
    assert chained(storage, 10, at(39)) == (place(39), None)
    assert chained(storage, 10, at(39) + 1) == (None, None)
    flip(seg(storage, 0, 100), at(20) + 50)
    # it has to reach 600 bytes behind the target
    assert chained(storage, 10, at(10)) == (place(10), None)
    assert chained(storage, 10, at(10) + 1) == (place(11), at(20))
    assert chained(storage, 10, at(12)) == (place(12), at(20))
    assert chained(storage, 10, at(20)) == (None, at(20))
    cut(seg(storage, 0, 100), at(19) + 30)
    assert chained(storage, 10, at(12)) == (place(12), at(19))
    cut(seg(storage, 0, 100), at(19))
    assert chained(storage, 10, at(12)) == (place(12), None)


@pytest.mark.parametrize("torn", [1, 30, 59])
def test_a_torn_end_lets_the_parts_near_it_be_read_from_the_beginning(storage: Path, torn: int) -> None:
    idx(storage, 0, 100).unlink()
    cut(seg(storage, 0, 100), END - torn)
    found = ranges(storage, 4)
    assert found[:3] == BY_SEARCH[:3]
    assert found[3] == Range(HEAD, END - torn, True, 1928)


@pytest.mark.parametrize("first", [100, 99, 101])
def test_what_leads_up_to_a_place_is_in_the_segment(storage: Path, first: int) -> None:
    job = SegmentJob(storage / "0", 100, 0, bytes=END)
    with ChunkReader(job, ReadLimits(), data=False) as reader:
        assert segment_parts._proven(reader, 101, END) == place(1)
        assert segment_parts._proven(reader, 100, END) is None, "nothing is in front of it"
        assert segment_parts._proven(reader, 139, END) == place(39)
        assert segment_parts._proven(reader, 140, END) is None
        assert segment_parts._leads(reader, 100, at(0), at(3), 103)
        assert not segment_parts._leads(reader, 100, at(0), at(3), 104)
        assert not segment_parts._leads(reader, 101, at(0), at(3), 103)
        assert not segment_parts._leads(reader, 100, at(0) - 1, at(3), 103)
        assert not segment_parts._leads(reader, 100, at(3), at(3), 100)
        assert not segment_parts._leads(reader, 100, None, at(3), 103)
        assert not segment_parts._leads(reader, 100, at(0), at(3) + 1, 103)
        assert not segment_parts._leads(reader, 100, at(0), at(3) - 1, 103)
