"""What of a table is asked for, and how its findings are worded; `test_tables` compares tables with dumps."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyarrow.dataset", reason="the extra 'spark' is not installed")
pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet

from tests.builders import build_directory
from tests.inspect.helpers import age, flip, seg
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskWriteError, InvalidRequestError, RefusedError, SyncFailedError, UnavailableError
from waltzctl.engine.spark import table_files
from waltzctl.engine.spark.table_files import TableRequest, TableResult, write_table
from waltzctl.engine.task_executor import LocalExecutor


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two partitions; a record of the second is damaged."""
    path = build_directory(tmp_path / "s", {0: 10, 1: 10}, size=20)
    flip(seg(path, 1, 0), 128 + 60 * 4 + 50)
    return age(path)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, {"view": "records", "data": "true"}),
        ({"data": False}, {"view": "records"}),
        ({"view": "index"}, {"view": "index"}),
        ({"partitions": [7, 0], "data": False}, {"view": "records", "partitions": "0,7"}),
        ({"partitions": [], "data": False}, {"view": "records", "partitions": ""}),
        (
            {"first": 0, "last": 0},
            {"view": "records", "minTransactionId": "0", "maxTransactionId": "0", "data": "true"},
        ),
        ({"first": 3, "data": False}, {"view": "records", "minTransactionId": "3"}),
        ({"last": 3, "data": False}, {"view": "records", "maxTransactionId": "3"}),
    ],
)
def test_a_request_is_options_of_the_data_source(asked: dict[str, object], options: dict[str, str]) -> None:
    request = TableRequest(Path("/d"), Path("/t"), "parquet", **asked)  # type: ignore[arg-type]
    assert request.options() == {"path": "/d", **options}


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_rows_are_counted_without_findings_which_are_worded_as_verify_does(
    storage: Path, tmp_path: Path, kind: str
) -> None:
    done = write_table(TableRequest(storage, tmp_path / "t", kind), LocalExecutor(1))
    (found,) = done.findings
    assert (done.rows, found.code, found.partition, found.transaction_id, found.missing) == (
        19, "record-checksum", 1, 4, 1,
    )  # fmt: skip
    assert "record" in found.message
    assert [path.name for path in (tmp_path / "t").iterdir()] == [f"part-00000.{kind}"]
    assert not (tmp_path / "t.waltzctl-tmp").exists()


def test_a_format_that_needs_spark_is_refused_and_nothing_is_left(storage: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"^json: only parquet and orc are written without Spark; add --engine"
    ):
        write_table(TableRequest(storage, tmp_path / "t", "json"), LocalExecutor(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


def test_a_target_may_not_even_be_a_link_that_leads_nowhere(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "t").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidRequestError, match="t: exists already"):
        write_table(TableRequest(storage, tmp_path / "t", "parquet"), LocalExecutor(1))


def test_what_an_earlier_run_left_is_no_part_of_the_table(storage: Path, tmp_path: Path) -> None:
    left = tmp_path / f"t{disk.TEMPORARY_SUFFIX}"
    left.mkdir()
    (left / "part-00009.parquet").touch()
    write_table(TableRequest(storage, tmp_path / "t", "parquet"), LocalExecutor(1))
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["part-00000.parquet"]


@pytest.mark.turns(8)
def test_a_table_that_another_run_is_writing_is_left_alone(storage: Path, tmp_path: Path) -> None:
    request = TableRequest(storage, tmp_path / "t", "parquet")

    class Slow(LocalExecutor):
        def map(self, work, tasks, *, weights, what):  # type: ignore[no-untyped-def]
            written = list(super().map(work, tasks, weights=weights, what=what))
            with pytest.raises(RefusedError, match=r"t\.waltzctl-tmp: another run is at work there"):
                write_table(request, LocalExecutor(1))
            return written

    assert write_table(request, Slow(1)).rows == 19
    assert pyarrow.parquet.read_table(tmp_path / "t").num_rows == 20


def test_a_table_has_its_name_when_all_of_it_is_durable_and_keeps_it(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, changes = tmp_path / f"t{disk.TEMPORARY_SUFFIX}", list[disk.Change]()
    monkeypatch.setattr(disk, "observer", changes.append)
    write_table(TableRequest(storage, tmp_path / "t", "parquet"), LocalExecutor(1))
    assert [(one.kind, one.path) for one in changes] == [
        ("mkdir", left),
        ("sync", left / "part-00000.parquet"),
        ("sync-directory", left),
        ("rename", left),
        ("sync-directory", tmp_path),
    ]


def test_of_a_table_that_could_not_be_written_whole_nothing_is_left(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(task: table_files._FileTask) -> None:
        Path(task.path).touch()
        raise DiskWriteError(Path(task.path), None, OSError(28, "No space left on device"))

    monkeypatch.setattr(table_files, "_write", fails)
    with pytest.raises(DiskWriteError):
        write_table(TableRequest(storage, tmp_path / "t", "parquet"), LocalExecutor(1))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_what_is_wrong_with_a_disk_behind_the_last_step_is_said(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that there is nothing to be taken away any more."""
    real = disk.sync_directory

    def fails(path: Path, opened: int | None = None) -> None:
        if path == tmp_path:
            raise SyncFailedError(path, None, OSError(5, "Input/output error"), doing="sync")
        real(path, opened)

    monkeypatch.setattr(disk, "sync_directory", fails)
    with pytest.raises(SyncFailedError):
        write_table(TableRequest(storage, tmp_path / "t", "parquet"), LocalExecutor(1))


@pytest.mark.parametrize("found", [9_999, 10_000, 10_001])
def test_of_a_file_so_many_findings_are_worded_and_no_row_of_one_is_counted(tmp_path: Path, found: int) -> None:
    """Rows that were only found to have other data than was written are records all the same."""
    columns = {name: [0] * (found + 2) for name in ("partition", "segment", "offset")}
    rows = pa.record_batch({**columns, "finding": ["torn-tail"] * found + ["data-checksum", None]})
    reader = SimpleNamespace(read=lambda packet: [rows])
    written = table_files._write(
        table_files._FileTask(reader, None, rows.schema, str(tmp_path / "part"), "parquet")  # type: ignore[arg-type]
    )
    assert (written.rows, len(written.found)) == (2, min(found + 1, 10_000))


def test_a_finding_that_verify_does_not_have_is_told_in_other_words(storage: Path) -> None:
    request = TableRequest(storage, Path("/t"), "parquet")
    there, gone = ("record-checksum", 1, 0, 128 + 240), ("torn-tail", 0, 0, 700)
    first, second = table_files._worded(request, LocalExecutor(1), [there, gone, there])
    assert (first.transaction_id, first.partition) == (4, 1)
    assert (second.code, second.partition, second.segment, second.offset) == gone
    assert "found while the table was written" in second.message
    assert table_files._worded(request, LocalExecutor(1), []) == ()
    (outside,) = table_files._worded(request, LocalExecutor(1), [("unknown-file", None, None, None)])
    assert "found while the table was written" in outside.message


def test_places_are_those_of_the_rows_with_a_finding() -> None:
    columns = {"partition": [0, 1, 2], "segment": [0, 10, 20], "offset": [128, None, 130]}
    table = pa.table({**columns, "finding": [None, "torn-tail", "segment-gap"]})
    assert table_files._places(table) == [("torn-tail", 1, 10, None), ("segment-gap", 2, 20, 130)]
    assert table_files._places(pa.table({**columns, "finding": pa.nulls(3, pa.string())})) == []
    assert table_files._places(pa.table(columns)) == []
    assert TableResult(0, ()).findings == ()


def test_without_the_libraries_what_to_install_is_said(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "waltzctl.engine.spark.batch_read", None)
    with pytest.raises(UnavailableError, match=r"^tables need libraries that are not installed .*waltzctl\[spark\]"):
        write_table(TableRequest(storage, tmp_path / "t", "orc"), LocalExecutor(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "gone" / f"part.{kind}"
    task = table_files._FileTask(None, None, pa.schema([pa.field("x", pa.int32())]), str(path), kind)  # type: ignore[arg-type]
    with pytest.raises(DiskWriteError, match=str(path)):
        table_files._write(task)
