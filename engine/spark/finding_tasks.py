"""Tasks that return the findings of verify: for a whole partition, or for a chunk of a large one's segments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.findings.obstacles import Obstacles
from waltzctl.engine.inspect.control_checks import ControlState
from waltzctl.engine.inspect.live import states
from waltzctl.engine.inspect.partition_checks import (
    PartitionContext,
    end_findings,
    findings_of_losses,
    held_ids,
)
from waltzctl.engine.inspect.partition_runs import PartitionRun
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import begins_with, check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport, jobs_of
from waltzctl.engine.inspect.segment_order import most_reach
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.inspect.targets import PartitionScope, Scope, ScopeSurroundings
from waltzctl.engine.inspect.verification import ENDS_ONLY, VerifyOptions
from waltzctl.engine.log.assess import Joint, Stretch, begun, end, joints
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.losses import Gap, Ids
from waltzctl.engine.spark.splits import FLAT, Surveyed, pack, parts_for

_OPTIONS = VerifyOptions()
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """The findings of a partition, with all its segments."""

    node: str
    scope: Scope
    partition: PartitionScope
    context: PartitionContext
    around: ScopeSurroundings
    bytes: int
    segments: int
    obstacles: Obstacles = field(default_factory=Obstacles, compare=False)
    """Those of the storage directory and of the partition's."""

    @property
    def cost(self) -> int:
        """Bytes to read, approximately."""
        return self.bytes + self.segments * FLAT

    @property
    def directory(self) -> PurePath:
        """The partition directory."""
        return self.context.path

    def opened(self, limits: ReadLimits) -> PartitionRun:
        """The partition's checks (`PartitionRun`)."""
        return PartitionRun(self.scope, self.partition, self.context, self.around, limits, self.obstacles.copy())

    def run(self, limits: ReadLimits) -> Iterator[Finding]:
        """All findings of the partition, except those about its directory's place in the storage."""
        run = self.opened(limits)
        for job in run.jobs:
            yield from run.add(check_segment(job, _OPTIONS, limits))
        yield from run.finish(lambda job: check_segment(job, _OPTIONS, limits))


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """A chunk of a partition that is too large for one task: neighbouring segments, in the order of their first records."""

    node: str
    context: PartitionContext
    jobs: tuple[SegmentJob, ...]
    """The segments of the chunk."""
    first: bool
    """Whether it is the partition's first chunk."""
    behind: tuple[SegmentJob, int] | None
    """The segment after the chunk, and that segment's first id; None after the last chunk."""
    whole: PartitionTask | None
    """Only with the last chunk: the partition, for its findings as a whole."""
    jobs_before: tuple[SegmentJob, ...] = ()
    """Only with the last chunk: the segments of all other chunks."""
    obstacles: Obstacles = field(default_factory=Obstacles, compare=False)
    """As `PartitionTask.obstacles`."""

    @property
    def cost(self) -> int:
        """Bytes to read, about."""
        return sum(job.bytes + FLAT for job in self.jobs)

    @property
    def directory(self) -> PurePath:
        """The partition directory."""
        return self.context.path

    def run(self, limits: ReadLimits) -> Iterator[Finding]:
        """The findings of the segments, of their joins (with the next chunk, too), and with the last chunk of the partition."""
        obstacles = self.obstacles.copy()
        seen: set[Finding] = set()
        for _ in range(_ATTEMPTS + 1):
            reports = [check_segment(job, _OPTIONS, limits) for job in self.jobs]
            fresh = [one for report in reports for one in report.findings if one not in seen]
            seen.update(fresh)
            yield from obstacles.together(self._without_held(fresh, limits))
            joins = list(self._joins(reports, limits))
            if not joins or all(_unchanged(report) for report in reports):
                yield from self._behind_obstacles(joins, obstacles, limits)
                break
        yield from self._behind_obstacles(self._of_whole(reports, limits), obstacles, limits)

    def _without_held(self, findings: Iterable[Finding], limits: ReadLimits) -> Iterator[Finding]:
        """Findings of the chunk's segments without the ids that segments in front of them hold, also those of other chunks."""
        reach = SegmentReach(self.jobs[0], limits) if self.jobs else None
        return (one if reach is None else reach.without_held(one) for one in findings)

    def _behind_obstacles(
        self, findings: Iterable[Finding], obstacles: Obstacles, limits: ReadLimits
    ) -> Iterator[Finding]:
        """Findings with the remedies of what has to be mended first, also in segments of other chunks."""
        found = list(findings)
        own = {job.first for job in self.jobs}
        wanted = {one.segment for one in found if one.remedy is not None} - own - {None}
        least = min((one for one in map(obstacles.headers_from, found) if one is not None), default=None)
        if self.jobs and (wanted or least is not None):
            with contextlib.suppress(NotWaltzError, DiskReadError):  # who lists the directory for its segments tells it
                for job in jobs_of(view_partition(self.directory, self.context.number), self.jobs[0]):
                    if job.first not in own and (job.first in wanted or (least is not None and job.first >= least)):
                        for one in check_segment(job, ENDS_ONLY, limits).findings:
                            obstacles.note(one)
        yield from map(obstacles.behind, found)

    def _of_whole(self, reports: Sequence[SegmentReport], limits: ReadLimits) -> Iterator[Finding]:
        if self.whole is not None:
            run = self.whole.opened(limits)
            listed = run.listed_alone()
            able = [*self._before(run, listed, limits), *reports]
            yield from run.orphans(held_ids(able), run.ids_counted_elsewhere(able))
            lost = [(loss.first, loss.last + 1) for loss in self.context.accepted]
            able = [*self._before(run, lost, limits), *reports]
            yield from run.losses(held_ids(able), [*run.ids_counted_elsewhere(able), *listed])
            yield from run.stray_segments_by_ends()
            yield from run.strays()

    def _joins(self, reports: Sequence[SegmentReport], limits: ReadLimits) -> Iterator[Finding]:
        ordered = sorted(reports, key=lambda report: report.begins)
        row = [report.stretch for report in ordered]
        if self.behind is not None:
            job, begins = self.behind
            row.append(begun(job.first, begins))
        joined = self._joined(row, limits)
        if self.whole is None:
            yield from findings_of_losses(self.context, joined, reports)
            return
        run = self.whole.opened(limits)
        context, proven = self.context, run.proven()
        if any(end(row, proven, context.local_low_water_mark)):
            context, proven = run.promised()
        also: list[SegmentReport] = []
        if any(end(row, proven, context.local_low_water_mark)):
            # the chunk ends before the proven end: an earlier segment is read as well if its size allows ids up to there
            last = proven.required - 1
            able = [job for job in self.jobs_before if most_reach(job, job.first) >= last]
            also = [check_segment(job, _OPTIONS, limits) for job in able]
        yield from end_findings(context, [*also, *ordered], proven, joined, reports)

    def _joined(self, row: Sequence[Stretch], limits: ReadLimits) -> Sequence[Joint]:
        """The joints of the chunk's segments; of ids that seem to be missing, an earlier chunk's may have some."""
        expected = 0 if self.first else None
        joined = tuple(joints(row, expected))
        gaps = [one.first for one in joined if isinstance(one, Gap)]
        if self.first or not gaps:
            return joined
        reach = SegmentReach(self.jobs[0], limits)
        return tuple(joints(row, expected, reach.in_front(row[0], min(gaps))))

    def _before(self, run: PartitionRun, wanted: Sequence[Ids], limits: ReadLimits) -> list[SegmentReport]:
        """Reports of segments of earlier chunks that may hold ids of one of the ranges, by both ends: they may be many."""
        own = {job.first for job in self.jobs}
        able = [job for job in run.order.able_to_hold(wanted) if job.first not in own]
        return [check_segment(job, ENDS_ONLY, limits) for job in able]


def _unchanged(report: SegmentReport) -> bool:
    if report.gone:
        return False
    now = states(report.job.data_path, report.job.index_path)
    return report.job.last or report.states in ((None, None), now)


def whole_partition(surveyed: Surveyed, run: PartitionRun, node: str) -> PartitionTask | None:
    """The task for a partition; None where there is no directory, or none that a node would open.

    The task is sent to a worker: of the scope it has only this partition, and not the place of the directory, as another machine
    has other numbers for its devices.
    """
    if run.beyond:
        return None
    path = run.context.path
    scope = surveyed.scope
    found = next((item for item in scope.partitions.items() if item[1].path == path), None)
    if found is None:
        return None
    key, partition = found
    own = replace(scope, partitions={key: partition}, temporary=(), unknown=(), place=None)
    around = ScopeSurroundings(ControlState(None), surveyed.around.held, surveyed.around.cluster_key, ())
    size = sum(job.bytes for job in run.jobs)
    return PartitionTask(node, own, partition, run.context, around, size, len(run.jobs), run.obstacles.copy())


def chunks(whole: PartitionTask, jobs: Sequence[SegmentJob], split_size: int) -> Iterator[ChunkTask]:
    """Divide a partition's segments into chunks of about `split_size` bytes.  Their order is by headers, which are read here."""
    begun = sorted(((begins_with(job), job) for job in jobs), key=lambda pair: pair[0])
    count = parts_for(whole.cost, split_size)
    share = -(-whole.cost // count)
    rows = list(pack((job for _, job in begun), share + FLAT, lambda job: job.bytes + FLAT)) or [()]
    done = 0
    for number, row in enumerate(rows):
        last = number == len(rows) - 1
        done += len(row)
        yield ChunkTask(
            whole.node,
            whole.context,
            row,
            number == 0,
            None if last else (begun[done][1], begun[done][0]),
            whole if last else None,
            tuple(job for _, job in begun[: done - len(row)]) if last else (),
            whole.obstacles,
        )
