"""A partition as a whole: do its segments join, is everything there that was promised, and what else lies in its directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.inspect.segment_job import SegmentReport
from waltzctl.engine.storage import places
from waltzctl.engine.storage.accepted_losses import Range, still_lost, without
from waltzctl.engine.storage.evidence import Evidence
from waltzctl.engine.storage.view import PartitionView, SegmentView
from waltzctl.formats.accepted_losses import AcceptedLoss
from waltzctl.formats.segment import parse_name


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What is known of a partition beside its files.

    `assigned`, `local_low_water_mark` and `session_id` are None where nothing tells.  `accepted`: losses that somebody agreed to.
    """

    storage: Path | None
    number: int | None
    path: Path
    local_low_water_mark: int | None = None
    assigned: bool | None = None
    session_id: int | None = None
    accepted: tuple[AcceptedLoss, ...] = ()

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


def join_findings(context: PartitionContext, reports: Sequence[SegmentReport], proven: Evidence) -> Iterator[Finding]:
    """Gaps and overlaps between neighbouring segments, indexes that are too long, and transactions that miss at the end.

    `reports`: of every segment that has a data file.  `proven`: what the partition's files prove.
    """
    ordered = sorted(reports, key=lambda report: report.begins)
    yield from end_findings(context, ordered, proven, neighbour_findings(context, ordered, 0))


def end_findings(
    context: PartitionContext, ordered: Sequence[SegmentReport], proven: Evidence, joints: Iterable[Finding]
) -> Iterator[Finding]:
    """The findings about joints, then those about the end.

    The index of the last segment that proves a loss is not named among the joints: it is no stale one that may be cut.
    """
    lost = tuple(lost_end_findings(context, ordered, proven))
    last = ordered[-1] if ordered else None
    proves = {one.path for one in lost if one.code is Code.DURABLE_MISSING}
    excess = last.index_excess if last is not None and last.job.index_path in proves else None
    yield from (one for one in joints if one is not excess)
    yield from lost


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


def lost_end_findings(
    context: PartitionContext, ordered: Sequence[SegmentReport], proven: Evidence
) -> Iterator[Finding]:
    """Whether the partition reaches its local low-water mark, and what its files prove to have been durable behind that.

    The last of `ordered` is the partition's last segment.  What an index without a data file proves is a finding of its own.
    """
    mark = context.local_low_water_mark
    if any(report.gone or report.uncertain or not report.finished for report in ordered[-1:]):
        return
    last = max((report.accounted for report in ordered), default=-1)
    if mark is not None and last < mark:
        path = ordered[-1].job.data_path if ordered else context.path
        ends = f"the last transaction is {last}" if last >= 0 else "there is no transaction"
        yield context.finding(
            Code.ACKNOWLEDGED_MISSING,
            path,
            f"{ends}, but the local low-water mark is {mark}: transactions {last + 1} to {mark} were durable here once",
            segment=ordered[-1].job.first if ordered else None,
            transaction_id=last + 1,
        )
    following = max(last, -1 if mark is None else mark) + 1
    own = ordered[-1] if ordered and ordered[-1].job.first == proven.index_with_data else None
    by_index = 0 if own is None or own.index_excess is None else proven.with_data  # unless it is being written
    if max(proven.names, by_index) > following:
        stop = max(proven.names, by_index)
        why = (
            f"the index has entries behind {stop - 1}, which are only written once everything up to there is durable"
            if by_index == stop
            else f"a file of the partition is called after transaction {stop}"
        )
        yield context.finding(
            Code.DURABLE_MISSING,
            own.job.index_path if own is not None and by_index == stop else context.path,
            f"{_many(following, stop)} missing at the end, and {_many(following, stop, 'was', 'were')} durable here once: {why}",
            segment=ordered[-1].job.first if ordered else None,
            transaction_id=following,
        )


def _many(first: int, stop: int, one: str = "is", many: str = "are") -> str:
    return f"transaction {first} {one}" if stop - first == 1 else f"transactions {first} to {stop - 1} {many}"


def held_ids(reports: Iterable[SegmentReport]) -> list[Range]:
    """The ids from the first to the last record of each segment; what is damaged between them is a finding of its own."""
    return [(report.begins, report.last_id + 1) for report in reports if report.last_id is not None]


def loss_findings(context: PartitionContext, held: Sequence[Range]) -> Iterator[Finding]:
    """Accepted losses that are not over; `held` are the ids that are here."""
    for loss in context.accepted:
        rest = still_lost(loss, held, context.local_low_water_mark)
        if not rest:
            continue
        whole = rest == [(loss.first, loss.last + 1)]
        given = _many(loss.first, loss.last + 1, "was", "were")
        parts = ", ".join(str(first) if stop - first == 1 else f"{first} to {stop - 1}" for first, stop in rest)
        missing = "still missing" if whole else f"{parts} still missing, the others are here again"
        if loss.disputed:
            missing = "other records bore these ids, too, and only an intact replica tells which are right"
        yield context.finding(
            Code.LOSS_ACCEPTED,
            context.path,
            f"{given} given up on {loss.time} ({loss.reason}); {missing}",
            transaction_id=rest[0][0],
        )


def orphan_finding(
    context: PartitionContext, segment: SegmentView, held: Sequence[Range], alike: Callable[[], bool]
) -> Finding:
    """An index file without a data file; `held` are the ids in other segments, `alike` tells whether as the index lists them."""
    assert segment.index is not None
    first, entries = segment.first_transaction_id, segment.entries
    lost = without((first, first + entries), held)
    if not entries:
        said = "it has no entries"
    elif not lost and alike():
        said = f"it has {entries} entries, and other segments hold these transactions"
    elif not lost:
        lost = [(first, first + entries)]
        said = f"it has {entries} entries, and what other segments hold under these ids is not what it lists"
    else:
        said = f"it has {entries} entries: {_many(lost[0][0], lost[-1][1], 'was', 'were')} in it and nowhere else"
    return context.finding(
        Code.INDEX_ORPHAN,
        segment.index.path,
        f"the index has no data file; {said}",
        severity=Severity.DAMAGE if lost else Severity.REPAIRABLE,
        segment=first,
        transaction_id=lost[0][0] if lost else first,
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
                f"partition {context.number} belongs to this node, but its directory does not exist{_known(context)}",
            )
    elif partitions is not None and context.number is not None and context.number >= partitions:
        yield context.finding(
            Code.PARTITION_NOT_ASSIGNED,
            view.path,
            f"the control file has partitions 0 to {partitions - 1}, and none of this number",
        )
    elif context.assigned and not view.segments and context.local_low_water_mark in (None, -1):
        session = context.session_id
        began = session is not None and session >= 0
        why = f", though session {session} began in it" if began else ": it never held anything"
        yield context.finding(
            Code.PARTITION_EMPTY,
            view.path,
            f"there is no segment{why}",
            severity=Severity.DAMAGE if began else Severity.NOTE,
        )
    elif context.assigned is False and view.segments:
        yield context.finding(
            Code.PARTITION_NOT_ASSIGNED,
            view.path,
            f"partition {context.number} is not assigned to this node; its {len(view.segments)} segments were kept",
        )


def _known(context: PartitionContext) -> str:
    mark, session = context.local_low_water_mark, context.session_id
    if mark is not None and mark >= 0:
        return f"; transactions up to {mark} were durable in it"
    return f"; session {session} began in it" if session is not None and session >= 0 else ""
