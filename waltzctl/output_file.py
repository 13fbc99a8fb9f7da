"""``-o FILE``: a regular file is written under a temporary name and renamed, so that it is complete at any time.

Through a symbolic link its target is replaced, and the link stays.  A device, a FIFO, or the file of ``/dev/stdout`` is opened
and written to, as a shell's ``>`` does, and never replaced.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from waltzctl.engine.errors import RefusedError, write_error

_BUFFER = 1 << 20
_MAX_LINKS = 40
"""Symbolic links that are followed, at most: the limit of Linux."""


class _RawStream(io.RawIOBase):
    """A write-only stream for `io.BufferedWriter`.  ``put(offset, data)`` writes bytes where the last ones ended."""

    def __init__(self, put: Callable[[int, memoryview], None]) -> None:
        super().__init__()
        self._put = put
        self._position = 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Append all of `data`."""
        view = memoryview(data).cast("B")
        self._put(self._position, view)
        self._position += len(view)
        return len(view)


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of output: `path` with every link followed; `plain`: whether it is a regular file, or does not exist."""

    path: Path
    plain: bool

    @classmethod
    def of(cls, target: Path) -> Destination:
        """Follow the links of `target`.  Raises DiskWriteError for a loop."""
        path = target
        for _ in range(_MAX_LINKS):
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                return cls(path, True)
            except OSError as error:
                raise write_error(target, None, error, doing="examine") from error
            if not stat.S_ISLNK(mode):
                return cls(path, stat.S_ISREG(mode))
            if os.path.realpath(path.parent).startswith("/proc/"):
                return cls(path, False)  # an open file of a process, in the form of a link: /dev/stdout, /dev/fd/3
            path = path.parent / os.readlink(path)
        raise write_error(target, None, OSError(errno.ELOOP, os.strerror(errno.ELOOP)), doing="follow")


def check_outside(target: Path, inspected: PurePath) -> None:
    """Raise RefusedError for an output file inside the inspected directory: an inspection never writes there."""
    from waltzctl.engine.log.places import identity

    place = os.path.join(os.path.realpath(target.parent), target.name)
    tree = identity(inspected)
    for one in (place, os.path.realpath(target)):
        if one == tree or one.startswith(tree.rstrip(os.sep) + os.sep):
            raise RefusedError(
                f"{target}: lies inside {inspected}, which is only inspected", advice="choose another place"
            )


@contextmanager
def replacing_binary(target: Path) -> Iterator[BinaryIO]:
    """A file for output.

    A regular file replaces its target when the block ends without an error, and is removed otherwise.  Any other target is
    written to directly; a FIFO waits for its reader.  Raises DiskWriteError, and BrokenPipeError when the reader has closed a
    FIFO.
    """
    from waltzctl.engine.durable import disk

    destination = Destination.of(target)
    if destination.plain:
        with disk.replacing(destination.path) as file:
            yield from _buffered(file.write_at)
    else:
        with _opened(destination.path) as put:
            yield from _buffered(put)


def _buffered(put: Callable[[int, memoryview], None]) -> Iterator[BinaryIO]:
    buffered = io.BufferedWriter(_RawStream(put), _BUFFER)
    yield cast("BinaryIO", buffered)
    buffered.flush()


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[int, memoryview], None]]:
    """Open a target that is no regular file, to append to it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise write_error(path, None, error, doing="open for writing") from error

    def put(offset: int, data: memoryview) -> None:
        view = data
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BrokenPipeError:
                raise
            except OSError as error:
                raise write_error(path, offset + len(data) - len(view), error) from error

    try:
        yield put
    finally:
        os.close(descriptor)


@contextmanager
def replacing_text(target: Path) -> Iterator[io.TextIOWrapper]:
    """As `replacing_binary`, for UTF-8 text; characters that UTF-8 cannot encode are escaped."""
    with replacing_binary(target) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=False)
        yield text
        text.flush()
        text.detach()
