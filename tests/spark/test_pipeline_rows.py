"""What is asked of a pipeline's tables after a run, by a session of Spark's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from waltzctl.engine.errors import PipelineError
from waltzctl.engine.pipeline.project import Project, open_project
from waltzctl.engine.pipeline.project_creation import create_project
from waltzctl.engine.pipeline.table_rows import lacking_rows, table_rows, taken_since

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.turns(8, place=2)]
QUARANTINE = (
    (None, 0, 10, 5), (None, 0, 20, 1), (None, 1, 10, 5), (None, 1, 12, 1), (None, 2, 3, 0), ("/n", 2, 10, 5), ("/n", 2, 4, None),
)  # fmt: skip
"""Node, partition, first id and how many."""
THERE = {0: (8, 9, 11, 12, 14, 15), 1: range(30), 2: range(30)}


@pytest.fixture
def project(spark: SparkSession, tmp_path: Path) -> Iterator[Project]:
    """Its tables are views."""
    create_project(tmp_path / "p", ["/n"])
    there = [(number, one) for number, ids in THERE.items() for one in ids]
    tables = {
        "quarantine": spark.createDataFrame(QUARANTINE, "node STRING, partition INT, transaction_id BIGINT, missing BIGINT"),
        "transactions": spark.createDataFrame(there, "partition INT, transaction_id BIGINT"),
    }  # fmt: skip
    for name, frame in tables.items():
        frame.createTempView(name)
    yield open_project(tmp_path / "p")
    for name in tables:
        spark.catalog.dropTempView(name)


def test_of_what_was_nowhere_it_is_told_which_ids_are_there_by_now(spark: SparkSession, project: Project) -> None:
    """Each once, in runs, and none beside the ranges that quarantine names; what a replica lacks is no concern of it."""
    assert sorted(taken_since(spark, project)) == [(0, 11, 13), (0, 14, 15), (1, 10, 15)]


def test_a_table_that_is_not_there_is_told_with_its_project(spark: SparkSession, project: Project) -> None:
    with pytest.raises(PipelineError, match=r"p, table activity: .*TABLE_OR_VIEW_NOT_FOUND") as caught:
        table_rows(spark, project, "activity")
    assert (caught.value.status, "transformations" in str(caught.value.advice)) == ("io-error", True)


def test_rows_about_nothing_that_is_missing_are_left_out(spark: SparkSession, project: Project) -> None:
    found = [
        (row["node"], row["partition"], row["transaction_id"], row["missing"]) for row in lacking_rows(spark, project)
    ]
    assert found == [one for one in QUARANTINE if one[3] != 0]
