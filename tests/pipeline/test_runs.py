"""A pipeline over three replicas, one damaged and one behind: its tables against what was written, after kills as well."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyspark

from tests.builders import build_directory
from tests.pipeline.test_committed_marks import OPEN, metadata
from tests.reserved_ports import reserved_ports
from tests.spark import class_archive
from tests.spark.nodes import served
from tests.spark.object_store import running_store
from tests.spark.streaming import damage
from tests.turns import is_todays
from waltzctl.engine.pipeline.project_creation import create_project
from waltzctl.engine.spark.java import own_java, packaged_java
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.turns(8, place=0)]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 1200.0
"""Seconds after which a run that says nothing is given up; nothing is measured by it."""
BAD = 70
"""The transaction of partition 0 that is damaged in the second replica."""
Row = dict[str, Any]
Tables = dict[str, list[Row]]
CHANGED = """\
import json
from datetime import datetime, timezone

SCHEMA = "at TIMESTAMP, key STRING, value BIGINT"
KEY = ("key",)


def decode(header, data):
    said = json.loads(data)
    return {"at": datetime.fromtimestamp(said["value"], timezone.utc), **said}
"""
"""A decoder that makes a column more in front of those of the sample, and another type."""


def record(partition: int, number: int) -> Record:
    said = json.dumps({"key": f"k{number % 7}", "value": number}) if number % 13 != 5 else "no JSON"
    return Record.make(number, RequestId(1 + number % 3, 2, partition, number), number % 4, said.encode())


def by_the_sample(number: int) -> Row:
    """What the sample's decoder makes of a transaction."""
    return {"key": f"k{number % 7}", "value": str(number)}


class Cluster:
    """Three replicas of two partitions; `ends`: how many transactions each has of each."""

    def __init__(self, directory: Path) -> None:
        self.nodes = [directory / f"node-{number}" for number in (1, 2, 3)]
        self.mark = -1
        self.ends: list[tuple[int, int]] = []

    def write(self, ends: list[tuple[int, int]], mark: int) -> None:
        """Write every replica anew, with the same records as before in front.  None knows a higher mark than it has records."""
        assert ends[1][0] > BAD, "the damaged one is there"
        self.ends, self.mark = ends, mark
        for node, counts in zip(self.nodes, ends, strict=True):
            if node.exists():
                subprocess.run(["rm", "-r", str(node)], check=True)
            segments = {
                partition: [
                    [record(partition, number) for number in range(first, min(first + 50, count))]
                    for first in range(0, count, 50)
                ]
                for partition, count in enumerate(counts)
            }
            build_directory(node, segments, local_low_water_mark=min(mark, min(counts) - 1))
        damage(self.nodes[1], 50, BAD)

    def holds(self, node: int, partition: int, number: int) -> bool:
        return number < self.ends[node][partition] and (node, partition, number) != (1, 0, BAD)

    def agreed(self) -> list[tuple[int, int]]:
        """Partition and id of every transaction that must be there."""
        return [
            (p, n) for p in (0, 1) for n in range(self.mark + 1) if any(self.holds(node, p, n) for node in (0, 1, 2))
        ]


class Runner:
    """See `tests.pipeline.runner`; killed at the end, or before."""

    def __init__(self, project: Path) -> None:
        class_archive.use()
        self.project = project
        self._count = 0
        self._log = (project.parent / "runner.log").open("ab")
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.runner", str(project)], cwd=ROOT, env=environment,
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip

    def ask(self, **options: object) -> Path:
        """Have a run begun; gives the file in which the answer will be."""
        self._count += 1
        asked = self.project.parent / f"run-{self._process.pid}-{self._count}.json"
        asked.write_text(json.dumps(options))
        assert self._process.stdin is not None
        self._process.stdin.write(f"{asked}\n".encode())
        self._process.stdin.flush()
        return asked.with_suffix(".answer")

    def run(self, **options: object) -> Row:
        """A run, to its end."""
        answer = self.ask(**options)
        self.wait(answer)
        found: Row = json.loads(answer.read_text())
        return found

    def wait(self, file: Path) -> None:
        begun = time.monotonic()
        while not file.exists():
            if self._process.poll() is not None or time.monotonic() - begun > PATIENCE:
                raise AssertionError((self.project.parent / "runner.log").read_text(errors="replace")[-4000:])
            time.sleep(0.02)

    def kill(self) -> None:
        """As by ``kill -9``, Java and all."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin and self._process.stdin.close()  # type: ignore[func-returns-value]
        self._log.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


@pytest.fixture(scope="module")
def cluster(place: Path) -> Cluster:
    made = Cluster(place)
    made.write([(120, 60), (120, 60), (120, 30)], 55)
    return made


@pytest.fixture(scope="module")
def project(place: Path, cluster: Cluster) -> Path:
    create_project(place / "lake", [str(one) for one in cluster.nodes])
    return place / "lake"


@pytest.fixture(scope="module")
def killed(project: Path, cluster: Cluster, request: pytest.FixtureRequest) -> bool:
    """Whether the first run was killed: every second time that these tests come."""
    if request.config.getoption("--long") or is_todays(0, 16):
        kill_first_run(project)
        return True
    return False


@pytest.fixture(scope="module")
def runner(project: Path, cluster: Cluster, killed: bool) -> Iterator[Runner]:
    """Where one was killed, it comes after that; meanwhile every replica became longer."""
    cluster.write([(180, 160), (180, 160), (180, 56)], 140)
    made = Runner(project)
    yield made
    made.kill()


def kill_first_run(project: Path) -> None:
    """Run it until the first batch of `transactions` is planned, and not yet done."""
    killed = Runner(project)
    try:
        answer = killed.ask()
        planned = project / "storage" / "_checkpoints" / "spark_catalog" / "default" / "transactions" / "transactions"
        begun = time.monotonic()
        while not (planned / "0" / "offsets" / "0").exists() and not answer.exists():
            assert time.monotonic() - begun < PATIENCE
            time.sleep(0.01)
    finally:
        killed.kill()
    assert not answer.exists(), "this was no kill"


@pytest.fixture(scope="module")
def found(runner: Runner) -> Row:
    """What came of its run: it goes on where one that was killed had been, and reads what was appended behind that."""
    return runner.run(complete=True)


def check(
    tables: Tables,
    cluster: Cluster,
    *,
    replicas_at: int,
    names: list[str] | None = None,
    decoded: Callable[[int], Row] = by_the_sample,
) -> None:
    """Every table against what was written; `names`: of the sources, where they are not the directories.

    `replicas_at`: the mark of the run before, up to which replicas are not compared.  `decoded`: what the decoder makes.
    """
    names = names or [str(one) for one in cluster.nodes]
    records = [
        (r["node"], r["partition"], r["transaction_id"], r["data"]) for r in tables["records"] if r["finding"] is None
    ]
    expected = [
        (names[node], partition, number, record(partition, number).data.hex())
        for node in (0, 1, 2)
        for partition in (0, 1)
        for number in range(cluster.ends[node][partition])
        if cluster.holds(node, partition, number)
    ]
    assert sorted(records) == sorted(expected)
    agreed = {(r["partition"], r["transaction_id"]): r for r in tables["transactions"]}
    assert len(agreed) == len(tables["transactions"])
    assert sorted(agreed) == cluster.agreed()
    state: dict[tuple[str, int], tuple[int, Any]] = {}
    for (partition, number), row in sorted(agreed.items()):
        wanted = record(partition, number)
        assert (row["data"], row["header"]) == (wanted.data.hex(), wanted.header)
        assert tuple(row["request_id"].values()) == (1 + number % 3, 2, partition, number)
        if number > replicas_at:
            assert row["replicas"] == sum(cluster.holds(node, partition, number) for node in (0, 1, 2))
        if number % 13 == 5:
            assert row["decoded"] is None
            assert "JSONDecodeError" in row["refused"]
        else:
            assert row["decoded"] == decoded(number)
            state[f"k{number % 7}", partition] = number, decoded(number)["value"]
    found = {(r["key"], r["partition"]): (r["transaction_id"], r["value"]) for r in tables["state"]}
    assert len(found) == len(tables["state"])
    assert found == state
    history = sorted((r["partition"], r["transaction_id"]) for r in tables["state_history"])
    assert history == [one for one in cluster.agreed() if one[1] % 13 != 5]
    quarantine = sorted(
        (r["finding"], r["node"] or "", r["partition"], r["transaction_id"]) for r in tables["quarantine"]
    )
    refused = [("decoder-refused", "", p, n) for p, n in cluster.agreed() if n % 13 == 5]
    told = [one for one in quarantine if one[0] != "acknowledged-missing"]
    assert told == sorted([*refused, ("record-checksum", names[1], 0, BAD)])
    for row in tables["completeness"]:
        assert row["present"] + row["missing"] + row["damaged"] + row["behind"] == row["expected"]
    assert len(tables["completeness"]) == 6
    by_segment = [r["records"] for r in tables["activity"] if r["dimension"] == "segment"]
    by_client = [r["records"] for r in tables["activity"] if r["dimension"] == "client"]
    assert sum(by_segment) == sum(by_client) == len(expected)


def test_what_is_written_and_appended_comes_once_even_where_the_run_was_killed(
    found: Row, cluster: Cluster, killed: bool
) -> None:
    assert "error" not in found, found
    check(found["tables"], cluster, replicas_at=55 if killed else -1)


def test_a_run_tells_gaps_and_what_to_do_about_them(found: Row, cluster: Cluster) -> None:
    names = [str(one) for one in cluster.nodes]
    assert found["status"] == "repairable"
    assert found["gaps"] == [
        [names[1], 0, "damaged", BAD, BAD],
        [names[2], 1, "behind", 56, 159],
    ]
    remedies = {row["finding"]: row["remedy"] for row in found["tables"]["quarantine"]}
    assert remedies["record-checksum"] == f"waltzctl recover {names[1]} --partition 0 --from {names[0]}"
    assert any("completeness is COMPLETED" in line or "completeness has COMPLETED" in line for line in found["said"])


@pytest.mark.long
def test_a_table_whose_checkpoint_is_gone_begins_anew_and_misses_nothing(
    runner: Runner, cluster: Cluster, project: Path, found: Row
) -> None:
    """Spark counts its batches from 0 again, and the table passes over those that it has: what was appended was lost."""
    assert "error" not in found, found
    for table in ("records", "transactions"):
        shutil.rmtree(project / "storage" / "_checkpoints" / "spark_catalog" / "default" / table)
    cluster.write([(190, 170), (190, 170), (190, 56)], 150)
    found = runner.run()
    assert "error" not in found, found
    check(found["tables"], cluster, replicas_at=-1)


@pytest.mark.long
def test_a_table_that_is_read_anew_by_another_decoder_has_its_columns_and_the_others_stay(
    runner: Runner, cluster: Cluster, project: Path, found: Row
) -> None:
    """What is made of it begins anew with it; of the others nothing comes twice, as there is nothing new."""
    assert "error" not in found, found
    (project / "decoder.py").write_text(CHANGED)
    found = runner.run(full_refresh=["transactions"])
    assert "error" not in found, found
    check(
        found["tables"], cluster, replicas_at=-1,
        decoded=lambda number: {"at": float(number), "key": f"k{number % 7}", "value": number},
    )  # fmt: skip


@pytest.mark.long  # a run takes half a minute; tests/pipeline/test_streams.py has the rule
def test_a_log_that_was_cut_ends_the_run_with_table_and_remedy(runner: Runner, cluster: Cluster, project: Path) -> None:
    cluster.write([(100, 160), (180, 160), (180, 56)], 90)
    found = runner.run()
    assert found["status"] == "refused"
    assert "table " in found["error"]
    assert "it was truncated" in found["error"]
    assert f"waltzctl pipeline run {project} --full-refresh" in found["error"]


@pytest.mark.long
def test_a_directory_an_object_store_and_a_live_node_are_read_side_by_side(tmp_path: Path) -> None:
    """Twice: what came meanwhile, in the store by objects that are replaced by longer ones, comes once."""
    pytest.importorskip("moto.server", reason="no S3-compatible server is installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    cluster = Cluster(tmp_path)
    with running_store() as store:
        cluster.write([(80, 60), (80, 60), (80, 50)], 55)
        sources = [str(cluster.nodes[0]), store.upload(cluster.nodes[1], "s3://lake/node-2")]
        (admin_port,) = reserved_ports(1)
        with served(cluster.nodes[2], admin_port=admin_port) as node:
            sources.append(node.url)
            create_project(tmp_path / "lake", sources)
            options = store.options | {"plaintext": "true"}
            spec = tmp_path / "lake" / "spark-pipeline.yml"
            lines = "".join(f"\n    {name}={value}" for name, value in options.items())
            spec.write_text(spec.read_text().replace('waltz.options: ""', f"waltz.options: |{lines}"))
            found, _ = run_to_its_end(tmp_path / "lake")
            check(found["tables"], cluster, replicas_at=-1, names=sources)
        cluster.write([(120, 90), (120, 90), (120, 80)], 75)
        store.upload(cluster.nodes[1], sources[1])
        with served(cluster.nodes[2], admin_port=admin_port):
            found, _ = run_to_its_end(tmp_path / "lake")
        check(found["tables"], cluster, replicas_at=55, names=sources)


@pytest.mark.long
def test_with_the_metadata_transactions_are_those_that_a_quorum_of_the_open_session_holds(tmp_path: Path) -> None:
    """Twice: what a quorum came to hold meanwhile comes once, and the low-water marks stay where the session began."""
    cluster = Cluster(tmp_path)
    cluster.write([(120, 90), (110, 90), (80, 90)], 40)
    where = metadata(tmp_path / "metadata", [OPEN] * 3, partitions=2)
    create_project(tmp_path / "lake", [str(one) for one in cluster.nodes], metadata=where)
    for ends, mark in (([(120, 90), (110, 90), (80, 90)], 89), ([(140, 130), (140, 130), (80, 90)], 129)):
        cluster.write(ends, 40)
        found, _ = run_to_its_end(tmp_path / "lake")
        agreed = [(r["partition"], r["transaction_id"]) for r in found["tables"]["transactions"]]
        held = {partition: sorted(end[partition] for end in ends)[1] for partition in (0, 1)}
        assert sorted(agreed) == [(partition, number) for partition in (0, 1) for number in range(held[partition])]
        marks = {(r["partition"], r["mark"]) for r in found["tables"]["completeness"]}
        assert marks == {(0, held[0] - 1), (1, mark)}


def of_airflow(lake: Path) -> tuple[list[str], dict[str, str]]:
    """What docs/pipeline.md has for Airflow, as its operator hands it to spark-submit: command and environment."""
    page = (ROOT / "docs" / "pipeline.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (text,) = (one for one in blocks if one.startswith("SparkSubmit"))
    call = ast.parse(text).body[0].value  # type: ignore[attr-defined]
    said = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    for name, value in (("SPARK_CONF_DIR", str(lake / "conf")), ("PYSPARK_PYTHON", sys.executable)):
        assert name in said["env_vars"]
        said["env_vars"][name] = value
    spark = Path(pyspark.__file__).parent
    assert said["application"].endswith("/pyspark/pipelines/cli.py")
    settings = [word for name, value in said.get("conf", {}).items() for word in ("--conf", f"{name}={value}")]
    arguments = [one.replace("/lake/waltz", str(lake)) for one in said["application_args"]]
    command = [str(spark / "bin" / "spark-submit"), "--master", "local[2]", *settings, "--name", "arrow-spark"]
    return [*command, str(spark / "pipelines" / "cli.py"), *arguments], said["env_vars"]


def of_a_shell(lake: Path) -> tuple[list[str], dict[str, str]]:
    program = Path(sys.executable).parent / "spark-pipelines"
    return [str(program), "run"], {"SPARK_CONF_DIR": str(lake / "conf"), "PYSPARK_PYTHON": sys.executable}


@pytest.mark.long
@pytest.mark.parametrize("way", [of_a_shell, of_airflow])
def test_a_run_of_sparks_own_program_alone_does_the_same_work(
    tmp_path: Path, way: Callable[[Path], tuple[list[str], dict[str, str]]]
) -> None:
    """As docs/pipeline.md has it; a run by waltzctl goes on where that was."""
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            asked.bind(("127.0.0.1", 15002))
        except OSError:
            pytest.skip("another program has the port that spark-pipelines takes")
    cluster = Cluster(tmp_path)
    cluster.write([(80, 80), (80, 80), (80, 72)], 55)
    lake = tmp_path / "lake"
    create_project(lake, [str(one) for one in cluster.nodes])
    command, said = way(lake)
    java = own_java() or packaged_java()
    assert java is not None
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(java.resolve().parent.parent), "PYTHONPATH": str(ROOT), **said,
    }  # fmt: skip
    done = subprocess.run(command, cwd=lake, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr
    first = {one: one.stat().st_mtime_ns for one in (lake / "records").glob("*.parquet")}
    assert first
    cluster.write([(120, 110), (120, 110), (120, 100)], 90)
    found, _ = run_to_its_end(lake)
    assert {one: one.stat().st_mtime_ns for one in (lake / "records").glob("*.parquet")}.items() > first.items()
    check(found["tables"], cluster, replicas_at=55)


def run_to_its_end(project: Path) -> tuple[Row, float]:
    """By a process of its own; its answer, and the seconds that it took from its start on."""
    begun = time.monotonic()
    runner = Runner(project)
    try:
        found = runner.run()
    finally:
        runner.kill()
    assert "error" not in found, found
    return found, time.monotonic() - begun


def comparable(tables: Tables) -> dict[str, list[str]]:
    """Rows to be compared; without what hangs on batches: what was counted in which, and how many copies there were by then."""
    return {
        name: sorted(json.dumps({key: row[key] for key in sorted(row) if key != "replicas"}) for row in rows)
        for name, rows in tables.items()
        if name != "tallies"
    }


@pytest.mark.long
def test_twenty_kills_leave_the_tables_of_an_undisturbed_run(tmp_path: Path) -> None:
    """A kill comes in each twentieth of the time that a run takes, from Java's start to the last table."""
    cluster = Cluster(tmp_path)
    chance = random.Random(5)
    cluster.write([(80, 80), (80, 80), (80, 80)], 40)
    create_project(tmp_path / "lake", [str(one) for one in cluster.nodes])
    _, span = run_to_its_end(tmp_path / "lake")
    moments = [span * (number + chance.random()) / 20 for number in range(20)]
    chance.shuffle(moments)
    ended = 0
    for kill, moment in enumerate(moments):
        end = 100 + 20 * kill
        cluster.write([(end, end), (end, end), (end, end - 10)], end - 20)
        runner = Runner(tmp_path / "lake")
        answer = runner.ask()
        time.sleep(moment)
        runner.kill()
        if answer.exists():
            assert "error" not in json.loads(answer.read_text())
            ended += 1
    assert ended < 10, "these were no kills"
    found, _ = run_to_its_end(tmp_path / "lake")
    check(found["tables"], cluster, replicas_at=cluster.mark)
    create_project(tmp_path / "calm", [str(one) for one in cluster.nodes])
    calm, _ = run_to_its_end(tmp_path / "calm")
    assert comparable(found["tables"]) == comparable(calm["tables"])
