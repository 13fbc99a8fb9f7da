"""One Spark session for all tests of a process: two cores of this machine, nothing on, nothing kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waltzctl.engine.spark.spark_session import Session


@pytest.fixture(scope="session")
def spark_session() -> Iterator[Session]:
    """As the commands open it."""
    from waltzctl.engine.spark.spark_session import SparkOptions
    from waltzctl.engine.spark.start import open_session

    with open_session(SparkOptions("local[2]", (("spark.sql.shuffle.partitions", "2"),))) as session:
        yield session


@pytest.fixture(scope="session")
def spark(spark_session: Session) -> SparkSession:
    """The session as Spark knows it."""
    return spark_session.spark
