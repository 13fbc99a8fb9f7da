"""A log server of one partition in the process of the test, without a socket: a test says what becomes of each append.

The client's connection is the real one; only its transport is not.  What is said arrives in a turn of the loop of its own, so
that a test that waits for quiet has seen everything that follows; the clock is virtual.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.client.told_servers import Directory
from tests.server.storing import LOG
from tests.simulation.virtual_time import simulate
from waltzctl.engine.client.client_connection import KEEP_ALIVE_SECONDS
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.log_transaction import Build, Draft
from waltzctl.engine.client.partition_mount import Mount
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import FrameReader, Magic
from waltzctl.formats.wire.hello import WALTZ_SERVER, Hello

QUIET = 40
"""Turns of the loop after which nothing follows any more from what was said."""
OTHER = 7
"""A client that is not the one under test."""


class _Way(asyncio.Transport):
    """From the client to the server."""

    def __init__(self, log: LogInProcess, connection: LogConnection) -> None:
        super().__init__()
        self._log, self._connection, self._closing = log, connection, False
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: Any) -> None:
        asyncio.get_running_loop().call_soon(self._log.took, self._connection, bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@dataclass
class LogInProcess:
    """`appends`: under way, those that came first in front; `came`: the data of all that ever came, a list for each write.

    `log`: request id and data of each committed transaction.  `state`: what is answered to a mount.
    """

    appends: list[wire.AppendRequest] = field(default_factory=list)
    came: list[list[bytes]] = field(default_factory=list)
    log: list[tuple[RequestId, bytes]] = field(default_factory=list)
    state: wire.MountState = wire.MountState.READY
    mounts: int = 0
    silent: int = 0
    """Of the mounts and flushes that come next, so many are left without an answer, as by a released server without a session."""
    most: int = 0
    """That were ever under way at a time."""
    receiving: bool = False
    """Whether the client is at work on what was said."""
    _flushes: list[RequestId] = field(default_factory=list)
    _reader: FrameReader = field(default_factory=FrameReader)
    _connection: LogConnection | None = None

    async def connect(self, address: Address) -> LogConnection:
        made = LogConnection(PORT, address, timeout=5.0, keep_alive_seconds=KEEP_ALIVE_SECONDS)
        self._connection, self._reader, self._greeted = made, FrameReader(), False
        made.connection_made(_Way(self, made))
        made.data_received(Hello((4,), WALTZ_SERVER).encode())
        return made

    # ---- what the client says ------------------------------------------------------------------------------------------

    def took(self, connection: LogConnection, data: bytes) -> None:
        if connection is not self._connection:
            return
        self._reader.feed(data)
        if not self._greeted:
            assert self._reader.next(Magic.HELLO, 0) is not None
            self._greeted = True
        came = []
        while (body := self._reader.next(Magic.CLIENT, 4)) is not None:
            message = wire.decode(body)
            if isinstance(message, wire.AppendRequest):
                assert message.data_ok
                self.appends.append(message)
                came.append(message.data)
            else:
                self._answer(message)
        if came:
            self.came.append(came)
            self.most = max(self.most, len(self.appends))

    def _answer(self, message: Any) -> None:
        if self.silent and isinstance(message, wire.MountRequest | wire.FlushRequest):
            self.silent -= 1
            return
        match message:
            case wire.HighWaterMarkRequest():
                self.say(wire.HighWaterMarkResponse(message.request_id, len(self.log) - 1))
            case wire.ServerPartitionsAssignmentRequest():
                self.say(wire.ServerPartitionsAssignmentResponse(message.request_id, (0,)))
            case wire.MountRequest():
                self.mounts += 1
                self.appends.clear()  # of another mount: they will not be committed
                self._flushes.clear()
                feed = [self._fed(number) for number in range(message.client_high_water_mark + 1, len(self.log))]
                self.say(*feed, wire.MountResponse(message.request_id, self.state))
            case wire.FlushRequest():
                self._flushes.append(message.request_id)
                self.answer_flushes()

    def answer_flushes(self) -> None:
        """Of those in front of which nothing is undecided."""
        while self._flushes and all(one.sequence > self._flushes[0].sequence for one in self.appends):
            self.say(wire.FlushResponse(self._flushes.pop(0), len(self.log) - 1))

    # ---- what the test has it say --------------------------------------------------------------------------------------

    def say(self, *messages: wire.ServerResponse) -> None:
        """In one piece; to nobody while there is no connection."""
        if self._connection is not None:
            data = b"".join(map(wire.encode, messages))
            asyncio.get_running_loop().call_soon(self._come, self._connection, data)

    def _come(self, connection: LogConnection, data: bytes) -> None:
        assert connection._transport is not None
        if connection._transport.is_closing():
            return
        self.receiving = True
        try:
            connection.data_received(data)
        except MemoryError:  # a transport ends the connection then
            self._connection = None if self._connection is connection else self._connection
            connection._transport.close()
        finally:
            self.receiving = False

    def _fed(self, number: int) -> wire.FeedData:
        return wire.FeedData(self.log[number][0], number, 0)

    def commit(self, count: int = 1, *, others: int = 0, told: bool = True) -> None:
        """The first appends under way, behind those of others; unless it is `told`, the client learns it from its next mount."""
        begin = len(self.log)
        self.log += [(RequestId(OTHER, 1, 0, begin + one), b"") for one in range(others)]
        self.log += [(one.request_id, one.data) for one in self.appends[:count]]
        del self.appends[:count]
        if told:
            self.say(*[self._fed(number) for number in range(begin, len(self.log))])
        self.answer_flushes()

    def pass_over(self, place: int = 0) -> None:
        """One under way is not committed, and nothing is said of it."""
        del self.appends[place]
        self.answer_flushes()

    def refuse(self, place: int = 0, *, behind: int = 0) -> None:
        """One under way, for a lock of a transaction that is so far behind the last one that is committed."""
        self.say(wire.LockFailure(self.appends.pop(place).request_id, len(self.log) - 1 + behind))
        self.answer_flushes()

    def cut(self) -> None:
        """The connection breaks; the client makes another one."""
        lost, self._connection = self._connection, None
        if lost is not None:
            lost.connection_lost(None)

    @property
    def read(self) -> bool:
        """Whether the client reads what is said; a transport would keep the rest."""
        assert self._connection is not None
        assert isinstance(self._connection._transport, _Way)
        return self._connection._transport.reading

    @property
    def under_way(self) -> list[bytes]:
        """Data of the appends that nothing was said of."""
        return [one.data for one in self.appends]

    @property
    def committed(self) -> list[bytes]:
        """Data of the client's transactions."""
        return [data for number, data in self.log if number.client != OTHER]


async def quiet() -> None:
    """Until nothing happens any more."""
    for _ in range(QUIET):
        await asyncio.sleep(0)


OPTIONS = ClientOptions(timeout=30.0, in_flight=3, first_retry=0.0, nudge=60.0)


@dataclass
class InProcess:
    """A client, and the log that it appends to."""

    log: LogInProcess
    client: LogClient
    directory: Directory

    @property
    def mount(self) -> Mount:
        return self.client._append_mounts[0]

    def moves(self, generation: int) -> None:
        """The partition has another generation, at the same server."""
        self.directory.tell({0: PartitionServer("here", 1, generation)})


@contextlib.asynccontextmanager
async def in_process(options: ClientOptions = OPTIONS) -> AsyncIterator[InProcess]:
    """A client that has mounted the partition."""
    log, directory = LogInProcess(), Directory(servers={0: PartitionServer("here", 1, 1)})
    async with LogClient(directory, log.connect, log=LOG, options=options) as client:
        await client.flush(0)
        yield InProcess(log, client, directory)


def run(test: Callable[[InProcess], Awaitable[None]], options: ClientOptions = OPTIONS) -> None:
    async def whole() -> None:
        async with in_process(options) as made:
            await test(made)

    simulate(whole())


def named(names: Sequence[int] | range) -> list[bytes]:
    """Data of appends."""
    return [b"%d" % one for one in names]


class Bulk:
    """A call of `append_all` that was begun; `taken`: how many drafts it took, `told`: what it told, in that order."""

    def __init__(
        self, made: InProcess, drafts: Iterable[Build | Draft] | AsyncIterator[Build | Draft], **more: Any
    ) -> None:
        self.taken, self.told = 0, list[tuple[int, int]]()
        source = self._counted(drafts) if isinstance(drafts, Iterable) else drafts
        told = more.pop("told", lambda place, number: self.told.append((place, number)))
        self.task = asyncio.ensure_future(made.client.append_all(0, source, on_commit=told, **more))

    def _counted(self, drafts: Iterable[Build | Draft]) -> Iterator[Build | Draft]:
        for draft in drafts:
            self.taken += 1
            yield draft


def drafts(numbers: Iterable[int], **more: Any) -> Iterator[Draft]:
    return (Draft(b"%d" % number, **more) for number in numbers)
