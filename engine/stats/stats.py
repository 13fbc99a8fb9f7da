"""stats: count every record once, by partition, client, size, time and transaction id.

Paths, partitions and segments are resolved as in verify and dump (`engine.inspect.targets`).  Each segment, or part of a large
one, is an executor task (`engine.task_executor`); results are merged as they arrive.  A damaged place is reported as a finding,
as in dump, and counted as a gap; it never ends the counting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePath

from waltzctl.engine.findings import Finding, loss_finding
from waltzctl.engine.inspect.live import states
from waltzctl.engine.inspect.partition_runs import PartitionRun, runs
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.inspect.storage_checks import unnamed_losses
from waltzctl.engine.inspect.targets import Scope, ScopeSurroundings, look_around, plan
from waltzctl.engine.inspect.unread_losses import losses_behind, losses_in_front
from waltzctl.engine.inspect.verification import Tally
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.view import FileState
from waltzctl.engine.stats.aggregate import Aggregate, Collector
from waltzctl.engine.stats.axes import Clock, Interval, Scale
from waltzctl.engine.stats.gathering import Gathered, StatsTask, gather
from waltzctl.engine.stats.report import (
    GAPS_LISTED,
    MissingIds,
    PartitionStats,
    StatsReport,
    Untimed,
    client_series_of,
    clients_of,
    gaps_of,
    headers_of,
    id_buckets_of,
    repeated_in,
    size_classes_of,
    time_buckets_of,
)
from waltzctl.engine.stats.stats_options import StatsOptions
from waltzctl.engine.task_executor import TaskExecutor

__all__ = ["StatsOptions", "StatsReport", "stats"]

WHAT = "stats"
_ALL_IDS = (None, None)
"""No bounds on the ids: every record is counted."""
NO_CLOCK = Clock(None, "it is gone")


@dataclass(slots=True)
class _Segment:
    """A segment being counted: `parts` holds the tasks' results until `settle` sums them up into the other fields."""

    task: StatsTask
    parts: list[Gathered] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    headers: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    stretch: Stretch | None = None
    clock: Clock = NO_CLOCK
    states: tuple[FileState | None, ...] = ()
    gone: bool = False

    def joins(self) -> bool:
        """Whether each part ends where the next one begins, in the same file."""
        if len(self.parts) == 1:
            return True
        read = [part for part in self.parts if part.start is not None]
        if any(part.stretch is None for part in self.parts) or any(part.end is None for part in read):
            return False
        if any(one.end != behind.start for one, behind in pairwise(read)):
            return False
        return len({None if not part.states or part.states[0] is None else part.states[0].inode for part in read}) == 1

    def settle(self) -> None:
        """Sum up the results of the parts, and drop them."""
        parts, self.parts = self.parts, []
        self.records = sum(part.records for part in parts)
        self.bytes = sum(part.bytes for part in parts)
        self.headers = tuple(finding for part in parts for finding in part.headers)
        self.findings = tuple(finding for part in parts for finding in part.findings)
        first = parts[0]
        self.clock, self.states, self.gone = first.clock, first.states, first.gone
        self.stretch = [part for part in parts if part.start is not None or part is first][-1].stretch

    def changed(self) -> bool:
        """Whether the files have changed since they were opened."""
        return states(self.task.job.data_path, self.task.job.index_path) != self.states


@dataclass(slots=True)
class _Partition:
    """A partition being counted; `segments` in order.  `whole`: the whole partition was requested."""

    place: int
    run: PartitionRun
    whole: bool
    segments: list[_Segment]

    @property
    def path(self) -> PurePath:
        """The partition's directory."""
        return self.run.context.path

    def findings(self) -> Iterator[Finding]:
        """All findings about the partition, in the order of dump."""
        yield from self.run.begin()
        yield from self.run.stray_segments_by_ends()
        yield from losses_in_front(self.run, _ALL_IDS)
        reach: SegmentReach | None = None
        before: _Segment | None = None
        for segment in self.segments:
            yield from map(self.run.without_held, segment.headers)
            if before is not None:
                reach = reach or SegmentReach(segment.task.job, ReadLimits())
                yield from _joint_findings(before, segment, reach)
            yield from map(self.run.without_held, segment.findings)
            before = segment
        yield from losses_behind(self.run, _ALL_IDS)


def _joint_findings(before: _Segment, behind: _Segment, reach: SegmentReach) -> Iterator[Finding]:
    """A finding for a gap or an overlap between two neighbours, unless their files changed meanwhile."""
    if before.stretch is None or behind.stretch is None:
        return
    found = reach.between(before.stretch, behind.stretch)
    if found is not None and not before.changed() and not behind.changed():
        yield loss_finding(found, behind.task.job.where)


def stats(paths: Iterable[PurePath], options: StatsOptions, executor: TaskExecutor) -> StatsReport:
    """Count every record that `paths` name; a record named by several paths counts once.

    Nothing is written or locked; a node may be writing to the directory.  Memory does not grow with the number of records, but
    with the number of segments, of damaged places and, up to a bound, of clients.

    Raises NotWaltzError, InvalidRequestError and DiskReadError for paths and options.
    """
    options.check()
    began = time.monotonic()
    scale = Scale(None if options.bucket is None else round(options.bucket * 1000))
    scopes = plan(paths, options.partitions)
    around = [look_around(scope, options.partitions) for scope in scopes]
    partitions = list(_partitions(scopes, around, options, scale))
    segments = [segment for partition in partitions for segment in partition.segments]
    collector = Collector(scale)
    again = _count(segments, executor, collector, options.part)
    for segment in again:
        segment.parts.clear()
    left = _count(again, executor, collector, None)
    assert not left, "a segment that is read as a whole joins"
    findings = [one for scope, seen in zip(scopes, around, strict=True) for one in unnamed_losses(scope, seen)]
    return _report(partitions, findings, collector.result(), options, time.monotonic() - began)


def _count(segments: list[_Segment], executor: TaskExecutor, collector: Collector, part: int | None) -> list[_Segment]:
    """Count segments in parts of about `part` bytes (None: as a whole); return those whose parts do not join, uncounted."""
    tasks: list[StatsTask] = []
    owners: list[_Segment] = []
    for segment in segments:
        parts = 1 if part is None else max(1, -(-segment.task.job.bytes // part))
        tasks += [replace(segment.task, number=number, parts=parts) for number in range(parts)]
        owners += [segment] * parts
    weights = [task.job.bytes // task.parts for task in tasks]
    left: list[_Segment] = []
    results = executor.map(gather, tasks, weights=weights, what=WHAT) if tasks else iter(())
    for segment, task, gathered in zip(owners, tasks, results, strict=True):
        segment.parts.append(gathered)
        if len(segment.parts) < task.parts:
            continue
        if not segment.joins():
            left.append(segment)
            continue
        for one in segment.parts:
            collector.add(one.aggregate)
        segment.settle()
    return left


def _partitions(
    scopes: Sequence[Scope], around: Sequence[ScopeSurroundings], options: StatsOptions, scale: Scale
) -> Iterator[_Partition]:
    """The partitions to count.  A data file is opened only to find the first id of a segment that may have been renamed."""
    volume = sum(scope.data_bytes() for scope in scopes)
    limits = ReadLimits()
    place = 0
    for scope, seen in zip(scopes, around, strict=True):
        whole = {str(one.path) for one in scope.partitions.values() if one.whole}
        for run in runs(scope, seen, limits, options.partitions):
            view = run.view
            files = [] if view is None else [one.data for one in view.data_segments if one.data is not None]
            behind = {one.path: after.path for one, after in pairwise(files)}
            before = {after: one for one, after in behind.items()}
            known = {one.path: one for one in files}
            segments = []
            for job in run.order.in_order(asked=True):
                state = known.get(job.data_path) or FileState.of(job.data_path)
                task = StatsTask(
                    job,
                    place,
                    scale,
                    before.get(job.data_path),
                    behind.get(job.data_path),
                    None if state is None else state.modified_ns // 1_000_000,
                    volume,
                )
                segments.append(_Segment(task))
            yield _Partition(place, run, str(run.context.path) in whole, segments)
            place += 1


def _report(
    partitions: list[_Partition],
    of_directories: Sequence[Finding],
    total: Aggregate,
    options: StatsOptions,
    elapsed: float,
) -> StatsReport:
    tally = Tally()
    findings = list(of_directories)
    gaps: list[MissingIds] = []
    counted: list[PartitionStats] = []
    for partition in partitions:
        found = list(partition.findings())
        findings += found
        own = gaps_of(total, partition.place, found, whole=partition.whole)
        gaps += own[: max(0, GAPS_LISTED - len(gaps))]
        counted.append(_partition_stats(partition, total, own))
    for finding in findings:
        tally.add(finding)
    numbers = {one.place: one.place if one.run.context.number is None else one.run.context.number for one in partitions}
    clients, client_ranking = clients_of(total, numbers, options.top)
    headers, header_ranking = headers_of(total, options.top)
    segments = [(partition.place, one) for partition in partitions for one in partition.segments]
    return StatsReport(
        tally.status,
        tally.exit_status_name,
        sum(not one.gone for _, one in segments),
        sum(one.records for one in counted),
        sum(one.bytes for one in counted),
        elapsed,
        total.extent,
        total.width,
        tuple(counted),
        clients,
        client_ranking,
        client_series_of(total),
        headers,
        header_ranking,
        size_classes_of(total),
        tuple(time_buckets_of(total, clients)),
        tuple(id_buckets_of(total)),
        tuple(gaps),
        tuple(
            Untimed(place, one.task.job.data_path, one.task.job.first, one.records, one.bytes, one.clock.reason)
            for place, one in segments
            if one.records and one.clock.reason is not None
        ),
        tuple(findings),
    )


def _partition_stats(partition: _Partition, total: Aggregate, gaps: list[MissingIds]) -> PartitionStats:
    place = partition.place
    seen = list(total.runs.of(place))
    records = sum(one.records for one in partition.segments)
    timed = [(one, one.clock.interval) for one in partition.segments if one.records and one.clock.interval is not None]
    covered: Interval | None = None
    for _, interval in timed:
        covered = interval.joined(covered)
    return PartitionStats(
        place,
        partition.path,
        partition.run.context.number,
        sum(not one.gone for one in partition.segments),
        records,
        sum(one.bytes for one in partition.segments),
        seen[0][0] if seen else None,
        seen[-1][1] if seen else None,
        len(gaps),
        sum(gap.transactions for gap in gaps),
        repeated_in(total, place, records),
        covered,
        sum(interval.end - interval.start for _, interval in timed) / 1000,
        sum(one.records for one, _ in timed),
        sum(one.bytes for one, _ in timed),
    )
