"""Which segments of a partition follow one another by their headers.

A read is planned in the order of names, without opening files.  Where two segments do not join in that order, one of them, or the
one that is missing between them, may have another one's name: then the headers tell what lies beside what.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import begins_with, check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, jobs_of
from waltzctl.engine.inspect.segment_order import REMOTE_HEADERS
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log import places
from waltzctl.engine.log.view import view_partition


@dataclass(frozen=True, slots=True)
class SegmentsBeside:
    """The segments in front of one and behind it, by their headers; None at the ends of the log."""

    in_front: SegmentJob | None
    behind: SegmentJob | None


@dataclass(frozen=True, slots=True)
class _Row:
    """A partition's segments, looked through once: each of thousands may be asked about.

    `beside`: what lies beside each, by the id in its name; `named`: all in the order of their names.
    """

    beside: dict[int, SegmentsBeside]
    named: list[SegmentJob]

    @classmethod
    def of(cls, row: list[SegmentJob]) -> _Row:
        """`row`: in the order of the headers."""
        around = zip(row, [None, *row[:-1]], [*row[1:], None], strict=True)
        beside = {one.first: SegmentsBeside(in_front, behind) for one, in_front, behind in around}
        return cls(beside, sorted(row, key=attrgetter("first")))


class HeaderOrder:
    """The order of the segments of partitions, by their headers.  Those of a partition are read once, when first asked for."""

    def __init__(self) -> None:
        self._known: dict[PurePath, _Row] = {}
        self._reach: dict[PurePath, SegmentReach] = {}

    def reach(self, job: SegmentJob, limits: ReadLimits) -> SegmentReach:
        """How far the segments of a segment's partition reach."""
        if job.directory not in self._reach:
            self._reach[job.directory] = SegmentReach(job, limits)
        return self._reach[job.directory]

    def neighbours(self, job: SegmentJob) -> SegmentsBeside | None:
        """The neighbours of a segment; None where they are not known: files that were removed, or too many behind a URL."""
        return self._row(job).beside.get(job.first)

    def joins_by_name(self, job: SegmentJob, limits: ReadLimits) -> bool:
        """Whether the segment with the next name begins where this one ends; of the last one, whether its name is right."""
        named = self._row(job).named
        place = bisect_right(named, job.first, key=attrgetter("first"))
        report = check_segment(job, ENDS_ONLY, limits)
        return report.begins == job.first if place == len(named) else report.next_id == begins_with(named[place])

    def last_by_name(self, job: SegmentJob) -> SegmentJob:
        """The segment of a segment's partition with the last name."""
        return self._row(job).named[-1]

    def _row(self, job: SegmentJob) -> _Row:
        if job.directory not in self._known:
            self._known[job.directory] = _Row.of(_by_headers(job))
        return self._known[job.directory]


def _by_headers(job: SegmentJob) -> list[SegmentJob]:
    try:
        jobs = list(jobs_of(view_partition(job.directory, job.partition), job))
    except (NotWaltzError, DiskReadError):
        return []
    if len(jobs) > REMOTE_HEADERS and not places.on_this_machine(job.directory):
        return []
    begins = {one.first: begins_with(one, own=True) for one in jobs}
    return sorted(jobs, key=lambda one: (begins[one.first], one.first))
