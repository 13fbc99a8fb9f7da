"""A cluster of real processes under load, of which one after the other is killed or stopped: what was acknowledged is there.

Storage nodes, log servers and ZooKeeper are killed (-9) or paused (SIGSTOP) at random; a server that is paused for longer than
its session finds its partitions with another one when it goes on.  Clients write under locks all the while.  At the end every
transaction that was acknowledged is there, once, with its data; every reader sees the same order; and the replicas are equal.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tests.cli.running import invoke
from tests.cluster.processes import ClusterOfProcesses
from tests.interop.processes import Running, Stage, wait_until
from tests.zookeeper import ZooKeeperServer, running
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.client.open_log import open_log_client
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperTimeouts

PARTITIONS = 2
AT_ONCE = 256
"""Transactions whose data is asked for at the same time."""
OPTIONS = ClientOptions(timeout=60.0, nudge=1.0, longest_retry=0.5)


class Faults:
    """What is done to the processes, by a seed."""

    def __init__(
        self, cluster: ClusterOfProcesses, zookeeper: ZooKeeperServer | None, chance: Random, pauses: tuple[float, ...]
    ) -> None:
        self.cluster, self.zookeeper, self.chance, self.pauses = cluster, zookeeper, chance, pauses
        self.done: list[str] = []

    def one(self) -> None:
        """One fault, and its end."""
        kinds: list[Callable[[], None]] = [self._node, self._server]
        if self.zookeeper is not None:
            kinds.append(self._zookeeper)
        self.chance.choice(kinds)()

    def _node(self) -> None:
        number = self.chance.choice((1, 2, 3))
        if self.chance.random() < 0.5:
            self.done.append(f"kill node {number}")
            self.cluster.nodes[f"n{number}"].kill()
            time.sleep(self.chance.random())
            self.cluster.start_nodes(number)
        else:
            self._pause(f"node {number}", self.cluster.nodes[f"n{number}"])

    def _server(self) -> None:
        number = self.chance.choice((1, 2))
        if self.chance.random() < 0.5:
            self.done.append(f"kill server {number}")
            self.cluster.servers[number].kill()
            time.sleep(self.chance.random())
            self.cluster.start_servers(number)
        else:
            self._pause(f"server {number}", self.cluster.servers[number])

    def _pause(self, name: str, process: Running) -> None:
        seconds = self.chance.choice(self.pauses)
        self.done.append(f"pause {name} for {seconds} s")
        process.pause()
        time.sleep(seconds)
        process.resume()

    def _zookeeper(self) -> None:
        assert self.zookeeper is not None
        if self.chance.random() < 0.5:
            self.done.append("kill ZooKeeper")
            self.zookeeper.kill()
            time.sleep(self.chance.random())
            self.zookeeper.start()
            self.zookeeper.wait()
        else:
            self.done.append("pause ZooKeeper")
            self.zookeeper.pause()
            time.sleep(self.chance.choice(self.pauses))
            self.zookeeper.resume()


async def write(client: LogClient, who: int, stop: asyncio.Event, told: dict[tuple[int, int], bytes]) -> None:
    """Append until it is told to stop, and note what was acknowledged; what was not may or may not be there."""
    chance, number = Random(who), 0
    while not stop.is_set():
        number += 1
        partition, data = chance.randrange(PARTITIONS), b"%d-%d" % (who, number)
        locks = [("lock", who % 2)] if chance.random() < 0.5 else ()
        with contextlib.suppress(WaltzError):
            done = await client.append(partition, Draft(data, write_locks=locks))
            assert done is not None
            assert (partition, done.transaction_id) not in told, f"given twice: {done}"
            told[partition, done.transaction_id] = data
        await asyncio.sleep(0.002)


class Load:
    """Clients that write, in a thread of their own: processes die with the thread that started them, and faults start some."""

    def __init__(self, metadata: str) -> None:
        self._where = MetadataLocation.parse(metadata, ZooKeeperTimeouts(session_timeout=5.0))
        self._reach = ConnectionFactory(plaintext=True)
        self.told: dict[tuple[int, int], bytes] = {}
        self._executor = ThreadPoolExecutor(1)
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done = self._executor.submit(lambda: asyncio.run(self._write()))

    async def _write(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(open_log_client(self._where, self._reach, options=OPTIONS))
                for _ in range(2)
            ]
            await asyncio.gather(*(write(clients[who % 2], who, self._stop, self.told) for who in range(4)))

    def wait_for_more(self) -> None:
        """Progress, once a fault is over."""
        before = len(self.told)
        wait_until(lambda: len(self.told) > before or self._done.done(), "something is committed", seconds=90)

    def finish(self) -> None:
        """Stop writing; raises what went wrong."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._done.result(90)
        self._executor.shutdown()

    async def check(self) -> None:
        """Everything that was acknowledged is there, once, in order."""
        async with open_log_client(self._where, self._reach, options=OPTIONS) as reader:
            for partition in range(PARTITIONS):
                last = await reader.high_water_mark(partition)
                ids = [one.transaction_id async for one in reader.feed(partition, until={partition: last}.__getitem__)]
                assert ids == [*range(last + 1)]
                data: list[bytes] = []
                for first in range(0, last + 1, AT_ONCE):
                    some = ids[first : first + AT_ONCE]
                    data += await asyncio.gather(*(reader.data(partition, number) for number in some))
                assert len(set(data)) == len(data), "something is there twice"
                mine = {number: one for (of, number), one in self.told.items() if of == partition}
                assert {number: data[number] for number in mine} == mine


def _behind(cluster: ClusterOfProcesses) -> list[str]:
    """Replicas that lack something."""
    (top,) = cluster.cluster("top", "--once", "--format", "ndjson").objects
    return [replica["node"] for one in top["partitions"] for replica in one["replicas"] if replica["behind"] != 0]


@pytest.mark.parametrize("kind", ["embedded", pytest.param("zookeeper", marks=pytest.mark.long)])
def test_what_was_acknowledged_is_there_whatever_dies(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    long = bool(request.config.getoption("--long"))
    count, seed, pauses = (100, int(time.time()), (0.3, 1.0, 6.0)) if long else (2, 44, (0.3,))
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(running(tmp_path / "zookeeper")) if kind == "zookeeper" else None
        stage = stack.enter_context(Stage(tmp_path))
        metadata = None if zookeeper is None else f"zk://{zookeeper.connect_string}/kills"
        cluster = ClusterOfProcesses(stage, partitions=PARTITIONS, metadata=metadata)
        cluster.add_nodes(1, 2, 3)
        cluster.start_servers(1, 2)
        cluster.settle()
        faults = Faults(cluster, zookeeper, Random(seed), pauses)
        load = Load(cluster.metadata)
        try:
            for _ in range(count):
                load.wait_for_more()
                faults.one()
            load.wait_for_more()
            load.finish()
            cluster.settle()
            asyncio.run(load.check())
            wait_until(lambda: not _behind(cluster), "nobody is behind")
        except BaseException:
            print(f"seed {seed}: {faults.done}")
            raise
        assert len(load.told) > 10 * count
        for server in cluster.servers.values():
            server.stop()
        for node in cluster.nodes.values():
            node.stop()
        compared = invoke("compare", *(cluster.directory(number) for number in (1, 2, 3)), "--format", "ndjson")
        assert {one["verdict"] for one in compared.only("partition-comparison")} == {"equal"}, (faults.done, compared)
