"""Writes in a process of their own: ``python -m tests.spark.writing_job slow|retry SOURCE TARGET``.

`slow` never ends; `retry`: each task's first attempt fails half-way, and a line is added to the file SOURCE.lost.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any


def _slowly(batches: Iterator[Any]) -> Iterator[Any]:
    """Large rows without end: what is small would wait in a buffer on its way to the writer."""
    import pyarrow as pa

    for batch in batches:
        for number in itertools.count():
            row = dict.fromkeys(batch.schema.names)
            row |= {"partition": 0, "transaction_id": number, "header": 0, "data": bytes(1 << 20)}
            row["request_id"] = {"client": 1, "generation": 1, "partition": 0, "sequence": number}
            yield pa.RecordBatch.from_pylist([row], schema=batch.schema)
            time.sleep(0.02)


def _fails_once(lost: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The first attempt of each task fails half-way, and says so in a file."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if context.attemptNumber() == 0:
                with open(lost, "a", encoding="utf-8") as file:
                    file.write("an attempt\n")
                raise RuntimeError("this attempt is lost")
            yield batch.slice(batch.num_rows // 2)

    return work


def main(kind: str, source: str, target: str) -> None:
    from waltzctl.engine.spark.data_source import WaltzDataSource
    from waltzctl.engine.spark.spark_session import SparkOptions
    from waltzctl.engine.spark.start import open_session

    with open_session(SparkOptions("local[2,3]", (("spark.sql.shuffle.partitions", "2"),))) as session:
        spark = session.spark
        spark.dataSource.register(WaltzDataSource)
        rows = spark.read.format("waltz").option("data", "true").load(source)
        work = _slowly if kind == "slow" else _fails_once(f"{source}.lost")
        rows = rows.mapInArrow(work, rows.schema)
        rows.write.format("waltz").mode("append").option("layout", "released").save(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
