"""A lock behind which readers look without taking it: they look again, with it, where somebody had it meanwhile.

Readers of a page store look up where a page lies, which takes two microseconds.  With a lock around that, a thread that loses the
processor while it has the lock makes all others stand in line, and from then on each of them waits for the one before it.

A look sees changes that are half made only while somebody has the lock, or has had it: then what it found, or failed with, is
not believed.  So a look may be any function that reads and comes to an end whatever it reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SequenceLock:
    """``with`` takes it, for changes; `look` is for reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0
        """How often it was taken.  It rises while the lock is held, before anything changes."""

    def __enter__(self) -> None:
        self._lock.acquire()
        self._taken += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def look(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `read` returns, or raises, of a moment at which nobody was changing anything."""
        taken = self._taken
        if not self._lock.locked():
            try:
                found = read(*args, **kwargs)
            except Exception:  # of something half changed; it is tried again
                pass
            else:
                if self._taken == taken:
                    return found
        with self:
            return read(*args, **kwargs)
