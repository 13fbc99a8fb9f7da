"""Events that are waited for no longer than so many seconds."""

from __future__ import annotations

import asyncio
import contextlib


async def happens_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but no longer than so many seconds; whether it happened."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False
