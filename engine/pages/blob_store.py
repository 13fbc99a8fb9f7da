"""Blob store: the data of pages in blob files.

All data of a batch goes into one range of one file with one write, and one flush unless the caller flushes it with its record,
but for a batch that is larger than a file may be: then page by page, and a page that is larger than that has a file for itself.
Room is taken under the locks of `blob_stats`, bytes are written outside of them, side by side.  A new file's name is durable
before anything is written into it.

Where `between_copies` says so, pages of a batch that hold the same bytes are copies of each other, so many bytes apart: when a
disk loses a sector, one of them is left.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.file_system import begin_writing
from waltzctl.engine.errors import DiskReadError, DiskWriteError
from waltzctl.engine.pages.blob_stats import BlobSpan, BlobStats
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.names import blob_name

Data = bytes | memoryview
LARGE = 256 << 10
"""Bytes from which on the disk is to begin in any case before the flush: while it writes them, the record is made."""

SECTOR = 4096
"""Bytes that a disk loses at once."""
_OTHERS = 256
"""Descriptors that a process has beside those of blob files."""


@dataclass
class BlobCounters:
    """Bytes written since the store was opened: by those who write pages, and by moving them."""

    written: int = 0
    moved: int = 0


class BlobStore:
    """The blob files of a directory, all open.  Thread-safe, but for `close`."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.stats = BlobStats(limit)
        self.counters = BlobCounters()
        self.between_copies = 0
        self._files: dict[int, WritableFile] = {}
        self._lock = threading.Lock()

    def path(self, file_id: int) -> Path:
        """Of a blob file."""
        return self.directory / blob_name(file_id)

    def has_file(self, file_id: int) -> bool:
        """Whether the file is there; that of a page that is lost may not be."""
        with self._lock:
            return file_id in self._files

    def adopt(self, file_id: int) -> None:
        """Open a file that exists.  Raises DiskWriteError, FileNotFoundError."""
        _have_descriptors(len(self._files))
        self._files[file_id] = WritableFile.open(self.path(file_id))

    def _create(self, file_id: int) -> None:
        _have_descriptors(len(self._files))
        file = WritableFile.create(self.path(file_id))
        try:
            disk.sync_directory(self.directory)
        except BaseException:
            file.close()
            raise
        with self._lock:
            self._files[file_id] = file

    def file(self, file_id: int) -> WritableFile:
        """An open blob file."""
        with self._lock:
            return self._files[file_id]

    def write(
        self, pages: Sequence[Data], *, moving: bool = False, flush: bool = True, begin: bool = False
    ) -> tuple[BlobSpan, ...]:
        """Write, and flush unless the caller does; returns where each page lies.  An empty page's span has no file and no size.

        `begin`: have the disk begin, where the caller flushes.

        Raises DiskFullError or DiskWriteError, after which the room that was taken is free again, and SyncFailedError, after
        which nothing that was written to that file can be relied upon.
        """
        whole = [page for page in pages if len(page)]
        size = sum(map(len, whole))
        if not whole:
            return (BlobSpan(0, 0, 0),) * len(pages)
        firsts, copies = _told_apart(whole) if self.between_copies else (range(len(whole)), ())
        gap = bytes(self.between_copies)
        between = [gap] if copies else []
        groups = [[*(whole[place] for place in firsts), *between, *(whole[place] for place in copies)]]
        if sum(map(len, groups[0])) > self.stats.limit:  # a copy may come to lie on either side of what it is a copy of
            groups = [*([whole[place]] for place in firsts), *([gap, whole[place], gap] for place in copies)]
        taken: list[BlobSpan] = []
        try:
            for group in groups:
                span = self.stats.take(sum(map(len, group)), self._create)
                taken.append(span)
                file = self.file(span.file_id)
                file.write_pieces_at(span.offset, group[:-1] if group[-1] is gap else group)
                if not flush and (begin or span.size >= LARGE):
                    begin_writing(file, span.offset, span.size)
            if flush:
                for file_id in dict.fromkeys(span.file_id for span in taken):
                    self.file(file_id).sync()
        except DiskWriteError:
            for span in taken:
                self.stats.give_back(span)
            raise
        with self._lock:
            self.counters.written += 0 if moving else size
            self.counters.moved += size if moving else 0
        spans = [
            (page, BlobSpan(span.file_id, offset, len(page)))
            for span, group in zip(taken, groups, strict=True)
            for page, offset in zip(group, itertools.accumulate(map(len, group), initial=span.offset), strict=False)
        ]
        self.give_back(span for page, span in spans if page is gap)
        where = dict(zip((*firsts, *copies), (span for page, span in spans if page is not gap), strict=True))
        places = map(where.__getitem__, range(len(whole)))
        return tuple(next(places) if len(page) else BlobSpan(0, 0, 0) for page in pages)

    def read(self, span: BlobSpan) -> bytes:
        """The bytes of a span; fewer where the file ends within it, none where it is not there.  Raises DiskReadError."""
        # one step of the interpreter: no lock, which readers would stand in line for
        file = self._files.get(span.file_id)
        return file.read_at(span.offset, span.size) if span.size and file is not None else b""

    def confirm(self, spans: Iterable[BlobSpan]) -> None:
        """Make durable what stands in spans; whoever wrote it may have died before, or been told that its flush failed.

        It is written anew: what a flush failed for is not flushed by another one.  A span that cannot be read stays as it is,
        and so does one whose file is gone.  Raises DiskWriteError.
        """
        files: dict[int, WritableFile] = {}
        for span in filter(lambda one: self.has_file(one.file_id), spans):
            file = files[span.file_id] = self.file(span.file_id)
            with contextlib.suppress(DiskReadError):
                file.write_at(span.offset, file.read_at(span.offset, span.size))
        for file in files.values():
            file.sync()

    def give_back(self, spans: Iterable[BlobSpan]) -> None:
        """Room that nobody uses any more."""
        for span in spans:
            if span.size:
                self.stats.give_back(span)

    def remove_empty(self) -> tuple[int, ...]:
        """Remove read-only files in which nothing is used; returns their ids.  Raises DiskWriteError.

        One that comes back after a crash is a file without a page, and takes pages again.
        """
        gone = []
        for file_id in self.stats.drop_empty():
            with self._lock:
                file = self._files.pop(file_id, None)
            if file is not None:
                file.close()
                disk.unlink(self.path(file_id))
                gone.append(file_id)
        return tuple(gone)

    def cut_tails(self) -> int:
        """Cut normal files behind their last byte in use; returns how many bytes went.  Raises DiskWriteError.

        The file is cut under the lock of its room: whoever took room behind the boundary meanwhile would be cut.  Nothing
        depends on when the cut is durable: behind the boundary stands nothing that anybody was promised.
        """
        given = 0
        for stat in self.stats.all():
            with stat.lock:
                if stat.read_only:
                    continue
                file = self.file(stat.file_id)
                size = file.size()
                if stat.cut() < size:
                    file.truncate(stat.total)
                    given += size - stat.total
        return given

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _have_descriptors(files: int) -> None:
    """Let this process have as many as it may where so many files come near its limit: 1,024, the usual one, are 256 GiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files + _OTHERS > soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _told_apart(pages: Sequence[Data]) -> tuple[Sequence[int], Sequence[int]]:
    """The numbers of pages, and those of their copies: of pages that hold the same bytes each second one.

    What is taken for a copy, by a checksum that is the same by chance, lies behind the others, and that is all.
    """
    seen: dict[tuple[int, int], int] = {}
    sides: tuple[list[int], list[int]] = [], []
    for number, page in enumerate(pages):
        key = len(page), crc32c(page)
        seen[key] = before = seen.get(key, -1) + 1
        sides[before % 2].append(number)
    return sides
