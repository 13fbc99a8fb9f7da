"""The mark of a session is set on nobody before a quorum keeps it, whatever ends the session."""

from __future__ import annotations

import contextlib

import pytest

from waltzctl.engine.quorum import recovery
from waltzctl.engine.quorum.recovery_actions import Action, CatchUp, Compare, Exclude, SetLowWaterMark, Truncate
from waltzctl.engine.quorum.recovery_events import CaughtUp, Compared, Connected, Event, Failed, MarkSet, Truncated
from waltzctl.formats.znodes import UNRESOLVED, PartitionMetadata, ReplicaState

VOTER = (0, UNRESOLVED)
NEVER_IN_A_SESSION = (-1, -1)


class Session:
    """A recovery that is told events, and what it asks for."""

    def __init__(self, taken_away: str = "", **states: tuple[int, int]) -> None:
        last = tuple(ReplicaState(0, f"{name}:1", *state) for name, state in sorted(states.items()))
        nodes = [one.node for one in last if one.node != f"{taken_away}:1"]
        self.state = recovery.begin(0, 9, PartitionMetadata(1, 9, last), nodes)

    def tell(self, event: Event) -> tuple[Action, ...]:
        self.state, actions = recovery.step(self.state, event)
        return actions

    def connects(self, name: str, session: int, mark: int, last: int) -> tuple[Action, ...]:
        return self.tell(Connected(f"{name}:1", session, mark, last))


def test_the_copy_that_makes_the_quorum_is_marked_first() -> None:
    """Of three, one is away, and one was never in a session; its copies would be cut by the next one."""
    session = Session(a=VOTER, b=VOTER, c=NEVER_IN_A_SESSION)
    assert session.connects("b", 0, -1, 15) == ()
    assert session.connects("c", -1, -1, -1) == (CatchUp("c:1", "b:1", 0, 15),)
    assert session.tell(CaughtUp("c:1", 15)) == (SetLowWaterMark("c:1", 15),)
    assert session.state.resolved == 15
    assert not session.state.is_kept
    assert session.tell(MarkSet("c:1")) == (SetLowWaterMark("b:1", 15),)
    assert session.state.is_kept


def test_without_that_copy_the_next_session_may_resolve_less_and_nobody_has_a_mark_above() -> None:
    """Histories of the simulation found the marks that were set too soon: storage 455."""
    session = Session(a=VOTER, b=VOTER, c=NEVER_IN_A_SESSION)
    session.connects("b", 0, -1, 15)
    session.connects("c", -1, -1, -1)
    session.tell(CaughtUp("c:1", 15))
    assert session.tell(Failed("c:1", "gone")) == (), "the mark of b would be above what a and c resolve without it"
    assert "1 of 3 replicas would keep it" in recovery.waits_for(session.state)
    later = Session(a=VOTER, b=VOTER, c=NEVER_IN_A_SESSION)
    assert later.connects("c", -1, -1, 15) == (Truncate("c:1", -1),)
    later.tell(Truncated("c:1", -1))
    later.connects("a", 0, -1, 11)
    later.tell(CaughtUp("c:1", 11))
    assert later.state.resolved == 11


@pytest.mark.parametrize(("mark", "resolved"), [(11, 11), (12, None), (15, None)])
def test_a_mark_that_a_session_set_before_it_ended_lasts_though_the_copy_that_made_its_quorum_is_lost(
    mark: int, resolved: int | None
) -> None:
    """A history of the simulation found it, storage 11025: whom the mark was set on refused ever after to be cut below it."""
    session = Session(a=VOTER, b=VOTER, c=NEVER_IN_A_SESSION)
    session.connects("b", 8, mark, 15)
    session.connects("c", -1, -1, -1)  # its disk was replaced since
    actions = session.connects("a", 0, -1, 11)
    assert session.state.resolved == resolved
    if resolved is None:
        assert CatchUp("a:1", "b:1", 12, 15) in actions
        session.tell(CaughtUp("a:1", 15))
        assert session.state.resolved == 15


@pytest.mark.parametrize("last", [14, 15])
def test_a_mark_above_what_its_replica_holds_bounds_nothing(last: int) -> None:
    session = Session(a=VOTER, b=VOTER, c=VOTER)
    session.connects("b", 8, 15, last)
    session.connects("a", 0, -1, 11)
    session.connects("c", 0, -1, 11)
    assert session.state.resolved == (11 if last < 15 else None)


@pytest.mark.parametrize(("last", "marked"), [(14, False), (15, True)])
def test_voters_that_hold_it_are_enough(last: int, marked: bool) -> None:
    session = Session(a=VOTER, b=VOTER, c=VOTER)
    session.connects("a", 0, -1, 15)
    actions = session.connects("b", 0, -1, last)
    assert (SetLowWaterMark("a:1", 15) in actions) == marked


def test_where_two_copies_would_be_needed_another_voter_is_waited_for() -> None:
    session = Session(a=VOTER, b=VOTER, c=VOTER, d=NEVER_IN_A_SESSION, e=NEVER_IN_A_SESSION)
    session.connects("a", 0, -1, 15)
    for name in "de":
        session.connects(name, -1, -1, -1)
        session.tell(CaughtUp(f"{name}:1", 15))
    assert session.state.resolved == 15
    assert all(one.acting is None for one in session.state.replicas.values())
    assert "1 of 5 replicas would keep it" in recovery.waits_for(session.state)
    actions = session.connects("b", 0, -1, 15)
    assert actions == (SetLowWaterMark("d:1", 15), SetLowWaterMark("e:1", 15)), (
        "each of them makes a quorum with a and b"
    )
    assert session.tell(MarkSet("e:1")) == (SetLowWaterMark("a:1", 15), SetLowWaterMark("b:1", 15))


@pytest.mark.parametrize("lost", [True, False])
def test_when_all_who_may_vote_have_told_nobody_can_resolve_less(lost: bool) -> None:
    """One whose storage is older than the metadata says has lost what it had, and will not vote the next time either."""
    session = Session(a=VOTER, b=NEVER_IN_A_SESSION, c=NEVER_IN_A_SESSION, d=VOTER)
    session.connects("a", 0, -1, 3)
    for name in "bc":
        session.connects(name, -1, -1, -1)
        session.tell(CaughtUp(f"{name}:1", 3))
    assert session.state.resolved == 3
    assert not session.state.is_kept, "d may vote"
    session.connects("d", *((-1, -1, -1) if lost else (0, -1, 2)))
    assert session.state.is_kept == lost
    marked = {one.node for one in session.state.replicas.values() if isinstance(one.acting, SetLowWaterMark)}
    assert marked == ({f"{name}:1" for name in "abcd"} if lost else set())


def test_a_voter_that_was_taken_away_may_be_given_back_and_resolve_less() -> None:
    """The copy that makes the quorum is marked first then, too: without it the marks of the others do not last."""
    of_four = {"a": VOTER, "b": VOTER, "c": NEVER_IN_A_SESSION, "d": VOTER}
    session = Session(taken_away="d", **of_four)
    session.connects("a", 0, -1, 15)
    session.connects("c", -1, -1, -1)
    session.tell(CaughtUp("c:1", 15))
    assert session.connects("b", 0, -1, 15) == (SetLowWaterMark("c:1", 15),)
    assert session.state.resolved == 15
    assert not session.state.is_kept, "d would vote again"
    later = Session(**of_four)
    later.connects("c", -1, -1, -1)
    later.connects("d", 0, -1, 14)
    later.connects("b", 0, -1, 15)
    later.connects("a", 0, -1, 15)
    assert later.state.resolved == 14, "had this session ended here, a mark of 15 would shut a and b out"
    assert session.tell(MarkSet("c:1")) == (SetLowWaterMark("a:1", 15), SetLowWaterMark("b:1", 15))


def test_where_two_copies_would_be_needed_a_voter_that_was_taken_away_is_not_waited_for() -> None:
    session = Session(taken_away="e", a=VOTER, b=NEVER_IN_A_SESSION, c=NEVER_IN_A_SESSION, d=VOTER, e=VOTER)
    session.connects("a", 0, -1, 3)
    for name in "bc":
        session.connects(name, -1, -1, -1)
        session.tell(CaughtUp(f"{name}:1", 3))
    assert session.state.resolved == 3
    session.connects("d", -1, -1, -1)
    assert session.state.is_kept, "it may never come again"


def test_who_was_never_in_a_session_need_not_be_heard() -> None:
    session = Session(a=VOTER, b=NEVER_IN_A_SESSION, c=NEVER_IN_A_SESSION, d=NEVER_IN_A_SESSION)
    session.connects("a", 0, -1, 3)
    for name in "bc":
        session.connects(name, -1, -1, -1)
        session.tell(CaughtUp(f"{name}:1", 3))
    assert session.state.is_kept


# ---- marks that a server of the release set too soon -------------------------------------------------------------------

CLOSED = (2, 11)
"""A replica that was in no session behind 2, and of which 11 was resolved then."""
LATER = (7, UNRESOLVED)


def of_the_release(**more: tuple[int, int]) -> Session:
    """Session 7 was had by a and b; c has a mark of session 5, which is not in the metadata."""
    return Session(**({"a": LATER, "b": LATER, "c": CLOSED} | more))


def test_what_stands_above_a_closing_mark_is_compared_before_it_counts() -> None:
    session = of_the_release()
    assert session.connects("c", 5, 15, 17) == (Truncate("c:1", 15),)
    assert session.tell(Truncated("c:1", 15)) == (), "nobody is there who knows better"
    assert session.connects("a", 7, 15, 20) == (Compare("c:1", "a:1", 12, 15),)
    assert session.state.resolved is None, "a and one that holds it perhaps are no quorum"
    assert session.tell(Compared("c:1", 13)) == (Compare("c:1", "a:1", 14, 15),)
    assert session.tell(Compared("c:1", 15)) == (CatchUp("c:1", "a:1", 16, 20),)
    session.tell(CaughtUp("c:1", 20))
    assert session.state.resolved == 20


@pytest.mark.parametrize(
    ("session_id", "mark", "last", "asked"),
    [
        (6, 12, 12, (12, 12)),
        (6, 11, 11, None),
        (6, 11, 12, None),  # it is cut to 11
        (6, 12, 11, None),
        (6, 12, 13, None),  # it is cut to 12 first
        (7, 12, 12, None),  # the mark of that session itself
        (8, 12, 12, None),  # of one behind it, which nobody followed
        (1, 12, 12, None),  # it lost what it had
    ],
)
def test_only_what_another_session_may_have_written_is_asked_for(
    session_id: int, mark: int, last: int, asked: tuple[int, int] | None
) -> None:
    session = of_the_release()
    session.connects("a", 7, 12, 20)
    actions = session.connects("c", session_id, mark, last)
    assert [one for one in actions if isinstance(one, Compare)] == ([Compare("c:1", "a:1", *asked)] if asked else [])
    if (Truncate("c:1", 12),) == actions:
        assert session.tell(Truncated("c:1", 12)) == (Compare("c:1", "a:1", 12, 12),)


@pytest.mark.parametrize("state", [NEVER_IN_A_SESSION, (-1, 14)])
def test_of_one_that_was_in_no_session_everything_is_asked_for(state: tuple[int, int]) -> None:
    """A server of the release writes (-1, mark), whatever it holds."""
    session = of_the_release(c=state)
    session.connects("a", 7, 15, 20)
    assert session.connects("c", 5, 15, 15) == (Compare("c:1", "a:1", 0, 15),)


def test_a_replica_that_differs_is_neither_counted_nor_copied_from() -> None:
    session = of_the_release()
    session.connects("a", 7, 11, 15)
    assert session.connects("c", 5, 15, 15) == (Compare("c:1", "a:1", 12, 15),)
    assert session.tell(Failed("c:1", "12 is another one")) == ()
    assert session.state.resolved is None
    session.connects("b", 7, 11, 15)
    assert session.state.resolved == 15
    assert session.connects("c", 5, 15, 15) == (Compare("c:1", "a:1", 12, 15),), "it is asked again when it comes again"


@pytest.mark.parametrize(("last", "excluded"), [(14, True), (15, False)])
def test_a_mark_above_what_a_voter_holds_was_never_resolved(last: int, excluded: bool) -> None:
    session = of_the_release()
    session.connects("a", 7, 11, last)
    wanted = Exclude("c:1", "a:1", 15) if excluded else Compare("c:1", "a:1", 12, 15)
    assert session.connects("c", 5, 15, 15) == (wanted,)
    assert session.tell(Failed("c:1", "excluded")) == ()


def test_the_voter_that_holds_most_is_the_witness() -> None:
    session = of_the_release()
    session.connects("b", 7, 11, 14)
    session.connects("a", 7, 11, 15)
    assert Compare("c:1", "a:1", 12, 15) in session.connects("c", 5, 15, 15)


@pytest.mark.parametrize(("held", "witness"), [(15, True), (14, False)])
def test_who_was_far_behind_is_no_witness(held: int, witness: bool) -> None:
    """Its own mark is 15, so that what it lacks says nothing."""
    session = of_the_release()
    session.connects("c", 5, 15, 15)
    actions = session.connects("a", 7, 15, held)
    assert (Compare("c:1", "a:1", 12, 15) in actions) == witness
    assert not any(isinstance(one, Exclude) for one in actions)


def test_who_lost_what_it_held_is_no_witness() -> None:
    session = of_the_release()
    session.connects("c", 5, 15, 15)
    assert session.connects("a", 6, 15, 15) == ()


def test_one_that_comes_back_into_this_session_is_a_witness() -> None:
    session = of_the_release()
    session.connects("a", 7, 11, 15)
    session.connects("b", 7, 11, 15)
    session.tell(MarkSet("a:1"))
    for name in "ab":
        session.tell(Failed(f"{name}:1", "gone"))
    session.connects("a", 9, 15, 15)
    assert session.connects("c", 5, 15, 15) == (Compare("c:1", "a:1", 12, 15),)


@pytest.mark.parametrize(("last", "refused"), [(11, False), (10, True), (15, False), (16, True)])
def test_a_comparison_answers_what_was_asked(last: int, refused: bool) -> None:
    session = of_the_release()
    session.connects("a", 7, 15, 20)
    session.connects("c", 5, 15, 15)
    with pytest.raises(ValueError, match="behind a comparison of 12 to 15") if refused else contextlib.nullcontext():
        session.tell(Compared("c:1", last))
