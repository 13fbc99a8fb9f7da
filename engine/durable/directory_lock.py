"""The exclusive lock on a store's directory, and a query for its holder that takes no lock."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path, PurePath
from types import TracebackType
from typing import ClassVar

from waltzctl.engine.durable.disk import STATE_DIRECTORY, make_directory, open_for_reading, read_range
from waltzctl.engine.durable.file_status import is_still_at, moved_while
from waltzctl.engine.durable.ownership import make_lock_file
from waltzctl.engine.durable.regular import open_regular
from waltzctl.engine.errors import DirectoryLockedError, DiskReadError, DiskWriteError, write_error

LOCKED_RANGE = 128
"""Bytes of the control file that a running node locks (release 0.13.2)."""

# struct flock on Linux: l_type, l_whence (16 bit), padding, l_start, l_len (64 bit), l_pid (32 bit)
_FLOCK = struct.Struct("hhqqi4x")


def _flock(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, LOCKED_RANGE, 0)


def lock_holder(storage_directory: PurePath, control_file: PurePath | None) -> int | None:
    """Id of the process that holds the lock; 0 when it is held by an unknown process; None when it is free.

    Takes no lock and writes nothing: it asks the kernel about the locked range of the control file, which released nodes and this
    engine lock alike.  Without a control file, as in a page store, it asks about ``.waltzctl/lock``.
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
    # a lock of this engine belongs to an open file (F_OFD_SETLK), for which the kernel reports no process
    return _recorded_pid(storage_directory) or 0


def hold_file(descriptor: int) -> None:
    """Lock an open file other than those of `DirectoryLock` until it is closed; `lock_holder` tells of it, by the file's path.

    Raises OSError where another process holds it.
    """
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))


def _recorded_pid(storage_directory: PurePath) -> int | None:
    """The process id in ``.waltzctl/lock``, if a process with that id exists."""
    try:
        text = read_range(storage_directory / STATE_DIRECTORY / "lock", 0, 32)
        pid = int(text)
        if pid <= 0:  # kill(2) takes these for process groups
            return None
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, DiskReadError, ValueError, OverflowError):
        return None
    return pid


def _record_pid(descriptor: int) -> None:
    """Write this process's id into the lock file.  Raises OSError, but not for a full disk, which must not prevent a clean-up.

    The old contents are overwritten and then cut off, not truncated first: on a full disk, freed space may not come back.
    """
    text = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(descriptor, text, 0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = b""  # the lock is held, by an unknown process
    os.ftruncate(descriptor, len(text))


def _hold_directory(descriptor: int) -> None:
    """Lock an open directory, where its file system can.  Raises OSError where another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise


def moved() -> OSError:
    """The error of a directory that is no longer where it was opened."""
    return OSError(errno.ESTALE, f"it {moved_while('open')}; put it back, and start again what has it open")


class DirectoryLock:
    """Exclusive lock of a whole storage directory, until `release` or the end of the process.

    ========================================  =========================================================================
    locked                                    why
    ========================================  =========================================================================
    ``.waltzctl/lock``                        contains the holder's process id
    bytes 0 to 127 of the control file, if    a released node locks them
    there is one
    the directory ``.waltzctl`` itself        somebody may remove the lock file, taking it for a dead process's; a page
                                              store has no other
    ========================================  =========================================================================

    The first two are open file description locks (F_OFD_SETLK): closing another descriptor of the control file does not release
    them.  Directories have only flock(2), which also belongs to the open file; not every file system has it for them.
    """

    latest: ClassVar[DirectoryLock | None] = None
    """The lock that this process took last.  While it is the same one, nobody else has had a lock that this process holds."""

    def __init__(self, descriptors: list[int], state: PurePath) -> None:
        """`descriptors`: of the locked files; the last one is that of the directory `state`."""
        self._descriptors = descriptors
        self._state = state

    @classmethod
    def acquire(cls, storage_directory: PurePath, control_file: PurePath | None) -> DirectoryLock:
        """Take the locks without waiting.  Raises DirectoryLockedError, DiskWriteError."""
        state = storage_directory / STATE_DIRECTORY
        if not Path(state).exists():
            try:
                make_directory(state)
            except DiskWriteError:
                if not Path(state).is_dir():  # another process was faster
                    raise
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
            path = state
            descriptors.append(os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            asking = True
            _hold_directory(descriptors[-1])
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
        DirectoryLock.latest = made = cls(descriptors, state)
        return made

    def check_in_place(self) -> None:
        """Raise DiskWriteError when the locked directory was moved, or another one was put at its path, a copy perhaps.

        What is made by name from then on gets into that other directory.  After `release` nothing is checked.  Where the system
        does not tell, its error is the one that is raised.
        """
        held, cause = self._descriptors, None
        try:
            if not held or is_still_at(self._state, held[-1]):
                return
        except OSError as error:
            cause = error
        if not self._descriptors:  # released by another thread meanwhile
            return
        raise write_error(self._state.parent, None, cause or moved())

    @property
    def held(self) -> bool:
        """Whether it was not released yet."""
        return bool(self._descriptors)

    def release(self) -> None:
        """Release the locks; a second call does nothing."""
        held, self._descriptors = self._descriptors, []
        for descriptor in held:
            os.close(descriptor)

    def __enter__(self) -> None:
        """The lock is held since `acquire`."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
