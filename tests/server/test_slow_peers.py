"""A client that takes nothing of what it asks for: what waits for it has a bound, and it goes on as soon as it takes more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.node.running import run
from tests.server.serving import QUICK, serving
from tests.server.storing import PARTITION, until
from waltzctl.engine.net.connection import OVERHEAD, Connection
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.server.append_requests import Append
from waltzctl.engine.server.client_port import ClientConnection
from waltzctl.engine.server.committed_transactions import CommittedTransactions
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.server_settings import CacheOptions, PartitionOptions, ServerOptions
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.feed_frames import FEED_FRAME
from waltzctl.formats.wire.frame import FrameReader, Magic
from waltzctl.formats.wire.hello import WALTZ_CLIENT, Hello

EACH = 256 << 10
LENGTH = 60_000
NOTHING_CACHED = CacheOptions(data=1)


class Peer(asyncio.Transport):
    """A connection whose peer takes something when the test says so.  `most`: bytes that ever waited for it."""

    def __init__(self, server: LogServer) -> None:
        super().__init__()
        self.waiting = self.most = self.written = 0
        self._reader, self._messages = FrameReader(), list[Any]()
        self.reading, self.gone = True, False
        self._low = self._high = 0
        self._full = False
        server.port._expected += 1
        self.protocol: Any = server.port._connection("a peer")
        self.protocol.connection_made(self)
        self._sequence = 0
        self.heard(Hello((4,), WALTZ_CLIENT).encode())

    def heard(self, frames: bytes) -> None:
        """The peer says something."""
        self.protocol.get_buffer(-1)[: len(frames)] = frames
        self.protocol.buffer_updated(len(frames))

    def ask(self, count: int) -> None:
        """Ask for the data of transactions, in one piece."""
        asked = []
        for place in range(count):
            self._sequence += 1
            number = RequestId(9, 1, PARTITION, self._sequence)
            asked.append(wire.encode(wire.TransactionDataRequest(number, place % 3), 4))
        self.heard(b"".join(asked))

    def write(self, data: Any) -> None:
        if self.written:  # behind its Hello
            self._reader.feed(data)
        self.written += len(data)
        self.waiting += len(data)
        self.most = max(self.most, self.waiting)
        if self.waiting > self._high and not self._full:
            self._full = True
            self.protocol.pause_writing()

    def writelines(self, data: Any) -> None:
        self.write(b"".join(data))

    def take(self) -> None:
        """The peer takes all that is there."""
        self.waiting = 0
        if self._full:
            self._full = False
            self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert low is not None
        self._high, self._low = high, low

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        if not self.gone:
            self.gone = True
            self.protocol.connection_lost(None)

    def abort(self) -> None:
        self.close()

    @property
    def messages(self) -> list[Any]:
        """What the server said."""
        while (body := self._reader.next(Magic.CLIENT, 4)) is not None:
            self._messages.append(wire.decode(body, 4))
        return self._messages

    @property
    def given(self) -> int:
        """Requests for data that are answered with it."""
        answers = (one for one in self.messages if isinstance(one, wire.TransactionDataResponse))
        return sum(isinstance(one.outcome, wire.TransactionData) for one in answers)


class Reads:
    """Of data, from storage: how many are under way, and how many ever were at a time; each waits for `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way = self.most = 0
        self.go_on = asyncio.Event()
        real = CommittedTransactions.data

        async def counted(partition: CommittedTransactions, transaction_id: int) -> tuple[bytes, int] | None:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await self.go_on.wait()
            found = await real(partition, transaction_id)
            self.under_way -= 1
            return found

        monkeypatch.setattr(CommittedTransactions, "data", counted)


@contextlib.asynccontextmanager
async def written(place: Path, options: ServerOptions, data: bytes, count: int) -> AsyncIterator[LogServer]:
    """A server with so many transactions of the same data."""
    async with serving(place, 1) as cluster:
        server = await cluster.server(options=options)
        client = await cluster.client()
        await client.mount()
        for _ in range(count):
            client.append(data)
        assert (await client.flush())[0] == count - 1
        await client.close()
        await until(lambda: not server.port.connections)
        yield server


@pytest.mark.parametrize("cached", [True, False])
def test_data_waits_for_a_peer_that_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    options = replace(QUICK, limits=PortLimits(connection_output=EACH))
    options = options if cached else replace(options, cache=NOTHING_CACHED)

    async def work() -> None:
        async with written(tmp_path, options, b"x" * LENGTH, 3) as server:
            reads, peer, other = Reads(monkeypatch), Peer(server), Peer(server)
            reads.go_on.set()
            peer.ask(100)
            given = 0
            while given < 100:
                await until(
                    lambda given=given: (
                        peer.given > given and not reads.under_way and peer.protocol.requests == 100 - peer.given
                    )
                )
                given = peer.given
                assert peer.reading or not cached, "as many reads are under way as would be right for one more"
                peer.take()
            assert EACH // 2 < peer.most <= (EACH if cached else 2 * EACH)
            other.ask(1)
            await until(lambda: other.given == 1)
            peer.close()
            other.close()

    run(work())


@pytest.mark.parametrize(("length", "stops"), [(EACH - 41, False), (EACH - 40, True)])
def test_reading_stops_beyond_what_may_wait(tmp_path: Path, length: int, stops: bool) -> None:
    async def work() -> None:
        options = replace(QUICK, limits=PortLimits(connection_output=EACH))
        async with written(tmp_path, options, b"x" * length, 1) as server:
            peer = Peer(server)
            peer.take()
            peer.ask(1)
            await until(lambda: peer.given == 1)
            assert peer.waiting == EACH + stops
            assert peer.reading is not stops
            peer.take()
            assert peer.reading
            peer.close()

    run(work())


def test_a_feed_goes_on_as_soon_as_its_peer_takes_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when the clock is looked at; what the peer says is read all the time."""
    monkeypatch.setattr(ClientConnection, "tick", lambda _self, _now: None)
    count = (EACH + (64 << 10)) // FEED_FRAME

    async def work() -> None:
        options = replace(QUICK, limits=PortLimits(connection_output=EACH))
        async with written(tmp_path, options, b"x", count) as server:
            peer = Peer(server)
            peer.heard(wire.encode(wire.MountRequest(RequestId(9, 1, PARTITION, 1), -1, 0), 4))
            before = peer.written
            while wire.MountResponse not in map(type, peer.messages):
                await until(lambda before=before: peer.written > before)
                assert peer.reading
                before = peer.written
                peer.take()
            assert EACH // 2 < peer.most <= EACH
            assert [one.transaction_id for one in peer.messages[:-1]] == list(range(count))
            peer.close()

    run(work())


def test_so_much_data_is_read_at_a_time_over_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(QUICK, limits=PortLimits(reads=3), cache=NOTHING_CACHED)

    async def work() -> None:
        async with written(tmp_path, options, b"some data", 3) as server:
            reads, peers = Reads(monkeypatch), [Peer(server) for _ in range(5)]
            for peer in peers:
                peer.ask(10)
            await until(lambda: reads.under_way == 3)
            reads.go_on.set()
            await until(lambda: all(peer.given == 10 for peer in peers))
            assert reads.most == 3
            for peer in peers:
                peer.close()

    run(work())


def test_a_read_that_does_not_begin_for_lack_of_memory_takes_no_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections share them: they would be used up one by one."""
    options = replace(QUICK, limits=PortLimits(reads=1), cache=NOTHING_CACHED)

    def fails(_self: ClientConnection, work: Coroutine[Any, Any, None], **_more: Any) -> asyncio.Task[None]:
        work.close()
        raise MemoryError

    async def work() -> None:
        async with written(tmp_path, options, b"some data", 3) as server:
            peer, other = Peer(server), Peer(server)
            with monkeypatch.context() as patched:
                patched.setattr(ClientConnection, "begin_task", fails)
                with pytest.raises(MemoryError):
                    peer.ask(1)
            peer.close()  # as the loop does
            other.ask(3)
            await until(lambda: other.given == 3)
            assert server.port.reads.used == 0
            other.close()

    run(work())


@pytest.mark.parametrize(
    "request_",
    [
        wire.MountRequest(RequestId(9, 1, PARTITION, 1), -1, 0),
        wire.FlushRequest(RequestId(9, 1, PARTITION, 1)),
        wire.TransactionDataRequest(RequestId(9, 1, PARTITION, 1), 0),
        wire.CheckStorageConnectivityRequest(RequestId(9, 1, PARTITION, 1)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_request_whose_answer_does_not_begin_for_lack_of_memory_counts_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: wire.ClientRequest
) -> None:
    """The memory that it counted for was lost to the port with each: at last no frame fitted any more."""

    def fails(_work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        raise MemoryError

    async def work() -> None:
        async with written(tmp_path, replace(QUICK, cache=NOTHING_CACHED), b"some data", 1) as server:
            used, peer = server.port.budget.used, Peer(server)
            with monkeypatch.context() as patched:
                patched.setattr(asyncio, "ensure_future", fails)
                with pytest.raises(MemoryError):
                    peer.heard(wire.encode(request_, 4))
            assert (peer.protocol.requests, peer.protocol.standing) == (0, set())
            peer.close()  # as the loop does
            assert (server.port.budget.used, server.port.reads.used) == (used, 0)

    run(work())


def test_an_answer_that_cannot_be_sent_for_lack_of_memory_ends_its_connection_and_counts_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client waited for it, and its memory was lost to the port."""

    def fails(_self: ClientConnection) -> None:
        raise MemoryError

    async def work() -> None:
        async with written(tmp_path, QUICK, b"some data", 1) as server:
            used, peer = server.port.budget.used, Peer(server)
            peer.heard(wire.encode(wire.FlushRequest(RequestId(9, 1, PARTITION, 1)), 4))
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "send", fails)
                await until(lambda: peer.gone)
            assert (peer.protocol.requests, server.port.budget.used) == (0, used)

    run(work())


def test_appends_that_are_queued_count_also_where_there_is_no_memory_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their commit gave back memory that was not taken: nothing behind it in the batch was given back, nor cached."""
    real, queued = Partition.append, list[Append]()

    def append(partition: Partition, request: Append) -> None:
        if queued:
            raise MemoryError
        queued.append(request)
        real(partition, request)

    async def work() -> None:
        async with written(tmp_path, QUICK, b"some data", 1) as server:
            used, peer = server.port.budget.used, Peer(server)
            for client in (7, 8):
                peer.heard(wire.encode(wire.MountRequest(RequestId(client, 1, PARTITION, 1), 0, 0), 4))
            await until(lambda: [*map(type, peer.messages)].count(wire.MountResponse) == 2)
            asked = [wire.AppendRequest(RequestId(one, 1, PARTITION, 2), 0, 0, b"x", crc32(b"x")) for one in (7, 8)]
            with monkeypatch.context() as patched:
                patched.setattr(Partition, "append", append)
                with pytest.raises(MemoryError):
                    peer.heard(b"".join(wire.encode(one, 4) for one in asked))
            assert (len(queued), peer.protocol.requests) == (1, 1)
            peer.close()  # as the loop does
            await until(lambda: server.partitions[PARTITION].high_water_mark == 1)
            assert server.port.budget.used == used
            assert server.partitions[PARTITION].committed.cached_data(1) is not None

    run(work())


@pytest.mark.turns(8)
@pytest.mark.parametrize("mounts", [False, True], ids=["feeds", "mounts"])
def test_what_stands_at_the_end_of_the_log_keeps_no_long_frame_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: bool
) -> None:
    """As many feeds, or mounts that are still to be answered, as would fill the memory."""
    memory = 1 << 20
    options = replace(QUICK, limits=PortLimits(max_body=memory, memory=memory))

    async def work() -> None:
        async with written(tmp_path, options, b"some data", 1) as server:
            budget, peer, other = server.port.budget, Peer(server), Peer(server)
            for client, one in ((1, peer), (2, other)):
                one.heard(wire.encode(wire.MountRequest(RequestId(client, 1, PARTITION, 0), 0, 0), 4))
                await until(lambda one=one: wire.MountResponse in map(type, one.messages))
            if mounts:
                monkeypatch.setattr(Partition, "flush", lambda _: asyncio.Event().wait())
            count = memory // OVERHEAD
            for number in range(1, count + 1):
                asked = RequestId(1, 1, PARTITION, number)
                peer.heard(wire.encode(wire.MountRequest(asked, 0, 0) if mounts else wire.FeedRequest(asked, 0), 4))
            await until(lambda: budget.used == count * OVERHEAD)
            assert not budget.crowded
            data = b"x" * (memory - 500)
            frame = wire.encode(wire.AppendRequest(RequestId(2, 1, PARTITION, 1), 0, 0, data, crc32(data)), 4)
            other.heard(frame[:100])
            assert other.reading
            other.heard(frame[100:])
            await until(lambda: server.partitions[PARTITION].high_water_mark == 1)
            peer.close()
            await until(lambda: budget.used == 0)
            other.close()

    run(work())


@pytest.mark.parametrize("feeds", [4, 5])
def test_a_long_frame_has_no_place_in_memory_while_its_connection_may_not_send_it(tmp_path: Path, feeds: int) -> None:
    """Four requests may be under way beside a partition's feed: more feeds at the log's end, which last until others append."""
    memory = 1 << 20
    limits = PortLimits(max_body=memory, memory=memory, connection_requests=4)
    options = replace(QUICK, limits=limits, partition=PartitionOptions(feed=1))
    data = bytes(memory - 500)

    def long(client: int) -> bytes:
        return wire.encode(wire.AppendRequest(RequestId(client, 1, PARTITION, 1), 0, 0, data, crc32(data)), 4)

    async def work() -> None:
        async with written(tmp_path, options, b"some data", 1) as server:
            budget, partition = server.port.budget, server.partitions[PARTITION]
            peer, other = Peer(server), Peer(server)
            for client, one in ((1, peer), (2, other)):
                one.heard(wire.encode(wire.MountRequest(RequestId(client, 1, PARTITION, 0), 0, 0), 4))
                await until(lambda one=one: wire.MountResponse in map(type, one.messages))
            asked = (wire.FeedRequest(RequestId(1, 1, PARTITION, number), 0) for number in range(feeds))
            frame = long(1)
            peer.heard(b"".join(wire.encode(one, 4) for one in asked) + frame[:100])
            assert (peer.reading, budget._reserved > 0) == ((True, True) if feeds < 5 else (False, False))
            if feeds < 5:
                peer.heard(frame[100:])
                await until(lambda: partition.high_water_mark == 1)
            else:
                other.heard(long(2)[:100])
                other.heard(long(2)[100:])
                await until(lambda: partition.high_water_mark == 1)
                await until(lambda: peer.reading)
                assert budget._reserved
                peer.heard(frame[100:])
                await until(lambda: partition.high_water_mark == 2)
            peer.close()
            other.close()
            await until(lambda: budget.used == 0)

    run(work())
