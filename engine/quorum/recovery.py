"""Recovery at the start of a store session: a state machine, from a state and an event to a state and actions.

No socket, clock or thread: the caller performs the actions (`Truncate`, `Compare`, `Exclude`, `CatchUp`, `SetLowWaterMark`,
`WriteMetadata`, `Open`, `Join`, `GiveUp`) and reports each outcome as an event.  A replica has at most one action in progress.

Sources: design document *Recovery*, release 0.13.2.  R marks what the release does instead; W marks rules that are ours, because
of a weakness of the release.

Terms
=====

===============  =====================================================================================================
term             meaning
===============  =====================================================================================================
last replicas    the n replicas that the metadata names when the session begins; ``n // 2 + 1`` of them are a quorum
latest session   the highest session of any of these in the metadata
closing mark     a replica's closing high-water mark in the metadata: unresolved while it may hold more than is known
voter            a last replica of the latest session whose closing mark is unresolved
lost replica     W: a voter whose storage has an older session than the metadata: its disk was replaced, or a backup restored
absent           of a last replica: not connected, or no longer assigned
resolved mark    the high-water mark at which the session opens
===============  =====================================================================================================

If the metadata names no replica, every assigned one is a last replica that was never in a session.  (R: the log is empty then,
and what the storages hold is cut.  That loses everything when only the metadata was lost.)

What a replica counts for when it connects
==========================================

=====================================================================  ===================  =====  ========================
condition, the first that holds                                        cut to               votes  its records count up to
=====================================================================  ===================  =====  ========================
its storage's session is older than in the metadata                    its low-water mark   no     what the cut leaves
it is new: the metadata does not name it                               its low-water mark   no     what the cut leaves
W: the metadata says that it was never part of a session               its low-water mark   no     what the cut leaves
its closing mark is resolved                                           that mark, W: or     no     what the cut leaves
                                                                       its low-water mark,
                                                                       if that is higher
W: another replica was in a later session                              its low-water mark   no     what the cut leaves
its last transaction is below its low-water mark (was far behind)      nothing              no     its last transaction
otherwise                                                              nothing              yes    its last transaction
=====================================================================  ===================  =====  ========================

W: why not below its low-water mark: a session may set its mark on a replica and end before it writes the metadata.  A quorum had
resolved what the replica holds up to that mark, and the node refuses to cut it.  R asks for the cut at every attempt and never
gets the replica back.

W: a released server may have set such a mark although it did not last (see below), and a later session may have written other
transactions under the same ids.  Therefore, if the metadata has a later session than the replica, what the replica holds above
its closing mark (all of it, if it was never part of a session) is compared with a voter before it counts.  The voter was in that
later session, which cannot have begun below a mark that lasts: a replica that differs from the voter, or holds more, is excluded.
Without a later session nothing else can have been written, and nothing is compared.

The vote
========

The resolved mark is the highest transaction that a quorum of the last replicas holds and that is not below the lowest last
transaction of the replicas that vote.  It stays undecided as long as absent replicas could give a higher transaction a quorum.
W: nor is it below the low-water mark of a replica that holds all below that: a session that ended before it wrote the metadata
had resolved it, with a replica perhaps whose disk was replaced since, and a node refuses to be cut below its mark.
Until it is decided, each replica copies from the nearest one ahead of it, so that whatever a voter holds reaches a quorum.  New
replicas copy, too, but they are not counted and not copied from before the mark is resolved.

W: a lost replica may have acknowledged what it does not hold any more.  What it lacks is therefore no vote against a transaction:
as long as the lost replicas could complete a transaction's quorum, it is copied from a replica that holds it.  If lost and absent
replicas together are a quorum, they may have acknowledged transactions that no other replica holds: nothing is resolved before an
absent one connects.  (R: a lost replica counts as one that never held anything.  A transaction that it and one other acknowledged
may then be cut from the other, because the third was behind.)  A replica that is lost after it took part in this very session
ends the session; the next one asks every replica anew.

When the mark may be set
========================

W: once set as a low-water mark, the resolved mark must last: if this session ends, no later one may resolve a lower one.  The
quorum of the vote is not enough for that, since the next session would cut some of it again (what a replica copied above its own
mark), and could resolve less without the one replica that was marked.  A last replica *keeps* the resolved mark if it holds that
transaction and

- it is never cut (it votes, or was far behind), or only above the mark, or
- the mark is set on it.

========================================================================  ================================================
condition                                                                 the mark may be set on
========================================================================  ================================================
a quorum of the last replicas keeps it                                    any replica
every assigned voter is connected, and holds it or is lost; except if     any replica
a single replica would complete the quorum and a voter is no longer
assigned (once assigned again, it could make the next session resolve a
lower mark)
otherwise                                                                 a last replica that completes the quorum by it;
                                                                          without one, recovery waits
========================================================================  ================================================

The end of recovery
===================

Each replica is cut to the mark, gets it as its low-water mark, and copies records up to it.  When a quorum of the assigned
replicas is done the metadata is written, and after that the session opens (R: it may open before).

What is written for each assigned replica; others are removed:

=====================================================  ==========================================================
its low-water mark is set, or was in this session      (session, unresolved); R: so is every one that does not vote
it is new                                              (latest session in the metadata, resolved mark); R: (-1, that mark)
its closing mark was resolved                          unchanged
otherwise                                              (latest session in the metadata, resolved mark)
=====================================================  ==========================================================

W: why not (-1, resolved mark) for a new one: a replica that was unassigned, and is assigned again while it is absent, comes with
records of its own.  R takes it for one that begins empty, and keeps its records up to that mark, which no other replica may hold.

A replica that fails counts as absent, and may connect again (R: the whole recovery is given up).  A mark once resolved stays
resolved: a quorum held it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from waltzctl.engine.quorum.recovery_actions import (
    Action,
    CatchUp,
    Compare,
    Exclude,
    GiveUp,
    Join,
    Open,
    SetLowWaterMark,
    Truncate,
    WriteMetadata,
)
from waltzctl.engine.quorum.recovery_events import (
    CaughtUp,
    Compared,
    Connected,
    Event,
    Failed,
    MarkSet,
    MetadataLost,
    MetadataWritten,
    Truncated,
)
from waltzctl.engine.quorum.recovery_state import Phase, Recovery, Replica, may_vote
from waltzctl.engine.quorum.vote import unheard
from waltzctl.formats.znodes import UNRESOLVED, PartitionMetadata, ReplicaState


def begin(partition: int, session_id: int, metadata: PartitionMetadata, nodes: Sequence[str]) -> Recovery:
    """The state before any replica has connected.

    `metadata`: as read when `session_id` was written to it; `nodes`: the nodes of the replicas assigned now.  Raises ValueError
    if there are none, or if one is named twice.
    """
    if not nodes or len(set(nodes)) < len(nodes):
        raise ValueError(f"partition {partition}: {len(nodes)} replicas, {len(set(nodes))} different ones")
    last = {one.node: one for one in metadata.replicas} or {
        node: ReplicaState(partition, node, -1, UNRESOLVED) for node in nodes
    }
    latest = max(one.session_id for one in last.values())
    gone = (one for node, one in last.items() if node not in nodes)
    return Recovery(
        partition=partition,
        session_id=session_id,
        last_replicas=len(last),
        latest_session=latest,
        voters_taken_away=sum(may_vote(one, latest) for one in gone),
        replicas=MappingProxyType({node: Replica(node, last.get(node)) for node in nodes}),
    )


def step(state: Recovery, event: Event) -> tuple[Recovery, tuple[Action, ...]]:
    """The state after an event, and the actions to perform.

    Raises ValueError for an unexpected event: the outcome of an action that is not in progress, or of a replica that is not
    assigned.  After `GiveUp` events have no effect.
    """
    if state.ended:
        return state, ()
    match event:
        case MetadataWritten():
            if state.writing is None:
                raise ValueError("no metadata is being written")
            state = replace(state, written=state.writing, writing=None)
        case MetadataLost(reason):
            return replace(state, ended=True), (GiveUp(reason),)
        case Connected(node, session_id) if session_id > state.session_id:
            reason = f"{node} is in session {session_id}, which is later than this one, {state.session_id}"
            return replace(state, ended=True), (GiveUp(reason),)
        case Connected(node, session_id) if session_id < state.session_id and _replica_of(state, node).in_session:
            reason = f"{node} has lost what it held in this session; the next one does not count on it"
            return replace(state, ended=True), (GiveUp(reason),)
        case Connected():
            state = _connected(state, event)
        case Failed(node, reason):
            one = _replica_of(state, node)
            state = _update(state, Replica(node, one.last, in_session=one.in_session, reason=reason))
        case _:
            state = _action_done(state, event)
    return _start_actions(_add_keepers(_vote(state)))


def _replica_of(state: Recovery, node: str) -> Replica:
    if node not in state.replicas:
        raise ValueError(f"partition {state.partition}: {node} is no replica of it")
    return state.replicas[node]


def _update(state: Recovery, one: Replica) -> Recovery:
    return replace(state, replicas=MappingProxyType({**state.replicas, one.node: one}))


def _connected(state: Recovery, event: Connected) -> Recovery:
    """Classify a replica by the table above.  One that was in this session already continues where it stopped."""
    one = _replica_of(state, event.node)
    if one.phase is not Phase.ABSENT:
        raise ValueError(f"partition {state.partition}: {event.node} is connected already")
    last, held = one.last, event.max_transaction_id
    cut_to, proven_to, votes = None, None, False
    # before the vote no mark of this session is ours: an operator has set it
    marked = event.session_id == state.session_id and state.resolved is not None
    if marked:
        pass
    elif last is None or event.session_id < last.session_id:
        cut_to = event.low_water_mark
    elif last.closing_high_water_mark != UNRESOLVED:
        known = last.closing_high_water_mark if last.session_id >= 0 else -1
        cut_to = max(known, event.low_water_mark)
        if event.session_id < state.latest_session and held > known < cut_to:
            proven_to = known
    elif last.session_id < state.latest_session:
        cut_to = event.low_water_mark
    else:
        votes = held >= event.low_water_mark
    phase = _phase_after_cut(proven_to) if cut_to is None or held <= cut_to else Phase.CUTTING
    lost = not marked and event.session_id < state.latest_session and one in state.voters
    found = replace(
        one,
        phase=phase,
        votes=votes,
        high_water_mark=held,
        low_water_mark=event.low_water_mark,
        cut_to=cut_to,
        proven_to=proven_to,
        marked=marked,
        in_session=one.in_session or marked,
        lost=lost,
        reason="",
    )
    return replace(_update(state, found), keepers=state.keepers - {one.node}) if lost else _update(state, found)


def _phase_after_cut(proven_to: int | None) -> Phase:
    """The phase of a replica that has nothing left to cut before it counts."""
    return Phase.PUBLISHED if proven_to is None else Phase.UNPROVEN


def _action_done(state: Recovery, event: Truncated | Compared | CaughtUp | MarkSet) -> Recovery:
    one = _replica_of(state, event.node)
    match event, one.acting:
        case Truncated(max_transaction_id=last), Truncate(transaction_id=cut_to):
            if last > cut_to:
                raise ValueError(f"{one.node}: {last} is the last transaction behind a cut to {cut_to}")
            one = replace(one, phase=_phase_after_cut(one.proven_to), high_water_mark=last)
        case Compared(last_equal=last), Compare(first=first, last=to):
            if not first - 1 <= last <= to:
                raise ValueError(f"{one.node}: {last} is the last transaction behind a comparison of {first} to {to}")
            proven_to = last if last < one.held else None
            one = replace(one, phase=_phase_after_cut(proven_to), proven_to=proven_to)
        case CaughtUp(max_transaction_id=last), CatchUp(first=first, last=to):
            if not first - 1 <= last <= to:
                raise ValueError(f"{one.node}: {last} is the last transaction behind a copy of {first} to {to}")
            one = replace(one, high_water_mark=last)
        case MarkSet(), SetLowWaterMark():
            one = replace(one, marked=True, in_session=True)
        case _:
            raise ValueError(f"{one.node}: {type(event).__name__} answers nothing; under way: {one.acting}")
    return _update(state, replace(one, acting=None))


def resolve(held: Sequence[int], *, absent: int, quorum: int, lowest: int, lost: Sequence[int] = ()) -> int | None:
    """The highest transaction, not below `lowest`, that `quorum` of the last replicas hold; None while that is undecided.

    `held`: the last transaction of each last replica that is counted; `absent`: the number of the others; `lost`: the last
    transactions of the lost replicas, which are among `held`.
    """
    if unheard(absent, len(lost), quorum):
        return None
    for value in sorted({*held}, reverse=True):
        holders = sum(one >= value for one in held)
        unknown = absent + sum(one < value for one in lost)
        if value < lowest or holders < quorum <= holders + unknown:
            return None
        if holders >= quorum:
            return value
    return None


def _proof(state: Recovery, one: Replica) -> Action | None:
    """The action that compares a replica with a voter (see above); None to wait for a voter."""
    voter = max((other for other in state.voters if other.is_witness), key=lambda other: other.held, default=None)
    if voter is None:
        return None
    if voter.held < one.held:
        return Exclude(one.node, voter.node, voter.held + 1)
    assert one.proven_to is not None, "that is why it is unproven"
    return Compare(one.node, voter.node, one.proven_to + 1, one.held)


def _vote(state: Recovery) -> Recovery:
    voters = [one.held for one in state.counted if one.votes]
    if state.resolved is not None or not voters:
        return state
    held = [one.held for one in state.counted]
    lost = [one.held for one in state.counted if one.lost]
    marked = [one.low_water_mark for one in state.counted if one.low_water_mark <= one.held and not one.lost]
    lowest = max(min(voters), *marked)
    mark = resolve(held, absent=state.absent, quorum=state.last_quorum, lowest=lowest, lost=lost)
    return state if mark is None else replace(state, resolved=mark)


def _add_keepers(state: Recovery) -> Recovery:
    """Add the replicas that keep the resolved mark from now on; they stay keepers when they disconnect."""
    mark = state.resolved
    if mark is None:
        return state
    found = {
        one.node
        for one in state.counted
        if one.held >= mark and (one.marked or one.cut_to is None or one.cut_to >= mark)
    }
    return replace(state, keepers=state.keepers | found) if found - state.keepers else state


def _may_be_marked(state: Recovery, one: Replica) -> bool:
    """Whether the mark may be set on a replica, by the table above."""
    if state.is_kept:
        return True
    makes_quorum = len(state.keepers | {one.node}) >= state.last_quorum
    return makes_quorum and one.last is not None and one.held >= _resolved(state)


def _start_actions(state: Recovery) -> tuple[Recovery, tuple[Action, ...]]:
    """Begin every action that is possible now."""
    actions: list[Action] = []
    for node in state.replicas:
        one = state.replicas[node]
        if one.acting is not None or one.phase in (Phase.ABSENT, Phase.RECOVERED):
            continue
        action = _next_action(state, one)
        if action is not None:
            actions.append(action)
            state = _update(state, replace(one, acting=action))
        elif one.marked and one.held >= _resolved(state):
            state = _update(state, replace(one, phase=Phase.RECOVERED))
    return _complete(state, actions)


def _resolved(state: Recovery) -> int:
    assert state.resolved is not None, "no mark is set before the vote"
    return state.resolved


def _next_action(state: Recovery, one: Replica) -> Action | None:
    """The next action for a replica that has none in progress; None to wait, or if it is recovered."""
    if one.phase is Phase.CUTTING:
        assert one.cut_to is not None
        return Truncate(one.node, one.cut_to)
    if one.phase is Phase.UNPROVEN:
        return _proof(state, one)
    mark = state.resolved
    if mark is not None and not one.marked:
        if one.held > mark:
            return Truncate(one.node, mark)
        if _may_be_marked(state, one):
            return SetLowWaterMark(one.node, mark)
    source = _copy_source(state, one)
    if source is None:
        return None
    last = source.held if mark is None else min(source.held, mark)
    return CatchUp(one.node, source.node, one.held + 1, last)


def _copy_source(state: Recovery, one: Replica) -> Replica | None:
    """The replica to copy from: before the vote the nearest one ahead, later one that holds the mark, else the nearest."""
    mark = state.resolved
    if mark is not None and one.held >= mark:
        return None
    ahead = [
        other
        for other in state.replicas.values()
        if other.is_published and other.held > one.held and (mark is not None or other.last is not None)
    ]
    if not ahead:
        return None
    if mark is None:
        return min(ahead, key=lambda one: one.held)
    copying = {other.acting.source for other in state.replicas.values() if isinstance(other.acting, CatchUp)}
    return min(ahead, key=lambda other: (other.held < mark, other.node in copying, other.held))


def replica_states(state: Recovery) -> tuple[ReplicaState, ...]:
    """The replica states to write once the mark is resolved, by the table above, sorted by node."""
    mark = _resolved(state)
    return tuple(_replica_state(state, state.replicas[node], mark) for node in sorted(state.replicas))


def _replica_state(state: Recovery, one: Replica, mark: int) -> ReplicaState:
    if one.in_session:
        return ReplicaState(state.partition, one.node, state.session_id, UNRESOLVED)
    if one.last is None:
        return ReplicaState(state.partition, one.node, state.latest_session, mark)
    if one.last.closing_high_water_mark != UNRESOLVED:
        return one.last
    # a replica that missed a session has an older one in its storage than is written here: it will be cut, and not vote
    return replace(one.last, session_id=state.latest_session, closing_high_water_mark=mark)


def _complete(state: Recovery, actions: list[Action]) -> tuple[Recovery, tuple[Action, ...]]:
    """Write the metadata once a quorum is recovered; after that open the session, and let late replicas join."""
    if len(state.recovered) < state.quorum and not state.is_open:
        return state, tuple(actions)
    wanted = replica_states(state)
    if state.writing is None and wanted != state.written:
        actions.append(WriteMetadata(wanted))
        state = replace(state, writing=wanted)
    recorded = {one.node for one in state.written or () if one.session_id == state.session_id}
    ready = [node for node in state.recovered if node in recorded and not state.replicas[node].joined]
    if not state.is_open and len(ready) >= state.quorum:
        actions.append(Open(_resolved(state), tuple(ready)))
        state = replace(state, is_open=True)
    elif state.is_open:
        actions += [Join(node) for node in ready]
    else:
        ready = []
    for node in ready:
        state = _update(state, replace(state.replicas[node], joined=True))
    return state, tuple(actions)


def waits_for(state: Recovery) -> str:
    """Why the session is not open, as a text that names the missing replicas and what depends on them; empty if it is open."""
    if state.is_open or state.ended:
        return ""
    missing = {node: one.reason for node, one in state.replicas.items() if one.phase is Phase.ABSENT}
    gone = state.last_replicas - sum(one.last is not None for one in state.replicas.values())
    who = [f"{node} ({reason})" for node, reason in missing.items()]
    if gone:
        who.append(f"{gone} that {'is' if gone == 1 else 'are'} no longer assigned")
    whom = ", ".join(who) or "nobody"
    if state.resolved is not None and not state.is_kept:
        return (
            f"transaction {state.resolved} is resolved, but {len(state.keepers)} of {state.last_replicas} replicas would keep it"
            f" if this session ended, {state.last_quorum} are a quorum; missing: {whom}"
        )
    if state.resolved is None:
        held = sorted((one.held for one in state.counted), reverse=True)
        lost = ", ".join(one.node for one in state.counted if one.lost)
        if not any(one.votes for one in state.counted):
            of_lost = f", {lost} has lost it" if lost else ""
            return f"no replica that may vote has told what it holds{of_lost}; missing: {whom}"
        top = held[0]
        holders = held.count(top)
        told = f"{state.absent} have not told"
        unknown = f"{told}, and {lost} has lost what it held" if lost else f"and {told}"
        return (
            f"transaction {top} is held by {holders} of {state.last_replicas} replicas, {state.last_quorum} are a quorum,"
            f" {unknown}; missing: {whom}"
        )
    recovered = len(state.recovered)
    if recovered < state.quorum:
        return (
            f"{recovered} of {len(state.replicas)} replicas are recovered to transaction {state.resolved}, {state.quorum} are"
            f" needed; missing: {whom}"
        )
    return "the metadata is being written"
