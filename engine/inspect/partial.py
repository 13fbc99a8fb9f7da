"""Checks that leave data unread: both ends of a segment (quick), or these and a sample of what lies between."""

from __future__ import annotations

from engine.inspect.index_checks import check_rising
from engine.inspect.record_checks import MOST_HELD, RangeScan, prove
from engine.inspect.sampling import choose_blocks
from engine.scan.columns import RecordView
from engine.scan.scanner import read_record_at
from formats.segment import ENTRY_SIZE, HEADER_SIZE

TAIL = 8 << 20
"""Bytes behind the last record that the index proves which are read to tell what they are."""


class PartialScan:
    """Fills a scan that has not begun from parts of the file of `size` bytes."""

    def __init__(self, scan: RangeScan, size: int) -> None:
        self._scan = scan
        self._size = size

    def run(self, fraction: float | None, seed: str, *, bodies: bool = True) -> None:
        """Check both ends, and a sample of `fraction` of the data where given; without `bodies` not the index between.

        Raises CutShort, DiskReadError.
        """
        scan, index = self._scan, self._scan.index
        ranges = [] if index is None or fraction is None else choose_blocks(index, self._size, fraction, seed)
        if index is None and fraction is not None:
            ranges = [(scan.begins, scan.begins)]
        head = self._range(scan.next_id, scan.position)
        if not isinstance(
            read_record_at(scan.source, scan.position, expected_id=scan.next_id, max_record=MOST_HELD), RecordView
        ):
            head.advance(self._size, until=scan.position + 1)
        parts = [head]
        for first, last in ranges:
            part = self._start_at(first)
            until = self._size if index is None else index.entry(last)
            if index is None and fraction is not None:
                until = HEADER_SIZE + int((self._size - HEADER_SIZE) * fraction)
            until = self._size if until is None else max(part.position, min(until, self._size))
            part.advance(until)
            if part.tail is not None:  # damage, or a bound that is none: what follows decides
                part.advance(self._size, until=until)
            parts.append(part)
        self._end(bodies)
        for part in parts:
            scan.adopt(part)

    def _range(self, first: int, start: int) -> RangeScan:
        scan = self._scan
        return RangeScan(scan.source, scan.begins, start, first, scan.limits, scan.index, ceiling=scan.ceiling)

    def _start_at(self, first: int) -> RangeScan:
        """A scan that begins at `first`, or before it where the index does not prove that place."""
        scan = self._scan
        back = 0
        while scan.index is not None and first - back > scan.begins:
            found = prove(scan.source, scan.index, first - back, self._size)
            if found is not None:
                return self._range(found.transaction_id, found.offset)
            back = back * 2 + 1
        return self._range(scan.begins, HEADER_SIZE)

    def _end(self, bodies: bool) -> None:
        """Bring the scan to the end of the file from the last record that the index proves."""
        scan, index = self._scan, self._scan.index
        if index is not None:
            if bodies and scan.comparison is not None:
                scan.comparison.wrong = check_rising(index, self._size)
                scan.limits.spend(index.count() * ENTRY_SIZE)
            count, back = index.count(), 1
            while back <= count:
                found = prove(scan.source, index, index.begins + count - back, self._size)
                if found is not None:
                    scan.jump(found.transaction_id, found.end)
                    break
                back *= 2
        if self._size - scan.position > TAIL:
            scan.unread_tail = True
        else:
            scan.advance(self._size)
