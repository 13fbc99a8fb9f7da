"""Checks that leave data unread: both ends of a segment (quick), or both ends and a sample of the blocks between."""

from __future__ import annotations

from waltzctl.engine.findings.indexes import WrongEntries
from waltzctl.engine.inspect.record_checks import RangeScan
from waltzctl.engine.inspect.sampling import choose_blocks
from waltzctl.engine.log.index import MOST_HELD, last_proven, prove_at_or_before
from waltzctl.engine.log.index_comparison import check_rising
from waltzctl.engine.scan.byte_source import only_zeros
from waltzctl.engine.scan.columns import Damage, RecordView
from waltzctl.engine.scan.probe import Probe, SearchBudget
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, MAX_DATA_LENGTH

TAIL = 8 << 20
"""Bytes after the last proven record in which records are read: an index lags behind its data by less."""
SEARCH = 64 << 20
"""Bytes after the end of the records in which further records are searched: a crash tears less."""
ZEROS = 256 << 20
"""Bytes after these that are read, at most, to find out whether the rest is zero; holes of a file are not read."""


class PartialScan:
    """Fills a `RangeScan` that has not begun from parts of a file of `size` bytes."""

    def __init__(self, scan: RangeScan, size: int) -> None:
        self._scan = scan
        self._size = size

    def run(self, fraction: float | None, seed: str, *, bodies: bool) -> None:
        """Check both ends of the segment.

        `fraction`: check a sample of this fraction of the data as well; `seed` chooses the sample.  `bodies`: check that the
        entries of the whole index rise.  Raises CutShort, DiskReadError.
        """
        scan, index = self._scan, self._scan.index
        ranges = [] if index is None or fraction is None else choose_blocks(index, self._size, fraction, seed)
        if index is None and fraction is not None:
            ranges = [(scan.begins, scan.begins)]
        head = self._range(scan.next_id, scan.position)
        if not isinstance(
            read_record_at(scan.source, scan.position, expected_id=scan.next_id, max_record=MOST_HELD), RecordView
        ):
            head.advance(self._size, until=scan.position)  # only the damage at the beginning
        parts = [head]
        for first, last in ranges:
            part = self._start_at(first)
            if index is not None:
                until = index.entry(last)
            else:
                assert fraction is not None  # without both there are no ranges
                until = HEADER_SIZE + int((self._size - HEADER_SIZE) * fraction)
            until = self._size if until is None else max(part.position, min(until, self._size))
            part.advance(until)
            if part.tail is not None:  # damage, or `until` is inside of a record: the bytes after it decide
                part.advance(self._size, until=until)
            parts.append(part)
        rising = self._rising() if bodies else None
        try:
            self._end()
        finally:
            if rising is not None and scan.comparison is not None:
                scan.comparison.wrong.merge(rising)  # the same entries were compared at the end
        for part in parts:
            scan.adopt(part)

    def _range(self, first: int, start: int) -> RangeScan:
        scan = self._scan
        return RangeScan(scan.source, scan.begins, start, first, scan.limits, scan.index, ceiling=scan.ceiling)

    def _start_at(self, first: int) -> RangeScan:
        """A scan that begins at the record `first`, or at an earlier one if the index does not prove `first`."""
        scan = self._scan
        found = prove_at_or_before(scan.source, scan.index, first, self._size, above=scan.begins)
        if found is None:
            return self._range(scan.begins, HEADER_SIZE)
        return self._range(found.transaction_id, found.offset)

    def _rising(self) -> WrongEntries | None:
        """The index entries that are wrong whatever the data holds; see `check_rising`."""
        index = self._scan.index
        if index is None:
            return None
        wrong = check_rising(index, self._size)
        self._scan.limits.spend(index.count() * ENTRY_SIZE)
        return wrong

    def _end(self) -> None:
        """Scan from the last record that the index proves to the end of the file."""
        scan, index = self._scan, self._scan.index
        if index is not None:
            found = last_proven(scan.source, index, self._size)
            if found is not None:
                scan.jump(found.transaction_id, found.end)
        for reach in (TAIL, SEARCH):
            stop = min(self._size, scan.position + reach)
            scan.advance(stop)
            if scan.tail is not None:
                claimed = self._claimed_end(scan.tail)
                # either an intact record that ends beyond `stop`, or one with a damaged length
                if claimed is not None and claimed > stop:
                    stop = claimed
                    scan.advance(stop)
            if stop == self._size or scan.open_end:
                return
            if scan.tail is None:
                scan.unread_tail = True
                return
        scan.extend_tail(self._size, empty=only_zeros(scan.source, stop, ZEROS))

    def _claimed_end(self, tail: Damage) -> int | None:
        """The end, by its own length, of the record at a torn tail; None if its id is not the expected one."""
        probe = Probe(self._scan.source, self._size, MAX_DATA_LENGTH, SearchBudget(2**63))
        header = probe.header(tail.offset)
        if header is None or header.transaction_id != tail.transaction_id:
            return None
        return probe.end_of(tail.offset, header)
