"""The only place that changes a disk: write, sync, truncate, rename, unlink and make.

Everything else in the engine calls these functions, so that one observer sees each change in the order in which it was
made; the crash harness records them and replays every prefix.  Reading needs nothing from here but `open_for_reading`, which
leaves no trace: no lock, no access time.  Only regular files are opened, here and for whoever opens through here: under a
file's name may stand a FIFO on which one would wait for ever.

A change is durable only after the file's sync, and a name (create, rename, unlink) only after the sync of its directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from types import TracebackType

from waltzctl.engine.durable import ownership
from waltzctl.engine.durable.regular import NotRegularError, open_regular, special_kind
from waltzctl.engine.errors import (
    DiskError,
    DiskReadError,
    SpecialFileError,
    SyncFailedError,
    write_error,
)

STATE_DIRECTORY = ownership.STATE_DIRECTORY
"""Our own files inside a storage directory: lock, availability marks, quarantine, audit journal."""
QUARANTINE = "quarantine"
"""Directory in `STATE_DIRECTORY` with what repairs removed or replaced."""
TEMPORARY_SUFFIX = ownership.TEMPORARY_SUFFIX
"""A file of this suffix was being built when its process ended; it holds nothing that anybody was promised."""
_MOST_PIECES = 1024
"""Buffers that one call of the system takes."""
MOST_AT_ONCE = 512 << 10
"""Bytes that are given to the system at once.

For a call of more, Linux takes larger pieces of memory, that nothing has used for long.  Of a virtual machine the host may have
taken those back, page by page: there, in one run, 2 GiB of new files took 0.3 s of the processor's in calls of 512 KiB, and 2.1 s
in calls of 1 MiB.
"""
_CHUNK = 1 << 20
"""Bytes that are read at once."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the disk, as the observer sees it after it was made.

    `kind`: create, write, truncate, sync, rename, unlink, mkdir, rmdir, sync-directory, times.  `target` is the new name of a
    rename; `data` the bytes written at `offset`; `size` the length after a truncate.
    """

    kind: str
    path: PurePath
    target: PurePath | None = None
    offset: int = 0
    data: bytes = b""
    size: int = 0


observer: Callable[[Change], None] | None = None
"""Called after every change; set by the crash harness only."""


def _changed(change: Change) -> None:
    if observer is not None:
        observer(change)


def synced(path: PurePath) -> None:
    """Tell the observer of a file that was made durable with its file system (`engine.durable.file_system`)."""
    _changed(Change("sync", path))


def open_for_reading(path: PurePath | str, *, devices: bool = False) -> int:
    """A descriptor for reading that leaves no access time where the system allows it.

    Raises SpecialFileError for what is no regular file (with `devices` a block device is let through), DiskReadError.  A
    missing file raises FileNotFoundError, as callers commonly expect one.
    """
    try:
        try:
            return open_regular(path, os.O_RDONLY | getattr(os, "O_NOATIME", 0), devices=devices)
        except PermissionError:  # only a file's owner may ask for O_NOATIME
            return open_regular(path, os.O_RDONLY, devices=devices)
    except FileNotFoundError:
        raise
    except NotRegularError as error:
        raise SpecialFileError(path, None, error, doing="open") from error
    except OSError as error:
        raise DiskReadError(path, None, error, doing="open") from error


class WritableFile:
    """A file open for positioned reading and writing.  Every change goes through the observer.

    Not thread-safe.  Closing does not sync.
    """

    def __init__(self, path: PurePath, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @cached_property
    def device(self) -> int:
        """Number of the device that it lies on."""
        return os.fstat(self.fileno()).st_dev

    @classmethod
    def open(cls, path: PurePath) -> WritableFile:
        """Open an existing regular file.  Raises DiskWriteError, or FileNotFoundError."""
        try:
            return cls(path, open_regular(path, os.O_RDWR))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise write_error(path, None, error, doing="open for writing") from error

    @classmethod
    def create(cls, path: PurePath, *, like: PurePath | None = None) -> WritableFile:
        """Create a new, empty file.  Raises DiskWriteError when it exists or cannot be made.

        `like`: the name that it is to take in the end, or that its bytes are from; who may use it follows from there
        (`engine.durable.ownership`).
        """
        try:
            descriptor = ownership.make_file(path, like or path)
        except OSError as error:
            raise write_error(path, None, error, doing="create") from error
        _changed(Change("create", path))
        return cls(path, descriptor)

    def set_mode(self, mode: int) -> None:
        """Say who may use it, whatever the umask has left out.  Raises DiskWriteError."""
        try:
            os.fchmod(self.fileno(), mode)
        except OSError as error:
            raise write_error(self.path, None, error, doing="set the mode of") from error

    def fileno(self) -> int:
        """The descriptor.  Raises ValueError when closed."""
        if self._descriptor is None:
            raise ValueError(f"{self.path}: file is closed")
        return self._descriptor

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._descriptor is None

    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self.fileno()).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end.  Raises DiskReadError."""
        return _read_fully(self.fileno(), self.path, offset, length)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `offset`.  Raises DiskFullError or DiskWriteError; part of it may have been written then."""
        view, position = memoryview(data), offset
        while view:
            try:
                written = os.pwrite(self.fileno(), view[:MOST_AT_ONCE], position)
            except OSError as error:
                raise write_error(self.path, position, error) from error
            if observer is not None:
                _changed(Change("write", self.path, offset=position, data=bytes(view[:written])))
            view, position = view[written:], position + written

    def write_pieces_at(self, offset: int, pieces: Sequence[bytes | memoryview]) -> None:
        """Write all pieces back to back at `offset`, in as few writes as the system takes.  Raises as `write_at`."""
        if len(pieces) == 1:
            self.write_at(offset, pieces[0])
            return
        left, position = [memoryview(piece) for piece in pieces], offset
        while left:
            try:
                written = os.pwritev(self.fileno(), _first_of(left), position)
            except OSError as error:
                raise write_error(self.path, position, error) from error
            if observer is not None:
                _changed(Change("write", self.path, offset=position, data=b"".join(left)[:written]))
            position += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes; never extends.  Raises ValueError when the file is shorter, DiskWriteError."""
        if size > self.size():
            raise ValueError(f"{self.path}: cutting to {size} bytes would extend it")
        try:
            os.ftruncate(self.fileno(), size)
        except OSError as error:
            raise write_error(self.path, size, error, doing="truncate") from error
        _changed(Change("truncate", self.path, size=size))

    def sync(self) -> None:
        """Make data and length durable.  Raises SyncFailedError; the caller must not try again and believe it."""
        try:
            os.fdatasync(self.fileno())
        except OSError as error:
            raise SyncFailedError(self.path, None, error, doing="sync") from error
        _changed(Change("sync", self.path))

    def close(self) -> None:
        """Close; a second call does nothing."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __enter__(self) -> WritableFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _first_of(pieces: list[memoryview]) -> list[memoryview]:
    """As many of them as the system is given at once; the last one is cut where that is less."""
    if len(pieces) <= _MOST_PIECES and sum(map(len, pieces)) <= MOST_AT_ONCE:
        return pieces
    taken, room = [], MOST_AT_ONCE
    for piece in pieces[:_MOST_PIECES]:
        taken.append(piece[:room])
        room -= len(taken[-1])
        if not room:
            break
    return taken


def _read_fully(descriptor: int, path: PurePath | str, offset: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0:
        try:
            part = os.pread(descriptor, min(length, _CHUNK), offset)
        except OSError as error:
            raise DiskReadError(path, offset, error) from error
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def read_range(path: PurePath, offset: int, length: int) -> bytes:
    """Up to `length` bytes of a file from `offset`; fewer only at its end.  Raises DiskReadError, FileNotFoundError."""
    descriptor = open_for_reading(path)
    try:
        return _read_fully(descriptor, path, offset, length)
    finally:
        os.close(descriptor)


def sync_file(path: PurePath) -> None:
    """Make durable what stands in a file, whoever wrote it; needs no permission to write.  Raises SyncFailedError."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SyncFailedError(path, None, error, doing="sync") from error
    _changed(Change("sync", path))


def rename(source: PurePath, target: PurePath) -> None:
    """Rename, replacing `target`.  Durable after `sync_directory` of both directories.  Raises DiskWriteError."""
    try:
        os.rename(source, target)
    except OSError as error:
        raise write_error(source, None, error, doing=f"rename to {target}") from error
    _changed(Change("rename", source, target=target))


def move_directory(source: PurePath, target: PurePath) -> None:
    """Rename a directory, durably; the two directories above `target` are made where they are missing.  Raises DiskWriteError."""
    make_directories_above(target)
    rename(source, target)
    sync_directory(target.parent)  # the new name first: it has both for a moment, and never none
    sync_directory(source.parent)


def make_directories_above(target: PurePath) -> None:
    """Make the two directories above `target` where they are missing, durably.  Raises DiskWriteError."""
    for directory in (target.parent.parent, target.parent):
        if not Path(directory).is_dir():
            make_directory(directory)
            sync_directory(directory.parent)


def unlink(path: PurePath) -> None:
    """Remove a file.  Raises DiskWriteError, also when it is missing."""
    try:
        os.unlink(path)
    except OSError as error:
        raise write_error(path, None, error, doing="remove") from error
    _changed(Change("unlink", path))


def remove_tree(path: PurePath) -> None:
    """Remove a directory with all that is in it, not durably.  Raises DiskWriteError, also for what is no directory.

    What a link leads to stays: one in the directory is removed itself, and a link in the directory's place is refused.
    """
    for place, directories, files in () if Path(path).is_symlink() else os.walk(path, topdown=False):
        for name in files:
            unlink(Path(place, name))
        for name in directories:
            one = Path(place, name)
            if one.is_symlink():
                unlink(one)
            else:
                remove_directory(one)
    remove_directory(path)


def make_directory(path: PurePath) -> None:
    """Make one directory.  Raises DiskWriteError, also when it exists."""
    try:
        ownership.make_directory(path)
    except OSError as error:
        raise write_error(path, None, error, doing="make directory") from error
    _changed(Change("mkdir", path))


def remove_directory(path: PurePath) -> None:
    """Remove an empty directory.  Raises DiskWriteError."""
    try:
        os.rmdir(path)
    except OSError as error:
        raise write_error(path, None, error, doing="remove directory") from error
    _changed(Change("rmdir", path))


def _open_directory(path: PurePath) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@contextlib.contextmanager
def opened_directory(path: PurePath) -> Iterator[int]:
    """A directory's descriptor for `sync_directory`, had before names in it are changed.

    Who has none left then learns it while nothing has changed, and it is no failed sync.  Raises DiskWriteError.
    """
    try:
        descriptor = _open_directory(path)
    except OSError as error:
        raise write_error(path, None, error, doing="open directory") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: PurePath, opened: int | None = None) -> None:
    """Make the names in a directory durable.  `opened`: of `opened_directory`, if there is one.  Raises SyncFailedError."""
    try:
        descriptor = _open_directory(path) if opened is None else opened
        try:
            os.fsync(descriptor)
        finally:
            if opened is None:
                os.close(descriptor)
    except OSError as error:
        raise SyncFailedError(path, None, error, doing="sync directory") from error
    _changed(Change("sync-directory", path))


def set_times(path: PurePath, modified_ns: int) -> None:
    """Give a file back the time of its last change, in nanoseconds since 1970.  Raises DiskWriteError."""
    try:
        os.utime(path, ns=(modified_ns, modified_ns))
    except OSError as error:
        raise write_error(path, None, error, doing="set the time of") from error
    _changed(Change("times", path))


@contextlib.contextmanager
def replacing(path: PurePath) -> Iterator[WritableFile]:
    """Build a file beside `path`, then sync it, rename it over `path` and sync the directory.

    When the body raises, the half-built file is removed and `path` is as it was.  Raises DiskWriteError, also for a `path`
    where something stands that is no regular file: a rename would destroy it.
    """
    if (kind := special_kind(path)) is not None:
        raise write_error(path, None, OSError(errno.EINVAL, f"it is {kind}, not a regular file"), doing="replace")
    beside = path.with_name(path.name + TEMPORARY_SUFFIX)
    with contextlib.suppress(FileNotFoundError):
        os.lstat(beside)
        unlink(beside)
    with WritableFile.create(beside, like=path) as file:
        try:
            with opened_directory(path.parent) as directory:
                yield file
                file.sync()
                file.close()
                rename(beside, path)
                sync_directory(path.parent, directory)
        except BaseException:
            with contextlib.suppress(DiskError):
                unlink(beside)
            raise


def write_whole(path: PurePath, parts: bytes | Iterable[bytes]) -> None:
    """Write a file as a whole or not at all, durably.  Raises DiskWriteError."""
    with replacing(path) as file:
        position = 0
        for part in [parts] if isinstance(parts, bytes) else parts:
            file.write_at(position, part)
            position += len(part)


def free_bytes(path: PurePath) -> int:
    """Bytes that an ordinary user may still write on the file system of `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def now_ms() -> int:
    """Milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000
