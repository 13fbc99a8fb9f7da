"""The rows of tables after a run, for ``--require`` and the page (``--html``)."""

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
_LACKING = "missing > 0 OR missing IS NULL"
_RECOVERED = """
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
"""``run`` is the same for consecutive ids: their ids and their row numbers rise by one alike."""


def table_rows(spark: SparkSession, project: Project, table: str, condition: str = "true") -> Rows:
    """The rows of a table.  Raises PipelineError where Spark cannot read it."""
    with _read(project, table):
        _refresh(spark, project, table)
        return tuple(row.asDict() for row in spark.table(f"{project.namespace}{table}").where(condition).collect())


def lacking_rows(spark: SparkSession, project: Project) -> Rows:
    """The rows of `quarantine` about transactions that are not there.  Raises PipelineError."""
    return table_rows(spark, project, "quarantine", _LACKING)


def taken_since(spark: SparkSession, project: Project) -> tuple[tuple[int, int, int], ...]:
    """Ranges that `quarantine` says no replica has, and that `transactions` has by now: partition, first id, id behind the last.

    Quarantine is a streaming table, whose rows stay when a later run reads the transactions.  Raises PipelineError.
    """
    with _read(project, "transactions"):
        for table in ("transactions", "quarantine"):
            _refresh(spark, project, table)
        found = spark.sql(_RECOVERED.format(project.namespace)).collect()
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


def _refresh(spark: SparkSession, project: Project, table: str) -> None:
    spark.sql(f"REFRESH TABLE {project.namespace}{table}")  # the session may have cached the files of an earlier run
