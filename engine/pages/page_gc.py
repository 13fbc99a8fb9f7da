"""Garbage collection: versions that nobody sees go, their room is used again, and files that are mostly empty are given back.

A round goes through these steps, each of which may be cut short at any moment without harm:

1. a checkpoint of the log, when it has too many files;
2. versions that neither the last batch nor a live snapshot sees are let go, also those between two snapshots;
3. their room is free once nobody reads there any more; a read-only file without anything in use is removed;
4. files are cut behind their last byte in use, once before the first step as well, so that what a write left that met a full
   disk is no obstacle; one that is mostly empty becomes read-only: it is to be emptied;
5. what lies in read-only files is read, checked, written elsewhere, and logged with the epoch raised.  What changed meanwhile
   stays as it is, and so does what its checksum does not vouch for.  An entry that many references lead to moves once;
6. those who keep external pages are told which are still needed.

The room that step 5 leaves is given back by the next round.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from waltzctl.engine.errors import DamageError, DiskWriteError, SyncFailedError, WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.checkpoint import Checkpoint, checkpoint_of
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.formats.pages.write_batch import Edit, EditType, PageEntry, PageId, Version, encode_batch

_PAGES_AT_ONCE = 1000
"""Pages of which versions are collected without letting readers in between."""
_EDITS_OF_A_RECORD = 256
"""About a block of the log; what is damaged of a checkpoint costs the pages of one record."""
_MOVED_AT_ONCE = 8 << 20
"""Bytes that are moved with one record of the log."""


@dataclass(frozen=True, slots=True)
class GcLimits:
    """How much a round may do: bytes that it moves (None: all there is to move), and how many of them a second.

    A page is moved whole, and a copy of one with it.
    """

    max_moved: int | None = None
    bytes_per_second: float | None = None


@dataclass(slots=True)
class GcReport:
    """What a round did.  Sizes are in bytes; `findings` names pages that could not be moved."""

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
    """One round; a second caller waits for the first.  `checkpoint`: make one whatever the log has.

    Raises DiskWriteError, DiskReadError, PageStoreFailedError, and what callbacks for external pages raise.
    """
    report = GcReport()
    with store.collection_lock:
        store.check_open(writing=True)
        report.cut = store.blobs.cut_tails()  # on a full disk it is the room that all that follows needs
        if (checkpoint and store.wal.has_records) or store.wal.num_files > store.options.max_log_files:
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
        except (
            DiskWriteError
        ):  # what could not be emptied takes pages again: on a full disk it is the room that there is
            for stat in store.blobs.stats.all():
                with stat.lock:
                    stat.read_only = stat.read_only and not store.blobs.has_file(stat.file_id)
            raise
        _tell_of_external_pages(store)
    return report


def _tell_of_external_pages(store: PageStorage) -> None:
    """Raises what the first of the callbacks raised, once all namespaces had their turn."""
    failed: list[Exception] = []
    for namespace, scanner, remover in store.external_callbacks():
        try:
            pending = frozenset(scanner())  # before the alive ones are read: what is written in between is in neither
            with store.directory_lock:
                alive = frozenset(store.directory.alive_external_ids(namespace))
            remover(pending, alive)
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]


def collect_until_done(store: PageStorage) -> tuple[GcReport, int]:
    """Rounds until one finds nothing more to do, the first one with a checkpoint; what they did together, and how many.

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


def make_checkpoint(store: PageStorage) -> int:
    """Write what is published as a checkpoint, and remove the logs that it holds; returns its size in bytes.

    Writers wait while the log is closed and the columns are read, not while the checkpoint is written.  The caller holds the
    collection lock.  Raises as `collect_garbage`.
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
    """The records of a checkpoint, no two of which are equal."""
    yield from map(encode_batch, _records(checkpoint.edits))
    for start in range(0, len(checkpoint.plain), _EDITS_OF_A_RECORD):
        yield encode_batch(()) + checkpoint.plain[start : start + _EDITS_OF_A_RECORD].tobytes()


def _records(edits: Iterable[Edit]) -> Iterator[list[Edit]]:
    """Edits by records.  A reference stands in one with what it leads to, or it might lead elsewhere where that is damaged."""
    record: list[Edit] = []
    for edit in edits:
        if len(record) >= _EDITS_OF_A_RECORD and edit.type is not EditType.VAR_REF:
            yield record
            record = []
        record.append(edit)
    if record:
        yield record


def collect_versions(store: PageStorage) -> int:
    """Let go of what nobody sees; returns how many versions went."""
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
    """Make mostly empty files read-only; returns how many there are to empty."""
    count = 0
    for stat in store.blobs.stats.all():
        with stat.lock:
            boundary = stat.space.used_boundary
            kept_free = store.blobs.between_copies  # of a small store that is most of it, and would be so again
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
    """Copy what lies in read-only files elsewhere."""
    file_ids = [stat.file_id for stat in store.blobs.stats.all() if stat.read_only]
    if not file_ids:
        return
    with store.directory_lock:
        rows = store.directory.rows_in(file_ids)
        if store.blobs.between_copies:  # what is a copy of another page has the next id
            rows.sort(key=store.directory.page_of)
    for group in _groups(store, rows, limits):
        copied, data = [], []
        for one in group:
            try:
                data.append(_read(store, one))
            except DamageError as error:
                report.findings += error.findings
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
            return b""  # it is gone, and `_relocate` leaves it out
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
        # a copy moves with what it is a copy of: they are to lie apart; of more that hold the same each second one is a copy
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
            store.log_and_apply(edits, apply)
    kept = {id(span) for _, span in valid}
    store.blobs.give_back(_unused(spans, kept))
    report.pages_moved += len(valid)
    report.moved += sum(span.size for _, span in valid)


def _unused(spans: Iterable[BlobSpan], kept: set[int]) -> list[BlobSpan]:
    return [span for span in spans if id(span) not in kept]


class PageCollector:
    """A thread that collects garbage every `interval` seconds, until it is stopped.

    `last_error`: what ended the last round, None where nothing did; another round comes all the same.
    """

    def __init__(self, store: PageStorage, interval: float, limits: GcLimits = GcLimits()) -> None:  # frozen
        self._store = store
        self._interval = interval
        self._limits = limits
        self._stop = threading.Event()
        self.last_error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="page-gc", daemon=True)

    def start(self) -> None:
        """Begin; the first round comes after one interval."""
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                collect_garbage(self._store, self._limits, sleep=self._stop.wait)
                self.last_error = None
            except Exception as error:  # callbacks are others' code
                self.last_error = error

    def stop(self) -> None:
        """End, and wait for the round that is under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
