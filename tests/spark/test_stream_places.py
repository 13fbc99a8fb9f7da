"""Places in a partition's segments: the record of an id with and without an index, and the ranges that a batch is cut into."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records, write_segment
from tests.inspect.helpers import cut, flip, idx, patch, seg
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import segment_checks
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.scan import scanner
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.spark import stream_places
from waltzctl.engine.spark.offsets import BEGINNING, Anchor
from waltzctl.engine.spark.stream_places import PartitionPlaces, SegmentRange, open_segment
from waltzctl.engine.spark.stream_ranges import HeldInFront, read_range
from waltzctl.formats.segment import Record

RECORDS = make_records(30, first=5, size=20)
"""Of 60 bytes each: 5 to 9, 10 to 19 and 20 to 34."""
FIRSTS = (5, 10, 20)


def segment_of(number: int) -> int:
    return max(first for first in FIRSTS if first <= number)


def at(number: int) -> int:
    return 128 + 60 * (number - segment_of(number))


def anchor(number: int, **changed: Any) -> Anchor:
    one: Record = RECORDS[number - 5]
    made = Anchor(number, one.request_id, one.record_checksum, segment_of(number), at(number), 60)
    return replace(made, **changed)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Three segments; what was in front of the first one is gone."""
    path = build_directory(tmp_path / "d", {0: [make_records(5, size=20), RECORDS[:5], RECORDS[5:15], RECORDS[15:]]})
    for file in (seg(path, 0, 0), idx(path, 0, 0)):
        file.unlink()
    return path


def places(storage: Path) -> PartitionPlaces:
    return PartitionPlaces(view_partition(storage / "0", 0))


def template(storage: Path) -> SegmentRange:
    return SegmentRange("n", storage / "0", 0, 7, 7, 7, start=7, start_id=7)


def spoil(storage: Path) -> None:
    for first in FIRSTS:
        idx(storage, 0, first).unlink()


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The bounds of each scan."""
    found: list[tuple[int, int]] = []

    def counting(*args: Any, **named: Any) -> Any:
        found.append((named["start"], named["stop"]))
        return scanner.scan_records(*args, **named)

    monkeypatch.setattr(segment_checks, "scan_records", counting)
    return found


def test_what_was_listed(storage: Path) -> None:
    found = places(storage)
    assert (found.partition, found.first) == (0, 5)
    assert [one.path for one in found.last_states if one is not None] == [seg(storage, 0, 20), idx(storage, 0, 20)]
    assert [found._owned_up_to(place) for place in range(3)] == [9, 19, None]
    assert [found._owner(number) for number in (4, 5, 9, 10, 19, 20, 99)] == [None, 0, 0, 1, 1, 2, 2]
    for first in FIRSTS:
        seg(storage, 0, first).unlink()
    nothing = places(storage)
    assert (nothing.first, nothing.last_states, nothing.at_or_before(None)) == (None, (), None)
    assert list(nothing.ranges(BEGINNING, Anchor(3), template(storage))) == []


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    ("wanted", "found"),
    [(4, None), (5, 5), (9, 9), (10, 10), (14, 14), (19, 19), (20, 20), (34, 34), (35, 34), (None, 34)],
)
def test_the_record_of_an_id_is_found_with_and_without_an_index(
    storage: Path, index: bool, wanted: int | None, found: int | None
) -> None:
    if not index:
        spoil(storage)
    expected = None if found is None else anchor(found)
    assert places(storage).at_or_before(wanted) == expected
    for known in (5, 9, 12, 22, 34):
        assert places(storage).at_or_before(wanted, anchor(known)) == expected
        assert places(storage).at_or_before(wanted, anchor(known, record_checksum=1)) == expected
        assert places(storage).at_or_before(wanted, anchor(known, offset=None)) == expected


@pytest.mark.parametrize(
    ("wanted", "known", "bounds"),
    [
        (None, anchor(30), [(at(31), 128 + 900)]),
        (None, anchor(34), []),
        (None, anchor(20), [(at(21), 128 + 900)]),
        (30, anchor(30), []),
        (30, anchor(29), [(at(30), 128 + 900)]),
        (29, anchor(30), [(128, 128 + 900)]),
        (None, anchor(30, record_checksum=1), [(128, 128 + 900)]),
        (None, anchor(30, segment=10), [(128, 128 + 900)]),
        (None, anchor(30, offset=None), [(128, 128 + 900)]),
        (None, anchor(30, size=None), [(128, 128 + 900)]),
        (None, anchor(30, offset=127), [(128, 128 + 900)]),
        (None, anchor(30, offset=at(31)), [(128, 128 + 900)]),
    ],
)
def test_without_an_index_what_was_read_spares_a_scan_up_to_there(
    storage: Path, scanned: list[tuple[int, int]], wanted: int | None, known: Anchor, bounds: list[tuple[int, int]]
) -> None:
    spoil(storage)
    found = places(storage).at_or_before(wanted, known)
    assert found is not None
    assert found.transaction_id == (34 if wanted is None else wanted)
    assert scanned == bounds


def test_with_an_index_nothing_is_scanned_but_what_it_does_not_list(
    storage: Path, scanned: list[tuple[int, int]]
) -> None:
    assert places(storage).at_or_before(None, anchor(20)) == anchor(34)
    assert places(storage).at_or_before(27) == anchor(27)
    assert scanned == []
    cut(idx(storage, 0, 20), 128 + 8 * 10)
    assert places(storage).at_or_before(None) == anchor(34)
    assert scanned == [(at(30), 128 + 900)]
    scanned.clear()
    assert places(storage).at_or_before(None, anchor(32)) == anchor(34)
    assert scanned == [(at(33), 128 + 900)]


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    ("wanted", "found"), [(22, 22), (23, 22), (24, 22), (25, 25), (26, 26), (19, 19), (20, 19), (21, 21), (None, 34)]
)
def test_what_is_damaged_is_passed_over(storage: Path, index: bool, wanted: int | None, found: int) -> None:
    if not index:
        spoil(storage)
    for number in (20, 23, 24):
        flip(seg(storage, 0, 20), at(number) + 50)
    assert places(storage).at_or_before(wanted) == anchor(found)


def test_a_segment_without_a_record_is_passed_over(storage: Path) -> None:
    cut(seg(storage, 0, 20), 128)
    assert places(storage).at_or_before(None) == anchor(19)
    cut(seg(storage, 0, 20), 100)
    assert places(storage).at_or_before(None) == anchor(19)
    assert places(storage).record_now(anchor(25)) is None
    assert places(storage).record_now(anchor(15)) == anchor(15)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (anchor(25), 25),
        (anchor(25, record_checksum=5), 25),
        (anchor(25, segment=None, offset=None, size=None), 25),
        (anchor(25, segment=10), 25),
        (anchor(25, segment=5), 25),
        (anchor(25, segment=7), 25),
        (anchor(25, offset=128), 25),
        (anchor(9), 9),
        (anchor(9, segment=20), 9),
        (Anchor(4), None),
        (Anchor(4, segment=5, offset=128, size=60), None),
        (Anchor(35), None),
        (Anchor(35, segment=20, offset=128 + 900, size=60), None),
    ],
)
def test_a_record_is_found_again_wherever_it_was_said_to_stand(
    storage: Path, index: bool, asked: Anchor, found: int | None
) -> None:
    if not index:
        spoil(storage)
    assert places(storage).record_now(asked) == (None if found is None else anchor(found))


def test_the_segment_that_owns_an_id_is_asked_for_it(storage: Path) -> None:
    """Not another one that has the id as well, which is told as an overlap."""
    extra = make_records(2, first=20, size=20, seed=9)
    with seg(storage, 0, 10).open("ab") as file:
        file.write(b"".join(one.encode() for one in extra))
    twice = Anchor(20, extra[0].request_id, extra[0].record_checksum, 10, 128 + 600, 60)
    assert places(storage).record_now(twice) == anchor(20)
    assert places(storage).at_or_before(20) == anchor(20)
    assert places(storage).at_or_before(19) == anchor(19)


def test_ids_are_those_of_a_name_whatever_a_header_says(storage: Path) -> None:
    patch(seg(storage, 0, 10), 32, (999).to_bytes(8, "big"))
    with open_segment(SegmentRange("n", storage / "0", 0, 10, 10, 19, 128, 10).job) as opened:
        assert (opened.begins, opened.reader is not None and opened.reader.begins) == (10, 10)
    assert places(storage).at_or_before(15) == anchor(15)
    patch(seg(storage, 0, 10), 32, (10).to_bytes(8, "big"))  # which its first record bears out
    for kind in (seg, idx):
        kind(storage, 0, 10).rename(kind(storage, 0, 12))
    with open_segment(SegmentRange("n", storage / "0", 0, 12, 12, 19, 128, 12).job) as opened:
        assert (opened.begins, opened.reader is not None and opened.reader.begins) == (12, 12)


class Walk:
    """An opened segment that is scanned item by item; `left` are those that nobody asked for."""

    def __init__(self, storage: Path, first: int) -> None:
        with open_segment(SegmentRange("n", storage / "0", 0, first, first, first, 128, first).job) as opened:
            whole = list(opened.scan(first, 128, stop=opened.size))
            self.begins, self.size, self.job = opened.begins, opened.size, opened.job
        self.left: list[Any] = []
        for item in whole:
            self.left += [item] if isinstance(item, Damage) else [item.rows(n, n + 1) for n in range(len(item))]

    def scan(self, first: int, start: int, *, stop: int) -> Any:
        assert (first, start) == (self.begins, 128)
        while self.left:
            yield self.left.pop(0)


@pytest.mark.parametrize(
    ("damaged", "bound", "found", "left"),
    [
        ((), 13, 13, range(15, 20)),
        ((), 19, 19, range(0)),
        ((), None, 19, range(0)),
        ((14,), 13, 13, range(15, 20)),
        ((14,), 14, 13, range(15, 20)),
        ((14,), 15, 15, range(17, 20)),
    ],
)
def test_a_segment_is_not_read_much_further_than_the_id_that_is_wanted(
    storage: Path, damaged: tuple[int, ...], bound: int | None, found: int, left: range
) -> None:
    for number in damaged:
        flip(seg(storage, 0, 10), at(number) + 50)
    walk: Any = Walk(storage, 10)
    assert stream_places._scan_up_to(walk, None, bound) == anchor(found)
    assert [int(one.transaction_id[0]) for one in walk.left] == list(left)


# ---- ranges --------------------------------------------------------------------------------------------------------------


def shown(one: SegmentRange) -> tuple[Any, ...]:
    if one.before:
        assert one.bytes == 0
        return one.segment, one.first, one.last
    ends = None if one.ends_at is None else one.ends_at.transaction_id
    return one.segment, one.first, one.last, one.start, one.start_id, one.stop, one.following, ends, one.bytes


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (anchor(22), anchor(24), [(20, 23, 24, at(23), 23, at(25), None, 24, 120)]),
        (anchor(33), anchor(34), [(20, 34, 34, at(34), 34, 1028, None, 34, 60)]),
        (anchor(19), anchor(20), [(20, 20, 20, 128, 20, 188, None, 20, 60)]),
        (
            anchor(18),
            anchor(20),
            [(10, 19, 19, at(19), 19, None, 20, None, 60), (20, 20, 20, 128, 20, 188, None, 20, 60)],
        ),
        (anchor(17), anchor(19), [(10, 18, 19, at(18), 18, 728, None, 19, 120)]),
        (
            Anchor(3),
            anchor(11),
            [(5, 4, 4), (5, 5, 9, 128, 5, None, 10, None, 300), (10, 10, 11, 128, 10, at(12), None, 11, 120)],
        ),
        (BEGINNING, anchor(5), [(5, 0, 4), (5, 5, 5, 128, 5, 188, None, 5, 60)]),
        (BEGINNING, Anchor(3), [(5, 0, 3)]),
        (BEGINNING, Anchor(4), [(5, 0, 4)]),
        (Anchor(4), anchor(5), [(5, 5, 5, 128, 5, 188, None, 5, 60)]),
        # an end that is in another segment than the one that owns its id, or has no place
        (anchor(12), Anchor(14), [(10, 13, 14, at(13), 13, None, None, None, 420)]),
        (anchor(12), Anchor(19), [(10, 13, 19, at(13), 13, None, 20, None, 420)]),
        (Anchor(12), anchor(14), [(10, 13, 14, at(13), 13, at(15), None, 14, 120)]),
        (Anchor(12, None, None, 10, at(12) + 1, 60), anchor(14), [(10, 13, 14, at(13) + 1, 13, at(15), None, 14, 119)]),
        (anchor(12, segment=5), anchor(14), [(10, 13, 14, at(13), 13, at(15), None, 14, 120)]),
        (anchor(12, size=None), anchor(14), [(10, 13, 14, at(13), 13, at(15), None, 14, 120)]),
    ],
)
def test_a_batch_is_ranges_of_the_segments_that_own_its_ids(
    storage: Path, start: Anchor, end: Anchor, expected: list[tuple[Any, ...]]
) -> None:
    assert [shown(one) for one in places(storage).ranges(start, end, template(storage))] == expected


def test_without_an_index_a_range_is_read_from_the_beginning_of_its_segment(storage: Path) -> None:
    spoil(storage)
    (one,) = places(storage).ranges(Anchor(12), anchor(14), template(storage))
    assert shown(one) == (10, 13, 14, 128, 10, at(15), None, 14, 300)


def test_a_range_in_which_nothing_stands_weighs_nothing(storage: Path) -> None:
    """The ids behind the last record of a segment, which another range tells as missing."""
    cut(seg(storage, 0, 10), at(17))
    missing, _ = places(storage).ranges(anchor(16), anchor(20), template(storage))
    assert shown(missing) == (10, 17, 19, at(17), 17, None, 20, None, 0)


def test_a_segment_without_a_whole_header_is_one_range(storage: Path) -> None:
    cut(seg(storage, 0, 10), 100)
    first, one, last = places(storage).ranges(anchor(8), anchor(20), template(storage))
    assert [part.segment for part in (first, one, last)] == [5, 10, 20]
    assert shown(one) == (10, 10, 19, 128, 10, None, 20, None, 0)


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (900, [(20, 34)]),
        (899, [(20, 26), (27, 34)]),
        (450, [(20, 26), (27, 34)]),
        (449, [(20, 24), (25, 29), (30, 34)]),
        (300, [(20, 24), (25, 29), (30, 34)]),
    ],
)
@pytest.mark.parametrize("index", [True, False])
def test_a_large_range_is_cut_where_the_index_proves_records(
    storage: Path, monkeypatch: pytest.MonkeyPatch, index: bool, size: int, parts: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(stream_places, "SPLIT_BYTES", size)
    if not index:
        spoil(storage)
    found = list(places(storage).ranges(anchor(19), anchor(34), template(storage)))
    assert [(one.first, one.last) for one in found] == (parts if index else [(20, 34)])
    assert sum(one.bytes for one in found) == 900
    for one in found:
        assert (one.start, one.start_id) == (at(one.first), one.first)
        assert (one.stop, one.following) == (1028, None)
        assert one.ends_at == (anchor(34) if one is found[-1] else None)


@pytest.mark.parametrize(
    ("size", "parts"),
    [(601, [(21, 30)]), (600, [(21, 30)]), (599, [(21, 25), (26, 30)]), (200, [(21, 23), (24, 26), (27, 30)])],
)
def test_a_range_between_two_known_records_is_cut_only_where_it_is_large_and_no_file_is_opened_where_it_is_not(
    storage: Path, monkeypatch: pytest.MonkeyPatch, size: int, parts: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(stream_places, "SPLIT_BYTES", size)
    opened: list[SegmentJob] = []

    def counting(job: SegmentJob) -> Any:
        opened.append(job)
        return open_segment(job)

    monkeypatch.setattr(stream_places, "open_segment", counting)
    found = list(places(storage).ranges(anchor(20), anchor(30), template(storage)))
    assert [(one.first, one.last) for one in found] == parts
    assert [one.bytes for one in found] == [60 * (last + 1 - first) for first, last in parts]
    assert [(one.start, one.start_id) for one in found] == [(at(first), first) for first, _ in parts]
    assert found[-1].ends_at == anchor(30)
    assert len(opened) == (len(parts) > 1)


def test_only_the_last_part_of_a_segment_joins_the_next_one(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_places, "SPLIT_BYTES", 300)
    found = list(places(storage).ranges(anchor(9), anchor(20), template(storage)))
    assert [shown(one) for one in found] == [
        (10, 10, 14, 128, 10, None, None, None, 300),
        (10, 15, 19, at(15), 15, None, 20, None, 300),
        (20, 20, 20, 128, 20, 188, None, 20, 60),
    ]


def test_a_part_that_begins_inside_a_segment_says_which_ids_are_wanted(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part begins at the record that is proven, which may be in front of what is wanted."""
    monkeypatch.setattr(stream_places, "SPLIT_BYTES", 240)
    flip(seg(storage, 0, 20), at(24) + 50)
    found = list(places(storage).ranges(Anchor(23), anchor(32), template(storage)))
    assert (found[0].first, found[0].start, found[0].start_id) == (24, at(23), 23)
    assert [one.first for one in found[1:]] == [one.last + 1 for one in found[:-1]]
    assert found[-1].last == 32


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The segments that are opened, by the ids in their names."""
    found: list[int] = []

    def noting(job: SegmentJob) -> Any:
        found.append(job.first)
        return open_segment(job)

    monkeypatch.setattr(stream_places, "open_segment", noting)
    return found


def test_who_reads_behind_it_opens_no_segment_in_which_an_empty_one_stands(storage: Path, opened: list[int]) -> None:
    """It may not be readable any more, or have no index and be read as a whole, each time anew."""
    write_segment(storage / "0", [], first=15)
    now = places(storage)
    assert now.at_or_before(None) == now.at_or_before(34) == now.record_now(anchor(34)) == anchor(34)
    assert [one.segment for one in now.ranges(anchor(20), anchor(34), template(storage))] == [20]
    assert set(opened) == {20}


def test_of_a_segment_with_many_empty_ones_inside_the_end_is_looked_for_once(storage: Path, opened: list[int]) -> None:
    for first in range(11, 20):
        write_segment(storage / "0", [], first=first)
    found = list(places(storage).ranges(anchor(9), anchor(34), template(storage)))
    assert [(one.segment, one.first, one.last) for one in found] == [(10, 10, 19), (20, 20, 34)]
    assert opened.count(10) == 2, "for its end, and for its ranges"


def test_what_is_behind_the_end_of_an_inner_segment_is_asked_of_the_one_in_which_it_stands(
    storage: Path, opened: list[int]
) -> None:
    """12 and 13 stand in a segment of their own as well; how far the longer one goes is found out once."""
    write_segment(storage / "0", RECORDS[7:9])
    now = places(storage)
    found = [now.at_or_before(number) for number in (11, 12, 13, 14, 19)]
    assert [one and (one.transaction_id, one.segment) for one in found] == [
        (11, 10), (12, 12), (13, 12), (14, 10), (19, 10),
    ]  # fmt: skip
    assert now.record_now(anchor(16)) == anchor(16)
    several = list(now.ranges(anchor(10), anchor(16), template(storage)))
    assert [(one.segment, one.first, one.last, one.others, one.ends_at) for one in several] == [
        (10, 11, 11, True, None),
        (12, 12, 16, True, anchor(16)),
    ]
    opened.clear()
    again = PartitionPlaces(view_partition(storage / "0", 0), now)
    assert again.at_or_before(16) == anchor(16)
    assert opened == [12, 10], "no file has changed"
    assert again.at_or_before(None) == anchor(34)
    assert opened == [12, 10, 20], "the others are not long enough for more"
    patch(seg(storage, 0, 10), at(16), bytes(8))
    assert places(storage).at_or_before(16) == anchor(15)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("entries", [1, 2, 3, 10])
def test_an_index_that_ends_with_the_name_of_an_inner_segment_is_not_the_whole_one(
    storage: Path, entries: int, last: bool
) -> None:
    """Only its entries were counted, by its size: of 10 to 19 those behind 12 and 13 were told as missing."""
    write_segment(storage / "0", RECORDS[7:9])
    cut(idx(storage, 0, 10), 128 + 8 * entries)
    if last:
        for path in (seg(storage, 0, 20), idx(storage, 0, 20)):
            path.unlink()
    now = places(storage)
    assert now.at_or_before(16) == anchor(16)
    assert now.at_or_before(19) == anchor(19)
    assert now.at_or_before(None) == anchor(19 if last else 34)
    found = [one for one in now.ranges(anchor(10), anchor(16), template(storage)) if one.segment == 12]
    assert [(one.first, one.last, one.others, one.ends_at) for one in found] == [(12, 16, True, anchor(16))]


def test_an_unreadable_segment_whose_index_leads_to_the_next_name_keeps_nobody_from_what_is_behind_it(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its index does not, nobody knows what it holds."""
    write_segment(storage / "0", RECORDS[7:9])

    def failing(job: SegmentJob) -> Any:
        if job.first == 10:
            raise DiskReadError(job.data_path, 128, OSError(5, "gone"))
        return open_segment(job)

    monkeypatch.setattr(stream_places, "open_segment", failing)
    with pytest.raises(DiskReadError):
        places(storage).at_or_before(16)
    cut(idx(storage, 0, 10), 128 + 8 * 2)
    assert places(storage).at_or_before(16) == anchor(13, segment=12, offset=188)


def test_behind_a_url_an_index_that_leads_to_the_next_name_is_the_whole_segment(
    storage: Path, monkeypatch: pytest.MonkeyPatch, opened: list[int]
) -> None:
    """As for findings: by the sizes of files there may be a thousand segments in front that go further."""
    write_segment(storage / "0", RECORDS[7:9])
    cut(idx(storage, 0, 10), 128 + 8 * 2)
    monkeypatch.setattr(stream_places, "on_this_machine", lambda path: False)
    assert places(storage).at_or_before(16) == anchor(13, segment=12, offset=188)
    assert opened == [12]


@pytest.mark.parametrize(("damaged", "end"), [(15, (16, 10)), (16, (15, 10)), (17, (16, 10)), (19, (16, 10))])
def test_a_batch_ends_with_a_record_that_its_range_reads(storage: Path, damaged: int, end: tuple[int, int]) -> None:
    """The record was taken from a segment further in front, where it is intact, and the range, which read the nearest one that
    goes so far, never ended with it: the query failed each time anew.
    """
    write_segment(storage / "0", RECORDS[:19])  # 5 to 23
    write_segment(storage / "0", RECORDS[7:9])
    flip(seg(storage, 0, 10), at(damaged) + 50)
    now = places(storage)
    found = now.at_or_before(16)
    assert found is not None
    assert (found.transaction_id, found.segment) == end
    *_, part = now.ranges(anchor(11), found, template(storage))
    read = [item for item in read_range(replace(part, storage=storage), data=False) if not isinstance(item, Finding)]
    assert int((read[-1].records if isinstance(read[-1], HeldInFront) else read[-1]).transaction_id[-1]) == end[0]


def test_an_empty_segment_owns_what_is_behind_the_records_of_those_in_front(storage: Path, opened: list[int]) -> None:
    """Between two that stand inside, and at the end."""
    cut(seg(storage, 0, 10), at(16))
    for first in (12, 15, 16, 17, 40):
        write_segment(storage / "0", [], first=first)
    found = list(places(storage).ranges(anchor(9), anchor(34, transaction_id=50), template(storage)))
    assert [(one.segment, one.first, one.last) for one in found] == [
        (10, 10, 15), (16, 16, 16), (17, 17, 19), (20, 20, 39), (40, 40, 50),
    ]  # fmt: skip
