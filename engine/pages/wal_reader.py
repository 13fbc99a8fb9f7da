"""Reading a page store's log: which files count, what they hold, and whether what is wrong with them is a torn end or damage.

Read are the checkpoint of the highest number and the logs behind it, in the order of their numbers; what a checkpoint holds is
left aside, and was only not removed in time.  A start takes a new number, and so does a log that is full, so no number is left
out.  A log that is not the last one, and a checkpoint, ends with an empty record: what lacks it was cut.

A write is one record, made durable before the next one begins.  Therefore an interrupted write explains bytes at the end of the
last log behind which no record begins (`LogFault.torn`), and nothing else: everything else is damage, and may have cost records
that somebody was promised.

A record may have become durable by one flush with data of its pages (`EditFlag.FLUSHED_WITH_RECORD`).  As long as nothing stands
behind it, it counts only if that data is there: else it is a torn end, too (`FaultKind.DATA`).

`RecoveryMode` says what is taken of a log that is not whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from waltzctl.engine.durable.disk import TEMPORARY_SUFFIX, read_range
from waltzctl.engine.errors import DamageError, DiskReadError, NotWaltzError
from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.pages.page_data import is_whole, read_page
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.formats.pages.blocks import FaultKind, LogFault, LogRecord, read_log
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
    PageEntry,
    decode_batch,
    flushed_with_record,
    plain_entries,
)

WAYS_ON = "take what is whole with pages recover --mode skip-damaged, or into a new directory with pages salvage"
"""What to do with a store that is not opened."""
_WHOLE_FILE = 1 << 62


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log: its whole records without the empty one that ends it, and its faults.

    `closed`: the empty record is there, and last.  `end`: behind the last whole record; `size`: behind the last byte that was
    written, both in bytes.  The file may be larger: zeros are room for records to come.
    """

    name: LogName
    path: Path
    records: tuple[LogRecord, ...]
    faults: tuple[LogFault, ...]
    closed: bool
    end: int
    size: int

    @property
    def unconfirmed(self) -> LogRecord | None:
        """The last record of the last log, where nothing stands behind it that would tell that it became durable."""
        if self.closed or not self.records or any(fault.offset >= self.end for fault in self.faults):
            return None
        return self.records[-1]


@dataclass(frozen=True, slots=True)
class WalContents:
    """The log of a directory: the files that count, in the order in which they are applied, and the names of the others.

    `lost`: there is none, and blob files hold data, which nobody writes before the first log is there.
    """

    directory: Path
    files: tuple[LogFile, ...]
    stale: tuple[LogName, ...] = ()
    temporary: tuple[str, ...] = ()
    lost: bool = False

    @property
    def checkpoint(self) -> LogFile | None:
        """The checkpoint that is read first."""
        return next((one for one in self.files[:1] if one.name.is_checkpoint), None)

    @property
    def last(self) -> LogFile | None:
        """The log that was written last."""
        return next((one for one in self.files[-1:] if not one.name.is_checkpoint), None)

    @property
    def highest_number(self) -> int:
        """Of all files, those that do not count as well."""
        return max([one.name.number for one in self.files] + [name.number for name in self.stale], default=0)

    @property
    def written_twice(self) -> bool:
        """Whether this is the log of a store whose records are there twice."""
        return any(record.is_copy for file in self.files for record in file.records)

    @property
    def unconfirmed_pages(self) -> list[PageEntry]:
        """Data that was flushed with the last record.  It is there, and perhaps not durable."""
        return [] if self.last is None else _flushed_with(self.last.unconfirmed)

    @property
    def torn_from(self) -> int | None:
        """Where the last log's torn end begins; None where its end is not torn."""
        last = self.last
        if last is None or not last.faults or not all(fault.torn for fault in last.faults):
            return None
        return last.end


def read_file(directory: Path, name: LogName) -> LogFile:
    """One file.  Raises DiskReadError, FileNotFoundError."""
    path = directory / str(name)
    data = read_range(path, 0, _WHOLE_FILE)
    read = read_log(data, name.number)
    closed = bool(read.records) and not read.records[-1].payload
    if read.faults and read.records and read.faults[-1].offset > read.records[-1].offset:
        closed = False
    records = tuple(record for record in read.records if record.payload)
    return LogFile(name, path, records, read.faults, closed, read.end, read.size)


def _flushed_with(record: LogRecord | None) -> list[PageEntry]:
    """Data that was to become durable by the flush of a record.  A copy is written when that is done."""
    if record is None or record.is_copy:
        return []
    try:
        return flushed_with_record(decode_batch(record.payload))
    except BatchError:
        return []


def _may_be_there(store: Path, entry: PageEntry) -> bool:
    """Whether an interrupted flush is no explanation of what stands in the place of a page."""
    if not (store / BLOB_DIRECTORY / blob_name(entry.file_id)).exists():
        return True  # its name was durable before anything was written into it
    try:
        return is_whole(entry, read_page(store, entry))
    except DiskReadError:
        return True  # whoever reads the page is told


def _judged(store: Path, file: LogFile) -> LogFile:
    """The last log, with its last record as a torn end where data is not there that was flushed with it.

    Whoever writes there may have written something else in the place of that data meanwhile, behind a further record.
    """
    while not all(_may_be_there(store, entry) for entry in _flushed_with(file.unconfirmed)):
        again = read_file(file.path.parent, file.name)
        if again.size != file.size:
            file = again
            continue
        *records, torn = file.records
        fault = LogFault(torn.offset, file.size, FaultKind.DATA, torn=True)
        return replace(
            file, records=tuple(records), faults=(*file.faults, fault), end=records[-1].end if records else 0
        )
    return file


def read_wal(store: Path) -> WalContents:
    """The log of the page store at `store`.  Raises NotWaltzError where there is none, DiskReadError."""
    directory = store / WAL_DIRECTORY
    try:
        found = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise NotWaltzError(
            f"{store}: no page store", advice=f"one has the directories {WAL_DIRECTORY} and {BLOB_DIRECTORY}"
        ) from None
    except OSError as error:
        raise DiskReadError(directory, None, error, doing="list") from error
    names = sorted(name for name in map(parse_log_name, found) if name is not None)
    temporary = tuple(sorted(name for name in found if name.endswith(TEMPORARY_SUFFIX)))
    checkpoint = max((name for name in names if name.is_checkpoint), default=None)
    counted = [name for name in names if not name.is_checkpoint and (not checkpoint or name.number > checkpoint.number)]
    if checkpoint is not None:
        counted.insert(0, checkpoint)
    files = [read_file(directory, name) for name in counted]
    if files and not files[-1].name.is_checkpoint:
        files[-1] = _judged(store, files[-1])
    stale = tuple(name for name in names if name not in counted)
    return WalContents(
        directory, tuple(files), stale, temporary, lost=not files and _blobs_hold_data(store / BLOB_DIRECTORY)
    )


def _blobs_hold_data(directory: Path) -> bool:
    try:
        with os.scandir(directory) as found:
            return any(parse_blob_name(one.name) and one.stat().st_size for one in found)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DiskReadError(directory, None, error, doing="list") from error


def edits_of(contents: WalContents, mode: RecoveryMode) -> Iterator[Edit]:
    """The edits that count, in the order in which they are applied.  Raises DamageError for what `mode` does not tolerate."""
    for _, payload in payloads_of(contents, mode):
        try:
            yield from decode_batch(payload)
        except BatchError:
            if mode is RecoveryMode.POINT_IN_TIME:
                return


def payloads_of(contents: WalContents, mode: RecoveryMode) -> Iterator[tuple[LogFile, bytes]]:
    """The records that count, in their order, each with its file.  Raises DamageError for what `mode` does not tolerate."""
    refuse(contents, mode)
    previous: LogFile | None = None
    for file in contents.files:
        broken = mode is RecoveryMode.POINT_IN_TIME
        if broken and _gap(previous, file) is not None:
            return
        before = min((fault.offset for fault in file.faults), default=file.size) if broken else file.size
        for record in file.records:
            if record.offset >= before:
                return
            if not record.is_copy:
                yield file, record.payload
        if before < file.size or (broken and not file.closed and file is not contents.files[-1]):
            return
        previous = file


def refuse(contents: WalContents, mode: RecoveryMode) -> None:
    """Raises DamageError for what `mode` does not tolerate."""
    if mode in (RecoveryMode.POINT_IN_TIME, RecoveryMode.SKIP_DAMAGED):
        return
    findings = wal_findings(contents)
    strict = mode is RecoveryMode.ABSOLUTE_CONSISTENCY
    grave = [one for one in findings if one.severity is Severity.DAMAGE or (strict and one.code is Code.LOG_TORN_TAIL)]
    if grave:
        raise DamageError(
            f"{contents.directory}: {grave[0].message}",
            grave,
            advice=f"nothing was changed; {WAYS_ON}",
        )


def wal_findings(contents: WalContents, store: PurePath | None = None) -> list[Finding]:
    """What is wrong with the log.  `store`: the directory that remedies name."""
    found: list[Finding] = []
    if contents.lost:
        said = "no log is there, and blob files hold data: which pages that are is not known"
        found.append(make_finding(Code.LOG_MISSING, contents.directory, said, storage_directory=store))
    last = contents.last
    previous: LogFile | None = None
    for file in contents.files:
        if (gap := _gap(previous, file)) is not None:
            found.append(make_finding(Code.LOG_MISSING, file.path, gap, storage_directory=store))
        if file is last and contents.torn_from is not None:
            found.append(_torn(file, store))
        else:
            found += [_fault(file, one, store, twice=contents.written_twice) for one in file.faults]
            if not file.closed and file is not last and not file.faults:
                said = "it ends without the empty record that closes it: its end was cut off"
                found.append(
                    make_finding(Code.LOG_RECORD_CHECKSUM, file.path, said, storage_directory=store, offset=file.end)
                )
        found += _batch_faults(file, store)
        previous = file
    return found


def _gap(previous: LogFile | None, file: LogFile) -> str | None:
    """What is missing in front of a file."""
    expected = previous.name.number + 1 if previous is not None else 1
    if file.name.is_checkpoint or file.name.number == expected:
        return None
    names = f"log_{expected}_0"
    if file.name.number > expected + 1:
        names += f" to log_{file.name.number - 1}_0"
    return f"{names} missing, or the checkpoint that held what it said"


def _torn(file: LogFile, store: PurePath | None) -> Finding:
    first = file.faults[0]
    said = f"the last write was interrupted: {first.kind.value}, and no record begins behind it"
    return make_finding(
        Code.LOG_TORN_TAIL, file.path, said, storage_directory=store, offset=file.end, length=file.size - file.end
    )


def _fault(file: LogFile, fault: LogFault, store: PurePath | None, *, twice: bool) -> Finding:
    lost = "what was there is lost" + (
        ", unless it stands whole beside this, where each record is twice" if twice else ""
    )
    said = fault.kind.value if fault.kind is FaultKind.TRAILER else f"{fault.kind.value}, and {lost}"
    return make_finding(
        Code.LOG_RECORD_CHECKSUM,
        file.path,
        said,
        storage_directory=store,
        offset=fault.offset,
        length=fault.end - fault.offset,
    )


def _batch_faults(file: LogFile, store: PurePath | None) -> Iterator[Finding]:
    for record in file.records:
        try:
            if plain_entries(record.payload) is None:
                decode_batch(record.payload)
        except BatchError as error:
            yield make_finding(
                Code.LOG_RECORD_CHECKSUM, file.path, f"a record of a right checksum is no write batch: {error}",
                storage_directory=store, offset=record.offset, length=record.end - record.offset,
            )  # fmt: skip
