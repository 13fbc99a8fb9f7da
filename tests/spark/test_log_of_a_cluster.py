"""The committed transactions of a cluster in a real Spark session: a batch, and a stream to its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.processes import ClusterOfProcesses
from tests.interop.processes import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.turns(8, place=1)]


def test_a_cluster_is_read_and_streamed(spark: SparkSession, tmp_path: Path) -> None:
    with Stage(tmp_path / "cluster") as stage:
        stage.directory.mkdir()
        made = ClusterOfProcesses(stage, partitions=2)
        made.add_nodes(1)
        made.start_servers(1)
        made.settle()
        for partition in (0, 1):
            made.log("append", "--partition", partition, given="".join(f"{partition}-{n}\n" for n in range(50)))
        asked = {"metadata": made.metadata, "plaintext": "true"}
        table = spark.read.format("waltz").options(**asked).option("data", "true").load()
        found = sorted((row.partition, row.transaction_id, bytes(row.data).decode()) for row in table.collect())
        assert found == [(partition, n, f"{partition}-{n}") for partition in (0, 1) for n in range(50)]
        stream = spark.readStream.format("waltz").options(**asked).load()
        query = (
            stream.select("partition", "transaction_id")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        assert query.awaitTermination(120)
        rows = spark.read.parquet(str(tmp_path / "rows")).collect()
        assert sorted((row.partition, row.transaction_id) for row in rows) == [
            (p, n) for p in (0, 1) for n in range(50)
        ]
