"""A cluster in virtual time: the server's own code over storage nodes, a network and metadata that fail as a seed says.

=============  ========================================================================================================
storage node   goes down at any moment, also in the middle of an append, of which a beginning stays; comes back
network        delays; loses connections, before or behind what was asked; slow nodes
metadata       compare and set, delayed; unreachable for a while
server         killed without a word; replaced under a later generation while the old one still lives; given the partition back
=============  ========================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from waltzctl.engine.errors import ConcurrentUpdateError, PeerUnreachableError, RemoteError
from waltzctl.engine.server.locks import Locks
from waltzctl.engine.server.partition import Append, Partition
from waltzctl.engine.server.server_settings import PartitionOptions, SessionOptions
from waltzctl.engine.server.storage_nodes import StorageNodes
from waltzctl.engine.server.store_partition import PartitionClosedError, StorePartition
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.records import SessionInfo, WireRecord
from waltzctl.formats.znodes import PartitionMetadata, ReplicaState

LOG = logging.getLogger("waltzctl.simulation")
PARTITION = 0


@dataclass
class Node:
    """A storage node.  `fence`: the highest session that was let in."""

    name: str
    log: list[WireRecord] = field(default_factory=list)
    session_id: int = -1
    low_water_mark: int = -1
    fence: int = -1
    up: bool = True
    life: int = 0
    slow: float = 1.0


class Link:
    """A connection from a server to a node; `engine.server.storage_nodes.Storage`.  What is sent first arrives first."""

    def __init__(self, world: World, node: Node) -> None:
        self._world, self._node, self._life = world, node, node.life
        self._arrival = 0.0
        self.closed = False

    async def close(self) -> None:
        self.closed = True

    async def _travel(self, answer: bool) -> None:
        world, node, loop = self._world, self._node, asyncio.get_running_loop()
        self._arrival = max(self._arrival + 1e-6, loop.time() + world.chance.uniform(0.0002, 0.01) * node.slow)
        arrival = self._arrival
        while loop.time() < arrival:
            await asyncio.sleep(arrival - loop.time())
        if world.chance.random() < world.loss:
            self.closed = True
        if self.closed or not node.up or node.life != self._life:
            self.closed = True
            where = "on its way back" if answer else "on its way"
            raise PeerUnreachableError(node.name, f"the connection was lost {where}")

    async def _ask(self, session_id: int, do: Any) -> Any:
        await self._travel(answer=False)
        node = self._node
        if session_id < node.fence:
            raise RemoteError(node.name, "a later session", code=FailureCode.SESSION_CHANGED)
        node.fence = session_id
        try:
            done = do(node)
        except RemoteError:
            await self._travel(answer=True)
            raise
        await self._travel(answer=True)
        return done

    async def last_session_info(self, session_id: int, partition: int, *, offline: bool = False) -> SessionInfo:
        found: SessionInfo = await self._ask(
            session_id, lambda node: SessionInfo(node.session_id, node.low_water_mark, node.low_water_mark)
        )
        return found

    async def max_transaction_id(self, session_id: int, partition: int, *, offline: bool = False) -> int:
        return int(await self._ask(session_id, lambda node: len(node.log) - 1))

    async def set_low_water_mark(
        self, session_id: int, partition: int, low_water_mark: int, *, offline: bool = False
    ) -> None:
        def do(node: Node) -> None:
            node.session_id, node.low_water_mark = session_id, low_water_mark

        await self._ask(session_id, do)

    async def truncate(self, session_id: int, partition: int, transaction_id: int, *, offline: bool = False) -> int:
        def do(node: Node) -> int:
            del node.log[transaction_id + 1 :]
            return len(node.log) - 1

        return int(await self._ask(session_id, do))

    async def records(
        self, session_id: int, partition: int, first_transaction_id: int, max_count: int
    ) -> tuple[WireRecord, ...]:
        return tuple(
            await self._ask(session_id, lambda node: node.log[first_transaction_id : first_transaction_id + max_count])
        )

    async def append(
        self, session_id: int, partition: int, records: Sequence[WireRecord], *, offline: bool = False
    ) -> None:
        await self._ask(session_id, lambda node: self._write(node, records))

    def _write(self, node: Node, records: Sequence[WireRecord]) -> None:
        if records[0].transaction_id != len(node.log):
            raise RemoteError(node.name, "out of order", code=FailureCode.OUT_OF_ORDER)
        if self._world.chance.random() < self._world.torn:
            node.log += records[: self._world.chance.randrange(len(records) + 1)]
            self._world.crash(node)
            return
        node.log += records

    def start_append_encoded(
        self, session_id: int, partition: int, count: int, records: bytes, *, offline: bool = False
    ) -> asyncio.Future[Any]:
        from waltzctl.formats.wire.primitives import DEFAULT_LIMITS
        from waltzctl.formats.wire.records import pack_count, unpack_records

        found, _ = unpack_records(memoryview(pack_count(count) + records), 0, DEFAULT_LIMITS)
        return asyncio.ensure_future(self.append(session_id, partition, found))


class Metadata:
    """The partition's znode: compare and set, behind a delay that may be long."""

    def __init__(self, world: World) -> None:
        self._world, self.stored = world, PartitionMetadata()

    async def _travel(self) -> None:
        await asyncio.sleep(self._world.chance.choice((0.001, 0.003, 0.003, 0.2)))
        if self._world.chance.random() < self._world.loss:
            raise PeerUnreachableError("metadata", "the connection was lost")

    async def assigned(self, partition: int) -> tuple[str, ...]:
        await self._travel()
        return self._world.assigned

    async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
        await self._travel()
        known = self.stored
        if known.generation > generation:
            raise ConcurrentUpdateError(f"generation {known.generation} is later")
        self.stored = PartitionMetadata(generation, known.session_id + 1, known.replicas)
        begun = self.stored
        await self._travel()
        return begun

    async def write_replicas(self, partition: int, session_id: int, replicas: tuple[ReplicaState, ...]) -> None:
        await self._travel()
        if self.stored.session_id != session_id:
            raise ConcurrentUpdateError(f"session {self.stored.session_id} is later")
        self.stored = PartitionMetadata(self.stored.generation, session_id, replicas)


class Server:
    """A server's partition, and what its feed told."""

    def __init__(self, world: World, generation: int) -> None:
        self.nodes = StorageNodes(world.connect)
        options = SessionOptions(
            in_flight=world.chance.choice((1, 3)),
            copied=world.chance.choice((1, 7)),
            kept=world.chance.choice((1, 4, 100)),
            first_retry=0.01,
            longest_retry=0.5,
        )
        store = StorePartition(PARTITION, generation, world.metadata, self.nodes, log=LOG, options=options)
        limits = PartitionOptions(lock_slots=world.chance.choice((3, 1000)), batch=world.chance.choice((1, 4)))
        self.partition = Partition(store, log=LOG, options=limits)
        self.closed = False
        self.told: list[RecordHeader] = []
        self.partition.start()
        self._feeding = asyncio.ensure_future(self.partition.feed(self, -1, 1 << 30))

    async def writable(self) -> None:
        """It always takes more."""

    def feed(self, headers: Sequence[RecordHeader]) -> None:
        for one in headers:
            assert one.transaction_id == len(self.told), "a feed has a gap, or tells something twice"
            self.told.append(one)

    async def kill(self) -> None:
        self.closed = True
        self._feeding.cancel()
        await asyncio.gather(self._feeding, return_exceptions=True)
        await self.partition.close()
        await self.nodes.close()


@dataclass
class Asked:
    """An append that a client sent to a server."""

    request_id: RequestId
    server: Server
    client_high_water_mark: int
    locks: Locks
    refused: bool = False
    failed: bool = False


class World:
    """One history.

    `loss`: the share of messages with which a connection is lost; `torn`: of appends in which a node goes down.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, Random(seed)
        self.loss = self.chance.choice((0.0, 0.002, 0.02))
        self.torn = self.chance.choice((0.0, 0.005, 0.02))
        count = self.chance.choice((1, 3, 3, 3, 5))
        self.nodes = {f"n{n}:1": Node(f"n{n}:1") for n in range(count)}
        self.assigned = tuple(self.nodes)
        self.metadata = Metadata(self)
        self.servers: list[Server] = []
        self.all_servers: list[Server] = []
        self.generation = 0
        self.asked: list[Asked] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, name: str) -> Link:
        await asyncio.sleep(self.chance.uniform(0.001, 0.01))
        node = self.nodes[name]
        if not node.up:
            raise PeerUnreachableError(name, "nobody answers")
        return Link(self, node)

    def crash(self, node: Node, seconds: float | None = None) -> None:
        """A node goes down, and comes back after a while."""
        node.up, node.life = False, node.life + 1
        self._spawn(self._come_back(node, self.chance.uniform(0.05, 3.0) if seconds is None else seconds))

    async def _come_back(self, node: Node, seconds: float) -> None:
        await asyncio.sleep(seconds)
        node.up = True

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def serve(self) -> Server:
        """Another server under a later generation; who was there does not know it yet."""
        self.generation += 1
        made = Server(self, self.generation)
        self.servers.append(made)
        self.all_servers.append(made)
        return made

    # ---- clients -------------------------------------------------------------------------------------------------------

    def append(self, server: Server) -> None:
        number = len(self.asked)
        made = RequestId(1, server.partition.store.generation, PARTITION, number)
        data = b"%d" % number
        pool = (1, 2, 3)
        locks = Locks(
            write=(self.chance.choice(pool),) if self.chance.random() < 0.3 else (),
            append=(self.chance.choice(pool),) if self.chance.random() < 0.1 else (),
        )
        asked = Asked(made, server, len(server.told) - 1 - self.chance.choice((0, 0, 1)), locks)
        self.asked.append(asked)

        def refused(transaction_id: int) -> None:
            assert transaction_id > asked.client_high_water_mark
            asked.refused = True

        server.partition.append(
            Append(made, asked.client_high_water_mark, locks, number % 5, data, crc32(data), refused)
        )

    def flush(self, server: Server) -> None:
        before = [one for one in self.asked if one.server is server and not one.refused]

        async def work() -> None:
            mark = await server.partition.flush()
            while len(server.told) <= mark and not server.closed:
                await asyncio.sleep(0.01)
            seen = {one.request_id for one in server.told[: mark + 1]}
            for one in before:
                one.failed = one.failed or (one.request_id not in seen and not server.closed)

        self._spawn(_quiet(work()))

    # ---- the history ---------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Faults and appends, then peace; everything that was promised is checked."""
        self.serve()
        for _ in range(self.chance.choice((60, 200))):
            await asyncio.sleep(self.chance.choice((0.0, 0.001, 0.01, 0.1)))
            what = self.chance.random()
            server = self.chance.choice(self.servers)
            if what < 0.7:
                for _ in range(self.chance.choice((1, 1, 5))):
                    self.append(server)
            elif what < 0.8:
                self.flush(server)
            elif what < 0.88:
                self.crash(self.chance.choice(list(self.nodes.values())))
            elif what < 0.92:
                self.chance.choice(list(self.nodes.values())).slow = self.chance.choice((1.0, 1.0, 30.0))
            elif what < 0.95 and len(self.servers) < 3:
                self.serve()
            elif what < 0.98:
                self.generation += 1
                server.partition.store.raise_generation(self.generation)
            elif len(self.servers) > 1:
                killed = self.servers.pop(0)
                await killed.kill()
        await self.peace()

    async def peace(self) -> None:
        self.loss = self.torn = 0.0
        for node in self.nodes.values():
            node.slow = 1.0
        await asyncio.sleep(5.0)
        last = self.serve()
        async with asyncio.timeout(120):
            self.append(last)
            mark = await last.partition.flush()
            while len(last.told) <= mark:
                await asyncio.sleep(0.01)
            self.append(last)
            mark = await last.partition.flush()
            await asyncio.sleep(2.0)
        self.check(last, mark)
        for server in list(self.servers):
            await server.kill()
        for task in [*self._tasks]:
            task.cancel()

    def check(self, last: Server, mark: int) -> None:
        log = last.told[: mark + 1]
        ids = [one.request_id for one in log]
        assert len(set(ids)) == len(ids), "a transaction is there twice"
        for server in self.all_servers:
            assert server.told[: mark + 1] == log[: len(server.told)], "two clients saw different transactions"
        there = set(ids)
        for one in self.asked:
            assert not (one.failed and one.request_id in there), f"{one.request_id} was told to have failed"
            assert not (one.refused and one.request_id in there), f"{one.request_id} was refused"
        written: dict[int, int] = {}
        asked = {one.request_id: one for one in self.asked}
        for at, header in enumerate(log):
            one = asked[header.request_id]
            for lock in one.locks.write:
                assert written.get(lock, -1) <= one.client_high_water_mark, f"two writers held lock {lock} at {at}"
            for lock in (*one.locks.write, *one.locks.append):
                written[lock] = at
        for node in self.nodes.values():
            found = [one.request_id for one in node.log[: mark + 1]]
            assert found == ids[: len(found)], f"{node.name} holds something else"
            assert all(one.data_ok for one in node.log)


async def _quiet(work: Any) -> None:
    """What a server that was killed does not answer."""
    with contextlib.suppress(PartitionClosedError):
        await work
