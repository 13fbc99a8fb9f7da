"""Which records of a copy are compared with the source's: each id of a span once, whatever comes in one answer."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.client import copying
from waltzctl.engine.client.copying import _SAMPLE_RECORDS, Copy, _spans
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import WireRecord


class Side:
    """A node with the transactions up to `last`; `portions`: how many it gives out in each answer, again and again."""

    def __init__(self, last: int, portions: list[int]) -> None:
        self._last, self._portions, self._turn = last, portions, 0

    async def records(self, _partition: int, first: int, count: int) -> tuple[WireRecord, ...]:
        most = self._portions[self._turn % len(self._portions)]
        self._turn += 1
        stop = min(first + min(count, most), self._last + 1)
        return tuple(WireRecord(number, RequestId(1, 1, 0, number), 0, b"x", 0) for number in range(first, stop))


@given(
    st.integers(0, 5),
    st.integers(0, 12),
    st.integers(-1, 20),
    st.integers(-1, 20),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_every_id_is_compared_once(
    first: int, more: int, ours: int, theirs: int, our_portions: list[int], their_portions: list[int]
) -> None:
    last = first + more
    copy: Any = SimpleNamespace(
        _partition=0, _destination=Side(ours, our_portions), _source=Side(theirs, their_portions)
    )

    async def compared() -> list[tuple[int, WireRecord | None, WireRecord | None]]:
        return [one async for one in Copy._pairs(copy, first, last)]

    found = asyncio.run(compared())
    assert [number for number, _, _ in found] == [*range(first, last + 1)]
    for number, mine, other in found:
        for record, end in ((mine, ours), (other, theirs)):
            assert record is None or record.transaction_id == number
            assert record is not None or number > end or (mine is None) != (other is None)
        if number <= min(ours, theirs):
            assert mine is not None
            assert other is not None


@pytest.mark.parametrize(
    ("keep", "target"),
    [(-1, 0), (-1, 62), (-1, 63), (-1, 64), (0, 0), (0, 1), (5, 5), (5, 6), (100, 10_000), (9_990, 10_000)],
)
def test_a_sample_has_both_ends_of_what_was_copied_and_the_last(
    keep: int, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(keep + target)
    for samples in (0, 32):
        monkeypatch.setattr(copying, "_SAMPLES", samples)
        spans = _spans(keep, target)
        ids = [number for begin, end in spans for number in range(begin, end + 1)]
        assert ids == sorted(set(ids))
        assert ids[0] >= 0
        assert ids[-1] == target
        wanted = {
            max(keep, 0),
            *range(keep + 1, keep + 1 + _SAMPLE_RECORDS),
            *range(target - _SAMPLE_RECORDS + 1, target),
        }
        assert {number for number in wanted if 0 <= number <= target} <= {*ids}
