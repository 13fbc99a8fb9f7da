"""Which columns a view has for whoever names some, and of which types."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.spark.stream_rows import RowMaker
from waltzctl.engine.spark.view_schemas import (
    NODE,
    VIEWS,
    arrow_schema,
    arrow_type,
    columns_of,
    ddl,
    pick,
    spark_schema,
)

RECORDS = [one.name for one in VIEWS["records"]]


@pytest.mark.parametrize(
    ("names", "data", "picked"),
    [
        (None, False, [one for one in RECORDS if one != "data"]),
        (None, True, RECORDS),
        (["offset", "node"], False, ["offset", "node"]),
        (["Offset", "NODE"], False, ["offset", "node"]),
        (["offset"], True, ["offset", "data"]),
        (["data", "offset"], True, ["data", "offset"]),
        (["data"], False, ["data"]),
    ],
)
def test_columns_are_picked_by_name_in_that_order(names: list[str] | None, data: bool, picked: list[str]) -> None:
    assert [one.name for one in pick("records", names, data=data)] == picked


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["offset", "colour", "Size2"], "view records has no such column: colour, Size2; it has node, "),
        ([], "view records has no such column: no column at all; it has node, "),
        (["offset", "node", "OFFSET"], "view records: a column is named twice: offset, node, offset"),
    ],
)
def test_columns_that_a_view_has_not_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}"):
        pick("records", names)


def test_a_view_without_data_has_none_when_it_is_asked_for() -> None:
    for names in (None, ["node"]):
        assert "data" not in [one.name for one in pick("segments", names, data=True)]


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_begins_with_the_storage_and_its_types_agree(view: str) -> None:
    columns = VIEWS[view]
    assert columns[0] is NODE
    assert NODE.given
    assert [one.name for one in spark_schema(columns)] == arrow_schema(columns).names == [one.name for one in columns]
    assert all(field.nullable for field in arrow_schema(columns))
    assert all(field.nullable for field in spark_schema(columns))
    assert columns_of(view, spark_schema(columns)) == columns
    for column, field in zip(columns, arrow_schema(columns), strict=True):
        assert field.type == arrow_type(column.kind.spark)
    assert ddl(columns).startswith("`node` string, `")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("int", pa.int32()),
        ("bigint", pa.int64()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("boolean", pa.bool_()),
        ("array<int>", pa.list_(pa.field("element", pa.int32(), True))),
        ("array<array<bigint>>", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int64(), True)), True))),
        ("struct<a:int,b:string>", pa.struct([pa.field("a", pa.int32(), True), pa.field("b", pa.string(), True)])),
    ],
)
def test_a_type_of_spark_has_its_type_of_arrow(kind: str, expected: pa.DataType) -> None:
    assert arrow_type(kind).equals(expected)
    (one, *_) = VIEWS["records"]
    field = spark_schema([type(one)("x", type("K", (), {"spark": kind})(), "")]).fields[0]  # type: ignore[arg-type]
    assert field.dataType.simpleString() == kind
    assert field.nullable


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            [("colour", LongType())],
            "the schema names a column colour, which view records does not have; its columns are `",
        ),
        (
            [("transaction_id", IntegerType())],
            "the schema says that column transaction_id is int; in view records it is bigint; its columns are `node` string",
        ),
        ([("offset", LongType()), ("OFFSET", LongType())], "the schema names column OFFSET twice"),
        ([], "the schema names no column of view records; its columns are `node` string"),
    ],
)
def test_a_schema_that_is_not_the_views_is_refused(fields: list[tuple[str, Any]], said: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in fields])
    with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}"):
        columns_of("records", schema)
    with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}"):
        RowMaker(schema)


@pytest.mark.parametrize("view", VIEWS)
def test_a_schema_cannot_say_that_a_column_is_never_null(view: str) -> None:
    first = VIEWS[view][0].name
    schema = spark_schema(VIEWS[view])
    schema[first].nullable = False
    said = f"the schema says that column {first} is NOT NULL; every column of view {view} may be null"
    with pytest.raises(InvalidRequestError, match=f"^{said}"):
        columns_of(view, schema)


def test_a_schema_names_columns_in_any_order_and_case() -> None:
    schema = StructType([StructField("Node", StringType()), StructField("DATA", BinaryType())])
    assert [one.name for one in columns_of("records", schema)] == ["node", "data"]
    assert RowMaker(schema).data
    assert not RowMaker(StructType([StructField("Node", StringType())])).data
