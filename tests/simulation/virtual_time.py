"""An event loop whose clock goes to the next timer instead of waiting for it: hours of faults in seconds, the same every time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StuckError(AssertionError):
    """Nothing is left to happen, and the work is not done."""


LONGEST = 3600.0
"""Seconds of virtual time in which a history has long ended: those that there are take less than a minute."""


class _Idle(selectors.SelectSelector):
    """Waits for nobody; tells the loop's clock to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError("nothing is left to happen, and the work is not done")
        if self.now > LONGEST:
            raise StuckError(f"{LONGEST:g} s have gone by, and the work is not done")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time` is virtual.  For work without sockets, threads or processes."""

    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now


def hold_up(seconds: float) -> None:
    """Let what runs now in virtual time take so long, while everybody else waits."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop._idle.now += seconds


def simulate(work: Coroutine[Any, Any, T]) -> T:
    """Run something to its end in virtual time.  Raises StuckError."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
