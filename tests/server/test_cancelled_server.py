"""A log server, its partitions and sessions, of which a call is cancelled at each of its awaits; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from tests.cancelling import WAYS, Moment, at_each_await
from tests.simulation.small_cluster import NAMES, PARTITIONS, SmallCluster, small_cluster
from waltzctl.engine.client.log_transaction import Draft

pytestmark = pytest.mark.turns(10)

Call = Callable[[SmallCluster], Coroutine[Any, Any, Any]]


@contextlib.asynccontextmanager
async def in_use() -> AsyncIterator[SmallCluster]:
    """A cluster with sessions of both partitions, and a client that has mounted one."""
    async with small_cluster() as made, made.new_client() as made.client:
        for data in (b"0", b"1"):
            await made.client.append(0, Draft(data))
        await made.server.partitions[1].store.session()
        yield made


async def session(made: SmallCluster) -> None:
    await made.server.partitions[0].store.session()


async def partition_flush(made: SmallCluster) -> None:
    await made.server.partitions[0].flush()


async def partition_data(made: SmallCluster) -> None:
    await made.server.partitions[0].committed.data(0)


async def session_read(made: SmallCluster) -> None:
    await (await made.server.partitions[0].store.session()).read(0, 2)


async def records(made: SmallCluster) -> None:
    assert len(await made.server.partitions[0].store.records(0, 2)) == 2


async def session_close(made: SmallCluster) -> None:
    await (await made.server.partitions[0].store.session()).close()


async def reassign(made: SmallCluster) -> None:
    await made.server.reassign(dict.fromkeys(range(PARTITIONS), NAMES[:2]))
    await made.server.reassign(dict.fromkeys(range(PARTITIONS), NAMES))


async def connectivity(made: SmallCluster) -> None:
    assert dict(await made.server.check_connectivity()) == dict.fromkeys(NAMES, True)


async def take_away(made: SmallCluster) -> None:
    await made.server.assign({})


async def stop(made: SmallCluster) -> None:
    await made.server.stop(1.0)


async def close_partition(made: SmallCluster) -> None:
    await made.server.partitions[0].close()


async def still_serves(made: SmallCluster) -> None:
    """Under the same assignment, or another one."""
    await made.server.assign(dict.fromkeys(range(PARTITIONS), 2))
    async with made.new_client() as client:
        for number in range(PARTITIONS):
            assert await client.append(number, Draft(b"behind"), timeout=20.0) is not None
    await everything_stops(made)


async def everything_stops(made: SmallCluster) -> None:
    """Whatever was cancelled, a stop that is asked for then leaves nothing."""
    await made.server.stop(1.0)
    assert made.links() == 0
    assert made.server.port.connections == ()
    assert (made.server.port.budget.used, made.server.partitions) == (0, {})
    for _ in range(100):
        await asyncio.sleep(0.1)
    assert made.links() == 0, "somebody connects again"


@pytest.mark.parametrize(
    "call",
    [session, partition_flush, partition_data, session_read, records, session_close, reassign, connectivity, take_away],
)
@WAYS
def test_a_server_serves_behind_a_call_that_was_cancelled(call: Call, moment: Moment, again: int) -> None:
    assert at_each_await(in_use, call, still_serves, moment=moment, again=again) >= 0


@pytest.mark.parametrize("call", [session, records, connectivity, take_away])
@WAYS
def test_a_server_serves_behind_a_first_call_that_was_cancelled(call: Call, moment: Moment, again: int) -> None:
    async def cold(made: SmallCluster) -> None:
        if call is records:
            await made.server.partitions[0].store.records(0, 2)
        else:
            await call(made)

    assert at_each_await(small_cluster, cold, still_serves, moment=moment, again=again) > 0


@WAYS
def test_a_server_whose_stop_is_cancelled_can_be_stopped(moment: Moment, again: int) -> None:
    assert at_each_await(in_use, stop, everything_stops, moment=moment, again=again) > 0


@WAYS
def test_a_stop_that_is_cancelled_stops_the_server_by_itself(moment: Moment, again: int) -> None:
    """Nobody asks again: a process that is told to end ends."""

    async def then(made: SmallCluster) -> None:
        for _ in range(100):
            await asyncio.sleep(0.1)
        assert made.links() == 0
        assert made.server.port.connections == ()

    assert at_each_await(in_use, stop, then, moment=moment, again=again) > 0


@WAYS
def test_a_partition_whose_close_is_cancelled_is_closed(moment: Moment, again: int) -> None:
    async def then(made: SmallCluster) -> None:
        partition = made.server.partitions[0]
        session = partition.store._session
        for _ in range(100):
            await asyncio.sleep(0.1)
        assert session is not None
        assert session.closed.done()
        assert not partition._queue
        await everything_stops(made)

    assert at_each_await(in_use, close_partition, then, moment=moment, again=again) > 0
