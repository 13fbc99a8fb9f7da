"""The only module that changes the disk: write, sync, truncate, rename, unlink, and make files and directories.

The rest of the engine calls these functions, so that an observer sees each change in the order in which it was made; the crash
harness records the changes and replays every prefix.  Readers use `open_for_reading`, which takes no lock and changes no access
time.  Only regular files are opened: opening a FIFO in a file's place could block for ever.

========================================  =======================================
change                                    durable after the sync of
========================================  =======================================
bytes or length of a file                 the file
a name: create, rename, unlink, mkdir     the directory that contains the name
========================================  =======================================
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
from waltzctl.engine.durable.file_status import is_at, special_kind
from waltzctl.engine.durable.regular import NotRegularError, open_regular
from waltzctl.engine.errors import (
    DiskError,
    DiskReadError,
    SpecialFileError,
    SyncFailedError,
    write_error,
)

STATE_DIRECTORY = ownership.STATE_DIRECTORY
"""Directory in a storage directory with this program's own files: lock, availability marks, quarantine, audit journal."""
QUARANTINE = "quarantine"
"""Directory in `STATE_DIRECTORY` with the bytes that repairs removed or replaced."""
TEMPORARY_SUFFIX = ownership.TEMPORARY_SUFFIX
"""Suffix of a file that is being built; one left behind by a process holds nothing that was acknowledged."""
_MOST_PIECES = 1024
"""Most buffers in one pwritev(2) (IOV_MAX on Linux)."""
MOST_AT_ONCE = 512 << 10
"""Most bytes in one call of pwrite(2) or pwritev(2).

For larger calls Linux allocates larger blocks of page cache, from memory that was unused for long.  In a virtual machine the host
may have reclaimed such memory, and each page then faults: in one run, writing 2 GiB of new files took 0.3 s of CPU time in calls
of 512 KiB, and 2.1 s in calls of 1 MiB.
"""
_CHUNK = 1 << 20
"""Most bytes in one pread(2)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the disk, given to the observer after it was made.

    `kind`: create, write, truncate, sync, rename, unlink, mkdir, rmdir, sync-directory, times.  `target`: the new name, of a
    rename.  `data`: the bytes written at byte `offset`, of a write.  `size`: the new length in bytes, of a truncate.
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
    """Report to the observer a file that was synced together with its file system (`engine.durable.file_system`)."""
    _changed(Change("sync", path))


def open_for_reading(path: PurePath | str, *, devices: bool = False) -> int:
    """Open a file for reading, without changing its access time where the system allows that; returns the descriptor.

    Raises SpecialFileError for anything but a regular file (with `devices`: or a block device), DiskReadError; FileNotFoundError
    for a missing file, which callers commonly expect.
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


def check_writable(path: PurePath) -> None:
    """Check that an existing file can be written to, before something begins that has to.  Raises as `WritableFile.open`."""
    WritableFile.open(path).close()


class WritableFile:
    """A file open for positioned reading and writing.  Every change goes through the observer.

    Not thread-safe.  Closing does not sync.  A file to which nothing refers any more is closed: what fails half-way in a process
    that runs for months takes no descriptor away from it.
    """

    def __init__(self, path: PurePath, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    # `close` is a default: at the interpreter's end the module may be empty
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._descriptor is not None:
            close(self._descriptor)

    @cached_property
    def device(self) -> int:
        """Number of the device that the file is on (st_dev)."""
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

        `like`: the file that determines its ownership and mode (`engine.durable.ownership`): the one whose name it will get, or
        whose bytes it copies; `path` itself by default.
        """
        try:
            descriptor = ownership.make_file(path, like or path)
        except OSError as error:
            raise write_error(path, None, error, doing="create") from error
        file = cls(path, descriptor)
        _changed(Change("create", path))
        return file

    def set_mode(self, mode: int) -> None:
        """Set the permission bits, regardless of the umask.  Raises DiskWriteError."""
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
        """Length in bytes.  Raises DiskWriteError."""
        try:
            return os.fstat(self.fileno()).st_size
        except OSError as error:  # of a file server, or a disk that is gone
            raise write_error(self.path, None, error, doing="get the size of") from error

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from byte `offset`; fewer only at the end of the file.  Raises DiskReadError."""
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
                written = os.pwritev(self.fileno(), _pieces_of_one_call(left), position)
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
        """Make data and length durable (fdatasync).  Raises SyncFailedError; a later success does not cover the failed writes."""
        try:
            os.fdatasync(self.fileno())
        except OSError as error:
            raise SyncFailedError(self.path, None, error, doing="sync") from error
        _changed(Change("sync", self.path))

    def close(self) -> None:
        """Close; a second call does nothing.  Raises DiskWriteError: a file server may tell only then what it did not write."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.close(descriptor)
            except OSError as error:
                raise write_error(self.path, None, error, doing="close") from error

    def __enter__(self) -> WritableFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DiskError:
            if kind is None:  # what failed before is told: whoever is told of a failed sync notes it
                raise


def _pieces_of_one_call(pieces: list[memoryview]) -> list[memoryview]:
    """The pieces for one call: at most `_MOST_PIECES` and `MOST_AT_ONCE` bytes, the last piece cut if need be."""
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
    """Make a file's present contents durable, whoever wrote them; needs read permission only.  Raises SyncFailedError."""
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
    sync_directory(target.parent)  # the new name first: after a crash the directory may have both names, but never none
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
    """Remove a directory and its contents; the removal is not durable.  Raises DiskWriteError, also for what is no directory.

    Symbolic links in the directory are removed, not followed; `path` itself must not be one.
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
    """A descriptor of a directory for a later `sync_directory`, opened before names in the directory are changed.

    So a lack of descriptors is found while nothing has changed, and does not appear as a failed sync.  Raises DiskWriteError.
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
    """Make the names in a directory durable.  `opened`: its descriptor from `opened_directory`, if any.

    Raises SyncFailedError.
    """
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
    """Set a file's access and modification time, in nanoseconds since 1970.  Raises DiskWriteError."""
    try:
        os.utime(path, ns=(modified_ns, modified_ns))
    except OSError as error:
        raise write_error(path, None, error, doing="set the time of") from error
    _changed(Change("times", path))


@contextlib.contextmanager
def replacing(path: PurePath) -> Iterator[WritableFile]:
    """Build a file beside `path`, then sync it, rename it over `path` and sync the directory.

    When the body raises, the half-built file is removed and `path` is as it was.  Raises DiskWriteError, also when `path` is
    anything but a regular file, which the rename must not replace, and when another process has begun to replace it as well: it
    has removed this file then, and the one that has the name is not complete.
    """
    if (kind := special_kind(path)) is not None:
        raise write_error(path, None, OSError(errno.EINVAL, f"it is {kind}, not a regular file"), doing="replace")
    beside = path.with_name(path.name + TEMPORARY_SUFFIX)
    if _is_there(beside):
        unlink(beside)
    with WritableFile.create(beside, like=path) as file:
        try:
            made = os.fstat(file.fileno())
        except OSError as error:
            raise write_error(path, None, error, doing="replace") from error
        try:
            with opened_directory(path.parent) as directory:
                yield file
                file.sync()
                file.close()
                if not is_at(beside, made):
                    raise write_error(
                        path, None, OSError(errno.EBUSY, "another process writes it as well"), doing="replace"
                    )
                rename(beside, path)
                sync_directory(path.parent, directory)
        except BaseException:
            if is_at(beside, made):
                with contextlib.suppress(DiskError):
                    unlink(beside)
            raise


def _is_there(path: PurePath) -> bool:
    """Whether there is anything of that name.  Raises DiskWriteError where the system does not tell."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as error:  # a name that is too long, a directory that this user may not enter
        raise write_error(path, None, error, doing="create") from error
    return True


def write_whole(path: PurePath, parts: bytes | Iterable[bytes]) -> None:
    """Write a file atomically and durably (`replacing`).  Raises DiskWriteError."""
    with replacing(path) as file:
        position = 0
        for part in [parts] if isinstance(parts, bytes) else parts:
            file.write_at(position, part)
            position += len(part)


def free_bytes(path: PurePath) -> int:
    """Bytes that an ordinary user may still write on the file system of `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def check_free_space(directory: PurePath, needed: int, path: PurePath | str, *, doing: str = "write") -> None:
    """Raise DiskFullError about `path` if fewer than `needed` bytes are free in `directory`, before anything is written."""
    if needed > (free := free_bytes(directory)):
        cause = OSError(errno.ENOSPC, f"{needed} bytes are needed, {free} are free; nothing was changed")
        raise write_error(path, None, cause, doing=doing)


def now_ms() -> int:
    """Milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000
