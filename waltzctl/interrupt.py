"""Ctrl-C while something is being changed: the step is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from waltzctl.outcome import say


class Interrupt:
    """Whether somebody pressed Ctrl-C during a step."""

    def __init__(self) -> None:
        self.wanted = False


def finishing(what: str, on_second: str) -> AbstractContextManager[Interrupt]:
    """Hold Ctrl-C back during the block; a second one stops at once.

    `what` is being finished; `on_second` says what a second Ctrl-C leaves behind.  Both are parts of a sentence on stderr.
    """
    return _holding(f"waltzctl: {what} is being finished; Ctrl-C again stops at once: {on_second}")


def showing() -> AbstractContextManager[Interrupt]:
    """Hold Ctrl-C back while one object is shown, so that none is shown by half."""
    return _holding("")


@contextmanager
def _holding(message: str) -> Iterator[Interrupt]:
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # signals reach the main thread only
        return

    def received(number: int, frame: FrameType | None) -> None:
        if interrupt.wanted:
            raise KeyboardInterrupt
        interrupt.wanted = True
        if message:
            say(message)

    previous = signal.signal(signal.SIGINT, received)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)
