"""Cache of compiled code in the user's cache directory, ``$XDG_CACHE_HOME/waltzctl/code`` (or ``~/.cache/...``).

Code is loaded only from a directory that belongs to this user and that nobody else may write, inside of such a directory, and
only if the file's digest is right.  The cache is optional: every error counts as a missing file.

A file consists of 8 bytes of magic, the SHA-256 (32 bytes) of name and code, and the code.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

MAGIC = b"WZCODE\x00\x01"
_LIMIT = 16 << 20
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _root() -> Path | None:
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def _ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextlib.contextmanager
def _directory(*, create: bool) -> Iterator[int | None]:
    """A descriptor of the cache directory; None when there is none that can be trusted."""
    descriptors: list[int] = []
    try:
        root = _root()
        if root is not None:
            with contextlib.suppress(OSError):
                if create:
                    root.mkdir(mode=0o700, exist_ok=True)
                descriptors.append(os.open(root, _DIRECTORY_FLAGS))
                for name in ("waltzctl", "code"):
                    if not _ours(os.fstat(descriptors[-1])):
                        break
                    if create:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, 0o700, dir_fd=descriptors[-1])
                    descriptors.append(os.open(name, _DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=descriptors[-1]))
        complete = len(descriptors) == 3 and _ours(os.fstat(descriptors[-1]))
        yield descriptors[-1] if complete else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _digest(name: str, code: bytes) -> bytes:
    return sha256(name.encode() + b"\0" + code).digest()


def contains(name: str) -> bool:
    """Whether there is a file for `name`; its digest is not verified."""
    with _directory(create=False) as directory:
        if directory is None:
            return False
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
        except OSError:
            return False


def get(name: str) -> bytes | None:
    """The code stored under `name`; None when there is none that can be trusted."""
    with _directory(create=False) as directory:
        if directory is None:
            return None
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _ours(status) or status.st_size > _LIMIT:
                return None
            data = b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
        except OSError:
            return None
        finally:
            os.close(descriptor)
    head = len(MAGIC) + 32
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : head] != _digest(name, data[head:]):
        return None
    return data[head:]


def put(name: str, code: bytes) -> None:
    """Store `code` under `name`, if that is possible."""
    with _directory(create=True) as directory, contextlib.suppress(OSError):
        if directory is None:
            return
        beside = f".{name}.{secrets.token_hex(8)}"
        descriptor = os.open(
            beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory
        )
        try:
            with open(descriptor, "wb") as file:
                file.write(MAGIC + _digest(name, code) + code)
            os.rename(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=directory)
            raise
