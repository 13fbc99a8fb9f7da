"""The pieces that backups need, each distinct one once: a vault may have tens of millions, so they are rows and no objects.

Rows are added as the sections are read.  Rows that wait are sorted in among the others once they are a good part of them, and all
but the first of equal ones are dropped: memory holds a row of 72 bytes per distinct piece, and three of them while it sorts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from waltzctl.formats.vault import DIGEST_SIZE, BackedPartition, BackupHead, Piece

_AT_ONCE = 1000
"""Rows that are made pieces at the same time; each takes half a kilobyte of memory."""
_FEWEST_WAITING = 1 << 16
"""Rows that wait at least before they are sorted in."""
_PLACE = ("file", "offset", "stored")
_ROW = np.dtype(
    [
        *((name, np.int64) for name in _PLACE),
        ("digest", f"S{DIGEST_SIZE}"),
        ("size", np.uint64),
        ("section", np.uint32),
        ("number", np.uint32),
    ]
)
"""`file`, `offset`, `stored`: place of the page; `section`: in the order of adding; `number`: of the piece in it."""
_NOWHERE = (-1, 0, 0)
"""In a row: there is no page."""
_Rows = npt.NDArray[np.void]
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NeededPiece:
    """A piece that a backup needs.

    `number`: its index in the section; `place`: file id, offset and size of its page in the page store, None if there is no page.
    """

    head: BackupHead
    section: BackedPartition
    number: int
    piece: Piece
    place: tuple[int, int, int] | None

    @property
    def page(self) -> int:
        """Its page in `Namespace.DATA`."""
        return self.head.first_page + self.section.first_piece + self.number

    @property
    def key(self) -> PieceKey:
        """Equal for pieces that share a page and a digest."""
        return self.place, self.piece.digest


PieceKey = tuple[tuple[int, int, int] | None, bytes]
"""Place and digest of a piece: pieces that several backups share have the same key."""


@dataclass(frozen=True, slots=True)
class DistinctPiece:
    """A distinct piece, as the first backup needs it.

    `row`: its index by place; `order`: rises with the order of adding.  The transaction ids of `needed` are not kept.
    """

    row: int
    order: tuple[int, int]
    needed: NeededPiece


class DistinctPieces:
    """Distinct pieces.  Not thread-safe."""

    def __init__(self) -> None:
        self._sections: list[tuple[BackupHead, BackedPartition]] = []
        self._sorted: _Rows = np.empty(0, _ROW)
        self._waiting: list[_Rows] = []
        self._num_waiting = 0

    def add(self, head: BackupHead, section: BackedPartition, pieces: Iterable[NeededPiece]) -> None:
        """Add pieces of a section."""
        number = len(self._sections)
        self._sections.append((head, section))
        rows = np.fromiter(
            ((*(one.place or _NOWHERE), one.piece.digest, one.piece.size, number, one.number) for one in pieces), _ROW
        )
        self._waiting.append(rows)
        self._num_waiting += len(rows)
        if self._num_waiting >= max(_FEWEST_WAITING, len(self._sorted) // 4):
            self._settle()

    def _settle(self) -> None:
        if self._waiting:
            rows = np.concatenate([self._sorted, *self._waiting])
            self._waiting, self._num_waiting = [], 0
            self._sorted = rows[_first_of_equal(rows, (*_PLACE, "digest"))]

    def __len__(self) -> int:
        self._settle()
        return len(self._sorted)

    @property
    def bytes(self) -> int:
        """Bytes of the contents, each page once."""
        self._settle()
        sizes = self._sorted["size"][_first_of_equal(self._sorted, (*_PLACE, "size"))]
        return int(sizes.sum())

    def size_of(self, rows: Indexes) -> int:
        """Bytes of the contents of some rows."""
        self._settle()
        return int(self._sorted["size"][rows].sum())

    def in_order(self) -> Iterator[DistinctPiece]:
        """All, in the order in which they were added."""
        self._settle()
        yield from self.at(np.lexsort((self._sorted["number"], self._sorted["section"])))

    def at(self, rows: Indexes) -> Iterator[DistinctPiece]:
        """The pieces of some rows; rows ascend with the place."""
        self._settle()
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            for row, values in zip(part.tolist(), self._sorted[part].tolist(), strict=True):
                file, offset, stored, digest, size, number, index = values
                piece = Piece(
                    digest.ljust(DIGEST_SIZE, b"\0"), size, stored
                )  # NumPy takes zeros at the end for padding
                place = (file, offset, stored)
                head, section = self._sections[number]
                needed = NeededPiece(head, section, index, piece, None if place == _NOWHERE else place)
                yield DistinctPiece(row, (number, index), needed)


def _first_of_equal(rows: _Rows, names: tuple[str, ...]) -> Indexes:
    """The indexes of rows that are distinct in some columns, sorted by these; the first one of equal rows."""
    order: Indexes = np.lexsort([rows[name] for name in reversed(names)])  # stable
    if not len(order):
        return order
    differs = np.zeros(len(order), np.bool_)
    differs[0] = True
    for name in names:
        column = rows[name][order]
        differs[1:] |= column[1:] != column[:-1]
    return order[differs]
