"""Real processes under load: a log server that is cut off from ZooKeeper or from the storage nodes only, and a node's full disk.

What was acknowledged is there, once, in one order, and everything goes on; who is cut off commits nothing meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import ClusterOfProcesses
from tests.cluster.test_kills import PARTITIONS, Load
from tests.interop.processes import Stage, wait_until
from tests.small_disks import fill, memory_disk
from tests.zookeeper import ZooKeeperServer, new_root, running

HOST = "127.0.0.1"
SESSION_SECONDS = 6


class Relay:
    """Listens at `port`, and passes on to another port of this machine what comes, unless it is to let a process pass no more."""

    def __init__(self, to: int) -> None:
        self._to, self._passing = to, set[tuple[asyncio.Task[Any], int]]()
        self._cut: int | None = None
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._pass, HOST, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        process = _process_of(writer.get_extra_info("peername")[1])
        if process == self._cut:
            writer.transport.abort()
            return
        own = asyncio.current_task()
        assert own is not None
        self._passing.add((own, process))
        with contextlib.suppress(OSError, asyncio.CancelledError):
            beyond, to = await asyncio.open_connection(HOST, self._to)
            try:
                both = [asyncio.ensure_future(_copy(reader, to)), asyncio.ensure_future(_copy(beyond, writer))]
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for one in both:
                        one.cancel()
                    await asyncio.gather(*both, return_exceptions=True)
            finally:
                to.transport.abort()
        writer.transport.abort()
        self._passing.discard((own, process))

    def cut(self, process: int) -> None:
        """End the connections of a process, and all that it makes from now on."""

        def cut() -> None:
            self._cut = process
            for task, of in self._passing:
                if of == process:
                    task.cancel()

        self._loop.call_soon_threadsafe(cut)

    def mend(self) -> None:
        """Let it pass again."""
        self._loop.call_soon_threadsafe(setattr, self, "_cut", None)

    def close(self) -> None:
        """End everything."""

        async def end() -> None:
            self._server.close()
            tasks = [task for task, _ in self._passing]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join()
        self._loop.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


def _process_of(port: int) -> int:
    """The process of this machine that has a connection from this port; 0 if it has gone."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    inode = next((row[9] for row in rows if row[1].endswith(f":{port:04X}")), None)
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for file in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/fd/{file}") == f"socket:[{inode}]":
                        return int(name)
    return 0


@contextlib.contextmanager
def relay(to: int) -> Iterator[Relay]:
    made = Relay(to)
    try:
        yield made
    finally:
        made.close()


def held(cluster: ClusterOfProcesses) -> dict[int, int]:
    """How many partitions each server has."""
    return {one["server_id"]: len(one["partitions"]) for one in cluster.state()["servers"]}


def wait_for_each(load: Load, partitions: set[int]) -> None:
    """Until something more is committed in each of these partitions."""
    before = len(load.told)
    wait_until(
        lambda: {partition for partition, _ in [*load.told][before:]} >= partitions, f"{partitions} go on", seconds=90
    )


def finish(cluster: ClusterOfProcesses, load: Load) -> None:
    """The load ends, and everything is there."""
    wait_for_each(load, {*range(PARTITIONS)})
    load.finish()
    cluster.settle()
    asyncio.run(load.check())


@pytest.mark.turns(16)
def test_a_server_that_is_cut_off_from_zookeeper_but_not_from_its_nodes(
    tmp_path: Path,
) -> None:
    """Its partitions go to the other one when its session is over, and it serves nothing; once it is back it has its share."""
    pytest.importorskip("pyspark")
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(
            running(tmp_path / "zookeeper", (f"maxSessionTimeout={1000 * SESSION_SECONDS}",))
        )
        way, stage = stack.enter_context(relay(zookeeper.port)), stack.enter_context(Stage(tmp_path))
        root = new_root()
        cluster = ClusterOfProcesses(stage, partitions=PARTITIONS, metadata=f"zk://{zookeeper.connect_string}{root}")
        cluster.add_nodes(1, 2, 3)
        direct, cluster.metadata = cluster.metadata, f"zk://{HOST}:{way.port}{root}"
        (first,) = cluster.start_servers(1)
        cluster.metadata = direct
        (second,) = cluster.start_servers(2)
        cluster.settle()
        load = Load(direct)
        wait_for_each(load, {*range(PARTITIONS)})
        way.cut(first["pid"])
        wait_until(lambda: held(cluster) == {second["server_id"]: PARTITIONS}, "the other one has everything")
        told = "every partition is closed until the metadata answers again"
        wait_until(lambda: told in cluster.servers[1].log.read_text(), "the first knows that its session is over")
        wait_for_each(load, {*range(PARTITIONS)})
        way.mend()
        wait_until(lambda: first["server_id"] in held(cluster), "the first is back")
        finish(cluster, load)


@pytest.mark.turns(16)
def test_a_server_that_is_cut_off_from_its_nodes_but_not_from_zookeeper(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    """It keeps its partitions, commits nothing, and says so; the others go on, and it does once it reaches the nodes."""
    with contextlib.ExitStack() as stack:
        stage = stack.enter_context(Stage(tmp_path))
        cluster = ClusterOfProcesses(
            stage, partitions=PARTITIONS, metadata=f"zk://{zookeeper.connect_string}{new_root()}"
        )
        cluster.start_nodes(1, 2, 3)
        ways = [stack.enter_context(relay(cluster.ready(f"n{number}")["port"])) for number in (1, 2, 3)]
        for number, way in enumerate(ways, 1):
            name, admin = f"{HOST}:{way.port}", cluster.ready(f"n{number}")["admin_port"]
            cluster.cluster("add-node", name, "--admin-port", admin, "--group", number, "--yes")
            cluster.cluster("auto-assign", "--group", number, "--yes")
        assert cluster.cluster("sync", "--yes").status == 0
        first, second = cluster.start_servers(1, 2)
        cluster.settle()
        before = held(cluster)
        (lost,) = (
            {one["partition"] for one in server["partitions"]}
            for server in cluster.state()["servers"]
            if server["server_id"] == first["server_id"]
        )
        assert before == {first["server_id"]: 1, second["server_id"]: PARTITIONS - 1}
        load = Load(cluster.metadata)
        wait_for_each(load, {*range(PARTITIONS)})
        for way in ways:
            way.cut(first["pid"])
        wait_until(lambda: "partition-unhealthy" in cluster.codes(), "it is told")

        def stands() -> bool:
            """Whether nothing was committed there while each other partition went on."""
            told = len([one for one in load.told if one[0] in lost])
            wait_for_each(load, {*range(PARTITIONS)} - lost)
            return len([one for one in load.told if one[0] in lost]) == told

        wait_until(stands, "what was under way is told, and no more")
        assert stands()
        assert held(cluster) == before
        for way in ways:
            way.mend()
        finish(cluster, load)


class OneOnASmallDisk(ClusterOfProcesses):
    """The directory of node 1 is on a file system of its own."""

    def directory(self, number: int) -> Path:
        return self.stage.directory / "small" / "n1" if number == 1 else super().directory(number)


@pytest.mark.turns(16)
def test_a_node_whose_disk_is_full_and_then_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALTZCTL_SERVE_MIN_FREE", "1MiB")
    with contextlib.ExitStack() as stack:
        small = tmp_path / "small"
        stack.enter_context(memory_disk(small, "32m"))
        stage = stack.enter_context(Stage(tmp_path))
        cluster = OneOnASmallDisk(stage, partitions=PARTITIONS)
        cluster.add_nodes(1, 2, 3)
        cluster.start_servers(1, 2)
        cluster.settle()
        load = Load(cluster.metadata)
        wait_for_each(load, {*range(PARTITIONS)})
        filler = fill(small)
        wait_until(lambda: "replica-out-of-service" in cluster.codes(), "the disk is found full")
        wait_for_each(load, {*range(PARTITIONS)})
        filler.unlink()
        wait_until(lambda: "replica-out-of-service" not in cluster.codes(), "it comes back by itself")
        finish(cluster, load)
