"""A partition in virtual time: the server's own code over storage nodes, a network and metadata that fail as a seed says.

=============  ========================================================================================================
storage node   goes down at any moment, also in the middle of an append, of which a beginning stays; comes back; gives a record
               out with other data than was written
network        delays; loses connections, before or behind what was asked; answers that never come; slow nodes
metadata       compare and set, delayed; unreachable for a while
server         killed without a word; replaced under a later generation while the old one still lives; given the partition back
replicas       added and removed, one and several at once (the four examples of design document *Waltz Server*), swapped, given
               back with what they held; a node's disk replaced by an empty one, where the others hold everything
=============  ========================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fed import fed
from tests.held_locks import held_locks
from tests.simulation.nodes import Network
from waltzctl.engine.errors import ConcurrentUpdateError, PeerUnreachableError, RefusedError
from waltzctl.engine.metadata.cluster_changes import refuse_without_quorum
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.engine.server.append_requests import Append
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.server_settings import PartitionOptions, SessionOptions
from waltzctl.engine.server.storage_nodes import StorageNodes
from waltzctl.engine.server.store_partition import PartitionClosedError, StorePartition
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.client import AppendLocks
from waltzctl.formats.wire.records import PackedRecords, WireRecord
from waltzctl.formats.znodes import UNRESOLVED, PartitionMetadata, ReplicaState

LOG = logging.getLogger("waltzctl.simulation")
NODE_LOG = LOG.getChild("node")
"""Of nodes, whose disks fail, which they say."""
PARTITION = 0


class Metadata:
    """The partition's znode: compare and set, behind a delay that may be long."""

    def __init__(self, world: World) -> None:
        self._world, self.stored = world, PartitionMetadata()
        self.guards_assignment = True

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
        if self.guards_assignment and {one.node for one in replicas} != {*self._world.assigned}:
            raise ConcurrentUpdateError("the storage nodes are others by now")
        self.stored = PartitionMetadata(self.stored.generation, session_id, replicas)


class Server:
    """A server's partition, and what its feed told."""

    def __init__(self, world: World, generation: int) -> None:
        self.nodes = StorageNodes(world.network.connect, log=LOG)
        options = SessionOptions(
            in_flight=world.chance.choice((1, 3)),
            copied=world.chance.choice((1, 7)),
            kept=world.chance.choice((1, 4, 100)),
            kept_bytes=100 if world.seed % 4 == 3 else 1 << 20,
            first_retry=0.01,
            longest_retry=0.5,
        )
        store = StorePartition(PARTITION, generation, world.metadata, self.nodes, log=LOG, options=options)
        limits = PartitionOptions(lock_slots=world.chance.choice((3, 1000)), batch=world.chance.choice((1, 4)))
        self.partition = Partition(store, log=LOG, options=limits)
        self.closed = False
        self.told: list[RecordHeader] = []
        self.partition.start()
        self._feeding = asyncio.ensure_future(self.partition.committed.feed(self, -1, 1 << 30))

    async def writable(self) -> None:
        """It always takes more."""

    def feed(self, frames: bytes) -> None:
        for one in fed(frames):
            assert one.transaction_id == len(self.told), "a feed has a gap, or tells something twice"
            self.told.append(one)

    async def kill(self) -> None:
        """End it without a word; that never waits for a recovery (weakness V12)."""
        self.closed = True
        self._feeding.cancel()
        await asyncio.gather(self._feeding, return_exceptions=True)
        async with asyncio.timeout(60):
            await self.partition.close()
            await self.nodes.close()


@dataclass
class Asked:
    """An append that a client sent to a server."""

    request_id: RequestId
    server: Server
    client_high_water_mark: int
    locks: AppendLocks
    was_refused: bool = False
    failed: bool = False


@dataclass
class Sent:
    """Appends that were sent together; `under_way`: of how many of them nothing was heard yet."""

    appends: list[Asked]
    under_way: int

    def refused(self, refusals: Sequence[tuple[RequestId, int]]) -> None:
        for request_id, transaction_id in refusals:
            (asked,) = (one for one in self.appends if one.request_id == request_id)
            assert transaction_id > asked.client_high_water_mark
            asked.was_refused = True

    def over(self, count: int, size: int) -> None:
        self.under_way -= count
        assert self.under_way >= 0, "what they took is given back once"


class Errors(logging.Handler):
    """What is logged as an error is a mistake of the program; but for a lost place among the servers, nothing is worth one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == LOG.name and "every partition is closed until" not in record.msg:
            self.lines.append(record.getMessage())


class World:
    """One history, over nodes that are a model of those in production."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, Random(seed)
        self.loss = self.chance.choice((0.0, 0.002, 0.02))
        self.network: Any
        self.assigned: tuple[str, ...] = ()
        self._emptied: dict[str, None] = {}
        self.changing = self.chance.random() < 0.5
        self.metadata = Metadata(self)
        self.servers: list[Server] = []
        self.all_servers: list[Server] = []
        self.generation = 0
        self.asked: list[Asked] = []
        self.errors = Errors()
        self._tasks: dict[asyncio.Task[None], None] = {}

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    # ---- replicas ------------------------------------------------------------------------------------------------------

    def change_replicas(self) -> None:
        """One of the four examples of the design document, or both at once; nodes that were away come back as they are."""
        away = [one for one in self.network.nodes if one not in self.assigned]
        new = [f"n{len(self.network.nodes)}:1", f"n{len(self.network.nodes) + 1}:1"]
        pool = away if away and self.chance.random() < 0.5 else new
        added = [self.network.node(name).name for name in pool[: self.chance.choice((0, 0, 1, 2))]]
        gone = self.chance.sample(self.assigned, min(len(self.assigned), self.chance.choice((0, 1, 1, 2))))
        left = [one for one in (*self.assigned, *added) if one not in gone]
        if not left or len(left) > 6:
            return
        last = [one.node for one in self.metadata.stored.replicas]
        with contextlib.suppress(RefusedError):
            if last:
                refuse_without_quorum(PARTITION, last, left)
            if gone and self._is_filling(last):
                return  # nobody takes away what an empty disk may need to be filled from
            self.assigned = tuple(left)
            LOG.info("the replicas are %s", self.assigned)
            for server in self.servers:
                self._spawn(self._reassign(server))

    def _is_filling(self, last: Sequence[str]) -> bool:
        """Whether a replica has not got back all that it held; one has its mark before it has the records."""
        states = {one.node: one.session_id for one in self.metadata.stored.replicas}
        held = {name: self.network.nodes[name].replica(PARTITION) for name in last}
        longest = max((len(one.log) for one in held.values() if one is not None), default=0)
        for name, one in held.items():
            if one is not None and one.session_id >= states[name] and len(one.log) >= longest:
                self._emptied.pop(name, None)
        return any(one is None or one.session_id < states[name] or name in self._emptied for name, one in held.items())

    async def _reassign(self, server: Server) -> None:
        await asyncio.sleep(self.chance.choice((0.001, 0.1, 2.0)))
        if not server.closed:
            await server.partition.store.reassign(self.assigned)

    def replace_disk(self) -> None:
        """A node begins with an empty disk, whatever the others have by then: none of what two or more acknowledged goes."""
        name = self.chance.choice(self.assigned)
        stored = self.metadata.stored.replicas
        last = {one.node for one in stored}
        latest = max((one.session_id for one in stored), default=-1)
        voters = {one.node for one in stored if (one.session_id, one.closing_high_water_mark) == (latest, UNRESOLVED)}
        if stored and not voters - {name}:
            return  # nobody else may vote
        if last - {*self.assigned} or self._is_filling(sorted(last)):
            return  # who was taken away, or is empty itself, may be whom the empty disk would have to be filled from
        if not stored and self._emptied:
            return  # the first session is opening, and may be about to name both, who would be all that may vote
        if self.network.nodes[name].replica(PARTITION) and len(last or self.assigned) > 1:
            LOG.info("%s has an empty disk", name)
            self._emptied[name] = None
            self.network.empty(self.network.nodes[name])

    def serve(self) -> Server:
        """Another server under a later generation; who was there does not know it yet."""
        self.generation += 1
        made = Server(self, self.generation)
        self.servers.append(made)
        self.all_servers.append(made)
        return made

    # ---- clients -------------------------------------------------------------------------------------------------------

    def append_together(self, server: Server, count: int) -> None:
        """So many appends come in one piece, all with locks or all without."""
        first, mark = len(self.asked), len(server.told) - 1
        generation = server.partition.store.generation
        ids = [RequestId(1, generation, PARTITION, number) for number in range(first, first + count)]
        locked = first % 3 == 0

        def locks(number: int) -> AppendLocks:
            return (
                AppendLocks(write=(4 + number % 7,), read=(1,) if number % 5 == 0 else ()) if locked else AppendLocks()
            )

        asked = [Asked(made, server, mark, locks(made.sequence)) for made in ids]
        self.asked += asked
        records = [WireRecord.make(0, made, made.sequence % 5, b"%d" % made.sequence) for made in ids]
        held = held_locks((mark, one.locks) for one in asked) if locked else None
        server.partition.append(Append(PackedRecords.of(records), Sent(asked, count), held))

    def append(self, server: Server, *, freely: bool = False) -> None:
        """A client appends; `freely`: nothing can refuse it."""
        number = len(self.asked)
        made = RequestId(1, server.partition.store.generation, PARTITION, number)
        data = b"%d" % number
        pool = (1, 2, 3)
        locks = AppendLocks(
            write=(self.chance.choice(pool),) if self.chance.random() < 0.3 else (),
            append=(self.chance.choice(pool),) if self.chance.random() < 0.1 else (),
        )
        mark = len(server.told) - 1 - self.chance.choice((0, 0, 1))
        asked = Asked(made, server, mark, AppendLocks() if freely else locks)
        self.asked.append(asked)

        records = PackedRecords.of([WireRecord.make(0, made, number % 5, data)])
        held = held_locks([(mark, asked.locks)]) if any(asked.locks) else None
        server.partition.append(Append(records, Sent([asked], 1), held))

    def flush(self, server: Server) -> None:
        before = [one for one in self.asked if one.server is server and not one.was_refused]

        async def work() -> None:
            mark = await server.partition.flush()  # answered, or ended with the partition (weakness V8)
            while len(server.told) <= mark and not server.closed:
                await asyncio.sleep(0.01)
            seen = {one.request_id for one in server.told[: mark + 1]}
            for one in before:
                one.failed = one.failed or (one.request_id not in seen and not server.closed)

        self._spawn(_quiet(work()))

    # ---- the history ---------------------------------------------------------------------------------------------------

    def nodes(self) -> contextlib.AbstractContextManager[Any]:
        """The nodes, and the network to them."""
        return contextlib.nullcontext(
            Network(
                self.chance,
                self.loss,
                stall=self.chance.choice((0.0, 0.0, 0.002)),
                torn=self.chance.choice((0.0, 0.005, 0.02)),
                rot=self.chance.choice((0.0, 0.0, 0.05)),
            )
        )

    async def live(self) -> None:
        """Faults and appends, then peace; everything that was promised is checked."""
        with self.nodes() as self.network:
            count = self.chance.choice((1, 3, 3, 3, 5))
            self.assigned = tuple(self.network.node(f"n{n}:1").name for n in range(count))
            await self._live()

    async def _live(self) -> None:
        self.serve()
        for _ in range(self.chance.choice((40, 80, 130))):
            await asyncio.sleep(self.chance.choice((0.0, 0.001, 0.01, 0.1)))
            what = self.chance.random()
            server = self.chance.choice(self.servers)
            if what < 0.7:
                count = self.chance.choice((1, 1, 5))
                if count > 1 and self.chance.random() < 0.3:
                    self.append_together(server, count)
                    continue
                for _ in range(count):
                    self.append(server)
            elif what < 0.8:
                self.flush(server)
            elif what < 0.88:
                self.network.crash(self._any_node())
            elif what < 0.92:
                self._any_node().slow = self.chance.choice((1.0, 1.0, 30.0))
            elif what < 0.95 and len(self.servers) < 3:
                self.serve()
            elif what < 0.965:
                self.generation += 1
                server.partition.raise_generation(self.generation)
            elif what < 0.975:
                if len(self.servers) > 1:
                    killed = self.servers.pop(0)
                    await killed.kill()
            elif self.changing and what < 0.995:
                self.change_replicas()
            elif self.changing:
                self.replace_disk()
        await self.peace()

    def _any_node(self) -> Any:
        return self.chance.choice(list(self.network.nodes.values()))

    async def peace(self) -> None:
        """No faults any more: soon somebody serves, the one who did or another."""
        self.loss = 0.0
        self.network.calm()
        await asyncio.sleep(5.0)
        if self.chance.random() < 0.5:
            last = self.serve()
        else:
            last = self.servers[-1]
            self.generation += 1
            last.partition.raise_generation(self.generation)
        async with asyncio.timeout(120):
            for _ in range(2):
                # a server that does not know of a later session yet may refuse by its table
                self.append(last, freely=True)
                mark = await last.partition.flush()
                while len(last.told) <= mark:
                    await asyncio.sleep(0.01)
        await asyncio.sleep(2.0)
        self.check(last, mark)
        for server in list(self.servers):
            await server.kill()
        self.network.end()
        await asyncio.sleep(3.0)
        assert not self._tasks, "a flush was never answered, nor ended with its partition"

    def check(self, last: Server, mark: int) -> None:
        log = last.told[: mark + 1]
        ids = [one.request_id for one in log]
        assert len(set(ids)) == len(ids), "a transaction is there twice"
        for server in self.all_servers:
            assert server.told == log[: len(server.told)], "two clients saw different transactions"
            own = {one.request_id for one in self.asked if one.server is server}
            order = [one.sequence for one in ids if one in own]
            assert order == sorted(order), "a client takes an append for failed once a later one of it is committed"
        there = set(ids)
        for one in self.asked:
            assert not (one.failed and one.request_id in there), f"{one.request_id} was told to have failed"
            assert not (one.was_refused and one.request_id in there), f"{one.request_id} was refused"
        written: dict[int, int] = {}
        asked = {one.request_id: one for one in self.asked}
        for at, header in enumerate(log):
            one = asked[header.request_id]
            for lock in one.locks.write:
                assert written.get(lock, -1) <= one.client_high_water_mark, f"two writers held lock {lock} at {at}"
            for lock in (*one.locks.write, *one.locks.append):
                written[lock] = at
        replicas = {name: self.network.nodes[name].replica(PARTITION) for name in self.assigned}
        assert all(replicas.values()), f"of {replicas} one cannot be opened"
        held = {name: one.log[: mark + 1] for name, one in replicas.items()}
        for name, records in held.items():
            found = [one.request_id for one in records]
            assert found == ids[: len(found)], f"{name} holds something else"
            assert all(one.data_ok for one in records), f"{name} holds a copy that disagrees with its checksum"
        assert sum(len(one) == len(ids) for one in held.values()) >= quorum_of(len(held)), "no quorum holds it all"
        assert not self.errors.lines, self.errors.lines


async def _quiet(work: Any) -> None:
    """What a server that was killed does not answer."""
    with contextlib.suppress(PartitionClosedError):
        await work
