"""Selecting the carved records to write: the best copy of each transaction of a partition.

Selection works on intervals of ids, not on single records.  An interval held by one run is taken as it is.  If several runs hold
it, their bytes are compared, and only differing records are decided one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from waltzctl.engine.repair.salvage_attribution import RANK, Attributed
from waltzctl.engine.repair.salvage_runs import SalvageRun
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes

BLOCK = 1 << 20
CHUNK = 4096
"""Records that are compared at once."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The place of a record: source file, byte offset and size in bytes."""

    path: Path
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """A transaction with differing records, each with a right record checksum.  `kept` is the one that is written."""

    partition: int
    transaction_id: int
    kept: SourcePlace
    others: tuple[SourcePlace, ...]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class RecordPiece:
    """Consecutive records of one run, from id `first` to `last` inclusive."""

    run: SalvageRun
    first: int
    last: int

    def offsets(self) -> npt.NDArray[np.int64]:
        """Byte offset of each record in its source, followed by the end of the last one."""
        return offsets_of(self.run)[self.first - self.run.first : self.last - self.run.first + 2]


@lru_cache(maxsize=8)
def offsets_of(run: SalvageRun) -> npt.NDArray[np.int64]:
    """`SalvageRun.offsets`, cached for the runs in use."""
    return run.offsets()


@dataclass(frozen=True, slots=True)
class SalvageSelection:
    """The records to write of a partition, in the order of their ids, and counts of the other copies.

    `duplicates`: number of further copies with the same bytes; `superseded`: of those with other bytes.
    """

    pieces: tuple[RecordPiece, ...]
    duplicates: int
    superseded: int
    conflicts: tuple[Conflict, ...]


def _intervals(runs: Sequence[Attributed]) -> Iterator[tuple[int, int, list[Attributed]]]:
    """Each maximal interval of ids (both ends inclusive) that the same runs hold, with these runs."""
    waiting = sorted(range(len(runs)), key=lambda place: runs[place].run.first, reverse=True)
    active: list[tuple[int, int]] = []  # last id of the run, its place in `runs`
    position = 0
    while waiting or active:
        if not active:
            position = runs[waiting[-1]].run.first
        while waiting and runs[waiting[-1]].run.first == position:
            place = waiting.pop()
            heapq.heappush(active, (runs[place].run.last, place))
        last = active[0][0]
        if waiting:
            last = min(last, runs[waiting[-1]].run.first - 1)
        yield position, last, [runs[place] for _, place in active]
        position = last + 1
        while active and active[0][0] < position:
            heapq.heappop(active)


def _preference(one: Attributed, transaction_id: int | None) -> tuple[bool, int, int, int, int]:
    """The sort key of a copy; the largest is written.  `transaction_id` None: the data checksum is not considered.

    In order of weight: data matches its checksum, more records in its chain, better attribution, earlier source, later place in
    the source.  `_REASONS` has one text for each.
    """
    data_ok = transaction_id is None or transaction_id not in one.run.data_damaged
    return data_ok, one.support, RANK[one.witness], -one.run.source, one.run.start


_REASONS = (
    "its data agrees with the data checksum",
    "more records stand together with it",
    "its partition is better attested",
    "its source was named first",
    "it stands later in its source",
)


def _same_bytes(first: ByteSource, at: int, second: ByteSource, other: int, length: int) -> bool:
    for done in range(0, length, BLOCK):
        size = min(BLOCK, length - done)
        if read_bytes(first, at + done, size) != read_bytes(second, other + done, size):
            return False
    return True


class _Selector:
    """Selects within one partition."""

    def __init__(self, partition: int, sources: Sequence[ByteSource], paths: Sequence[Path]) -> None:
        self._partition = partition
        self._sources = sources
        self._paths = paths
        self.pieces: list[RecordPiece] = []
        self.conflicts: list[Conflict] = []
        self.duplicates = 0
        self.superseded = 0

    def add(self, first: int, last: int, holders: Sequence[Attributed]) -> None:
        """Select the records of one interval of ids (`first` to `last`, inclusive), which every holder has."""
        best = max(holders, key=lambda one: _preference(one, None))
        others = [one for one in holders if one is not best]
        differing: dict[int, list[Attributed]] = {}
        for one in others:
            for number in self._differing(best.run, one.run, first, last):
                differing.setdefault(number, []).append(one)
        self.duplicates += (last - first + 1) * len(others) - sum(map(len, differing.values()))
        position = first
        for number in sorted(differing):
            self._take(best.run, position, number - 1)
            self._decide(number, best, differing[number])
            position = number + 1
        self._take(best.run, position, last)

    def _take(self, run: SalvageRun, first: int, last: int) -> None:
        if last < first:
            return
        if self.pieces and self.pieces[-1].run is run and self.pieces[-1].last == first - 1:
            first = self.pieces.pop().first
        self.pieces.append(RecordPiece(run, first, last))

    def _place(self, run: SalvageRun, number: int) -> SourcePlace:
        offsets = offsets_of(run)
        at = number - run.first
        return SourcePlace(self._paths[run.source], int(offsets[at]), int(offsets[at + 1] - offsets[at]))

    def _decide(self, number: int, best: Attributed, rivals: Sequence[Attributed]) -> None:
        """Decide one transaction with differing records.  Rivals with the same bytes are still listed one by one."""
        ranked = sorted([best, *rivals], key=lambda one: _preference(one, number), reverse=True)
        kept = ranked[0]
        better, worse = _preference(kept, number), _preference(ranked[1], number)
        reason = next(text for text, a, b in zip(_REASONS, better, worse, strict=True) if a != b)
        self._take(kept.run, number, number)
        self.superseded += len(ranked) - 1
        places = [self._place(one.run, number) for one in ranked]
        self.conflicts.append(Conflict(self._partition, number, places[0], tuple(places[1:]), reason))

    def _differing(self, first: SalvageRun, second: SalvageRun, low: int, high: int) -> Iterator[int]:
        """The ids from `low` to `high` whose records differ between two runs."""
        one, other = self._sources[first.source], self._sources[second.source]
        if first.source == second.source and first.start == second.start:
            return
        ours, theirs = offsets_of(first), offsets_of(second)
        for start in range(low, high + 1, CHUNK):
            stop = min(start + CHUNK, high + 1)
            a = ours[start - first.first : stop - first.first + 1]
            b = theirs[start - second.first : stop - second.first + 1]
            length = int(a[-1] - a[0])
            if np.array_equal(a - a[0], b - b[0]) and _same_bytes(one, int(a[0]), other, int(b[0]), length):
                continue
            for place in range(stop - start):
                size = int(a[place + 1] - a[place])
                if not _same_bytes(one, int(a[place]), other, int(b[place]), size):  # the header has the length
                    yield start + place


def select(
    partition: int, runs: Sequence[Attributed], sources: Sequence[ByteSource], paths: Sequence[Path]
) -> SalvageSelection:
    """Select the records to write of a partition.  Raises DiskReadError."""
    selector = _Selector(partition, sources, paths)
    for first, last, holders in _intervals(runs):
        selector.add(first, last, holders)
    return SalvageSelection(tuple(selector.pieces), selector.duplicates, selector.superseded, tuple(selector.conflicts))
