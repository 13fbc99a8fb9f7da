"""Blob stats: the blob files, how full each is, and which file the next write goes to.

A file is *normal*, or *read-only* while its pages are being moved out; a read-only file takes no writes and is removed once none
of its bytes is used.  A write goes to the normal file with the lowest valid rate that has a large enough free range, so that
space is reused before files grow.

Lock order: the set of files first, then one file.  Nothing here reads or writes a file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from waltzctl.engine.pages.space_map import SpaceMap


class BlobSpan(NamedTuple):
    """Bytes `offset` to `offset + size` of a blob file."""

    file_id: int
    offset: int
    size: int


class BlobStat:
    """The space of one blob file.  Hold `lock` for everything but reading `file_id`.

    `total`: the highest end of any range ever used since the last `cut`, in bytes.
    """

    def __init__(self, file_id: int, limit: int) -> None:
        self.file_id = file_id
        self.lock = threading.Lock()
        self.space = SpaceMap(limit)
        self.read_only = False
        self.total = 0

    @property
    def valid(self) -> int:
        """Bytes in use."""
        return self.space.valid

    @property
    def valid_rate(self) -> float:
        """Share of `total` that is in use; 1 for a new file."""
        return self.valid / self.total if self.total else 1.0

    def take(self, size: int) -> int | None:
        """Allocate `size` bytes; returns their offset, or None if no free range is large enough."""
        offset = self.space.take(size)
        if offset is not None:
            self.total = max(self.total, offset + size)
        return offset

    def mark_used(self, offset: int, size: int) -> bool:
        """Mark the range of a page in the log as used; False if another page uses part of it."""
        if not self.space.mark_used(offset, size):
            return False
        self.total = max(self.total, offset + size)
        return True

    def give_back(self, offset: int, size: int) -> bool:
        """Mark a range as free; False if part of it is free already."""
        return self.space.mark_free(offset, size)

    def cut(self) -> int:
        """Lower `total` to the end of the last used byte; returns it: the file may be truncated there."""
        self.total = self.space.used_boundary
        return self.total


@dataclass(frozen=True, slots=True)
class BlobFileStatus:
    """The state of a blob file.  `total`: see `BlobStat`; `valid`: bytes in use; `boundary`: end of the last used byte."""

    file_id: int
    total: int
    valid: int
    boundary: int
    read_only: bool
    free_ranges: tuple[tuple[int, int], ...] = ()

    @property
    def valid_rate(self) -> float:
        """Share of the bytes before `boundary` that is in use."""
        return self.valid / self.boundary if self.boundary else 1.0


class BlobStats:
    """All blob files.  `limit`: size of a file in bytes; a file that holds a single larger page may exceed it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._creating = threading.Lock()
        self._stats: dict[int, BlobStat] = {}
        self._highest = 0

    def add(self, file_id: int, offsets: Sequence[int] = (), sizes: Sequence[int] = ()) -> BlobStat:
        """Add an existing file with the ranges that pages use, ascending.

        The ranges may exceed `limit`, which may have been lowered since they were written.
        """
        end = offsets[-1] + sizes[-1] if offsets else 0
        with self._lock:
            stat = BlobStat(file_id, max(self.limit, end))
            stat.space.mark_many_used(offsets, sizes)
            stat.total = end
            self._stats[file_id] = stat
            self._highest = max(self._highest, file_id)
            return stat

    def take(self, size: int, create: Callable[[int], None]) -> BlobSpan:
        """Allocate `size` bytes.  `create` durably makes the file of a new id; its exceptions are passed on."""
        if (span := self._take_existing(size)) is not None:
            return span
        with self._creating:  # concurrent writers wait for the new file and then use it
            if (span := self._take_existing(size)) is not None:
                return span
            with self._lock:
                self._highest += 1
                file_id = self._highest
            create(file_id)
            stat = BlobStat(file_id, max(self.limit, size))
            offset = stat.take(size)
            assert offset is not None, "a fresh file has room"
            with self._lock:
                self._stats[file_id] = stat
            return BlobSpan(file_id, offset, size)

    def _take_existing(self, size: int) -> BlobSpan | None:
        if size > self.limit:
            return self._take_empty(size)
        with self._lock:
            fitting = []
            for stat in self._stats.values():
                with stat.lock:
                    if not stat.read_only and stat.space.largest_free >= size:
                        fitting.append((stat.valid_rate, stat.file_id))
            if not fitting:
                return None
            chosen = self._stats[min(fitting)[1]]
            with chosen.lock:
                offset = chosen.take(size)
            return BlobSpan(chosen.file_id, offset, size) if offset is not None else None

    def _take_empty(self, size: int) -> BlobSpan | None:
        """Allocate in a file without used bytes for a page over the limit.

        Without this, every such page would leave another empty file behind.
        """
        with self._lock:
            for file_id in sorted(self._stats):
                stat = self._stats[file_id]
                with stat.lock:
                    if not stat.read_only and stat.valid == 0:
                        stat.space = SpaceMap(size)
                        offset = stat.take(size)
                        assert offset is not None, "it has room for just this"
                        return BlobSpan(file_id, offset, size)
            return None

    def give_back(self, span: BlobSpan) -> None:
        """Free a span.  Raises RuntimeError if it is free already: it may soon be another page's."""
        with self._lock:
            stat = self._stats[span.file_id]
            with stat.lock:
                if not stat.give_back(span.offset, span.size):
                    raise RuntimeError(
                        f"blob file {span.file_id}: bytes {span.offset} to {span.offset + span.size} are free"
                    )

    def all(self) -> tuple[BlobStat, ...]:
        """The current files, ordered by id."""
        with self._lock:
            return tuple(sorted(self._stats.values(), key=lambda one: one.file_id))

    def drop_empty(self) -> tuple[int, ...]:
        """Remove read-only files without used bytes from the set; returns their ids."""
        with self._lock:
            gone = []
            for stat in list(self._stats.values()):
                with stat.lock:
                    if stat.read_only and stat.valid == 0:
                        gone.append(stat.file_id)
                        del self._stats[stat.file_id]
            return tuple(gone)

    def status(self, *, ranges: bool = False) -> tuple[BlobFileStatus, ...]:
        """The state of each file."""
        found = []
        for stat in self.all():
            with stat.lock:
                free = tuple(stat.space.free_ranges()) if ranges else ()
                boundary = stat.space.used_boundary
                found.append(BlobFileStatus(stat.file_id, stat.total, stat.valid, boundary, stat.read_only, free))
        return tuple(found)
