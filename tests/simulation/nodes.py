"""Storage nodes and the network to them: what a store session asks of `engine.server.storage_nodes.Storage`, with faults.

A node has one connection for each server, shared by the server's partitions; what is sent first arrives first.  The fence of a
session is durable before its first answer, as our nodes have it, and released ones until they are started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from waltzctl.engine.errors import DeadlineError, PeerError, PeerUnreachableError, RemoteError
from waltzctl.engine.net.futures import taken
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.primitives import DEFAULT_LIMITS
from waltzctl.formats.wire.records import SessionInfo, WireRecord, pack_count, unpack_records

T = TypeVar("T")


@dataclass
class Replica:
    """A partition on a node.  `fence`: the highest session that was let in."""

    log: list[WireRecord] = field(default_factory=list)
    session_id: int = -1
    low_water_mark: int = -1
    fence: int = -1


@dataclass
class Node:
    """A storage node.  `life` counts its starts."""

    name: str
    replicas: dict[int, Replica] = field(default_factory=dict)
    up: bool = True
    life: int = 0
    slow: float = 1.0
    links: dict[Link, None] = field(default_factory=dict)
    """Connections to it that nobody has found closed, in their order."""

    def replica(self, partition: int) -> Replica:
        """A partition's, made where it is asked for: nodes here are assigned everything."""
        return self.replicas.setdefault(partition, Replica())


@dataclass
class Network:
    """The nodes, and what happens on the way to them.

    Shares of all messages: `loss` with which the connection is lost, `stall` whose answer never comes, `torn` of appends in
    which the node goes down, `rot` of reads that give a record out with other data than was written.  `deadline`: of a call,
    in seconds.
    """

    chance: Random
    loss: float = 0.0
    stall: float = 0.0
    torn: float = 0.0
    rot: float = 0.0
    deadline: float | None = 2.0
    nodes: dict[str, Node] = field(default_factory=dict)
    _tasks: dict[asyncio.Future[Any], None] = field(default_factory=dict)

    def node(self, name: str) -> Node:
        """A node by its name, made where there is none."""
        return self.nodes.setdefault(name, Node(name))

    async def connect(self, name: str) -> Link:
        """See `engine.server.storage_nodes.Connect`."""
        await asyncio.sleep(self.chance.uniform(0.001, 0.01))
        node = self.node(name)
        if not node.up:
            raise PeerUnreachableError(name, "nobody answers")
        return Link(self, node)

    def crash(self, node: Node, seconds: float | None = None) -> None:
        """A node goes down, and comes back after a while."""
        node.up, node.life = False, node.life + 1
        if self.chance.random() < 0.5:  # its system is still there and says so; otherwise they find out who ask
            for link in node.links:
                asyncio.get_running_loop().call_later(self.chance.uniform(0.001, 0.02), link.end, "the node closed it")
        task = asyncio.ensure_future(
            self._come_back(node, self.chance.uniform(0.05, 3.0) if seconds is None else seconds)
        )
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def empty(self, node: Node) -> None:
        """A node goes down, and comes back with an empty disk."""
        node.replicas.clear()
        self.crash(node)

    @staticmethod
    async def _come_back(node: Node, seconds: float) -> None:
        await asyncio.sleep(seconds)
        node.up = True

    def calm(self) -> None:
        """No faults from now on."""
        self.loss = self.torn = self.stall = self.rot = 0.0
        for node in self.nodes.values():
            node.slow = 1.0

    def end(self) -> None:
        """Nothing comes back any more."""
        for task in [*self._tasks]:
            task.cancel()


class Link:
    """A connection from a server to a node."""

    def __init__(self, network: Network, node: Node) -> None:
        self._network, self._node, self._life = network, node, node.life
        self._arrival = 0.0
        self.ended: asyncio.Future[PeerError] = asyncio.get_running_loop().create_future()
        node.links[self] = None

    @property
    def closed(self) -> bool:
        return self.ended.done()

    async def close(self) -> None:
        self.end("it was closed")

    def end(self, why: str) -> None:
        """Nothing can be asked any more."""
        if not self.ended.done():
            self.ended.set_result(PeerUnreachableError(self._node.name, why))
            self._node.links.pop(self, None)

    async def _travel(self, answer: bool) -> None:
        network, node, loop = self._network, self._node, asyncio.get_running_loop()
        self._arrival = max(self._arrival + 1e-6, loop.time() + network.chance.uniform(0.0002, 0.01) * node.slow)
        arrival = self._arrival
        while loop.time() < arrival:
            await asyncio.sleep(arrival - loop.time())
        where = f"the connection was lost {'on its way back' if answer else 'on its way'}"
        if network.loss and network.chance.random() < network.loss:
            self.end(where)
        if self.closed or not node.up or node.life != self._life:
            self.end(where)
            raise PeerUnreachableError(node.name, where)

    async def _ask(self, session_id: int, partition: int, do: Callable[[Replica], T]) -> T:
        stalls = bool(self._network.stall) and self._network.chance.random() < self._network.stall
        if stalls and self._network.chance.random() < 0.5:
            await self._silence()
        await self._travel(answer=False)
        replica = self._node.replica(partition)
        try:
            if session_id < replica.fence:
                raise RemoteError(self._node.name, "a later session", code=FailureCode.SESSION_CHANGED)
            replica.fence = session_id
            done = do(replica)
        except RemoteError:
            await self._travel(answer=True)
            raise
        if stalls:
            await self._silence()
        await self._travel(answer=True)
        return done

    async def _silence(self) -> None:
        """Nothing is answered: the production client gives up after its deadline (`StorageClient`, weakness V1)."""
        if self._network.deadline is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(self._network.deadline)
            raise DeadlineError(self._node.name, "no answer in time")

    async def last_session_info(self, session_id: int, partition: int, *, offline: bool = False) -> SessionInfo:
        return await self._ask(
            session_id, partition, lambda one: SessionInfo(one.session_id, one.low_water_mark, one.low_water_mark)
        )

    async def max_transaction_id(self, session_id: int, partition: int, *, offline: bool = False) -> int:
        return await self._ask(session_id, partition, lambda one: len(one.log) - 1)

    async def set_low_water_mark(
        self, session_id: int, partition: int, low_water_mark: int, *, offline: bool = False
    ) -> None:
        def do(one: Replica) -> None:
            one.session_id, one.low_water_mark = session_id, low_water_mark

        await self._ask(session_id, partition, do)

    async def truncate(self, session_id: int, partition: int, transaction_id: int, *, offline: bool = False) -> int:
        def do(one: Replica) -> int:
            del one.log[transaction_id + 1 :]
            return len(one.log) - 1

        return await self._ask(session_id, partition, do)

    async def records(
        self, session_id: int, partition: int, first_transaction_id: int, max_count: int
    ) -> tuple[WireRecord, ...]:
        found = await self._ask(
            session_id, partition, lambda one: one.log[first_transaction_id : first_transaction_id + max_count]
        )
        if found and self._network.rot and self._network.chance.random() < self._network.rot:
            at = self._network.chance.randrange(len(found))
            found[at] = replace(found[at], data=b"!" + found[at].data)
        return tuple(found)

    async def append(
        self, session_id: int, partition: int, records: Sequence[WireRecord], *, offline: bool = False
    ) -> None:
        await self._ask(session_id, partition, lambda one: self._write(one, records))

    def _write(self, replica: Replica, records: Sequence[WireRecord]) -> None:
        if records[0].transaction_id != len(replica.log):
            raise RemoteError(self._node.name, "out of order", code=FailureCode.OUT_OF_ORDER)
        chance = self._network.chance
        if self._network.torn and chance.random() < self._network.torn:
            replica.log += records[: chance.randrange(len(records) + 1)]
            self._network.crash(self._node)
            return
        replica.log += records

    def start_append_encoded(
        self, session_id: int, partition: int, count: int, records: bytes, *, offline: bool = False
    ) -> asyncio.Future[Any]:
        found, _ = unpack_records(memoryview(pack_count(count) + records), 0, DEFAULT_LIMITS)
        sent = asyncio.ensure_future(self.append(session_id, partition, found))
        sent.add_done_callback(taken)
        return sent
