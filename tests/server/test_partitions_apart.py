"""What one partition cannot do at the moment is no matter of the others, whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.serving import QUICK, Serving, serving
from tests.server.storing import PARTITION, until
from waltzctl.engine.errors import PeerError
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.replica_session import ReplicaSession
from waltzctl.engine.server.server_settings import CacheOptions
from waltzctl.engine.server.store_partition import StorePartition
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire

SICK = 0
"""The partition without a session; `PARTITION` has one."""


@asynccontextmanager
async def with_a_sick_one(
    place: Path, sick: asyncio.Event, *, reads: int = 256, cached: bool = True, limits: PortLimits | None = None
) -> AsyncIterator[tuple[Serving, LogServer]]:
    """A server with two partitions, five transactions in the one; the other gets a session once `sick` is cleared."""
    async with serving(place, 1) as cluster:
        begin_session = cluster.metadata.begin_session

        async def begin(partition: int, generation: int) -> object:
            if partition == SICK and sick.is_set():
                raise PeerError("node", "no quorum of its storage nodes answers")
            return await begin_session(partition, generation)

        cluster.metadata.begin_session = begin  # type: ignore[assignment, method-assign]
        cache = CacheOptions() if cached else CacheOptions(data=1)
        server = await cluster.server(options=replace(QUICK, cache=cache, limits=limits or PortLimits(reads=reads)))
        await server.assign({PARTITION: 1, SICK: 1})
        writer = await cluster.client()
        await writer.mount()
        for number in range(5):
            writer.append(b"%d" % number)
        assert (await writer.flush())[0] == 4
        yield cluster, server


@pytest.mark.parametrize("cached", [True, False])
def test_data_of_a_partition_without_a_session_keeps_no_other_data_waiting(tmp_path: Path, cached: bool) -> None:
    """Neither on the connection that asked for it, nor on others, though there are more requests than reads."""

    async def work() -> None:
        sick = asyncio.Event()
        sick.set()
        async with with_a_sick_one(tmp_path, sick, reads=2, cached=cached) as (cluster, _):
            one, other = await cluster.client(8), await cluster.client(9)
            for number in range(100):
                one.say(wire.TransactionDataRequest(RequestId(8, 1, SICK, 1000 + number), 0))
            for client in (one, other):
                for number in (3, 1):
                    assert isinstance(await client.data(number), wire.TransactionData)
            sick.clear()
            answers = [await one.hear_one(wire.TransactionDataResponse) for _ in range(100)]
            assert {str(response.outcome) for response, _ in answers} == {
                str(wire.TransactionRefused(f"partition {SICK} has no transaction 0"))
            }

    asyncio.run(work())


def test_data_that_is_asked_for_while_a_session_ends_comes_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = StoreSession.read, list[int]()

    async def read(session: StoreSession, first: int, count: int) -> object:
        if len(failed) < 2:
            failed.append(session.session_id)
            raise session._error()
        return await real(session, first, count)

    async def work() -> None:
        async with with_a_sick_one(tmp_path, asyncio.Event(), reads=1, cached=False) as (cluster, server):
            client = await cluster.client(8)
            monkeypatch.setattr(StoreSession, "read", read)
            assert isinstance(await client.data(3), wire.TransactionData)
            assert len({*failed}) == 2, "each ended a session"
            connection = next(one for one in server.port.connections if one.requests == 0)
            assert connection is not None

    asyncio.run(work())


def test_data_that_nobody_gives_out_ends_a_session_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt ends the partition's session, and with it every append that is under way."""
    real, after, failed, pauses = StoreSession.read, StorePartition.pause_after, list[int](), list[float]()

    async def read(session: StoreSession, first: int, count: int) -> object:
        if len(failed) < 5:
            failed.append(session.session_id)
            raise session._error()
        return await real(session, first, count)

    def pause_after(store: StorePartition, pause: float) -> float:
        pauses.append(after(store, pause))
        return pauses[-1]

    async def work() -> None:
        async with with_a_sick_one(tmp_path, asyncio.Event(), reads=1, cached=False) as (cluster, _):
            client = await cluster.client(8)
            monkeypatch.setattr(StoreSession, "read", read)
            monkeypatch.setattr(StorePartition, "pause_after", pause_after)
            assert isinstance(await client.data(3), wire.TransactionData)

    asyncio.run(work())
    assert pauses == [0.01, 0.02, 0.04, 0.05, 0.05]  # `QUICK`: from 10 to 50 ms


def test_appends_of_a_partition_without_a_session_keep_no_other_long_ones_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As many as fill the memory; what takes no more than the share that is kept for small ones stays."""
    limits = PortLimits(memory=2 << 20, max_body=1 << 20, connection_bytes=256 << 10, stall_seconds=0.2)
    data = bytes(32 << 10)

    async def work() -> None:
        sick = asyncio.Event()
        async with with_a_sick_one(tmp_path, sick, limits=limits) as (cluster, server):
            sick.set()
            healthy, budget = cluster.clients[0], server.port.budget
            await server.partitions[SICK].store._session.close("its nodes are gone")  # type: ignore[union-attr]

            async def others(first: int, count: int, each: int) -> None:
                for number in range(first, first + count):
                    one = await cluster.client(number)
                    one.say(wire.MountRequest(RequestId(number, 1, SICK, 0), -1, 0))
                    for n in range(1, each + 1):
                        one.say(wire.AppendRequest(RequestId(number, 1, SICK, n), -1, 0, data, crc32(data)))

            await others(20, 1, 6)
            await until(lambda: budget.used > 6 * len(data))
            healthy.append(bytes(100_000))
            assert (await healthy.flush())[0] == 5
            assert server.partitions[SICK].waiting_for_session
            assert "are given up" not in caplog.text
            await others(30, 8, 10)
            await until(lambda: budget.used > limits.memory - (256 << 10))
            healthy.append(bytes(100_000))
            assert (await healthy.flush())[0] == 6
            assert not server.partitions[SICK].waiting_for_session
            assert "partition 0 has no session, and " in caplog.text
            sick.clear()
            await until(lambda: server.partitions[SICK].store.is_open)
            assert server.partitions[SICK].high_water_mark == -1

    asyncio.run(work())


@pytest.mark.parametrize("arrived", [True, False])
def test_undecided_appends_of_a_partition_without_a_session_keep_no_other_long_ones_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, arrived: bool
) -> None:
    """They stay in the log if they `arrived`, and the next session's feed tells so; their locks are as if held by all.

    Those that are not there hold no lock any more.
    """
    limits = PortLimits(memory=2 << 20, max_body=1 << 20, connection_bytes=256 << 10, stall_seconds=0.2)
    data, written, pump = bytes(32 << 10), StoreSession.written, ReplicaSession.pump
    cut_off = asyncio.Event()

    def unheard(session: StoreSession, node: str, last: int) -> None:
        if session.partition != SICK or not cut_off.is_set():
            written(session, node, last)

    def unsent(replica: ReplicaSession) -> None:
        if replica.session.partition != SICK or not cut_off.is_set():
            pump(replica)

    async def work() -> None:
        sick = asyncio.Event()
        async with with_a_sick_one(tmp_path, sick, limits=limits) as (cluster, server):
            healthy, budget, partition = cluster.clients[0], server.port.budget, server.partitions[SICK]
            clients = [await cluster.client(number) for number in range(30, 38)]
            for one in clients:
                one.say(wire.MountRequest(RequestId(one.client, 1, SICK, 0), -1, 0))
                assert (await one.hear_one(wire.MountResponse))[0].state is wire.MountState.READY
            cut_off.set()
            for one in clients:
                for n in range(1, 11):
                    request = RequestId(one.client, 1, SICK, n)
                    one.say(wire.AppendRequest(request, -1, 0, data, crc32(data), write_locks=(n,)))
            await until(lambda: budget.used > limits.memory - (256 << 10))
            sick.set()
            await partition.store._session.close("its nodes are gone")  # type: ignore[union-attr]
            assert partition.waiting_for_session > limits.memory // 2
            healthy.append(bytes(100_000))
            assert (await healthy.flush())[0] == 5
            assert not partition.waiting_for_session
            cut_off.clear()
            sick.clear()
            late = await cluster.client(40)
            late.say(wire.MountRequest(RequestId(40, 1, SICK, 0), -1, 0))
            _, before = await late.hear_one(wire.MountResponse)
            assert bool(before) is arrived, "what was in the log, and nobody knew"
            if arrived:
                late.say(wire.AppendRequest(RequestId(40, 1, SICK, 1), len(before) - 2, 0, b"", 0, write_locks=(77,)))
                refused, _ = await late.hear_one(wire.LockFailure)
                assert refused.transaction_id == len(before) - 1 == partition.high_water_mark
            late.say(wire.AppendRequest(RequestId(40, 1, SICK, 2), len(before) - 1, 0, b"", 0, write_locks=(1,)))
            late.say(wire.FlushRequest(RequestId(40, 1, SICK, 3)))
            assert (await late.hear_one(wire.FlushResponse))[0].high_water_mark == len(before)
            assert "held by nobody" not in caplog.text
            await until(lambda: budget.used <= 256 * len(clients))

    monkeypatch.setattr(StoreSession, "written", unheard)
    if not arrived:
        monkeypatch.setattr(ReplicaSession, "pump", unsent)
    asyncio.run(work())


@pytest.mark.parametrize("asked", ["data", "a flush"])
def test_questions_that_wait_for_a_session_keep_no_long_frame_waiting(tmp_path: Path, asked: str) -> None:
    """They may wait for ever, and their connections bound how many there are."""
    limits = PortLimits(memory=1 << 20, max_body=1 << 20)

    async def work() -> None:
        sick = asyncio.Event()
        sick.set()
        async with with_a_sick_one(tmp_path, sick, limits=limits) as (cluster, server):
            healthy, waiting = cluster.clients[0], await cluster.client(8)
            for number in range(1000):
                one = RequestId(8, 1, SICK, number)
                waiting.say(wire.TransactionDataRequest(one, 0) if asked == "data" else wire.FlushRequest(one))
            await until(lambda: any(one.requests == 1000 for one in server.port.connections))
            healthy.append(bytes(1_000_000))
            assert (await healthy.flush())[0] == 5
            sick.clear()
            kind = wire.TransactionDataResponse if asked == "data" else wire.FlushResponse
            for _ in range(1000):
                await waiting.hear_one(kind)
            await until(lambda: not server.port.budget.used)

    asyncio.run(work())


def test_data_of_a_partition_that_goes_while_it_has_no_session_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        sick = asyncio.Event()
        sick.set()
        async with with_a_sick_one(tmp_path, sick) as (cluster, server):
            client = await cluster.client(8)
            client.say(wire.TransactionDataRequest(RequestId(8, 1, SICK, 1000), 0))
            await until(lambda: any(one.requests for one in server.port.connections))
            await server.assign({PARTITION: 1})
            response, _ = await client.hear_one(wire.TransactionDataResponse)
            assert isinstance(response.outcome, wire.TransactionRefused)
            assert "partition not ready" in str(response.outcome)

    asyncio.run(work())
