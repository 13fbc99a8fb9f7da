"""Records in order, or in reverse, with findings where there is damage."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeVar

from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.findings import Finding, loss_finding
from waltzctl.engine.inspect.dump_chunks import ChunkReader, Item
from waltzctl.engine.inspect.live import states
from waltzctl.engine.inspect.partition_runs import PartitionRun, runs
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.record_checks import damage_finding, tail_finding
from waltzctl.engine.inspect.segment_checks import FilesChangedError, unreadable
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.inspect.storage_checks import unnamed_losses
from waltzctl.engine.inspect.targets import Scope, look_around, plan
from waltzctl.engine.inspect.unread_losses import losses_behind, losses_in_front
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.bad_data import bad_data
from waltzctl.engine.log.index_comparison import explained_by_tail
from waltzctl.engine.log.view import FileState
from waltzctl.engine.losses import Gap
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordBatch
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """An intact record and its place in the data file.

    `segment` is the first transaction id in the file's name; `offset` and `size` are in bytes; checksums are the stored ones,
    unsigned.  `data` is None when it was not requested.  `data_ok` is False where the data checksum is wrong; a finding precedes
    such a record.
    """

    partition: int | None
    segment: int
    transaction_id: int
    offset: int
    size: int
    request_id: RequestId
    header: int
    data_length: int
    data_checksum: int
    record_checksum: int
    data: bytes | None
    data_ok: bool = True


def dump_records(
    path: PurePath,
    *,
    partitions: Collection[int] | None = None,
    first: int | None = None,
    last: int | None = None,
    limit: int | None = None,
    reverse: bool = False,
    data: bool = True,
) -> Iterator[DumpedRecord | Finding]:
    """Records with ids from `first` to `last` (both inclusive) of everything that `path` names, partition by partition.

    At most `limit` records in all.  `reverse`: descending ids within each partition, partitions still in order.  Damage is
    reported as findings where it is met.  A segment is read from the nearest record at or before `first` that the index proves
    (see `engine.log.index`), else from its beginning.

    Raises NotWaltzError, InvalidRequestError, DiskReadError, before the first item.
    """
    (scope,) = plan([path], partitions)
    return at_most(limit, _dump(scope, partitions, _Range(first, last), reverse, data))


def at_most(limit: int | None, items: Iterable[T]) -> Iterator[T]:
    """The first `limit` items, None for all; findings are not counted.  Raises InvalidRequestError immediately."""
    if limit is not None and limit < 0:
        raise InvalidRequestError(f"the limit must not be negative: {limit}")
    return _up_to(limit, items)


def _up_to(limit: int | None, items: Iterable[T]) -> Iterator[T]:
    left = limit
    if left == 0:
        return
    for item in items:
        yield item
        if left is not None and not isinstance(item, Finding):
            left -= 1
            if left == 0:
                return


@dataclass(frozen=True, slots=True)
class _Range:
    """Ids from `first` to `last`; None is no bound."""

    first: int | None
    last: int | None

    def overlaps(self, first: int, last: int | None) -> bool:
        """Whether ids from `first` to `last` (None: without end) are wanted."""
        return (self.last is None or first <= self.last) and (self.first is None or last is None or last >= self.first)


def _dump(
    scope: Scope, partitions: Collection[int] | None, wanted: _Range, reverse: bool, data: bool
) -> Iterator[DumpedRecord | Finding]:
    limits = ReadLimits()
    around = look_around(scope, partitions)
    yield from unnamed_losses(scope, around)
    for run in runs(scope, around, limits, partitions):
        yield from run.begin()
        yield from run.stray_segments_by_ends()
        span = wanted.first, wanted.last
        lost = [losses_in_front(run, span), losses_behind(run, span)]
        yield from lost[reverse]
        yield from _segments(run, limits, wanted, reverse, data)
        yield from lost[not reverse]


def _segments(
    run: PartitionRun, limits: ReadLimits, wanted: _Range, reverse: bool, data: bool
) -> Iterator[DumpedRecord | Finding]:
    """The items of a partition's segments, and where they do not join."""
    holding = frozenset(job.first for job in run.order.holding((wanted.first, wanted.last)))
    neighbour: _Segment | None = None  # the segment that was dumped before this one
    ordered = run.order.in_order(asked=len(holding) == len(run.jobs))
    reach = SegmentReach(ordered[0], limits) if ordered else None
    for job in reversed(ordered) if reverse else ordered:
        assert reach is not None  # as there is a job
        segment = _Segment(job, limits, wanted, data, reach)
        if job.first in holding:
            yield from segment.backwards(neighbour) if reverse else segment.forwards(neighbour)
        elif neighbour is not None and not reverse:
            yield from segment.joined(neighbour, segment)
        neighbour = segment


class _Segment:
    """The dump of one segment.  `stretch`: its range of ids as far as known; None until it is opened, or if it cannot be read."""

    def __init__(self, job: SegmentJob, limits: ReadLimits, wanted: _Range, data: bool, reach: SegmentReach) -> None:
        self._job = job
        self._reach = reach
        self._wanted = wanted
        self._data = data
        self._limits = limits
        self.stretch: Stretch | None = None
        self._states: tuple[FileState | None, ...] = ()

    def forwards(self, before: _Segment | None) -> Iterator[DumpedRecord | Finding]:
        """Records and findings of this segment; `before` is the segment in front of it, if that was dumped."""
        with contextlib.ExitStack() as stack:
            reader, findings = self._open(stack)
            yield from findings
            if before is not None:
                yield from self.joined(before, self)
            if reader is None:
                return
            try:
                for item in reader.forwards(self._wanted.first, self._wanted.last):
                    yield from self._render(reader, item, reverse=False)
                self.stretch = reader.stretch
            except DiskReadError as error:
                yield from unreadable(self._job, error).findings

    def backwards(self, behind: _Segment | None) -> Iterator[DumpedRecord | Finding]:
        """Records and findings in reverse order; `behind` is the segment after it, if that was dumped."""
        with contextlib.ExitStack() as stack:
            reader, findings = self._open(stack)
            if reader is not None:
                if reader.size == HEADER_SIZE:
                    reader.next_id = reader.begins
                waiting = behind
                try:
                    for item in reader.backwards(self._wanted.first, self._wanted.last):
                        self.stretch = reader.stretch
                        if waiting is not None:
                            yield from self.joined(self, waiting)
                            waiting = None
                        yield from self._render(reader, item, reverse=True)
                    self.stretch = reader.stretch
                    if waiting is not None:
                        yield from self.joined(self, waiting)
                except DiskReadError as error:
                    yield from unreadable(self._job, error).findings
            yield from reversed(findings)

    def misses(self, first: int) -> bool:
        """Whether the id after its last record is not `first`; False where its end is not known."""
        expected = None if self.stretch is None else self.stretch.next_id
        return expected is not None and expected != first

    def _look(self) -> None:
        """Open the segment for its `stretch` only; its findings are dropped."""
        with contextlib.ExitStack() as stack:
            self._open(stack)

    def _open(self, stack: contextlib.ExitStack) -> tuple[ChunkReader | None, list[Finding]]:
        """The reader, None if there is nothing to read, and the findings about the data file's header."""
        reader = ChunkReader(self._job, self._limits, data=self._data)
        try:
            stack.enter_context(reader)
            self._states = reader.data_state, reader.index_state
            findings = reader.data_header_findings
            if reader.short:
                findings = [*findings, *map(self._reach.without_held, reader.finish_short().findings)]
            self.stretch = reader.stretch
            if reader.short:
                return None, findings
        except FilesChangedError:
            return None, []  # truncated or removed since it was listed
        except DiskReadError as error:
            return None, list(unreadable(self._job, error).findings)
        return reader, findings

    def joined(self, before: _Segment, behind: _Segment) -> Iterator[Finding]:
        """The finding about a gap or an overlap between two neighbours, unless their files changed meanwhile.

        The segment `behind` is opened for it only if the id in its name is not the next one.
        """
        if behind.stretch is None and before.misses(behind._job.first):
            behind._look()
        if before.stretch is None or behind.stretch is None:
            return
        found = self._reach.between(before.stretch, behind.stretch)
        if found is None or before.changed() or behind.changed():
            return
        first, stop = (found.first if isinstance(found, Gap) else found.begins), found.stop
        if self._wanted.overlaps(first, stop - 1):
            yield loss_finding(found, self._job.where)

    def changed(self) -> bool:
        """Whether the files differ from when they were opened."""
        return states(self._job.data_path, self._job.index_path) != self._states

    def _render(self, reader: ChunkReader, item: Item, *, reverse: bool) -> Iterator[DumpedRecord | Finding]:
        if isinstance(item, RecordBatch):
            yield from self._records(reader, item, reverse=reverse)
            return
        following = item.next_transaction_id
        if not self._wanted.overlaps(item.transaction_id, None if following is None else following - 1):
            return
        found = damage_told(reader, item)
        if found is not None:
            yield self._reach.without_held(found)

    def _records(self, reader: ChunkReader, batch: RecordBatch, *, reverse: bool) -> Iterator[DumpedRecord | Finding]:
        rows = range(len(batch))
        first, last = self._wanted.first, self._wanted.last
        begins = int(batch.transaction_id[0])
        if first is not None:
            rows = rows[max(0, first - begins) :]
        if last is not None:
            rows = rows[: max(0, last + 1 - begins - rows.start)]
        for row in reversed(rows) if reverse else rows:
            record = self._record(batch, row)
            if not record.data_ok:
                yield bad_data(reader.data, record.transaction_id, record.offset).finding(self._job.files)
            yield record

    def _record(self, batch: RecordBatch, row: int) -> DumpedRecord:
        length = int(batch.data_length[row])
        return DumpedRecord(
            self._job.partition,
            self._job.first,
            int(batch.transaction_id[row]),
            int(batch.offset[row]),
            RECORD_OVERHEAD + length,
            RequestId.from_words(int(batch.request_id_high[row]), int(batch.request_id_low[row])),
            int(batch.header[row]),
            length,
            int(batch.data_checksum[row]),
            int(batch.record_checksum[row]),
            bytes(batch.data_bytes(row)) if self._data else None,
            bool(batch.data_ok[row]),
        )


def damage_told(reader: ChunkReader, damage: Damage) -> Finding | None:
    """The finding for damage; None where a node is writing there at this moment, or has truncated the segment."""
    if damage.cause is DamageCause.TORN_TAIL:
        if not settled(reader):
            return None
        listed = explained_by_tail(reader.reader, damage, reader.size, damage.transaction_id)
        return tail_finding(reader.job, damage, listed)
    return damage_finding(reader.job, damage) if reader.confirmed(damage) else None


def settled(reader: ChunkReader) -> bool:
    """Whether damage at the end of a segment is real: no node is writing or truncating it."""
    watch = reader.watch()
    reader.look_behind()
    if not reader.job.last:
        return not watch.changed()
    while not watch.changed():
        if watch.quiet():
            return True
        if not watch.wait():
            return False
    return False
