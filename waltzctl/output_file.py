"""``-o FILE``: a plain file is built beside its place and renamed, so that it is always whole; anything else is written to.

A link keeps leading where it leads: the file behind it is the one that is replaced.  A device, a FIFO, and what ``/dev/stdout``
stands for are opened and written, as a shell's ``>`` would; nothing that is no file is ever renamed away.
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
_MOST_LINKS = 40
"""Links behind one another after which the system gives up as well."""


class _Sink(io.RawIOBase):
    """What grows, behind Python's buffers.  `put` writes bytes at an offset, which is where the last ones ended."""

    def __init__(self, put: Callable[[int, memoryview], None]) -> None:
        super().__init__()
        self._put = put
        self._position = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """All of `data`, at the end."""
        view = memoryview(data).cast("B")
        self._put(self._position, view)
        self._position += len(view)
        return len(view)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where output goes: `path` with every link followed; `plain`: a regular file stands there, or nothing yet."""

    path: Path
    plain: bool

    @classmethod
    def of(cls, target: Path) -> Destination:
        """Raises DiskWriteError for links that lead in a circle."""
        path = target
        for _ in range(_MOST_LINKS):
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                return cls(path, True)
            except OSError as error:
                raise write_error(target, None, error, doing="examine") from error
            if not stat.S_ISLNK(mode):
                return cls(path, stat.S_ISREG(mode))
            if os.path.realpath(path.parent).startswith("/proc/"):
                return cls(path, False)  # no link but an open file of a process: /dev/stdout, /dev/fd/3
            path = path.parent / os.readlink(path)
        raise write_error(target, None, OSError(errno.ELOOP, os.strerror(errno.ELOOP)), doing="follow")


def check_outside(target: Path, inspected: PurePath) -> None:
    """Refuse a file inside what is being inspected: inspection never writes there.  Raises RefusedError."""
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
    """A file that takes its place when the block ends well, and leaves no trace otherwise; or what else stands there.

    What is no plain file is written to as the block goes on.  A FIFO waits for its reader.  Raises DiskWriteError, and
    BrokenPipeError when that reader has gone.
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
    buffered = io.BufferedWriter(_Sink(put), _BUFFER)
    yield cast("BinaryIO", buffered)
    buffered.flush()


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[int, memoryview], None]]:
    """Write on at the end of what is no plain file."""
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
    """The same for UTF-8 text; what has no UTF-8 form is escaped."""
    with replacing_binary(target) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=False)
        yield text
        text.flush()
        text.detach()
