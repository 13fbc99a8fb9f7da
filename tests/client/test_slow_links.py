"""A storage node behind a slow link, in virtual time: a long answer is waited for as long as it comes, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.virtual_time import hold_up, simulate
from waltzctl.engine.client.client_connection import MAX_BODY, NodePortConnection
from waltzctl.engine.client.storage_client import _PORT, StorageClient
from waltzctl.engine.errors import DeadlineError
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.peer_limits import MIN_FRAME_RATE
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import storage as wire
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, keep_alive
from waltzctl.formats.wire.hello import STORAGE_SERVER, Hello
from waltzctl.formats.wire.records import WireRecord

DEADLINE = 10.0
SESSION, PARTITION = 3, 5
SIZE = 4 << 20


class Link(asyncio.Transport):
    """The node's end is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False
        self.connection = NodePortConnection(_PORT, Address("n", 1), timeout=DEADLINE, keep_alive_seconds=1e6)
        self.client = StorageClient(self.connection)
        self.connection.connection_made(self)
        self.say(Hello((0,), STORAGE_SERVER).encode())

    def say(self, data: bytes) -> None:
        """The node's bytes arrive now."""
        self.connection.data_received(data)

    async def trickle(self, data: bytes, rate: float, pause: float = 1.0) -> None:
        """Bytes arrive at `rate` bytes a second, a piece every `pause` seconds; none once the connection has ended."""
        each = int(rate * pause)
        for begin in range(0, len(data), each):
            await asyncio.sleep(pause)
            self.say(data[begin : begin + each])

    def write(self, data: Any) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    close = abort


def answer(sequence: int) -> bytes:
    record = WireRecord.make(0, RequestId(1, 2, PARTITION, 0), 0, bytes(SIZE))
    return wire.encode(wire.RecordListResponse(SESSION, sequence, PARTITION, (record,)))


def asked(link: Link) -> asyncio.Task[tuple[WireRecord, ...]]:
    return asyncio.ensure_future(link.client.records(SESSION, PARTITION, 0, 1))


async def fails_at(call: asyncio.Task[Any]) -> float:
    """Seconds of the loop at which the call fails with its deadline."""
    with pytest.raises(DeadlineError):
        await call
    return asyncio.get_running_loop().time()


async def slow_and_steady(link: Link) -> None:
    call = asked(link)
    await link.trickle(answer(0), MIN_FRAME_RATE + 1000, pause=DEADLINE - 1)
    (record,) = await call
    assert len(record.data) == SIZE
    assert asyncio.get_running_loop().time() > 5 * DEADLINE


async def behind_another(link: Link) -> None:
    """Neither of two that were asked for at once fails for the time that the first takes."""
    calls = [asked(link), asked(link)]
    await link.trickle(answer(0), 2 * MIN_FRAME_RATE)
    await asyncio.sleep(DEADLINE - 3)
    await link.trickle(answer(1), 2 * MIN_FRAME_RATE)
    assert [len(one.data) for (one,) in await asyncio.gather(*calls)] == [SIZE] * 2


async def silent(link: Link) -> None:
    assert DEADLINE <= await fails_at(asked(link)) <= DEADLINE + 1.5
    assert link.client.closed


async def unanswered_among_answers(link: Link) -> None:
    """Of other partitions: the replica of this one does not answer, and another is to be read."""
    call = asked(link)
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(link.client.max_transaction_id(SESSION, PARTITION)) for _ in range(12)]
    for number in range(1, 13):
        await asyncio.sleep(1.0)
        whole = wire.encode(wire.MaxTransactionIdResponse(SESSION, number, PARTITION, 7))
        if not others[number - 1].done():
            link.say(whole[:5])
            link.say(whole[5:])
    assert call.done()
    assert isinstance(call.exception(), DeadlineError)
    assert not link.client.closed
    await asyncio.gather(*others, return_exceptions=True)


async def silent_from_the_middle_on(link: Link) -> None:
    call = asked(link)
    await link.trickle(answer(0)[: SIZE // 2], 2 * MIN_FRAME_RATE)
    last = asyncio.get_running_loop().time()
    assert DEADLINE <= await fails_at(call) - last <= DEADLINE + 1.5
    assert link.client.closed


async def garbled_length(link: Link) -> None:
    """What is said from then on vanishes in the frame that does not end."""
    call = asked(link)
    await asyncio.sleep(1.0)
    link.say(FRAME_HEADER.struct.pack(Magic.STORAGE, 0, MAX_BODY))
    await link.trickle(keep_alive(Magic.STORAGE, 0) * 20, 7)
    assert 1 + DEADLINE <= await fails_at(call) <= 1 + DEADLINE + 20
    assert link.client.closed


async def too_slow(link: Link) -> None:
    call = asked(link)
    coming = asyncio.ensure_future(link.trickle(answer(0), MIN_FRAME_RATE / 2))
    assert 2 * DEADLINE <= await fails_at(call) <= 2 * DEADLINE + 4
    await coming


async def stopped(link: Link) -> None:
    """The process, for far longer than the deadline, in the middle of an answer."""
    call = asked(link)
    whole = answer(0)
    await link.trickle(whole[: SIZE // 2], 2 * MIN_FRAME_RATE)
    hold_up(20 * DEADLINE)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await link.trickle(whole[SIZE // 2 :], 2 * MIN_FRAME_RATE)
    assert len((await call)[0].data) == SIZE


@pytest.mark.parametrize(
    "happens",
    [
        slow_and_steady,
        behind_another,
        silent,
        unanswered_among_answers,
        silent_from_the_middle_on,
        garbled_length,
        too_slow,
        stopped,
    ],
    ids=lambda one: one.__name__,
)
def test_an_answer_with_records_is_waited_for_as_long_as_it_comes(
    happens: Callable[[Link], Coroutine[Any, Any, None]],
) -> None:
    async def work() -> None:
        link = Link()
        await happens(link)
        await link.client.close()

    simulate(work())
