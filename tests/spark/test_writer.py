"""A storage directory out of rows: whole, clean and durable, or not there at all.

Here the writer is driven as Spark drives it; `test_writer_spark` lets Spark do it.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tests.builders import make_records
from tests.spark.writing import KEY, SCHEMA, begin, is_clean, nothing_left, records_of, request_parts, rows, write
from waltzctl.engine.errors import ChecksumMismatchError, InvalidRequestError, RefusedError, WaltzError
from waltzctl.engine.log.view import read_control
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.scan.scanner import scan_records
from waltzctl.engine.spark import run_writing
from waltzctl.engine.spark.staging import clear_left
from waltzctl.engine.spark.writer import Staged, WriteOptions, storage_writer, write_options
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import MAX_PARTITIONS, Layout

# ---- what is written ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["documented", "released"])
def test_rows_of_many_tasks_become_one_clean_directory(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "new"
    zero, one = make_records(100), make_records(30, partition=1)
    tasks = [
        [rows(0, zero[60:]), rows(1, one[:10])],
        [],
        [rows(0, zero[:25]), rows(0, zero[25:60])],
        [rows(1, one[10:])],
    ]
    write(path, tasks, layout=layout, clusterKey=KEY, numPartitions="3", segmentSize="900")
    assert is_clean(path)
    assert records_of(path) == {0: zero, 1: one}
    assert nothing_left(path, empty=True)
    control = read_control(path / "waltz-storage.ctl")
    assert control is not None
    assert (control.layout, str(control.header.cluster_key), len(control.partitions)) == (Layout(layout), KEY, 3)
    marks = [info.current_struct for info in control.partitions]
    assert [(m.session_id, m.low_water_mark, m.local_low_water_mark) for m in marks if m] == [
        (0, 99, 99),
        (0, 29, 29),
        (-1, -1, -1),
    ]
    assert max(file.stat().st_size for file in path.glob("*/*.seg")) <= 900 + 340
    assert len(list(path.glob("0/*.seg"))) > 5


def test_it_can_be_opened_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "new"
    write(path, [[rows(0, make_records(10))]], layout="released", numPartitions="2")
    with StorageDirectory.open(path) as storage:
        for number in (0, 1):
            AppendSession(storage, number).append([PendingRecord(b"more")])
    assert is_clean(path)
    assert {number: len(found) for number, found in records_of(path).items()} == {0: 11, 1: 1}


def test_marks_and_assignment_are_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "new"
    write(
        path,
        [[rows(2, make_records(5, partition=2))]],
        layout="released",
        numPartitions="4",
        marks="initial",
        assign="written",
    )
    control = read_control(path / "waltz-storage.ctl")
    assert control is not None
    found = [info.current_struct for info in control.partitions]
    assert [(one.session_id, one.local_low_water_mark, one.assigned) for one in found if one] == [
        (-1, -1, False),
        (-1, -1, False),
        (-1, -1, True),
        (-1, -1, False),
    ]
    assert is_clean(path)


def test_rows_without_request_ids_headers_and_checksums_get_them(tmp_path: Path) -> None:
    path = tmp_path / "new"
    schema = StructType([field for field in SCHEMA if field.name in ("partition", "transaction_id", "data")])
    batch = rows(1, make_records(3, partition=1)).select(["partition", "transaction_id", "data"])
    writer = begin(path, schema=schema)
    writer.commit([writer.write(iter([batch]))])
    assert is_clean(path)
    assert [(request_parts(one), one.header, one.data_ok) for one in records_of(path)[1]] == [
        ((0, 0, 1, number), 0, True) for number in range(3)
    ]


def test_without_rows_the_number_of_partitions_makes_an_empty_cluster(tmp_path: Path) -> None:
    write(tmp_path / "new", [[], []], numPartitions="2")
    assert is_clean(tmp_path / "new")
    with pytest.raises(InvalidRequestError, match="no rows"):
        write(tmp_path / "other", [[]])
    assert sorted(os.listdir(tmp_path)) == ["new"]


def test_a_link_that_is_called_like_what_a_write_left_costs_nothing_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"x")
    (tmp_path / "to.waltzctl-tmp-left").symlink_to(tmp_path / "kept")
    clear_left(tmp_path / "to")
    assert (tmp_path / "kept" / "file").read_bytes() == b"x"


def test_an_empty_directory_is_a_target(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    write(tmp_path / "new", [[rows(0, make_records(3))]])
    assert is_clean(tmp_path / "new")


def test_attempts_that_were_not_committed_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new"
    records = make_records(40)
    writer = begin(path)

    def breaks() -> Any:
        yield rows(0, records[:15])
        raise RuntimeError("the executor is lost")

    with pytest.raises(RuntimeError):
        writer.write(breaks())
    speculative = writer.write(iter([rows(0, records[:20])]))
    assert isinstance(speculative, Staged)
    messages = [writer.write(iter([rows(0, records[:20])])), writer.write(iter([rows(0, records[20:])])), None]
    writer.commit(messages)
    assert is_clean(path)
    assert records_of(path) == {0: records}
    assert nothing_left(path, empty=True)


@pytest.mark.turns(10)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_however_rows_are_cut_and_spread_the_records_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("writer") / "new"
    partitions = {number: make_records(data.draw(st.integers(1, 40)), partition=number) for number in range(3)}
    tasks: list[list[pa.RecordBatch]] = [[] for _ in range(data.draw(st.integers(1, 5)))]
    for number, records in partitions.items():
        cuts = sorted({0, len(records), *data.draw(st.lists(st.integers(0, len(records)), max_size=4))})
        for low, high in itertools.pairwise(cuts):
            data.draw(st.sampled_from(tasks)).append(rows(number, records[low:high]))
    write(path, tasks, segmentSize=str(data.draw(st.sampled_from([1, 500, 100_000]))))
    assert is_clean(path)
    assert records_of(path) == partitions


# ---- what is refused ----------------------------------------------------------------------------------------------------


def _with(number: int, column: str, value: Any) -> Callable[[], list[list[pa.RecordBatch]]]:
    def made() -> list[list[pa.RecordBatch]]:
        batch = rows(0, make_records(5))
        values = batch.column(column).to_pylist()
        values[number] = value
        return [[rows(0, make_records(5), **{column: values})]]

    return made


def _tasks(*slices: tuple[int, int]) -> Callable[[], list[list[pa.RecordBatch]]]:
    return lambda: [[rows(0, make_records(20)[low:high])] for low, high in slices]


def _in_one_task(*slices: tuple[int, int]) -> Callable[[], list[list[pa.RecordBatch]]]:
    return lambda: [[rows(0, make_records(20)[low:high]) for low, high in slices]]


@pytest.mark.parametrize(
    ("tasks", "error", "said"),
    [
        (_tasks((0, 5), (7, 20)), InvalidRequestError, "transactions 5 to 6 are missing"),
        (_tasks((3, 20)), InvalidRequestError, "transactions 0 to 2 are missing"),
        (_tasks((0, 12), (10, 20)), InvalidRequestError, "transactions 10 to 11 are there twice"),
        (_in_one_task((0, 5), (10, 20), (5, 10)), InvalidRequestError, "sortWithinPartitions"),
        (_in_one_task((0, 5), (4, 10)), InvalidRequestError, "transaction 4 comes behind 4"),
        (_with(2, "data", None), InvalidRequestError, "transaction_id 2: column data is null"),
        (_with(2, "partition", None), InvalidRequestError, "column partition is null"),
        (_with(2, "request_id", None), InvalidRequestError, "column request_id is null"),
        (_with(2, "partition", -1), InvalidRequestError, "partition -1"),
        (_with(2, "partition", 9), InvalidRequestError, "there are partitions 0 to 3"),
        (_with(2, "transaction_id", -7), InvalidRequestError, "transaction -7"),
        (
            _with(2, "data_checksum", "00000001"),
            ChecksumMismatchError,
            "transaction 2: the row's data_checksum is 00000001",
        ),
        (_with(2, "data_checksum", "nonsense"), InvalidRequestError, "no eight hex digits"),
    ],
)
def test_rows_that_are_no_whole_partitions_are_refused_and_nothing_is_left(
    tmp_path: Path, tasks: Callable[[], list[list[pa.RecordBatch]]], error: type[WaltzError], said: str
) -> None:
    with pytest.raises(error, match=said):
        write(tmp_path / "new", tasks(), numPartitions="4")
    assert nothing_left(tmp_path / "new")


def test_a_row_that_tells_of_damage_is_named_as_such(tmp_path: Path) -> None:
    records = make_records(3)
    batch = rows(0, records, data=[b"a", None, b"b"], finding=[None, "record-checksum", None])
    with pytest.raises(InvalidRequestError, match="tells of damage \\(record-checksum\\)"):
        write(tmp_path / "new", [[batch]])
    assert nothing_left(tmp_path / "new")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layout": "other"}, "layout"),
        ({"clusterKey": "x"}, "clusterKey"),
        ({"numPartitions": "0"}, "numPartitions"),
        ({"segmentSize": "big"}, "segmentSize"),
        ({"marks": "high"}, "marks"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tmp_path: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        begin(tmp_path / "new", **options)
    assert nothing_left(tmp_path / "new")


def test_a_target_that_holds_something_an_overwrite_and_an_object_store_are_refused(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    for target, overwrite, said in ((full, False, "not empty"), (tmp_path / "new", True, "never overwritten")):
        with pytest.raises(RefusedError, match=said):
            begin(target, overwrite=overwrite)
    with pytest.raises(InvalidRequestError, match="file system"):
        storage_writer({"path": "s3://bucket/x"}, SCHEMA, False)
    with pytest.raises(InvalidRequestError, match="directory above"):
        begin(tmp_path / "a" / "b")
    assert sorted(os.listdir(tmp_path)) == ["full"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("data", StringType()), "column data is string"),
        (StructField("partition", StringType()), "column partition is string"),
        (StructField("request_id", LongType()), "column request_id is bigint"),
        (StructField("request_id", StructType([StructField("client", IntegerType())])), "request_id is struct"),
    ],
)
def test_columns_of_other_types_are_refused_before_anything_runs(tmp_path: Path, field: StructField, said: str) -> None:
    schema = StructType([field if one.name == field.name else one for one in SCHEMA])
    with pytest.raises(InvalidRequestError, match=said):
        begin(tmp_path / "new", schema=schema)
    with pytest.raises(InvalidRequestError, match='option\\("data", "true"\\)'):
        begin(tmp_path / "new", schema=StructType([one for one in SCHEMA if one.name != "data"]))
    assert nothing_left(tmp_path / "new")


def test_many_open_partitions_are_flushed_when_they_hold_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_writing, "_HELD", 500)
    source = random.Random(3)
    partitions = {number: make_records(30, partition=number) for number in range(5)}
    left = {number: list(found) for number, found in partitions.items()}
    batches = []
    while any(left.values()):
        number = source.choice([one for one in left if left[one]])
        count = source.randrange(1, 4)
        batches.append(rows(number, left[number][:count]))
        left[number] = left[number][count:]
    write(tmp_path / "new", [batches], segmentSize="2000")
    assert records_of(tmp_path / "new") == partitions
    assert is_clean(tmp_path / "new")


def test_a_checksum_may_be_a_number_of_either_sign(tmp_path: Path) -> None:
    records = [replace(one) for one in make_records(4)]
    place = SCHEMA.fieldNames().index("data_checksum")
    schema = StructType([*SCHEMA.fields[:place], StructField("data_checksum", LongType()), *SCHEMA.fields[place + 1 :]])
    signed = [one.data_checksum - (2**32 if one.data_checksum >= 2**31 else 0) for one in records[:2]]
    signed += [one.data_checksum for one in records[2:]]
    batch = rows(0, records)
    batch = batch.set_column(place, pa.field("data_checksum", pa.int64()), pa.array(signed, pa.int64()))
    writer = begin(tmp_path / "new", schema=schema)
    writer.commit([writer.write(iter([batch]))])
    assert records_of(tmp_path / "new") == {0: records}


# ---- bounds of what is written -------------------------------------------------------------------------------------------


def test_options_are_as_documented(tmp_path: Path) -> None:
    path = str(tmp_path / "new")
    usual = write_options({"path": path})
    assert usual == WriteOptions(tmp_path / "new", usual.cluster_key)
    assert usual.cluster_key != write_options({"path": path}).cluster_key
    given = {
        "PATH": path, "clusterKey": KEY, "numPartitions": f" {MAX_PARTITIONS} ", "layout": " Released", "segmentSize": "2KiB",
        "assign": "written", "marks": "INITIAL",
    }  # fmt: skip
    assert write_options(given) == WriteOptions(
        tmp_path / "new", uuid.UUID(KEY), MAX_PARTITIONS, Layout.RELEASED, 2048, False, False
    )
    with pytest.raises(InvalidRequestError) as refused:
        write_options({"zeta": "1", "Alpha": "2", "path": path})
    assert str(refused.value).startswith("format waltz is not written with option alpha, zeta; its options are path, ")
    for options, said in (
        ({}, "format waltz writes nothing without a path"),
        ({"path": ""}, "format waltz writes nothing without a path"),
        (
            {"path": path, "numPartitions": f"{MAX_PARTITIONS + 1}"},
            f"numPartitions '{MAX_PARTITIONS + 1}': must be 1 to ",
        ),
        ({"path": path, "numPartitions": "0"}, f"numPartitions '0': must be 1 to {MAX_PARTITIONS}"),
        ({"path": path, "numPartitions": "x"}, "numPartitions 'x': must be 1 to "),
        ({"path": path, "assign": "some"}, "assign 'some': must be all or written"),
    ):
        with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}"):
            write_options(options)


def test_a_target_beside_the_current_directory_is_made_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_options({"path": "a/../new"}).path == tmp_path / "new"


def _plan(partitions: int | None = None) -> run_writing.SegmentPlan:
    return run_writing.SegmentPlan(uuid.UUID(KEY), 1, partitions, 1 << 20)


@pytest.mark.parametrize(
    ("partitions", "partition", "transaction_id", "refused"),
    [
        (None, 2**31 - 1, 2**63 - 2, ""),
        (None, 0, 0, ""),
        (None, -1, 0, "partition -1: there are partitions 0 to 2147483647"),
        (None, 0, -1, "partition 0, transaction -1: its id is not possible"),
        (None, 0, 2**63 - 1, f"partition 0, transaction {2**63 - 1}: its id is not possible"),
        (3, 2, 0, ""),
        (2, 2, 0, "partition 2: there are partitions 0 to 1"),
    ],
)
def test_the_highest_partition_and_the_last_id_are_taken_and_one_more_is_not(
    tmp_path: Path, partitions: int | None, partition: int, transaction_id: int, refused: str
) -> None:
    writer = run_writing.RunWriter(tmp_path / "t", _plan(partitions))
    batch = rows(0, make_records(1), partition=[partition], transaction_id=[transaction_id])
    if refused:
        with pytest.raises(InvalidRequestError, match=f"^{re.escape(refused)}$"):
            writer.add(batch)
        return
    writer.add(batch)
    (staged,) = writer.finish()
    assert (staged.partition, staged.first, staged.last, staged.records) == (
        partition, transaction_id, transaction_id, 1,
    )  # fmt: skip


def test_data_is_bounded_and_a_message_says_by_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_writing, "MAX_DATA", 5)
    writer = run_writing.RunWriter(tmp_path / "t", _plan())
    writer.add(rows(0, make_records(1, size=5)))
    with pytest.raises(InvalidRequestError, match="partition 0, transaction 1: 6 bytes of data, 5 are allowed"):
        writer.add(rows(0, make_records(1, first=1, size=6)))


@pytest.mark.parametrize(("field", "value"), [("header", 2**31 - 1), ("header", -(2**31))])
def test_a_header_is_of_32_bits(tmp_path: Path, field: str, value: int) -> None:
    batch = rows(0, make_records(2), **{field: [value, 0]})
    write(tmp_path / "new", [[batch]])
    assert records_of(tmp_path / "new")[0][0].header == value


def test_request_ids_that_are_made_are_the_low_bits_of_the_id(tmp_path: Path) -> None:
    for number, first in enumerate((2**31 - 2, 2**32 - 2, 2**40)):
        writer = run_writing.RunWriter(tmp_path / str(number), _plan())
        batch = rows(1, make_records(4, partition=1), transaction_id=range(first, first + 4))
        batch = batch.select(["partition", "transaction_id", "data"])
        writer.add(batch)
        writer.finish()
        with FileSource(next((tmp_path / str(number)).rglob("*.seg"))) as source:
            (scanned,) = scan_records(source, first_transaction_id=first)
        low = [int(word) & 0xFFFFFFFF for word in scanned.request_id_low]
        assert low == [(first + n) % 2**32 for n in range(4)]


@pytest.mark.parametrize("size", [127, 128, 128 + 59, 128 + 60, 128 + 61, 128 + 120])
def test_a_segment_is_closed_by_the_record_that_goes_beyond_its_size(tmp_path: Path, size: int) -> None:
    write(tmp_path / "new", [[rows(0, make_records(9, size=20))]], segmentSize=str(size))
    found = sorted(int(path.name[:19]) for path in (tmp_path / "new" / "0").glob("*.seg"))
    each = max(1, (size - 128) // 60 + 1)
    assert found == list(range(0, 9, each))
    assert is_clean(tmp_path / "new")


@pytest.mark.parametrize("held", [1, 60, 61, 179, 180, 181, 10**6])
@pytest.mark.parametrize("flush", [1, 60, 61, 10**6])
def test_what_waits_is_written_whichever_bound_it_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, flush: int
) -> None:
    monkeypatch.setattr(run_writing, "_HELD", held)
    monkeypatch.setattr(run_writing, "_FLUSH", flush)
    sizes: list[int] = []
    original = run_writing._OpenSegment.flush

    def counted(run: Any, *, sync: bool = False) -> None:
        sizes.append(sum(map(len, run.waiting)))
        original(run, sync=sync)

    monkeypatch.setattr(run_writing._OpenSegment, "flush", counted)
    writer = run_writing.RunWriter(tmp_path / "t", _plan())
    records = {number: make_records(8, partition=number, size=20) for number in (0, 1)}
    waiting: dict[int, int] = {}
    expected: list[int] = []
    for turn in range(8):
        for number in (0, 1):
            writer.add(rows(number, records[number][turn : turn + 1]))
            waiting[number] = waiting.get(number, 0) + 60
            if waiting[number] >= flush:
                expected.append(waiting[number])
                waiting[number] = 0
            elif sum(waiting.values()) >= held:
                expected += waiting.values()
                waiting = dict.fromkeys(waiting, 0)
    assert sizes == expected
    writer.finish()
    assert sum(sizes) == 16 * 60
