"""What lies between two segments, by those in front of both: which of them are read, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders import build_directory, make_records, write_segment
from tests.inspect.helpers import age, idx, seg
from waltzctl.engine.inspect import segment_order, segment_reach
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.losses import Gap, Overlap

RECORDS = make_records(40, size=20)
"""Of 60 bytes each."""


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Segments of ten; 10 goes on up to 25."""
    path = build_directory(tmp_path / "s", {0: [RECORDS[:10], RECORDS[10:20], RECORDS[20:30], RECORDS[30:]]})
    write_segment(path / "0", RECORDS[10:26])
    return age(path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The segments that are read, by the ids in their names."""
    seen: list[int] = []
    check_segment = segment_reach.check_segment

    def counting(job: Any, *rest: Any) -> Any:
        seen.append(job.first)
        return check_segment(job, *rest)

    monkeypatch.setattr(segment_reach, "check_segment", counting)
    monkeypatch.setattr(segment_order, "_SLACK", 0)
    return seen


def reach(storage: Path) -> SegmentReach:
    return SegmentReach(SegmentJob(storage / "0", 30, 0), ReadLimits())


def stretch(first: int, stop: int) -> Stretch:
    return Stretch(first, first, stop, stop - 1)


@pytest.mark.parametrize(
    ("stop", "begins", "found"),
    [
        (22, 30, Gap(26, 30, 30, 20)),
        (25, 30, Gap(26, 30, 30, 20)),
        (26, 30, Gap(26, 30, 30, 20)),
        (27, 30, Gap(27, 30, 30, 20)),
        (22, 26, None),
        (22, 27, Gap(26, 27, 27, 20)),
        (22, 22, None),
        (22, 21, Overlap(21, 22, 21)),
    ],
)
def test_what_an_earlier_one_holds_is_not_missing(
    storage: Path, stop: int, begins: int, found: Gap | Overlap | None
) -> None:
    assert reach(storage).between(stretch(20, stop), stretch(begins, begins + 5)) == found


def test_nothing_is_read_where_two_join_and_of_the_others_each_that_may_hold_it_once(
    storage: Path, read: list[int]
) -> None:
    asked = reach(storage)
    assert asked.between(stretch(20, 30), stretch(30, 40)) is None
    assert asked.between(stretch(20, 31), stretch(30, 40)) == Overlap(30, 31, 30)
    assert read == []
    assert asked.between(stretch(20, 22), stretch(30, 40)) == Gap(26, 30, 30, 20)
    assert asked.between(stretch(20, 23), stretch(30, 40)) == Gap(26, 30, 30, 20)
    assert read == [10], "the one of 0 to 9 has no room for 22"


Told = list[tuple[int, int, int]]


def held(asked: SegmentReach, number: int, stop: int | None = None) -> Told:
    return [(one.segment.first, one.first, one.stop) for one in asked.held(stretch(20, 22), number, stop)]


@pytest.mark.parametrize(("number", "told"), [(19, [(10, 19, 26)]), (25, [(10, 25, 26)]), (26, [])])
def test_the_nearest_one_that_goes_further_holds_an_id(storage: Path, number: int, told: Told) -> None:
    write_segment(storage / "0", RECORDS[15:18])
    assert held(reach(storage), number) == told


@pytest.mark.parametrize(
    ("stop", "told"),
    [
        (None, [(15, 21, 22), (10, 22, 26)]), (27, [(15, 21, 22), (10, 22, 26)]), (26, [(15, 21, 22), (10, 22, 26)]),
        (25, [(15, 21, 22), (10, 22, 25)]), (22, [(15, 21, 22)]), (21, []),
    ],
)  # fmt: skip
def test_behind_the_end_of_the_nearest_one_that_holds_an_id_the_next_nearest_goes_on(
    storage: Path, stop: int | None, told: Told
) -> None:
    write_segment(storage / "0", RECORDS[15:22])
    asked = reach(storage)
    assert held(asked, 21, stop) == told
    assert held(asked, 26, stop) == []


def test_one_that_was_renamed_holds_nothing_for_who_goes_by_names(storage: Path) -> None:
    for path in (seg, idx):
        path(storage, 0, 10).rename(path(storage, 0, 15))
    assert reach(storage).in_front(stretch(20, 22), 25) == 26
    assert held(reach(storage), 25) == []


@pytest.mark.parametrize(
    ("here", "number", "told", "asked"),
    [
        (True, 36, 26, [10]),
        (True, 37, 0, []),
        (True, 17, 26, [10, 0]),
        (True, 18, 26, [10]),
        (False, 36, 26, [10]),
        (False, 37, 0, []),
        (False, 9, 26, [10, 0]),
        (False, 10, 26, [10]),
    ],
)
def test_who_has_no_room_for_an_id_is_not_read(
    storage: Path,
    read: list[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    here: bool,
    number: int,
    told: int,
    asked: list[int],
) -> None:
    """One step to each side, by the size of the file, and behind a URL by the index."""
    monkeypatch.setattr(segment_reach.places, "on_this_machine", lambda path: here)
    assert reach(storage).in_front(stretch(20, 22), number) == told
    assert read == asked


def test_of_the_last_segment_all_others_are_in_front(storage: Path) -> None:
    assert reach(storage).in_front(stretch(60, 70), 38) == 40


@pytest.mark.parametrize(
    ("name", "first", "number", "told", "asked"),
    [(3, 20, 36, 26, [3]), (15, 30, 37, 30, [20, 15]), (15, 30, 38, 26, [15])],
)
def test_a_file_of_another_name_has_room_behind_its_first_record_and_behind_its_name(
    storage: Path, read: list[int], name: int, first: int, number: int, told: int, asked: list[int]
) -> None:
    for path in (seg, idx):
        path(storage, 0, 10).rename(path(storage, 0, name))
    assert reach(storage).in_front(stretch(first, first + 2), number) == told
    assert read == asked


@pytest.mark.parametrize(("here", "headers"), [(True, 3), (False, 4), (False, 5)])
@pytest.mark.parametrize("name", [3, 4, 15, 25])
def test_segments_stand_where_their_first_records_say(
    storage: Path, monkeypatch: pytest.MonkeyPatch, name: int, *, here: bool, headers: int
) -> None:
    """4: its index leads to the next name, which tells nothing, for the name is wrong."""
    monkeypatch.setattr(segment_reach.places, "on_this_machine", lambda path: here)
    monkeypatch.setattr(segment_reach, "REMOTE_HEADERS", headers)
    for path in (seg, idx):
        path(storage, 0, 10).rename(path(storage, 0, name))
    assert reach(storage).between(stretch(20, 22), stretch(30, 40)) == Gap(26, 30, 30, 20)
    assert reach(storage).between(stretch(0, 8), stretch(10, 26)) == Gap(8, 10, 10, 0)


def test_behind_a_url_names_tell_the_places_of_more_segments_than_headers_are_read(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reach.places, "on_this_machine", lambda path: False)
    monkeypatch.setattr(segment_reach, "REMOTE_HEADERS", 3)
    monkeypatch.setattr(segment_reach, "begins_with", lambda job: pytest.fail("a request for each of them"))
    assert reach(storage).between(stretch(20, 22), stretch(30, 40)) == Gap(26, 30, 30, 20)


@pytest.mark.parametrize("here", [True, False])
def test_of_a_directory_that_is_gone_the_two_are_all_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, here: bool
) -> None:
    monkeypatch.setattr(segment_reach.places, "on_this_machine", lambda path: here)
    assert reach(tmp_path / "none").between(stretch(20, 22), stretch(30, 40)) == Gap(22, 30, 30, 20)


@pytest.mark.parametrize(("here", "asked"), [(True, [10, 0]), (False, [10])])
def test_behind_a_url_an_index_that_leads_to_the_next_name_bounds_a_segment(
    storage: Path, read: list[int], monkeypatch: pytest.MonkeyPatch, here: bool, asked: list[int]
) -> None:
    """By the sizes of files there may be a thousand segments in front of a gap that might have it: minutes of requests."""
    monkeypatch.setattr(segment_order, "_SLACK", 4096)
    monkeypatch.setattr(segment_reach.places, "on_this_machine", lambda path: here)
    assert reach(storage).between(stretch(20, 22), stretch(30, 40)) == Gap(26, 30, 30, 20)
    assert read == asked
