"""Checks of segments by an executor, perhaps on other machines: the tasks, the answers, and how answers are joined.

A large segment is divided into parts that begin at records which its index proves.  If nothing is wrong in any part, and the
parts join, the segment is sound.  Any other segment is checked again as a whole, by one worker, so that its findings do not
depend on how it was divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from waltzctl.engine.errors import ClusterError, DiskReadError
from waltzctl.engine.findings.indexes import WrongEntries
from waltzctl.engine.inspect.read_limits import CutShort, ReadLimits
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck, check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.split_segments import PART
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.log.parts import Part
from waltzctl.engine.log.view import FileState
from waltzctl.engine.shared_deadline import SharedDeadline
from waltzctl.engine.task_executor import TaskExecutor

SHARES = 4
"""Parts per worker: a segment is divided if it is larger than its share of so many parts for each worker."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Options and limits for a worker: `rate` in bytes per second for each worker."""

    options: VerifyOptions
    deadline: SharedDeadline | None
    rate: int | None

    def limits(self) -> ReadLimits:
        """The limits of one task, from now on."""
        left = None if self.deadline is None else self.deadline.left()
        return ReadLimits(max_duration=left, limit_rate=self.rate, exclusive=self.options.exclusive)


@dataclass(frozen=True, slots=True)
class CheckTask:
    """A segment, or a part of one."""

    job: SegmentJob
    terms: Terms
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class SoundPart:
    """A part whose records are sound: the state of its scan at the end, and the wrong entries of its index (`wrong`)."""

    part: Part
    position: int
    next_id: int
    last_id: int | None
    records: int
    wrong: WrongEntries


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer to a task: `report` for a segment, `sound` for a part.  Neither: the segment must be checked as a whole."""

    bytes: int
    report: SegmentReport | None = None
    sound: SoundPart | None = None


def check(task: CheckTask) -> Checked:
    """Execute one task.  Damage and read errors are in the answer, never exceptions."""
    limits = task.terms.limits()
    if task.part is None:
        report = check_segment(task.job, task.terms.options, limits)
        return Checked(limits.bytes_read, report)
    try:
        with SegmentCheck(task.job, limits) as opened:
            part = task.part
            scan = opened.range_scan(part.start, part.first)
            scan.advance(part.stop)
    except (FilesChangedError, DiskReadError, CutShort):
        return Checked(0)
    comparison = scan.comparison
    if not scan.sound or scan.position != part.stop or comparison is None or comparison.unreadable is not None:
        return Checked(0)
    sound = SoundPart(part, scan.position, scan.next_id, scan.last_id, scan.records, comparison.wrong)
    return Checked(limits.bytes_read, sound=sound)


def check_all(
    jobs: Sequence[SegmentJob],
    options: VerifyOptions,
    limits: ReadLimits,
    executor: TaskExecutor,
    *,
    deadline: SharedDeadline | None,
) -> list[SegmentReport]:
    """The reports about `jobs`, in their order; `limits` counts what was read.  Raises what the executor raises."""
    share = None if options.limit_rate is None else max(1, options.limit_rate // max(1, executor.parallelism))
    terms = Terms(replace(options, resume=None, threads=None), deadline, share)
    tasks: list[CheckTask] = []
    spans: list[range] = []
    part_size = max(PART, sum(job.bytes for job in jobs) // (SHARES * max(1, executor.parallelism)))
    for job in jobs:
        begin = len(tasks)
        parts = _parts(job, part_size, options, limits)
        tasks += [CheckTask(job, terms, part) for part in parts] or [CheckTask(job, terms)]
        spans.append(range(begin, len(tasks)))
    weights = [_weight(task, options) for task in tasks]
    answers = list(executor.map(check, tasks, weights=weights, what="verify"))
    reports: list[SegmentReport | None] = [
        _join(job, [answers[number] for number in span], limits) for job, span in zip(jobs, spans, strict=True)
    ]
    again = [number for number, report in enumerate(reports) if report is None]
    if again:
        redone = [CheckTask(jobs[number], terms) for number in again]
        whole = executor.map(
            check, redone, weights=[jobs[number].bytes for number in again], what="verify whole segments"
        )
        for number, answer in zip(again, whole, strict=True):
            limits.bytes_read += answer.bytes
            reports[number] = answer.report
    done = [report for report in reports if report is not None]
    for report in done:
        _same_files(report)
    return done


def _same_files(report: SegmentReport) -> None:
    """Raise ClusterError if a worker read another file than the one on this machine, or found none.

    A worker on another machine may have another directory under the same path.
    """
    there = report.states[0]
    if not report.gone and (there is None or there.size == report.job.bytes or report.job.last):
        return
    here = FileState.of(report.job.data_path)
    missing = report.gone
    if here is not None and here.size == report.job.bytes:  # it did not change here
        what = (
            "does not see this file" if missing else f"sees another file of this name, of {there and there.size} bytes"
        )
        raise ClusterError(
            f"{report.job.data_path}: a worker {what}; here it has {here.size} bytes",
            advice="put the files where all workers see them under this path (a shared file system, or a URL)",
        )


def _weight(task: CheckTask, options: VerifyOptions) -> int:
    if task.part is not None:
        return task.part.stop - task.part.start
    if options.quick:
        return 1 << 20
    return task.job.bytes if options.sample is None else int(task.job.bytes * options.sample)


def _parts(job: SegmentJob, part_size: int, options: VerifyOptions, limits: ReadLimits) -> list[Part]:
    """The parts of a large segment; empty for one that is checked as a whole.

    Dividing reads the index on this machine, so only segments larger than `part_size` are divided.
    """
    if options.partial or job.bytes <= part_size or job.hash_to is not None:  # a hash needs the bytes in order
        return []
    try:
        with SegmentCheck(job, limits) as opened:
            if opened.short or opened.reader is None:
                return []
            return opened.parts(part_size)
    except (FilesChangedError, DiskReadError):
        return []  # checked as a whole, where the error becomes a finding


def _join(job: SegmentJob, answers: Sequence[Checked], limits: ReadLimits) -> SegmentReport | None:
    """The report about a segment from the answers to its tasks; None when it has to be checked as a whole."""
    first, *_ = answers
    if first.report is not None:
        limits.bytes_read += first.bytes
        return first.report
    sound = [answer.sound for answer in answers if answer.sound is not None]
    joined = all(
        (before.position, before.next_id) == (after.part.start, after.part.first) for before, after in pairwise(sound)
    )
    if len(sound) < len(answers) or not joined:
        return None
    try:
        with SegmentCheck(job, limits) as opened:
            if opened.size != sound[-1].position:
                return None  # it grew meanwhile
            scans = []
            for one in sound:
                scan = opened.range_scan(one.part.start, one.part.first)
                scan.position, scan.next_id, scan.last_id, scan.records = (
                    one.position,
                    one.next_id,
                    one.last_id,
                    one.records,
                )
                if scan.comparison is not None:
                    scan.comparison.wrong = one.wrong
                scans.append((scan, one.part.stop))
            report = opened.finish_parts(scans)
    except (FilesChangedError, DiskReadError):
        return None
    limits.bytes_read += sum(answer.bytes for answer in answers)
    return report
