"""--engine, --master and --conf: what is refused, and how auto decides.  What Spark then does is tested in tests/spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.cli.running import invoke
from waltzctl import engines
from waltzctl.engine.progress import SILENT
from waltzctl.engines import Computing, EngineName

ARGUMENTS = {
    "verify": ["verify"],
    "status": ["status"],
    "rebuild-index": ["rebuild-index", "--dry-run"],
    "salvage": ["salvage", "--to", "unused"],
    "compare": ["compare", "other"],
    "stats": ["stats"],
}


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 20})


@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--engine", "local", "--master", "spark://h:1"], "is about Spark, and the engine is local"),
        (["--engine", "local", "--conf", "spark.x=1"], "is about Spark, and the engine is local"),
        (["--conf", "x=1"], "write spark.NAME=VALUE"),
        (["--conf", "spark.x"], "write spark.NAME=VALUE"),
        (["--master", " "], "the master is empty"),
        (["--engine", "flink"], "Invalid value for '--engine'"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(command: str, options: list[str], why: str, storage: Path) -> None:
    first, *rest = ARGUMENTS[command]
    answer = invoke(first, storage, *rest, *options)
    assert answer.status == 2
    assert why in " ".join(answer.err.split())


def test_a_node_is_no_matter_for_spark() -> None:
    for command in ("verify", "status", "dump"):
        answer = invoke(command, "waltz://127.0.0.1:1", "--engine", "spark")
        assert answer.status == 2
        assert "not on a node" in answer.err


def test_auto_reads_here_what_takes_less_than_a_minute(storage: Path) -> None:
    assert not Computing().wants_spark([storage])
    with Computing().executor([storage], SILENT) as executor:
        assert executor is None


def test_auto_takes_spark_where_a_master_or_a_setting_is_named(storage: Path) -> None:
    assert Computing(master="spark://head:7077").wants_spark([storage])
    assert Computing(conf=["spark.executor.memory=1g"]).wants_spark([storage])
    assert not Computing(EngineName.LOCAL).wants_spark([storage])
    assert Computing(EngineName.SPARK).wants_spark([])


def test_auto_says_why_it_takes_spark(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(engines, "_estimate", lambda paths: (600.0, 7 << 40))
    assert Computing().wants_spark([storage])
    assert "7.0 TiB would take this machine about 10m" in capsys.readouterr().err
    assert Computing().wants_spark([storage], quiet=True)
    assert capsys.readouterr().err == ""


def test_the_estimate_is_a_trial_of_the_largest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = build_directory(tmp_path / "storage", {0: 400})
    monkeypatch.setattr(engines, "WORTH_A_TRIAL", 0)
    seconds, size = engines._estimate([storage])
    assert size == sum(one.stat().st_size for one in storage.glob("*/*.seg"))
    assert 0 < seconds < engines.ONE_MINUTE
