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
from waltzctl.engine.server.server_settings import CacheOptions
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire

SICK = 0
"""The partition without a session; `PARTITION` has one."""


@asynccontextmanager
async def with_a_sick_one(
    place: Path, sick: asyncio.Event, *, reads: int = 256, cached: bool = True
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
        server = await cluster.server(options=replace(QUICK, cache=cache, limits=PortLimits(reads=reads)))
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
