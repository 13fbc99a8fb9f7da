"""Which requests for data are answered at once, which are read for, and which wait: for a read, for room, for a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.simulation.virtual_time import simulate
from waltzctl.engine.errors import StoreSessionClosedError
from waltzctl.engine.net.budget import Budget
from waltzctl.engine.net.connection import OVERHEAD
from waltzctl.engine.server.data_requests import DataRequests
from waltzctl.engine.server.store_partition import PartitionClosedError
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire

LACKING = 999
"""A transaction that is in no log."""


@dataclass
class Served:
    """A partition, its store and its transactions.  `under_way`: the reads, by transaction, in their order."""

    is_open: bool = True
    cached: dict[int, bytes] = field(default_factory=dict)
    under_way: dict[int, asyncio.Future[tuple[bytes, int] | None]] = field(default_factory=dict)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    @property
    def store(self) -> Served:
        return self

    committed = store

    def cached_data(self, number: int) -> tuple[bytes, int] | None:
        """See `CommittedTransactions`."""
        return (self.cached[number], 0) if number in self.cached else None

    async def data(self, number: int) -> tuple[bytes, int] | None:
        """See `CommittedTransactions`."""
        self.under_way[number] = asyncio.get_running_loop().create_future()
        try:
            return await self.under_way[number]
        finally:
            del self.under_way[number]

    async def session(self) -> None:
        """See `StorePartition`."""
        await self.opened.wait()
        if self.closed:
            raise PartitionClosedError("closed")

    def pause_after(self, pause: float) -> float:
        """See `StorePartition`."""
        return 2 * pause or 1.0

    def is_behind(self, generation: int) -> bool:
        """See `Partition`."""
        return generation > 1

    def found(self, number: int, size: int = 1) -> None:
        """A read has its answer."""
        self.under_way[number].set_result((bytes(size), 0))


class Asking:
    """The connection, and the requests of it."""

    def __init__(self, partitions: dict[int, Any], slots: Budget) -> None:
        self.open = self.takes = True
        self.requests = self.sent = 0
        self.room = 100
        self.told: list[int | str] = []
        self.parked: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.fails = False
        self.asks = DataRequests(self, partitions, slots, lambda: self.room)
        self.partitions, self.slots = partitions, slots

    def begin(self, requests: int, size: int) -> None:
        """See `Asker`."""
        self.requests += requests
        assert size == 0

    def done(self, requests: int, size: int) -> None:
        """See `Asker`."""
        self.begin(-requests, size)

    def begin_task(self, work: Coroutine[Any, Any, None], *, parked: int = 0) -> asyncio.Task[None]:
        """See `Asker`."""
        if self.fails:
            work.close()
            raise MemoryError
        self.parked.append(parked)
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    def accepts_data(self) -> bool:
        """See `Asker`."""
        return self.takes

    def reply(self, message: wire.TransactionDataResponse) -> None:
        """See `Asker`."""
        outcome = message.outcome
        assert message.request_id.sequence == message.transaction_id
        self.told.append(outcome.message if isinstance(outcome, wire.TransactionRefused) else message.transaction_id)

    def send(self) -> None:
        """See `Asker`."""
        self.sent += 1

    async def ask(self, *numbers: int, partition: int = 0, generation: int = 1) -> None:
        """Ask for transactions, and see what becomes of it at once."""
        for number in numbers:
            self.asks.ask(wire.TransactionDataRequest(RequestId(7, generation, partition, number), number))
        await turns()


async def turns() -> None:
    for _ in range(9):
        await asyncio.sleep(0)


def run(test: Callable[[Asking, Served], Awaitable[None]], *, slots: int = 9) -> None:
    async def whole() -> None:
        asking = Asking({0: Served(), 1: Served()}, Budget(slots))
        await test(asking, asking.partitions[0])
        asking.asks.drop()
        for task in asking.tasks:
            task.cancel()
        await asyncio.gather(*asking.tasks, return_exceptions=True)

    simulate(whole())


def test_what_is_in_the_cache_is_answered_at_once_unless_others_wait_or_the_client_takes_nothing() -> None:
    async def test(asking: Asking, served: Served) -> None:
        served.cached = {1: b"", 2: b"", 3: b""}
        await asking.ask(1)
        assert (asking.told, asking.parked, asking.requests) == ([1], [], 0)
        asking.takes = False
        await asking.ask(2)
        asking.asks.go_on()
        asking.takes = True
        await asking.ask(3)
        assert (asking.told, asking.requests) == ([1], 2), "in order of arrival"
        asking.open = False
        asking.asks.go_on()
        assert asking.requests == 2
        asking.open = True
        asking.asks.go_on()
        assert (asking.told, asking.requests, asking.slots.used) == ([1, 2, 3], 0, 0)

    run(test)


def test_the_rest_is_read_one_behind_the_other_and_more_at_a_time_as_answers_are_short() -> None:
    async def test(asking: Asking, served: Served) -> None:
        await asking.ask(*range(5))
        assert ([*served.under_way], asking.requests, asking.parked) == ([0], 4, [0])
        served.found(0)
        await turns()
        assert ([*served.under_way], asking.requests, asking.told) == ([1, 2], 2, [0])
        assert asking.sent == 1
        served.found(2)
        await turns()
        assert ([*served.under_way], asking.requests, asking.told) == ([1, 3, 4], 0, [0, 2])
        for number in (1, 3, 4):
            served.found(number)
        await turns()
        assert (asking.told, asking.sent, asking.slots.used) == ([0, 2, 1, 3, 4], 5, 0)

    run(test)


@pytest.mark.parametrize(
    ("length", "room", "under_way"), [(0, 1, 2), (1, 1, 2), (2, 1, 1), (99, 100, 2), (100, 100, 2), (101, 100, 1)]
)
def test_a_read_is_begun_ahead_where_an_answer_as_long_as_the_last_has_room(
    length: int, room: int, under_way: int
) -> None:
    async def test(asking: Asking, served: Served) -> None:
        asking.room = room
        await asking.ask(0, 1, 2)
        served.found(0, length)
        await turns()
        assert len(served.under_way) == under_way

    run(test)


def test_behind_a_refusal_the_next_reads_begin() -> None:
    async def test(asking: Asking, served: Served) -> None:
        await asking.ask(LACKING, 1, 2)
        served.under_way[LACKING].set_result(None)
        await turns()
        assert (asking.told, [*served.under_way]) == ([f"partition 0 has no transaction {LACKING}"], [1, 2])

    run(test)


@pytest.mark.parametrize(
    ("generation", "said"),
    [
        (1, f"partition 0 has no transaction {LACKING}"),
        (2, "partition not ready: 0 was assigned anew, which is not known here as yet"),
    ],
)
def test_what_is_not_in_the_log_may_be_in_that_of_a_newer_assignment(generation: int, said: str) -> None:
    async def test(asking: Asking, served: Served) -> None:
        await asking.ask(LACKING, generation=generation)
        served.under_way[LACKING].set_result(None)
        await turns()
        assert asking.told == [said]
        await asking.ask(3, generation=generation)
        served.found(3)
        await turns()
        assert asking.told == [said, 3], "what is there is given"

    run(test)


def test_a_partition_that_is_not_served_here_is_not_ready() -> None:
    async def test(asking: Asking, served: Served) -> None:
        await asking.ask(0, partition=5)
        assert asking.told == ["partition not ready: 5 is not served here"]

    run(test)


@pytest.mark.parametrize("closed", [False, True])
def test_a_request_for_a_partition_without_a_session_is_parked_and_keeps_nobody_waiting(closed: bool) -> None:
    async def test(asking: Asking, served: Served) -> None:
        served.is_open, served.cached = False, {1: b""}
        await asking.ask(1, 2)
        assert (asking.told, asking.parked, asking.requests) == ([1], [OVERHEAD], 0)
        await asking.ask(3, partition=1)
        other = asking.partitions[1]
        assert [*other.under_way] == [3]
        other.found(3)
        asking.takes = False
        await asking.ask(1)
        assert asking.told == [1, 3], "not even what is in the cache, for one who takes nothing"
        asking.takes = served.is_open = True
        served.closed = closed
        served.opened.set()
        await turns()
        if closed:
            assert asking.told == [1, 3, *2 * ["partition not ready: closed"]]
        else:
            assert (asking.told, [*served.under_way]) == ([1, 3, 1], [2])
        assert asking.requests == 0

    run(test)


def test_a_read_whose_session_ends_is_repeated_behind_longer_and_longer_pauses() -> None:
    async def test(asking: Asking, served: Served) -> None:
        served.opened.set()
        await asking.ask(1)
        for pause in (1.0, 2.0, 4.0):
            served.under_way[1].set_exception(StoreSessionClosedError("ended"))
            await turns()
            assert asking.parked[-1] == OVERHEAD
            await asking.ask(2)
            served.found(2)  # meanwhile others are read
            await asyncio.sleep(pause - 0.1)
            assert not served.under_way
            await asyncio.sleep(0.2)
            assert [*served.under_way] == [1]
        served.found(1)
        await turns()
        assert (asking.told, asking.requests) == ([2, 2, 2, 1], 0)

    run(test)


def test_a_moment_without_memory_keeps_no_read_slot() -> None:
    async def test(asking: Asking, served: Served) -> None:
        asking.fails = True
        with pytest.raises(MemoryError):
            await asking.ask(1)
        assert asking.slots.used == 0
        asking.fails = False
        await asking.ask(2)
        assert [*served.under_way] == [2]

    run(test)


@pytest.mark.parametrize("there", [True, False])
def test_a_slot_that_comes_later_is_used_or_given_back(there: bool) -> None:
    async def test(asking: Asking, served: Served) -> None:
        assert asking.slots.reserve("others", 1, lambda: None)
        await asking.ask(1, 2)
        assert (asking.slots.waiting, asking.requests) == (1, 2)
        asking.open = there
        asking.slots.release(1)
        assert ([*served.under_way], asking.sent) == ([], 0), "whoever gives it back has something else to do"
        await turns()
        assert [*served.under_way] == [1][: int(there)]
        assert (asking.slots.used, asking.requests, asking.sent) == (int(there), 2 - there, 1)

    run(test, slots=1)


@pytest.mark.parametrize("reads", [True, False])
def test_of_a_connection_that_is_gone_nothing_waits(reads: bool) -> None:
    async def test(asking: Asking, served: Served) -> None:
        if not reads:
            assert asking.slots.reserve("others", 1, lambda: None)
        await asking.ask(1, 2, 3)
        asking.asks.drop()
        assert (asking.requests, asking.slots.waiting, asking.slots.used) == (0, 0, 1)
        if reads:
            served.found(1)
            await turns()
            assert (asking.slots.used, [*served.under_way]) == (0, [])

    run(test, slots=1)
