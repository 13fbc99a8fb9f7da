"""Which segments of a partition hold which ids: by their names, by the sizes of their indexes and, where in doubt, by headers.

Names and sizes come with the listing of the directory; a header is one more read, behind a URL one more request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import PurePath

from waltzctl.engine.inspect.segment_checks import begins_with
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log import places
from waltzctl.engine.log.view import PartitionView
from waltzctl.engine.losses import Covered, Ids, covered, without
from waltzctl.formats.segment import RECORD_OVERHEAD

Span = tuple[int | None, int | None]
"""A requested range of ids, both ends inclusive; None is no bound."""
REMOTE_HEADERS = 64
"""Headers of files behind a URL that are read, at most: one request each, a few seconds in all."""
_SLACK = 4096
"""How many ids a damaged segment may have beyond those that fit into its file."""


def most_reach(job: SegmentJob, begins: int) -> int:
    """The id after the last one that a segment may hold, by its size and the id `begins` of its first record.

    Where ids are left out, which is damage, they may go up to the next segment's name.
    """
    most = max(job.first, begins) + job.bytes // RECORD_OVERHEAD + _SLACK
    return most if job.following is None else max(most, job.following)


class SegmentOrder:
    """Order and ids of the segments to check (`jobs`), in a partition's directory as it was listed (`view`; None: none)."""

    def __init__(self, directory: PurePath, view: PartitionView | None, jobs: tuple[SegmentJob, ...]) -> None:
        self.view, self.jobs = view, jobs
        self._directory = directory
        self._ordered: tuple[SegmentJob, ...] | None = None
        self._begins: dict[int, int] = {}

    @property
    def entries(self) -> dict[int, int]:
        """The number of entries of each index, from its size, by the id in its name."""
        segments = () if self.view is None else self.view.segments
        return {one.first_transaction_id: one.entries for one in segments if one.index is not None}

    def in_order(self, *, asked: bool = False) -> tuple[SegmentJob, ...]:
        """The jobs by the ids with which their segments begin, which differs from the order of names if a file was renamed.

        The size of an index tells the id with which the next segment begins.  If that is not the id in the next name, a file may
        have been renamed, and the headers on both sides are read.  Without an index the names count: reading all headers of an
        object store would take minutes.  Headers are read once.

        `asked`: read all headers, on this machine: the caller reads every file anyway, and two segments of the same number of
        records may have swapped their names.  A file of another partition stays in the place of its name, so that no gap is
        reported around it.
        """
        if asked and places.on_this_machine(self._directory):
            begins = {job.first: begins_with(job, own=True) for job in self.jobs}
            return self._sorted(begins)
        if self._ordered is None:
            self._ordered = self._by_begins()
        return self._ordered

    def _by_begins(self) -> tuple[SegmentJob, ...]:
        entries = self.entries
        doubtful: set[int] = set()
        for job, behind in pairwise(self.jobs):
            count = entries.get(job.first)
            if count is not None and job.first + count != behind.first:
                doubtful |= {job.first, behind.first}
        begins = {job.first: begins_with(job) if job.first in doubtful else job.first for job in self.jobs}
        self._begins = begins
        return self._sorted(begins)

    def able_to_hold(self, ranges: Iterable[Ids]) -> tuple[SegmentJob, ...]:
        """The jobs of segments that may hold ids of half-open ranges: by names, sizes, and headers where names are doubtful."""
        wanted = covered(ranges)
        spans = ((job, self.lowest(job)) for job in self.jobs)
        return tuple(job for job, low in spans if _meets((low, most_reach(job, self._begins[job.first])), wanted))

    def lowest(self, job: SegmentJob) -> int:
        """The lowest id that a segment may hold: by its name and, where names are doubtful, its header."""
        self.in_order()
        return min(job.first, self._begins[job.first])

    def _sorted(self, begins: Mapping[int, int]) -> tuple[SegmentJob, ...]:
        """The jobs by the ids with which their segments begin, those that begin with the same one by name."""
        return tuple(sorted(self.jobs, key=lambda job: (begins[job.first], job.first)))

    def holding(self, span: Span) -> tuple[SegmentJob, ...]:
        """The jobs of segments that may hold records of a span, in the order of their names.

        If one of them begins with another id than that in its name, a file was renamed, and its records may be in a file of any
        name: then all jobs are returned.  To find out, their headers are read, at most REMOTE_HEADERS of them behind a URL; and
        those of all others, where the names leave ids of the span to no segment, which one of them may hold.
        """
        named = tuple(self._named_for(span))
        if len(named) == len(self.jobs):
            return named
        here = places.on_this_machine(self._directory)
        known = {job.first for job in named}
        others = () if self._all_named(span) else tuple(job for job in self.jobs if job.first not in known)
        asked = (*named, *others)[: None if here else REMOTE_HEADERS]
        return named if all(begins_with(job) == job.first for job in asked) else self.jobs

    def _all_named(self, span: Span) -> bool:
        """Whether names and indexes have a segment for each id of a span.

        Where the log ends they do not say: the last segment may have an earlier one's name, which only its header tells.
        """
        entries, (first, last) = self.entries, span
        expected = first or 0
        for job in self.jobs:
            if job.first <= expected:
                expected = max(expected, job.first + entries.get(job.first, 0))
        return last is not None and last < expected

    def _named_for(self, span: Span) -> Iterator[SegmentJob]:
        """The jobs that may hold records of a span, by file names and index sizes; no file is read.

        A segment is left out only if the name that bounds its ids is confirmed: the index of the segment in front of that name
        has an entry for each id up to it.  A renamed segment, or a short, missing or too long index, confirms nothing.
        """
        first, last = span
        entries = self.entries
        led = False  # whether the index in front confirms this segment's name
        for job, behind in zip(self.jobs, [*self.jobs[1:], None], strict=False):
            count = entries.get(job.first)
            leads = behind is not None and count is not None and job.first + count == behind.first
            starts_too_late = last is not None and job.first > last and led
            ends_too_early = first is not None and behind is not None and behind.first <= first and leads
            if not starts_too_late and not ends_too_early:
                yield job
            led = leads


def _meets(ids: Ids, wanted: Covered) -> bool:
    """Whether a range has an id of `wanted`."""
    return without(ids, wanted) != [ids]
