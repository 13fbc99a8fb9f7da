"""Recovery at the start of a store session: a function of a state and an event to a state and actions.

No socket, clock or thread: whoever runs it performs the actions (`Truncate`, `Compare`, `Exclude`, `CatchUp`,
`SetLowWaterMark`, `WriteMetadata`, `Open`, `Join`) and reports each outcome as an event.  Every replica has at most one action
under way.

What a replica is, when it connects (design document *Recovery*; release 0.13.2 where marked R; ours where marked W)

=====================================================================  ===================  =====  ========================
condition, the first that holds                                        cut to               votes  its records count up to
=====================================================================  ===================  =====  ========================
its storage's session is older than the metadata's (lost, restored;    its low-water mark   no     what the cut leaves
see below)
it is new: the metadata does not name it                               its low-water mark   no     what the cut leaves
W: the metadata says that it was never part of a session               its low-water mark   no     what the cut leaves
its closing high-water mark is resolved                                that mark, W: or     no     what the cut leaves
                                                                       its low-water mark,
                                                                       if that is higher
W: another replica was in a later session                              its low-water mark   no     what the cut leaves
its last transaction is below its low-water mark (was far behind)      nothing              no     its last transaction
otherwise                                                              nothing              yes    its last transaction
=====================================================================  ===================  =====  ========================

Where the metadata names no replica at all, every assigned one is a last replica that has not been in a session.  (R: the log is
then empty, and what the storages hold is cut.  That loses everything when only the metadata was lost.)

The vote.  Of n last replicas ``n // 2 + 1`` are a quorum.  The resolved high-water mark is the highest transaction that a quorum
of the last replicas holds, and that is no lower than the lowest replica that votes; as long as those that cannot be asked could
give a higher one its quorum, nothing is resolved.  Meanwhile each replica copies from the nearest one ahead of it, so that what
any voter holds finds its quorum.  New replicas copy; before the mark is resolved they are not counted, nor copied from.

W: a replica that was in the last session, and whose storage is older, has lost what it held (its disk was replaced, or a
backup restored).  It may have acknowledged what it does not hold: what it lacks is no vote against it.  As long as those that
have lost it could have made its quorum, whoever holds it is copied from first.  And where the lost ones and those that cannot be
asked are a quorum together, they may have held what nobody else does: nothing is resolved before one of the absent has told.
(R: it counts as one that never held anything.  What it and one other acknowledged is then cut from the other by one that was
behind.)  One that took part in this very session and comes back like that ends it, as the next one begins by asking everybody.

W: a session may set its low-water mark on a replica and end before it wrote the metadata.  What the replica holds up to there was
resolved by a quorum, and the node lets nobody cut it; R asks for that at every attempt and never gets the replica back.

W: not every such mark deserves that.  R may set one that does not last (see below), and another session may then write other
transactions under the same ids.  Where a later session than the replica's own is in the metadata, what it holds above its
closing mark (all of it, if it was never part of a session) is therefore compared with a voter before it counts.  A voter was in
that later session, which had to begin no lower than a mark that lasts: a replica that holds another transaction, or more than
the voter, is excluded.  Where there was no later session nobody can have written anything else.

W: for that the quorum has to last.  What the next session would cut again (a copy behind a replica's own mark) does not: a
session that ends could leave its mark on one replica, and another session resolve less without that one.  A replica *keeps* the
resolved mark if it holds it and

- is never cut (it votes, or was far behind), or has to be cut behind that mark only, or
- the mark is set on it.

The mark is set on any replica once a quorum of the last replicas keeps it, or once every assigned one that may vote by the
metadata has told, and holds it or lost what it had.  Until then it is set on none but one that makes the quorum by it; where one
is not enough, recovery waits.  A voter that is no longer assigned may be given back and make the next session resolve less: where
there is one, and one more replica makes the quorum, that one is marked first.

W: a replica that was taken away, and is given back while it cannot be asked, comes with an end of its own.  R takes it for one
that begins empty, writes (-1, resolved mark), and keeps what it holds up to that mark, which no other replica may hold.

What follows, for each replica: cut to the mark, the mark set as its low-water mark, records copied up to the mark.  When a
quorum of the assigned replicas is there the metadata is written, and only behind that the session opens (R: it may open before).

What is written for a replica; those that are no longer assigned vanish:

=====================================================  ==========================================================
its low-water mark is set, or was in this session      (session, unresolved); R: so is every one that does not vote
it is new                                              (latest session in the metadata, resolved mark); R: (-1, that mark)
its closing high-water mark was resolved               unchanged
otherwise                                              (latest session in the metadata, resolved mark)
=====================================================  ==========================================================

A replica that fails is as one that cannot be asked, and may connect again (R: the recovery of all is given up).  What was
resolved stays resolved: a quorum held it.
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
    """A recovery before any replica has connected.

    `metadata` as it was read when `session_id` was written to it; `nodes`: the replicas assigned now.  Raises ValueError where
    there are none, or one is named twice.
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
    """The state behind an event, and what is to be done.

    Raises ValueError for an event that answers nothing: the outcome of an action that is not under way, a replica that is not
    assigned.  After `GiveUp` every event leads nowhere.
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
        case Connected(node, session_id) if session_id < state.session_id and _of(state, node).in_session:
            reason = f"{node} has lost what it held in this session; the next one does not count on it"
            return replace(state, ended=True), (GiveUp(reason),)
        case Connected():
            state = _connected(state, event)
        case Failed(node, reason):
            one = _of(state, node)
            state = _with(state, Replica(node, one.last, in_session=one.in_session, reason=reason))
        case _:
            state = _done(state, event)
    return _advance(_keep(_vote(state)))


def _of(state: Recovery, node: str) -> Replica:
    if node not in state.replicas:
        raise ValueError(f"partition {state.partition}: {node} is no replica of it")
    return state.replicas[node]


def _with(state: Recovery, one: Replica) -> Recovery:
    return replace(state, replicas=MappingProxyType({**state.replicas, one.node: one}))


def _connected(state: Recovery, event: Connected) -> Recovery:
    """What the replica is, by the table above.  One that was in this session already goes on where it stopped."""
    one = _of(state, event.node)
    if one.phase is not Phase.ABSENT:
        raise ValueError(f"partition {state.partition}: {event.node} is connected already")
    last, held = one.last, event.max_transaction_id
    cut_to, proven_to, votes = None, None, False
    marked = event.session_id == state.session_id and state.resolved is not None  # or somebody has set it by hand
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
    phase = _clean(proven_to) if cut_to is None or held <= cut_to else Phase.CUTTING
    lost = not marked and event.session_id < state.latest_session and one in state.voters
    found = replace(
        one,
        phase=phase,
        votes=votes,
        high_water_mark=held,
        cut_to=cut_to,
        proven_to=proven_to,
        marked=marked,
        in_session=one.in_session or marked,
        lost=lost,
        reason="",
    )
    return replace(_with(state, found), keepers=state.keepers - {one.node}) if lost else _with(state, found)


def _clean(proven_to: int | None) -> Phase:
    """Where a replica stands that holds nothing, any more, that has to be cut before it counts."""
    return Phase.PUBLISHED if proven_to is None else Phase.UNPROVEN


def _done(state: Recovery, event: Truncated | Compared | CaughtUp | MarkSet) -> Recovery:
    one = _of(state, event.node)
    match event, one.acting:
        case Truncated(max_transaction_id=last), Truncate(transaction_id=cut_to):
            if last > cut_to:
                raise ValueError(f"{one.node}: {last} is the last transaction behind a cut to {cut_to}")
            one = replace(one, phase=_clean(one.proven_to), high_water_mark=last)
        case Compared(last_equal=last), Compare(first=first, last=to):
            if not first - 1 <= last <= to:
                raise ValueError(f"{one.node}: {last} is the last transaction behind a comparison of {first} to {to}")
            proven_to = last if last < one.held else None
            one = replace(one, phase=_clean(proven_to), proven_to=proven_to)
        case CaughtUp(max_transaction_id=last), CatchUp(first=first, last=to):
            if not first - 1 <= last <= to:
                raise ValueError(f"{one.node}: {last} is the last transaction behind a copy of {first} to {to}")
            one = replace(one, high_water_mark=last)
        case MarkSet(), SetLowWaterMark():
            one = replace(one, marked=True, in_session=True)
        case _:
            raise ValueError(f"{one.node}: {type(event).__name__} answers nothing; under way: {one.acting}")
    return _with(state, replace(one, acting=None))


def resolve(held: Sequence[int], *, absent: int, quorum: int, lowest: int, lost: Sequence[int] = ()) -> int | None:
    """The highest transaction, `lowest` at least, that `quorum` of the last replicas hold, or None while that is undecided.

    `held`: the last transaction of each of the last replicas that have told; `absent`: how many have not; `lost`: of those
    among `held` that have lost what they held.
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


def _prove(state: Recovery, one: Replica) -> Action | None:
    """What shows whether the replica holds what a later session had; None to wait for a voter."""
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
    mark = resolve(held, absent=state.absent, quorum=state.last_quorum, lowest=min(voters), lost=lost)
    return state if mark is None else replace(state, resolved=mark)


def _keep(state: Recovery) -> Recovery:
    """Who keeps the resolved mark from now on, whether or not it can be asked."""
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
    """Whether the mark that is set on a replica now will hold whatever ends this session."""
    if state.is_kept:
        return True
    makes_quorum = len(state.keepers | {one.node}) >= state.last_quorum
    return makes_quorum and one.last is not None and one.held >= _held_at_least(state)


def _advance(state: Recovery) -> tuple[Recovery, tuple[Action, ...]]:
    """Whatever can be begun is begun."""
    actions: list[Action] = []
    for node in state.replicas:
        one = state.replicas[node]
        if one.acting is not None or one.phase in (Phase.ABSENT, Phase.RECOVERED):
            continue
        action = _next(state, one)
        if action is not None:
            actions.append(action)
            state = _with(state, replace(one, acting=action))
        elif one.marked and one.held >= _held_at_least(state):
            state = _with(state, replace(one, phase=Phase.RECOVERED))
    return _conclude(state, actions)


def _held_at_least(state: Recovery) -> int:
    assert state.resolved is not None, "no mark is set before the vote"
    return state.resolved


def _next(state: Recovery, one: Replica) -> Action | None:
    """What a replica without an action has to do; None to wait, or when it is recovered."""
    if one.phase is Phase.CUTTING:
        assert one.cut_to is not None
        return Truncate(one.node, one.cut_to)
    if one.phase is Phase.UNPROVEN:
        return _prove(state, one)
    mark = state.resolved
    if mark is not None and not one.marked:
        if one.held > mark:
            return Truncate(one.node, mark)
        if _may_be_marked(state, one):
            return SetLowWaterMark(one.node, mark)
    source = _source(state, one)
    if source is None:
        return None
    last = source.held if mark is None else min(source.held, mark)
    return CatchUp(one.node, source.node, one.held + 1, last)


def _source(state: Recovery, one: Replica) -> Replica | None:
    """Whom a replica copies from: before the vote the nearest one ahead, afterwards one that has it all, else the nearest."""
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
    """What the metadata has to say of the replicas now that the mark is resolved, sorted by node."""
    mark = _held_at_least(state)
    return tuple(_replica_state(state, state.replicas[node], mark) for node in sorted(state.replicas))


def _replica_state(state: Recovery, one: Replica, mark: int) -> ReplicaState:
    if one.in_session:
        return ReplicaState(state.partition, one.node, state.session_id, UNRESOLVED)
    if one.last is None:
        return ReplicaState(state.partition, one.node, state.latest_session, mark)
    if one.last.closing_high_water_mark != UNRESOLVED:
        return one.last
    # one that missed a session is cut to its own low-water mark: its storage's session is older than what stands here
    return replace(one.last, session_id=state.latest_session, closing_high_water_mark=mark)


def _conclude(state: Recovery, actions: list[Action]) -> tuple[Recovery, tuple[Action, ...]]:
    """Metadata once a quorum is recovered, and behind it the session, and whoever comes late."""
    if len(state.recovered) < state.quorum and not state.is_open:
        return state, tuple(actions)
    wanted = replica_states(state)
    if state.writing is None and wanted != state.written:
        actions.append(WriteMetadata(wanted))
        state = replace(state, writing=wanted)
    recorded = {one.node for one in state.written or () if one.session_id == state.session_id}
    ready = [node for node in state.recovered if node in recorded and not state.replicas[node].joined]
    if not state.is_open and len(ready) >= state.quorum:
        actions.append(Open(_held_at_least(state), tuple(ready)))
        state = replace(state, is_open=True)
    elif state.is_open:
        actions += [Join(node) for node in ready]
    else:
        ready = []
    for node in ready:
        state = _with(state, replace(state.replicas[node], joined=True))
    return state, tuple(actions)


def waits_for(state: Recovery) -> str:
    """Why the session is not open, for people: who is missing, and what it would decide; empty when nothing is waited for."""
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
