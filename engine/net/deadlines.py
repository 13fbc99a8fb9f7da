"""Deadlines of many calls, with one event-loop timer for all calls of the same time limit, and of work that makes progress.

`asyncio.timeout` uses a timer per call: making and cancelling it costs some 3 us, a tenth of an append.  Everything here belongs
to one event loop.

Blocked loop.  A loop that was blocked (the program printed to a full pipe, or the process was stopped) has received nothing
meanwhile.  Deadlines that passed in that time are restarted, so that the received data is handled first.  Each deadline is
restarted at most `ANEW` times, so that calls end even if the loop is blocked again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

HELD_UP = 0.5
"""Seconds; a loop whose timer is later than that counts as blocked."""
ANEW = 3
"""How often a deadline is restarted at most."""


class _DeadlineGroup:
    """Deadlines of calls with the same time limit, `seconds`; they expire in the order in which they began."""

    def __init__(self, seconds: float, forget: Callable[[float], object]) -> None:
        """`forget`: called with `seconds` when the group is empty."""
        self._seconds, self._forget = seconds, forget
        self.running: dict[Deadline, None] = {}  # in the order of their ends
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def begin(self, deadline: Deadline) -> None:
        """Start a deadline, `seconds` from now."""
        deadline.when = self._loop.time() + self._seconds
        self.running[deadline] = None
        if self._timer is None:
            self._set_timer(deadline.when)

    def _set_timer(self, when: float) -> None:
        self._due = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now - self._due > HELD_UP:
            for deadline in [one for one in self.running if one.anew]:
                deadline.anew, deadline.when = deadline.anew - 1, now + self._seconds
                del self.running[deadline]
                self.running[deadline] = None  # behind those that are not restarted, which end before
        for deadline in [*self.running]:
            if deadline.when > now:
                self._set_timer(deadline.when)
                return
            del self.running[deadline]
            deadline.expire()
        self._forget(self._seconds)

    def close(self) -> None:
        """Cancel the timer unless calls are still under way; those keep their deadlines."""
        if self._timer is not None and not self.running:
            self._timer.cancel()
            self._forget(self._seconds)


class Deadline:
    """``with deadlines.within(seconds, late):`` in a task: if the block takes longer it is cancelled, and raises `late()`."""

    __slots__ = ("_cancelling", "_expired", "_group", "_late", "_task", "anew", "when")

    def __init__(self, group: _DeadlineGroup, late: Callable[[], BaseException]) -> None:
        self._group, self._late = group, late
        self._expired = False
        self.when = 0.0
        """When it ends, by `loop.time()`."""
        self.anew = ANEW
        """How often it may still be restarted."""

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline is for what a task waits for"
        self._task, self._cancelling = task, task.cancelling()
        self._group.begin(self)

    def expire(self) -> None:
        """The time limit is over: cancel the task."""
        self._expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._group.running.pop(self, None)
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._late() from None


class Watchdog:
    """The deadline of work that has to make progress: ``with watchdog:`` calls `expired` once, `seconds` after the last progress.

    Such a deadline is restarted often, so its timer is not: it looks for progress when it fires.  Without a block, `start` and
    `stop` begin and end it; `fed` and `expired` may call them as well.
    """

    def __init__(
        self, seconds: float, *, fed: Callable[[], bool], expired: Callable[[], object], anew: float | None = None
    ) -> None:
        """`fed`: asked when the time is over; whether there is progress that `feed` was not told of, or none is expected.

        `anew`: seconds until it looks again where the loop was blocked; None: `seconds`.
        """
        self._seconds, self._fed, self._expired = seconds, fed, expired
        self._seconds_anew = seconds if anew is None else anew
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.feed()

    def feed(self) -> None:
        """There is progress: the deadline starts again."""
        self._end, self._anew = self._loop.time() + self._seconds, ANEW

    def start(self) -> None:
        """Begin, or begin again: the time until now does not count."""
        self.stop()
        self.feed()
        self._set_timer(self._end)

    def stop(self) -> None:
        """`expired` is not called any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> None:
        self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def _set_timer(self, when: float) -> None:
        self._timer = self._loop.call_at(when, self._on_timer, when)

    def _on_timer(self, due: float) -> None:
        fired = self._timer
        if self._fed():
            self.feed()
        elif self._anew and self._loop.time() - due > HELD_UP:
            self._end, self._anew = self._loop.time() + self._seconds_anew, self._anew - 1
        if self._timer is not fired:  # `fed` has stopped it, or started it again
            return
        if self._end > self._loop.time():
            self._set_timer(self._end)
            return
        try:
            self._expired()
        except MemoryError:  # nothing else ends what is late
            if self._timer is fired:
                self._set_timer(self._loop.time() + self._seconds)


class Deadlines:
    """The deadlines of one client."""

    def __init__(self) -> None:
        self._groups: dict[float, _DeadlineGroup] = {}

    def within(self, seconds: float, late: Callable[[], BaseException]) -> Deadline:
        """A deadline `seconds` after the ``with`` block is entered; `late` makes the exception."""
        group = self._groups.get(seconds)
        if group is None:
            group = self._groups[seconds] = _DeadlineGroup(seconds, self._groups.pop)
        return Deadline(group, late)

    def close(self) -> None:
        """Cancel the timers, except those of calls that are still under way."""
        for group in [*self._groups.values()]:
            group.close()
