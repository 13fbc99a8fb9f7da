"""Answers on their way from the workers to the event loop: one wake-up for many of them.

A worker that answers hands over and goes on.  The loop is woken only if nobody has woken it since it last looked, so that under
load a wake-up (a system call) is shared by all answers that were ready by then, and the answers of one connection can be sent
with one write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Outbox:
    """Calls from any thread, made in order in the event loop; `afterwards` is called when a bunch of them is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, afterwards: Callable[[], None]) -> None:
        self._loop, self._afterwards = loop, afterwards
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._later: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False

    def put_later(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have something called after the calls of the next `put` and what they gave rise to.  Thread-safe; wakes nobody."""
        self._later.append((call, arguments))

    def put(self, call: Callable[..., None], *arguments: Any) -> None:
        """Have something called in the loop.  Thread-safe.  After the loop was closed nobody listens any more: it is dropped."""
        self._calls.append((call, arguments))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._flush)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise
                self._calls.clear()

    def _flush(self) -> None:
        self._woken = False  # before the look: who hands over from now on wakes the loop again
        calls = self._calls
        try:
            # what comes meanwhile has woken the loop anew, and sockets get their turn before it
            for _ in range(len(calls)):
                call, arguments = calls.popleft()
                call(*arguments)
        finally:
            if (
                calls and not self._woken
            ):  # a call failed (the loop's handler gets to know): the others are made all the same
                self._woken = True
                self._loop.call_soon(self._flush)
            self._afterwards()
            later = self._later
            for _ in range(len(later)):
                less_urgent, its_arguments = later.popleft()
                less_urgent(*its_arguments)
