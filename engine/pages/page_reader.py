"""Reading an open page store: pages, their fields and locations, as of now or of a snapshot.

Readers take no lock (`engine.pages.sequence_lock`) and wait for no writer.  Bytes come from the cache, which holds only bytes
that passed their checksum, or from a blob file, whose space is not reused while a reader may read it (`Reclamation.reading`).

A snapshot is a sequence.  It keeps the versions that it sees from being collected; it costs nothing else, and never blocks a
writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from waltzctl.engine.errors import DamageError, InvalidRequestError, NoSuchPageError
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.blob_store import BlobStore
from waltzctl.engine.pages.page_cache import PageCache
from waltzctl.engine.pages.page_data import is_whole, page_finding
from waltzctl.engine.pages.page_directory import Located, PageDirectory
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.reclamation import Reclamation
from waltzctl.engine.pages.sequence_lock import SequenceLock
from waltzctl.engine.pages.snapshots import HeldSnapshots, Snapshot, SnapshotStatistics
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.write_batch import PageEntry, PageId


class Page(NamedTuple):
    """A page that was read.  `id`: the one that was asked for, also for a reference; `fields`: views of its fields in `data`."""

    id: int
    namespace: int
    tag: int
    data: memoryview
    fields: tuple[memoryview, ...] = ()


class PageReader:
    """The reading half of `engine.pages.page_storage.PageStorage`.  Thread-safe."""

    def __init__(self, path: Path, options: PageOptions, directory: PageDirectory, blobs: BlobStore) -> None:
        self.path = path
        self.options = options
        self.directory = directory
        self.directory_lock = SequenceLock()
        self.blobs = blobs
        self.reclamation = Reclamation(options.superseded_kept)
        self._cache = PageCache(options.cache_size)
        self._snapshots = HeldSnapshots(path, directory, self.directory_lock)
        self._closed = False

    def check_open(self) -> None:
        """Raises InvalidRequestError if the store is closed."""
        if self._closed:
            raise InvalidRequestError(f"{self.path}: the page store is closed")

    def get_entry(self, page: int, *, namespace: int = 0, snapshot: Snapshot | None = None) -> Located | None:
        """Where a page is stored, None if it does not exist.  Its bytes are not read."""
        self.check_open()
        sequence = self._snapshots.sequence_of(snapshot)
        return self.directory_lock.read(self.directory.locate, PageId(namespace, page), sequence)

    def _locate(self, pages: Sequence[PageId], sequence: int | None) -> list[tuple[Located, PageEntry]]:
        """Pages with data, all as of one moment.  Raises NoSuchPageError."""
        located = self.directory_lock.read(lambda: [self.directory.locate(page, sequence) for page in pages])
        return list(map(self._with_data, pages, located))

    def _with_data(self, page: PageId, found: Located | None) -> tuple[Located, PageEntry]:
        """Raises NoSuchPageError if the page does not exist or is external."""
        if found is None:
            raise NoSuchPageError(f"{self.path}: there is no page {page}")
        if found.entry is None:
            raise NoSuchPageError(f"{self.path}: page {page} is external, its data is kept elsewhere")
        return found, found.entry

    def read(self, page: int, *, namespace: int = 0, snapshot: Snapshot | None = None) -> Page:
        """A page.  Raises NoSuchPageError, DamageError if its checksum is wrong, DiskReadError."""
        self.check_open()
        sequence = self._snapshots.sequence_of(snapshot)
        wanted = PageId(namespace, page)
        found = self.directory_lock.read(self.directory.locate, wanted, sequence)
        known = None if found is None or found.entry is None else self._cache.get(found.origin, found.version)
        if found is not None and known is not None:  # never for an external page, even if its batch wrote it before
            return _page(found, known)
        with self.reclamation.reading():
            found = self.directory_lock.read(self.directory.locate, wanted, sequence)
            return self._read(*self._with_data(wanted, found))

    def read_many(self, pages: Sequence[int], *, namespace: int = 0, snapshot: Snapshot | None = None) -> list[Page]:
        """Pages as of one moment, in the order of `pages`.  Raises as `read`."""
        self.check_open()
        sequence = self._snapshots.sequence_of(snapshot)
        with self.reclamation.reading():
            found = self._locate([PageId(namespace, page) for page in pages], sequence)
            return [self._read(one, entry) for one, entry in found]

    def _read(self, found: Located, entry: PageEntry) -> Page:
        """A page from the cache or from its file; called within `Reclamation.reading`."""
        whole = self._cache.get(found.origin, found.version)
        if whole is None:
            whole = self.read_entry(found.page, entry)
            self._cache.put(found.origin, found.version, whole)
        return _page(found, whole)

    def read_entry(self, page: PageId, entry: PageEntry) -> bytes:
        """A page's bytes from its file, checked.  Raises DamageError, DiskReadError."""
        data = self.blobs.read(span_of(entry))
        if not is_whole(entry, data):
            self._refuse(page, entry, entry.offset, entry.size, len(data), "it")
        return data

    def read_fields(
        self, page: int, fields: Sequence[int], *, namespace: int = 0, snapshot: Snapshot | None = None
    ) -> list[memoryview]:
        """Some fields of a page, by number from 0.  Only these are read and checked, unless the cache has the whole page.

        Raises InvalidRequestError for a field that the page does not have, otherwise as `read`.
        """
        self.check_open()
        sequence = self._snapshots.sequence_of(snapshot)
        with self.reclamation.reading():
            ((found, entry),) = self._locate([PageId(namespace, page)], sequence)
            ends = [*(one.offset for one in entry.fields[1:]), entry.size]
            whole = self._cache.get(found.origin, found.version)
            read = []
            for number in fields:
                if not 0 <= number < len(entry.fields):
                    raise InvalidRequestError(
                        f"page {found.page} has {len(entry.fields)} fields, and none of number {number}"
                    )
                one, size = entry.fields[number], ends[number] - entry.fields[number].offset
                if whole is not None:
                    read.append(memoryview(whole)[one.offset : ends[number]])
                    continue
                data = self.blobs.read(BlobSpan(entry.file_id, entry.offset + one.offset, size))
                if len(data) != size or crc32c(data) != one.checksum:
                    self._refuse(found.page, entry, entry.offset + one.offset, size, len(data), f"field {number}")
                read.append(memoryview(data))
            return read

    def _refuse(self, page: PageId, entry: PageEntry, offset: int, size: int, found: int, what: str) -> NoReturn:
        self.check_open()  # bytes may be missing only because another thread closed the store
        finding = page_finding(self.path, page, entry, offset, size, found, what)
        raise DamageError(f"{finding.path}: {finding.message}", [finding])

    def traverse(self, *, namespace: int | None = None, snapshot: Snapshot | None = None) -> Iterator[Located]:
        """Every page of a namespace, or of all, ordered by namespace and id, all as of one moment."""
        self.check_open()
        with self.snapshot() if snapshot is None else contextlib.nullcontext(snapshot) as seen:
            sequence = self._snapshots.sequence_of(seen)
            with self.directory_lock:
                pages = self.directory.page_ids(namespace)
            for page in pages:
                found = self.directory_lock.read(self.directory.locate, page, sequence)
                if found is not None:
                    yield found

    def normal_page_id(self, page: int, *, namespace: int = 0, snapshot: Snapshot | None = None) -> int:
        """The id of the page that a reference resolves to; the page's own id if it is no reference.  Raises NoSuchPageError."""
        found = self.get_entry(page, namespace=namespace, snapshot=snapshot)
        if found is None:
            raise NoSuchPageError(f"{self.path}: there is no page {PageId(namespace, page)}")
        return found.origin.id

    def max_id(self, *, namespace: int = 0) -> int:
        """The highest id that any page of the namespace ever had, including deleted ones; 0 before the first page."""
        self.check_open()
        with self.directory_lock:
            return self.directory.highest_ids.get(namespace, 0)

    # ---- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A snapshot of the current state."""
        self.check_open()
        return self._snapshots.take()

    def snapshot_statistics(self) -> SnapshotStatistics:
        """Number of held snapshots, and the age of the oldest."""
        return self._snapshots.statistics()

    def held_sequences(self) -> list[int]:
        """Sequences of the held snapshots, descending.  The caller holds the directory lock."""
        return self._snapshots.sequences()


def span_of(entry: PageEntry) -> BlobSpan:
    """Where a page's bytes are stored."""
    return BlobSpan(entry.file_id, entry.offset, entry.size)


def _page(found: Located, whole: bytes) -> Page:
    entry, data = found.entry, memoryview(whole)
    assert entry is not None
    if not entry.fields:
        return Page(found.page.id, found.page.namespace, entry.tag, data)
    ends = [*(one.offset for one in entry.fields[1:]), entry.size]
    fields = tuple(data[one.offset : end] for one, end in zip(entry.fields, ends, strict=False))
    return Page(found.page.id, found.page.namespace, entry.tag, data, fields)
