"""Columns of pages and of their versions: 24 bytes for a page, 48 for a version, no object for either."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from waltzctl.engine.pages.page_index import NONE

DELETED, REFERENCE, EXTERNAL = 2**32 - 1, 2**32 - 2, 2**32 - 3
"""In the place of a blob file's id: what a version is that is no entry.  A reference's offset is its target's row."""


class GrowingColumns:
    """Columns of equal length, and rows that are used again."""

    def __init__(self, **codes: str) -> None:
        self.columns = {name: array(code) for name, code in codes.items()}
        for name, column in self.columns.items():
            setattr(self, name, column)
        self._next_free = NONE
        self._free_link = self.columns[next(iter(codes))]
        self.used = 0

    def add(self, *values: int) -> int:
        """A row with these values, in the order of the columns."""
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
        """Rows behind the last one, by columns."""
        for name, column in self.columns.items():
            column.frombytes(values[name].astype(f"u{column.itemsize}").tobytes())
        self.used += len(next(iter(values.values())))

    def cut(self, length: int) -> None:
        """Take back what was added behind the first `length` rows."""
        self.used -= len(self._free_link) - length
        for column in self.columns.values():
            del column[length:]

    def remove(self, row: int) -> None:
        """Make the row free; its first column is used for something else then."""
        self._free_link[row] = self._next_free
        self._next_free = row
        self.used -= 1

    @property
    def bytes(self) -> int:
        """Of memory, with what is kept for growing."""
        return sum(column.__sizeof__() for column in self.columns.values())


class PageColumns(GrowingColumns):
    """A page in each row: its last version, and how many versions and live references it has."""

    head: array[int]
    namespace: array[int]
    id: array[int]
    rows: array[int]
    live_references: array[int]

    def __init__(self) -> None:
        super().__init__(head="I", namespace="Q", id="Q", rows="I", live_references="I")


class VersionColumns(GrowingColumns):
    """A version in each row: the next older one, its page, and what it says."""

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
