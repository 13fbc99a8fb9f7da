"""Reclamation: room of pages that are gone is used again only when nobody reads them any more.

A reader learns under a lock where a page lies and reads it without one.  Meanwhile the page may go and its room be given away.
So room is retired first, with the number of the reading generation, and is free when no reader of that generation or an older
one is left.  Readers are short: a snapshot is none.

A record of the log that was flushed with data counts only if all of that is there, as long as nothing stands behind it.  So what
the last record names stays as it is until there is another one, also what that record itself has made needless: a page that was
written twice by writers who came together.

Room of what was superseded last is kept as it is for a while, up to a number of bytes: where the log is damaged later on, what
it said before is worth something only as long as nothing else lies there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from waltzctl.engine.pages.blob_stats import BlobSpan


class _Reading:
    """One reader, from when it is entered to when it is left.  A generator would take a quarter of a small read."""

    __slots__ = ("_generation", "_of")

    def __init__(self, of: Reclamation) -> None:
        self._of = of

    def __enter__(self) -> None:
        self._generation = self._of.begin()

    def __exit__(self, *_: object) -> None:
        self._of.end(self._generation)


class Reclamation:
    """Thread-safe."""

    def __init__(self, kept: int = 0) -> None:
        """`kept`: bytes of room that is not retired before more than so many follow."""
        self._lock = threading.Lock()
        self._limit, self._size = kept, 0
        self._kept: deque[BlobSpan] = deque()
        self._named: list[BlobSpan] = []
        self._generation = 0
        self._readers: dict[int, int] = {}
        self._retired: deque[tuple[int, tuple[BlobSpan, ...]]] = deque()

    def reading(self) -> _Reading:
        """A context: whatever is looked up in it can be read to the end."""
        return _Reading(self)

    def begin(self) -> int:
        """A reader begins; the generation that it is of."""
        with self._lock:
            mine = self._generation
            self._readers[mine] = self._readers.get(mine, 0) + 1
        return mine

    def end(self, generation: int) -> None:
        """A reader of a generation has ended."""
        with self._lock:
            left = self._readers[generation] - 1
            if left:
                self._readers[generation] = left
            else:
                del self._readers[generation]

    def supersede(self, spans: Iterable[BlobSpan], *, named: bool = False) -> None:
        """Nobody will look these up any more, and what lies there stays for a while; what is kept longest is retired for it.

        `named`: by the last record, perhaps, which has to be confirmed first.
        """
        with self._lock:
            if named:
                self._named += spans
            else:
                self._keep(spans)

    def confirm(self) -> None:
        """A record stands behind the one that named what was superseded."""
        with self._lock:
            named, self._named = self._named, []
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
        """What was superseded need not stay any longer."""
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
        """Room that was retired and that no reader is left for; it is told once."""
        with self._lock:
            oldest = min(self._readers, default=self._generation)
            free: list[BlobSpan] = []
            while self._retired and self._retired[0][0] < oldest:
                free += self._retired.popleft()[1]
            return free
