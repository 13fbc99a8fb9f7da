"""What a file will hold after a repair, before anything is written: pieces of files and of memory, in a row.

A planner scans such a content just as it scans a file, so that a repair is proven on the very bytes that it will write, and
nothing is ever held in memory that could be large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.durable.edits import Cut, Edit, Overwrite, Replace
from waltzctl.engine.log import places

CHUNK = 1 << 20
IN_PLACE_LIMIT = 64 << 20
"""Bytes that edits in place may write; beyond, the file is built anew beside the old one."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes `start` to `stop` of a file."""

    path: PurePath
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def slice(self, start: int, stop: int) -> FileSpan:
        """A part, by offsets within the span."""
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
        """A part."""
        return LiteralBytes(self.data[start:stop])

    def read(self, start: int, length: int) -> bytes:
        """Bytes of it."""
        return self.data[start : start + length]


Piece = FileSpan | LiteralBytes


class Content:
    """Pieces in a row; a `ByteSource` for scans."""

    def __init__(self, name: str, pieces: tuple[Piece, ...]) -> None:
        self.name = name
        self.pieces = _joined(pieces)
        self._size = sum(map(len, self.pieces))

    @classmethod
    def of_file(cls, path: PurePath, size: int) -> Content:
        """A file as it is."""
        return cls(str(path), (FileSpan(path, 0, size),))

    def size(self) -> int:
        """Bytes."""
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
        """With ``[start, stop)`` replaced by `new`."""
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
        """Whether both hold the same bytes, whatever pieces they are made of.  Raises DiskReadError."""
        return self._size == other.size() and all(
            self.read(at, CHUNK) == other.read(at, CHUNK) for at in range(0, self._size, CHUNK)
        )

    def close(self) -> None:
        """Nothing is held open."""

    def edits(self, path: PurePath, size: int | None) -> list[Edit]:
        """What makes this content of the file at `path`, which has `size` bytes now (None: there is none).

        In place where every byte that stays keeps its offset and few are written; else the file is built anew.
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
    """Neighbouring spans of one file as one, literals in a row as one, empty pieces left out."""
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
