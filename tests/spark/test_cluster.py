"""A real standalone cluster with two workers on the loopback, and Spark Connect in front of it.

One program has a session on the cluster, runs a command in it, and serves Spark Connect for a command in a process of its own: a
start of Java costs seconds, and none of this needs one more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.running import Answer, invoke
from tests.reserved_ports import reserved_ports
from tests.spark import class_archive
from tests.spark.running_cluster import Cluster, Talking, running_cluster
from waltzctl.engine.spark.worker_python import write_launcher

pytestmark = pytest.mark.xdist_group("spark-cluster")  # it has processes of its own

PROGRAM_TURN = pytest.mark.turns(8, place=1)  # all that need the program

ROOT = Path(__file__).resolve().parents[2]
CORPUS = [str(one) for one in sorted(ROOT.glob("fixtures/*/storage"))]
CLEAN = str(ROOT / "fixtures" / "clean-released" / "storage")
PROGRAM = """
import json
import sys

import engine, formats

installed, master, settings, storage, *arguments = sys.argv[1:]
sys.path.insert(1, installed)
from waltzctl import spark_session
from waltzctl.__main__ import main

assert engine.MINE and formats.MINE, "the job's own modules"
spark = spark_session(master, json.loads(settings))
for module in (engine, formats):
    spark.sparkContext.addPyFile(module.__file__)


def mine(batches):
    import engine, formats, pyarrow
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"mine": [engine.MINE and formats.MINE]})


def where(batches):
    import pyarrow, waltzctl.engine
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"code": [waltzctl.engine.__file__]})


count = spark.read.format("waltz").load(storage).where("finding is null").count()
code = [row.code for row in spark.range(0, 2, 1, 2).mapInArrow(where, "code string").collect()]
own = [row.mine for row in spark.range(0, 2, 1, 2).mapInArrow(mine, "mine boolean").collect()]
print("READ", json.dumps({"count": count, "code": code, "own": own}), flush=True)
sys.stdin.readline()
print("VERIFY", flush=True)
main([*arguments, "--master", master])
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a program of somebody's; workers get no path to this checkout from it."""
    python = str(write_launcher(tmp_path_factory.mktemp("python"), daemon=False))
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    java = dict.fromkeys(class_archive.VARIABLES, class_archive.java_options())
    return kept | java | {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}


class Program(Talking):
    """The program, with Spark Connect at `port`."""

    def __init__(self, cluster: Cluster, installed: Path, directory: Path, environment: dict[str, str]) -> None:
        (self.port,) = reserved_ports(1)
        settings = {
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "1",
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
        }
        directory.mkdir()
        for name in ("engine", "formats"):
            (directory / f"{name}.py").write_text("MINE = True\n")
        (directory / "program.py").write_text(PROGRAM)
        arguments = [
            str(installed),
            cluster.master,
            json.dumps(settings),
            CLEAN,
            "verify",
            *CORPUS,
            "--format",
            "ndjson",
        ]
        super().__init__([sys.executable, "program.py", *arguments], directory, environment)


@pytest.fixture(scope="module")
def program(
    cluster: Cluster, installed: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    running = Program(cluster, installed, tmp_path_factory.mktemp("program") / "here", environment)
    yield running
    running.stop()


def findings(output: str) -> list[dict[str, object]]:
    return [one for one in map(json.loads, output.splitlines()) if one["type"] == "finding"]


@pytest.fixture(scope="module")
def here() -> Answer:
    return invoke("verify", *CORPUS, "--format", "ndjson", "--engine", "local")


@PROGRAM_TURN
def test_a_job_with_modules_of_its_own_named_engine_and_formats_reads_waltz(cluster: Cluster, program: Program) -> None:
    """The code travels beside the job's modules, to both workers."""
    said = json.loads(program.wait_for(r"^READ (.*)"))
    assert said["count"] == json.loads(invoke("verify", CLEAN, "--format", "json").out)[-1]["records"]
    assert len(said["code"]) == 2
    assert all("waltzctl-code-" in one for one in said["code"]), said["code"]
    assert said["own"] == [True, True]
    assert all(cluster.executors(worker) for worker in cluster.workers), "a worker had nothing to do"


@PROGRAM_TURN
def test_verify_through_spark_connect_finds_the_same(
    program: Program, here: Answer, environment: dict[str, str]
) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's client libraries are not installed")
    program.wait_for("^(READ)")
    url = f"sc://127.0.0.1:{program.port}"
    command = [sys.executable, "-m", "waltzctl", "verify", *CORPUS, "--format", "ndjson", "--engine", "spark"]
    there = subprocess.run(
        [*command, "--master", url], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert there.returncode == 4, there.stderr
    assert findings(there.stdout) == findings(here.out)


@PROGRAM_TURN
def test_a_table_is_written_through_spark_connect_once(
    program: Program, environment: dict[str, str], tmp_path: Path
) -> None:
    """What the README says of ``dump --export parquet``; Connect knows fewer names of modes than Spark itself."""
    pytest.importorskip("grpc", reason="Spark Connect's client libraries are not installed")
    program.wait_for("^(READ)")
    table, storage = tmp_path / "table", str(ROOT / "fixtures" / "flipped-bit" / "storage")
    command = [sys.executable, "-m", "waltzctl", "dump", storage, "--export", "parquet", "-o", str(table)]
    command += ["--master", f"sc://127.0.0.1:{program.port}"]
    answers = [
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        for _ in range(2)
    ]
    assert [one.returncode for one in answers] == [4, 2], answers
    assert f"{table}: 19 rows, 1 finding." in answers[0].stderr
    assert "exists already" in answers[1].stderr
    assert sum(pq.read_metadata(one).num_rows for one in table.glob("*.parquet")) == 20


@PROGRAM_TURN
def test_verify_on_a_cluster_of_two_workers_finds_what_verify_finds_here(program: Program, here: Answer) -> None:
    program.wait_for("^(READ)")
    assert program.end("\n") == here.status == 4, program.lines
    _, there = "".join(program.lines).split("VERIFY\n")
    assert findings(there) == findings(here.out) != []


@pytest.mark.parametrize("master", ["sc://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2"])
def test_a_master_that_is_not_there_is_named_at_once(master: str) -> None:
    done = invoke("verify", CORPUS[0], "--master", master)
    assert done.status == 14
    assert f"{master}: nobody answers" in done.err


@pytest.mark.turns(10)
def test_why_java_does_not_start_is_said_in_one_line() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "waltzctl", "verify", CORPUS[0], "--engine", "spark"]
    command += ["--conf", "spark.driver.memory=banana"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 14
    assert "banana" in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert "Traceback" not in done.stderr
