"""A partition that is given back to a server before it has heard that another one had it meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.client.told_servers import Directory
from tests.server.serving import Serving, serving
from tests.server.storing import LOG, PARTITION, until
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.server.client_port import ClientConnection
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.served_partition import Partition
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire


async def connect(address: Address) -> LogConnection:
    return await LogConnection.connect(PORT, address, ssl_context=None, timeout=5.0)


@dataclass
class Given:
    """A client of a partition that is given from one server to another and back."""

    cluster: Serving
    first: LogServer
    client: LogClient
    directory: Directory

    def to(self, server: int, generation: int) -> None:
        """The metadata says so; the server itself is not told."""
        self.directory.tell(given_to(self.cluster, server, generation))


def given_to(cluster: Serving, server: int, generation: int) -> dict[int, PartitionServer]:
    _, host, port = cluster.servers[server]
    return {PARTITION: PartitionServer(host, port, generation)}


@contextlib.asynccontextmanager
async def given_to_the_first(path: Path) -> AsyncIterator[Given]:
    async with serving(path) as cluster:
        first = await cluster.server()
        directory = Directory(servers=given_to(cluster, 0, 1))
        async with LogClient(directory, connect, log=LOG) as client:
            yield Given(cluster, first, client, directory)


@pytest.mark.turns(10)
def test_what_another_server_committed_is_not_appended_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not told, and who has the partition now says the rest once it has heard of its assignment."""
    silent, feed = list[object](), ClientConnection.feed

    def unheard(connection: ClientConnection, frames: bytes) -> None:
        if connection._client_port not in silent:
            feed(connection, frames)

    async def work() -> None:
        async with given_to_the_first(tmp_path) as given:
            client = given.client
            await client.append(PARTITION, Draft(b"before"))
            second = await given.cluster.server(generation=2)
            silent.append(second.port)
            given.to(1, 2)
            appending = asyncio.ensure_future(client.append(PARTITION, Draft(b"once")))
            await until(lambda: second.partitions[PARTITION].high_water_mark == 1)
            given.to(0, 3)
            await asyncio.sleep(1.0)
            await given.first.assign({PARTITION: 3})
            done = await appending
            assert done is not None
            found = [await client.data(PARTITION, n) for n in range(await client.high_water_mark(PARTITION) + 1)]
            assert found == [b"before", b"once"]
            assert done.transaction_id == 1

    monkeypatch.setattr(ClientConnection, "feed", unheard)
    asyncio.run(work())


@pytest.mark.turns(8)
def test_a_client_that_has_seen_more_waits_for_it_to_hear(tmp_path: Path) -> None:
    async def work() -> None:
        async with given_to_the_first(tmp_path) as given:
            client = given.client
            await client.append(PARTITION, Draft(b"0"))
            await given.cluster.server(generation=2)
            given.to(1, 2)
            await client.append(PARTITION, Draft(b"1"))
            given.to(0, 3)
            asking = asyncio.gather(client.data(PARTITION, 1), client.high_water_mark(PARTITION))
            await asyncio.sleep(0.5)
            await given.first.assign({PARTITION: 3})
            assert await asking == [b"1", 1]
            done = await client.append(PARTITION, Draft(b"2"))
            assert done is not None
            assert done.transaction_id == 2

    asyncio.run(work())


@pytest.mark.turns(8)
def test_the_mark_of_before_is_not_told_while_the_session_of_a_later_assignment_opens(tmp_path: Path) -> None:
    """It has heard of its assignment, and not yet of what the other server committed: who asked would take the log to end."""

    async def work() -> None:
        async with given_to_the_first(tmp_path) as given:
            client, nodes = given.client, given.cluster.cluster
            await client.append(PARTITION, Draft(b"0"))
            await given.cluster.server(generation=2)
            given.to(1, 2)
            await client.append(PARTITION, Draft(b"1"))
            for name in nodes.names[1:]:
                await nodes.stop(name)
            given.to(0, 3)
            await given.first.assign({PARTITION: 3})
            asking = asyncio.ensure_future(client.high_water_mark(PARTITION))
            await asyncio.sleep(0.5)
            for name in nodes.names[1:]:
                await nodes.start(name)
            assert await asking == 1

    asyncio.run(work())


def test_who_asks_for_the_mark_before_the_server_hears_is_answered(tmp_path: Path) -> None:
    """A client of the release asks once.  It is told what it is told wherever a mark is not known yet."""

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            asked = replace(client.next_id(), generation=2)
            client.say(wire.HighWaterMarkRequest(asked))
            answer, _ = await client.hear_one(wire.HighWaterMarkResponse)
            assert answer == wire.HighWaterMarkResponse(asked, wire.UNKNOWN_HIGH_WATER_MARK)
            await server.assign({PARTITION: 2})
            await client.mount()
            client.say(wire.HighWaterMarkRequest(asked))
            answer, _ = await client.hear_one(wire.HighWaterMarkResponse)
            assert answer == wire.HighWaterMarkResponse(asked, -1)

    asyncio.run(work())


def test_what_another_server_committed_is_not_read_where_nothing_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be millions of transactions, each of which would be kept in memory until the last one is read."""
    read, resolve = list[int](), Partition._resolve_pending

    def counted(partition: Partition, written: Mapping[int, RequestId]) -> None:
        read.append(len(written))
        resolve(partition, written)

    monkeypatch.setattr(Partition, "_resolve_pending", counted)

    async def work() -> None:
        async with given_to_the_first(tmp_path) as given:
            await given.client.append(PARTITION, Draft(b"before"))
            await given.cluster.server(generation=2)
            given.to(1, 2)
            for n in range(20):
                await given.client.append(PARTITION, Draft(b"%d" % n))
            read.clear()
            await given.first.assign({PARTITION: 3})
            await until(lambda: given.first.partitions[PARTITION].announced_mark == 20)
            assert read == [1]

    asyncio.run(work())
