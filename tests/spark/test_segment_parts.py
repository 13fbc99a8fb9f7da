"""Where the parts of a segment begin and end: by its index, else by search, else read from the segment's beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records
from tests.inspect.helpers import cut, flip, idx, seg
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log.index import RecordPlace
from waltzctl.engine.spark import segment_parts
from waltzctl.engine.spark.segment_parts import Range, range_of
from waltzctl.engine.spark.splits import SegmentPart

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


def test_parts_begin_where_the_index_leads(storage: Path) -> None:
    assert ranges(storage, 4) == BY_INDEX
    assert ranges(storage, 4, first=100, last=139) == BY_INDEX
    assert ranges(storage, 4, first=0, last=999) == BY_INDEX


def test_of_bounded_ids_each_part_has_its_share(storage: Path) -> None:
    assert ranges(storage, 2, first=110, last=129) == [Range(place(10), at(20), False), Range(place(20), END, True)]
    assert ranges(storage, 2, first=120) == [Range(place(20), at(30), False), Range(place(30), END, True)]
    assert ranges(storage, 2, last=119) == [Range(place(0), at(10), False), Range(place(10), END, True)]


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
    assert ranges(storage, 10, entries=39)[5] is not None
    assert ranges(storage, 10, entries=None)[5] is not None


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


def test_a_part_near_the_beginning_is_read_from_there(storage: Path) -> None:
    """Where a search would look back behind the header."""
    idx(storage, 0, 100).unlink()
    found = ranges(storage, 8)  # of 300 bytes
    assert found[:3] == [Range(HEAD, 428, False), Range(HEAD, 728, False, 428), Range(place(10), 1028, False)]


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


def test_a_segment_that_was_cut_has_no_parts_behind_its_end(storage: Path) -> None:
    idx(storage, 0, 100).unlink()
    cut(seg(storage, 0, 100), 1328)
    assert ranges(storage, 4)[2:] == [None, None]
    cut(seg(storage, 0, 100), 1000)
    assert ranges(storage, 4)[2:] == [None, None]
