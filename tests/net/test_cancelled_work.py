"""Work in a thread whose caller is cancelled, once or twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from waltzctl.engine.net.single_flight import in_daemon_thread

PATIENCE = 60.0


class Work:
    """Makes something, once it is let go; `undone`: what was made and undone."""

    def __init__(self, error: Exception | None = None, of_undo: Exception | None = None) -> None:
        self.begun, self.go, self.done = threading.Event(), threading.Event(), threading.Event()
        self.undone: list[str] = []
        self._error, self._of_undo = error, of_undo

    def make(self) -> str:
        self.begun.set()
        assert self.go.wait(PATIENCE)
        if self._error is not None:
            raise self._error
        return "made"

    def undo(self, made: str) -> None:
        self.undone.append(made)
        self.done.set()
        if self._of_undo is not None:
            raise self._of_undo

    async def begin(self, *, patient: bool = True) -> asyncio.Task[str]:
        made = asyncio.ensure_future(in_daemon_thread(self.make, name="work", undo=self.undo, patient=patient))
        while not self.begun.is_set():
            await asyncio.sleep(0)
        return made


async def cancel(task: asyncio.Task[str]) -> None:
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_is_cancelled_waits_until_the_work_is_undone() -> None:
    async def test() -> None:
        work = Work()
        task = await work.begin()
        await cancel(task)
        assert not task.done()
        work.go.set()
        await asyncio.wait([task])
        assert (task.cancelled(), work.undone) == (True, ["made"])

    asyncio.run(test())


@pytest.mark.parametrize("patient", [True, False])
def test_who_waits_no_longer_has_the_work_undone_all_the_same(patient: bool) -> None:
    """A storage directory stayed open, and locked, for as long as the process lived."""

    async def test() -> None:
        work = Work()
        task = await work.begin(patient=patient)
        await cancel(task)
        if patient:
            await cancel(task)
        assert (task.cancelled(), work.undone) == (True, [])
        work.go.set()
        assert await asyncio.to_thread(work.done.wait, PATIENCE)
        assert work.undone == ["made"]

    asyncio.run(test())


@pytest.mark.parametrize("patient", [True, False])
def test_what_is_there_in_the_moment_of_the_cancellation_is_undone_once(patient: bool) -> None:
    async def test() -> None:
        work = Work()
        task = await work.begin(patient=patient)
        work.go.set()
        while [one for one in threading.enumerate() if one.name == "work"]:
            pass  # the loop does not hear of it as yet
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await asyncio.to_thread(work.done.wait, PATIENCE)
        assert work.undone == ["made"]

    asyncio.run(test())


@pytest.mark.parametrize("work", [lambda: Work(error=ZeroDivisionError()), lambda: Work(of_undo=ZeroDivisionError())])
def test_a_cancellation_reaches_its_caller_whatever_the_work_raises(work: Callable[[], Work]) -> None:
    """In place of a timeout there was an error of a start that nobody waited for any more."""

    async def test() -> None:
        made = work()
        task = await made.begin()
        await cancel(task)
        made.go.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    asyncio.run(test())


def test_an_error_of_the_work_is_raised_to_who_waits_for_it() -> None:
    async def test() -> None:
        work = Work(error=ZeroDivisionError())
        task = await work.begin()
        work.go.set()
        with pytest.raises(ZeroDivisionError):
            await task
        assert work.undone == []

    asyncio.run(test())
