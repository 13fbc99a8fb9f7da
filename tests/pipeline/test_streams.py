"""The streams behind the tables, driven as Spark drives them, without Spark: every batch asked for twice."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.builders import build_directory, make_records, write_segment
from tests.spark.nodes import served
from tests.spark.object_store import running_store
from tests.spark.streaming import SCHEMA, damage
from waltzctl.engine.errors import InvalidRequestError, MismatchError, SpecialFileError, StalePlanError
from waltzctl.engine.pipeline import agreement_stream as agreement_module
from waltzctl.engine.pipeline import committed_marks as marks_module
from waltzctl.engine.pipeline.agreement_stream import agreement_stream
from waltzctl.engine.pipeline.completeness import gaps
from waltzctl.engine.pipeline.pipeline_data_source import ReplicasReader
from waltzctl.engine.pipeline.quarantine_rows import finding_row
from waltzctl.engine.pipeline.replica_stream import replica_set_stream
from waltzctl.engine.pipeline.schemas import COPY
from waltzctl.engine.scan import kernels
from waltzctl.formats.segment import segment_name

Row = dict[str, Any]


class Stopping:
    """A reader that is stopped as Spark does it."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def close(self) -> None:
        self.reader.stop()


class Query:
    """A query over several storages; `kind`: records, transactions or differences."""

    def __init__(self, kind: str, *sources: Path | str, **options: str) -> None:
        self.kind, self.sources, self.options = kind, sources, options
        with contextlib.closing(Stopping(self.reader())) as made:
            self.offset: dict[str, Any] = made.reader.initialOffset()

    def reader(self) -> Any:
        named = [str(one) for one in self.sources]
        if self.kind == "records":
            return replica_set_stream(named, self.options, SCHEMA)
        return agreement_stream(named, self.options, from_arrow_schema(COPY), differences=self.kind == "differences")

    def run(self, limit: int | None = None, *, available_now: bool = False) -> list[Row]:
        """Everything that is there, in batches of `limit`, each by a reader of its own, as after a kill."""
        found: list[Row] = []
        while True:
            with (
                contextlib.closing(Stopping(self.reader())) as first,
                contextlib.closing(Stopping(self.reader())) as second,
            ):
                reader = first.reader
                if available_now:
                    reader.prepareForTriggerAvailableNow()
                wanted = ReadMaxRows(limit) if limit else reader.getDefaultReadLimit()
                end = json.loads(json.dumps(reader.latestOffset(self.offset, wanted)))
                if end == self.offset:
                    return found
                rows = self._batch(reader, end)
                assert self._batch(second.reader, end) == rows, "a batch that is read again is another one"
            found += rows
            self.offset = end

    def _batch(self, reader: Any, end: dict[str, Any]) -> list[Row]:
        return [
            row
            for task in pickle.loads(pickle.dumps(reader.partitions(self.offset, end)))
            for batch in pickle.loads(pickle.dumps(reader)).read(task)
            for row in batch.to_pylist()
        ]


def replica(path: Path, count: int, *, mark: int, seed: int = 0, key: uuid.UUID | None = None) -> Path:
    if path.exists():
        shutil.rmtree(path)
    records = make_records(count, seed=seed)
    given = {} if key is None else {"key": key}
    segments = [records[at : at + 50] for at in range(0, count, 50)]
    return build_directory(path, {0: segments}, local_low_water_mark=min(mark, count - 1), **given)


def ids(rows: list[Row]) -> list[int]:
    return [row["transaction_id"] for row in rows]


@pytest.mark.turns(10)
@pytest.mark.parametrize("limit", [None, 7])
def test_all_replicas_records_once_whatever_the_batches(tmp_path: Path, limit: int | None) -> None:
    one, two = replica(tmp_path / "1", 120, mark=0), replica(tmp_path / "2", 60, mark=0)
    query = Query("records", one, two)
    rows = query.run(limit)
    assert sorted((row["node"], row["transaction_id"]) for row in rows) == [
        *((str(one), number) for number in range(120)),
        *((str(two), number) for number in range(60)),
    ]
    query.sources = (one, two, replica(tmp_path / "3", 30, mark=0))  # one that is added
    assert len(query.run(limit)) == 30
    query.sources = (one,)  # taken out, and put in again
    assert query.run() == []
    query.sources = (one, two)
    assert query.run() == []


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("chunk", "weight", "tasks"), [(1 << 16, 64 << 20, 1), (10, 64 << 20, 1), (10, 0, 10), (7, 1, 15)]
)
def test_chunks_are_compared_one_after_another_and_packed_into_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, weight: int, tasks: int
) -> None:
    """A copy that is damaged, one that is behind and one with other bytes come out the same, however it is cut."""
    one, two = replica(tmp_path / "1", 120, mark=99), replica(tmp_path / "2", 60, mark=59)
    three = replica(tmp_path / "3", 120, mark=0, seed=5)
    damage(one, 0, 20)

    def told(kind: str) -> list[Row]:
        return sorted(Query(kind, one, two, three).run(), key=lambda row: (row["transaction_id"], row.get("node")))

    shown = [told(kind) for kind in ("transactions", "differences")]
    monkeypatch.setattr(agreement_module, "CHUNK", chunk)
    monkeypatch.setattr(agreement_module, "TASK_WEIGHT", weight)
    assert [told(kind) for kind in ("transactions", "differences")] == shown
    query = Query("transactions", one, two, three)
    with contextlib.closing(Stopping(query.reader())) as made:
        end = made.reader.latestOffset(query.offset, made.reader.getDefaultReadLimit())
        planned = made.reader.partitions(query.offset, end)
    assert len(planned) == tasks
    covered = [number for task in planned for part in task.chunks for number in range(part.first, part.stop)]
    assert covered == list(range(100))


@pytest.mark.turns(8)
@pytest.mark.parametrize("limit", [1, 400, 3000])
def test_a_chunk_has_a_bounded_number_of_bytes_or_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    one, two = replica(tmp_path / "1", 120, mark=99), replica(tmp_path / "2", 60, mark=59)
    shown = Query("transactions", one, two).run()
    monkeypatch.setattr(agreement_module, "CHUNK_BYTES", limit)
    query = Query("transactions", one, two)
    assert query.run() == shown
    query = Query("transactions", one, two)
    with contextlib.closing(Stopping(query.reader())) as made:
        end = made.reader.latestOffset(query.offset, made.reader.getDefaultReadLimit())
        chunks = [chunk for task in made.reader.partitions(query.offset, end) for chunk in task.chunks]
    assert [number for chunk in chunks for number in range(chunk.first, chunk.stop)] == list(range(100))
    assert all(chunk.bytes <= 2 * limit or chunk.stop - chunk.first == 1 for chunk in chunks)
    assert len(chunks) > 2


def test_chunks_of_nodes_are_bounded_by_the_bytes_of_the_records_that_were_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record was taken for 512 bytes: of long ones a worker held sixteen thousand, of each replica."""
    records, limit = make_records(60, size=20_000), 100_000
    one = build_directory(tmp_path / "1", {0: [records]}, local_low_water_mark=59)
    monkeypatch.setattr(agreement_module, "CHUNK_BYTES", limit)
    with served(one) as node:
        query = Query("transactions", node.url, plaintext="true")
        with contextlib.closing(Stopping(query.reader())) as made:
            end = made.reader.latestOffset(query.offset, made.reader.getDefaultReadLimit())
            chunks = [chunk for task in made.reader.partitions(query.offset, end) for chunk in task.chunks]
        assert [number for chunk in chunks for number in range(chunk.first, chunk.stop)] == list(range(60))
        assert all((chunk.stop - chunk.first) * 20_000 <= 2 * limit for chunk in chunks)
        assert ids(query.run()) == list(range(60))


def test_a_task_with_much_to_read_is_read_by_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small its parts are: they count together."""
    chosen: list[int] = []
    real = kernels.choose
    monkeypatch.setattr(kernels, "choose", lambda size, compiled=None: (chosen.append(size), real(size, compiled))[1])
    one = replica(tmp_path / "1", 120, mark=119)
    size = sum(path.stat().st_size for path in (one / "0").glob("*.seg"))
    Query("records", one).run()
    assert max(chosen) >= size - 3 * 128
    chosen.clear()
    Query("transactions", one).run()
    assert max(chosen) >= size - 3 * 128


@pytest.mark.turns(10)
@pytest.mark.parametrize("limit", [None, 9])
def test_transactions_up_to_the_highest_mark_and_late_copies_change_nothing(tmp_path: Path, limit: int | None) -> None:
    one, two = replica(tmp_path / "1", 120, mark=99), replica(tmp_path / "2", 60, mark=59)
    damage(one, 0, 20)
    query, differing = Query("transactions", one, two), Query("differences", one, two)
    rows = query.run(limit)
    assert ids(rows) == list(range(100))
    assert [row["replicas"] for row in rows] == [1 if number in (20, *range(60, 100)) else 2 for number in range(100)]
    assert differing.run(limit) == []
    replica(two, 130, mark=129)
    assert ids(query.run(limit)) == list(range(100, 130))
    assert differing.run(limit) == []
    query.sources = differing.sources = (one, two, replica(tmp_path / "3", 110, mark=0, seed=5))
    assert query.run(limit) == []
    told = differing.run(limit)
    assert ids(told) == list(range(110))
    assert {row["node"] for row in told} == {str(tmp_path / "3")}


@pytest.mark.parametrize("limit", [None, 9])
def test_a_replica_that_comes_for_another_one_doubles_nothing(tmp_path: Path, limit: int | None) -> None:
    """Its directory has another name, it stands in for one that went further, and for one whose copy was the only intact one."""
    query = Query("transactions", replica(tmp_path / "1", 50, mark=49))
    assert len(query.run(limit)) == 50
    query.sources = (replica(tmp_path / "moved", 60, mark=59),)
    assert ids(query.run(limit)) == list(range(50, 60))

    one, two = replica(tmp_path / "1", 50, mark=49), replica(tmp_path / "2", 30, mark=29)
    damage(two, 0, 20)
    query = Query("transactions", one, two)
    assert len(query.run(limit)) == 50
    query.sources = (replica(two, 60, mark=59),)
    assert ids(query.run(limit)) == list(range(50, 60))
    query.sources = (one, two)
    assert query.run(limit) == []

    damage(two, 50, 55)
    query = Query("transactions", one, two)
    assert ids(query.run(limit)) == [*range(55), *range(56, 60)]
    query.sources = (two, replica(tmp_path / "3", 60, mark=59))
    assert ids(query.run(limit)) == [55]


def test_what_no_replica_had_comes_with_one_that_has_it(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", 50, mark=49)
    damage(one, 0, 20)
    query, differing = Query("transactions", one), Query("differences", one)
    assert ids(query.run()) == [number for number in range(50) if number != 20]
    ((told),) = differing.run()
    assert (told["node"], told["transaction_id"], told["missing"]) == (None, 20, 1)
    query.sources = differing.sources = (one, replica(tmp_path / "2", 50, mark=49))
    assert ids(query.run()) == [20]
    assert differing.run() == []


@pytest.mark.parametrize("more", [0, 1, 2])
def test_transactions_that_no_replica_has_are_told_also_where_they_are_one(tmp_path: Path, more: int) -> None:
    """The mark rises, and what it promises is nowhere."""
    one = replica(tmp_path / "1", 40, mark=39)
    query, differing = Query("transactions", one), Query("differences", one)
    assert (len(query.run()), differing.run()) == (40, [])
    shutil.rmtree(one)
    build_directory(one, {0: [make_records(40)]}, local_low_water_mark=39 + more)
    assert query.run() == []
    told = differing.run()
    assert [(row["node"], row["transaction_id"], row["missing"]) for row in told] == (
        [(None, 40, more)] if more else []
    )
    assert differing.run() == []


@pytest.mark.turns(8)
@pytest.mark.parametrize("behind", [0, 1, 50])
@pytest.mark.parametrize("length", [1, 20, 21, 10**9])
@pytest.mark.parametrize("limit", [None, 3 * 10**8])
def test_a_hole_that_no_replica_holds_costs_the_same_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int, length: int, limit: int | None
) -> None:
    """In the middle, and at the end of what is committed; it was planned in pieces, and told in as many rows."""
    monkeypatch.setattr(agreement_module, "CHUNK", 10)
    stop = 40 + length
    paths = [tmp_path / "1", tmp_path / "2"]
    for path in paths:
        build_directory(path, {0: 40}, local_low_water_mark=stop + behind - 1)
        if behind:
            write_segment(path / "0", make_records(behind, first=stop))
    planned: list[int] = []
    real = agreement_module.AgreementReader._chunk

    def chunk(self: Any, place: str, number: int, first: int, *rest: Any) -> Any:
        planned.append(first)
        return real(self, place, number, first, *rest)

    monkeypatch.setattr(agreement_module.AgreementReader, "_chunk", chunk)
    found, told = Query("transactions", *paths).run(limit), Query("differences", *paths).run(limit)
    assert ids(found) == [*range(40), *range(stop, stop + behind)]
    assert {row["replicas"] for row in found} == {2}
    assert told[0]["transaction_id"] == 40
    assert all(row["finding"] == "acknowledged-missing" and row["node"] is None for row in told)
    assert sum(row["missing"] for row in told) == length
    assert len(planned) < 20_000


def test_a_batch_whose_last_record_is_another_one_by_now_is_not_read(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", 60, mark=59)
    query = Query("transactions", one)
    with contextlib.closing(Stopping(query.reader())) as made:
        reader = made.reader
        end = json.loads(json.dumps(reader.latestOffset(query.offset, reader.getDefaultReadLimit())))
    replica(one, 60, mark=59, seed=3)
    with contextlib.closing(Stopping(query.reader())) as made, pytest.raises(StalePlanError, match="transaction 59"):
        made.reader.partitions(query.offset, end)


@pytest.mark.parametrize("kind", ["records", "transactions"])
def test_a_log_that_is_another_one_is_told_of(tmp_path: Path, kind: str) -> None:
    one, two = replica(tmp_path / "1", 60, mark=59), replica(tmp_path / "2", 60, mark=59)
    query = Query(kind, one, two)
    query.run()
    replica(one, 40, mark=39)
    with pytest.raises(StalePlanError, match=r"1, partition 0: transaction 59"):
        query.run()
    replica(one, 70, mark=69, seed=3)
    with pytest.raises(StalePlanError, match=r"1, partition 0: transaction 59"):
        query.run()
    replica(one, 70, mark=69, key=uuid.UUID(int=7))
    with pytest.raises((MismatchError, StalePlanError), match="cluster"):
        query.run()


@pytest.mark.parametrize("kind", ["records", "transactions"])
@pytest.mark.parametrize("way", ["same", "link", "above", "url"])
def test_a_replica_has_one_vote_however_it_is_named(tmp_path: Path, kind: str, way: str) -> None:
    """Through a link as well, one of two that differ outvoted the other, and each of its records came twice."""
    one, two = replica(tmp_path / "1", 10, mark=9), replica(tmp_path / "2", 10, mark=9, seed=1)
    (tmp_path / "link").symlink_to(one)
    again = {"same": one, "link": tmp_path / "link", "above": f"{two}/../1", "url": f"file://{one}"}[way]
    with pytest.raises(InvalidRequestError, match=f"{re.escape(str(again))}: it is named twice"):
        Query(kind, one, two, again)


@pytest.mark.parametrize(
    ("kind", "limit", "told"), [("records", None, 39), ("transactions", None, 39), ("differences", 36, 35)]
)
def test_ids_that_were_told_as_lost_and_are_issued_again_stop_every_table(
    tmp_path: Path, kind: str, limit: int | None, told: int
) -> None:
    """Those of transactions went on, without what got these ids; whoever read only the table anew that told of it lost them."""
    one = build_directory(tmp_path / "1", {0: 30}, local_low_water_mark=39)
    query = Query(kind, one)
    with contextlib.closing(Stopping(query.reader())) as made:
        query.offset = made.reader.latestOffset(query.offset, limit and ReadMaxRows(limit))
    shutil.rmtree(one)
    build_directory(one, {0: 30}, local_low_water_mark=29)
    with pytest.raises(StalePlanError, match=f"up to {told} were told as lost, and the partition ends at 29 now"):
        query.run()


@pytest.mark.parametrize("kind", ["records", "transactions", "differences"])
def test_a_partition_that_the_query_leaves_out_by_now_stops_it_no_more(tmp_path: Path, kind: str) -> None:
    one = build_directory(tmp_path / "1", {0: 20, 1: 20}, local_low_water_mark=19)
    query = Query(kind, one)
    query.run()
    shutil.rmtree(one)
    build_directory(one, {0: 30}, local_low_water_mark=29, num_partitions=2)
    with pytest.raises(StalePlanError, match="partition 1: transaction 19"):
        query.run()
    query.options = {"partitions": "0"}
    rows = query.run()
    assert ids(rows) == ([] if kind == "differences" else [*range(20, 30)])


def test_a_node_has_one_vote_in_whatever_letters_its_name_is() -> None:
    with pytest.raises(InvalidRequestError, match="waltz://HOST:7: it is named twice, as waltz://host:7 as well"):
        Query("records", "waltz://host:7", "waltz://HOST:7", plaintext="true")


def test_replicas_of_two_clusters_are_no_pipeline(tmp_path: Path) -> None:
    one, two = replica(tmp_path / "1", 5, mark=4), replica(tmp_path / "2", 5, mark=4, key=uuid.UUID(int=7))
    for kind in ("records", "transactions"):
        with pytest.raises(MismatchError, match=r"waltz\.sources"):
            Query(kind, one, two).run()
    with pytest.raises(InvalidRequestError, match="named twice"):
        Query("records", one, one)
    query = Query("records", one)
    query.offset = {"version": 9}
    with pytest.raises(InvalidRequestError, match="none of this table"):
        query.run()


def test_a_directory_a_node_and_objects_are_replicas_alike(tmp_path: Path) -> None:
    one, two, three = (replica(tmp_path / name, 60, mark=39) for name in ("1", "2", "3"))
    with served(two) as node:
        sources = (one, node.url, f"file://{three}")
        rows = Query("records", *sources, plaintext="true").run()
        counted = {name: sum(row["node"] == name for row in rows) for name in {row["node"] for row in rows}}
        assert sorted(counted.values()) == [60, 60, 60]
        assert {str(one), node.url} < counted.keys()
        agreed = Query("transactions", *sources, plaintext="true").run()
        assert [row["replicas"] for row in agreed] == [3] * 40
        assert Query("differences", *sources, plaintext="true").run() == []
        given = {"plaintext": "true", "maxrecordspertrigger": "5"}
        reader = ReplicasReader(tuple(map(str, sources)), given, None)
        there = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
        assert [(row["partition"], row["last_transaction_id"], row["mark"]) for row in there] == [(0, 59, 39)] * 3


@pytest.mark.turns(12)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_replicas_in_an_object_store_are_read_like_directories(tmp_path: Path) -> None:
    """An S3 server on the loopback; objects that are replaced by longer ones, as a copy that is kept up to date replaces them."""
    pytest.importorskip("moto.server", reason="no S3-compatible server is installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    one, two = replica(tmp_path / "1", 120, mark=99), replica(tmp_path / "2", 60, mark=59)
    damage(two, 0, 20)
    with running_store() as store:
        sources = [store.upload(one, "s3://lake/node-1"), store.upload(two, "s3://lake/node-2")]
        records, agreed = (Query(kind, *sources, **store.options) for kind in ("records", "transactions"))
        differing = Query("differences", *sources, **store.options)
        found = records.run()
        assert sum(row["node"] == sources[0] for row in found) == 120
        assert [row["transaction_id"] for row in found if row["finding"]] == [20]
        rows = agreed.run()
        assert ids(rows) == list(range(100))
        assert [row["replicas"] for row in rows] == [
            1 if number in (20, *range(60, 100)) else 2 for number in range(100)
        ]
        assert differing.run() == []
        reader = ReplicasReader(tuple(sources), store.options, None)
        there = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
        assert [(row["node"], row["last_transaction_id"], row["mark"]) for row in there] == [
            (sources[0], 119, 99), (sources[1], 59, 59),
        ]  # fmt: skip
        store.upload(replica(one, 130, mark=125), sources[0])
        assert ids(agreed.run()) == list(range(100, 126))
        assert len(records.run()) == 10
        assert records.run() == []


def told_nothing(query: Query) -> list[Row]:
    """A batch by a reader that is not told where it begins, as PySpark 4.1 asks."""
    with contextlib.closing(Stopping(query.reader())) as made:
        end = json.loads(json.dumps(made.reader.latestOffset()))
        rows = query._batch(made.reader, end) if end != query.offset else []
    query.offset = end
    return rows


@pytest.mark.parametrize("kind", ["records", "transactions", "differences"])
def test_where_nobody_says_where_a_batch_begins_it_forgets_no_replica_without_a_word(tmp_path: Path, kind: str) -> None:
    """Put in again it would be read from its beginning, and everything would be there twice."""
    one, two = replica(tmp_path / "1", 100, mark=99), replica(tmp_path / "2", 60, mark=59)
    query = Query(kind, one, two)
    assert len(told_nothing(query)) == {"records": 160, "transactions": 100, "differences": 0}[kind]
    assert told_nothing(query) == []
    query.sources = (two,)
    with pytest.raises(StalePlanError, match=r"1.* its checkpoint would forget"):
        told_nothing(query)


@pytest.mark.parametrize("kind", ["records", "transactions", "differences"])
def test_a_batch_that_was_interrupted_leaves_out_no_replica_without_a_word(tmp_path: Path, kind: str) -> None:
    """It ends where it was planned to: what is not read of that one now would count as read for good."""
    one, two = replica(tmp_path / "1", 100, mark=59), replica(tmp_path / "2", 80, mark=59)
    query = Query(kind, one, two)
    query.run()
    for path, count, mark in ((one, 110, 99), (two, 100, 99)):
        replica(path, count, mark=mark)
    with contextlib.closing(Stopping(query.reader())) as made:
        planned = made.reader.latestOffset(query.offset, made.reader.getDefaultReadLimit())
        expected = query._batch(made.reader, planned)
    query.sources = (two,)
    with (
        contextlib.closing(Stopping(query.reader())) as made,
        pytest.raises(StalePlanError, match=r"1: a batch that was interrupted is to read it"),
    ):
        query._batch(made.reader, planned)
    query.sources = (one, two)
    with contextlib.closing(Stopping(query.reader())) as made:
        assert query._batch(made.reader, planned) == expected
    query.offset = planned
    query.sources = (two,)
    assert query.run() == [], "what was taken out behind it is not missed"


@pytest.mark.parametrize("kind", ["transactions", "differences"])
def test_where_nobody_says_where_a_batch_begins_it_does_not_go_back_without_a_word(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that is open knows more as committed than the low-water marks tell when there is none."""
    one = replica(tmp_path / "1", 100, mark=49)
    query = Query(kind, one)
    reader = query.reader
    marks = {0: 79}
    monkeypatch.setattr(marks_module, "committed_marks", lambda *_: dict(marks))

    def with_metadata() -> Any:
        made = reader()
        made._metadata = "metadata"
        return made

    monkeypatch.setattr(query, "reader", with_metadata)
    assert len(told_nothing(query)) == (80 if kind == "transactions" else 0)
    marks.clear()
    with pytest.raises(StalePlanError, match=r"79.* goes back to 49"):
        told_nothing(query)


@pytest.mark.turns(10)
@pytest.mark.parametrize(("kind", "rows"), [("transactions", 25), ("records", 25), ("differences", 0)])
def test_neither_planning_nor_reading_imports_what_it_does_not_need(tmp_path: Path, kind: str, rows: int) -> None:
    """Every query plans in a process of its own, and half of a short one is imports."""
    storage = replica(tmp_path / "s", 25, mark=24)
    program = f"""
import json, sys
from waltzctl.engine.pipeline.pipeline_data_source import PipelineDataSource
heavy = {{"pandas", "pyarrow.compute", "asyncio", "kazoo", "fsspec", "waltzctl.engine.metadata.cluster_state"}}
source = PipelineDataSource({{"what": {kind!r}, "paths": json.dumps([{str(storage)!r}])}})
reader = source.streamReader(source.schema())
start = reader.initialOffset()
tasks = reader.partitions(start, reader.latestOffset(start))
print(*heavy & set(sys.modules))
print(sum(len(batch) for task in tasks for batch in reader.read(task)), *heavy - {{"pyarrow.compute"}} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["", str(rows)]


def test_what_a_file_without_a_whole_header_held_is_missing(tmp_path: Path) -> None:
    """With a number and a place, by which `completeness` adds up and the gate finds it."""
    one, two = replica(tmp_path / "1", 120, mark=119), replica(tmp_path / "2", 120, mark=119)
    (two / "0" / segment_name(50)).write_bytes(b"x" * 50)
    rows = Query("records", one, two).run()
    (lost,) = [finding_row(row, [str(one), str(two)]) for row in rows if row["finding"]]
    assert (lost["transaction_id"], lost["missing"]) == (50, 50)
    completeness = [
        {"node": str(node), "partition": 0, "expected": 120, "behind": 0, "last_transaction_id": 119}
        for node in (one, two)
    ]
    (gap,) = gaps(completeness, [lost])
    assert (gap.node, gap.first_transaction_id, gap.last_transaction_id, gap.elsewhere) == (str(two), 50, 99, True)


def test_each_row_of_a_record_that_a_node_does_not_give_out_counts_one(tmp_path: Path) -> None:
    one, two = replica(tmp_path / "1", 120, mark=119), replica(tmp_path / "2", 120, mark=119)
    for number in (70, 71):
        damage(two, 50, number)
    with served(two) as node:
        rows = Query("records", one, node.url, plaintext="true").run()
        lost = [finding_row(row, [str(one), node.url]) for row in rows if row["finding"]]
        assert [(row["transaction_id"], row["missing"]) for row in lost] == [(70, 1), (71, 1)]
        completeness = [
            {"node": place, "partition": 0, "expected": 120, "behind": 0, "last_transaction_id": 119}
            for place in (str(one), node.url)
        ]
        found = gaps(completeness, lost)
    assert [(gap.kind, gap.first_transaction_id, gap.last_transaction_id) for gap in found] == [
        ("damaged", 70, 70),
        ("damaged", 71, 71),
    ]
    assert all(gap.elsewhere for gap in found)


@pytest.mark.turns(8)
@pytest.mark.parametrize("limit", [None, 30])
@pytest.mark.parametrize("others", [0, 2])
def test_a_last_file_on_a_disk_that_is_not_mounted_waits_for_it(tmp_path: Path, limit: int | None, others: int) -> None:
    """It is told once, and what it holds is neither lost nor nowhere: it is compared when the disk is there."""
    sources = [replica(tmp_path / str(number), 120, mark=119) for number in range(1 + others)]
    file, away = sources[0] / "0" / segment_name(100), tmp_path / "away"
    file.rename(away)
    file.symlink_to(tmp_path / "disk")
    queries = {kind: Query(kind, *sources) for kind in ("records", "transactions", "differences")}
    found = {kind: query.run(limit) for kind, query in queries.items()}
    assert ids(found["transactions"]) == list(range(120 if others else 100))
    assert found["differences"] == []
    told = [row for row in found["records"] if row["finding"] is not None]
    assert [(row["node"], row["transaction_id"], row["finding"]) for row in told] == [
        (str(sources[0]), 100, "special-file")
    ]
    away.rename(tmp_path / "disk")
    more = {kind: query.run(limit) for kind, query in queries.items()}
    assert ids(more["records"]) == list(range(100, 120))
    assert ids(more["transactions"]) == ([] if others else list(range(100, 120)))
    assert more["differences"] == []
    (tmp_path / "disk").rename(away)
    for query in queries.values():
        with pytest.raises(SpecialFileError, match="a link that leads nowhere"):
            query.run(limit)


@pytest.mark.parametrize("kind", ["records", "transactions", "differences"])
def test_what_was_told_as_lost_and_may_be_in_a_last_file_that_is_none_ends_no_run(tmp_path: Path, kind: str) -> None:
    """A run's end is found before its checkpoint is known."""
    path = replica(tmp_path / "1", 100, mark=99)
    end = path / "0" / segment_name(50)
    end.unlink()
    end.with_suffix(".idx").unlink()
    query = Query(kind, path)
    query.run(available_now=True)
    os.mkfifo(end)
    assert query.run(available_now=True) == []
    end.unlink()
    write_segment(path / "0", make_records(120)[50:], partition=0)
    more = query.run(available_now=True)  # the mark has not risen: nothing more is decided
    assert ids(more) == (list(range(100, 120)) if kind == "records" else [])
