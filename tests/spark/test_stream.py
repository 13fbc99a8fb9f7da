"""``spark.readStream.format("waltz")`` in a Spark session: offsets and batches through Spark's own checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.errors import StreamingQueryException

from tests.builders import build_directory, make_records
from tests.spark.nodes import served
from waltzctl.engine.spark.data_source import WaltzDataSource
from waltzctl.engine.spark.stream_reader import ADMISSION
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.directory import StorageDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.turns(8)]


def _stream(spark: SparkSession, source: str, tmp_path: Path, **options: str) -> DataStreamWriter:
    spark.dataSource.register(WaltzDataSource)
    rows = spark.readStream.format("waltz").options(data="true", **options).load(source)
    sink = rows.writeStream.format("parquet").option("path", str(tmp_path / "sink"))
    return sink.option("checkpointLocation", str(tmp_path / "checkpoint"))


def _found(spark: SparkSession, tmp_path: Path) -> dict[int, list[tuple[int, bytes]]]:
    found: dict[int, list[tuple[int, bytes]]] = {}
    for row in spark.read.parquet(str(tmp_path / "sink")).collect():
        found.setdefault(row["partition"], []).append((row["transaction_id"], bytes(row["data"])))
    return {number: sorted(rows) for number, rows in sorted(found.items())}


def _expected(partitions: dict[int, int]) -> dict[int, list[tuple[int, bytes]]]:
    return {
        number: [(one.transaction_id, one.data) for one in make_records(count, partition=number)]
        for number, count in partitions.items()
    }


def test_a_directory_is_read_in_bounded_batches_and_again_from_the_checkpoint(
    tmp_path: Path, spark: SparkSession
) -> None:
    path = build_directory(tmp_path / "d", {0: 60, 1: 20}, local_low_water_mark=5)
    query = _stream(spark, str(path), tmp_path, maxRecordsPerTrigger="50").trigger(availableNow=True).start()
    query.awaitTermination()
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == (
        [50, 30] if ADMISSION else [80]
    )
    assert _found(spark, tmp_path) == _expected({0: 60, 1: 20})

    with StorageDirectory.open(path) as storage:
        AppendSession(storage, 0).append([PendingRecord(b"more")] * 3)
    query = _stream(spark, str(path), tmp_path).start()  # the usual trigger, until it is stopped
    query.processAllAvailable()
    query.stop()
    found = _found(spark, tmp_path)
    assert found[0] == _expected({0: 60})[0] + [(number, b"more") for number in (60, 61, 62)]

    with StorageDirectory.open(path) as storage:
        storage.partition(0).truncate(61)
        AppendSession(storage, 0).append([PendingRecord(b"another history")] * 3)
    query = _stream(spark, str(path), tmp_path).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="transaction 62 is not the one that was read"):
        query.awaitTermination()
    assert _found(spark, tmp_path) == found


def test_a_node_is_read_with_the_columns_that_were_asked_for(tmp_path: Path, spark: SparkSession) -> None:
    path = build_directory(tmp_path / "d", {0: 30, 1: 5}, num_partitions=3)
    spark.dataSource.register(WaltzDataSource)
    seen: list[Any] = []
    with served(path) as node:
        rows = (
            spark.readStream.format("waltz")
            .schema("transaction_id bigint, data binary, partition int")
            .options(plaintext="true", startingTransactions='{"0": 10}')
            .load(node.url)
        )

        def keep(batch: Any, number: int) -> None:
            seen.extend(tuple(row) for row in batch.collect())

        sink = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination()
    expected = [(one.transaction_id, one.data, 0) for one in make_records(30)[10:]]
    expected += [(one.transaction_id, one.data, 1) for one in make_records(5, partition=1)]
    assert sorted((a, bytes(b), c) for a, b, c in seen) == sorted(expected)
