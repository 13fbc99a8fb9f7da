"""The content of a cluster's metadata, as one value.

Inconsistent maps (for instance a node with partitions and no group, left by an interrupted tool of the release) are shown as they
are: a value that is missing is None.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from waltzctl.engine.metadata.membership import read_servers
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.metadata.partition_sessions import (
    PartitionSessions,
    cluster_parameters,
    read_payload,
    store_parameters,
)
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.quorum.vote import LastSession
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    CONNECTION_PATH,
    GROUP_PATH,
    UNRESOLVED,
    AssignedPartition,
    NodeAssignment,
    NodeConnections,
    NodeGroups,
    PartitionMetadata,
)

_AT_ONCE = 64
"""Partitions whose metadata is read at the same time."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A storage node, named by ``host:port`` of its data port.  None: the map of this value does not name the node."""

    node: str
    admin_port: int | None
    group: int | None
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServerState:
    """A registered log server, and the partitions that the assignment gives it."""

    server_id: int
    endpoint: str
    preferred: tuple[int, ...]
    partitions: tuple[AssignedPartition, ...]


@dataclass(frozen=True, slots=True)
class ReplicaInSession:
    """A replica in a partition's metadata; its closing high-water mark is None while unresolved."""

    node: str
    session_id: int
    closing_high_water_mark: int | None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's metadata; generation and session are -1 if no server has had it yet."""

    partition: int
    generation: int
    session_id: int
    replicas: tuple[ReplicaInSession, ...]

    @property
    def latest_session(self) -> int:
        """The latest session that any of its last replicas was in; -1 if none was in one."""
        return max((one.session_id for one in self.replicas), default=-1)

    @property
    def members(self) -> frozenset[str]:
        """The nodes of the replicas in the latest session whose closing high-water mark is unresolved."""
        latest = self.latest_session
        found = (one for one in self.replicas if one.session_id == latest and one.closing_high_water_mark is None)
        return frozenset(one.node for one in found if one.session_id >= 0)

    @property
    def last_session(self) -> LastSession | None:
        """The last replicas as `engine.quorum.vote` needs them; None if none was in a session."""
        latest = self.latest_session
        return None if latest < 0 else LastSession(latest, len(self.replicas), len(self.members))


@dataclass(frozen=True)  # no slots, because of cached_property
class ClusterState:
    """The state of a cluster; `partitions`: all, or those that were asked for.

    `assignment_is_current`: the assignment was made for the servers registered now.  `stored_partitions`: the metadata has the
    number of partitions twice; this is the one that log servers read, if it differs from `num_partitions`, which clients read.
    `assignment_version`: of the znode with the servers' assignment.
    """

    name: str
    cluster_key: uuid.UUID
    num_partitions: int
    nodes: tuple[NodeState, ...]
    servers: tuple[ServerState, ...]
    assignment_is_current: bool
    partitions: tuple[PartitionState, ...]
    stored_partitions: int | None = None
    assignment_version: int = field(default=-1, compare=False)

    @property
    def last_sessions(self) -> dict[int, LastSession]:
        """The last session of each partition that has had one."""
        found = ((one.partition, one.last_session) for one in self.partitions)
        return {number: session for number, session in found if session is not None}

    def metadata_of(self, partition: int) -> PartitionState:
        """The metadata of a partition that was asked for.  Raises KeyError for another one."""
        return self._by_number[partition]

    def nodes_of(self, partition: int) -> tuple[NodeState, ...]:
        """The storage nodes to which a partition is assigned."""
        return self._holders.get(partition, ())

    def owner_of(self, partition: int) -> ServerState | None:
        """The registered server to which a partition is assigned, if any."""
        return self._owners.get(partition)

    @cached_property
    def _by_number(self) -> Mapping[int, PartitionState]:
        return {one.partition: one for one in self.partitions}

    @cached_property
    def _holders(self) -> Mapping[int, tuple[NodeState, ...]]:
        found: dict[int, list[NodeState]] = {}
        for node in self.nodes:
            for partition in dict.fromkeys(node.partitions):
                found.setdefault(partition, []).append(node)
        return {partition: tuple(nodes) for partition, nodes in found.items()}

    @cached_property
    def _owners(self) -> Mapping[int, ServerState]:
        return {held.partition: server for server in reversed(self.servers) for held in server.partitions}


async def read_cluster_state(store: MetadataStore, only: Collection[int] | None = None) -> ClusterState:
    """Read the cluster's state; `only`: these partitions instead of all; those that do not exist are left out.

    Raises NotWaltzError, MismatchError, DamageError, PeerError.
    """
    parameters = await cluster_parameters(store)
    stored = await store_parameters(store)
    partitions: list[PartitionState] = []
    sessions = PartitionSessions(store)
    every = range(parameters.num_partitions)
    wanted = every if only is None else sorted(number for number in {*only} if number in every)
    for first in range(0, len(wanted), _AT_ONCE):
        numbers = wanted[first : first + _AT_ONCE]
        found = await asyncio.gather(*map(sessions.partition, numbers))
        partitions += [_partition(number, metadata) for number, (metadata, _) in zip(numbers, found, strict=True)]
    nodes = await _nodes(store)
    servers, is_current, version = await _servers(store)
    return ClusterState(
        parameters.name,
        stored.cluster_key,
        parameters.num_partitions,
        nodes,
        servers,
        is_current,
        tuple(partitions),
        None if stored.num_partitions == parameters.num_partitions else stored.num_partitions,
        version,
    )


def _partition(number: int, metadata: PartitionMetadata) -> PartitionState:
    replicas = tuple(
        ReplicaInSession(
            one.node, one.session_id, None if one.closing_high_water_mark == UNRESOLVED else one.closing_high_water_mark
        )
        for one in sorted(metadata.replicas, key=lambda replica: replica.node)
    )
    return PartitionState(number, metadata.generation, metadata.session_id, replicas)


async def _nodes(store: MetadataStore) -> tuple[NodeState, ...]:
    groups = {one.node: one.group for one in (await read_payload(store, GROUP_PATH, NodeGroups))[0].nodes}
    held = {one.node: one.partitions for one in (await read_payload(store, ASSIGNMENT_PATH, NodeAssignment))[0].nodes}
    connections = (await read_payload(store, CONNECTION_PATH, NodeConnections))[0].nodes
    ports = {one.node: one.admin_port for one in connections}
    return tuple(
        NodeState(name, ports.get(name), groups.get(name), tuple(sorted(held.get(name, ()))))
        for name in sorted({*groups, *held, *ports})
    )


async def _servers(store: MetadataStore) -> tuple[tuple[ServerState, ...], bool, int]:
    assignment, version, cversion, servers = await read_servers(store)
    owned = {one.server: one.partitions for one in assignment.servers}
    states = tuple(
        ServerState(
            one.server,
            str(Address(one.host, one.port)),
            one.preferred,
            tuple(sorted(owned.get(one.server, ()), key=lambda held: held.partition)),
        )
        for _, one in sorted(servers, key=lambda each: each[1].server)
    )
    return states, assignment.cversion == cversion, version
