"""Reclamation: space of removed pages is reused only when no reader can be reading it (epoch-based reclamation).

A reader looks up a page's location, then reads its bytes without a lock; meanwhile the page may be removed and its space freed.
Freed space therefore passes through these states:

1. *Unconfirmed*: the last record of the log may name it.  That record counts only if the data flushed with it is intact, as long
   as no record follows; so the data stays unchanged until the next record.  This includes data that the same record superseded: a
   page written twice within one group commit.
2. *Kept*: unchanged for a while, up to a number of bytes.  If the log turns out to be damaged, its older records are useful only
   as long as their data has not been overwritten.
3. *Retired*: labelled with the current reading generation.
4. *Released*: no reader of that generation or an older one is left; the space is free.

Readers are short-lived; holding a snapshot is not reading.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from waltzctl.engine.pages.blob_stats import BlobSpan


class _Reading:
    """Context manager of one reader.  A generator-based one would take a quarter of the time of a small read."""

    __slots__ = ("_generation", "_reclamation")

    def __init__(self, of: Reclamation) -> None:
        self._reclamation = of

    def __enter__(self) -> None:
        self._generation = self._reclamation.begin()

    def __exit__(self, *_: object) -> None:
        self._reclamation.end(self._generation)


class Reclamation:
    """Tracks readers and freed space.  Thread-safe."""

    def __init__(self, kept: int = 0) -> None:
        """`kept`: bytes of superseded data to keep before it is retired, oldest first."""
        self._lock = threading.Lock()
        self._limit, self._size = kept, 0
        self._kept: deque[BlobSpan] = deque()
        self._unconfirmed: list[BlobSpan] = []
        self._generation = 0
        self._readers: dict[int, int] = {}
        self._retired: deque[tuple[int, tuple[BlobSpan, ...]]] = deque()

    def reading(self) -> _Reading:
        """A context: every location looked up inside it stays readable until it ends."""
        return _Reading(self)

    def begin(self) -> int:
        """Register a reader; returns its generation."""
        with self._lock:
            mine = self._generation
            self._readers[mine] = self._readers.get(mine, 0) + 1
        return mine

    def end(self, generation: int) -> None:
        """Unregister a reader of a generation."""
        with self._lock:
            left = self._readers[generation] - 1
            if left:
                self._readers[generation] = left
            else:
                del self._readers[generation]

    def supersede(self, spans: Iterable[BlobSpan], *, named: bool = False) -> None:
        """Keep the space of data that new readers cannot find any more; older kept space is retired in exchange.

        `named`: the last record may name it, so that it has to be confirmed first.
        """
        with self._lock:
            if named:
                self._unconfirmed += spans
            else:
                self._keep(spans)

    def confirm(self) -> None:
        """A record follows the last one: keep the space that was unconfirmed."""
        with self._lock:
            named, self._unconfirmed = self._unconfirmed, []
            self._keep(named)

    def _keep(self, spans: Iterable[BlobSpan]) -> None:
        for span in spans:
            self._kept.append(span)
            self._size += span.size
        over = []
        while self._size > self._limit:
            over.append(self._kept.popleft())
            self._size -= over[-1].size
        self._retire(tuple(over))

    def retire(self) -> None:
        """Retire all kept space."""
        with self._lock:
            given = tuple(self._kept)
            self._kept.clear()
            self._size = 0
            self._retire(given)

    def _retire(self, given: tuple[BlobSpan, ...]) -> None:
        if given:
            self._retired.append((self._generation, given))
            self._generation += 1

    def released(self) -> list[BlobSpan]:
        """Retired space that no reader can be reading any more; each span is returned once."""
        with self._lock:
            oldest = min(self._readers, default=self._generation)
            free: list[BlobSpan] = []
            while self._retired and self._retired[0][0] < oldest:
                free += self._retired.popleft()[1]
            return free
