"""status: marks, sizes, ids and health of each partition of a storage directory, without reading all data."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.errors import DamageError, InvalidRequestError
from waltzctl.engine.findings import Finding, Severity, worst
from waltzctl.engine.inspect import partition_runs, storage_checks
from waltzctl.engine.inspect.distributed_checks import check_all
from waltzctl.engine.inspect.partition_runs import PartitionRun
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.targets import ScopeSurroundings, look_around, plan
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log import places
from waltzctl.engine.log.view import PartitionView
from waltzctl.engine.storage.assignment import assigned_here
from waltzctl.engine.storage.availability_marks import Availability, read_availability
from waltzctl.engine.task_executor import TaskExecutor
from waltzctl.formats.adapters import format_time
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout, struct_in_force


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition.  A value that is not known is None.

    `bytes`: size of data and index files together.  `records` and the ids come from both ends of each segment.  `last_written`:
    time of the last change of a data file, RFC 3339 in UTC.  `health`: ok, repairable, damaged or unassigned; `findings` are the
    reasons.
    """

    partition: int
    assigned: bool | None
    readable: bool | None
    writable: bool | None
    session_id: int | None
    low_water_mark: int | None
    local_low_water_mark: int | None
    segments: int | None
    bytes: int | None
    records: int | None
    first_transaction_id: int | None
    last_transaction_id: int | None
    last_written: str | None
    health: str | None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """A storage directory, or a node by its URL.

    `locked_by`: id of the process that holds the directory's lock; 0 when the id is unknown, None when the lock is free.
    `findings`: those that belong to no partition.
    """

    path: PurePath | str
    cluster_key: uuid.UUID | None
    layout: Layout | None
    num_partitions: int | None
    locked_by: int | None
    partitions: tuple[PartitionStatus, ...]
    findings: tuple[Finding, ...] = ()


def storage_status(
    path: PurePath, partitions: Collection[int] | None = None, executor: TaskExecutor | None = None
) -> StorageStatus:
    """The status of a storage directory, from headers, index sizes and both ends of each segment.

    With an `executor` its workers read the segments.

    Raises NotWaltzError; InvalidRequestError when `path` is a part of a storage directory or has no such partition;
    DiskReadError.
    """
    (scope,) = plan([path], partitions)
    storage = scope.storage
    if not scope.whole or storage is None:
        raise InvalidRequestError(f"{path}: status describes a whole storage directory, not a part of one")
    around = look_around(scope, partitions)
    control = around.control
    availability: dict[int, Availability] = {}
    if control is not None:
        try:
            availability = read_availability(storage, control)
        except DamageError:
            availability = {}  # the marks are damaged: availability is unknown, everything else is still reported
    limits = ReadLimits()
    described: dict[int, PartitionStatus] = {}
    own: dict[int | None, list[Finding]] = {}  # grouped once: a control file can have as many findings as partitions
    for one in around.findings:
        own.setdefault(one.partition, []).append(one)
    every = list(partition_runs.runs(scope, around, limits, partitions))
    jobs = [job for run in every for job in run.jobs]
    reports = iter(check_all(jobs, ENDS_ONLY, limits, executor, deadline=None) if executor is not None else ())

    def check(job: SegmentJob) -> SegmentReport:
        return check_segment(job, ENDS_ONLY, limits) if executor is None else next(reports)

    for run in every:
        number = run.context.number
        if number is not None:
            described[number] = _describe(
                run, number, around, availability.get(number), own.get(number, ()), limits, check
            )
    for info in () if control is None else control.infos:
        number = info.partition
        if number not in described and (partitions is None or number in partitions):
            assigned = assigned_here(storage, control, number, directory=False)
            found = tuple(own.get(number, ()))
            described[number] = _partition(number, assigned, around, availability.get(number), found)
    return StorageStatus(
        path=path,
        cluster_key=around.cluster_key if control is None else control.header.cluster_key,
        layout=None if control is None else control.layout,
        num_partitions=None if control is None else control.header.num_partitions,
        locked_by=places.lock_holder(storage, storage / CONTROL_FILE_NAME),
        partitions=tuple(described[number] for number in sorted(described)),
        findings=tuple(own.get(None, ())) + tuple(storage_checks.storage_findings(scope, around, limits)),
    )


def _describe(
    run: PartitionRun,
    number: int,
    around: ScopeSurroundings,
    availability: Availability | None,
    own: Iterable[Finding],
    limits: ReadLimits,
    check: Callable[[SegmentJob], SegmentReport],
) -> PartitionStatus:
    def again(job: SegmentJob) -> SegmentReport:
        return check_segment(job, ENDS_ONLY, limits)

    findings = list(own)
    findings += run.begin()
    for job in run.jobs:
        findings += run.add(check(job))
    findings += run.finish(again)
    reports = run.reports
    held = [report for report in reports if report.last_id is not None]
    return _partition(
        number,
        run.context.assigned,
        around,
        availability,
        tuple(findings),
        run.view,
        records=sum(report.records for report in reports),
        first=min((report.begins for report in held), default=None),
        last=max((report.last_id for report in held if report.last_id is not None), default=None),
    )


def _partition(
    number: int,
    assigned: bool | None,
    around: ScopeSurroundings,
    availability: Availability | None,
    findings: tuple[Finding, ...] = (),
    view: PartitionView | None = None,
    *,
    records: int = 0,
    first: int | None = None,
    last: int | None = None,
) -> PartitionStatus:
    current = struct_in_force(around.control, number)
    segments = () if view is None else view.data_segments
    every = () if view is None else view.segments
    files = [state for one in every for state in (one.data, one.index) if state is not None]
    written = max((one.data.modified_ns for one in segments if one.data), default=None)
    return PartitionStatus(
        partition=number,
        assigned=assigned,
        readable=None if availability is None else availability.readable,
        writable=None if availability is None else availability.writable,
        session_id=None if current is None else current.session_id,
        low_water_mark=None if current is None else current.low_water_mark,
        local_low_water_mark=None if current is None else current.local_low_water_mark,
        segments=len(segments),
        bytes=sum(state.size for state in files),
        records=records,
        first_transaction_id=first,
        last_transaction_id=last,
        last_written=None if written is None else format_time(written // 1_000_000),
        health=_health(assigned, findings),
        findings=findings,
    )


def _health(assigned: bool | None, findings: tuple[Finding, ...]) -> str:
    severity = worst(findings)
    if assigned is False:
        return "unassigned"
    if severity is Severity.DAMAGE:
        return "damaged"
    return "repairable" if severity is Severity.REPAIRABLE else "ok"
