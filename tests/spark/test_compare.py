"""compare on Spark: what is said of the replicas is the same, whoever read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.compare.clusters import extend, flip, make_cluster, remove_segment, rewrite, tear
from waltzctl.engine.compare import ranges
from waltzctl.engine.compare.compare import Compared, compare
from waltzctl.engine.compare.comparison import CompareOptions, CompareSummary
from waltzctl.engine.spark.spark_executor import SparkExecutor
from waltzctl.engine.task_executor import LocalExecutor, TaskExecutor

if TYPE_CHECKING:
    from waltzctl.engine.spark.spark_session import Session

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.turns(8, place=4)]


def said(paths: Sequence[Path], executor: TaskExecutor) -> list[Compared]:
    """Everything but how long it took."""
    seen = list(compare(paths, CompareOptions(), executor))
    return [replace(one, elapsed_seconds=0.0) if isinstance(one, CompareSummary) else one for one in seen]


def test_spark_says_what_threads_say(spark_session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = make_cluster(tmp_path)
    rewrite(nodes[1], 70, b"other")
    flip(nodes[0], 20)
    remove_segment(nodes[2], 60)
    extend(nodes[2], 3)
    tear(nodes[1])
    local = said(nodes, LocalExecutor(2))
    assert said(nodes, SparkExecutor(spark_session)) == local
    monkeypatch.setattr(ranges, "RANGE", 1500)
    assert said(nodes, SparkExecutor(spark_session)) == said(nodes, LocalExecutor(1))
