"""From the log to the pipeline's tables, beside a source that has its batches ready: section `tables` of ``benchmarks/spark.py``.

Measured is what a flow of the pipeline does: a streaming query out of ``format("waltz_pipeline")`` into Parquet, with a
checkpoint, until nothing is left.  Beside it stands a Python source that yields the same rows again and again, made before the
clock runs, written as the same table: what Spark, Arrow and Parquet cost whoever reads.  It runs as a batch query, and as a
stream like ours, which shows what streams cost whoever reads.  A second run has one percent more to read.  Starts of sessions,
and what Spark Declarative Pipelines takes to begin, are not in it.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pyarrow as pa
from generated import GIB, add_segments, data_files, make_storage, total_bytes
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from waltzctl.engine.spark.stream_reader import TASK_WEIGHT
from waltzctl.formats.control import CONTROL_FILE_NAME, decode_control

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SEGMENT = 64 << 20
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
    """Seconds of runs.  `rows`: of the first; `log`: as it is now; `memory`: the largest Python worker, bytes.

    `ready`, `ready_stream`: of the ready-made source, as a batch query and as a stream.
    """

    rows: int
    log: Log
    first: float
    second: float
    ready: float
    ready_stream: float
    memory: int


class ReadyMade(DataSource):
    """The rows of a file that `make_ready` wrote, again and again up to `rows` of them, as `tasks` tasks."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.options["schema"]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyMadeReader(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return _ReadyMadeStream(dict(self.options))


class _ReadyMadeReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._rows, self._tasks, self._path = int(options["rows"]), int(options["tasks"]), options["path"]

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, stop = (self._rows * number // self._tasks for number in (partition.value, partition.value + 1))
        with pa.memory_map(self._path) as mapped, pa.ipc.open_file(mapped) as file:
            batches = [file.get_batch(number) for number in range(file.num_record_batches)]
            for batch in itertools.cycle(batches):
                if first == stop:
                    return
                rows = min(batch.num_rows, stop - first)
                yield numbered(batch.slice(0, rows), first)
                first += rows


class _ReadyMadeStream(DataSourceStreamReader):
    """The same rows as one micro-batch, whose offset is their number."""

    def __init__(self, options: dict[str, str]) -> None:
        self._whole = _ReadyMadeReader(options)
        self._end = {"rows": int(options["rows"])}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        return {"rows": 0}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:  # noqa: N802  # Spark's name
        return self._end

    def partitions(self, start: object, end: object) -> list[InputPartition]:
        return self._whole.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._whole.read(partition)


def numbered(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """The batch with ids from `first` on, in the request ids too: Parquet takes less for values that come again."""
    ids = np.arange(first, first + batch.num_rows)
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name == "transaction_id":
            column = pa.array(ids)
        elif field.name == "request_id":
            parts = [column.field(one.name) for one in field.type]
            parts[-1] = pa.array((ids & 0x7FFFFFFF).astype(np.int32))
            column = pa.StructArray.from_arrays(parts, fields=list(field.type))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def make_ready(path: Path, log: Log, what: str) -> None:
    """Write what a task gets of one replica of `log` to a file of Arrow batches, as large as they may become."""
    from waltzctl.engine.pipeline.pipeline_data_source import PipelineDataSource

    source = PipelineDataSource({"what": what, "paths": json.dumps([str(log.replicas[0])])})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    task = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))[0]
    rows = pa.Table.from_batches(list(reader.read(task))).combine_chunks()
    most = min(BATCH_ROWS, max(1, BATCH_BYTES // log.record_size))
    with pa.ipc.new_file(path, rows.schema) as out:
        out.write_table(rows, most)


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


def rows_of(log: Log, what: str) -> int:
    """How many the table `what` has of a log."""
    return log.records * (len(log.replicas) if what == "records" else 1)


def measure(
    spark: SparkSession, log: Log, warm: Log, what: str, place: Path, repeat: int, memory: Callable[[], int]
) -> Measured:
    """Seconds of the first run, of one with one percent more, and of the ready-made source; medians.

    `warm`: a log that is read in front of all, so that Java has compiled what it runs; `memory`: of a worker.
    """
    from statistics import median

    made = place / "ready.arrow"
    make_ready(made, log, what)
    schema = stream(spark, log, what).schema.json()

    def ready(some: Log, *, streamed: bool) -> float:
        rows = rows_of(some, what)
        given = {"schema": schema, "rows": rows, "tasks": tasks_for(rows, some.record_size), "path": made}
        reader = spark.readStream if streamed else spark.read
        source = reader.format("ready_made").options(**{name: str(value) for name, value in given.items()}).load()
        target = place / "ready"
        write = partial(written, source, target) if streamed else partial(source.write.parquet, str(target))
        seconds = timed(write, rows * some.record_size)
        shutil.rmtree(target)
        return seconds

    target = place / what
    written(stream(spark, warm, what), target)
    shutil.rmtree(target)
    for streamed in (False, True):
        ready(warm, streamed=streamed)
    first, second, batch, stream_of_ready, held = [], [], [], [], 0
    whole, rows = log, rows_of(log, what)
    for _ in range(repeat):
        read_through(whole)
        first.append(timed(partial(written, stream(spark, whole, what), target), rows * log.record_size))
        held = max(held, memory())
        whole = grow(whole)
        second.append(timed(partial(written, stream(spark, whole, what), target), 0))
        shutil.rmtree(target)
        batch.append(ready(log, streamed=False))
        stream_of_ready.append(ready(log, streamed=True))
    return Measured(rows, whole, *map(median, (first, second, batch, stream_of_ready)), held)


def read_through(log: Log) -> None:
    """Have the files of all replicas in the page cache, from which tables that were written earlier may have driven them."""
    for path in itertools.chain.from_iterable(map(data_files, log.replicas)):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def touch_free_memory(most: int) -> None:
    """Have so many bytes of the memory that is free from whoever lends it.

    The host of a virtual machine takes back what was free for some seconds, and gives it again page by page: whoever wrote a
    table first paid for it, up to a third of its time, and whoever wrote behind one that was removed did not.
    """
    size = min(most, psutil.virtual_memory().free - GIB)
    if size > 0:
        with mmap.mmap(-1, size) as memory:
            np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1


def timed(work: Callable[[], object], writes: int) -> float:
    """Seconds that something takes that writes so many bytes.

    What was written earlier is on the disk before it begins, and memory for as much and for its processes is this machine's.
    """
    os.sync()
    touch_free_memory(writes + 2 * GIB)
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def tasks_for(rows: int, record_size: int) -> int:
    """Into how many tasks a source that may choose divides so many rows: as many files come of it as of ours."""
    return max(1, round(rows * record_size / TASK_WEIGHT))


def register(spark: SparkSession) -> None:
    """Both sources, for a session."""
    from waltzctl.engine.pipeline.pipeline_data_source import PipelineDataSource

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(PipelineDataSource)
    spark.dataSource.register(ReadyMade)


__all__ = ["Log", "make_log", "measure", "register", "tasks_for", "written"]
