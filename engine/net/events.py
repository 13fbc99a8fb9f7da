"""Events that are waited for no longer than so many seconds, or by very many."""

from __future__ import annotations

import asyncio
import contextlib


async def happens_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but no longer than so many seconds; whether it happened."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False


class Turns:
    """What happens again and again, and is waited for by whomever a peer makes wait.

    Whoever gives up is found at once, however many wait: with `asyncio.Event`, or one future for all, each looks through all the
    others, and a peer that leaves with thousands of questions holds up the loop for seconds.

    `count`: how often it has happened.
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    def happened(self) -> None:
        """It has happened once more: whoever waits goes on."""
        self.count += 1
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def beyond(self, count: int) -> None:
        """Wait until it has happened more often than that."""
        if self.count > count:
            return
        waiting = self._waiting
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting[done] = None
        try:
            await done
        finally:
            waiting.pop(done, None)
