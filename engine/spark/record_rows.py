"""The records view: the rows of a packet of parts, in Arrow batches.

The rows are those of ``waltzctl dump``: intact records, and a row for each damage in its place, with its code in `finding` and
the number of lost transactions in `missing`.  Damage is: bytes without an intact record, a torn tail, a wrong header, segments
that do not join, transactions missing before the first segment, after the last one or in place of one.  A record whose data
disagrees with the data's own checksum is one row.  An error in one file does not stop the reading of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Finding, loss_finding
from waltzctl.engine.findings.directory_contents import special_finding
from waltzctl.engine.freed_memory import keep_freed_memory
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.dump_records import damage_told
from waltzctl.engine.inspect.live import states
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck, check_segment, unreadable
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log import places
from waltzctl.engine.log.assess import Stretch, begun
from waltzctl.engine.log.view import FileState
from waltzctl.engine.losses import Gap, Overlap
from waltzctl.engine.scan import kernels
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.header_order import HeaderOrder, SegmentsBeside
from waltzctl.engine.spark.record_arrays import Gathering, rows_between
from waltzctl.engine.spark.record_plan import MissingTask
from waltzctl.engine.spark.segment_parts import items_of, range_of
from waltzctl.engine.spark.splits import Notice, SegmentPart, total

_End = tuple[SegmentJob, Stretch, tuple[FileState | None, ...]]
"""A segment that was read to its end: its ids, which the next segment must join, and the states of its files."""
Item = SegmentPart | Notice | MissingTask


def read_packet(
    packet: Sequence[Item], wanted: Sequence[str], schema: pa.Schema, *, fail_on_loss: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a packet with the columns `wanted`, in the order of its parts; the schema is exactly `schema`.

    With `fail_on_loss` raises DamageError after the last row if records are lost.
    """
    kernels.choose(total(packet))  # the sum of the segments counts: many small ones justify compiled code, too
    keep_freed_memory()
    losses = Losses(wanted=fail_on_loss)
    gathering = Gathering(wanted, schema, losses)
    limits = ReadLimits()
    order = HeaderOrder()
    before: _End | None = None
    for place, item in enumerate(packet):
        if isinstance(item, Notice):
            yield from gathering.tell(item.findings, item.node)
            continue
        if isinstance(item, MissingTask):
            yield from gathering.tell(list(item.run(limits)), item.node)
            continue
        gathering.begin(item.node, item.job.partition, item.job.first)
        reading = _PartReading(item, limits, gathering, before, order)
        yield from reading.run()
        before = None
        if reading.end is not None and item.follower is not None:
            behind = packet[place + 1] if place + 1 < len(packet) else None
            if isinstance(behind, SegmentPart) and behind.job == item.follower:
                before = reading.end
            else:
                yield from gathering.tell(_look_behind(reading.end, item, limits, order), item.node)
        elif reading.end is not None and item.last_part and item.whole and reading.end[1].begins != item.job.first:
            # the last one by its name only: by its header another one follows it
            beside = order.neighbours(item.job)
            yield from gathering.tell(_by_header(reading.end, item, limits, order, beside), item.node)
    yield from gathering.flush()
    losses.check()


class _PartReading:
    """The reading of one part.  `end` is set when the end of its segment was reached."""

    def __init__(
        self, part: SegmentPart, limits: ReadLimits, gathering: Gathering, before: _End | None, order: HeaderOrder
    ) -> None:
        self._part = part
        self._order = order
        self._limits = limits
        self._gathering = gathering
        self._before = before
        self.end: _End | None = None

    def run(self) -> Iterator[pa.RecordBatch]:
        """The rows; none for a file that was removed or truncated since it was listed, one for what stands in its place."""
        part, opened = self._part, False
        with contextlib.ExitStack() as stack:
            try:
                reader = stack.enter_context(ChunkReader(part.job, self._limits, data=self._gathering.keep_data))
                opened = True
                if part.number == 0:
                    yield from self._gathering.tell(self._of_file(reader), part.node)
                if reader.short:
                    return
                yield from self._items(reader)
            except FilesChangedError:
                yield from self._gathering.tell(self._in_its_place(), part.node)
            except DiskReadError as error:
                if opened or part.number == 0:  # only one part reports that the file cannot be opened
                    yield from self._gathering.tell(unreadable(part.job, error).findings, part.node)

    def _in_its_place(self) -> list[Finding]:
        """What stands in the place of a file that was listed: a link whose disk was unmounted is no removal."""
        path = self._part.job.data_path
        kind = places.special(path)
        return [] if kind is None else [special_finding(path, kind, self._part.job.where)]

    def _of_file(self, reader: ChunkReader) -> list[Finding]:
        """The findings of the file's header, and of the join with the segment before it."""
        found = reader.data_header_findings
        if reader.short:
            found = [*found, *map(self._without_held, reader.finish_short().findings)]
        if self._before is not None:
            found += join_findings(self._before, reader, self._part, self._order)
        return found

    def _without_held(self, finding: Finding) -> Finding:
        """A finding without the ids that other segments hold."""
        reach = self._order.reach(self._part.job, self._limits)
        return reach.without_held(finding) if self._part.whole else finding

    def _items(self, reader: ChunkReader) -> Iterator[pa.RecordBatch]:
        part, gathering = self._part, self._gathering
        wanted = range_of(reader, part)
        if wanted is None:
            if part.last_part:
                # the part before this one reads up to the end, and does not know what is behind it
                report = check_segment(part.job, ENDS_ONLY, self._limits)
                self.end = part.job, report.stretch, report.states
            return
        for item in items_of(reader, part, wanted, data=gathering.keep_data):
            if isinstance(item, RecordBatch):
                batch = rows_between(item, part.first, part.last)
                if batch is not None:
                    yield from gathering.add(batch)
            elif _overlaps(part, item.transaction_id, item.next_transaction_id):
                found = damage_told(reader, item)
                yield from gathering.tell(() if found is None else (self._without_held(found),), part.node)
        if wanted.to_end and reader.next_id is not None:
            self.end = part.job, reader.stretch, (reader.data_state, reader.index_state)


def _overlaps(part: SegmentPart, first: int, following: int | None) -> bool:
    """Whether ids from `first` to the one before `following` (None: without end) are wanted."""
    return (part.last is None or first <= part.last) and (
        part.first is None or following is None or following > part.first
    )


def join_findings(before: _End, reader: SegmentCheck, part: SegmentPart, order: HeaderOrder) -> Iterable[Finding]:
    """The gap or overlap between a segment that was read and the next one; none where either has changed since.

    If they do not join, the next one is that by the headers: a file may have another one's name.
    """
    job, stretch, _ = before
    found = order.reach(job, reader.limits).between(stretch, begun(reader.job.first, reader.begins))
    doubtful = part.whole and (found is not None or reader.begins != reader.job.first)
    beside = order.neighbours(job) if doubtful else None
    if beside is None or (beside.behind is not None and beside.behind.first == reader.job.first):
        if found is not None:
            yield from _told(before, found, reader, part)
        return
    if found is not None:
        yield from _by_header(before, part, reader.limits, order, beside)
        if beside.behind is None:
            yield from _behind_last_name(part, reader.limits, order)
    yield from _overlap_in_front(reader, part, order)


def _told(before: _End, found: Gap | Overlap, reader: SegmentCheck, part: SegmentPart) -> Iterator[Finding]:
    job, _, seen = before
    if not _overlaps(part, found.first if isinstance(found, Gap) else found.begins, found.stop):
        return
    now = states(job.data_path, job.index_path)
    behind = states(reader.job.data_path, reader.job.index_path)
    if now != seen or behind != (reader.data_state, reader.index_state):
        return
    yield loss_finding(found, reader.job.where)


def _by_header(
    before: _End, part: SegmentPart, limits: ReadLimits, order: HeaderOrder, beside: SegmentsBeside | None
) -> list[Finding]:
    """The gap or overlap between a segment that was read and the one that follows it by the headers."""
    if beside is None or beside.behind is None:
        return []
    try:
        with SegmentCheck(beside.behind, limits) as behind:
            found = order.reach(before[0], limits).between(before[1], begun(behind.job.first, behind.begins))
            return [] if found is None else list(_told(before, found, behind, part))
    except (FilesChangedError, DiskReadError):
        return []  # the task that reads the segment reports it


def _behind_last_name(part: SegmentPart, limits: ReadLimits, order: HeaderOrder) -> Iterator[Finding]:
    """What is missing behind the segment with the last name, if that name is right: nobody looks behind it by name."""
    last = order.last_by_name(part.job)
    report = check_segment(last, ENDS_ONLY, limits)
    if report.begins == last.first:
        yield from _by_header((last, report.stretch, report.states), part, limits, order, order.neighbours(last))


def _overlap_in_front(reader: SegmentCheck, part: SegmentPart, order: HeaderOrder) -> Iterator[Finding]:
    """The overlap with the segment in front by the headers, if nobody else tells it: that one joins the next one by name."""
    beside = order.neighbours(reader.job)
    if beside is None or beside.in_front is None or not order.joins_by_name(beside.in_front, reader.limits):
        return
    report = check_segment(beside.in_front, ENDS_ONLY, reader.limits)
    reach = order.reach(reader.job, reader.limits)
    found = reach.between(report.stretch, begun(reader.job.first, reader.begins))
    if isinstance(found, Overlap):
        yield from _told((report.job, report.stretch, report.states), found, reader, part)


def _look_behind(before: _End, part: SegmentPart, limits: ReadLimits, order: HeaderOrder) -> list[Finding]:
    """As `join_findings`, where another task reads the next segment: only its header is read."""
    assert part.follower is not None
    if part.last is not None and min(before[1].accounted + 1, part.follower.first) > part.last:
        return []  # a gap or overlap would be of ids that are not wanted
    try:
        with SegmentCheck(part.follower, limits) as behind:
            return list(join_findings(before, behind, part, order))
    except (FilesChangedError, DiskReadError):
        return []  # the task that reads the segment reports it
