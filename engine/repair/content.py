"""The content of a file after a repair, before it is written: a sequence of file spans and bytes in memory.

A planner scans a content like a file, so a repair is checked on the bytes that it will write.  Only short literals are held in
memory; everything else is read from the files when needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.durable.edits import Cut, Edit, Overwrite, Replace
from waltzctl.engine.log import places

CHUNK = 1 << 20
IN_PLACE_LIMIT = 64 << 20
"""Most bytes that are written in place; with more, the file is rebuilt beside the old one and renamed."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes `start` to `stop` of a file."""

    path: PurePath
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def slice(self, start: int, stop: int) -> FileSpan:
        """Bytes `start` to `stop` of the span, as offsets within it."""
        return FileSpan(self.path, self.start + start, self.start + stop)

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the span; fewer when the file has become shorter.  Raises DiskReadError."""
        return places.read_range(self.path, self.start + start, min(length, len(self) - start))


@dataclass(frozen=True, slots=True)
class LiteralBytes:
    """Bytes in memory."""

    data: bytes

    def __len__(self) -> int:
        return len(self.data)

    def slice(self, start: int, stop: int) -> LiteralBytes:
        """Bytes `start` to `stop`."""
        return LiteralBytes(self.data[start:stop])

    def read(self, start: int, length: int) -> bytes:
        """Up to `length` bytes from `start`."""
        return self.data[start : start + length]


Piece = FileSpan | LiteralBytes


class Content:
    """A sequence of pieces; a `ByteSource` for scans."""

    def __init__(self, name: str, pieces: tuple[Piece, ...]) -> None:
        self.name = name
        self.pieces = _joined(pieces)
        self._size = sum(map(len, self.pieces))

    @classmethod
    def of_file(cls, path: PurePath, size: int) -> Content:
        """The first `size` bytes of a file."""
        return cls(str(path), (FileSpan(path, 0, size),))

    def size(self) -> int:
        """Length in bytes."""
        return self._size

    def part(self, start: int, stop: int) -> tuple[Piece, ...]:
        """The pieces of ``[start, stop)``."""
        found: list[Piece] = []
        position = 0
        for piece in self.pieces:
            low, high = max(start - position, 0), min(stop - position, len(piece))
            if low < high:
                found.append(piece.slice(low, high))
            position += len(piece)
        return tuple(found)

    def spliced(self, start: int, stop: int, new: tuple[Piece, ...]) -> Content:
        """A content with bytes ``[start, stop)`` replaced by `new`."""
        return Content(self.name, (*self.part(0, start), *new, *self.part(stop, self._size)))

    def read(self, start: int, length: int) -> bytes:
        """Up to `length` bytes from `start`.  Raises DiskReadError."""
        return b"".join(self.chunks(start, start + length))

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes of ``[start, stop)``, in pieces of at most a mebibyte.  Raises DiskReadError."""
        for piece in self.part(start, self._size if stop is None else stop):
            for at in range(0, len(piece), CHUNK):
                yield piece.read(at, min(CHUNK, len(piece) - at))

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset`; return the bytes read, fewer only at the end.  Raises DiskReadError."""
        done = 0
        for part in self.chunks(offset, offset + len(buffer)):
            buffer[done : done + len(part)] = part
            done += len(part)
        return done

    def equals(self, other: Content) -> bool:
        """Whether both have the same bytes, even if cut into different pieces.  Raises DiskReadError."""
        return self._size == other.size() and all(
            self.read(at, CHUNK) == other.read(at, CHUNK) for at in range(0, self._size, CHUNK)
        )

    def close(self) -> None:
        """Nothing is held open."""

    def edits(self, path: PurePath, size: int | None) -> list[Edit]:
        """The edits that give the file at `path`, of `size` bytes now (None: it does not exist), this content.

        The edits are in place when all bytes that stay keep their offsets, and at most IN_PLACE_LIMIT bytes are written;
        otherwise the file is replaced.
        """
        if size is None:
            return [Replace(path, self.chunks, self._size)]
        writes: list[tuple[int, Piece]] = []
        position = 0
        for piece in self.pieces:
            if not (isinstance(piece, FileSpan) and piece.path == path and piece.start == position):
                if isinstance(piece, FileSpan) and piece.path == path:
                    return [Replace(path, self.chunks, self._size)]
                writes.append((position, piece))
            position += len(piece)
        if sum(len(piece) for _, piece in writes) > IN_PLACE_LIMIT:
            return [Replace(path, self.chunks, self._size)]
        edits: list[Edit] = []
        for offset, piece in writes:
            data = piece.read(0, len(piece))
            before = edits[-1] if edits else None
            if isinstance(before, Overwrite) and before.end == offset:
                edits[-1] = Overwrite(path, before.offset, before.data + data)
            else:
                edits.append(Overwrite(path, offset, data))
        if position < size:
            edits.append(Cut(path, position))
        return edits


def _joined(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The pieces with adjacent spans of one file joined, adjacent literals joined, and empty ones dropped."""
    joined: list[Piece] = []
    for piece in pieces:
        before = joined[-1] if joined else None
        if (
            isinstance(piece, FileSpan)
            and isinstance(before, FileSpan)
            and (before.path, before.stop) == (piece.path, piece.start)
        ):
            joined[-1] = FileSpan(before.path, before.start, piece.stop)
        elif isinstance(piece, LiteralBytes) and isinstance(before, LiteralBytes):
            joined[-1] = LiteralBytes(before.data + piece.data)
        elif len(piece):
            joined.append(piece)
    return tuple(joined)
