"""Queries, and a write, in a process of their own, to be killed: ``python -m tests.spark.streaming_job JOB``.

JOB is a JSON file: `queries`, each with `source`, `options`, `sink` and `checkpoint`, and `write`, a `source` and a `target`, or
null.  Nothing of it ends by itself.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery


def sink(spark: SparkSession, query: dict[str, Any]) -> DataStreamWriter:
    """A query of a job, not yet started."""
    rows = spark.readStream.format("waltz").options(**query["options"]).load(query["source"])
    written = rows.writeStream.format("parquet").option("path", query["sink"])
    return written.option("checkpointLocation", query["checkpoint"])


def _slowly(batches: Iterator[Any]) -> Iterator[Any]:
    """Large rows without end: what is small would wait in a buffer on its way to the writer."""
    import pyarrow as pa

    for batch in batches:
        for number in itertools.count():
            row = dict.fromkeys(batch.schema.names)
            row |= {"partition": 0, "transaction_id": number, "header": 0, "data": bytes(1 << 20)}
            row["request_id"] = {"client": 1, "generation": 1, "partition": 0, "sequence": number}
            yield pa.RecordBatch.from_pylist([row], schema=batch.schema)
            time.sleep(0.1)


def _write(spark: SparkSession, source: str, target: str) -> None:
    rows = spark.read.format("waltz").option("data", "true").load(source)
    rows.mapInArrow(_slowly, rows.schema).write.format("waltz").mode("append").save(target)


def _watch(queries: Sequence[StreamingQuery]) -> None:
    """End the process where a query ends."""
    while all(query.isActive for query in queries):
        time.sleep(0.05)
    print(*(query.exception() for query in queries), flush=True)
    os._exit(1)


def main(job: Path) -> None:
    from waltzctl.engine.spark.data_source import WaltzDataSource
    from waltzctl.engine.spark.spark_session import SparkOptions
    from waltzctl.engine.spark.start import open_session

    told = json.loads(job.read_text())
    with open_session(SparkOptions("local[3]", (("spark.sql.shuffle.partitions", "1"),))) as session:
        spark = session.spark
        spark.dataSource.register(WaltzDataSource)
        # queries that begin at the same instant trip over a map that Spark fills at the first task and sends with every one
        warm = next(one["source"] for one in told["queries"] if "://" not in one["source"])
        spark.read.format("waltz").load(warm).limit(1).collect()
        queries = [sink(spark, one).start() for one in told["queries"]]
        if (write := told["write"]) is None:
            _watch(queries)
        threading.Thread(target=_watch, args=(queries,), daemon=True).start()
        _write(spark, write["source"], write["target"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
