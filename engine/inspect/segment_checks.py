"""The check of one segment: both headers, every record and every index entry; also while a node is writing to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.findings.directory_contents import special_index
from waltzctl.engine.findings.headers import index_header_short, index_missing, strange_finding
from waltzctl.engine.inspect.digests import HashingSource
from waltzctl.engine.inspect.live import Watch, has_later_segment, states
from waltzctl.engine.inspect.partial import PartialScan
from waltzctl.engine.inspect.read_limits import CutShort, ReadLimits
from waltzctl.engine.inspect.record_checks import RangeScan, record_findings, tail_finding
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.log import places
from waltzctl.engine.log.assess import held_by
from waltzctl.engine.log.header_judgement import judge_headers
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.parts import Part, cut_segment
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import FileState, SegmentView, read_header_of, read_segment_header
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import Damage, RecordBatch
from waltzctl.engine.scan.known_records import KnownRecords
from waltzctl.engine.scan.scanner import scan_records
from waltzctl.engine.storage.belonging import stranger
from waltzctl.formats.segment import HEADER_SIZE

_ATTEMPTS = 4


class FilesChangedError(Exception):
    """The segment was truncated, rewritten or removed while it was read: it has to be opened again."""


def check_segment(job: SegmentJob, options: VerifyOptions, limits: ReadLimits) -> SegmentReport:
    """Check a segment from beginning to end.  The report has `finished` False when the time limit ended the check.

    A read error is a finding, never an exception.
    """
    for _ in range(_ATTEMPTS):
        try:
            with SegmentCheck(job, limits) as check:
                return check.with_digest(check.run(options))
        except FilesChangedError:
            continue
        except DiskReadError as error:
            return unreadable(job, error)
    return SegmentReport(job, job.first, gone=True, uncertain=True)  # it changed at every attempt


def begins_with(job: SegmentJob, *, own: bool = False) -> int:
    """The id of a segment's first record: that in the header if the first record confirms it, else that in the file name.

    `own`: a header of another partition is ignored.
    """
    try:
        header = read_segment_header(FileState.of(job.data_path))
        if header is None or header.first_transaction_id == job.first:
            return job.first
        if own and job.partition is not None and header.partition != job.partition:
            return job.first
        with SegmentCheck(job, ReadLimits()) as check:
            return check.begins
    except (DiskReadError, FilesChangedError):
        return job.first


def unreadable(job: SegmentJob, error: DiskReadError) -> SegmentReport:
    """The report about a segment that could not be read at all."""
    index = str(error.path) == str(job.index_path)
    finding = job.files.finding(Code.READ_ERROR, str(error), index=index, offset=error.offset)
    return SegmentReport(job, job.first, uncertain=True, findings=(finding,))


@dataclass(frozen=True, slots=True)
class _Assessment:
    """The result of a scan.

    `passing`: findings that are transient if a node is writing to the segment: a torn tail, a short index, an index that is not
    there yet.  `findings`: all others, which no writer causes.  `index_excess`: as in `SegmentReport`, and transient as well.
    """

    findings: tuple[Finding, ...]
    passing: tuple[Finding, ...]
    index_excess: Finding | None
    report: SegmentReport


class SegmentCheck:
    """One check of one segment: a context manager that holds both files open.  Entering raises FilesChangedError, DiskReadError.

    ============== =========================================================================================
    `data_state`   the data file, and `index_state` the index file, when they were opened or last compared
    `size`         bytes of the data file that are checked
    `begins`       the id of the first record; see `judge_headers`
    `data`         the bytes of the data file
    `reader`       the entries of the index; None where it is missing or cannot be read
    ============== =========================================================================================
    """

    def __init__(self, job: SegmentJob, limits: ReadLimits) -> None:
        self.job = job
        self.limits = limits
        self.data_state: FileState | None = None
        self.index_state: FileState | None = None
        self.size = 0
        self.begins = job.first
        self.reader: IndexReader | None = None
        self._hashing: HashingSource | None = None
        self._stack = contextlib.ExitStack()
        self._headers: tuple[Finding, ...] = ()
        self._index_problem: Finding | None = None
        self._strange: tuple[Finding, ...] | None = None

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self) -> None:
        job = self.job
        self.data_state, self.index_state = states(job.data_path, job.index_path)
        index_header, index = None, None
        if self.data_state is None:
            raise FilesChangedError
        try:
            data = self._stack.enter_context(open_source(job.data_path, self.data_state.size))
            self.data: ByteSource = data
            if job.hash_to is not None:
                self.data = self._hashing = HashingSource(data, job.hash_to)
            if self.index_state is not None:
                index = self._stack.enter_context(open_source(job.index_path, self.index_state.size))
                index_header = read_header_of(index, self.index_state.size)
        except FileNotFoundError as error:
            raise FilesChangedError from error
        except DiskReadError as error:
            if str(error.path) != str(job.index_path):
                raise
            self._index_problem = job.files.finding(Code.READ_ERROR, str(error), index=True, offset=error.offset)
        self.size = self.data_state.size
        header = read_header_of(data, self.size)
        if index is not None and index_header is not None:
            self.reader = IndexReader(index, job.first)
        elif self.index_state is None and (kind := places.special(job.index_path)) is not None:
            self._index_problem = special_index(kind, job.files)
        elif self.index_state is None:
            self._index_problem = index_missing(job.files)
        elif self._index_problem is None:
            self._index_problem = index_header_short(self.index_state.size, job.files)
        if header is not None:
            verdict = judge_headers(job.expected, header, index_header, self.data)
            self._headers, self.begins = verdict.findings(job.files), verdict.begins
            if self.reader is not None:
                self.reader.begins = self.begins

    @property
    def header_findings(self) -> tuple[Finding, ...]:
        """The findings about both headers."""
        return self._headers

    @property
    def data_header_findings(self) -> list[Finding]:
        """The findings about the data file's header, without notes."""
        return [one for one in self._headers if one.severity is not Severity.NOTE and one.path == self.job.data_path]

    def index_problem(self) -> tuple[Finding, ...]:
        """The finding that says why the index cannot be used; empty where it can."""
        return () if self._index_problem is None else (self._index_problem,)

    def _index_in_the_way(self) -> tuple[Finding, ...]:
        """The finding about what stands in the index's place, or cannot be read; a missing or short one is told with the data."""
        return tuple(one for one in self.index_problem() if one.code in (Code.SPECIAL_FILE, Code.READ_ERROR))

    def watch(self) -> Watch:
        """A watch over both files that compares them with their states when they were opened."""
        # a truncation may have removed the index a moment ago, which shows only in the directory's modification time
        perhaps_removed = self.job.held and self.index_state is None
        directory = self.job.directory if perhaps_removed else None
        watch = Watch((self.job.data_path, self.job.index_path), self.job.held, self.limits, directory)
        watch.before = (self.data_state, self.index_state)
        return watch

    @property
    def short(self) -> bool:
        """Whether the data file ends inside its header, so that there is nothing to scan."""
        return self.size < HEADER_SIZE

    def run(self, options: VerifyOptions) -> SegmentReport:
        """The whole check in the calling thread.  Raises FilesChangedError, DiskReadError."""
        if self.short:
            return self.finish_short()
        scan = self.whole()
        try:
            self.limits.check()  # the time limit may have passed while this check waited for its turn
            if options.partial:
                fraction = None if options.quick else options.sample
                seed = f"{options.sample_seed}/{self.job.partition}/{self.job.first}"
                PartialScan(scan, self.size).run(fraction, seed, bodies=not options.ends_only)
            else:
                scan.advance(self.size)
        except CutShort:
            return self._cut_short(scan)
        return self.finish(scan)

    def with_digest(self, report: SegmentReport) -> SegmentReport:
        """The report with the digest that the job asked for, if any.  Raises DiskReadError."""
        if self._hashing is None or not report.finished:
            return report
        try:
            return replace(report, digest=self._hashing.digest(self.limits))
        except CutShort:
            return replace(report, finished=False)

    def whole(self) -> RangeScan:
        """A scan of the whole file; it has not begun."""
        return self.range_scan(HEADER_SIZE, self.begins)

    def range_scan(self, start: int, first: int) -> RangeScan:
        """A scan from the offset `start` on, where the record `first` is expected; it has not begun."""
        return RangeScan(self.data, self.begins, start, first, self.limits, self.reader, ceiling=self.job.following)

    def scan(
        self,
        first: int,
        start: int,
        *,
        stop: int | None = None,
        data: bool = False,
        known: KnownRecords | None = None,
        borrowed: bool = False,
    ) -> Iterator[RecordBatch | Damage]:
        """Records from the id `first` at the offset `start` on, and damage where it is; see `scan_records`."""
        return scan_records(
            self.data,
            first_transaction_id=first,
            start=start,
            stop=stop,
            index=None if self.reader is None else self.reader.source,
            data=data,
            ceiling=self.job.following,
            known=known,
            borrowed=borrowed,
        )

    def parts(self, part: int) -> list[Part]:
        """Parts of about `part` bytes that can be scanned in parallel.  Raises DiskReadError."""
        return cut_segment(self.data, self.reader, self.begins, self.size, part)

    def finish_parts(self, scans: Iterable[tuple[RangeScan, int]]) -> SegmentReport:
        """Join the scans of parts, each with the offset where its part ends, and finish.

        A part must be sound, scanned to its end, and begin where the part before it ended.  From the first part on that does not,
        the segment is scanned again in one piece.  Raises FilesChangedError, DiskReadError.
        """
        joined = self.whole()
        try:
            for scan, stop in scans:
                whole = scan.position == stop and scan.sound and scan.start == joined.position
                if not whole or scan.first_id != joined.next_id:
                    joined.advance(self.size)
                    break
                joined.append(scan)
        except CutShort:
            return self._cut_short(joined)
        return self.finish(joined)

    def cut_short(self, scans: Iterable[RangeScan]) -> SegmentReport:
        """The report on the scans of parts that the time limit ended."""
        joined = self.whole()
        for scan in scans:
            joined.records += scan.records
            joined.adopt(scan)
        return self._cut_short(joined)

    def _cut_short(self, scan: RangeScan) -> SegmentReport:
        found = (*self._headers, *record_findings(self.job, scan))
        return SegmentReport(
            self.job, self.begins, records=scan.records, uncertain=True, findings=in_order(found), finished=False
        )

    def finish(self, scan: RangeScan) -> SegmentReport:
        """The report on a finished scan, once it is certain that no writer explains its findings.

        A finding is *transient* if a node that is appending at this moment causes it: a torn tail, a short index, index entries
        without records, an index file that is not there yet.

        ======================== ================================= =====================================================
        the scan found           the files                         result
        ======================== ================================= =====================================================
        nothing                  are not compared                  the report
        no transient finding     did not change                    the report
        a transient finding      are quiet, or the segment is not  the report: nobody is writing
                                 the last one
        a transient finding      are not quiet at the last look    the report without it, `uncertain`
        any finding              changed; the scan of the added    the report without transient findings, `uncertain`
                                 bytes found nothing new
        any finding              changed; the scan of the added    compare again; after the last look FilesChangedError,
                                 bytes found something new         so that the segment is opened again
        ======================== ================================= =====================================================

        *Quiet*, and the number of looks: see `Watch`.  Raises FilesChangedError, DiskReadError.
        """
        watch = self.watch()
        while True:
            found = self._assess(scan)
            if not found.findings and not found.passing and found.index_excess is None:
                return found.report
            if self.look_behind():
                found = self._assess(scan)
            passing = bool(found.passing) or found.index_excess is not None
            try:
                if watch.changed():
                    before, suspicions = self.size, scan.suspicions()
                    scan = self._follow(scan, watch)
                    confirmed = scan.suspicions() <= suspicions
                    growing = scan.position >= before and self.job.last  # the torn record has been completed
                    if (growing and confirmed) or not watch.wait():
                        if not confirmed:
                            raise FilesChangedError
                        return self._without_passing(self._assess(scan))
                elif not passing or not self.job.last or watch.quiet():
                    return found.report
                elif not watch.wait():
                    return self._without_passing(found)
            except CutShort:
                return self._cut_short(scan)

    def look_behind(self) -> bool:
        """Update `job.last`, after a roll-over or a truncation; returns whether it changed."""
        job = self.job
        last = job.name is not None or not has_later_segment(job.directory, job.first, job.following)
        if last == self.job.last:
            return False
        self.job = replace(self.job, last=last)
        return True

    @staticmethod
    def _without_passing(found: _Assessment) -> SegmentReport:
        return replace(found.report, findings=in_order(found.findings), index_excess=None, uncertain=True)

    def _follow(self, scan: RangeScan, watch: Watch) -> RangeScan:
        """The scan of files that changed.

        A scan without findings goes on with the added bytes.  Otherwise the whole file is scanned again, because a file that was
        truncated and then extended may be larger than before.  Raises FilesChangedError where a file was replaced or truncated.
        """
        data, index = watch.before
        before, self.data_state = self.data_state, data
        grown = data is not None and before is not None and data.inode == before.inode and data.size >= self.size
        same_index = (index is None) == (self.index_state is None)
        if index is not None and self.index_state is not None:
            same_index = index.inode == self.index_state.inode and (index.size < HEADER_SIZE) == (self.reader is None)
        if data is None or not grown or not same_index:
            raise FilesChangedError
        old_size, self.index_state, self.size = self.size, index, data.size
        if not scan.suspicions():
            scan.advance(self.size)
            if not scan.suspicions() and (scan.tail is None or scan.tail.offset >= old_size):
                return scan
        again = self.whole()
        again.advance(self.size)
        return again

    def _assess(self, scan: RangeScan) -> _Assessment:
        job = self.job
        passing: list[Finding] = []
        findings = [*self._headers, *self._of_another(), *record_findings(job, scan)]
        explained, excess, index_end = 0, None, None
        if scan.tail is not None and scan.comparison is not None:
            explained = scan.comparison.explained_by_tail(scan.tail, self.size, scan.next_id)
        if scan.tail is not None:
            passing.append(tail_finding(job, scan.tail, explained))
        if self._index_problem is not None:
            # transient while a segment is being made (the release makes the index first) or truncated (ours removes it first)
            transient = self.size <= HEADER_SIZE or (job.held and self.index_state is None)
            (passing if transient else findings).append(self._index_problem)
        if (comparison := scan.comparison) is not None:
            if (short := comparison.short(scan.last_id, at_least=scan.unread_tail)) is not None:
                passing.append(short.finding(job.files))
            if not scan.unread_tail:
                listed = explained or comparison.explained_by_tail(scan.order_end, self.size, scan.next_id)
                # what was not read may hold the records of the entries that seem too many
                if short is None and not scan.open_end and (too_long := comparison.long(scan.next_id + listed)):
                    excess = too_long.finding(job.files)
                index_end = comparison.reader.end()
            if comparison.wrong.count:
                findings.append(comparison.wrong.finding(self.begins, job.files))
            if (error := comparison.unreadable) is not None:
                findings.append(job.files.finding(Code.READ_ERROR, str(error), index=True, offset=error.offset))
        held = held_by(
            scan.next_id,
            torn=scan.tail is not None,
            explained=explained,
            last=job.last,
            uncertain=scan.unread_tail or scan.open_end,
        )
        every = in_order([*findings, *passing])
        report = SegmentReport(
            job,
            self.begins,
            held.next_id,
            held.accounted,
            held.uncertain,
            scan.records,
            every,
            excess,
            index_end,
            scan.last_id,
            scan.tail is not None,
            states=(self.data_state, self.index_state),
        )
        return _Assessment(tuple(findings), tuple(passing), excess, report)

    def _of_another(self) -> tuple[Finding, ...]:
        """The finding that the records are another partition's although the header is right; computed once."""
        if self._strange is None:
            self._strange = ()
            job, why = self.job, None
            if job.partition is not None and not self.data_header_findings:
                view = SegmentView(job.partition, job.first, self.data_state, self.index_state)
                with contextlib.suppress(DiskReadError):  # the scan reports read errors
                    why = stranger(view, self.data, job.partition, job.cluster_key)
            if why is not None:
                self._strange = (strange_finding(why, job.files),)
        return self._strange

    def finish_short(self) -> SegmentReport:
        """The report on a data file that ends inside its header.  Raises FilesChangedError."""
        watch = self.watch()
        while True:
            self.look_behind()
            if watch.changed():
                raise FilesChangedError
            entries = 0 if self.reader is None else self.reader.count()
            accounted = self.job.first - 1 + entries
            nothing = SegmentReport(self.job, self.begins, self.job.first, accounted, uncertain=not entries)
            if not self.job.last or watch.quiet():
                found = (self.job.short_header(self.size, entries), *self._index_in_the_way())
                return replace(nothing, next_id=None, uncertain=False, findings=found)
            try:
                if not watch.wait():
                    return nothing
            except CutShort:
                return replace(nothing, finished=False)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings of one segment in order: those of the data file first, then by offset."""
    return tuple(sorted(findings, key=lambda one: (not str(one.path).endswith(".seg"), one.offset or 0, one.code)))
