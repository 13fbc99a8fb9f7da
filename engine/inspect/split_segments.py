"""The check of a large segment by several threads: each scans a part that begins at a record that the index proves."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.inspect.read_limits import CutShort, ReadLimits
from waltzctl.engine.inspect.record_checks import RangeScan
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck, check_segment, unreadable
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.verification import VerifyOptions

PART = 64 << 20
"""Bytes that one thread reads at a time."""


class SplitSegment:
    """The check of one segment in parts.  The scans are started by the constructor; `result` joins them."""

    def __init__(self, job: SegmentJob, options: VerifyOptions, limits: ReadLimits, pool: ThreadPoolExecutor) -> None:
        self._job = job
        self._options = options
        self._limits = limits
        self._check: SegmentCheck | None = None
        self._parts: list[tuple[RangeScan, int, Future[bool]]] = []
        try:
            check = SegmentCheck(job, limits).__enter__()
        except (FilesChangedError, DiskReadError):
            return  # `result` checks it as a whole, where the error becomes a finding
        self._check = check
        try:
            parts = [] if check.short else check.parts(PART)
        except DiskReadError:
            parts = []  # the index cannot be read: checked as a whole, where the error becomes a finding
        scans = [(check.range_scan(part.start, part.first), part.stop) for part in parts]
        self._parts = [(scan, stop, pool.submit(_advance, scan, stop)) for scan, stop in scans]

    def result(self) -> SegmentReport:
        """The report, once every part is read."""
        if self._check is None:
            return check_segment(self._job, self._options, self._limits)
        try:
            read = [(scan, stop) for scan, stop, done in self._parts if done.result()]
            if len(read) < len(self._parts):
                return self._check.cut_short([scan for scan, _, _ in self._parts])
            return self._check.finish_parts(read) if read else self._check.run(self._options)
        except FilesChangedError:
            return check_segment(self._job, self._options, self._limits)
        except DiskReadError as error:
            return unreadable(self._job, error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the files; a second call does nothing.  No scan may be running."""
        if self._check is not None:
            self._check.__exit__(None, None, None)


def _advance(scan: RangeScan, stop: int) -> bool:
    try:
        scan.advance(stop)
    except CutShort:
        return False
    return True
