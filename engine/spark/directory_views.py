"""The views other than records: control files, segments, index entries, and findings as verify reports them.

A task finds the findings of its segments, and those of a partition as a whole (whether its segments join, whether acknowledged
transactions are missing).  Where a partition is divided among several tasks, the task with the earlier of two neighbouring
segments checks their join, and the last task the partition as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from waltzctl.engine.columns.column import Column, Columns
from waltzctl.engine.columns.control_columns import CONTROL, PARTITION_INFO
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.columns.segment_columns import SEGMENT
from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.inspect.dump import dump_control, dump_segment
from waltzctl.engine.inspect.partition_runs import PartitionRun
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.storage_checks import findings_in_front
from waltzctl.engine.log import places
from waltzctl.engine.scan import kernels
from waltzctl.engine.spark.finding_tasks import ChunkTask, PartitionTask, chunks, whole_partition
from waltzctl.engine.spark.record_arrays import Constants
from waltzctl.engine.spark.selection import Selection
from waltzctl.engine.spark.splits import FLAT, Notice, Surveyed, node_of, parts_for, text
from waltzctl.engine.spark.view_schemas import arrow_type
from waltzctl.formats.segment import ENTRY_SIZE

if TYPE_CHECKING:
    from pathlib import PurePath

_ENTRY_COST = 4 * ENTRY_SIZE
"""The cost of an index entry as a row, in bytes of records that take the same time."""
_CHUNK = 1 << 16
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ControlTask:
    """A control file to read."""

    node: str
    path: PurePath
    selection: Selection

    @property
    def cost(self) -> int:
        """That of a small segment, in bytes."""
        return FLAT

    @property
    def directory(self) -> PurePath:
        """The storage directory."""
        return self.path


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A segment whose two ends and index are read."""

    node: str
    job: SegmentJob
    entries: int

    @property
    def cost(self) -> int:
        """Bytes to read, about."""
        return FLAT + self.entries * ENTRY_SIZE

    @property
    def directory(self) -> PurePath:
        """The partition directory."""
        return self.job.directory


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Entries ``[first, last)`` of an index, counted from 0; `low`, `high`: the ids to return."""

    node: str
    job: SegmentJob
    first: int
    last: int
    low: int | None
    high: int | None

    @property
    def cost(self) -> int:
        """Bytes of records that take about the same time."""
        return FLAT + (self.last - self.first) * _ENTRY_COST

    @property
    def directory(self) -> PurePath:
        """The partition directory."""
        return self.job.directory


def _plan_control(surveyed: Iterable[Surveyed], selection: Selection, _split_size: int) -> Iterator[ControlTask]:
    for one in surveyed:
        if one.scope.control_path is not None and places.still_named(one.scope.control_path):
            yield ControlTask(node_of(one.scope), one.scope.control_path, selection)


def _plan_segments(surveyed: Iterable[Surveyed], _selection: Selection, _split_size: int) -> Iterator[SegmentTask]:
    for one in surveyed:
        for run in one.runs:
            node, entries = node_of(one.scope, run), run.order.entries
            for job in run.jobs:
                yield SegmentTask(node, job, entries.get(job.first, 0))


def _plan_index(surveyed: Iterable[Surveyed], selection: Selection, split_size: int) -> Iterator[IndexTask]:
    low, high = selection.ids.span()
    for one in surveyed:
        for run in one.runs:
            node, entries = node_of(one.scope, run), run.order.entries
            for job in run.jobs:
                count = entries.get(job.first, 0)
                parts = parts_for(count * _ENTRY_COST, split_size)
                for number in range(parts if count else 0):
                    begin, end = count * number // parts, count * (number + 1) // parts
                    yield IndexTask(node, job, begin, end, low, high)


def _plan_findings(
    surveyed: Iterable[Surveyed], _selection: Selection, split_size: int
) -> Iterator[Notice | PartitionTask | ChunkTask]:
    for one in surveyed:
        limits = ReadLimits()
        known = tuple(findings_in_front(one.scope, one.around, limits))
        if known:
            yield Notice(node_of(one.scope), known)
        for run in one.runs:
            node = node_of(one.scope, run)
            begun = tuple(run.begin())
            if begun:
                yield Notice(node, begun)
            yield from _partition(one, run, node, split_size)


def _partition(one: Surveyed, run: PartitionRun, node: str, split_size: int) -> Iterator[PartitionTask | ChunkTask]:
    whole = whole_partition(one, run, node)
    if whole is None:
        return
    if not whole.partition.whole or len(run.jobs) < 2 or whole.cost <= split_size:
        yield whole
    else:
        yield from chunks(whole, run.jobs, split_size)


VIEW_PLANS: dict[str, Callable[[Iterable[Surveyed], Selection, int], Iterator[Any]]] = {
    "control": _plan_control,
    "segments": _plan_segments,
    "index": _plan_index,
    "findings": _plan_findings,
}
"""The function that plans the items of a view, by its name."""


def read_view(items: Sequence[Any], columns: Sequence[Column], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a packet of one of these views."""
    if any(isinstance(item, (PartitionTask, ChunkTask)) for item in items):
        kernels.choose(sum(item.cost for item in items))
    limits = ReadLimits()
    rows: list[Row] = []
    for item in items:
        if isinstance(item, IndexTask):
            yield from _entries(item, columns, schema, limits)
            continue
        rows += _rows(item, limits)
        if len(rows) >= _CHUNK:
            yield _batch(rows, columns, schema)
            rows = []
    if rows:
        yield _batch(rows, columns, schema)


def _batch(rows: list[Row], columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_array([row[one.name] for row in rows], arrow_type(one.kind.spark)) for one in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        values = [None if one is None else datetime.fromisoformat(one) for one in values]
    return pa.array(values, kind)


def _rows(item: Any, limits: ReadLimits) -> Iterator[Row]:
    match item:
        case ControlTask():
            yield from _control_rows(item)
        case SegmentTask():
            found = dump_segment(item.job, limits)
            if found is not None:
                yield _row(item.node, (SEGMENT, found))
        case Notice():
            yield from (_row(item.node, (FINDING, one)) for one in item.findings)
        case _:
            yield from (_row(item.node, (FINDING, one)) for one in item.run(limits))


def _row(node: str, *parts: tuple[Columns, Any]) -> Row:
    """A row with the columns of these objects, read from their values."""
    made: Row = {"node": node}
    for columns, value in parts:
        for name, found in columns.keys(value).items():
            made[name] = text(found) if isinstance(found, str) else found
    return made


def _control_rows(task: ControlTask) -> Iterator[Row]:
    """One row for each partition info; for a file without any, one row with the header's columns."""
    try:
        control = dump_control(task.path)
    except (NotWaltzError, DiskReadError):
        return  # missing or unreadable: reported in the view of findings
    for info in control.partitions:
        if info.partition in task.selection:
            yield _row(task.node, (CONTROL, control), (PARTITION_INFO, info))
    if not control.partitions:
        nothing = dict.fromkeys(one.name for one in PARTITION_INFO.printed)
        yield {**_row(task.node, (CONTROL, control)), **nothing}


def _entries(
    task: IndexTask, columns: Sequence[Column], schema: pa.Schema, limits: ReadLimits
) -> Iterator[pa.RecordBatch]:
    """The entries as in the file; their errors are reported in the view of findings."""
    constants = Constants(task.node, task.job.partition, task.job.first)
    try:
        with SegmentCheck(task.job, limits) as segment:
            index = segment.reader
            if index is None:
                return
            begin, end = index.begins + task.first, index.begins + task.last
            begin = begin if task.low is None else max(begin, task.low)
            end = end if task.high is None else min(end, task.high + 1)
            for first in range(begin, end, _CHUNK):
                offsets = index.entries(first, min(_CHUNK, end - first))
                if not len(offsets):
                    return
                values = {"transaction_id": np.arange(first, first + len(offsets)), "offset": offsets}
                arrays = [
                    pa.array(values[one.name]) if one.name in values else constants.array(one.name, len(offsets))
                    for one in columns
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (FilesChangedError, DiskReadError):
        return
