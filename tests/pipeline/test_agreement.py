"""What replicas agree on, as values: every case of the table at the head of `engine.pipeline.agreement`."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.pipeline.agreement import (
    AgreedTransactions,
    Differs,
    Nowhere,
    Outcome,
    Seen,
    common_ids,
    outcome_of_hole,
    outcomes,
    versions_of,
)

ALL = Seen(-1, 9)


def told(rows: list[str], seen: list[Seen] | None = None, *, decided: int = -1, gone: int = -1) -> list[Outcome]:
    """`rows`: of each replica a sign for each id; the same letter is the same bytes, - nothing, ! damaged."""
    first_of: dict[tuple[str, int], int] = {}
    versions = np.array(
        [
            [{"-": -1, "!": -2}.get(sign, first_of.setdefault((sign, at), row)) for at, sign in enumerate(signs)]
            for row, signs in enumerate(rows)
        ]
    )
    return list(outcomes(0, versions, seen or [Seen(-1, len(rows[0]) - 1)] * len(rows), decided, gone))


def test_what_all_hold_is_agreed_in_one_piece() -> None:
    assert told(["aaaa", "aaaa", "aaaa"]) == [AgreedTransactions(0, 4, 0, 3)]


def test_a_copy_that_a_quorum_outvotes_is_told_of() -> None:
    assert told(["aa", "ba", "aa"]) == [
        AgreedTransactions(0, 1, 0, 2),
        Differs(0, 1, 0, 2, 3, 2),
        AgreedTransactions(1, 2, 0, 3),
    ]


def test_the_only_copy_of_what_was_committed_is_taken() -> None:
    assert told(["a!", "-a", "!-"]) == [AgreedTransactions(0, 1, 0, 1), AgreedTransactions(1, 2, 1, 1)]


def test_two_versions_without_a_quorum_leave_it_open_and_both_are_told_of() -> None:
    assert told(["a", "b"]) == [Differs(0, 0, None, 1, 2, 2), Differs(0, 1, None, 1, 2, 2)]


def test_what_nobody_has_is_told_once_for_the_whole_run() -> None:
    assert told(["!!-", "-!-"]) == [Nowhere(0, 1), Nowhere(1, 2), Nowhere(2, 3)]
    assert told(["---"]) == [Nowhere(0, 3)]


@pytest.mark.parametrize("decided", range(-1, 6))
def test_a_hole_is_told_as_ids_that_nobody_has(decided: int) -> None:
    hole = outcome_of_hole(0, 4, decided)
    assert ([] if hole is None else [hole]) == told(["----"], decided=decided)


def test_copies_that_come_late_change_nothing() -> None:
    late = [Seen(3, 3), Seen(-1, 3)]
    assert told(["aaaa", "aaaa"], late, decided=3) == []
    assert told(["aaaa", "abaa"], late, decided=3) == [Differs(1, 1, 0, 1, 2, 2)]


def test_what_was_nowhere_is_agreed_when_a_copy_comes() -> None:
    assert told(["a!", "aa"], [Seen(1, 1), Seen(-1, 1)], decided=1) == [AgreedTransactions(1, 2, 1, 1)]
    assert told(["a!", "a-"], [Seen(1, 1), Seen(-1, 1)], decided=1) == []


def test_what_a_replica_that_is_gone_may_have_held_is_not_agreed_once_more() -> None:
    """Behind that it is; copies that differ are told of as before."""
    seen = [Seen(3, 3), Seen(-1, 3)]
    assert told(["!!!!", "aaaa"], seen, decided=3, gone=1) == [AgreedTransactions(2, 4, 1, 1)]
    assert told(["aaaa"], decided=3, gone=3) == []
    assert told(["a", "b", "a"], decided=0, gone=0) == [Differs(0, 1, 0, 2, 3, 2)]


def test_what_was_left_open_stays_open_and_nothing_is_told_twice() -> None:
    seen = [Seen(0, 0), Seen(0, 0), Seen(-1, 0)]
    assert told(["a", "b", "a"], seen, decided=0) == []
    assert told(["a", "b", "c"], seen, decided=0) == [Differs(0, 2, 0, 1, 3, 2)]


@pytest.mark.parametrize("signs", ["ab-!"])
def test_however_copies_are_cut_into_batches_an_id_is_agreed_once_at_most(signs: str) -> None:
    """Every three replicas, every order in which they come: the transaction is that of the first batch that had a copy."""
    for held in itertools.product(signs, repeat=3):
        for step in itertools.product((0, 1), repeat=3):
            agreed: list[AgreedTransactions] = []
            told_of: list[int] = []
            for batch in (0, 1):
                seen = [Seen(0 if when < batch else -1, 0 if when <= batch else -1) for when in step]
                found = told(list(held), seen, decided=batch - 1)
                agreed += [one for one in found if isinstance(one, AgreedTransactions)]
                told_of += [one.replica for one in found if isinstance(one, Differs)]
            assert len(agreed) <= 1
            assert len(told_of) == len(set(told_of))
            if any(sign in "ab" for sign in held) and len({sign for sign in held if sign in "ab"}) == 1:
                assert len(agreed) == 1


def test_versions_are_numbered_by_the_first_replica_that_holds_the_same_bytes() -> None:
    ids = np.arange(5, 8)
    yes, partly = np.ones(3, dtype=bool), np.array([True, False, True])
    same = {(1, 0): yes, (2, 0): partly, (2, 1): partly}
    found = versions_of(4, 10, [ids, ids, ids], lambda *pair: same[pair], [[(4, 5)], [], [(8, 20)]])
    assert found.tolist() == [[-2, 0, 0, 0, -1, -1], [-1, 0, 0, 0, -1, -1], [-1, 0, 2, 0, -2, -2]]


def test_copies_are_compared_only_where_they_are_not_known_to_be_an_earlier_one_s() -> None:
    asked: list[tuple[int, int]] = []

    def same(row: int, other: int) -> Any:
        asked.append((row, other))
        return np.array([True, True, False])[: len(common_ids(ids[row], ids[other]))]

    ids = [np.arange(0, 2), np.arange(0, 2), np.arange(0, 3), np.arange(0, 3), np.arange(7, 9)]
    found = versions_of(0, 9, ids, same, [[]] * 5)
    assert asked == [(1, 0), (2, 0), (3, 0), (3, 2)], "what 3 lacks of 0 it may have of 2; of 1 nothing is open"
    assert found[:4, :3].tolist() == [[0, 0, -1], [0, 0, -1], [0, 0, 2], [0, 0, 3]]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [([1, 2, 5], [1, 2, 5], [1, 2, 5]), ([1, 2, 5], [2, 5, 9], [2, 5]), ([1], [2], []), ([], [], []), ([], [3], [])],
)
def test_the_ids_that_both_have(one: list[int], other: list[int], common: list[int]) -> None:
    assert common_ids(np.array(one, np.int64), np.array(other, np.int64)).tolist() == common


def of_each(found: list[Outcome]) -> list[Outcome]:
    """What comes of each id, on its own."""
    alone: list[Outcome] = []
    for one in found:
        if isinstance(one, AgreedTransactions):
            alone += [replace(one, first=number, stop=number + 1) for number in range(one.first, one.stop)]
        elif isinstance(one, Nowhere):
            alone += [Nowhere(number, number + 1) for number in range(one.first, one.stop)]
        else:
            alone.append(one)
    return sorted(alone, key=lambda one: (one.transaction_id if isinstance(one, Differs) else one.first, repr(one)))


@st.composite
def looked_at(draw: st.DrawFn) -> tuple[list[str], list[Seen], int]:
    """Up to four replicas of up to six ids, how far each was looked at, and up to where was decided."""
    count = draw(st.integers(1, 6))
    rows = [draw(st.text("ab-!", min_size=count, max_size=count)) for _ in range(draw(st.integers(1, 4)))]
    seen = []
    for _ in rows:
        now = draw(st.integers(-1, count - 1))
        seen.append(Seen(draw(st.integers(-1, now)), now))
    return rows, seen, draw(st.integers(-1, count - 1))


@given(looked_at())
def test_what_comes_of_many_ids_at_once_is_what_comes_of_each(given_: tuple[list[str], list[Seen], int]) -> None:
    """So runs end wherever anything changes: a version, how far a replica was seen before and is now, what was decided."""
    rows, seen, decided = given_
    alone: list[Outcome] = []
    for at in range(len(rows[0])):
        found = told(
            [row[at] for row in rows], [Seen(one.before - at, one.now - at) for one in seen], decided=decided - at
        )
        for one in of_each(found):
            moved = {"transaction_id": at} if isinstance(one, Differs) else {"first": at, "stop": at + 1}
            alone.append(replace(one, **moved))
    assert of_each(told(rows, seen, decided=decided)) == alone
