"""What is at a path: stat(2), lstat(2) and the names in a directory.  Nothing is opened, nothing is changed.

Only some errors say that nothing is there (`NOTHING_THERE`).  Any other one, a failing disk or a file server without an answer,
is raised: what cannot be examined is not taken for what is missing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path, PurePath
from typing import NamedTuple

from waltzctl.engine.errors import DiskReadError, write_error

NOTHING_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of stat(2) which say that no file has this path.  Any other one says nothing about that."""


class FileNumbers(NamedTuple):
    """Result of stat(2): length in bytes, modification time in nanoseconds since 1970, inode number."""

    size: int
    modified_ns: int
    inode: int


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
    except OSError as failed:
        try:
            mode = os.lstat(path).st_mode
        except OSError as error:
            return None if error.errno in NOTHING_THERE else f"an entry that cannot be examined ({error.strerror})"
        if not stat.S_ISLNK(mode):
            return None
        return (
            kind_of(mode) if failed.errno in NOTHING_THERE else f"a link to what cannot be examined ({failed.strerror})"
        )
    return None if stat.S_ISREG(mode) else kind_of(mode)


def is_named(path: PurePath | str) -> bool:
    """Whether anything has this name, also a dangling link, or something that cannot be examined."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in NOTHING_THERE
    return True


def is_examinable(path: PurePath | str) -> bool:
    """Whether the system tells if anything has this name."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno in NOTHING_THERE
    return True


def is_directory(path: PurePath) -> bool:
    """Whether a directory is at `path`, links followed.  Raises DiskReadError where the disk or file server does not tell."""
    try:
        return Path(path).is_dir()
    except OSError as error:
        raise DiskReadError(path, None, error, doing="look at") from error


def names_in(directory: PurePath) -> list[str] | None:
    """The names in a directory, in order; None when there is no directory.  Raises DiskReadError."""
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return None
        raise DiskReadError(directory, None, error, doing="list") from error


def exists(path: PurePath) -> bool:
    """Whether something is at `path`, where the caller writes; links are followed.  Raises DiskWriteError as `is_directory`."""
    try:
        return Path(path).exists()
    except OSError as error:
        raise write_error(path, None, error, doing="look at") from error


def is_at(path: PurePath, made: os.stat_result) -> bool:
    """Whether the file at `path` is the one that was made, links not followed."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.lstat(path), made)
    return False


def moved_while(doing: str) -> str:
    """What is said of a file or directory when its path leads elsewhere, or nowhere, while it was `doing` ("open", "read")."""
    return f"was moved or replaced while it was {doing}"


def is_still_at(path: PurePath, descriptor: int) -> bool:
    """Whether an open file or directory is the one at `path`, links followed: it was neither moved nor replaced.

    Raises OSError where the system does not tell.
    """
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
