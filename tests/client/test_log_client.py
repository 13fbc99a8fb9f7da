"""The client of the log over real servers and nodes of this process: appends, feeds and data, while connections break and
partitions move.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.client.told_servers import Directory
from tests.server.serving import QUICK, Serving, serving
from tests.server.storing import LOG, PARTITION, until
from waltzctl.engine.client import append_call, partition_mount
from waltzctl.engine.client.append_call import AppendCall, AppendsInBulk
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.log_transaction import Draft, Transaction
from waltzctl.engine.client.partition_mount import SPENT_AT, ClientAheadError, Mount
from waltzctl.engine.client.server_endpoint import Endpoint
from waltzctl.engine.errors import CorruptRecordError, DeadlineError, InvalidRequestError, PeerError, RefusedError
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.server.append_requests import Append
from waltzctl.engine.server.client_port import ClientConnection
from waltzctl.engine.server.served_partition import Partition
from waltzctl.formats.request_id import LAST_SEQUENCE, RequestId
from waltzctl.formats.wire import client as wire

OPTIONS = ClientOptions(timeout=20.0, nudge=0.3, first_retry=0.01, longest_retry=0.05, not_ready=0.02)


@dataclass
class Around:
    """A client, and what it depends on."""

    serving: Serving
    directory: Directory
    client: LogClient
    connections: list[LogConnection]

    def at(self, server: int, generation: int = 1) -> None:
        """The partition is this server's now."""
        _, host, port = self.serving.servers[server]
        self.directory.tell({PARTITION: PartitionServer(host, port, generation)})

    def cut(self) -> None:
        """All connections break."""
        for one in self.connections:
            assert one._transport is not None
            one._transport.abort()
        self.connections.clear()


@contextlib.asynccontextmanager
async def around(
    path: Path, *, nodes: int = 1, servers: int = 1, options: ClientOptions = OPTIONS, deadline: float = 5.0
) -> AsyncIterator[Around]:
    async with serving(path, nodes) as made:
        for number in range(servers):
            await made.server(generation=1 + number) if number == 0 else await started(made)
        connections: list[LogConnection] = []

        async def connect(address: Address) -> LogConnection:
            found = await LogConnection.connect(PORT, address, ssl_context=None, timeout=deadline)
            connections.append(found)
            return found

        directory = Directory()
        async with LogClient(directory, connect, log=LOG, options=options) as client:
            found = Around(made, directory, client, connections)
            await asyncio.sleep(0)
            found.at(0)
            yield found


async def started(made: Serving) -> None:
    """One more server, which has no partition as yet."""
    from waltzctl.engine.server.log_server import LogServer

    server = LogServer(made.metadata, made.cluster.connect, log=LOG, options=QUICK)
    host, port = await server.start("127.0.0.1", 0, None)
    made.servers.append((server, host, port))


def run(path: Path, test: Callable[[Around], Awaitable[None]], **more: object) -> None:
    async def whole() -> None:
        async with around(path, **more) as found:  # type: ignore[arg-type]
            await test(found)

    asyncio.run(whole())


async def all_of(client: LogClient, after: int = -1) -> list[Transaction]:
    last = await client.high_water_mark(PARTITION)
    return [one async for one in client.feed(PARTITION, after=after, until=lambda _: last)]


def test_what_is_appended_comes_in_the_feed_with_its_data(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client = around.client
        assert await client.high_water_mark(PARTITION) == -1
        made = [await client.append(PARTITION, Draft(b"transaction %d" % n, header=n)) for n in range(3)]
        assert [(one.transaction_id, one.header) for one in made if one] == [(0, 0), (1, 1), (2, 2)]
        assert await all_of(client) == made
        assert await all_of(client, after=1) == made[2:]
        assert await client.data(PARTITION, 1) == b"transaction 1"
        assert await client.flush(PARTITION) == 2
        assert client.seen(PARTITION) == 2
        with pytest.raises(RefusedError, match="has no transaction 3"):
            await client.data(PARTITION, 3)

    run(tmp_path, test)


def test_many_at_a_time_keep_their_order(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client = around.client
        done = await asyncio.gather(*(client.append(PARTITION, Draft(b"%d" % n)) for n in range(300)))
        assert [one.transaction_id for one in done if one] == [*range(300)]

    run(tmp_path, test)


def test_a_builder_is_called_again_on_what_is_known_by_then(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client = around.client
        seen: dict[int, list[int]] = {0: [], 1: []}

        async def count(who: int) -> None:
            def build(mark: int) -> Draft:
                seen[who].append(mark)
                return Draft(b"%d" % (mark + 1), write_locks=[("counter", 7)])

            for _ in range(20):
                await client.append(PARTITION, build)

        await asyncio.gather(count(0), count(1))
        committed = await all_of(client)
        values = [await client.data(PARTITION, one.transaction_id) for one in committed]
        assert values == [b"%d" % n for n in range(40)]  # nobody wrote on what was not the latest
        assert len(seen[0]) + len(seen[1]) > 40  # and somebody was told so

    run(tmp_path, test)


def test_a_builder_that_gives_nothing_appends_nothing(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        assert await around.client.append(PARTITION, lambda _mark: None) is None

        def fails(_mark: int) -> Draft:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await around.client.append(PARTITION, fails)
        assert await around.client.high_water_mark(PARTITION) == -1

    run(tmp_path, test)


def test_locks_that_do_not_meet_refuse_nobody(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client, calls = around.client, []

        def build(number: int) -> Callable[[int], Draft]:
            def made(_mark: int) -> Draft:
                calls.append(number)
                return Draft(b"x", append_locks=[("a", 1)], read_locks=[("somebody else", number)])

            return made

        await asyncio.gather(*(client.append(PARTITION, build(n)) for n in range(20)))
        assert sorted(calls) == [*range(20)]

    run(tmp_path, test)


def test_a_connection_that_breaks_is_made_again_and_nothing_is_there_twice(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client = around.client
        done: list[Transaction | None] = []

        async def append() -> None:
            done.extend([await client.append(PARTITION, Draft(b"%d" % n)) for n in range(200)])

        appending = asyncio.ensure_future(append())
        reading = asyncio.ensure_future(all_of_feed(client, 200))
        while not appending.done():
            await asyncio.sleep(0.01)
            around.cut()
        await appending
        assert [one.transaction_id for one in done if one] == [*range(200)]
        assert await reading == [one for one in done if one]

    run(tmp_path, test)


async def all_of_feed(client: LogClient, count: int) -> list[Transaction]:
    found = []
    async for one in client.feed(PARTITION):
        found.append(one)
        if len(found) == count:
            break
    return found


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", range(6))
def test_histories(tmp_path: Path, seed: int) -> None:
    """Whatever breaks: what was told to be committed is there once, in the order of the ids, and readers see the same."""

    async def test(around: Around) -> None:
        client, chance = around.client, Random(seed)
        told: dict[int, bytes] = {}
        stop = False

        async def append(who: int) -> None:
            number = 0
            while not stop:
                number += 1
                data = b"%d-%d" % (who, number)
                with contextlib.suppress(DeadlineError):
                    done = await client.append(
                        PARTITION, Draft(data, write_locks=[("l", who % 2)] if chance.random() < 0.5 else ())
                    )
                    assert done is not None
                    assert done.transaction_id not in told
                    told[done.transaction_id] = data
                await asyncio.sleep(0.001)

        appending = [asyncio.ensure_future(append(who)) for who in range(4)]
        feed = client.feed(PARTITION)
        read: list[int] = []

        async def follow() -> None:
            async for one in feed:
                read.append(one.transaction_id)  # noqa: PERF401  # looked at while it grows

        following = asyncio.ensure_future(follow())
        owner, generation = 0, 1
        for _ in range(12):
            await asyncio.sleep(chance.random() * 0.08)
            match chance.choice(("cut", "move", "generation", "away", "silent")):
                case "cut":
                    around.cut()
                case "move":  # the old server is not told at once, as happens
                    old, owner, generation = owner, 1 - owner, generation + 1
                    await around.serving.servers[owner][0].assign({PARTITION: generation})
                    around.at(owner, generation)
                    if chance.random() < 0.5:
                        await asyncio.sleep(0.02)
                    await around.serving.servers[old][0].assign({})
                case "generation":
                    generation += 1
                    await around.serving.servers[owner][0].assign({PARTITION: generation})
                    around.at(owner, generation)
                case "away":  # the server closed the partition, and has it again
                    await around.serving.servers[owner][0].assign({})
                    await around.serving.servers[owner][0].assign({PARTITION: generation})
                case "silent":
                    around.directory.tell({})
                    await asyncio.sleep(0.03)
                    around.at(owner, generation)
        stop = True
        await asyncio.gather(*appending)
        last = await client.high_water_mark(PARTITION)
        there = await all_of(client)
        assert [one.transaction_id for one in there] == [*range(last + 1)]
        stored = [await client.data(PARTITION, number) for number in range(last + 1)]
        assert len(set(stored)) == len(stored)  # nothing twice
        assert {number: stored[number] for number in told} == told
        async with asyncio.timeout(20):
            while len(read) <= last:
                await asyncio.sleep(0.01)
        assert read == [*range(last + 1)]
        following.cancel()
        assert len(told) > 20

    run(tmp_path, test, servers=2)


@pytest.mark.turns(10)
def test_an_append_that_the_server_passed_over_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(around: Around) -> None:
        client = around.client
        await client.append(PARTITION, Draft(b"0"))
        real, lost = Partition.append, []

        def append(self: Partition, request: Append) -> None:
            if not lost:
                lost.append(request)
                return
            real(self, request)

        monkeypatch.setattr(Partition, "append", append)
        done = await client.append(PARTITION, Draft(b"1"))
        assert lost
        assert done is not None
        assert done.transaction_id == 1

    run(tmp_path, test)


def test_a_client_that_is_ahead_of_the_log_is_told(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        await around.client.append(PARTITION, Draft(b"0"))
        with pytest.raises(ClientAheadError, match="has seen transaction 1"):
            await anext(aiter(around.client.feed(PARTITION, after=1)))
        feed = around.client.feed(PARTITION, after=0)
        waiting = asyncio.ensure_future(anext(aiter(feed)))
        await asyncio.sleep(0.05)
        await around.client.append(PARTITION, Draft(b"1"))
        assert (await waiting).transaction_id == 1

    run(tmp_path, test)


def test_a_feed_of_several_partitions_ends_when_all_have_come_to_their_ends(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client = around.client
        _, host, port = around.serving.servers[0]
        await around.serving.servers[0][0].assign({0: 1, 1: 1})
        around.directory.tell(dict.fromkeys((0, 1), PartitionServer(host, port, 1)))
        for number in range(6):
            await client.append(number % 2, Draft(b"x"))
        ends = {0: 0, 1: 2}  # the one ends long before the other
        found = [(one.partition, one.transaction_id) async for one in client.feed((0, 1), until=ends.__getitem__)]
        assert sorted(found) == [(0, 0), (1, 0), (1, 1), (1, 2)]
        assert [one async for one in client.feed((0, 1), after=2, until=ends.__getitem__)] == []
        marks = {0: -1, 1: 1}
        found = [(one.partition, one.transaction_id) async for one in client.feed(marks, until=ends.__getitem__)]
        assert sorted(found) == [(0, 0), (1, 2)]  # each behind its own mark

    run(tmp_path, test)


def test_a_connection_that_ended_before_it_was_used_is_made_again(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client, connections, made = around.client, around.client._connections, []
        real = connections._connect

        async def connect(address: Address) -> LogConnection:
            found = await real(address)
            made.append(found)
            if len(made) <= 3:
                await found.close()  # as a server that greets and goes away at once
            return found

        connections._connect = connect
        for endpoint in connections._endpoints.values():
            endpoint._connect = connect
        done = await asyncio.wait_for(client.append(PARTITION, Draft(b"0")), 10)
        assert done is not None
        made.clear()
        feed = client.feed(PARTITION)
        assert (await asyncio.wait_for(anext(aiter(feed)), 10)).transaction_id == 0
        await feed.aclose()

    run(tmp_path, test)


def test_every_call_ends(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client = around.client
        await client.append(PARTITION, Draft(b"0"))
        await around.serving.servers[0][0].assign({})
        around.directory.tell({})
        for call in (
            client.append(PARTITION, Draft(b"x"), timeout=0.05),
            client.flush(PARTITION, timeout=0.05),
            client.data(PARTITION, 0, timeout=0.05),
            client.high_water_mark(PARTITION, timeout=0.05),
        ):
            with pytest.raises(DeadlineError, match=f"partition {PARTITION}"):
                await call
        for number in (-1, 2):
            with pytest.raises(InvalidRequestError, match="0 to 1"):
                await client.append(number, Draft(b"x"))

    run(tmp_path, test)


def test_data_with_a_wrong_checksum_is_asked_for_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(around: Around) -> None:
        client = around.client
        await client.append(PARTITION, Draft(b"right"))
        wrong = [2]
        real = ClientConnection.reply

        def say(self: ClientConnection, message: wire.ServerResponse) -> None:
            if isinstance(message, wire.TransactionDataResponse) and wrong[0]:
                wrong[0] -= 1
                assert isinstance(message.outcome, wire.TransactionData)
                outcome = wire.TransactionData(b"wrong", message.outcome.checksum)
                message = wire.TransactionDataResponse(message.request_id, message.transaction_id, outcome)
            real(self, message)

        monkeypatch.setattr(ClientConnection, "reply", say)
        assert await client.data(PARTITION, 0) == b"right"
        wrong[0] = 3
        with pytest.raises(CorruptRecordError, match="3 times"):
            await client.data(PARTITION, 0)

    run(tmp_path, test)


def test_a_reader_that_is_slow_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(around: Around) -> None:
        client, did = around.client, []
        for name in ("pause", "resume"):
            real = getattr(LogConnection, name)

            def noted(self: LogConnection, name: str = name, real: Callable[[LogConnection], None] = real) -> None:
                did.append(name)
                real(self)

            monkeypatch.setattr(LogConnection, name, noted)
        await asyncio.gather(*(client.append(PARTITION, Draft(b"%d" % n)) for n in range(300)))
        assert did == []
        found = 0
        async for one in client.feed(PARTITION, until=lambda _: 299):
            assert one.transaction_id == found
            found += 1
            if found == 1:
                await asyncio.sleep(0.1)  # so that more comes than is kept for it
        assert found == 300
        assert "pause" in did
        assert did[-1] == "resume"

    run(tmp_path, test, options=ClientOptions(timeout=20.0, ahead=64, in_flight=256))


def test_what_is_kept_for_a_slow_reader_does_not_grow_with_each_connection_that_is_lost(tmp_path: Path) -> None:
    """A server ends one of which nothing is read for a minute, and a mount brings what the reader lacks."""

    async def test(around: Around) -> None:
        client, count = around.client, 8000
        await client.append_all(PARTITION, (Draft(b"") for _ in range(count)))
        feed = client.feed(PARTITION, until=lambda _: count - 1)
        assert (await anext(feed)).transaction_id == 0
        (mount,) = [one for one in client._mounts if one.queue is not None]
        assert mount.queue is not None
        await asyncio.sleep(0.1)
        kept = mount.queue.qsize()
        assert 64 <= kept < count - 1
        for _ in range(3):
            around.cut()
            await until(lambda: mount._connection is not None)
            await asyncio.sleep(0.1)
            assert mount.queue.qsize() == kept
        assert [one.transaction_id async for one in feed] == [*range(1, count)]

    run(tmp_path, test, options=replace(OPTIONS, ahead=64, in_flight=256))


def test_c10_a_client_id_whose_request_ids_end_is_followed_by_another(tmp_path: Path) -> None:
    """One step to each side of the end: the last append under the old id, the first under the new one."""

    async def test(around: Around) -> None:
        client = around.client
        await client.append(PARTITION, Draft(b"0"))
        client._append_mounts[PARTITION]._sequence = SPENT_AT - 1
        last, first = [await client.append(PARTITION, Draft(b"%d" % n)) for n in (1, 2)]
        assert last is not None
        assert first is not None
        old, new = last.request_id, first.request_id
        assert old.sequence == SPENT_AT
        assert (new.client, new.sequence < 10) == (old.client + 1, True)
        both = await asyncio.gather(*(client.append(PARTITION, Draft(b"%d" % n)) for n in range(3, 9)))
        told = await all_of(client)
        assert told[3:] == both
        assert len({one.request_id for one in told}) == 9
        assert await client.flush(PARTITION) == 8

    run(tmp_path, test)


def test_c10_appends_under_way_are_decided_before_the_next_client_id_is_used(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client = around.client
        await client.append(PARTITION, Draft(b"0"))
        client._append_mounts[PARTITION]._sequence = SPENT_AT - 3
        made = await asyncio.gather(*(client.append(PARTITION, Draft(b"%d" % n)) for n in range(1, 20)))
        assert [one.transaction_id for one in made if one] == list(range(1, 20))
        later = await client.append(PARTITION, Draft(b"20"))
        assert later is not None
        assert later.request_id.client == made[0].request_id.client + 1  # type: ignore[union-attr]

    run(tmp_path, test)


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("first", [True, False], ids=["for the first", "for the second"])
def test_a_moment_without_memory_in_which_an_append_wakes_its_call_leaves_it_to_the_next_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bulk: bool, first: bool
) -> None:
    """No connection lasted any longer: each one came to an append that was decided already, and still under way."""
    real, failed = AppendCall.wake, list[bool]()

    def wake(call: AppendCall) -> None:
        if call.sent and not failed.count(True):
            failed.append(bool(failed) or first)
            if failed[-1]:
                raise MemoryError
        real(call)

    async def test(around: Around) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it ends the connection, and is told
        client = around.client
        await client.append(PARTITION, Draft(b"0"))
        monkeypatch.setattr(AppendCall, "wake", wake)
        async with asyncio.timeout(5):
            if bulk:
                assert await client.append_all(PARTITION, [Draft(b"1"), Draft(b"2")]) == 2
            else:
                await asyncio.gather(*(client.append(PARTITION, Draft(data)) for data in (b"1", b"2")))
        assert len(await all_of(client)) == 3

    run(tmp_path, test)


def test_an_append_for_whose_mount_there_is_no_memory_keeps_no_later_one_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All appends to the partition met their deadline, at a mount that was nowhere."""

    def no_memory(*_: object) -> None:
        monkeypatch.undo()
        raise MemoryError

    async def test(around: Around) -> None:
        client = around.client
        monkeypatch.setattr(Endpoint, "attach", no_memory)
        with pytest.raises(MemoryError):
            await client.append(PARTITION, Draft(b"0"), timeout=5.0)
        assert await client.append_all(PARTITION, [Draft(b"1")], timeout=5.0) == 1

    run(tmp_path, test)


@pytest.mark.parametrize("whose", ["a feed", "an append", "appends in bulk"])
def test_a_moment_without_memory_hides_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """The transaction counted as received: the feed went on behind it, and its append ended as one that was not wanted."""
    failed = list[int]()

    class Scarce(list[tuple[int, int]]):
        def append(self, told: tuple[int, int]) -> None:
            runs_out(told[1])
            super().append(told)

    def runs_out(number: int) -> None:
        if number == 2 and not failed:
            failed.append(number)
            raise MemoryError

    def transaction(partition: int, number: int, *more: Any) -> Transaction:
        runs_out(number)
        return Transaction(partition, number, *more)

    async def test(around: Around) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it ends the connection, and is told
        client = around.client
        for number in range(2):
            await client.append(PARTITION, Draft(b"%d" % number))
        if whose == "appends in bulk":
            call = AppendsInBulk(
                [Draft(b"2"), Draft(b"3")], None, ahead=9, seconds=20.0, late=lambda: pytest.fail("late")
            )
            call._committed = Scarce()
            assert await call.run(client._append_mounts[PARTITION])
            assert call.done == 2
        elif whose == "an append":
            monkeypatch.setattr(append_call, "Transaction", transaction)
            made = await client.append(PARTITION, Draft(b"2"))
            assert made is not None
            assert made.transaction_id == 2
        else:
            await client.append_all(PARTITION, [Draft(b"2"), Draft(b"3")])
            monkeypatch.setattr(partition_mount, "Transaction", transaction)
            assert [one.transaction_id for one in await all_of(client)] == [0, 1, 2, 3]
        assert failed == [2]

    run(tmp_path, test)


@pytest.mark.turns(10)
@pytest.mark.parametrize("closes", [True, False], ids=["and the connection is closed", "and cannot be closed at once"])
def test_a_moment_without_memory_while_partitions_are_mounted_doubles_no_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """The mounts in front of the one that failed were asked for again, and took what was appended since for lost."""

    async def test(around: Around) -> None:
        client = around.client
        assert await client.append(PARTITION, Draft(b"0"))
        mount, connected = client._append_mounts[PARTITION], asyncio.Event()

        async def fails_once(_: LogConnection) -> None:
            monkeypatch.undo()
            raise MemoryError

        class Other(Mount):
            times = 0

            def connected(self, *_: object) -> None:
                self.times += 1
                if self.times == 2:  # once more, by the connection that follows the one which is cut
                    if not closes:
                        monkeypatch.setattr(LogConnection, "close", fails_once)
                    raise MemoryError
                if self.times == 3:
                    connected.set()

        assert mount._endpoint is not None
        mount._endpoint.attach(Other(client._connections.endpoint, OPTIONS, PARTITION + 1, 7, -1, None))
        around.cut()
        await connected.wait()
        made = list[asyncio.Future[Transaction | None]]()
        for number in range(
            1, 31
        ):  # some before the server has the mount request, some before the client has the answer
            made.append(asyncio.ensure_future(client.append(PARTITION, Draft(b"%d" % number))))
            await asyncio.sleep(0)
        await asyncio.gather(*made)
        assert len(await all_of(client)) == 31

    slow = replace(OPTIONS, first_retry=0.3, longest_retry=0.3)  # time in which the first one is mounted
    run(tmp_path, test, options=slow)


def test_c10_a_call_that_waits_for_its_source_keeps_nobody_from_the_next_client_id(tmp_path: Path) -> None:
    """Every other append met its deadline, for as long as nothing came of that source."""

    async def test(around: Around) -> None:
        client, more = around.client, asyncio.Event()

        async def drafts() -> AsyncIterator[Draft]:
            yield Draft(b"0")
            await more.wait()
            yield Draft(b"2")

        bulk = asyncio.ensure_future(client.append_all(PARTITION, drafts()))
        await until(lambda: client.seen(PARTITION) == 0)
        client._append_mounts[PARTITION]._sequence = SPENT_AT
        made = await client.append(PARTITION, Draft(b"1"), timeout=5.0)
        assert made is not None
        assert made.transaction_id == 1
        more.set()
        assert await bulk == 2

    run(tmp_path, test)


@pytest.mark.parametrize("behind", [-1, 0, 1])
def test_c10_questions_go_on_behind_the_last_number(tmp_path: Path, behind: int) -> None:
    async def test(around: Around) -> None:
        client = around.client
        await client.append(PARTITION, Draft(b"data"))
        for one in around.connections:
            one._next_sequence = LAST_SEQUENCE + behind
        for _ in range(3):
            assert await client.data(PARTITION, 0) == b"data"

    run(tmp_path, test)


def test_partitions_that_are_back_before_they_were_closed_are_mounted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server loses its session with the metadata, and has it again while its partitions are still closing."""

    async def test(around: Around) -> None:
        client, (server, _, _) = around.client, around.serving.servers[0]
        feed = client.feed(PARTITION)
        await client.append(PARTITION, Draft(b"0"))
        assert (await anext(feed)).transaction_id == 0
        closing, may_end = asyncio.Event(), asyncio.Event()
        real = Partition.close

        async def close(self: Partition) -> None:
            closing.set()
            await may_end.wait()
            await real(self)

        monkeypatch.setattr(Partition, "close", close)
        gone = asyncio.ensure_future(server.assign({}))
        await closing.wait()
        monkeypatch.setattr(Partition, "close", real)
        await server.assign({PARTITION: 1})
        may_end.set()
        await gone
        assert (await client.append(PARTITION, Draft(b"1"), timeout=20)).transaction_id == 1  # type: ignore[union-attr]
        assert (await asyncio.wait_for(anext(feed), 20)).transaction_id == 1
        await feed.aclose()

    run(tmp_path, test)


@pytest.mark.turns(10)
def test_a_mount_that_the_server_knows_no_more_is_made_again(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client, (server, _, _) = around.client, around.serving.servers[0]
        await client.append(PARTITION, Draft(b"0"))
        server.partitions[PARTITION].mounts._mounts.clear()
        assert (await client.append(PARTITION, Draft(b"1"), timeout=20)).transaction_id == 1  # type: ignore[union-attr]

    run(tmp_path, test)


def test_a_question_to_a_server_that_has_the_partition_a_little_later_is_soon_repeated(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        client, (later, _, _) = around.client, around.serving.servers[1]
        await client.append(PARTITION, Draft(b"0"))
        around.at(1, generation=2)
        asked = asyncio.ensure_future(client.high_water_mark(PARTITION))
        await asyncio.sleep(0.05)
        assert not asked.done()
        await later.assign({PARTITION: 2})
        assert await asyncio.wait_for(asked, 60) == 0

    run(tmp_path, test, servers=2, options=replace(OPTIONS, nudge=600.0), deadline=600.0)


def test_a_connection_that_has_ended_takes_nothing_any_more(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        await around.client.high_water_mark(PARTITION)
        (connection, *_) = around.connections
        await connection.close()
        number = RequestId(7, 1, PARTITION, 1)
        for send in (
            lambda: connection.send(wire.FlushRequest(number)),
            lambda: connection.send_frames([wire.encode(wire.FlushRequest(number), connection.version)]),
        ):
            with pytest.raises(PeerError):
                send()

    run(tmp_path, test)
