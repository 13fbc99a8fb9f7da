"""Records as Arrow batches, without Python code for each record.

The scanner's NumPy columns become Arrow arrays by vectorized steps: checksums become text by a lookup table with the four hex
digits of each 16-bit number, request ids are the halves of two words, and Arrow itself slices the records' data out of the file's
bytes.

Arrays are built from buffers: `pyarrow.array` and `pyarrow.scalar` import pandas, which takes a new worker longer than a small
read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waltzctl.engine.columns.column import Column
from waltzctl.engine.columns.column_kinds import REQUEST_ID, hex32
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.scan.columns import RecordBatch, UInt32Column
from waltzctl.engine.scan.scanner import LENT_BLOCK
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.view_schemas import RECORD_COLUMNS, arrow_schema, arrow_type
from waltzctl.formats.segment import RECORD_HEADER, RECORD_OVERHEAD

_COLUMNS = {column.name: column for column in RECORD_COLUMNS}
_WIDTHS: dict[Any, np.dtype[Any]] = {pa.int32(): np.dtype(np.int32), pa.int64(): np.dtype(np.int64)}
_LARGEST = 2**31 - 1
"""Bytes of data in an Arrow binary array, at most: its offsets have 32 bits."""
_COPIED = 2 * LENT_BLOCK
"""A record's data up to this size, in bytes, is copied, since the scan's buffer may be overwritten.

Larger records have memory of their own, which their array keeps."""
_TRAILER = RECORD_OVERHEAD - RECORD_HEADER.size


def _digits() -> npt.NDArray[np.uint32]:
    """The four hex digits of each 16-bit number, as the bytes of a 32-bit word."""
    hexadecimal = np.frombuffer(b"0123456789abcdef", np.uint8)
    places = np.arange(1 << 16)[:, np.newaxis] >> np.array([12, 8, 4, 0])
    text: npt.NDArray[np.uint32] = hexadecimal[places & 15].view(np.uint32)
    return text[:, 0]


_DIGITS = _digits()


@dataclass(slots=True)
class Constants:
    """The columns that are equal for all records of a segment; their arrays are reused for later batches."""

    node: str | None
    partition: int | None
    segment: int | None
    _kept: dict[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """The value of the column `name`."""
        return getattr(self, name) if name in ("node", "partition", "segment") else None

    def array(self, name: str, rows: int) -> Any:
        """The column `name` (node, partition, segment; any other is null), `rows` long."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < rows:
            kept = self._kept[name] = repeated(self.value(name), _type(name), rows)
        return kept if len(kept) == rows else kept.slice(0, rows)


@dataclass(frozen=True, slots=True)
class ConstantRuns:
    """The constant columns of consecutive segments; `lengths`: the number of records of each."""

    constants: Sequence[Constants]
    lengths: Sequence[int]

    def array(self, name: str, rows: int) -> Any:
        """As `Constants.array`; `rows` is the sum of the lengths."""
        first, kind = self.constants[0], _type(name)
        values = [one.value(name) for one in self.constants]
        if all(value == values[0] for value in values):
            return first.array(name, rows)
        if kind in _WIDTHS and None not in values:
            return _numbers(np.repeat(np.array(values, _WIDTHS[kind]), self.lengths), kind)
        return pa.concat_arrays(
            [one.array(name, length) for one, length in zip(self.constants, self.lengths, strict=True)]
        )


def repeated(value: str | int | None, kind: pa.DataType, rows: int) -> Any:
    """An Arrow array of `rows` times the same value."""
    if value is None:
        return pa.nulls(rows, kind)
    if isinstance(value, int):
        return _numbers(np.full(rows, value, _WIDTHS[kind]), kind)
    text = value.encode()
    offsets = np.arange(0, len(text) * rows + 1, len(text), dtype=np.int32) if text else np.zeros(rows + 1, np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text * rows))


def _numbers(values: npt.NDArray[Any], kind: pa.DataType) -> Any:
    """An Arrow array of a NumPy array; not copied where the width is equal.  Raises TypeError where a value might not fit."""
    wide = np.ascontiguousarray(values.astype(_WIDTHS[kind], casting="safe", copy=False))
    return pa.Array.from_buffers(kind, len(wide), [None, pa.py_buffer(wide)])


def arrow_batch(
    batches: RecordBatch | Sequence[RecordBatch],
    wanted: Sequence[str],
    constants: Constants | ConstantRuns,
    schema: pa.Schema | None = None,
) -> pa.RecordBatch:
    """One Arrow batch of all records of `batches` (not empty) with the columns `wanted`.

    Data, when it is wanted, must be in the batches, and less than 2 GiB of it in all.  `schema`: the exact schema of the
    result, by default that of the columns' table.
    """
    records = _Joined([batches] if isinstance(batches, RecordBatch) else batches)
    if schema is None:
        schema = arrow_schema(_columns(wanted))
    return pa.RecordBatch.from_arrays([_array(name, records, constants) for name in wanted], schema=schema)


def finding_batch(
    findings: Iterable[Finding], wanted: Sequence[str], node: str | None, schema: pa.Schema | None = None
) -> pa.RecordBatch:
    """Findings as rows of the records view: place, code and number of lost transactions; all other columns are null."""
    found = list(findings)
    values: dict[str, list[Any]] = {
        "node": [node] * len(found),
        "partition": [one.partition for one in found],
        "segment": [one.segment for one in found],
        "transaction_id": [one.transaction_id for one in found],
        "offset": [one.offset for one in found],
        "size": [one.length for one in found],
        "finding": [one.code.value for one in found],
        "missing": [one.missing for one in found],
    }
    nothing: list[Any] = [None] * len(found)
    if schema is None:
        schema = arrow_schema(_columns(wanted))
    arrays = [pa.array(values.get(name, nothing), _type(name)) for name in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Joined:
    """Several batches of records as one; a column is concatenated when it is first accessed."""

    def __init__(self, batches: Sequence[RecordBatch]) -> None:
        self.batches = batches
        self.rows = sum(map(len, batches))

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        parts = [getattr(one, name) for one in self.batches]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        setattr(self, name, joined)
        return joined


def _columns(wanted: Sequence[str]) -> list[Column]:
    return [_COLUMNS[name] for name in wanted]


def _type(name: str) -> pa.DataType:
    return arrow_type(_COLUMNS[name].kind.spark)


def _array(name: str, records: _Joined, constants: Constants | ConstantRuns) -> Any:
    """A column: computed here where the batches have no NumPy column of it, else read as the table of columns defines."""
    match name:
        case "node" | "partition" | "segment" | "missing":
            return constants.array(name, records.rows)
        case "request_id":
            return _request_ids(records.request_id_high, records.request_id_low)
        case "data":
            parts = [_data(one) for one in records.batches]
            return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)  # concat_arrays copies even a single array
        case "finding":
            return _verdicts(records.data_ok, records.rows, constants)
        case _:
            values = _COLUMNS[name].value(records)
            return _hex(values) if _COLUMNS[name].kind.shown is hex32 else _numbers(values, _type(name))


def _request_ids(high: npt.NDArray[np.int64], low: npt.NDArray[np.int64]) -> Any:
    first, second = (0, 1) if sys.byteorder == "big" else (1, 0)
    halves = [np.ascontiguousarray(word).view(np.int32).reshape(-1, 2) for word in (high, low)]
    arrays = [_numbers(half[:, place], pa.int32()) for half in halves for place in (first, second)]
    return pa.StructArray.from_arrays(arrays, fields=list(arrow_type(REQUEST_ID.spark)))


def _hex(checksums: UInt32Column) -> Any:
    rows = len(checksums)
    text = np.empty((rows, 2), np.uint32)
    np.take(_DIGITS, checksums >> 16, out=text[:, 0])
    np.take(_DIGITS, checksums & 0xFFFF, out=text[:, 1])
    offsets = np.arange(0, 8 * rows + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text))


def _data(batch: RecordBatch) -> Any:
    """The data of each record: Arrow slices headers and checksums off the contiguous records."""
    if batch.data is None:
        raise ValueError("the scan was not asked for data")
    rows = len(batch)
    start = int(batch.offset[0]) - batch.data_base
    whole = pa.py_buffer(batch.data)
    length = int(batch.data_length[0])
    if length > _COPIED:  # alone in its batch: data may fill an array, and would not fit with its header
        cut = whole.slice(start + RECORD_HEADER.size, length)
        return pa.BinaryArray.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, length], np.int32)), cut])
    offsets = np.empty(rows + 1, np.int32)
    offsets[:-1] = batch.offset - batch.data_base
    offsets[-1] = batch.end - batch.data_base
    records = pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), whole])
    import pyarrow.compute as pc  # here: what plans a stream makes no rows

    return pc.binary_slice(records, RECORD_HEADER.size, -_TRAILER)


def _verdicts(data_ok: npt.NDArray[np.bool_], rows: int, constants: Constants | ConstantRuns) -> Any:
    if data_ok.all():
        return constants.array("finding", rows)
    import pyarrow.compute as pc

    nothing, code = pa.scalar(None, pa.string()), pa.scalar(Code.DATA_CHECKSUM.value)
    return pc.if_else(pa.array(data_ok), nothing, code)


def rows_between(batch: RecordBatch, first: int | None, last: int | None) -> RecordBatch | None:
    """The records with ids from `first` to `last` (inclusive; None: no bound); None where there is none."""
    begins = int(batch.transaction_id[0])
    low = 0 if first is None else max(0, first - begins)
    high = len(batch) if last is None else min(len(batch), last + 1 - begins)
    return rows_of(batch, low, high)


def rows_of(batch: RecordBatch, low: int, high: int) -> RecordBatch | None:
    """Rows ``[low, high)`` of a batch; None where there is none."""
    return None if low >= high else batch.rows(low, high)


class Gathering:
    """Collects batches of records and yields them as Arrow batches of bounded size, findings in their places.

    Every finding is added to `losses`.

    `most_rows` and `most_bytes` (of data) bound a batch; one record is never divided.
    """

    def __init__(
        self,
        wanted: Sequence[str],
        schema: pa.Schema,
        losses: Losses | None = None,
        *,
        most_rows: int = 1 << 16,
        most_bytes: int = 16 << 20,
    ) -> None:
        self._wanted = tuple(wanted)
        self._schema = schema
        self._losses = losses or Losses()
        self._most_rows, self._most_bytes = most_rows, min(most_bytes, _LARGEST // 2)
        self._constants = Constants(None, None, None)
        self._waiting: list[RecordBatch] = []
        self._segments: list[Constants] = []  # for each waiting batch its segment
        self._rows = self._bytes = 0
        self.keep_data = "data" in self._wanted

    def begin(self, node: str, partition: int | None, segment: int) -> None:
        """Begin a segment: `add` takes records of it from now on.  Records of several small segments share a batch."""
        known = self._constants
        if (known.node, known.partition, known.segment) != (node, partition, segment):
            self._constants = Constants(node, partition, segment)

    def add(self, batch: RecordBatch) -> Iterable[pa.RecordBatch]:
        """Add records of the segment."""
        size = 0 if batch.data is None else len(batch.data)
        if self._rows and (self._rows + len(batch) > self._most_rows or self._bytes + size > self._most_bytes):
            yield from self.flush()
        self._waiting.append(batch)
        self._segments.append(self._constants)
        self._rows += len(batch)
        self._bytes += size

    def tell(self, findings: Sequence[Finding], node: str) -> Iterable[pa.RecordBatch]:
        """Add findings after the records that were added so far."""
        if findings:
            self._losses.see(findings)
            yield from self.flush()
            yield finding_batch(findings, self._wanted, node, self._schema)

    def flush(self) -> Iterable[pa.RecordBatch]:
        """Yield the waiting records."""
        if self._waiting:
            waiting, self._waiting, self._rows, self._bytes = self._waiting, [], 0, 0
            segments, self._segments = self._segments, []
            one = segments[0] is segments[-1]  # `begin` creates one object for each segment
            constants = segments[0] if one else ConstantRuns(segments, [len(batch) for batch in waiting])
            yield arrow_batch(waiting, self._wanted, constants, self._schema)
