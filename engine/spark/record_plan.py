"""The plan of the records view: the parts of segments, and what is missing where there is no segment to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.partition_runs import Span
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.storage_checks import unnamed_losses
from waltzctl.engine.inspect.unread_losses import (
    KnownEnd,
    known_end,
    losses_behind,
    losses_in_front,
    nothing_behind,
    nothing_in_front,
)
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.spark.finding_tasks import PartitionTask, whole_partition
from waltzctl.engine.spark.selection import Selection
from waltzctl.engine.spark.splits import Notice, SegmentPart, Surveyed, node_of, parts_of


@dataclass(frozen=True, slots=True)
class MissingTask:
    """Looks for what is missing in front of a partition's first segment, or behind the last one and instead of any.

    Its task lists the partition again, by itself: a listing of many segments is not sent.  `first`: the first segment, to look in
    front of it, for which nothing has to be listed as long as it begins with the first transaction of all; None: look behind.
    `known`: the end as it was planned, which tells, as long as it is that, that nothing is missing; None: it would not.
    """

    node: str
    partition: PartitionTask
    span: Span
    first: SegmentJob | None = None
    known: KnownEnd | None = None

    @property
    def cost(self) -> int:
        """Nothing beside that of the segments, with one of which it shares a task."""
        return 0

    @property
    def directory(self) -> PurePath:
        """The partition directory."""
        return self.partition.directory

    def run(self, limits: ReadLimits) -> Iterator[Finding]:
        """What is missing.  Nothing of a directory that went away or cannot be listed, which is told with the plan."""
        if self.first is not None and nothing_in_front(self.first, self.span, limits):
            return
        scope = self.partition.partition
        try:
            if self.known is not None and nothing_behind(self.known, self.partition.context, self.span, limits):
                return
            scope.view = view_partition(scope.path, scope.number)
        except (NotWaltzError, DiskReadError):
            return
        run = self.partition.opened(limits)
        yield from losses_behind(run, self.span) if self.first is None else losses_in_front(run, self.span)


def record_parts(
    surveyed: Surveyed, selection: Selection, split_size: int
) -> Iterator[SegmentPart | Notice | MissingTask]:
    """The parts of everything that is wanted, partition by partition, in order."""
    span = selection.ids.span()
    unnamed = tuple(unnamed_losses(surveyed.scope, surveyed.around))
    if unnamed:
        yield Notice(node_of(surveyed.scope), unnamed)
    for run in surveyed.runs:
        node = node_of(surveyed.scope, run)
        findings = (*run.begin(), *run.told_strays())
        if findings:
            yield Notice(node, findings)
        missing = _missing(surveyed, whole_partition(surveyed, run, node), span)
        if missing is not None and run.jobs:
            yield replace(missing, first=run.jobs[0])
        yield from parts_of(run, node, selection, split_size)
        if missing is not None:
            yield replace(missing, known=known_end(run))


def _missing(surveyed: Surveyed, whole: PartitionTask | None, span: Span) -> MissingTask | None:
    if whole is None:
        return None
    partition = replace(whole.partition, view=None)
    scope = replace(whole.scope, partitions=dict.fromkeys(whole.scope.partitions, partition))
    around = replace(whole.around, held=surveyed.around.held)
    return MissingTask(whole.node, replace(whole, scope=scope, partition=partition, around=around), span)
