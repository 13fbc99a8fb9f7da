"""The transaction ids that were seen, as runs of consecutive ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from waltzctl.engine.stats.sum_tables import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of ids from `first` to `last` (both inclusive) of the partition `place`, in order, none adjacent to the next.

    Memory grows with the number of gaps, that is, of damaged places that hide ids.
    """

    place: Ints
    first: Ints
    last: Ints

    def __len__(self) -> int:
        return len(self.place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("place", "first", "last")
        )

    __hash__ = None  # type: ignore[assignment]  # arrays are not hashable

    def of(self, place: int) -> Iterator[tuple[int, int]]:
        """The runs of one partition, as (first, last), in ascending order."""
        begin, end = np.searchsorted(self.place, [place, place + 1])
        for number in range(int(begin), int(end)):
            yield int(self.first[number]), int(self.last[number])


def runs_of(place: Sequence[int] | Ints, first: Sequence[int] | Ints, last: Sequence[int] | Ints) -> Runs:
    """Runs from pieces in any order, which may touch or overlap."""
    return united([Runs(*(np.asarray(one, np.int64) for one in (place, first, last)))])


def united(parts: Sequence[Runs]) -> Runs:
    """The union of `parts`, of which there is at least one."""
    place = np.concatenate([one.place for one in parts])
    if not len(place):
        return parts[0]
    first = np.concatenate([one.first for one in parts])
    last = np.concatenate([one.last for one in parts])
    order = np.lexsort((first, place))
    place, first, last = place[order], first[order], last[order]
    bounds = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), len(place)]
    starts = np.ones(len(place), np.bool_)
    for begin, end in itertools.pairwise(bounds):
        np.maximum.accumulate(last[begin:end], out=last[begin:end])
        starts[begin + 1 : end] = first[begin + 1 : end] - 1 > last[begin : end - 1]
    at = np.flatnonzero(starts)
    ends = np.append(at[1:], len(place)) - 1
    return Runs(place[at], first[at], last[ends])
