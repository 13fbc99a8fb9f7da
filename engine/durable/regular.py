"""Opening regular files and nothing else.

A storage directory holds regular files.  In the place of one there may be a FIFO, on which opening would block, or a device, on
which opening may have an effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import PurePath

from waltzctl.engine.durable.file_status import kind_of


class NotRegularError(OSError):
    """The file is not a regular file, and was not opened; `strerror` says what it is."""

    @classmethod
    def of(cls, mode: int) -> NotRegularError:
        """The error for a file of this mode (st_mode)."""
        return cls(errno.EINVAL, f"it is {kind_of(mode)}, not a regular file")


def open_regular(path: PurePath | str, flags: int, mode: int = 0o644, *, devices: bool = False) -> int:
    """Open a regular file, or with `devices` a block device, and nothing else.  Raises NotRegularError, OSError.

    Opening a FIFO blocks until its other end is opened, or wakes the process at that end; opening a device can have an effect.
    So the path is checked before it is opened, and the descriptor is checked again, because the path may have been replaced in
    between; for that case the file is opened with O_NONBLOCK.
    """

    def check(found: os.stat_result) -> None:
        if not (stat.S_ISREG(found.st_mode) or (devices and stat.S_ISBLK(found.st_mode))):
            raise NotRegularError.of(found.st_mode)

    try:
        check(os.stat(path))
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            raise NotRegularError.of(os.lstat(path).st_mode) from None  # a dangling link
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    try:
        check(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
