"""Findings about a partition as a whole: how its segments join, what is missing, and other files in its directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.findings import Code, Finding, Severity, Where, loss_finding, make_finding
from waltzctl.engine.findings.directory_contents import not_assigned, special_finding
from waltzctl.engine.inspect.segment_job import SegmentReport
from waltzctl.engine.log import places
from waltzctl.engine.log.assess import IndexExcess, Joint, data_gone, joints, losses
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.log.view import PartitionView, SegmentView
from waltzctl.engine.losses import DirectoryGone, GivenUp, Ids, Loss, NoSegment, covered
from waltzctl.engine.storage.loss_ledger import still_lost
from waltzctl.formats.accepted_losses import AcceptedLoss


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What the control file, the assignment and the ledger say about a partition.

    `assigned`, `local_low_water_mark` and `session_id` are None where they are not known.  `accepted`: the accepted losses.
    """

    storage: PurePath | None
    number: int | None
    path: PurePath
    local_low_water_mark: int | None = None
    assigned: bool | None = None
    session_id: int | None = None
    accepted: tuple[AcceptedLoss, ...] = ()

    @property
    def where(self) -> Where:
        """The partition, as the place of a finding."""
        return Where(self.storage, self.number, self.path)

    def finding(
        self,
        code: Code,
        path: PurePath,
        message: str,
        *,
        severity: Severity | None = None,
        segment: int | None = None,
        transaction_id: int | None = None,
        length: int | None = None,
    ) -> Finding:
        """A finding about this partition."""
        return make_finding(
            code,
            path,
            message,
            severity=severity,
            storage_directory=self.storage,
            partition=self.number,
            segment=segment,
            transaction_id=transaction_id,
            length=length,
        )


def join_findings(context: PartitionContext, reports: Sequence[SegmentReport], proven: Evidence) -> Iterator[Finding]:
    """Findings about gaps and overlaps between segments, indexes that are too long, and transactions missing at the end.

    `reports`: those of all segments that have a data file.  `proven`: the evidence in the partition's files.
    """
    ordered = sorted(reports, key=lambda report: report.begins)
    yield from end_findings(context, ordered, proven, joints([one.stretch for one in ordered], 0), ordered)


def end_findings(
    context: PartitionContext,
    last: Sequence[SegmentReport],
    proven: Evidence,
    joined: Iterable[Joint],
    reports: Sequence[SegmentReport],
) -> Iterator[Finding]:
    """The findings about the joints among `reports`, then those about the end of the log.

    `last`: reports of which the last one is that of the partition's last segment.
    """
    stretches = [one.stretch for one in last]
    yield from findings_of_losses(context, losses(stretches, proven, context.local_low_water_mark, joined), reports)


def findings_of_losses(
    context: PartitionContext, found: Iterable[Loss | IndexExcess], reports: Sequence[SegmentReport]
) -> Iterator[Finding]:
    """The findings for losses; that for a too long index is `index_excess` in the report of its segment, one of `reports`."""
    excess = {one.job.first: one.index_excess for one in reports}
    for one in found:
        if not isinstance(one, IndexExcess):
            yield loss_finding(one, context.where)
        elif (known := excess.get(one.segment)) is not None:
            yield known


def held_ids(reports: Iterable[SegmentReport]) -> list[Ids]:
    """The ids from the first to the last record of each segment, damaged records between them included."""
    return [(report.begins, report.last_id + 1) for report in reports if report.last_id is not None]


def loss_findings(context: PartitionContext, held: Sequence[Ids], elsewhere: Sequence[Ids] = ()) -> Iterator[Finding]:
    """Findings about accepted losses of which transactions are still missing.

    `held`: the ids that are here; `elsewhere`: those that another finding counts as missing.
    """
    held, elsewhere = covered(held), covered(elsewhere)
    for loss in context.accepted:
        rest = still_lost(loss, held, context.local_low_water_mark)
        if rest:
            given = GivenUp(loss.first, loss.last + 1, loss.time, loss.reason, loss.disputed, tuple(rest))
            yield loss_finding(given, context.where, elsewhere=elsewhere)


def orphan_finding(
    context: PartitionContext,
    segment: SegmentView,
    held: Sequence[Ids],
    alike: Callable[[], bool],
    elsewhere: Sequence[Ids] = (),
) -> Finding:
    """The finding about an index file without a data file.

    `held`: the ids in other segments; `alike`: whether their records are those that the index lists; `elsewhere`: the ids that
    another finding counts as missing.
    """
    assert segment.index is not None
    gone = data_gone(segment.first_transaction_id, segment.entries, segment.index.size, held, alike)
    return loss_finding(gone, context.where, elsewhere=elsewhere)


def stray_files(
    context: PartitionContext, temporary: Sequence[PurePath], unknown: Sequence[PurePath]
) -> Iterator[Finding]:
    """Findings about temporary and unknown files."""
    for path in temporary:
        yield context.finding(Code.TEMPORARY_FILE, path, "the file was being built when its process ended")
    for path in unknown:
        yield context.finding(Code.UNKNOWN_FILE, path, "nothing of Waltz has this name")


def special_findings(context: PartitionContext, view: PartitionView) -> Iterator[Finding]:
    """Findings about special files in the place of data and index files, without indexes that a segment's check reports."""
    checked = {segment.index_path for segment in view.data_segments}
    for path in view.special:
        kind = places.still_special(path)
        if kind is not None and path not in checked:
            yield special_finding(path, kind, context.where)


def placement_findings(
    context: PartitionContext, view: PartitionView | None, partitions: int | None
) -> Iterator[Finding]:
    """Findings about a directory that is missing, empty, or should not exist.

    `partitions`: the number of partitions in the control file; None where it is not known.
    """
    if view is None:
        if context.assigned:
            yield loss_finding(DirectoryGone(context.local_low_water_mark, context.session_id), context.where)
    elif partitions is not None and context.number is not None and context.number >= partitions:
        yield context.finding(
            Code.PARTITION_NOT_ASSIGNED,
            view.path,
            f"the control file has partitions 0 to {partitions - 1}, and none of this number",
        )
    elif context.assigned and not view.segments and context.local_low_water_mark in (None, -1):
        session = context.session_id
        yield loss_finding(NoSegment(session if session is not None and session >= 0 else None), context.where)
    elif context.assigned is False and view.segments:
        yield not_assigned(len(view.segments), context.where)
