"""The work of one task: count the records of a segment, or of a part of a large one, and name its damaged places.

Everything here is a value that can be sent to another process.  What a part is follows from its number alone: it begins and
ends where the index proves a record to begin (as `engine.log.parts.cut` does), found by whoever reads it, so that the
planning opens no file.  Whether neighbouring parts join is for the caller to see; where they do not, the segment is read again as
a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump_chunks import ChunkReader, Item
from waltzctl.engine.inspect.dump_records import damage_told
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.record_checks import MAX_LISTED
from waltzctl.engine.inspect.segment_checks import FilesChangedError, unreadable
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.bad_data import bad_data
from waltzctl.engine.log.index import RecordPlace, prove
from waltzctl.engine.log.parts import share
from waltzctl.engine.log.view import FileState, read_segment_header
from waltzctl.engine.scan import kernels
from waltzctl.engine.scan.columns import DamageCause, RecordBatch
from waltzctl.engine.stats.aggregate import Aggregate, TableBounds, nothing
from waltzctl.engine.stats.axes import Clock, Scale, clock_of
from waltzctl.engine.stats.counting import Counting
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader


@dataclass(frozen=True, slots=True)
class StatsTask:
    """A segment, or the part `number` of `parts` of it.

    `place` is the number of its partition in the aggregates.  `preceding` is the data file in front of it; `following` the one
    behind it, whose creation ends this one's time; None for the last one, which `changed` ends: the file's time of change when
    it was planned, in milliseconds.
    `volume`: bytes of everything that is counted, which decides the means.
    """

    job: SegmentJob
    place: int
    scale: Scale
    preceding: PurePath | None
    following: PurePath | None
    changed: int | None
    volume: int
    number: int = 0
    parts: int = 1
    bounds: TableBounds = TableBounds()  # noqa: RUF009  # frozen


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a task found.

    `headers`: findings about the data file's header; `findings`: those about records, in file order.  `stretch`: what its
    neighbours have to know of the segment, None where there was nothing to look at.  `start` and `end` are where this part began
    and ended, each with the id expected there: no start where the part belongs to the one in front of it, no end where reading
    failed.  `gone`: the file is no longer there.  `states`: both files as they were when they were opened.
    """

    aggregate: Aggregate
    records: int = 0
    bytes: int = 0
    headers: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    stretch: Stretch | None = None
    start: RecordPlace | None = None
    end: RecordPlace | None = None
    clock: Clock = Clock(None, "it is gone")  # noqa: RUF009  # frozen
    gone: bool = False
    states: tuple[FileState | None, ...] = field(default=())


def _header(path: PurePath | None) -> SegmentHeader | None:
    """A neighbour's header; None where there is none to read."""
    try:
        return None if path is None else read_segment_header(FileState.of(path))
    except DiskReadError:
        return None


def gather(task: StatsTask) -> Gathered:
    """Count.  What cannot be read is a finding, never an error."""
    kernels.choose(task.volume)  # many small segments are worth compiled code as much as a large one
    reader = _PartReader(task.job, ReadLimits(), data=False)
    try:
        with reader:
            return _Gathering(task, reader).run()
    except FilesChangedError:
        return Gathered(nothing(task.scale, task.bounds), gone=True)
    except DiskReadError as error:
        found = unreadable(task.job, error).findings
        return Gathered(nothing(task.scale, task.bounds), headers=found, clock=Clock(None, "it could not be read"))


class _PartReader(ChunkReader):
    """A segment that is read in parts."""

    def bound(self, number: int, parts: int) -> RecordPlace | None:
        """Where the part `number` begins; None where the index does not prove a record.  Raises DiskReadError."""
        if number == 0:
            return RecordPlace(HEADER_SIZE, self.begins)
        wanted = None if self.reader is None else share(self.begins, self.reader.end(), number, parts)
        if self.reader is None or wanted is None:
            return None
        found = prove(self.data, self.reader, wanted, self.size)
        return None if found is None else RecordPlace(found.offset, found.transaction_id)

    def part(self, start: RecordPlace, stop: int) -> Iterator[Item]:
        """Items from `start` on that begin in front of the offset `stop`; all of them when that is the end."""
        if stop >= self.size:
            yield from self._scan(start, self.size, None)
        else:
            yield from self._piece(start, stop)


class _Gathering:
    """One task under way."""

    def __init__(self, task: StatsTask, reader: _PartReader) -> None:
        self._task = task
        self._job = task.job
        self._reader = reader
        self._headers = tuple(reader.data_header_findings)
        self._findings: list[Finding] = []
        self._unlisted = 0

    def run(self) -> Gathered:
        """Raises FilesChangedError; DiskReadError before anything was counted."""
        task, reader = self._task, self._reader
        states = (reader.data_state, reader.index_state)
        if reader.short:
            found = reader.finish_short().findings
            clock = Clock(None, "its header is damaged")
            return Gathered(
                nothing(task.scale, task.bounds), headers=(*self._headers, *found), clock=clock, states=states
            )
        clock = self._clock()
        counting = Counting(task.place, task.scale, clock, task.job.bytes, task.bounds)
        start = reader.bound(task.number, task.parts)
        if start is None:  # belongs to the part in front of it
            return Gathered(counting.aggregate(), clock=clock, stretch=reader.stretch, states=states)
        stop = reader.size
        for number in range(task.number + 1, task.parts):
            behind = reader.bound(number, task.parts)
            if behind is not None:
                stop = behind.offset
                break
        end: RecordPlace | None = start
        try:
            for item in reader.part(start, stop):
                end = self._take(counting, item, end)
        except DiskReadError as error:
            self._findings += unreadable(self._job, error).findings
            end = None
        if self._unlisted:
            self._findings.append(
                self._job.finding(
                    self._findings[-1].code,
                    f"{self._unlisted} more places are damaged; they are not listed one by one",
                )
            )
        return Gathered(
            counting.aggregate(),
            counting.records,
            counting.bytes,
            self._headers if task.number == 0 else (),
            tuple(self._findings),
            reader.stretch,
            start,
            end,
            clock,
            states=states,
        )

    def _clock(self) -> Clock:
        task, reader = self._task, self._reader
        return clock_of(
            read_segment_header(reader.data_state),
            _header(task.preceding),
            _header(task.following),
            task.changed,
            last=task.following is None,
            doubtful=bool(self._headers),
        )

    def _take(self, counting: Counting, item: Item, before: RecordPlace | None) -> RecordPlace | None:
        """Count records, name damage; where the next item is expected to begin."""
        if isinstance(item, RecordBatch):
            counting.add(item)
            if not item.data_ok.all():
                self._name_bad_data(item)
            return RecordPlace(item.end, int(item.transaction_id[-1]) + 1)
        following = item.next_transaction_id
        torn = item.cause is DamageCause.TORN_TAIL
        found = damage_told(self._reader, item) if torn or self._listed() else None
        if found is not None:
            self._findings.append(found)
        return before if torn else RecordPlace(item.end, item.transaction_id if following is None else following)

    def _name_bad_data(self, batch: RecordBatch) -> None:
        for row in np.flatnonzero(~batch.data_ok).tolist():
            if self._listed():
                found = bad_data(self._reader.data, int(batch.transaction_id[row]), int(batch.offset[row]))
                self._findings.append(found.finding(self._job.files))

    def _listed(self) -> bool:
        if len(self._findings) < MAX_LISTED:
            return True
        self._unlisted += 1
        return False
