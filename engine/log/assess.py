"""The assessment of a partition's log: do its segments join, does it reach what is proven to have been durable, what is missing.

Everything here is a function of values, without I/O.  The callers (opening, verify, dump, ...) read segments to different depths,
describe each one as a `Stretch`, and call these functions, so that all of them report the same losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.losses import BelowMark, BelowProof, DataGone, Gap, Ids, Overlap, covered, without


@dataclass(frozen=True, slots=True)
class Stretch:
    """The range of ids that a segment holds, as its neighbours need to know it.

    =========== ==============================================================================================
    `segment`   the transaction id in its file name
    `begins`    the id of its first record
    `next_id`   the id with which the next segment must begin; None where damage at the end leaves that open
    `accounted` the id of its last record, intact or damaged; `begins` - 1 without any
    `uncertain` whether records may follow `accounted`
    `listed`    the id after the last entry of its index; None without an index
    `excess`    whether the index has entries of records that the data file does not hold
    `torn`      whether it has a torn tail
    `known`     whether it was read to its end
    `told`      how many ids up to `accounted` the finding about its end counts as missing: a torn tail, a short header
    =========== ==============================================================================================
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
    told: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """How far the records of a segment go, as a scan to its end found; the fields are those of `Stretch`."""

    next_id: int | None
    accounted: int
    uncertain: bool


def held_by(reached: int, *, torn: bool, explained: int = 0, last: bool = True, uncertain: bool = False) -> Held:
    """How far a segment goes, from the result of a scan.

    `reached`: the id after the last record found.  `torn`: a torn tail follows that record.  `explained`: number of index entries
    of records that were lost in the torn tail; at least one record was torn, even where the index has no entry for it.
    `last`: it is the partition's last segment; in front of another one the finding about the torn tail counts what is missing up
    to that one's name, whatever the index lists.  `uncertain`: the end was not read, or could not be.
    """
    explained = explained if last else 0
    open_end = uncertain or (torn and not explained)
    return Held(None if open_end else reached + explained, reached - 1 + max(explained, torn), uncertain)


@dataclass(frozen=True, slots=True)
class IndexExcess:
    """The index of `segment` has more entries than its data file has records, and no gap after the segment explains them."""

    segment: int


Joint = Gap | Overlap | IndexExcess


def joints(stretches: Iterable[Stretch], expected: int | None, reached: int = 0) -> Iterator[Joint]:
    """Gaps, overlaps and too long indexes among neighbouring segments.

    `stretches`: in the order of `begins`.  `expected`: the id with which the first one must begin; None where the segment in
    front of it is not among them.  `reached`: the id after the last one of the segments that are not among them (`reach`).

    - An index whose excess entries are exactly those of the gap after its segment is part of that `Gap` (`Gap.listed`), not an
      `IndexExcess`: the data file lost its end.
    - Ids that an earlier, longer segment holds are not missing after a segment that ends inside of it (a misplaced file of
      another partition does), also where damage at that one's end leaves open what follows it.
    """
    before: Stretch | None = None
    for one in stretches:
        if expected is not None and one.begins > expected:
            expected = min(max(expected, reached), one.begins)
        gap = expected is not None and one.begins > expected
        if before is not None and before.excess:
            lost_end = before.listed == one.begins and (gap or expected is None)
            if not lost_end:
                yield IndexExcess(before.segment)
        if gap and expected is not None and before is not None and before.torn:
            # the finding about the torn tail counts all ids up to the next name: the file was cut inside a record
            expected = max(expected, min(one.segment, one.begins))
            gap = one.begins > expected
        if gap and expected is not None:
            yield gap_between(before, one, expected)
        elif expected is not None and one.begins < expected:
            yield Overlap(one.begins, expected, one.segment)
        expected = one.next_id if one.known else None
        reached = max(reached, reach(one))
        before = one
    if before is not None and before.excess:
        yield IndexExcess(before.segment)


def gap_between(before: Stretch | None, behind: Stretch, expected: int) -> Gap:
    """The gap from `expected` up to the segment `behind`; `before` is the segment in front of it, None at a log's beginning."""
    listed = before is not None and before.excess and before.listed == behind.begins
    return Gap(expected, behind.begins, behind.segment, None if before is None else before.segment, listed)


def reach(one: Stretch) -> int:
    """The id after the last one that a segment is known to hold; a torn record is none, whoever else may have it."""
    return one.next_id if one.known and one.next_id is not None else one.accounted + (not one.torn)


def reached_in_front(stretches: Iterable[Stretch]) -> dict[int, int]:
    """Of each segment, by the id in its name, the id after the last one that those in front of it are known to hold.

    `stretches`: in the order of `begins`.  0 where nothing is in front.
    """
    row = list(stretches)
    return dict(zip((one.segment for one in row), accumulate(map(reach, row), max, initial=0), strict=False))


def joint(before: Stretch, behind: Stretch, reached: int = 0) -> Gap | Overlap | None:
    """The gap or overlap between a segment and the next; None where they join, or where damage at the end leaves that open.

    `reached`: as for `joints`, of the segments in front of both.
    """
    found = joints((before, behind), before.begins, reached)
    return next((one for one in found if not isinstance(one, IndexExcess)), None)


def begun(segment: int, begins: int) -> Stretch:
    """The `Stretch` of a segment of which only the beginning was read."""
    return Stretch(segment, begins, None, begins - 1, known=False)


def data_gone(segment: int, entries: int, size: int, held: Sequence[Ids], alike: Callable[[], bool]) -> DataGone:
    """The loss that an index of `entries` entries and `size` bytes without a data file shows.

    `held`: ranges of ids that other segments hold.  `alike`: whether their records are those that the index lists; it is called
    only if other segments hold all ids of the index.
    """
    whole = segment, segment + entries
    lost = tuple(without(whole, held)) if entries else ()
    unlike = entries > 0 and not lost and not alike()
    return DataGone(segment, entries, size, (whole,) if unlike else lost, unlike)


def end(stretches: Sequence[Stretch], proven: Evidence, mark: int | None) -> Iterator[BelowMark | BelowProof]:
    """What is missing at the end of a log, by its local low-water mark (`mark`, None: not known) and by what its files prove.

    The last of `stretches` is the log's last segment.  An index without a data file is not used here: it is a loss of its own
    (`DataGone`).
    """
    last_one = stretches[-1] if stretches else None
    if last_one is not None and (last_one.uncertain or not last_one.known):
        return
    last = max(map(_reach, stretches, [*stretches[1:], None]), default=-1)
    segment = None if last_one is None else last_one.segment
    if mark is not None and last < mark:
        yield BelowMark(last + 1, mark, segment)
    following = max(last, -1 if mark is None else mark) + 1
    too_long = last_one is not None and last_one.excess  # without excess the index is merely being written
    by_index = proven.with_data if too_long and segment == proven.index_with_data else 0
    if max(proven.names, by_index) > following:
        stop = max(proven.names, by_index)
        yield BelowProof(following, stop, segment, by_index == stop)


def counted_elsewhere(
    stretches: Sequence[Stretch], last: int | None, missing: Iterable[BelowMark | BelowProof]
) -> list[Ids]:
    """The ids that another finding counts, if they are missing: for those about indexes without a data file, and accepted losses.

    These are the ids in front of the last data file, `last` by its name (None: there is none), those that the finding about that
    one's end counts, and those that are `missing` at the end of the log.  What is missing behind a segment whose end is not known
    is counted by nobody.  `stretches`: those of the segments that matter for the ids in question, in the order of `begins`.
    """
    open_ends = covered(
        (reach(one), behind.begins)
        for one, behind in pairwise(stretches)
        if (one.uncertain or not one.known) and reach(one) < behind.begins
    )
    in_front = [] if last is None else without((0, last), open_ends)
    at_the_end = [
        (one.accounted + 1 - one.told, one.accounted + 1) for one in stretches if one.segment == last and one.told
    ]
    return [*in_front, *at_the_end, *(ids for one in missing for ids in one.ids)]


def _reach(one: Stretch, behind: Stretch | None) -> int:
    """The id of a segment's last record; a torn one that belongs into the segment `behind` counts there, if it is there."""
    repeated = one.torn and one.next_id is None and behind is not None and behind.begins <= one.accounted
    return one.accounted - repeated


def losses(
    stretches: Sequence[Stretch], proven: Evidence, mark: int | None, joined: Iterable[Joint]
) -> Iterator[Joint | BelowMark | BelowProof]:
    """The `joined` that `joints` found, then what is missing at the end of the log.

    If the too long index of the last segment proves a loss, its `IndexExcess` is left out: that index must not be cut.
    """
    missing = tuple(end(stretches, proven, mark))
    proves = any(isinstance(one, BelowProof) and one.by_index for one in missing)
    last = IndexExcess(stretches[-1].segment) if proves else None
    yield from (one for one in joined if one != last)
    yield from missing
