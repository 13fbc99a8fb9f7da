"""Page index: from a page's id and namespace to its row, in 4-byte slots (open addressing, linear probing).

The ids and namespaces stand in columns of whoever owns the rows; the index has the rows only.  At most four slots of five are
taken.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from waltzctl.formats.pages.write_batch import PageId

NONE = 2**32 - 1
"""No row."""
_EMPTY, _GONE = 2**32 - 1, 2**32 - 2
_MIX_ID, _MIX_NAMESPACE = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
_64 = 2**64 - 1
_SMALLEST_BITS = 4
_Rows = np.ndarray[Any, np.dtype[np.int64]]
_Slots = np.ndarray[Any, np.dtype[np.uint32]]


class PageIndex:
    """Rows of pages, each of another id or namespace.  Not thread-safe."""

    def __init__(self, namespaces: array[int], ids: array[int]) -> None:
        self._namespaces = namespaces
        self._ids = ids
        self._slots = array("I", [_EMPTY]) * (1 << _SMALLEST_BITS)
        self._shift = 64 - _SMALLEST_BITS
        self._count = 0
        self._filled = 0  # slots that are not empty: rows and gone ones

    def rows(self) -> _Rows:
        """Of all pages, in no order."""
        slots = np.frombuffer(self._slots, np.uint32)
        found: _Rows = slots[slots < _GONE].astype(np.int64)
        return found

    @property
    def bytes(self) -> int:
        """Of memory."""
        return self._slots.__sizeof__()

    def _slot(self, namespace: int, page: int) -> int:
        return ((page * _MIX_ID + namespace * _MIX_NAMESPACE) & _64) >> self._shift

    def find(self, page: PageId) -> int:
        """The row of a page, or NONE."""
        namespace, number = page
        slots, mask = self._slots, len(self._slots) - 1
        place = self._slot(namespace, number)
        while (row := slots[place]) != _EMPTY:
            if row != _GONE and self._ids[row] == number and self._namespaces[row] == namespace:
                return row
            place = (place + 1) & mask
        return NONE

    def add(self, row: int) -> None:
        """A row of a page that is not there yet."""
        if (self._filled + 1) * 5 > len(self._slots) * 4:
            self._resize(1)
        place, mask = self._slot(self._namespaces[row], self._ids[row]), len(self._slots) - 1
        while self._slots[place] < _GONE:
            place = (place + 1) & mask
        self._filled += self._slots[place] == _EMPTY
        self._count += 1
        self._slots[place] = row

    def remove(self, row: int) -> None:
        """Forget a row; its id and namespace must still be in the columns."""
        place, mask = self._slot(self._namespaces[row], self._ids[row]), len(self._slots) - 1
        while self._slots[place] != row:
            place = (place + 1) & mask
        self._slots[place] = _GONE
        self._count -= 1

    def add_many(self, rows: _Rows) -> bool:
        """Many rows at once; False, and nothing is changed, where a page is there already or stands in `rows` twice."""
        slots, shift = self._made_anew(len(rows))
        if not self._place(rows, slots, shift):
            return False
        self._count += len(rows)
        self._take(slots, shift)
        return True

    def _resize(self, more: int) -> None:
        self._take(*self._made_anew(more))

    def _take(self, slots: _Slots, shift: int) -> None:
        self._slots = array("I", slots.tobytes())
        self._shift = shift
        self._filled = self._count

    def _made_anew(self, more: int) -> tuple[_Slots, int]:
        """Slots with the rows that are there and room for `more`."""
        bits = _SMALLEST_BITS
        while (self._count + more) * 5 > (1 << bits) * 3:
            bits += 1
        slots = np.full(1 << bits, _EMPTY, np.uint32)
        present = np.frombuffer(self._slots, np.uint32)
        placed = self._place(present[present < _GONE].astype(np.int64), slots, 64 - bits)
        assert placed, "no page is there twice"
        return slots, 64 - bits

    def _place(self, rows: _Rows, slots: _Slots, shift: int) -> bool:
        """Put rows into slots; False where a page is there already, with some of the rows placed."""
        ids, namespaces = np.frombuffer(self._ids, np.uint64), np.frombuffer(self._namespaces, np.uint64)
        mask = len(slots) - 1
        with np.errstate(over="ignore"):
            mixed = ids[rows] * np.uint64(_MIX_ID) + namespaces[rows] * np.uint64(_MIX_NAMESPACE)
        places = (mixed >> np.uint64(shift)).astype(np.int64)
        while rows.size:
            free = slots[places] == _EMPTY
            slots[places[free]] = rows[free]  # of several that want one slot the last one gets it
            there = slots[places].astype(np.int64)
            left = there != rows
            rows, places, there = rows[left], places[left], there[left]
            if np.any((ids[there] == ids[rows]) & (namespaces[there] == namespaces[rows])):
                return False
            places = (places + 1) & mask
        return True
