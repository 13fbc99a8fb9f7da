"""Waiting for an event with a time limit, and a repeated event that very many tasks wait for."""

from __future__ import annotations

import asyncio
import contextlib


async def happens_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for at most `seconds`; returns whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return event.is_set()  # also where it was set in the turn of the loop in which the time was over


class Turns:
    """An event that happens repeatedly, with any number of waiting tasks.

    Cancelling a wait takes constant time.  With `asyncio.Event`, or one future for all, each cancelled wait searches all others,
    so that a peer which disconnects with thousands of requests would block the loop for seconds.

    `count`: how often the event has happened.
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    def happened(self) -> None:
        """The event has happened once more: wake all waiting tasks."""
        self.count += 1
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def beyond(self, count: int) -> None:
        """Wait until the event has happened more than `count` times."""
        if self.count > count:
            return
        waiting = self._waiting
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting[done] = None
        try:
            await done
        finally:
            waiting.pop(done, None)
