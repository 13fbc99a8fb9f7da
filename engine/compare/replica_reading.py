"""Reading one replica's records of a partition in a range of ids: intact records in batches, lost records as ranges of ids.

Records are found as a reader of the release finds them: an id belongs to the last segment that begins at or below it.  What that
one does not have, as an empty or misplaced data file in a longer segment, is not lost where a segment in front holds it: by the
same judgement as in findings (`engine.inspect.segment_reach`).  An index entry is only a hint, which the record at its offset has
to prove.  A segment with a wrong header is read only if its index file's header is right, as recover mends the header from it.
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
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log.assess import Stretch, begun, held_by
from waltzctl.engine.log.header_judgement import judge_headers
from waltzctl.engine.log.index import IndexReader, prove_at_or_before
from waltzctl.engine.log.index_comparison import explained_by_tail
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.segments_in_front import HeldIds
from waltzctl.engine.log.view import FileState, SegmentView, read_segment_header
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordBatch, RecordView
from waltzctl.engine.scan.scanner import read_record_at, scan_records
from waltzctl.formats.segment import (
    HEADER_SIZE,
    SegmentHeader,
)

MOST_RIVALS = 10_000
"""Most out-of-order records of a segment that are compared with the records in sequence."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a replica, with its files as listed.

    `stop`: first id of the next segment with a data file, None for the last one.  An index alone bounds none: what it lists may
    stand in the segment in front of it.  `until`: read on up to this id, although another segment's name comes first; None: only
    up to that one.
    """

    view: SegmentView
    stop: int | None
    until: int | None = None

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
    """A partition in one storage directory; `number`: the replica's number in the comparison.

    `mark`: local low-water mark, None when unknown.  `held`: a process has the directory locked.  `durable_to`: the last
    transaction that mark and files prove to have been durable.
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
        """The segment as the checks of `engine.inspect` take it."""
        return SegmentJob(
            self.storage / str(self.partition),
            segment.first,
            self.partition,
            segment.stop is None,
            self.storage,
            self.cluster_key,
            self.mark,
            self.held,
            bytes=segment.size,
            following=segment.stop,
            durable_to=self.durable_to,
        )


@dataclass(frozen=True, slots=True)
class Records:
    """Intact records `first` to `stop` - 1: rows of `batch` from `row` on.  `segment`: first id of their segment."""

    first: int
    stop: int
    segment: int
    batch: RecordBatch
    row: int


@dataclass(frozen=True, slots=True)
class Broken:
    """Ids `first` to `stop` - 1: the replica held them, and has lost their records."""

    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Torn:
    """A torn tail: the last segment ends in `length` bytes that are no whole record, where id `first` is expected."""

    first: int
    length: int

    @property
    def stop(self) -> int:
        """The id after the torn record."""
        return self.first + 1


Piece = Records | Broken | Torn


@dataclass(slots=True)
class RangeReading:
    """Reads a replica from id `low` to `high` - 1 (None: to its end).  The fields below are filled while `pieces` is consumed.

    ===========  ====================================================================================================
    `findings`   damage that was found
    `stretches`  extent of each segment, as far as it was read
    `bytes`      bytes of intact records
    `open_end`   there may have been records after the last one found
    `rivals`     ids of which a segment holds two different records, one of them out of order
    ===========  ====================================================================================================
    """

    replica: PartitionReplica
    low: int
    high: int | None
    findings: list[Finding] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    bytes: int = 0
    open_end: bool = False
    rivals: set[int] = field(default_factory=set)
    _reach: SegmentReach | None = None

    def pieces(self) -> Iterator[Piece]:
        """The pieces in the order of their ids, without gaps.  Unreadable places are Broken pieces and findings, never errors."""
        expected = self.low
        before: Segment | None = None  # the last data file
        for segment in self.replica.segments:
            front, before = before, before if segment.view.data is None else segment
            if segment.stop is not None and segment.stop <= self.low:
                continue
            yield from self.lacking(front, expected, segment.first)
            if self.high is not None and segment.first >= self.high:
                return
            expected = max(expected, segment.first)
            for piece in self.segment(segment, expected):
                if piece.stop > expected:  # records out of order and the torn tail after them lose the same ids
                    expected = piece.stop
                    yield piece
        if before is not None and not self.open_end and self.may_go_on(before, expected):
            yield from self.lacking(before, expected, None)

    def may_go_on(self, last: Segment, expected: int) -> bool:
        """Whether a segment in front of the last one may hold the id `expected`, behind that one's end, by what was listed."""
        others = (one for one in self.replica.segments if one is not last and one.size > HEADER_SIZE)
        return any(one.view.index is None or one.first + one.entries > expected for one in others)

    def lacking(self, segment: Segment | None, first: int, stop: int | None) -> Iterator[Records | Broken]:
        """Ids `first` to `stop` - 1, which `segment` and those behind it lack: what segments in front hold, else they are lost.

        `stop` None: as far as one in front goes on.
        """
        end = min((one for one in (stop, self.high) if one is not None), default=None)
        known = len(self.stretches)
        if segment is not None:
            for view, following, held in self.held_in_front(segment, first, end):
                for piece in self.segment(Segment(view, following, held.stop), held.first):
                    if isinstance(piece, Records) and piece.stop > first:  # all else of what it holds is lost
                        yield from self.broken(first, piece.first)
                        first = piece.stop
                        yield piece
                yield from self.broken(first, held.stop)
                first = held.stop
        del self.stretches[known:]  # who reads it in its own place tells how far it goes
        if stop is not None:
            yield from self.broken(first, stop)

    def held_in_front(
        self, segment: Segment, first: int, stop: int | None
    ) -> Iterator[tuple[SegmentView, int | None, HeldIds[SegmentJob]]]:
        """Of ids that `segment` lacks those that segments in front hold: the files of each, the name after its own, which ids.

        The directory is listed for that, so only where ids seem to be missing.
        """
        if stop is not None and first >= stop:
            return
        self._reach = self._reach or SegmentReach(self.replica.job(segment), ReadLimits())
        for held in self._reach.held(begun(segment.first, segment.first), first, stop):
            job = held.segment
            try:
                files = FileState.of(job.data_path), FileState.of(job.index_path)
            except DiskReadError:
                continue
            yield SegmentView(self.replica.partition, job.first, *files), job.following, held

    def broken(self, first: int, stop: int) -> Iterator[Broken]:
        """Ids `first` to `stop` - 1 as a Broken piece, limited to the range."""
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
            self.findings.append(job.files.finding(Code.READ_ERROR, str(error), offset=error.offset))
            self.stretches.append(begun(segment.first, segment.first))
            yield from self.unreadable(segment, low)

    def unreadable(self, segment: Segment, low: int) -> Iterator[Broken]:
        """The rest of a segment, from id `low` on, cannot be read: its ids follow from the next segment, or from the index."""
        if segment.stop is None:
            self.open_end = True
        yield from self.broken(low, segment.first + segment.entries if segment.stop is None else segment.stop)

    def opened(self, segment: Segment, job: SegmentJob, stack: contextlib.ExitStack, low: int) -> Iterator[Piece]:
        """Open a segment's files and yield its pieces.  Raises FileNotFoundError, DiskReadError."""
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
                if segment.stop is not None and segment.until is None:
                    yield from self.lacking(segment, low, segment.stop)
                else:
                    yield from self.unreadable(segment, low)
                return
        reader = None if index is None else IndexReader(index, segment.first)
        yield from self.records(_Scanned(segment, job, source, reader, view.data.size), low)

    @staticmethod
    def index(state: FileState | None, stack: contextlib.ExitStack) -> tuple[ByteSource | None, SegmentHeader | None]:
        """The index as a hint, and its header; None for what cannot be read."""
        if state is None or state.size < HEADER_SIZE:
            return None, None
        try:
            return stack.enter_context(open_source(state.path)), read_segment_header(state)
        except (FileNotFoundError, DiskReadError):
            return None, None

    def records(self, scanned: _Scanned, low: int) -> Iterator[Piece]:
        """Scan from the last record at or before `low` that the index proves."""
        segment = scanned.segment
        stop = segment.stop if segment.until is None else segment.until
        stops = [one for one in (stop, self.high) if one is not None]
        high = min(stops) if stops else None
        at, number = scanned.place(low)
        end = _ScanPosition(at, number)
        extra: dict[int, set[bytes]] = {}
        for item in scanned.scan(at, number):
            if end.next_id == high:  # the range is complete; only damage that loses no id of the range may follow
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
        """The pieces that a damaged place stands for; adds the finding."""
        following = damage.next_transaction_id
        if damage.cause is DamageCause.TORN_TAIL:
            yield from self.torn(scanned, damage, low)
        elif following is None:
            self.findings.append(damage_finding(scanned.job, damage))
            yield from self.unreadable(scanned.segment, max(low, damage.transaction_id))
        elif following > low or damage.transaction_id == low:  # damage that ends before `low` loses no id of the range
            self.findings.append(damage_finding(scanned.job, damage))
            yield from self.broken(max(low, damage.transaction_id), following)

    def behind(self, scanned: _Scanned, damage: Damage) -> bool:
        """Add a finding for damage directly after the range's last id, if the task of the next range does not see it.

        It does not when the damage follows the last record of a segment that is not the last one, and when the damage is a
        record that does not belong there.  Returns False for other damage.
        """
        number = damage.transaction_id
        if number not in (scanned.segment.stop, damage.next_transaction_id):
            return False
        torn = damage.cause is DamageCause.TORN_TAIL
        self.findings.append((tail_finding if torn else damage_finding)(scanned.job, damage))
        return True

    def torn(self, scanned: _Scanned, tail: Damage, low: int) -> Iterator[Piece]:
        """The pieces of a torn tail; adds the finding."""
        number, stop = tail.transaction_id, scanned.segment.stop
        if number < low and stop is None:
            return  # the task of an earlier range reports it
        listed = explained_by_tail(scanned.reader, tail, scanned.size, number)
        self.findings.append(tail_finding(scanned.job, tail, listed))
        if stop is not None:
            yield from self.broken(max(low, number), stop)
            return
        if tail.unread or tail.holds_records:
            self.open_end = True
        yield Torn(number, tail.length)


@dataclass(slots=True)
class _ScanPosition:
    """The position of a scan: byte offset and next id.  `damage`: the last item, if it was damage."""

    offset: int
    next_id: int
    damage: Damage | None = None

    def reach(self, item: RecordBatch | Damage) -> None:
        """Advance over an item of the scan."""
        self.damage = item if isinstance(item, Damage) else None
        if isinstance(item, RecordBatch):
            self.offset, self.next_id = item.end, int(item.transaction_id[-1]) + 1
        else:
            following = item.next_transaction_id
            self.offset, self.next_id = item.end, item.transaction_id if following is None else following


@dataclass(frozen=True, slots=True)
class _Scanned:
    """An open data file.  `reader`: its index, None when that cannot be read.  `size`: bytes when it was listed."""

    segment: Segment
    job: SegmentJob
    source: ByteSource
    reader: IndexReader | None
    size: int

    def place(self, low: int) -> tuple[int, int]:
        """Byte offset and id of a record at or before `low`: one that the index proves, or the first of the segment."""
        found = prove_at_or_before(self.source, self.reader, low, self.size, above=self.segment.first)
        return (HEADER_SIZE, self.segment.first) if found is None else (found.offset, found.transaction_id)

    def scan(self, at: int, number: int) -> Iterator[RecordBatch | Damage]:
        """Scan records, with their bytes, from byte `at` on, where id `number` is expected."""
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
        """Add digests of the place's out-of-order records to `extra`, by id, if their ids are among those already in sequence.

        Raises DiskReadError.
        """
        place = damage.offset
        while damage.cause is DamageCause.RECORD_ORDER and place < damage.end and len(extra) < MOST_RIVALS:
            found = read_record_at(self.source, place, expected_id=None)
            if not isinstance(found, RecordView):
                return
            if self.segment.first <= found.transaction_id < damage.transaction_id:
                known = extra.setdefault(found.transaction_id, set())
                if len(known) < 2:  # of two different records at least one differs from the one in sequence
                    known.add(_digest(bytes(found.record)))
            place = found.end

    def contested(self, extra: dict[int, set[bytes]]) -> Iterator[int]:
        """The ids in `extra` whose record in sequence is a different one.  Raises DiskReadError.

        A record with the same bytes is a repeat, not a rival.
        """
        last = max(extra)
        for item in self.scan(HEADER_SIZE, self.segment.first):
            if not isinstance(item, RecordBatch):
                continue
            first, stop = int(item.transaction_id[0]), int(item.transaction_id[-1]) + 1
            for number in (one for one in extra if first <= one < stop):
                if extra[number] != {_digest(bytes(item.record_bytes(number - first)))}:
                    yield number
            if stop > last:
                return

    def stretch(self, end: _ScanPosition, high: int | None) -> Stretch:
        """The extent of the segment, for joining it with its neighbours.  Raises DiskReadError.

        ========================================================  ====================================================
        the scan stopped                                          the extent contains
        ========================================================  ====================================================
        at the end of the file                                    the end as scanned
        before it, at the next segment's first id                 the end as a separate check of the file's end finds it
        before it, at `high`                                      only the beginning; a later range's task has the end
        ========================================================  ====================================================
        """
        segment = self.segment
        if end.offset < self.size:
            if high is not None and (segment.stop is None or segment.stop > high):
                return begun(segment.first, segment.first)
            return check_segment(self.job, ENDS_ONLY, ReadLimits()).stretch
        torn = end.damage if end.damage is not None and end.damage.cause is DamageCause.TORN_TAIL else None
        explained = explained_by_tail(self.reader, torn, self.size, end.next_id)
        uncertain = end.damage is not None and end.damage.unread
        last = segment.stop is None
        held = held_by(end.next_id, torn=torn is not None, explained=explained, last=last, uncertain=uncertain)
        listed = None if self.reader is None else self.reader.end()
        excess = listed is not None and listed > end.next_id + max(explained, torn is not None)
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


def _digest(record: bytes) -> bytes:
    """The SHA-256 of a record, to compare records without keeping their bytes."""
    return hashlib.sha256(record).digest()
