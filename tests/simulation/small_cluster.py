"""One log server over three storage nodes, and a client, in virtual time and without any fault: scenes for other tests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.client.told_servers import Directory
from tests.server.serving import Stored
from tests.simulation.nodes import Network
from tests.simulation.pipes import Pipe, Way, connect, greeted
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.errors import PeerUnreachableError
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.outbox import Outbox
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.server_settings import ServerOptions, SessionOptions
from waltzctl.formats.znodes import PartitionMetadata, ReplicaState

LOG = logging.getLogger("waltzctl.test")
NAMES = ("n0:1", "n1:1", "n2:1")
PARTITIONS = 2
OPTIONS = ClientOptions(timeout=30.0, in_flight=2, first_retry=0.01, nudge=1.0)
_SECONDS = 0.001
"""A call to the metadata, there and back."""


class _Travelling(Stored):
    """Metadata that are asked over a network."""

    async def assigned(self, partition: int) -> tuple[str, ...]:
        await asyncio.sleep(_SECONDS)
        return await super().assigned(partition)

    async def nodes(self) -> frozenset[str]:
        await asyncio.sleep(_SECONDS)
        return await super().nodes()

    async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
        await asyncio.sleep(_SECONDS)
        made = await super().begin_session(partition, generation)
        await asyncio.sleep(_SECONDS)
        return made

    async def write_replicas(self, partition: int, session_id: int, replicas: tuple[ReplicaState, ...]) -> None:
        await asyncio.sleep(_SECONDS)
        await super().write_replicas(partition, session_id, replicas)


class _Numbering(Directory):
    """A directory whose client ids are asked for over a network."""

    async def client_id(self) -> int:
        await asyncio.sleep(_SECONDS)
        return await super().client_id()


@dataclass
class SmallCluster:
    """`connections`: all that the client ever opened; `pipes`: their ends here."""

    network: Network
    metadata: Stored
    server: LogServer
    directory: Directory
    client: LogClient = field(init=False)
    connections: list[LogConnection] = field(default_factory=list)
    pipes: list[Pipe] = field(default_factory=list)

    async def reach(self, address: Address) -> LogConnection:
        """See `partition_mount.Connect`."""
        await asyncio.sleep(_SECONDS)
        if address.host != "here":
            raise PeerUnreachableError(str(address), "nobody answers")
        made = LogConnection(PORT, address, timeout=5.0, keep_alive_seconds=1e6)
        self.connections.append(made)
        try:
            there = self.server.port._connection("a client")
            self.pipes.append(connect(made, there, self.network.chance, Way()))
            await greeted(made, str(address))
        except BaseException:
            made._give_up()
            raise
        return made

    def cut(self) -> None:
        """All connections of the client are lost."""
        for pipe in self.pipes:
            pipe.cut()

    def new_client(self) -> LogClient:
        """One that is not entered."""
        return LogClient(self.directory, self.reach, log=LOG, options=OPTIONS)

    def held(self, partition: int = 0) -> list[bytes]:
        """Data of the transactions that a node holds; which node does not matter where all are up."""
        logs = [node.replica(partition).log for node in self.network.nodes.values()]
        return [record.data for record in max(logs, key=len, default=[])]

    def links(self) -> int:
        """Connections of the server to storage nodes."""
        return sum(len(node.links) for node in self.network.nodes.values())


@contextlib.asynccontextmanager
async def small_cluster(*, served: bool = True) -> AsyncIterator[SmallCluster]:
    """A cluster whose server has its partitions (`served`), and nobody has asked it for anything."""
    network = Network(Random(1))
    for name in NAMES:
        network.node(name)
    cluster: Any = SimpleNamespace(names=NAMES)
    metadata = _Travelling(cluster)
    options = ServerOptions(metadata="simulated", session=SessionOptions(first_retry=0.01, longest_retry=0.5))
    server = LogServer(metadata, network.connect, log=LOG, options=options)
    server.port.loop = asyncio.get_running_loop()
    server.port.outbox = Outbox(server.port.loop, lambda: None)
    here = {number: PartitionServer("here", 1, 1) for number in range(PARTITIONS)}
    made = SmallCluster(network, metadata, server, _Numbering(num_partitions=PARTITIONS, servers=here))
    try:
        if served:
            await server.assign(dict.fromkeys(range(PARTITIONS), 1))
        yield made
    finally:
        await server.stop(1.0)
        network.end()


@contextlib.asynccontextmanager
async def with_client(*appended: bytes) -> AsyncIterator[SmallCluster]:
    """A cluster with a client that has appended this to partition 0, and is closed at the end."""
    async with small_cluster() as made, made.new_client() as made.client:
        for data in appended:
            await made.client.append(0, Draft(data))
        yield made
