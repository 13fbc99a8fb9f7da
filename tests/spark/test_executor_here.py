"""What the executor makes of tasks, answers, errors and interrupts; `test_spark_executor` has Spark behind it."""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import re
import socket
import sys
import threading
import types
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
from pyspark.errors import PySparkException

from tests.spark.local_spark import LocalSpark, local_session
from waltzctl.engine.errors import ClusterError, DiskReadError, MismatchError
from waltzctl.engine.spark import handshake, progress_messages, shipping, spark_executor
from waltzctl.engine.spark.progress_messages import MessageAddress, ProgressSender, Receiver
from waltzctl.engine.spark.spark_errors import first_line, of_spark, said_at_start
from waltzctl.engine.spark.spark_executor import FLAT, PACKET, SparkExecutor, do_packets, pack
from waltzctl.engine.spark.spark_session import SparkOptions


def _square(task: int) -> int:
    return task * task


def _where(task: int) -> str:
    return f"{os.getcwd()} {task}"


def _fail(task: int) -> int:
    if task >= 5:
        raise DiskReadError("/data/x.seg", task, OSError(5, "Input/output error"))
    return task


def _crash(task: int) -> int:
    raise ZeroDivisionError("of no kind that is known")


class Heard:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def start(self, what: str, total: int) -> None:
        self.said.append((what, total))

    def advance(self, amount: int) -> None:
        self.said.append(amount)


def test_results_come_in_the_order_of_the_tasks_wave_by_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_executor, "WAVE", 2)
    spark, heard = LocalSpark(3), Heard()
    executor = SparkExecutor(local_session(spark), heard)
    assert executor.parallelism == 3
    weights = [1 << 20] * 9
    assert list(executor.map(_square, range(9), weights=weights, what="square")) == [n * n for n in range(9)]
    assert spark.packets == [2, 1]
    assert heard.said[0] == ("square", 9 << 20)
    assert sum(heard.said[1:]) == 9 << 20
    assert [one[0] for one in spark.said] == ["group"] * 2
    assert spark.said[0][1].startswith("waltzctl-")
    assert spark.said[0][1] != spark.said[1][1]
    assert spark.said[0][2:] == ("waltzctl", {"interruptOnCancel": True})
    assert list(executor.map(_square, [], weights=[], what="nothing")) == []


def test_tasks_run_where_the_session_was_opened_and_workers_stand_where_they_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    worker = pickle.loads(pickle.dumps((do_packets, _where, [pickle.dumps([(1, 7), (2, 7)])], str(tmp_path))))
    monkeypatch.chdir("/")
    (batch,) = worker[0](*worker[1:], None, iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    assert pickle.loads(batch.to_pydict()["result"][0]) == [f"{tmp_path} 1", f"{tmp_path} 2"]
    assert (batch.schema.names, batch.to_pydict()["packet"]) == (["packet", "failed", "result"], [0])
    assert os.getcwd() == "/"
    (batch,) = do_packets(
        _where, [pickle.dumps([(1, 7)])], "/nowhere", None, iter([pa.RecordBatch.from_pydict({"id": [0]})])
    )
    assert pickle.loads(batch.to_pydict()["result"][0]) == ["/ 1"]


def test_names_that_are_relative_stay_right_where_a_worker_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark puts the archive of our code on a worker's path relative to its directory."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("of_an_archive")
    module.__path__ = ["code.zip/of_an_archive"]
    monkeypatch.setitem(sys.modules, "of_an_archive", module)
    monkeypatch.setattr(sys, "path", [*sys.path, "code.zip"])
    list(do_packets(_where, [pickle.dumps([])], "/", None, iter([pa.RecordBatch.from_pydict({"id": [0]})])))
    assert sys.path[-1] == str(tmp_path / "code.zip")
    assert list(module.__path__) == [str(tmp_path / "code.zip" / "of_an_archive")]


def test_an_error_of_ours_arrives_as_it_was_raised_and_no_result_behind_it() -> None:
    found = SparkExecutor(local_session(LocalSpark(5))).map(_fail, range(10), weights=[1] * 10, what="fail")
    assert [next(found) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(DiskReadError, match="cannot read at offset 5") as caught:
        next(found)
    assert caught.value.offset == 5


def test_what_spark_gives_up_is_an_error_of_the_cluster_and_any_other_is_itself() -> None:
    spark = LocalSpark(fails=PySparkException("called o1.save.\n: a.B: disk full\n\tat x"))
    said = "local[2]: the job was given up: a.B: disk full"
    with pytest.raises(ClusterError, match=re.escape(said)):
        list(SparkExecutor(local_session(spark)).map(_square, [1], weights=[1], what="x"))
    with pytest.raises(ZeroDivisionError, match="of no kind"):
        list(SparkExecutor(local_session(LocalSpark())).map(_crash, [1], weights=[1], what="x"))


@pytest.mark.parametrize(
    ("master", "said"), [("local[2]", ["group", "cancel group"]), ("sc://h:1", ["tag", "interrupt tag"])]
)
def test_an_interrupt_cancels_the_job_by_its_name(master: str, said: list[str]) -> None:
    class Interrupting(Heard):
        def advance(self, amount: int) -> None:
            super().advance(amount)
            if len(self.said) == 2:  # behind the start
                raise KeyboardInterrupt

    spark = LocalSpark()
    spark.before = spark.cancelled.wait
    with pytest.raises(KeyboardInterrupt):
        list(SparkExecutor(local_session(spark, master), Interrupting()).map(_square, [1], weights=[1], what="x"))
    assert [one[0] for one in spark.said] == said
    assert spark.said[0][1] == spark.said[1][1]


@dataclass
class Told:
    """A receiver that was told so much."""

    bytes: int

    def done(self) -> int:
        return self.bytes


@pytest.mark.parametrize(
    ("master", "stages", "told", "first"),
    [
        ("local[2]", [(10, 4), None, (10, 2)], None, 300),
        ("local[2]", [(10, 4), None, (10, 2)], 299, 300),
        ("local[2]", [(10, 4), None, (10, 2)], 301, 301),
        ("local[2]", [(10, 4)], 5000, 1000),
        ("local[2]", [], None, 0),
        ("local[2]", [None], 7, 7),
        ("sc://h:1", [(10, 4)], None, 0),
        ("sc://h:1", [(10, 4)], 7, 7),
    ],
)
def test_progress_is_what_ended_tasks_or_workers_tell_whichever_is_more(
    monkeypatch: pytest.MonkeyPatch, master: str, stages: list[tuple[int, int] | None], told: int | None, first: int
) -> None:
    """And never goes back, nor beyond the whole."""
    monkeypatch.setattr(spark_executor, "_PROGRESS_INTERVAL", 0.005)
    spark, looked, heard = LocalSpark(stages=stages), threading.Event(), Heard()
    heard_twice = threading.Event()

    def advance(amount: int) -> None:
        heard.said.append(amount)
        if len(heard.said) == 1:
            spark.stages = []
            looked.set()
        heard_twice.set() if len(heard.said) > 1 else None

    executor = SparkExecutor(local_session(spark, master), SimpleNamespace(advance=advance))
    receiver: Any = None if told is None else Told(told)
    assert executor.run(lambda _: looked.wait() and heard_twice.wait(), weight=1000, receiver=receiver)
    assert heard.said[0] == first
    assert set(heard.said[1:-1]) == {0}
    assert sum(heard.said) == 1000


@pytest.mark.parametrize(
    ("weights", "parallelism", "expected"),
    [
        ([], 4, []),
        ([0], 0, [1]),
        ([0] * 6, 3, [2, 2, 2]),
        ([0, 0, 0], 2, [2, 1]),
        ([1, 0, 0], 2, [1, 2]),
        ([0, 0, 1], 2, [2, 1]),
        ([0] * 7, 2, [4, 3]),
        ([FLAT * 9] + [0] * 10, 2, [1, 10]),
        ([0] * 10 + [FLAT * 9], 2, [10, 1]),
        ([PACKET - FLAT] * 4, 4, [1, 1, 1, 1]),
        ([PACKET - FLAT] * 5, 4, [1, 1, 1, 1, 1]),
        ([PACKET] * 4, 2, [1, 1, 1, 1]),
        ([PACKET // 4] * 5, 1, [2, 1, 2]),
        ([PACKET // 4 - FLAT] * 4, 1, [4]),
    ],
)
def test_neighbours_are_packed_into_even_shares(weights: list[int], parallelism: int, expected: list[int]) -> None:
    packets = pack(weights, parallelism)
    assert [len(one) for one in packets] == expected
    assert [number for one in packets for number in one] == list(range(len(weights)))


# ---- how far workers are ------------------------------------------------------------------------------------------------


def test_a_worker_tells_bytes_and_a_packet_that_begins_again_does_not_count_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.2]
    monkeypatch.setattr(progress_messages.time, "monotonic", lambda: clock[0])
    with Receiver("local[2]") as receiver:
        address = receiver.address
        assert address is not None
        assert (address.host, len(address.token)) == ("127.0.0.1", 16)
        assert address.port >= 1024
        assert receiver.done() == 0
        one = ProgressSender(address, 3)
        one.advance(10)
        assert receiver.done() == 10
        one.advance(5)  # too soon to be told
        assert receiver.done() == 10
        clock[0] = 0.4
        one.advance(1)
        assert receiver.done() == 16
        ProgressSender(address, 3).advance(4)  # a second attempt of the same packet
        ProgressSender(address, 4).advance(7)
        ProgressSender(MessageAddress(address.host, address.port, bytes(16)), 9).advance(50)  # of another job
        ProgressSender(None, 9).advance(50)
        assert receiver.done() == 23
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            for length in (27, 29):
                line.sendto((address.token + b"\1" * 13)[:length], (address.host, address.port))
        assert receiver.done() == 23


@pytest.mark.parametrize(
    ("master", "asked"),
    [
        ("yarn", None), ("k8s://h:1", None), ("spark://h:7077,i:7077", "h"), ("sc://h:1/;token=x", "h"), ("sc://h", "h"),
        ("sc://h/;token=x", "h"), ("spark://h,i", "h"),
    ],
)  # fmt: skip
def test_workers_are_told_the_address_that_their_master_sees(
    monkeypatch: pytest.MonkeyPatch, master: str, asked: str | None
) -> None:
    connected: list[str] = []

    class Probe(socket.socket):
        def connect(self, address: Any) -> None:
            connected.append(address[0])
            super().connect(("127.0.0.1", address[1]))

    monkeypatch.setattr(progress_messages.socket, "socket", Probe)
    with Receiver(master) as receiver:
        assert receiver.address is not None
        assert receiver.address.host == "127.0.0.1"
    assert connected == ([] if asked is None else [asked])


def test_without_an_address_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> str:
        raise OSError("no way there")

    monkeypatch.setattr(progress_messages, "_own_address", nothing)
    with Receiver("spark://h:1") as receiver:
        assert receiver.address is None
        assert receiver.done() == 0


# ---- the round over the workers, and what an error says -------------------------------------------------------------------


def test_every_worker_says_what_it_has_and_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = LocalSpark(3)
    mine = handshake.describe_worker(0)
    begun: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(handshake, "describe_worker", lambda task: begun.append(task) or mine)
        handshake.check_workers(local_session(spark))
    assert (spark.packets, sorted(begun)) == ([3], [0, 1, 2, 3, 4, 5])
    assert mine == handshake.Worker(platform.node(), platform.python_version(), np.__version__, shipping.__file__)
    for version, fits in (("3.99.1", False), (f"{platform.python_version().rpartition('.')[0]}.99", True)):
        monkeypatch.setattr(platform, "python_version_tuple", lambda said=version: tuple(said.split(".")))
        if fits:
            handshake.check_workers(local_session(spark))
            continue
        with pytest.raises(MismatchError, match=f"its Python is {re.escape(platform.python_version())}, this one is"):
            handshake.check_workers(local_session(spark))


def test_what_an_error_of_a_worker_or_of_java_says_in_one_line() -> None:
    trace = "Traceback (most recent call last):"
    for said, shown in (
        (f"job aborted\n{trace}\n  File x\nValueError: no\nmore", "ValueError: no"),
        (f"job aborted\n{trace}\n  File x", "job aborted"),
        ("called o1.\n: a.B: aborted\nCaused by: c.D: one\n  Caused by: e.F: full ", "Caused by: e.F: full"),
        ("called o1.\n: a.B: aborted\n: e.F: full", "e.F: full"),
        ("\n  \nplain\nmore", "plain"),
        (" \n", "RuntimeError"),
    ):
        assert first_line(RuntimeError(said)) == shown
    assert of_spark(PySparkException("x"))
    assert not of_spark(RuntimeError("x"))
    for module, of in (("py4j.protocol", True), ("grpc._channel", True), ("pyarrow.lib", False)):
        assert of_spark(type("Error", (Exception,), {"__module__": module})()) == of


def test_of_what_java_said_before_it_ended_the_line_with_the_reason_is_shown() -> None:
    error = RuntimeError("JAVA_GATEWAY_EXITED")
    assert said_at_start(error) == ""
    error.add_note("WARNING: incubating\n\n  Invalid memory: banana \nException in main")
    assert said_at_start(error) == " Invalid memory: banana"
    for line in ("an Exception", "Error: x", "an error", "invalid"):
        other = RuntimeError()
        other.add_note(f"nothing\n{line}")
        assert said_at_start(other) == f" {line}"
    quiet = RuntimeError()
    quiet.add_note("nothing")
    assert said_at_start(quiet) == ""


# ---- sessions and archives ------------------------------------------------------------------------------------------------


def test_where_jobs_run_is_what_was_said_else_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_REMOTE", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    assert SparkOptions().where == "local[*]"
    monkeypatch.setenv("MASTER", "spark://h:1")
    assert SparkOptions().where == "spark://h:1"
    monkeypatch.setenv("SPARK_REMOTE", "sc://h:1")
    assert (SparkOptions().where, SparkOptions("yarn").where) == ("sc://h:1", "yarn")
    seen = {where: (SparkOptions(where).local, SparkOptions(where).connect) for where in ("local[2]", "sc://h", "yarn")}
    assert seen == {"local[2]": (True, False), "sc://h": (False, True), "yarn": (False, False)}


def test_how_much_runs_at_once_is_what_spark_says() -> None:
    assert local_session(LocalSpark(7)).parallelism == 7
    spark = LocalSpark()
    assert local_session(spark, "sc://h:1").parallelism == 5
    for said, expected in ((None, 2), ("1", 2), ("3", 3)):
        spark.settings = {} if said is None else {"spark.sql.leafNodeDefaultParallelism": said}
        assert local_session(spark, "sc://h:1").parallelism == expected


def test_an_archive_is_named_by_its_contents_and_the_same_for_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark application takes a file's name once: two versions must not meet under one."""
    root = tmp_path / "root"
    others = [f"waltzctl/engine/{name}.py" for name in "zaqmdk"]
    files = [*shipping.MODULES, *others, "waltzctl/engine/b/c.py", "waltzctl/formats/a.py"]
    for name in (*files, "waltzctl/engine/b/notes.txt", "waltzctl/app.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"x = {name!r}")
    monkeypatch.setattr(shipping, "root", lambda: root)
    made = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        made.append(shipping.named_archive(tmp_path / name))
        if name == "b":
            (root / files[-2]).write_text("x = 1")
    first, second, changed = made
    assert first.name == second.name != changed.name
    assert first.read_bytes() == second.read_bytes()
    assert os.listdir(first.parent) == [first.name]
    assert first.name == f"waltzctl-code-{hashlib.sha256(first.read_bytes()).hexdigest()[:16]}.zip"
    with zipfile.ZipFile(first) as archive:
        engine = sorted([*others, "waltzctl/engine/b/c.py"], key=Path)
        assert archive.namelist() == [*shipping.MODULES, "waltzctl/formats/a.py", *engine]
        assert archive.read(files[-2]) == f"x = {files[-2]!r}".encode()
        for one in archive.infolist():
            assert (one.external_attr, one.compress_type, one.date_time) == (
                0o644 << 16, zipfile.ZIP_DEFLATED, (1980, 1, 1, 0, 0, 0),
            )  # fmt: skip


def test_the_code_lies_beside_the_module_that_spark_looks_for() -> None:
    assert (shipping.root() / "pyspark_waltz.py").is_file()
    assert (shipping.root() / "waltzctl" / "engine" / "spark").is_dir()
