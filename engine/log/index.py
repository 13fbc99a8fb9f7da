"""A segment's index: entries by transaction id, and the search for a record in the middle of a segment.

An index entry is a hint, never a proof.  An entry is *proven* when the record at its offset has the entry's id and a right
record checksum.  So a stale, torn or forged index costs time, but never leads to a wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.columns import RecordView
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, decode_entries, entry_position

MOST_HELD = 64 << 20
"""Bytes of data of a record that is held in memory as a whole, to prove an entry or for a message."""
_FARTHEST = 1 << 48
"""More entries than any file has; a damaged id may ask for one beyond."""

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record begins, in bytes from the start of its data file, and its id."""

    offset: int
    transaction_id: int


class IndexReader:
    """The entries of an index file, read by transaction id.  `begins` is the id of the first entry."""

    def __init__(self, source: ByteSource, begins: int) -> None:
        self.source = source
        self.begins = begins

    def count(self) -> int:
        """The current number of whole entries.  Raises DiskReadError."""
        return max(0, (self.source.size() - HEADER_SIZE) // ENTRY_SIZE)

    def end(self) -> int:
        """The id after that of the last whole entry, as the file is now.  Raises DiskReadError."""
        return self.begins + self.count()

    def excess(self) -> int:
        """Bytes after the last whole entry."""
        return max(0, self.source.size() - HEADER_SIZE) % ENTRY_SIZE

    def entries(self, transaction_id: int, count: int) -> Offsets:
        """Up to `count` entries from that of `transaction_id` on; fewer where the index ends.  Raises DiskReadError."""
        if transaction_id < self.begins or count <= 0 or transaction_id - self.begins > _FARTHEST:
            return np.empty(0, np.int64)
        raw = read_bytes(self.source, entry_position(transaction_id, self.begins), count * ENTRY_SIZE)
        return decode_entries(raw)

    def read_into(self, transaction_id: int, buffer: memoryview) -> int:
        """Fill `buffer` with entries as stored, big-endian, from that of `transaction_id` on; the number of bytes read.

        Raises DiskReadError.
        """
        if transaction_id < self.begins or transaction_id - self.begins > _FARTHEST:
            return 0
        return self.source.read_into(entry_position(transaction_id, self.begins), buffer)

    def entry(self, transaction_id: int) -> int | None:
        """One entry; None beyond the end.  Raises DiskReadError."""
        found = self.entries(transaction_id, 1)
        return int(found[0]) if len(found) else None

    def first_from(self, offset: int, low: int | None = None) -> int:
        """The id, `low` or above, of the first entry that is `offset` or more; the id after the last entry where none is.

        A binary search, as entries rise.  In a damaged index they may not, so the caller has to prove the result.  Raises
        DiskReadError.
        """
        low, high = self.begins if low is None else low, self.end()
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            low, high = (middle + 1, high) if entry is not None and entry < offset else (low, middle)
        return low


def prove(data: ByteSource, index: IndexReader, transaction_id: int, stop: int) -> RecordView | None:
    """The record at the offset that the index has for an id, if it ends before `stop` and its id and checksum are right.

    None otherwise, and for a record of more than MOST_HELD bytes of data.  Raises DiskReadError.
    """
    entry = index.entry(transaction_id)
    if entry is None or entry < 0:
        return None
    found = read_record_at(data, entry, expected_id=transaction_id, limit=stop, max_record=MOST_HELD)
    return found if isinstance(found, RecordView) else None


def prove_at_or_before(
    data: ByteSource, index: IndexReader | None, transaction_id: int, stop: int, *, above: int
) -> RecordView | None:
    """A proven record with the id `transaction_id` or a smaller one; None where none was found above the id `above`.

    The search goes back in steps that double, so the record found is not always the nearest one.  Raises DiskReadError.
    """
    if index is None:
        return None
    wanted, back = min(transaction_id, index.end() - 1), 0
    while wanted - back > above:
        found = prove(data, index, wanted - back, stop)
        if found is not None:
            return found
        back = back * 2 + 1
    return None


def last_proven(data: ByteSource, index: IndexReader, stop: int) -> RecordView | None:
    """The last record before the offset `stop` that the index proves; None without any.

    The search goes back from the end in growing steps, then bisects the last step: it takes a few reads, however many entries the
    index has too many.  Raises DiskReadError.
    """
    count = high = index.count()
    back = 1
    while high > 0:
        number = max(1, count + 1 - back)
        best = prove(data, index, index.begins + number - 1, stop)
        if best is not None:
            low = number
            break
        high = number - 1
        back *= 2
    else:
        return None
    while low < high:  # entries above `high` prove nothing
        number = (low + high + 1) // 2
        found = prove(data, index, index.begins + number - 1, stop)
        if found is None:
            high = number - 1
        else:
            low, best = number, found
    return best
