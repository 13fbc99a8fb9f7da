"""More partitions, and more connections, than anybody has as yet: what grows with their product, and what stands still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.told_servers import Directory
from tests.node.running import LOOPS, run
from tests.server.serving import QUICK, Stored
from tests.server.storing import LOG, running_cluster, until
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.mounted_clients import MountedClients
from waltzctl.engine.server.server_settings import ServerOptions


async def connect(address: Address) -> LogConnection:
    return await LogConnection.connect(PORT, address, ssl_context=None, timeout=5.0)


@contextlib.asynccontextmanager
async def served(path: Path, count: int, options: ServerOptions = QUICK) -> AsyncIterator[tuple[LogServer, LogClient]]:
    """A server with so many partitions, on one storage node, and a client of it."""
    async with running_cluster(path, 1, partitions=count) as nodes:
        server = LogServer(Stored(nodes), nodes.connect, log=LOG, options=options)
        host, port = await server.start("127.0.0.1", 0, None)
        try:
            await server.assign(dict.fromkeys(range(count), 1))
            directory = Directory(count, {number: PartitionServer(host, port, 1) for number in range(count)})
            async with LogClient(directory, connect, log=LOG) as client:
                yield server, client
        finally:
            await server.stop(1.0)


@LOOPS
def test_a_client_has_more_partitions_than_requests_that_may_be_under_way(tmp_path: Path, loop: str) -> None:
    """The feed of each waits at the end of its log, and the appends to all come through the same connection."""
    count = 24
    options = replace(QUICK, limits=PortLimits(connection_requests=8))

    async def work() -> None:
        async with served(tmp_path, count, options) as (server, client):
            for data in (b"first", b"second"):
                sent = [client.append(number, Draft(data), timeout=10.0) for number in range(count)]
                assert all(await asyncio.gather(*sent))
            await until(lambda: max((one.requests, one.paused) for one in server.port.connections) == (count, False))
            await client.close()
            await until(lambda: not server.port.connections and server.port.budget.used == 0)

    run(work(), loop)


def test_a_connection_that_ends_looks_at_its_own_mounts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands that end in one moment each would look at every partition, and at every mount of it."""
    looks = list[int]()
    real = MountedClients.forget

    def counted(mounts: MountedClients, *which: object) -> None:
        looks.append(len(mounts._mounts))
        real(mounts, *which)  # type: ignore[arg-type]

    monkeypatch.setattr(MountedClients, "forget", counted)

    async def work() -> None:
        async with served(tmp_path, 8) as (server, client):
            await client.append(3, Draft(b"mounts one of them"))
            mounts = server.partitions[3].mounts
            assert len(mounts._mounts) == 1
            await client.close()
            await until(lambda: not server.port.connections)
            assert (mounts._mounts, looks) == ({}, [1])

    asyncio.run(work())
