"""Inspecting a page store without opening it: its log, the integrity of every page, and the use of its files.

Nothing is locked or changed, and another process may write to the store meanwhile.  What that process is just writing, moving or
removing may look like damage for a moment; so only damage that a second inspection finds as well is reported.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from waltzctl.engine.durable.directory_lock import lock_holder
from waltzctl.engine.durable.disk import TEMPORARY_SUFFIX
from waltzctl.engine.durable.file_status import FileNumbers, file_numbers, names_in
from waltzctl.engine.durable.quarantine import interruptions
from waltzctl.engine.errors import DamageError, DiskReadError
from waltzctl.engine.findings import Code, Finding, Severity, make_finding, status_of, worst
from waltzctl.engine.pages.blob_stats import BlobFileStatus, BlobStat
from waltzctl.engine.pages.log_replay import blob_files, overlap_finding, restore
from waltzctl.engine.pages.page_data import read_checked
from waltzctl.engine.pages.page_directory import Located, PageDirectory
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.store_status import write_amplification
from waltzctl.engine.pages.torn_tail import STORE
from waltzctl.engine.pages.wal_reader import WalContents, edits_of, payloads_of, read_wal, wal_findings
from waltzctl.formats.pages.blocks import LogRecord
from waltzctl.formats.pages.names import (
    BLOB_DIRECTORY,
    WAL_DIRECTORY,
    LogName,
    blob_name,
    parse_blob_name,
    parse_log_name,
)
from waltzctl.formats.pages.write_batch import (
    BatchError,
    Edit,
    EditType,
    PageEntry,
    PageId,
    Version,
    decode_batch,
    plain_entries,
)

_LIST_ATTEMPTS = 5
"""How often the log directory is listed again if its files are removed while they are read."""


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store as its log describes it, including the records after damage.  `findings` are those of the log."""

    path: Path
    contents: WalContents
    directory: PageDirectory
    findings: tuple[Finding, ...]

    def pages(self) -> Iterator[Located]:
        """Every page, ordered by namespace and id."""
        for page in self.directory.page_ids():
            found = self.directory.locate(page)
            if found is not None:
                yield found


StoreState = dict[str, FileNumbers | None]
"""File metadata by name relative to the store; it differs after any write to the store."""


def store_state(path: Path) -> StoreState:
    """Metadata of the store's log and blob files, without reading them; empty if there are none."""
    names: list[str] = []
    for directory in (WAL_DIRECTORY, BLOB_DIRECTORY):
        with contextlib.suppress(DiskReadError):  # reading the directory reports the error
            names += [f"{directory}/{name}" for name in names_in(path / directory) or ()]
    found: StoreState = dict.fromkeys(names)
    for name in names:
        # reading such a file reports the error; what is in other files can be read
        with contextlib.suppress(DiskReadError):
            found[name] = file_numbers(path / name)
    return found


def read_settled(path: Path) -> WalContents:
    """The log, also of a store whose log files are created and removed meanwhile.  Raises NotWaltzError, DiskReadError."""
    for attempt in range(_LIST_ATTEMPTS):
        try:
            return read_wal(path)
        except FileNotFoundError as error:  # a checkpoint replaced some logs
            if attempt == _LIST_ATTEMPTS - 1:
                raise DiskReadError(path / WAL_DIRECTORY, None, error, doing="list") from error
    raise AssertionError("unreachable")


def view_store(path: Path, *, every_version: bool = False) -> StoreView:
    """Read the log.  `every_version`: keep superseded versions of pages, as far as the log has them.

    Raises NotWaltzError, DiskReadError.
    """
    contents = read_settled(path)
    findings = wal_findings(contents, path)
    whole = not any(one.severity is Severity.DAMAGE for one in findings)
    try:
        directory = restore(contents, RecoveryMode.SKIP_DAMAGED, lenient=not whole, every_version=every_version)
    except DamageError as error:
        last = contents.files[-1].path if contents.files else contents.directory
        findings.append(make_finding(Code.LOG_RECORD_CHECKSUM, last, error.message, storage_directory=path))
        directory = restore(contents, RecoveryMode.SKIP_DAMAGED, lenient=True, every_version=every_version)
    return StoreView(path, contents, directory, tuple(findings))


def holder(path: Path) -> int | None:
    """Id of the process that has the store open; 0 if it is unknown, None if no process has."""
    return lock_holder(path, None)


# ---- status ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageStoreStatus:
    """Statistics of a store; sizes in bytes.

    - `locked_by`: see `holder`.
    - `blob_size`: of all blob files; `valid_size`: the part of it that pages use.
    - `data_written`, `data_moved`, `log_written`: since the last checkpoint, by writers, by garbage collection, and to the log.
    """

    path: Path
    locked_by: int | None
    sequence: int
    namespaces: int
    pages: int
    references: int
    external_pages: int
    versions: int
    data_written: int
    data_moved: int
    log_written: int
    log_files: int
    log_size: int
    blob_size: int
    valid_size: int
    blobs: tuple[BlobFileStatus, ...]
    findings: tuple[Finding, ...]

    @property
    def space_amplification(self) -> float | None:
        """Bytes of blob files per byte that pages use; None if they use none."""
        return self.blob_size / self.valid_size if self.valid_size else None

    @property
    def snapshots(self) -> int | None:
        """Number of held snapshots; None if a process has the store open, as only that process knows."""
        return 0 if self.locked_by is None else None

    @property
    def write_amplification(self) -> float | None:
        """Bytes written per byte of page data since the last checkpoint; None if no page was written."""
        return write_amplification(self.data_written, self.data_moved, self.log_written)


def store_status(path: Path) -> PageStoreStatus:
    """Statistics of a store, from its log and the sizes of its files.  Raises NotWaltzError, DiskReadError."""
    view = view_store(path)
    found = list(view.pages())
    blobs, held = blob_status(view), holder(path)
    interrupted = () if held is not None else tuple(interruptions(path, STORE))
    written, moved, log = _written(view.contents)
    return PageStoreStatus(
        path=path,
        locked_by=held,
        sequence=view.directory.sequence,
        namespaces=len({one.page.namespace for one in found}),
        pages=len(found),
        references=sum(one.is_reference for one in found),
        external_pages=sum(one.is_external and not one.is_reference for one in found),
        versions=view.directory.size.rows,
        data_written=written,
        data_moved=moved,
        log_written=log,
        log_files=len(view.contents.files),
        log_size=sum(file.size for file in view.contents.files),
        blob_size=sum(blob.total for blob in blobs),
        valid_size=sum(blob.valid for blob in blobs),
        blobs=blobs,
        findings=(*interrupted, *view.findings),
    )


def _written(contents: WalContents) -> tuple[int, int, int]:
    """Bytes of pages written, of pages moved by garbage collection, and of logs, since the last checkpoint."""
    logs = replace(contents, files=tuple(file for file in contents.files if not file.name.is_checkpoint))
    sizes = {EditType.PUT: 0, EditType.UPSERT: 0}
    for edit in edits_of(logs, RecoveryMode.SKIP_DAMAGED):
        if edit.entry is not None and edit.type in sizes:
            sizes[edit.type] += edit.entry.size
    return sizes[EditType.PUT], sizes[EditType.UPSERT], sum(file.size for file in logs.files)


def blob_status(view: StoreView, *, ranges: bool = False) -> tuple[BlobFileStatus, ...]:
    """How full each blob file is; `total` is its size, 0 for a missing file that pages are stored in."""
    sizes = _sizes(view.path)
    spans: dict[int, list[tuple[int, int]]] = {file_id: [] for file_id in sizes}
    for file_id, offset, size in view.directory.spans().tolist():
        spans.setdefault(file_id, []).append((offset, size))
    statuses = []
    for file_id, used in sorted(spans.items()):
        size = sizes.get(file_id, 0)
        stat = BlobStat(file_id, max([size, *(offset + length for offset, length in used)]))
        for offset, length in used:
            stat.mark_used(offset, length)
        free = tuple(stat.space.free_ranges()) if ranges else ()
        statuses.append(BlobFileStatus(file_id, size, stat.valid, stat.space.used_boundary, False, free))
    return tuple(statuses)


def _sizes(path: Path) -> dict[int, int]:
    sizes = {}
    for file_id in blob_files(path):
        try:
            sizes[file_id] = os.stat(path / BLOB_DIRECTORY / blob_name(file_id)).st_size
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DiskReadError(path / BLOB_DIRECTORY / blob_name(file_id), None, error, doing="examine") from error
    return sizes


# ---- verify ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageVerification:
    """What was verified and what was found.  `bytes`: of pages and log that were read and checked."""

    path: Path
    findings: tuple[Finding, ...]
    pages: int
    references: int
    log_files: int
    log_records: int
    blob_files: int
    bytes: int
    elapsed_seconds: float

    def count(self, severity: Severity) -> int:
        """Findings of a severity."""
        return sum(one.severity is severity for one in self.findings)

    @property
    def grave(self) -> tuple[Finding, ...]:
        """All findings but notes."""
        return tuple(one for one in self.findings if one.severity is not Severity.NOTE)

    @property
    def status(self) -> str:
        """``clean``, ``repairable`` or ``damaged``."""
        return status_of(worst(self.findings))


def verify_store(path: Path, *, exclusive: bool = False) -> PageVerification:
    """Read the log and every page.  `exclusive`: the caller holds the store's lock, so nothing else writes to the store.

    Raises NotWaltzError, DiskReadError.
    """
    began, before = time.monotonic(), store_state(path)
    view = view_store(path)
    findings, read = _findings(view)
    held = not exclusive and holder(path) is not None
    if findings and (held or store_state(path) != before):  # a writer was active: report only what is found twice
        view = view_store(path)
        again, read = _findings(view)
        seen = {(one.code, one.path, one.offset) for one in findings}
        findings = [
            one for one in again if (one.code, one.path, one.offset) in seen and one.code is not Code.SPACE_LEAKED
        ]
    if not held:  # a repair that is running now is not interrupted
        findings = [*interruptions(path, STORE), *findings]
    found = list(view.pages())
    files = view.contents.files
    return PageVerification(
        path, tuple(findings), len(found), sum(one.is_reference for one in found), len(files),
        sum(len(file.records) for file in files), len(_sizes(path)), read + sum(file.size for file in files),
        time.monotonic() - began,
    )  # fmt: skip


def _findings(view: StoreView) -> tuple[list[Finding], int]:
    """Findings of a store, and how many bytes of pages were read."""
    findings = [*view.findings, *_unknown_names(view)]
    # with a damaged log it is unknown which bytes of a file belong to pages
    known = all(one.severity is not Severity.DAMAGE for one in findings)
    findings += [one for one in _space_findings(view) if known or one.code is not Code.SPACE_LEAKED]
    read = 0
    for page, entry in entries_of(view.directory):
        data, fault = read_checked(view.path, page, entry)
        read += len(data)
        findings += [] if fault is None else [fault]
    return findings, read


def entries_of(directory: PageDirectory) -> Iterator[tuple[PageId, PageEntry]]:
    """Every entry with data, including held ones, in the order of their place in the files."""
    entries = []
    for file_id in dict.fromkeys(directory.spans()[:, 0].tolist()):
        for row in directory.rows_in([file_id]):
            found = directory.at(row)
            if found is not None:
                entries.append((found[2].file_id, found[2].offset, found[0], found[2]))
    for _, _, page, entry in sorted(entries, key=lambda one: one[:2]):
        yield page, entry


def _space_findings(view: StoreView) -> Iterator[Finding]:
    ends: dict[int, int] = {}
    for file_id, offset, size in view.directory.spans().tolist():
        if offset < ends.get(file_id, 0):
            yield overlap_finding(view.path, file_id, offset, size)
        ends[file_id] = max(ends.get(file_id, 0), offset + size)
    beyond = {file_id: size for file_id, size in _sizes(view.path).items() if size > ends.get(file_id, 0)}
    logged = _logged_ends(view.contents) if beyond else {}
    for file_id, size in beyond.items():
        end = max(ends.get(file_id, 0), logged.get(file_id, 0))
        if size > end:
            said = f"{size - end} bytes behind the last page" if end else f"{size} bytes, and no page lies in it"
            path = view.path / BLOB_DIRECTORY / blob_name(file_id)
            yield make_finding(
                Code.SPACE_LEAKED, path, said, storage_directory=view.path, offset=end, length=size - end
            )


def _logged_ends(contents: WalContents) -> dict[int, int]:
    """For each blob file, the end of the last page that any log record names.

    This includes pages that are deleted but not yet collected.
    """
    ends: dict[int, int] = {}
    for _, payload in payloads_of(contents, RecoveryMode.SKIP_DAMAGED):
        if (table := plain_entries(payload)) is not None:
            reach = table["entry.offset"] + table["entry.size"]
            for file_id in set(table["entry.file_id"].tolist()):
                ends[file_id] = max(ends.get(file_id, 0), int(reach[table["entry.file_id"] == file_id].max()))
            continue
        with contextlib.suppress(BatchError):
            for edit in decode_batch(payload):
                if (entry := edit.entry) is not None:
                    ends[entry.file_id] = max(ends.get(entry.file_id, 0), entry.offset + entry.size)
    return ends


def _unknown_names(view: StoreView) -> Iterator[Finding]:
    """Files that do not belong to a page store."""
    for directory, known in ((WAL_DIRECTORY, parse_log_name), (BLOB_DIRECTORY, parse_blob_name)):
        for name in names_in(view.path / directory) or ():
            if known(name) is None:
                half = name.endswith(TEMPORARY_SUFFIX)
                code = Code.TEMPORARY_FILE if half else Code.UNKNOWN_FILE
                said = "it was being built when its process ended" if half else "it belongs to nothing in a page store"
                yield make_finding(code, view.path / directory / name, said)


# ---- dump ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DumpedVersion:
    """A version of a page in the log; `located` is None for a delete.  `latest`: whether it is the page's last version."""

    page: PageId
    version: Version
    located: Located | None
    latest: bool

    @property
    def kind(self) -> str:
        """``data``, ``reference``, ``external`` or ``delete``."""
        if self.located is None:
            return "delete"
        return "reference" if self.located.is_reference else "external" if self.located.is_external else "data"


@dataclass(frozen=True, slots=True)
class LoggedEdit:
    """An edit, its record, and its position (from 0) in the record."""

    log: LogName
    record: LogRecord
    place: int
    edit: Edit


@dataclass(frozen=True, slots=True)
class FreeRange:
    """Bytes of a blob file that no page uses."""

    file_id: int
    offset: int
    size: int


def dump_versions(view: StoreView) -> Iterator[DumpedVersion]:
    """Every version of every page that the view has, newest first."""
    for page in view.directory.page_ids():
        for place, (version, located) in enumerate(view.directory.versions(page)):
            yield DumpedVersion(page, version, located, place == 0)


def dump_log(view: StoreView) -> Iterator[LoggedEdit]:
    """Every readable edit of the log, in the order in which they are applied.  Copies of records are skipped."""
    for file in view.contents.files:
        for record in file.records:
            if record.is_copy:
                continue
            try:
                edits = decode_batch(record.payload)
            except BatchError:
                continue
            for place, edit in enumerate(edits):
                yield LoggedEdit(file.name, record, place, edit)


def dump_free(view: StoreView) -> Iterator[FreeRange]:
    """The free ranges of the blob files, up to the end of each file."""
    for blob in blob_status(view, ranges=True):
        for offset, size in blob.free_ranges:
            yield FreeRange(blob.file_id, offset, size)
