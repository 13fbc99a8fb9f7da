"""Reading with the data source in this process: planned, pickled, read and unpickled as Spark does it, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict, Filter

from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.inspect.dump import dump_records
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.spark.batch_read import PushingReader, reader
from waltzctl.engine.spark.view_schemas import arrow_schema, pick, spark_schema

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
Row = dict[str, Any]


def examples() -> list[Path]:
    """The storage directories of the damage corpus."""
    return sorted(FIXTURES.glob("*/storage"))


def packets(
    *paths: Path | str,
    view: str = "records",
    filters: Iterable[Filter] | None = None,
    columns: str | None = None,
    **options: Any,
) -> list[list[Row]]:
    """The rows of each task, in order.  `filters`: as Spark pushes them."""
    given = {name: str(value) for name, value in options.items()}
    if len(paths) == 1:
        given["path"] = str(paths[0])
    else:
        given["paths"] = "[" + ", ".join(f'"{path}"' for path in paths) + "]"
    wanted = pick(view, None if columns is None else columns.split(","), data=True)
    given |= {"view": view, "pushdown": str(filters is not None).lower()}
    planned = pickle.loads(pickle.dumps(reader(CaseInsensitiveDict(given), spark_schema(wanted))))
    if filters is not None:
        assert isinstance(planned, PushingReader)
        asked = list(filters)
        assert list(planned.pushFilters(asked)) == asked
    sent = pickle.loads(pickle.dumps(planned))
    tasks = []
    for partition in planned.partitions():
        rows: list[Row] = []
        for batch in sent.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema.equals(arrow_schema(wanted))
            batch.validate(full=True)
            rows += batch.to_pylist()
        tasks.append(rows)
    return tasks


def read(*paths: Path | str, **arguments: Any) -> list[Row]:
    """All rows, in order."""
    return [row for packet in packets(*paths, **arguments) for row in packet]


def in_order(rows: Iterable[Row]) -> list[str]:
    """Rows to be compared as a bag, and shown where they differ."""
    return sorted(repr(row) for row in rows)


def dumped(storage: Path) -> Iterator[Row]:
    """The rows that a storage must have: what dump yields, a finding about a record's data in the record's row."""
    for item in dump_records(storage):
        row: Row = {
            "node": str(storage),
            "partition": item.partition,
            "segment": item.segment,
            "transaction_id": item.transaction_id,
            "offset": item.offset,
        }
        nothing = dict.fromkeys(
            ("request_id", "header", "data_length", "data_checksum", "record_checksum", "data"), None
        )
        if isinstance(item, Finding):
            if item.code is not Code.DATA_CHECKSUM:
                yield row | {"size": item.length} | nothing | {"finding": item.code.value, "missing": item.missing}
            continue
        request = item.request_id
        names = ("client", "generation", "partition", "sequence")
        yield row | {
            "size": item.size,
            "request_id": {name: getattr(request, name) for name in names},
            "header": item.header,
            "data_length": item.data_length,
            "data_checksum": f"{item.data_checksum:08x}",
            "record_checksum": f"{item.record_checksum:08x}",
            "data": item.data,
            "finding": None if item.data_ok else "data-checksum",
            "missing": None,
        }


@cache
def dump_of(example: Path) -> list[str]:
    """The rows that an example of the damage corpus must have, in order; nobody changes it."""
    return in_order(dumped(example))


def verified(*paths: Path) -> list[Finding]:
    """What verify finds."""
    return [one for one in verify(paths) if isinstance(one, Finding)]
