"""dump: the contents of a storage directory: records, index entries, fields of headers and of the control file.

Damage is reported as findings between the records, with the codes of verify, and never ends a dump.  Memory is bounded by the
largest record, whatever the size of the files, also in reverse.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.control_checks import inspect_control
from waltzctl.engine.inspect.dump_index import IndexEntry, dump_index
from waltzctl.engine.inspect.dump_records import DumpedRecord, at_most, dump_records
from waltzctl.engine.inspect.partition_runs import runs
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.storage_checks import unnamed_losses
from waltzctl.engine.inspect.targets import Scope, check_chosen, look_around, plan
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import FileState, read_segment_header
from waltzctl.formats.adapters import format_time
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout, PartitionInfo

__all__ = [
    "ControlDump",
    "DumpedRecord",
    "IndexEntry",
    "SegmentDump",
    "at_most",
    "dump_control",
    "dump_index",
    "dump_records",
    "dump_segment",
    "dump_segments",
]

_ENDS = VerifyOptions(quick=True)


@dataclass(frozen=True, slots=True)
class ControlDump:
    """A control file.  `created` is RFC 3339 in UTC, None where the stored time is invalid; `size` is in bytes.

    `partitions`: both structs of each pair, and which one is in force.  `findings`: those of verify about the file.  If the file
    is too short for its header, every value but `path` and `size` is None and there are no partitions.
    """

    path: PurePath
    layout: Layout | None
    version: int | None
    created: str | None
    cluster_key: uuid.UUID | None
    num_partitions: int | None
    size: int
    partitions: tuple[PartitionInfo, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class SegmentDump:
    """A segment's header and extent.  Values of the header are None where the data file is shorter than its header.

    `last_transaction_id` is None when there is no record; `records` is the number of intact records, by both ends of the segment.
    `index`: ok, missing or stale (rebuild-index would change it).
    """

    path: PurePath
    partition: int | None
    segment: int
    version: int | None
    created: str | None
    cluster_key: uuid.UUID | None
    first_transaction_id: int | None
    last_transaction_id: int | None
    records: int
    data_bytes: int
    index_bytes: int
    index: str


def dump_control(path: PurePath, partitions: Collection[int] | None = None) -> ControlDump:
    """The control file at `path`, or of the storage directory there.  Raises NotWaltzError, InvalidRequestError."""
    target = resolve(path)
    if target.kind is TargetKind.CONTROL:
        control_path = path
    elif target.storage is not None:
        control_path = target.storage / CONTROL_FILE_NAME
    else:
        raise InvalidRequestError(f"{path}: there is no control file beside this {target.kind}")
    target.selected(partitions)
    state = inspect_control(control_path, target.storage, partitions)
    control = state.control
    if control is None:
        found = FileState.of(control_path)
        size = 0 if found is None else found.size
        return ControlDump(control_path, None, None, None, None, None, size, (), state.findings)
    if partitions is not None:
        check_chosen(control, partitions)
    header = control.header
    infos = tuple(info for info in control.partitions if partitions is None or info.partition in partitions)
    return ControlDump(
        control_path,
        control.layout,
        header.version,
        format_time(header.created),
        header.cluster_key,
        header.num_partitions,
        control.size,
        infos,
        state.findings,
    )


def dump_segments(path: PurePath, partitions: Collection[int] | None = None) -> Iterator[SegmentDump | Finding]:
    """Every segment that `path` names, in order, each followed by the findings of a quick check.

    Raises NotWaltzError, InvalidRequestError, DiskReadError, before the first item.
    """
    (scope,) = plan([path], partitions)
    return _segments(scope, partitions)


def dump_segment(job: SegmentJob, limits: ReadLimits) -> SegmentDump | None:
    """One segment, from a quick check of it; None when it was removed.  Damage is never an exception."""
    report = check_segment(job, _ENDS, limits)
    excess = () if report.index_excess is None else (report.index_excess,)
    return None if report.gone else _describe(report, [*report.findings, *excess])


def _segments(scope: Scope, partitions: Collection[int] | None) -> Iterator[SegmentDump | Finding]:
    limits = ReadLimits()

    def check(job: SegmentJob) -> SegmentReport:
        return check_segment(job, _ENDS, limits)

    around = look_around(scope, partitions)
    yield from unnamed_losses(scope, around)
    for run in runs(scope, around, limits, partitions):
        yield from run.begin()
        for job in run.jobs:
            report = check(job)
            findings = list(run.add(report))
            if report.index_excess is not None:
                findings.append(report.index_excess)
            if not report.gone:
                yield _describe(report, findings)
            yield from findings
        excess = {report.index_excess for report in run.reports}
        yield from (one for one in run.finish(check) if one not in excess)


def _describe(report: SegmentReport, findings: list[Finding]) -> SegmentDump:
    job, (data, index) = report.job, report.states
    data = data or FileState.of(job.data_path)
    index = index or FileState.of(job.index_path)
    try:
        header = read_segment_header(data)
    except DiskReadError:
        header = None  # the report has a finding about it
    stale = any(one.path == job.index_path for one in findings)
    return SegmentDump(
        job.data_path,
        job.partition,
        job.first,
        None if header is None else header.version,
        None if header is None else format_time(header.created),
        None if header is None else header.cluster_key,
        None if header is None else header.first_transaction_id,
        report.last_id,
        report.records,
        0 if data is None else data.size,
        0 if index is None else index.size,
        "missing" if index is None else "stale" if stale else "ok",
    )
