"""One replica's records of a partition in a range of ids, in order: intact ones in batches, lost ones by their ids.

What is read is what a reader of the release would find: an id belongs to the last segment that begins at or below it.  An
index is a hint that the record it leads to must prove.  A segment whose header is wrong is believed only where the header of
its index file is right, as that is what recover mends it from.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.record_checks import damage_finding, tail_finding
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log.assess import Stretch, begun, held_by
from waltzctl.engine.log.header_judgement import judge_headers
from waltzctl.engine.log.index import IndexReader, prove_at_or_before
from waltzctl.engine.log.index_comparison import IndexComparison
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import FileState, SegmentView, read_segment_header
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordBatch, RecordView
from waltzctl.engine.scan.scanner import read_record_at, scan_records
from waltzctl.formats.segment import (
    HEADER_SIZE,
    SegmentHeader,
)

MOST_RIVALS = 10_000
"""Records of a segment that stand out of order and are held against those that stand in the sequence."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a replica: its files as they were listed, and the id with which the next one begins (None: the last).

    `following`: the same of the next one that has a data file.
    """

    view: SegmentView
    stop: int | None
    following: int | None

    @property
    def first(self) -> int:
        """The id in its name."""
        return self.view.first_transaction_id

    @property
    def size(self) -> int:
        """Bytes of the data file."""
        return 0 if self.view.data is None else self.view.data.size

    @property
    def entries(self) -> int:
        """Whole entries of the index file."""
        return self.view.entries


@dataclass(frozen=True, slots=True)
class PartitionReplica:
    """A partition in one storage directory.  `mark`: its local low-water mark, None where nothing tells it.

    `durable_to`: the last transaction that its mark and its files prove to have been durable.
    """

    number: int
    storage: PurePath
    partition: int
    cluster_key: uuid.UUID
    mark: int | None
    segments: tuple[Segment, ...]
    held: bool
    durable_to: int

    def job(self, segment: Segment) -> SegmentJob:
        """What the checks of the inspection call a segment."""
        return SegmentJob(
            self.storage / str(self.partition),
            segment.first,
            self.partition,
            segment.following is None,
            self.storage,
            self.cluster_key,
            self.mark,
            self.held,
            bytes=segment.size,
            following=segment.following,
            durable_to=self.durable_to,
        )


@dataclass(frozen=True, slots=True)
class Records:
    """Intact records `first` to `stop` - 1: the rows of a batch from `row` on."""

    first: int
    stop: int
    segment: int
    batch: RecordBatch
    row: int


@dataclass(frozen=True, slots=True)
class Broken:
    """Ids that were held and of which nothing here can be believed."""

    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Torn:
    """The last segment ends in `length` bytes that are no whole record; the id that belongs there is `first`."""

    first: int
    length: int

    @property
    def stop(self) -> int:
        """The id behind it."""
        return self.first + 1


Piece = Records | Broken | Torn


@dataclass(slots=True)
class RangeReading:
    """Reads a replica from the id `low` up to, not including, `high` (None: to its end).

    `findings`, `stretches` (what the segments' neighbours have to know of them, as far as each was read) and `bytes` (of intact
    records) grow while it is read.  `open_end`: there may have been records behind what was read last.  `rivals`: ids that two
    different records of a segment bear, of which one stands out of order.
    """

    replica: PartitionReplica
    low: int
    high: int | None
    findings: list[Finding] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    bytes: int = 0
    open_end: bool = False
    rivals: set[int] = field(default_factory=set)

    def pieces(self) -> Iterator[Piece]:
        """In the order of their ids, without gaps; what cannot be read is a Broken piece and a finding, never an error."""
        expected = self.low
        for segment in self.replica.segments:
            if segment.stop is not None and segment.stop <= self.low:
                continue
            yield from self.broken(expected, segment.first)
            if self.high is not None and segment.first >= self.high:
                return
            expected = max(expected, segment.first)
            for piece in self.segment(segment, expected):
                if piece.stop > expected:  # a row out of order and the torn end behind it lose the same ids
                    expected = piece.stop
                    yield piece

    def broken(self, first: int, stop: int) -> Iterator[Broken]:
        """Ids `first` to `stop` - 1, as far as they are asked for."""
        end = stop if self.high is None else min(stop, self.high)
        if first < end:
            yield Broken(first, end)

    def segment(self, segment: Segment, low: int) -> Iterator[Piece]:
        """The pieces of one segment from the id `low` on."""
        job = self.replica.job(segment)
        try:
            with contextlib.ExitStack() as stack:
                yield from self.opened(segment, job, stack, low)
        except FileNotFoundError:
            self.stretches.append(begun(segment.first, segment.first))
            yield from self.unreadable(segment, low)
        except DiskReadError as error:
            self.findings.append(job.finding(Code.READ_ERROR, str(error), offset=error.offset))
            self.stretches.append(begun(segment.first, segment.first))
            yield from self.unreadable(segment, low)

    def unreadable(self, segment: Segment, low: int) -> Iterator[Broken]:
        """Nothing of a segment, or of the rest of one, can be read: only the index, or the next segment, tells what was in it."""
        if segment.stop is None:
            self.open_end = True
        yield from self.broken(low, segment.first + segment.entries if segment.stop is None else segment.stop)

    def opened(self, segment: Segment, job: SegmentJob, stack: contextlib.ExitStack, low: int) -> Iterator[Piece]:
        """The pieces of a segment whose files are opened here.  Raises FileNotFoundError, DiskReadError."""
        view = segment.view
        if view.data is None or view.data.size < HEADER_SIZE:
            if view.data is not None and (segment.entries or segment.stop is not None or view.data.size):
                self.findings.append(job.short_header(view.data.size, segment.entries))
            if view.data is not None:
                self.stretches.append(Stretch(segment.first, segment.first, None, segment.first - 1 + segment.entries))
            yield from self.broken(low, segment.first + segment.entries if segment.stop is None else segment.stop)
            return
        source = stack.enter_context(open_source(view.data.path))
        index, index_header = self.index(view.index, stack)
        header = read_segment_header(view.data)
        if header is None:
            raise FileNotFoundError(view.data.path)
        verdict = judge_headers(job.expected, header, index_header, source)
        if verdict.data_wrong:
            found = verdict.findings(job.files)
            self.findings += [one for one in found if one.path == job.data_path and one.severity is not Severity.NOTE]
            if not job.expected.met_by(index_header):
                self.stretches.append(begun(segment.first, verdict.begins))
                yield from self.unreadable(segment, low)
                return
        reader = None if index is None else IndexReader(index, segment.first)
        yield from self.records(_Scanned(segment, job, source, reader, view.data.size), low)

    @staticmethod
    def index(state: FileState | None, stack: contextlib.ExitStack) -> tuple[ByteSource | None, SegmentHeader | None]:
        """The index as a hint; None where it cannot be read."""
        if state is None or state.size < HEADER_SIZE:
            return None, None
        try:
            return stack.enter_context(open_source(state.path)), read_segment_header(state)
        except (FileNotFoundError, DiskReadError):
            return None, None

    def records(self, scanned: _Scanned, low: int) -> Iterator[Piece]:
        """Scan, from the last place in front of `low` that the index proves."""
        segment = scanned.segment
        stops = [one for one in (segment.stop, self.high) if one is not None]
        high = min(stops) if stops else None
        at, number = scanned.place(low)
        end = _End(at, number)
        extra: dict[int, set[bytes]] = {}
        for item in scanned.scan(at, number):
            if end.next_id == high:  # only what loses none of the ids that were asked for may stand here
                if isinstance(item, RecordBatch) or not self.behind(scanned, item):
                    break
                scanned.out_of_order(item, extra)
                end.reach(item)
                continue
            end.reach(item)
            if isinstance(item, RecordBatch):
                first = int(item.transaction_id[0])
                begin, stop = max(first, low), end.next_id if high is None else min(end.next_id, high)
                if begin < stop:
                    behind = int(item.offset[stop - first]) if stop < end.next_id else item.end
                    self.bytes += behind - int(item.offset[begin - first])
                    yield Records(begin, stop, segment.first, item, begin - first)
            else:
                scanned.out_of_order(item, extra)
                yield from self.damage(scanned, item, low)
            if high is not None and end.next_id > high:
                break
        self.stretches.append(scanned.stretch(end, self.high))
        if extra:
            self.rivals.update(scanned.contested(extra))

    def damage(self, scanned: _Scanned, damage: Damage, low: int) -> Iterator[Piece]:
        """What a damaged place means."""
        following = damage.next_transaction_id
        if damage.cause is DamageCause.TORN_TAIL:
            yield from self.torn(scanned, damage, low)
        elif following is None:
            self.findings.append(damage_finding(scanned.job, damage))
            yield from self.unreadable(scanned.segment, max(low, damage.transaction_id))
        elif following > low or damage.transaction_id == low:  # a stranger in front of `low` loses nothing
            self.findings.append(damage_finding(scanned.job, damage))
            yield from self.broken(max(low, damage.transaction_id), following)

    def behind(self, scanned: _Scanned, damage: Damage) -> bool:
        """Name damage directly behind the last id that is asked for, where whoever asks for the next one does not see it.

        That is so behind the last record of a segment that is not the last one, and where a record does not belong there.
        """
        number = damage.transaction_id
        if number not in (scanned.segment.stop, damage.next_transaction_id):
            return False
        torn = damage.cause is DamageCause.TORN_TAIL
        self.findings.append((tail_finding if torn else damage_finding)(scanned.job, damage))
        return True

    def torn(self, scanned: _Scanned, tail: Damage, low: int) -> Iterator[Piece]:
        """The end of a data file that is no whole record."""
        number, stop = tail.transaction_id, scanned.segment.stop
        if number < low and stop is None:
            return  # somebody who reads the range in front of this one names it
        comparison = None if scanned.reader is None else IndexComparison(scanned.reader)
        listed = 0 if comparison is None else comparison.explained_by_tail(tail, scanned.size, number)
        self.findings.append(tail_finding(scanned.job, tail, listed))
        if stop is not None:
            yield from self.broken(max(low, number), stop)
            return
        if tail.unread or tail.holds_records:
            self.open_end = True
        yield Torn(number, tail.length)


@dataclass(slots=True)
class _End:
    """How far a scan came: offset and next id; what it met last, where that was no record."""

    offset: int
    next_id: int
    damage: Damage | None = None

    def reach(self, item: RecordBatch | Damage) -> None:
        """The next item of the scan."""
        self.damage = item if isinstance(item, Damage) else None
        if isinstance(item, RecordBatch):
            self.offset, self.next_id = item.end, int(item.transaction_id[-1]) + 1
        else:
            following = item.next_transaction_id
            self.offset, self.next_id = item.end, item.transaction_id if following is None else following


@dataclass(frozen=True, slots=True)
class _Scanned:
    """A data file that is open."""

    segment: Segment
    job: SegmentJob
    source: ByteSource
    reader: IndexReader | None
    size: int

    def place(self, low: int) -> tuple[int, int]:
        """Offset and id of a record at or in front of `low`: one that the index proves, or the first of the segment."""
        found = prove_at_or_before(self.source, self.reader, low, self.size, above=self.segment.first)
        return (HEADER_SIZE, self.segment.first) if found is None else (found.offset, found.transaction_id)

    def scan(self, at: int, number: int) -> Iterator[RecordBatch | Damage]:
        """Records with their bytes from an offset on."""
        return scan_records(
            self.source,
            first_transaction_id=number,
            start=at,
            stop=self.size,
            index=None if self.reader is None else self.reader.source,
            data=True,
            ceiling=self.segment.stop,
        )

    def out_of_order(self, damage: Damage, extra: dict[int, set[bytes]]) -> None:
        """Add the records of a place where another id belongs, and that bear ids of the sequence in front of it.

        Raises DiskReadError.
        """
        place = damage.offset
        while damage.cause is DamageCause.RECORD_ORDER and place < damage.end and len(extra) < MOST_RIVALS:
            found = read_record_at(self.source, place, expected_id=None)
            if not isinstance(found, RecordView):
                return
            if self.segment.first <= found.transaction_id < damage.transaction_id:
                known = extra.setdefault(found.transaction_id, set())
                if len(known) < 2:  # one of two is not the one in the sequence
                    known.add(_told_apart(bytes(found.record)))
            place = found.end

    def contested(self, extra: dict[int, set[bytes]]) -> Iterator[int]:
        """Ids of records out of order under which another record stands in the sequence.  Raises DiskReadError.

        What is byte for byte the same is a repeat.
        """
        last = max(extra)
        for item in self.scan(HEADER_SIZE, self.segment.first):
            if not isinstance(item, RecordBatch):
                continue
            first, stop = int(item.transaction_id[0]), int(item.transaction_id[-1]) + 1
            for number in (one for one in extra if first <= one < stop):
                if extra[number] != {_told_apart(bytes(item.record_bytes(number - first)))}:
                    yield number
            if stop > last:
                return

    def stretch(self, end: _End, high: int | None) -> Stretch:
        """What its neighbours have to know of it.  Raises DiskReadError.

        Where the next segment begins in front of this one's end, only that end is looked at; where the range `high` does, it is
        for who reads the next one.
        """
        segment = self.segment
        if end.offset < self.size:
            if high is not None and (segment.stop is None or segment.stop > high):
                return begun(segment.first, segment.first)
            return check_segment(self.job, ENDS_ONLY, ReadLimits()).stretch
        torn = end.damage if end.damage is not None and end.damage.cause is DamageCause.TORN_TAIL else None
        comparison = None if self.reader is None else IndexComparison(self.reader)
        explained = 0 if comparison is None else comparison.explained_by_tail(torn, self.size, end.next_id)
        uncertain = end.damage is not None and end.damage.unread
        held = held_by(end.next_id, torn=torn is not None, explained=explained, uncertain=uncertain)
        listed = None if self.reader is None else self.reader.end()
        excess = listed is not None and listed > held.accounted + 1
        return Stretch(
            segment.first,
            segment.first,
            held.next_id,
            held.accounted,
            held.uncertain,
            listed,
            excess,
            torn is not None,
        )


def _told_apart(record: bytes) -> bytes:
    """What tells the bytes of a record apart from those of another one."""
    return hashlib.sha256(record).digest()
