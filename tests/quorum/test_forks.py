"""The vote about copies that were damaged behind a fork of the replicas, one id to each side.

A word for each replica as `tests.compare.columns` has them, ``-`` for one that holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.compare.columns import runs_of
from waltzctl.engine.quorum.vote import Ballot, Decision, Verdict, decide


def vote(columns: str, *, mark: int | None = None, ballots: Sequence[Ballot] = ()) -> Decision:
    """`columns`: a word for each replica; `mark`: the low-water mark of all."""
    held = [word.replace("-", "") for word in columns.split()]
    return decide(runs_of(*held), ballots or [Ballot(low_water_mark=mark)] * len(held), len(held))


def kept(decision: Decision) -> list[int | None]:
    """The version that is kept under each id."""
    return [one.version for one in decision.kept for _ in range(len(one.run))]


@pytest.mark.parametrize(
    ("columns", "versions", "undecided"),
    [
        ("aa! aab aa", [0, 0, 1], []),  # no fork
        ("ax! aab aa", [0, 1], [(2, 3)]),  # the record in front differs
        ("ax!! aabb aa", [0, 1], [(2, 4)]),
        ("ax!! aaab aaa", [0, 1, 1], [(3, 4)]),  # also where what lies between is damaged
        ("axa! aaab aaa", [0, 1, 0, 1], []),  # they agree again
        ("ax!a aaba aa", [0, 1, None, 0], [(2, 3)]),  # behind the damage they do
        ("xa! aab aa", [1, 0, 1], []),
        ("a! ab a", [0, 1], []),
        ("a!x aby a", [0, 1], []),  # the fork is behind the damage
        ("a! ab ac", [0], [(1, 2)]),  # others differ under the same id
        ("aa! aab ax", [0, 0, 1], []),  # the fork is another's
        ("!! ac b", [None, 1], [(0, 1)]),  # nothing tells of one
        ("a.! aab xa", [0, 1, 1], []),
        ("aab ax! aa", [0, 0], [(2, 3)]),
        ("b!! a!b aa", [1, 2], [(2, 3)]),
        ("aab aab ax!", [0, 0, 0], []),  # a quorum holds it without
        ("ax! ab! a", [0], []),  # cut from the fork on
        ("aa! axb ay", [0], []),  # with what stands in front
        ("ax! ax! aab", [0, 0], [(2, 3)]),  # what the others lost, or it
    ],
)
def test_a_damaged_copy_behind_a_fork_counts_neither_for_nor_against_what_the_other_side_holds(
    columns: str, versions: list[int | None], undecided: list[tuple[int, int]]
) -> None:
    decision = vote(columns)
    assert (kept(decision), list(decision.undecided), decision.lost) == (versions, undecided, ())
    assert decision.verdict is (Verdict.UNDECIDABLE if undecided else Verdict.RECOVERABLE)


@pytest.mark.parametrize(
    ("columns", "mark", "versions", "undecided"),
    [
        ("ax! aab aa", 1, [0, 1], [(2, 3)]),
        ("ax! aab aa", 2, [0, 1, 1], []),  # acknowledged, and the only one
        ("a!! aab acc", 1, [0], [(1, 3)]),
        ("a ax! aab", 1, [0], [(1, 3)]),
        ("aa! axb ay", 0, [0], []),
        ("aa! axb ay", 1, [0], [(1, 3)]),  # whoever set the mark went on from there
    ],
)
def test_forks_at_and_above_the_mark(
    columns: str, mark: int, versions: list[int], undecided: list[tuple[int, int]]
) -> None:
    decision = vote(columns, mark=mark)
    assert (kept(decision), list(decision.undecided)) == (versions, undecided)


@pytest.mark.parametrize(
    ("columns", "versions", "undecided"),
    [
        ("b! a! !a a", [1], [(1, 2)]),
        ("a! a! !a a", [0, 2], []),
        ("b! a! !a aa", [1, 2], []),
        ("b! a! !x - -", [], []),  # the first two are not one history, and the third cannot be that of both
        ("a! a! !x - -", [0, 2], []),
        ("ax! aab aa! aa a", [0, 1], [(2, 3)]),
        ("aa! aab aa! aa a", [0, 0, 1], []),
        ("ax! aab aab aa a", [0, 1], [(2, 3)]),
    ],
)
def test_a_fork_among_more_replicas(columns: str, versions: list[int | None], undecided: list[tuple[int, int]]) -> None:
    decision = vote(columns)
    assert (kept(decision), list(decision.undecided)) == (versions, undecided)


@pytest.mark.parametrize(("own", "clean_to"), [("aa!", 2), ("ax!", 1), ("aab", 2)])
def test_who_may_have_held_more_makes_no_quorum_with_a_damaged_copy_behind_a_fork(own: str, clean_to: int) -> None:
    """Three of five are a quorum: who holds it, one that has lost its end, and one that is damaged."""
    decision = vote(f"aab {own} aa aa aa", ballots=[Ballot(), Ballot(), Ballot(open_end=True), Ballot(), Ballot()])
    assert decision.clean_to == clean_to
    assert (decision.caught_up, list(decision.undecided)) == ((True, []) if clean_to == 2 else (False, [(2, 3)]))


@pytest.mark.parametrize(("own", "clean_to"), [("a!", 1), ("b!", 0), ("!!", 1)])
def test_who_was_damaged_in_front_held_what_is_kept_there(own: str, clean_to: int) -> None:
    """The first has no vote, so that the other two decide about transaction 0; the third alone has the next one."""
    ballots = [Ballot(session_id=one) for one in (4, 5, 5)]
    decision = vote(f"{own} a !a", ballots=ballots)
    assert (decision.clean_to, list(decision.undecided)) == (clean_to, [] if clean_to else [(1, 2)])
    decision = vote(f"{own} a !a a a", ballots=[*[Ballot()] * 4, Ballot(open_end=True)])
    assert (decision.clean_to, list(decision.undecided)) == (clean_to, [] if clean_to else [(1, 2)])
