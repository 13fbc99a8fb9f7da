"""Batches and streams of a whole cluster, over a client that knows what is committed; `tests/cluster` has servers behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from tests.builders import make_records
from tests.spark.nodes import sent
from waltzctl.engine.client.log_client import LogClient, Transaction
from waltzctl.engine.errors import InvalidRequestError, RefusedError, StalePlanError
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.spark import cluster_history
from waltzctl.engine.spark.cluster_history import ClusterAccess, ClusterReader, RangePartition, cluster_stream
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.data_source import WaltzDataSource
from waltzctl.engine.spark.offsets import BEGINNING, Anchor
from waltzctl.engine.spark.stream_node import NodeRange, PeerAccess, anchor_of
from waltzctl.engine.spark.stream_reader import WaltzStreamReader
from waltzctl.engine.spark.view_schemas import pick, spark_schema
from waltzctl.formats.wire.records import WireRecord

KEY = uuid.UUID(int=77)
SCHEMA: StructType = spark_schema(pick("records", ("partition", "transaction_id", "header", "data")))
Row = tuple[int, int, int, bytes]


class Client:
    """Of three partitions with 10, 7 and no transactions; `given_out`: as many of them as a feed tells."""

    num_partitions = 3

    def __init__(self) -> None:
        self.records = {number: sent(make_records(count, partition=number)) for number, count in enumerate((10, 7, 0))}
        self.given_out = 100
        self.asked: list[str] = []

    async def high_water_mark(self, partition: int) -> int:
        return len(self.records[partition]) - 1

    async def feed(
        self, partition: int, *, after: int, until: Callable[[int], int]
    ) -> AsyncGenerator[Transaction, None]:
        self.asked.append(f"{partition}: {after + 1} to {until(partition)}")
        for one in self.records[partition][after + 1 : min(until(partition) + 1, self.given_out)]:
            yield Transaction(partition, one.transaction_id, one.request_id, one.header)

    async def data(self, partition: int, transaction_id: int) -> bytes:
        return self.records[partition][transaction_id].data

    def rows(self, partition: int, first: int, last: int) -> list[Row]:
        return [
            (partition, one.transaction_id, one.header, one.data) for one in self.records[partition][first : last + 1]
        ]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    known, open_now = Client(), 0

    @contextlib.asynccontextmanager
    async def opened(_: ClusterAccess) -> AsyncIterator[Client]:
        nonlocal open_now
        open_now += 1
        try:
            yield known
        finally:
            open_now -= 1

    monkeypatch.setattr(ClusterAccess, "client", opened)
    yield known
    assert open_now == 0, "a client stayed open"


@pytest.fixture
def metadata(tmp_path: Path) -> str:
    async def make() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", create=True)
        await create_cluster(store, name="c", num_partitions=3, cluster_key=KEY)
        await store.close()

    asyncio.run(make())
    return str(tmp_path / "metadata")


def rows(reader: Any, parts: Any) -> list[Row]:
    return [tuple(row.values()) for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def parts(reader: ClusterReader) -> list[tuple[int, int, int]]:
    found = [one.part for one in reader.partitions() if isinstance(one, RangePartition)]
    return [(one.partition, one.first, one.last) for one in found]


def test_a_batch_is_all_that_is_committed_in_ranges_of_ids(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_history, "RANGE_RECORDS", 4)
    reader = WaltzDataSource({"metadata": "m"}).reader(SCHEMA)
    assert isinstance(reader, ClusterReader)
    assert parts(reader) == [(0, 0, 3), (0, 4, 7), (0, 8, 9), (1, 0, 3), (1, 4, 6)]
    assert rows(reader, reader.partitions()) == client.rows(0, 0, 9) + client.rows(1, 0, 6)
    assert [one.value for one in reader.partitions()] == [(0, 0), (0, 4), (0, 8), (1, 0), (1, 4)]
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize("at_once", [(1, 1), (3, 2), (100, 64)])
def test_rows_come_in_batches_and_their_data_a_few_at_a_time(
    client: Client, monkeypatch: pytest.MonkeyPatch, at_once: tuple[int, int]
) -> None:
    monkeypatch.setattr(cluster_history, "_ROWS", at_once[0])
    monkeypatch.setattr(cluster_history, "_AT_ONCE", at_once[1])
    reader = ClusterReader({"metadata": "m", "partitions": "0"}, SCHEMA)
    (task,) = reader.partitions()
    batches = [batch.num_rows for batch in reader.read(task)]
    assert batches == [at_once[0]] * (10 // at_once[0]) + [10 % at_once[0]] * (10 % at_once[0] > 0)
    assert rows(reader, [task]) == client.rows(0, 0, 9)


def test_long_records_come_in_batches_of_a_bounded_number_of_bytes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of records of a megabyte came as one batch, more than a worker has memory for."""
    monkeypatch.setattr(cluster_history, "_BYTES", 4096, raising=False)
    client.records[0], client.given_out = sent(make_records(300, size=1000)), 300
    reader = ClusterReader({"metadata": "m", "partitions": "0"}, SCHEMA)
    (task,) = reader.partitions()
    batches = [sum(map(len, batch["data"].to_pylist())) for batch in reader.read(task)]
    assert max(batches) < 2 * 4096
    assert rows(reader, [task]) == client.rows(0, 0, 299)


def test_long_records_behind_short_ones_are_not_all_there_at_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short ones are asked for 64 at a time; so many of 128 MiB behind them were 8 GiB."""
    monkeypatch.setattr(cluster_history, "_BYTES", 4096)
    real, came, most = client.data, 0, 0

    async def data(partition: int, transaction_id: int) -> bytes:
        """Each comes a turn of the loop behind the one before."""
        nonlocal came, most
        for _ in range(transaction_id - len(made)):
            await asyncio.sleep(0)
        found = await real(partition, transaction_id)
        came += len(found)
        most = max(most, came)
        return found

    client.records[0], client.given_out = (
        sent([*make_records(100, size=1), *make_records(100, first=100, size=3000)]),
        300,
    )
    monkeypatch.setattr(client, "data", data)
    made: list[WireRecord] = []

    async def work() -> None:
        nonlocal came
        async for some in cluster_history._records(cast("LogClient", client), NodeRange(0, 0, 199)):
            made.extend(some)
            came = 0

    asyncio.run(work())
    assert made == client.records[0]
    assert most <= 4 * 4096


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"partitions": "1"}, [(1, 0, 6)]),
        ({"mintransactionid": "5"}, [(0, 5, 9), (1, 5, 6)]),
        ({"mintransactionid": "9"}, [(0, 9, 9)]),
        ({"mintransactionid": "10"}, []),
        ({"mintransactionid": "-3", "maxtransactionid": "0"}, [(0, 0, 0), (1, 0, 0)]),
        ({"maxtransactionid": "6"}, [(0, 0, 6), (1, 0, 6)]),
        ({"maxtransactionid": "8"}, [(0, 0, 8), (1, 0, 6)]),
    ],
)
def test_partitions_and_ids_bound_a_batch(
    client: Client, options: dict[str, str], expected: list[tuple[int, int, int]]
) -> None:
    from pyspark.sql.datasource import CaseInsensitiveDict

    assert parts(ClusterReader(CaseInsensitiveDict({"metadata": "m", **options}), SCHEMA)) == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"Zeta": "1", "nonsense": "1"}, "a read of a cluster has no option nonsense, zeta"),
        ({"view": " Segments"}, "view ' Segments': a cluster has records only"),
        ({"path": "/data"}, "option metadata: a cluster is read without a path"),
        ({"paths": "[]"}, "option metadata: a cluster is read without a path"),
        ({"metadata": "http://x"}, "metadata 'http://x' is not understood"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is true or false, not 'maybe'"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(said)):
        ClusterReader({"metadata": "m", **options}, SCHEMA)
    ClusterReader({"metadata": "m", "view": " Records ", "timeout": "5s", "failOnDataLoss": "true"}, SCHEMA)
    with pytest.raises(InvalidRequestError, match="no option nonsense"):
        WaltzDataSource({"metadata": "m", "nonsense": "1"}).streamReader(SCHEMA).latestOffset()


@pytest.mark.parametrize(("named", "beyond"), [("2", None), ("0-2", None), ("3", 3), ("1,3-5", 3), ("7", 7)])
def test_partitions_that_the_cluster_does_not_have_are_refused(
    client: Client, metadata: str, named: str, beyond: int | None
) -> None:
    """Else whoever slips in a number reads nothing, and takes it for all."""
    reader, reading = ClusterReader({"metadata": "m", "partitions": named}, SCHEMA), stream(metadata, partitions=named)
    if beyond is None:
        assert {number for number, _, _ in parts(reader)} <= {0, 1}
        reading.latestOffset()
        return
    for ask in (reader.partitions, reading.latestOffset):
        with pytest.raises(InvalidRequestError, match=f"partition {beyond} does not exist: they are 0 to 2"):
            ask()


def test_how_a_cluster_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    @contextlib.asynccontextmanager
    async def opened(metadata: str, factory: Any, *, log: Any, options: Any, reader_ids: Any) -> AsyncIterator[str]:
        assert reader_ids is cluster_history._READER_IDS, "batches share their client ids"
        asked.append((metadata, factory.timeout, options.timeout))
        yield "a client"

    async def work(client: str) -> str:
        return f"done with {client}"

    monkeypatch.setattr(cluster_history, "open_log_client", opened)
    assert ClusterAccess("m", PeerAccess(plaintext=True, timeout=7.0)).run(work) == "done with a client"
    assert asked == [("m", 7.0, 7.0)]


# ---- streams ------------------------------------------------------------------------------------------------------------


def stream(metadata: str, **options: str) -> WaltzStreamReader:
    return cluster_stream({"metadata": metadata, **options}, SCHEMA)


def through_json(offset: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(offset))
    return made


def test_a_stream_gives_what_is_committed_once_and_goes_on(client: Client, metadata: str) -> None:
    reader = stream(metadata)
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset())
    assert start["cluster_key"] == end["cluster_key"] == str(KEY)
    assert [end["partitions"][name]["transaction_id"] for name in "012"] == [9, 6, -1]
    assert rows(reader, reader.partitions(start, end)) == client.rows(0, 0, 9) + client.rows(1, 0, 6)
    client.asked.clear()
    assert through_json(reader.latestOffset()) == end
    assert client.asked == [], "records that are known were asked for again"
    client.records[1] += sent(make_records(2, first=7, partition=1))
    again = stream(metadata)
    later = through_json(again.latestOffset(end))
    assert rows(again, again.partitions(end, later)) == client.rows(1, 7, 8)
    assert rows(again, again.partitions(start, end)) == client.rows(0, 0, 9) + client.rows(1, 0, 6)
    again.stop()


def test_a_stream_is_bounded_by_ids_in_ranges_of_which_the_last_names_its_record(
    client: Client, metadata: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_history, "RANGE_RECORDS", 4)
    history = stream(metadata)._history
    last = anchor_of(client.records[0][9])
    assert history.place == metadata
    assert list(history.parts(0, Anchor(1), last)) == [
        NodeRange(0, 2, 5, None), NodeRange(0, 6, 9, last),
    ]  # fmt: skip
    assert list(history.parts(0, last, last)) == []
    assert list(history.parts(0, Anchor(8), last)) == [NodeRange(0, 9, 9, last)]
    assert list(history.parts(0, Anchor(5), last)) == [NodeRange(0, 6, 9, last)]
    assert list(history.parts(0, Anchor(4), last)) == [NodeRange(0, 5, 8), NodeRange(0, 9, 9, last)]


def test_what_is_known_of_places(client: Client, metadata: str) -> None:
    history = stream(metadata)._history
    assert history.refresh() == KEY
    ninth, sixth = anchor_of(client.records[0][9]), anchor_of(client.records[1][6])
    assert history.latest(None, {}, "intact") == {0: ninth, 1: sixth, 2: BEGINNING}
    assert history.latest({1}, {}, "intact") == {1: sixth}
    kept = Anchor(9, segment=5)
    assert history.latest({0}, {0: kept}, "intact") == {0: kept}
    assert history.latest({0}, {0: Anchor(8, segment=5)}, "intact") == {0: ninth}
    assert history.at_or_before(0, 4, BEGINNING) == anchor_of(client.records[0][4])
    assert history.at_or_before(0, 99, BEGINNING) == ninth
    assert history.at_or_before(0, 0, BEGINNING) == anchor_of(client.records[0][0])
    assert history.at_or_before(2, 99, BEGINNING) == BEGINNING
    assert history.record_now(0, ninth) == ninth
    assert history.record_now(0, Anchor(10)) is None
    client.given_out = 3
    with pytest.raises(RefusedError, match="partition 0: transaction 4 is not given out"):
        history.record_now(0, Anchor(4))


def test_a_last_record_that_is_another_one_or_missing_ends_the_task(client: Client, metadata: str) -> None:
    reader = stream(metadata)
    start, end = through_json(reader.initialOffset()), through_json(reader.latestOffset())
    (task,) = reader.partitions(start, end)
    client.records[0][9:] = sent(make_records(1, first=9, seed=5))
    said = f"{metadata}, partition 0: transaction 9 is another one than when this was planned"
    with pytest.raises(StalePlanError, match=re.escape(said)):
        list(reader.read(task))
    for batch in stream(metadata)._history.read(NodeRange(0, 8, 9), Losses()):
        assert batch.column("transaction_id").to_pylist() == [8, 9]
    client.records[0].clear()
    with pytest.raises(StalePlanError, match=re.escape(said)):
        list(reader.read(task))
