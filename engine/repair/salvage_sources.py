"""The sources of a salvage: files, directory trees and block devices, opened read-only.

Unreadable places of a source are skipped: they read as zeros, in which no record is found, and are reported.  So is what lies
below a source and cannot be listed or opened, as a partition on a disk of its own; but neither a source itself, which was asked
for, nor its control file, without which the marks of all partitions would be lost.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import NOTHING_THERE, names_in
from waltzctl.engine.durable.relocation import retired_directories
from waltzctl.engine.errors import OWN_SHORTAGE, DiskReadError, InvalidRequestError, NotWaltzError
from waltzctl.engine.log.partition_directories import partition_number
from waltzctl.engine.progress import Progress
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.storage.assignment import names_put_aside
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.segment import INDEX_SUFFIX, SEGMENT_SUFFIX

SECTOR = 4096
"""Bytes; after a read error the rest of the sector of this size is skipped."""


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """A range of a source that could not be read.  `offset` and `length` in bytes."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class UnreadPlace:
    """A file or directory below a source that could not be listed, examined or opened, and the reason, in words."""

    path: Path
    message: str


class OpenFiles:
    """Limits the number of open files: beyond `limit` the least recently used one is closed."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._open: dict[SalvageSource, None] = {}

    def use(self, source: SalvageSource) -> None:
        """Note that `source` is about to be read."""
        self._open.pop(source, None)
        self._open[source] = None
        if len(self._open) > self._limit:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()


class SalvageSource(FileSource):
    """A file or block device whose unreadable places read as zeros.  Reports progress.

    Reopened when needed, after `OpenFiles` has closed it.  Not thread-safe.
    """

    def __init__(self, path: Path, files: OpenFiles, progress: Progress) -> None:
        """Raises FileNotFoundError, DiskReadError."""
        super().__init__(path, devices=True)
        self.path = path
        self.strict = False
        """Whether an unreadable place raises DiskReadError instead of reading as zeros."""
        self.unreadable: dict[int, int] = {}
        """Length by offset of the unreadable places, in bytes."""
        self._files = files
        self._progress = progress
        self._furthest = 0
        self._size = self._measure()

    def fileno(self) -> int:
        """The descriptor.  Raises FileNotFoundError, DiskReadError."""
        if self._descriptor is None:
            self._descriptor = disk.open_for_reading(self.path, devices=True)
        self._files.use(self)
        return self._descriptor

    def _measure(self) -> int:
        status = os.fstat(self.fileno())
        if stat.S_ISBLK(status.st_mode):  # fstat does not give the size of a device
            return os.lseek(self.fileno(), 0, os.SEEK_END)
        return status.st_size

    def size(self) -> int:
        """Bytes when it was opened; bytes appended later are not read."""
        return self._size

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """As `FileSource.read_into`, with zeros where the system could not read (unless `strict`)."""
        done, wanted = 0, min(len(buffer), max(0, self._size - offset))
        while done < wanted:
            try:
                count = super().read_into(offset + done, buffer[done:wanted])
            except DiskReadError as error:
                if self.strict:
                    raise
                failed = offset + done if error.offset is None else error.offset
                end = min((failed // SECTOR + 1) * SECTOR, offset + wanted)
                buffer[failed - offset : end - offset] = bytes(end - failed)
                self.unreadable[failed] = max(end - failed, self.unreadable.get(failed, 0))
                done = end - offset
                continue
            if not count:
                break
            done += count
        if not self.strict and offset + done > self._furthest:
            self._progress.advance(offset + done - self._furthest)
            self._furthest = offset + done
        return done


Unread = dict[Path, DiskReadError]
"""What could not be listed, examined or opened, with the reason."""


def list_sources(sources: Sequence[Path], to: Path, unread: Unread | None = None) -> list[Path]:
    """Every file to read: a directory stands for all the files below it, in the order of their names.

    `unread`: gets what is below the sources and cannot be listed or examined.  None: that is an error.

    Raises NotWaltzError for a path that does not exist, InvalidRequestError for one that cannot be read at any offset
    (a pipe, a terminal) or when `to` lies inside a source.
    """
    found: dict[Path, None] = {}
    target = Path(os.path.realpath(to))
    for source in sources:
        try:
            mode = os.stat(source).st_mode
        except FileNotFoundError as error:
            raise NotWaltzError(f"{source}: no such file or directory") from error
        except OSError as error:
            raise DiskReadError(source, None, error, doing="examine") from error
        if stat.S_ISDIR(mode):
            for place in (source, *_linked_partitions(source)):
                if target.is_relative_to(os.path.realpath(place)):
                    raise InvalidRequestError(
                        f"{to}: lies inside the source {place}, which must stay as it is",
                        advice="name a directory outside of it, best on another disk",
                    )
            found |= dict.fromkeys(_below(source, unread))
        elif stat.S_ISREG(mode) or stat.S_ISBLK(mode):
            found[source] = None
        else:
            raise InvalidRequestError(
                f"{source}: a pipe or terminal cannot be read at any offset", advice="copy its bytes to a file first"
            )
    return list(found)


def open_sources(
    paths: Sequence[Path], sources: Sequence[Path], files: OpenFiles, progress: Progress, unread: Unread
) -> list[SalvageSource]:
    """Open what was listed; `unread` gets what is below the `sources` and cannot be opened.

    Raises DiskReadError.
    """
    named = {*sources, *(source / CONTROL_FILE_NAME for source in sources)}
    found = []
    for path in paths:
        try:
            found.append(SalvageSource(path, files, progress))
        except (DiskReadError, FileNotFoundError) as failed:
            error = DiskReadError(path, None, failed, doing="open") if isinstance(failed, FileNotFoundError) else failed
            if path in named or error.errno in OWN_SHORTAGE:
                raise
            _leave(unread, path, error)
    return found


def _leave(unread: Unread, path: Path, failed: DiskReadError) -> None:
    failed.advice = (
        "mount what the link leads to, and salvage again" if failed.advice else "salvage again when it can be read"
    )
    unread.setdefault(path, failed)


def _below(directory: Path, unread: Unread | None) -> list[Path]:
    """Every regular file below a directory.

    Of links only those are followed that everybody follows in a storage directory: a partition's directory, its data files and
    indexes, and the control file may be on another disk.  A file that is read anyway is not read once more behind a link.
    """

    def leave(path: Path, failed: DiskReadError) -> None:
        if path in (directory, directory / CONTROL_FILE_NAME) or failed.errno in OWN_SHORTAGE:
            raise failed
        if unread is not None:
            _leave(unread, path, failed)
        elif failed.errno not in NOTHING_THERE or os.path.islink(path):  # else it went, and no control file with it
            raise failed

    def refuse(error: OSError) -> None:
        path = Path(error.filename or directory)
        leave(path, _unread(path, error, "list"))

    found: list[tuple[Path, tuple[int, int], bool]] = []  # with device and inode, and whether a link leads there
    for top in (directory, *_linked_partitions(directory)):
        for place, names, entries in os.walk(top, onerror=refuse):
            names.sort()
            for entry in sorted(entries):
                path = Path(place, entry)
                followed = os.path.islink(path) and _is_followed(path, directory)
                behind_link = top is not directory or followed
                needed = followed and not entry.endswith(INDEX_SUFFIX)  # no record is in an index
                try:
                    status = _status(path, follow=behind_link, there=needed)
                except DiskReadError as failed:
                    leave(path, failed)
                    continue
                if status is not None and stat.S_ISREG(status.st_mode):
                    found.append((path, (status.st_dev, status.st_ino), behind_link))
    read = {file for _, file, behind_link in found if not behind_link}
    files = []
    for path, file, behind_link in found:
        if not behind_link or file not in read:
            read.add(file)
            files.append(path)
    return files


def _status(path: Path, *, follow: bool, there: bool) -> os.stat_result | None:
    """None for a link that leads nowhere, unless it is `there`: its disk is not mounted.  What went is unread."""
    try:
        return os.stat(path) if follow else os.lstat(path)
    except OSError as error:
        if error.errno in NOTHING_THERE and os.path.islink(path) and not there:
            return None
        raise _unread(path, error, "examine") from error


def _unread(path: Path, error: OSError, doing: str) -> DiskReadError:
    failed = DiskReadError(path, None, error, doing=doing)
    if os.path.islink(path):
        failed.advice = "mount what the link leads to; or name the files and directories to read, without this one"
    return failed


def _linked_partitions(directory: Path) -> Iterator[Path]:
    """The links in a storage directory in the places of partitions' directories, put aside or not."""
    for above in (directory, retired_directories(directory)[0]):
        with contextlib.suppress(DiskReadError):  # who lists everything tells of it
            for name in names_in(above) or ():
                if (
                    partition_number(name) is not None
                    and os.path.islink(above / name)
                    and not os.path.isfile(above / name)
                ):
                    yield above / name


def _is_followed(path: Path, directory: Path) -> bool:
    name = path.relative_to(directory).as_posix()
    above, _, last = name.rpartition("/")
    segment = last.endswith((SEGMENT_SUFFIX, INDEX_SUFFIX))
    # without a directory above it: the source is that of a partition
    return name == CONTROL_FILE_NAME or (
        segment and (not above or partition_number(above) is not None or names_put_aside(above))
    )
