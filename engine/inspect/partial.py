"""Checks that leave data unread: both ends of a segment (quick), or these and a sample of what lies between."""

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
"""Bytes behind the last record that the index proves in which records are read on: more than an index lags behind."""
SEARCH = 64 << 20
"""Bytes behind a place where records end in which others are searched: more than a crash tears."""
ZEROS = 256 << 20
"""Bytes behind these which are read to see whether they are all zero; a hole costs nothing."""


class PartialScan:
    """Fills a scan that has not begun from parts of the file of `size` bytes."""

    def __init__(self, scan: RangeScan, size: int) -> None:
        self._scan = scan
        self._size = size

    def run(self, fraction: float | None, seed: str, *, bodies: bool) -> None:
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
            head.advance(self._size, until=scan.position)  # what stands there, and no more
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
            if part.tail is not None:  # damage, or a bound that is none: what follows decides
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
        """A scan that begins at `first`, or before it where the index does not prove that place."""
        scan = self._scan
        found = prove_at_or_before(scan.source, scan.index, first, self._size, above=scan.begins)
        if found is None:
            return self._range(scan.begins, HEADER_SIZE)
        return self._range(found.transaction_id, found.offset)

    def _rising(self) -> WrongEntries | None:
        """The entries of the index that cannot be right whatever the data says."""
        index = self._scan.index
        if index is None:
            return None
        wrong = check_rising(index, self._size)
        self._scan.limits.spend(index.count() * ENTRY_SIZE)
        return wrong

    def _end(self) -> None:
        """Bring the scan to the end of the file from the last record that the index proves."""
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
                # a record that only reaches beyond what was read, or one whose length is damaged
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
        """Where the record that is expected at a tail would end by its own length; None where it cannot be that record."""
        probe = Probe(self._scan.source, self._size, MAX_DATA_LENGTH, SearchBudget(2**63))
        header = probe.header(tail.offset)
        if header is None or header.transaction_id != tail.transaction_id:
            return None
        return probe.end_of(tail.offset, header)
