"""Streaming queries in a process of their own, to be killed: ``python -m tests.spark.streaming_job JOB``.

JOB is a JSON file: `queries`, each with `source`, `options`, `sink` and `checkpoint`, and `stop`, a file at whose sight the
queries finish what is there and end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(job: Path) -> None:
    from waltzctl.engine.spark.data_source import WaltzDataSource
    from waltzctl.engine.spark.spark_session import SparkOptions
    from waltzctl.engine.spark.start import open_session

    told = json.loads(job.read_text())
    with open_session(SparkOptions("local[2]", (("spark.sql.shuffle.partitions", "2"),))) as session:
        spark = session.spark
        spark.dataSource.register(WaltzDataSource)
        # queries that begin at the same instant trip over a map that Spark fills at the first task and sends with every one
        warm = next(one["source"] for one in told["queries"] if "://" not in one["source"])
        spark.read.format("waltz").load(warm).limit(1).collect()
        queries = [
            spark.readStream.format("waltz")
            .options(**one["options"])
            .load(one["source"])
            .writeStream.format("parquet")
            .option("path", one["sink"])
            .option("checkpointLocation", one["checkpoint"])
            .start()
            for one in told["queries"]
        ]
        while not Path(told["stop"]).exists():
            for query in queries:
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
            time.sleep(0.05)
        for query in queries:
            query.processAllAvailable()
            query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
