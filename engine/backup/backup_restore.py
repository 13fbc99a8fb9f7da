"""Restoring a backup to a storage directory: byte for byte, up to a transaction, or as far as it may join a cluster.

The directory is built under a temporary name beside the target and renamed at the end, so the target is complete or absent.  What
a killed restore left is removed by the next one with the same target.

- `until`: a partition ends with the given transaction.  Later records are left out, indexes end accordingly, and the low-water
  marks in the control file are lowered to it.
- `for_rejoin`: each partition ends with the low-water mark of its last session: up to there all replicas are equal, and the
  recovery of the partition copies what follows.  Its session id is lowered by 1, so that servers treat it as outdated: a replica
  with the session of the metadata takes part in the quorum, but this one may lack records that it had acknowledged.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.backup.backup_creation import WORKERS
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.new_directory import check_new
from waltzctl.engine.durable.work_directory import renamed, work_directory
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.scan.byte_source import BytesSource, FileSource
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.vault.backed_control import left_out, with_infos
from waltzctl.engine.vault.backup_files import BackedSource, BackupFiles, derived_entries
from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER, ControlFile, decode_control
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, INDEX_SUFFIX, SEGMENT_SUFFIX, parse_name
from waltzctl.formats.vault import BackedFile, BackedPartition, BackupHead, DerivedIndex, Literal

WORK_SUFFIX = ".restoring"
_BLOCK = 256 << 10
"""Bytes per read and write: a size that fits into the processor's cache, which makes a restore take two thirds of the time."""
_FLUSHES = 2
"""Concurrent flushes, by threads of their own: threads that write files do not wait for the disk."""
_UNFLUSHED = 16
"""Most files that are open at the same time, because they are being written or wait for their flush."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What is restored.

    - `partitions`: only these; None: all in the backup.
    - `until`: the last transaction to restore, by partition.
    - `for_rejoin`: see the module.
    """

    partitions: frozenset[int] | None = None
    until: Mapping[int, int] | None = None
    for_rejoin: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """Result.  `ends`: the last transaction of each partition, None without records; `size`: bytes of all files."""

    path: Path
    head: BackupHead
    ends: Mapping[int, int | None]
    files: int
    size: int


@dataclass(frozen=True, slots=True)
class _FileToWrite:
    """A file to write.  `size`: how many of its bytes; `content`: the bytes, if they differ from the backup's."""

    partition: BackedPartition
    file: BackedFile
    size: int
    content: bytes | None = None


def restore_backup(
    vault: Path,
    backup: str,
    target: Path,
    *,
    password: bytes | None = None,
    options: RestoreOptions = RestoreOptions(),  # frozen
    progress: Progress = SILENT,
) -> Restored:
    """Restore a backup to `target`, which is an empty directory or does not exist.

    Raises what `VaultReader.open` and `VaultReader.find` raise, RefusedError if the target is not empty or another process is
    restoring to it, InvalidRequestError for a target inside the vault, for partitions and transactions that the backup does not
    hold, and for a backup that is forgotten meanwhile, DamageError for a damaged page, DiskWriteError.  After an error `target`
    is empty or absent.
    """
    target = Path(os.path.abspath(target))
    check_new(target, renamed=True, not_beside=CONTROL_FILE_NAME)
    if target.resolve().is_relative_to(vault.resolve()):
        raise InvalidRequestError(f"{target}: lies in the vault", advice="name another directory")
    reader = VaultReader.open(vault, password)
    files = BackupFiles(reader, reader.find(backup))
    restoring = _RestorePlan(files, options)
    work = restoring.work()
    total = sum(one.size for one in work)
    place = target.with_name(f".{target.name}{WORK_SUFFIX}")
    with work_directory(place):
        # after `work_directory` has removed what a killed restore left
        disk.check_free_space(target.parent, total, target, doing="restore")
        _write(place, files, work, restoring.directories(), progress)
        if target.exists():
            disk.remove_directory(target)  # it is empty
        with renamed(place, target):
            disk.sync_directory(target.parent)
    return Restored(target, files.head, restoring.ends, len(work), total)


class _RestorePlan:
    """Which files are written, and how far."""

    def __init__(self, files: BackupFiles, options: RestoreOptions) -> None:
        self._files = files
        self._options = options
        self._control = self._read_control()
        there = {one.partition: one for one in files.head.partitions}
        wanted = {*(options.partitions or ()), *(options.until or ())}
        if options.partitions is not None and (aside := sorted({*(options.until or ())} - options.partitions)):
            raise InvalidRequestError(f"partition {aside[0]} is to end early, and is not among those to restore")
        if absent := sorted(wanted - there.keys()):
            raise InvalidRequestError(
                f"backup {files.head.name} has no partition {absent[0]}",
                advice="waltzctl backup show names those that it has",
            )
        chosen = there if options.partitions is None else {one: there[one] for one in sorted(options.partitions)}
        self._partitions = chosen
        self.ends = {number: self._end(one) for number, one in chosen.items()}

    def _read_control(self) -> ControlFile | None:
        """None if there is no control file, or its header is incomplete: such a file is restored unchanged."""
        numbers = self._files.numbers(CONTROL_FILE_NAME)
        if numbers is None:
            return None
        content = self._content(CONTROL_FILE_NAME)
        return decode_control(content) if len(content) >= CONTROL_HEADER.size else None

    def _content(self, name: str) -> bytes:
        source = BackedSource(self._files, name, name)
        data = bytearray(source.size())
        source.read_into(0, memoryview(data))
        return bytes(data)

    def _end(self, one: BackedPartition) -> int | None:
        """The last transaction of a partition that is restored.  Raises InvalidRequestError."""
        asked = (self._options.until or {}).get(one.partition)
        if asked is None and not self._options.for_rejoin:
            return one.last_transaction_id
        if one.first_transaction_id is None or one.last_transaction_id is None:
            return None
        if asked is None:
            asked = max(min(self._agreed_mark(one.partition), one.last_transaction_id), one.first_transaction_id - 1)
        if not one.first_transaction_id - 1 <= asked <= one.last_transaction_id:
            raise InvalidRequestError(
                f"backup {self._files.head.name}: partition {one.partition} holds transactions"
                f" {one.first_transaction_id} to {one.last_transaction_id}, and {asked} is none of them"
            )
        return asked

    def _agreed_mark(self, partition: int) -> int:
        """The low-water mark of a partition's last session.  Raises InvalidRequestError."""
        control = self._control
        if control is None or partition >= len(control.partitions):
            raise InvalidRequestError("the backup has no control file that says how far a partition is agreed")
        current = control.partitions[partition].current_struct
        if current is None:
            raise InvalidRequestError(f"the control file does not say how far partition {partition} is agreed")
        return current.low_water_mark

    def _ends_early(self, one: BackedPartition) -> bool:
        return self.ends[one.partition] != one.last_transaction_id

    def directories(self) -> list[str]:
        """All directories to make, parents first."""
        sections = [self._files.head.storage, *self._partitions.values()]
        return sorted({name for one in sections for name in self._files.section(one).directories})

    def work(self) -> list[_FileToWrite]:
        """All files to write.  Raises DamageError."""
        found = []
        for file in self._files.section(self._files.head.storage).files:
            if file.name == CONTROL_FILE_NAME and (content := self._changed_control()) is not None:
                found.append(_FileToWrite(self._files.head.storage, file, len(content), content))
            else:
                found.append(_FileToWrite(self._files.head.storage, file, file.size))
        for one in self._partitions.values():
            section = self._files.section(one)
            if not self._ends_early(one):
                found += [_FileToWrite(one, file, file.size) for file in section.files]
            else:
                found += self._files_until(one, {file.name: file for file in section.files})
        return found

    def _files_until(self, one: BackedPartition, files: Mapping[str, BackedFile]) -> list[_FileToWrite]:
        """The files of a partition that ends early."""
        end = self.ends[one.partition]
        assert end is not None
        found = [_FileToWrite(one, file, file.size) for name, file in files.items() if _first_id(name) is None]
        begins = sorted(
            (first, name) for name in files if name.endswith(SEGMENT_SUFFIX) and (first := _first_id(name)) is not None
        )
        kept = [name for first, name in begins if first <= end] or [name for _, name in begins[:1]]
        for name in kept:
            size, count = files[name].size, None
            if name == kept[-1]:
                size, count = self._size_until(name, files[name], end)
            found.append(_FileToWrite(one, files[name], size))
            index = files.get(name.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX)
            if index is not None:
                most = index.size if count is None else HEADER_SIZE + ENTRY_SIZE * count
                found.append(_FileToWrite(one, index, min(index.size, most)))
        return found

    def _size_until(self, name: str, file: BackedFile, end: int) -> tuple[int, int]:
        """Bytes of a data file up to the end of transaction `end`, and how many records that is, damaged ones included.

        A damaged part is kept if the next intact record after it has an id up to `end` + 1.
        """
        first = _first_id(name)
        assert first is not None
        source, size, following = BackedSource(self._files, name, name), min(HEADER_SIZE, file.size), first
        for one in summarise_records(source, first_transaction_id=first):
            if isinstance(one, Damage):
                if one.next_transaction_id is None or one.next_transaction_id > end + 1:
                    break
                size, following = one.end, one.next_transaction_id
                continue
            count = end + 1 - one.first_transaction_id
            if count < len(one):
                return (int(one.offset[count]) if count > 0 else size), max(0, end + 1 - first)
            size, following = one.end, one.first_transaction_id + len(one)
        return size, max(0, following - first)

    def _changed_control(self) -> bytes | None:
        """The control file, if marks are lowered or partitions are left out; None if it is unchanged."""
        control = self._control
        if control is None or not control.size_fits:
            return None
        infos = list(control.partitions)
        for number, info in enumerate(infos):
            current = info.current_struct
            if current is None:
                continue
            if number in self._partitions:
                one, end = self._partitions[number], self.ends[number]
                changed: dict[str, int] = {}
                if self._ends_early(one) and end is not None:
                    changed["low_water_mark"] = min(current.low_water_mark, end)
                    changed["local_low_water_mark"] = min(current.local_low_water_mark, end)
                if self._options.for_rejoin and current.session_id >= 0:
                    changed["session_id"] = current.session_id - 1
                if changed:
                    infos[number] = info.rewritten(**changed)
            elif self._options.partitions is not None:
                infos[number] = left_out(info)
        if infos == list(control.partitions):
            return None
        return with_infos(self._content(CONTROL_FILE_NAME), control, infos)


def _first_id(name: str) -> int | None:
    """The first transaction id of a data or index file; None for other files."""
    parsed = parse_name(name.rpartition("/")[2])
    return None if parsed is None else parsed[0]


def _write(
    place: Path, files: BackupFiles, work: list[_FileToWrite], directories: list[str], progress: Progress
) -> None:
    for name in directories:
        disk.make_directory(place / name)
    progress.start("restoring", sum(one.size for one in work))
    kept, derived = ([one for one in work if _is_derived(one) is wanted] for wanted in (False, True))
    open_files = threading.Semaphore(_UNFLUSHED)
    with (  # the workers end first: what they have written is flushed, also where one of them failed
        ThreadPoolExecutor(_FLUSHES, thread_name_prefix="flush") as flushes,
        ThreadPoolExecutor(WORKERS, thread_name_prefix="restore") as workers,
    ):

        def write(one: _FileToWrite, read: Read) -> Future[int]:
            open_files.acquire()
            try:
                return flushes.submit(_make_durable, _write_file(place, one, read), one, open_files)
            except BaseException:
                open_files.release()
                raise

        flushed = list(workers.map(lambda one: write(one, _reader(files, one)), kept))
        # derived indexes come last: their data files must exist
        flushed += workers.map(lambda one: write(one, _index_reader(place, one)), derived)
        for future in flushed:
            progress.advance(future.result())
    for name in (*reversed(directories), ""):
        disk.sync_directory(place / name)


Read = Callable[[int, memoryview], object]
"""Fills a buffer with the bytes of a file from an offset on."""


def _is_derived(one: _FileToWrite) -> bool:
    return any(isinstance(extent, DerivedIndex) for extent in one.file.extents)


def _reader(files: BackupFiles, one: _FileToWrite) -> Read:
    if one.content is not None:
        return BytesSource(one.content).read_into
    return lambda offset, buffer: files.read_into(one.partition, one.file, offset, buffer)


def _index_reader(place: Path, one: _FileToWrite) -> Read:
    """Reads an index whose entries are derived from the restored data file."""
    data = b""
    for extent in one.file.extents:
        if isinstance(extent, DerivedIndex):
            with FileSource(place / extent.segment) as source:
                data += derived_entries(source, extent.segment, min(extent.size, one.size - len(data)))
        elif isinstance(extent, Literal):
            data += extent.data
    return BytesSource(data).read_into


def _write_file(place: Path, one: _FileToWrite, read: Read) -> WritableFile:
    """Write a file; returns it open, not flushed.  Raises DamageError, DiskReadError, DiskWriteError."""
    file = WritableFile.create(place / one.file.name)
    try:
        buffer = bytearray(min(_BLOCK, max(one.size, 1)))
        for offset in range(0, one.size, _BLOCK):
            part = memoryview(buffer)[: min(_BLOCK, one.size - offset)]
            read(offset, part)
            file.write_at(offset, part)
    except BaseException:
        file.close()
        raise
    return file


def _make_durable(file: WritableFile, one: _FileToWrite, open_files: threading.Semaphore) -> int:
    """Flush and close a file, and set its modification time; returns its size.  Raises DiskWriteError."""
    try:
        with file:
            file.sync()
        if one.content is None and one.size == one.file.size:
            disk.set_times(file.path, one.file.modified_ns)
    finally:
        open_files.release()
    return one.size
