"""What a log lacks, as values: which ids, and what proves that they were there.  No wording (`engine.findings`), no files.

Ids are transaction ids; a range is its first one and the one behind its last.  A segment is named by the first id in its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Ids = tuple[int, int]
"""A range of ids: the first, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Ids in front of a segment that the one before it does not lead up to.

    `before`: the segment in front of the gap; None: the log begins with `segment`.  `listed`: the index of `before` lists exactly
    these ids as well, so that its data file lost its end.
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
    """A segment begins at `begins`, in front of `stop`, the id behind the last one of the segment before it."""

    begins: int
    stop: int
    segment: int

    @property
    def ids(self) -> tuple[Ids, ...]:
        """Nothing is missing."""
        return ()


@dataclass(frozen=True, slots=True)
class BelowMark:
    """The log ends in front of its local low-water mark, with `segment` (None: there is none)."""

    first: int
    mark: int
    segment: int | None

    @property
    def ids(self) -> tuple[Ids, ...]:
        """What is missing."""
        return ((self.first, self.mark + 1),)


@dataclass(frozen=True, slots=True)
class BelowProof:
    """The log ends, with `segment`, in front of what its files prove to have been durable.

    `by_index`: the index of that segment leads behind the checkpoint `stop` - 1; otherwise a file is called after `stop`.
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

    `lost`: what of that no other segment holds.  `unlike`: others hold the ids, but not what the index lists.
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
    """A loss that somebody accepted, at `time` for `reason`, and what of it (`first` to `stop` - 1) is still missing.

    `disputed`: other records bore these ids, too.
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
    """A partition that belongs here has no directory.  `mark`, `session`: what the control file says, None or -1 for nothing."""

    mark: int | None
    session: int | None

    @property
    def ids(self) -> tuple[Ids, ...]:
        """What is known to have been in it."""
        return () if self.mark is None or self.mark < 0 else ((0, self.mark + 1),)


@dataclass(frozen=True, slots=True)
class NoSegment:
    """A partition's directory holds no segment.  `began`: the session that began in it, None where none did."""

    began: int | None

    @property
    def ids(self) -> tuple[Ids, ...]:
        """Nobody knows of any."""
        return ()


@dataclass(frozen=True, slots=True)
class ShortHeader:
    """A data file of `size` bytes, fewer than its header has; its index has `entries` entries.

    `following`: the id in the name of the next data file, None where no segment is behind it.  `told_to`: of what is in front of
    this id somebody tells who knows what it held.
    """

    segment: int
    size: int
    entries: int
    following: int | None
    told_to: int = 0

    @property
    def harmless(self) -> bool:
        """Whether nothing was ever in it: a crash during roll-over leaves that."""
        return self.following is None and self.entries == 0

    @property
    def ids(self) -> tuple[Ids, ...]:
        """What was in it, as the next name tells, or its index: behind a segment of which no end is known nobody sees a gap."""
        stop = self.segment + self.entries if self.following is None else self.following
        first = max(self.segment, self.told_to)
        return ((first, stop),) if stop > first else ()


Loss = Gap | Overlap | BelowMark | BelowProof | DataGone | GivenUp | DirectoryGone | NoSegment | ShortHeader
"""Something that is not as it was in a partition as a whole."""


def count(ids: tuple[Ids, ...]) -> int:
    """How many ids."""
    return sum(stop - first for first, stop in ids)


def without(wanted: Ids, held: Iterable[Ids]) -> list[Ids]:
    """The parts of a range of ids that no range of `held` covers, in order."""
    rest: list[Ids] = []
    first, stop = wanted
    for low, high in (*sorted(held), (stop, stop)):
        if first < min(low, stop):
            rest.append((first, min(low, stop)))
        first = max(first, high)
    return rest
