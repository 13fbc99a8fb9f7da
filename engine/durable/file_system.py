"""Syncing many files by one syncfs(2) of their file system.

For many small files this waits once, and the kernel writes them together; fdatasync(2) for each file takes a call, a flush of the
disk cache and a waiting thread per file.

syncfs(2) writes everything that any process has dirtied on the file system, so it pays only while that is little
(`FileSystem.busy`).  It makes the files durable only under these conditions:

| condition | why |
|---|---|
| Linux from 5.17 on | before, syncfs(2) did not report errors of the file system; before 5.8, nor failed data writes |
| ext4 or xfs | their syncfs(2) ends with a flush of the disk cache; that is not established here for others |
| sync_file_range(2) on each file afterwards | a failed write is reported once, and another syncfs(2) may have taken the report |

After a failed syncfs(2), none of the files of the call counts as synced: whose data was not written is unknown.
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
"""File systems whose syncfs(2) ends with a flush of the disk cache."""
KERNEL = (5, 17)
"""First Linux version in which syncfs(2) reports every failure."""
MOST_DIRTY = 8 << 20
"""Most dirty bytes on the machine with which syncfs(2) is used; with more, it would wait for the writes of other programs."""
LOOK_EVERY = 0.005
"""Seconds between two looks at the number of dirty bytes."""
_MOUNTS = Path("/proc/self/mountinfo")
_MEMORY = Path("/proc/meminfo")
_DIRTY = re.compile(rb"^(?:Dirty|Writeback): +(\d+) kB$", re.MULTILINE)
_NOT_ALLOWED = (errno.EPERM, errno.ENOSYS)
"""Errors of a system call that the process is not allowed to make, or that does not exist; nothing was done then."""
_RANGE = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_WAIT_BEFORE = 1
"""SYNC_FILE_RANGE_WAIT_BEFORE: wait for the write-back in progress, and report its errors."""
_WRITE = 2
"""SYNC_FILE_RANGE_WRITE: start the write-back of dirty pages."""


class FileSystem:
    """A file system that one syncfs(2) makes durable.  Thread-safe."""

    def __init__(self, directory: PurePath, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`directory`: any directory on the file system.  Does not check the conditions (`of` does).  Raises OSError."""
        library = ctypes.CDLL(None, use_errno=True)
        self._sync_file_system = library.syncfs
        self._sync_range = library.sync_file_range
        # PyDLL keeps the interpreter lock: after a flush the call returns at once, and releasing the lock would take longer
        self._ask_range = ctypes.PyDLL(None, use_errno=True).sync_file_range
        for function in (self._sync_range, self._ask_range):
            function.argtypes = _RANGE
        self._path, self._clock = directory, clock
        self._descriptor: int | None = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.device = os.fstat(self._descriptor).st_dev
        self._looked, self._busy = -LOOK_EVERY, False

    @classmethod
    def of(cls, directory: PurePath) -> FileSystem | None:
        """The file system of a directory; None where syncfs(2) does not make files durable, or is not available."""
        try:
            if not keeps_its_promise(platform.system(), platform.release(), kind_of(os.stat(directory).st_dev)):
                return None
            return cls(directory)
        except (OSError, AttributeError):  # no table of mounts, or no such call in the C library
            return None

    def holds(self, files: Sequence[WritableFile]) -> bool:
        """Whether all files are on this file system: a partition's directory may be a mount point or a symbolic link."""
        try:
            return all(file.device == self.device for file in files)
        except (OSError, ValueError):  # a closed file is reported by its own sync
            return False

    @property
    def busy(self) -> bool:
        """Whether more than `MOST_DIRTY` bytes on the machine are dirty."""
        now = self._clock()
        if now - self._looked >= LOOK_EVERY:
            self._looked, self._busy = now, dirty_bytes() > MOST_DIRTY
        return self._busy

    def sync(self, files: Sequence[WritableFile]) -> list[SyncFailedError | None] | None:
        """Make data and length of all files durable; returns for each file its error, or None.

        As with `WritableFile.sync`, a later success does not cover the failed writes.  Returns None instead of the list when this
        process may not make these calls; the caller has to sync each file by itself then.
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
        """For each file the reason why it does not count as synced, or None; see `sync`.  Any exception fails all files."""
        try:
            if self._descriptor is None:
                raise OSError(f"{self._path}: closed")
            whole = _call(self._sync_file_system, self._descriptor)
            if whole is not None and whole.errno in _NOT_ALLOWED:
                return None
            ask = self._ask_range if whole is None else self._sync_range
            own = [_call(ask, file.fileno(), 0, 0, _WAIT_BEFORE) for file in files]
            if whole is None and any(error is not None and error.errno in _NOT_ALLOWED for error in own):
                return None
            return [error or whole for error in own]
        except BaseException as error:
            return [cut_short(error)] * len(files)

    def close(self) -> None:
        """Close the descriptor of the directory; a second call does nothing."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def begin_writing(file: WritableFile, offset: int, size: int) -> None:
    """Start the write-back of a range of a file, without waiting, so that a later flush takes less time.

    `offset` and `size` in bytes.  Makes nothing durable; errors are still reported to the later flush.  Does nothing where the
    system has no sync_file_range(2).
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
    """The cause to report when an exception other than a disk error ended a sync."""
    return OSError(f"the sync was not carried out: {type(error).__name__}: {error}")


def _call(function: Callable[..., int], *arguments: object) -> OSError | None:
    """Make a system call; returns its error, or None."""
    if function(*arguments) == 0:
        return None
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def keeps_its_promise(system: str, release: str, kind: str | None) -> bool:
    """Whether syncfs(2) makes files durable: `release` as in uname(2), `kind` of the file system as in the table of mounts."""
    version = re.match(r"(\d+)\.(\d+)", release)
    return system == "Linux" and version is not None and tuple(map(int, version.groups())) >= KERNEL and kind in KINDS


def kind_of(device: int, mounts: Path = _MOUNTS) -> str | None:
    """The file system type of a device, from the table of mounts (proc(5)); None when the device is not in it."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        of_mount, _, of_file_system = line.partition(" - ")
        fields = of_mount.split()
        if len(fields) > 2 and fields[2] == wanted and of_file_system:
            return of_file_system.split()[0]
    return None


def dirty_bytes(memory: Path = _MEMORY) -> int:
    """Dirty bytes of the page cache, being written back or not (proc(5), Dirty and Writeback); 0 when unknown."""
    try:
        with open(memory, "rb") as file:
            return sum(int(kilobytes) << 10 for kilobytes in _DIRTY.findall(file.read()))
    except OSError:
        return 0
