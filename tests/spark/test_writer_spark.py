"""``df.write.format("waltz")`` in a Spark session; `tests.spark.test_stream_kills` has a write that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.errors import PySparkException

from tests.builders import build_directory
from tests.golden import GOLDEN, needs_golden
from tests.spark.writing import is_clean, nothing_left, records_of
from waltzctl.engine.spark.data_source import WaltzDataSource
from waltzctl.engine.spark.writer import in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def _rows(spark: SparkSession, path: Path) -> DataFrame:
    spark.dataSource.register(WaltzDataSource)
    return spark.read.format("waltz").option("data", "true").load(str(path))


@pytest.mark.turns(8)
def test_what_is_read_and_written_again_is_the_same_and_clean(tmp_path: Path, spark: SparkSession) -> None:
    source = build_directory(tmp_path / "a" / "source", {0: 120, 1: 30, 2: 0})
    target = tmp_path / "b" / "new"
    target.parent.mkdir()
    rows = _rows(spark, source)
    shuffled = rows.orderBy(rows.transaction_id.desc())
    with pytest.raises(PySparkException, match="sortWithinPartitions"):
        shuffled.write.format("waltz").mode("append").save(str(target))
    assert nothing_left(target)
    in_order(shuffled).write.format("waltz").mode("append").options(numPartitions="3", layout="released").save(
        str(target)
    )
    assert is_clean(target)
    assert records_of(target) == records_of(source)
    assert nothing_left(target, empty=True)


@pytest.mark.turns(12)
def test_a_job_that_fails_leaves_nothing(tmp_path: Path, spark: SparkSession) -> None:
    source = build_directory(tmp_path / "a" / "source", {0: 120, 1: 30})
    target = tmp_path / "b" / "new"
    target.parent.mkdir()

    def breaks(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, 20)
            raise RuntimeError("no more rows")

    rows = _rows(spark, source)
    with pytest.raises(PySparkException, match="no more rows"):
        rows.mapInArrow(breaks, rows.schema).write.format("waltz").mode("append").save(str(target))
    assert nothing_left(target)
    with pytest.raises(PySparkException, match="never overwritten"):
        rows.write.format("waltz").mode("overwrite").save(str(target))
    assert nothing_left(target)


@pytest.mark.turns(10)
@needs_golden
def test_a_directory_of_the_released_waltz_is_written_again_with_the_same_records(
    tmp_path: Path, spark: SparkSession
) -> None:
    assert GOLDEN is not None
    source = GOLDEN / "cluster-a" / "storage-2"
    rows = _rows(spark, source)
    rows.write.format("waltz").mode("append").options(layout="released", segmentSize="256KiB").save(
        str(tmp_path / "new")
    )
    assert is_clean(tmp_path / "new")
    assert records_of(tmp_path / "new") == records_of(source)
