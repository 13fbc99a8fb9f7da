"""Failures of futures that perhaps nobody waits for any more.

asyncio writes a line into the log for each failure that nobody took ("exception was never retrieved").  Where a call may be given
up by who made it, that says nothing about the program.
"""

from __future__ import annotations

import asyncio
from typing import Any


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """End a future that is not done: whoever waits is told, and if nobody does the log is not."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def taken(future: asyncio.Future[Any]) -> None:
    """A future is done, and its failure counts as told: for `add_done_callback`."""
    if not future.cancelled():
        future.exception()
