"""Blob store: the data of pages in blob files.

The data of a batch is written into one range of one file, with one write, and flushed unless the caller flushes it with its
record.  A batch larger than the limit of a file is written page by page; a page larger than that gets a file of its own.  Space
is allocated under the locks of `blob_stats`; the bytes are written outside of them, concurrently.  The name of a new file is
durable before anything is written into the file.

With `between_copies` set, pages of a batch with equal bytes are treated as copies of each other, and stored at least that many
bytes apart: if the disk loses a sector, one copy survives.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.descriptor_limit import few_descriptors_left, raise_descriptor_limit, with_raised_limit
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.file_system import begin_writing
from waltzctl.engine.errors import DiskReadError, DiskWriteError
from waltzctl.engine.pages.blob_stats import BlobSpan, BlobStats
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.names import blob_name

Data = bytes | memoryview
LARGE = 256 << 10
"""Bytes from which on writeback is started before the flush in any case: the disk then writes while the record is built."""

SECTOR = 4096
"""Bytes that a disk loses at once."""
_OTHER_DESCRIPTORS = 256
"""File descriptors that a process needs besides those of blob files."""


@dataclass
class BlobCounters:
    """Bytes written since the store was opened: `written` by writers of pages, `moved` by garbage collection."""

    written: int = 0
    moved: int = 0


class BlobStore:
    """The blob files of a directory, all open.  Thread-safe except for `close`.

    `between_copies`: bytes between a page and its copy; 0 if records are not written twice.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.stats = BlobStats(limit)
        self.counters = BlobCounters()
        self.between_copies = 0
        self._files: dict[int, WritableFile] = {}
        self._lock = threading.Lock()

    def path(self, file_id: int) -> Path:
        """Path of a blob file."""
        return self.directory / blob_name(file_id)

    def has_file(self, file_id: int) -> bool:
        """Whether the file exists; that of a lost page may not."""
        with self._lock:
            return file_id in self._files

    def adopt(self, file_id: int) -> None:
        """Open an existing file.  Raises DiskWriteError, FileNotFoundError."""
        self._files[file_id] = _open(lambda: WritableFile.open(self.path(file_id)))

    def _add(self, file_id: int) -> None:
        file = _open(lambda: self._create(file_id))
        with self._lock:
            self._files[file_id] = file

    def _create(self, file_id: int) -> WritableFile:
        with disk.opened_directory(self.directory) as directory:
            file = WritableFile.create(self.path(file_id))
            try:
                disk.sync_directory(self.directory, directory)
            except BaseException:
                file.close()
                raise
            return file

    def file(self, file_id: int) -> WritableFile:
        """An open blob file."""
        with self._lock:
            return self._files[file_id]

    def write(
        self, pages: Sequence[Data], *, moving: bool = False, flush: bool = True, begin: bool = False
    ) -> tuple[BlobSpan, ...]:
        """Write pages; returns where each is stored.  The span of an empty page has no file and no size.

        `flush`: flush them; otherwise the caller does.  `begin`: start writeback if the caller flushes.  `moving`: for the
        counters.

        Raises DiskFullError or DiskWriteError, after which the allocated space is free again, and SyncFailedError, after which
        none of the bytes written to that file can be relied upon.
        """
        whole = [page for page in pages if len(page)]
        size = sum(map(len, whole))
        if not whole:
            return (BlobSpan(0, 0, 0),) * len(pages)
        firsts, copies = _split_copies(whole) if self.between_copies else (range(len(whole)), ())
        gap = bytes(self.between_copies)
        between = [gap] if copies else []
        groups = [[*(whole[place] for place in firsts), *between, *(whole[place] for place in copies)]]
        # written one by one, a copy may land on either side of its original: a gap before and after it
        if sum(map(len, groups[0])) > self.stats.limit:
            groups = [*([whole[place]] for place in firsts), *([gap, whole[place], gap] for place in copies)]
        taken: list[BlobSpan] = []
        try:
            for group in groups:
                span = self.stats.take(sum(map(len, group)), self._add)
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
        """The bytes of a span; fewer if the file ends within it, none if the file does not exist.  Raises DiskReadError."""
        # no lock, on which readers would queue: a dictionary lookup is atomic under the interpreter's lock
        file = self._files.get(span.file_id)
        return file.read_at(span.offset, span.size) if span.size and file is not None else b""

    def confirm(self, spans: Iterable[BlobSpan]) -> None:
        """Make spans durable whose flush may have failed or never happened, because the writing process crashed.

        They are rewritten: after a failed flush, another flush does not write the same pages again.  Spans that cannot be read,
        and those whose file does not exist, are skipped.  Raises DiskWriteError.
        """
        files: dict[int, WritableFile] = {}
        for span in filter(lambda one: self.has_file(one.file_id), spans):
            file = files[span.file_id] = self.file(span.file_id)
            with contextlib.suppress(DiskReadError):
                file.write_at(span.offset, file.read_at(span.offset, span.size))
        for file in files.values():
            file.sync()

    def give_back(self, spans: Iterable[BlobSpan]) -> None:
        """Free space that nothing uses any more."""
        for span in spans:
            if span.size:
                self.stats.give_back(span)

    def remove_empty(self) -> tuple[int, ...]:
        """Remove read-only files without used bytes; returns their ids.  Raises DiskWriteError.

        The removal need not be durable: a file that reappears after a crash holds no page, and takes pages again.
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

    def cut_tails(self, named: Iterable[BlobSpan] = ()) -> int:
        """Truncate normal files after their last used byte; returns how many bytes were cut.  Raises DiskWriteError.

        `named`: unused spans that stay, as the last record of the log names them.  Truncation happens under the lock of the
        file's space, so that no writer allocates space after the boundary meanwhile.  It need not be durable: nothing
        acknowledged is stored after the boundary.
        """
        given, ends = 0, dict[int, int]()
        for span in named:
            ends[span.file_id] = max(ends.get(span.file_id, 0), span.offset + span.size)
        for stat in self.stats.all():
            with stat.lock:
                if stat.read_only:
                    continue
                file = self.file(stat.file_id)
                size = file.size()
                if (end := max(stat.cut(), ends.get(stat.file_id, 0))) < size:
                    file.truncate(end)
                    given += size - end
        return given

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _open(open_file: Callable[[], WritableFile]) -> WritableFile:
    """An open blob file.  The limit of open files is raised where they have become too many, or nearly.

    The usual soft limit, 1,024, is enough for 256 GiB.
    """
    file = with_raised_limit(open_file)
    if few_descriptors_left(file.fileno(), _OTHER_DESCRIPTORS):
        raise_descriptor_limit()
    return file


def _split_copies(pages: Sequence[Data]) -> tuple[Sequence[int], Sequence[int]]:
    """Indexes of the pages, and indexes of their copies: of pages with equal bytes, every second one is a copy.

    Equality is judged by size and checksum.  A collision does no harm: the page is only stored after the others.
    """
    seen: dict[tuple[int, int], int] = {}
    sides: tuple[list[int], list[int]] = [], []
    for number, page in enumerate(pages):
        key = len(page), crc32c(page)
        seen[key] = before = seen.get(key, -1) + 1
        sides[before % 2].append(number)
    return sides
