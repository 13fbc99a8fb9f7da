"""Sources of bytes for the scanner: positioned reads only.

A file is read with ``pread``.  A memory map would be as fast, but if the file shrank, or had a bad sector, the process would be
killed by a signal (SIGBUS); with ``pread`` the first is a short read, and the second an error with the offset.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import PurePath
from types import TracebackType
from typing import Protocol

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskReadError

_LOOK = 1 << 20
"""Bytes per read when looking for bytes that are not zero."""
_MOST_BYTES = (1 << 63) - 1
"""The size of the longest possible file."""


class ByteSource(Protocol):
    """Bytes at offsets from 0 on.  Reading is thread-safe."""

    name: str
    """A path, for messages."""

    def size(self) -> int:
        """The current number of bytes; a file that is being written grows."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` (writable, of single bytes) from `offset`; return the bytes read, fewer only at the end of the data.

        Raises DiskReadError.
        """

    def close(self) -> None:
        """Release resources; a second call does nothing."""


class FileSource:
    """A file opened for reading: without a lock, and without changing its access time where the system allows that.

    It is closed by `close`, and where nothing refers to it any more.
    """

    _descriptor: int | None = None

    def __init__(self, path: PurePath | str, *, devices: bool = False) -> None:
        """`devices`: accept a block device as well.  Raises FileNotFoundError, DiskReadError."""
        self.name = str(path)
        self._descriptor = disk.open_for_reading(path, devices=devices)

    # `close` is a default: at the interpreter's end the module may be empty
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._descriptor is not None:
            close(self._descriptor)

    def fileno(self) -> int:
        """The descriptor.  Raises ValueError when closed."""
        if self._descriptor is None:
            raise ValueError(f"{self.name}: file is closed")
        return self._descriptor

    def size(self) -> int:
        """Bytes in the file now.  Raises DiskReadError."""
        try:
            return os.fstat(self.fileno()).st_size
        except OSError as error:
            raise DiskReadError(self.name, None, error, doing="examine") from error

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`."""
        descriptor, done, wanted = self.fileno(), 0, len(buffer)
        if offset + wanted > _MOST_BYTES:
            return 0  # a damaged id may lead to such an offset, which ``preadv`` refuses
        while done < wanted:
            try:
                count = os.preadv(descriptor, [buffer[done:] if done else buffer], offset + done)
            except OSError as error:
                raise DiskReadError(self.name, offset + done, error) from error
            if not count:
                break
            done += count
        return done

    def next_data(self, offset: int) -> int:
        """The offset of the next byte at or after `offset` that is not in a hole; the file's size where there is none.

        Raises DiskReadError.
        """
        try:
            return os.lseek(self.fileno(), offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return max(offset, self.size())
            if error.errno in (errno.EINVAL, errno.ENOTSUP):
                return offset  # the file system does not support SEEK_DATA
            raise DiskReadError(self.name, offset, error) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __enter__(self) -> FileSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BytesSource:
    """Bytes in memory.  They are not copied."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<memory>") -> None:
        self.name = name
        self._data = memoryview(data).cast("B")

    def size(self) -> int:
        """Number of bytes."""
        return len(self._data)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`; never fails."""
        part = self._data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Does nothing."""


def read_bytes(source: ByteSource, offset: int, length: int) -> bytearray:
    """Up to `length` bytes from `offset`; fewer only at the end of the data.  The caller bounds `length`.

    Raises DiskReadError.
    """
    data = bytearray(length)
    count = source.read_into(offset, memoryview(data)) if length else 0
    del data[count:]
    return data


def only_zeros(source: ByteSource, offset: int, most: int) -> bool:
    """Whether every byte from `offset` to the end is zero; False too if more than `most` bytes would have to be read for it.

    Holes of a file are not read and not counted.  Raises DiskReadError.
    """
    end = source.size()
    buffer = bytearray(_LOOK)
    while most > 0:
        offset = source.next_data(offset) if isinstance(source, FileSource) else offset
        count = source.read_into(offset, memoryview(buffer)) if offset < end else 0
        if not count:
            return True
        if buffer.count(0, 0, count) != count:
            return False
        offset, most = offset + count, most - count
    return offset >= end
