"""Writing as Spark does it, without Spark: tasks, messages that travel, a commit or an abort."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from waltzctl.engine.errors import WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump import dump_records
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.spark.view_schemas import RECORD_COLUMNS, arrow_schema, spark_schema
from waltzctl.engine.spark.writer import StorageWriter, storage_writer
from waltzctl.formats.segment import Record

SCHEMA: StructType = spark_schema(RECORD_COLUMNS)
KEY = "01234567-89ab-cdef-0123-456789abcdef"


def rows(number: int, records: Sequence[Record], /, **changed: Sequence[Any]) -> pa.RecordBatch:
    """Rows as the data source reads them; `changed` replaces columns."""
    columns: dict[str, Sequence[Any]] = {
        "node": ["/x"] * len(records),
        "partition": [number] * len(records),
        "transaction_id": [one.transaction_id for one in records],
        "request_id": [
            dict(zip(("client", "generation", "partition", "sequence"), request_parts(one), strict=True))
            for one in records
        ],
        "header": [one.header for one in records],
        "data_checksum": [f"{one.data_checksum:08x}" for one in records],
        "data": [one.data for one in records],
        **changed,
    }
    nothing = [None] * len(records)
    schema = arrow_schema(RECORD_COLUMNS)
    return pa.RecordBatch.from_arrays([pa.array(columns.get(f.name, nothing), f.type) for f in schema], schema=schema)


def request_parts(record: Record) -> tuple[int, int, int, int]:
    i = record.request_id
    return i.client, i.generation, i.partition, i.sequence


def begin(path: Path, *, overwrite: bool = False, schema: StructType = SCHEMA, **options: str) -> StorageWriter:
    given = {"path": str(path), **{name.lower(): value for name, value in options.items()}}
    made: StorageWriter = pickle.loads(pickle.dumps(storage_writer(given, schema, overwrite)))
    return made


def write(path: Path, tasks: Sequence[Sequence[pa.RecordBatch]], **options: str) -> None:
    """A job as Spark runs it, with its abort when something fails."""
    writer = begin(path, **options)
    messages: list[Any] = []
    try:
        messages += [pickle.loads(pickle.dumps(writer.write(iter(task)))) for task in tasks]
        writer.commit(messages)
    except WaltzError:
        writer.abort(messages)
        raise


def records_of(path: Path) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for one in dump_records(path):
        assert not isinstance(one, Finding)
        assert one.partition is not None
        assert one.data is not None
        made = Record(one.transaction_id, one.request_id, one.header, one.data, one.data_checksum, one.record_checksum)
        found.setdefault(one.partition, []).append(made)
    return found


def is_clean(path: Path) -> bool:
    return not [one for one in verify([path]) if isinstance(one, Finding)]


def nothing_left(path: Path, *, empty: bool = False) -> bool:
    """Whether the target is as it was, and nothing beside it."""
    return sorted(os.listdir(path.parent)) == ([path.name] if empty else [])
