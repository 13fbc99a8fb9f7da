"""A cluster of which only what its nodes and servers say exists: for whoever asks them and judges."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.errors import PeerUnreachableError, RefusedError, WaltzError
from waltzctl.engine.metadata.cluster_changes import add_node, assign
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.cluster_state import (
    ClusterState,
    NodeState,
    PartitionState,
    ReplicaInSession,
    ServerState,
)
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE
from waltzctl.formats.znodes import PARTITION_PATH, UNRESOLVED, AssignedPartition, PartitionMetadata, ReplicaState

KEY = uuid.UUID(int=7)
PARTITIONS = 2
SESSION = 5


@dataclass
class ToldNode:
    """`ends`: the last transaction of each partition, look by look, the last one for ever; an error: it does not answer.

    `out`: what keeps a partition out of sessions; `off`: those switched off; `sessions`: their storages' sessions, where another.
    """

    ends: dict[int, Sequence[int | WaltzError]]
    out: dict[int, str] = field(default_factory=dict)
    off: set[int] = field(default_factory=set)
    sessions: dict[int, int] = field(default_factory=dict)
    looks: int = 0
    address: str = "node:2"

    def _end(self, partition: int) -> int:
        ends = self.ends[partition]
        end = ends[min(self.looks, len(ends)) - 1]
        if isinstance(end, WaltzError):
            raise end
        return end

    async def assigned_status(self) -> tuple[tuple[int, bool], ...]:
        self.looks += 1
        return tuple((number, number not in self.off) for number in sorted(self.ends))

    async def metrics(self) -> str:
        found: dict[str, Any] = {}
        for number in self.ends:
            flags = FLAG_ASSIGNED | (0 if number in self.off else FLAG_AVAILABLE)
            told = {
                "flags": flags,
                "session-id": self.sessions.get(number, SESSION),
                "low-water-mark": 0,
                "local-low-water-mark": 0,
                "max-transaction-id": self._end(number),
            }
            if number in self.out:
                told["out-of-service"] = cast("Any", self.out[number])
            found |= {f"waltz-storage.partition-{number}.{name}": {"value": value} for name, value in told.items()}
        return json.dumps({"gauges": found})


@dataclass
class ToldServer:
    """`marks`: of the partitions that have a session; `silent`: those whose mark it does not tell."""

    marks: Mapping[int, int]
    partitions_: Sequence[int] = (0, 1)
    silent: Mapping[int, WaltzError] = field(default_factory=dict)
    tells_health: bool = True
    asked: list[int] = field(default_factory=list)
    tried: int = 0

    async def partitions(self) -> tuple[int, ...]:
        return tuple(self.partitions_)

    async def connectivity(self) -> tuple[tuple[str, bool], ...]:
        self.tried += 1
        return ()

    async def health(self) -> tuple[tuple[int, bool], ...]:
        if not self.tells_health:
            raise RefusedError("version 0 does not tell")
        return tuple((number, number in self.marks or number in self.silent) for number in self.partitions_)

    async def high_water_mark(self, partition: int) -> int:
        self.asked.append(partition)
        if partition in self.silent:
            raise self.silent[partition]
        return self.marks[partition]


class ToldCluster:
    """Nodes ``n0:1``, ``n1:1``, ... that hold everything, and one server that has it."""

    def __init__(self, *nodes: ToldNode | None, server: ToldServer | None) -> None:
        """None: it does not answer."""
        self.nodes, self.server_ = nodes, server
        names = [f"n{number}:1" for number in range(len(nodes))]
        held = tuple(range(PARTITIONS))
        replicas = tuple(ReplicaInSession(name, SESSION, None) for name in names)
        self.state = ClusterState(
            "demo",
            KEY,
            PARTITIONS,
            tuple(NodeState(name, 2, number, held) for number, name in enumerate(names)),
            (ServerState(1, "s:1", (), tuple(AssignedPartition(number, 1) for number in held)),),
            True,
            tuple(PartitionState(number, 1, SESSION, replicas) for number in held),
        )

    @property
    def reach(self) -> ConnectionFactory:
        return cast("ConnectionFactory", self)

    async def write_metadata(self, store: MetadataStore) -> None:
        """Make the cluster whose metadata says what `state` does of its nodes, partitions and replicas."""
        await create_cluster(store, name="demo", num_partitions=PARTITIONS, cluster_key=KEY)
        for node in self.state.nodes:
            await add_node(store, node.node, admin_port=2, group=node.group or 0)
            await assign(store, node.node, node.partitions)
        for one in self.state.partitions:
            replicas = tuple(
                ReplicaState(
                    one.partition,
                    replica.node,
                    replica.session_id,
                    UNRESOLVED if replica.closing_high_water_mark is None else replica.closing_high_water_mark,
                )
                for replica in one.replicas
            )
            written = PartitionMetadata(one.generation, one.session_id, replicas).encode()
            await store.create(f"{PARTITION_PATH}/{one.partition}", written)

    async def admin(self, address: Address, *, cluster_key: uuid.UUID, num_partitions: int) -> Any:
        assert (address.port, cluster_key, num_partitions) == (2, KEY, self.state.num_partitions)
        return _answering(str(address), self.nodes[int(address.host[1:])])

    async def server(self, address: Address) -> Any:
        assert str(address) == "s:1"
        return _answering(str(address), self.server_)


@contextlib.asynccontextmanager
async def _answering(name: str, one: ToldNode | ToldServer | None) -> AsyncIterator[Any]:
    if one is None:
        raise PeerUnreachableError(name, "nobody listens")
    yield one
