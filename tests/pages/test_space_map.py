"""Space map and blob stats: room taken, given back, joined, and which file takes what."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from waltzctl.engine.pages.blob_stats import BlobSpan, BlobStat, BlobStats
from waltzctl.engine.pages.space_map import SpaceMap


def used(*ranges: tuple[int, int], limit: int = 100) -> SpaceMap:
    space = SpaceMap(limit)
    for start, size in ranges:
        assert space.mark_used(start, size)
    return space


def test_mark_unmark_merge() -> None:
    space = used((50, 10))
    assert space.free_ranges() == [(0, 50), (60, 40)]
    assert space.mark_used(0, 50)
    assert space.free_ranges() == [(60, 40)]
    assert space.mark_free(20, 10)
    assert space.free_ranges() == [(20, 10), (60, 40)]
    assert space.mark_free(30, 30)  # joins both sides
    assert space.free_ranges() == [(20, 80)]
    assert space.mark_free(0, 20)
    assert space.free_ranges() == [(0, 100)]


@pytest.mark.parametrize(
    ("offset", "size"),
    [(50, 10), (45, 10), (55, 10), (45, 20), (51, 5), (0, 100), (59, 1), (50, 1), (0, 51), (95, 10), (-1, 5), (10, 0)],
)
def test_what_is_not_within_one_free_range_is_not_used(offset: int, size: int) -> None:
    space = used((50, 10))
    before = space.free_ranges(), space.valid
    assert not space.mark_used(offset, size)
    assert (space.free_ranges(), space.valid) == before


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (20, 10),
        (15, 10),
        (25, 10),
        (15, 20),
        (22, 2),
        (20, 1),
        (29, 1),
        (0, 100),
        (20, 15),
        (10, 11),
        (95, 10),
        (-5, 10),
        (40, 0),
    ],
)
def test_what_is_free_in_part_is_not_given_back(offset: int, size: int) -> None:
    """Also where a free range begins at that very offset: a double free would give one place to two pages."""
    space = used((0, 20), (30, 70))
    before = space.free_ranges(), space.valid
    assert before[0] == [(20, 10)]
    assert not space.mark_free(offset, size)
    assert (space.free_ranges(), space.valid) == before


def test_search_takes_the_smallest_that_fits() -> None:
    assert used((50, 10)).take(20) == 60
    assert used((50, 10)).take(50) == 0
    space = used((50, 10))
    assert (space.take(100), space.largest_free) == (None, 50)
    assert used((10, 10), (30, 10), (50, 50)).take(10) == 0  # equal ones: the first


def test_zero_length_is_refused() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        SpaceMap(10).take(0)
    assert SpaceMap(0).largest_free == 0


def test_sizes_and_boundary() -> None:
    for space, boundary, valid in (
        (used((50, 10), (80, 10)), 90, 20),
        (used((0, 100)), 100, 100),
        (used(), 0, 0),
        (used((90, 10)), 100, 10),
    ):
        assert (space.used_boundary, space.valid) == (boundary, valid)


def test_random_work_is_like_a_row_of_bytes() -> None:
    rng = random.Random(3)
    space, row = SpaceMap(60), [False] * 60
    for _ in range(3000):
        offset, size = rng.randrange(60), rng.randint(1, 12)
        inside = offset + size <= 60
        if rng.random() < 0.5:
            assert space.mark_used(offset, size) == (inside and not any(row[offset : offset + size]))
            value = True
        else:
            assert space.mark_free(offset, size) == (inside and all(row[offset : offset + size]))
            value = False
        if inside and (all(row[offset : offset + size]) != value) and len(set(row[offset : offset + size])) == 1:
            row[offset : offset + size] = [value] * size
        assert space.valid == sum(row)
        assert [place for start, length in space.free_ranges() for place in range(start, start + length)] == [
            place for place, taken in enumerate(row) if not taken
        ]


def test_arithmetic_of_a_stat() -> None:
    stat = BlobStat(1, 1 << 20)
    assert [stat.take(size) for size in (10, 100, 20)] == [0, 10, 110]
    assert stat.give_back(10, 100)
    assert [stat.take(size) for size in (110, 90)] == [130, 10]
    assert stat.give_back(130, 110)
    assert stat.total == 240  # a high-water mark
    assert stat.take(120) == 130
    assert (stat.total, stat.valid) == (250, 240)


class Made:
    """Files that stats asked for."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def __call__(self, file_id: int) -> None:
        self.ids.append(file_id)


def test_the_file_of_the_lowest_valid_rate_takes_what_fits() -> None:
    stats, made = BlobStats(100), Made()
    first = [stats.take(50, made), stats.take(50, made)]
    second = [stats.take(60, made), stats.take(40, made)]
    assert made.ids == [1, 2]
    stats.give_back(first[0])
    stats.give_back(second[0])
    assert stats.take(30, made).file_id == 2  # .4 against .5
    assert stats.take(50, made).file_id == 1  # 2 has less room left
    assert stats.take(50, made).file_id == 3


def test_a_full_file_is_not_chosen_and_a_fresh_one_counts_as_full() -> None:
    stats, made = BlobStats(100), Made()
    stats.take(100, made)
    assert stats.take(1, made).file_id == 2
    stats.add(7)
    assert stats.take(1, made).file_id == 2  # its rate is 1, as that of 7, and it comes first
    assert [one.valid_rate for one in stats.all()] == [1, 1, 1]


def test_a_read_only_file_takes_nothing_and_goes_when_empty() -> None:
    stats, made = BlobStats(100), Made()
    span = stats.take(10, made)
    stats.all()[0].read_only = True
    assert stats.take(10, made).file_id == 2
    assert stats.drop_empty() == ()
    stats.give_back(span)
    assert stats.drop_empty() == (1,)
    assert [one.file_id for one in stats.all()] == [2]


def test_giving_back_twice_is_an_error() -> None:
    stats = BlobStats(100)
    span = stats.take(10, Made())
    stats.give_back(span)
    with pytest.raises(RuntimeError, match="bytes 0 to 10 are free"):
        stats.give_back(span)


def test_an_unknown_file_id_is_an_error() -> None:
    with pytest.raises(KeyError):
        BlobStats(100).give_back(BlobSpan(4, 0, 10))


def test_restore_totals_and_a_smaller_limit() -> None:
    """A file that was larger once keeps its room; a new one has the limit of today."""
    stats, made = BlobStats(50), Made()
    stat = stats.add(3, [150], [50])
    assert not stat.mark_used(160, 10)
    assert (stat.total, stat.valid, stat.space.largest_free) == (200, 50, 150)
    assert stats.take(60, made) == BlobSpan(4, 0, 60)  # over the limit: a file of its own
    assert stats.take(50, made).file_id == 3
    stats.add(9, [0], [1])
    assert stats.take(70, made).file_id == 10
    stats.add(12)
    assert stats.take(70, made) == BlobSpan(12, 0, 70)  # in which nothing is used
    assert stats.take(70, made).file_id == 13


def test_a_file_that_cannot_be_made_leaves_no_trace() -> None:
    stats = BlobStats(100)

    def failing(_: int) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        stats.take(10, failing)
    assert stats.all() == ()
    assert stats.take(10, Made()) == BlobSpan(2, 0, 10)


def test_writers_side_by_side_never_get_the_same_bytes() -> None:
    stats, made = BlobStats(4000), Made()
    taken: list[BlobSpan] = []
    start = threading.Barrier(4)

    def work(take: Callable[[], BlobSpan]) -> None:
        start.wait()
        taken.extend(take() for _ in range(200))

    threads = [threading.Thread(target=work, args=(lambda: stats.take(17, made),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = {(span.file_id, byte) for span in taken for byte in range(span.offset, span.offset + span.size)}
    assert len(places) == 800 * 17
    assert len(made.ids) == len(set(made.ids)) == -(-800 // (4000 // 17))


def test_an_empty_file_that_takes_pages_is_not_dropped() -> None:
    stats, made = BlobStats(100), Made()
    stats.give_back(stats.take(10, made))
    assert stats.drop_empty() == ()
    assert stats.take(10, made) == BlobSpan(1, 0, 10)
