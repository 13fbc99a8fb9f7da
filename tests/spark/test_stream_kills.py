"""Exactly once: queries that are killed while their storages are written lose and double nothing; a killed write leaves nothing.

One process has both queries and the write.  It is killed, Java and all, when batches of both are planned and not committed and a
task of the write has begun.  What comes next runs in the session that the tests share.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records
from tests.interop.processes import Stage, wait_until
from tests.spark.killing import PATIENCE, mortal
from tests.spark.nodes import ServedNode, served
from tests.spark.streaming_job import sink
from tests.spark.writing import is_clean, nothing_left, records_of
from waltzctl.engine.spark import staging
from waltzctl.engine.spark.data_source import WaltzDataSource
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.formats.segment import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.turns(8, place=3)]
PARTITIONS = (0, 1, 2)
LIMIT = 40
"""Transactions of a batch."""
AHEAD = 4
"""Batches by which the writers are ahead of the queries, about."""


@dataclass(slots=True)
class Written:
    """What has been appended so far."""

    records: dict[int, list[Record]] = field(default_factory=lambda: {number: [] for number in PARTITIONS})

    @property
    def total(self) -> int:
        return sum(map(len, self.records.values()))

    def more(self, partition: int, count: int) -> list[Record]:
        made = make_records(count, first=len(self.records[partition]), partition=partition)
        self.records[partition] += made
        return made


class DirectoryWriter:
    """Appends to a directory, segment after segment."""

    def __init__(self, path: Path) -> None:
        build_directory(path, dict.fromkeys(PARTITIONS, 0))
        self.source = str(path)
        self.written = Written()
        self._storage = StorageDirectory.open(path, options=StorageOptions(segment_size_threshold=20_000))
        self._sessions = {number: AppendSession(self._storage, number) for number in PARTITIONS}

    def append(self, partition: int, count: int) -> None:
        made = self.written.more(partition, count)
        self._sessions[partition].append([PendingRecord(one.data, one.header, one.request_id) for one in made])

    def close(self) -> None:
        self._storage.close()


class NodeWriter:
    """Appends to a node."""

    def __init__(self, node: ServedNode) -> None:
        self.source = node.url
        self.written = Written()
        self._node = node

    def append(self, partition: int, count: int) -> None:
        self._node.append(partition, self.written.more(partition, count))


def _planned(checkpoint: str, what: str = "offsets") -> int:
    """How many batches were planned, or committed."""
    with contextlib.suppress(FileNotFoundError):
        return sum(name.isdigit() for name in os.listdir(Path(checkpoint, what)))
    return 0


class Queries:
    """Two queries over storages that are being written, one on a directory and one on a node."""

    def __init__(self, place: Path, stack: contextlib.ExitStack, seed: int) -> None:
        self._place, self._chance = place, random.Random(seed)
        self._stage = stack.enter_context(Stage(place / "stage"))
        directory = DirectoryWriter(place / "directory")
        stack.callback(directory.close)
        node = stack.enter_context(served(build_directory(place / "node", dict.fromkeys(PARTITIONS, 0))))
        self.writers: dict[str, DirectoryWriter | NodeWriter] = {"directory": directory, "node": NodeWriter(node)}
        options = {"data": "true", "maxRecordsPerTrigger": str(LIMIT)}
        self.queries: list[dict[str, Any]] = [
            {
                "source": writer.source,
                "options": options | ({"plaintext": "true"} if name == "node" else {}),
                "sink": str(place / f"{name}-sink"),
                "checkpoint": str(place / f"{name}-checkpoint"),
            }
            for name, writer in self.writers.items()
        ]

    def _append(self) -> None:
        """A little to whatever the queries have nearly read."""
        for writer, query in zip(self.writers.values(), self.queries, strict=True):
            if writer.written.total < LIMIT * (_planned(query["checkpoint"]) + AHEAD):
                writer.append(self._chance.choice(PARTITIONS), self._chance.randrange(1, 30))

    def killed(self, run: int, writing: tuple[Path, Path] | None = None) -> None:
        """Run them in a process that is killed in the middle of a batch of each, and of a write of one path to another."""
        write = None if writing is None else {"source": str(writing[0]), "target": str(writing[1])}
        job = self._place / "job.json"
        job.write_text(json.dumps({"queries": self.queries, "write": write}))
        wanted = [_planned(one["checkpoint"]) + self._chance.randrange(2, 5) for one in self.queries]

        def in_the_middle() -> bool:
            self._append()
            counts = [[_planned(one["checkpoint"], what) for what in ("offsets", "commits")] for one in self.queries]
            far_enough = all(count[0] >= least for count, least in zip(counts, wanted, strict=True))
            return far_enough and all(a > b for a, b in counts) and (writing is None or begun(writing[1]))

        with mortal(self._stage, f"job-{run}", "tests.spark.streaming_job", str(job)) as running:
            wait_until(in_the_middle, "batches under way", of=running, seconds=PATIENCE)

    def finish(self, spark: SparkSession) -> None:
        """Read what is there now, and compare."""
        spark.dataSource.register(WaltzDataSource)
        for query, writer in zip(self.queries, self.writers.values(), strict=True):
            sink(spark, query).trigger(availableNow=True).start().awaitTermination()
            _compare(spark, query["sink"], writer.written)


def begun(target: Path) -> bool:
    """Whether a task of a write has begun."""
    return any(target.parent.glob(f"{staging.prefix(target)}*/{staging.TASKS}/*/*"))


def _compare(spark: SparkSession, path: str, written: Written) -> None:
    rows = spark.read.parquet(path).select("partition", "transaction_id", "header", "data", "finding").collect()
    assert {row["finding"] for row in rows} == {None}
    for number in PARTITIONS:
        found = sorted((r["transaction_id"], r["header"], bytes(r["data"])) for r in rows if r["partition"] == number)
        assert found == [(one.transaction_id, one.header, one.data) for one in written.records[number]]


def _halved(lost: str) -> Any:
    """The first attempt of each task fails half-way, and says so in a file."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if context.attemptNumber() == 0:
                with open(lost, "a", encoding="utf-8") as file:
                    file.write("an attempt\n")
                raise RuntimeError("this attempt is lost")
            yield batch.slice(batch.num_rows // 2)

    return work


def test_a_killed_process_leaves_queries_that_go_on_exactly_once_and_no_target_of_its_write(
    tmp_path: Path, spark: SparkSession
) -> None:
    source = build_directory(tmp_path / "a" / "source", {0: 120, 1: 30})
    target = tmp_path / "b" / "new"
    target.parent.mkdir()
    with contextlib.ExitStack() as stack:
        queries = Queries(tmp_path, stack, seed=11)
        queries.killed(1, (source, target))
        queries.finish(spark)
    (left,) = os.listdir(target.parent)
    assert left.startswith(staging.prefix(target))
    # the next write takes away what is left, and survives attempts that are lost
    rows = spark.read.format("waltz").option("data", "true").load(str(source))
    rows = rows.mapInArrow(_halved(f"{source}.lost"), rows.schema)
    rows.write.format("waltz").mode("append").option("layout", "released").save(str(target))
    assert Path(f"{source}.lost").read_text()
    assert nothing_left(target, empty=True)
    assert is_clean(target)
    assert records_of(target) == records_of(source)


@pytest.mark.long
def test_queries_that_are_killed_twenty_times_give_every_transaction_exactly_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    with contextlib.ExitStack() as stack:
        queries = Queries(tmp_path, stack, seed=12)
        for run in range(20):
            queries.killed(run)
        queries.finish(spark)
