"""Space map: allocates from, and returns to, the free ranges of a file.

Best fit: the smallest free range that is large enough; of equal ones, the first.  All numbers are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence


class SpaceMap:
    """The free ranges of bytes 0 to `limit`; at first all are free.  Adjacent free ranges are merged.

    Not thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._starts: list[int] = []
        self._lengths: dict[int, int] = {}
        self._by_length: list[tuple[int, int]] = []
        self._valid = limit
        if limit:
            self._add(0, limit)

    def _add(self, start: int, length: int) -> None:
        insort(self._starts, start)
        self._lengths[start] = length
        insort(self._by_length, (length, start))
        self._valid -= length

    def _remove(self, start: int) -> int:
        length = self._lengths.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        del self._by_length[bisect_left(self._by_length, (length, start))]
        self._valid += length
        return length

    @property
    def valid(self) -> int:
        """Bytes in use."""
        return self._valid

    @property
    def largest_free(self) -> int:
        """Size of the largest free range."""
        return self._by_length[-1][0] if self._by_length else 0

    @property
    def used_boundary(self) -> int:
        """End of the last used byte."""
        if self._starts and self._starts[-1] + self._lengths[self._starts[-1]] == self.limit:
            return self._starts[-1]
        return self.limit

    def free_ranges(self) -> list[tuple[int, int]]:
        """Start and length of each free range, ascending."""
        return [(start, self._lengths[start]) for start in self._starts]

    def take(self, size: int) -> int | None:
        """Mark `size` bytes as used (best fit); returns their offset, or None if no free range is large enough."""
        if size <= 0:
            raise ValueError(f"cannot take {size} bytes")
        place = bisect_left(self._by_length, (size, 0))
        if place == len(self._by_length):
            return None
        start = self._by_length[place][1]
        self.mark_used(start, size)
        return start

    def mark_used(self, offset: int, size: int) -> bool:
        """Mark a range as used; False, and nothing is changed, if it is not inside one free range."""
        place = bisect_right(self._starts, offset) - 1
        if place < 0 or size <= 0:
            return False
        start = self._starts[place]
        end = start + self._lengths[start]
        if offset + size > end:
            return False
        self._remove(start)
        if start < offset:
            self._add(start, offset - start)
        if offset + size < end:
            self._add(offset + size, end - offset - size)
        return True

    def mark_many_used(self, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Mark ascending, disjoint ranges of an empty map as used.  Raises ValueError."""
        if self._valid:
            raise ValueError("a part of the map is used already")
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        gaps = list(zip([0, *ends], [*offsets, self.limit], strict=True))
        if any(start > end for start, end in gaps):
            raise ValueError("ranges overlap, or reach beyond the map")
        self._lengths = {start: end - start for start, end in gaps if start < end}
        self._starts = list(self._lengths)
        self._by_length = sorted((length, start) for start, length in self._lengths.items())
        self._valid = self.limit - sum(self._lengths.values())

    def mark_free(self, offset: int, size: int) -> bool:
        """Mark a range as free; False, and nothing is changed, if part of it is free already or outside of the map."""
        end = offset + size
        if size <= 0 or offset < 0 or end > self.limit:
            return False
        place = bisect_left(self._starts, offset)  # the first free range that begins at `offset` or later
        if place < len(self._starts) and self._starts[place] < end:
            return False
        if place and self._starts[place - 1] + self._lengths[self._starts[place - 1]] > offset:
            return False
        if place < len(self._starts) and self._starts[place] == end:
            end += self._remove(end)
        if place and self._starts[place - 1] + self._lengths[self._starts[place - 1]] == offset:
            offset = self._starts[place - 1]
            self._remove(offset)
        self._add(offset, end - offset)
        return True
