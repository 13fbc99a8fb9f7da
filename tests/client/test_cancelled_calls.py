"""Calls of a log client that are cancelled at each of their awaits, over a whole log server in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from typing import Any

import pytest

from tests.cancelling import WAYS, Moment, at_each_await, cancelled_at
from tests.simulation.small_cluster import SmallCluster, small_cluster, with_client
from tests.simulation.virtual_time import VirtualLoop, simulate
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.errors import PeerUnreachableError
from waltzctl.engine.metadata.server_directory import PartitionServer

pytestmark = pytest.mark.turns(10)

Call = Callable[[SmallCluster], Coroutine[Any, Any, Any]]


async def append(made: SmallCluster) -> None:
    await made.client.append(0, Draft(b"asked"))


async def append_under_a_lock(made: SmallCluster) -> None:
    await made.client.append(0, lambda mark: Draft(b"asked", write_locks=[("lock", 1)]))


async def append_many(made: SmallCluster) -> None:
    await made.client.append_all(0, [Draft(b"asked %d" % number) for number in range(5)])


async def append_what_comes(made: SmallCluster) -> None:
    async def drafts() -> AsyncIterator[Draft]:
        for number in range(5):
            await asyncio.sleep(0.001)
            yield Draft(b"asked %d" % number)

    await made.client.append_all(0, drafts())


async def append_from_what_breaks(made: SmallCluster) -> None:
    async def drafts() -> AsyncIterator[Draft]:
        try:
            for number in range(5):
                await asyncio.sleep(0.001)
                yield Draft(b"asked %d" % number)
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
            raise ZeroDivisionError from None  # nobody hears of it

    await made.client.append_all(0, drafts())


async def append_behind_a_loss(made: SmallCluster) -> None:
    made.cut()
    await made.client.append(0, Draft(b"asked"))


async def flush(made: SmallCluster) -> None:
    await made.client.flush(0)


async def mark(made: SmallCluster) -> None:
    assert await made.client.high_water_mark(0) == 2


async def data(made: SmallCluster) -> None:
    assert await made.client.data(0, 1) == b"1"


async def read_to_the_end(made: SmallCluster) -> None:
    assert [one.transaction_id async for one in made.client.feed(0, until=lambda _: 2)] == [0, 1, 2]


async def read_a_part(made: SmallCluster) -> None:
    async with contextlib.aclosing(made.client.feed((0, 1))) as feed:
        assert (await anext(feed)).transaction_id == 0


CALLS: list[Call] = [
    append,
    append_under_a_lock,
    append_many,
    append_what_comes,
    append_from_what_breaks,
    append_behind_a_loss,
    flush,
    mark,
    data,
    read_to_the_end,
    read_a_part,
]


async def as_before(made: SmallCluster) -> None:
    """The client can be used, nothing of the call is kept, and nothing is in the log twice."""
    client = made.client
    behind = await client.append(0, Draft(b"behind"), timeout=20.0)
    assert behind is not None
    assert await client.flush(0) >= behind.transaction_id
    assert await client.data(0, behind.transaction_id) == b"behind"
    assert [one async for one in client.feed(0, after=behind.transaction_id - 1, until=lambda _: behind.transaction_id)]
    mount = client._append_mounts[0]
    running, undecided = mount._running, mount._undecided
    kept = (running.appending, running.turns, undecided.sent, undecided.conflicts, mount._flushes)
    assert not any(kept), kept
    assert (undecided.to_resend, running.flushes) == (0, 0)
    assert not any(lock.locked() for lock in client._mount_locks.values())
    assert not any(group.running for group in client._deadlines._groups.values())
    assert {*client._mounts} == {mount}, "that of a feed has ended with it"
    assert [one for one in made.connections if not one.closed and one._room.waiting] == []
    assert len([one for one in made.connections if not one.closed]) == len(client._connections._endpoints) == 2
    twice = [data for data, times in Counter(made.held()).items() if times > 1]
    assert twice == []


async def all_closed(made: SmallCluster) -> None:
    """Every connection of the client, however it was left."""
    for _ in range(100):
        await asyncio.sleep(0.01)
    assert [one for one in made.connections if not one.closed] == []
    assert made.server.port.connections == ()


@pytest.mark.parametrize("call", CALLS)
@WAYS
def test_a_client_is_as_before_behind_a_call_that_was_cancelled(call: Call, moment: Moment, again: int) -> None:
    async def then(made: SmallCluster) -> None:
        await as_before(made)
        await made.client.close()
        await all_closed(made)

    awaits = at_each_await(lambda: with_client(b"0", b"1", b"2"), call, then, moment=moment, again=again)
    assert awaits > 0


@pytest.mark.parametrize("call", [append, append_many, flush, read_to_the_end])
@WAYS
def test_what_is_cancelled_as_the_first_call_leaves_a_client_that_can_be_used(
    call: Call, moment: Moment, again: int
) -> None:
    @contextlib.asynccontextmanager
    async def scene() -> AsyncIterator[SmallCluster]:
        async with small_cluster() as made:
            async with made.new_client() as other:
                for data in (b"0", b"1", b"2"):
                    await other.append(0, Draft(data))
            async with made.new_client() as made.client:
                made.connections.clear()
                yield made

    assert at_each_await(scene, call, as_before, moment=moment, again=again) > 0


@pytest.mark.parametrize("closes", [1, 2])
@WAYS
def test_a_client_whose_close_is_cancelled_is_closed(closes: int, moment: Moment, again: int) -> None:
    """Also where somebody else closes it at the same time, and a feed of it is read."""

    async def call(made: SmallCluster) -> None:
        others = [asyncio.ensure_future(made.client.close()) for _ in range(closes - 1)]
        try:
            await made.client.close()
        finally:
            await asyncio.wait(others) if others else None

    async def then(made: SmallCluster) -> None:
        with pytest.raises(PeerUnreachableError, match="it was closed"):
            await made.client.append(0, Draft(b"behind"))
        await all_closed(made)
        await made.client.close()

    assert at_each_await(lambda: with_client(b"0"), call, then, moment=moment, again=again) > 0


@WAYS
def test_a_connection_whose_close_is_cancelled_is_closed(moment: Moment, again: int) -> None:
    """As at the end of an event loop, which cancels all tasks."""

    async def call(made: SmallCluster) -> None:
        for one in made.client._connections._endpoints.values():
            await one.close()
            break

    async def then(made: SmallCluster) -> None:
        first = next(iter(made.client._connections._endpoints.values()))
        await asyncio.sleep(0.1)
        assert first._current is not None
        assert first._current.closed

    assert at_each_await(lambda: with_client(b"0"), call, then, moment=moment, again=again) > 0


@WAYS
def test_a_block_that_is_cancelled_leaves_a_client_that_is_closed(moment: Moment, again: int) -> None:
    async def call(made: SmallCluster) -> None:
        async with made.new_client() as client:
            await client.append(0, Draft(b"asked"))
            async with contextlib.aclosing(client.feed(0)) as feed:
                await anext(feed)

    assert at_each_await(small_cluster, call, all_closed, moment=moment, again=again) > 0


def test_a_program_that_is_interrupted_anywhere_closes_its_connections() -> None:
    """The end of its event loop cancels all tasks that are left, also those that close a connection."""

    def interrupted(at: int) -> bool:
        async def use(made: SmallCluster) -> None:
            async with made.new_client() as client:
                await client.append(0, Draft(b"asked"))
                async with contextlib.aclosing(client.feed(0)) as feed:
                    await anext(feed)

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            cluster = small_cluster()
            made = runner.run(_entered(cluster))
            was_cancelled = runner.run(cancelled_at(use(made), at, Moment.WAITS))
        assert [one for one in made.connections if not one.closed] == [], f"cancelled at await {at}"
        return was_cancelled

    assert next(at for at in count() if not interrupted(at)) > 0


async def _entered(cluster: contextlib.AbstractAsyncContextManager[SmallCluster]) -> SmallCluster:
    return await cluster.__aenter__()


def test_a_feed_that_ends_leaves_nobody_who_connects_for_it() -> None:
    """Its server cannot be reached; the next attempt was made, or waited for, behind the end of the feed."""

    async def whole() -> None:
        async with with_client() as made:
            made.directory.tell({0: PartitionServer("nowhere", 1, 1)})
            tasks = made.client._connections._tasks
            before = dict(tasks)
            feed = made.client.feed(0)
            reading = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(10.0)
            assert tasks != before
            reading.cancel()
            await asyncio.wait([reading])
            assert tasks == before

    simulate(whole())


def test_two_who_read_one_feed_are_told_so() -> None:
    """The one who came first reads on."""

    async def whole() -> None:
        async with with_client(b"0") as made:
            feed = made.client.feed(0, after=0)
            first = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(1.0)
            with pytest.raises(RuntimeError, match="already running"):
                await anext(feed)
            with pytest.raises(RuntimeError, match="already running"):
                await feed.aclose()
            appended = await made.client.append(0, Draft(b"1"))
            assert await first == appended
            await feed.aclose()

    simulate(whole())
