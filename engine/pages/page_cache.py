"""Page cache: data of pages that were read or written last, so that they are neither read from their file nor checked again.

What a version of a page holds never changes, wherever its data moves; so nothing here is ever wrong, and nothing has to be taken
out when a page is deleted.  Where room is needed a page goes that was not asked for since it was last to go; looked for from
anywhere on, and not from the oldest one: who reads somewhat more than fits from the first page to the last, again and again,
would find nothing at all.
"""

from __future__ import annotations

import random
import threading

from waltzctl.formats.pages.write_batch import PageId, Version

ENTRY_SIZE = 400
"""Bytes that a page takes beside its data: its key, its place in the table."""
LARGEST_SHARE = 8
"""A page is kept that takes no more than this part of the cache."""


class _Kept:
    __slots__ = ("asked_for", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked_for = False


class PageCache:
    """Thread-safe; `get` takes no lock, which readers would stand in line for."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes that it takes at most."""
        self._limit = limit
        self._kept: dict[tuple[PageId, Version], _Kept] = {}
        self._keys: list[tuple[PageId, Version]] = []
        self._lock = threading.Lock()
        self._random = random.Random(limit)
        self.size = 0
        """Bytes that it takes."""

    def get(self, page: PageId, version: Version) -> bytes | None:
        """All bytes of a version of a page, which agreed with their checksum; None where they are not kept."""
        kept = self._kept.get((page, version))
        if kept is None:
            return None
        kept.asked_for = True
        return kept.data

    def put(self, page: PageId, version: Version, data: bytes) -> None:
        """Keep the bytes of a version, unless they are too many."""
        size = len(data) + ENTRY_SIZE
        if size > self._limit // LARGEST_SHARE:
            return
        key = (page, version)
        with self._lock:
            if key in self._kept:
                return
            while self.size + size > self._limit:
                self._drop_one()
            self._kept[key] = _Kept(data)
            self._keys.append(key)
            self.size += size

    def _drop_one(self) -> None:
        place = int(self._random.random() * len(self._keys))
        while (kept := self._kept[self._keys[place]]).asked_for:
            kept.asked_for = False
            place = (place + 1) % len(self._keys)
        del self._kept[self._keys[place]]
        self.size -= len(kept.data) + ENTRY_SIZE
        last = self._keys.pop()
        if place < len(self._keys):
            self._keys[place] = last
