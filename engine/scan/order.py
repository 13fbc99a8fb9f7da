"""A record with a right checksum whose id is not the next one: the one judgement of what that means.

Nothing in the record tells which of four things happened:

- its id is *wrong*, so that the id that belongs there is lost;
- ids are *missing* in front of it;
- it does *not belong there*: it is a repeat, or it was written there by mistake;
- nothing tells.

Witnesses, in this order:

1. The *records behind it*.  One that stands where the sequence has it, as many places on as were passed, says that the ids of
   those in front of it are wrong; one with the very id that was expected, that they do not belong there.  A row of ids that
   goes on one by one but begins too low was shifted where the record behind the whole row stands where the sequence has it.
   Larger ids that rise one by one are right, so that others are missing in front of them; unless a damaged place follows, and
   behind it the id that would then come next.  So they are where they lead to a record that stands in its place as well, past
   others that do not belong there; and where the very id that was expected stands alone among them.
2. The *next segment's name*, which is the id behind the last one here: ids lead to it either by themselves or by their places.
3. The *index*.  Entries that lead to other records than their ids say may have been made from either, so the index alone
   proves no wrong id; but it leaves open what the ids alone would say.
4. The *number of ids* that could ever have stood in the file.

Verify, dump, recover, rebuild-index and compare have it from the scanner, so that they name the same loss.
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
"""Ids that may be missing beyond those that fit into the file; a larger jump is not a loss but a forged or foreign record."""
ORDER_WINDOW = 16
"""Steps over records with wrong ids until it is said that the sequence does not go on behind them."""
_COMPARED = 64 << 10
"""Bytes that are compared at once to see whether records stand twice."""
_MOST_COMPARED = 16 << 20
"""Bytes beyond which that is not looked at."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What does not belong ends at `end`; the sequence goes on there with `next_id`, None where it does not.

    `proof`: as that of `engine.scan.columns.Damage`.
    """

    end: int
    next_id: int | None
    proof: str


@dataclass(frozen=True, slots=True)
class _Passed:
    """Records with right checksums whose ids fit nowhere: `passed` of them, the last one ends at `end`.

    `offsets`: where they begin, if they are told one by one and nothing follows them.  `resumed`: the id with which the
    sequence goes on at `end`, None where it does not.  `behind`: the record at `end`, None where it was not looked at.
    `ones`: those that were looked at one by one.
    """

    end: int
    passed: int
    offsets: list[int]
    resumed: int | None
    behind: Found | None
    ones: tuple[Found, ...] = ()


class OrderJudge:
    """Judges records of ``[.., stop)``; `ceiling` is the id with which the next segment begins, None where that is not known.

    Methods may raise DiskReadError, BudgetExhaustedError.
    """

    def __init__(self, search: Resynchroniser, stop: int, ceiling: int | None) -> None:
        self._search = search
        self._stop = stop
        self._ceiling = ceiling

    def judge(self, offset: int, expected: int) -> Judgement:
        """The record at `offset`, where `expected` should stand."""
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
        """Whether a row of records from `found` on, whose ids go on one by one, has the wrong ids altogether.

        None where it has not, or where it is no such row.
        """
        stop, ceiling, lower = self._stop, self._ceiling, expected - found.transaction_id
        most = lower + ORDER_WINDOW if lower > 0 else None
        if lower < 0 and ceiling is None:
            return None  # larger ids that rise are right, unless the next segment says otherwise
        end, last, _ = self._search.follow(found, stop, most)
        count = last - found.transaction_id + 1
        by_place = expected + count  # the id that belongs behind the row
        if end == stop:
            if ceiling in (last + 1, by_place):
                return Judgement(stop, None, "end") if ceiling == by_place else None
            if 0 < lower < count and not self._repeated(found, end, lower) and self._as_indexed(found, expected, count):
                return Judgement(stop, None, "end")  # a repeat, or the wrong ids: the index was made from either
            return None
        if not 0 < lower < count or self._repeated(found, end, lower):
            return None
        behind = self._search.probe.check(end)
        if behind is None or behind.transaction_id != by_place:
            return None
        return Judgement(end, by_place, "length")

    def _repeated(self, found: Found, end: int, count: int) -> bool:
        """Whether the first `count` records of the row from `found` to `end` are, byte for byte, those in front of it."""
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
        """Whether the index, to its very end, has the `count` records from `found` on in the places of ids from `expected` on."""
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
        """Pass over records from `found` on until one stands where the sequence has it."""
        search, probe, stop = self._search, self._search.probe, self._stop
        ones: list[Found] = []
        passed, here, end = 0, found, found.end
        lower: tuple[int, int] | None = None
        strangers: _Passed | None = None
        for _ in range(ORDER_WINDOW):
            ones.append(here)
            end, count = here.end, 1
            if here.transaction_id < expected:  # they are told by the dozen where a piece was written twice
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
        if lower is not None:  # only these are surely not in their place
            end, passed = lower
            return _Passed(end, passed, [], None, probe.check(end), tuple(ones))
        offsets = [one.offset for one in ones] if end == stop else []
        return _Passed(end, passed, offsets, None, None, tuple(ones))

    def _goes_on(self, ones: Sequence[Found], after: Found, expected: int) -> bool:
        """Whether larger ids that rise one by one go on with `after`, behind the one record that has the expected id.

        That record stands alone between them, and is the one that does not belong there.
        """
        row = self._row(ones, expected)
        if not 1 < len(row) == len(ones) or after.transaction_id <= row[-1].transaction_id:
            return False
        second = self._search.probe.check(after.end)
        return second is not None and second.transaction_id == following(after.transaction_id)

    def _led_by_ids(self, run: _Passed, expected: int) -> bool:
        """Whether larger ids go on one by one, from the first record on, up to the one with which the sequence resumes.

        Those in front of it that do not are then as many as ids are missing, so that it is in its place by chance: for the place
        all of them would have to be wrong.
        """
        row = self._row(run.ones, expected)
        return len(row) > 1 and following(row[-1].transaction_id) == run.resumed

    def _row(self, ones: Sequence[Found], expected: int) -> list[Found]:
        """The first of these whose ids go on one by one, where they are larger than the expected one and within reach."""
        row: list[Found] = []
        if not ones or ones[0].transaction_id <= expected or self._out_of_reach(expected, ones[0]):
            return row
        for one in ones:
            if row and one.transaction_id != following(row[-1].transaction_id):
                break
            row.append(one)
        return row

    def _crowded(self, run: _Passed, expected: int) -> bool:
        """Whether larger ids would leave none for the damaged place behind them, while the places of their records do."""
        if run.behind is not None or run.ones[-1].transaction_id <= expected:
            return False
        behind = self._search.find(run.end, expected + run.passed)
        if behind is None:
            return False
        return expected + run.passed < behind.transaction_id <= run.ones[-1].transaction_id + 1

    def _rising(self, ones: tuple[Found, ...], expected: int) -> Found | None:
        """The record with which larger ids begin that rise up to two neighbours, where the sequence can go on there.

        Two that follow one another were not both given the wrong id, and what rises in front of them stands in its order.
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
        """Whether the next segment begins in front of `head`, or so many ids are between that they never fitted."""
        if head.transaction_id - expected > self._stop // OVERHEAD + SKIPPED_ALLOWANCE:
            return True
        return self._ceiling is not None and expected <= self._ceiling <= head.transaction_id

    def _beyond(self, run: _Passed, expected: int, head: Found) -> bool:
        """Whether the sequence cannot go on with `head`, the larger id of a record that `run` passed over or stopped at.

        It does not where the index, to its very end, has these records in the places of the ids that were expected either.
        """
        if self._out_of_reach(expected, head):
            return True
        if not run.offsets:
            return False
        return self._search.indexed(expected, len(run.offsets) + 1) == run.offsets
