"""Page cache: data of recently read or written pages, so that it is neither read from its file nor checked again.

The data of a version of a page never changes, even when it is moved; so entries never become stale, and deletes need no
invalidation.

Eviction is second chance (CLOCK), with a random start: from a random position on, the first page is evicted that was not
referenced since the last pass.  Starting at the oldest page would fail for repeated sequential scans of slightly more pages than
fit: every page would be evicted before its next use.
"""

from __future__ import annotations

import random
import threading

from waltzctl.formats.pages.write_batch import PageId, Version

ENTRY_SIZE = 400
"""Bytes of memory that an entry takes in addition to its data: key and table slot."""
LARGEST_SHARE = 8
"""A page is cached only if it takes at most 1/LARGEST_SHARE of the cache."""


class _CachedPage:
    __slots__ = ("data", "referenced")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.referenced = False


class PageCache:
    """Thread-safe.  `get` takes no lock, on which readers would queue."""

    def __init__(self, limit: int) -> None:
        """`limit`: maximum memory in bytes."""
        self._limit = limit
        self._entries: dict[tuple[PageId, Version], _CachedPage] = {}
        self._keys: list[tuple[PageId, Version]] = []
        self._lock = threading.Lock()
        self._random = random.Random(limit)
        self.size = 0
        """Memory in use, in bytes."""

    def get(self, page: PageId, version: Version) -> bytes | None:
        """All bytes of a version of a page, which matched their checksum; None if they are not cached."""
        kept = self._entries.get((page, version))
        if kept is None:
            return None
        kept.referenced = True
        return kept.data

    def put(self, page: PageId, version: Version, data: bytes) -> None:
        """Cache the bytes of a version, unless they are too many."""
        size = len(data) + ENTRY_SIZE
        if size > self._limit // LARGEST_SHARE:
            return
        key = (page, version)
        with self._lock:
            if key in self._entries:
                return
            while self.size + size > self._limit:
                self._drop_one()
            self._entries[key] = _CachedPage(data)
            self._keys.append(key)
            self.size += size

    def _drop_one(self) -> None:
        place = int(self._random.random() * len(self._keys))
        while (kept := self._entries[self._keys[place]]).referenced:
            kept.referenced = False
            place = (place + 1) % len(self._keys)
        del self._entries[self._keys[place]]
        self.size -= len(kept.data) + ENTRY_SIZE
        last = self._keys.pop()
        if place < len(self._keys):
            self._keys[place] = last
