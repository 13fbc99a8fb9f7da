"""What lies between two neighbouring segments of a partition, for who meets the segments one by one, or only some of them.

Two neighbours alone do not tell what is missing between them: a segment in front of both may go on behind the end of the first
one, as where an empty or a misplaced data file stands inside of it (`engine.log.assess.joints`).  Only where ids seem to be
missing, both ends of the segments that may have them are read.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Finding, counts_beyond_end
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import begins_with, check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, jobs_of
from waltzctl.engine.inspect.segment_order import REMOTE_HEADERS, most_reach
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log import places
from waltzctl.engine.log.assess import Stretch, begun, joint, reach
from waltzctl.engine.log.segments_in_front import HeldIds, SegmentsInFront
from waltzctl.engine.log.view import PartitionView, view_partition
from waltzctl.engine.losses import Gap, Overlap
from waltzctl.engine.storage.orphans import without_held_records


class SegmentReach:
    """How far the segments of a partition reach.  The directory is listed when it is first asked, and each segment read once."""

    def __init__(self, template: SegmentJob, limits: ReadLimits) -> None:
        """`template`: any segment of the partition."""
        self._template, self._limits = template, limits
        self._ordered: list[tuple[tuple[int, int], SegmentJob]] | None = None
        self._all = self._own_named = SegmentsInFront[SegmentJob]((), (), self._reach_of)
        self._known: dict[int, int] = {}
        self._view: PartitionView | None = None

    @property
    def directory(self) -> PurePath:
        """The partition's directory."""
        return self._template.directory

    def between(self, before: Stretch, behind: Stretch) -> Gap | Overlap | None:
        """As `engine.log.assess.joint`, by all segments of the partition.  Raises CutShort."""
        found = joint(before, behind)
        return joint(before, behind, self.in_front(before, found.first)) if isinstance(found, Gap) else found

    def without_held(self, finding: Finding) -> Finding:
        """A finding about the end of a segment without the ids that segments in front of it hold (`without_held_records`).

        Raises CutShort.
        """
        name, number = finding.segment, finding.transaction_id
        if not counts_beyond_end(finding) or name is None or number is None:
            return finding
        begins = next((pair[0] for pair, job in self._listed() if job.first == name), name)
        reached = self.in_front(begun(name, begins), number)
        return without_held_records(finding, reached, () if self._view is None else self._view.data_segments)

    def in_front(self, one: Stretch, number: int) -> int:
        """The id after the last one of the segments in front of `one`, by their first records, which may hold `number`.

        0 where there are none.  Raises CutShort.
        """
        place = self._place(one)  # lists the directory
        return self._all.reached(place, number)

    def held(self, one: Stretch, first: int, stop: int | None = None) -> Iterator[HeldIds[SegmentJob]]:
        """The ids from `first` up to `stop` that segments in front of `one` hold, as `SegmentsInFront.held`.

        Only of those that begin with the id in their names: who reads one by its name finds nothing in another.  Raises CutShort.
        """
        place = self._place(one)  # lists the directory
        yield from self._own_named.held(place, first, stop)

    def _place(self, one: Stretch) -> int:
        return bisect_left(self._listed(), (one.begins, one.segment), key=lambda pair: pair[0])

    def _reach_of(self, job: SegmentJob) -> int:
        if job.first not in self._known:
            self._known[job.first] = reach(check_segment(job, ENDS_ONLY, self._limits).stretch)
        return self._known[job.first]

    def _listed(self) -> Sequence[tuple[tuple[int, int], SegmentJob]]:
        """The segments with the id of the first record and that in the name of each, by these."""
        if self._ordered is None:
            here, view = places.on_this_machine(self._template.directory), None
            with contextlib.suppress(NotWaltzError, DiskReadError):  # whoever lists the directory tells it
                self._view = view = view_partition(self._template.directory, self._template.partition)
            jobs = [] if view is None else list(jobs_of(view, self._template))
            by_headers = here or len(jobs) <= REMOTE_HEADERS
            begins = [(begins_with(job) if by_headers else job.first, job.first) for job in jobs]
            self._ordered = sorted(zip(begins, jobs, strict=True), key=lambda pair: pair[0])
            ends = {} if here or view is None else _ends(view)
            most = [_bound(job, begins[0], ends.get(job.first)) for begins, job in self._ordered]
            ordered = [job for _, job in self._ordered]
            own = [one if begins[0] == job.first else 0 for (begins, job), one in zip(self._ordered, most, strict=True)]
            self._all = SegmentsInFront(ordered, most, self._reach_of)
            self._own_named = SegmentsInFront(ordered, own, self._reach_of)
        return self._ordered


def _ends(view: PartitionView) -> dict[int, int]:
    """The id behind the last entry of each segment's index, by the id in its name."""
    return {one.first_transaction_id: one.first_transaction_id + one.entries for one in view.segments}


def _bound(job: SegmentJob, begins: int, end: int | None) -> int:
    """As `most_reach`; the next one's name where the segment's index, up to `end` (None: not asked), leads exactly to it.

    Asked only behind a URL: by their sizes a thousand segments might have what lies behind them, which takes minutes to read.
    """
    if end is not None and end == job.following and begins == job.first:
        return end
    return most_reach(job, begins)
