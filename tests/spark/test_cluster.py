"""A real standalone cluster with two workers on the loopback, and Spark Connect in front of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.running_cluster import Cluster, running_cluster
from waltzctl.engine.spark.worker_python import write_launcher

pytestmark = pytest.mark.xdist_group("spark-cluster")  # it has processes of its own

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


PYTHON = ""
"""What workers are started with."""


@pytest.fixture(scope="module", autouse=True)
def python(tmp_path_factory: pytest.TempPathFactory) -> None:
    global PYTHON
    PYTHON = str(write_launcher(tmp_path_factory.mktemp("python"), daemon=False))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, as a command or a script has one; workers get no path to this checkout from it."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": PYTHON,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def beside(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of a program of somebody's, in its own directory, with waltzctl installed as it is."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": PYTHON, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run([sys.executable, *arguments], cwd=directory, env=environment, capture_output=True, text=True)


def findings(output: str) -> list[dict[str, object]]:
    return [one for one in map(json.loads, output.splitlines()) if one["type"] == "finding"]


CORPUS = [str(one.relative_to(ROOT)) for one in sorted(ROOT.glob("fixtures/*/storage"))]


def test_verify_on_a_cluster_of_two_workers_finds_what_verify_finds_here(cluster: Cluster) -> None:
    common = ["-m", "waltzctl", "verify", *CORPUS, "--format", "ndjson"]
    there = run(*common, "--master", cluster.master, "--conf", "spark.executor.memory=512m")
    here = run(*common, "--engine", "local")
    assert there.returncode == here.returncode == 4, there.stderr
    assert findings(there.stdout) == findings(here.stdout) != []
    for worker in cluster.workers:
        worker.wait_for(r"Asked to (launch executor)")


def test_verify_through_spark_connect_finds_the_same(cluster: Cluster) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's client libraries are not installed")
    common = ["-m", "waltzctl", "verify", *CORPUS, "--format", "ndjson"]
    with cluster.connect_server() as url:
        there = run(*common, "--engine", "spark", "--master", url)
    assert there.returncode == 4, there.stderr
    assert findings(there.stdout) == findings(run(*common, "--engine", "local").stdout)


@pytest.mark.parametrize("master", ["sc://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2"])
def test_a_master_that_is_not_there_is_named_at_once(master: str) -> None:
    done = run("-m", "waltzctl", "verify", CORPUS[0], "--master", master)
    assert done.returncode == 14
    assert f"{master}: nobody answers" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--master", "nonsense"], "Master"),
        (["--conf", "spark.driver.memory=banana"], "banana"),
    ],
)
def test_why_java_does_not_start_is_said_in_one_line(options: list[str], why: str) -> None:
    done = run("-m", "waltzctl", "verify", CORPUS[0], "--engine", "spark", *options)
    assert done.returncode == 14
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert "Traceback" not in done.stderr


_NAMESAKES = """
import sys
from pathlib import Path
import engine, formats
from pyspark.sql import SparkSession
from waltzctl import WaltzDataSource, write_archive

assert engine.MINE and formats.MINE, "the job's own modules"
builder = SparkSession.builder.master(sys.argv[1]).config("spark.executor.memory", "512m")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
for module in (engine, formats):
    spark.sparkContext.addPyFile(module.__file__)
if not sys.argv[1].startswith("local"):
    spark.sparkContext.addPyFile(str(write_archive(Path(sys.argv[2]))))
    spark.dataSource.register(WaltzDataSource)
frame = spark.read.format("waltz").load(sys.argv[3])
print("COUNT", frame.where("finding is null").count())


def mine(batches):
    import engine, formats, pyarrow
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"mine": [engine.MINE and formats.MINE]})


def where(batches):
    import pyarrow, waltzctl.engine
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"code": [waltzctl.engine.__file__]})


code = spark.range(0, 2, 1, 2).mapInArrow(where, "code string").collect()
print("CODE", all(sys.argv[1].startswith("local") or "code.zip" in row.code for row in code))
print("MINE", all(row.mine for row in spark.range(0, 2, 1, 2).mapInArrow(mine, "mine boolean").collect()))
spark.stop()
"""


@pytest.mark.parametrize("master", ["local[2]", "cluster"])
def test_a_job_with_modules_of_its_own_named_engine_and_formats_reads_waltz(
    master: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Embedded, Spark's discovery finds the source; on a cluster its code travels beside the job's modules."""
    for name in ("engine", "formats"):
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    script = tmp_path / "job.py"
    script.write_text(_NAMESAKES)
    if master == "cluster":
        master = request.getfixturevalue("cluster").master
    path = ROOT / "fixtures" / "clean-released" / "storage"
    done = beside(tmp_path, str(script), master, str(tmp_path / "code.zip"), str(path))
    assert done.returncode == 0, done.stderr
    records = json.loads(run("-m", "waltzctl", "verify", str(path), "--format", "json").stdout)[-1]["records"]
    assert f"COUNT {records}" in done.stdout
    assert "MINE True" in done.stdout
    assert "CODE True" in done.stdout
    started = beside(
        tmp_path,
        "-c",
        "import runpy, sys; sys.argv[1:] = ['--version']; runpy.run_module('waltzctl', run_name='__main__')",
    )
    assert started.returncode == 0, started.stderr
