"""What the storage nodes and log servers of a cluster say of themselves; who gives no answer, why.

Nodes are asked at their admin ports, which need no session and shut nobody out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.partition_readings import PartitionReading, read_partitions
from waltzctl.engine.client.server_client import ServerClient
from waltzctl.engine.cluster.synchronisation import admin_address
from waltzctl.engine.errors import DeadlineError, RefusedError, WaltzError
from waltzctl.engine.metadata.cluster_state import ClusterState, NodeState, ServerState
from waltzctl.engine.net.addresses import parse_address
from waltzctl.formats.wire.client import UNKNOWN_HIGH_WATER_MARK

_AT_ONCE = 256
"""High-water marks that one server is asked for at the same time."""
_MARK_SECONDS = 5.0
"""How long one is waited for: a server that answers has them in memory."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a storage node said of the partitions that it was asked for."""

    node: NodeState
    partitions: tuple[PartitionReading, ...] = ()
    error: WaltzError | None = None


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What a log server said: its partitions, whether each has a session, and the marks of those that have one.

    `health`: None where the server speaks a version that does not tell.  `connectivity`: whether it reaches each storage node,
    as far as it was asked.
    """

    server: ServerState
    partitions: tuple[int, ...] = ()
    health: tuple[tuple[int, bool], ...] | None = None
    marks: tuple[tuple[int, int], ...] = ()
    connectivity: tuple[tuple[str, bool], ...] = ()
    error: WaltzError | None = None


async def ask_nodes(
    state: ClusterState,
    nodes: Sequence[NodeState],
    reach: ConnectionFactory,
    partitions: Collection[int] | None = None,
) -> list[NodeAnswer]:
    """All at the same time.  `partitions`: None for those that each holds; of others, that it does not hold them."""
    return await asyncio.gather(*(_ask_node(state, node, reach, partitions) for node in nodes))


async def _ask_node(
    state: ClusterState, node: NodeState, reach: ConnectionFactory, partitions: Collection[int] | None
) -> NodeAnswer:
    try:
        async with await reach.admin(
            admin_address(node), cluster_key=state.cluster_key, num_partitions=state.num_partitions
        ) as client:
            return NodeAnswer(node, await read_partitions(client, partitions))
    except WaltzError as error:
        return NodeAnswer(node, error=error)


async def ask_servers(
    state: ClusterState, reach: ConnectionFactory, marks_of: Collection[int], *, connectivity: bool
) -> list[ServerAnswer]:
    """All at the same time.  `marks_of`: the partitions whose marks are wanted; `connectivity`: whether they try the nodes."""
    return await asyncio.gather(*(_ask_server(server, reach, marks_of, connectivity) for server in state.servers))


async def _ask_server(
    server: ServerState, reach: ConnectionFactory, marks_of: Collection[int], connectivity: bool
) -> ServerAnswer:
    try:
        async with await reach.server(parse_address(server.endpoint)) as client:
            partitions = await client.partitions()
            reached = await client.connectivity() if connectivity else ()
            try:
                health = await client.health()
            except RefusedError:
                return ServerAnswer(server, partitions, connectivity=reached)
            sessions = [number for number, well in health if well and number in marks_of]
            return ServerAnswer(server, partitions, health, await _marks(client, sessions), reached)
    except WaltzError as error:
        return ServerAnswer(server, error=error)


async def _marks(client: ServerClient, partitions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for first in range(0, len(partitions), _AT_ONCE):
        some = partitions[first : first + _AT_ONCE]
        marks = await asyncio.gather(*(_mark(client, number) for number in some))
        found += [(number, mark) for number, mark in zip(some, marks, strict=True) if mark != UNKNOWN_HIGH_WATER_MARK]
    return tuple(found)


async def _mark(client: ServerClient, partition: int) -> int:
    try:
        async with asyncio.timeout(_MARK_SECONDS):
            return await client.high_water_mark(partition)
    except (DeadlineError, TimeoutError):
        # it went to another server just now, and who does not have one says nothing of it
        return UNKNOWN_HIGH_WATER_MARK
