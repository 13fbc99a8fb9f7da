"""The lock on a store's directory: one writer, whoever it is, and a look at who that is that takes no lock itself."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path, PurePath
from types import TracebackType

from waltzctl.engine.durable.disk import STATE_DIRECTORY, make_directory, open_for_reading, read_range
from waltzctl.engine.durable.ownership import make_lock_file
from waltzctl.engine.durable.regular import open_regular
from waltzctl.engine.errors import DirectoryLockedError, DiskReadError, write_error

LOCKED_RANGE = 128
"""Bytes of the control file that a running node locks (release 0.13.2)."""

# struct flock on Linux: l_type, l_whence (16 bit), padding, l_start, l_len (64 bit), l_pid (32 bit)
_FLOCK = struct.Struct("hhqqi4x")


def _flock(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, LOCKED_RANGE, 0)


def lock_holder(storage_directory: PurePath, control_file: PurePath | None) -> int | None:
    """Process id of whoever holds the storage directory; 0 when it is held and the id is unknown; None when it is free.

    Takes no lock and writes nothing: it asks the kernel about the control file's locked range, which both a released node
    and this engine hold.  A page store has no control file: there it asks about our own lock.
    """
    try:
        descriptor = open_for_reading(control_file or storage_directory / STATE_DIRECTORY / "lock")
    except (FileNotFoundError, DiskReadError):
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    if kind == fcntl.F_UNLCK:
        return None
    if pid > 0:
        return int(pid)
    return (
        _recorded_pid(storage_directory) or 0
    )  # a lock of ours belongs to an open file, and the kernel tells no process


def _recorded_pid(storage_directory: PurePath) -> int | None:
    """The process that is written down as the holder, if there is one of that id."""
    try:
        text = read_range(storage_directory / STATE_DIRECTORY / "lock", 0, 32)
        pid = int(text)
        if pid <= 0:  # the system takes these for groups of processes
            return None
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, DiskReadError, ValueError, OverflowError):
        return None
    return pid


def _record_pid(descriptor: int) -> None:
    """Say who holds the lock.  Raises OSError, but not for a full disk: who wants to make room must be let in.

    What stands there is written over, and cut behind that: on a full disk the room of a file that was emptied may be gone.
    """
    text = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(descriptor, text, 0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = b""  # it is held, and nobody knows by whom
    os.ftruncate(descriptor, len(text))


class DirectoryLock:
    """Exclusive hold of a whole storage directory, until `release` or the end of the process.

    Two locks: one on ``.waltzctl/lock``, where the holder's process id stands, and one on bytes 0 to 127 of the control
    file, which is the one that a released node takes.  Both belong to the open file, not to the process, so that closing
    another descriptor of the control file does not drop them.  A directory without a control file has the first one only.
    """

    def __init__(self, descriptors: list[int]) -> None:
        self._descriptors = descriptors

    @classmethod
    def acquire(cls, storage_directory: PurePath, control_file: PurePath | None) -> DirectoryLock:
        """Take the locks without waiting.  Raises DirectoryLockedError, DiskWriteError."""
        state = storage_directory / STATE_DIRECTORY
        if not Path(state).exists():
            make_directory(state)
        descriptors: list[int] = []
        path, asking = state / "lock", False
        try:
            make_lock_file(path, control_file)
            for path in filter(None, (state / "lock", control_file)):
                flags = os.O_RDWR | (os.O_CREAT if path != control_file else 0)
                descriptors.append(open_regular(path, flags))
                asking = True
                fcntl.fcntl(descriptors[-1], fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
                asking = False
            path = state / "lock"
            _record_pid(descriptors[0])
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if asking and error.errno in (errno.EAGAIN, errno.EACCES):
                pid = lock_holder(storage_directory, control_file) or _recorded_pid(storage_directory)
                raise DirectoryLockedError(storage_directory, pid or None) from error
            raise write_error(path, None, error, doing="lock") from error
        return cls(descriptors)

    def release(self) -> None:
        """Let go; a second call does nothing."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def __enter__(self) -> None:
        """It is held already."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
