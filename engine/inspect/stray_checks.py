"""Findings about strays (data files whose names are not those of segments): does a release start with them, what do they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.findings.directory_contents import Stray, stray_finding
from waltzctl.engine.inspect.partition_checks import PartitionContext
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.log.view import StraySegment
from waltzctl.engine.storage.strays import Ids, hidden, judge_stray


def stray_findings(
    context: PartitionContext,
    strays: Sequence[StraySegment],
    template: SegmentJob,
    known: Callable[[], Sequence[SegmentReport]],
    check: Callable[[SegmentJob], SegmentReport],
) -> Iterator[Finding]:
    """A finding for each stray.  Raises CutShort.

    `template`: a job with the values of the partition.  `known`: returns the reports of its segments.  `check`: checks the
    records of a stray, to the same extent as those of the segments.
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
        found = Stray(stray.data.path, stray.data.size, verdict.first, verdict.refusal, unseen, held)
        # a node opens the partition if it is assigned
        yield stray_finding(found, context.where, opened=context.assigned is not False)


def _ids(report: SegmentReport) -> list[Ids]:
    return [] if report.last_id is None else [(report.begins, report.last_id)]
