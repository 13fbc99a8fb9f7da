"""Filters leave out files, and never a row that the query would have had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tests.builders import build_directory, make_records
from tests.inspect.helpers import age, flip, idx, seg, swap
from tests.spark.opened import Opened
from tests.spark.reading import dumped, examples, in_order, packets, read
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.spark.selection import Selection, pushed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

PARTITION, ID = ("partition",), ("transaction_id",)
CONF = "spark.sql.python.filterPushdown.enabled"


def matches(one: Filter, row: dict[str, Any]) -> bool:
    """What Spark makes of a filter when it applies it again."""
    value, wanted = row[one.attribute[0]], getattr(one, "value", None)  # type: ignore[attr-defined]
    match one:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case EqualNullSafe():
            return bool(value == wanted)
        case In():
            return value is not None and value in wanted
    if value is None or wanted is None:
        return False
    match one:
        case EqualTo():
            return bool(value == wanted)
        case GreaterThan():
            return bool(value > wanted)
        case GreaterThanOrEqual():
            return bool(value >= wanted)
        case LessThan():
            return bool(value < wanted)
        case _:
            return bool(value <= wanted)


def numbers(most: int) -> st.SearchStrategy[int]:
    return st.integers(-2, most)


def some_filters(most: int, attribute: tuple[str]) -> st.SearchStrategy[Filter]:
    number = numbers(most)
    compared = st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualNullSafe])
    return st.one_of(
        st.builds(lambda kind, value: kind(attribute, value), compared, number),
        st.builds(lambda values: In(attribute, tuple(values)), st.lists(st.one_of(number, st.none()), max_size=4)),
        st.sampled_from([IsNotNull(attribute), IsNull(attribute), EqualNullSafe(attribute, None)]),
    )


FILTERS = st.lists(st.one_of(some_filters(5, PARTITION), some_filters(120, ID)), max_size=4)


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with damage of every sort that concerns rows."""
    storage = build_directory(tmp_path_factory.mktemp("hurt") / "s", {0: 100, 1: 100, 3: 100}, per_segment=30, size=20)
    flip(seg(storage, 0, 30), 300)
    flip(seg(storage, 0, 60), 20)
    seg(storage, 1, 30).unlink()
    idx(storage, 1, 60).unlink()
    seg(storage, 3, 30).write_bytes(b"short")
    with seg(storage, 3, 90).open("ab") as file:
        file.write(b"torn")
    return age(storage)


@pytest.fixture(scope="module")
def dump_of_hurt(hurt: Path) -> list[dict[str, Any]]:
    return list(dumped(hurt))


@pytest.mark.turns(10)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(filters=FILTERS, size=st.sampled_from(["128MiB", "1000"]))
def test_filters_that_are_pushed_and_applied_again_change_no_result(
    hurt: Path, dump_of_hurt: list[dict[str, Any]], filters: list[Filter], size: str
) -> None:
    def filtered(rows: list[dict[str, Any]]) -> list[str]:
        return in_order(row for row in rows if all(matches(one, row) for one in filters))

    assert filtered(read(hurt, filters=filters, splitSize=size)) == filtered(dump_of_hurt)


@pytest.mark.turns(8)
@pytest.mark.parametrize("storage", examples(), ids=lambda path: path.parent.name)
def test_filters_on_the_damage_corpus_change_no_result(storage: Path) -> None:
    everything = list(dumped(storage))
    for filters in ([GreaterThanOrEqual(ID, 12)], [LessThan(ID, 7)], [EqualTo(PARTITION, 1)], [In(ID, (3, 17, 30))]):
        expected = [row for row in everything if all(matches(one, row) for one in filters)]
        got = [row for row in read(storage, filters=filters) if all(matches(one, row) for one in filters)]
        assert in_order(got) == in_order(expected), filters


def test_records_beyond_the_name_of_the_next_segment_are_found(tmp_path: Path) -> None:
    """Two segments overlap: the name of the second one says nothing about where the first one ends."""
    storage = build_directory(tmp_path / "s", {0: [make_records(60), make_records(20, first=60)]})
    seg(storage, 0, 60).rename(seg(storage, 0, 50))
    idx(storage, 0, 60).rename(idx(storage, 0, 50))
    rows = read(storage, filters=[EqualTo(ID, 55)])
    assert [row["transaction_id"] for row in rows if row["finding"] is None] == [55]


@pytest.mark.parametrize("pair", [(0, 10), (10, 30)])
@pytest.mark.parametrize("size", ["128MiB", "300"])
def test_records_of_segments_whose_data_files_were_swapped_are_found(
    tmp_path: Path, pair: tuple[int, int], size: str
) -> None:
    """Names and indexes agree, and the records lie elsewhere."""
    storage = build_directory(tmp_path / "s", {0: 40}, per_segment=10, size=20)
    swap(*(seg(storage, 0, first) for first in pair))
    for wanted in (0, 9, 10, 15, 19, 20, 29, 30, 39):
        rows = read(age(storage), filters=[EqualTo(ID, wanted)], splitSize=size)
        assert [row["transaction_id"] for row in rows if row["finding"] is None] == [wanted]


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(PARTITION, 1), EqualTo(PARTITION, 2)],
        [GreaterThan(ID, 50), LessThan(ID, 50)],
        [In(PARTITION, (1, 2)), GreaterThan(PARTITION, 2)],
        [In(ID, ())],
        [EqualTo(PARTITION, 77)],
    ],
)
def test_filters_that_contradict_each_other_need_no_task(hurt: Path, filters: list[Filter]) -> None:
    assert packets(hurt, filters=filters) == []


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("request_id", "partition"), 1),
        EqualTo(("header",), 1),
        Not(EqualTo(PARTITION, 1)),
        EqualTo(PARTITION, None),
        EqualTo(PARTITION, "1"),
        EqualTo(PARTITION, True),
        In(PARTITION, (1, "x")),
    ],
)
def test_what_is_not_understood_restricts_nothing(one: Filter) -> None:
    assert pushed(Selection(), [one]) == Selection()


def test_filters_and_options_restrict_together(hurt: Path) -> None:
    rows = read(hurt, filters=[GreaterThan(PARTITION, 0)], partitions="0,3", maxTransactionId=10, columns="partition")
    assert {row["partition"] for row in rows} == {3}


def test_a_filter_on_the_partition_opens_no_other_partition(hurt: Path) -> None:
    with Opened([hurt / name for name in "013"]) as opened:
        assert read(hurt, filters=[EqualTo(PARTITION, 1)], columns="partition")
        assert {path.parent.name for path in opened.names()} == {"1"}
        assert read(hurt, partitions="3", columns="partition")
        assert {path.parent.name for path in opened.names()} == {"3"}


def test_a_filter_beside_the_partition_of_a_path_leaves_nothing_and_an_option_is_a_mistake(hurt: Path) -> None:
    assert read(hurt / "1", filters=[EqualTo(PARTITION, 3)], columns="partition") == []
    assert read(hurt / "1", filters=[EqualTo(PARTITION, 1)], columns="partition")
    for filters in ([], [GreaterThan(PARTITION, 0)]):
        with pytest.raises(InvalidRequestError, match="lies in partition 1, and partition 3 was asked for"):
            read(hurt / "1", filters=filters, partitions="3", columns="partition")


def test_a_filter_on_ids_opens_only_segments_that_may_hold_them(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 100, 1: 100}, per_segment=20))
    with Opened([storage / "0", storage / "1"]) as opened:
        assert len(read(storage, filters=[In(ID, (45, 47))], columns="transaction_id")) == 6
        looked_at = {seg(storage, 0, 0)}  # its header: whose key the storage has
        wanted = {path for p in (0, 1) for path in (seg(storage, p, 40), idx(storage, p, 40))}
        assert opened.names() - looked_at == wanted


def test_a_filter_on_the_node_reads_nothing_of_the_others(tmp_path: Path) -> None:
    one, two = (age(build_directory(tmp_path / name, {0: 20}, per_segment=10)) for name in ("1", "2"))
    (tmp_path / "link").symlink_to(two)
    named = [one, two, tmp_path / "link"]
    everything = read(*named)
    node = ("node",)
    for filters in (
        [EqualTo(node, str(two))],
        [EqualTo(node, str(tmp_path / "link"))],  # the same storage, which goes by its first name
        [In(node, (str(one), None, "/elsewhere"))],
        [EqualNullSafe(node, None)],
        [EqualTo(node, str(one)), EqualTo(node, str(two))],
        [Not(EqualTo(node, str(one)))],
    ):
        got = read(*named, filters=filters)
        if not isinstance(filters[0], Not):
            expected = in_order(row for row in everything if all(matches(one, row) for one in filters))
            assert in_order(row for row in got if all(matches(one, row) for one in filters)) == expected, filters
    with Opened([one, two]) as opened:
        assert len(read(*named, filters=[EqualTo(node, str(two))])) == 20
        assert not [path for path in opened.names() if one in path.parents]
    assert packets(*named, filters=[EqualTo(node, str(one)), EqualTo(node, str(two))]) == []
    parted = [one / "0", two]
    assert {row["node"] for row in read(*parted, filters=[EqualTo(node, str(one))])} == {str(one)}


def test_a_storage_goes_by_its_first_name_though_a_filter_leaves_that_path_out(tmp_path: Path) -> None:
    storage, link = build_directory(tmp_path / "s", {0: 5, 1: 5}), tmp_path / "link"
    link.symlink_to(storage)
    for others in ([link], [link / "1"], [link / "1" / seg(storage, 1, 0).name]):
        named = [storage / "0", *others]
        everything = read(*named)
        assert {(row["node"], row["partition"]) for row in everything} == {(str(storage), 0), (str(storage), 1)}
        wanted = in_order(row for row in everything if row["partition"] == 1)
        for filters in ([EqualTo(PARTITION, 1)], [EqualTo(PARTITION, 1), EqualTo(("node",), str(storage))]):
            assert in_order(read(*named, filters=filters)) == wanted


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(CONF, "true")
    yield spark
    spark.conf.unset(CONF)


@pytest.mark.turns(8)
def test_spark_pushes_once_it_is_allowed_to_and_the_source_sees_it(pushing: SparkSession, hurt: Path) -> None:
    with Opened([hurt / name for name in "013"]) as opened:
        reading = pushing.read.format("waltz").option("pushdown", "auto")
        frame = reading.schema("partition int, transaction_id long").load(str(hurt))
        assert frame.where("partition = 0 and transaction_id between 95 and 98").count() == 4
        looked_at = {seg(hurt, 0, 0)}  # its header: whose key the storage has
        assert opened.names() - looked_at == {seg(hurt, 0, 90), idx(hurt, 0, 90)}
    with Opened([hurt / name for name in "013"]) as opened:
        assert frame.where("partition = 0 and transaction_id >= 95").count() == 5
        looked_at = {
            seg(hurt, 0, first) for first in (0, 30, 60)
        }  # headers: the last records may be under another name
        assert opened.names() - looked_at == {seg(hurt, 0, 90), idx(hurt, 0, 90)}


@pytest.mark.turns(8)
def test_spark_gives_the_same_rows_with_and_without_pushdown(pushing: SparkSession, hurt: Path) -> None:
    queries = (
        "partition = 3",
        "transaction_id in (31, 60, 95)",
        "partition > 0 and transaction_id < 40",
        "partition = 9",
    )

    def results() -> list[list[str]]:
        reading = pushing.read.format("waltz").option("pushdown", "auto")
        return [sorted(map(repr, reading.load(str(hurt)).where(query).collect())) for query in queries]

    with_it = results()
    pushing.conf.unset(CONF)
    assert with_it == results()
    assert with_it[0]
    assert with_it[3] == []


@pytest.mark.turns(8)
def test_a_filter_without_pushdown_is_no_error(spark: SparkSession, hurt: Path) -> None:
    frame = spark.read.format("waltz").schema("partition int").option("partitions", "1").load(str(hurt))
    with Opened([hurt / name for name in "03"]) as opened:
        assert frame.where("partition = 1").count() > 0
        assert opened.names() == set()


def test_unasked_no_filter_is_pushed_and_a_table_may_be_used_again(
    pushing: SparkSession, hurt: Path, dump_of_hurt: list[dict[str, Any]]
) -> None:
    """Spark would take the plan of the last pushed filter for each other use of the table."""
    frame = pushing.read.format("waltz").schema("partition int").load(str(hurt))
    rows = {number: sum(row["partition"] == number for row in dump_of_hurt) for number in (0, 1, 3)}
    with Opened([hurt / name for name in "013"]) as opened:
        assert frame.where("partition = 1").count() == rows[1]
        assert {path.parent.name for path in opened.names()} == {"0", "1", "3"}
    assert frame.count() == len(dump_of_hurt)
    assert frame.where("partition = 0").union(frame.where("partition = 3")).count() == rows[0] + rows[3]
    assert frame.where("partition = 0 or partition = 1").count() == rows[0] + rows[1]
