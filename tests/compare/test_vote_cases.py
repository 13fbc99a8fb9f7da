"""The vote on columns of a few transactions: every clause of the rule, one replica to each side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.compare.columns import runs_of
from waltzctl.engine.quorum.vote import ABSENT, Ballot, Decision, Run, Verdict, decide, in_words, joined, voters_of

EQUAL, RECOVERABLE, UNDECIDABLE, LOST = Verdict.EQUAL, Verdict.RECOVERABLE, Verdict.UNDECIDABLE, Verdict.LOST
_NOTHING_TELLS = "nothing tells what recovery would keep of"
GONE, OPEN_END = Ballot(present=False), Ballot(open_end=True)


def vote(
    columns: str, replicas: int = 0, *, mark: int | None = None, ballots: Sequence[Ballot] | None = None
) -> Decision:
    """`columns`: a word for each replica, ``-`` for one that holds nothing; `mark`: the low-water mark of the first."""
    held = [word.replace("-", "") for word in columns.split()]
    known = ballots or [Ballot(low_water_mark=None if number else mark) for number in range(len(held))]
    return decide(runs_of(*held), known, replicas or len(held))


def kept(decision: Decision) -> list[int | None]:
    """The version that is kept under each id."""
    return [one.version for one in decision.kept for _ in range(len(one.run))]


@pytest.mark.parametrize(
    ("columns", "replicas", "versions", "verdict"),
    [
        ("a a a", 3, [0], EQUAL),
        ("a a b", 3, [0], RECOVERABLE),
        ("b a a", 3, [1], RECOVERABLE),
        ("a ! -", 3, [0], RECOVERABLE),  # damaged is held
        ("a - -", 3, [], RECOVERABLE),
        ("a a b ! -", 5, [0], RECOVERABLE),  # with the damaged one it may be three
        ("a a b ! !", 5, [0], UNDECIDABLE),  # and so may the other version
        ("a b ! -", 4, [], RECOVERABLE),
        ("a a b -", 4, [], RECOVERABLE),
        ("a a b !", 4, [0], RECOVERABLE),
        ("a ! ! b b", 5, [3], UNDECIDABLE),
        ("a a b b !", 5, [], UNDECIDABLE),
        ("a a b c -", 5, [], RECOVERABLE),
        ("a a", 4, [], UNDECIDABLE),  # nobody to catch up
        ("a a -", 4, [0], RECOVERABLE),
        ("! a", 3, [1], RECOVERABLE),
        ("! !", 3, [], UNDECIDABLE),
        ("! ! -", 3, [], LOST),
        ("! - -", 3, [], RECOVERABLE),
        ("! -", 3, [], UNDECIDABLE),
        ("! - -", 4, [], RECOVERABLE),
        ("! ! -", 4, [], UNDECIDABLE),
    ],
)
def test_one_transaction(columns: str, replicas: int, versions: list[int | None], verdict: Verdict) -> None:
    decision = vote(columns, replicas)
    if verdict is UNDECIDABLE or verdict is LOST:
        assert (decision.verdict, decision.clean_to, kept(decision)) == (verdict, -1, [])
        told = (((0, 1),), ()) if verdict is UNDECIDABLE else ((), ((0, 1),))
        assert (decision.undecided, decision.lost) == told
    else:
        assert (decision.verdict, decision.clean_to, kept(decision)) == (verdict, len(versions) - 1, versions)
        assert (decision.undecided, decision.lost) == ((), ())


@pytest.mark.parametrize(
    ("columns", "replicas", "caught_up"),
    [
        ("a a -", 3, False),
        ("a a -", 4, True),
        ("a - -", 3, None),
        ("a a b ! -", 5, True),
        ("a a ! - -", 5, False),
        ("a a b", 3, False),
    ],
)
def test_what_no_quorum_is_seen_to_hold_is_caught_up_with(columns: str, replicas: int, caught_up: bool | None) -> None:
    decision = vote(columns, replicas)
    assert decision.caught_up is bool(caught_up)
    assert decision.clean_to == (-1 if caught_up is None else 0)
    how = "hold, or may have acknowledged, identically" if caught_up else "hold identically"
    if caught_up is not None:
        quorum = replicas // 2 + 1
        assert decision.reason == (
            f"{quorum} of {replicas} replicas are a quorum, and 0 is the highest transaction that they {how}"
        )


@pytest.mark.parametrize(
    ("columns", "mark", "verdict", "versions", "caught_up"),
    [
        ("a - -", 0, RECOVERABLE, [0], False),
        ("a b -", -1, RECOVERABLE, [], False),
        ("a b -", 0, UNDECIDABLE, [], False),
        ("a b c", 0, UNDECIDABLE, [], False),
        ("a b !", 0, UNDECIDABLE, [], False),
        ("! - -", -1, RECOVERABLE, [], False),
        ("! - -", 0, LOST, [], False),
        ("- - -", 0, LOST, [], False),
        ("a a b ! -", 0, RECOVERABLE, [0], False),
        ("a a b ! -", -1, RECOVERABLE, [0], True),
    ],
)
def test_one_transaction_that_was_acknowledged(
    columns: str, mark: int, verdict: Verdict, versions: list[int], caught_up: bool
) -> None:
    held = columns.split()
    ballots = [Ballot(low_water_mark=mark)] * len(held)
    runs = [] if set(held) == {"-"} else runs_of(*(one.replace("-", "") for one in held))
    decision = decide(runs, ballots, len(held))
    assert (decision.verdict, kept(decision), decision.caught_up) == (verdict, versions, caught_up)
    assert decision.acknowledged == mark


@pytest.mark.parametrize(
    ("columns", "ballots", "versions"),
    [
        ("a a x", [5, 5, 4], [0]),
        ("a ! b", [5, 5, 4], [0]),  # who has no vote is asked only for what voters have lost
        ("! ! b", [5, 5, 4], [2]),
        ("! - b", [5, 5, 4], [2]),
        ("- - b", [5, 5, 4], []),
        ("a - a", [5, 5, 4], [0]),
        ("a b b", [5, 5, 4], [1]),
        ("! a a", [5, 5, 4], [1]),
    ],
)
def test_who_missed_the_last_session_counts_for_what_voters_hold(
    columns: str, ballots: list[int], versions: list[int]
) -> None:
    decision = vote(columns, ballots=[Ballot(session_id=one) for one in ballots])
    assert (decision.voters, kept(decision)) == ((True, True, False), versions)
    assert decision.verdict is RECOVERABLE


@pytest.mark.parametrize(
    ("columns", "ballots", "clean_to", "verdict"),
    [
        ("aa a a", [Ballot(), OPEN_END, Ballot()], 1, RECOVERABLE),
        ("aa a a", [Ballot(), Ballot(), Ballot()], 0, RECOVERABLE),
        ("aa a -", [Ballot(), Ballot(), GONE], 1, RECOVERABLE),
        ("aa a a", [OPEN_END, Ballot(), Ballot()], 0, RECOVERABLE),
        ("aa a a a a", [Ballot(), OPEN_END, Ballot(), Ballot(), Ballot()], 0, RECOVERABLE),
        ("aa a a a a", [Ballot(), OPEN_END, OPEN_END, Ballot(), Ballot()], 1, RECOVERABLE),
        ("a! a a", [Ballot(), OPEN_END, Ballot()], 0, LOST),
        ("a! a a", [Ballot(), Ballot(), Ballot()], 0, RECOVERABLE),
        ("a! a a", [OPEN_END, Ballot(), Ballot()], 0, RECOVERABLE),
        ("a! a -", [Ballot(), Ballot(), GONE], 0, LOST),
        ("a a -", [Ballot(), Ballot(), GONE], 0, RECOVERABLE),
        ("a a a", [OPEN_END] * 3, 0, EQUAL),
        ("a - -", [Ballot(), GONE, GONE], -1, UNDECIDABLE),
    ],
)
def test_who_may_have_held_more(columns: str, ballots: list[Ballot], clean_to: int, verdict: Verdict) -> None:
    decision = vote(columns, ballots=ballots)
    assert (decision.clean_to, decision.verdict) == (clean_to, verdict)


def test_what_nobody_shows_a_trace_of_was_never_there() -> None:
    decision = decide([Run(0, 1, (0, 0, 0)), Run(1, 2, (ABSENT,) * 3)], [OPEN_END] * 3, 3)
    assert (decision.clean_to, decision.verdict, decision.undecided, decision.lost) == (0, RECOVERABLE, (), ())


@pytest.mark.parametrize(("own", "clean_to"), [("ax", 1), ("!x", 1), ("bx", 0)])
def test_only_who_holds_what_is_kept_in_front_can_be_caught_up_with(own: str, clean_to: int) -> None:
    """The others have lost their ends and may have held it."""
    decision = vote(f"{own} a a a", 4, ballots=[Ballot(), OPEN_END, OPEN_END, OPEN_END])
    assert decision.clean_to == clean_to
    assert decision.verdict is (RECOVERABLE if clean_to else UNDECIDABLE)
    assert decision.undecided == (() if clean_to else ((1, 2),))


def test_who_holds_the_last_that_is_kept_may_differ_in_front_of_it() -> None:
    decision = vote("bax aa aa aa", 4, ballots=[Ballot(), OPEN_END, OPEN_END, OPEN_END])
    assert (decision.clean_to, kept(decision)) == (2, [1, 0, 0])


def test_what_voters_may_have_held_is_not_what_others_hold() -> None:
    ballots = [Ballot(session_id=5, open_end=True), Ballot(session_id=5, open_end=True), Ballot(session_id=4)]
    assert (vote("- - b", ballots=ballots).clean_to, vote("- - b", ballots=ballots).undecided) == (-1, ())


@pytest.mark.parametrize(
    ("columns", "mark", "undecided", "lost"),
    [
        ("aaxa aaya aaza", None, [(2, 3)], []),  # somebody has what stands behind
        ("aax aay aaz", None, [], []),
        ("aax aay aaz", 2, [(2, 3)], []),
        ("aax! aay! aaz!", 2, [(2, 4)], []),  # what is lost behind it may be nothing
        ("aax! aay! aaz!", 3, [(2, 3)], [(3, 4)]),
        ("aa!x aa!y aa!z", 3, [(3, 4)], [(2, 3)]),
        ("aa!x aa!y aa!z", None, [], [(2, 3)]),
        ("aax! aay! aaz!", None, [], []),  # cut, with all that is behind
        ("aa!! aa!! aa!!", None, [], [(2, 4)]),
        ("aa!a aa!a aa!a", None, [], [(2, 3)]),
        ("aa!axa aa!aya aa!aza", None, [(4, 5)], [(2, 3)]),
    ],
)
def test_what_stays_open_or_is_lost_behind_what_is_kept(
    columns: str, mark: int | None, undecided: list[tuple[int, int]], lost: list[tuple[int, int]]
) -> None:
    decision = vote(columns, mark=mark)
    assert (list(decision.undecided), list(decision.lost)) == (undecided, lost)
    assert decision.verdict is (LOST if lost else UNDECIDABLE if undecided else RECOVERABLE)


@pytest.mark.parametrize(
    ("columns", "replicas", "reason"),
    [
        ("a!a a!a a!a", 3, "no replica has an intact copy of transaction 1; 2 of 3 replicas are a quorum"),
        (
            "a",
            3,
            f"{_NOTHING_TELLS} transaction 0: 2 of 3 replicas are a quorum, 2 of them cannot be seen",
        ),
        (
            "xxa yya zza",
            3,
            f"{_NOTHING_TELLS} transactions 0 to 1: 2 of 3 replicas are a quorum, damage or different versions leave it open",
        ),
        ("x y z", 3, "there is no transaction to keep; 2 of 3 replicas are a quorum"),
        (
            "aaa aa aa aa",
            4,
            "3 of 4 replicas are a quorum, and 1 is the highest transaction that they hold identically",
        ),
    ],
)
def test_the_reason(columns: str, replicas: int, reason: str) -> None:
    decision = vote(columns, replicas)
    assert decision.reason == reason
    assert (decision.quorum, decision.last_replicas) == (replicas // 2 + 1, replicas)


def test_who_is_gone_cannot_be_seen_either() -> None:
    reason = vote("a - -", 4, ballots=[Ballot(), GONE, GONE]).reason
    assert reason.endswith("3 of 4 replicas are a quorum, 3 of them cannot be seen")


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([(1, 2)], "transaction 1"),
        ([(1, 3)], "transactions 1 to 2"),
        ([(1, 2), (4, 5)], "transactions 1, 4"),
        ([(1, 2), (4, 6), (8, 11)], "transactions 1, 4 to 5, 8 to 10"),
        ([(1, 2), (4, 6), (8, 11), (20, 21)], "transactions 1, 4 to 5, 8 to 10, 1 more places"),
        ([(1, 2), (4, 6), (8, 11), (20, 21), (30, 40)], "transactions 1, 4 to 5, 8 to 10, 2 more places"),
    ],
)
def test_ranges_in_words(ranges: list[tuple[int, int]], words: str) -> None:
    assert in_words(ranges) == words


def test_a_run_is_as_long_as_its_ids() -> None:
    assert len(Run(3, 7, (0,))) == 4


def test_replicas_of_which_one_is_gone_are_not_called_equal() -> None:
    for ballots, verdict in (([Ballot(), Ballot()], EQUAL), ([Ballot(), GONE], RECOVERABLE)):
        decision = decide([], ballots, 2)
        assert (decision.verdict, decision.clean_to, decision.kept) == (verdict, -1, ())


def test_neighbours_are_joined() -> None:
    runs = [Run(0, 2, ()), Run(2, 3, ()), Run(4, 5, ()), Run(5, 9, ()), Run(10, 11, ())]
    assert joined(runs) == ((0, 3), (4, 9), (10, 11))
    assert joined([]) == ()


@pytest.mark.parametrize(
    ("sessions", "replicas", "voters"),
    [
        ([5, 5, 4], 3, [True, True, False]),
        ([4, 5, 5], 3, [False, True, True]),
        ([5, 4], 2, [True, True]),
        ([5, 5, 4], 4, [True, True, True]),
        ([5, 5, 5, 4], 4, [True, True, True, False]),
        ([6, 5, 4], 3, [True, True, False]),
        ([None, None, 4], 3, [True, True, True]),
        ([None, 5, 4], 3, [True, True, True]),
        ([None, 5, 5, 4], 3, [True, True, True, False]),
    ],
)
def test_who_votes(sessions: list[int | None], replicas: int, voters: list[bool]) -> None:
    ballots = [Ballot(session_id=one) for one in sessions]
    assert list(voters_of(ballots, replicas)) == voters
    gone = [Ballot(present=False, session_id=one) for one in sessions]
    assert not any(voters_of(gone, replicas))
    assert voters_of([*gone, *ballots], 9)[len(gone) :] == (True,) * len(ballots)
