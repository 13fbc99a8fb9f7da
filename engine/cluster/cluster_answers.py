"""Queries to all storage nodes and log servers of a cluster; each answer, or the error instead.

Nodes are asked at their admin ports: that needs no session, and does not fence off the session in force.
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

_MARKS_AT_ONCE = 256
"""High-water marks that are requested from one server at the same time."""
_MARK_SECONDS = 5.0
"""Seconds to wait for a high-water mark: a server that answers has it in memory."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """A storage node's readings of the partitions asked for, or the error."""

    node: NodeState
    partitions: tuple[PartitionReading, ...] = ()
    error: WaltzError | None = None


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """A log server's answers, or the error.

    `partitions`: those it serves.  `health`: for each partition whether it has a session; None if the server's protocol version
    lacks the request.  `marks`: (partition, high-water mark) of those with a session.  `connectivity`: for each storage node
    whether the server reaches it; empty if not asked.
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
    """Ask nodes, all at the same time.  `partitions`: None: all that a node holds; else a reading of each, held or not."""
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
    """Ask servers, all at the same time.  `marks_of`: partitions to read marks of; `connectivity`: have servers try the nodes."""
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
    for first in range(0, len(partitions), _MARKS_AT_ONCE):
        some = partitions[first : first + _MARKS_AT_ONCE]
        marks = await asyncio.gather(*(_mark(client, number) for number in some))
        found += [(number, mark) for number, mark in zip(some, marks, strict=True) if mark != UNKNOWN_HIGH_WATER_MARK]
    return tuple(found)


async def _mark(client: ServerClient, partition: int) -> int:
    try:
        async with asyncio.timeout(_MARK_SECONDS):
            return await client.high_water_mark(partition)
    except (DeadlineError, TimeoutError):
        # the partition has just moved to another server: a server does not answer for partitions that it does not have
        return UNKNOWN_HIGH_WATER_MARK
