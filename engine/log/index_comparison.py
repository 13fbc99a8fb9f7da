"""Comparison of an index with the records that a scan found, chunk by chunk."""

from __future__ import annotations

import sys

import numpy as np

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings.indexes import IndexLong, IndexShort, WrongEntries
from waltzctl.engine.log.index import IndexReader, Offsets
from waltzctl.engine.scan.columns import Damage
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, RECORD_OVERHEAD

CHUNK = 16384
"""Entries compared per step."""


class IndexComparison:
    """Compares entries with the offsets of the records that a scan finds.

    `wrong`: the wrong entries so far.  `unreadable`: the first error in reading the index, after which nothing is compared.
    """

    def __init__(self, reader: IndexReader) -> None:
        self.reader = reader
        self.wrong = WrongEntries()
        self.unreadable: DiskReadError | None = None
        self._buffer: Offsets = np.empty(0, np.int64)

    def compare(self, first: int, offsets: Offsets) -> None:
        """Compare the entries of records with consecutive ids from `first` on, which begin at `offsets`."""
        for at in range(0, len(offsets), CHUNK):
            actual = offsets[at : at + CHUNK]
            stored = self._read_into_buffer(first + at, len(actual))
            if (unequal := stored != actual[: len(stored)]).any():
                differ = np.flatnonzero(unequal)
                one, last = int(differ[0]), int(differ[-1])
                self.wrong.add(
                    first + at + one, int(stored[one]), int(actual[one]), len(differ), last=first + at + last
                )

    def compare_span(self, damage: Damage) -> None:
        """Compare the entries of records that were lost in a damaged span.

        The first entry must be the start of the span, the others must lie inside it.
        """
        if not damage.length or damage.next_transaction_id is None:
            return
        lost = min(damage.next_transaction_id - damage.transaction_id, damage.length // RECORD_OVERHEAD + 1)
        for at in range(0, lost, CHUNK):
            stored = self._read(damage.transaction_id + at, min(CHUNK, lost - at))
            inside = (stored > damage.offset) & (stored < damage.end)
            if at == 0 and len(stored):
                inside[0] = stored[0] == damage.offset
            for place in np.flatnonzero(~inside):
                number = at + int(place)
                actual = damage.offset if number == 0 else None
                self.wrong.add(damage.transaction_id + number, int(stored[place]), actual)

    def explained_by_tail(self, tail: Damage | None, size: int, first: int) -> int:
        """How many entries, from that of `first` on, are of records that were lost in the torn tail of a file of `size` bytes.

        The first must be the start of the tail, the others must rise inside it.
        """
        if tail is None or tail.transaction_id != first or self._read(first, 1).tolist() != [tail.offset]:
            return 0
        explained, before = 0, tail.offset - RECORD_OVERHEAD
        while True:
            stored = self._read(first + explained, CHUNK)
            rising = _steps(stored, before) >= RECORD_OVERHEAD
            good = rising & (stored >= tail.offset) & (stored < size)
            ends = np.flatnonzero(~good)
            explained += int(ends[0]) if len(ends) else len(stored)
            if len(ends) or len(stored) < CHUNK:
                return explained
            before = int(stored[-1])

    def short(self, last_id: int | None, *, at_least: bool = False) -> IndexShort | None:
        """The fault that there are fewer entries than records; None if there are not.

        `last_id`: the id of the last intact record; `at_least`: more records may follow it.  Raises DiskReadError.
        """
        if last_id is None:
            return None
        entries, begins = self.reader.count(), self.reader.begins
        records = last_id + 1 - begins
        return IndexShort(begins, entries, records, at_least) if entries < records else None

    def long(self, next_id: int) -> IndexLong | None:
        """The fault that there are entries, or a part of one, from that of `next_id` on; None if there are not.

        A part of an entry counts only where no entry is missing: otherwise the index was cut inside that entry, which `short`
        reports.  Raises DiskReadError.
        """
        begins, entries, odd = self.reader.begins, self.reader.count(), self.reader.excess()
        too_long = entries > next_id - begins or odd > 0
        return IndexLong(begins, entries, next_id - begins, odd) if too_long else None

    def _read_into_buffer(self, first: int, count: int) -> Offsets:
        """As `_read`, into a buffer that the next call overwrites, which saves an allocation for each call."""
        if len(self._buffer) < count:
            self._buffer = np.empty(count, np.int64)
        if self.unreadable is not None:
            return self._buffer[:0]
        try:
            read = self.reader.read_into(first, self._buffer[:count].data.cast("B"))
        except DiskReadError as error:
            self.unreadable = error
            return self._buffer[:0]
        stored = self._buffer[: read // ENTRY_SIZE]
        return stored.byteswap(inplace=True) if sys.byteorder == "little" else stored

    def _read(self, first: int, count: int) -> Offsets:
        if self.unreadable is None:
            try:
                return self.reader.entries(first, count)
            except DiskReadError as error:
                self.unreadable = error
        return np.empty(0, np.int64)


def check_rising(reader: IndexReader, size: int) -> WrongEntries:
    """Entries that are wrong whatever the data holds: the first is not HEADER_SIZE, or one does not rise by a record's size.

    `size`: that of the data file.  Entries at the end that are all beyond `size` are not reported: there are too many of them, or
    they were written after `size` was read.
    """
    wrong = WrongEntries()
    before = HEADER_SIZE - RECORD_OVERHEAD
    number, end = reader.begins, _end_inside(reader, size)
    while len(stored := reader.entries(number, min(CHUNK, end - number))):
        bad = _steps(stored, before) < RECORD_OVERHEAD
        bad |= stored < HEADER_SIZE
        bad |= stored > size
        if number == reader.begins and stored[0] != HEADER_SIZE:
            bad[0] = True
        places = np.flatnonzero(bad)
        if len(places):
            one = int(places[0])
            wrong.add(number + one, int(stored[one]), None, len(places), last=number + int(places[-1]))
        before = int(stored[-1])
        number += len(stored)
    return wrong


def _steps(stored: Offsets, before: int) -> Offsets:
    """The difference of each entry to its predecessor, for the first one to `before`; ``np.diff`` would copy all entries."""
    steps = np.empty_like(stored)
    np.subtract(stored[:1], before, out=steps[:1])
    np.subtract(stored[1:], stored[:-1], out=steps[1:])
    return steps


def _end_inside(reader: IndexReader, size: int) -> int:
    """The id after that of the last entry that is inside a data file of `size` bytes."""
    end = reader.begins + reader.count()
    while end > reader.begins:
        start = max(reader.begins, end - CHUNK)
        inside = np.flatnonzero(reader.entries(start, end - start) < size)
        if len(inside):
            return start + int(inside[-1]) + 1
        end = start
    return end


def explained_by_tail(reader: IndexReader | None, tail: Damage | None, size: int, first: int) -> int:
    """`IndexComparison.explained_by_tail` where nothing else of the index is compared; 0 without an index."""
    return 0 if reader is None else IndexComparison(reader).explained_by_tail(tail, size, first)
