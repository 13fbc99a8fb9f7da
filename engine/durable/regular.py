"""Regular files and nothing else: what stands under a name, and opening it without waiting for anybody.

A storage directory holds regular files.  Under the name of one may stand a FIFO, on which one would wait for ever, or a device,
which acts when it is opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import PurePath
from typing import NamedTuple


class FileNumbers(NamedTuple):
    """Of a file as it was when looked at: length in bytes, time of last change in nanoseconds since 1970, inode."""

    size: int
    modified_ns: int
    inode: int


class NotRegularError(OSError):
    """What stands there is no regular file, and was not opened; `strerror` says what it is."""

    @classmethod
    def of(cls, mode: int) -> NotRegularError:
        """By the mode that the system tells."""
        return cls(errno.EINVAL, f"it is {kind_of(mode)}, not a regular file")


def kind_of(mode: int) -> str:
    """What stands under a name, by the mode that the system tells, in words."""
    names = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISLNK, "a link that leads nowhere"),
    )
    return next((name for test, name in names if test(mode)), "no file")


def file_numbers(path: PurePath | str) -> FileNumbers | None:
    """Of a regular file; None when there is none, or no access."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileNumbers(status.st_size, status.st_mtime_ns, status.st_ino)


def special_kind(path: PurePath | str) -> str | None:
    """What stands under a name that is neither free nor, links followed, a regular file; None for these two."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return None
        return kind_of(mode) if stat.S_ISLNK(mode) else None
    return None if stat.S_ISREG(mode) else kind_of(mode)


def open_regular(path: PurePath | str, flags: int, mode: int = 0o644, *, devices: bool = False) -> int:
    """Open what is a regular file, or with `devices` a block device, and nothing else.  Raises NotRegularError, OSError.

    To open a FIFO waits for whoever opens its other end, or wakes him; to open a device can act.  So neither is opened: the
    name is looked at before, and what was opened is looked at again, as the name may have changed hands in between; that one
    opening does not wait.
    """

    def check(found: os.stat_result) -> None:
        if not (stat.S_ISREG(found.st_mode) or (devices and stat.S_ISBLK(found.st_mode))):
            raise NotRegularError.of(found.st_mode)

    try:
        check(os.stat(path))
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            raise NotRegularError.of(os.lstat(path).st_mode) from None  # a link that leads nowhere
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    try:
        check(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
