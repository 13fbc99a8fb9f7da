"""How many reads of a connection may be under way at a time.

A read request is small, but the size of its answer is not known in advance.  So the reads of a connection that are under way at a
time are limited by a window: it begins with 1 and doubles with each answer as long as answers are short and the peer takes them.
Besides, each read needs a *read slot*, of which the whole port has `PortLimits.reads`.

Not thread-safe: belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from waltzctl.engine.net.budget import Budget

_MOST_READS = 64
"""Upper bound of a window."""


class ReadWindow:
    """The window of one connection.  `slots`: the read slots of its port."""

    def __init__(self, slots: Budget) -> None:
        self._slots = slots
        self._under_way = 0
        self._most = 1  # reads that may be under way
        self._requested = False  # the connection waits for a read slot
        self._granted = False  # it was granted a read slot that no read uses yet

    def begin(self, on_slot: Callable[[], None]) -> bool:
        """Begin a read.  False: the window is full, or no slot is free.

        `on_slot`: called once a slot is granted that was not free; the next `begin` uses it, or `return_unused` returns it.
        """
        if self._under_way >= self._most or self._requested:
            return False
        if self._granted:
            self._granted = False
        elif not self._slots.reserve(self, 1, lambda: self._grant(on_slot)):
            self._requested = True
            return False
        self._under_way += 1
        return True

    def _grant(self, on_slot: Callable[[], None]) -> None:
        self._requested, self._granted = False, True
        on_slot()

    def end(self) -> None:
        """A read ended, or was not begun after all: return its slot to the port."""
        self._under_way -= 1
        self._slots.release(1)

    def widen(self, ahead: int) -> None:
        """The window after an answer, of which the peer's buffer has room for `ahead` more."""
        self._most = min(_MOST_READS, self._most * 2, 1 + ahead)

    def return_unused(self) -> None:
        """Return a granted read slot that no read uses."""
        if self._granted:
            self._granted = False
            self._slots.release(1)

    def leave(self) -> None:
        """The connection is gone: wait for no slot any more.  Reads under way return theirs with `end`."""
        self._slots.leave(self)
        self._requested = False
        self.return_unused()
