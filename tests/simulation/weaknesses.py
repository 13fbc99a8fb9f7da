"""Weaknesses of release 0.13.2 (`server.md`, V1 to V18) that concern safety, or whether it goes on, put back one at a time.

Each takes away, in the code that is tested, the one thing that mends it.  What else would be wrong in a server, and does not
happen in the release, stands below: a simulation that finds nothing proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pytest

from tests.simulation import nodes, real_nodes, world
from waltzctl.engine.client import client_connection, partition_mount
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.errors import SyncFailedError, WaltzError
from waltzctl.engine.metadata import cluster_changes
from waltzctl.engine.node import permissions
from waltzctl.engine.quorum import recovery, recovery_actions, recovery_state
from waltzctl.engine.scan.client_appends import numbered
from waltzctl.engine.server import locks, served_partition, store_partition, store_session
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.znodes import UNRESOLVED

Patch = pytest.MonkeyPatch


def v1_no_deadline(patch: Patch) -> None:
    """Nobody gives up on an answer that does not come.  Ten times as many do not come as elsewhere: two at once are needed."""
    real = nodes.Network.__init__

    def made(self: Any, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        self.deadline, self.stall = None, 0.02

    patch.setattr(nodes.Network, "__init__", made)


def v3_forgotten_when_the_session_closes(patch: Patch) -> None:
    """What waited behind a batch when the session closed is forgotten, and its locks stay."""
    real = served_partition.Partition._resolve

    async def resolve(self: Any, session: Any) -> None:
        while self._pending and self._pending[-1][0] > session.high_water_mark:
            self._pending.pop()
        await real(self, session)

    patch.setattr(served_partition.Partition, "_resolve", resolve)


def v5_the_first_failure_is_the_last(patch: Patch) -> None:
    """A partition whose first session does not come about takes no appends ever after."""
    real = store_partition.StorePartition._try

    async def attempt(self: Any) -> Any:
        first = self._last_error == "" and self._session is None
        try:
            return await real(self)
        except (WaltzError, OSError) as error:
            if first:
                self._closed = True
                raise asyncio.CancelledError from error
            raise

    patch.setattr(store_partition.StorePartition, "_try", attempt)


def v7_copies_are_not_verified(patch: Patch) -> None:
    """Records are copied whatever their checksum says."""

    async def copied(self: Any, source: str, first: int, count: int) -> Any:
        storage = await self.nodes.get(source)
        found = await storage.records(self.session_id, self.partition, first, min(count, self.options.copied))
        if not found:
            raise store_session.ProtocolError(source, "no record")
        return found

    patch.setattr(store_session.StoreSession, "copied", copied)


def v8_a_flush_is_left_alone(patch: Patch) -> None:
    """A partition that is closed does not answer its flushes."""

    async def close(self: Any) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()

    patch.setattr(served_partition.Partition, "close", close)


def v12_a_stop_waits_for_a_recovery(patch: Patch) -> None:
    """A partition is closed when the session that is being opened is there."""

    async def close(self: Any) -> None:
        self._closed = True
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._session is not None:
            await self._session.close("the partition was closed")

    patch.setattr(store_partition.StorePartition, "close", close)


def v14_undecided_batches_by_number(patch: Patch) -> None:
    """Whatever is below the new session's high-water mark counts as what was sent under its number."""
    real = served_partition.Partition._resolve

    async def resolve(self: Any, session: Any) -> None:
        if self._locks is not None and self._pending:
            while self._pending and self._pending[0][0] <= session.high_water_mark:
                first, item = self._pending.popleft()
                self._commit([(first, item)], numbered([item.records], first))
        await real(self, session)

    patch.setattr(served_partition.Partition, "_resolve", resolve)


def all_that_was_undecided_is_sent_again(patch: Patch) -> None:
    """Nobody looks whether it is in the log."""
    real = served_partition.Partition._resolve

    async def resolve(self: Any, session: Any) -> None:
        undecided = [item for _, item in self._pending]
        await real(self, session)
        self._queue.extendleft(item for item in reversed(undecided) if item not in self._queue)

    patch.setattr(served_partition.Partition, "_resolve", resolve)


def v16_a_majority_is_taken_away(patch: Patch) -> None:
    """Replicas are taken away however many stay."""
    patch.setattr(world, "refuse_without_quorum", lambda *_: None)
    patch.setattr(cluster_changes, "refuse_without_quorum", lambda *_: None)


def v16_an_assignment_changes_under_a_session(patch: Patch) -> None:
    """What a session writes of its replicas is not guarded by the assignment that it was opened with."""
    real = world.Metadata.__init__

    def init(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self.guards_assignment = False

    patch.setattr(world.Metadata, "__init__", init)


def v17_open_before_the_metadata(patch: Patch) -> None:
    """A session takes appends as soon as a quorum is recovered, whether or not the metadata says so."""
    real = recovery._complete

    def conclude(state: Any, actions: Any) -> Any:
        wanted = recovery.replica_states(state) if state.resolved is not None else ()
        known = state.written
        made, done = real(replace(state, written=wanted) if len(state.recovered) >= state.quorum else state, actions)
        if len(state.recovered) >= state.quorum and state.writing is None and known != wanted:
            done = (*done, recovery_actions.WriteMetadata(wanted))
            made = replace(made, writing=wanted)
        return replace(made, written=known), done

    patch.setattr(recovery, "_complete", conclude)


# ---- what is not in the release ----------------------------------------------------------------------------------------


def fences_are_ignored(patch: Patch) -> None:
    """Nodes let an earlier session write."""
    real = nodes.Link._ask

    async def ask(self: Any, session_id: int, number: int, do: Any) -> Any:
        return await real(self, max(session_id, self._node.replica(number).fence), number, do)

    patch.setattr(nodes.Link, "_ask", ask)


def half_is_a_quorum(patch: Patch) -> None:
    """A batch is committed when half of the replicas have it."""
    patch.setattr(store_session, "quorum_of", lambda count: max(1, count // 2))


def marks_are_set_before_a_quorum_keeps_them(patch: Patch) -> None:
    """What was resolved with copies that the next session cuts counts as resolved for good.

    And no session asks what marks the replicas had before it: who does resolves nothing below such a mark.
    """
    patch.setattr(recovery_state.Recovery, "is_kept", True)
    real = recovery._connected

    def connected(state: Any, event: Any) -> Any:
        made = real(state, event)
        known = replace(made.replicas[event.node], low_water_mark=-1)
        return replace(made, replicas=MappingProxyType({**made.replicas, event.node: known}))

    patch.setattr(recovery, "_connected", connected)


def the_highest_is_kept(patch: Patch) -> None:
    """The vote does not wait for who may hold more."""
    real = recovery.resolve

    def resolve(held: Sequence[int], *, absent: int, quorum: int, lowest: int) -> int | None:
        return real(held, absent=0, quorum=quorum, lowest=lowest) if len(held) >= quorum else None

    patch.setattr(recovery, "resolve", resolve)


def a_new_replica_votes(patch: Patch) -> None:
    """A replica that the metadata does not name counts like the others."""
    real = recovery.begin

    def begin(number: int, session_id: int, metadata: Any, assigned: Any) -> Any:
        made = real(number, session_id, metadata, assigned)
        known = {
            node: one if one.last else replace(one, last=recovery.ReplicaState(number, node, -1, UNRESOLVED))
            for node, one in made.replicas.items()
        }
        return replace(made, replicas=MappingProxyType(known))

    patch.setattr(recovery, "begin", begin)


def a_replica_that_was_away_is_new(patch: Patch) -> None:
    """As in the release: who was named as new begins empty, so that it is cut to the mark which was resolved without it."""
    real_connected, real_state = recovery._connected, recovery._replica_state

    def connected(state: Any, event: Any) -> Any:
        one = state.replicas[event.node]
        if one.last is not None and one.last.session_id < 0 and one.last.closing_high_water_mark != UNRESOLVED:
            known = replace(one, last=replace(one.last, session_id=min(0, event.session_id)))
            state = replace(state, replicas=MappingProxyType({**state.replicas, event.node: known}), latest_session=-1)
            known_too = real_connected(state, event).replicas[event.node]
            cut_to = one.last.closing_high_water_mark
            phase = (
                recovery_state.Phase.PUBLISHED if event.max_transaction_id <= cut_to else recovery_state.Phase.CUTTING
            )
            found = replace(known_too, last=one.last, cut_to=cut_to, phase=phase, votes=False)
            return replace(state, replicas=MappingProxyType({**state.replicas, event.node: found}))
        return real_connected(state, event)

    def replica_state(state: Any, one: Any, mark: int) -> Any:
        made = real_state(state, one, mark)
        return replace(made, session_id=-1) if one.last is None and not one.in_session else made

    patch.setattr(recovery, "_connected", connected)
    patch.setattr(recovery, "_replica_state", replica_state)


def what_was_lost_was_never_held(patch: Patch) -> None:
    """A replica whose disk was replaced votes against what it may have acknowledged, as in the release."""
    real = recovery.resolve

    def resolve(held: Any, **named: Any) -> int | None:
        return real(held, **named | {"lost": ()})

    patch.setattr(recovery, "resolve", resolve)


def a_lost_storage_votes(patch: Patch) -> None:
    """A replica whose storage is of an earlier session than the metadata says votes."""
    real = recovery._connected

    def connected(state: Any, event: Any) -> Any:
        last = state.replicas[event.node].last
        if last is not None and event.session_id < last.session_id:
            event = replace(event, session_id=last.session_id)
        return real(state, event)

    patch.setattr(recovery, "_connected", connected)


def nothing_is_cut(patch: Patch) -> None:
    """What a replica holds beyond the mark stays."""
    real = recovery._next_action

    def following(state: Any, one: Any) -> Any:
        made = real(state, one)
        if isinstance(made, recovery_actions.Truncate) and one.phase is not recovery_state.Phase.CUTTING:
            return recovery_actions.SetLowWaterMark(one.node, made.transaction_id)
        return made

    patch.setattr(recovery, "_next_action", following)


def locks_are_forgotten(patch: Patch) -> None:
    """A later session begins with a table in which nobody has written."""
    real = locks.LockTable.reset
    patch.setattr(locks.LockTable, "reset", lambda self, mark: real(self, -1))


def a_batch_overtakes(patch: Patch) -> None:
    """A batch is committed when its quorum is there, whatever became of the ones before."""

    def written(self: Any, node: str, last: int) -> None:
        for batch in self._undecided:
            if batch.last > last:
                break
            batch.voters |= {*self._replicas}
        self._decide()

    patch.setattr(store_session.StoreSession, "written", written)


def a_client_sends_again_too_soon(patch: Patch) -> None:
    """An append whose connection is lost counts as failed, and is sent again by the next mount."""
    real = partition_mount.Mount.lost

    def lost(self: Any) -> None:
        real(self)
        while self._undecided.sent:
            self._undecided.fail_oldest()

    patch.setattr(partition_mount.Mount, "lost", lost)


# ---- nodes ------------------------------------------------------------------------------------------------------------


def answered_before_it_is_durable(patch: Patch) -> None:
    """A node answers appends without waiting for its disk."""
    real = WritableFile.sync

    def sync(self: Any) -> None:
        if self.path.suffix != ".seg":
            real(self)

    patch.setattr(WritableFile, "sync", sync)


def an_old_session_writes(patch: Patch) -> None:
    """A node asks nobody for his session."""
    real = permissions.check

    def check(state: Any, *, session_id: int, offline: bool, access: Any) -> Any:
        return real(state, session_id=max(session_id, state.session), offline=offline, access=access)

    patch.setattr(permissions, "check", check)


def marks_are_not_durable(patch: Patch) -> None:
    """A node answers that a session has begun without waiting for its disk."""
    real = WritableFile.sync

    def sync(self: Any) -> None:
        if self.path.name != CONTROL_FILE_NAME:
            real(self)

    patch.setattr(WritableFile, "sync", sync)


def a_failed_sync_is_believed(patch: Patch) -> None:
    """A node takes a sync that failed for one that did not."""
    real = WritableFile.sync

    def sync(self: Any) -> None:
        with contextlib.suppress(SyncFailedError):
            real(self)

    patch.setattr(WritableFile, "sync", sync)


def silence_is_waited_for(patch: Patch) -> None:
    """A connection from which nothing comes any more is kept until the system gives it up."""

    class Hearing(client_connection.NodePortConnection[Any]):
        @property
        def _heard(self) -> float:
            return self._loop.time()

        @_heard.setter
        def _heard(self, when: float) -> None:
            pass

    patch.setattr(real_nodes, "NodePortConnection", Hearing)


@dataclass(frozen=True, slots=True)
class Weakness:
    """`name` in the list of weaknesses, or a word of ours.

    `where`: the world that finds it, in `most` histories; `near`: the seed to begin at, so that it takes a moment.  Which one
    that is changes with the code: ``python -m tests.simulation.test_weaknesses`` says where each is found now.
    """

    name: str
    put_back: Callable[[Patch], None]
    near: int
    where: str = "partition"
    most: int = 600


WEAKNESSES = (
    Weakness("V1", v1_no_deadline, 132),
    Weakness("V3", v3_forgotten_when_the_session_closes, 15),
    Weakness("V5", v5_the_first_failure_is_the_last, 9),
    Weakness("V7", v7_copies_are_not_verified, 47),
    Weakness("V8", v8_a_flush_is_left_alone, 0),
    Weakness("V12", v12_a_stop_waits_for_a_recovery, 0),
    Weakness("V14", v14_undecided_batches_by_number, 26),
    Weakness("undecided-twice", all_that_was_undecided_is_sent_again, 8),
    Weakness("V16", v16_a_majority_is_taken_away, 18),
    Weakness("V16-race", v16_an_assignment_changes_under_a_session, 177),
    Weakness("V17", v17_open_before_the_metadata, 36),
    Weakness("fence", fences_are_ignored, 8),
    Weakness("quorum", half_is_a_quorum, 10),
    Weakness("absent", the_highest_is_kept, 13),
    Weakness("lasting", marks_are_set_before_a_quorum_keeps_them, 6_691, "storage", most=6_700),
    Weakness("new-votes", a_new_replica_votes, 297),
    Weakness("given-back", a_replica_that_was_away_is_new, 341, most=1_000),
    Weakness("lost-votes", a_lost_storage_votes, 78),
    Weakness("lost-counts", what_was_lost_was_never_held, 313),
    Weakness("uncut", nothing_is_cut, 41),
    Weakness("locks", locks_are_forgotten, 0),
    Weakness("overtaken", a_batch_overtakes, 19),
    Weakness("sent-again", a_client_sends_again_too_soon, 14, "cluster"),
    Weakness("unsynced", answered_before_it_is_durable, 1, "storage"),
    Weakness("old-session", an_old_session_writes, 41, "storage"),
    Weakness("marks", marks_are_not_durable, 7, "storage"),
    Weakness("failed-sync", a_failed_sync_is_believed, 109, "storage"),
    Weakness("silence", silence_is_waited_for, 501, "cluster"),
)
