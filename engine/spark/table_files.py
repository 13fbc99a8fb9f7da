"""Records, segments, index entries or partition infos as a table in files of a common format.

The rows are those of the data source.  Parquet and ORC are written here, a file for each packet of the read.  Spark, where it is
used, writes these and any other format that it can write to a path (json, delta), with its own commit protocol.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.work_directory import renamed, work_directory
from waltzctl.engine.errors import ClusterError, InvalidRequestError, UnavailableError, write_error
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.inspect.targets import plan
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log import places
from waltzctl.engine.spark.spark_executor import SparkExecutor
from waltzctl.engine.task_executor import TaskExecutor

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from waltzctl.engine.spark.batch_read import Packet, WaltzReader

WRITTEN_HERE = ("parquet", "orc")
"""Formats that need no Spark."""
_FILE_FORMATS = ("parquet", "orc", "json", "csv", "xml", "avro")
"""Formats that are read back with the written schema; a table format has its own schema, and refuses another one."""
_MOST_FINDINGS = 10_000

Place = tuple[str, int | None, int | None, int | None]
"""The place of a finding: code, partition, segment, offset."""


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The table to write.

    `view`: records, segments, index or control.  `first` and `last` bound transaction ids, both inclusive.  `target` is a
    directory that does not exist.
    """

    path: PurePath
    target: Path
    format: str
    view: str = "records"
    partitions: Collection[int] | None = None
    first: int | None = None
    last: int | None = None
    data: bool = True

    def options(self) -> dict[str, str]:
        """The request as options of the data source."""
        given = {"path": str(places.absolute(self.path)), "view": self.view}
        if self.partitions is not None:
            given["partitions"] = ",".join(map(str, sorted(self.partitions)))
        if self.first is not None:
            given["minTransactionId"] = str(self.first)
        if self.last is not None:
            given["maxTransactionId"] = str(self.last)
        if self.view == "records" and self.data:
            given["data"] = "true"
        return given


@dataclass(frozen=True, slots=True)
class TableResult:
    """The result: the number of rows, without those of findings, and the findings, with verify's messages."""

    rows: int
    findings: tuple[Finding, ...]


def write_table(request: TableRequest, executor: TaskExecutor) -> TableResult:
    """Write the table, by Spark where `executor` is Spark's.

    Raises InvalidRequestError for a target that exists or a format that needs Spark, RefusedError while another run writes to
    it, UnavailableError where a library is missing, and what reading and writing raise.  A table that could not be written whole
    is not left behind.
    """
    _check_new(request.target)
    rows, found = _by_spark(request, executor) if isinstance(executor, SparkExecutor) else _here(request, executor)
    return TableResult(rows, _worded(request, executor, found))


def _check_new(target: Path) -> None:
    if os.path.lexists(target):
        raise InvalidRequestError(f"{target}: exists already", advice="name a new directory")


@dataclass(frozen=True, slots=True)
class _FileTask:
    """A packet of the read, and the file to write it to."""

    reader: WaltzReader
    packet: Packet
    schema: pa.Schema
    path: str
    format: str


@dataclass(frozen=True, slots=True)
class _Written:
    rows: int
    found: tuple[Place, ...]


def _here(request: TableRequest, executor: TaskExecutor) -> tuple[int, list[Place]]:
    if request.format not in WRITTEN_HERE:
        raise InvalidRequestError(
            f"{request.format}: only {' and '.join(WRITTEN_HERE)} are written without Spark",
            advice="add --engine spark",
        )
    try:
        from waltzctl.engine.spark.batch_read import Packet, reader
        from waltzctl.engine.spark.view_schemas import arrow_schema, pick, spark_schema
    except ImportError as error:
        raise UnavailableError(
            f"tables need libraries that are not installed ({error})", advice="pip install 'waltzctl[spark]'"
        ) from error
    columns = pick(request.view, None, data=request.data)
    read = reader(request.options(), spark_schema(columns))
    packets = [packet for packet in read.partitions() if isinstance(packet, Packet)]
    staging = request.target.with_name(request.target.name + disk.TEMPORARY_SUFFIX)
    with work_directory(staging):
        tasks = [
            _FileTask(
                read, packet, arrow_schema(columns), str(staging / f"part-{number:05}.{request.format}"), request.format
            )
            for number, packet in enumerate(packets)
        ]
        weights = [sum(item.cost for item in packet.items) for packet in packets]
        written = list(executor.map(_write, tasks, weights=weights, what=f"write {request.format}"))
        for task in tasks:
            disk.sync_file(Path(task.path))
        disk.sync_directory(staging)
        with renamed(staging, request.target):
            disk.sync_directory(request.target.absolute().parent)
    return sum(one.rows for one in written), [place for one in written for place in one.found]


def _write(task: _FileTask) -> _Written:
    """Write one file.  Raises DiskWriteError.

    Arrow gets the open file: it would take a name with a colon for a URI, and knows none with bytes that are no UTF-8.
    """
    import pyarrow.orc
    import pyarrow.parquet

    rows, found = 0, []
    try:
        with open(task.path, "wb") as file:
            if task.format == "parquet":
                writer: Any = pyarrow.parquet.ParquetWriter(file, task.schema, compression="zstd")
            else:
                writer = pyarrow.orc.ORCWriter(file, compression="zstd")
            with writer:
                for batch in task.reader.read(task.packet):
                    table = pyarrow.Table.from_batches([batch], task.schema)
                    writer.write(table)
                    places_found = _places(table)
                    rows += table.num_rows - len([one for one in places_found if one[0] != Code.DATA_CHECKSUM])
                    found += places_found
    except OSError as error:
        raise write_error(task.path, None, error) from error
    return _Written(rows, tuple(found[:_MOST_FINDINGS]))


def _places(table: pa.Table) -> list[Place]:
    """The places of the rows that have a finding."""
    if "finding" not in table.column_names:
        return []
    rows = table.select(["finding", "partition", "segment", "offset"]).filter(table["finding"].is_valid()).to_pylist()
    return [(row["finding"], row["partition"], row["segment"], row["offset"]) for row in rows]


def _by_spark(request: TableRequest, executor: SparkExecutor) -> tuple[int, list[Place]]:
    from waltzctl.engine.spark.data_source import WaltzDataSource

    target = str(request.target.absolute())
    size = sum(scope.data_bytes() for scope in plan([request.path], request.partitions))
    begun = False

    def job(spark: SparkSession) -> tuple[int, list[Place]]:
        spark.dataSource.register(WaltzDataSource)
        frame = spark.read.format("waltz").options(**request.options()).load()
        _check_new(
            request.target
        )  # Spark starts slowly: never remove a target that another process has created meanwhile
        nonlocal begun
        begun = True
        frame.write.format(request.format).mode("error").save(target)
        reader = spark.read.format(request.format)
        written = (reader.schema(frame.schema) if request.format in _FILE_FORMATS else reader).load(target)
        if request.view != "records":
            return written.count(), []
        rows = written.where(f"finding is null or finding = '{Code.DATA_CHECKSUM}'").count()
        wanted = written.where("finding is not null").select("finding", "partition", "segment", "offset")
        return rows, [tuple(row) for row in wanted.limit(_MOST_FINDINGS).collect()]

    executor.progress.start(f"write {request.format}", size)
    try:
        return executor.run(job, weight=size)
    except (ClusterError, KeyboardInterrupt):
        if begun:
            shutil.rmtree(target, ignore_errors=True)  # Spark does not remove the files of a failed job
        raise


def _worded(request: TableRequest, executor: TaskExecutor, found: Sequence[Place]) -> tuple[Finding, ...]:
    """The findings at these places with verify's messages; with our own where verify does not report them (any more)."""
    if not found:
        return ()
    wanted = dict.fromkeys(found)
    partitions = {partition for _, partition, _, _ in wanted if partition is not None}
    by_spark = executor if isinstance(executor, SparkExecutor) else None
    options = VerifyOptions(partitions=partitions or None)
    worded = {
        (one.code.value, one.partition, one.segment, one.offset): one
        for one in verify([request.path], options, executor=by_spark)
        if isinstance(one, Finding)
    }
    return tuple(worded.get(place) or _ours(request.path, place) for place in wanted)


def _ours(path: PurePath, place: Place) -> Finding:
    code, partition, segment, offset = place
    said = "found while the table was written, and not when the files were verified afterwards: they are changing"
    return make_finding(Code(code), path, said, partition=partition, segment=segment, offset=offset)
