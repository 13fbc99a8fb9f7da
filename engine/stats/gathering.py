"""The executor task of stats: count the records of a segment, or of a part of a large one, and report its damage.

Task and result are values that can be sent to another process.  A part is given by its number alone: it begins and ends at
records that the index proves (as in `engine.log.parts.cut`).  The task finds these bounds itself, so that planning opens no
file.  The caller checks that neighbouring parts join; if they do not, the segment is read again as a whole.
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
    """A segment, or part `number` of `parts` of it.

    ===========  ====================================================================================================
    `place`      identifies the partition in the aggregates
    `preceding`  data file of the previous segment, None for the first one
    `following`  data file of the next segment, None for the last one
    `changed`    modification time of the data file at planning, ms since 1970 (UTC); used for the last segment
    `volume`     bytes of all segments to be counted; decides whether compiled kernels are used
    ===========  ====================================================================================================
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
    """The result of a task.

    ===========  ====================================================================================================
    `headers`    findings about the data file's header
    `findings`   findings about records, in file order
    `stretch`    extent of the segment, for joining it with its neighbours; None when it could not be opened
    `start`      where the part begins; None: the index proves no record there, so the previous part includes it
    `end`        where the part ends, with the id expected there; None: reading failed
    `gone`       the file no longer exists
    `states`     data file and index as they were when opened
    ===========  ====================================================================================================
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
    """The header of a neighbouring segment; None when it cannot be read."""
    try:
        return None if path is None else read_segment_header(FileState.of(path))
    except DiskReadError:
        return None


def gather(task: StatsTask) -> Gathered:
    """Count the records of a task.  Unreadable places become findings, never errors."""
    kernels.choose(task.volume)  # by the total volume: compiled kernels also pay off for many small segments
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
    """Reads a segment in parts."""

    def bound(self, number: int, parts: int) -> RecordPlace | None:
        """The beginning of part `number`; None when the index proves no record there.  Raises DiskReadError."""
        if number == 0:
            return RecordPlace(HEADER_SIZE, self.begins)
        wanted = None if self.reader is None else share(self.begins, self.reader.end(), number, parts)
        if self.reader is None or wanted is None:
            return None
        found = prove(self.data, self.reader, wanted, self.size)
        return None if found is None else RecordPlace(found.offset, found.transaction_id)

    def part(self, start: RecordPlace, stop: int) -> Iterator[Item]:
        """The items from `start` on that begin before byte `stop`; if that is the file's end, all items."""
        if stop >= self.size:
            yield from self._scan(start, self.size, None)
        else:
            yield from self._piece(start, stop)


class _Gathering:
    """Carries out one task."""

    def __init__(self, task: StatsTask, reader: _PartReader) -> None:
        self._task = task
        self._job = task.job
        self._reader = reader
        self._headers = tuple(reader.data_header_findings)
        self._findings: list[Finding] = []
        self._unlisted = 0

    def run(self) -> Gathered:
        """Count and return the result.  Raises FilesChangedError; DiskReadError only before anything was counted."""
        task, reader = self._task, self._reader
        states = (reader.data_state, reader.index_state)
        if reader.short:
            found = reader.finish_short().findings
            clock = Clock(None, "its header is damaged")
            return Gathered(
                nothing(task.scale, task.bounds),
                headers=(*self._headers, *found),
                stretch=reader.stretch,
                clock=clock,
                states=states,
            )
        clock = self._clock()
        counting = Counting(task.place, task.scale, clock, task.job.bytes, task.bounds)
        start = reader.bound(task.number, task.parts)
        if start is None:  # the previous part includes this one
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
                self._job.files.finding(
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
        """Count records, or report damage; return where the next item is expected to begin."""
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
