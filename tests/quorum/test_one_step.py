"""The vote and the recovery, each comparison one step to each side, and each sentence as it is said."""

from __future__ import annotations

import pytest

from waltzctl.engine.quorum import recovery, recovery_actions, recovery_events
from waltzctl.engine.quorum.recovery_actions import CatchUp, SetLowWaterMark
from waltzctl.engine.quorum.recovery_events import CaughtUp, Connected, Failed, MarkSet
from waltzctl.engine.quorum.recovery_state import Phase, Recovery
from waltzctl.engine.quorum.vote import (
    ABSENT,
    DAMAGED,
    Ballot,
    Decision,
    Run,
    Verdict,
    decide,
    in_words,
    joined,
    voters_of,
)
from waltzctl.formats.znodes import UNRESOLVED, PartitionMetadata, ReplicaState

A, D, U = ABSENT, DAMAGED, UNRESOLVED
HERE, GONE, OPEN_END = Ballot(), Ballot(present=False), Ballot(open_end=True)
SESSION_4, SESSION_5 = Ballot(session_id=4), Ballot(session_id=5)


# --- the vote --------------------------------------------------------------------------------------------------------


def votes(*columns: tuple[int, ...], ballots: list[Ballot] | None = None, of: int = 0) -> Decision:
    """A vote over the transactions 0, 1, ..., of which each column says how the replicas stand."""
    runs = [Run(number, number + 1, column) for number, column in enumerate(columns)]
    ballots = [HERE] * len(columns[0]) if ballots is None else ballots
    return decide(runs, ballots, of or len(ballots))


def outcome(decision: Decision) -> tuple[str, int, bool, list[int | None]]:
    return decision.verdict.value, decision.clean_to, decision.caught_up, [one.version for one in decision.kept]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ((0, D, A), ("recoverable", 0, False, [0])),  # what is damaged was held
        ((0, A, A), ("recoverable", -1, False, [])),
        ((0, 1, A), ("recoverable", -1, False, [])),
        ((0, 1, D), ("undecidable", -1, False, [])),  # either of them
        ((0, 0, 2), ("recoverable", 0, False, [0])),
        ((0, 0, D), ("recoverable", 0, False, [0])),
        ((0, 0, 0), ("equal", 0, False, [0])),
        ((0, 1, 2), ("recoverable", -1, False, [])),
        ((0, D, D), ("recoverable", 0, False, [0])),
        ((D, D, D), ("lost", 0, False, [None])),
        ((0, 0, 2, D, A), ("recoverable", 0, True, [0])),  # of two versions one can have had three of five
        ((0, 1, D, D, A), ("undecidable", -1, False, [])),
        ((0, D, D, A, A), ("recoverable", 0, False, [0])),
        ((0, D, A, A, A), ("recoverable", -1, False, [])),
        ((D, D, A, A, A), ("recoverable", -1, False, [])),
    ],
)
def test_one_transaction_by_how_its_replicas_stand(
    column: tuple[int, ...], expected: tuple[str, int, bool, list[int | None]]
) -> None:
    found = outcome(votes(column))
    if expected[0] == "lost":
        assert found[0] == "lost"
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("column", "ballots", "of", "expected"),
    [
        ((D, D, A), [HERE] * 3, 3, ("lost", ((0, 1),))),
        ((D, A, A), [HERE] * 3, 3, ("recoverable", ())),
        ((D, A, A), [HERE, HERE, GONE], 3, ("lost", ((0, 1),))),
        ((D, A, A), [HERE, HERE, OPEN_END], 3, ("lost", ((0, 1),))),
        ((D, A), [HERE, HERE], 3, ("undecidable", ())),
        ((A, A), [OPEN_END, OPEN_END], 2, ("recoverable", ())),  # nothing tells that there was anything
    ],
)
def test_damage_counts_with_whoever_may_have_held_it(
    column: tuple[int, ...], ballots: list[Ballot], of: int, expected: tuple[str, tuple[tuple[int, int], ...]]
) -> None:
    decision = votes(column, ballots=ballots, of=of)
    assert (decision.verdict.value, decision.lost) == expected


@pytest.mark.parametrize(
    ("in_front", "clean_to", "verdict"),
    [(0, 2, "recoverable"), (D, 2, "recoverable"), (2, 1, "undecidable"), (A, 1, "undecidable")],
)
def test_others_catch_up_only_with_who_holds_what_is_kept_in_front(in_front: int, clean_to: int, verdict: str) -> None:
    """Transaction 2 may have been acknowledged by the third and one that lost its end."""
    decision = votes((0, 0, 0), (0, 0, in_front), (A, A, 2), ballots=[HERE, OPEN_END, HERE])
    assert (decision.clean_to, decision.verdict.value) == (clean_to, verdict)
    assert decision.caught_up is (clean_to == 2)
    assert decision.undecided == (() if clean_to == 2 else ((2, 3),))


@pytest.mark.parametrize(
    ("mark", "undecided", "lost"), [(4, ((4, 6),), ()), (5, ((4, 5),), ((5, 6),)), (6, ((4, 5),), ((5, 7),))]
)
def test_what_was_acknowledged_is_lost_also_behind_something_open(
    mark: int, undecided: tuple[tuple[int, int], ...], lost: tuple[tuple[int, int], ...]
) -> None:
    runs = [Run(0, 4, (0, 0)), Run(4, 5, (0, 1)), Run(5, 6, (D, D))]
    decision = decide(runs, [Ballot(low_water_mark=mark)] * 2, 2)
    assert (decision.undecided, decision.lost, decision.acknowledged) == (undecided, lost, mark)
    assert decision.verdict is (Verdict.LOST if lost else Verdict.UNDECIDABLE), "a loss is what has to be known first"


def test_a_replica_that_is_gone_is_not_equal_to_any() -> None:
    assert decide([], [HERE, HERE, GONE], 3).verdict is Verdict.RECOVERABLE
    assert decide([], [HERE, HERE, HERE], 3).verdict is Verdict.EQUAL


def test_one_of_an_older_session_is_there_all_the_same() -> None:
    """It has no vote, but what it holds is equal, and nobody is missing."""
    assert votes((0, 0, 0), ballots=[SESSION_5, SESSION_5, SESSION_4]).verdict is Verdict.EQUAL
    assert votes((0, 1, 2), ballots=[SESSION_5, SESSION_5, SESSION_4]) == votes(
        (0, 1, A), ballots=[SESSION_5, SESSION_5, SESSION_4]
    )


def test_one_that_is_gone_may_have_held_what_somebody_else_holds() -> None:
    assert outcome(votes((0, A, A), ballots=[HERE, HERE, GONE])) == ("recoverable", 0, True, [0])
    assert outcome(votes((0, A, A), ballots=[HERE, GONE, GONE])) == ("undecidable", -1, False, [])
    assert outcome(votes((0, A), ballots=[HERE, HERE], of=3)) == ("recoverable", 0, True, [0])
    assert outcome(votes((0, 1), ballots=[HERE, HERE], of=3)) == ("undecidable", -1, False, [])


@pytest.mark.parametrize(
    ("column", "ballots", "expected"),
    [
        ((0, A, A, A, A), [HERE, OPEN_END, HERE, HERE, HERE], ("recoverable", -1, False, [])),
        ((0, A, A, A, A), [HERE, OPEN_END, OPEN_END, HERE, HERE], ("recoverable", 0, True, [0])),
        ((0, A, A, A, A), [HERE, Ballot(False, open_end=True), HERE, HERE, HERE], ("recoverable", -1, False, [])),
        ((0, D, A, A, A), [HERE, OPEN_END, HERE, HERE, HERE], ("recoverable", -1, False, [])),
        ((0, 1, D), [SESSION_5, SESSION_4, SESSION_5], ("recoverable", 0, False, [0])),
        ((0, A, A), [SESSION_4, Ballot(session_id=5, open_end=True), SESSION_5], ("recoverable", -1, False, [])),
        ((0, 0, 2, D, A), [Ballot(low_water_mark=0)] * 5, ("recoverable", 0, False, [0])),
        ((0, 1, A), [Ballot(low_water_mark=0)] * 3, ("undecidable", -1, False, [])),
        ((A, A, A), [HERE] * 3, ("recoverable", -1, False, [])),
    ],
)
def test_one_transaction_by_who_holds_it(
    column: tuple[int, ...], ballots: list[Ballot], expected: tuple[str, int, bool, list[int | None]]
) -> None:
    """Each replica counts once, whatever is said of it; whoever has an older session counts for nothing."""
    assert outcome(votes(column, ballots=ballots)) == expected


def test_the_session_of_one_that_is_gone_takes_nobody_s_vote() -> None:
    assert voters_of([Ballot(False, 6), Ballot(session_id=6), SESSION_5], 3) == (False, True, True)
    assert voters_of([Ballot(session_id=6), Ballot(session_id=6), SESSION_5], 3) == (True, True, False)


def test_what_stands_behind_something_that_is_cut_is_not_told() -> None:
    decision = votes((0, 0), (0, 1), (A, A), (0, 1), ballots=[HERE, HERE], of=3)
    assert (decision.clean_to, decision.undecided) == (0, ((1, 2),))


def test_what_a_quorum_holds_keeps_what_is_in_front_of_it_open() -> None:
    decision = votes((0, A, A), (0, 0, 0))
    assert outcome(decision) == ("undecidable", 1, False, [None, 0])
    assert decision.undecided == ((0, 1),)


@pytest.mark.parametrize(
    ("versions", "differ", "length"),
    [((0, 0), False, 1), ((0, A), False, 1), ((0, D), False, 2), ((0, 1), True, 3), ((A, D), False, 4)],
)
def test_a_run_differs_where_two_intact_versions_stand(versions: tuple[int, ...], differ: bool, length: int) -> None:
    run = Run(5, 5 + length, versions)
    assert (run.differs, len(run)) == (differ, length)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([(4, 5)], "transaction 4"),
        ([(4, 6)], "transactions 4 to 5"),
        ([(4, 5), (7, 8)], "transactions 4, 7"),
        ([(4, 5), (7, 8), (9, 12)], "transactions 4, 7, 9 to 11"),
        ([(4, 5), (7, 8), (9, 12), (20, 21)], "transactions 4, 7, 9 to 11, 1 more places"),
        ([(4, 5), (7, 8), (9, 12), (20, 21), (30, 40)], "transactions 4, 7, 9 to 11, 2 more places"),
    ],
)
def test_ranges_in_words(ranges: list[tuple[int, int]], words: str) -> None:
    assert in_words(ranges) == words
    assert joined(Run(first, stop, (0,)) for first, stop in ranges) == tuple(ranges)
    assert joined([Run(0, 2, (0,)), Run(2, 3, (0,)), Run(4, 5, (0,)), Run(5, 9, (0,))]) == ((0, 3), (4, 9))


@pytest.mark.parametrize(
    ("column", "ballots", "of", "reason"),
    [
        (
            (0, 0, A),
            [HERE] * 3,
            3,
            "2 of 3 replicas are a quorum, and 0 is the highest transaction that they hold identically",
        ),
        (
            (0, A),
            [HERE] * 2,
            3,
            (
                "2 of 3 replicas are a quorum, and 0 is the highest transaction that they hold, or may have acknowledged,"
                " identically"
            ),
        ),
        (
            (0, A, A),
            [Ballot(low_water_mark=0), HERE, HERE],
            3,
            (
                "2 of 3 replicas are a quorum, and 0 is the highest transaction that they hold, or have acknowledged,"
                " identically"
            ),
        ),
        ((0, A, A), [HERE] * 3, 3, "there is no transaction to keep; 2 of 3 replicas are a quorum"),
        ((D, D, A), [HERE] * 3, 3, "no replica has an intact copy of transaction 0; 2 of 3 replicas are a quorum"),
        (
            (0, 1, D),
            [HERE] * 3,
            3,
            (
                "nothing tells what recovery would keep of transaction 0: 2 of 3 replicas are a quorum, damage or different"
                " versions leave it open"
            ),
        ),
        (
            (0, A, A),
            [HERE, GONE, GONE],
            5,
            (
                "nothing tells what recovery would keep of transaction 0: 3 of 5 replicas are a quorum, 4 of them cannot be"
                " seen"
            ),
        ),
    ],
)
def test_the_reason_as_it_is_said(column: tuple[int, ...], ballots: list[Ballot], of: int, reason: str) -> None:
    assert votes(column, ballots=ballots, of=of).reason == reason


# --- recovery --------------------------------------------------------------------------------------------------------


def begun(*nodes: str, new: tuple[str, ...] = (), last: tuple[str, ...] = ()) -> Recovery:
    """Session 2 over replicas of session 1 (`nodes`, and `last` that are no longer assigned) and `new` ones."""
    states = tuple(ReplicaState(0, name, 1, U) for name in (*nodes, *last))
    return recovery.begin(0, 2, PartitionMetadata(1, 2, states), (*nodes, *new))


def told(state: Recovery, *events: recovery_events.Event) -> tuple[Recovery, tuple[recovery_actions.Action, ...]]:
    """The state behind all the events, and what the last of them leads to."""
    actions: tuple[recovery_actions.Action, ...] = ()
    for event in events:
        state, actions = recovery.step(state, event)
    return state, actions


def test_the_mark_is_resolved_no_lower_than_the_lowest_that_votes() -> None:
    """At once, though a voter is below it and nobody has copied yet."""
    state, _ = told(
        begun("a:1", "b:1", "c:1"),
        *(Connected(f"{one}:1", 1, 0, last) for one, last in zip("abc", (9, 7, 5), strict=True)),
    )
    assert state.resolved == 7


def test_what_ends_a_session_ends_it_for_good() -> None:
    for event in (recovery_events.MetadataLost("somebody was faster"), Connected("a:1", 3, 1, 5)):
        state, actions = told(begun("a:1"), event)
        assert state.ended
        assert [type(one) for one in actions] == [recovery_actions.GiveUp]
        assert recovery.step(state, Connected("a:1", 1, 1, 5)) == (state, ())
        assert recovery.waits_for(state) == ""
    assert actions == (recovery_actions.GiveUp("a:1 is in session 3, which is later than this one, 2"),)


def test_who_is_waited_for_word_for_word() -> None:
    state = begun("a:1", "b:1", "c:1", last=("d:1", "e:1"))
    missing = "a:1 (not connected yet), b:1 (not connected yet), c:1 (not connected yet), 2 that are no longer assigned"
    assert recovery.waits_for(state) == f"no replica that may vote has told what it holds; missing: {missing}"
    state, _ = told(state, Connected("a:1", 1, 1, 5), Connected("b:1", 1, 1, 9))
    assert recovery.waits_for(state) == (
        "transaction 9 is held by 1 of 5 replicas, 3 are a quorum, and 3 have not told; missing: c:1 (not connected yet),"
        " 2 that are no longer assigned"
    )
    state, _ = told(state, CaughtUp("a:1", 9), Connected("c:1", 1, 1, 8))
    assert recovery.waits_for(state) == (
        "transaction 9 is held by 2 of 5 replicas, 3 are a quorum, and 2 have not told; missing: 2 that are no longer assigned"
    )
    state, actions = told(state, CaughtUp("c:1", 9))
    assert state.resolved == 9
    assert actions == tuple(SetLowWaterMark(f"{one}:1", 9) for one in "abc")
    said = "0 of 3 replicas are recovered to transaction 9, 2 are needed; missing: 2 that are no longer assigned"
    assert recovery.waits_for(state) == said
    state, _ = told(state, MarkSet("a:1"))
    assert recovery.waits_for(state) == said.replace("0 of", "1 of")
    state, actions = told(state, MarkSet("b:1"))
    assert recovery.waits_for(state) == "the metadata is being written"
    state, actions = told(state, recovery_events.MetadataWritten())
    assert recovery_actions.Open(9, ("a:1", "b:1")) in actions
    assert recovery.waits_for(state) == ""


def test_one_that_is_lost_is_copied_from_no_more() -> None:
    state, actions = told(begun("a:1", "b:1", "c:1"), Connected("a:1", 1, 1, 9), Connected("b:1", 1, 1, 5))
    assert actions == (CatchUp("b:1", "a:1", 6, 9),)
    state, actions = told(state, Failed("a:1", "gone"), CaughtUp("b:1", 7))
    assert actions == ()
    assert (state.replicas["a:1"].phase, state.replicas["a:1"].reason) == (Phase.ABSENT, "gone")


def test_before_the_vote_everybody_copies_from_the_nearest_ahead() -> None:
    _, actions = told(
        begun("a:1", "b:1", "c:1", "d:1", "e:1"),
        Connected("a:1", 1, 1, 9),
        Connected("b:1", 1, 1, 7),
        Connected("c:1", 1, 1, 5),
    )
    assert actions == (CatchUp("c:1", "b:1", 6, 7),)


def test_behind_the_vote_one_that_has_it_all_and_sends_to_nobody_else_is_copied_from() -> None:
    state, actions = told(begun(*(f"{one}:1" for one in "abcde")), *(Connected(f"{one}:1", 1, 1, 9) for one in "abc"))
    assert state.resolved == 9
    state, actions = told(state, Connected("d:1", 1, 1, 5), Connected("e:1", 1, 1, 4), MarkSet("d:1"))
    assert actions == (CatchUp("d:1", "a:1", 6, 9),)
    state, actions = told(state, MarkSet("e:1"))
    assert actions == (CatchUp("e:1", "b:1", 5, 9),)


def test_behind_the_vote_one_that_has_it_all_is_copied_from_though_it_sends_to_another() -> None:
    """Who has nothing to do but lacks the end would have to be followed by a second copy."""
    state, _ = told(
        begun(*(f"{one}:1" for one in "abcde")),
        *(Connected(f"{one}:1", 1, 1, 9) for one in "abc"),
        Connected("d:1", 1, 1, 7),
        *(Failed(f"{one}:1", "gone") for one in "bc"),
        MarkSet("d:1"),
    )
    assert (state.resolved, state.replicas["d:1"].acting) == (9, CatchUp("d:1", "a:1", 8, 9))
    _, actions = told(state, Connected("e:1", 1, 1, 4), MarkSet("e:1"))
    assert actions == (CatchUp("e:1", "a:1", 5, 9),)


def test_one_that_was_cut_further_than_it_had_to_holds_what_it_says() -> None:
    """A cut ends at a border of records; the copy begins where it really ends."""
    state, _ = told(begun("a:1", "b:1", "c:1"), *(Connected(f"{one}:1", 1, 1, 9) for one in "bc"))
    state, actions = told(state, Connected("a:1", 0, 6, 12))
    assert actions == (recovery_actions.Truncate("a:1", 6),)
    state, _ = told(state, recovery_events.Truncated("a:1", 4))
    assert state.replicas["a:1"].high_water_mark == 4
    _, actions = told(state, MarkSet("a:1"))
    assert actions == (CatchUp("a:1", "b:1", 5, 9),)


def test_the_latest_session_may_be_that_of_a_replica_that_is_no_longer_assigned() -> None:
    """Who took no part in it is cut and has no vote."""
    last = (ReplicaState(0, "a:1", 1, U), ReplicaState(0, "gone:1", 2, U))
    state = recovery.begin(0, 3, PartitionMetadata(1, 3, last), ("a:1",))
    state, actions = told(state, Connected("a:1", 1, 3, 9))
    assert actions == (recovery_actions.Truncate("a:1", 3),)
    assert not state.replicas["a:1"].votes


def test_what_stands_behind_the_mark_is_not_copied() -> None:
    state, actions = told(
        begun("a:1", "b:1", "c:1"), Connected("a:1", 1, 1, 9), Connected("b:1", 1, 1, 7), Connected("c:1", 1, 1, 5)
    )
    assert state.resolved == 7
    assert recovery_actions.Truncate("a:1", 7) in actions
    assert SetLowWaterMark("c:1", 7) in actions
    state, actions = told(state, CaughtUp("b:1", 7))
    assert actions == (SetLowWaterMark("b:1", 7),)
    state, actions = told(state, MarkSet("b:1"))
    assert actions == (), "it holds everything up to the mark"
    assert state.recovered == ("b:1",)
    _, actions = told(state, MarkSet("c:1"))
    assert actions == (CatchUp("c:1", "b:1", 6, 7),), "the one that is not cut yet only if there is no other"
    _, actions = told(state, Failed("b:1", "gone"), MarkSet("c:1"))
    assert actions == (CatchUp("c:1", "a:1", 6, 7),)


def test_behind_the_vote_a_new_replica_is_copied_from_as_well() -> None:
    state, _ = told(
        begun("a:1", "b:1", "c:1", new=("n:1",)),
        *(Connected(f"{one}:1", 1, 1, 9) for one in "ab"),
        Connected("n:1", 1, 9, 9),
        MarkSet("n:1"),
        *(Failed(f"{one}:1", "gone") for one in "ab"),
    )
    assert state.recovered == ("n:1",)
    _, actions = told(state, Connected("c:1", 1, 1, 5), MarkSet("c:1"))
    assert actions == (CatchUp("c:1", "n:1", 6, 9),)


def test_one_that_lacks_what_is_kept_is_not_recovered_while_nobody_has_it() -> None:
    """Those that held it are lost behind the vote; one that comes back is copied from, and no quorum is there before."""
    state, actions = told(
        begun(*(f"{one}:1" for one in "abcde")),
        *(Connected(f"{one}:1", 1, 1, 9) for one in "abc"),
        *(Connected(f"{one}:1", 1, 1, 5) for one in "de"),
        *(Failed(f"{one}:1", "gone") for one in "abc"),
        MarkSet("d:1"),
        MarkSet("e:1"),
    )
    assert (state.resolved, state.recovered, actions) == (9, (), ())
    state, _ = told(state, Connected("a:1", 1, 1, 9))
    assert state.replicas["d:1"].acting == CatchUp("d:1", "a:1", 6, 9)
    state, _ = told(state, MarkSet("a:1"))
    assert state.recovered == ("a:1",)
    assert state.writing is None


@pytest.mark.parametrize(("session_id", "ends"), [(0, True), (1, True), (2, False)])
def test_one_that_was_in_the_session_and_comes_back_older_ends_it(session_id: int, ends: bool) -> None:
    """Its storage was restored or replaced; what it held beside the others may have been acknowledged all the same."""
    state, actions = told(
        begun("a:1", "b:1", "c:1"),
        *(Connected(f"{one}:1", 1, 1, 9) for one in "ab"),
        MarkSet("a:1"),
        Failed("a:1", "restored"),
        Connected("a:1", session_id, 3, 9),
    )
    assert state.ended == ends
    if ends:
        (gave_up,) = actions
        assert isinstance(gave_up, recovery_actions.GiveUp)
        assert gave_up.reason.startswith("a:1 has lost what it held in this session")


def test_one_that_is_in_this_session_before_the_vote_has_a_vote() -> None:
    """Somebody has said by hand (set-partition) that a disk that was replaced may begin with what is there."""
    state, actions = told(begun("a:1"), Connected("a:1", 2, -1, -1))
    assert (state.resolved, actions) == (-1, (SetLowWaterMark("a:1", -1),))
    state, actions = told(state, Failed("a:1", "gone"), Connected("a:1", 2, -1, -1))
    assert state.replicas["a:1"].marked, "now it was this session that did it"


def test_one_that_has_lost_what_it_held_keeps_the_mark_no_more() -> None:
    """It is marked when it holds that again, and not because it did."""
    state, _ = told(begun("a:1", "b:1", "c:1"), *(Connected(f"{one}:1", 1, 1, 9) for one in "ab"))
    assert (state.resolved, state.keepers, state.is_kept) == (9, {"a:1", "b:1"}, True)
    state, _ = told(begun("a:1", "b:1", "c:1"), Connected("a:1", 1, 1, 9), Connected("b:1", 1, 1, 8))
    state, _ = told(state, recovery_events.CaughtUp("b:1", 9), Failed("a:1", "its disk is replaced"))
    state, actions = told(state, Connected("a:1", -1, -1, -1))
    assert (state.resolved, state.keepers, state.is_kept) == (9, {"b:1"}, False)
    assert actions == (CatchUp("a:1", "b:1", 0, 9),)
    state, actions = told(state, recovery_events.CaughtUp("a:1", 9))
    assert actions == (SetLowWaterMark("a:1", 9),)


@pytest.mark.parametrize(
    ("state", "session_id", "lost"),
    [
        ((1, U), 1, False),
        ((1, U), 0, True),
        ((1, U), -1, True),
        ((1, U), 2, False),  # a later session has set its mark, and did not come to its metadata
        ((1, 9), 0, False),  # it was not in the last session, and could acknowledge nothing in it
        ((0, U), -1, False),
        (None, -1, False),
    ],
)
def test_who_has_lost_what_it_may_have_acknowledged(state: tuple[int, int] | None, session_id: int, lost: bool) -> None:
    last = [ReplicaState(0, "b:1", 1, U)] + ([] if state is None else [ReplicaState(0, "a:1", *state)])
    begin = recovery.begin(0, 3, PartitionMetadata(1, 3, tuple(last)), ("a:1", "b:1"))
    found, _ = told(begin, Connected("a:1", session_id, -1, -1))
    assert found.replicas["a:1"].lost == lost
    again, _ = told(found, Failed("a:1", "gone"))
    assert not again.replicas["a:1"].lost, "nobody has told what stands there by now"


def test_what_is_written_of_every_kind_of_replica() -> None:
    """Sorted by node, however they were assigned."""
    last = (
        ReplicaState(0, "d:1", 0, 4),
        ReplicaState(0, "c:1", 0, U),
        ReplicaState(0, "b:1", 1, U),
        ReplicaState(0, "a:1", 1, U),
        ReplicaState(0, "gone:1", 1, U),
    )
    state = recovery.begin(0, 2, PartitionMetadata(1, 2, last), ("n:1", "d:1", "b:1", "c:1", "a:1"))
    assert (state.last_replicas, state.last_quorum, state.quorum, state.absent) == (5, 3, 3, 5)
    state, actions = told(state, Connected("a:1", 1, 1, 9), Connected("b:1", 1, 1, 9), Connected("c:1", 0, 9, 9))
    assert (state.resolved, state.absent) == (9, 2)
    _, actions = told(state, MarkSet("a:1"), MarkSet("b:1"), Connected("n:1", 0, 9, 9), MarkSet("n:1"))
    assert actions == (
        recovery_actions.WriteMetadata(
            (
                ReplicaState(0, "a:1", 2, U),
                ReplicaState(0, "b:1", 2, U),
                ReplicaState(0, "c:1", 1, 9),
                ReplicaState(0, "d:1", 0, 4),
                ReplicaState(0, "n:1", 2, U),
            )
        ),
    )
    assert recovery.replica_states(state)[-1] == ReplicaState(0, "n:1", 1, 9)


def opened() -> Recovery:
    """Open with a and b at transaction 9; c has not come."""
    state, actions = told(
        begun("a:1", "b:1", "c:1"),
        *(Connected(f"{one}:1", 1, 1, 9) for one in "ab"),
        *(MarkSet(f"{one}:1") for one in "ab"),
        recovery_events.MetadataWritten(),
    )
    assert actions == (recovery_actions.Open(9, ("a:1", "b:1")),)
    return state


def test_an_open_session_goes_on_with_less_than_a_quorum() -> None:
    state, actions = told(opened(), Failed("a:1", "gone"), Connected("c:1", 1, 1, 5))
    assert actions == (SetLowWaterMark("c:1", 9),)
    state, actions = told(state, MarkSet("c:1"))
    assert actions == (
        CatchUp("c:1", "b:1", 6, 9),
        recovery_actions.WriteMetadata(tuple(ReplicaState(0, f"{one}:1", 2, U) for one in "abc")),
    )
    state, actions = told(state, recovery_events.MetadataWritten())
    assert actions == (), "it joins once it holds everything"
    _, actions = told(state, CaughtUp("c:1", 9))
    assert actions == (recovery_actions.Join("c:1"),)


def test_a_session_opens_with_a_quorum_of_those_that_the_metadata_names() -> None:
    """Recovered and written have to be the same ones."""
    state, actions = told(
        begun("a:1", "b:1", "c:1"), *(Connected(f"{one}:1", 1, 1, 9) for one in "ab"), MarkSet("a:1"), MarkSet("b:1")
    )
    assert [type(one) for one in actions] == [recovery_actions.WriteMetadata]
    state, actions = told(state, Failed("b:1", "gone"), Connected("c:1", 1, 1, 9), MarkSet("c:1"))
    assert state.recovered == ("a:1", "c:1")
    assert actions == ()
    state, actions = told(state, recovery_events.MetadataWritten())
    assert actions == (recovery_actions.WriteMetadata(tuple(ReplicaState(0, f"{one}:1", 2, U) for one in "abc")),)
    assert not state.is_open
    _, actions = told(state, recovery_events.MetadataWritten())
    assert actions == (recovery_actions.Open(9, ("a:1", "c:1")),)


def test_one_transaction_below_the_mark_is_copied() -> None:
    state, _ = told(begun("a:1", "b:1", "c:1"), *(Connected(f"{one}:1", 1, 1, 9) for one in "ab"))
    _, actions = told(state, Connected("c:1", 1, 1, 8), MarkSet("c:1"))
    assert actions == (CatchUp("c:1", "a:1", 9, 9),)


def test_a_session_opens_once() -> None:
    state, actions = told(begun("a:1"), Connected("a:1", 1, 1, 9), MarkSet("a:1"), recovery_events.MetadataWritten())
    assert actions == (recovery_actions.Open(9, ("a:1",)),)
    _, actions = told(state, Failed("a:1", "gone"), Connected("a:1", 2, 9, 12))
    assert actions == (recovery_actions.Join("a:1"),)


def test_where_everybody_is_there_nobody_is_missing() -> None:
    state, _ = told(begun("a:1", "b:1", "c:1"), *(Connected(f"{one}:1", 1, 1, 9) for one in "abc"))
    assert recovery.waits_for(state) == "0 of 3 replicas are recovered to transaction 9, 2 are needed; missing: nobody"


def test_a_replica_of_the_first_session_was_not_given_back() -> None:
    """Sessions are counted from 0; it is cut to the end that this session wrote for it."""
    last = (ReplicaState(0, "a:1", 1, U), ReplicaState(0, "n:1", 0, 9))
    state = recovery.begin(0, 2, PartitionMetadata(1, 2, last), ("a:1", "n:1"))
    _, actions = recovery.step(state, Connected("n:1", 0, 3, 12))
    assert actions == (recovery_actions.Truncate("n:1", 9),)


@pytest.mark.parametrize("session_written", [-1, 1], ids=["by-the-release", "by-us"])
def test_a_replica_that_is_given_back_with_an_end_of_its_own_is_cut_to_its_low_water_mark(session_written: int) -> None:
    """It was absent in the session that named it as new; what it holds up to that session's mark is of an earlier life."""
    last = (ReplicaState(0, "a:1", 1, U), ReplicaState(0, "b:1", 1, U), ReplicaState(0, "n:1", session_written, 9))
    state = recovery.begin(0, 2, PartitionMetadata(1, 2, last), ("a:1", "b:1", "n:1"))
    state, actions = recovery.step(state, recovery_events.Connected("n:1", 0, 3, 12))
    assert actions == (recovery_actions.Truncate("n:1", 3),)
    assert not state.replicas["n:1"].votes


@pytest.mark.parametrize(
    ("mark", "last", "cut_to"),
    [(8, 27, 9), (9, 27, 9), (10, 27, 10), (10, 10, None), (26, 27, 26), (27, 27, None), (27, 28, 27), (27, 20, None)],
)
def test_what_was_marked_is_not_cut_though_the_metadata_does_not_know_of_it(
    mark: int, last: int, cut_to: int | None
) -> None:
    """A session set its mark and ended before it could write: what is below the mark was resolved, and the node keeps it."""
    known = (ReplicaState(0, "a:1", 5, U), ReplicaState(0, "b:1", 5, U), ReplicaState(0, "c:1", 4, 9))
    state = recovery.begin(0, 7, PartitionMetadata(1, 7, known), ["a:1", "b:1", "c:1"])
    state, actions = recovery.step(state, Connected("c:1", 6, mark, last))
    assert actions == (() if cut_to is None else (recovery_actions.Truncate("c:1", cut_to),))
    assert not state.replicas["c:1"].votes


def test_one_is_known_to_have_failed_once_an_attempt_has() -> None:
    """For one that nobody has reached yet batches are kept; for one that has failed they are not."""
    state = begun("a:1", "b:1")
    assert not any(one.is_gone for one in state.replicas.values()), "there was no attempt yet"
    assert not state.is_kept, "nothing is resolved that could be kept"
    state, _ = told(state, Failed("a:1", "refused"), Connected("b:1", 1, 1, 9))
    assert [one.is_gone for one in state.replicas.values()] == [True, False]
