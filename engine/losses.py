"""Losses of a partition's log as values: which transaction ids are missing, and what proves that they were there.

The messages are in `engine.findings.partition_losses`; nothing here reads a file.  A range of ids is half-open: the first id,
and the one after the last (`stop`).  A segment is identified by the transaction id in its file name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

Ids = tuple[int, int]
"""A half-open range of ids: the first, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Ids between the end of one segment and the beginning of the next, `segment`, are missing.

    `before`: the segment in front of the gap; None where `segment` is the log's first.  `listed`: the index of `before` lists
    exactly the missing ids, which proves that the data file of `before` lost its end.
    """

    first: int
    stop: int
    segment: int
    before: int | None = None
    listed: bool = False

    @property
    def ids(self) -> tuple[Ids, ...]:
        """What is missing."""
        return ((self.first, self.stop),)


@dataclass(frozen=True, slots=True)
class Overlap:
    """`segment` begins at the id `begins`, although the segment in front of it reaches up to `stop` (exclusive)."""

    begins: int
    stop: int
    segment: int

    @property
    def ids(self) -> tuple[Ids, ...]:
        """Nothing is missing."""
        return ()


@dataclass(frozen=True, slots=True)
class BelowMark:
    """The log ends below its local low-water mark `mark`.  `segment` is the last segment; None where there is none."""

    first: int
    mark: int
    segment: int | None

    @property
    def ids(self) -> tuple[Ids, ...]:
        """What is missing."""
        return ((self.first, self.mark + 1),)


@dataclass(frozen=True, slots=True)
class BelowProof:
    """The log ends, with `segment`, below `stop`, although its files prove everything below `stop` to have been durable.

    The proof is, with `by_index`, that the index of `segment` has entries beyond the checkpoint `stop` - 1; otherwise that a
    file has `stop` as the first transaction id in its name.
    """

    first: int
    stop: int
    segment: int | None
    by_index: bool

    @property
    def ids(self) -> tuple[Ids, ...]:
        """What is missing."""
        return ((self.first, self.stop),)


@dataclass(frozen=True, slots=True)
class DataGone:
    """An index of `size` bytes and `entries` entries that has no data file.

    `lost`: the ids among its entries that no other segment holds.  `unlike`: other segments hold all the ids, but their records
    are not the ones that the index lists.
    """

    segment: int
    entries: int
    size: int
    lost: tuple[Ids, ...]
    unlike: bool = False

    @property
    def ids(self) -> tuple[Ids, ...]:
        """What is missing."""
        return self.lost


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An accepted loss of the ids `first` to `stop` - 1, accepted at `time` for `reason`; `missing` are those still missing.

    `disputed`: when the loss was accepted there were other records with these ids.
    """

    first: int
    stop: int
    time: str
    reason: str
    disputed: bool
    missing: tuple[Ids, ...]

    @property
    def ids(self) -> tuple[Ids, ...]:
        """What is missing."""
        return self.missing


@dataclass(frozen=True, slots=True)
class DirectoryGone:
    """A partition that is assigned to this node has no directory.

    `mark`, `session`: local low-water mark and session id in the control file; None or -1 where it has none.
    """

    mark: int | None
    session: int | None

    @property
    def ids(self) -> tuple[Ids, ...]:
        """The ids up to the local low-water mark."""
        return () if self.mark is None or self.mark < 0 else ((0, self.mark + 1),)


@dataclass(frozen=True, slots=True)
class NoSegment:
    """A partition's directory holds no segment.  `began`: the id of the last session that began in it; None for none."""

    began: int | None

    @property
    def ids(self) -> tuple[Ids, ...]:
        """Nothing is known to be missing."""
        return ()


@dataclass(frozen=True, slots=True)
class ShortHeader:
    """A data file of `size` bytes, fewer than its header has; its index has `entries` entries.

    `following`: the id in the name of the next data file; None where this is the last one.  `told_to`: the ids below it are
    counted by another finding already.
    """

    segment: int
    size: int
    entries: int
    following: int | None
    told_to: int = 0

    @property
    def harmless(self) -> bool:
        """Whether the file never held a record: a crash during roll-over leaves such a file."""
        return self.following is None and self.entries == 0

    @property
    def ids(self) -> tuple[Ids, ...]:
        """The ids that were in it, by the name of the next data file, or else by its index.

        They are counted here because the end of this segment is not known, so that no `Gap` is reported behind it.
        """
        stop = self.segment + self.entries if self.following is None else self.following
        first = max(self.segment, self.told_to)
        return ((first, stop),) if stop > first else ()


Loss = Gap | Overlap | BelowMark | BelowProof | DataGone | GivenUp | DirectoryGone | NoSegment | ShortHeader
"""Any loss, overlap or missing file of a partition as a whole."""


def count(ids: tuple[Ids, ...]) -> int:
    """Number of ids in all the ranges."""
    return sum(stop - first for first, stop in ids)


class Covered(tuple[Ids, ...]):
    """Ranges of ids in order that do not touch each other, of which `without` reads only those that matter.

    A ledger may have 100,000 losses of a partition with as many segments: each of them is compared with what is held.
    """

    __slots__ = ()


def covered(ranges: Iterable[Ids]) -> Covered:
    """What ranges cover together; the same where they are `Covered` already."""
    if isinstance(ranges, Covered):
        return ranges
    found: list[Ids] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return Covered(found)


def without(wanted: Ids, held: Iterable[Ids]) -> list[Ids]:
    """The parts of a range of ids that no range of `held` covers, in order."""
    rest: list[Ids] = []
    first, stop = wanted
    ranges = covered(held)
    place = max(0, bisect_right(ranges, wanted) - 1)  # those in front of it end in front of it, too
    while place < len(ranges) and ranges[place][0] < stop:
        low, high = ranges[place]
        if first < low:
            rest.append((first, low))
        first = max(first, high)
        place += 1
    if first < stop:
        rest.append((first, stop))
    return rest
