"""dump --export: the rows of a table are those of dump, whoever wrote it, and a table that fails leaves nothing."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.builders import digest
from tests.cli.running import invoke
from tests.spark.local_spark import LocalSpark, local_session
from tests.spark.test_spark_executor import Heard
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import ClusterError, InvalidRequestError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump import DumpedRecord, dump_records
from waltzctl.engine.spark.spark_executor import SparkExecutor
from waltzctl.engine.spark.table_files import TableRequest, TableResult, write_table
from waltzctl.engine.task_executor import LocalExecutor, TaskExecutor

if TYPE_CHECKING:
    from waltzctl.engine.spark.spark_session import Session

dataset = pytest.importorskip("pyarrow.dataset")

pytestmark = pytest.mark.xdist_group("spark")

CORPUS = sorted(Path("fixtures").resolve().glob("*/storage"))


def rows(path: Path) -> list[tuple[Any, ...]]:
    table = dataset.dataset(path, exclude_invalid_files=False).to_table().to_pylist()
    intact = [row for row in table if row["finding"] in (None, "data-checksum")]
    return sorted(
        (row["partition"], row["segment"], row["transaction_id"], row["offset"], row["data"], row["record_checksum"])
        for row in intact
    )


def dumped(path: Path) -> list[tuple[Any, ...]]:
    return sorted(
        (one.partition, one.segment, one.transaction_id, one.offset, one.data, f"{one.record_checksum:08x}")
        for one in dump_records(path)
        if isinstance(one, DumpedRecord)
    )


@pytest.mark.turns(10)
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.parent.name)
def test_a_table_written_here_holds_what_dump_shows(path: Path, tmp_path: Path) -> None:
    done = write_table(TableRequest(path, tmp_path / "table", "parquet"), LocalExecutor(2))
    wanted = dumped(path)
    assert rows(tmp_path / "table") == wanted
    assert done.rows == len(wanted)
    of_dump = {(one.code, one.partition, one.offset) for one in dump_records(path) if isinstance(one, Finding)}
    of_table = {(one.code, one.partition, one.offset) for one in done.findings}
    assert {one for one in of_table if one[2] is not None} == {one for one in of_dump if one[2] is not None}


@pytest.mark.turns(10)
def test_a_table_written_by_spark_holds_the_same(spark_session: Session, tmp_path: Path) -> None:
    path = Path("fixtures/flipped-bit/storage")
    executors: dict[str, TaskExecutor] = {"here": LocalExecutor(1), "spark": SparkExecutor(spark_session)}
    found = {
        name: write_table(TableRequest(path, tmp_path / name, "parquet"), executor)
        for name, executor in executors.items()
    }
    assert found["spark"] == found["here"]
    assert [one.code.value for one in found["here"].findings] == ["record-checksum"]
    assert rows(tmp_path / "spark") == rows(tmp_path / "here") == dumped(path)


@pytest.mark.turns(10)
def test_spark_writes_json_lines_with_bytes_in_base64(spark_session: Session, tmp_path: Path) -> None:
    import json

    path = Path("fixtures/clean-released/storage")
    write_table(TableRequest(path, tmp_path / "table", "json", partitions=[1]), SparkExecutor(spark_session))
    lines = [json.loads(line) for part in (tmp_path / "table").glob("*.json") for line in part.read_text().splitlines()]
    seen = sorted((line["transaction_id"], base64.b64decode(line["data"])) for line in lines)
    assert seen == [(one[2], one[4]) for one in dumped(path) if one[0] == 1]


def test_a_job_that_spark_gives_up_leaves_no_directory(spark_session: Session, tmp_path: Path) -> None:
    request = TableRequest(Path("fixtures/clean-released/storage"), tmp_path / "table", "nonsense")
    with pytest.raises(ClusterError, match="nonsense"):
        write_table(request, SparkExecutor(spark_session))
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_here_leaves_no_directory(tmp_path: Path) -> None:
    class Failing(LocalExecutor):
        def map(self, work, tasks, *, weights, what):  # type: ignore[no-untyped-def]
            work(tasks[0])
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_table(TableRequest(CORPUS[0], tmp_path / "table", "parquet"), Failing())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format_", ["parquet", "orc"])
@pytest.mark.parametrize("name", ["of:today", "of\udcfftoday"])
def test_a_table_written_here_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, format_: str
) -> None:
    storage = Path("fixtures/clean-released/storage").resolve()
    monkeypatch.chdir(tmp_path)
    done = write_table(TableRequest(storage, Path(name), format_), LocalExecutor(1))
    assert done.rows == len(dumped(storage))
    Path(name).rename("table")
    assert dataset.dataset("table", format=format_).to_table().num_rows == done.rows


def test_a_table_has_its_name_once_all_of_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[disk.Change] = []
    monkeypatch.setattr(disk, "observer", changes.append)
    target = tmp_path / "table"
    write_table(TableRequest(CORPUS[0], target, "parquet"), LocalExecutor(1))
    seen = [(one.kind, one.path) for one in changes]
    (named,) = [place for place, one in enumerate(changes) if one.target == target]
    staging = changes[named].path
    files = [staging / path.name for path in target.iterdir()]
    assert files
    assert all(seen.index(("sync", file)) < named for file in files)
    assert seen.index(("sync-directory", staging)) < named
    assert ("sync-directory", tmp_path) in seen[named:]


def test_what_exists_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="exists already"):
        write_table(TableRequest(CORPUS[0], tmp_path, "parquet"), LocalExecutor(1))


def test_ids_partitions_and_data_are_chosen(tmp_path: Path) -> None:
    path = Path("fixtures/clean-released/storage")
    request = TableRequest(path, tmp_path / "table", "orc", partitions=[1], first=5, last=9, data=False)
    assert write_table(request, LocalExecutor(1)).rows == 5
    table = dataset.dataset(tmp_path / "table", format="orc").to_table()
    assert sorted(table["transaction_id"].to_pylist()) == [5, 6, 7, 8, 9]
    assert "data" not in table.column_names


def test_segments_are_a_table_too(tmp_path: Path) -> None:
    request = TableRequest(Path("fixtures/clean-released/storage"), tmp_path / "table", "parquet", view="segments")
    assert write_table(request, LocalExecutor(1)).rows == 6


def test_the_command_says_what_is_missing_and_what_it_found(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    damaged = "fixtures/flipped-bit/storage"
    done = invoke("dump", damaged, "--export", "parquet", "-o", table)
    assert (done.status, done.err) == (4, f"waltzctl: {table}: 19 rows, 1 finding.\n")
    assert "record-checksum" in done.out
    for arguments, why in (
        (["--export", "parquet"], "-o DIR"),
        (["--export", "parquet", "-o", "x", "--limit", "1"], "--limit"),
        (["--export", "parquet", "-o", "x", "--data", "hex"], "--data"),
        (["--export", "parquet", "-o", "x", "--what", "segments", "--from", "5"], "--from"),
        (["--export", "parquet", "-o", "x", "--what", "control", "--to", "5"], "--to"),
        (["--export", "parquet", "-o", "x", "--what", "index", "--data", "none"], "--data"),
        (["--engine", "spark"], "--export FORMAT"),
        (["--engine", "local", "--export", "delta", "-o", "x"], "only parquet and orc"),
        (["--engine", "local", "--export", "parquet", "-o", "x", "--master", "local"], "--master"),
        (["--export", "parquet", "-o", "x", "--conf", "nonsense"], "spark.NAME=VALUE"),
    ):
        done = invoke("dump", damaged, *arguments)
        assert done.status == 2
        assert why in done.err


@pytest.mark.parametrize("inside", ["table", "1/table", "9"])
@pytest.mark.parametrize("path", ["", "1", "waltz-storage.ctl"])
def test_no_table_is_written_into_what_is_only_inspected(tmp_path: Path, inside: str, path: str) -> None:
    storage = tmp_path / "storage"
    shutil.copytree("fixtures/clean-released/storage", storage)
    before = digest(storage)
    done = invoke("dump", storage / path, "--export", "parquet", "-o", storage / inside)
    assert done.status == 13
    assert "only inspected" in done.err
    assert digest(storage) == before


@pytest.mark.parametrize(
    ("name", "asked", "column", "rows"),
    [
        ("waltz-storage.ctl", (), "stored_partition", 3),
        ("1/0000000000000000000.idx", (), "offset", 8),
        ("1/0000000000000000000.idx", ("--what", "records"), "data", 8),
    ],
)
def test_a_file_is_written_as_what_dump_shows_of_it(
    tmp_path: Path, name: str, asked: tuple[str, ...], column: str, rows: int
) -> None:
    """A control file became an empty table of records, with a status of 0."""
    path = f"fixtures/clean-released/storage/{name}"
    done = invoke("dump", path, "--export", "parquet", "-o", str(tmp_path / "table"), *asked)
    table = dataset.dataset(tmp_path / "table", format="parquet").to_table()
    assert (done.status, table.num_rows, column in table.column_names) == (0, rows, True)
    assert ("data" in table.column_names) == (column == "data")


@pytest.mark.parametrize("what", ["records", "segments", "index"])
def test_a_control_file_has_no_rows_of_anything_else(tmp_path: Path, what: str) -> None:
    path, table = "fixtures/clean-released/storage/waltz-storage.ctl", tmp_path / "table"
    done = invoke("dump", path, "--export", "parquet", "-o", str(table), "--what", what)
    assert (done.status, table.exists()) == (2, False)
    assert f"a control file holds no {what}" in done.err


class Frame:
    """What Spark reads or has written: rows as pairs of a finding and an id."""

    def __init__(self, said: list[Any], schema: str = "") -> None:
        self.said, self.schema = said, schema

    def where(self, condition: str) -> Frame:
        self.said.append(("where", condition))
        return self

    def select(self, *names: str) -> Frame:
        self.said.append(("select", *names))
        return self

    def limit(self, most: int) -> Frame:
        self.said.append(("limit", most))
        return self

    def count(self) -> int:
        return 7

    def collect(self) -> list[tuple[Any, ...]]:
        return []


class Spark(LocalSpark):
    """Keeps what it was asked to read and write."""

    def __getattr__(self, name: str) -> Any:
        """Of readers and writers, each step is noted and gives the same one back."""
        if name in ("read", "write", "format", "options", "mode", "schema"):
            return (
                self
                if name in ("read", "write")
                else lambda *given, **more: (self.said.append((name, *given, more)), self)[1]
            )
        raise AttributeError(name)

    @property
    def dataSource(self) -> Any:  # noqa: N802
        return SimpleNamespace(register=lambda kind: self.said.append(("register", kind.name())))

    def load(self, *path: str) -> Any:
        self.said.append(("load", *path))
        frame: Any = Frame(self.said, "its schema")
        frame.write = self
        return frame

    def save(self, path: str) -> None:
        self.said.append(("save", path))
        Path(path).mkdir()
        if self.fails is not None:
            raise self.fails


@pytest.mark.parametrize(
    ("format_", "view", "read_back"), [("json", "records", True), ("delta", "records", False), ("csv", "index", True)]
)
def test_what_spark_is_asked_for(tmp_path: Path, format_: str, view: str, read_back: bool) -> None:
    spark = Spark()
    request = TableRequest(Path("fixtures/clean-released/storage"), tmp_path / "table", format_, view)
    heard = Heard()
    assert write_table(request, SparkExecutor(local_session(spark), heard)) == TableResult(7, ())
    size = sum(path.stat().st_size for path in request.path.rglob("*.seg"))  # type: ignore[attr-defined]
    assert heard.began == [(f"write {format_}", size)]
    job, *said = spark.said
    target = str(tmp_path / "table")
    assert job[0] == "group"
    expected = [
        ("register", "waltz"), ("format", "waltz", {}), ("options", request.options()), ("load",),
        ("format", format_, {}), ("mode", "error", {}), ("save", target), ("format", format_, {}),
        *([("schema", "its schema", {})] if read_back else []), ("load", target),
    ]  # fmt: skip
    if view == "records":
        expected += [
            ("where", "finding is null or finding = 'data-checksum'"),
            ("where", "finding is not null"),
            ("select", "finding", "partition", "segment", "offset"),
            ("limit", 10_000),
        ]
    assert said == expected


@pytest.mark.parametrize("begun", [False, True])
def test_what_spark_leaves_of_a_table_that_failed_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    spark = Spark(fails=PySparkException("full"))
    if not begun:
        monkeypatch.setattr(Path, "mkdir", lambda *_: None)
    request = TableRequest(Path("fixtures/clean-released/storage"), tmp_path / "table", "json")
    with pytest.raises(ClusterError, match="the job was given up: full"):
        write_table(request, SparkExecutor(local_session(spark)))
    assert list(tmp_path.iterdir()) == []


def test_what_came_while_spark_began_is_not_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark, target = Spark(), tmp_path / "table"
    load = Spark.load

    def slow(self: Spark, *path: str) -> Any:
        target.mkdir()
        (target / "precious").touch()
        return load(self, *path)

    monkeypatch.setattr(Spark, "load", slow)
    request = TableRequest(Path("fixtures/clean-released/storage"), target, "json")
    with pytest.raises(InvalidRequestError, match="exists already"):
        write_table(request, SparkExecutor(local_session(spark)))
    assert (target / "precious").exists()


def test_a_request_as_options_of_the_data_source() -> None:
    request = TableRequest(Path("/s"), Path("/t"), "orc", "records", {7, 0}, 5, 9)
    assert request.options() == {
        "path": "/s", "view": "records", "partitions": "0,7", "minTransactionId": "5", "maxTransactionId": "9",
        "data": "true",
    }  # fmt: skip
    assert TableRequest(Path("/s"), Path("/t"), "orc", "index", first=0, last=0).options() == {
        "path": "/s", "view": "index", "minTransactionId": "0", "maxTransactionId": "0",
    }  # fmt: skip
    assert TableRequest(Path("/s"), Path("/t"), "orc", data=False).options() == {"path": "/s", "view": "records"}
