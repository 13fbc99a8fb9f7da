"""The judgement of a partition's log: do its segments join, does it reach what is proven to have been durable, what is lost.

Everything here is a function of values.  Whoever opens a log, verifies it or reads its records looks at the segments in his own
depth, says of each what it holds (`Stretch`), and asks here; so no two of them differ in what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.losses import BelowMark, BelowProof, DataGone, Gap, Ids, Overlap, without


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a segment holds, as far as its neighbours are concerned.

    `segment` is the id in its name, `begins` that of its first record.  `next_id`: the id that the next segment must begin with,
    None where damage at its end leaves that open.  `accounted`: the last id that is here, intact or damaged, `begins` - 1 where
    there is none; `uncertain`: there may be more.  `listed`: the id behind the last entry of its index, None without one;
    `excess`: that lists more than is here.  `torn`: it has a torn tail.  `known`: it was read to its end.
    """

    segment: int
    begins: int
    next_id: int | None
    accounted: int
    uncertain: bool = False
    listed: int | None = None
    excess: bool = False
    torn: bool = False
    known: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """How far the records of a segment go, as a walk to its end found; see `Stretch`."""

    next_id: int | None
    accounted: int
    uncertain: bool


def held_by(reached: int, *, torn: bool, explained: int = 0, uncertain: bool = False) -> Held:
    """`reached`: the id behind the last record that a walk found; `torn`: a torn tail is behind it.

    `explained`: so many entries of the index are of records that were lost in that tail, at least one of which was there in any
    case; `uncertain`: the end was not, or could not be, read.
    """
    open_end = uncertain or (torn and not explained)
    return Held(None if open_end else reached + explained, reached - 1 + max(explained, torn), uncertain)


@dataclass(frozen=True, slots=True)
class IndexExcess:
    """The index of `segment` lists more than its data file holds, and no gap behind it says the same."""

    segment: int


Joint = Gap | Overlap | IndexExcess


def joints(stretches: Iterable[Stretch], expected: int | None) -> Iterator[Joint]:
    """Gaps, overlaps and indexes that are too long among segments that stand side by side, in the order of `begins`.

    `expected`: the id that the first one must begin with; None where the one in front of it is not looked at here.  An index
    that lists exactly the transactions of the gap behind its segment is nothing of its own: the data file lost its end.
    What a segment lacks that ends within another one, as that of another partition does, is no gap where that one has it.
    """
    before: Stretch | None = None
    reached = 0  # behind the last id of all segments so far
    for one in stretches:
        if expected is not None and one.begins > expected:
            expected = min(max(expected, reached), one.begins)
        gap = expected is not None and one.begins > expected
        if before is not None and before.excess:
            lost_end = before.listed == one.begins and (gap or expected is None)
            if not lost_end:
                yield IndexExcess(before.segment)
        if gap and expected is not None and before is not None and before.torn:
            # the torn tail counts all up to the next name: the file was cut within a record
            expected = max(expected, min(one.segment, one.begins))
            gap = one.begins > expected
        if gap and expected is not None:
            yield gap_between(before, one, expected)
        elif expected is not None and one.begins < expected:
            yield Overlap(one.begins, expected, one.segment)
        expected = one.next_id if one.known else None
        reached = max(reached, expected or 0)
        before = one
    if before is not None and before.excess:
        yield IndexExcess(before.segment)


def gap_between(before: Stretch | None, behind: Stretch, expected: int) -> Gap:
    """The gap from `expected` up to a segment; `before` is the one in front of it, None for the first of a log."""
    listed = before is not None and before.excess and before.listed == behind.begins
    return Gap(expected, behind.begins, behind.segment, None if before is None else before.segment, listed)


def joint(before: Stretch, behind: Stretch) -> Gap | Overlap | None:
    """How one segment joins the next: None where it does, or where damage at its end leaves that open."""
    found = joints((before, behind), before.begins)
    return next((one for one in found if not isinstance(one, IndexExcess)), None)


def begun(segment: int, begins: int) -> Stretch:
    """A segment of which only the beginning was looked at."""
    return Stretch(segment, begins, None, begins - 1, known=False)


def data_gone(segment: int, entries: int, size: int, held: Sequence[Ids], alike: Callable[[], bool]) -> DataGone:
    """An index of `entries` entries and `size` bytes without a data file; `held` are the ids in other segments.

    `alike`: whether these are as the index lists them; only asked where all are held.
    """
    whole = segment, segment + entries
    lost = tuple(without(whole, held)) if entries else ()
    unlike = entries > 0 and not lost and not alike()
    return DataGone(segment, entries, size, (whole,) if unlike else lost, unlike)


def end(stretches: Sequence[Stretch], proven: Evidence, mark: int | None) -> Iterator[BelowMark | BelowProof]:
    """Whether a log reaches its local low-water mark (None: nothing tells it), and what its files prove to have been behind that.

    The last of `stretches` is the log's last segment.  What an index without a data file proves is nothing of its own.
    """
    last_one = stretches[-1] if stretches else None
    if last_one is not None and (last_one.uncertain or not last_one.known):
        return
    last = max((one.accounted for one in stretches), default=-1)
    segment = None if last_one is None else last_one.segment
    if mark is not None and last < mark:
        yield BelowMark(last + 1, mark, segment)
    following = max(last, -1 if mark is None else mark) + 1
    too_long = last_one is not None and last_one.excess  # or else it is being written
    by_index = proven.with_data if too_long and segment == proven.index_with_data else 0
    if max(proven.names, by_index) > following:
        stop = max(proven.names, by_index)
        yield BelowProof(following, stop, segment, by_index == stop)


def losses(
    stretches: Sequence[Stretch], proven: Evidence, mark: int | None, joined: Iterable[Joint]
) -> Iterator[Joint | BelowMark | BelowProof]:
    """What `joints` found, then what is missing at the end.

    The index of the last segment that proves a loss is not named among the joints: it is no stale one that may be cut.
    """
    missing = tuple(end(stretches, proven, mark))
    proves = any(isinstance(one, BelowProof) and one.by_index for one in missing)
    last = IndexExcess(stretches[-1].segment) if proves else None
    yield from (one for one in joined if one != last)
    yield from missing
