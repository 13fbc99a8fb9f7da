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
from typing import NamedTuple

from waltzctl.engine.errors import DiskReadError

NOTHING_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of stat(2) which say that no file has this path.  Any other one says nothing about that."""


class FileNumbers(NamedTuple):
    """Result of stat(2): length in bytes, modification time in nanoseconds since 1970, inode number."""

    size: int
    modified_ns: int
    inode: int


class NotRegularError(OSError):
    """The file is not a regular file, and was not opened; `strerror` says what it is."""

    @classmethod
    def of(cls, mode: int) -> NotRegularError:
        """The error for a file of this mode (st_mode)."""
        return cls(errno.EINVAL, f"it is {kind_of(mode)}, not a regular file")


def kind_of(mode: int) -> str:
    """The kind of a special file in words, by its mode (st_mode)."""
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
    """Numbers of a regular file, links followed; None when there is none, or no access.

    Raises DiskReadError: a file that the disk or a file server does not let be examined is not taken for one that is missing.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno in NOTHING_THERE or error.errno == errno.EACCES:
            return None
        raise DiskReadError(path, None, error, doing="examine") from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileNumbers(status.st_size, status.st_mtime_ns, status.st_ino)


def special_kind(path: PurePath | str) -> str | None:
    """The kind of whatever is at `path`, in words; None when nothing is there or, links followed, a regular file.

    Something that cannot be examined is there, and of no known kind.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        try:
            mode = os.lstat(path).st_mode
        except OSError as error:
            return None if error.errno in NOTHING_THERE else f"an entry that cannot be examined ({error.strerror})"
        return kind_of(mode) if stat.S_ISLNK(mode) else None
    return None if stat.S_ISREG(mode) else kind_of(mode)


def is_named(path: PurePath | str) -> bool:
    """Whether anything has this name, also a dangling link, or something that cannot be examined."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in NOTHING_THERE
    return True


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
