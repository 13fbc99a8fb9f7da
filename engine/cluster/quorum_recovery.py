"""Recovery of partitions that no log server has: a forecast, and the recovery itself.

The forecast runs the state machine of log servers (`engine.quorum.recovery`) on readings from the nodes' admin ports, which fence
off no session, and assumes that every action succeeds.  The recovery opens a store session as a server does: the session id in
the metadata is incremented, and the nodes admit no older session any more.  When recovery is complete the session is closed.  A
server that gets the partition later opens a session of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from waltzctl.engine.amounts import chosen_partitions
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.partition_readings import PartitionReading
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.cluster.cluster_answers import ask_nodes
from waltzctl.engine.errors import RefusedError, StalePlanError, StoreSessionClosedError
from waltzctl.engine.metadata.cluster_state import ClusterState, read_cluster_state
from waltzctl.engine.metadata.metadata_store import Check, MetadataStore
from waltzctl.engine.metadata.partition_sessions import PartitionSessions
from waltzctl.engine.quorum import recovery, recovery_actions, recovery_events
from waltzctl.engine.server.storage_nodes import StorageNodes, address_of
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.formats.znodes import SERVERS_PATH, PartitionMetadata, ReplicaState


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """One action; `from_transaction_id`, `to_transaction_id`: the first and last transaction that it cuts or copies."""

    action: str
    node: str
    partition: int
    reason: str
    from_transaction_id: int | None = None
    to_transaction_id: int | None = None
    loses_data: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """What recovery would do with a partition.

    `high_water_mark`: the mark at which its session would open; None if that is undecided.  `waits_for`: then the replicas that
    would decide it, or why no session can open.  `voters`: the replicas that vote, and the last transaction of each.
    """

    partition: int
    high_water_mark: int | None
    waits_for: str
    voters: tuple[tuple[str, int], ...]
    steps: tuple[RecoveryStep, ...]


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The forecasts of several partitions.  `served`: those left out because a log server has them and recovers them."""

    where: str
    forecasts: tuple[Forecast, ...]
    served: tuple[int, ...]

    @property
    def command(self) -> str:
        """The command that makes such a plan."""
        return "recover"

    @property
    def steps(self) -> tuple[RecoveryStep, ...]:
        """The steps of all partitions whose mark is decided."""
        return tuple(step for one in self.forecasts if one.high_water_mark is not None for step in one.steps)

    @property
    def hash(self) -> str:
        """SHA-256 of location and forecasts, hexadecimal."""
        return hashlib.sha256(repr((self.where, self.forecasts)).encode()).hexdigest()


Told = recovery_events.Connected | recovery_events.Failed
_NO_REPLICA = "no storage node is to hold it, so nobody can be asked: cluster assign says which"
_POLL_SECONDS = 0.01
"""Seconds between checks whether all connected replicas take part."""


def forecast(
    partition: int, metadata: PartitionMetadata, assigned: Sequence[str], told: Mapping[str, Told]
) -> Forecast:
    """What the next session's recovery would do; `told`: each assigned replica's reading, or why there is none, as an event."""
    state = recovery.begin(partition, metadata.session_id + 1, metadata, assigned)
    events: deque[recovery_events.Event] = deque(told[node] for node in assigned)
    answers_left = len(events)
    last = {node: one.max_transaction_id for node, one in told.items() if isinstance(one, recovery_events.Connected)}
    steps: list[RecoveryStep] = []
    voters: dict[str, int] = {}
    gave_up = ""
    while events:
        state, actions = recovery.step(state, events.popleft())
        answers_left -= 1
        voters |= {one.node: last[one.node] for one in state.replicas.values() if one.votes}
        for action in actions:
            match action:
                case recovery_actions.Truncate(node, kept):
                    if last[node] > kept:
                        why = (
                            f"what stands behind {kept} was never acknowledged, or a later session wrote on without it"
                        )
                        steps.append(RecoveryStep("truncate", node, partition, why, kept + 1, last[node]))
                    last[node] = min(last[node], kept)
                    events.append(recovery_events.Truncated(node, last[node]))
                case recovery_actions.Compare(node, _, _, end):
                    # assumed equal: only the recovery itself compares
                    events.append(recovery_events.Compared(node, end))
                case recovery_actions.Exclude(node, other, number):
                    events.append(recovery_events.Failed(node, f"transaction {number} there is not that of {other}"))
                case recovery_actions.CatchUp(node) if answers_left > 0:
                    # report that nothing was copied: a later answer may make the copy unnecessary
                    events.append(recovery_events.CaughtUp(node, last[node]))
                case recovery_actions.CatchUp(node, source, first, end):
                    why = f"from {source}, every checksum verified"
                    steps.append(RecoveryStep("copy", node, partition, why, first, end))
                    last[node] = end
                    events.append(recovery_events.CaughtUp(node, end))
                case recovery_actions.SetLowWaterMark(node, mark):
                    why = f"session {state.session_id} begins behind transaction {mark}"
                    steps.append(RecoveryStep("begin-session", node, partition, why, None, mark))
                    events.append(recovery_events.MarkSet(node))
                case recovery_actions.WriteMetadata():
                    events.append(recovery_events.MetadataWritten())
                case recovery_actions.GiveUp(reason):
                    gave_up = reason
                case recovery_actions.Open() | recovery_actions.Join():
                    pass
    resolved = state.resolved if state.is_open and not state.ended else None
    why = gave_up or recovery.waits_for(state)
    return Forecast(partition, resolved, why, tuple(sorted(voters.items())), tuple(steps))


async def plan_recovery(
    store: MetadataStore, reach: ConnectionFactory, partitions: Collection[int] | None = None
) -> RecoveryPlan:
    """Forecast the recovery of `partitions`, None: all that no live server has.

    Raises RefusedError if a live server has one of the named partitions, InvalidRequestError if one does not exist.
    """
    state = await read_cluster_state(store, ())  # a partition's metadata is read behind the answers of its nodes
    wanted = chosen_partitions(partitions, state.num_partitions)
    served = [number for number in wanted if state.owner_of(number) is not None]
    if partitions is not None and served:
        _refuse_served(state, served[0])
    told = await _ask(state, [number for number in wanted if state.owner_of(number) is None], reach)
    sessions = PartitionSessions(store)
    forecasts = []
    for number, answers in told.items():
        metadata, _ = await sessions.partition(number)
        if answers:
            forecasts.append(forecast(number, metadata, sorted(answers), answers))
        else:  # without storage nodes nothing is known; an empty list of steps would claim that nothing is to be done
            forecasts.append(Forecast(number, None, _NO_REPLICA, (), ()))
    return RecoveryPlan(store.where, tuple(forecasts), tuple(served))


def _refuse_served(state: ClusterState, partition: int) -> None:
    """Raise RefusedError if a live server has the partition."""
    owner = state.owner_of(partition)
    if owner is not None:
        raise RefusedError(
            f"partition {partition}: server {owner.server_id} at {owner.endpoint} has it and recovers it; nothing was done",
            advice="look at it with waltzctl cluster verify; stop the server first if it is to be recovered from here",
        )


def _unserved(store: MetadataStore, state: ClusterState, partition: int) -> Callable[[], Awaitable[Check]]:
    """What a session rests on that is begun for a partition without a server: nobody has been given the partition since.

    The generation tells of a server with another id only: one that comes back under its own has the generation of before.
    `state`: read before it was found that nobody has the partition.
    """

    async def check() -> Check:
        now = await store.exists(SERVERS_PATH)
        if now is None:  # the cluster is deleted
            return Check(SERVERS_PATH, state.assignment_version)
        if now.version != state.assignment_version:
            _refuse_served(await read_cluster_state(store, ()), partition)
        return Check(SERVERS_PATH, now.version)

    return check


async def _ask(state: ClusterState, partitions: Sequence[int], reach: ConnectionFactory) -> dict[int, dict[str, Told]]:
    """The event of each assigned node, for each of these partitions."""
    wanted = {*partitions}
    asked = [node for node in state.nodes if wanted & {*node.partitions}]
    found: dict[int, dict[str, Told]] = {number: {} for number in partitions}
    for answer in await ask_nodes(state, asked, reach, wanted):
        name, readings = answer.node.node, {one.partition: one for one in answer.partitions}
        for number in sorted(wanted & {*answer.node.partitions}):
            found[number][name] = (
                _event_of(name, readings[number])
                if answer.error is None
                else recovery_events.Failed(name, str(answer.error))
            )
    return found


def _event_of(node: str, one: PartitionReading) -> Told:
    if one.why_absent is not None:
        return recovery_events.Failed(node, one.why_absent)
    if one.session_id is None or one.low_water_mark is None or one.last_transaction_id is None:
        return recovery_events.Failed(node, "the node does not tell where it stands")
    return recovery_events.Connected(node, one.session_id, one.low_water_mark, one.last_transaction_id)


async def recover(
    store: MetadataStore,
    agreed: RecoveryPlan,
    reach: ConnectionFactory,
    *,
    timeout: float,
    log: logging.Logger,
    on_recovered: Callable[[int], None],
) -> None:
    """Apply an agreed plan.  `on_recovered` is called with each partition once recovered; `timeout`: seconds to open a session.

    Raises StalePlanError, before anything is done, if the plan would be different now; RefusedError, after all others have been
    recovered, if a session does not open.
    """
    # only decided forecasts were agreed to; the reason why another one is undecided may have changed since
    decided = tuple(one for one in agreed.forecasts if one.high_water_mark is not None)
    # read first: generations and assignment are those before the check, so that a server that comes behind it keeps its session
    state = await read_cluster_state(store, [one.partition for one in decided])
    again = await plan_recovery(store, reach, [one.partition for one in decided])
    if again.forecasts != decided:
        raise StalePlanError(
            f"{store.where}: the cluster has changed since the plan was made; nothing was done",
            advice="look at it again",
        )

    async def connect(node: str) -> StorageClient:
        return await reach.storage(address_of(node), cluster_key=state.cluster_key, num_partitions=state.num_partitions)

    nodes = StorageNodes(connect, log=log)
    failed: list[RefusedError] = []
    try:
        for one in decided:
            try:
                await _recover(store, one.partition, state, nodes, timeout, log)
            except RefusedError as error:
                failed.append(error)
            else:
                on_recovered(one.partition)
    finally:
        await nodes.close()
    if failed:
        raise RefusedError("; ".join(one.message for one in failed), advice=failed[0].advice)


async def _recover(
    store: MetadataStore, partition: int, state: ClusterState, nodes: StorageNodes, timeout: float, log: logging.Logger
) -> None:
    sessions, generation = PartitionSessions(store), state.metadata_of(partition).generation
    # fails if a server has raised the generation since, or has been given the partition
    begun = await sessions.begin_session(partition, generation, guard=_unserved(store, state, partition))

    async def write(replicas: tuple[ReplicaState, ...]) -> None:
        await sessions.write_replicas(partition, begun.session_id, replicas)

    session = StoreSession(
        begun.session_id, begun, partition, await sessions.assigned(partition), nodes, write, log=log
    )
    try:
        await session.open(timeout)
        # a quorum is enough: a replica that takes longer will copy in a server's session
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while session.is_open and session.late:
                    await asyncio.sleep(_POLL_SECONDS)
    except StoreSessionClosedError as error:
        raise RefusedError(
            str(error), advice="what was copied stays, and the same command goes on from there"
        ) from None
    finally:
        await session.close("it was only to recover")
