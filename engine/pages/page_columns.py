"""Columns of pages and of their versions: 24 bytes per page, 48 per version, and no object for either."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from waltzctl.engine.pages.page_index import NONE

DELETED, REFERENCE, EXTERNAL = 2**32 - 1, 2**32 - 2, 2**32 - 3
"""Values of column `file` for versions that are no entries.  For a reference, column `offset` is the row of its target."""


class GrowingColumns:
    """Columns of equal length, with a free list of removed rows, linked through the first column."""

    def __init__(self, **codes: str) -> None:
        self.columns = {name: array(code) for name, code in codes.items()}
        for name, column in self.columns.items():
            setattr(self, name, column)
        self._next_free = NONE
        self._free_link = self.columns[next(iter(codes))]
        self.used = 0

    def add(self, *values: int) -> int:
        """Add a row with these values, in the order of the columns; returns its number."""
        self.used += 1
        if self._next_free != NONE:
            row = self._next_free
            self._next_free = self._free_link[row]
            for column, value in zip(self.columns.values(), values, strict=True):
                column[row] = value
            return row
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        return len(self._free_link) - 1

    def extend(self, **values: np.ndarray[Any, Any]) -> None:
        """Append rows, given by column."""
        for name, column in self.columns.items():
            column.frombytes(values[name].astype(f"u{column.itemsize}").tobytes())
        self.used += len(next(iter(values.values())))

    def cut(self, length: int) -> None:
        """Remove all rows from number `length` on, which were just appended."""
        self.used -= len(self._free_link) - length
        for column in self.columns.values():
            del column[length:]

    def remove(self, row: int) -> None:
        """Put a row on the free list; its first column holds the link."""
        self._free_link[row] = self._next_free
        self._next_free = row
        self.used -= 1

    @property
    def bytes(self) -> int:
        """Memory of the columns, with their spare capacity, in bytes."""
        return sum(column.__sizeof__() for column in self.columns.values())


class PageColumns(GrowingColumns):
    """One row per page: `head` is the row of its last version; `rows` counts versions; `live_references`: see `PageDirectory`."""

    head: array[int]
    namespace: array[int]
    id: array[int]
    rows: array[int]
    live_references: array[int]

    def __init__(self) -> None:
        super().__init__(head="I", namespace="Q", id="Q", rows="I", live_references="I")


class VersionColumns(GrowingColumns):
    """One row per version: `older` is the row of the next older one, `page` that of its page; the rest is its content.

    `references`: how many chains and references hold the row.
    """

    older: array[int]
    page: array[int]
    sequence: array[int]
    epoch: array[int]
    file: array[int]
    offset: array[int]
    size: array[int]
    checksum: array[int]
    tag: array[int]
    references: array[int]

    def __init__(self) -> None:
        super().__init__(
            older="I",
            page="I",
            sequence="Q",
            epoch="I",
            file="I",
            offset="I",
            size="I",
            checksum="I",
            tag="Q",
            references="I",
        )
