"""Reclamation: room of pages that are gone is used again only when nobody reads them any more.

A reader learns under a lock where a page lies and reads it without one.  Meanwhile the page may go and its room be given away.
So room is retired first, with the number of the reading generation, and is free when no reader of that generation or an older
one is left.  Readers are short: a snapshot is none.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from waltzctl.engine.pages.blob_stats import BlobSpan


class Reclamation:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = 0
        self._readers: Counter[int] = Counter()
        self._retired: deque[tuple[int, tuple[BlobSpan, ...]]] = deque()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Whatever is looked up in here can be read to the end."""
        with self._lock:
            mine = self._generation
            self._readers[mine] += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers[mine] -= 1
                if not self._readers[mine]:
                    del self._readers[mine]

    def retire(self, spans: Iterable[BlobSpan]) -> None:
        """Nobody will look these up any more."""
        given = tuple(spans)
        if given:
            with self._lock:
                self._retired.append((self._generation, given))
                self._generation += 1

    def released(self) -> list[BlobSpan]:
        """Room that was retired and that no reader is left for; it is told once."""
        with self._lock:
            oldest = min(self._readers, default=self._generation)
            free: list[BlobSpan] = []
            while self._retired and self._retired[0][0] < oldest:
                free += self._retired.popleft()[1]
            return free
