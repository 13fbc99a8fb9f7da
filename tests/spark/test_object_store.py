"""Storages in an object store: the same rows and findings, read in ranges, and nothing of what is not wanted.

The store is moto's server on loopback, reached through s3fs; what it was asked for is what it was seen to be asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import build_directory, make_records
from tests.inspect.helpers import age, flip, seg
from tests.spark.object_store import Store, running_store
from tests.spark.reading import dumped, examples, in_order, read, verified
from tests.spark.streaming import Query, ids
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.spark.stream_reader import ADMISSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("moto.server", reason="no S3-compatible server is installed")
pytest.importorskip("s3fs", reason="s3fs is not installed")

pytestmark = [
    pytest.mark.turns(8, place=6),
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with running_store() as running:
        yield running


def at(url: str, row: dict[str, Any], storage: Path) -> dict[str, Any]:
    """A row of the directory as it must be of its copy."""
    return {name: value.replace(str(storage), url) if isinstance(value, str) else value for name, value in row.items()}


@pytest.fixture(scope="module")
def examples_there(store: Store) -> list[tuple[Path, str]]:
    wanted = {"stale-indexes", "lost-segment"}  # a damaged record has a test of its own
    return [
        (storage, store.upload(storage, f"s3://examples/{storage.parent.name}"))
        for storage in examples()
        if storage.parent.name in wanted
    ]


@pytest.mark.turns(10)
def test_rows_and_findings_are_those_of_the_files(store: Store, examples_there: list[tuple[Path, str]]) -> None:
    assert len(examples_there) == 2
    for storage, url in examples_there:
        expected = in_order(at(url, row, storage) for row in dumped(storage))
        assert in_order(read(url, splitSize=4000, **store.options)) == expected
        # what lies behind a URL is mended in a copy: no command is named
        findings = [{"node": str(storage), **FINDING.keys(one), "remedy": None} for one in verified(storage)]
        expected = in_order(at(url, row, storage) for row in findings)
        got = read(url, view="findings", **store.options)
        assert in_order(got) == expected


@pytest.fixture(scope="module")
def large(store: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Three partitions with a segment of 3 MB each."""
    partitions = {number: [make_records(3000, partition=number, size=1000)] for number in range(3)}
    storage = age(build_directory(tmp_path_factory.mktemp("large") / "node", partitions))
    return storage, store.upload(storage, "s3://cluster/node-1")


LOOK_BEHIND = 512 << 10
"""Bytes that the look for what is missing behind a partition's last record may take, whatever its segments hold."""


@pytest.mark.turns(10)
def test_a_large_segment_is_read_in_ranges_and_about_once(store: Store, large: tuple[Path, str]) -> None:
    storage, url = large
    store.gets.clear()
    rows = read(url, partitions="1", splitSize="1MB", columns="transaction_id", **store.options)
    assert [row["transaction_id"] for row in rows] == list(range(3000))
    size = seg(storage, 1, 0).stat().st_size
    gets = [(asked, length) for path, asked, length in store.gets if path.endswith("/1/" + seg(storage, 1, 0).name)]
    assert all(asked is not None for asked, _ in gets), "a whole object was asked for"
    assert max(length for _, length in gets) < size
    assert size <= sum(length for _, length in gets) < 1.6 * size + LOOK_BEHIND


@pytest.mark.turns(10)
def test_a_filter_on_the_partition_asks_for_no_object_of_another(
    spark: SparkSession, store: Store, large: tuple[Path, str]
) -> None:
    _, url = large

    def asked_for() -> set[str]:
        return {path.split("/")[-2] for path, _, _ in store.gets if not path.endswith(".ctl")}

    store.gets.clear()
    assert len(read(url, partitions="2", columns="partition", **store.options)) == 3000
    assert asked_for() == {"2"}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        store.gets.clear()
        everything = (
            spark.read.format("waltz").options(**store.options, pushdown="true").schema("partition int").load(url)
        )
        assert everything.where("partition = 0").count() == 3000
        assert asked_for() == {"0"}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.turns(10)
def test_damage_there_is_rows_and_credentials_are_in_no_message(store: Store, tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 50}, size=100)
    flip(seg(storage, 0, 0), 128 + 140 * 7 + 50)
    url = store.upload(age(storage), "s3://damaged/node")
    assert [row["transaction_id"] for row in read(url, **store.options) if row["finding"]] == [7]
    broken = store.options | {
        "storage.endpoint_url": "http://127.0.0.1:9",
        "storage.config_kwargs": '{"retries": {"max_attempts": 0}, "connect_timeout": 1}',
    }
    with pytest.raises(DiskReadError) as raised:
        read(url, **broken)
    assert "geheim" not in str(raised.value)
    assert len(read(url, **store.options)) == 50, "what was said wrongly once was kept"
    shutil.rmtree(storage)


def grown(path: Path, records: int) -> Path:
    """The same storage each time, with more and more in it: partition 0 rolls over every 400 records."""
    rolled = [make_records(min(400, records - first), first=first, size=500) for first in range(0, records, 400)]
    return age(build_directory(path, {0: rolled, 1: [make_records(records // 2, partition=1, size=500)]}))


@pytest.mark.turns(10)
def test_a_stream_gives_what_is_uploaded_once_and_asks_for_little_else(store: Store, tmp_path: Path) -> None:
    url = store.upload(grown(tmp_path / "a", 300), "s3://stream/node")
    query = Query(url, maxRecordsPerTrigger="400", **store.options)
    query.run()
    store.upload(grown(tmp_path / "b", 1000), url)
    query.restart()
    query.run()
    assert ids(query.rows) == list(range(1000))
    assert ids(query.rows, 1) == list(range(500))
    assert not ADMISSION or all(len(batch) <= 400 for batch in query.batches)
    store.gets.clear()
    assert query.step() is None
    assert all(asked is not None for _, asked, _ in store.gets), "a whole object was asked for"
    assert sum(length for _, _, length in store.gets) < 60_000, "what was read before is read again"


@pytest.mark.turns(10)
def test_a_streaming_query_reads_objects(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """With its options in the processes that Spark starts for it."""
    url = store.upload(grown(tmp_path / "a", 500), "s3://query/node")
    stream = spark.readStream.format("waltz").options(**store.options).schema("partition int, transaction_id long")
    written = stream.load(url).writeStream.format("parquet").trigger(availableNow=True)
    query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "table"))
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(tuple(row) for row in rows) == [(0, n) for n in range(500)] + [(1, n) for n in range(250)]


def test_file_urls_are_files(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5})
    assert len(read(f"file://{storage}")) == 5
