"""Where the parts of a large segment begin, found by each task on its own, so that every record belongs to exactly one part.

The task of a part finds where it begins and where the next one does; the task of the next part finds the same place from the
same bytes.  Two ways, and the segment decides which is taken for all of its parts:

*By the index*, when it is usable: the entry at each quarter leads to its record and the last one to a place near the end.  A part
begins at the record whose entry comes at its share of the ids, if that record is there (id and checksum), and if the records in
front of it lead up to it without a break.  Where they do not, the part is the previous one's as well.

*By search*, without a usable index.  A part begins at the first record behind its share of the bytes.  Records are looked for
from some way in front of it, and believed when they follow one another, without a break, past the beginning and on for 64 MiB or
to the last byte of the file: no record's data can do that which is smaller, because its own checksum stands behind it.  This is
the measure by which the search behind damage believes in a chain.  Where it does not hold (damage, or a record's data that looks
like records) the task walks the segment from its beginning, which is slow and right.
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
"""Bytes in front of a part in which a record is looked for that leads up to it."""
SEARCH_BUDGET = 1 << 30
"""What one such search may cost, in bytes of checksum."""
_NEAR = (64, 8, 1)
"""Records in front of a place by the index that lead up to it."""
_TRIES = 16
"""Records from which a search follows a chain before it gives up."""


@dataclass(frozen=True, slots=True)
class Range:
    """A part's records: read from `begin`, from what begins at or behind `skip` to what begins in front of `stop`.

    `to_end`: it is the last one, and `stop` the size of the file.
    """

    begin: RecordPlace
    stop: int
    to_end: bool
    skip: int = 0


def range_of(reader: ChunkReader, part: SegmentPart) -> Range | None:
    """The range of an opened segment's part; None where the part in front of it reads it too, or there is nothing.

    Raises DiskReadError.
    """
    if part.count == 1:
        return Range(reader.at_or_before(part.first), reader.size, True)
    if _index_usable(reader, part):
        return _by_index(reader, part)
    return _by_search(reader, part)


def items_of(reader: ChunkReader, part: SegmentPart, wanted: Range, *, data: bool) -> Iterator[Item]:
    """Records and damage that begin in the range.  Sets the reader's `next_id` when the end of the segment was seen."""
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
    """Where the record is, if the index says so, it is there, and those in front of it lead up to it."""
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
    """Whether records follow one another from `start` to `stop`, where `expected` comes next."""
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
        return None  # it was cut since
    sure, begin = _searched(reader, target)
    if not sure:
        return Range(head, stop, last, target)
    if begin is None or begin.offset >= stop:
        return None  # one record reaches over the whole part
    return Range(begin, stop, last)


def _searched(reader: ChunkReader, target: int) -> tuple[bool, RecordPlace | None]:
    """The first record at or behind `target`, and whether that is sure; sure and None: the file ends before one begins."""
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
    """Follow records: the first at or behind `target`, and where the chain broke before it had convinced."""
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
