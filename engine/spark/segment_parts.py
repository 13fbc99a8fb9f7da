"""The boundaries of the parts of a large segment.  Each task finds them by itself; every record belongs to exactly one part.

The task of a part finds its own beginning and that of the next part; the task of the next part finds the same place from the
same bytes.  There are two ways, and the state of the segment decides which one is used for all of its parts:

*By the index*, if it is usable: the entry at each quarter leads to its record, and the last entry to a place near the end.  A
part begins at the record of the entry at its share of the ids, if that record is there (id and checksum), and the records
before it form an unbroken chain up to it.  Otherwise the part is merged with the previous one.

*By search*, without a usable index.  A part begins at the first record after its share of the bytes.  The search starts
`LOOKBACK` bytes before, and accepts a chain of records if it continues without a break past the boundary and for another 64
MiB, or to the last byte of the file.  The data of a record that is smaller cannot contain such a chain, since the record's own
checksum follows its data.  (The search after damage, `engine.scan.resync`, has the same criterion.)  Where no chain is accepted
(damage, or a record whose data looks like records), the task scans the segment from its beginning, which is slow and correct.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.inspect.dump_chunks import ChunkReader, Item
from waltzctl.engine.log.index import RecordPlace, prove
from waltzctl.engine.log.parts import share
from waltzctl.engine.scan.columns import Damage, RecordRun
from waltzctl.engine.scan.probe import BudgetExhaustedError, Candidates, Probe, SearchBudget
from waltzctl.engine.scan.resync import LOOKAHEAD
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.spark.record_arrays import rows_of
from waltzctl.engine.spark.splits import SegmentPart
from waltzctl.formats.segment import HEADER_SIZE, MAX_DATA_LENGTH

LOOKBACK = 4 << 20
"""Bytes before a boundary from which the search for a chain of records starts."""
SEARCH_BUDGET = 1 << 30
"""Bytes of which one search may compute checksums, at most."""
_NEAR = (64, 8, 1)
"""How many records before an indexed record the chain that verifies it begins: the first of these within `LOOKBACK` bytes."""
_TRIES = 16
"""Chains that a search follows before it gives up."""


@dataclass(frozen=True, slots=True)
class Range:
    """The bytes of a part's records.  Offsets are in bytes of the data file."""

    begin: RecordPlace
    """Where the scan begins."""
    stop: int
    """Records that begin before this offset belong to the part."""
    to_end: bool
    """Whether this is the last part, with `stop` at the end of the file."""
    skip: int = 0
    """Records that begin before this offset belong to earlier parts."""


def range_of(reader: ChunkReader, part: SegmentPart) -> Range | None:
    """The range of a part; None where it is merged with the previous part, or has no records.

    Raises DiskReadError.
    """
    if part.count == 1:
        return Range(reader.at_or_before(part.first), reader.size, True)
    if _index_usable(reader, part):
        return _by_index(reader, part)
    return _by_search(reader, part)


def items_of(reader: ChunkReader, part: SegmentPart, wanted: Range, *, data: bool) -> Iterator[Item]:
    """Records and damage that begin in the range.  Sets the reader's `next_id` when the end of the segment was reached."""
    next_id: int | None = wanted.begin.transaction_id
    end = wanted.begin.offset
    for item in reader.scan(wanted.begin.transaction_id, wanted.begin.offset, stop=reader.size, data=data):
        if isinstance(item, Damage):
            if item.offset >= wanted.skip:
                yield item
            next_id, end = item.reached, item.end
        else:
            rows = int(item.offset.searchsorted(wanted.stop))
            batch = rows_of(item, int(item.offset.searchsorted(wanted.skip)), rows)
            if batch is not None:
                yield batch
            next_id, end = int(item.transaction_id[-1]) + 1, item.end
        if not wanted.to_end and end >= wanted.stop:
            return
        if part.last is not None and next_id is not None and next_id > part.last:
            break
    if end >= reader.size:
        reader.next_id = next_id


def _index_usable(reader: ChunkReader, part: SegmentPart) -> bool:
    index, entries, size = reader.reader, part.entries, part.job.bytes
    if index is None or entries is None or entries < 4 * part.count:
        return False
    try:
        end = index.entry(reader.begins + entries - 1)
        if end is None or not size - 2 * size // part.count <= end < size:
            return False
        return any(
            prove(reader.data, index, reader.begins + entries * quarter // 4, size) is not None for quarter in (1, 2, 3)
        )
    except DiskReadError:
        return False


def _by_index(reader: ChunkReader, part: SegmentPart) -> Range | None:
    assert part.entries is not None
    begins, end = reader.begins, reader.begins + part.entries
    low = begins if part.first is None else min(max(part.first, begins), end)
    high = end if part.last is None else max(low, min(part.last + 1, end))

    def bound(number: int) -> RecordPlace | None:
        wanted = share(low, high, number, part.count)
        return None if wanted is None else _proven(reader, wanted, part.job.bytes)

    begin = reader.at_or_before(part.first) if part.number == 0 else bound(part.number)
    if begin is None:
        return None
    for number in range(part.number + 1, part.count):
        behind = bound(number)
        if behind is not None:
            return Range(begin, behind.offset, False)
    return Range(begin, reader.size, True)


def _proven(reader: ChunkReader, transaction_id: int, size: int) -> RecordPlace | None:
    """The place of a record by the index, if the record is there and a chain of records leads up to it."""
    assert reader.reader is not None
    try:
        found = prove(reader.data, reader.reader, transaction_id, size)
        if found is None:
            return None
        for back in _NEAR:
            before = reader.reader.entry(transaction_id - back)
            near = before is not None and 0 <= found.offset - before <= LOOKBACK
            if near or back == 1:
                leads = _leads(reader, transaction_id - back, before, found.offset, transaction_id)
                return RecordPlace(found.offset, transaction_id) if leads else None
    except DiskReadError:
        return None
    return None


def _leads(reader: ChunkReader, first: int, start: int | None, stop: int, expected: int) -> bool:
    """Whether an unbroken chain of records, from id `first` at `start` on, ends at `stop` with `expected` as its next id."""
    if start is None or not HEADER_SIZE <= start < stop:
        return False
    end, next_id = start, first
    scan = summarise_records(reader.data, first_transaction_id=first, start=start, stop=stop)
    for run in scan:
        if isinstance(run, Damage):
            return False
        end, next_id = run.end, run.first_transaction_id + len(run)
    return (end, next_id) == (stop, expected)


def _by_search(reader: ChunkReader, part: SegmentPart) -> Range | None:
    body = part.job.bytes - HEADER_SIZE
    target = HEADER_SIZE + body * part.number // part.count
    stop = HEADER_SIZE + body * (part.number + 1) // part.count
    last = part.number == part.count - 1
    if last:
        stop = reader.size
    head = RecordPlace(HEADER_SIZE, reader.begins)
    if part.number == 0:
        return Range(head, stop, last)
    if target >= reader.size:
        return None  # the file was truncated since the plan
    sure, begin = _searched(reader, target)
    if not sure:
        return Range(head, stop, last, target)
    if begin is None or begin.offset >= stop:
        return None  # one record covers the whole part
    return Range(begin, stop, last)


def _searched(reader: ChunkReader, target: int) -> tuple[bool, RecordPlace | None]:
    """Whether a chain was accepted, and its first record at or after `target`; None: the file ends before another record."""
    start = target - LOOKBACK
    if start <= HEADER_SIZE:
        return False, None
    size = reader.size
    probe = Probe(reader.data, size, MAX_DATA_LENGTH, SearchBudget(SEARCH_BUDGET))
    candidates = Candidates(probe, start, size, reader.begins, reader.begins, HEADER_SIZE)
    try:
        for _ in range(_TRIES):
            while (place := candidates.following(start, target)) is not None:
                head = probe.check(place)
                if head is not None:
                    break
                start = place + 1
            else:
                return False, None
            found, broken = _chain(reader, RecordPlace(head.offset, head.transaction_id), target)
            if broken is None:
                return True, found
            start = broken
    except (BudgetExhaustedError, DiskReadError):
        return False, None
    return False, None


def _chain(reader: ChunkReader, head: RecordPlace, target: int) -> tuple[RecordPlace | None, int | None]:
    """Follow a chain: its first record at or after `target`, and the offset of the break if it is not accepted, else None."""
    found: RecordPlace | None = None
    size = reader.size
    enough = target + LOOKAHEAD
    scan = summarise_records(reader.data, first_transaction_id=head.transaction_id, start=head.offset, stop=size)
    end = head.offset
    for run in scan:
        if isinstance(run, Damage):
            return found, run.offset
        found = found or _first_at(run, target)
        end = run.end
        if end >= enough and found is not None:
            return found, None
    return found, None if end == size else end


def _first_at(run: RecordRun, target: int) -> RecordPlace | None:
    number = int(run.offset.searchsorted(target))
    return None if number == len(run) else RecordPlace(int(run.offset[number]), run.first_transaction_id + number)
