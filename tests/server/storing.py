"""Storage nodes that run in this process, and store sessions over them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.builders import build_directory
from tests.node.running import node_options
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import ConcurrentUpdateError, PeerUnreachableError
from waltzctl.engine.node.node import Node
from waltzctl.engine.server.server_settings import SessionOptions
from waltzctl.engine.server.storage_nodes import StorageNodes
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import PackedRecords, WireRecord
from waltzctl.formats.znodes import PartitionMetadata, ReplicaState

LOG = logging.getLogger("waltzctl.test")
PARTITION = 1


@dataclass
class Cluster:
    """Nodes by name."""

    paths: dict[str, Path]
    nodes: dict[str, Node] = field(default_factory=dict)
    metadata: PartitionMetadata = field(default_factory=PartitionMetadata)
    session_id: int = 10

    async def start(self, name: str, **options: Any) -> None:
        chosen = node_options(self.paths[name], port=0, admin_port=0, http_port=None, **options)
        self.nodes[name] = await Node.start(chosen, log=LOG, version="test")

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).stop(5.0)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.paths)

    async def connect(self, name: str) -> StorageClient:
        if name not in self.nodes:
            raise PeerUnreachableError(name, "nobody answers")
        where = self.nodes[name].addresses
        return await StorageClient.connect(where.host, where.port, ssl_context=None, timeout=20.0)

    @contextlib.asynccontextmanager
    async def session(
        self, options: SessionOptions | None = None, names: Iterable[str] = ()
    ) -> AsyncIterator[StoreSession]:
        """The partition's next session, with connections of its own."""
        self.session_id += 1
        mine = self.session_id
        self.metadata = PartitionMetadata(1, mine, self.metadata.replicas)

        async def write(replicas: tuple[ReplicaState, ...]) -> None:
            await asyncio.sleep(0)
            if self.metadata.session_id != mine:
                raise ConcurrentUpdateError(f"session {self.metadata.session_id} is later")
            self.metadata = PartitionMetadata(1, mine, replicas)

        connections = StorageNodes(self.connect, log=LOG)
        quick = options or SessionOptions(first_retry=0.01, longest_retry=0.05)
        session = StoreSession(
            mine, self.metadata, PARTITION, tuple(names) or self.names, connections, write, log=LOG, options=quick
        )
        try:
            yield session
        finally:
            await session.close()
            await connections.close()


@contextlib.asynccontextmanager
async def running_cluster(path: Path, count: int = 3, partitions: int = 2) -> AsyncIterator[Cluster]:
    """So many nodes.  Their names stay; a node that starts again takes another free port, and is found there."""
    names = [f"node-{number}:1" for number in range(count)]
    paths = {
        name: build_directory(path / f"n{at}", dict.fromkeys(range(partitions), 0)) for at, name in enumerate(names)
    }
    cluster = Cluster(paths)
    try:
        for name in names:
            await cluster.start(name)
        yield cluster
    finally:
        for name in list(cluster.nodes):
            await cluster.stop(name)


def records(first: int, count: int, *, client: int = 1) -> list[WireRecord]:
    return [
        WireRecord.make(n, RequestId(client, 1, PARTITION, n), n % 7, f"{client}: transaction {n}".encode())
        for n in range(first, first + count)
    ]


def packed(first: int, count: int, *, client: int = 1) -> PackedRecords:
    """`records` as they are sent."""
    return PackedRecords.of(records(first, count, client=client))


async def held(cluster: Cluster, session_id: int) -> dict[str, list[WireRecord]]:
    """What every node that runs holds, read as that session."""
    found = {}
    for name in cluster.nodes:
        client = await cluster.connect(name)
        last = await client.max_transaction_id(session_id, PARTITION)
        found[name] = list(await client.records(session_id, PARTITION, 0, last + 1)) if last >= 0 else []
        await client.close()
    return found


async def committed(session: StoreSession, first: int, count: int) -> list[WireRecord]:
    """Committed records, as many as there are up to `count`: one answer has what its replica has acknowledged."""
    found: list[WireRecord] = []
    while len(found) < count and (more := await session.read(first + len(found), count - len(found))):
        found += more
    return found


async def until(condition: object, seconds: float = 20.0) -> None:
    """Wait for a condition of this process."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
