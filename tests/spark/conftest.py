"""One Spark session for all tests of a process: two cores of this machine, nothing on, nothing kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.spark import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waltzctl.engine.spark.spark_session import Session


@pytest.fixture(autouse=True)
def _nothing_is_hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An error of ours hides stacks while it lives: a Java that the next test starts would hide those of all others, too."""
    from waltzctl.engine.spark.plain_errors import HIDING

    monkeypatch.delenv(HIDING, raising=False)
    yield
    os.environ.pop(HIDING, None)


@pytest.fixture(scope="session")
def spark_session() -> Iterator[Session]:
    """As the commands open it; a task that fails is tried once more."""
    from waltzctl.engine.spark.spark_session import SparkOptions
    from waltzctl.engine.spark.start import open_session

    class_archive.use()
    with open_session(SparkOptions("local[2,2]", (("spark.sql.shuffle.partitions", "2"),))) as session:
        yield session


@pytest.fixture(scope="session")
def spark(spark_session: Session) -> SparkSession:
    """The session as Spark knows it."""
    return spark_session.spark


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds what an installation of this checkout would put beside other packages, and nothing else."""
    place, root = tmp_path_factory.mktemp("installed"), Path(__file__).resolve().parents[2]
    for name in ("waltzctl", "pyspark_waltz.py", "pyspark_waltz_pipeline.py"):
        (place / name).symlink_to(root / name)
    return place
