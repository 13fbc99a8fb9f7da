"""Blocking work that somebody on the event loop waits for, but never for long: one run at a time, on a thread of its own.

A call to a stuck disk does not come back, and cannot be cancelled.  So whoever asks while it is away does not begin another
one: all wait for the same, each until the deadline, which counts from the beginning of the run.  The thread is a daemon: it does
not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class OverdueError(Exception):
    """The work has not come back.  `seconds`: how long it has been away."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"{name} has not come back for {seconds:.1f} s")
        self.seconds = seconds


class _Run(Generic[Result]):
    """One run and whoever waits for it.  Its lock is held for moments only, never while the work is done."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        """Begin.  Raises RuntimeError when there is no thread to be had."""
        self.started = time.monotonic()
        self.finished: float | None = None
        self._value: Result | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._waiting: set[asyncio.Future[None]] = set()
        self._thread = threading.Thread(target=self._execute, args=(work,), name=name, daemon=True)
        self._thread.start()

    def _execute(self, work: Callable[[], Result]) -> None:
        """Do the work and wake everybody up."""
        try:
            self._value = work()
        except BaseException as error:  # raised where the result is wanted
            self._error = error
        with self._lock:
            self.finished = time.monotonic()
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            with contextlib.suppress(RuntimeError):  # its event loop has been closed
                future.get_loop().call_soon_threadsafe(future.set_result, None)

    async def wait(self, seconds: float | None) -> bool:
        """Wait until the run is over, or for so long; whether it is over.  None: without a bound."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self.finished is not None:
                return True
            self._waiting.add(future)
        try:
            await asyncio.wait([future], timeout=seconds)
        finally:
            with self._lock:
                self._waiting.discard(future)
        return self.finished is not None

    def result(self) -> Result:
        """What the work returned or raised, once it is over; its thread is gone then."""
        self._thread.join()  # it has nothing left to do
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None is a Result where it stands here


class SingleFlight(Generic[Result]):
    """`work`, run on request.  `name` is the thread's and stands in messages."""

    def __init__(self, work: Callable[[], Result], *, name: str) -> None:
        self._work, self._name = work, name
        self._lock = threading.Lock()
        self._run: _Run[Result] | None = None

    async def result(self, deadline: float | None, *, max_age: float = 0.0) -> Result:
        """The result of the run that is away, of the last one if it ended within `max_age` seconds, or of a new one.

        Raises OverdueError when the run began more than `deadline` seconds ago, whatever the work raised, and RuntimeError
        when there is no thread to be had.  A deadline of None is none.
        """
        run = self._present(max_age)
        if not await run.wait(None if deadline is None else run.started + deadline - time.monotonic()):
            raise OverdueError(self._name, time.monotonic() - run.started)
        return run.result()

    async def idle(self, seconds: float | None) -> bool:
        """Wait until no run is away, at most so long; whether none is."""
        return self._run is None or await self._run.wait(seconds)

    def _present(self, max_age: float) -> _Run[Result]:
        with self._lock:
            run = self._run
            if run is not None and (run.finished is None or time.monotonic() - run.finished < max_age):
                return run
            self._run = _Run(self._work, self._name)
            return self._run
