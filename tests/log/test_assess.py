"""How segments join, and where a log ends, on values: every bound one step to each side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from waltzctl.engine.log.assess import (
    Held,
    IndexExcess,
    Joint,
    Stretch,
    begun,
    counted_elsewhere,
    data_gone,
    end,
    gap_between,
    held_by,
    joint,
    joints,
    losses,
    reach,
    reached_in_front,
)
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.losses import BelowMark, BelowProof, DataGone, Gap, Ids, Overlap

WHOLE = Stretch(0, 0, 10, 9)
"""Transactions 0 to 9."""


def behind(begins: int = 10) -> Stretch:
    """The next segment, of ten transactions."""
    return Stretch(begins, begins, begins + 10, begins + 9)


@pytest.mark.parametrize(
    ("torn", "explained", "uncertain", "held"),
    [
        (False, 0, False, Held(10, 9, False)),
        (True, 0, False, Held(None, 10, False)),
        (True, 1, False, Held(11, 10, False)),
        (True, 3, False, Held(13, 12, False)),
        (False, 0, True, Held(None, 9, True)),
        (True, 3, True, Held(None, 12, True)),
    ],
)
def test_how_far_a_segment_goes(torn: bool, explained: int, uncertain: bool, held: Held) -> None:
    assert held_by(10, torn=torn, explained=explained, uncertain=uncertain) == held


def test_of_a_torn_tail_nothing_is_explained_unless_it_is_said() -> None:
    assert held_by(10, torn=True) == Held(None, 10, False)
    assert held_by(10, torn=False) == Held(10, 9, False)


def test_of_a_segment_that_was_only_begun_nothing_behind_its_beginning_is_known() -> None:
    assert begun(10, 12) == Stretch(10, 12, None, 11, known=False)


_EXCESS = replace(WHOLE, listed=15, excess=True)
_LONG = Stretch(0, 0, 30, 29)
_LONG_TORN = replace(_LONG, next_id=None, accounted=30, torn=True)


def _within(begins: int, stop: int) -> Stretch:
    """A segment whose transactions the long one in front of it has as well."""
    return Stretch(begins, begins, stop, stop - 1)


@pytest.mark.parametrize(
    ("stretches", "expected", "found"),
    [
        ([], 0, []),
        ([WHOLE], 0, []),
        ([WHOLE, behind()], 0, []),
        ([WHOLE], None, []),
        ([behind()], 9, [Gap(9, 10, 10)]),
        ([behind()], 11, [Overlap(10, 11, 10)]),
        ([WHOLE, behind(11)], 0, [Gap(10, 11, 11, 0)]),
        ([WHOLE, behind(9)], 0, [Overlap(9, 10, 9)]),
        ([WHOLE, behind(11), behind(22)], None, [Gap(10, 11, 11, 0), Gap(21, 22, 22, 11)]),
        ([replace(WHOLE, next_id=None), behind(12)], 0, []),
        ([replace(WHOLE, known=False), behind(12)], 0, []),
        ([_EXCESS], 0, [IndexExcess(0)]),
        ([_EXCESS, behind(10)], 0, [IndexExcess(0)]),
        ([_EXCESS, behind(14)], 0, [IndexExcess(0), Gap(10, 14, 14, 0)]),
        ([_EXCESS, behind(15)], 0, [Gap(10, 15, 15, 0, listed=True)]),
        ([_EXCESS, behind(16)], 0, [IndexExcess(0), Gap(10, 16, 16, 0)]),
        ([replace(_EXCESS, torn=True), behind(15)], 0, []),
        ([replace(_EXCESS, torn=True), behind(16)], 0, [IndexExcess(0)]),
        ([replace(WHOLE, torn=True), behind(16)], 0, []),
        ([replace(WHOLE, torn=True), replace(behind(16), segment=14)], 0, [Gap(14, 16, 14, 0)]),
        ([replace(WHOLE, torn=True), replace(behind(16), segment=9)], 0, [Gap(10, 16, 9, 0)]),
        ([replace(WHOLE, torn=True), behind(9)], 0, [Overlap(9, 10, 9)]),
        ([replace(_EXCESS, torn=True), replace(behind(16), segment=13)], 0, [IndexExcess(0), Gap(13, 16, 13, 0)]),
        ([replace(_EXCESS, torn=True), replace(behind(16), segment=8)], 0, [IndexExcess(0), Gap(10, 16, 8, 0)]),
        ([replace(_EXCESS, next_id=None), behind(15)], 0, []),
        ([replace(_EXCESS, next_id=None), behind(16)], 0, [IndexExcess(0)]),
        ([replace(_EXCESS, listed=10), behind(10)], 0, [IndexExcess(0)]),
        ([replace(_EXCESS, next_id=15), behind(15)], 0, [IndexExcess(0)]),
        ([replace(_EXCESS, next_id=16, torn=True), behind(15)], 0, [IndexExcess(0), Overlap(15, 16, 15)]),
        ([replace(WHOLE, listed=15), behind(15)], 0, [Gap(10, 15, 15, 0)]),
        ([WHOLE, replace(behind(), listed=25, excess=True)], 0, [IndexExcess(10)]),
        ([_LONG, _within(5, 8), behind(30)], 0, [Overlap(5, 30, 5)]),
        ([_LONG, _within(5, 8), _within(9, 12), behind(30)], 0, [Overlap(5, 30, 5)]),
        ([_LONG, _within(5, 8), _within(10, 12), behind(30)], 0, [Overlap(5, 30, 5)]),
        ([_LONG, _within(5, 8), _within(10, 12), behind(31)], 0, [Overlap(5, 30, 5), Gap(30, 31, 31, 10)]),
        ([_LONG_TORN, _within(5, 8), behind(30)], 0, []),
        ([_LONG_TORN, _within(5, 8), behind(31)], 0, [Gap(30, 31, 31, 5)]),
        ([replace(_LONG, next_id=None), _within(5, 8), _within(9, 9), behind(30)], 0, []),
        ([replace(_LONG, next_id=None), _within(5, 8), behind(31)], 0, [Gap(30, 31, 31, 5)]),
    ],
)
def test_how_segments_join(stretches: Sequence[Stretch], expected: int | None, found: list[Joint]) -> None:
    assert list(joints(stretches, expected)) == found


@pytest.mark.parametrize(
    ("before", "following", "found"),
    [
        (WHOLE, behind(10), None),
        (WHOLE, behind(11), Gap(10, 11, 11, 0)),
        (WHOLE, behind(9), Overlap(9, 10, 9)),
        (_EXCESS, behind(16), Gap(10, 16, 16, 0)),
        (_EXCESS, behind(15), Gap(10, 15, 15, 0, listed=True)),
        (_EXCESS, behind(10), None),
        (replace(behind(5), next_id=None), behind(70), None),
        (behind(5), behind(16), Gap(15, 16, 16, 5)),
    ],
)
def test_how_one_segment_joins_the_next(before: Stretch, following: Stretch, found: Gap | Overlap | None) -> None:
    assert joint(before, following) == found


@pytest.mark.parametrize(
    ("reached", "found"),
    [
        (0, Gap(10, 13, 13, 0)),
        (10, Gap(10, 13, 13, 0)),
        (11, Gap(11, 13, 13, 0)),
        (12, Gap(12, 13, 13, 0)),
        (13, None),
        (14, None),
    ],
)
def test_what_a_segment_in_front_of_both_has_is_not_missing_between_two(reached: int, found: Gap | None) -> None:
    assert joint(WHOLE, behind(13), reached) == found
    assert list(joints([WHOLE, behind(13)], None, reached)) == ([] if found is None else [found])
    assert joint(WHOLE, behind(9), reached) == Overlap(9, 10, 9)


@pytest.mark.parametrize(
    ("one", "following"),
    [
        (WHOLE, 10),
        (_LONG_TORN, 30),
        (replace(_LONG, next_id=None), 30),
        (replace(WHOLE, next_id=12), 12),
        (replace(WHOLE, known=False), 10),
        (replace(WHOLE, next_id=12, known=False), 10),
        (begun(10, 12), 12),
    ],
)
def test_how_far_the_ids_of_a_segment_reach(one: Stretch, following: int) -> None:
    assert reach(one) == following


_OPEN = replace(WHOLE, next_id=None, uncertain=True)


@pytest.mark.parametrize(
    ("stretches", "last", "missing", "counted"),
    [
        ([], None, [], []),
        ([], None, [BelowMark(0, 4, None)], [(0, 5)]),
        ([WHOLE, behind(20)], 20, [], [(0, 20)]),
        ([WHOLE, behind(20)], 20, [BelowProof(30, 40, 20, by_index=False)], [(0, 20), (30, 40)]),
        ([replace(WHOLE, next_id=None, accounted=10, torn=True), behind(20)], 20, [], [(0, 20)]),
        ([_OPEN, behind(20)], 20, [], [(0, 10)]),
        ([_OPEN, behind(11)], 20, [], [(0, 10), (11, 20)]),
        ([_OPEN, behind(10)], 20, [], [(0, 20)]),
        ([_OPEN, behind(9)], 20, [], [(0, 20)]),
        ([begun(0, 0), behind(20), replace(behind(40), uncertain=True)], 40, [], [(20, 40)]),
    ],
)
def test_which_ids_another_finding_counts(
    stretches: list[Stretch], last: int | None, missing: list[BelowMark | BelowProof], counted: list[Ids]
) -> None:
    """All in front of the last data file, but what is missing behind an end that is not known; and what is at the end."""
    assert counted_elsewhere(stretches, last, missing) == counted


@pytest.mark.parametrize(("told", "counted"), [(0, [(0, 10)]), (1, [(0, 10), (19, 20)]), (3, [(0, 10), (17, 20)])])
def test_what_the_finding_about_the_last_end_counts_is_counted(told: int, counted: list[Ids]) -> None:
    assert counted_elsewhere([replace(WHOLE, told=4), replace(behind(), told=told)], 10, []) == counted


def test_how_far_those_in_front_of_each_segment_reach() -> None:
    torn = Stretch(12, 12, None, 14, torn=True)
    row = [Stretch(0, 0, 13, 12), torn, Stretch(5, 13, 14, 13), behind(20)]
    assert reached_in_front(row) == {0: 0, 12: 13, 5: 14, 20: 14}
    assert reached_in_front([]) == {}


@pytest.mark.parametrize(
    ("before", "listed"),
    [
        (None, False),
        (WHOLE, False),
        (_EXCESS, True),
        (replace(_EXCESS, listed=14), False),
        (replace(_EXCESS, excess=False), False),
    ],
)
def test_a_gap_that_the_index_in_front_of_it_lists(before: Stretch | None, listed: bool) -> None:
    found = gap_between(before, behind(15), 10)
    assert found == Gap(10, 15, 15, None if before is None else 0, listed)
    assert found.ids == ((10, 15),)


@pytest.mark.parametrize(
    ("entries", "held", "alike", "lost", "unlike"),
    [
        (0, [], False, (), False),
        (0, [], True, (), False),
        (1, [], True, ((10, 11),), False),
        (5, [], True, ((10, 15),), False),
        (5, [(0, 12)], False, ((12, 15),), False),
        (5, [(0, 11), (13, 20)], True, ((11, 13),), False),
        (5, [(0, 15)], True, (), False),
        (5, [(10, 15)], False, ((10, 15),), True),
        (1, [(10, 11)], False, ((10, 11),), True),
    ],
)
def test_what_an_index_without_data_lost(
    entries: int, held: list[Ids], alike: bool, lost: tuple[Ids, ...], unlike: bool
) -> None:
    asked = []

    def ask() -> bool:
        asked.append(True)
        return alike

    assert data_gone(10, entries, 77, held, ask) == DataGone(10, entries, 77, lost, unlike)
    assert bool(asked) == (entries > 0 and (unlike or not lost))


_NOTHING = Evidence()


def _end(stretches: Sequence[Stretch], proven: Evidence = _NOTHING, mark: int | None = None) -> list[object]:
    return list(end(stretches, proven, mark))


_TORN = replace(WHOLE, next_id=None, accounted=10, torn=True)
_EMPTY = Stretch(10, 10, 10, 9)


@pytest.mark.parametrize(
    ("stretches", "mark", "found"),
    [
        ([WHOLE], None, []),
        ([WHOLE], 9, []),
        ([WHOLE], 10, [BelowMark(10, 10, 0)]),
        ([WHOLE], 15, [BelowMark(10, 15, 0)]),
        ([WHOLE, behind()], 20, [BelowMark(20, 20, 10)]),
        ([replace(WHOLE, accounted=30), behind()], 31, [BelowMark(31, 31, 10)]),
        ([_TORN], 10, []),
        ([_TORN, _EMPTY], 9, []),
        ([_TORN, _EMPTY], 10, [BelowMark(10, 10, 10)]),
        ([_TORN, _EMPTY], 12, [BelowMark(10, 12, 10)]),
        ([_TORN, replace(_EMPTY, segment=11, begins=11, accounted=10)], 10, []),
        ([_TORN, replace(_EMPTY, segment=9, begins=9, accounted=8)], 9, []),
        ([_TORN, replace(_EMPTY, segment=9, begins=9, accounted=8)], 10, [BelowMark(10, 10, 9)]),
        ([replace(_TORN, next_id=11), _EMPTY], 10, []),
        ([replace(_TORN, torn=False), _EMPTY], 10, []),
        ([replace(WHOLE, uncertain=True)], 15, []),
        ([replace(WHOLE, known=False)], 15, []),
        ([replace(WHOLE, uncertain=True), behind()], 21, [BelowMark(20, 21, 10)]),
        ([], -1, []),
        ([], None, []),
        ([], 0, [BelowMark(0, 0, None)]),
        ([Stretch(0, 0, 0, -1)], 0, [BelowMark(0, 0, 0)]),
    ],
)
def test_whether_a_log_reaches_its_mark(stretches: list[Stretch], mark: int | None, found: list[BelowMark]) -> None:
    assert _end(stretches, mark=mark) == found


_INDEX = Evidence(with_data=1000, index_with_data=0, listed=1005)
_SHORT = Stretch(0, 0, 998, 997, listed=1005, excess=True)


@pytest.mark.parametrize(
    ("stretches", "proven", "mark", "found"),
    [
        ([WHOLE], Evidence(names=10), None, []),
        ([WHOLE], Evidence(names=11), None, [BelowProof(10, 11, 0, False)]),
        ([WHOLE], Evidence(names=12), 10, [BelowMark(10, 10, 0), BelowProof(11, 12, 0, False)]),
        ([WHOLE], Evidence(names=11), 10, [BelowMark(10, 10, 0)]),
        ([WHOLE], Evidence(names=11), 5, [BelowProof(10, 11, 0, False)]),
        ([], Evidence(names=0), None, []),
        ([], Evidence(names=1), None, [BelowProof(0, 1, None, False)]),
        ([], Evidence(with_data=5), None, []),
        ([WHOLE], Evidence(without_data=50, accepted=50, mark=50), None, []),
        ([_SHORT], _INDEX, None, [BelowProof(998, 1000, 0, True)]),
        ([replace(_SHORT, accounted=998)], _INDEX, None, [BelowProof(999, 1000, 0, True)]),
        ([replace(_SHORT, accounted=999)], _INDEX, None, []),
        ([replace(_SHORT, excess=False)], _INDEX, None, []),
        ([replace(_SHORT, segment=1)], _INDEX, None, []),
        ([_SHORT, behind(998)], replace(_INDEX, with_data=2000), None, []),
        ([_SHORT], replace(_INDEX, names=1000), None, [BelowProof(998, 1000, 0, True)]),
        ([_SHORT], replace(_INDEX, names=1001), None, [BelowProof(998, 1001, 0, False)]),
        ([replace(_SHORT, excess=False)], replace(_INDEX, names=999), None, [BelowProof(998, 999, 0, False)]),
    ],
)
def test_whether_a_log_reaches_what_its_files_prove(
    stretches: list[Stretch], proven: Evidence, mark: int | None, found: list[object]
) -> None:
    assert _end(stretches, proven, mark) == found


def test_the_index_that_proves_a_loss_is_not_told_as_one_that_is_too_long() -> None:
    front = replace(behind(), segment=-10, begins=-10)
    joined: list[Joint] = [IndexExcess(-10), Gap(0, 1, 0), IndexExcess(0)]
    proof = BelowProof(998, 1000, 0, True)
    assert list(losses([front, _SHORT], _INDEX, None, joined)) == [*joined[:2], proof]
    named = replace(_INDEX, names=1001)
    assert list(losses([front, _SHORT], named, None, joined)) == [*joined, BelowProof(998, 1001, 0, False)]
    assert list(losses([front, _SHORT], Evidence(), 998, joined)) == [*joined, BelowMark(998, 998, 0)]
    assert list(losses([_SHORT], _INDEX, 998, joined[2:])) == [BelowMark(998, 998, 0), replace(proof, first=999)]
    assert list(losses([], Evidence(names=1), None, [])) == [BelowProof(0, 1, None, False)]
