"""Calls from worker threads to the event loop, such as answers to send, in batches.

The loop is woken only if it has not been woken since it last took a batch.  So, under load, many answers share one wake-up (a
system call), and the answers of one connection can be sent with one write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Outbox:
    """Calls from any thread, executed in order in the event loop.  `afterwards` is called after each batch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, afterwards: Callable[[], None]) -> None:
        self._loop, self._afterwards = loop, afterwards
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._later: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False

    def put_later(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call `call` after the batch of the next `put` and after `afterwards`.  Thread-safe; does not wake the loop."""
        self._later.append((call, arguments))

    def put(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call `call` in the event loop.  Thread-safe.  After the loop was closed the call is dropped."""
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
        self._woken = False  # before the batch is taken: a later `put` has to wake the loop again
        calls = self._calls
        try:
            # only the calls present now: later ones wake the loop again, which first handles its sockets
            for _ in range(len(calls)):
                call, arguments = calls.popleft()
                call(*arguments)
        finally:
            if calls and not self._woken:  # a call raised (the loop logs it): the others are made all the same
                self._woken = True
                self._loop.call_soon(self._flush)
            self._afterwards()
            later = self._later
            for _ in range(len(later)):
                less_urgent, its_arguments = later.popleft()
                less_urgent(*its_arguments)
