"""PageStorage: a directory of pages, open for reading and writing.

A write is judged, puts its data into blob files, is judged once more where anything came in between, goes into the log, is
flushed, and is only then in memory and seen by readers: all of it at once, under one sequence.  One flush makes data and record
durable; what is larger than `PageOptions.flushed_with_record`, and what `place` was given, is flushed before its record is
written.  Writers that come together share one record and one flush.  A write that is refused leaves nothing in the log, and in
a blob file only room that is used again, where what refuses it came in between.  After a write or flush of the log that failed
nobody knows what is in it: nothing more is written until the store is opened again; reading goes on.

What it shows is the other half, `engine.pages.page_reader`.
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
from waltzctl.engine.durable.file_system import FileSystem
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import (
    DiskFullError,
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
"""Bytes of a record's pages from which on one call flushes all (`WalStore.append`); what several writers share, always."""
_LOG = logging.getLogger("waltzctl.pages")


Scanner = Callable[[], Iterable[int]]
Remover = Callable[[frozenset[int], frozenset[int]], None]


@dataclass(slots=True)
class _Ticket:
    """A batch on its way into the log."""

    edits: list[Edit]
    judged: int | None = None
    """The sequence at which all edits were found to change something; None where that is not known."""
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
        """Held by whoever writes the log and changes the directory; taken before `directory_lock`."""
        self.collection_lock = threading.Lock()
        """Held by a round of garbage collection; taken before both others."""
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
        """Make a store at `path`, an empty directory or none, and `open` it.  Raises InvalidRequestError, DiskWriteError."""
        if not path.is_dir():
            if os.path.lexists(path):
                raise InvalidRequestError(f"{path}: exists and is not a directory", advice="name a new directory")
            disk.make_directory(path)
            disk.sync_directory(path.parent)
        ours = (BLOB_DIRECTORY, WAL_DIRECTORY)  # empty ones are what is left where this was interrupted
        left = [name for name in os.listdir(path) if name not in (disk.STATE_DIRECTORY, *ours)]
        if left := left or [name for name in ours if (path / name).is_dir() and os.listdir(path / name)]:
            raise InvalidRequestError(f"{path}: not empty, {left[0]} is there", advice="name a new directory")
        for name in ours:
            if not (path / name).is_dir():
                disk.make_directory(path / name)
        return cls.open(path, options, flusher=flusher)

    @classmethod
    def open(cls, path: Path, options: PageOptions = DEFAULT_OPTIONS, *, flusher: Flusher | None = None) -> PageStorage:
        """Open a store for reading and writing.

        `flusher`: makes data and log durable together, and is closed with the store; one of its own unless given.

        Raises NotWaltzError, DirectoryLockedError, DamageError for a log that is damaged and for pages that overlap or have no
        file, DiskError.
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
            for names in (path, blobs.directory):  # whoever made them may have died before this
                disk.sync_directory(names)
            blobs.confirm([span_of(entry) for entry in contents.unconfirmed_pages])
            go_on = partial(
                WalStore.continue_behind, flusher=flusher, log_size=options.log_size, twice=options.records_twice
            )
            try:
                wal = go_on(contents)
            except DiskFullError:  # perhaps of what a write left that died or failed here: nobody else can cut that
                if not blobs.cut_tails():
                    raise
                take_back_interrupted(path)
                wal = go_on(read_wal(path))
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
        """Raises InvalidRequestError once it is closed, and for `writing` PageStoreFailedError after a failed flush."""
        super().check_open()
        if writing and self._failure is not None:
            raise PageStoreFailedError(
                f"{self.path}: takes no writes since this failed: {self._failure}", advice="open the page store again"
            )

    # ---- writing -----------------------------------------------------------------------------------------------------

    def write(self, batch: WriteBatch) -> int:
        """Make the edits of a batch, durably; returns its sequence, or the last one where it changes nothing.

        Raises PageConflictError for an edit that cannot be made, and DiskFullError or DiskWriteError where the data could not be
        written: nothing was changed then.  Raises PageStoreFailedError, and SyncFailedError or DiskWriteError of the log: it is
        not known whether the batch is in the log, and no more is written.
        """
        data, edits, judged = batch.data, batch.edits, None
        if data:  # or what is refused would be in a blob file; `_commit` judges once more what comes in between
            self.check_open(writing=True)
            judged = self.directory_lock.look(self._judged, edits)
        together = sum(map(len, data)) <= self.options.flushed_with_record
        spans = self._placed(data, flush=not together, begin=not self.commit_lock.locked())
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
        for page, view in dict(zip(written, data, strict=True)).items():  # of several of one page the last one counts
            self._cache.put(page, Version(sequence), _as_bytes(view))
        return sequence

    def _judged(self, edits: list[Edit]) -> int | None:
        """See `_Ticket.judged`.  Raises PageConflictError."""
        made = BatchJudge(self.directory).judge(edits)
        return self.directory.sequence if len(made) == len(edits) else None

    def place(self, data: Sequence[memoryview | bytes]) -> tuple[BlobSpan, ...]:
        """Write and flush data of pages that edits name later, for `commit`.  Until then a crash takes it back.

        Raises as `write`.
        """
        return self._placed(data, flush=True)

    def _placed(self, data: Sequence[memoryview | bytes], *, flush: bool, begin: bool = False) -> tuple[BlobSpan, ...]:
        """`begin`: nobody else writes now, so that the disk has nothing to wait for."""
        self.check_open(writing=True)
        try:
            return self.blobs.write(data, flush=flush, begin=begin)
        except SyncFailedError as error:
            self.fail(error)
            raise

    def give_back(self, spans: Iterable[BlobSpan]) -> None:
        """Room of data that was placed and that no edit names.  After a failure of the log nobody knows, and it stays taken."""
        if self._failure is None:
            self.blobs.give_back(spans)

    def fail(self, error: WaltzError) -> None:
        """Write nothing more."""
        self._failure = self._failure or error

    def commit(self, edits: list[Edit], judged: int | None = None) -> int:
        """Write edits whose data is in place; returns their sequence.  `judged`: see `_Ticket`.  Raises as `write`."""
        ticket = _Ticket(edits, judged)
        with self._queue_lock:
            self._queue.append(ticket)
        with self.commit_lock:  # whoever has it writes for all that wait for it
            if not ticket.done:
                self._commit()
        if ticket.error is not None:
            raise ticket.error
        assert ticket.sequence is not None
        return ticket.sequence

    def _commit(self) -> None:
        """Write for all that wait.  Whoever is interrupted once they are taken from the queue tells them so."""
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
                        known = len(group) == 1 and ticket.judged == sequence  # nothing came in between
                        made = ticket.edits if known else judge.judge(ticket.edits)
                    except WaltzError as error:
                        ticket.error = error
                        continue
                    sequence += bool(made)
                    ticket.sequence = sequence
                    version = Version(sequence)
                    accepted.append((ticket, [_with_version(edit, version) for edit in made]))
            if edits := [edit for _, made in accepted for edit in made]:
                self.log_and_apply(edits, alone=len(group) == 1)
        except BaseException as error:  # whoever waits with an interrupted writer knows as little as that one
            told = (
                error if isinstance(error, WaltzError) else PageStoreFailedError(f"{self.path}: interrupted: {error!r}")
            )
            for ticket in group:
                ticket.error = ticket.error or told
            if told is not error:
                self.fail(told)  # or room would be given back of what is in the log, and shown
                raise
        finally:
            for ticket in group:
                ticket.done = True

    def log_and_apply(
        self, edits: Sequence[Edit], apply: Callable[[], None] | None = None, *, alone: bool = False
    ) -> None:
        """Log, flush, then show.  The caller holds the commit lock, and has judged them.  Raises DiskWriteError.

        `apply`: shows them, where that is not what a replay of the log would do to make them.  `alone`: they are one writer's.
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
        except BaseException as error:  # the log has it and memory only a part
            self.fail(PageStoreFailedError(f"interrupted: {error!r}"))
            raise
        self.blobs.give_back(self.reclamation.released())
        try:
            self.wal.roll_when_full()
        except WaltzError as error:  # what was written is durable all the same
            self.fail(error)

    def _log(self, payload: bytes, with_files: Sequence[WritableFile] = (), *, begun: bool = False) -> None:
        """Write a record, durably.  What the one before it named and is not needed any more need not stay as it is then."""
        try:
            self.wal.append(payload, with_files, begun=begun)
        except BaseException as error:
            self.fail(error if isinstance(error, WaltzError) else PageStoreFailedError(f"interrupted: {error!r}"))
            raise
        self.reclamation.confirm()

    def confirm(self) -> None:
        """Have a record stand behind the last one, so that this one counts whatever becomes of the data that it names.

        The caller holds the collection lock.  Raises as `write`.
        """
        with self.commit_lock:
            if not self.wal.unconfirmed:
                self.reclamation.confirm()  # the log was closed behind it
            elif self._failure is None:
                self._log(encode_batch(()))

    def _collect_superseded(self, edits: Iterable[Edit]) -> None:
        """Let go of versions that these edits took the place of, unless a snapshot may see them: then collection does it.

        So pages that are written again and again are written where they were before, and files do not grow.
        """
        if not self._snapshots.held:
            for edit in edits:
                self.directory.collect(self.directory.find(edit.page), ())

    # ---- external pages, and what the store is like --------------------------------------------------------------------

    def register_external_callbacks(self, namespace: int, scanner: Scanner, remover: Remover) -> None:
        """Have external pages of a namespace removed that nothing needs any more.

        In each round of garbage collection `scanner` tells first which there are, and `remover` is then given those and the ones
        that are still needed.  Raises InvalidRequestError for a namespace that has callbacks.
        """
        if namespace in self._callbacks:
            raise InvalidRequestError(f"namespace {namespace} has callbacks for external pages already")
        self._callbacks[namespace] = (scanner, remover)

    def unregister_external_callbacks(self, namespace: int) -> None:
        """Forget them; nothing happens where there are none."""
        self._callbacks.pop(namespace, None)

    def external_callbacks(self) -> list[tuple[int, Scanner, Remover]]:
        """Those that are registered."""
        return [(namespace, scanner, remover) for namespace, (scanner, remover) in self._callbacks.items()]

    def blob_size(self) -> int:
        """Bytes that the blob files take."""
        return sum(os.stat(self.blobs.path(file_id)).st_size for file_id in blob_files(self.path))

    def status(self) -> StoreStatus:
        """What the store holds."""
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
    """Not copied where it is all of an object that cannot change."""
    whole = view.obj if isinstance(view, memoryview) else view
    return whole if type(whole) is bytes and len(whole) == len(view) else bytes(view)


def _entry_at(entry: PageEntry, span: BlobSpan) -> PageEntry:
    return PageEntry(span.file_id, span.offset, entry.size, entry.checksum, entry.tag, entry.fields)
