"""What tasks wrote is joined only when it is every transaction once."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.spark.run_joining import StagedSegment, join


def _segments(lengths: dict[int, list[int]]) -> list[StagedSegment]:
    made = []
    for partition, sizes in lengths.items():
        first = 0
        for number, size in enumerate(sizes):
            made.append(StagedSegment(partition, first, first + size - 1, 128 + 40 * size, f"task-{number}"))
            first += size
    return made


LENGTHS = st.dictionaries(
    st.integers(0, 5), st.lists(st.integers(1, 20), min_size=1, max_size=6), min_size=1, max_size=4
)


@given(LENGTHS, st.randoms(use_true_random=False))
def test_runs_that_cover_every_id_once_are_joined_in_order(
    lengths: dict[int, list[int]], chance: random.Random
) -> None:
    segments = _segments(lengths)
    shuffled = segments[:]
    chance.shuffle(shuffled)
    joined = join(shuffled)
    assert list(joined) == sorted(lengths)
    assert [one for number in joined for one in joined[number]] == sorted(
        segments, key=lambda one: (one.partition, one.first)
    )


@given(LENGTHS, st.data())
def test_anything_else_is_refused_and_says_exactly_which_ids(
    lengths: dict[int, list[int]], data: st.DataObject
) -> None:
    segments = _segments(lengths)
    place = data.draw(st.integers(0, len(segments) - 1))
    one = segments[place]
    first = data.draw(st.integers(max(0, one.first - 5), one.last + 5))
    last = data.draw(st.integers(first, one.last + 25))
    changed = [*segments[:place], StagedSegment(one.partition, first, last, one.size, one.task), *segments[place + 1 :]]
    counts: dict[int, list[int]] = {}
    for segment in changed:
        seen = counts.setdefault(segment.partition, [0] * 400)
        for number in range(segment.first, segment.last + 1):
            seen[number] += 1
    bad = set()
    for partition, seen in counts.items():
        top = max(number for number, count in enumerate(seen) if count)
        bad |= {(partition, number) for number in range(top + 1) if seen[number] != 1}
    if not bad:
        assert join(changed)
        return
    with pytest.raises(InvalidRequestError) as raised:
        join(changed)
    partition, number = min(bad)
    assert f"partition {partition}: transaction" in str(raised.value)
    assert str(number) in str(raised.value)


def test_the_message_names_what_is_missing_and_what_is_there_twice_and_is_bounded() -> None:
    def made(partition: int, first: int, last: int) -> StagedSegment:
        return StagedSegment(partition, first, last, 0, "t")

    with pytest.raises(InvalidRequestError) as raised:
        join([made(0, 3, 9), made(0, 12, 12), made(0, 11, 20), made(0, 15, 15), made(1, 0, 0)])
    assert str(raised.value) == (
        "the rows make no whole partitions: partition 0: transactions 0 to 2 are missing; partition 0: transaction 10 is"
        " missing; partition 0: transaction 12 is there twice; partition 0: transaction 15 is there twice; every transaction of"
        " a partition is needed once, from 0 on; waltzctl salvage writes directories with gaps"
    )
    with pytest.raises(InvalidRequestError, match="and 90 more places"):
        join([made(number, 1, 1) for number in range(100)])


def test_nothing_joins_to_nothing() -> None:
    assert join([]) == {}
