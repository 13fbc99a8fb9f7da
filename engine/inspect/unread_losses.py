"""Losses where there is nothing to read: in front of a partition's first segment, behind its last, of indexes without data.

For whoever reads records and checks no segments: dump, stats, compare and Spark.  They are found by both ends of a few segments,
and only where ids are wanted that may be among them; what is missing between two segments, whoever reads both can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from waltzctl.engine.findings import Finding, Severity, loss_finding
from waltzctl.engine.inspect.partition_checks import PartitionContext, held_ids
from waltzctl.engine.inspect.partition_runs import ATTEMPTS, PartitionRun, Span
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log.assess import joints
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.log.view import names_fingerprint
from waltzctl.engine.losses import BelowMark, BelowProof, Gap, Ids
from waltzctl.formats.segment import RECORD_OVERHEAD


def nothing_in_front(job: SegmentJob, span: Span, limits: ReadLimits) -> bool:
    """Whether the first segment tells by its own two ends that `losses_in_front` has nothing to tell.  Raises CutShort."""
    if not _meets(span, (0, max(1, job.first))):
        return False  # it is not opened for ids that are not asked for
    report = check_segment(job, ENDS_ONLY, limits)
    return not report.gone and _gap_in_front([report]) is None


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """A partition's end as a listing showed it; `fingerprint`: of the names that were there.

    Of partitions that could only have lost something there: no index lacks its data, and nothing was given up.
    """

    last: SegmentJob
    proven: Evidence
    fingerprint: bytes


def known_end(run: PartitionRun) -> KnownEnd | None:
    """The end of a partition, where `losses_behind` needs its last segment only."""
    view, ordered = run.view, run.in_order()
    if view is None or not run.whole or not ordered or run.context.accepted:
        return None
    if any(one.data is None for one in view.segments):
        return None
    return KnownEnd(ordered[-1], run.proven(), view.fingerprint)


def nothing_behind(known: KnownEnd, context: PartitionContext, span: Span, limits: ReadLimits) -> bool:
    """Whether `losses_behind` has nothing to tell: the same names are there, and the last segment reaches what they prove.

    Raises CutShort, NotWaltzError where there is no directory any more, DiskReadError.
    """
    if names_fingerprint(context.path) != known.fingerprint:
        return False
    if not _meets(span, (known.last.first, None)):
        return True
    report = check_segment(known.last, ENDS_ONLY, limits)
    return not report.gone and not any(PartitionRun.ends([report], context, known.proven))


def losses_in_front(run: PartitionRun, span: Span) -> Iterator[Finding]:
    """Ids in front of the first segment, if any of `span` are missing there.  Raises CutShort."""
    for _ in range(ATTEMPTS):
        if not run.jobs or not run.whole:
            return
        view, (first, *behind) = run.view, run.jobs
        assert view is not None  # which has them
        if not _meets(span, (0, max(1, first.first))):
            return
        report = run.by_ends(first)
        if _gap_in_front([report]) is None:
            return
        # a segment behind it may begin earlier than its name says
        found = _gap_in_front([report, *map(run.by_ends, behind)])
        if found is None or not _meets(span, (found.first, found.stop)):
            return
        if run.unchanged(view, [report]):
            yield loss_finding(found, run.context.where)
            return
        if not run.look_again():
            return


def losses_behind(run: PartitionRun, span: Span) -> Iterator[Finding]:
    """Ids behind the last segment, those of data files of which only the index is left, and those that were given up.

    By both ends of a few segments; what is missing between two segments is for whoever reads both.  Raises CutShort.
    """
    view = run.view
    if run.beyond or view is None:
        return
    missing: tuple[BelowMark | BelowProof, ...] = ()
    if run.whole:
        missing = tuple(one for one in _at_the_end(run, span) if _meets(span, *one.ids))
        yield from (loss_finding(one, run.context.where) for one in missing)
    told, ranges = run.told(missing), run.listed_alone()
    listed = dict(ranges)
    if _meets(span, *ranges):
        for finding in run.orphans(_held(run, ranges), told):
            first = finding.segment or 0
            if finding.severity is Severity.DAMAGE and _meets(span, (first, listed.get(first, first))):
                yield finding
    given_up = [(loss.first, loss.last + 1) for loss in run.context.accepted]
    if run.whole and _meets(span, *given_up):
        for finding in run.losses(_held(run, given_up), [*told, *ranges]):
            first = finding.transaction_id or 0
            if _meets(span, *(one for one in given_up if one[0] <= first < one[1])):
                yield finding


def _at_the_end(run: PartitionRun, span: Span) -> tuple[BelowMark | BelowProof, ...]:
    """What is missing behind the last segment; only looked for where ids behind its first one are wanted."""
    for attempt in range(ATTEMPTS + 1):
        view, ordered = run.view, run.in_order()
        last = ordered[-1] if ordered else None
        assert view is not None
        if last is not None and not _meets(span, (last.first, None)):
            return ()
        reports = [] if last is None else [run.by_ends(last)]
        gone = any(one.gone for one in reports)
        if not gone and not tuple(run.ends(reports, run.context, run.proven())):
            return ()
        if run.unchanged(view, reports):
            break
        if attempt == ATTEMPTS or not run.look_again():
            return ()
    context, proven = run.promised()
    if tuple(run.ends(reports, context, proven)):
        # a segment in front of the last one is looked at only now: as a rule none reaches further
        reports = [run.by_ends(job) for job in ordered]
    return tuple(run.ends(reports, context, proven))


def _held(run: PartitionRun, ranges: Sequence[Ids]) -> list[Ids]:
    """The ids of segments that may hold some of `ranges`."""
    stops: list[int | None] = [*(job.first for job in run.jobs[1:]), None][: len(run.jobs)]
    able = []
    for job, stop in zip(run.jobs, stops, strict=True):
        most = job.first + job.bytes // RECORD_OVERHEAD
        reach = most if stop is None else max(stop, most)
        if any(job.first < high and low < reach for low, high in ranges):
            able.append(job)
    return held_ids([run.by_ends(job) for job in able])


def _gap_in_front(reports: Sequence[SegmentReport]) -> Gap | None:
    """What is missing in front of the earliest of some segments."""
    stretches = sorted((one.stretch for one in reports), key=lambda one: one.begins)
    return next((one for one in joints(stretches[:1], 0) if isinstance(one, Gap)), None)


def _meets(span: Span, *ranges: tuple[int, int | None]) -> bool:
    """Whether ids of one of `ranges` (the first, and the one behind the last; None: without end) are in a span."""
    low, high = span
    return any(
        (high is None or first <= high) and (low is None or stop is None or stop > low) for first, stop in ranges
    )
