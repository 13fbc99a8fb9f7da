"""A log server over storage nodes, all in this process, and a client of it that is nothing but a socket and frames."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.server.storing import LOG, PARTITION, Cluster, running_cluster
from waltzctl.engine.errors import ConcurrentUpdateError
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.server_settings import ServerOptions, SessionOptions
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import FrameReader, Magic
from waltzctl.formats.wire.hello import WALTZ_CLIENT, Hello
from waltzctl.formats.znodes import PartitionMetadata, ReplicaState

M = TypeVar("M")
QUICK = ServerOptions(session=SessionOptions(first_retry=0.01, longest_retry=0.05))


@dataclass
class Stored:
    """The metadata of all partitions, as several servers of this process share it."""

    cluster: Cluster
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)

    async def assigned(self, partition: int) -> tuple[str, ...]:
        return self.cluster.names

    async def nodes(self) -> frozenset[str]:
        return frozenset(self.cluster.names)

    async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
        known = self.partitions.get(partition, PartitionMetadata(-1, 10))
        if known.generation > generation:
            raise ConcurrentUpdateError(f"partition {partition}: generation {known.generation} is later")
        self.partitions[partition] = PartitionMetadata(generation, known.session_id + 1, known.replicas)
        return self.partitions[partition]

    async def write_replicas(self, partition: int, session_id: int, replicas: tuple[ReplicaState, ...]) -> None:
        known = self.partitions[partition]
        if known.session_id != session_id:
            raise ConcurrentUpdateError(f"partition {partition}: session {known.session_id} is later")
        self.partitions[partition] = PartitionMetadata(known.generation, session_id, replicas)


@dataclass
class Serving:
    cluster: Cluster
    metadata: Stored
    servers: list[tuple[LogServer, str, int]] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    async def server(self, generation: int = 1, options: ServerOptions = QUICK) -> LogServer:
        made = LogServer(self.metadata, self.cluster.connect, log=LOG, options=options)
        host, port = await made.start("127.0.0.1", 0, None)
        await made.assign({PARTITION: generation})
        self.servers.append((made, host, port))
        return made

    async def client(self, client: int = 7, version: int = 4, server: int = 0) -> Client:
        _, host, port = self.servers[server]
        reader, writer = await asyncio.open_connection(host, port)
        made = Client(reader, writer, client, version)
        self.clients.append(made)
        writer.write(Hello((version,), WALTZ_CLIENT).encode())
        assert (await made.hello()).versions == wire.CLIENT_VERSIONS
        return made


class Client:
    """One connection of a client; `version`: of the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: int, version: int) -> None:
        self.reader, self.writer, self.client, self.version = reader, writer, client, version
        self._frames, self._sequence = FrameReader(), 0
        self.position = -1
        self.mounted = RequestId(client, 1, PARTITION, 0)

    def next_id(self) -> RequestId:
        self._sequence += 1
        return RequestId(self.client, 1, PARTITION, self._sequence)

    async def hello(self) -> Hello:
        while (body := self._frames.next(Magic.HELLO, 0)) is None:
            self._frames.feed(await self.reader.read(4096))
        return Hello.decode(body)

    def say(self, message: Any) -> None:
        self.writer.write(wire.encode(message, self.version))

    async def hear(self) -> Any:
        """The next message; None when the server closed the connection."""
        while (body := self._frames.next(Magic.CLIENT, self.version)) is None:
            data = await asyncio.wait_for(self.reader.read(65536), 20)
            if not data:
                return None
            self._frames.feed(data)
        return wire.decode(body, self.version)

    async def hear_one(self, kind: type[M], where: Callable[[M], bool] = lambda _: True) -> tuple[M, list[Any]]:
        """The next message of a kind, and what came before it."""
        before: list[Any] = []
        while True:
            message = await self.hear()
            assert message is not None, f"the connection ended behind {before[-3:]}"
            if isinstance(message, kind) and where(message):
                return message, before
            before.append(message)

    async def mount(self, position: int = -1, connection: int = 0) -> tuple[wire.MountState, list[Any]]:
        self.mounted = self.next_id()
        self.say(wire.MountRequest(self.mounted, position, connection))
        answer, before = await self.hear_one(wire.MountResponse)
        return answer.state, before

    def append(self, data: bytes, position: int = -1, header: int = 0, **locks: tuple[int, ...]) -> RequestId:
        made = self.next_id()
        self.say(wire.AppendRequest(made, position, header, data, crc32(data), **locks))
        return made

    def ask_for_feed(self, position: int) -> None:
        self.say(wire.FeedRequest(self.mounted, position))

    async def flush(self) -> tuple[int, list[Any]]:
        self.say(wire.FlushRequest(self.next_id()))
        answer, before = await self.hear_one(wire.FlushResponse)
        return answer.high_water_mark, before

    async def data(self, transaction_id: int) -> wire.TransactionData | wire.TransactionRefused:
        self.say(wire.TransactionDataRequest(self.next_id(), transaction_id))
        return (await self.hear_one(wire.TransactionDataResponse))[0].outcome

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(path: Path, nodes: int = 3) -> AsyncIterator[Serving]:
    """Storage nodes and their metadata; servers are started by the test and stopped at the end."""
    async with running_cluster(path, nodes) as cluster:
        made = Serving(cluster, Stored(cluster))
        try:
            yield made
        finally:
            for client in made.clients:
                await client.close()
            for server, _, _ in made.servers:
                await server.stop(1.0)
