"""The mark of a session is set on nobody before a quorum keeps it, whatever ends the session."""

from __future__ import annotations

import pytest

from waltzctl.engine.quorum import recovery
from waltzctl.engine.quorum.recovery_actions import Action, CatchUp, SetLowWaterMark, Truncate
from waltzctl.engine.quorum.recovery_events import CaughtUp, Connected, Event, Failed, MarkSet, Truncated
from waltzctl.formats.znodes import UNRESOLVED, PartitionMetadata, ReplicaState

VOTER = (0, UNRESOLVED)
NEVER_IN_A_SESSION = (-1, -1)


class Session:
    """A recovery that is told events, and what it asks for."""

    def __init__(self, **states: tuple[int, int]) -> None:
        last = tuple(ReplicaState(0, f"{name}:1", *state) for name, state in sorted(states.items()))
        nodes = [one.node for one in last]
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


def test_who_was_never_in_a_session_need_not_be_heard() -> None:
    session = Session(a=VOTER, b=NEVER_IN_A_SESSION, c=NEVER_IN_A_SESSION, d=NEVER_IN_A_SESSION)
    session.connects("a", 0, -1, 3)
    for name in "bc":
        session.connects(name, -1, -1, -1)
        session.tell(CaughtUp(f"{name}:1", 3))
    assert session.state.is_kept
