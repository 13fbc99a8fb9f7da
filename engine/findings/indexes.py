"""Findings about the entries of an index.  The faults are detected by `engine.log.index_comparison`.

`begins` is the transaction id of the segment's first record, and so of the first entry.
"""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.findings import Code, Finding, SegmentFiles
from waltzctl.formats.segment import ENTRY_SIZE, entry_position


@dataclass(frozen=True, slots=True)
class IndexShort:
    """The index has `entries` entries, fewer than the segment has `records`; with `at_least` there may be even more records."""

    begins: int
    entries: int
    records: int
    at_least: bool = False

    def finding(self, files: SegmentFiles) -> Finding:
        """As a finding about these files."""
        following, many = self.begins + self.entries, "at least " if self.at_least else ""
        return files.finding(
            Code.INDEX_SHORT,
            f"the index has {self.entries} entries, the segment has {many}{self.records} records; it ends in front of"
            f" transaction {following}",
            index=True,
            transaction_id=following,
            offset=entry_position(self.entries, 0),
            length=ENTRY_SIZE * (self.records - self.entries),
        )


@dataclass(frozen=True, slots=True)
class IndexLong:
    """The index has `entries` entries, more than the segment has `records`, or `odd` bytes of an incomplete entry at its end."""

    begins: int
    entries: int
    records: int
    odd: int = 0

    def finding(self, files: SegmentFiles) -> Finding:
        """As a finding about these files."""
        more = max(0, self.entries - self.records)
        said = f"{more} entries" if more else f"{self.odd} bytes, less than an entry,"
        return files.finding(
            Code.INDEX_LONG,
            f"the index has {self.entries} entries, the segment has {self.records} records: {said} too many",
            index=True,
            transaction_id=self.begins + self.records if more else None,
            offset=entry_position(self.records, 0),
            length=more * ENTRY_SIZE + self.odd,
        )


@dataclass(slots=True)
class WrongEntries:
    """The wrong entries of one index: those that are not the offset of their record.  One finding covers them all.

    `count` entries are wrong, the first that of transaction `first` and the last that of transaction `last`.  The first one
    is `stored`; its record begins at the offset `actual`, None where `stored` is impossible and the right offset is unknown.
    """

    count: int = 0
    first: int = 0
    last: int = 0
    stored: int = 0
    actual: int | None = None

    def add(
        self, transaction_id: int, stored: int, actual: int | None, count: int = 1, last: int | None = None
    ) -> None:
        """Add `count` wrong entries, from that of `transaction_id` to that of `last`."""
        if not self.count or transaction_id < self.first:
            self.first, self.stored, self.actual = transaction_id, stored, actual
        self.last = max(self.last if self.count else transaction_id, transaction_id if last is None else last)
        self.count += count

    def merge(self, other: WrongEntries) -> None:
        """Add the wrong entries that another check of the same index found.  Overlapping ranges are not counted twice."""
        if not other.count:
            return
        if self.count and self.first <= other.last and other.first <= self.last:
            if self.actual is None and self.first == other.first:
                self.actual = other.actual
            self.count = max(self.count, other.count)
            self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        else:
            self.add(other.first, other.stored, other.actual, other.count, last=other.last)

    def finding(self, begins: int, files: SegmentFiles) -> Finding:
        """As a finding about these files."""
        actual = "which cannot be" if self.actual is None else f"the record is at {self.actual}"
        many = f"; {self.count} entries up to transaction {self.last} disagree" if self.count > 1 else ""
        return files.finding(
            Code.INDEX_ENTRY,
            f"the entry of transaction {self.first} says offset {self.stored}, {actual}{many}",
            index=True,
            transaction_id=self.first,
            offset=entry_position(self.first, begins),
            length=ENTRY_SIZE * (self.last - self.first + 1),
        )
