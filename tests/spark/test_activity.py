"""The pipeline's view `activity`: what lasted how long, by a clock that may have been set back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from waltzctl.engine.pipeline.project import open_project
from waltzctl.engine.pipeline.project_creation import create_project
from waltzctl.engine.pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")
TALLIES = (
    "node STRING, partition INT, kind STRING, value BIGINT, records BIGINT, bytes BIGINT, data_bytes BIGINT,"
    " first_transaction_id BIGINT, next_transaction_id BIGINT"
)


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("created", "segments", "client"),
    [
        ((1000.0, 1010.0, 1030.0), [10.0, 20.0, None], 30.0),
        ((1000.0, 900.0, 930.0), [None, 30.0, None], None),
        ((1000.0, 1000.0, 1030.0), [None, 30.0, None], 30.0),
        ((1000.0, None, 1030.0), [None, None, None], 30.0),
    ],
)
def test_a_clock_that_was_set_back_gives_no_rate(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    created: tuple[float | None, ...],
    segments: list[float | None],
    client: float | None,
) -> None:
    """It gave one of less than nothing."""
    create_project(tmp_path / "p", ["/n"])
    tables = Tables(open_project(tmp_path / "p"))
    counted = [("n", 0, "segment", 9 * k, 9, 90, 50, 9 * k, 9 * k + 9) for k in range(3)]
    spark.createDataFrame([*counted, ("n", 0, "client", 5, 27, 270, 150, 0, 27)], TALLIES).createOrReplaceTempView(
        "tallies"
    )
    times = [("n", 0, 9 * k, at) for k, at in enumerate(created)]
    made = spark.createDataFrame(times, "node STRING, partition INT, segment BIGINT, at DOUBLE")
    monkeypatch.setattr(tables, "_created", lambda _: made)
    try:
        rows = tables.activity(spark).orderBy("dimension", "value").collect()
    finally:
        spark.catalog.dropTempView("tallies")
    assert [one["seconds"] for one in rows] == [client, *segments]
    rates = [None if lasted is None else 9 / lasted for lasted in segments]
    assert [one["records_per_second"] for one in rows] == [None if client is None else 27 / client, *rates]
