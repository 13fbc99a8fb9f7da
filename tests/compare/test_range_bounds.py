"""Where a partition is cut into ranges, and which segments each range is given, on sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import pytest

from tests.builders import KEY
from waltzctl.engine.compare import ranges as ranges_room
from waltzctl.engine.compare.directories import Member, info_of, segments_of
from waltzctl.engine.compare.ranges import ranges
from waltzctl.engine.compare.replica_reading import PartitionReplica, Segment
from waltzctl.engine.log.view import FileState, PartitionView, SegmentView
from waltzctl.engine.quorum.vote import Ballot
from waltzctl.formats.control import Layout, initial_control
from waltzctl.formats.segment import HEADER_SIZE

Sizes = Sequence[tuple[int, int, int]]
"""Of each segment its first id, the bytes of its data file, and the entries of its index."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges_room, "RANGE", 100)


def state(name: str, size: int) -> FileState:
    return FileState(PurePath(name), size, 0, 0)


def member(number: int, sizes: Sizes | None) -> Member:
    path = PurePath(f"/{number}")
    if sizes is None:
        return Member(path, Ballot(False), None)
    views = [
        SegmentView(0, first, state("d", size), state("i", HEADER_SIZE + 8 * entries)) for first, size, entries in sizes
    ]
    stops = [*(first for first, _, _ in sizes), None][1:] if sizes else []
    segments = tuple(Segment(view, stop) for view, stop in zip(views, stops, strict=True))
    return Member(path, Ballot(), PartitionReplica(number, path, 0, KEY, None, segments, False, -1))


def lows(*members: Sizes | None) -> list[int]:
    tasks = [task for task, _ in ranges(0, [member(number, sizes) for number, sizes in enumerate(members)])]
    assert [one.high for one in tasks] == [*(one.low for one in tasks[1:]), None]
    return [one.low for one in tasks]


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([], [0]),
        ([(0, 1000, 0)], [0]),
        ([(0, 50, 9), (10, 50, 9), (20, 50, 9), (30, 50, 9), (40, 50, 9)], [0, 20, 40]),
        ([(0, 99, 9), (10, 1, 9), (20, 50, 9)], [0, 20]),
        ([(0, 99, 9), (10, 99, 9), (20, 99, 9)], [0, 20]),
        ([(0, 100, 9), (10, 99, 9), (20, 99, 9), (30, 1, 1)], [0, 10, 30]),
        ([(0, 100, 9), (10, 100, 9), (20, 100, 9)], [0, 10, 20]),
        ([(5, 100, 9), (10, 100, 9)], [0, 10]),
        ([(0, 199, 10), (10, 1, 1)], [0, 10]),
        ([(0, 200, 10), (10, 1, 1)], [0, 5, 10]),
        ([(0, 50, 9), (10, 200, 10), (20, 50, 9), (30, 50, 9)], [0, 15, 20]),
        ([(0, 399, 10)], [0, 3, 6]),
        ([(7, 399, 10)], [0, 10, 13]),
        ([(0, 399, 3)], [0]),
        ([(0, 399, 4)], [0, 1, 2]),
        ([(0, 0, 0), (0, 100, 5), (10, 100, 5)], [0, 10]),
        ([(0, 200, 40), (10, 50, 9), (20, 200, 10)], [0, 5, 10, 25]),  # an index that is too long
        ([(0, 300, 40), (2, 50, 9)], [0, 2]),
    ],
)
def test_where_ranges_begin(sizes: Sizes, found: list[int]) -> None:
    assert lows(sizes) == lows(sizes, []) == lows(None, sizes) == found
    assert lows([(0, 10, 1), (3, 2, 1)], sizes) == (found if sizes else [0])


@pytest.mark.parametrize(
    ("other", "cut"),
    [
        (None, True),
        ([], True),
        ([(0, 100, 0)], True),
        ([(0, 101, 0)], False),
        ([(0, 101, 1)], True),
        ([(0, 50, 5), (5, 101, 0)], False),
    ],
)
def test_a_segment_is_cut_only_where_every_replica_finds_the_place(other: Sizes | None, cut: bool) -> None:
    assert lows([(0, 200, 10)], other) == ([0, 5] if cut else [0])


def test_a_range_weighs_its_share_of_what_all_replicas_have() -> None:
    found = ranges(3, [member(0, [(0, 100, 9), (10, 101, 9)]), member(1, None), member(2, [(0, 100, 9)])])
    assert [weight for _, weight in found] == [301 // 2] * 2
    assert {task.partition for task, _ in found} == {3}
    assert [weight for _, weight in ranges(3, [member(0, [(0, 90, 9)]), member(1, None)])] == [90]
    assert ranges(0, [])[0][1] == 0


def test_a_range_is_given_its_segments_and_their_neighbours() -> None:
    sizes = [(0, 100, 9), (10, 30, 9), (20, 30, 9), (30, 100, 9), (40, 100, 9), (50, 30, 9), (60, 30, 9)]
    found = ranges(0, [member(0, sizes), member(1, None), member(2, [(0, 20, 9), (30, 20, 9), (41, 20, 9)])])
    given = {
        task.low: [None if one is None else [segment.first for segment in one.segments] for one in task.replicas]
        for task, _ in found
    }
    assert given == {
        0: [[0, 10], None, [0, 30]],
        10: [[0, 10, 20, 30, 40], None, [0, 30, 41]],
        40: [[30, 40, 50], None, [0, 30, 41]],
        50: [[40, 50, 60], None, [30, 41]],
    }
    assert [one.number for one in found[0][0].replicas if one is not None] == [0, 2]
    (task, _), *_ = ranges(0, [member(0, sizes), member(1, [(0, 20, 9), (9, 20, 9), (30, 20, 9)])])
    replica = task.replicas[1]
    assert task.high == 10
    assert replica is not None
    assert [segment.first for segment in replica.segments] == [0, 9, 30], "the next one tells what that of 9 has lost"


def test_of_each_segment_the_one_behind_it_is_known() -> None:
    views = [
        SegmentView(0, 0, state("d", 1), None),
        SegmentView(0, 10, None, state("i", 1)),
        SegmentView(0, 20, state("d", 1), None),
        SegmentView(0, 30, None, state("i", 1)),
    ]
    found = segments_of(PartitionView(PurePath("/0"), 0, tuple(views)))
    assert [one.size for one in found] == [1, 0, 1, 0]
    assert [(one.first, one.stop) for one in found] == [(0, 20), (10, 20), (20, None), (30, None)]


@pytest.mark.parametrize(("number", "known"), [(-1, False), (0, True), (2, True), (3, False), (4, False)])
def test_a_control_file_has_so_many_partitions(number: int, known: bool) -> None:
    control = initial_control(Layout.RELEASED, KEY, 3, 0)
    assert info_of(control, number) is (control.partitions[number] if known else None)
    assert info_of(None, number) is None
