"""A connection to a log server of which only the client's end is left: nothing says so, and nothing comes any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pytest

from tests.client.peers import Bodies, Script, scripted, until_closed
from tests.client.told_servers import Directory
from tests.server.storing import LOG
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, keep_alive
from waltzctl.formats.wire.hello import WALTZ_SERVER, Hello

SHORT = 0.2
OTHER = 7


@dataclass
class Server:
    """Of partition 0; to the first connection that mounts it says nothing more behind that.  It `tells` others' transactions.

    `garbled`: it goes on with a frame that has no end, and with signs of life that vanish in that.
    """

    tells: int = 0
    garbled: bool = False
    mounts: int = 0

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
                    writer.write(wire.encode(wire.MountResponse(message.request_id, wire.MountState.READY)))
                    self.mounts += 1
                    if self.mounts == 1 and self.garbled:
                        writer.write(FRAME_HEADER.struct.pack(Magic.CLIENT, 4, 1 << 20))
                        while True:
                            writer.write(keep_alive(Magic.CLIENT, 4))
                            await writer.drain()
                            await asyncio.sleep(SHORT / 4)
                    if self.mounts == 1:
                        await until_closed(reader)
                    for number in range(self.tells):
                        writer.write(wire.encode(wire.FeedData(RequestId(OTHER, 1, 0, number), number, 0)))
                case wire.AppendRequest():
                    writer.write(wire.encode(wire.FeedData(message.request_id, 0, 0)))


@contextlib.asynccontextmanager
async def client_of(
    script: Script, *, nudge: float, keep_alive: float, options: ClientOptions | None = None
) -> AsyncIterator[LogClient]:
    async def connect(address: Address) -> LogConnection:
        return await LogConnection.connect(
            PORT, address, ssl_context=None, timeout=SHORT, keep_alive_seconds=keep_alive
        )

    async with (
        asyncio.timeout(10.0),
        scripted(script) as at,
        LogClient(
            Directory(servers={0: PartitionServer(at.host, at.port, 1)}),
            connect,
            log=LOG,
            options=replace(options or ClientOptions(timeout=8.0), nudge=nudge),
        ) as client,
    ):
        yield client


GARBLED = pytest.mark.parametrize("garbled", [False, True], ids=["silence", "a garbled length"])


@pytest.mark.turns(8)
@GARBLED
def test_an_append_goes_on_over_a_new_one(garbled: bool) -> None:
    async def work() -> None:
        async with client_of(Server(garbled=garbled).script, nudge=SHORT, keep_alive=60.0) as client:
            made = await client.append(0, Draft(b"x"))
            assert made is not None
            assert made.transaction_id == 0

    asyncio.run(work())


@pytest.mark.turns(8)
@GARBLED
def test_a_feed_to_which_nothing_comes_goes_on_over_a_new_one(garbled: bool) -> None:
    async def work() -> None:
        server = Server(tells=3, garbled=garbled)
        async with client_of(server.script, nudge=60.0, keep_alive=SHORT) as client:
            feed = client.feed(0)
            assert [(await anext(feed)).transaction_id for _ in range(3)] == [0, 1, 2]
            await feed.aclose()
        assert server.mounts == 2

    asyncio.run(work())


async def stays(use: Callable[[LogConnection], None]) -> bool:
    """Whether a connection outlives long silence, to a server that answers nothing but what it is asked in any case."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(Hello((4,), WALTZ_SERVER).encode())
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        while True:
            message = wire.decode(await bodies.next(Magic.CLIENT, 4))
            if isinstance(message, wire.ServerPartitionsAssignmentRequest):
                writer.write(wire.encode(wire.ServerPartitionsAssignmentResponse(message.request_id, ())))

    async with scripted(script) as at:
        connection = await LogConnection.connect(
            PORT, at, ssl_context=None, timeout=SHORT, keep_alive_seconds=SHORT / 4
        )
        use(connection)
        await asyncio.wait([connection.ended], timeout=4 * SHORT)
        connection.resume()
        await asyncio.wait([connection.ended], timeout=2 * SHORT)
        found = not connection.closed
        await connection.close()
        return found


@pytest.mark.turns(10)
def test_a_server_that_has_nothing_to_say_is_there() -> None:
    assert asyncio.run(stays(lambda _: None))


@pytest.mark.turns(10)
def test_who_reads_nothing_for_a_while_says_nothing_about_the_server() -> None:
    assert asyncio.run(stays(LogConnection.pause))


def test_a_connection_speaks_in_the_name_of_one_client_from_its_first_word_on() -> None:
    """A released server takes the client of the first request for that of all that follow.

    The mounts of two clients with the same id, -1, would replace each other there, or be passed over.
    """
    clients = list[list[int]]()
    asked = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(Hello((4,), WALTZ_SERVER).encode())
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        clients.append([])
        while True:
            message = wire.decode(await bodies.next(Magic.CLIENT, 4))
            clients[-1].append(message.request_id.client)
            match message:
                case wire.MountRequest():
                    told = [wire.FeedData(RequestId(OTHER, 1, 0, number), number, 0) for number in range(3)]
                    writer.write(b"".join(map(wire.encode, told)))
                    writer.close()
                    return
                case wire.ServerPartitionsAssignmentRequest():
                    writer.write(wire.encode(wire.ServerPartitionsAssignmentResponse(message.request_id, (0,))))
                    asked.set()

    async def work() -> None:
        options = ClientOptions(timeout=8.0, ahead=2, first_retry=0.01)
        async with client_of(script, nudge=60.0, keep_alive=SHORT, options=options) as client:
            feed = client.feed(0, after=-1)
            await anext(feed)
            await asked.wait()
            await feed.aclose()

    asyncio.run(work())
    first, second, *_ = clients
    assert first == second[:1] != [-1]
