"""The data source as a user meets it: found by its name, with the contract's columns, and errors that say what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition

from tests.builders import build_directory
from tests.inspect.helpers import age, flip, seg
from tests.spark.reading import FIXTURES, dumped, examples, in_order, read, verified
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.spark.batch_read import reader
from waltzctl.engine.spark.data_source import WaltzDataSource
from waltzctl.engine.spark.read_options import parse
from waltzctl.engine.spark.record_arrays import Constants, Gathering, arrow_batch
from waltzctl.engine.spark.view_schemas import RECORD_COLUMNS, VIEWS, arrow_schema, columns_of, ddl, pick, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

DEFAULT = [
    "node", "partition", "segment", "transaction_id", "offset", "size", "request_id", "header", "data_length",
    "data_checksum", "record_checksum", "finding", "missing",
]  # fmt: skip


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = build_directory(tmp_path_factory.mktemp("clean") / "node-1", {0: 90, 2: 60}, per_segment=40, size=30)
    return age(built)


def waltz(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("waltz").options(**options).load(str(path))


def as_dicts(frame: DataFrame) -> list[str]:
    return in_order(row.asDict(recursive=True) for row in frame.collect())


def bare(row: dict[str, object]) -> dict[str, object]:
    return {name: row[name] for name in DEFAULT}


def test_spark_finds_it_by_itself_and_reads_the_contracts_columns(spark: SparkSession, storage: Path) -> None:
    frame = waltz(spark, storage)
    assert frame.columns == DEFAULT
    assert as_dicts(frame) == in_order(map(bare, dumped(storage)))


@pytest.mark.turns(8)
def test_it_can_be_registered(spark: SparkSession, storage: Path) -> None:
    spark.dataSource.register(WaltzDataSource)
    assert waltz(spark, storage, partitions="2").count() == 60


def test_data_comes_when_it_is_named_or_asked_for(spark: SparkSession, storage: Path) -> None:
    expected = {(row["partition"], row["transaction_id"]): row["data"] for row in dumped(storage)}
    named = spark.read.format("waltz").schema("data binary, transaction_id long, partition int").load(str(storage))
    assert {(row.partition, row.transaction_id): bytes(row.data) for row in named.collect()} == expected
    assert waltz(spark, storage, data="true").columns == [*DEFAULT[:-2], "data", *DEFAULT[-2:]]


def test_columns_can_be_named_in_any_order(spark: SparkSession, storage: Path) -> None:
    frame = waltz(spark, storage, columns="transaction_id, partition")
    assert frame.columns == ["transaction_id", "partition"]
    assert frame.where("partition = 2").agg({"transaction_id": "sum"}).collect()[0][0] == sum(range(60))


@pytest.mark.turns(10)
def test_several_paths_are_one_table(spark: SparkSession, storage: Path, tmp_path: Path) -> None:
    other = build_directory(tmp_path / "node-2", {0: 7})
    frame = spark.read.format("waltz").load([str(storage), str(other)])
    counted = {row["node"]: row["count"] for row in frame.groupBy("node").count().collect()}
    assert counted == {str(storage): 150, str(other): 7}


@pytest.mark.turns(10)
def test_damage_is_rows_and_no_failed_job(spark: SparkSession) -> None:
    """All examples at once: what dump shows of each."""
    expected = in_order(bare(row) for storage in examples() for row in dumped(storage))
    frame = spark.read.format("waltz").option("splitSize", "2MiB").load([str(one) for one in examples()])
    assert as_dicts(frame) == expected


@pytest.mark.turns(10)
def test_findings_are_a_table(spark: SparkSession) -> None:
    frame = spark.read.format("waltz").option("view", "findings").load([str(one) for one in examples()])
    told = sorted((row.code, row.severity, row.path) for row in frame.collect())
    assert told == sorted((one.code.value, one.severity.value, str(one.path)) for one in verified(*examples()))


@pytest.mark.parametrize("view", ["control", "segments", "index"])
def test_the_other_views_are_tables(spark: SparkSession, view: str) -> None:
    path = FIXTURES / "flipped-bit" / "storage"
    frame = waltz(spark, path, view=view)
    assert frame.columns == [column.name for column in VIEWS[view]]
    rows = read(path, view=view)
    for row in rows:
        if row.get("created") is not None:
            row["created"] = (
                row["created"].astimezone().replace(tzinfo=None)
            )  # Spark shows times of this machine's zone
    assert as_dicts(frame) == in_order(rows)


def test_nothing_that_is_wanted_is_an_empty_table(spark: SparkSession, storage: Path) -> None:
    assert waltz(spark, storage, minTransactionId="10", maxTransactionId="9").collect() == []


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("partition int, partitoin int", {}, r"partitoin.*its columns are.*transaction_id"),
        ("transaction_id int", {}, r"transaction_id is int.*it is bigint"),
        (None, {"splitsiez": "1"}, r"no option splitsiez.*splitSize"),
        (None, {"view": "recods"}, r"no view 'recods'.*records"),
        (None, {"columns": "segment,size,bytes"}, r"no such column: bytes"),
        (None, {"partitions": "9"}, r"partition 9: the control file has partitions 0 to 2"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(
    spark: SparkSession, storage: Path, schema: str | None, options: dict[str, str], said: str
) -> None:
    reading = spark.read.format("waltz").options(**options)
    with pytest.raises(PySparkException, match=said):
        (reading.schema(schema) if schema else reading).load(str(storage)).count()


def test_a_path_that_is_nothing_of_waltz_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="not a Waltz storage directory"):
        waltz(spark, tmp_path).count()


# --- without Spark ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_the_schemas_of_spark_and_of_arrow_agree(view: str) -> None:
    """As Spark compares them: names, order, types, nullability."""
    from pyspark.sql.pandas.types import to_arrow_schema

    named = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}  # since PySpark 4.2
    assert to_arrow_schema(spark_schema(VIEWS[view]), **named).equals(arrow_schema(VIEWS[view]))


def test_columns_are_found_whatever_their_case_and_keep_the_callers_name(storage: Path) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField("Transaction_ID", LongType())])
    assert [one.name for one in columns_of("records", schema)] == ["transaction_id"]
    planned = reader(CaseInsensitiveDict({"path": str(storage)}), schema)
    (task,) = planned.partitions()
    batches = list(planned.read(task))
    assert str(batches[0].schema) == "Transaction_ID: int64"
    assert sum(batch.num_rows for batch in batches) == 150


def test_only_what_is_asked_for_is_made(storage: Path) -> None:
    """No data is kept and no text is made for a schema that has neither."""
    gathering = Gathering(["partition"], arrow_schema(pick("records", ["partition"])))
    assert not gathering.keep_data
    assert Gathering(["data"], arrow_schema(pick("records", ["data"]))).keep_data


def test_batches_are_bounded_in_rows_and_bytes(storage: Path) -> None:
    from waltzctl.engine.scan.byte_source import FileSource
    from waltzctl.engine.scan.scanner import scan_records

    columns = pick("records", None, data=True)
    gathering = Gathering([one.name for one in columns], arrow_schema(columns), most_rows=10, most_bytes=200)
    batches = []
    with FileSource(seg(storage, 0, 0)) as source:
        (whole,) = scan_records(source, first_transaction_id=0, data=True)
    gathering.begin("n", 0, 0)
    for place in range(len(whole)):
        from waltzctl.engine.spark.record_arrays import rows_of

        one = rows_of(whole, place, place + 1)
        assert one is not None
        batches += gathering.add(one)
    batches += gathering.flush()
    assert sum(batch.num_rows for batch in batches) == 40
    assert max(batch.num_rows for batch in batches) <= 10
    again = arrow_batch(whole, [one.name for one in RECORD_COLUMNS], Constants("n", 0, 0))
    assert [row for batch in batches for row in batch.to_pylist()] == again.to_pylist()


def test_a_record_with_wrong_data_is_one_row_with_its_finding(tmp_path: Path) -> None:
    path = FIXTURES / "wrong-data-checksum" / "storage"
    marked = [row for row in read(path) if row["finding"]]
    assert marked
    assert {row["finding"] for row in marked} == {"data-checksum"}
    assert all(row["data"] is not None and row["record_checksum"] for row in marked)


def test_passwords_are_in_no_message() -> None:
    """Neither values of unknown options, nor of those of a file system, are repeated."""
    with pytest.raises(InvalidRequestError) as raised:
        parse(CaseInsensitiveDict({"path": "/p", "secret": "geheim", "storage.secret": "geheim"}))
    assert "geheim" not in str(raised.value)
    with pytest.raises(InvalidRequestError) as raised:
        parse(CaseInsensitiveDict({"path": "s3://user:geheim@bucket/node"}))
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "without a path"),
        ({"path": "waltz://host:55280"}, "is a node"),
        ({"path": "/p", "data": "yes"}, "true or false"),
        ({"path": "/p", "partitions": "3-1"}, "backwards"),
        ({"path": "/p", "minTransactionId": "x"}, "transaction id"),
        ({"path": "/p", "splitSize": "big"}, "not understood"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        parse(CaseInsensitiveDict(options))


def test_the_module_that_spark_looks_for_is_light() -> None:
    """Spark imports it for the first query of every session, whether that is about Waltz or not."""
    code = "import sys, pyspark_waltz as m; print(m.DefaultSource.name(), *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=FIXTURES.parent)
    name, *modules = done.stdout.split()
    assert name == "waltz"
    assert not {"numba", "fsspec", "s3fs", "waltzctl.engine.scan.scanner", "waltzctl.engine.inspect.targets"} & set(
        modules
    )


def test_the_manual_names_every_option_and_column() -> None:
    """docs/spark-data-source.md against the tables that the program uses."""
    from waltzctl.engine.spark.read_options import KNOWN

    text = (FIXTURES.parent / "docs" / "spark-data-source.md").read_text()
    for name in KNOWN:
        assert name in ("path", "paths") or f"`{name}`" in text, name
    for view, columns in VIEWS.items():
        assert f"`{view}`" in text
        for column in columns:
            assert re.search(rf"`{column.name}`", text), (view, column.name)
    assert ddl(RECORD_COLUMNS[:2]) == "`node` string, `partition` int"


def test_flipping_a_bit_turns_one_record_into_a_finding(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "s", {0: 20}, size=30)
    flip(seg(path, 0, 0), 128 + 70 * 5 + 40)
    rows = read(age(path), columns="transaction_id,finding,data_length")
    assert [(row["transaction_id"], row["finding"]) for row in rows if row["finding"]] == [(5, "record-checksum")]
    assert len([row for row in rows if row["data_length"] is not None]) == 19


def test_what_is_made_for_a_query_follows_from_its_options(storage: Path, tmp_path: Path) -> None:
    from waltzctl.engine.spark.batch_read import PushingReader, WaltzReader
    from waltzctl.engine.spark.stream_directory import DirectoryHistory
    from waltzctl.engine.spark.stream_node import NodeHistory

    def source(**options: str) -> WaltzDataSource:
        return WaltzDataSource(CaseInsensitiveDict(options))

    assert source().name() == "waltz"
    assert source(columns="segment,data", path=str(storage)).schema().names == ["segment", "data"]
    assert source(data="true", path=str(storage)).schema() == spark_schema(RECORD_COLUMNS)
    assert source(view="index", path=str(storage)).schema() == spark_schema(VIEWS["index"])
    schema = spark_schema(pick("records", ["partition"]))
    made = source(path=str(storage)).reader(schema)
    assert type(made) is WaltzReader
    assert len(made.partitions()) == 1
    assert list(made.read(InputPartition(None))) == []
    assert type(source(path=str(storage), pushdown="true").reader(schema)) is PushingReader
    streams = {
        "directory": source(path=str(storage)), "node": source(path="Waltz://127.0.0.1:1"),
    }  # fmt: skip
    kinds = {name: type(one.streamReader(schema)._history) for name, one in streams.items()}  # type: ignore[attr-defined]
    assert kinds == {"directory": DirectoryHistory, "node": NodeHistory}
    with pytest.raises(InvalidRequestError, match="a stream of format waltz reads one storage"):
        source(paths='["waltz://127.0.0.1:1"]').streamReader(schema).initialOffset()
    with pytest.raises(InvalidRequestError, match="a stream of format waltz reads one storage"):
        source().streamReader(schema).initialOffset()
    writer = source(path=str(tmp_path / "new")).writer(spark_schema(RECORD_COLUMNS), False)
    writer.abort([])
    assert list(tmp_path.iterdir()) == []
