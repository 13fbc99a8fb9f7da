"""An index against the records that a scan found, chunk by chunk."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log.index import IndexReader, Offsets
from waltzctl.engine.scan.columns import Damage
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, RECORD_OVERHEAD, entry_position

CHUNK = 16384
"""Entries that are looked at together."""


@dataclass(slots=True)
class WrongEntries:
    """Entries that are not the offset of their record."""

    count: int = 0
    first: int = 0
    last: int = 0
    stored: int = 0
    actual: int | None = None

    def add(
        self, transaction_id: int, stored: int, actual: int | None, count: int = 1, last: int | None = None
    ) -> None:
        """`count` more, from `transaction_id` to `last`."""
        if not self.count or transaction_id < self.first:
            self.first, self.stored, self.actual = transaction_id, stored, actual
        self.last = max(self.last if self.count else transaction_id, transaction_id if last is None else last)
        self.count += count

    def merge(self, other: WrongEntries) -> None:
        """Take over what another look at the same index found; what both saw counts once."""
        if not other.count:
            return
        if self.count and self.first <= other.last and other.first <= self.last:
            if self.actual is None and self.first == other.first:
                self.actual = other.actual
            self.count = max(self.count, other.count)
            self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        else:
            self.add(other.first, other.stored, other.actual, other.count, last=other.last)


class IndexComparison:
    """Compares entries with the offsets that a scan finds.  Reading errors are kept for the end, in `unreadable`."""

    def __init__(self, reader: IndexReader) -> None:
        self.reader = reader
        self.wrong = WrongEntries()
        self.unreadable: DiskReadError | None = None
        self._buffer: Offsets = np.empty(0, np.int64)

    def compare(self, first: int, offsets: Offsets) -> None:
        """Records with ids from `first` on stand at `offsets`."""
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
        """Entries of records that were lost in a span: the first must lead to its start, the others into it."""
        if not damage.length or damage.next_transaction_id is None:
            return
        lost = min(damage.next_transaction_id - damage.transaction_id, damage.length // RECORD_OVERHEAD + 1)
        for at in range(0, lost, CHUNK):
            stored = self._read(damage.transaction_id + at, min(CHUNK, lost - at))
            inside = (stored > damage.offset) & (stored < damage.end)
            if at == 0 and len(stored):
                inside[0] = stored[0] == damage.offset
            for place in np.flatnonzero(~inside):
                actual = damage.offset if at + place == 0 else None
                self.wrong.add(damage.transaction_id + at + int(place), int(stored[place]), actual)

    def explained_by_tail(self, tail: Damage | None, size: int, first: int) -> int:
        """How many entries from that of `first` on belong to records that were lost in a torn tail."""
        if tail is None or tail.transaction_id != first or self._read(first, 1).tolist() != [tail.offset]:
            return 0
        explained, before = 0, tail.offset - RECORD_OVERHEAD
        while True:
            stored = self._read(first + explained, CHUNK)
            rising = np.diff(stored, prepend=before) >= RECORD_OVERHEAD
            good = rising & (stored >= tail.offset) & (stored < size)
            ends = np.flatnonzero(~good)
            explained += int(ends[0]) if len(ends) else len(stored)
            if len(ends) or len(stored) < CHUNK:
                return explained
            before = int(stored[-1])

    def _read_into_buffer(self, first: int, count: int) -> Offsets:
        """As `_read`, without an allocation for each call; holds until the next one."""
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
    """Entries that cannot be right whatever the data says: the first not 128, not rising by a record, beyond the file.

    Entries at the end that lead behind a data file of `size` bytes are not meant: they are too many, or newer than `size`.
    """
    wrong = WrongEntries()
    before = HEADER_SIZE - RECORD_OVERHEAD
    number, end = reader.begins, _end_inside(reader, size)
    while number < end and len(stored := reader.entries(number, min(CHUNK, end - number))):
        bad = (np.diff(stored, prepend=before) < RECORD_OVERHEAD) | (stored < HEADER_SIZE) | (stored > size)
        if number == reader.begins and stored[0] != HEADER_SIZE:
            bad[0] = True
        places = np.flatnonzero(bad)
        if len(places):
            one = int(places[0])
            wrong.add(number + one, int(stored[one]), None, len(places), last=number + int(places[-1]))
        before = int(stored[-1])
        number += len(stored)
    return wrong


def _end_inside(reader: IndexReader, size: int) -> int:
    """The id behind the last entry that leads into a data file of `size` bytes."""
    end = reader.begins + reader.count()
    while end > reader.begins:
        start = max(reader.begins, end - CHUNK)
        inside = np.flatnonzero(reader.entries(start, end - start) < size)
        if len(inside):
            return start + int(inside[-1]) + 1
        end = start
    return end


def wrong_finding(job: SegmentJob, begins: int, wrong: WrongEntries) -> Finding:
    """One finding for all wrong entries of an index."""
    actual = "which cannot be" if wrong.actual is None else f"the record is at {wrong.actual}"
    many = f"; {wrong.count} entries up to transaction {wrong.last} disagree" if wrong.count > 1 else ""
    return job.finding(
        Code.INDEX_ENTRY,
        f"the entry of transaction {wrong.first} says offset {wrong.stored}, {actual}{many}",
        index=True,
        transaction_id=wrong.first,
        offset=entry_position(wrong.first, begins),
        length=ENTRY_SIZE * (wrong.last - wrong.first + 1),
    )
