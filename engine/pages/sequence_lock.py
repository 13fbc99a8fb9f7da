"""A sequence lock: readers read without taking it, and repeat the read under the lock if a writer was active meanwhile.

Looking up a page takes two microseconds.  With an ordinary lock, a thread that is descheduled while it holds the lock makes all
others queue, and from then on every reader waits for the one before it (lock convoy).

A read may see half-made changes only while a writer holds the lock, or held it meanwhile; its result or exception is then
discarded.  So `look` accepts any function that only reads, and that terminates whatever it reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SequenceLock:
    """``with`` takes the lock, for changes; `look` is for reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acquired = 0
        """Number of acquisitions: incremented while the lock is held, before anything changes."""

    def __enter__(self) -> None:
        self._lock.acquire()
        self._acquired += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `read`, or its exception, as of a moment at which no change was in progress."""
        taken = self._acquired
        if not self._lock.locked():
            try:
                found = read(*args, **kwargs)
            except Exception:  # perhaps caused by a half-made change: repeated below
                pass
            else:
                if self._acquired == taken:
                    return found
        with self:
            return read(*args, **kwargs)
