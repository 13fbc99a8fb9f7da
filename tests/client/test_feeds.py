"""Feeds, word by word of what a server says: a log server in this process, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.client.log_in_process import OTHER, LogInProcess, quiet
from tests.client.told_servers import Directory
from tests.server.storing import LOG
from tests.simulation.virtual_time import hold_up, simulate
from waltzctl.engine.client import feed_watch
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import LogConnection
from waltzctl.engine.client.log_transaction import Transaction
from waltzctl.engine.client.partition_mount import Mount
from waltzctl.engine.client.server_connections import ServerConnections
from waltzctl.engine.client.server_endpoint import Endpoint
from waltzctl.engine.errors import DeadlineError, PeerUnreachableError
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.deadlines import Watchdog
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import NO_CLIENT, RequestId
from waltzctl.formats.wire import client as wire

AHEAD = 8


@dataclass
class FeedingServer(LogInProcess):
    """Mounts partitions 0 and 1, and feeds what the test says; `asked`: the requests for more, in their order."""

    asked: list[wire.FeedRequest] = field(default_factory=list)

    def _answer(self, message: Any) -> None:
        match message:
            case wire.MountRequest():
                self.mounts += 1
                if self.mounts > self.silent:
                    self.say(wire.MountResponse(message.request_id, self.state))
            case wire.FeedRequest():
                self.asked.append(message)
            case wire.TransactionDataRequest():
                data = b"data of %d" % message.transaction_id
                found = wire.TransactionData(data, crc32(data))
                self.say(wire.TransactionDataResponse(message.request_id, message.transaction_id, found))


def run(test: Callable[[FeedingServer, LogClient, Directory], Awaitable[None]]) -> None:
    async def whole() -> None:
        server, here = FeedingServer(), PartitionServer("here", 1, 1)
        options = ClientOptions(timeout=10.0, ahead=AHEAD)
        directory = Directory(servers=dict.fromkeys((0, 1), here))
        async with LogClient(directory, server.connect, log=LOG, options=options) as client:
            await test(server, client, directory)

    simulate(whole())


def fed(partition: int, *transactions: int) -> list[wire.FeedData]:
    """Of somebody else's appends."""
    return [wire.FeedData(RequestId(OTHER, 1, partition, number + 1), number, 0) for number in transactions]


@pytest.mark.parametrize("behind", range(AHEAD // 2, 2 * AHEAD))
def test_a_reader_goes_on_whosever_transaction_it_is_with_which_half_of_what_was_kept_is_gone(behind: int) -> None:
    """Also one of a partition that has come to its end, which the server does not know."""

    async def test(server: FeedingServer, client: LogClient, _directory: Directory) -> None:
        ends = {0: 5, 1: 0}
        feed = client.feed((0, 1), until=ends.__getitem__)

        async def read() -> list[tuple[int, int]]:
            return [(one.partition, one.transaction_id) async for one in feed]

        reading = asyncio.ensure_future(read())
        await quiet()
        first, _ = server.asked
        assert first.request_id.partition == 0
        server.say(*fed(0, *range(4)), *fed(1, *range(behind)), wire.FeedSuspended(first.request_id))
        await quiet()
        assert server.asked[2:] == [wire.FeedRequest(first.request_id, 3)]
        server.say(*fed(0, 4, 5))
        await quiet()
        assert reading.done()
        assert await reading == [*((0, number) for number in range(4)), (1, 0), (0, 4), (0, 5)]

    run(test)


def test_a_mount_is_not_asked_for_again_while_its_reader_is_behind() -> None:
    """It is answered behind all that there is; each further one would have a released server send all that once more."""

    async def test(server: FeedingServer, client: LogClient, _directory: Directory) -> None:
        server.silent = 1
        feed = client.feed(0)
        first = asyncio.ensure_future(anext(feed))
        await quiet()
        server.say(*fed(0, *range(AHEAD + 1)))
        await first
        for _ in range(AHEAD // 2 - 1):
            await anext(feed)
            assert not server.read
            await asyncio.sleep(100.0)
        assert server.mounts == 1
        await anext(feed)
        assert server.read
        await asyncio.sleep(10.1)  # now the server has really left it unanswered
        assert server.mounts == 2
        await feed.aclose()

    run(test)


@pytest.mark.parametrize("answered", [True, False])
def test_a_mount_is_not_asked_for_again_before_what_came_meanwhile_is_read(answered: bool) -> None:
    """Behind a stop of the process the loop comes to its timers before its sockets."""

    async def test(server: FeedingServer, client: LogClient, _directory: Directory) -> None:
        server.silent = 1
        feed = client.feed(0)
        first = asyncio.ensure_future(anext(feed))
        await quiet()
        hold_up(100.0)
        if answered:
            asyncio.get_running_loop().call_later(0.0, lambda: server.say(*fed(0, 0)))
        await asyncio.sleep(1.0)
        assert (server.mounts, first.done()) == ((1, True) if answered else (2, False))
        first.cancel()
        await asyncio.wait([first])

    run(test)


async def held_up(times: int) -> None:
    """The program is stopped so many times, each time in front of the look that the stop before it put off."""
    for number in range(times):
        if number:
            await asyncio.sleep(0.01)
        hold_up(100.0)


@pytest.mark.parametrize("stops", [3, 4])
def test_a_mount_is_not_asked_for_again_for_three_stops_of_the_process(stops: int) -> None:
    """As for any other deadline of this client: behind the second stop the mount was asked for again, with all that follows."""

    async def test(server: FeedingServer, client: LogClient, _directory: Directory) -> None:
        server.silent = 1
        feed = client.feed(0)
        first = asyncio.ensure_future(anext(feed))
        await quiet()
        await held_up(stops)
        asyncio.get_running_loop().call_later(0.0, lambda: server.say(*fed(0, 0)))
        await asyncio.sleep(1.0)
        assert (server.mounts, first.done()) == (1 if stops == 3 else 2, True)
        await feed.aclose()

    run(test)


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "moves"])
def test_a_connection_that_was_held_up_for_a_partition_goes_on_when_the_partition_leaves_it(ends: bool) -> None:
    """Others are there, or come back to it."""

    async def test(server: FeedingServer, client: LogClient, directory: Directory) -> None:
        feed = client.feed((0, 1), until={0: AHEAD, 1: 0 if ends else None}.__getitem__)
        first = asyncio.ensure_future(anext(feed))
        await quiet()
        server.say(*fed(1, 0))
        assert (await first).partition == 1
        server.say(*fed(1, *range(1, AHEAD)))
        await quiet()
        assert server.read
        server.say(*fed(1, AHEAD))
        await quiet()
        assert not server.read
        if ends:
            waiting = asyncio.ensure_future(anext(feed))
        else:
            directory.tell({0: PartitionServer("here", 1, 1)})
        await quiet()
        assert server.read
        if ends:
            waiting.cancel()
            await asyncio.wait([waiting])
        await feed.aclose()

    run(test)


@pytest.mark.parametrize("late", [False, True])
def test_a_feed_waits_so_long_for_each_transaction(late: bool) -> None:
    """One step to each side; the time in which its reader is busy does not count."""

    async def test(server: FeedingServer, client: LogClient, _directory: Directory) -> None:
        feed, loop = client.feed(0, timeout=3.0), asyncio.get_running_loop()
        for number in range(3):
            waiting = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(2.99)
            server.say(*fed(0, number))
            assert (await waiting).transaction_id == number
            await asyncio.sleep(7.0)
        waiting, begun = asyncio.ensure_future(anext(feed)), loop.time()
        if late:
            with pytest.raises(
                DeadlineError,
                match=r"within 3 s to a feed of partition 0 behind transaction 2: server here:1 .*none is committed as yet",
            ):
                await waiting
            assert loop.time() == begun + 3.0
        else:
            await quiet()
            await client.close()
            with pytest.raises(PeerUnreachableError, match="was closed"):
                await waiting

    run(test)


def test_a_feed_that_is_late_names_the_partition_that_is_not_mounted() -> None:
    async def test(server: FeedingServer, client: LogClient, directory: Directory) -> None:
        feed = client.feed((0, 1), timeout=3.0)
        waiting = asyncio.ensure_future(anext(feed))
        await quiet()
        directory.tell({0: PartitionServer("here", 1, 1)})
        with pytest.raises(DeadlineError, match="partition 1 behind transaction -1: no log server has the partition"):
            await waiting

    run(test)


def test_what_a_feed_waits_for_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: FeedingServer, client: LogClient, directory: Directory) -> None:
        directory.tell({0: PartitionServer("here", 1, 1)})
        feed, one = client.feed((0, 1)), Transaction(1, 7, RequestId(OTHER, 1, 1, 8), 0)
        waiting: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(what) for what in (anext(feed), client.awaited_data(one))
        ]
        waiting.append(asyncio.ensure_future(client.awaited_high_water_mark(0)))
        caplog.clear()
        await asyncio.sleep(9.9)
        assert caplog.messages == []
        await asyncio.sleep(100.0)
        feed_waits, mark_waits = sorted(caplog.messages)
        assert (
            "a feed of partition 1 behind transaction -1: no log server has the partition; it is waited for"
            in feed_waits
        )
        assert "the high-water mark of partition 0: server here:1 has the partition" in mark_waits
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await feed.aclose()

    run(test)


@pytest.mark.parametrize("turns", range(1, 6))
@pytest.mark.parametrize("closed", ["feed", "client"])
def test_no_connection_is_left_open_by_who_is_cancelled_while_it_is_closed(closed: str, turns: int) -> None:
    connections: list[LogConnection] = []

    async def whole() -> None:
        server, directory = FeedingServer(), Directory(servers={0: PartitionServer("here", 1, 1)})

        async def connect(address: Address) -> LogConnection:
            connections.append(await server.connect(address))
            return connections[-1]

        async def read() -> None:
            async for _ in client.feed(0):
                pass

        async with LogClient(directory, connect, log=LOG) as client:
            reading = asyncio.ensure_future(read())
            await quiet()
            assert len(connections) == 1
            ending = reading
            if closed == "feed":
                reading.cancel()
            else:
                ending = asyncio.ensure_future(client.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            ending.cancel()
            await quiet()
            assert connections[0].closed
            await asyncio.wait([reading])
            assert reading.cancelled() is (closed == "feed") or reading.exception() is not None

    simulate(whole())


def test_a_moment_without_memory_is_not_the_last_in_which_a_feed_connects(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody connected for its mount any more, and it waited for ever."""

    async def whole() -> None:
        server, failed = FeedingServer(), list[Address]()

        async def connect(address: Address) -> LogConnection:
            if len(failed) < 2:
                failed.append(address)
                raise MemoryError
            return await server.connect(address)

        directory = Directory(servers={0: PartitionServer("here", 1, 1)})
        async with LogClient(directory, connect, log=LOG) as client:
            feed = client.feed(0)
            first = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(10.0)
            server.say(*fed(0, 0))
            await asyncio.sleep(10.0)
            assert (first.done(), len(failed)) == (True, 2)
            await feed.aclose()

    simulate(whole())
    assert [one.exc_info is not None for one in caplog.records if one.levelname == "ERROR"] == [True], "said once"


@pytest.mark.parametrize("what", ["endpoint", "spawn", "connected"])
def test_a_moment_without_memory_in_which_a_partition_gets_its_server_is_not_the_last_look_at_it(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its mount counted as one that is at that server already, and was nowhere."""
    place: tuple[type, str] = {
        "endpoint": (Endpoint, "__init__"),
        "spawn": (ServerConnections, "_spawn"),
        "connected": (Mount, "connected"),
    }[what]
    real, failed = getattr(*place), list[object]()

    def fails_once(*given: Any) -> Any:
        if not failed:
            failed.append(given)
            if asyncio.iscoroutine(given[-1]):
                given[-1].close()
            raise MemoryError
        return real(*given)

    async def whole() -> None:
        server, here = FeedingServer(), PartitionServer("here", 1, 1)
        directory = Directory(servers={})
        async with LogClient(directory, server.connect, log=LOG, options=ClientOptions(timeout=10.0)) as client:
            feed = client.feed(0)
            first = asyncio.ensure_future(anext(feed))
            await quiet()
            if what == "connected":  # to a connection that is there already
                await client._connections.endpoint(here, 101).connection()
            monkeypatch.setattr(*place, fails_once)
            with pytest.raises(MemoryError):
                directory.tell({0: here})
            directory.tell({0: here})  # as `ServerDirectory.follow` does
            await asyncio.sleep(5.0)
            server.say(*fed(0, 0))
            await asyncio.sleep(5.0)
            assert (len(failed), first.done()) == (1, True)
            await feed.aclose()

    simulate(whole())


def test_a_moment_without_memory_behind_a_transaction_that_was_given_to_its_reader_doubles_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, failed = asyncio.Queue.put_nowait, list[object]()

    def put_nowait(queue: asyncio.Queue[Any], item: Any) -> None:
        real(queue, item)
        if getattr(item, "transaction_id", None) == 1 and not failed:
            failed.append(item)
            raise MemoryError

    class Server(FeedingServer):
        """Goes on behind the transaction that a feed request names, as a log server does."""

        def _answer(self, message: Any) -> None:
            super()._answer(message)
            if isinstance(message, wire.FeedRequest):
                self.say(*fed(0, *range(message.client_high_water_mark + 1, 4)))

    async def whole() -> list[int]:
        server, here = Server(), PartitionServer("here", 1, 1)
        async with LogClient(Directory(servers={0: here}), server.connect, log=LOG) as client:
            async with asyncio.timeout(60):
                return [one.transaction_id async for one in client.feed(0, until=lambda _: 3)]

    monkeypatch.setattr(asyncio.Queue, "put_nowait", put_nowait)
    assert simulate(whole()) == [0, 1, 2, 3]
    assert failed


@pytest.mark.parametrize("times", [1, 3])
def test_a_moment_without_memory_in_which_a_mount_is_asked_for_again_is_not_the_last_attempt(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """What watched for the answer had ended, and there was nothing in its place."""
    failed = list[object]()

    async def test(server: FeedingServer, client: LogClient, _directory: Directory) -> None:
        server.silent = 1
        feed = client.feed(0)
        first = asyncio.ensure_future(anext(feed))
        await quiet()

        def fails(*given: Any, **named: Any) -> Watchdog:
            if len(failed) < times:
                failed.append(given)
                raise MemoryError
            return Watchdog(*given, **named)

        monkeypatch.setattr(feed_watch, "Watchdog", fails)
        await asyncio.sleep(10.0 * (times + 1) + 1.0)
        assert (len(failed), server.mounts) == (times, 2)
        server.say(*fed(0, 0))
        await quiet()
        assert first.done()
        await feed.aclose()

    run(test)


@pytest.mark.parametrize("times", [1, 3])
def test_a_moment_without_memory_in_which_a_connection_is_lost_is_not_the_end_of_the_search(times: int) -> None:
    """Nobody connected for the mounts any more."""
    failed = list[object]()

    async def test(server: FeedingServer, client: LogClient, _directory: Directory) -> None:
        feed = client.feed(0)
        first = asyncio.ensure_future(anext(feed))
        await quiet()

        def fails(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            if len(failed) < times:
                failed.append(work)
                work.close()
                raise MemoryError
            return client._connections._spawn(work)

        (endpoint,) = client._connections._endpoints.values()
        endpoint._spawn = fails
        with contextlib.suppress(MemoryError):
            server.cut()
        await asyncio.sleep(30.0)
        server.say(*fed(0, 0))
        await quiet()
        assert (len(failed), first.done()) == (times, True)
        await feed.aclose()

    run(test)


def test_a_moment_without_memory_in_which_something_is_sent_keeps_nothing_that_follows() -> None:
    """All that followed on the connection stayed in its buffer."""

    async def test(_server: FeedingServer, client: LogClient, _directory: Directory) -> None:
        assert await client.data(0, 1) == b"data of 1"
        loop: Any = asyncio.get_running_loop()

        def call_soon(*_: object, **__: object) -> None:
            del loop.call_soon
            raise MemoryError

        connection = await client._connections.endpoint(PartitionServer("here", 1, 1), NO_CLIENT).connection()
        loop.call_soon = call_soon
        with pytest.raises(MemoryError):
            connection.send_frames([wire.encode(wire.FlushRequest(RequestId(OTHER, 1, 0, 1)), 4)])
        assert await client.data(0, 2) == b"data of 2"

    run(test)


@pytest.mark.parametrize("what", ["error", "warning"])
def test_a_moment_without_memory_in_which_an_attempt_is_logged_is_not_the_last_attempt(what: str) -> None:
    failed = list[object]()

    class Log(logging.Logger):
        def _fail(self) -> None:
            if not failed:
                failed.append(self)
                raise MemoryError

        def error(self, *_: Any, **__: Any) -> None:
            self._fail()

        def warning(self, *_: Any, **__: Any) -> None:
            self._fail()

    async def whole() -> None:
        server = FeedingServer()

        async def connect(address: Address) -> LogConnection:
            if not failed:
                raise PeerUnreachableError(str(address), "not yet") if what == "warning" else OverflowError
            return await server.connect(address)

        directory = Directory(servers={0: PartitionServer("here", 1, 1)})
        async with LogClient(directory, connect, log=Log("scarce")) as client:
            feed = client.feed(0)
            first = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(30.0)
            server.say(*fed(0, 0))
            await asyncio.sleep(1.0)
            assert (len(failed), first.done()) == (1, True)
            await feed.aclose()

    simulate(whole())


def test_data_for_a_feed_is_awaited_however_long_it_takes() -> None:
    async def test(server: FeedingServer, client: LogClient, directory: Directory) -> None:
        directory.tell({})
        one = Transaction(0, 7, RequestId(OTHER, 1, 0, 8), 0)
        waiting = asyncio.ensure_future(client.awaited_data(one))
        await asyncio.sleep(100.0)
        assert not waiting.done()
        directory.tell({0: PartitionServer("here", 1, 1)})
        assert await waiting == b"data of 7"

    run(test)


@pytest.mark.parametrize(("partitions", "after"), [((), -1), ((0, 1), 5)], ids=["of-nothing", "of-what-is-read"])
def test_a_feed_with_nothing_to_come_asks_for_no_client_id(partitions: tuple[int, ...], after: int) -> None:
    """A client id is written to the metadata.  Where these could not be written, the end of an empty log never came."""

    async def test(_server: FeedingServer, client: LogClient, directory: Directory) -> None:
        async def refused() -> int:
            raise PeerUnreachableError("the metadata", "database or disk is full")

        directory.client_id = refused  # type: ignore[method-assign]
        feed = client.feed(partitions, after=after, until=lambda _: 5, timeout=1.0)
        assert await asyncio.wait_for(anext(feed, None), 10.0) is None

    run(test)


@pytest.mark.parametrize("missed", [0, 1, 3])
def test_a_feed_request_that_is_passed_over_is_noticed_by_who_only_reads(missed: int) -> None:
    """By a released server without a session at that moment, which keeps the partition: the reader waited for ever.

    One step to each side: where the log ends at the reader's position nothing is asked but how far it goes.
    """

    class Server(FeedingServer):
        mounted: list[int]
        marks = 0
        end = 0

        def _answer(self, message: Any) -> None:
            match message:
                case wire.MountRequest():
                    self.mounted.append(message.client_high_water_mark)
                    self.say(*fed(0, *range(message.client_high_water_mark + 1, self.end + 1)))
                case wire.HighWaterMarkRequest():
                    self.marks += 1
                    self.say(wire.HighWaterMarkResponse(message.request_id, self.end))
            super()._answer(message)

    async def test(client: LogClient) -> None:
        feed = client.feed(0)
        assert (await anext(feed)).transaction_id == 0
        waiting = asyncio.ensure_future(anext(feed))
        await quiet()
        assert (server.mounted, len(server.asked)) == ([-1], 1)
        server.end = missed
        await asyncio.sleep(100.0)
        assert server.marks >= 2
        assert server.mounted == ([-1, 0] if missed else [-1])
        assert waiting.done() == bool(missed)
        if missed:
            assert [await waiting] + [await anext(feed) for _ in range(missed - 1)] == [
                Transaction(0, number, RequestId(OTHER, 1, 0, number + 1), 0) for number in range(1, missed + 1)
            ]
        waiting.cancel()
        await asyncio.wait([waiting])
        await feed.aclose()

    async def whole() -> None:
        server.mounted = []
        options = ClientOptions(timeout=10.0, ahead=AHEAD)
        async with LogClient(
            Directory(servers={0: PartitionServer("here", 1, 1)}), server.connect, log=LOG, options=options
        ) as client:
            await test(client)

    server = Server()
    simulate(whole())


@dataclass
class TellingServer(FeedingServer):
    """Tells how far the log goes, `late` seconds after it is asked.  `marks`: the partitions of which it was asked."""

    end: int = 0
    late: float = 0.0
    marks: list[int] = field(default_factory=list)

    def _answer(self, message: Any) -> None:
        if isinstance(message, wire.HighWaterMarkRequest):
            self.marks.append(message.request_id.partition)
            answer = wire.HighWaterMarkResponse(message.request_id, self.end)
            asyncio.get_running_loop().call_later(self.late, self.say, answer)
        super()._answer(message)


def run_told(server: TellingServer, test: Callable[[LogClient], Awaitable[None]], *, nudge: float = 5.0) -> None:
    async def whole() -> None:
        options = ClientOptions(timeout=10.0, ahead=AHEAD, nudge=nudge)
        directory = Directory(servers=dict.fromkeys((0, 1), PartitionServer("here", 1, 1)))
        async with LogClient(directory, server.connect, log=LOG, options=options) as client:
            await test(client)

    simulate(whole())


@pytest.mark.parametrize("read", range(AHEAD // 2 + 2))
def test_nothing_is_asked_about_a_feed_while_its_connection_is_paused(read: int) -> None:
    """No answer is read then: with thousands of partitions the connection ended for so many questions without one."""
    server = TellingServer()

    async def test(client: LogClient) -> None:
        feed = client.feed((0, 1))
        first = asyncio.ensure_future(anext(feed))
        await quiet()
        server.say(*fed(0, *range(AHEAD + 1)))
        await first
        for _ in range(read):
            await anext(feed)
        paused = read < AHEAD // 2
        assert server.read is not paused
        await asyncio.sleep(100.0)
        assert bool(server.marks) is not paused
        await feed.aclose()

    run_told(server, test)


@pytest.mark.parametrize("paused", [True, False])
def test_a_feed_is_not_asked_for_again_behind_a_pause_that_began_since(paused: bool) -> None:
    """What is under way to the partition is behind what nobody reads."""
    server = TellingServer(end=5)

    async def test(client: LogClient) -> None:
        feed = client.feed((0, 1))
        first = asyncio.ensure_future(anext(feed))
        await quiet()
        await asyncio.sleep(31.0)
        assert sorted(server.marks) == [0, 1]
        server.say(*fed(0, *range(AHEAD + 1 if paused else 2)))
        await first
        await anext(feed)
        assert server.read is not paused
        await asyncio.sleep(10.0)
        assert server.mounts == (2 if paused else 3)
        await feed.aclose()

    run_told(server, test)


@pytest.mark.parametrize(("nudge", "late"), [(0.0, 0.02), (0.02, 0.03), (5.0, 4.0)])
def test_a_feed_is_asked_for_again_also_with_a_short_nudge(nudge: float, late: float) -> None:
    """With none, no server answered in time how far the log goes: the reader waited for ever."""
    server = TellingServer(end=5, late=late)

    async def test(client: LogClient) -> None:
        feed = client.feed(0)
        waiting = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(50.0)
        assert server.mounts == 2
        waiting.cancel()
        await asyncio.wait([waiting])

    run_told(server, test, nudge=nudge)


@pytest.mark.parametrize("fed_since", [True, False])
def test_a_feed_is_not_asked_for_again_before_what_came_meanwhile_is_read(fed_since: bool) -> None:
    """As for a mount: behind a stop of the process the loop comes to its timers before its sockets."""
    server = TellingServer(end=5)

    async def test(client: LogClient) -> None:
        feed = client.feed(0)
        first = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(31.0)
        assert server.marks == [0]
        hold_up(100.0)
        if fed_since:
            asyncio.get_running_loop().call_later(0.0, lambda: server.say(*fed(0, 0)))
        await asyncio.sleep(1.0)
        assert (server.mounts, first.done()) == ((1, True) if fed_since else (2, False))
        first.cancel()
        await asyncio.wait([first])

    run_told(server, test)


@pytest.mark.parametrize("stops", [3, 4])
def test_a_feed_is_not_asked_for_again_for_three_stops_of_the_process(stops: int) -> None:
    server = TellingServer(end=5)

    async def test(client: LogClient) -> None:
        feed = client.feed(0)
        first = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(31.0)
        assert server.marks == [0]
        await held_up(stops)
        asyncio.get_running_loop().call_later(0.0, lambda: server.say(*fed(0, 0)))
        await asyncio.sleep(1.0)
        assert (server.mounts, first.done()) == (1 if stops == 3 else 2, True)
        await feed.aclose()

    run_told(server, test)
