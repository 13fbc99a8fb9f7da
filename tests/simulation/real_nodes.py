"""Storage nodes as in production, in virtual time: data port, partitions and files, on a disk that loses power.

A node's power may go at any change of its disk, also in the middle of an append or of its own start.  What is on its disk then is
one of the states that `tests.crash.simdisk` knows: what was not synced is there, lost, torn or zero, and each name for itself;
with that it starts again.  A sync may fail; then somebody starts the node anew sometime.  Its requests are executed on the
loop, where its threads would do it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

from tests.crash.recorder import LOCK, observing
from tests.crash.simdisk import Loss, SimulatedDisk, Tree
from tests.simulation.pipes import Pipe, Way, connect, greeted
from tests.simulation.world import NODE_LOG
from waltzctl.engine.catalogue import Code
from waltzctl.engine.client.client_connection import NodePortConnection
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import PeerUnreachableError, SyncFailedError
from waltzctl.engine.net.addresses import parse_address
from waltzctl.engine.net.executor import Job
from waltzctl.engine.net.outbox import Outbox
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.node.data_port import DataPort
from waltzctl.engine.node.hosted_storage import HostedStorage
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.node.node_settings import ServiceOptions
from waltzctl.engine.storage.creation import create_cluster
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.formats.control import Layout
from waltzctl.formats.wire.primitives import DEFAULT_LIMITS
from waltzctl.formats.wire.records import WireRecord, pack_count, unpack_records

CLUSTER_KEY = uuid.UUID(int=1)
LOSS = Loss(torn_positions=2, random_states=2)


class PowerLossError(BaseException):
    """The machine is off: whatever was being done is done no further."""


class LoopExecutor:
    """Executes a node's jobs (`engine.net.executor.JobExecutor`), each after a while and as a whole."""

    def __init__(self, node: RealNode) -> None:
        self._node, self._life = node, node.life
        self._under_way = 0

    @property
    def at_rest(self) -> bool:
        return not self._under_way

    @property
    def others_wait(self) -> bool:
        return self._under_way > 1

    def schedule(self, job: Job) -> None:
        self._under_way += 1
        delay = self._node.nodes.chance.uniform(0.0001, 0.003) * self._node.way.slow
        asyncio.get_running_loop().call_later(delay, self._run, job)

    def _run(self, job: Job) -> None:
        if self._node.life != self._life or not self._node.up:
            return
        try:
            again = job.run()
        except PowerLossError:
            return
        self._under_way -= 1
        if again:
            self.schedule(job)

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, seconds: float, call: Callable[[], None]) -> bool:
        asyncio.get_running_loop().call_later(seconds, self._call, call)
        return True

    def _call(self, call: Callable[[], None]) -> None:
        if self._node.life == self._life and self._node.up:
            call()

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition on a node."""

    log: list[WireRecord]
    session_id: int


class RealNode:
    """A node.  `life` counts its starts; `fuse`: changes of its disk after which its power goes, None for never."""

    def __init__(self, nodes: RealNodes, name: str) -> None:
        self.nodes, self.name = nodes, name
        self.way = Way()
        self.up, self.life = False, 0
        self.fuse: int | None = None
        self.pipes: list[Pipe] = []
        self.disk: SimulatedDisk
        self._hosted: HostedStorage
        self._storage: StorageDirectory
        self._port: DataPort
        self.directory: Path

    def start(self, tree: Tree | None) -> None:
        """Start with what is on the disk; None: as a node of a cluster that is just made.

        A start that fails is tried again, as that of a process by who looks after it.
        """
        nodes = self.nodes
        self.life += 1
        self.directory = nodes.root / f"{self.name.partition(':')[0]}.{self.life}"
        if tree is None:
            create_cluster(
                [self.directory],
                num_partitions=nodes.partitions,
                cluster_key=CLUSTER_KEY,
                layout=nodes.chance.choice((Layout.RELEASED, Layout.DOCUMENTED)),
            )
            tree = Tree.read(self.directory, (LOCK,))
        else:
            self.directory.mkdir()
            tree.write(self.directory)
        self.disk = SimulatedDisk(self.directory, tree)
        self.up = True
        try:
            options = StorageOptions(segment_size_threshold=nodes.segment_size)
            self._storage = StorageDirectory.open(self.directory, expected_key=CLUSTER_KEY, options=options)
            self._hosted = HostedStorage(
                self._storage,
                options=ServiceOptions(),
                metrics=NodeMetrics(),
                log=NODE_LOG,
                executor=LoopExecutor(self),
                flusher=Flusher(log=NODE_LOG, threads=0),
            )
        except PowerLossError:
            return
        except SyncFailedError as error:
            NODE_LOG.info("%s does not start: %s", self.name, error)
            nodes.power_off(self)
            return
        self._port = DataPort(self._hosted, limits=PortLimits(), log=NODE_LOG)
        self._port.loop = asyncio.get_running_loop()
        self._port.outbox = Outbox(self._port.loop, self._port._send)

    def changed(self, change: Change) -> None:
        """The disk was changed."""
        if not self.up:
            return  # what a process that is gone does no more
        if change.kind == "sync" and self.nodes.unsynced and self.nodes.chance.random() < self.nodes.unsynced:
            self.nodes.restart_later(self)
            raise SyncFailedError(change.path, None, OSError(errno.EIO, "Input/output error"), doing="sync")
        self.disk.apply(change)
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                self.nodes.power_off(self)
                raise PowerLossError

    async def connect(self) -> StorageClient:
        """See `engine.server.storage_nodes.Connect`."""
        nodes = self.nodes
        made: NodePortConnection[Any] = NodePortConnection(
            StorageClient._port, parse_address(self.name), timeout=nodes.deadline, keep_alive_seconds=1e6
        )
        pipe = connect(made, self._port._connection("a server"), nodes.chance, self.way)
        self.pipes.append(pipe)
        await greeted(made, self.name)
        client = StorageClient(made)
        await client.open(CLUSTER_KEY, nodes.partitions)
        return client

    def end(self) -> None:
        """The process is gone; what it held of the machine goes with it."""
        self.up, self.fuse = False, None
        for pipe in self.pipes:
            pipe.cut()
        self.pipes.clear()

    def close(self) -> None:
        """Give back what the machine that runs the simulation lent it."""
        with contextlib.suppress(AttributeError):
            self._hosted._fences.close()
        with contextlib.suppress(AttributeError):
            self._storage.close()

    @property
    def is_damaged(self) -> bool:
        """Whether a partition is quarantined, and another start would not help."""
        return any(
            one.quarantined and all(finding.code is not Code.READ_ERROR for finding in one.findings)
            for one in self._storage.partitions.values()
        )

    @property
    def slow(self) -> float:
        """How many times as long as others it takes for everything."""
        return self.way.slow

    @slow.setter
    def slow(self, slow: float) -> None:
        self.way.slow = slow

    def replica(self, partition: int) -> Replica | None:
        """What it holds, as it would give it out; None while it is off, or could not open it."""
        if not self.up or self._storage.partitions[partition].quarantined:
            return None
        found = self._hosted.read_wire(partition, 0, 1 << 20)
        records, _ = unpack_records(memoryview(pack_count(found.count) + found.data), 0, DEFAULT_LIMITS)
        return Replica(list(records), self._hosted.session_info(partition).session_id)


class RealNodes:
    """All nodes of a cluster, and the ways to them.

    `unsynced`: the share of syncs that fail.  `deadline`: of a call, in seconds.
    """

    def __init__(self, chance: Random, root: Path, *, partitions: int, loss: float, stall: float) -> None:
        self.chance, self.root, self.partitions = chance, root, partitions
        self.loss, self.stall = loss, stall
        self.unsynced = chance.choice((0.0, 0.0, 0.01))
        self.segment_size = chance.choice((300, 2000, 1 << 20))
        self.deadline = 2.0
        self.nodes: dict[str, RealNode] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._observing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._observing.enter_context(observing(self._changed))
        return self

    def __exit__(self, *_: object) -> None:
        self._observing.close()  # first: what is closed now is of no interest
        for node in self.nodes.values():
            node.close()

    def _changed(self, change: Change) -> None:
        if change.path == self.root:  # names of directories of whole nodes are nobody's disk
            return
        host, _, life = change.path.relative_to(self.root).parts[0].rpartition(".")
        node = self.nodes.get(f"{host}:1")
        if node is not None and str(node.life) == life:
            node.changed(change)

    def node(self, name: str) -> RealNode:
        """A node by its name, made and started where there is none."""
        if name not in self.nodes:
            self.nodes[name] = RealNode(self, name)
            self.nodes[name].way.loss, self.nodes[name].way.stall = self.loss, self.stall
            self.nodes[name].start(None)
        return self.nodes[name]

    async def connect(self, name: str) -> StorageClient:
        """See `engine.server.storage_nodes.Connect`."""
        await asyncio.sleep(self.chance.uniform(0.001, 0.01))
        node = self.node(name)
        if not node.up:
            raise PeerUnreachableError(name, "nobody answers")
        return await node.connect()

    def crash(self, node: RealNode) -> None:
        """A node's power goes, now or in the middle of one of the next things that it does."""
        if node.up and self.chance.random() < 0.4:
            self.power_off(node)
        elif node.up:
            node.fuse = self.chance.randrange(1, 12)

    def restart_later(self, node: RealNode) -> None:
        """Somebody sees that it is unwell."""

        async def work(life: int) -> None:
            await asyncio.sleep(self.chance.uniform(0.5, 4.0))
            if node.up and node.life == life:
                self.power_off(node)

        self._spawn(work(node.life))

    def power_off(self, node: RealNode) -> None:
        """Now; it comes back after a while."""
        node.end()
        states = list(node.disk.crashes(LOSS, self.chance))
        model, tree = states[self.chance.randrange(len(states))]
        NODE_LOG.info("%s lost power: %s", node.name, model)
        self._start_later(node, tree, node.disk.dropped())

    def empty(self, node: RealNode) -> None:
        """A node goes down, and comes back with an empty disk."""
        node.end()
        self._start_later(node, None, None)

    def _start_later(self, node: RealNode, tree: Tree | None, otherwise: Tree | None) -> None:
        """Start it with `tree`, or with `otherwise` if somebody would have to decide what becomes of a partition.

        That is so where a later record of an append reached the disk and an earlier one did not (`docs/crash-safety.md`).
        """

        async def work() -> None:
            await asyncio.sleep(self.chance.uniform(0.05, 3.0))
            node.close()
            node.start(tree)
            if node.up and node.is_damaged:
                node.end()
                node.close()
                node.start(otherwise)

        self._spawn(work())

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def calm(self) -> None:
        """No faults from now on."""
        self.loss = self.stall = self.unsynced = 0.0
        for node in self.nodes.values():
            node.way.loss = node.way.stall = 0.0
            node.way.slow = 1.0
            node.fuse = None

    def end(self) -> None:
        """Nothing comes back any more."""
        for task in [*self._tasks]:
            task.cancel()
