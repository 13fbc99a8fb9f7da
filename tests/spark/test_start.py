"""How a session is opened: what Spark is told, what its processes inherit, and what an error says; without Java."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.local_spark import LocalSpark
from waltzctl.engine.errors import ClusterError, InvalidRequestError, MismatchError, UnavailableError
from waltzctl.engine.spark import handshake, java, shipping, start, temporary
from waltzctl.engine.spark.data_source import WaltzDataSource
from waltzctl.engine.spark.owner import noted_owner, this_process
from waltzctl.engine.spark.spark_session import SparkOptions

VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_LOCAL_IP", "SPARK_REMOTE", "MASTER")


@dataclass
class Builder:
    """Spark's, and what it was told.  `starts`: what happens at the start."""

    told: dict[str, str] = field(default_factory=dict)
    starts: Any = lambda: None
    shipped: list[Path] = field(default_factory=list)
    artifacts: list[tuple[str, bool]] = field(default_factory=list)
    registered: list[type] = field(default_factory=list)
    stopped: int = 0
    inherited: dict[str, str | None] = field(default_factory=dict)
    log: str = ""

    def _is(self, kind: str) -> Any:
        def told(where: str) -> Builder:
            self.told[kind] = where
            return self

        return told

    def config(self, key: str, value: str) -> Builder:
        self.told[key] = value
        return self

    def getOrCreate(self) -> Any:  # noqa: N802
        self.inherited = {name: os.environ.get(name) for name in VARIABLES}
        if found := re.search(r"file:(\S+)", self.told.get("spark.driver.extraJavaOptions", "")):
            self.log = Path(found[1]).read_text()
        self.starts()
        spark: Any = LocalSpark()
        context = spark.sparkContext
        context.addPyFile = lambda path: self.shipped.append(Path(path))
        context.listFiles = [f"spark://h/{path.name}" for path in self.shipped]

        class Made(LocalSpark):
            sparkContext = context  # noqa: N815

        made: Any = Made()
        made.stop = self._stop
        made.addArtifacts = lambda path, pyfile: self.artifacts.append((Path(path).name[:13], pyfile))
        made.dataSource = SimpleNamespace(register=self.registered.append)
        return made

    def _stop(self) -> None:
        self.stopped += 1
        raise PySparkException("nobody listens any more")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    named = SimpleNamespace(master=made._is("master"), remote=made._is("remote"), appName=made._is("name"))
    for name in ("config", "getOrCreate"):
        setattr(named, name, getattr(made, name))
    monkeypatch.setattr(Builder, "appName", lambda self, name: self._is("name")(name), raising=False)
    monkeypatch.setattr(SparkSession, "builder", named)
    monkeypatch.setattr(start, "prepare_java", lambda **_: None)
    monkeypatch.setattr(start, "_check_master", lambda where: None)
    for name in VARIABLES:
        monkeypatch.setenv(name, "x")  # so that it is put back
        monkeypatch.delenv(name)
    return made


def options(master: str, **conf: str) -> SparkOptions:
    return SparkOptions(master, tuple((f"spark.{name.replace('_', '.')}", value) for name, value in conf.items()))


def test_what_ended_processes_left_is_looked_for_once(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary directory of a machine may have many names."""
    looked: list[Path] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setattr(java, "own_java", lambda: None)
    monkeypatch.setattr(java, "packaged_java", lambda: Path("/java"))
    monkeypatch.setattr(java, "_remove_at_exit", lambda home: None)
    monkeypatch.setattr(start, "prepare_java", java.prepare_java)
    monkeypatch.setattr(temporary, "clear_left", looked.append)
    with start.open_session(options("local[2]")):
        assert looked == [tmp_path]
        assert noted_owner(Path(os.environ["JAVA_HOME"])) == this_process()


def test_a_session_on_this_machine_has_this_python_and_is_quiet(builder: Builder) -> None:
    with start.open_session(options("local[2]", x_y="7", driver_extraJavaOptions="-Dmine")) as session:
        assert session.parallelism == 2
        launcher = builder.inherited["PYSPARK_PYTHON"]
        assert launcher is not None
        assert os.access(launcher, os.X_OK)
        assert sys.executable in Path(launcher).read_text()
        assert noted_owner(Path(launcher).parent) == this_process()
        assert builder.inherited == {
            "PYSPARK_PYTHON": launcher, "PYSPARK_DRIVER_PYTHON": launcher, "PYTHONPATH": str(shipping.root()),
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_REMOTE": None, "MASTER": None,
        }  # fmt: skip
        java = builder.told.pop("spark.driver.extraJavaOptions")
        assert re.fullmatch(r"-Dlog4j2.configurationFile=file:/\S+/log4j2.properties -Dmine", java)
        assert "rootLogger.level = error" in builder.log
        assert builder.told == {
            "master": "local[2]", "name": "waltzctl", "spark.x.y": "7",
            "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "2147483647",
        }  # fmt: skip
        assert builder.shipped == []
    assert builder.stopped == 1
    assert not Path(launcher).exists()
    assert [os.environ[name] for name in VARIABLES[:2]] == [sys.executable] * 2


def test_paths_of_the_program_stay_behind_ours_and_what_is_set_is_left(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/mine", str(shipping.root()), ""]))
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    start.open_session(options("local[2]")).__exit__(None, None, None)
    assert builder.inherited["PYTHONPATH"] == os.pathsep.join([str(shipping.root()), "/mine"])
    assert builder.inherited["SPARK_LOCAL_IP"] == "10.0.0.1"


@pytest.mark.parametrize("master", ["local[2]", "spark://h:1", "sc://h:1"])
def test_a_master_that_was_named_counts_and_not_what_the_environment_says(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """PySpark refuses a master beside another one there; for the mode it makes a session of Spark Connect, without a context."""
    said = {"SPARK_REMOTE": "sc://other:1", "MASTER": "local[7]", "SPARK_API_MODE": "connect"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    seen: list[dict[str, str | None]] = []

    def look(*_: str) -> Builder:
        seen.append({name: os.environ.get(name) for name in said})
        return builder

    monkeypatch.setattr(SparkSession.builder, "remote" if master.startswith("sc:") else "master", look)
    builder.starts = look
    start.open_session(options(master)).__exit__(None, None, None)
    assert seen == [dict.fromkeys(said)] * 2
    assert {name: os.environ.get(name) for name in said} == said


def test_without_pyspark_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(
        UnavailableError, match=r"^PySpark is not installed .*pip install 'waltzctl\[spark\]', or --engine"
    ):
        start.open_session(options("local[1]"))


def test_a_session_on_a_cluster_is_sent_the_code_once(builder: Builder) -> None:
    for _ in range(2):  # the second call finds the same session
        with start.open_session(options("spark://h:1", ui_enabled="true")):
            (archive,) = builder.shipped
            assert re.fullmatch(r"waltzctl-code-[0-9a-f]{16}\.zip", archive.name)
            assert builder.inherited["PYSPARK_PYTHON"] is None
            assert builder.inherited["PYSPARK_DRIVER_PYTHON"] == sys.executable
            assert builder.inherited["PYTHONPATH"] is None
        assert not archive.exists()
    assert (builder.told["master"], builder.told["spark.ui.enabled"]) == ("spark://h:1", "true")
    assert "spark.driver.host" not in builder.told
    assert builder.stopped == 2


def test_a_session_of_spark_connect_is_told_what_a_client_may_say(builder: Builder) -> None:
    with start.open_session(options("sc://h:1", x="1")):
        assert (builder.artifacts, builder.shipped) == ([("waltzctl-code", True)], [])
        assert builder.told == {
            "remote": "sc://h:1", "name": "waltzctl", "spark.x": "1",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "2147483647",
        }  # fmt: skip
        assert builder.inherited == dict.fromkeys(VARIABLES)


def test_a_setting_that_is_none_of_sparks_is_refused(builder: Builder) -> None:
    with pytest.raises(InvalidRequestError, match=r"x: Spark's settings begin with 'spark\.'"):
        start.open_session(SparkOptions("local", (("x", "1"),)))


def test_what_spark_or_java_says_while_it_starts_is_said_in_one_line_and_nothing_else(
    builder: Builder, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(error: BaseException) -> Any:
        def start_of_java() -> None:
            os.write(2, b"WARNING: much\nError: banana\n")
            raise error

        return start_of_java

    builder.starts = fails(PySparkException("no gateway"))
    with pytest.raises(ClusterError, match=r"^local\[1\]: no gateway Error: banana; are master and settings right\?$"):
        start.open_session(options("local[1]"))
    builder.starts = fails(OSError("no memory"))
    with pytest.raises(ClusterError, match="no memory"):
        start.open_session(options("local[1]"))
    builder.starts = fails(ZeroDivisionError("a mistake of ours"))
    with pytest.raises(ZeroDivisionError):
        start.open_session(options("local[1]"))
    assert builder.stopped == 0
    assert capfd.readouterr().err == ""
    builder.starts = lambda: os.write(2, b"WARNING: much\n")
    start.open_session(options("local[1]")).__exit__(None, None, None)
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "later\n"


def test_workers_of_another_python_are_found_before_anything_is_asked_of_them(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake.platform, "python_version_tuple", lambda: ("3", "1", "0"))
    with pytest.raises(MismatchError, match=r"its Python is .*; both must be of one minor version"):
        start.open_session(options("local[1]"))
    assert builder.stopped == 1


def test_every_worker_is_asked_for_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = handshake.describe_worker(0)
    other = replace(ours, host="w3", python="3.1.0")

    class Answering:
        def __init__(self, session: Any) -> None: ...

        def map(self, *_: Any, **__: Any) -> Any:
            return iter([ours, ours, other, ours])

    monkeypatch.setattr(handshake, "SparkExecutor", Answering)
    session: Any = SimpleNamespace(parallelism=2)
    with pytest.raises(MismatchError, match=r"^w3: its Python is 3\.1\.0"):
        handshake.check_workers(session)


def test_a_start_leaves_no_file_open(builder: Builder) -> None:
    start.open_session(options("local[1]")).__exit__(None, None, None)
    before = os.listdir("/dev/fd")
    for _ in range(3):
        start.open_session(options("local[1]")).__exit__(None, None, None)
    assert len(os.listdir("/dev/fd")) == len(before)


def test_one_call_gives_a_session_that_knows_the_format_and_ends_with_the_program(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Any] = []
    monkeypatch.setattr(start.atexit, "register", lambda *call: ends.append(call))
    monkeypatch.setenv("MASTER", "local[3]")
    start.spark_session(conf={"spark.a": "b"})
    assert (builder.told["master"], builder.told["spark.a"]) == ("local[3]", "b")
    assert builder.registered == [WaltzDataSource]
    ((end, *arguments),) = ends
    end(*arguments)
    assert builder.stopped == 1
    start.spark_session("local[4]")
    assert builder.told["master"] == "local[4]"
    ends[1][0](*ends[1][1:])


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_master_is_looked_for_and_one_of_several_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as port:
        start._check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
        start._check_master(f"sc://127.0.0.1:{port}/;token=x")
    for unseen in ("local[2]", "yarn", "k8s://127.0.0.1:1"):
        start._check_master(unseen)
    asked: list[tuple[tuple[str, int], float]] = []

    def refused(address: tuple[str, int], timeout: float) -> None:
        asked.append((address, timeout))
        raise OSError(111, "Connection refused")

    monkeypatch.setattr(start.socket, "create_connection", refused)
    for where, expected in (
        ("spark://h", [("h", 7077)]),
        ("sc://h/x", [("h", 15002)]),
        ("spark://[::1]:9,i:x", [("::1", 9), ("i:x", 7077)]),
        ("sc://h:\N{SUPERSCRIPT TWO}", [("h:\N{SUPERSCRIPT TWO}", 15002)]),
    ):
        asked.clear()
        with pytest.raises(ClusterError) as caught:
            start._check_master(where)
        assert [one[0] for one in asked] == expected
        host, port = expected[-1]
        assert str(caught.value).startswith(f"{where}: nobody answers: {host}:{port}: Connection refused")
    assert {one[1] for one in asked} == {10.0}


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_master_with_an_impossible_name_is_told_as_one_that_does_not_answer(host: str) -> None:
    with pytest.raises(ClusterError, match=f"nobody answers: {host}:7077: no possible address"):
        start._check_master(f"spark://{host}")


def test_what_java_says_while_it_starts_is_kept_from_its_first_byte_and_shown_when_it_fails() -> None:
    def fail() -> None:
        with start._quiet_start():
            os.write(2, b"Invalid memory: banana\nmore")
            raise RuntimeError("JAVA_GATEWAY_EXITED")

    with pytest.raises(RuntimeError) as raised:
        fail()
    assert raised.value.__notes__ == ["Invalid memory: banana\nmore"]
