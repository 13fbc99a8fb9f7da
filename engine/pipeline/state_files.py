"""``state`` as a directory of Parquet files that is kept up to date by a streaming query: the last value for each key.

Spark 4.3 maintains such a table by itself (``create_auto_cdc_flow``) where the table's format can be merged into: it executes
a MERGE, which needs row-level operations of the catalog (Delta, Iceberg).  Tables of Parquet have none, a streaming table of
Parquet can only be appended to, and a materialized view over the changes would read all of them at every run.  So with
Parquet ``state`` is a sink of the pipeline, and this is its format.

The rows of a key are those of one *bucket* (by the hash of key and partition), and a bucket is one file.  A task reads the
file of its bucket, joins what is new (of each key the row of the highest transaction id stays) and writes the file anew
beside it; the driver gives the new files their names when all tasks are done.  Taking the highest id makes the order of rows,
rows that come again, and rows that come late all the same: after a kill Spark hands the batch over once more, and the same
files come of it. A reader sees each file as it was or as it is.

::

    state/part-00003.parquet                bucket 3
         /_buckets                          of how many, and of which key: see `bucket_files`
         /_temporary/<uuid>/part-00003...   what a task has written and nobody has committed; readers pass over it
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.pipeline.bucket_files import (
    bucket_file,
    buckets_there,
    keep_files,
    keep_number,
    key_there,
    lost_buckets,
)
from waltzctl.engine.pipeline.column_types import arrow_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

BUCKET = "_bucket"
"""The column that says in which file a row belongs; it is not written."""
_TEMPORARY = "_temporary"


def last_values(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Of each key and partition the row of the highest transaction id, in the order of keys."""
    if rows.num_rows == 0:
        return rows
    by = [*key, "partition"]
    keys = rows.select([*by, "transaction_id"])
    numbers = [str(number) for number in range(keys.num_columns)]  # Arrow takes a name with a point in front for a path
    ordered = rows.take(pc.sort_indices(keys.rename_columns(numbers), [(one, "ascending") for one in numbers]))
    last = pa.array([False] * (ordered.num_rows - 1) + [True])
    for name in by:
        column = ordered[name].combine_chunks()
        here, following = column[:-1], column[1:]
        differs = pc.fill_null(pc.not_equal(here, following), False)
        differs = pc.or_(differs, pc.xor(pc.is_null(here), pc.is_null(following)))
        if pa.types.is_floating(column.type):  # no NaN equals another one, and they are one key
            differs = pc.and_not(differs, pc.fill_null(pc.and_(pc.is_nan(here), pc.is_nan(following)), False))
        last = pc.or_(last, pa.concat_arrays([differs, pa.array([True])]))
    return ordered.filter(last)


@dataclass
class WrittenBuckets(WriterCommitMessage):
    """Files that a task has written, and the names that they are to get."""

    files: tuple[tuple[str, str], ...]


class StateWriter(DataSourceStreamArrowWriter):
    """See the module.  `key`: names of columns."""

    def __init__(self, directory: Path, key: Sequence[str]) -> None:
        self._directory = directory
        self._key = tuple(key)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Join the rows of a task's buckets with what is there, beside it."""
        batches = [batch for batch in iterator if batch.num_rows]
        if not batches:
            return WrittenBuckets(())
        rows = pa.Table.from_batches(batches)
        staged = self._directory / _TEMPORARY / str(uuid.uuid4())
        staged.mkdir(parents=True)
        files = []
        for bucket in pc.unique(rows[BUCKET]).to_pylist():
            fresh = rows.filter(pc.equal(rows[BUCKET], bucket)).drop_columns([BUCKET])
            target = bucket_file(self._directory, bucket)
            known = [pq.read_table(target, schema=fresh.schema)] if target.exists() else []
            made = last_values(pa.concat_tables([*known, fresh]), self._key)
            _write(made, staged / target.name)
            files.append((str(staged / target.name), str(target)))
        return WrittenBuckets(tuple(files))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Give the files of the batch their names."""
        for message in messages:
            for written, target in message.files if isinstance(message, WrittenBuckets) else ():
                os.replace(written, target)
        disk.sync_directory(self._directory)  # Spark takes the batch for done next
        keep_files(self._directory)
        self.abort(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave what is there; nobody needs what was staged."""
        shutil.rmtree(self._directory / _TEMPORARY, ignore_errors=True)


def _write(rows: pa.Table, path: Path) -> None:
    with open(path, "wb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())


def _begin(directory: Path, schema: pa.Schema, buckets: int, key: Sequence[str]) -> None:
    """Make the first bucket, without a row, where there is none: Spark reads no directory that does not tell its columns."""
    directory.mkdir(parents=True, exist_ok=True)
    keep_number(directory, buckets, key)
    if any(directory.glob("*.parquet")):
        return
    staged = directory / _TEMPORARY / str(uuid.uuid4())
    staged.mkdir(parents=True)
    first = bucket_file(directory, 0)
    _write(schema.empty_table(), staged / first.name)
    with contextlib.suppress(FileExistsError):  # what has come since is more
        os.link(staged / first.name, first)
    shutil.rmtree(staged)


def state_writer(options: Mapping[str, str], schema: StructType) -> StateWriter:
    """From the sink's options: `path`, a directory of this machine, `key`, names separated by commas, and `buckets`, how many.

    `schema`: of the rows, with their buckets.  Raises InvalidRequestError, also for files of another number of buckets, or key.
    """
    path, key, said = options.get("path", ""), options.get("key", ""), options.get("buckets", "")
    if not path or not key or not said.isdecimal():
        raise InvalidRequestError("the table state needs the options path and key, and buckets, a number")
    directory, buckets = Path(path.removeprefix("file://")), int(said)
    columns = tuple(key.split(","))
    there, by, what = buckets_there(directory, buckets), key_there(directory, columns), None
    if there != buckets:
        what = f"its files are of {there} buckets, and waltz.state.buckets is {buckets}"
    elif by != columns:
        what = f"its rows are by {', '.join(by)}, and the decoder's KEY is {', '.join(columns)}"
    elif lost := lost_buckets(directory):
        what = f"{bucket_file(directory, lost[0]).name} is gone, with the rows in it"
    if what is not None:
        raise InvalidRequestError(
            f"{directory}: {what}",
            advice=f"waltzctl pipeline run {shlex.quote(str(directory.parent))} makes state anew; for spark-pipelines remove"
            f" {directory} and _checkpoints/state in the pipeline's storage",
        )
    schema_of_rows = pa.schema([one for one in arrow_columns(schema) if one.name != BUCKET])
    _begin(directory, schema_of_rows, buckets, columns)
    return StateWriter(directory, columns)
