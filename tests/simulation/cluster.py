"""A cluster in virtual time: clients, log servers, places among the servers and sessions of partitions, all as in production.

=============  ========================================================================================================
client         appends under locks, singly and in bulk, follows feeds; its connections are lost and made again
log server     `LogServer` with `Membership`: killed without a word, stopped, started; its session with the metadata is lost
failure        servers that died are found out by their connections; one that did not is taken for dead
metadata       changes raced for, watches and answers that come late, connections that are lost
storage node   as in `tests.simulation.real_nodes`: loses power, comes back with what its disk kept; connections fall silent
replicas       changed by `engine.metadata.cluster_changes`, as an operator does it
=============  ========================================================================================================

Each append carries a number that no other has.  Some count: their data says how many were appended under their lock before them,
as far as the client knew, and what it knew must have been all.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any

from tests.crash.harness import scratch_directory
from tests.simulation.metadata import Tree, TreeStore
from tests.simulation.pipes import Pipe, Way, connect, greeted
from tests.simulation.real_nodes import RealNodes
from tests.simulation.world import LOG, Errors
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.log_transaction import Build, Draft, Transaction
from waltzctl.engine.errors import DeadlineError, PeerError, PeerUnreachableError, RefusedError
from waltzctl.engine.metadata.cluster_changes import add_node, assign, unassign
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.failure_detector import FailureDetector
from waltzctl.engine.metadata.membership import Membership
from waltzctl.engine.metadata.partition_sessions import PartitionSessions, follow_replicas
from waltzctl.engine.metadata.server_directory import ServerDirectory
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.outbox import Outbox
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.server_settings import PartitionOptions, ServerOptions, SessionOptions

PARTITIONS = 2


class SimulatedServer:
    """A log server, its place in the cluster, and its port at the end of pipes."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.cluster, self.port = cluster, port
        self.store = TreeStore(cluster.tree)
        self.detector = FailureDetector(
            cluster.reach_server, lambda path: self.membership.delete(path), log=LOG, refused=cluster.refused_at
        )
        self.membership = Membership(self.store, log=LOG, seen=self.detector.watch)
        chance = cluster.chance
        options = ServerOptions(
            metadata="simulated",
            session=SessionOptions(
                in_flight=chance.choice((1, 3)), copied=chance.choice((1, 7)), first_retry=0.01, longest_retry=0.5
            ),
            partition=PartitionOptions(batch=chance.choice((1, 4)), checkpoint=chance.choice((10, 250_000))),
        )
        self.log_server = LogServer(PartitionSessions(self.store), cluster.nodes.connect, log=LOG, options=options)
        self.log_server.port.loop = asyncio.get_running_loop()
        self.log_server.port.outbox = Outbox(self.log_server.port.loop, lambda: None)
        self.pipes: list[Pipe] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.gone = False

    async def start(self) -> None:
        """Stand among the servers, and serve what is given."""
        while True:
            with contextlib.suppress(PeerError, RefusedError):
                await self.membership.register("server", self.port)
                break
            self.cluster.tree.expire(self.store)  # a start that fails ends the process, and what it left
            await asyncio.sleep(0.2)
        follow = self.membership.follow(self._assigned)
        self.tasks = [asyncio.ensure_future(follow), asyncio.ensure_future(self._follow_replicas())]

    def _assigned(self, generations: Mapping[int, int]) -> None:
        self.tasks.append(asyncio.ensure_future(self.log_server.assign(generations)))

    async def _follow_replicas(self) -> None:
        await follow_replicas(self.store, self.log_server.reassign, log=LOG)

    async def end(self, told: bool) -> None:
        """Stop, or die without a word: then the others hear of it when its session is over."""
        self.gone = True
        if told:
            with contextlib.suppress(PeerError, RefusedError):
                await self.membership.unregister()
        for pipe in self.pipes:
            pipe.cut()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        async with asyncio.timeout(60):
            await self.detector.close()
            for one in self.log_server.partitions.values():
                await one.close()
        self.cluster.spawn(self.store.die())


class Cluster:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, Random(seed)
        chance = self.chance
        self.way = Way(chance.choice((0.0, 0.001, 0.01)))
        self.nodes: RealNodes
        self.tree = Tree(chance, chance.choice((0.0, 0.0, 0.01)), chance.random() < 0.5)
        self.firewall = chance.choice((0.0, 0.9))
        self.errors = Errors()
        self.servers: list[SimulatedServer] = []
        self.numbers = 0
        self.over = False
        self.operating = asyncio.Lock()
        self.asked: set[bytes] = set()
        self.committed: list[tuple[int, int, bytes]] = []
        """Partition and id of what was acknowledged, and what it was."""
        self.committed_as: list[Transaction] = []
        self.refused: set[bytes] = set()
        self.told: list[list[Transaction]] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.lines.append(f"{type(error).__name__}: {error}")

    # ---- who takes part ------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Another server."""
        made = SimulatedServer(self, 1000 + len(self.servers))
        self.servers.append(made)
        await made.start()

    @property
    def alive(self) -> list[SimulatedServer]:
        """The servers that run."""
        return [one for one in self.servers if not one.gone]

    async def reach(self, address: Address) -> LogConnection:
        """A client's connection to a server: see `partition_mount.Connect`."""
        await asyncio.sleep(self.chance.uniform(0.001, 0.01))
        server = self.servers[address.port - 1000]
        if server.gone:
            raise PeerUnreachableError(str(address), "nobody answers")
        made = LogConnection(PORT, address, timeout=5.0, keep_alive_seconds=1e6)
        server.pipes.append(connect(made, server.log_server.port._connection("a client"), self.chance, self.way))
        await greeted(made, str(address))
        return made

    async def reach_server(self, address: Address) -> LogConnection:
        """A server's connection to another one: see `failure_detector.Connect`."""
        if self.chance.random() < self.firewall:
            raise PeerUnreachableError(str(address), "somebody else refused")
        return await self.reach(address)

    async def refused_at(self, address: Address) -> bool:
        """See `failure_detector.Refused`."""
        await asyncio.sleep(self.chance.uniform(0.001, 0.01))
        return self.servers[address.port - 1000].gone or self.chance.random() < self.firewall

    async def client(self) -> LogClient:
        """One more client, entered."""
        directory = ServerDirectory(TreeStore(self.tree), PARTITIONS, uuid.UUID(int=1), log=LOG)
        options = ClientOptions(timeout=20.0, in_flight=self.chance.choice((1, 4)), nudge=1.0, longest_retry=1.0)
        return await LogClient(directory, self.reach, log=LOG, options=options).__aenter__()

    # ---- what clients do -----------------------------------------------------------------------------------------------

    def _asking(self) -> tuple[list[bytes], Build]:
        """What will have been asked for by an append, perhaps under a lock, and what builds it."""
        kind = self.chance.random()
        lock = [("lock", self.chance.choice((1, 2)))] if kind < 0.4 else []
        sent: list[bytes] = []

        def build(mark: int) -> Draft:
            self.numbers += 1
            sent.append(b"%d %d" % (mark if lock else -1, self.numbers))
            self.asked.add(sent[-1])
            return Draft(sent[-1], header=lock[0][1] if lock else 0, write_locks=lock)

        return sent, build

    def _committed(self, partition: int, transaction_id: int, sent: list[bytes]) -> None:
        self.committed.append((partition, transaction_id, sent[-1]))
        self.refused |= {*sent[:-1]}

    async def append(self, client: LogClient, partition: int) -> None:
        """A single one."""
        sent, build = self._asking()
        with contextlib.suppress(DeadlineError, PeerError):
            found = await client.append(partition, build)
            assert found is not None
            self.committed_as.append(found)
            self._committed(partition, found.transaction_id, sent)

    async def append_all(self, client: LogClient, partition: int, many: int) -> None:
        """Some in one call."""
        asked = [self._asking() for _ in range(many)]
        told: list[int] = []

        def committed(place: int, transaction_id: int) -> None:
            told.append(place)
            self._committed(partition, transaction_id, asked[place][0])

        with contextlib.suppress(DeadlineError, PeerError):
            assert await client.append_all(partition, [build for _, build in asked], on_commit=committed) == many
            assert sorted(told) == [*range(many)], "each is told once"

    async def follow(self, client: LogClient) -> None:
        """A feed of everything."""
        told: list[list[Transaction]] = [[] for _ in range(PARTITIONS)]
        self.told += told
        while not self.over:  # a feed that cannot begin is begun again
            with contextlib.suppress(PeerError):
                async for one in client.feed({n: len(known) - 1 for n, known in enumerate(told)}):
                    assert one.transaction_id == len(told[one.partition]), "a feed has a gap, or tells something twice"
                    told[one.partition].append(one)
            await asyncio.sleep(0.1)

    # ---- the history ---------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Faults, appends and feeds; then peace, and everything that was promised is counted."""
        stall = self.chance.choice((0.0, 0.0, 0.002))
        with (
            scratch_directory() as root,
            RealNodes(self.chance, root, partitions=PARTITIONS, loss=self.way.loss, stall=stall) as self.nodes,
        ):
            await self._live()

    async def _live(self) -> None:
        operator, late, lost = TreeStore(self.tree), self.tree.late, self.tree.loss
        self.tree.late, self.tree.loss = False, 0.0
        await create_cluster(operator, name="c", num_partitions=PARTITIONS, cluster_key=uuid.UUID(int=1))
        for number in range(self.chance.choice((1, 3, 3))):
            await self._one_more_node(operator, number)
        self.tree.late, self.tree.loss = late, lost
        await self.serve()
        await self.serve()
        clients = [await self.client() for _ in range(2)]
        for client in clients:
            self.spawn(self.follow(client))
        for _ in range(self.chance.choice((20, 50))):
            await asyncio.sleep(self.chance.choice((0.001, 0.01, 0.3)))
            what = self.chance.random()
            if what < 0.7:
                for _ in range(self.chance.choice((1, 1, 4))):
                    self.spawn(self.append(self.chance.choice(clients), self.chance.randrange(PARTITIONS)))
                if self.chance.random() < 0.2:
                    self.spawn(self.append_all(self.chance.choice(clients), self.chance.randrange(PARTITIONS), 6))
            elif what < 0.78:
                self.nodes.crash(self.chance.choice(list(self.nodes.nodes.values())))
            elif what < 0.8:
                self.chance.choice(list(self.nodes.nodes.values())).slow = self.chance.choice((1.0, 1.0, 30.0))
            elif what < 0.84:
                for pipe in self.chance.choice(self.servers).pipes[-2:]:
                    pipe.cut()
            elif what < 0.89:
                one = self.chance.choice(self.alive)
                self.spawn(one.store.lose_session(self.chance.uniform(2.0, 6.0), self.chance.uniform(1.0, 8.0)))
            elif what < 0.95:
                self.spawn(self._change_replicas(operator))
            elif len(self.alive) > 1:
                await self.chance.choice(self.alive).end(told=self.chance.random() < 0.5)
            else:
                self.spawn(self.serve())
        await self.peace(clients, operator)

    async def _one_more_node(self, operator: TreeStore, number: int) -> None:
        name = self.nodes.node(f"n{number}:1").name
        await add_node(operator, name, admin_port=2, group=number)
        await assign(operator, name, range(PARTITIONS))

    async def _change_replicas(self, operator: TreeStore) -> None:
        async with self.operating:
            await self._change(operator)

    async def _change(self, operator: TreeStore) -> None:
        with contextlib.suppress(PeerError, RefusedError, DeadlineError):
            if self.chance.random() < 0.5 and len(self.nodes.nodes) < 6:
                for _ in range(self.chance.choice((1, 1, 2))):
                    await self._one_more_node(operator, len(self.nodes.nodes))
            else:
                partition = self.chance.randrange(PARTITIONS)
                held = await PartitionSessions(operator).assigned(partition)
                if len(held) > 1:  # the last one is given back to nobody: there would be no partition
                    await unassign(operator, self.chance.choice(held), [partition])

    async def peace(self, clients: list[LogClient], operator: TreeStore) -> None:
        """Soon everybody gets through."""
        self.way.loss = self.tree.loss = 0.0
        self.tree.late, self.firewall = False, 0.0
        self.nodes.calm()
        await asyncio.sleep(10.0)
        ends = []
        for partition in range(PARTITIONS):
            async with asyncio.timeout(100):
                for client in clients:
                    await client.append(partition, Draft(b"peace"), timeout=60)
                ends.append(await clients[0].high_water_mark(partition))
        await asyncio.sleep(25.0)  # what is under way meets its deadline
        feeds = [(n % PARTITIONS, told) for n, told in enumerate(self.told)]
        fresh = await self.client()
        logs: list[list[Transaction]] = [[] for _ in range(PARTITIONS)]
        data: dict[tuple[int, int], bytes] = {}
        async with asyncio.timeout(100):
            ends = [await fresh.high_water_mark(partition) for partition in range(PARTITIONS)]
            async for one in fresh.feed(range(PARTITIONS), until=ends.__getitem__):
                logs[one.partition].append(one)
                data[one.partition, one.transaction_id] = await fresh.data(one.partition, one.transaction_id)
        sessions = PartitionSessions(operator)
        holders = [await sessions.assigned(partition) for partition in range(PARTITIONS)]
        self.over = True
        for client in (*clients, fresh):
            await client.close()
        for server in self.alive:
            await server.end(told=True)
        self.nodes.end()
        for task in [*self._tasks]:
            task.cancel()
        self.check(logs, data, feeds, holders)

    def check(
        self,
        logs: list[list[Transaction]],
        data: dict[tuple[int, int], bytes],
        feeds: list[tuple[int, list[Transaction]]],
        holders: list[tuple[str, ...]],
    ) -> None:
        for partition, told in feeds:
            assert told == logs[partition], "two clients saw different transactions, or one not all of them"
        numbers = [one for one in data.values() if one != b"peace"]
        assert len({*numbers}) == len(numbers), "something that was appended once is there twice"
        assert {*numbers} <= self.asked
        for found in self.committed_as:
            assert logs[found.partition][found.transaction_id] == found, f"{found} was acknowledged and is not there"
        for partition, transaction_id, sent in self.committed:
            assert data.get((partition, transaction_id)) == sent, f"{sent!r} was acknowledged and is not there"
        assert not {*numbers} & self.refused, "what was refused, and sent again as something else, is there"
        for partition, log in enumerate(logs):
            last: dict[int, int] = {}
            for one in log:
                if one.header:
                    mark = int(data[partition, one.transaction_id].split()[0])
                    assert last.get(one.header, -1) <= mark, (
                        f"two writers held a lock at {partition}/{one.transaction_id}"
                    )
                    last[one.header] = one.transaction_id
            held = [self.nodes.nodes[name].replica(partition).log[: len(log)] for name in holders[partition]]
            for records in held:
                assert [r.request_id for r in records] == [t.request_id for t in log[: len(records)]], (
                    "a replica differs"
                )
            assert sum(len(one) == len(log) for one in held) >= quorum_of(len(held)), "no quorum holds it all"
        assert not self.errors.lines, self.errors.lines
