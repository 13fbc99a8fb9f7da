"""Page index: hash table from namespace and id of a page to its row (4-byte slots, open addressing, linear probing).

Ids and namespaces are in columns that the caller owns; the index holds only row numbers.  At most 4/5 of the slots are filled.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from waltzctl.formats.pages.write_batch import PageId

NONE = 2**32 - 1
"""No row."""
_EMPTY, _TOMBSTONE = 2**32 - 1, 2**32 - 2
_MIX_ID, _MIX_NAMESPACE = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
_64 = 2**64 - 1
_SMALLEST_BITS = 4
_Rows = np.ndarray[Any, np.dtype[np.int64]]
_Slots = np.ndarray[Any, np.dtype[np.uint32]]


class PageIndex:
    """Rows of pages with distinct ids.  Not thread-safe."""

    def __init__(self, namespaces: array[int], ids: array[int]) -> None:
        self._namespaces = namespaces
        self._ids = ids
        self._slots = array("I", [_EMPTY]) * (1 << _SMALLEST_BITS)
        self._shift = 64 - _SMALLEST_BITS
        self._count = 0
        self._filled = 0  # slots that are not empty: rows and tombstones

    def rows(self) -> _Rows:
        """Rows of all pages, unordered."""
        slots = np.frombuffer(self._slots, np.uint32)
        found: _Rows = slots[slots < _TOMBSTONE].astype(np.int64)
        return found

    @property
    def bytes(self) -> int:
        """Memory of the slots, in bytes."""
        return self._slots.__sizeof__()

    def _slot(self, namespace: int, page: int) -> int:
        return ((page * _MIX_ID + namespace * _MIX_NAMESPACE) & _64) >> self._shift

    def find(self, page: PageId) -> int:
        """The row of a page, or NONE."""
        namespace, number = page
        slots, mask = self._slots, len(self._slots) - 1
        place = self._slot(namespace, number)
        while (row := slots[place]) != _EMPTY:
            if row != _TOMBSTONE and self._ids[row] == number and self._namespaces[row] == namespace:
                return row
            place = (place + 1) & mask
        return NONE

    def add(self, row: int) -> None:
        """Add the row of a page that is not in the index."""
        if (self._filled + 1) * 5 > len(self._slots) * 4:
            self._resize(1)
        place, mask = self._slot(self._namespaces[row], self._ids[row]), len(self._slots) - 1
        while self._slots[place] < _TOMBSTONE:
            place = (place + 1) & mask
        self._filled += self._slots[place] == _EMPTY
        self._count += 1
        self._slots[place] = row

    def remove(self, row: int) -> None:
        """Remove a row; its id and namespace must still be in the columns."""
        place, mask = self._slot(self._namespaces[row], self._ids[row]), len(self._slots) - 1
        while self._slots[place] != row:
            place = (place + 1) & mask
        self._slots[place] = _TOMBSTONE
        self._count -= 1

    def add_many(self, rows: _Rows) -> bool:
        """Add rows in bulk; False, and nothing is changed, if a page is in the index already or occurs twice in `rows`."""
        slots, shift = self._rehashed(len(rows))
        if not self._place(rows, slots, shift):
            return False
        self._count += len(rows)
        self._install(slots, shift)
        return True

    def _resize(self, more: int) -> None:
        self._install(*self._rehashed(more))

    def _install(self, slots: _Slots, shift: int) -> None:
        self._slots = array("I", slots.tobytes())
        self._shift = shift
        self._filled = self._count

    def _rehashed(self, more: int) -> tuple[_Slots, int]:
        """A new table with the current rows and space for `more`."""
        bits = _SMALLEST_BITS
        while (self._count + more) * 5 > (1 << bits) * 3:
            bits += 1
        slots = np.full(1 << bits, _EMPTY, np.uint32)
        present = np.frombuffer(self._slots, np.uint32)
        placed = self._place(present[present < _TOMBSTONE].astype(np.int64), slots, 64 - bits)
        assert placed, "no page is there twice"
        return slots, 64 - bits

    def _place(self, rows: _Rows, slots: _Slots, shift: int) -> bool:
        """Put rows into slots; False if a page is there already; some rows may then have been placed."""
        ids, namespaces = np.frombuffer(self._ids, np.uint64), np.frombuffer(self._namespaces, np.uint64)
        mask = len(slots) - 1
        with np.errstate(over="ignore"):
            mixed = ids[rows] * np.uint64(_MIX_ID) + namespaces[rows] * np.uint64(_MIX_NAMESPACE)
        places = (mixed >> np.uint64(shift)).astype(np.int64)
        while rows.size:
            free = slots[places] == _EMPTY
            slots[places[free]] = rows[free]  # if several rows want one slot, the last one gets it
            there = slots[places].astype(np.int64)
            left = there != rows
            rows, places, there = rows[left], places[left], there[left]
            if np.any((ids[there] == ids[rows]) & (namespaces[there] == namespaces[rows])):
                return False
            places = (places + 1) & mask
        return True
