"""Room in the write buffer of a connection, for calls in the order in which they were made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waltzctl.engine.errors import DeadlineError
from waltzctl.engine.net.deadlines import Deadlines


class WriteRoom:
    """Whether a connection's write buffer has room, and the calls that wait for it.

    A call that comes while others wait is behind them, even if there is room again: they were woken and have not run yet.
    `waiting`: how many wait.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._free = asyncio.Event()
        self._free.set()
        self._turn = asyncio.Lock()
        """Held by the first of the calls that wait; the others queue for it in the order in which they were made."""
        self._deadlines = Deadlines()

    @property
    def full(self) -> bool:
        """Whether the write buffer is full."""
        return not self._free.is_set()

    @property
    def at_once(self) -> bool:
        """Whether a call need not `wait`: there is room, and no earlier call waits for it."""
        return self._free.is_set() and not self.waiting

    def fill(self) -> None:
        """The write buffer is full."""
        self._free.clear()

    def free(self) -> None:
        """The write buffer has room again, or nothing is written any more."""
        self._free.set()

    async def wait(self, seconds: float, late: Callable[[], DeadlineError]) -> None:
        """Wait until all earlier calls were served and there is room.  Raises `late` after `seconds`."""
        self.waiting += 1
        try:
            with self._deadlines.within(seconds, late):
                async with self._turn:
                    while self.full:  # a call that does not wait may have filled the buffer again
                        await self._free.wait()
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """The connection is gone: no deadline is watched any more."""
        self._deadlines.close()
