"""Space map: allocates from, and returns to, the free ranges of a file.

Best fit: the smallest free range that is large enough; of equal ones, the first.  All numbers are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from sortedcontainers import SortedList


class SpaceMap:
    """The free ranges of bytes 0 to `limit`; at first all are free.  Adjacent free ranges are merged.

    Not thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._starts: SortedList[int] = SortedList()
        self._lengths: dict[int, int] = {}
        self._by_length: SortedList[tuple[int, int]] = SortedList()
        self._valid = limit
        if limit:
            self._add(0, limit)

    def _add(self, start: int, length: int) -> None:
        self._starts.add(start)
        self._lengths[start] = length
        self._by_length.add((length, start))
        self._valid -= length

    def _remove(self, start: int) -> int:
        length = self._lengths.pop(start)
        self._starts.remove(start)
        self._by_length.remove((length, start))
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
        found = next(self._by_length.irange((size, 0)), None)
        if found is None:
            return None
        self.mark_used(found[1], size)
        return found[1]

    def mark_used(self, offset: int, size: int) -> bool:
        """Mark a range as used; False, and nothing is changed, if it is not inside one free range."""
        start = next(self._starts.irange(maximum=offset, reverse=True), None)
        if start is None or size <= 0:
            return False
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
        self._starts = SortedList(self._lengths)
        self._by_length = SortedList((length, start) for start, length in self._lengths.items())
        self._valid = self.limit - sum(self._lengths.values())

    def mark_free(self, offset: int, size: int) -> bool:
        """Mark a range as free; False, and nothing is changed, if part of it is free already or outside of the map."""
        end = offset + size
        if size <= 0 or offset < 0 or end > self.limit:
            return False
        behind = next(self._starts.irange(offset), None)
        before = next(self._starts.irange(maximum=offset, inclusive=(True, False), reverse=True), None)
        if behind is not None and behind < end:
            return False
        if before is not None and before + self._lengths[before] > offset:
            return False
        if behind == end:
            end += self._remove(end)
        if before is not None and before + self._lengths[before] == offset:
            self._remove(before)
            offset = before
        self._add(offset, end - offset)
        return True
