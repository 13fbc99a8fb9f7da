"""PageStorage: a directory of pages, open for reading and writing.  The reading half is `engine.pages.page_reader`.

A write goes through these steps:

1. The batch is checked for conflicts (`engine.pages.judgement`).
2. Its data is written to blob files.
3. The batch is checked again if another batch was committed since step 1.
4. Its record is written to the log, and the log is flushed.
5. The directory is changed in memory; readers see all edits of the batch at once, under one sequence.

Flushing: one flush makes data and record durable together (`EditFlag.FLUSHED_WITH_RECORD`).  Data larger than
`PageOptions.flushed_with_record`, and data written with `place`, is flushed before its record is written.

Group commit: writers that wait for the commit lock at the same time share one record and one flush.

Failures: a refused batch leaves nothing in the log.  If the conflict appears only in step 3, the space of its data is freed
again.  After a failed write or flush of the log, the content of the log is unknown: the store takes no more writes until it is
opened again; reads continue.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.durable.file_system import FileSystem
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import (
    DiskFullError,
    DiskWriteError,
    InvalidRequestError,
    NotWaltzError,
    PageStoreFailedError,
    SyncFailedError,
    WaltzError,
)
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.blob_store import SECTOR, BlobStore
from waltzctl.engine.pages.judgement import BatchJudge
from waltzctl.engine.pages.log_replay import blob_files, mark_space, restore
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_directory import PageDirectory
from waltzctl.engine.pages.page_options import DEFAULT_OPTIONS, PageOptions
from waltzctl.engine.pages.page_reader import PageReader, span_of
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.store_status import StoreStatus
from waltzctl.engine.pages.torn_tail import take_back_interrupted
from waltzctl.engine.pages.wal_reader import read_wal
from waltzctl.engine.pages.wal_store import WalStore
from waltzctl.formats.pages.names import BLOB_DIRECTORY, WAL_DIRECTORY
from waltzctl.formats.pages.write_batch import (
    Edit,
    EditFlag,
    PageEntry,
    Version,
    encode_batch,
    flushed_with_record,
)

FLUSHED_AT_ONCE = 512 << 10
"""Bytes of page data per record from which on blob files and log are flushed in one call (`WalStore.append`).

A record that several writers share is always flushed in one call.
"""
_LOG = logging.getLogger("waltzctl.pages")


Scanner = Callable[[], Iterable[int]]
Remover = Callable[[frozenset[int], frozenset[int]], None]


@dataclass(slots=True)
class _Ticket:
    """A batch that waits for the commit lock, and the result that its writer gets."""

    edits: list[Edit]
    judged: int | None = None
    """The sequence of the directory at which all edits passed the conflict check and all change something; None if unknown."""
    sequence: int | None = None
    error: WaltzError | None = None
    done: bool = field(default=False)


class PageStorage(PageReader):
    """An open page store.  Thread-safe.  Make one with `create` or `open`."""

    def __init__(
        self,
        path: Path,
        options: PageOptions,
        lock: DirectoryLock,
        directory: PageDirectory,
        blobs: BlobStore,
        wal: WalStore,
        flusher: Flusher,
    ) -> None:
        super().__init__(path, options, directory, blobs)
        self.wal = wal
        self.commit_lock = threading.Lock()
        """Held while the log is written and the directory is changed; acquired before `directory_lock`."""
        self.collection_lock = threading.Lock()
        """Held during a round of garbage collection; acquired before both other locks."""
        self._lock = lock
        self._flusher = flusher
        self._queue_lock = threading.Lock()
        self._queue: list[_Ticket] = []
        self._failure: WaltzError | None = None
        self._callbacks: dict[int, tuple[Scanner, Remover]] = {}

    # ---- opening and closing -----------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, path: Path, options: PageOptions = DEFAULT_OPTIONS, *, flusher: Flusher | None = None
    ) -> PageStorage:
        """Make a store at `path`, which is an empty directory or does not exist, and `open` it.

        Raises InvalidRequestError, DiskWriteError.
        """
        if not path.is_dir():
            if os.path.lexists(path):
                raise InvalidRequestError(f"{path}: exists and is not a directory", advice="name a new directory")
            disk.make_directory(path)
            disk.sync_directory(path.parent)
        ours = (BLOB_DIRECTORY, WAL_DIRECTORY)  # an interrupted `create` leaves these directories, empty
        left = [name for name in names_in(path) or () if name not in (disk.STATE_DIRECTORY, *ours)]
        if left := left or [name for name in ours if names_in(path / name)]:
            raise InvalidRequestError(f"{path}: not empty, {left[0]} is there", advice="name a new directory")
        for name in ours:
            if not (path / name).is_dir():
                disk.make_directory(path / name)
        return cls.open(path, options, flusher=flusher)

    @classmethod
    def open(cls, path: Path, options: PageOptions = DEFAULT_OPTIONS, *, flusher: Flusher | None = None) -> PageStorage:
        """Open a store for reading and writing.

        `flusher`: flushes data and log together; it is closed with the store.  By default the store makes its own.

        Raises NotWaltzError, DirectoryLockedError, DamageError for a damaged log and for pages that overlap, DiskError.
        """
        if options.recovery in (RecoveryMode.POINT_IN_TIME, RecoveryMode.SKIP_DAMAGED):
            raise InvalidRequestError(
                f"{path}: not opened for writing with recovery mode {options.recovery.value}",
                advice="what it leaves out would be gone for good; salvage into a new directory",
            )
        if not (path / WAL_DIRECTORY).is_dir():
            raise NotWaltzError(f"{path}: no page store", advice=f"one has the directory {WAL_DIRECTORY}")
        lock = DirectoryLock.acquire(path, None)
        flusher = flusher or Flusher(log=_LOG, threads=1, file_system=FileSystem.of(path), fewest_at_once=2)
        blobs = BlobStore(path / BLOB_DIRECTORY, options.blob_limit)
        try:
            take_back_interrupted(path)
            contents = read_wal(path)
            directory = restore(contents, options.recovery)
            present = blob_files(path)
            mark_space(directory, blobs.stats, {one: blobs.path(one) for one in present}, path)
            for file_id in present:
                blobs.adopt(file_id)
            # a process that crashed may have created entries without flushing them
            for names in (path, blobs.directory):
                disk.sync_directory(names)
            named = [span_of(entry) for entry in contents.unconfirmed_pages]
            blobs.confirm(named)
            continue_log = partial(
                WalStore.continue_behind, flusher=flusher, log_size=options.log_size, twice=options.records_twice
            )
            try:
                wal = continue_log(contents)
            except DiskFullError:  # unused tails of blob files may fill the disk: no other process can cut them
                if not blobs.cut_tails(named):  # without what the last record names it would count as torn
                    raise
                take_back_interrupted(path)
                wal = continue_log(read_wal(path))
            blobs.between_copies = SECTOR if wal.twice else 0
        except BaseException:
            blobs.close()
            flusher.close()
            lock.release()
            raise
        return cls(path, options, lock, directory, blobs, wal, flusher)

    def close(self) -> None:
        """Close the log and all files; a second call does nothing.  Raises DiskWriteError."""
        with self.collection_lock, self.commit_lock:
            if self._closed:
                return
            self._closed = True
            try:
                self.wal.close()
            finally:
                self.blobs.close()
                self._flusher.close()
                self._lock.release()

    def __enter__(self) -> PageStorage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_open(self, *, writing: bool = False) -> None:
        """Raises InvalidRequestError if the store is closed, and with `writing` PageStoreFailedError after a failed flush."""
        super().check_open()
        if writing and self._failure is not None:
            raise PageStoreFailedError(
                f"{self.path}: takes no writes since this failed: {self._failure}", advice="open the page store again"
            )

    # ---- writing -----------------------------------------------------------------------------------------------------

    def write(self, batch: WriteBatch) -> int:
        """Apply the edits of a batch durably; returns its sequence, or the last sequence if the batch changes nothing.

        - PageConflictError, DiskFullError, DiskWriteError of the data: nothing was changed.
        - PageStoreFailedError, SyncFailedError, DiskWriteError of the log: it is unknown whether the batch is in the log; the
          store takes no more writes.
        """
        data, edits, judged = batch.data, batch.edits, None
        if data:  # check before any data is written; `_commit` checks again if other batches were committed meanwhile
            self.check_open(writing=True)
            judged = self.directory_lock.read(self._check_conflicts, edits)
        together = sum(map(len, data)) <= self.options.flushed_with_record
        spans = self._write_data(data, flush=not together, begin=not self.commit_lock.locked())
        places, flags = iter(spans), EditFlag.FLUSHED_WITH_RECORD if together else 0
        edits = [
            edit
            if edit.entry is None
            else Edit(edit.type, edit.page, edit.version, _entry_at(edit.entry, next(places)), flags=flags)
            for edit in edits
        ]
        try:
            sequence = self.commit(edits, judged)
        except WaltzError:
            self.give_back(spans)
            raise
        written = [edit.page for edit in edits if edit.entry is not None]
        for page, view in dict(zip(written, data, strict=True)).items():  # the last edit of a page counts
            self._cache.put(page, Version(sequence), _as_bytes(view))
        return sequence

    def _check_conflicts(self, edits: list[Edit]) -> int | None:
        """Check for conflicts; returns the value for `_Ticket.judged`.  Raises PageConflictError."""
        made = BatchJudge(self.directory).judge(edits)
        return self.directory.sequence if len(made) == len(edits) else None

    def place(self, data: Sequence[memoryview | bytes]) -> tuple[BlobSpan, ...]:
        """Write and flush data of pages whose edits are committed later with `commit`.  A crash before that frees the data again.

        Raises as `write`.
        """
        return self._write_data(data, flush=True)

    def _write_data(
        self, data: Sequence[memoryview | bytes], *, flush: bool, begin: bool = False
    ) -> tuple[BlobSpan, ...]:
        """`begin`: start writeback at once; no other writer is active that the disk could serve first."""
        self.check_open(writing=True)
        try:
            return self.blobs.write(data, flush=flush, begin=begin)
        except SyncFailedError as error:
            self.fail(error)
            raise

    def give_back(self, spans: Iterable[BlobSpan]) -> None:
        """Free the space of data that was placed and that no edit names.

        After a failure of the log it stays allocated: the log may contain the edits that name it.
        """
        if self._failure is None:
            self.blobs.give_back(spans)

    def fail(self, error: WaltzError) -> None:
        """Take no more writes."""
        self._failure = self._failure or error

    def check_in_place(self) -> None:
        """Take no more writes when the store was moved, or another one was put at its path.  Raises DiskWriteError.

        Files are made and removed by name, and data that was placed before the next commit may lie in the other store.
        """
        try:
            self._lock.check_in_place()
        except DiskWriteError as error:
            self.fail(error)
            raise

    def commit(self, edits: list[Edit], judged: int | None = None) -> int:
        """Commit edits whose data is in blob files; returns their sequence.  `judged`: see `_Ticket`.  Raises as `write`."""
        self.check_in_place()
        ticket = _Ticket(edits, judged)
        with self._queue_lock:
            self._queue.append(ticket)
        with self.commit_lock:  # group commit: the holder writes the batches of all waiting writers
            if not ticket.done:
                self._commit()
        if ticket.error is not None:
            raise ticket.error
        assert ticket.sequence is not None
        return ticket.sequence

    def _commit(self) -> None:
        """Commit all queued batches.  If this is interrupted, every writer whose batch left the queue gets the error."""
        group: list[_Ticket] = []
        accepted: list[tuple[_Ticket, list[Edit]]] = []
        try:
            with self._queue_lock:
                group, self._queue = self._queue, []
            self.check_open(writing=True)
            with self.directory_lock:
                judge, sequence = BatchJudge(self.directory), self.directory.sequence
                for ticket in group:
                    try:
                        # no batch was committed since the check
                        checked = len(group) == 1 and ticket.judged == sequence
                        made = ticket.edits if checked else judge.judge(ticket.edits)
                    except WaltzError as error:
                        ticket.error = error
                        continue
                    sequence += bool(made)
                    ticket.sequence = sequence
                    version = Version(sequence)
                    accepted.append((ticket, [_with_version(edit, version) for edit in made]))
            if edits := [edit for _, made in accepted for edit in made]:
                self.log_and_apply(edits, alone=len(group) == 1)
        except BaseException as error:  # the outcome is unknown to all writers of the group
            reported = (
                error if isinstance(error, WaltzError) else PageStoreFailedError(f"{self.path}: interrupted: {error!r}")
            )
            for ticket in group:
                ticket.error = ticket.error or reported
            if reported is not error:
                self.fail(reported)  # otherwise the writers would free data that the log may name
                raise
        finally:
            for ticket in group:
                ticket.done = True

    def log_and_apply(
        self, edits: Sequence[Edit], apply: Callable[[], None] | None = None, *, alone: bool = False
    ) -> None:
        """Write a record, flush it, then publish its edits.

        The caller holds the commit lock and has checked the edits.  `apply`: publishes the edits in memory, if that differs from
        what a replay of the log would do.  `alone`: all edits are of one writer.  Raises DiskWriteError.
        """
        entries = flushed_with_record(edits)
        files, size = {entry.file_id for entry in entries}, sum(entry.size for entry in entries)
        self._log(
            encode_batch(edits),
            [self.blobs.file(file_id) for file_id in sorted(files)],
            begun=alone and 0 < size < FLUSHED_AT_ONCE,
        )
        try:
            with self.directory_lock:
                if apply is not None:
                    apply()
                else:
                    for edit in edits:
                        self.directory.apply(edit)
                    self._collect_superseded(edits)
                self.reclamation.supersede(self.directory.take_freed(), named=self.wal.unconfirmed)
        except BaseException as error:  # the log has all edits, memory may have only some
            self.fail(PageStoreFailedError(f"interrupted: {error!r}"))
            raise
        self.blobs.give_back(self.reclamation.released())
        try:
            self.wal.roll_when_full()
        except WaltzError as error:  # the record itself is durable
            self.fail(error)

    def _log(self, payload: bytes, with_files: Sequence[WritableFile] = (), *, begun: bool = False) -> None:
        """Write a record durably.  This confirms the record before it, so data that only that record names may be reused."""
        try:
            self.wal.append(payload, with_files, begun=begun)
        except BaseException as error:
            self.fail(error if isinstance(error, WaltzError) else PageStoreFailedError(f"interrupted: {error!r}"))
            raise
        self.reclamation.confirm()

    def confirm(self) -> None:
        """Write an empty batch if the last record is unconfirmed, so that it counts whatever becomes of the data flushed with it.

        The caller holds the collection lock.  Raises as `write`.
        """
        with self.commit_lock:
            if not self.wal.unconfirmed:
                self.reclamation.confirm()  # the record that closed the log confirms it
            elif self._failure is None:
                self._log(encode_batch(()))

    def _collect_superseded(self, edits: Iterable[Edit]) -> None:
        """Drop the versions that these edits superseded, if no snapshot is held; otherwise garbage collection drops them.

        Pages that are rewritten again and again therefore reuse space, and files do not grow.
        """
        if not self._snapshots.held:
            for edit in edits:
                self.directory.collect(self.directory.find(edit.page), ())

    # ---- external pages, and status ------------------------------------------------------------------------------------

    def register_external_callbacks(self, namespace: int, scanner: Scanner, remover: Remover) -> None:
        """Register callbacks that remove external pages of a namespace which nothing needs any more.

        In each round of garbage collection `scanner` first returns the ids of the external pages that exist; then `remover` gets
        these and the ids that are still needed.  Raises InvalidRequestError for a namespace that has callbacks.
        """
        if namespace in self._callbacks:
            raise InvalidRequestError(f"namespace {namespace} has callbacks for external pages already")
        self._callbacks[namespace] = (scanner, remover)

    def unregister_external_callbacks(self, namespace: int) -> None:
        """Remove the callbacks of a namespace; does nothing if there are none."""
        self._callbacks.pop(namespace, None)

    def external_callbacks(self) -> list[tuple[int, Scanner, Remover]]:
        """The registered callbacks: namespace, scanner, remover."""
        return [(namespace, scanner, remover) for namespace, (scanner, remover) in self._callbacks.items()]

    def blob_size(self) -> int:
        """Size of all blob files, in bytes."""
        return sum(os.stat(self.blobs.path(file_id)).st_size for file_id in blob_files(self.path))

    def status(self) -> StoreStatus:
        """Statistics of the store."""
        with self.directory_lock:
            sequence, size = self.directory.sequence, self.directory.size
        counters = self.blobs.counters
        return StoreStatus(
            sequence, size, self.blobs.stats.status(), self.wal.num_files, self.snapshot_statistics(),
            counters.written, counters.moved, self.wal.written,
        )  # fmt: skip


def _with_version(edit: Edit, version: Version) -> Edit:
    return Edit(edit.type, edit.page, version, edit.entry, edit.origin, flags=edit.flags)


def _as_bytes(view: memoryview | bytes) -> bytes:
    """The bytes of a view; not copied if the view covers all of an immutable object."""
    whole = view.obj if isinstance(view, memoryview) else view
    return whole if type(whole) is bytes and len(whole) == len(view) else bytes(view)


def _entry_at(entry: PageEntry, span: BlobSpan) -> PageEntry:
    return PageEntry(span.file_id, span.offset, entry.size, entry.checksum, entry.tag, entry.fields)
