"""The segments of all tasks of a write, joined to partitions; missing and duplicate ids are refused.  Values in, values out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from waltzctl.engine.errors import InvalidRequestError

_MOST_NAMED = 10
"""How many gaps and duplicates a message names, at most."""


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A data file and its index as a task wrote them.

    `first`, `last`: ids of its records, which are consecutive.  `size`: bytes of the data file.  `task`: name of the directory
    of the task's attempt.
    """

    partition: int
    first: int
    last: int
    size: int
    task: str

    @property
    def records(self) -> int:
        """How many."""
        return self.last - self.first + 1


def join(segments: Iterable[StagedSegment]) -> dict[int, tuple[StagedSegment, ...]]:
    """The segments of each partition in the order of their ids, which begin with 0 and leave none out.

    Raises InvalidRequestError that names what is missing or came twice.
    """
    partitions: dict[int, list[StagedSegment]] = {}
    for segment in segments:
        partitions.setdefault(segment.partition, []).append(segment)
    wrong: list[str] = []
    for number, found in sorted(partitions.items()):
        found.sort(key=lambda one: (one.first, one.last))
        wrong += _wrong(number, found)
    if wrong:
        more = f"; and {len(wrong) - _MOST_NAMED} more places" if len(wrong) > _MOST_NAMED else ""
        raise InvalidRequestError(
            f"the rows make no whole partitions: {'; '.join(wrong[:_MOST_NAMED])}{more}",
            advice="every transaction of a partition is needed once, from 0 on; waltzctl salvage writes directories with gaps",
        )
    return {number: tuple(partitions[number]) for number in sorted(partitions)}


def _wrong(partition: int, ordered: list[StagedSegment]) -> list[str]:
    found = []
    if ordered[0].first > 0:
        found.append(f"partition {partition}: {_ids(0, ordered[0].first - 1)} missing")
    reached = ordered[0].last
    for _, behind in pairwise(ordered):
        if behind.first > reached + 1:
            found.append(f"partition {partition}: {_ids(reached + 1, behind.first - 1)} missing")
        elif behind.first <= reached:
            found.append(f"partition {partition}: {_ids(behind.first, min(reached, behind.last))} there twice")
        reached = max(reached, behind.last)
    return found


def _ids(first: int, last: int) -> str:
    return f"transaction {first} is" if first == last else f"transactions {first} to {last} are"
