"""``state`` as a directory of Parquet files that a streaming query keeps up to date: the last value for each key.

Spark 4.3 maintains such a table by itself (``create_auto_cdc_flow``) with MERGE, which needs row-level operations of the table's
format (Delta, Iceberg).  Parquet has none: a streaming table of Parquet can only be appended to, and a materialized view over
the changes would read all of them at every run.  So with Parquet ``state`` is a sink of the pipeline, and this is its format.

All rows of a key are in one *bucket* (by the hash of key and partition), and a bucket is one file.  A task reads its bucket's
file, merges the new rows (of each key the row with the highest transaction id remains) and writes the result to a temporary
file.  When all tasks are done the driver renames the temporary files.  The merge is idempotent and independent of the rows'
order: after a kill Spark repeats the batch, and the same files result.  A reader sees each file before or after a batch.

::

    state/part-00003.parquet                bucket 3
         /_buckets                          the number of buckets and the key's columns: see `bucket_files`
         /_temporary/<uuid>/part-00003...   a task's uncommitted file; readers ignore it
"""

from __future__ import annotations

import contextlib
import os
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
from waltzctl.engine.shell_words import shell_quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

BUCKET = "_bucket"
"""The column with a row's bucket; it is not written."""
_TEMPORARY = "_temporary"


def last_values(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """For each key and partition the row with the highest transaction id, in the order of keys."""
    if rows.num_rows == 0:
        return rows
    by = [*key, "partition"]
    keys = rows.select([*by, "transaction_id"])
    numbers = [
        str(number) for number in range(keys.num_columns)
    ]  # Arrow takes a name that begins with a point for a path
    ordered = rows.take(pc.sort_indices(keys.rename_columns(numbers), [(one, "ascending") for one in numbers]))
    last = pa.array([False] * (ordered.num_rows - 1) + [True])
    for name in by:
        column = ordered[name].combine_chunks()
        here, following = column[:-1], column[1:]
        differs = pc.fill_null(pc.not_equal(here, following), False)
        differs = pc.or_(differs, pc.xor(pc.is_null(here), pc.is_null(following)))
        if pa.types.is_floating(column.type):  # NaN is one key, though NaN != NaN
            differs = pc.and_not(differs, pc.fill_null(pc.and_(pc.is_nan(here), pc.is_nan(following)), False))
        last = pc.or_(last, pa.concat_arrays([differs, pa.array([True])]))
    return ordered.filter(last)


@dataclass
class WrittenBuckets(WriterCommitMessage):
    """A task's temporary files, each with its final name."""

    files: tuple[tuple[str, str], ...]


class StateWriter(DataSourceStreamArrowWriter):
    """See the module.  `key`: names of columns."""

    def __init__(self, directory: Path, key: Sequence[str]) -> None:
        self._directory = directory
        self._key = tuple(key)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Merge the rows of a task into its buckets, as temporary files."""
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
        """Rename the temporary files of the batch to their final names."""
        for message in messages:
            for written, target in message.files if isinstance(message, WrittenBuckets) else ():
                os.replace(written, target)
        disk.sync_directory(self._directory)  # the renames are durable before Spark records the batch as committed
        keep_files(self._directory)
        self.abort(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the temporary files; the buckets stay as they are."""
        shutil.rmtree(self._directory / _TEMPORARY, ignore_errors=True)


def _write(rows: pa.Table, path: Path) -> None:
    with open(path, "wb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())


def _create_first_bucket(directory: Path, schema: pa.Schema, buckets: int, key: Sequence[str]) -> None:
    """Create the first bucket, empty, where there is none: Spark cannot read a directory without any file that has columns."""
    directory.mkdir(parents=True, exist_ok=True)
    keep_number(directory, buckets, key)
    if any(directory.glob("*.parquet")):
        return
    staged = directory / _TEMPORARY / str(uuid.uuid4())
    staged.mkdir(parents=True)
    first = bucket_file(directory, 0)
    _write(schema.empty_table(), staged / first.name)
    with contextlib.suppress(FileExistsError):  # a task has written the bucket meanwhile
        os.link(staged / first.name, first)
    shutil.rmtree(staged)


def state_writer(options: Mapping[str, str], schema: StructType) -> StateWriter:
    """The writer of a sink with the options `path` (a directory of this machine), `key` (names, separated by commas) and
    `buckets` (their number).

    `schema`: the columns of the rows, with `BUCKET`.  Raises InvalidRequestError, also where the files have another number of
    buckets or another key, or where one is lost.
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
            advice=f"waltzctl pipeline run {shell_quote(str(directory.parent))} makes state anew; for spark-pipelines remove"
            f" {directory} and _checkpoints/state in the pipeline's storage",
        )
    schema_of_rows = pa.schema([one for one in arrow_columns(schema) if one.name != BUCKET])
    _create_first_bucket(directory, schema_of_rows, buckets, columns)
    return StateWriter(directory, columns)
