"""A partition as a whole: do its segments join, is everything there that was promised, and what else lies in its directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.findings import Code, Finding, Severity, make_finding
from engine.inspect.segment_job import SegmentReport
from engine.storage import places
from engine.storage.view import PartitionView, SegmentView
from formats.segment import parse_name


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What is known of a partition beside its files.  `assigned` and `local_low_water_mark` are None where nothing tells."""

    storage: Path | None
    number: int | None
    path: Path
    local_low_water_mark: int | None = None
    assigned: bool | None = None

    def finding(
        self,
        code: Code,
        path: Path,
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


def join_findings(context: PartitionContext, reports: Sequence[SegmentReport]) -> Iterator[Finding]:
    """Gaps and overlaps between neighbouring segments, indexes that are too long, and acknowledged transactions that miss.

    `reports`: of every segment that has a data file.
    """
    ordered = sorted(reports, key=lambda report: report.begins)
    yield from neighbour_findings(context, ordered, 0)
    yield from acknowledged_findings(context, ordered)


def neighbour_findings(
    context: PartitionContext, ordered: Sequence[SegmentReport], expected: int | None
) -> Iterator[Finding]:
    """Gaps, overlaps and indexes that are too long among reports of segments that stand side by side, ordered by `begins`.

    `expected`: the id that the first one must begin with; None where the one in front of it is not looked at here.  An index
    that lists exactly the transactions of the gap behind its segment is no finding of its own: the data file lost its end.
    """
    before: SegmentReport | None = None
    for report in ordered:
        gap = expected is not None and report.begins > expected
        if before is not None and before.index_excess is not None:
            lost_end = before.index_end == report.begins and (gap or expected is None)
            if not lost_end:
                yield before.index_excess
            elif before.torn:
                gap = False  # the torn tail says so: the file was cut within a record
        if gap and expected is not None:
            yield _gap(context, before, report, expected)
        elif expected is not None and report.begins < expected:
            yield context.finding(
                Code.SEGMENT_OVERLAP,
                report.job.data_path,
                f"the segment begins at transaction {report.begins}, the one in front of it ends at {expected - 1}:"
                f" {expected - report.begins} transactions may stand in both",
                segment=report.job.first,
                transaction_id=report.begins,
            )
        known = not report.gone and report.finished
        expected = report.next_id if known else None
        before = report
    if before is not None and before.index_excess is not None:
        yield before.index_excess


def _gap(context: PartitionContext, before: SegmentReport | None, report: SegmentReport, expected: int) -> Finding:
    missing = report.begins - expected
    many = f"transaction {expected} is" if missing == 1 else f"transactions {expected} to {report.begins - 1} are"
    if before is None:
        where = f"the partition's first segment begins at {report.begins}"
    else:
        listed = before.index_excess is not None and before.index_end == report.begins
        known = ", though its index lists more" if listed else ""
        where = f"segment {before.job.data_path.name} ends before{known}, and this one begins at {report.begins}"
    return context.finding(
        Code.SEGMENT_GAP,
        report.job.data_path,
        f"{many} missing: {where}",
        segment=report.job.first,
        transaction_id=expected,
    )


def acknowledged_findings(context: PartitionContext, ordered: Sequence[SegmentReport]) -> Iterator[Finding]:
    """Whether the partition reaches its local low-water mark; the last of `ordered` is the partition's last segment."""
    mark = context.local_low_water_mark
    if mark is None or any(report.gone or report.uncertain or not report.finished for report in ordered[-1:]):
        return
    last = max((report.accounted for report in ordered), default=-1)
    if last < mark:
        path = ordered[-1].job.data_path if ordered else context.path
        ends = f"the last transaction is {last}" if last >= 0 else "there is no transaction"
        yield context.finding(
            Code.ACKNOWLEDGED_MISSING,
            path,
            f"{ends}, but the local low-water mark is {mark}: transactions {last + 1} to {mark} were durable here once",
            segment=ordered[-1].job.first if ordered else None,
            transaction_id=last + 1,
        )


def orphan_finding(context: PartitionContext, segment: SegmentView) -> Finding:
    """An index file without a data file."""
    assert segment.index is not None
    entries = segment.entries
    held = f"it has {entries} entries: the data file was there once" if entries else "it has no entries"
    return context.finding(
        Code.INDEX_ORPHAN,
        segment.index.path,
        f"the index has no data file; {held}",
        segment=segment.first_transaction_id,
        transaction_id=segment.first_transaction_id,
        length=segment.index.size,
    )


def other_files(context: PartitionContext, view: PartitionView) -> Iterator[Finding]:
    """Names in a partition directory that belong to nothing, and half-built files."""
    yield from stray_files(context, view.temporary, view.unknown)


def stray_files(context: PartitionContext, temporary: Sequence[Path], unknown: Sequence[Path]) -> Iterator[Finding]:
    """Half-built files and unknown names."""
    for path in temporary:
        yield context.finding(Code.TEMPORARY_FILE, path, "the file was being built when its process ended")
    for path in unknown:
        yield context.finding(Code.UNKNOWN_FILE, path, "nothing of Waltz has this name")


def special_findings(context: PartitionContext, view: PartitionView) -> Iterator[Finding]:
    """What is no regular file under a name that is opened as one; the check of a segment tells of its own index."""
    checked = {segment.index_path for segment in view.data_segments}
    for path in view.special:
        kind = places.special(path)
        if kind is not None and path not in checked:
            parsed = parse_name(path.name)
            message = f"it is {kind}, not a regular file; a released node does not start with it"
            yield context.finding(Code.SPECIAL_FILE, path, message, segment=None if parsed is None else parsed[0])


def placement_findings(
    context: PartitionContext, view: PartitionView | None, partitions: int | None
) -> Iterator[Finding]:
    """Whether the directory should be here at all.  `partitions`: how many the control file has."""
    if view is None:
        if context.assigned:
            yield context.finding(
                Code.PARTITION_DIRECTORY_MISSING,
                context.path,
                f"partition {context.number} is assigned to this node, but its directory does not exist",
            )
    elif partitions is not None and context.number is not None and context.number >= partitions:
        yield context.finding(
            Code.PARTITION_NOT_ASSIGNED,
            view.path,
            f"the control file has partitions 0 to {partitions - 1}, and none of this number",
        )
    elif context.assigned is False and view.segments:
        yield context.finding(
            Code.PARTITION_NOT_ASSIGNED,
            view.path,
            f"partition {context.number} is not assigned to this node; its {len(view.segments)} segments were kept",
        )
