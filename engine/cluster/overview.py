"""How a cluster does now: for each partition its server, its high-water mark and rate, and how far each replica is behind.

One look costs a request to each storage node (its metrics name every partition), two to each log server, and one for the
high-water mark of each partition, all at the same time; a node or server that does not answer is left out after the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from waltzctl.engine.client.addresses import parse_address
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.partition_readings import read_partitions
from waltzctl.engine.cluster.synchronisation import admin_address
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.metadata.cluster_state import ClusterState, NodeState, ServerState
from waltzctl.formats.wire.client import UNKNOWN_HIGH_WATER_MARK

_AT_ONCE = 256
"""High-water marks that one server is asked for at the same time."""


@dataclass(frozen=True, slots=True)
class ReplicaOverview:
    """A replica.  `last_transaction_id`: None where its node does not answer; `behind`: transactions that it lacks."""

    node: str
    last_transaction_id: int | None
    behind: int | None


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """A partition.  `rate`: transactions a second since the look before, None at the first.

    `waits_for`: the storage nodes that do not answer or have it out of service, where it has no session; empty otherwise.
    """

    partition: int
    server_id: int | None
    generation: int
    session_id: int
    high_water_mark: int | None
    rate: float | None
    healthy: bool
    waits_for: tuple[str, ...]
    replicas: tuple[ReplicaOverview, ...]


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """One look, at `time` of the loop."""

    time: float
    partitions: tuple[PartitionOverview, ...]
    nodes_answering: int
    nodes: int
    servers_answering: int
    servers: int


async def look(
    state: ClusterState,
    reach: ConnectionFactory,
    before: ClusterOverview | None = None,
    partitions: Collection[int] | None = None,
) -> ClusterOverview:
    """Ask everybody.  `before`: the look from which rates are counted; `partitions`: only these."""
    wanted = [one.partition for one in state.partitions if partitions is None or one.partition in partitions]
    nodes = asyncio.gather(*(_ask_node(state, node, reach) for node in state.nodes))
    servers = asyncio.gather(*(_ask_server(server, reach, {*wanted}) for server in state.servers))
    held = dict(zip((node.node for node in state.nodes), await nodes, strict=True))
    served = dict(zip((server.server_id for server in state.servers), await servers, strict=True))
    now = asyncio.get_running_loop().time()
    known = {} if before is None else {one.partition: one.high_water_mark for one in before.partitions}
    elapsed = 0.0 if before is None else now - before.time
    found = []
    for number in wanted:
        owner = state.owner_of(number)
        answer = None if owner is None else served[owner.server_id]
        mark = None if answer is None else answer.get(number)
        found.append(_partition(state, number, owner, mark, held, _rate(mark, known.get(number), elapsed)))
    return ClusterOverview(
        now,
        tuple(found),
        sum(one is not None for one in held.values()),
        len(held),
        sum(one is not None for one in served.values()),
        len(served),
    )


def _rate(now: int | None, then: int | None, seconds: float) -> float | None:
    return None if now is None or then is None or seconds <= 0 else max(0, now - then) / seconds


def _partition(
    state: ClusterState,
    number: int,
    owner: ServerState | None,
    mark: int | None,
    held: Mapping[str, Mapping[int, int | None] | None],
    rate: float | None,
) -> PartitionOverview:
    replicas, absent = [], []
    for node in state.nodes_of(number):
        answer = held[node.node]
        last = None if answer is None else answer.get(number)
        if last is None:
            absent.append(node.node)
        behind = None if last is None or mark is None else max(0, mark - last)
        replicas.append(ReplicaOverview(node.node, last, behind))
    metadata = state.partitions[number]
    return PartitionOverview(
        number,
        None if owner is None else owner.server_id,
        metadata.generation,
        metadata.session_id,
        mark,
        rate,
        mark is not None,
        () if mark is not None else tuple(absent),
        tuple(replicas),
    )


async def _ask_node(state: ClusterState, node: NodeState, reach: ConnectionFactory) -> dict[int, int | None] | None:
    """The last transaction of each partition that is at work there; None where it does not answer."""
    try:
        async with await reach.admin(
            admin_address(node), cluster_key=state.cluster_key, num_partitions=state.num_partitions
        ) as client:
            readings = await read_partitions(client, None)
    except WaltzError:
        return None
    return {one.partition: one.last_transaction_id for one in readings if one.available and one.out_of_service is None}


async def _ask_server(server: ServerState, reach: ConnectionFactory, wanted: Collection[int]) -> dict[int, int] | None:
    """The high-water mark of each partition that has a session there; None where it does not answer."""
    try:
        async with await reach.server(parse_address(server.endpoint)) as client:
            healthy = [number for number, well in await client.health() if well and number in wanted]
            marks: dict[int, int] = {}
            for first in range(0, len(healthy), _AT_ONCE):
                some = healthy[first : first + _AT_ONCE]
                marks |= dict(zip(some, await asyncio.gather(*map(client.high_water_mark, some)), strict=True))
    except WaltzError:
        return None
    return {number: mark for number, mark in marks.items() if mark != UNKNOWN_HIGH_WATER_MARK}
