"""Making durable whatever was written on a file system, by one call: syncfs(2).

Who has written many small files waits once, and the system writes them together, where fdatasync(2) on each of them takes a
call, a flush of the disk and a thread that waits for it.

It takes everything that anybody has written there, so it is worth it only while that is little (`FileSystem.busy`).  And it is
a promise only where the kernel and the file system keep it:

| | why |
|---|---|
| Linux from 5.17 on | before, syncfs(2) did not tell when the file system failed; before 5.8, not when a write of data did |
| ext4, xfs | they end it with a flush of the disk's own cache; of others it is not known here |
| each file asked afterwards (sync_file_range) | of a write that failed one call only is told, and that may have been another's |

What failed is believed of no file that shared the call: nobody can say whose data the disk did not take.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import cast

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.errors import SyncFailedError

KINDS = ("ext4", "xfs")
"""File systems whose syncfs(2) ends with a flush of the disk."""
KERNEL = (5, 17)
"""The first Linux in which syncfs(2) tells of every failure."""
MOST_DIRTY = 8 << 20
"""Bytes that programs may have written on this machine, and no disk has: beyond it somebody else's would be waited for."""
LOOK_EVERY = 0.005
"""Seconds for which a look at those is believed."""
_MOUNTS = Path("/proc/self/mountinfo")
_MEMORY = Path("/proc/meminfo")
_DIRTY = re.compile(rb"^(?:Dirty|Writeback): +(\d+) kB$", re.MULTILINE)
_NOT_ALLOWED = (errno.EPERM, errno.ENOSYS)
"""What a system answers that does not let a process make a call, and then has not made it."""
_RANGE = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_WAIT_BEFORE = 1
"""SYNC_FILE_RANGE_WAIT_BEFORE: wait for what is being written, and say whether it could be."""
_WRITE = 2
"""SYNC_FILE_RANGE_WRITE: begin to write what is not being written yet."""


class FileSystem:
    """The file system of a directory, where one call makes it durable.  Thread-safe."""

    def __init__(self, directory: PurePath, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`directory`: any on the file system; `of` says whether this one keeps the promise.  Raises OSError."""
        library = ctypes.CDLL(None, use_errno=True)
        self._sync_file_system = library.syncfs
        self._sync_range = library.sync_file_range
        # there is nothing to wait for when the file system was flushed, and letting other threads in takes longer than asking
        self._ask_range = ctypes.PyDLL(None, use_errno=True).sync_file_range
        for function in (self._sync_range, self._ask_range):
            function.argtypes = _RANGE
        self._path, self._clock = directory, clock
        self._descriptor: int | None = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.device = os.fstat(self._descriptor).st_dev
        self._looked, self._busy = -LOOK_EVERY, False

    @classmethod
    def of(cls, directory: PurePath) -> FileSystem | None:
        """That of a directory; None where one call is no promise, or cannot be made."""
        try:
            if not keeps_its_promise(platform.system(), platform.release(), kind_of(os.stat(directory).st_dev)):
                return None
            return cls(directory)
        except (OSError, AttributeError):  # no such table, no such call in the C library
            return None

    def holds(self, files: Sequence[WritableFile]) -> bool:
        """Whether all files lie on it: a partition's directory may be a mount of its own, or a link to another disk."""
        try:
            return all(file.device == self.device for file in files)
        except (OSError, ValueError):  # of one that was closed its own sync tells
            return False

    @property
    def busy(self) -> bool:
        """Whether more has been written on this machine, by whomever, than one wants to wait for."""
        now = self._clock()
        if now - self._looked >= LOOK_EVERY:
            self._looked, self._busy = now, dirty_bytes() > MOST_DIRTY
        return self._busy

    def sync(self, files: Sequence[WritableFile]) -> list[SyncFailedError | None] | None:
        """Make data and length of all files durable; for each what it failed with, or None.

        Like `WritableFile.sync`: what failed must not be tried again and believed.  None instead of the list: this process may
        not make these calls, and each file has to be synced by itself.
        """
        failed = self._failed(files)
        if failed is None:
            return None
        errors: list[SyncFailedError | None] = []
        for file, cause in zip(files, failed, strict=True):
            if cause is None:
                disk.synced(file.path)
                errors.append(None)
            else:
                errors.append(SyncFailedError(file.path, None, cause, doing="sync, with its file system,"))
        return errors

    def _failed(self, files: Sequence[WritableFile]) -> list[OSError | None] | None:
        """For each file what it cannot be believed for.  Whatever ends a call early, nothing counts as synced."""
        try:
            if self._descriptor is None:
                raise OSError(f"{self._path}: closed")
            whole = _called(self._sync_file_system, self._descriptor)
            if whole is not None and whole.errno in _NOT_ALLOWED:
                return None
            ask = self._ask_range if whole is None else self._sync_range
            own = [_called(ask, file.fileno(), 0, 0, _WAIT_BEFORE) for file in files]
            if whole is None and any(error is not None and error.errno in _NOT_ALLOWED for error in own):
                return None
            return [error or whole for error in own]
        except BaseException as error:
            return [cut_short(error)] * len(files)

    def close(self) -> None:
        """Let go of the directory; a second call does nothing."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def begin_writing(file: WritableFile, offset: int, size: int) -> None:
    """Have the system begin to write a range to the disk, without waiting; who flushes it later waits less.

    It promises nothing, and takes no failure away from who flushes.  Where there is no such call nothing happens.
    """
    if (call := _begin_call()) is not None:
        call(file.fileno(), offset, size, _WRITE)


@cache
def _begin_call() -> Callable[[int, int, int, int], int] | None:
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = _RANGE
    return cast("Callable[[int, int, int, int], int]", found)


def cut_short(error: BaseException) -> OSError:
    """The cause to tell where something else than the disk ended a sync."""
    return OSError(f"the sync was not carried out: {type(error).__name__}: {error}")


def _called(function: Callable[..., int], *arguments: object) -> OSError | None:
    """What a call of the system failed with; the interpreter goes on meanwhile."""
    if function(*arguments) == 0:
        return None
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def keeps_its_promise(system: str, release: str, kind: str | None) -> bool:
    """Whether syncfs(2) of a file system is a promise; `release` as uname(2) gives it, `kind` as the table of mounts does."""
    version = re.match(r"(\d+)\.(\d+)", release)
    return system == "Linux" and version is not None and tuple(map(int, version.groups())) >= KERNEL and kind in KINDS


def kind_of(device: int, mounts: Path = _MOUNTS) -> str | None:
    """The kind of the file system of a device, from the table of mounts (proc(5)); None where it does not stand there."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        of_mount, _, of_file_system = line.partition(" - ")
        fields = of_mount.split()
        if len(fields) > 2 and fields[2] == wanted and of_file_system:
            return of_file_system.split()[0]
    return None


def dirty_bytes(memory: Path = _MEMORY) -> int:
    """Bytes that were written on this machine and are not on a disk yet; 0 where the system does not tell."""
    try:
        with open(memory, "rb") as file:
            return sum(int(kilobytes) << 10 for kilobytes in _DIRTY.findall(file.read()))
    except OSError:
        return 0
