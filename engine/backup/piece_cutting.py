"""Where a run of records is cut into pieces.

A piece holds the records of an aligned block of transaction ids, ``[n * 2**k, (n + 1) * 2**k)``, as far as the run has them.  `k`
is the largest for which the block has at most `limit` bytes; a block of one id may be larger.

So the same transactions make the same pieces in every replica, wherever its segments begin and end; only at the beginning and end
of a run may a block be incomplete.  In a log that grows, only the last piece changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from waltzctl.engine.scan.columns import Int64Column

LIMIT = 1 << 20
"""Size limit, in bytes, of a piece of more than one record."""
_LEVELS = 63


@dataclass(frozen=True, slots=True)
class PieceRange:
    """The records of a piece; `start` and `end`: byte offsets in the run."""

    first_transaction_id: int
    records: int
    start: int
    end: int


class PieceCutter:
    """Cuts a run whose records are fed in parts.  `begins`: whether the first piece may begin within a block."""

    def __init__(self, first_transaction_id: int, start: int = 0, *, begins: bool = True, limit: int = LIMIT) -> None:
        self._next = first_transaction_id
        self._begins = begins
        self._limit = limit
        self._offsets = np.array([start], np.int64)  # offsets of the pending records, then their end

    def feed(self, sizes: Int64Column) -> Iterator[PieceRange]:
        """Add records by their sizes in bytes; yields the pieces that no further record can change."""
        ends = self._offsets[-1] + np.cumsum(sizes, dtype=np.int64)
        self._offsets = np.concatenate((self._offsets, ends))
        yield from self._cut(last=False)

    def finish(self) -> Iterator[PieceRange]:
        """The remaining pieces, as there are no further records."""
        yield from self._cut(last=True)

    def _cut(self, *, last: bool) -> Iterator[PieceRange]:
        low, known = 0, len(self._offsets) - 1
        while low < known:
            count = self._count(low, known, last=last)
            if count is None:
                break
            yield PieceRange(self._next, count, int(self._offsets[low]), int(self._offsets[low + count]))
            self._next += count
            self._begins = False
            low += count
        self._offsets = self._offsets[low:]

    def _count(self, low: int, known: int, *, last: bool) -> int | None:
        """Number of records of the piece that begins at index `low`; None while it is not decided."""
        first, count = self._next, 1
        for level in range(_LEVELS):
            block = 1 << level
            if first % block and not self._begins:
                break
            rows = (first // block + 1) * block - first
            high = min(low + rows, known)
            if int(self._offsets[high] - self._offsets[low]) > self._limit:
                break
            count = high - low
            if low + rows > known:
                return count if last else None
        return max(count, 1)
