"""The plan of the records view: parts of segments, and tasks that look for transactions missing outside of segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.segment_order import Span
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
    """Looks for transactions missing before a partition's first segment, or after the last one (all of them without segments).

    The task lists the partition itself, since a listing of many segments would be too large to send.
    """

    node: str
    partition: PartitionTask
    span: Span
    first: SegmentJob | None = None
    """The first segment: look before it; no listing is needed where nothing is missing there.  None: look after the last one."""
    known: KnownEnd | None = None
    """The partition's end when the read was planned: as long as it is unchanged, nothing is missing.  None: nothing is known."""

    @property
    def cost(self) -> int:
        """0: it is packed together with a segment, whose cost is much larger."""
        return 0

    @property
    def directory(self) -> PurePath:
        """The partition directory."""
        return self.partition.directory

    def run(self, limits: ReadLimits) -> Iterator[Finding]:
        """The findings.  None for a directory that is gone or cannot be listed: the plan has reported that."""
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
    """Everything to read, partition by partition, in order."""
    span = selection.ids.span()
    unnamed = tuple(unnamed_losses(surveyed.scope, surveyed.around))
    if unnamed:
        yield Notice(node_of(surveyed.scope), unnamed)
    for run in surveyed.runs:
        node = node_of(surveyed.scope, run)
        findings = (*run.begin(), *run.stray_segments_by_ends())
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
