"""From the log to the pipeline's tables, beside a source that has its batches ready: section `tables` of ``benchmarks/spark.py``.

Measured is what a flow of the pipeline does: a streaming query out of ``format("waltz_pipeline")`` into Parquet, with a
checkpoint, until nothing is left.  Beside it stands a Python source that yields the same rows again and again, made before the
clock runs, written as the same table: what Spark, Arrow and Parquet cost whoever reads.  A second run has one percent more to
read.  Starts of sessions, and what Spark Declarative Pipelines takes to begin, are not in it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from generated import add_segments, make_storage, total_bytes
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from waltzctl.formats.control import CONTROL_FILE_NAME, decode_control
from waltzctl.formats.segment import RECORD_OVERHEAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SEGMENT = 64 << 20
TASK_BYTES = 64 << 20
BATCH_ROWS, BATCH_BYTES = 1 << 16, 16 << 20


@dataclass(frozen=True)
class Log:
    """Replicas of one partition; `records`: in each."""

    replicas: tuple[Path, ...]
    record_size: int
    records: int

    @cached_property
    def bytes(self) -> int:
        """Of one replica."""
        return total_bytes(self.replicas[0])


def make_log(place: Path, size: int, record_size: int, replicas: int) -> Log:
    """A log of about `size` bytes of records, all of which are known as committed."""
    first = place / "replica-1"
    records = make_storage(first, size=size, record_size=record_size, segment_size=SEGMENT)
    commit_all(first, records)
    paths = [first]
    for number in range(2, replicas + 1):
        paths.append(place / f"replica-{number}")
        shutil.copytree(first, paths[-1])
    return Log(tuple(paths), record_size, records)


def commit_all(storage: Path, records: int) -> None:
    """Raise both marks to the last record."""
    path = storage / CONTROL_FILE_NAME
    control = decode_control(path.read_bytes())
    info = control.partitions[0]
    info = info.with_struct(*info.updated(session_id=1, low_water_mark=records - 1, local_low_water_mark=records - 1))
    path.write_bytes(replace(control, partitions=(info,)).encode())


def grow(log: Log) -> Log:
    """One percent more, in every replica."""
    more = max(1, log.records // 100)
    for one in log.replicas:
        add_segments(one, first=log.records, count=more, record_size=log.record_size, segment_size=SEGMENT)
        commit_all(one, log.records + more)
    return replace(log, records=log.records + more)


@dataclass(frozen=True)
class Measured:
    """Seconds of runs.  `rows`: of the first; `log`: as it is now; `memory`: the largest Python worker, bytes."""

    rows: int
    log: Log
    first: float
    second: float
    ready: float
    memory: int


class ReadyMade(DataSource):
    """Rows that are there already: `rows` of them, in batches of `batch`, each the same; `tasks` tasks."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.options["schema"]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyMadeReader(dict(self.options), schema)


class _ReadyMadeReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._rows, self._tasks = int(options["rows"]), int(options["tasks"])
        self._batch, self._data = int(options["batch"]), int(options["data"])
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        count = self._rows * (partition.value + 1) // self._tasks - self._rows * partition.value // self._tasks
        batch = ready_batch(self._schema, min(self._batch, max(1, count)), self._data)
        while count > 0:
            yield batch if count >= batch.num_rows else batch.slice(0, count)
            count -= batch.num_rows


def ready_batch(schema: StructType, rows: int, data: int) -> pa.RecordBatch:
    """Rows with values of the usual lengths: ids that rise, paths, checksums, data of `data` bytes."""
    from waltzctl.engine.spark.wanted_types import arrow_schema_of

    wanted = arrow_schema_of(schema)
    return pa.RecordBatch.from_arrays([_values(field.name, field.type, rows, data) for field in wanted], schema=wanted)


def _values(name: str, kind: pa.DataType, rows: int, data: int) -> Any:
    if name == "finding" or name == "missing":
        return pa.nulls(rows, kind)
    if pa.types.is_struct(kind):
        parts = [_values(field.name, field.type, rows, data) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind))
    if pa.types.is_binary(kind):
        pool = bytes(range(256)) * (data // 256 + 2)
        return pa.array([pool[number % 256 : number % 256 + data] for number in range(rows)], kind)
    if pa.types.is_string(kind):
        checksum = name.endswith("checksum")
        return pa.array(
            [f"{number * 2654435761 % 2**32:08x}" if checksum else "/data/replica-1" for number in range(rows)]
        )
    return pa.array(range(rows), pa.int64()).cast(kind)


def written(frame: DataFrame, place: Path) -> None:
    """A streaming query to its end, into the table at `place`."""
    query = (
        frame.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True).start(str(place / "table"))
    )  # fmt: skip
    query.awaitTermination()


def stream(spark: SparkSession, log: Log, what: str) -> DataFrame:
    """A flow of the pipeline: `records` or `transactions`."""
    paths = json.dumps([str(one) for one in log.replicas])
    return spark.readStream.format("waltz_pipeline").option("what", what).option("paths", paths).load()


def measure(spark: SparkSession, log: Log, what: str, place: Path, repeat: int, memory: Callable[[], int]) -> Measured:
    """Seconds of the first run, of one with one percent more, and of the ready-made source; medians.  `memory`: of a worker."""
    from statistics import median

    first, second, held = [], [], 0
    whole = log
    for number in range(repeat):
        target = place / f"{what}-{number}"
        begun = time.perf_counter()
        written(stream(spark, whole, what), target)
        first.append(time.perf_counter() - begun)
        held = max(held, memory())
        whole = grow(whole)
        begun = time.perf_counter()
        written(stream(spark, whole, what), target)
        second.append(time.perf_counter() - begun)
        shutil.rmtree(target)
    rows = log.records * (len(log.replicas) if what == "records" else 1)
    options = {
        "schema": stream(spark, log, what).schema.json(),
        "rows": str(rows),
        "tasks": str(tasks_for(rows, log.record_size)),
        "batch": str(min(BATCH_ROWS, max(1, BATCH_BYTES // log.record_size))),
        "data": str(log.record_size - RECORD_OVERHEAD),
    }
    ready = []
    for number in range(repeat):
        target = place / f"ready-{number}"
        begun = time.perf_counter()
        spark.read.format("ready_made").options(**options).load().write.parquet(str(target))
        ready.append(time.perf_counter() - begun)
        shutil.rmtree(target)
    return Measured(rows, whole, median(first), median(second), median(ready), held)


def tasks_for(rows: int, record_size: int) -> int:
    """Into how many tasks a source that may choose divides so many rows."""
    return max(1, round(rows * record_size / TASK_BYTES))


def register(spark: SparkSession) -> None:
    """Both sources, for a session."""
    from waltzctl.engine.pipeline.pipeline_data_source import PipelineDataSource

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(PipelineDataSource)
    spark.dataSource.register(ReadyMade)


__all__ = ["Log", "make_log", "measure", "register", "tasks_for", "written"]
