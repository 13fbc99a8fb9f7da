"""What is found does not depend on the engine: the whole damage corpus, by threads here and by Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.golden import GOLDEN, needs_golden
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.salvage import salvage
from waltzctl.engine.spark.spark_executor import SparkExecutor
from waltzctl.engine.task_executor import LocalExecutor, TaskExecutor

if TYPE_CHECKING:
    from waltzctl.engine.spark.spark_session import Session

pytestmark = pytest.mark.xdist_group("spark")

CORPUS = sorted(Path("fixtures").resolve().glob("*/storage"))
OPTIONS = [VerifyOptions(), VerifyOptions(quick=True), VerifyOptions(sample=0.5, sample_seed=3)]


def seen(
    paths: list[Path], options: VerifyOptions, executor: TaskExecutor | None
) -> tuple[list[Finding], VerifySummary]:
    *findings, summary = verify(paths, options, executor=executor)
    assert isinstance(summary, VerifySummary)
    assert all(isinstance(one, Finding) for one in findings)
    return findings, replace(summary, elapsed_seconds=0)  # type: ignore[return-value]


@pytest.mark.turns(10)
@pytest.mark.parametrize("options", OPTIONS, ids=["whole", "quick", "sample"])
def test_verify_finds_the_same_in_the_corpus(spark_session: Session, options: VerifyOptions) -> None:
    here = seen(CORPUS, options, None)
    assert len(here[0]) > 20 or options.sample
    assert seen(CORPUS, options, LocalExecutor(2)) == here
    assert seen(CORPUS, options, SparkExecutor(spark_session)) == here


@pytest.mark.turns(10)
def test_verify_finds_the_same_in_parts_of_segments(
    spark_session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("waltzctl.engine.inspect.distributed_checks.PART", 300)
    monkeypatch.setattr("waltzctl.engine.inspect.distributed_checks.SHARES", 4096)
    assert seen(CORPUS, VerifyOptions(), LocalExecutor(2)) == seen(CORPUS, VerifyOptions(), None)
    assert seen(CORPUS, VerifyOptions(), SparkExecutor(spark_session)) == seen(CORPUS, VerifyOptions(), None)


@pytest.mark.turns(10)
@needs_golden
def test_verify_finds_the_same_in_what_the_release_wrote(spark_session: Session) -> None:
    paths = sorted(GOLDEN.glob("cluster-a/storage-*")) + sorted(
        one.parent for one in GOLDEN.glob("crashed/**/waltz-storage.ctl")
    )
    assert seen(paths, VerifyOptions(), SparkExecutor(spark_session)) == seen(paths, VerifyOptions(), None)


@pytest.mark.turns(8)
def test_status_says_the_same(spark_session: Session) -> None:
    for path in CORPUS[::4]:
        assert storage_status(path, executor=SparkExecutor(spark_session)) == storage_status(path)


@pytest.mark.turns(10)
def test_rebuild_index_plans_the_same(spark_session: Session) -> None:
    for name in ("stale-indexes", "missing-index", "flipped-bit"):
        path = Path("fixtures").resolve() / name / "storage"
        assert plan_rebuild_index(path, executor=SparkExecutor(spark_session)).plan == plan_rebuild_index(path).plan


def test_salvage_writes_the_same(spark_session: Session, tmp_path: Path) -> None:
    sources = [path for path in CORPUS if path.parent.name in ("flipped-bit", "lost-control-file")]
    reports = [
        salvage(sources, to=tmp_path / name, executor=executor)
        for name, executor in (("here", None), ("spark", SparkExecutor(spark_session)))
    ]
    first, second = reports
    assert replace(first, path=second.path, findings=second.findings) == second
    assert first.written > 0
    files = [
        sorted(one.relative_to(tmp_path / name) for one in (tmp_path / name).rglob("*.seg"))
        for name in ("here", "spark")
    ]
    assert files[0] == files[1]


def test_a_worker_that_sees_another_file_of_the_same_name_is_told_apart(tmp_path: Path) -> None:
    from waltzctl.engine.errors import ClusterError

    target = tmp_path / "storage"
    shutil.copytree(Path("fixtures/clean-released/storage"), target)

    class Elsewhere(LocalExecutor):
        """Its workers have a shorter first segment."""

        def map(self, work, tasks, *, weights, what):  # type: ignore[no-untyped-def]
            segment = target / "0" / "0000000000000000000.seg"
            whole = segment.read_bytes()
            segment.write_bytes(whole[:-1])
            found = [work(task) for task in tasks]
            segment.write_bytes(whole)
            return iter(found)

    with pytest.raises(ClusterError, match="sees another file of this name"):
        list(verify([target], executor=Elsewhere(1)))
