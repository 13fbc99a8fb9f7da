"""Deadlines of many calls with one timer for all that may take equally long.

What `asyncio.timeout` does with a timer for each call: to make one and to take it away again costs a call some 3 us, which is a
tenth of an append.  Everything belongs to one event loop.

A loop that was held up, by a program that prints what nobody reads for a while, or because the process was stopped, has heard
nothing meanwhile: deadlines that passed in that time begin anew, so that what has come can be looked at first.  A loop that is
held up all the time has them end all the same: each begins anew a few times, and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

HELD_UP = 0.5
"""Seconds by which a timer is late when the loop was held up."""
ANEW = 3
"""How often a deadline begins anew."""


class _SameLength:
    """Deadlines of calls that may take equally long: in the order in which they began they end."""

    def __init__(self, seconds: float, forget: Callable[[float], object]) -> None:
        """`forget`: called with the length when none is left."""
        self._seconds, self._forget = seconds, forget
        self.running: dict[Deadline, None] = {}  # in their order
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def begin(self, deadline: Deadline) -> None:
        """From now on."""
        deadline.when = self._loop.time() + self._seconds
        self.running[deadline] = None
        if self._timer is None:
            self._ring_at(deadline.when)

    def _ring_at(self, when: float) -> None:
        self._due = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now - self._due > HELD_UP:
            for deadline in [one for one in self.running if one.anew]:
                deadline.anew, deadline.when = deadline.anew - 1, now + self._seconds
                del self.running[deadline]
                self.running[deadline] = None  # behind those that do not begin anew: they end before
        for deadline in [*self.running]:
            if deadline.when > now:
                self._ring_at(deadline.when)
                return
            del self.running[deadline]
            deadline.expire()
        self._forget(self._seconds)

    def close(self) -> None:
        """Keep no timer for what does not run any more; the calls that do have their time still."""
        if self._timer is not None and not self.running:
            self._timer.cancel()
            self._forget(self._seconds)


class Deadline:
    """``with deadlines.within(seconds, late):`` in a task: what takes longer is cancelled there, and `late()` raised."""

    __slots__ = ("_cancelling", "_expired", "_late", "_line", "_task", "anew", "when")

    def __init__(self, line: _SameLength, late: Callable[[], BaseException]) -> None:
        self._line, self._late = line, late
        self._expired = False
        self.when = 0.0
        """In the loop's time."""
        self.anew = ANEW
        """How often it may begin anew."""

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline is for what a task waits for"
        self._task, self._cancelling = task, task.cancelling()
        self._line.begin(self)

    def expire(self) -> None:
        """Time is over."""
        self._expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._line.running.pop(self, None)
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._late() from None


class Deadlines:
    """Those of a client."""

    def __init__(self) -> None:
        self._lines: dict[float, _SameLength] = {}

    def within(self, seconds: float, late: Callable[[], BaseException]) -> Deadline:
        """A deadline so many seconds from when it is entered; `late` makes the error."""
        line = self._lines.get(seconds)
        if line is None:
            line = self._lines[seconds] = _SameLength(seconds, self._lines.pop)
        return Deadline(line, late)

    def close(self) -> None:
        """No timer is left, but for calls that are still under way."""
        for line in [*self._lines.values()]:
            line.close()
