"""Exceptions of futures whose waiting task may have been cancelled, and work in a thread that outlasts no cancellation.

asyncio logs each exception that no task retrieves ("exception was never retrieved").  Where callers may abandon a call, such an
exception is no defect of the program; the functions here keep it out of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Set the exception of a future that is not done, without a log line if no task waits for it."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def taken(future: asyncio.Future[Any]) -> None:
    """Mark the exception of a future as retrieved; for `add_done_callback`."""
    if not future.cancelled():
        future.exception()


async def in_thread(work: Callable[[], Result]) -> Result:
    """Run blocking work in a thread.  If cancelled, wait for its end all the same, so that no cleanup meets it at work."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):  # one more: the thread does not end earlier for it
                await asyncio.wait([running])
        taken(running)
        raise
