"""Exceptions of futures whose waiting task may have been cancelled.

asyncio logs each exception that no task retrieves ("exception was never retrieved").  Where callers may abandon a call, such an
exception is no defect of the program; the functions here keep it out of the log.
"""

from __future__ import annotations

import asyncio
from typing import Any


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Set the exception of a future that is not done, without a log line if no task waits for it."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def taken(future: asyncio.Future[Any]) -> None:
    """Mark the exception of a future as retrieved; for `add_done_callback`."""
    if not future.cancelled():
        future.exception()
