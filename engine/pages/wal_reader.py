"""Reading a page store's log: which files count, what they contain, and whether a fault is a torn tail or damage.

Files that count: the checkpoint with the highest number, and the logs with higher numbers, in ascending order.  All other files
are stale: the checkpoint replaces them, and a crash prevented their removal.  Every start that finds no empty log, and every full
log, takes the next number, so the numbers have no gaps.  Every log but the last one, and every checkpoint, ends with an empty
record; a file without it was truncated.

A torn tail is what an interrupted write leaves.  A record is durable before the next one is written; so an interrupted write
explains only bytes at the end of the last log after which no record begins (`LogFault.torn`).  Every other fault is damage, and
may have cost acknowledged records.

A record may have been flushed together with data of its pages (`EditFlag.FLUSHED_WITH_RECORD`).  As long as no record follows it,
it counts only if that data is intact; otherwise it is a torn tail as well (`FaultKind.DATA`).

`RecoveryMode` says what is taken of a log with faults.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from waltzctl.engine.durable.disk import TEMPORARY_SUFFIX, read_range
from waltzctl.engine.durable.file_status import file_numbers, names_in
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
    of_another_version,
    plain_entries,
)

WAYS_ON = "take what is whole with pages recover --mode skip-damaged, or into a new directory with pages salvage"
"""What the user can do with a store that cannot be opened."""
_OTHER_PROGRAM = "records are intact and of another version: use the program that wrote them, or a later one"
"""Advice where the ways on would give intact records up."""
_WHOLE_FILE = 1 << 62


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log: its intact records without the empty one that ends it, and its faults.

    - `closed`: the file ends with the empty record.
    - `end`: the offset after the last intact record, in bytes.
    - `size`: the offset after the last byte written, in bytes.  The file may be larger: it is preallocated with zeros.
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
        """The last record, if nothing follows it: a following record proves that its flush succeeded.  None otherwise."""
        if self.closed or not self.records or any(fault.offset >= self.end for fault in self.faults):
            return None
        return self.records[-1]

    @property
    def unconfirmed_from(self) -> int | None:
        """The offset of what was written last, up to `end`, if nothing follows it: a record, or the empty one at the end."""
        if self.closed:
            return self.records[-1].end if self.records else 0
        return None if (record := self.unconfirmed) is None else record.offset


@dataclass(frozen=True, slots=True)
class WalContents:
    """The log of a directory: the files that count, in the order in which they are applied, and the names of the others.

    `lost`: there is no log, but blob files hold data, which is never written before the first log exists.
    """

    directory: Path
    files: tuple[LogFile, ...]
    stale: tuple[LogName, ...] = ()
    temporary: tuple[str, ...] = ()
    lost: bool = False

    @property
    def checkpoint(self) -> LogFile | None:
        """The checkpoint, if there is one."""
        return next((one for one in self.files[:1] if one.name.is_checkpoint), None)

    @property
    def last(self) -> LogFile | None:
        """The log that was written last; None if there is none after the checkpoint."""
        return next((one for one in self.files[-1:] if not one.name.is_checkpoint), None)

    @property
    def highest_number(self) -> int:
        """The highest number of any file, including stale ones; 0 if there is none."""
        return max([one.name.number for one in self.files] + [name.number for name in self.stale], default=0)

    @property
    def written_twice(self) -> bool:
        """Whether some record has a copy: the store was written with `PageOptions.records_twice`."""
        return any(record.is_copy for file in self.files for record in file.records)

    @property
    def lacks_copies(self) -> bool:
        """Whether a record stands alone, apart from the last one of an open log, whose copy a crash may have prevented."""
        with_records = [file for file in self.files if file.records]
        copies = [record.is_copy for file in with_records for record in file.records]
        copies += [False for file in with_records[-1:] if file.closed]
        return any(not one and not following for one, following in itertools.pairwise(copies))

    @property
    def unconfirmed_pages(self) -> list[PageEntry]:
        """Entries whose data was flushed with the last record: it is intact, but may not be durable yet."""
        return [] if self.last is None else _flushed_with(self.last.unconfirmed)

    @property
    def torn_from(self) -> int | None:
        """Offset at which the torn tail of the last log begins; None if it has none."""
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
    """Entries whose data was to become durable by the flush of a record.  A copy is written after that flush: none."""
    if record is None or record.is_copy:
        return []
    try:
        return flushed_with_record(decode_batch(record.payload))
    except BatchError:
        return []


def _survived_flush(store: Path, entry: PageEntry) -> bool:
    """Whether the state of an entry's data is not explained by an interrupted flush: the data is intact, or lost otherwise."""
    if not (store / BLOB_DIRECTORY / blob_name(entry.file_id)).exists():
        return True  # the file's name was durable before data was written to it: the file was lost otherwise
    try:
        return is_whole(entry, read_page(store, entry))
    except DiskReadError:
        return True  # reading the page reports the error


def _without_unflushed_record(store: Path, file: LogFile) -> LogFile:
    """The last log; its last record is treated as a torn tail if data that was flushed with it is not intact.

    A writer may have reused the space of that data meanwhile, after adding a further record: then the log is read again.
    """
    while not all(_survived_flush(store, entry) for entry in _flushed_with(file.unconfirmed)):
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
    found = names_in(directory)
    if found is None:
        raise NotWaltzError(
            f"{store}: no page store", advice=f"one has the directories {WAL_DIRECTORY} and {BLOB_DIRECTORY}"
        )
    names = sorted(name for name in map(parse_log_name, found) if name is not None)
    temporary = tuple(sorted(name for name in found if name.endswith(TEMPORARY_SUFFIX)))
    checkpoint = max((name for name in names if name.is_checkpoint), default=None)
    counted = [name for name in names if not name.is_checkpoint and (not checkpoint or name.number > checkpoint.number)]
    if checkpoint is not None:
        counted.insert(0, checkpoint)
    files = [read_file(directory, name) for name in counted]
    if files and not files[-1].name.is_checkpoint:
        files[-1] = _without_unflushed_record(store, files[-1])
    stale = tuple(name for name in names if name not in counted)
    return WalContents(
        directory, tuple(files), stale, temporary, lost=not files and _blobs_hold_data(store / BLOB_DIRECTORY)
    )


def _blobs_hold_data(directory: Path) -> bool:
    found = (file_numbers(directory / name) for name in names_in(directory) or () if parse_blob_name(name))
    return any(numbers is not None and numbers.size for numbers in found)


def edits_of(contents: WalContents, mode: RecoveryMode) -> Iterator[Edit]:
    """The edits that count, in the order of application.  Raises DamageError for faults that `mode` does not tolerate."""
    for _, payload in payloads_of(contents, mode):
        try:
            yield from decode_batch(payload)
        except BatchError:
            if mode is RecoveryMode.POINT_IN_TIME:
                return


def payloads_of(contents: WalContents, mode: RecoveryMode) -> Iterator[tuple[LogFile, bytes]]:
    """The records that count, in order, each with its file.  Raises DamageError for faults that `mode` does not tolerate."""
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
    """Raises DamageError for faults that `mode` does not tolerate."""
    if mode in (RecoveryMode.POINT_IN_TIME, RecoveryMode.SKIP_DAMAGED):
        return
    findings = wal_findings(contents)
    strict = mode is RecoveryMode.ABSOLUTE_CONSISTENCY
    grave = [one for one in findings if one.severity is Severity.DAMAGE or (strict and one.code is Code.LOG_TORN_TAIL)]
    if grave:
        raise DamageError(
            f"{contents.directory}: {grave[0].message}",
            grave,
            advice=f"nothing was changed; {_OTHER_PROGRAM if _of_another_version(contents) else WAYS_ON}",
        )


def _of_another_version(contents: WalContents) -> bool:
    return any(of_another_version(record.payload) for file in contents.files for record in file.records)


def wal_findings(contents: WalContents, store: PurePath | None = None) -> list[Finding]:
    """Findings of the log.  `store`: the directory that remedies name."""
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
            found.append(_torn_tail_finding(file, store))
        else:
            found += [_fault_finding(file, one, store, twice=contents.written_twice) for one in file.faults]
            if not file.closed and file is not last and not file.faults:
                said = "it ends without the empty record that closes it: its end was cut off"
                found.append(
                    make_finding(Code.LOG_RECORD_CHECKSUM, file.path, said, storage_directory=store, offset=file.end)
                )
        found += _batch_findings(file, store)
        previous = file
    return found


def _gap(previous: LogFile | None, file: LogFile) -> str | None:
    """Which logs are missing before a file; None if none is."""
    expected = previous.name.number + 1 if previous is not None else 1
    if file.name.is_checkpoint or file.name.number == expected:
        return None
    names = f"log_{expected}_0"
    if file.name.number > expected + 1:
        names += f" to log_{file.name.number - 1}_0"
    return f"{names} missing, or the checkpoint that held what it said"


def _torn_tail_finding(file: LogFile, store: PurePath | None) -> Finding:
    first = file.faults[0]
    said = f"the last write was interrupted: {first.kind.value}, and no record begins behind it"
    return make_finding(
        Code.LOG_TORN_TAIL, file.path, said, storage_directory=store, offset=file.end, length=file.size - file.end
    )


def _fault_finding(file: LogFile, fault: LogFault, store: PurePath | None, *, twice: bool) -> Finding:
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


def _batch_findings(file: LogFile, store: PurePath | None) -> Iterator[Finding]:
    for record in file.records:
        try:
            if plain_entries(record.payload) is None:
                decode_batch(record.payload)
        except BatchError as error:
            found = make_finding(
                Code.LOG_RECORD_CHECKSUM, file.path, f"a record of a right checksum is no write batch: {error}",
                storage_directory=store, offset=record.offset, length=record.end - record.offset,
            )  # fmt: skip
            # taking what is whole would give an intact record up
            yield replace(found, remedy=None) if of_another_version(record.payload) else found
