"""verify: read everything, change nothing, report every damage once.

Order of a verification:

1. the paths are resolved to storage directories, partitions and files (`targets`);
2. the control file is checked;
3. the segments are checked one by one, a few ahead of the reporting in threads;
4. each partition is checked as a whole.

Findings come in the order of paths, partitions and segments, whatever the number of threads.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from waltzctl.engine.errors import InvalidRequestError, WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import partition_runs, storage_checks
from waltzctl.engine.inspect.distributed_checks import check_all
from waltzctl.engine.inspect.partition_runs import PartitionRun
from waltzctl.engine.inspect.read_limits import CutShort, ReadLimits
from waltzctl.engine.inspect.resume import ResumeState, refuse_inside
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.split_segments import PART, SplitSegment
from waltzctl.engine.inspect.targets import Scope, ScopeSurroundings, look_around, plan
from waltzctl.engine.inspect.verification import Tally, VerifyOptions, VerifySummary
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.scan import kernels
from waltzctl.engine.shared_deadline import SharedDeadline
from waltzctl.engine.task_executor import TaskExecutor

if TYPE_CHECKING:
    from waltzctl.engine.inspect.vouching import Vouching

__all__ = ["VerifyOptions", "VerifySummary", "verify"]

_WORTH_THREADS = 8 << 20
"""Bytes below which threads are not worth their start."""
_AHEAD = 3
"""Segments per thread, at most, that are being checked, or checked and waiting for their turn to be reported."""


def verify(
    paths: Iterable[PurePath],
    options: VerifyOptions | None = None,
    progress: Progress = SILENT,
    executor: TaskExecutor | None = None,
) -> Iterator[Finding | VerifySummary]:
    """Findings of everything that `paths` name, in order, and a summary as the last item.

    A path is a storage directory, a partition directory, or a control, data or index file; each is inspected once.  Only the
    state file of `options.resume` and the manifest of `options.manifest` are written; nothing is locked, and a node may be
    writing to the directory.  A KeyboardInterrupt ends the verification with an incomplete summary.  With an `executor` its
    workers check the segments, and findings come when all of them are done; otherwise threads of this process check them.

    Raises NotWaltzError, InvalidRequestError, RefusedError and DiskReadError for paths and options, before the first finding;
    after the summary RefusedError, DiskReadError or DiskWriteError when the manifest could not be written.
    """
    options = options or VerifyOptions()
    options.check()
    scopes = plan(paths, options.partitions)
    if options.for_released and not all(scope.whole for scope in scopes):
        raise InvalidRequestError("a node opens a whole storage directory: name one, not a part of it")
    state = None
    if options.resume is not None:
        inspected = [scope.storage for scope in scopes if scope.storage is not None]
        refuse_inside(options.resume, inspected + [part.path for scope in scopes for part in scope.partitions.values()])
        state = ResumeState(options.resume, options)
    options = options.seeded() if state is None else state.options
    vouching = None
    if options.manifest is not None:
        from waltzctl.engine.inspect.vouching import Vouching

        vouching = Vouching(options.manifest, scopes)
    return _Verification(scopes, options, state, progress, executor, vouching).run()


@dataclass(slots=True)
class _SegmentStep:
    """Report a segment; `result` returns its report, after waiting for a thread that is still checking it."""

    run: PartitionRun
    result: Callable[[], SegmentReport]


@dataclass(slots=True)
class _PartitionEnd:
    """Check a partition as a whole: all of its segments have been reported."""

    run: PartitionRun


@dataclass(slots=True)
class _Ready:
    """Report findings that are known already."""

    findings: tuple[Finding, ...]


_Step = _SegmentStep | _PartitionEnd | _Ready


class _Verification:
    """One run of verify."""

    def __init__(
        self,
        scopes: list[Scope],
        options: VerifyOptions,
        state: ResumeState | None,
        progress: Progress,
        executor: TaskExecutor | None,
        vouching: Vouching | None,
    ) -> None:
        self._scopes = scopes
        self._vouching = vouching
        self._failure: WaltzError | None = None
        self._options = options
        self._state = state
        self._progress = progress
        self._executor = executor
        self._jobs: list[SegmentJob] = []  # for the executor
        self._reports: list[SegmentReport] = []
        self._opened = contextlib.ExitStack()
        self._tally = Tally()
        self._partitions = self._segments = self._records = 0
        self._cut = False
        self._done = False
        self._released: bool | None = None
        self._total = self._expected_bytes()
        self._limits = ReadLimits(
            max_duration=options.max_duration,
            limit_rate=options.limit_rate if executor is None else None,
            progress=progress if executor is None else SILENT,
            exclusive=options.exclusive,
        )
        threads = options.threads or os.cpu_count() or 1
        self._threads = threads if self._total >= _WORTH_THREADS and executor is None else 1

    def _expected_bytes(self) -> int:
        """About how many bytes will be read, for progress and for the choice of kernel and threads."""
        if self._options.quick:
            return sum(scope.index_bytes() for scope in self._scopes)
        data = sum(scope.data_bytes() for scope in self._scopes)
        if self._vouching is not None:
            data += self._vouching.other_bytes()
        return data if self._options.sample is None else int(data * self._options.sample)

    def run(self) -> Iterator[Finding | VerifySummary]:
        """Findings, and the summary."""
        self._progress.start("verify", self._total)
        if self._executor is None:
            kernels.choose(self._total)  # by the total: many small segments justify compiled code as one large one does
        interrupted = False
        pool = ThreadPoolExecutor(self._threads, "verify") if self._threads > 1 else None
        try:
            for finding in self._findings(pool):
                self._tally.add(finding)
                yield finding
            self._done = not self._cut
            self._write_manifest()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._limits.stop()
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
            self._opened.close()
            if self._state is not None:
                self._state.save(complete=self._done)
        yield self._summary(interrupted)
        if self._failure is not None:
            raise self._failure

    def _summary(self, interrupted: bool) -> VerifySummary:
        tally = self._tally
        return VerifySummary(
            status=tally.status,
            exit_status_name="interrupted" if interrupted else tally.exit_status_name,
            partitions=self._partitions,
            segments=self._segments,
            records=self._records,
            bytes=self._limits.bytes_read,
            damage=tally.damage,
            repairable=tally.repairable,
            notes=tally.notes,
            elapsed_seconds=self._limits.elapsed,
            complete=self._done and not self._options.partial,
            manifest=None if self._vouching is None else self._vouching.outcome,
            released_starts=self._released if self._done else None,
        )

    def _write_manifest(self) -> None:
        """Write the requested manifest, if everything was read and nothing is wrong."""
        if self._vouching is None or not self._vouching.writing:
            return
        if self._done and self._tally.status == "clean":
            try:
                self._vouching.write(self._limits)
            except CutShort:
                self._done = False
            except WaltzError as error:
                self._failure = error

    def _findings(self, pool: ThreadPoolExecutor | None) -> Iterator[Finding]:
        """The findings of the verification, then the differences from the manifest."""
        yield from self._own_findings(pool)
        if self._vouching is not None and not self._cut:
            try:
                yield from self._vouching.findings(self._limits)
            except CutShort:
                self._cut = True

    def _own_findings(self, pool: ThreadPoolExecutor | None) -> Iterator[Finding]:
        """Take the steps in order; the checks of segments are started a few steps ahead."""
        if self._executor is not None:
            steps = list(self._steps(None))
            left = self._options.max_duration
            deadline = None if left is None else SharedDeadline.after(left - self._limits.elapsed)
            self._reports = check_all(self._jobs, self._options, self._limits, self._executor, deadline=deadline)
            for step in steps:
                yield from self._finish(step)
            return
        waiting: deque[_Step] = deque()
        segments = 0
        for step in self._steps(pool):
            waiting.append(step)
            segments += isinstance(step, _SegmentStep)
            while waiting and (pool is None or segments > _AHEAD * self._threads):
                step = waiting.popleft()
                segments -= isinstance(step, _SegmentStep)
                yield from self._finish(step)
        while waiting:
            yield from self._finish(waiting.popleft())

    def _finish(self, step: _Step) -> Iterator[Finding]:
        if isinstance(step, _Ready):
            yield from step.findings
        elif isinstance(step, _PartitionEnd):
            try:
                yield from step.run.finish(self._check_again)
            except CutShort:
                self._cut = True
        else:
            report = step.result()
            self._segments += not report.gone
            self._records += report.records
            self._cut = self._cut or not report.finished
            if self._state is not None:
                self._state.remember(report)
            if self._vouching is not None:
                self._vouching.remember(report)
            yield from step.run.add(report)

    def _check_again(self, job: SegmentJob) -> SegmentReport:
        return check_segment(job, self._options, self._limits)

    def _steps(self, pool: ThreadPoolExecutor | None) -> Iterator[_Step]:
        for scope in self._scopes:
            around = look_around(scope, self._options.partitions, exclusive=self._options.exclusive)
            yield _Ready(tuple(storage_checks.findings_in_front(scope, around, self._limits)))
            for run in partition_runs.runs(scope, around, self._limits, self._options.partitions):
                if self._limits.exceeded:
                    self._cut = True
                    return
                self._partitions += run.present
                yield _Ready(tuple(run.begin()))
                for job in run.jobs:
                    if self._limits.exceeded:
                        self._cut = True
                        return
                    yield _SegmentStep(run, self._start(job, pool))
                yield _PartitionEnd(run)
            if self._options.for_released:
                yield _Ready(self._for_released(scope, around))

    def _for_released(self, scope: Scope, around: ScopeSurroundings) -> tuple[Finding, ...]:
        from waltzctl.engine.inspect.released_start import released_start

        assert scope.storage is not None
        found = released_start(scope.storage, around.control)
        self._released = found.starts and self._released is not False
        return found.findings

    def _start(self, job: SegmentJob, pool: ThreadPoolExecutor | None) -> Callable[[], SegmentReport]:
        """Start the check of a segment; the returned function gives its report."""
        if self._vouching is not None:
            job = replace(job, hash_to=self._vouching.hash_to(job))
        known = None if self._state is None else self._state.recall(job)
        if known is not None:
            self._progress.advance(job.bytes)
            return lambda: known
        if self._executor is not None:
            number = len(self._jobs)
            self._jobs.append(job)
            return lambda: self._reports[number]
        if pool is None:
            return lambda: check_segment(job, self._options, self._limits)
        if job.bytes > PART and not self._options.partial and job.hash_to is None:
            split = SplitSegment(job, self._options, self._limits, pool)
            self._opened.callback(split.close)
            return split.result
        return pool.submit(check_segment, job, self._options, self._limits).result
