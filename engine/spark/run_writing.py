"""The output of one task of a write: the records of its rows as segments, in a directory of its own.

Consecutive ids of a partition go to one segment until it is full.  At a gap in the ids another segment begins; whether another
task wrote the ids between is checked when the driver joins the tasks' segments.  Within a task the ids of a partition must rise:
so unsorted rows fail with a message instead of creating a segment for almost each row.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import ChecksumMismatchError, DamageError, DiskReadError, InvalidRequestError
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.spark.run_joining import StagedSegment
from waltzctl.formats.checksums import crc32
from waltzctl.formats.ids import LAST_TRANSACTION_ID
from waltzctl.formats.segment import (
    CHECKSUM,
    ENTRY_SIZE,
    FORMAT_VERSION,
    HEADER_SIZE,
    RECORD_HEADER,
    RECORD_OVERHEAD,
    SegmentHeader,
    encode_entries,
    index_name,
    segment_name,
)

MAX_DATA = 256 << 20
"""Bytes of a record's data, at most, as in a storage that is opened for writing."""
_FLUSH = 1 << 20
_HELD = 64 << 20
"""Bytes that are buffered before they are written: of one partition, and of all partitions."""

SORT_FIRST = (
    "rows of a partition must come in the order of their ids within each task: use engine.spark.writer.in_order(df), which is"
    ' df.repartitionByRange("partition", "transaction_id").sortWithinPartitions("partition", "transaction_id")'
)


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """What all segments of a write have in common.

    `created`: ms since 1970 (UTC).  `num_partitions` None: as many as the rows need.  `threshold`: bytes of a data file, above
    which the next record begins a new segment.
    """

    cluster_key: uuid.UUID
    created: int
    num_partitions: int | None
    threshold: int


@dataclass(slots=True)
class _OpenSegment:
    """The segment of a partition that is being written."""

    directory: Path
    partition: int
    first: int
    following: int
    size: int = HEADER_SIZE
    written: int = HEADER_SIZE
    waiting: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """Of the buffered records (`waiting`), in bytes of the data file."""

    @property
    def data_path(self) -> Path:
        return self.directory / segment_name(self.first)

    @property
    def index_path(self) -> Path:
        return self.directory / index_name(self.first)

    def create(self, plan: SegmentPlan) -> None:
        header = SegmentHeader(FORMAT_VERSION, plan.created, plan.cluster_key, self.partition, self.first).encode()
        for path in (self.data_path, self.index_path):
            with disk.WritableFile.create(path) as file:
                file.write_at(0, header)

    def flush(self, *, sync: bool = False) -> None:
        with disk.WritableFile.open(self.data_path) as data, disk.WritableFile.open(self.index_path) as index:
            if self.waiting:
                entries = encode_entries(self.offsets)
                done = self.following - len(self.offsets) - self.first
                data.write_at(self.written, b"".join(self.waiting))
                index.write_at(HEADER_SIZE + ENTRY_SIZE * done, entries)
                self.written = self.size
                self.waiting.clear()
                self.offsets.clear()
            if sync:
                data.sync()
                index.sync()


class RunWriter:
    """Writes the rows of one task into `directory`, which it creates.

    Raises InvalidRequestError for rows that are no valid records or not in order, ChecksumMismatchError, DiskWriteError.
    """

    def __init__(self, directory: Path, plan: SegmentPlan) -> None:
        self._directory = directory
        self._plan = plan
        self._runs: dict[int, _OpenSegment] = {}
        self._finished: list[StagedSegment] = []
        self._held = 0
        disk.make_directory(directory)

    def add(self, rows: pa.RecordBatch) -> None:
        """Write the rows of a batch; its columns are some of `COLUMNS`."""
        for partition, transaction_id, head, data in _encoded(rows, self._plan.num_partitions):
            run = self._runs.get(partition)
            if run is None or run.following != transaction_id or (run.size > self._plan.threshold):
                run = self._next_segment(run, partition, transaction_id)
            checksum = crc32(data, crc32(head))
            run.waiting += (head, data, CHECKSUM.struct.pack(checksum))
            run.offsets.append(run.size)
            size = RECORD_OVERHEAD + len(data)
            run.size += size
            run.following += 1
            self._held += size
            if run.size - run.written >= _FLUSH:
                self._held -= run.size - run.written
                run.flush()
            elif self._held >= _HELD:
                for one in self._runs.values():
                    one.flush()
                self._held = 0

    def _next_segment(self, before: _OpenSegment | None, partition: int, transaction_id: int) -> _OpenSegment:
        directory = self._directory / str(partition)
        if before is None:
            disk.make_directory(directory)
        else:
            if transaction_id < before.following:
                raise InvalidRequestError(
                    f"partition {partition}: transaction {transaction_id} comes behind {before.following - 1}: not in order,"
                    " or there twice",
                    advice=SORT_FIRST,
                )
            self._finish(before)
        run = _OpenSegment(directory, partition, transaction_id, transaction_id)
        run.create(self._plan)
        self._runs[partition] = run
        return run

    def _finish(self, run: _OpenSegment) -> None:
        self._held -= run.size - run.written
        run.flush(sync=True)
        staged = StagedSegment(run.partition, run.first, run.following - 1, run.size, self._directory.name)
        _check(run.data_path, staged)
        self._finished.append(staged)

    def finish(self) -> tuple[StagedSegment, ...]:
        """Fsync every file and read it back.  The driver moves the files to their final directories.

        Raises DiskWriteError, DiskReadError, DamageError.
        """
        for run in self._runs.values():
            self._finish(run)
        return tuple(self._finished)


def _check(path: Path, segment: StagedSegment) -> None:
    """Read a segment back: raise DamageError unless it has every record, with right checksums."""
    with FileSource(path) as source:
        records = 0
        for part in summarise_records(source, first_transaction_id=segment.first):
            if isinstance(part, Damage) or part.data_damaged:
                raise DamageError(
                    f"{path}: what was written does not read back as it was",
                    advice="check disk and memory of this machine",
                )
            records += len(part)
        size = source.size()
    if (records, size) != (segment.records, segment.size):
        raise DiskReadError(
            path, None, OSError(f"{records} records in {size} bytes, and {segment.records} were written")
        )


def _encoded(rows: pa.RecordBatch, num_partitions: int | None) -> Iterator[tuple[int, int, bytes, bytes]]:
    """For each row: partition, id, the record's 36 header bytes, and its data."""
    named = {field.name.lower(): rows.column(place) for place, field in enumerate(rows.schema)}
    _refuse_nulls(rows, named)
    count = rows.num_rows
    partitions, ids = named["partition"].to_pylist(), named["transaction_id"].to_pylist()
    headers = named["header"].to_pylist() if "header" in named else [0] * count
    given = named["data_checksum"].to_pylist() if "data_checksum" in named else [None] * count
    pack = RECORD_HEADER.struct.pack
    values = zip(
        partitions, ids, _request_ids(named, partitions, ids), headers, named["data"].to_pylist(), given, strict=True
    )
    for partition, transaction_id, request_id, header, data, stored in values:
        checksum = crc32(data)
        if stored is not None and checksum != _unsigned(stored, partition, transaction_id):
            raise ChecksumMismatchError(
                f"partition {partition}, transaction {transaction_id}: the row's data_checksum is {_shown(stored)}, its data has"
                f" {checksum:08x}",
                advice="the data is not what was written once; leave such rows, or the column, out on purpose",
            )
        if not 0 <= partition < (2**31 if num_partitions is None else num_partitions):
            raise InvalidRequestError(
                f"partition {partition}: there are partitions 0 to {(num_partitions or 2**31) - 1}"
            )
        if not 0 <= transaction_id < LAST_TRANSACTION_ID or len(data) > MAX_DATA:
            what = (
                "its id is not possible"
                if len(data) <= MAX_DATA
                else f"{len(data)} bytes of data, {MAX_DATA} are allowed"
            )
            raise InvalidRequestError(f"partition {partition}, transaction {transaction_id}: {what}")
        try:
            head = pack(transaction_id, *request_id, header, len(data), checksum)
        except struct.error as error:
            raise InvalidRequestError(
                f"partition {partition}, transaction {transaction_id}: request id {request_id} and header {header} must be"
                f" signed 32-bit integers: {error}"
            ) from error
        yield partition, transaction_id, head, data


def _refuse_nulls(rows: pa.RecordBatch, named: dict[str, Any]) -> None:
    for name in ("partition", "transaction_id", "request_id", "header", "data"):
        column = named.get(name)
        if column is None or not column.null_count:
            continue
        row = column.is_null().to_pylist().index(True)
        place, code = (
            ", ".join(f"{one} {named[one][row].as_py()}" for one in ("partition", "transaction_id") if one in named),
            named["finding"][row].as_py() if "finding" in named else None,
        )
        if code is not None:
            raise InvalidRequestError(
                f"{place}: the row tells of damage ({code}), it is no record",
                advice='restore what was lost, then write; where("finding is null") leaves such rows out',
            )
        raise InvalidRequestError(f"{place}: column {name} is null", advice="every record has all of its fields")


def _request_ids(named: dict[str, Any], partitions: list[int], ids: list[int]) -> Iterable[tuple[int, ...]]:
    """Four numbers for each row; by default client 0, generation 0, the partition and the low bits of the id."""
    column = named.get("request_id")
    if column is None:
        return [(0, 0, p, (t + 2**31) % 2**32 - 2**31) for p, t in zip(partitions, ids, strict=True)]
    parts = [column.field(name) for name in ("client", "generation", "partition", "sequence")]
    if any(part.null_count for part in parts):
        raise InvalidRequestError("a request_id has a field that is null", advice="every record has all of its fields")
    return zip(*(part.to_pylist() for part in parts), strict=True)


def _unsigned(stored: Any, partition: int, transaction_id: int) -> int:
    try:
        return int(stored, 16) if isinstance(stored, str) else int(stored) & 0xFFFFFFFF
    except ValueError:
        raise InvalidRequestError(
            f"partition {partition}, transaction {transaction_id}: data_checksum {stored!r} is no eight hex digits"
        ) from None


def _shown(stored: Any) -> str:
    return stored if isinstance(stored, str) else f"{int(stored) & 0xFFFFFFFF:08x}"
