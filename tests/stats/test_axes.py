"""The axes: widths follow from the extent alone, and a segment's time is an interval or a reason why there is none."""

from __future__ import annotations

import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.engine.stats.axes import (
    CHOSEN_BUCKETS,
    ID_BUCKETS,
    TIME_BUCKETS,
    Interval,
    Scale,
    borders,
    clock_of,
    id_shift,
)
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader

MOMENTS = st.integers(1, 253_402_300_799_999)
NOON = 1_790_000_000_000


def header(created: int) -> SegmentHeader:
    return SegmentHeader(0, created, uuid.UUID(int=7), 0, 0)


@properties
@given(MOMENTS, MOMENTS, MOMENTS, st.sampled_from([None, 1, 60_000, 90_000_000]))
def test_a_larger_extent_has_buckets_that_the_smaller_ones_divide(
    one: int, two: int, three: int, chosen: int | None
) -> None:
    start, middle, end = sorted((one, two, three))
    scale = Scale(chosen)
    small, large = scale.width(Interval(start, middle)), scale.width(Interval(start, end))
    assert large % small == 0
    for width, last in ((small, middle), (large, end)):
        most = TIME_BUCKETS if chosen is None else CHOSEN_BUCKETS
        assert (max(start, last - 1) // width) - (start // width) < most


@given(MOMENTS, st.integers(0, 10**11))
def test_the_automatic_width_is_the_narrowest_that_suits(start: int, duration: int) -> None:
    extent = Interval(start, start + duration)
    width = Scale().width(extent)
    narrower = [one for one in (1000, 5000, 60_000, 3_600_000, 86_400_000, 604_800_000) if one < width]
    for one in narrower[-1:]:
        assert extent.last // one - extent.start // one >= TIME_BUCKETS


DAY = 86_400_000
WIDTHS = [
    *(1000 * seconds for seconds in (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200)),
    *(DAY * days for days in (1, 7, 28, 364, 3640, 36_400)),
]


@pytest.mark.parametrize(("width", "wider"), list(pairwise(WIDTHS)))
def test_a_hundred_buckets_are_as_many_as_there_may_be_and_one_more_are_wider(width: int, wider: int) -> None:
    assert Scale().width(Interval(width, width + 100 * width)) == width
    assert Scale().width(Interval(width, width + 100 * width + 1)) == wider


def test_without_an_extent_the_automatic_width_is_the_narrowest() -> None:
    assert Scale().width(None) == WIDTHS[0]
    assert Scale(7).width(None) == 7


@properties
@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_ids_fit_their_buckets_and_would_not_fit_narrower_ones(one: int, two: int) -> None:
    first, last = sorted((one, two))
    shift = id_shift(first, last)
    assert (last >> shift) - (first >> shift) < ID_BUCKETS
    assert not shift or (last >> (shift - 1)) - (first >> (shift - 1)) >= ID_BUCKETS


@properties
@given(MOMENTS, st.integers(0, 10**9), st.integers(1, 10**7), st.integers(HEADER_SIZE + 1, 10**6), st.data())
def test_a_record_is_placed_by_where_it_stands_in_the_file(
    start: int, duration: int, width: int, size: int, data: st.DataObject
) -> None:
    interval = Interval(start, start + duration)
    width = max(width, duration // 1000 + 1)
    buckets, offsets = borders(interval, width, size)
    assert len(buckets) == len(offsets) + 1
    at = data.draw(st.integers(HEADER_SIZE, size - 1))
    placed = buckets[sum(offset <= at for offset in offsets)]
    assert placed == (start + (at - HEADER_SIZE) * duration // (size - HEADER_SIZE)) // width


def test_a_segment_lasts_until_the_next_one_is_created() -> None:
    found = clock_of(header(NOON), header(NOON - 5), header(NOON + 60_000), NOON + 9, last=False, doubtful=False)
    assert (found.interval, found.reason) == (Interval(NOON, NOON + 60_000), None)


def test_the_last_segment_lasts_until_its_file_was_changed() -> None:
    found = clock_of(header(NOON), None, None, NOON + 9, last=True, doubtful=False)
    assert found.interval == Interval(NOON, NOON + 9)


def test_a_moment_is_an_interval_as_well() -> None:
    assert clock_of(header(NOON), header(NOON), header(NOON), None, last=False, doubtful=False).interval == Interval(
        NOON, NOON
    )


@pytest.mark.parametrize(
    ("created", "before", "after", "changed", "doubtful", "reason"),
    [
        (NOON, None, NOON - 1, None, False, "the next segment was created before that"),
        (NOON, NOON + 1, NOON + 2, None, False, "in front of it after that, 2026-09-21T14:13:20.001Z"),
        (NOON, None, None, NOON - 1, False, "its file was last changed before that"),
        (NOON, None, None, None, False, "nothing tells"),
        (0, None, NOON, None, False, "is no time"),
        (-1, None, NOON, None, False, "is no time"),
        (2**62, None, NOON, None, False, "is no time"),
        (NOON, None, 2**62, None, False, "is no time"),
        (NOON, 2**62, NOON, None, False, "in front of it after that, 4611686018427387904"),
        (NOON, None, NOON + 1, None, True, "its header is damaged"),
    ],
)
def test_times_that_cannot_be_are_said_and_never_made_up(
    created: int, before: int | None, after: int | None, changed: int | None, doubtful: bool, reason: str
) -> None:
    preceding, following = (None if one is None else header(one) for one in (before, after))
    last = changed is not None
    found = clock_of(header(created), preceding, following, changed, last=last, doubtful=doubtful)
    assert found.interval is None
    assert reason in (found.reason or "")


def test_a_segment_without_a_header_has_no_time() -> None:
    assert clock_of(None, None, None, NOON, last=True, doubtful=False).interval is None
