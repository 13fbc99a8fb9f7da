"""Exactly once: queries that are killed again and again, while their storages are written, lose and double nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records
from tests.interop.processes import Stage, wait_until
from tests.spark.killing import PATIENCE, mortal
from tests.spark.nodes import SESSION, sent
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.formats.segment import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")
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
    """Appends to a node that runs in a process of its own."""

    def __init__(self, path: Path, stage: Stage) -> None:
        build_directory(path, dict.fromkeys(PARTITIONS, 0))
        ready = path.parent / "ready.json"
        command = [sys.executable, "-m", "waltzctl", "serve", str(path), "--plaintext", "--ready-file", str(ready)]
        node = stage.start("node", [*command, "--port", "0", "--admin-port", "0", "--http-port", "off"])
        wait_until(ready.exists, "the node answers", of=node)
        where = json.loads(ready.read_text())
        self.source = f"waltz://{where['host']}:{where['admin_port']}"
        self.written = Written()
        self._runner = asyncio.Runner()
        self._client = self._runner.run(StorageClient.connect(where["host"], where["port"], ssl_context=None))

    def append(self, partition: int, count: int) -> None:
        made = sent(self.written.more(partition, count))
        self._runner.run(self._client.append(SESSION, partition, made))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


def _committed(checkpoint: Path) -> int:
    """How many batches were planned."""
    with contextlib.suppress(FileNotFoundError):
        return sum(name.isdigit() for name in os.listdir(checkpoint / "offsets"))
    return 0


def _survive(tmp_path: Path, spark: SparkSession, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    with Stage(tmp_path / "stage") as stage, contextlib.ExitStack() as stack:
        writers: dict[str, DirectoryWriter | NodeWriter] = {
            "directory": DirectoryWriter(tmp_path / "directory"),
            "node": NodeWriter(tmp_path / "node", stage),
        }
        for writer in writers.values():
            stack.callback(writer.close)
        job, stop = tmp_path / "job.json", tmp_path / "stop"
        options = {"data": "true", "maxRecordsPerTrigger": str(LIMIT)}
        queries = [
            {
                "source": writer.source,
                "options": options | ({"plaintext": "true"} if name == "node" else {}),
                "sink": str(tmp_path / f"{name}-sink"),
                "checkpoint": str(tmp_path / f"{name}-checkpoint"),
            }
            for name, writer in writers.items()
        ]
        job.write_text(json.dumps({"queries": queries, "stop": str(stop)}))
        checkpoints = [Path(str(one["checkpoint"])) for one in queries]
        for run in range(kills + 1):
            before = [_committed(one) for one in checkpoints]
            wanted = chance.randrange(2, 5)
            with mortal(stage, f"job-{run}", "tests.spark.streaming_job", str(job)) as running:

                def far_enough(before: list[int] = before, wanted: int = wanted) -> bool:
                    now = [_committed(one) for one in checkpoints]
                    for writer, batches in zip(writers.values(), now, strict=True):
                        if writer.written.total < LIMIT * (batches + AHEAD):
                            writer.append(chance.choice(PARTITIONS), chance.randrange(1, 30))
                    return all(new >= old + wanted for new, old in zip(now, before, strict=True))

                wait_until(far_enough, f"{wanted} more batches", of=running, seconds=PATIENCE)
                if run == kills:
                    stop.touch()
                    wait_until(lambda ended=running: ended.status is not None, "the queries end", seconds=PATIENCE)
                    assert running.status == 0, running.tail()
                else:
                    time.sleep(chance.random() * 0.4)  # somewhere in a batch
        for name, writer in writers.items():
            _compare(spark, tmp_path / f"{name}-sink", writer.written)


def _compare(spark: SparkSession, sink: Path, written: Written) -> None:
    rows = spark.read.parquet(str(sink)).select("partition", "transaction_id", "header", "data", "finding").collect()
    assert {row["finding"] for row in rows} == {None}
    for number in PARTITIONS:
        found = sorted((r["transaction_id"], r["header"], bytes(r["data"])) for r in rows if r["partition"] == number)
        assert found == [(one.transaction_id, one.header, one.data) for one in written.records[number]]


def test_a_killed_query_gives_every_transaction_exactly_once(tmp_path: Path, spark: SparkSession) -> None:
    _survive(tmp_path, spark, kills=2, seed=11)


@pytest.mark.long
def test_a_query_that_is_killed_twenty_times_gives_every_transaction_exactly_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    _survive(tmp_path, spark, kills=20, seed=12)
