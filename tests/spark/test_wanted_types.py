"""Types that a schema may ask for in place of a view's own."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql.types import IntegerType, StructField, StructType

from tests.builders import build_directory, make_records
from tests.inspect.helpers import flip, seg
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.pipeline.column_types import parse_columns
from waltzctl.engine.spark.batch_read import reader
from waltzctl.engine.spark.stream_rows import RowMaker
from waltzctl.engine.spark.wanted_types import arrow_schema_of, fits, handed_on
from waltzctl.formats.wire.records import WireRecord


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = build_directory(tmp_path_factory.mktemp("types") / "s", {0: 5})
    flip(seg(made, 0, 0), 200)
    return made


def read(storage: Path, schema: str, view: str = "records") -> list[dict[str, Any]]:
    asked: StructType = parse_columns(schema)
    made = reader({"path": str(storage), "view": view}, asked)
    batches = [batch for task in made.partitions() for batch in made.read(task)]
    assert all(batch.schema.equals(arrow_schema_of(asked)) for batch in batches), "Spark takes no other schema"
    return [row for batch in batches for row in batch.to_pylist()]


def test_numbers_may_be_wider(storage: Path) -> None:
    rows = read(storage, "partition BIGINT, header DOUBLE, transaction_id DECIMAL(20, 0), `SIZE` DECIMAL(38,2)")
    assert [row["transaction_id"] for row in rows] == [Decimal(number) for number in range(5)]
    assert {type(row["partition"]) for row in rows} == {int}
    assert {row["header"] for row in rows} > {None}
    assert all(row["SIZE"] == row["SIZE"].to_integral_value() for row in rows)


def test_numbers_may_not_lose_digits(storage: Path) -> None:
    for narrow in ("header FLOAT", "partition SMALLINT", "transaction_id INT", "transaction_id DOUBLE"):
        with pytest.raises(InvalidRequestError):
            read(storage, narrow)


def test_records_of_a_node_whose_data_is_wrong_are_told() -> None:
    record = make_records(1)[0]
    sent = [WireRecord(7, record.request_id, 0, record.data, record.data_checksum ^ wrong) for wrong in (0, 1)]
    made = RowMaker(parse_columns("transaction_id BIGINT, finding STRING")).sent(sent, "n", 0)
    assert made.column("finding").to_pylist() == [None, "data-checksum"]


def test_some_fields_of_a_struct(storage: Path) -> None:
    plain = read(storage, "request_id STRUCT<client: INT, generation: INT, partition: INT, sequence: INT>")
    rows = read(storage, "request_id STRUCT<Sequence: BIGINT, client: INT>")
    assert [row["request_id"] for row in rows] == [
        one["request_id"] and {"Sequence": one["request_id"]["sequence"], "client": one["request_id"]["client"]}
        for one in plain
    ]
    assert None in [row["request_id"] for row in rows], "damage has none"


def test_fields_of_structs_in_an_array(storage: Path) -> None:
    plain = read(storage, "structs ARRAY<STRUCT<session_id: BIGINT, valid: BOOLEAN>>, partition INT", "control")
    rows = read(storage, "structs ARRAY<STRUCT<Valid: BOOLEAN, session_id: DECIMAL(19, 0)>>", "control")
    assert [[(one["session_id"], one["Valid"]) for one in row["structs"]] for row in rows] == [
        [(one["session_id"], one["valid"]) for one in row["structs"]] for row in plain
    ]


def test_times_are_timestamps_or_texts(storage: Path) -> None:
    ((when,),) = (row.values() for row in read(storage, "created TIMESTAMP", "segments"))
    ((said,),) = (row.values() for row in read(storage, "created STRING", "segments"))
    assert isinstance(when, datetime)
    assert when.astimezone(UTC) == datetime.fromisoformat(said)
    assert said.endswith("Z")
    assert len(said) == len("2026-01-01T00:00:00.000Z")


@pytest.mark.parametrize(
    ("kind", "wanted", "expected"),
    [
        ("int", "smallint", False),
        ("int", "decimal(10,0)", True),
        ("int", "decimal(10,1)", False),
        ("bigint", "int", False),
        ("bigint", "double", False),
        ("bigint", "decimal(19,0)", True),
        ("bigint", "decimal(18,0)", False),
        ("string", "binary", False),
        ("string", "decimal(38,0)", False),
        ("timestamp", "string", True),
        ("string", "timestamp", False),
        ("struct<a:int>", "int", False),
        ("struct<a:int>", "struct<b:int>", False),
        ("struct<a:int>", "struct<a:int,b:int>", False),
        ("array<int>", "int", False),
        ("array<int>", "array<bigint>", True),
        ("array<bigint>", "array<int>", False),
        ("array<struct<a:int,b:int>>", "array<struct<b:int>>", True),
        ("array<struct<a:int>>", "array<struct<b:int>>", False),
        ("struct<a:bigint>", "struct<a:int>", False),
        ("struct<a:int>", "struct<A:bigint>", True),
        ("bigint", "decimal(20,1)", True),
        ("bigint", "decimal(20,2)", False),
        ("int", "double", True),
        ("timestamp", "timestamp", True),
        ("timestamp", "bigint", False),
        ("boolean", "boolean", True),
    ],
)
def test_nothing_is_cut_off(kind: str, wanted: str, expected: bool) -> None:
    column, asked = (parse_columns(f"a {text}").fields[0].dataType for text in (kind, wanted))
    assert fits(column, asked) is expected


def test_fields_are_asked_for_once_and_there_is_one() -> None:
    kind = StructType([StructField(name, IntegerType()) for name in "ab"])
    for names, expected in ((["a"], True), (["b", "A"], True), (["a", "A"], False), ([], False)):
        assert fits(kind, StructType([StructField(name, IntegerType()) for name in names])) is expected


def test_a_type_that_cannot_stand_is_named(storage: Path) -> None:
    with pytest.raises(InvalidRequestError, match="column transaction_id is int; in view records it is bigint"):
        read(storage, "transaction_id INT")


def test_rows_of_a_stream_have_them_as_well() -> None:
    made = RowMaker(parse_columns("partition BIGINT, request_id STRUCT<client: INT>"))
    rows = made.sent([], "/node", 0)
    assert rows.schema.equals(arrow_schema_of(made.schema))


def test_lists_keep_their_nulls() -> None:
    kind = pa.list_(pa.field("element", pa.int64()))
    array = pa.array([[1], None, [], [2, 3]], pa.list_(pa.field("element", pa.int32())))
    for begin in range(4):
        given = pa.RecordBatch.from_arrays([array.slice(begin)], ["a"])
        made = handed_on(given, pa.schema([pa.field("a", kind)]))
        assert [row["a"] for row in made.to_pylist()] == [[1], None, [], [2, 3]][begin:]
