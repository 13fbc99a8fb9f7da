"""Following metadata with watches: read, wait for a change, read again, for as long as the task runs.

A watch may be lost (with its session), and reading may fail for any reason.  So what is followed is also read again after a time
without a change, and after every error.  The loop ends only when its task is cancelled, or by an error of `failed`
that is no MemoryError, which whoever runs the task sees.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

PAUSE = 1.0
"""Seconds between attempts while the store does not answer."""


async def watch_loop(
    changed: asyncio.Event,
    *,
    look: Callable[[], Awaitable[object]],
    wait: Callable[[], Awaitable[object]],
    failed: Callable[[Exception], Awaitable[object]],
) -> None:
    """Read again and again.  Never returns.

    `changed`: what the watches set; it is cleared before each read, so that no change since then is missed.  `look`: read with
    such a watch, and report what is new.  `wait`: wait for `changed`, for a limited time.  `failed`: log an error of the two, and
    pause; what a MemoryError kept it from, the next look has to lead to again.
    """
    while True:
        changed.clear()
        try:
            await look()
            await wait()
        except Exception as error:  # for instance MemoryError: no other task follows the metadata
            try:
                await failed(error)
            except MemoryError:  # nothing can be said now, and the next look leads here again
                with contextlib.suppress(MemoryError):
                    await asyncio.sleep(PAUSE)
