"""What stands in the tables after a run, for the gate and the page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from waltzctl.engine.errors import ClusterError, PipelineError
from waltzctl.engine.spark.spark_errors import first_line, of_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waltzctl.engine.pipeline.project import Project

Rows = tuple[dict[str, Any], ...]
_WANTED = "missing > 0 OR missing IS NULL"
_TAKEN = """
SELECT partition, MIN(transaction_id) AS first, MAX(transaction_id) + 1 AS stop
FROM (
  SELECT partition, transaction_id,
    transaction_id - ROW_NUMBER() OVER (PARTITION BY partition ORDER BY transaction_id) AS run
  FROM {0}transactions AS there LEFT SEMI JOIN {0}quarantine AS nowhere
  ON nowhere.node IS NULL AND there.partition = nowhere.partition
    AND there.transaction_id >= nowhere.transaction_id
    AND there.transaction_id < nowhere.transaction_id + nowhere.missing
)
GROUP BY partition, run
"""
"""Neighbouring ids differ by as much as their places do."""


def table_rows(spark: SparkSession, project: Project, table: str, condition: str = "true") -> Rows:
    """The rows of a table.  Raises PipelineError where Spark cannot read it."""
    with _read(project, table):
        _look_anew(spark, project, table)
        return tuple(row.asDict() for row in spark.table(f"{project.namespace}{table}").where(condition).collect())


def lacking_rows(spark: SparkSession, project: Project) -> Rows:
    """The rows of `quarantine` about transactions that are not there.  Raises PipelineError."""
    return table_rows(spark, project, "quarantine", _WANTED)


def taken_since(spark: SparkSession, project: Project) -> tuple[tuple[int, int, int], ...]:
    """What `transactions` has by now of what quarantine says that nobody had: partition, first id, the id behind the last.

    A row of a streaming table stays when what it is about has come.  Raises PipelineError.
    """
    with _read(project, "transactions"):
        for table in ("transactions", "quarantine"):
            _look_anew(spark, project, table)
        found = spark.sql(_TAKEN.format(project.namespace)).collect()
    return tuple((row["partition"], row["first"], row["stop"]) for row in found)


@contextlib.contextmanager
def _read(project: Project, table: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not of_spark(error):
            raise
        raise PipelineError(
            f"{project.directory}, table {table}: it cannot be read: {first_line(error)}",
            status=ClusterError.status,
            advice=f"the run came to its end; a table that is not there is missing in {project.directory / 'transformations'}",
        ) from error


def _look_anew(spark: SparkSession, project: Project, table: str) -> None:
    spark.sql(f"REFRESH TABLE {project.namespace}{table}")  # what this session knows may be of the run before
