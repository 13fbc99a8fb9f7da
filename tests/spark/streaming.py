"""A stream driven as Spark drives it, without Spark: offsets, batches, and every batch read twice."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from waltzctl.engine.spark.stream_directory import directory_stream
from waltzctl.engine.spark.stream_node import node_stream
from waltzctl.engine.spark.stream_reader import ADMISSION, WaltzStreamReader
from waltzctl.engine.spark.view_schemas import RECORD_COLUMNS, spark_schema
from waltzctl.formats.segment import Record, index_name, segment_name

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

SCHEMA: StructType = spark_schema(RECORD_COLUMNS)
Row = dict[str, Any]


def open_stream(place: Path | str, **options: str) -> WaltzStreamReader:
    """A reader as Spark makes it for a query."""
    given = {"path": str(place), **{name.lower(): value for name, value in options.items()}}
    return (node_stream if str(place).startswith("waltz://") else directory_stream)(given, SCHEMA)


class Query:
    """A streaming query: what it has been given so far, and where it stands."""

    def __init__(self, place: Path | str, **options: str) -> None:
        self.place, self.options = place, options
        self.reader = open_stream(place, **options)
        self.rows: list[Row] = []
        self.batches: list[list[Row]] = []
        self.offset: dict[str, Any] = self._through_json(self.reader.initialOffset())

    @staticmethod
    def _through_json(offset: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(offset))
        return found

    def restart(self) -> None:
        """As after the end of the driver: nothing is known but the checkpoint."""
        self.reader.stop()
        self.reader = open_stream(self.place, **self.options)

    def _latest(self, limit: ReadLimit | None) -> dict[str, Any]:
        if ADMISSION:
            return self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit())
        return self.reader.latestOffset()  # as PySpark 4.1 asks

    def step(self, limit: ReadLimit | None = None) -> list[Row] | None:
        """The next batch; None when there is nothing new.  It is read twice, by another reader the second time."""
        end = self._through_json(self._latest(limit))
        if end == self.offset:
            return None
        rows = read_batch(self.reader, self.offset, end)
        again = open_stream(self.place, **self.options)
        assert read_batch(again, self.offset, end) == rows, "a batch that is read again is another one"
        again.stop()
        self.offset = end
        self.reader.commit(end)
        self.rows += rows
        self.batches.append(rows)
        return rows

    def run(self) -> list[Row]:
        """Everything that is there."""
        while self.step() is not None:
            pass
        return self.rows


def read_batch(reader: WaltzStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for task in pickle.loads(pickle.dumps(reader.partitions(start, end))):
        for batch in pickle.loads(pickle.dumps(reader)).read(task):
            assert batch.num_rows
            rows += batch.to_pylist()
    return rows


def ids(rows: list[Row], partition: int = 0) -> list[int]:
    """Ids of the records (not of the findings) of a partition, in their order."""
    return [row["transaction_id"] for row in rows if row["partition"] == partition and row["finding"] is None]


def findings(rows: list[Row]) -> list[tuple[int, int, str]]:
    """Partition, transaction and code of the rows that tell of damage."""
    return [(row["partition"], row["transaction_id"], row["finding"]) for row in rows if row["finding"] is not None]


def as_row(record: Record) -> tuple[int, bytes, int, tuple[int, int, int, int]]:
    """What a row must say of a record."""
    i = record.request_id
    return record.transaction_id, record.data, record.header, (i.client, i.generation, i.partition, i.sequence)


def row_value(row: Row) -> tuple[int, bytes, int, tuple[int, ...]]:
    """The same, of a row."""
    return row["transaction_id"], row["data"], row["header"], tuple(row["request_id"].values())


def segment_path(path: Path, first: int, partition: int = 0) -> Path:
    return path / str(partition) / segment_name(first)


def damage(path: Path, first: int, number: int, partition: int = 0) -> Record:
    """Flip a byte in a record of a directory of `build_directory`; returns the record."""
    with_index = path / str(partition) / index_name(first)
    entries = with_index.read_bytes()[128:]
    entry = entries[8 * (number - first) :][:8]
    assert len(entry) == 8, f"segment {first} has no transaction {number}"
    offset = int.from_bytes(entry, "big")
    data = bytearray(segment_path(path, first, partition).read_bytes())
    data[offset + 20] ^= 0x40
    segment_path(path, first, partition).write_bytes(data)
    return Record.decode(bytes(data[offset : offset + 40 + int.from_bytes(data[offset + 28 : offset + 32], "big")]))
