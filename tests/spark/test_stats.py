"""stats on Spark says what it says here, over every example of damage."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.stats.support import count, same
from waltzctl.engine.spark.spark_executor import SparkExecutor
from waltzctl.engine.spark.spark_session import Session
from waltzctl.engine.stats.stats import stats
from waltzctl.engine.stats.stats_options import StatsOptions

pytestmark = pytest.mark.xdist_group("spark")
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.mark.turns(8)
def test_stats_are_the_same_whoever_counts(spark_session: Session) -> None:
    corpus = sorted(path for path in FIXTURES.glob("*/storage") if path.is_dir())
    report = stats(corpus, StatsOptions(part=400), SparkExecutor(spark_session))
    assert report.records > 100
    assert report.findings
    assert same(report) == same(count(*corpus))
