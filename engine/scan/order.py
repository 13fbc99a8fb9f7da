"""Records out of order: what a record with a right checksum means whose id is not the expected one.

There are four explanations, between which the record itself does not decide:

==================  =======================================================================================
*wrong id*          the record is in its place and its id is wrong, so the record with the expected id is lost
*missing ids*       the id is right; the ids from the expected one up to it are missing
*misplaced record*  it is a repeat, or was written there by mistake; the sequence goes on after it
*unknown*           nothing decides
==================  =======================================================================================

Evidence, strongest first (*by place*: record number n after the one with the expected id e should have the id e + n):

1. The *following records*:

   - A following record whose id is right by place: the records before it have wrong ids.
   - A following record with exactly the expected id: the records before it are misplaced.
   - Consecutive ids that begin too low, followed by a record whose id is right by place: the whole run has wrong ids.
   - Larger ids that are consecutive: they are right, and ids are missing before them.  That holds even if they lead, past
     misplaced records, to a record whose id is right by place, and if a single record with exactly the expected id is among
     them.  It does not hold if a damaged span follows the run, and after the span the id that would be next by place.
2. The *name of the next segment*, which is the id after the last one of this segment: either the ids lead up to it, or the
   number of records does.
3. The *index*.  Entries that disagree with the ids may have been made from either, so the index alone does not prove a wrong
   id; but it refutes a conclusion from the ids alone.
4. The *number of ids* that fit into the file at all.

Verify, dump, recover, rebuild-index and compare use the scanner, and so report the same loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from waltzctl.engine.scan.byte_source import read_bytes
from waltzctl.engine.scan.kernel import OVERHEAD
from waltzctl.engine.scan.probe import Found
from waltzctl.engine.scan.resync import Resynchroniser
from waltzctl.engine.scan.walk import following

SKIPPED_ALLOWANCE = 1_000_000
"""Ids that may be missing beyond those that fit into the file; after a larger jump the record is forged or of another log."""
ORDER_WINDOW = 16
"""Steps over records that are out of order, at most, before the sequence is considered not to go on after them."""
_COMPARED = 64 << 10
"""Bytes per step when comparing whether records are repeated."""
_MOST_COMPARED = 16 << 20
"""Bytes of records that are compared, at most; longer repeats are not detected."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The records out of order end at the offset `end`, where the sequence goes on with `next_id`; None where it does not.

    `proof`: as in `engine.scan.columns.Damage`.
    """

    end: int
    next_id: int | None
    proof: str


@dataclass(frozen=True, slots=True)
class _Passed:
    """Consecutive records with right checksums that are out of order.

    ========= ==============================================================================================
    `end`     the offset after the last one
    `passed`  their number
    `offsets` their offsets, if each was checked by itself and they reach the end of the scan; else empty
    `resumed` the id with which the sequence goes on at `end`; None where it does not
    `behind`  the record at `end`; None if there is none, or it was not read
    `ones`    the records that were checked by themselves, not as part of a run of consecutive ids
    ========= ==============================================================================================
    """

    end: int
    passed: int
    offsets: list[int]
    resumed: int | None
    behind: Found | None
    ones: tuple[Found, ...] = ()


class OrderJudge:
    """Decides what records out of order mean, in a scan that ends at the offset `stop`.

    `ceiling`: the id with which the next segment begins; None where it is not known.  Methods may raise DiskReadError,
    BudgetExhaustedError.
    """

    def __init__(self, search: Resynchroniser, stop: int, ceiling: int | None) -> None:
        self._search = search
        self._stop = stop
        self._ceiling = ceiling

    def judge(self, offset: int, expected: int) -> Judgement:
        """What the record at `offset` means, where the record `expected` should be."""
        search, stop = self._search, self._stop
        found = search.probe.check(offset)
        if found is None:  # the file changed under the scan
            return Judgement(min(offset + OVERHEAD, stop), None, "end")
        if (shifted := self._shifted(found, expected)) is not None:
            return shifted
        run = self._pass_over(found, expected)
        if run.resumed is not None:
            if self._led_by_ids(run, expected):
                return Judgement(offset, found.transaction_id, "length")
            return Judgement(run.end, run.resumed, "length")
        if not self._crowded(run, expected):
            rising = self._rising(run.ones, expected)
            if rising is not None:
                return Judgement(rising.offset, rising.transaction_id, "length")
            for head in (found, run.behind):
                if head is not None and head.transaction_id > expected and not self._beyond(run, expected, head):
                    return Judgement(head.offset, head.transaction_id, "length")
        proven = search.by_index(offset, expected)
        if proven is not None:
            return Judgement(proven.offset, proven.transaction_id, "index")
        if (resumption := search.find(run.end, expected + run.passed)) is not None:
            return Judgement(resumption.offset, resumption.expected, "chain")
        return Judgement(run.end, None, "end")

    def _shifted(self, found: Found, expected: int) -> Judgement | None:
        """The judgement that all ids of the run from `found` on are wrong; None if they are not.

        A run is a sequence of records with consecutive ids.
        """
        stop, ceiling, lower = self._stop, self._ceiling, expected - found.transaction_id
        most = lower + ORDER_WINDOW if lower > 0 else None
        if lower < 0 and ceiling is None:
            return None  # larger consecutive ids are right, unless the next segment's name refutes them
        end, last, _ = self._search.follow(found, stop, most)
        count = last - found.transaction_id + 1
        by_place = expected + count  # the id that should follow the run
        if end == stop:
            if ceiling in (last + 1, by_place):
                return Judgement(stop, None, "end") if ceiling == by_place else None
            if 0 < lower < count and not self._repeated(found, end, lower) and self._as_indexed(found, expected, count):
                return Judgement(stop, None, "end")  # a repeat or wrong ids; the index may have been made from either
            return None
        if not 0 < lower < count or self._repeated(found, end, lower):
            return None
        behind = self._search.probe.check(end)
        if behind is None or behind.transaction_id != by_place:
            return None
        return Judgement(end, by_place, "length")

    def _repeated(self, found: Found, end: int, count: int) -> bool:
        """Whether the first `count` records of the run from `found` to `end` repeat, byte for byte, the records before it."""
        last, _, _ = self._search.follow(found, end, count)
        size = last - found.offset
        if size > min(found.offset, _MOST_COMPARED):
            return False
        source = self._search.probe.source
        for at in range(0, size, _COMPARED):
            part = min(_COMPARED, size - at)
            if read_bytes(source, found.offset - size + at, part) != read_bytes(source, found.offset + at, part):
                return False
        return True

    def _as_indexed(self, found: Found, expected: int, count: int) -> bool:
        """Whether the last `count` index entries, those of the ids from `expected` on, are the records from `found` on."""
        entries = self._search.indexed(expected, count + 1)
        if len(entries) != count:
            return False
        here: Found | None = found
        for entry in entries:
            if here is None or here.offset != entry:
                return False
            here = self._search.probe.check(here.end)
        return True

    def _pass_over(self, found: Found, expected: int) -> _Passed:
        """Pass over records from `found` on until one has an id that continues the sequence."""
        search, probe, stop = self._search, self._search.probe, self._stop
        ones: list[Found] = []
        passed, here, end = 0, found, found.end
        lower: tuple[int, int] | None = None
        strangers: _Passed | None = None
        for _ in range(ORDER_WINDOW):
            ones.append(here)
            end, count = here.end, 1
            if here.transaction_id < expected:  # as one run: a part of the log may have been written twice
                end, last_id, _ = search.follow(here, stop, expected - here.transaction_id)
                count = last_id - here.transaction_id + 1
            passed += count
            if passed == count and here.transaction_id < expected:
                lower = end, count
            behind = probe.check(end)
            if behind is None:
                break
            if behind.transaction_id == expected + passed:
                return _Passed(end, passed, [], behind.transaction_id, behind, tuple(ones))
            if behind.transaction_id == expected and strangers is None:
                strangers = _Passed(end, passed, [], expected, behind)
                after = probe.check(behind.end)
                if after is None or after.transaction_id == following(expected):
                    return strangers
                if self._goes_on(ones, after, expected):
                    return _Passed(end, passed, [], None, behind, tuple(ones))
            here = behind
        if strangers is not None:
            return strangers
        if lower is not None:  # only the run of lower ids is certain to be misplaced
            end, passed = lower
            return _Passed(end, passed, [], None, probe.check(end), tuple(ones))
        offsets = [one.offset for one in ones] if end == stop else []
        return _Passed(end, passed, offsets, None, None, tuple(ones))

    def _goes_on(self, ones: Sequence[Found], after: Found, expected: int) -> bool:
        """Whether the consecutive larger ids of `ones` go on with `after`, which follows the one record with the expected id.

        Then that single record is the misplaced one.
        """
        row = self._row(ones, expected)
        if not 1 < len(row) == len(ones) or after.transaction_id <= row[-1].transaction_id:
            return False
        second = self._search.probe.check(after.end)
        return second is not None and second.transaction_id == following(after.transaction_id)

    def _led_by_ids(self, run: _Passed, expected: int) -> bool:
        """Whether the larger ids are consecutive, from the first record on, up to the id with which the sequence resumes.

        Then these ids are right and ids are missing before them.  That the record which resumes the sequence is right by place,
        too, is a coincidence: as many misplaced records are before it as ids are missing.
        """
        row = self._row(run.ones, expected)
        return len(row) > 1 and following(row[-1].transaction_id) == run.resumed

    def _row(self, ones: Sequence[Found], expected: int) -> list[Found]:
        """The leading records of `ones` with consecutive ids, if these are larger than `expected` and not out of reach."""
        row: list[Found] = []
        if not ones or ones[0].transaction_id <= expected or self._out_of_reach(expected, ones[0]):
            return row
        for one in ones:
            if row and one.transaction_id != following(row[-1].transaction_id):
                break
            row.append(one)
        return row

    def _crowded(self, run: _Passed, expected: int) -> bool:
        """Whether a damaged span follows the larger ids, and the id after it refutes them but is possible by place.

        With the larger ids there would be no id left for the damaged record.
        """
        if run.behind is not None or run.ones[-1].transaction_id <= expected:
            return False
        behind = self._search.find(run.end, expected + run.passed)
        if behind is None:
            return False
        return expected + run.passed < behind.transaction_id <= run.ones[-1].transaction_id + 1

    def _rising(self, ones: tuple[Found, ...], expected: int) -> Found | None:
        """The first record of the larger, rising ids that lead up to two consecutive ids; None if there are none within reach.

        Two neighbours with consecutive ids did not both get a wrong id, and rising ids before them are in order.
        """
        head: Found | None = None
        for one, behind in reversed(list(pairwise(ones))):
            if one.transaction_id <= expected or self._out_of_reach(expected, one):
                continue
            neighbours = following(one.transaction_id) == behind.transaction_id
            if neighbours or (head is behind and one.transaction_id < behind.transaction_id):
                head = one
        return head

    def _out_of_reach(self, expected: int, head: Found) -> bool:
        """Whether `head` belongs to the next segment or after, or more ids are missing before it than could be."""
        if head.transaction_id - expected > self._stop // OVERHEAD + SKIPPED_ALLOWANCE:
            return True
        return self._ceiling is not None and expected <= self._ceiling <= head.transaction_id

    def _beyond(self, run: _Passed, expected: int, head: Found) -> bool:
        """Whether the sequence cannot go on with `head`, a record with a larger id that `run` passed over or stopped at.

        It cannot if `head` is out of reach, or if the last entries of the index are the passed records under the expected ids.
        """
        if self._out_of_reach(expected, head):
            return True
        if not run.offsets:
            return False
        return self._search.indexed(expected, len(run.offsets) + 1) == run.offsets
