"""A partition of a log server whose nodes go away: replicas return by themselves, and what a session left is sent again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fed import fed
from tests.held_locks import held_locks
from tests.server.serving import serving
from tests.server.storing import PARTITION, until
from waltzctl.engine.errors import StoreSessionClosedError
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.net.futures import fail
from waltzctl.engine.net.metrics import Gauge
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.scan.client_appends import numbered
from waltzctl.engine.server import served_partition, store_partition
from waltzctl.engine.server.append_requests import Append, Appender
from waltzctl.engine.server.locks import LockTable
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.served_partition import Partition, _Flush
from waltzctl.engine.server.server_metrics import CommittedInSecond
from waltzctl.engine.server.store_partition import PartitionClosedError
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.engine.server.transaction_cache import TransactionCache
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.records import PackedRecords, WireRecord


class Told:
    """Who appends; keeps what it is told: number of a refused one and transaction in its way, or how many are over, and bytes."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def refused(self, refusals: Sequence[tuple[RequestId, int]]) -> None:
        self.told += [(request_id.sequence, transaction_id) for request_id, transaction_id in refusals]

    def over(self, count: int, size: int) -> None:
        self.told.append((count, size))


class Ending:
    """A connection; whether it was ended."""

    ended = False

    def close(self) -> None:
        self.ended = True


def test_replicas_whose_nodes_were_started_again_are_back_before_anybody_appends(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, 3) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            session = await server.partitions[PARTITION].store.session()

            def taking_part() -> int:
                return sum(one.takes_part for one in session._replicas.values())

            await until(lambda: taking_part() == 3)
            gone = cluster.cluster.names[1:]
            for name in gone:
                await cluster.cluster.stop(name)
            await until(lambda: taking_part() == 1)
            assert session.is_open, "nothing is undecided"
            for name in gone:
                await cluster.cluster.start(name)
            await until(lambda: taking_part() == 3)
            client.append(b"a")
            assert (await client.flush())[0] == 0
            assert session.is_open

    asyncio.run(work())


def end_sessions(patch: pytest.MonkeyPatch, times: int, seen: Callable[[StoreSession, PackedRecords], object]) -> None:
    """The first appends to sessions are lost with these, `times` of them; `seen` hears of each before."""
    real, left = StoreSession.append, iter(range(times))

    def append(session: StoreSession, records: PackedRecords) -> asyncio.Future[int]:
        if next(left, None) is None:
            return real(session, records)
        seen(session, records)
        session.end("the test wants it")
        lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        fail(lost, session._error())
        return lost

    patch.setattr(StoreSession, "append", append)


@pytest.mark.parametrize(("ends", "arrive"), [(1, True), (2, True), (3, False)])
def test_what_a_session_left_unwritten_is_sent_in_the_next_ones_until_it_may_be_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: int, arrive: bool
) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            client = await cluster.client()
            await client.mount()
            end_sessions(monkeypatch, ends, lambda session, _: ended.append(session.session_id))
            made = [client.append(b"%d" % number) for number in range(5)]
            mark, _ = await client.flush()
            late = client.append(b"late")
            there = [*made, late] if arrive else [late]
            assert mark == len(there) - 2
            assert (await client.flush())[0] == len(there) - 1
            client.ask_for_feed(-1)
            assert [(await client.hear_one(wire.FeedData))[0].request_id for _ in there] == there
            assert len({*ended}) == ends

    ended = list[int]()
    asyncio.run(work())


@pytest.mark.turns(10)
@pytest.mark.parametrize("cached", [True, False])
def test_a_log_that_ends_earlier_than_it_did_is_served_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cached: bool
) -> None:
    """Its nodes were cut by their operator while the server ran.  A client that has seen more mounts anew, and hears so."""

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            server = await cluster.server()
            client, nodes = await cluster.client(), cluster.cluster
            await client.mount()
            for number in range(200):
                client.append(b"%d" % number, write_locks=(5,), position=number - 1)
                await client.flush()
            client.ask_for_feed(199)
            partition = server.partitions[PARTITION]
            await until(lambda: partition.metrics.feeds_added == 2)
            for name in nodes.names:
                await nodes.stop(name)
                apply(
                    plan_truncate(nodes.paths[name], partition=PARTITION, after=100, allow_data_loss=True), arguments=[]
                )
            if not cached:
                server.cache.cut(PARTITION, -1)
            client.append(b"decided by what is gone", write_locks=(5,), position=199)
            await until(lambda: partition.reading.queued + partition.reading.undecided == 1)
            for name in nodes.names:
                await nodes.start(name)
            await (await partition.store.session()).close("a checkpoint")
            assert await client.hear() is None, "it has seen more"
            reader, ahead = await cluster.client(client=8), await cluster.client(client=9)
            state, before = await reader.mount()
            assert (state, len(before)) == (wire.MountState.READY, 101)
            assert (await ahead.mount(position=101))[0] is wire.MountState.CLIENT_AHEAD
            assert "the log ends at transaction 100, and this server has committed up to 199" in caplog.text
            reader.append(b"another", write_locks=(5,), position=100)
            assert (await reader.flush())[0] == 101
            assert await reader.data(101) == wire.TransactionData(b"another", crc32(b"another"))

    asyncio.run(work())


def last_stored(storage: Path) -> int | None:
    """The last transaction that a node's directory holds."""
    return storage_status(storage).partitions[PARTITION].last_transaction_id


@pytest.mark.turns(8)
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("heard_of_both", [True, False])
def test_what_another_server_found_gone_is_not_served_from_what_was_kept(
    tmp_path: Path, heard_of_both: bool, more: int
) -> None:
    """The nodes were cut while that one had the partition, and it has written other transactions under the same ids."""

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            first, nodes = await cluster.server(), cluster.cluster
            client = await cluster.client()
            await client.mount()
            lost = [client.append(b"lost %d" % number) for number in range(3)]
            assert (await client.flush())[0] == 2
            assert await client.data(1) == wire.TransactionData(b"lost 1", crc32(b"lost 1"))
            await until(lambda: all(last_stored(path) == 2 for path in nodes.paths.values()))  # the third node's, too
            if heard_of_both:
                await first.assign({})
            for name in nodes.names:
                await nodes.stop(name)
            for path in nodes.paths.values():
                apply(plan_truncate(path, partition=PARTITION, after=0, allow_data_loss=True), arguments=[])
            for name in nodes.names:
                await nodes.start(name)
            await cluster.server(generation=2)
            other = await cluster.client(client=8, server=1)
            await other.mount()
            made = [other.append(b"made %d" % number, append_locks=(5,)) for number in range(1, 3 + more)]
            assert (await other.flush())[0] == 2 + more
            await first.assign({PARTITION: 3})
            reader = await cluster.client(client=9)
            state, before = await reader.mount()
            assert state is wire.MountState.READY
            assert [one.request_id for one in before] == [lost[0], *made]
            assert await reader.data(1) == wire.TransactionData(b"made 1", crc32(b"made 1"))
            behind = reader.append(b"knows nothing of these", position=0, write_locks=(5,))
            refused, _ = await reader.hear_one(wire.LockFailure)
            assert refused.request_id == behind

    asyncio.run(work())


def test_a_feed_waits_for_a_session_whose_log_ends_earlier_to_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage gives out nothing meanwhile, and everything else goes on."""

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            appender, told, asked = Told(), list[bytes](), list[int]()
            partition.append(Append(PackedRecords.of([made(0), made(1)]), appender))
            assert await partition.flush() == 1
            partition.committed._cache.cut(PARTITION, -1)

            async def nothing(first: int, count: int) -> tuple[RecordHeader, ...]:
                asked.append(first)
                assert len(asked) == 1, "it is asked again and again"
                return ()

            class Following:
                closed = False

                async def writable(self) -> None:
                    """It takes everything."""

                def feed(self, frames: bytes) -> None:
                    told.append(frames)

            with monkeypatch.context() as patch:
                patch.setattr(partition.store, "headers", nothing)
                feeding = asyncio.ensure_future(partition.committed.feed(Following(), -1, 2))
                await until(lambda: asked)
                await asyncio.sleep(0)
                assert (asked, told) == ([0], [])
                asked.clear()
                (await partition.store.session()).high_water_mark = 2
                with pytest.raises(StoreSessionClosedError, match="no transaction 2"):
                    await partition._resolve(await partition.store.session())
                assert asked == [2]
            partition._wake()
            await feeding
            assert [one.transaction_id for one in fed(b"".join(told))] == [0, 1]

    asyncio.run(work())


@pytest.mark.parametrize("when", ["a feed waits", "a mount waits", "afterwards"])
def test_whoever_waits_for_a_partition_that_is_closed_is_told(tmp_path: Path, when: str) -> None:
    """And nothing is under way any more on a connection that stays."""

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            await server.assign({PARTITION: 1, PARTITION - 1: 1})
            client = await cluster.client()
            assert await client.mount() == (wire.MountState.READY, [])
            partition = server.partitions[PARTITION]
            (node,) = cluster.cluster.names
            if when == "a feed waits":
                client.ask_for_feed(-1)
                await until(lambda: partition.metrics.feeds_added == 2)
            if when == "a mount waits":
                await cluster.cluster.stop(node)
                client.append(b"x")
                client.say(wire.MountRequest(client.next_id(), -1, 0))
                await until(lambda: server.port.connections[0].requests == 2)
            await server.assign({PARTITION - 1: 1})
            if when == "a mount waits":
                assert (await client.hear_one(wire.MountResponse))[0].state is wire.MountState.NOT_READY
            with pytest.raises(PartitionClosedError, match="is closed on this server"):
                await asyncio.wait_for(partition.flush(), 10)
            await until(lambda: not server.port.connections[0].requests)
            assert partition.metrics.feeds_removed == partition.metrics.feeds_added

    asyncio.run(work())


def test_a_server_that_is_stopped_while_a_partition_is_taken_away_closes_that_one_as_well(tmp_path: Path) -> None:
    """Its session went on behind the stop, and what its clients had asked for kept them for as long as a stop may take."""

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            session = await server.partitions[PARTITION].store.session()
            taking_away = asyncio.ensure_future(server.assign({}))
            await asyncio.sleep(0)
            taking_away.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking_away
            await server.stop(1.0)
            assert session.closed.done()

    asyncio.run(work())


@pytest.mark.parametrize("before", [False, True], ids=["in the stop", "taken away before"])
def test_a_partition_that_cannot_be_closed_keeps_no_connection_open_behind_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    real = Partition.close

    async def close(partition: Partition) -> None:
        await real(partition)
        raise MemoryError

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            await server.partitions[PARTITION].store.session()
            monkeypatch.setattr(Partition, "close", close)
            if before:
                taking_away = asyncio.ensure_future(server.assign({}))
                await asyncio.sleep(0)
                taking_away.cancel()
                await asyncio.wait([taking_away])
            with pytest.raises(MemoryError):
                await server.stop(1.0)
            assert (server._nodes._closed, len(server.port.connections)) == (True, 0)

    asyncio.run(work())


@pytest.mark.parametrize(("heard", "anew"), [(1, False), (2, True)])
def test_what_is_undecided_when_the_partition_is_assigned_anew_is_not_sent_any_more(
    tmp_path: Path, heard: int, anew: bool
) -> None:
    """Its client may have mounted elsewhere meanwhile, and have appended it there.  The same assignment changes nothing."""

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            (node,) = cluster.cluster.names
            partition, appender, connection = server.partitions[PARTITION], Told(), Ending()
            partition.mounts.register(9, 1, 0, connection)
            before = await partition.store.session()
            await cluster.cluster.stop(node)
            for number in range(3):  # the first one is under way when its session ends, the last waits in the queue
                partition.append(Append(PackedRecords.of([made(number)]), appender))
                if number == 1:
                    await until(lambda: not before.is_open)
            flush = asyncio.ensure_future(partition.flush())
            await asyncio.sleep(0)
            await server.assign({PARTITION: heard})
            assert connection.ended is anew
            assert partition.mounts.is_registered(9, connection) is not anew
            await cluster.cluster.start(node)
            assert await flush == (-1 if anew else 2)
            assert sum(count for count, _ in appender.told) == 3
            assert (await partition.store.session()).session_id > before.session_id
            partition.append(Append(PackedRecords.of([made(9)]), appender))
            assert await partition.flush() == (0 if anew else 3)

    asyncio.run(work())


def test_partitions_that_come_while_connectivity_is_looked_at_disturb_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            real = server._metadata.nodes

            async def nodes() -> frozenset[str]:
                await server.assign({0: 1, PARTITION: 1})
                return await real()

            server._metadata.nodes = nodes  # type: ignore[method-assign]
            assert await server.check_connectivity() == ((cluster.cluster.names[0], True),)

    asyncio.run(work())


@pytest.mark.parametrize("anew", [True, False])
def test_what_storage_was_asked_for_before_it_is_in_doubt_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    """It came once all that was kept was forgotten, and was given to whoever mounted later."""

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            partition.append(Append(PackedRecords.of([made(0)]), Told()))
            assert await partition.flush() == 0
            partition.committed._cache.forget(PARTITION)
            real, asked, go_on = partition.store.records_now, list[int](), asyncio.Event()

            async def late(first: int, count: int) -> tuple[WireRecord, ...]:
                found = await real(first, count)
                asked.append(first)
                await go_on.wait()
                return found

            with monkeypatch.context() as patch:
                patch.setattr(partition.store, "records_now", late)
                reading = [
                    asyncio.ensure_future(one)
                    for one in (partition.committed._frames(0, 1), partition.committed.data(0))
                ]
                await until(lambda: len(asked) == 2)
                if anew:
                    partition.raise_generation(partition.store.generation + 1)
                else:
                    partition.committed._cache.cut(PARTITION, -1)
                go_on.set()
                assert all(await asyncio.gather(*reading))
            assert partition.committed._cache.fed(PARTITION, 0, 1) == b""
            assert partition.committed.cached_data(0) is None
            if not anew:
                assert await partition.committed.data(0) == partition.committed.cached_data(0) == (b"x", crc32(b"x"))

    asyncio.run(work())


def test_how_long_there_is_no_session_counts_from_the_end_of_the_last_one(tmp_path: Path) -> None:
    """Also where nobody can begin the next one at once: what asked for it makes a pause."""

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            await asyncio.sleep(0.4)
            session = await partition.store.session()
            assert partition.reading.recovering_seconds is None
            begun = asyncio.get_running_loop().time()
            partition._spawn(session.close("the test wants it"))
            waits = []
            while (found := partition.reading.recovering_seconds) is not None or session.is_open:
                waits.append(0.0 if found is None else found)
                await asyncio.sleep(0)
            took = asyncio.get_running_loop().time() - begun
            assert len(waits) > 2
            assert max(waits) <= took

    asyncio.run(work())


@contextlib.asynccontextmanager
async def unwritten(place: Path) -> AsyncIterator[Partition]:
    """A partition whose session is open, and nobody has written."""
    async with serving(place, 1) as cluster:
        server = await cluster.server()
        client = await cluster.client()
        await client.mount()
        partition = server.partitions[PARTITION]
        session = await partition.store.session()
        await until(lambda: partition.high_water_mark == session.high_water_mark == -1)
        yield partition


def made(number: int) -> WireRecord:
    return WireRecord.make(0, RequestId(9, 0, PARTITION, number), 0, b"x")


def test_a_client_that_knows_nothing_appends_without_locks_and_not_with_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            appender = Told()
            for number, taken in ((0, None), (1, held_locks([(-2, wire.AppendLocks(write=(5,)))]))):
                partition.append(Append(PackedRecords.of([made(number)]), appender, taken))
            assert await partition.flush() == 0
            assert appender.told == [(1, -1), (1, 37 + 24), (1, 37)]

    asyncio.run(work())


def test_of_appends_that_come_together_each_is_judged_by_its_own_locks(tmp_path: Path) -> None:
    """Two are refused between two that are not; the last one is refused once what is in flight in front of it is committed."""

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            appender = Told()
            asked = [(-1, 1), (-2, 2), (-3, 3), (-1, 4), (5, 5), (-1, 1)]
            held = held_locks((mark, wire.AppendLocks(write=(lock,))) for mark, lock in asked)
            partition.append(Append(PackedRecords.of(map(made, range(len(asked)))), appender, held))
            assert await partition.flush() == 2
            size = 37 + 24
            assert appender.told == [(1, -1), (2, -1), (2, 2 * size), (3, 3 * size), (5, 0), (1, size)]
            written = await partition.store.headers(0, 9)
            assert [(one.transaction_id, one.request_id.sequence) for one in written] == [(0, 0), (1, 3), (2, 4)]

    asyncio.run(work())


def under_locks(appender: Appender, *locks: int) -> Append:
    """Appends of a client that knows nothing yet, each with a write lock."""
    held = held_locks((-1, wire.AppendLocks(write=(lock,))) for lock in locks)
    return Append(PackedRecords.of(map(made, range(len(locks)))), appender, held)


@pytest.mark.parametrize("ends", [0, 1, 3])
def test_what_is_contended_stays_in_its_place_when_its_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    """Were it written behind a later append of its client, the client would have sent it again already.

    Numbers 1 and 3 are contended by 0 and 2.  With the third session those are given up, and nothing is in their way any more.
    """

    def seen(_: StoreSession, records: PackedRecords) -> None:
        ended.append(len(records))
        assert (partition.reading.queued, partition.reading.undecided) == (0, 4)

    async def work() -> None:
        nonlocal partition
        async with unwritten(tmp_path) as partition:
            end_sessions(monkeypatch, ends, seen)
            appender = Told()
            partition.append(under_locks(appender, 1, 1, 2, 2))
            mark = await partition.flush()
            written = [one.request_id.sequence for one in await partition.store.headers(0, 9)]
            size = 37 + 24
            refused = [told for told in appender.told if told[1] < size]
            assert (mark, written, refused) == (1, *(([0, 2], [(1, 0), (3, 1)]) if ends < 3 else ([1, 3], [])))
            assert sum(count for count, told in appender.told if told >= size) == 4
            assert (partition.reading.queued, partition.reading.undecided) == (0, 0)

    partition: Partition
    ended = list[int]()
    asyncio.run(work())
    assert ended == [2] * ends


def test_what_was_contended_is_written_in_front_of_what_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Number 0 is given up with the third session, of which number 2 was the first."""

    def seen(_: StoreSession, records: PackedRecords) -> None:
        ended.append(len(records))
        if len(ended) == 2:
            partition.append(later)

    async def work() -> None:
        nonlocal partition
        async with unwritten(tmp_path) as partition:
            end_sessions(monkeypatch, 3, seen)
            partition.append(under_locks(later.client, 1, 1))
            await until(lambda: len(ended) == 3)
            assert await partition.flush() == 1
            written = [one.request_id.sequence for one in await partition.store.headers(0, 9)]
            assert (written, ended) == ([1, 2], [1, 1, 2])

    later = Append(PackedRecords.of([made(2)]), Told())
    ended = list[int]()
    partition: Partition
    asyncio.run(work())


def test_a_contended_append_is_told_of_what_was_in_front_of_it(tmp_path: Path) -> None:
    """As by the release, though a later one has written under its lock by then."""

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            appender = Told()
            locks = [{"write": (1,)}, {"write": (1,)}, {"append": (1,)}, {"read": (1,)}]
            held = held_locks((-1, wire.AppendLocks(**one)) for one in locks)
            partition.append(Append(PackedRecords.of(map(made, range(4))), appender, held))
            assert await partition.flush() == 1
            assert [told for told in appender.told if told[1] < 37] == [(1, 0), (3, 1)]

    asyncio.run(work())


def test_contended_appends_are_forgotten_with_the_mounts_of_their_clients(tmp_path: Path) -> None:
    """Once a batch is in flight; their client mounts again and asks what became of them."""

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            appender, size = Told(), 37 + 24
            session = await partition.store.session()
            partition.append(under_locks(appender, 1, 1, 1))
            partition._send_batch(session)
            assert (partition.reading.undecided, partition.waiting_for_session, appender.told) == (3, 0, [])
            partition.end_mounts()
            assert (partition.reading.undecided, appender.told) == (1, [(2, 2 * size)])
            assert await partition.flush() == 0
            assert appender.told == [(2, 2 * size), (1, size)]
            assert [one.request_id.sequence for one in await partition.store.headers(0, 9)] == [0]

    asyncio.run(work())


def test_contended_appends_of_a_partition_that_closes_are_given_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            appender = Told()
            partition.append(under_locks(appender, 1, 1))
            partition._send_batch(await partition.store.session())
            await partition.close()
            assert sum(count for count, _ in appender.told) == 2

    asyncio.run(work())


def test_locks_in_flight_of_nobody_are_reset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing would ever decide what they contend.  Behind the reset a client that knows the last transaction appends."""

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            appender = Told()
            assert partition._locks is not None
            partition._locks.admit(held_locks([(-1, wire.AppendLocks(write=(1,)))]), 1, -1)
            partition.append(under_locks(appender, 1, 1))
            assert await partition.flush() == 0
            assert [told for told in appender.told if told[1] < 37] == [(1, 0)]

    asyncio.run(work())
    assert "locks are held by nobody" in caplog.text


def test_appends_that_come_and_go_while_somebody_counts_them_disturb_nobody(tmp_path: Path) -> None:
    """Metrics are read in a thread."""

    class Coming(PackedRecords):
        def __len__(self) -> int:
            partition._queue.append(more)
            partition._pending.append((0, more))
            return 1

    async def work() -> None:
        nonlocal partition
        async with unwritten(tmp_path) as partition:
            coming = Append(Coming(b"", ()), Told())
            partition._queue.append(coming)
            partition._pending.append((0, coming))
            reading = partition.reading
            assert (reading.queued, reading.undecided) == (1, 1)
            partition._queue.clear()
            partition._pending.clear()

    more = Append(PackedRecords.of([made(0)]), Told())
    partition: Partition
    asyncio.run(work())


def test_what_a_second_has_is_what_was_committed_in_it_or_in_the_one_before() -> None:
    second = CommittedInSecond(10.0)
    told = []
    for now, count in ((10.0, 5), (10.999, 3), (11.0, 1), (11.5, 9), (12.5, 2), (14.25, 3), (16.25, 1)):
        second.note(now, count)
        told.append(second.committed)
    assert told == [5, 8, 8, 10, 10, 3, 1]


@pytest.mark.parametrize(("committed", "granted"), [(0, 100), (403, 100), (404, 101), (4000, 1000)])
def test_a_reader_of_a_busy_partition_is_granted_a_quarter_of_a_second(
    tmp_path: Path, committed: int, granted: int
) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            partition = server.partitions[PARTITION]
            for number in range(5):
                client.append(b"%d" % number)
            assert await client.flush() == (4, [])
            partition.committed._rate = CommittedInSecond(partition._time())
            partition.committed._rate.note(partition._time(), committed)
            assert partition.committed.grant(4) == granted
            assert partition.committed.grant(-1) == granted, "what is there is less"
            partition.committed.high_water_mark = 4 + granted
            assert (partition.committed.grant(4), partition.committed.grant(3)) == (granted, granted + 1)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        ((1, 5), (1, 5), True),
        ((1, 5), (1, 6), True),
        ((1, 5), (1, 4), False),
        ((1, 5), (2, 0), True),
        ((2, 0), (1, 9), False),
    ],
)
def test_the_connection_that_a_client_mounted_through_last_counts(
    tmp_path: Path, first: tuple[int, int], second: tuple[int, int], counts: bool
) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            partition = (await cluster.server()).partitions[PARTITION]
            one, other = Ending(), Ending()
            partition.mounts.register(7, *first, one)
            partition.mounts.register(7, *second, other)
            assert (partition.mounts.is_registered(7, one), partition.mounts.is_registered(7, other)) == (
                not counts,
                counts,
            )
            assert not partition.mounts.is_registered(8, other)
            partition.mounts.forget(7, one)
            assert partition.mounts.is_registered(7, other) is counts
            partition.mounts.forget(7, other)
            assert not partition.mounts.is_registered(7, other)

    asyncio.run(work())


def test_clients_that_mount_and_vanish_leave_nothing_in_a_partition_without_a_session(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            node = cluster.cluster.names[0]
            await cluster.cluster.stop(node)
            server = await cluster.server()
            partition = server.partitions[PARTITION]
            stays = await cluster.client(client=1)
            stays.say(wire.MountRequest(stays.next_id(), -1, 0))
            for number in range(100, 120):
                client = await cluster.client(client=number)
                client.say(wire.MountRequest(client.next_id(), -1, 0))
                await until(lambda number=number: number in partition.mounts._mounts)
                await client.close()
            await until(lambda: len(server.port.connections) == 1)
            [flush] = partition._queue
            assert isinstance(flush, _Flush)
            assert len(flush.waiting) == 1
            await cluster.cluster.start(node)
            assert (await stays.hear_one(wire.MountResponse))[0].state is wire.MountState.READY

    asyncio.run(work())


@pytest.mark.parametrize("where", ["a batch", "a session", "the cache"])
def test_a_partition_goes_on_behind_a_moment_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Nobody else would take its appends, and its session is open: to health it would be well."""
    failed = list[str]()

    def failing(real: Any) -> Any:
        def once(*arguments: Any, **options: Any) -> Any:
            if not failed:
                failed.append(where)
                raise MemoryError
            return real(*arguments, **options)

        return once

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            if where == "a session":
                monkeypatch.setattr(store_partition, "StoreSession", failing(StoreSession))
            server = await cluster.server()
            client = await cluster.client()
            if where == "a session":
                await until(lambda: failed)
            await client.mount()
            if where == "a batch":
                monkeypatch.setattr(served_partition, "numbered", failing(numbered))
            if where == "the cache":
                monkeypatch.setattr(TransactionCache, "put", failing(TransactionCache.put))
            made = client.append(b"once", write_locks=(5,))
            assert (await client.flush())[0] == 0
            assert failed
            client.ask_for_feed(-1)
            assert (await client.hear_one(wire.FeedData))[0].request_id == made
            assert all(one.requests == 1 for one in server.port.connections), "its feed"
            assert not server.partitions[PARTITION].store.state.waits_for

    asyncio.run(work())


def failing_once(real: Any, failed: list[object], at: int = 1) -> Any:
    """Without memory the one time that it is called for the `at`th time."""

    def once(*arguments: Any, **options: Any) -> Any:
        failed.append(arguments)
        if len(failed) == at:
            raise MemoryError
        return real(*arguments, **options)

    return once


def test_what_is_committed_when_there_is_no_memory_to_note_its_locks_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush told the client that it had failed, and its lock was held for ever; the client appends it once more."""

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            failed = list[object]()
            monkeypatch.setattr(LockTable, "commit", failing_once(LockTable.commit, failed))
            made = [client.append(b"once", write_locks=(5,))]
            assert (await client.flush())[0] == 0
            assert failed
            client.append(b"under the same lock", write_locks=(5,))
            assert [type(one) for one in (await client.flush())[1]] == [wire.LockFailure]
            made.append(client.append(b"who has seen it", position=0, write_locks=(5,)))
            assert (await client.flush())[0] == 1
            client.ask_for_feed(-1)
            assert [(await client.hear_one(wire.FeedData))[0].request_id for _ in made] == made
            await until(lambda: all(one.requests == 1 for one in server.port.connections))  # its feed

    asyncio.run(work())


@pytest.mark.parametrize("at", range(1, 9))
def test_what_a_session_left_is_sent_again_in_its_order_behind_a_moment_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """It was looked for in the next session's log, and forgotten half-way: neither sent again nor over."""

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            appender, failed, patch = Told(), list[object](), monkeypatch
            real = StoreSession.append

            def ending(session: StoreSession, records: PackedRecords) -> asyncio.Future[int]:
                patch.setattr(StoreSession, "append", real)
                patch.setattr(LockTable, "give_up", failing_once(LockTable.give_up, failed, at=at))
                patch.setattr(Append, "part", failing_once(Append.part, failed, at=at))
                session.end("the test wants it")
                raise session._error()

            patch.setattr(StoreSession, "append", ending)
            held = held_locks([(-1, wire.AppendLocks(write=(number,))) for number in range(4)])
            partition.append(Append(PackedRecords.of(map(made, range(4))), appender, held))
            assert await partition.flush() == 3
            assert len(failed) >= at
            written = await partition.store.headers(0, 9)
            assert [one.request_id.sequence for one in written] == [0, 1, 2, 3]
            assert sum(count for count, _ in appender.told) == 4

    asyncio.run(work())


@pytest.mark.parametrize("at", range(1, 4))
def test_appends_of_which_some_are_sent_are_not_forgotten_in_a_moment_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            partition.options = dataclasses.replace(partition.options, batch=2)
            appender, failed = Told(), list[object]()
            monkeypatch.setattr(Append, "part", failing_once(Append.part, failed, at=at))
            asked = [(-2, 7), (-1, 1), (-1, 2), (-1, 3), (-1, 4)]
            held = held_locks((mark, wire.AppendLocks(write=(lock,))) for mark, lock in asked)
            partition.append(Append(PackedRecords.of(map(made, range(5))), appender, held))
            assert await partition.flush() == 3
            assert len(failed) >= at
            written = await partition.store.headers(0, 9)
            assert [one.request_id.sequence for one in written] == [1, 2, 3, 4]
            assert sum(count for count, size in appender.told if size > 0) == 5

    asyncio.run(work())


def test_what_was_read_before_a_partition_is_assigned_anew_is_not_kept_afterwards(tmp_path: Path) -> None:
    """Storage may have lost it while another server had the partition, and others have its ids by now."""

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            client.append(b"0")
            await client.flush()
            partition, cache = server.partitions[PARTITION], server.cache
            store = cast("Any", partition.store)
            headers, records_now = store.headers, store.records_now

            async def forgotten(read: Any, *wanted: int) -> Any:
                found = await read(*wanted)
                cache.forget(PARTITION)
                return found

            cache.cut(PARTITION, -1)
            store.headers = partial(forgotten, headers)
            store.records_now = partial(forgotten, records_now)
            assert await partition.committed._frames(0, 1)
            assert await partition.committed.data(0) is not None
            assert cache.fed(PARTITION, 0, 1) == b""
            assert cache.data(PARTITION, 0) is None
            store.headers, store.records_now = headers, records_now
            assert await partition.committed._frames(0, 1) == cache.fed(PARTITION, 0, 1) != b""
            assert await partition.committed.data(0) == cache.data(PARTITION, 0)

    asyncio.run(work())


def test_feeds_are_counted_under_the_releases_names(tmp_path: Path) -> None:
    """One that is behind catches up first; which nodes have a partition is a gauge as well."""

    def now(server: LogServer) -> list[object]:
        found = dict(server.partitions[PARTITION].reading.metrics_by_name())
        names = (
            f"total-{kind}-feed-context-{what}" for kind in ("catchup", "real-time") for what in ("added", "removed")
        )
        return [cast("Gauge", found[name]).value for name in names]

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            client.append(b"0")
            await client.flush()
            assert now(server) == [0, 0, 1, 1]
            reader = await cluster.client(client=8)
            assert (await reader.mount())[0] is wire.MountState.READY
            assert now(server) == [1, 1, 1, 1]
            reader.ask_for_feed(-1)
            await until(lambda: now(server) == [2, 2, 2, 1])

    asyncio.run(work())
