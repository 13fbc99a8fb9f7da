"""Losses that reading the records does not show: before a partition's first segment, after its last one, and in data files
of which only the index is left.

For commands that read records without checking segments: dump, stats, compare and Spark.  Both ends of a few segments are read
for it, and only if the requested ids may be among the missing ones.  Gaps between segments are found by the reading itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from waltzctl.engine.findings import Finding, Severity, loss_finding
from waltzctl.engine.inspect.partition_checks import PartitionContext, held_ids
from waltzctl.engine.inspect.partition_runs import ATTEMPTS, PartitionRun
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.segment_order import Span
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log.assess import joints
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.log.view import names_fingerprint
from waltzctl.engine.losses import BelowMark, BelowProof, Gap, Ids


def nothing_in_front(job: SegmentJob, span: Span, limits: ReadLimits) -> bool:
    """Whether both ends of the first segment prove that `losses_in_front` would yield nothing.  Raises CutShort."""
    if not _meets(span, (0, max(1, job.first))):
        return False  # the segment is not opened for ids that are not requested
    report = check_segment(job, ENDS_ONLY, limits)
    return not report.gone and _gap_in_front([report]) is None


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """The end of a partition at the time of a listing; `fingerprint` is that of its names (`names_fingerprint`).

    `lowest`: the lowest id that the last segment may hold.

    Only of partitions without accepted losses and without indexes that lack their data file, so that nothing but the end of the
    last segment can be missing.
    """

    last: SegmentJob
    lowest: int
    proven: Evidence
    fingerprint: bytes


def known_end(run: PartitionRun) -> KnownEnd | None:
    """The end of a partition, if `losses_behind` needs its last segment only; else None."""
    view, ordered = run.view, run.order.in_order()
    if view is None or not run.whole or not ordered or run.context.accepted:
        return None
    if any(one.data is None for one in view.segments):
        return None
    return KnownEnd(ordered[-1], run.order.lowest(ordered[-1]), run.proven(), view.fingerprint)


def nothing_behind(known: KnownEnd, context: PartitionContext, span: Span, limits: ReadLimits) -> bool:
    """Whether `losses_behind` would yield nothing: the names are unchanged, and the last segment reaches what they prove.

    Raises CutShort, DiskReadError; NotWaltzError if the directory was removed.
    """
    if names_fingerprint(context.path) != known.fingerprint:
        return False
    if not _meets(span, (known.lowest, None)):
        return True
    report = check_segment(known.last, ENDS_ONLY, limits)
    return not report.gone and not any(PartitionRun.ends([report], context, known.proven))


def losses_in_front(run: PartitionRun, span: Span) -> Iterator[Finding]:
    """The finding about ids missing before the first segment, if any of them is in `span`.  Raises CutShort."""
    for _ in range(ATTEMPTS):
        if not run.jobs or not run.whole:
            return
        view, (first, *behind) = run.view, run.jobs
        assert view is not None  # as there are jobs
        if not _meets(span, (0, max(1, first.first))):
            return
        report = run.by_ends(first)
        if _gap_in_front([report]) is None:
            return
        # a later segment may begin with a smaller id than that in its name
        found = _gap_in_front([report, *map(run.by_ends, behind)])
        if found is None or not _meets(span, (found.first, found.stop)):
            return
        if run.unchanged(view, [report]):
            yield loss_finding(found, run.context.where)
            return
        if not run.look_again():
            return


def losses_behind(run: PartitionRun, span: Span) -> Iterator[Finding]:
    """Findings about ids missing after the last segment, ids of indexes without a data file, and accepted losses, if in `span`.

    Raises CutShort.
    """
    yield from run.moved()
    view = run.view
    if run.beyond or view is None:
        return
    missing: tuple[BelowMark | BelowProof, ...] = ()
    if run.whole:
        missing = tuple(one for one in _at_the_end(run, span) if _meets(span, *one.ids))
        yield from run.moved()  # of a directory that went meanwhile nothing is missing
        yield from (loss_finding(one, run.context.where) for one in missing)
    ranges = run.listed_alone()
    listed = dict(ranges)
    if _meets(span, *ranges):
        reports = _able(run, ranges)
        for finding in run.orphans(held_ids(reports), run.ids_counted_with(reports, missing)):
            first = finding.segment or 0
            if finding.severity is Severity.DAMAGE and _meets(span, (first, listed.get(first, first))):
                yield finding
    given_up = [(loss.first, loss.last + 1) for loss in run.context.accepted]
    if run.whole and _meets(span, *given_up):
        reports = _able(run, given_up)
        counted = run.ids_counted_with(reports, missing)
        for finding in run.losses(held_ids(reports), [*counted, *ranges]):
            first = finding.transaction_id or 0
            if _meets(span, *(one for one in given_up if one[0] <= first < one[1])):
                yield finding


def _at_the_end(run: PartitionRun, span: Span) -> tuple[BelowMark | BelowProof, ...]:
    """What is missing at the end of the log; nothing is read if `span` ends before the last segment."""
    for attempt in range(ATTEMPTS + 1):
        view, ordered = run.view, run.order.in_order()
        last = ordered[-1] if ordered else None
        assert view is not None
        if last is not None and not _meets(span, (run.order.lowest(last), None)):
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
        # only now the other segments are read: as a rule none of them reaches further than the last one
        reports = sorted((run.by_ends(job) for job in ordered), key=lambda one: one.begins)
    return tuple(run.ends(reports, context, proven))


def _able(run: PartitionRun, ranges: Sequence[Ids]) -> list[SegmentReport]:
    """The reports of those segments that may hold ids of `ranges`."""
    return [run.by_ends(job) for job in run.order.able_to_hold(ranges)]


def _gap_in_front(reports: Sequence[SegmentReport]) -> Gap | None:
    """The gap before the first of some segments; None if the log begins with id 0."""
    stretches = sorted((one.stretch for one in reports), key=lambda one: one.begins)
    return next((one for one in joints(stretches[:1], 0) if isinstance(one, Gap)), None)


def _meets(span: Span, *ranges: tuple[int, int | None]) -> bool:
    """Whether a half-open range of `ranges` (its stop None: without end) has ids in a span."""
    low, high = span
    return any(
        (high is None or first <= high) and (low is None or stop is None or stop > low) for first, stop in ranges
    )
