"""``df.write.format("waltz").mode("append").save("/new/directory")``: a clean storage directory out of rows, or none at all.

1. Each task writes the segments of its rows into a staging directory beside the target, fsyncs them and reads them back.
2. The driver joins the segments that successful tasks report; those of failed or repeated attempts are ignored.  It renames
   segments, and never copies them, and writes the control file last.
3. The driver checks the complete directory, and renames it to the target.

A job that fails or is killed leaves the target as it was, and at most a staging directory, which the next write to the same
target removes.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from waltzctl.engine.amounts import parse_size
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.new_directory import check_new
from waltzctl.engine.durable.work_directory import renamed
from waltzctl.engine.errors import DamageError, DiskError, InvalidRequestError, RefusedError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verify import VerifyOptions, verify
from waltzctl.engine.log import places
from waltzctl.engine.spark.run_joining import StagedSegment, join
from waltzctl.engine.spark.run_writing import SORT_FIRST, RunWriter, SegmentPlan
from waltzctl.engine.spark.staging import STORAGE, TASKS, clear_left, make_staging, remove
from waltzctl.engine.storage.control_file import create_control_file
from waltzctl.engine.storage.segment_files import create_segment
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    MAX_PARTITIONS,
    ControlFile,
    Layout,
    PartitionInfo,
    initial_control,
)
from waltzctl.formats.segment import index_name, segment_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["SORT_FIRST", "StorageWriter", "WriteOptions", "in_order", "storage_writer", "write_options"]

KNOWN = {
    "path": "what save() was given: a new or empty directory",
    "clusterKey": "UUID; a new one unless given",
    "numPartitions": "partitions of the cluster; as many as the rows need unless given",
    "layout": "documented (as create-cluster) or released",
    "segmentSize": "bytes above which a segment is closed, for instance 256MiB; 1 GB unless given",
    "assign": "all: every partition of the cluster; written: those with rows",
    "marks": "acknowledged: everything written is below the low-water marks; initial: no session, no marks",
}
"""Every option of a write, as documented."""
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_TYPES: dict[str, tuple[str, ...]] = {
    "partition": _WHOLE,
    "transaction_id": _WHOLE,
    "header": _WHOLE,
    "data": ("binary",),
    "data_checksum": ("string", *_WHOLE),
    "finding": ("string",),
}
_REQUEST_ID = ("client", "generation", "partition", "sequence")
_SESSION = 0
"""The session id of the low-water marks: the one that a directory's first append has."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write.  `num_partitions` None: as many as the rows need."""

    path: Path
    cluster_key: uuid.UUID
    num_partitions: int | None = None
    layout: Layout = Layout.DOCUMENTED
    segment_size: int = StorageOptions().segment_size_threshold
    assign_all: bool = True
    acknowledged: bool = True


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse Spark's options.  Raises InvalidRequestError for an unknown option or an invalid value."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(set(given) - {name.lower() for name in KNOWN})
    if unknown:
        raise InvalidRequestError(
            f"format waltz is not written with option {', '.join(unknown)}",
            advice=f"its options are {', '.join(KNOWN)}",
        )
    if not given.get("path"):
        raise InvalidRequestError("format waltz writes nothing without a path", advice='save("/data/new-directory")')
    place = places.place(given["path"])
    if not places.on_this_machine(place):
        raise InvalidRequestError(
            f"{place}: a storage directory is written to a file system that driver and executors share",
            advice="write it there, then copy it to the object store",
        )
    path = places.local(place)
    try:
        key = uuid.UUID(given["clusterkey"]) if "clusterkey" in given else uuid.uuid4()
    except ValueError:
        raise InvalidRequestError(f"clusterKey {given['clusterkey']!r} is no UUID") from None
    return WriteOptions(
        Path(os.path.abspath(path)),
        key,
        _count(given.get("numpartitions")),
        Layout(_one_of(given, "layout", "documented", "released")),
        _size(given.get("segmentsize")),
        _one_of(given, "assign", "all", "written") == "all",
        _one_of(given, "marks", "acknowledged", "initial") == "acknowledged",
    )


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or not 0 < int(text) <= MAX_PARTITIONS:
        raise InvalidRequestError(f"numPartitions {text!r}: must be 1 to {MAX_PARTITIONS}")
    return int(text)


def _size(text: str | None) -> int:
    if text is None:
        return StorageOptions().segment_size_threshold
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidRequestError(f"segmentSize: {error}") from None


def _one_of(given: Mapping[str, str], name: str, *values: str) -> str:
    said = given.get(name, values[0]).strip().lower()
    if said not in values:
        raise InvalidRequestError(f"{name} {said!r}: must be {' or '.join(values)}")
    return said


def in_order(rows: DataFrame) -> DataFrame:
    """Rows in the order that a write needs: each task gets ranges of transactions of one or more partitions, sorted."""
    return rows.repartitionByRange("partition", "transaction_id").sortWithinPartitions("partition", "transaction_id")


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The segments that a task wrote."""

    segments: tuple[StagedSegment, ...]


def storage_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StorageWriter:
    """The writer of one job; checks the target and creates the staging directory.

    Raises InvalidRequestError for options and columns, RefusedError for a target that is not empty or to which another write is
    under way, DiskWriteError.
    """
    wanted = write_options(options)
    check_columns(schema)
    if overwrite:
        raise RefusedError(
            f"{wanted.path}: a storage directory is never overwritten",
            advice='write to a new directory with mode("append"), then take the old one away',
        )
    clear_left(wanted.path)
    check_new(wanted.path, renamed=True)
    return StorageWriter(wanted, make_staging(wanted.path), disk.now_ms())


def check_columns(schema: StructType) -> None:
    """Raise InvalidRequestError unless the columns make records; further columns are ignored."""
    types = {field.name.lower(): field.dataType for field in schema.fields}
    missing = [name for name in ("partition", "transaction_id", "data") if name not in types]
    if missing:
        advice = 'read it with option("data", "true")' if missing == ["data"] else "select or rename them"
        raise InvalidRequestError(f"the rows have no column {', '.join(missing)}", advice=advice)
    for name, allowed in _TYPES.items():
        if name in types and (kind := types[name].simpleString()) not in allowed:
            raise InvalidRequestError(f"column {name} is {kind}, and must be {' or '.join(allowed)}", advice="cast it")
    if "request_id" in types:
        from pyspark.sql.types import StructType as Struct

        found = types["request_id"]
        names = found.names if isinstance(found, Struct) else []
        if sorted(names) != sorted(_REQUEST_ID) or any(one.dataType.simpleString() not in _WHOLE for one in found):  # type: ignore[attr-defined]
            raise InvalidRequestError(
                f"column request_id is {found.simpleString()}, and must be a struct of the integers {', '.join(_REQUEST_ID)}"
            )


class StorageWriter(DataSourceArrowWriter):
    """See the module.  It is pickled, and sent to every task."""

    def __init__(self, options: WriteOptions, staging: Path, created: int) -> None:
        self._options = options
        self._staging = staging
        self._created = created

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Write the rows of one task.  Raises as `RunWriter`, and RefusedError where the executor does not see the directory."""
        options = self._options
        if not (self._staging / TASKS).is_dir():
            raise RefusedError(
                f"{self._staging}: not there: the write has ended, or this executor does not see the driver's file system",
                advice="save to a directory that driver and executors share",
            )
        plan = SegmentPlan(options.cluster_key, self._created, options.num_partitions, options.segment_size)
        runs = RunWriter(self._staging / TASKS / str(uuid.uuid4()), plan)
        for rows in iterator:
            runs.add(rows)
        return Staged(runs.finish())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Join the segments of all tasks, and rename the result to the target.

        Raises InvalidRequestError for missing or duplicate transactions, RefusedError, DamageError, DiskWriteError; then the
        target is as it was.
        """
        try:
            joined = join(one for told in messages if isinstance(told, Staged) for one in told.segments)
            self._finish(joined)
        except BaseException:
            with contextlib.suppress(DiskError):
                remove(self._staging)
            raise
        # the write is complete: an error in cleaning up must not fail it
        with contextlib.suppress(DiskError, FileNotFoundError):
            remove(self._staging)

    def _finish(self, joined: Mapping[int, tuple[StagedSegment, ...]]) -> None:
        options, built = self._options, self._staging / STORAGE
        needed = max(joined, default=-1) + 1
        count = options.num_partitions or needed
        if not 0 < count <= MAX_PARTITIONS:
            what = "there are no rows" if not count else f"partition {count - 1} is beyond what a cluster can have"
            raise InvalidRequestError(
                f"{options.path}: {what}", advice="numPartitions says how many partitions there are"
            )
        disk.make_directory(built)
        present = range(count) if options.assign_all else sorted(joined)
        for number in present:
            self._build_partition(built / str(number), number, joined.get(number, ()))
        create_control_file(built / CONTROL_FILE_NAME, self._control(count, present, joined))
        self._check(built)
        check_new(options.path, renamed=True)
        with renamed(built, options.path):
            disk.sync_directory(options.path.parent)

    def _build_partition(self, directory: Path, number: int, segments: tuple[StagedSegment, ...]) -> None:
        disk.make_directory(directory)
        for segment in segments:
            source = self._staging / TASKS / segment.task / str(number)
            for name in (segment_name(segment.first), index_name(segment.first)):
                disk.rename(source / name, directory / name)
        if not segments:
            key = self._options.cluster_key
            create_segment(directory, partition=number, first_transaction_id=0, cluster_key=key)
        disk.sync_directory(directory)

    def _control(self, count: int, present: Any, joined: Mapping[int, tuple[StagedSegment, ...]]) -> ControlFile:
        options = self._options
        control = initial_control(options.layout, options.cluster_key, count, self._created)
        infos: list[PartitionInfo] = list(control.partitions)
        for number in present:
            info = infos[number]
            if options.layout.has_flags:
                info = info.with_struct(*info.updated(flags=FLAG_AVAILABLE | FLAG_ASSIGNED))
            if options.acknowledged and number in joined:
                last = joined[number][-1].last
                marks = info.updated(session_id=_SESSION, low_water_mark=last, local_low_water_mark=last)
                info = info.with_struct(*marks)
            infos[number] = info
        return replace(control, partitions=tuple(infos))

    @staticmethod
    def _check(built: Path) -> None:
        """Check structure, headers, indexes and both ends of each segment; the tasks have read every record back."""
        findings = [
            one for one in verify([built], VerifyOptions(quick=True, exclusive=True)) if isinstance(one, Finding)
        ]
        if findings:
            raise DamageError(f"{built}: what was built is not clean: {findings[0].message}", findings)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove everything that the job wrote."""
        remove(self._staging)
