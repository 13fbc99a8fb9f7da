"""What the segments in front of a place still hold of the ids that are missing there.

Behind the end of a segment ids are not missing that one in front of it holds, as where an empty or a misplaced data file stands
inside of a longer one.  Who asks knows the segments by a listing, so how far each may go; how far it does go is read, and only
where that matters.  The nearest one in front that has an id holds it, also where its record is damaged: as readers of the release
go by the nearest name, damage is told, and not answered with another segment's record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class HeldIds(Generic[S]):
    """Ids `first` to `stop` - 1, which `segment` holds."""

    segment: S
    first: int
    stop: int


class SegmentsInFront(Generic[S]):
    """The segments of a partition in their order, asked for the ids that those in front of a place hold.

    A *place* counts segments from 0: in front of place n are the first n of them.
    """

    def __init__(self, segments: Sequence[S], most: Sequence[int], reach: Callable[[S], int]) -> None:
        """`most`: of each segment the id after the last one that it may hold; 0 for one that is not to be asked.

        `reach`: the id after the last one that a segment does hold.  It is called again each time: it remembers what it read.
        """
        self._segments, self._most, self._reach = segments, most, reach
        self._highest = [0, *accumulate(most, max)]

    def may_hold(self, place: int, number: int) -> bool:
        """Whether one in front of a place may hold an id, or one behind it; nothing is read."""
        return self._highest[place] > number

    def reached(self, place: int, number: int) -> int:
        """The id after the last one of those in front of a place that may hold `number`; 0 without any."""
        most = 0
        while self.may_hold(place, number):
            place -= 1
            if self._most[place] > number:
                most = max(most, self._reach(self._segments[place]))
        return most

    def held(self, place: int, first: int, stop: int | None) -> Iterator[HeldIds[S]]:
        """The ids from `first` up to `stop` (None: as far as any goes), in order, each with the nearest in front that has it.

        It ends with the first id that none of them has.
        """
        while (stop is None or first < stop) and self.may_hold(place, first):
            place -= 1  # one that does not go beyond `first` does not go beyond a later one, either
            if self._most[place] > first and (reached := self._reach(self._segments[place])) > first:
                end = reached if stop is None else min(reached, stop)
                yield HeldIds(self._segments[place], first, end)
                first = end
