"""Threads that work for others: a pool that is closed while it works, and work that somebody waits for."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from waltzctl.engine.net import executor, single_flight
from waltzctl.engine.net.executor import Executor
from waltzctl.engine.net.outbox import Outbox
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight

LOG = logging.getLogger("tests.net.waiting")
PATIENCE = 60.0


class Job:
    """Works until it is let go; as often as it is told to, it wants to be put in line again."""

    def __init__(self, turns: int = 1) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.turns, self.names = turns, list[str]()

    def run(self) -> bool:
        self.names.append(threading.current_thread().name)
        self.begun.set()
        assert self.go.wait(PATIENCE)
        self.turns -= 1
        return self.turns > 0


def test_a_pool_that_is_closed_does_what_stands_in_line_and_ends() -> None:
    pool = Executor(1, log=LOG, name="w")
    first, second = Job(turns=2), Job()
    pool.schedule(first)
    assert first.begun.wait(PATIENCE)
    pool.schedule(second)
    assert pool.others_wait
    assert {one.daemon for one in threading.enumerate() if one.name == "w-0"} == {True}, (
        "it keeps no process from ending"
    )
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    first.go.set()
    second.go.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert (first.names, second.names) == (["w-0"] * 2, ["w-0"])
    assert (pool.threads, pool.others_wait) == (0, False)


def test_a_pool_is_at_rest_while_no_thread_has_a_job() -> None:
    pool = Executor(2, log=LOG, name="w")
    assert pool.at_rest
    one, two = Job(), Job()
    pool.schedule(one)
    assert not pool.at_rest
    pool.schedule(two)
    assert one.begun.wait(PATIENCE)
    assert two.begun.wait(PATIENCE)
    assert not pool.at_rest
    one.go.set()
    two.go.set()
    until = time.monotonic() + PATIENCE
    while not pool.at_rest and time.monotonic() < until:
        time.sleep(0.001)
    assert pool.at_rest
    pool.close()


def test_whoever_became_idle_last_works_next_and_threads_are_made_when_all_are_busy() -> None:
    pool = Executor(2, log=LOG, name="w")
    one, two = Job(), Job()
    pool.schedule(one)
    assert one.begun.wait(PATIENCE)
    pool.schedule(two)
    assert two.begun.wait(PATIENCE)
    for job in (one, two):
        idle = len(pool._idle)
        job.go.set()
        while len(pool._idle) == idle:
            threading.Event().wait(0.001)
    three = Job()
    pool.schedule(three)
    three.go.set()
    pool.close()
    assert (one.names, two.names, three.names) == (["w-0"], ["w-1"], ["w-1"])


def test_an_idle_thread_keeps_no_job_alive() -> None:
    pool = Executor(1, log=LOG)
    job = Job()
    job.go.set()
    pool.schedule(job)
    assert job.begun.wait(PATIENCE)
    seen = weakref.ref(job)
    del job
    until = time.monotonic() + PATIENCE
    while not pool.at_rest and time.monotonic() < until:
        time.sleep(0.001)
    assert seen() is None
    pool.close()


def test_in_the_place_of_a_thread_that_ends_there_is_one_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaves(Job):
        def run(self) -> bool:
            if super().run():
                raise ZeroDivisionError
            return False

    ended: list[object] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    pool = Executor(2, log=LOG)
    job = Leaves(turns=3)
    job.go.set()
    pool.schedule(job)
    until = time.monotonic() + PATIENCE
    while not (len(ended) == 2 and job.turns == 0 and pool.at_rest) and time.monotonic() < until:
        time.sleep(0.001)
    assert (len(set(job.names)), pool.threads) == (3, 1)
    pool.close()


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_has_a_thread(size: int) -> None:
    with pytest.raises(ValueError, match=f"a pool of {size} threads"):
        Executor(size, log=LOG)


def test_where_the_system_has_no_further_thread_those_that_are_there_do_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Executor(2, log=LOG)
    first, second = Job(), Job()
    pool.schedule(first)
    assert first.begun.wait(PATIENCE)

    class NoThread:
        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(executor.threading, "Thread", NoThread)
        pool.schedule(second)
    assert (pool.threads, pool.others_wait) == (1, True)
    for job in (first, second):
        job.go.set()
    pool.close()
    assert second.names == ["partition-worker-0"]
    assert [record.getMessage() for record in caplog.records] == [
        "no further worker thread can be started: can't start new thread"
    ]


def test_something_is_called_once_after_its_time() -> None:
    """By a thread that keeps no process from ending, though all those of the pool are at work."""
    pool = Executor(1, log=LOG, name="w")
    busy = Job()
    pool.schedule(busy)
    assert busy.begun.wait(PATIENCE)
    called: list[tuple[float, str, bool]] = []
    done = threading.Event()

    def call() -> None:
        called.append((time.monotonic(), threading.current_thread().name, threading.current_thread().daemon))
        done.set()

    begun = time.monotonic()
    assert pool.call_later(0.05, call)
    assert called == [], "not by whoever asks"
    assert done.wait(PATIENCE)
    time.sleep(0.1)
    ((when, name, daemon),) = called
    assert begun + 0.05 <= when
    assert (name, daemon) == ("w-timer", True)
    busy.go.set()
    pool.close()


def test_nothing_is_called_once_a_pool_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Executor(1, log=LOG)
    asked: list[tuple[float, Any, tuple[object, ...]]] = []

    class Noted:
        def __init__(self, seconds: float, call: Any, arguments: tuple[object, ...]) -> None:
            asked.append((seconds, call, arguments))

        def start(self) -> None:
            """The test says when its time has come."""

    called: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(executor.threading, "Timer", Noted)
        assert pool.call_later(7.0, lambda: called.append("later"))
    ((seconds, call, arguments),) = asked
    assert seconds == 7.0
    call(*arguments)
    assert called == ["later"]
    pool.close()
    call(*arguments)
    assert called == ["later"]


def test_where_the_system_has_no_thread_nothing_is_called_later_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Executor(1, log=LOG)

    class NoTimer:
        def __init__(self, *_: object) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(executor.threading, "Timer", NoTimer)
        assert pool.call_later(0.0, lambda: None) is False
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "nothing can be called later: no thread can be started: can't start new thread")
    ]
    pool.close()


# ---- one flight at a time -----------------------------------------------------------------------------------------------


def test_a_result_is_shared_while_it_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(single_flight, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made: list[int] = []
    flight = SingleFlight(lambda: made.append(1) or len(made), name="work")

    async def work() -> None:
        assert await flight.idle(0.0)
        assert await flight.result(5.0) == 1
        assert await flight.result(5.0, max_age=1.0) == 1
        now[0] += 1.0
        assert await flight.result(5.0, max_age=1.0) == 2, "it is no younger than that"
        assert await flight.result(5.0) == 3, "whoever says nothing wants a new one"
        assert await flight.result(None, max_age=9.0) == 3

    asyncio.run(work())


def test_who_asks_for_what_is_known_does_not_wait() -> None:
    flight = SingleFlight(lambda: 7, name="work")

    async def work() -> None:
        flight._current_or_new(0.0)._thread.join()
        asked = [asyncio.ensure_future(flight.result(None, max_age=PATIENCE)), asyncio.ensure_future(flight.idle(None))]
        for _ in range(3):
            await asyncio.sleep(0)
        assert [one.done() and one.result() for one in asked] == [7, True]

    asyncio.run(work())


def test_what_took_long_is_as_young_as_any_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(single_flight, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made: list[int] = []

    def slowly() -> int:
        now[0] += 50.0
        made.append(1)
        return len(made)

    async def work() -> None:
        flight = SingleFlight(slowly, name="work")
        assert [await flight.result(None, max_age=1.0) for _ in range(2)] == [1, 1]

    asyncio.run(work())


def test_the_deadline_counts_from_the_beginning_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(single_flight, "time", SimpleNamespace(monotonic=lambda: now[0]))
    go = threading.Event()
    flight = SingleFlight(lambda: go.wait(PATIENCE), name="the look")

    async def work() -> None:
        first = asyncio.ensure_future(flight.result(None))
        await asyncio.sleep(0)
        assert [one.daemon for one in threading.enumerate() if one.name == "the look"] == [True]
        now[0] += 7.04
        late = asyncio.ensure_future(flight.result(7.0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert late.done(), "it is over time already"
        with pytest.raises(OverdueError, match=r"^the look has not come back for 7\.0 s$") as caught:
            await late
        assert caught.value.seconds == pytest.approx(7.04)
        assert flight._run is not None
        assert len(flight._run._waiting) == 1, "whoever waits no more is forgotten"
        assert not await flight.idle(0.0)
        go.set()
        assert await first is True
        assert await flight.idle(None)

    asyncio.run(work())


def test_an_error_is_raised_for_everybody_who_waits() -> None:
    go = threading.Event()

    def fails() -> None:
        assert go.wait(PATIENCE)
        raise ZeroDivisionError

    flight = SingleFlight(fails, name="work")

    async def work() -> None:
        waiting = [asyncio.ensure_future(flight.result(None)) for _ in range(3)]
        waiting[0].cancel()
        await asyncio.sleep(0)
        go.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in found] == [asyncio.CancelledError, ZeroDivisionError, ZeroDivisionError]

    asyncio.run(work())


def test_whose_loop_is_gone_keeps_nobody_else_from_waking() -> None:
    go = threading.Event()
    flight = SingleFlight(lambda: go.wait(PATIENCE), name="work")
    gone = asyncio.new_event_loop()
    nobody = [gone.create_future() for _ in range(8)]
    gone.close()

    async def work() -> None:
        waiting = asyncio.ensure_future(flight.result(None))
        await asyncio.sleep(0)
        assert flight._run is not None
        flight._run._waiting.update(nobody)
        go.set()
        assert await waiting is True

    asyncio.run(work())


# ---- the way back into the loop -----------------------------------------------------------------------------------------


class Loop:
    """Notes how often it is woken."""

    def __init__(self) -> None:
        self.woken: list[Any] = []
        self.closed = False

    def call_soon_threadsafe(self, call: Any) -> None:
        if self.closed:
            raise RuntimeError("closed")
        self.woken.append(call)

    call_soon = call_soon_threadsafe

    def is_closed(self) -> bool:
        return self.closed


def test_one_wake_up_serves_what_came_until_the_loop_looks() -> None:
    loop, done = Loop(), list[object]()
    outbox = Outbox(loop, lambda: done.append("sent"))  # type: ignore[arg-type]

    def again(name: str) -> None:
        done.append(name)
        outbox.put(done.append, "behind")

    outbox.put_later(done.append, "later")
    outbox.put_later(done.append, "at last")
    assert loop.woken == []
    outbox.put(again, "one")
    outbox.put(done.append, "two")
    assert len(loop.woken) == 1
    loop.woken.pop()()
    assert done == ["one", "two", "sent", "later", "at last"], "what came meanwhile waits for the next look"
    assert len(loop.woken) == 1
    loop.woken.pop()()
    assert done[5:] == ["behind", "sent"]
    outbox.put(done.append, "three")
    assert len(loop.woken) == 1


def test_a_call_that_fails_is_told_and_the_others_are_made_soon() -> None:
    loop, done = Loop(), list[object]()
    outbox = Outbox(loop, lambda: done.append("sent"))  # type: ignore[arg-type]

    def fails() -> None:
        raise ZeroDivisionError

    for call in (fails, lambda: done.append("two")):
        outbox.put(call)
    with pytest.raises(ZeroDivisionError):
        loop.woken.pop()()
    assert done == ["sent"]
    outbox.put(done.append, "three")
    assert len(loop.woken) == 1
    loop.woken.pop()()
    assert done == ["sent", "two", "three", "sent"]


def test_a_loop_that_refuses_for_another_reason_is_a_mistake_of_ours() -> None:
    loop = Loop()
    outbox = Outbox(loop, lambda: None)  # type: ignore[arg-type]
    loop.closed = True
    outbox.put(print)
    assert not outbox._calls
    loop.is_closed = lambda: False  # type: ignore[method-assign]
    outbox._woken = False
    with pytest.raises(RuntimeError):
        outbox.put(print)
