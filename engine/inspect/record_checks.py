"""The check of a segment's records, or of a range of them: scanned, compared with the index, and turned into findings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from waltzctl.engine import findings
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import BadData, Code, Finding, Tail
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log.bad_data import bad_data
from waltzctl.engine.log.header_judgement import beginning_behind
from waltzctl.engine.log.index import IndexReader, prove
from waltzctl.engine.log.index_comparison import IndexComparison
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordRun, RecordView
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.formats.segment import RECORD_OVERHEAD

MAX_LISTED = 10_000
"""Damaged places of a segment that are reported one by one."""
_READ_ERRORS = 100
"""Read errors after which the rest of a file is not read."""
_UNREADABLE = 4096
"""Bytes after a read error that are not tried."""


@dataclass(slots=True)
class UnreadablePlace:
    """A read error at `offset`; `resumed` is the offset where the scan went on, None where the rest was not read."""

    offset: int
    error: DiskReadError
    resumed: int | None


@dataclass(slots=True)
class RangeScan:
    """Scans records from an offset where a record begins.  The scan can go on when the file has grown.

    ============== ==========================================================================================
    `begins`       the id of the segment's first record
    `position`     the offset, and `next_id` the id, of the next record
    `ceiling`      the id with which the next segment begins; None where it is not known
    `start`        `position` at the beginning of the scan, and `first_id` `next_id` then
    `last_id`      the id of the last intact record; None without any
    `tail`         the torn tail at which the last `advance` ended; None if it did not
    `unlisted`     number of damaged places beyond the MAX_LISTED ones in `damages` and `bad_data`
    `unread_tail`  the end of the file was left unread on purpose (a partial check)
    `open_end`     the end of the file could not be read, or the search after damage was given up
    ============== ==========================================================================================
    """

    source: ByteSource
    begins: int
    position: int
    next_id: int
    limits: ReadLimits
    index: IndexReader | None = None
    start: int = field(init=False)
    first_id: int = field(init=False)
    records: int = 0
    last_id: int | None = None
    comparison: IndexComparison | None = None
    damages: list[Damage] = field(default_factory=list)
    bad_data: list[BadData] = field(default_factory=list)
    unreadable: list[UnreadablePlace] = field(default_factory=list)
    unlisted: int = 0
    tail: Damage | None = None
    unread_tail: bool = False
    open_end: bool = False
    ceiling: int | None = None

    def __post_init__(self) -> None:
        self.start, self.first_id = self.position, self.next_id
        if self.index is not None:
            self.comparison = IndexComparison(self.index)

    def advance(self, stop: int, *, until: int | None = None) -> None:
        """Scan to the offset `stop`, or until `until` is passed.  Raises CutShort; what was found is kept."""
        while True:
            try:
                self.open_end = False
                self._walk(stop, until)
            except DiskReadError as error:
                if self._skip(error, stop):
                    continue
            return

    def _walk(self, stop: int, until: int | None) -> None:
        self.tail = None
        items = summarise_records(
            self.source,
            first_transaction_id=self.next_id,
            start=self.position,
            stop=stop,
            index=None if self.index is None else self.index.source,
            ceiling=self.ceiling,
            most=self.limits.piece,
            check=self.limits.check,
            searched=self.limits.paced(self.source),
        )
        for item in items:
            if isinstance(item, RecordRun):
                self._add_run(item)
            else:
                self._add_damage(item)
            if until is not None and self.position >= until:
                return

    def _add_run(self, run: RecordRun) -> None:
        self.records += len(run)
        self.position = run.end
        self.next_id = run.first_transaction_id + len(run)
        self.last_id = self.next_id - 1
        if self.comparison is not None:
            self.comparison.compare(run.first_transaction_id, run.offset)
        if run.data_damaged:
            for place in np.flatnonzero(~run.data_ok):
                if self._listed():
                    number, offset = run.first_transaction_id + int(place), int(run.offset[place])
                    self.bad_data.append(bad_data(self.source, number, offset))
        self.limits.spend(run.end - run.start)

    def _add_damage(self, damage: Damage) -> None:
        if damage.cause is DamageCause.TORN_TAIL:
            self.tail = damage
            self.position, self.next_id = damage.offset, damage.transaction_id
            return
        if self._listed():
            self.damages.append(damage)
        if self.comparison is not None:
            self.comparison.compare_span(damage)
        self.position = damage.end
        following = damage.next_transaction_id
        self.open_end = damage.unread
        self.next_id = damage.transaction_id if following is None else following
        self.limits.count(damage.length)
        if damage.cause is DamageCause.RECORD_CHECKSUM:
            # the scan has read one record; the searches kept the rate by themselves
            self.limits.keep_rate(min(damage.length, damage.found_length or 0))

    def _listed(self) -> bool:
        if len(self.damages) + len(self.bad_data) < MAX_LISTED:
            return True
        self.unlisted += 1
        return False

    def _skip(self, error: DiskReadError, stop: int) -> bool:
        """After a read error, go on at the next record that the index proves.  Returns whether there is one."""
        at = self.position if error.offset is None else max(error.offset, self.position)
        found = None if len(self.unreadable) >= _READ_ERRORS else self._beyond(at + _UNREADABLE, stop)
        self.unreadable.append(UnreadablePlace(at, error, None if found is None else found.offset))
        if found is None:
            self.open_end = True
            return False
        self.position, self.next_id = found.offset, found.transaction_id
        return True

    def _beyond(self, offset: int, stop: int) -> RecordView | None:
        if self.index is None:
            return None
        try:
            return prove(self.source, self.index, self.index.first_from(offset, self.next_id), stop)
        except DiskReadError:
            return None

    def extend_tail(self, size: int, *, empty: bool) -> None:
        """Extend the torn tail to `size`, the end of the file.  `empty`: the bytes that were not searched are all zero.

        If they are not, they may hold records: then it is not a torn tail, but damage followed by unread bytes.
        """
        tail = self.tail
        assert tail is not None
        whole = replace(tail, length=size - tail.offset)
        if empty:
            self.tail = whole
            return
        bad = whole.found_length is not None and not 0 <= whole.found_length <= size - whole.offset - RECORD_OVERHEAD
        cause = DamageCause.RECORD_LENGTH if bad else DamageCause.RECORD_CHECKSUM
        self.tail = None
        self._add_damage(replace(whole, cause=cause, proof="budget"))

    @property
    def order_end(self) -> Damage | None:
        """The damage at the end of the segment, if it consists of records that are out of order; the index may list them too."""
        last = self.damages[-1] if self.damages else None
        if last is None or last.cause is not DamageCause.RECORD_ORDER or last.next_transaction_id is not None:
            return None
        return last if last.end == self.position else None

    @property
    def sound(self) -> bool:
        """Whether no fault was found in the data file."""
        return not (self.damages or self.unreadable or self.tail or self.bad_data)

    def jump(self, last: int, end: int) -> None:
        """Count all records up to `last`, which ends at the offset `end`, as read, and go on after it."""
        self.position, self.next_id, self.last_id = end, last + 1, last
        self.records = last + 1 - self.begins

    def append(self, other: RangeScan) -> None:
        """Add a sound scan of the part that follows this one."""
        self.records += other.records
        self.position, self.next_id = other.position, other.next_id
        self.last_id = self.last_id if other.last_id is None else other.last_id
        self._adopt_index(other)

    def adopt(self, other: RangeScan) -> None:
        """Add the faults that another scan of the same file found, except its tail and those that are known already."""
        known = {one.offset for one in self.damages} | {one.offset for one in self.bad_data}
        self.damages += [one for one in other.damages if one.offset not in known]
        self.bad_data += [one for one in other.bad_data if one.offset not in known]
        self.unreadable += other.unreadable
        self.unlisted += other.unlisted
        self._adopt_index(other)

    def _adopt_index(self, other: RangeScan) -> None:
        if self.comparison is None or other.comparison is None:
            return
        self.comparison.wrong.merge(other.comparison.wrong)
        self.comparison.unreadable = self.comparison.unreadable or other.comparison.unreadable

    def suspicions(self) -> frozenset[tuple[str, int, int]]:
        """The faults but the torn tail, as (kind, offset, id), to be compared with those of another scan."""
        found = {(one.cause.value, one.offset, one.transaction_id) for one in self.damages}
        found |= {("data", one.offset, one.transaction_id) for one in self.bad_data}
        found |= {("unreadable", one.offset, 0) for one in self.unreadable}
        if self.comparison is not None and self.comparison.wrong.count:
            found.add(("index", self.comparison.wrong.stored, self.comparison.wrong.first))
        return frozenset(found)


def damage_finding(job: SegmentJob, damage: Damage) -> Finding:
    """The finding for damage that valid records follow."""
    return findings.damage_finding(damage, job.files)


def tail_finding(job: SegmentJob, damage: Damage, listed: int = 0) -> Finding:
    """The finding for a torn tail; `listed`: see `engine.findings.Tail`."""
    following = None if job.last else job.following
    begins = beginning_behind(damage.transaction_id, job.directory, following, job.expected)
    mark, durable_to = job.local_low_water_mark, job.durable_to
    tail = Tail(job.last, mark, durable_to, job.following, listed, begins.whole, begins.header)
    return findings.tail_finding(damage, tail, job.files)


def record_findings(job: SegmentJob, scan: RangeScan) -> list[Finding]:
    """The findings of a scan about the data file, without its torn tail, in file order."""
    found = [damage_finding(job, damage) for damage in scan.damages]
    found += [bad.finding(job.files) for bad in scan.bad_data]
    for place in scan.unreadable:
        beyond = "the rest was not read" if place.resumed is None else f"reading went on at offset {place.resumed}"
        length = None if place.resumed is None else place.resumed - place.offset
        found.append(job.files.finding(Code.READ_ERROR, f"{place.error}; {beyond}", offset=place.offset, length=length))
    found.sort(key=lambda finding: finding.offset or 0)
    if scan.unlisted:
        message = (
            f"{scan.unlisted} more places are damaged up to offset {scan.position}; they are not listed one by one"
        )
        code = found[-1].code if found else Code.RECORD_CHECKSUM
        found.append(job.files.finding(code, message, offset=scan.position))
    return found
