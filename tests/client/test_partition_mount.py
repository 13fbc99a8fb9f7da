"""What becomes of appends by what a server says, word by word: a scripted server on a real socket, one step to each side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.client.peers import Bodies, scripted
from tests.client.told_servers import Directory
from tests.server.storing import LOG
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.log_transaction import Draft, Transaction
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import Magic, keep_alive
from waltzctl.formats.wire.hello import WALTZ_SERVER, Hello

OTHER = 7


@dataclass
class Server:
    """The server of partition 0, which says what the test has it say; `appends`: the requests that came, in their order."""

    appends: asyncio.Queue[wire.AppendRequest] = field(default_factory=asyncio.Queue)
    flushes: asyncio.Queue[RequestId] = field(default_factory=asyncio.Queue)
    writer: asyncio.StreamWriter | None = None

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(Hello((4,), WALTZ_SERVER).encode())
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        while True:
            message = wire.decode(await bodies.next(Magic.CLIENT, 4))
            match message:
                case wire.HighWaterMarkRequest():
                    writer.write(wire.encode(wire.HighWaterMarkResponse(message.request_id, -1)))
                case wire.MountRequest():
                    self.writer = writer
                    writer.write(wire.encode(wire.MountResponse(message.request_id, wire.MountState.READY)))
                case wire.AppendRequest():
                    self.appends.put_nowait(message)
                case wire.FlushRequest():
                    self.flushes.put_nowait(message.request_id)

    def say(self, *messages: wire.ServerResponse | None) -> None:
        """In one write; None is a keep-alive."""
        assert self.writer is not None
        empty = keep_alive(Magic.CLIENT, 4)
        self.writer.write(b"".join(empty if one is None else wire.encode(one) for one in messages))

    async def appended(self, *expected: bytes) -> list[RequestId]:
        """The next appends are these."""
        found = [await self.appends.get() for _ in expected]
        assert [one.data for one in found] == [*expected]
        return [one.request_id for one in found]

    async def nothing_comes(self) -> None:
        """Of appends, in a while."""
        await asyncio.sleep(0.05)
        assert self.appends.empty()


def fed(transaction_id: int, request_id: RequestId) -> wire.FeedData:
    return wire.FeedData(request_id, transaction_id, 0)


def others(transaction_id: int, sequence: int = 1) -> wire.FeedData:
    return fed(transaction_id, RequestId(OTHER, 1, 0, sequence))


Appending = Callable[[bytes], asyncio.Task[Transaction | None]]


@contextlib.asynccontextmanager
async def client_of(server: Server, timeout: float) -> AsyncIterator[LogClient]:
    """A client of a server that has partition 0."""

    async def connect(address: Address) -> LogConnection:
        return await LogConnection.connect(PORT, address, ssl_context=None, timeout=5.0)

    async with (
        asyncio.timeout(8.0),
        scripted(server.script) as at,
        LogClient(
            Directory(servers={0: PartitionServer(at.host, at.port, 1)}),
            connect,
            log=LOG,
            options=ClientOptions(timeout=timeout),
        ) as client,
    ):
        yield client


def run(test: Callable[[Server, Appending], Awaitable[None]]) -> None:
    async def whole() -> None:
        server = Server()
        async with client_of(server, 10.0) as client:
            await test(server, lambda data: asyncio.ensure_future(client.append(0, Draft(data))))

    asyncio.run(whole())


def became(transaction: Transaction | None) -> Any:
    assert transaction is not None
    return transaction.transaction_id, transaction.request_id


def test_what_was_sent_before_one_that_is_committed_can_no_longer_come_and_is_sent_again() -> None:
    async def test(server: Server, append: Appending) -> None:
        one, two, three = append(b"1"), append(b"2"), append(b"3")
        _, second, third = await server.appended(b"1", b"2", b"3")
        server.say(fed(0, second))
        assert became(await two) == (0, second)
        (again,) = await server.appended(b"1")
        assert not one.done()
        assert not three.done(), "it was sent behind the one that is committed"
        server.say(fed(1, third), None, fed(2, again))
        assert [became(await three), became(await one)] == [(1, third), (2, again)]
        await server.nothing_comes()

    run(test)


def test_another_clients_transaction_of_the_same_number_is_not_ones_own() -> None:
    async def test(server: Server, append: Appending) -> None:
        task = append(b"1")
        (mine,) = await server.appended(b"1")
        server.say(others(0, mine.sequence), fed(1, mine))
        assert became(await task) == (1, mine)

    run(test)


def test_a_transaction_that_does_not_follow_is_of_another_mount() -> None:
    async def test(server: Server, append: Appending) -> None:
        task = append(b"1")
        (mine,) = await server.appended(b"1")
        server.say(fed(1, mine))
        await server.nothing_comes()
        assert not task.done(), "transaction 0 is next"
        server.say(others(0), others(0, 2), fed(1, mine))
        assert became(await task) == (1, mine)

    run(test)


def test_an_append_that_a_lock_refused_is_built_anew_once_the_feed_has_come_to_what_was_in_the_way() -> None:
    async def test(server: Server, append: Appending) -> None:
        task = append(b"1")
        (mine,) = await server.appended(b"1")
        server.say(others(0), wire.LockFailure(mine, 1))
        await server.nothing_comes()
        server.say(others(1))
        (again,) = await server.appended(b"1")
        server.say(fed(2, again))
        assert became(await task) == (2, again)

    run(test)


def test_an_append_that_a_lock_refused_for_what_is_known_already_is_built_anew_at_once() -> None:
    async def test(server: Server, append: Appending) -> None:
        task = append(b"1")
        (mine,) = await server.appended(b"1")
        server.say(others(0), wire.LockFailure(mine, 0))
        (again,) = await server.appended(b"1")
        server.say(wire.LockFailure(RequestId(OTHER, 1, 0, again.sequence), 0), fed(1, again))
        assert became(await task) == (1, again)
        await server.nothing_comes()

    run(test)


class MountsOnce(Server):
    """A server that, at the first mount, answers and breaks the connection in one breath."""

    mounts = 0

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(Hello((4,), WALTZ_SERVER).encode())
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        while True:
            message = wire.decode(await bodies.next(Magic.CLIENT, 4))
            match message:
                case wire.HighWaterMarkRequest():
                    writer.write(wire.encode(wire.HighWaterMarkResponse(message.request_id, -1)))
                case wire.MountRequest():
                    self.mounts += 1
                    ready = wire.encode(wire.MountResponse(message.request_id, wire.MountState.READY))
                    writer.write(ready if self.mounts > 1 else ready + b"nonsense")
                case wire.FlushRequest():
                    writer.write(wire.encode(wire.FlushResponse(message.request_id, -1)))


def test_a_flush_waits_for_the_next_mount_where_one_is_lost_in_the_moment_in_which_it_is_ready() -> None:
    server = MountsOnce()
    assert asyncio.run(flushed(server)) == -1
    assert server.mounts == 2


async def flushed(server: Server) -> int:
    async with client_of(server, 5.0) as client:
        return await client.flush(0)


def test_a_flush_whose_mark_the_log_has_lost_is_decided_by_the_next_mount() -> None:
    """It waited for a transaction that is gone, up to its deadline."""

    async def whole() -> None:
        server = Server()
        async with client_of(server, 6.0) as client:
            append = asyncio.ensure_future(client.append(0, Draft(b"1")))
            (mine,) = await server.appended(b"1")
            server.say(fed(0, mine))
            await append
            flush = asyncio.ensure_future(client.flush(0))
            server.say(wire.FlushResponse(await server.flushes.get(), 3))
            await asyncio.sleep(0.05)
            assert not flush.done(), "the feed has not come to it"
            assert server.writer is not None
            server.writer.close()
            assert await asyncio.wait_for(flush, 4.0) == 0

    asyncio.run(whole())
