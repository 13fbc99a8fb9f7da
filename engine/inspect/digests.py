"""The SHA-256 of a file that is read anyway: bytes are hashed as they are read; only bytes that the reader skips are extra."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.log.places import open_source
from waltzctl.engine.scan.byte_source import ByteSource

_CHUNK = 1 << 20
_NEAR = 64 << 10
"""Bytes that a reader may skip and that are then read for the hash; a longer jump is a look ahead, and is ignored."""


@dataclass(frozen=True, slots=True)
class Digest:
    """SHA-256, in hex, of the first `size` bytes of a file."""

    size: int
    sha256: str


class HashingSource:
    """A wrapper of a source that hashes its first `length` bytes as they are read.  Reading it is thread-safe."""

    def __init__(self, source: ByteSource, length: int) -> None:
        self.name = source.name
        self._source = source
        self._length = length
        self._done = 0
        self._sha256 = hashlib.sha256()
        self._lock = threading.Lock()

    def size(self) -> int:
        """See `ByteSource.size`."""
        return self._source.size()

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`."""
        count = self._source.read_into(offset, buffer)
        with self._lock:
            if self._done < offset <= min(self._done + _NEAR, self._length):
                self._read_to(offset)
            if offset <= self._done < offset + count:
                self._add(buffer[self._done - offset : count])
        return count

    def _add(self, data: memoryview) -> None:
        data = data[: self._length - self._done]
        self._sha256.update(data)
        self._done += len(data)

    def _read_to(self, stop: int, limits: ReadLimits | None = None) -> None:
        while self._done < stop:
            buffer = memoryview(bytearray(min(_CHUNK, stop - self._done)))
            count = self._source.read_into(self._done, buffer)
            if not count:
                return
            self._add(buffer[:count])
            if limits is not None:
                limits.spend(count)

    def digest(self, limits: ReadLimits) -> Digest | None:
        """The digest of the first `length` bytes; None if there are fewer.  Reads the rest.  Raises DiskReadError, CutShort."""
        with self._lock:
            self._read_to(self._length, limits)
            return Digest(self._length, self._sha256.hexdigest()) if self._done == self._length else None

    def close(self) -> None:
        """Does nothing: the wrapped source is closed by its owner."""


def digest_file(path: PurePath, length: int, limits: ReadLimits) -> Digest | None:
    """The digest of the first `length` bytes of a file; None if there are fewer.  Raises DiskReadError, CutShort."""
    try:
        with open_source(path) as source:
            return HashingSource(source, length).digest(limits)
    except FileNotFoundError:
        return None
