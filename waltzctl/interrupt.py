"""Ctrl-C during a change: the current step is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from waltzctl.outcome import say


class Interrupt:
    """Whether Ctrl-C was pressed during a step."""

    def __init__(self) -> None:
        self.wanted = False


def finishing(what: str, on_second: str) -> AbstractContextManager[Interrupt]:
    """Delay Ctrl-C until the end of the block; a second one stops at once.

    `what`: what is being finished; `on_second`: the consequence of a second Ctrl-C.  Both are parts of a message on stderr.
    """
    return _holding(f"waltzctl: {what} is being finished; Ctrl-C again stops at once: {on_second}")


def showing() -> AbstractContextManager[Interrupt]:
    """Delay Ctrl-C while an object is written, so that none is written partly."""
    return _holding("")


@contextmanager
def _holding(message: str) -> Iterator[Interrupt]:
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # signals reach the main thread only
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield interrupt  # a job in a script's background: a Ctrl-C there is not meant for it, nor is the second one
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
