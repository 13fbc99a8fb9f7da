"""Garbage collection: drop versions that nothing sees, free their space, and empty blob files that are mostly unused.

A round has these steps; an interruption at any point does no harm:

1. Truncate blob files after their last used byte; this comes first, so that a full disk has room for the rest.
2. Write a checkpoint if the log has too many files.
3. Drop versions that neither the last batch nor a held snapshot sees, including versions between two snapshots.
4. Free their space once no reader can be reading it; remove read-only files without used bytes.
5. Make files read-only that are mostly unused, to be emptied; truncate the others again.
6. Copy the pages of read-only files elsewhere: read them, check them, write them, and log their new place with the epoch raised
   by 1.  A page that changed meanwhile, whose checksum is wrong, or that the disk cannot read, stays where it is.  An entry with
   many references is copied once.
7. Call the callbacks of external pages with the ids that are still needed.

The next round frees the space of the pages that step 6 copied.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from waltzctl.engine.errors import DamageError, DiskReadError, DiskWriteError, SyncFailedError, WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.checkpoint import Checkpoint, checkpoint_of
from waltzctl.engine.pages.page_data import unreadable_finding
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.formats.pages.write_batch import Edit, EditType, PageEntry, PageId, Version, encode_batch

_PAGES_AT_ONCE = 1000
"""Pages whose versions are collected under one hold of the directory lock."""
_EDITS_OF_A_RECORD = 256
"""Edits per checkpoint record, about one block of the log: a damaged record costs only its own pages."""
_MOVED_AT_ONCE = 8 << 20
"""Bytes that are moved with one record of the log."""


@dataclass(frozen=True, slots=True)
class GcLimits:
    """Limits of a round: `max_moved`: bytes to move (None: no limit); `bytes_per_second`: the rate of moving (None: no limit).

    A page is moved whole, and together with its copy, so a round may exceed `max_moved` by that.
    """

    max_moved: int | None = None
    bytes_per_second: float | None = None


@dataclass(slots=True)
class GcReport:
    """What a round did; sizes in bytes.

    - `checkpoint_size`: of the checkpoint, 0 if none was written.
    - `versions`: how many were dropped; `freed`: size of their data, once no reader can be reading it.
    - `files_removed`, `files_to_empty`: blob files removed, and read-only ones left; `cut`: by how much files were truncated.
    - `pages_moved`, `moved`: number and size of the pages copied to other files.
    - `findings`: pages that could not be copied, because their data is damaged.
    """

    checkpoint_size: int = 0
    versions: int = 0
    freed: int = 0
    files_removed: int = 0
    cut: int = 0
    files_to_empty: int = 0
    pages_moved: int = 0
    moved: int = 0
    findings: list[Finding] = field(default_factory=list)


def collect_garbage(
    store: PageStorage,
    limits: GcLimits = GcLimits(),  # frozen
    *,
    checkpoint: bool = False,
    sleep: Callable[[float], object] = time.sleep,
) -> GcReport:
    """Do one round; a second caller waits for the first.  `checkpoint`: write one even if the log has few files.

    Raises DiskWriteError, DiskReadError, PageStoreFailedError, and what callbacks for external pages raise.
    """
    report = GcReport()
    with store.collection_lock:
        store.check_open(writing=True)
        store.check_in_place()
        report.cut = store.blobs.cut_tails()  # on a full disk, the other steps need this space
        wanted = checkpoint and (store.wal.has_records or store.wal.lacks_copies)
        if wanted or store.wal.num_files > store.options.max_log_files:
            report.checkpoint_size = make_checkpoint(store)
        store.confirm()
        report.versions = collect_versions(store)
        released = store.reclamation.released()
        store.blobs.give_back(released)
        report.freed = sum(span.size for span in released)
        report.files_removed = len(store.blobs.remove_empty())
        report.files_to_empty = _choose_files(store)
        report.cut += store.blobs.cut_tails()
        try:
            _move(store, limits, sleep, report)
        except DiskWriteError:  # files that could not be emptied accept pages again: a full disk has no other space
            for stat in store.blobs.stats.all():
                with stat.lock:
                    stat.read_only = stat.read_only and not store.blobs.has_file(stat.file_id)
            raise
        _collect_external_pages(store)
    return report


def _collect_external_pages(store: PageStorage) -> None:
    """Call the callbacks of all namespaces, then raise the first error that one of them raised."""
    failed: list[Exception] = []
    for namespace, scanner, remover in store.external_callbacks():
        try:
            pending = frozenset(scanner())  # before the needed ids are read: a page added in between is in neither set
            with store.directory_lock:
                alive = frozenset(store.directory.alive_external_ids(namespace))
            remover(pending, alive)
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]


def collect_until_done(store: PageStorage) -> tuple[GcReport, int]:
    """Do rounds until one finds nothing to do, the first with a checkpoint; returns the sum of their reports and their number.

    Raises as `collect_garbage`.
    """
    total = GcReport()
    for rounds in itertools.count(1):
        done = collect_garbage(store, checkpoint=rounds == 1)
        for name in ("checkpoint_size", "versions", "freed", "files_removed", "cut", "pages_moved", "moved"):
            setattr(total, name, getattr(total, name) + getattr(done, name))
        total.files_to_empty, total.findings = done.files_to_empty, done.findings
        if not (done.versions or done.freed or done.files_removed or done.pages_moved):
            return total, rounds
    raise AssertionError("unreachable")


def complete_copies(store: PageStorage) -> None:
    """Write a checkpoint if a store that writes each record twice has older ones that were written once.

    Raises as `collect_garbage`.
    """
    with store.collection_lock:
        if store.wal.lacks_copies:
            make_checkpoint(store)


def make_checkpoint(store: PageStorage) -> int:
    """Write all published versions as a checkpoint and remove the logs that it replaces; returns its size in bytes.

    Writers wait only while the log is closed and the columns are copied, not while the checkpoint is written.  The caller holds
    the collection lock.  Raises as `collect_garbage`.
    """
    with store.commit_lock:
        try:
            number = store.wal.roll()
        except WaltzError as error:
            store.fail(error)
            raise
        with store.directory_lock:
            checkpoint = checkpoint_of(store.directory)
    return store.wal.finish_checkpoint(number, checkpoint_payloads(checkpoint))


def checkpoint_payloads(checkpoint: Checkpoint) -> Iterator[bytes]:
    """The records of a checkpoint; no two are equal, so equal neighbours are copies (`records_twice`)."""
    yield from map(encode_batch, _records(checkpoint.edits))
    for start in range(0, len(checkpoint.plain), _EDITS_OF_A_RECORD):
        yield encode_batch(()) + checkpoint.plain[start : start + _EDITS_OF_A_RECORD].tobytes()


def _records(edits: Iterable[Edit]) -> Iterator[list[Edit]]:
    """Group edits into records.

    A reference is in the same record as its target: if that record is damaged, both are lost, and the reference cannot resolve to
    another version.
    """
    record: list[Edit] = []
    for edit in edits:
        if len(record) >= _EDITS_OF_A_RECORD and edit.type is not EditType.VAR_REF:
            yield record
            record = []
        record.append(edit)
    if record:
        yield record


def collect_versions(store: PageStorage) -> int:
    """Drop versions that nothing sees; returns how many."""
    with store.directory_lock:
        pages = store.directory.untidy_pages()
    total = 0
    for start in range(0, len(pages), _PAGES_AT_ONCE):
        with store.directory_lock:
            snapshots = store.held_sequences()
            total += sum(store.directory.collect(page, snapshots) for page in pages[start : start + _PAGES_AT_ONCE])
            store.reclamation.supersede(store.directory.take_freed(), named=store.wal.unconfirmed)
    store.reclamation.retire()
    return total


def _choose_files(store: PageStorage) -> int:
    """Make mostly unused files read-only; returns how many read-only files there are."""
    count = 0
    for stat in store.blobs.stats.all():
        with stat.lock:
            boundary = stat.space.used_boundary
            # the gap between copies is unused on purpose, and moving would recreate it
            kept_free = store.blobs.between_copies
            worth = boundary - stat.valid > kept_free and stat.valid <= store.options.full_gc_rate * boundary
            if not stat.read_only and boundary and worth:
                stat.read_only = True
            count += stat.read_only
    return count


@dataclass(frozen=True, slots=True)
class _Candidate:
    row: int
    page: PageId
    version: Version
    entry: PageEntry


def _move(store: PageStorage, limits: GcLimits, sleep: Callable[[float], object], report: GcReport) -> None:
    """Copy the pages of read-only files to other files."""
    file_ids = [stat.file_id for stat in store.blobs.stats.all() if stat.read_only]
    if not file_ids:
        return
    with store.directory_lock:
        rows = store.directory.rows_in(file_ids)
        if store.blobs.between_copies:  # the copy of a page has the next id
            rows.sort(key=store.directory.page_of)
    for group in _groups(store, rows, limits):
        copied, data = [], []
        for one in group:
            try:
                data.append(_read(store, one))
            except DamageError as error:
                report.findings += error.findings
                continue
            except DiskReadError as error:  # a lost sector must not keep the space of all other pages from being freed
                report.findings.append(unreadable_finding(store.path, one.page, one.entry, error))
                continue
            copied.append(one)
        moved = sum(map(len, data))
        _relocate(store, copied, data, report)
        if limits.bytes_per_second and moved:
            sleep(moved / limits.bytes_per_second)


def _read(store: PageStorage, one: _Candidate) -> bytes:
    with store.reclamation.reading():
        with store.directory_lock:
            current = store.directory.at(one.row)
        if current != (one.page, one.version, one.entry):
            return b""  # it changed: `_relocate` skips it
        return store.read_entry(one.page, one.entry)


def _groups(store: PageStorage, rows: list[int], limits: GcLimits) -> Iterator[list[_Candidate]]:
    group: list[_Candidate] = []
    size = total = 0
    copy = False
    for row in rows:
        with store.directory_lock:
            found = store.directory.at(row)
        if found is None:
            continue
        page, version, entry = found
        # a page and its copy move in one group, so that the blob store keeps them apart; every second equal neighbour is a copy
        copy = bool(store.blobs.between_copies and group and not copy) and entry.checksum == group[-1].entry.checksum
        if limits.max_moved is not None and total + entry.size > limits.max_moved and total and not copy:
            break
        if size >= min(_MOVED_AT_ONCE, store.blobs.stats.limit) and not copy:
            yield group
            group, size = [], 0
        group.append(_Candidate(row, page, version, entry))
        size, total = size + entry.size, total + entry.size
    if group:
        yield group


def _relocate(store: PageStorage, candidates: list[_Candidate], data: list[bytes], report: GcReport) -> None:
    try:
        spans = store.blobs.write(data, moving=True)
    except SyncFailedError as error:
        store.fail(error)
        raise
    placed = list(zip(candidates, spans, strict=True))
    with store.commit_lock:
        with store.directory_lock:
            valid = [
                (one, span)
                for one, span in placed
                if span.size and store.directory.at(one.row) == (one.page, one.version, one.entry)
            ]
        edits = [
            Edit(
                EditType.UPSERT,
                one.page,
                Version(one.version.sequence, one.version.epoch + 1),
                one.entry._replace(file_id=span.file_id, offset=span.offset),
            )
            for one, span in valid
        ]

        def apply() -> None:
            for (one, _), edit in zip(valid, edits, strict=True):
                assert edit.entry is not None
                store.directory.move(one.row, edit.entry, edit.version.epoch)

        if edits:
            store.check_open(writing=True)
            store.check_in_place()
            store.log_and_apply(edits, apply)
    kept = {id(span) for _, span in valid}
    store.blobs.give_back(_unused(spans, kept))
    report.pages_moved += len(valid)
    report.moved += sum(span.size for _, span in valid)


def _unused(spans: Iterable[BlobSpan], kept: set[int]) -> list[BlobSpan]:
    return [span for span in spans if id(span) not in kept]


class PageCollector:
    """A thread that collects garbage every `interval` seconds until it is stopped.

    `last_error`: the error of the last round, None if it succeeded.  An error does not stop the thread.
    """

    def __init__(self, store: PageStorage, interval: float, limits: GcLimits = GcLimits()) -> None:  # frozen
        self._store = store
        self._interval = interval
        self._limits = limits
        self._stop = threading.Event()
        self.last_error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="page-gc", daemon=True)

    def start(self) -> None:
        """Start the thread; the first round begins after one interval."""
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                collect_garbage(self._store, self._limits, sleep=self._stop.wait)
                self.last_error = None
            except Exception as error:  # callbacks may raise anything
                self.last_error = error

    def stop(self) -> None:
        """Stop the thread, and wait for a round in progress."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
