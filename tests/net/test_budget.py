"""The memory budget as a line of waiting connections, and the outbox between threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.budget import Budget
from waltzctl.engine.net.outbox import Outbox
from waltzctl.engine.net.output_budget import OutputBudget, Share
from waltzctl.engine.net.peer_limits import PortLimits

CAPACITY = 100


class Line(RuleBasedStateMachine):
    """Against a model: whoever waits is served in order, as soon as it fits, and never while somebody is in front of it.

    But who waits for a turn only is, as long as there is something left of what reservations do not get.
    """

    PART = 0
    KEPT = 0

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(CAPACITY, kept=self.PART)
        self.taken: list[int] = []
        self.reserved: list[int] = []
        self.parked: list[int] = []
        self.line: deque[tuple[int, int]] = deque()
        self.served: list[int] = []
        self.number = 0

    @rule(amount=st.integers(1, 60))
    def arrive(self, amount: int) -> None:
        self.budget.take(amount)
        self.taken.append(amount)

    @rule(amount=st.sampled_from([0, 0, 1, 30, 99, 100, 250]))
    def reserve(self, amount: int) -> None:
        self.number += 1
        number = self.number
        fits = (not self.line and self.fits(amount)) or (not amount and self.left)
        assert self.budget.reserve(number, amount, lambda: self.served.append(number)) is fits
        if fits:
            self.reserved.append(amount)
        else:
            self.line.append((number, amount))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        amount = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.expect(lambda: self.budget.give(amount))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        amount = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.parked.append(amount)
        self.expect(lambda: self.budget.park(amount))

    @precondition(lambda self: self.parked)
    @rule()
    def unpark(self) -> None:
        amount = self.parked.pop()
        self.taken.append(amount)
        self.expect(lambda: self.budget.unpark(amount))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        amount = self.reserved.pop(data.draw(st.integers(0, len(self.reserved) - 1)))
        self.expect(lambda: self.budget.release(amount))

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.line) - 1))
        number, _ = self.line[place]
        del self.line[place]
        self.expect(lambda: self.budget.leave(number))
        self.budget.leave("somebody who does not stand there")

    @property
    def left(self) -> bool:
        return sum(self.taken) < self.KEPT

    @property
    def used(self) -> int:
        return sum(self.taken) + sum(self.reserved)

    def fits(self, amount: int) -> bool:
        if not amount:
            return self.left or self.used < CAPACITY
        taken, reserved = sum(self.taken), sum(self.reserved)
        return max(taken, self.KEPT) + reserved + amount <= CAPACITY or (not reserved and taken <= self.KEPT)

    def expect(self, step: object) -> None:
        """What the step serves must be what the model says."""
        assert callable(step)
        self.served.clear()
        step()
        expected = []
        while self.line and self.fits(self.line[0][1]):
            number, amount = self.line.popleft()
            self.reserved.append(amount)
            expected.append(number)
        if self.left:
            expected += [number for number, amount in self.line if not amount]
            self.line = deque((number, amount) for number, amount in self.line if amount)
        assert self.served == expected

    @invariant()
    def agrees(self) -> None:
        assert self.budget.used == self.used + sum(self.parked)
        assert self.budget.waiting == len(self.line)
        assert self.budget.crowded == (not self.left and (bool(self.line) or self.used >= CAPACITY))
        assert not self.line or self.used, "somebody waits for nothing"
        assert not self.left or all(amount for _, amount in self.line), "a small request waits for somebody's frame"


class LineWithAShare(Line):
    """The same where a quarter is kept from reservations."""

    PART = 4
    KEPT = 25


Line.TestCase.settings = LineWithAShare.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestLine = Line.TestCase
TestLineWithAShare = LineWithAShare.TestCase


def test_whoever_stood_behind_one_that_left_is_served() -> None:
    budget, served = Budget(CAPACITY), []
    budget.take(60)
    assert not budget.reserve("large", 90, lambda: served.append("large"))
    assert not budget.reserve("small", 10, lambda: served.append("small"))
    budget.leave("large")
    assert (served, budget.used, budget.waiting) == (["small"], 70, 0)


@pytest.mark.parametrize("short", [0, 1])
def test_whoever_fits_into_more_memory_goes_on_at_once(short: int) -> None:
    budget, served = Budget(CAPACITY), []
    budget.take(60)
    assert not budget.reserve("large", 90, lambda: served.append("large"))
    assert budget.first_in_line == "large"
    budget.capacity = 150 - short
    assert bool(served) is (not short)
    assert (budget.first_in_line is None) is (not short)


@pytest.mark.parametrize("over", [0, 1])
def test_what_is_parked_keeps_nobody_waiting(over: int) -> None:
    """And what was parked counts again as soon as it waits for nothing any more."""
    budget, served = Budget(CAPACITY, kept=4), []
    budget.take(1000)
    assert not budget.reserve("long", CAPACITY, lambda: served.append("long"))
    budget.park(1000 - budget.kept - over)
    assert bool(served) is (not over)
    assert (budget.used, budget.crowded) == (1000 + CAPACITY * (not over), True)
    budget.park(budget.kept + over)
    assert (served, budget.used, budget.crowded) == (["long"], 1000 + CAPACITY, False)
    budget.unpark(1000)
    assert budget.crowded


def test_the_outbox_keeps_the_order_of_each_thread_and_loses_nothing() -> None:
    found: list[tuple[int, int]] = []
    bunches = 0

    async def work() -> None:
        nonlocal bunches
        done = asyncio.Event()

        def afterwards() -> None:
            nonlocal bunches
            bunches += 1
            if len(found) == 4000:
                done.set()

        outbox = Outbox(asyncio.get_running_loop(), afterwards)

        def send(thread: int) -> None:
            for number in range(1000):
                outbox.put(lambda *one: found.append(one), thread, number)

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        await done.wait()
        for thread in threads:
            thread.join()

    asyncio.run(work())
    for thread in range(4):
        assert [number for one, number in found if one == thread] == list(range(1000))
    assert bunches < 4000, "every single call had a wake-up of its own"


def test_a_call_that_fails_does_not_keep_the_others_from_being_made() -> None:
    found: list[int] = []
    failures: list[object] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        done = asyncio.Event()
        outbox = Outbox(loop, lambda: None)
        for number in (1, 0, 2):
            outbox.put(lambda n: found.append(10 // n), number)
        outbox.put(done.set)
        await done.wait()

    asyncio.run(work())
    assert found == [10, 5]
    assert [type(one) for one in failures] == [ZeroDivisionError]


def test_an_outbox_whose_loop_is_gone_drops_what_comes() -> None:
    loop = asyncio.new_event_loop()
    outbox = Outbox(loop, lambda: None)
    loop.close()
    outbox.put(lambda: None)
    outbox.put(lambda: None)


@pytest.mark.parametrize(
    "changes",
    [{"max_connections": 0}, {"stall_seconds": -1.0}, {"max_body": 2**31, "memory": 2**32}, {"memory": 1 << 20}],
    ids=str,
)
def test_limits_that_cannot_be_meant_are_refused(changes: dict[str, float]) -> None:
    PortLimits().check()
    with pytest.raises(InvalidRequestError):
        PortLimits(**changes).check()  # type: ignore[arg-type]


def test_memory_is_promised_before_an_answer_is_made_and_then_only_its_size_counts() -> None:
    budget = OutputBudget(4 << 20, 3 << 20)
    one, other = Share(budget), Share(budget)
    promised = one.promise()
    assert promised == 3 << 20
    assert other.promise() == 1 << 20
    moderate = other.promise()
    assert 0 < moderate < 1 << 20, "promises alone do not keep a moderate answer from being made"
    one.make(promised, 1000)
    other.make(1 << 20, 0)
    other.make(moderate, 0)
    other.send(0)
    assert (budget.promised, budget.made) == (0, 1000)
    assert one.promise() == (3 << 20) - 1000
    one.make((3 << 20) - 1000, (4 << 20) - 1000)
    assert other.promise() == 0, "it is filled with answers"
    other.make(0, 50)  # one record is always sent
    one.queue(4 << 20)
    one.send(4 << 20)
    assert (budget.queued, budget.made) == (4 << 20, 50)
    one.queue(0)
    other.send(50)
    assert (budget.queued, budget.made, budget.promised) == (0, 0, 0)
