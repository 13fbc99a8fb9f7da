"""``-o FILE``: built beside its place and renamed, so that a file of that name is always whole."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from engine.errors import RefusedError

if TYPE_CHECKING:
    from engine.disk import WritableFile

_BUFFER = 1 << 20


class _Sink(io.RawIOBase):
    """A growing file behind Python's buffers."""

    def __init__(self, file: WritableFile) -> None:
        super().__init__()
        self._file = file
        self._position = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """All of `data`, at the end."""
        view = memoryview(data).cast("B")
        self._file.write_at(self._position, view)
        self._position += len(view)
        return len(view)


def check_outside(target: Path, inspected: Path) -> None:
    """Refuse a file inside what is being inspected: inspection never writes there.  Raises RefusedError."""
    place = os.path.join(os.path.realpath(target.parent), target.name)
    tree = os.path.realpath(inspected)
    if place == tree or os.path.realpath(target) == tree or place.startswith(tree.rstrip(os.sep) + os.sep):
        raise RefusedError(f"{target}: lies inside {inspected}, which is only inspected", advice="choose another place")


@contextmanager
def replacing_binary(target: Path) -> Iterator[BinaryIO]:
    """A file that takes its place when the block ends well, and leaves no trace otherwise.  Raises DiskWriteError."""
    from engine import disk

    with disk.replacing(target) as file:
        buffered = io.BufferedWriter(_Sink(file), _BUFFER)
        yield cast("BinaryIO", buffered)
        buffered.flush()


@contextmanager
def replacing_text(target: Path) -> Iterator[io.TextIOWrapper]:
    """The same for UTF-8 text; what has no UTF-8 form is escaped."""
    with replacing_binary(target) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=False)
        yield text
        text.flush()
        text.detach()
