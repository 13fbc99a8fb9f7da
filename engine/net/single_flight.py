"""Single flight: blocking work for the event loop, one run at a time, in a thread of its own, with a deadline for waiting.

A system call to a stuck disk does not return, and cannot be cancelled.  So a caller that asks while a run is under way does not
start another one: all callers wait for the same run, until their deadline, which counts from the start of the run.  The thread is
a daemon: it does not keep the process from ending.
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
    """The run has not ended in time.  `seconds`: since its start."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"{name} has not come back for {seconds:.1f} s")
        self.seconds = seconds


class _Run(Generic[Result]):
    """One run and the callers that wait for it.  Its lock is never held during the work."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        """Start the run.  Raises RuntimeError when no thread can be started."""
        self.started = time.monotonic()
        self.finished: float | None = None
        self._value: Result | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._waiting: set[asyncio.Future[None]] = set()
        self._thread = threading.Thread(target=self._execute, args=(work,), name=name, daemon=True)
        self._thread.start()

    def _execute(self, work: Callable[[], Result]) -> None:
        """Do the work, then wake the waiting callers."""
        try:
            self._value = work()
        except BaseException as error:  # raised by `result`
            self._error = error
        with self._lock:
            self.finished = time.monotonic()
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            with contextlib.suppress(RuntimeError):  # its event loop has been closed
                future.get_loop().call_soon_threadsafe(future.set_result, None)

    async def wait(self, seconds: float | None) -> bool:
        """Wait until the run is over, for at most `seconds` (None: without limit); returns whether it is over."""
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
        """What the work returned or raised.  Call it after the run is over; joins the thread."""
        self._thread.join()  # does not block: the work is done
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None is a Result where it stands here


class SingleFlight(Generic[Result]):
    """Runs `work` on request.  `name`: of the thread, and in messages."""

    def __init__(self, work: Callable[[], Result], *, name: str) -> None:
        self._work, self._name = work, name
        self._lock = threading.Lock()
        self._run: _Run[Result] | None = None

    async def result(self, deadline: float | None, *, max_age: float = 0.0) -> Result:
        """The result of the run under way, of the last one if it ended less than `max_age` seconds ago, or else of a new one.

        `deadline`: seconds from the start of the run; None: none.  Raises OverdueError when it is over, what the work raised, and
        RuntimeError when no thread can be started.
        """
        run = self._current_or_new(max_age)
        if not await run.wait(None if deadline is None else run.started + deadline - time.monotonic()):
            raise OverdueError(self._name, time.monotonic() - run.started)
        return run.result()

    async def idle(self, seconds: float | None) -> bool:
        """Wait until no run is under way, at most `seconds`; returns whether none is."""
        return self._run is None or await self._run.wait(seconds)

    def _current_or_new(self, max_age: float) -> _Run[Result]:
        with self._lock:
            run = self._run
            if run is not None and (run.finished is None or time.monotonic() - run.finished < max_age):
                return run
            self._run = _Run(self._work, self._name)
            return self._run


class _Abandonable(Generic[Result]):
    """Work whose result nobody may want by the time it is there: it is undone then, once, by whoever comes last."""

    def __init__(self, work: Callable[[], Result], undo: Callable[[Result], None] | None) -> None:
        self._work, self._undo = work, undo
        self._lock = threading.Lock()
        self._made: list[Result] = []
        self._abandoned = False

    def run(self) -> Result:
        """Do the work, and undo it if it was abandoned meanwhile."""
        made = self._work()
        with self._lock:
            self._made.append(made)
            abandoned = self._abandoned
        if abandoned:
            self.undo()
        return made

    def abandon(self) -> bool:
        """Nobody wants the result.  Returns whether it is there already, so that the caller has to undo it."""
        with self._lock:
            self._abandoned = True
            return bool(self._made)

    def undo(self) -> None:
        """Undo the work, which is done."""
        if self._undo is not None:
            self._undo(self._made[0])


async def in_daemon_thread(
    work: Callable[[], Result], *, name: str, undo: Callable[[Result], None] | None = None, patient: bool = True
) -> Result:
    """Run blocking work in a thread and return its result.  If cancelled, `undo` what it did or will have done.

    `patient`: a cancelled caller waits for the end of the work and of `undo`, unless it is cancelled once more; what they raise
    is the cause of the CancelledError, which reaches the caller in any case.

    The thread does not keep the process from ending, unlike those of `engine.net.futures.in_thread`: for work on a disk that may
    be stuck, or with a peer that may not answer.
    """
    job = _Abandonable(work, undo)
    running = SingleFlight(job.run, name=name)
    try:
        return await running.result(None)
    except asyncio.CancelledError as cancelled:
        ending = SingleFlight(job.undo, name=name) if job.abandon() else running
        try:
            run = ending._current_or_new(max_age=float("inf"))
            if patient:
                await run.wait(None)
                run.result()
        except Exception as error:
            raise cancelled from error
        raise
