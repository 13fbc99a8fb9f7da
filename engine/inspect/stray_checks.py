"""Data files under names that no node gives, as findings: whether a release starts with them, and what they hide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.partition_checks import PartitionContext
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.storage.strays import Ids, StrayVerdict, hidden, judge_stray, spelled
from waltzctl.engine.storage.view import StraySegment


def stray_findings(
    context: PartitionContext,
    strays: Sequence[StraySegment],
    template: SegmentJob,
    known: Callable[[], Sequence[SegmentReport]],
    check: Callable[[SegmentJob], SegmentReport],
) -> Iterator[Finding]:
    """A finding for each stray.  `template` says what is known of the partition, `known` gives the reports of its segments.

    `check` looks into a stray's records as the segments were looked into.  Raises CutShort.
    """
    for stray in strays:
        try:
            verdict = judge_stray(stray, template.cluster_key, template.partition)
        except DiskReadError as error:
            yield context.finding(Code.READ_ERROR, stray.data.path, str(error))
            continue
        unseen: tuple[Ids, ...] = ()
        held = False
        if verdict.first is not None:
            job = replace(
                template, first=verdict.first, last=True, bytes=stray.data.size, name=stray.data.path.name, storage=None
            )
            ids = _ids(check(job))
            held = bool(ids)
            unseen = hidden(ids, [one for report in known() for one in _ids(report)])
        yield _finding(context, verdict, unseen, held=held)


def _ids(report: SegmentReport) -> list[Ids]:
    last = report.last_id
    return [] if report.gone or last is None or last < report.begins else [(report.begins, last)]


def _finding(context: PartitionContext, verdict: StrayVerdict, unseen: Sequence[Ids], *, held: bool) -> Finding:
    opened = context.assigned is not False  # a release opens what is assigned
    said = []
    if unseen:
        said.append(f"{spelled(unseen)} stand only here, where nobody who goes by the names of segments sees them")
    elif held:
        said.append("what it holds stands under the right names too")
    if opened and verdict.refusal is not None:
        said.append(f"release 0.13.2 does not start with it: {verdict.refusal}")
    elif opened:
        said.append("release 0.13.2 takes it for a segment")
    elif verdict.refusal is not None:
        said.append(verdict.refusal)
    severity = Severity.DAMAGE
    if not unseen and (verdict.refusal is None or not opened):
        severity = Severity.REPAIRABLE if opened else Severity.NOTE
    found = context.finding(
        Code.SEGMENT_STRAY,
        verdict.stray.data.path,
        f"no segment has this name; {'; '.join(said)}",
        severity=severity,
        segment=verdict.first,
        transaction_id=unseen[0][0] if unseen else None,
        length=verdict.stray.data.size,
    )
    return found if verdict.first is not None else replace(found, remedy=None)  # nothing could prove what it is
