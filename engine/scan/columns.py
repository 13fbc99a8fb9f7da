"""The results of a scan: records in columns, and damaged spans.

Offsets and lengths are in bytes, offsets from the start of the file.  Columns are NumPy arrays in the machine's byte order.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from waltzctl.formats.segment import RECORD_HEADER, RECORD_OVERHEAD

Int64Column = npt.NDArray[np.int64]
Int32Column = npt.NDArray[np.int32]
UInt32Column = npt.NDArray[np.uint32]
BoolColumn = npt.NDArray[np.bool_]

COLUMN_TYPES: dict[str, Any] = {
    "offset": np.int64,
    "transaction_id": np.int64,
    "request_id_high": np.int64,
    "request_id_low": np.int64,
    "header": np.int32,
    "data_length": np.int32,
    "data_checksum": np.uint32,
    "record_checksum": np.uint32,
    "data_ok": np.bool_,
}
"""Column names and types, in the order in which the kernel delivers a record's values."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """Records back to back in file order, with consecutive ids; arrays of equal length.

    The record checksum of every record in a batch is right.  `data_ok` is False where the data checksum is wrong: the release
    stores it as the client sent it, without comparing it, so the data was damaged before it was written, not on the disk.
    """

    offset: Int64Column
    transaction_id: Int64Column
    request_id_high: Int64Column
    """Client id in the upper half, generation in the lower one."""
    request_id_low: Int64Column
    """Partition id in the upper half, sequence number in the lower one."""
    header: Int32Column
    data_length: Int32Column
    data_checksum: UInt32Column
    """As stored."""
    record_checksum: UInt32Column
    """As stored."""
    data_ok: BoolColumn
    data: memoryview | None = None
    """The bytes of the file that cover the batch, if the scan was asked for them: a copy, unless the scan is `borrowed`."""
    data_base: int = 0
    """File offset of the first byte of `data`."""

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def size(self) -> Int64Column:
        """Bytes of each record in the file."""
        return self.data_length.astype(np.int64) + RECORD_OVERHEAD

    @property
    def end(self) -> int:
        """File offset after the last record.  The batch must not be empty; a scan yields no empty ones."""
        return int(self.offset[-1]) + RECORD_OVERHEAD + int(self.data_length[-1])

    def first(self, count: int) -> RecordBatch:
        """The first `count` records."""
        return self.rows(0, count)

    def rows(self, low: int, high: int) -> RecordBatch:
        """The records numbered `low` to `high` - 1, `low` from 0 on."""
        if low == 0 and high >= len(self):
            return self
        columns = {name: getattr(self, name)[low:high] for name in COLUMN_TYPES}
        return RecordBatch(**columns, data=self.data, data_base=self.data_base)

    def record_bytes(self, place: int) -> memoryview:
        """The whole record number `place` of this batch.  Raises ValueError when the scan kept no data."""
        if self.data is None:
            raise ValueError("the scan was not asked for data")
        start = int(self.offset[place]) - self.data_base
        return self.data[start : start + RECORD_OVERHEAD + int(self.data_length[place])]

    def record_stretch(self, low: int, high: int) -> npt.NDArray[np.uint8]:
        """The bytes in the file of the records numbered `low` to `high` - 1, at least one.

        Raises ValueError when the scan kept no data.
        """
        if self.data is None:
            raise ValueError("the scan was not asked for data")
        last = high - 1
        end = int(self.offset[last]) + RECORD_OVERHEAD + int(self.data_length[last])
        return np.frombuffer(self.data[int(self.offset[low]) - self.data_base : end - self.data_base], np.uint8)

    def data_bytes(self, place: int) -> memoryview:
        """The data of record number `place` of this batch.  Raises ValueError when the scan kept no data."""
        return self.record_bytes(place)[RECORD_HEADER.size : RECORD_HEADER.size + int(self.data_length[place])]


@dataclass(frozen=True, slots=True, eq=False)
class RecordRun:
    """Records back to back with consecutive ids, with the columns that a check needs.

    `offset` and `data_ok` are views of buffers that the next step of the iteration overwrites.
    """

    first_transaction_id: int
    start: int
    """File offset of the first record."""
    end: int
    """File offset after the last record."""
    offset: Int64Column
    data_ok: BoolColumn
    data_damaged: int
    """How many of `data_ok` are False."""

    def __len__(self) -> int:
        return len(self.offset)


class DamageCause(enum.StrEnum):
    """Why a span of the file has no valid record."""

    RECORD_CHECKSUM = "record-checksum"
    """The record checksum is wrong."""
    RECORD_LENGTH = "record-length"
    """The data length is negative, above the bound, or reaches beyond the end."""
    RECORD_ORDER = "record-order"
    """A record with a right checksum has another id than the expected one."""
    TORN_TAIL = "torn-tail"
    """No valid record follows up to the end."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A span of the file without a valid record in its place, or ids that are missing between two intact neighbours.

    `proof` says how the end of the span was found (see `engine.scan.resync`):

    ========  ==========================================================================================
    length    the damaged record's length field leads to the next record
    checksum  the damaged record closes there: one of its checksums is right for exactly these bounds
    index     the index entry of the record after the span is its offset
    chain     the records after the span are a chain with better evidence than any other
    end       no valid record follows
    budget    the search budget was used up (bytes crafted to be expensive); the rest is unread
    ========  ==========================================================================================
    """

    cause: DamageCause
    offset: int
    length: int
    """In bytes.  0: ids are missing between two intact neighbours (cause RECORD_ORDER)."""
    transaction_id: int
    """The id that was expected at `offset`."""
    next_transaction_id: int | None
    """The id with which the sequence goes on after the span, where a valid record is.  (If that record has another id, it is
    damage of its own.)  None: no valid record follows up to the end."""
    found_transaction_id: int | None
    """The id in the record header at `offset`; None where the file ends inside of the header."""
    found_length: int | None
    """The data length in the record header at `offset`; None where the file ends inside of the header."""
    stored_checksum: int | None
    """The stored record checksum, at the end given by `found_length`; None where that is outside of the file."""
    computed_checksum: int | None
    """The record checksum computed for these bounds; None as for `stored_checksum`."""
    proof: str
    holds_records: bool = False
    """Of a torn tail: it contains valid records that may belong to the log.  Either they are its data, or its length is wrong."""

    @property
    def end(self) -> int:
        """File offset after the span."""
        return self.offset + self.length

    @property
    def unread(self) -> bool:
        """Whether the search was given up, so that the contents of the span and of the rest of the file are unknown."""
        return self.proof == "budget"

    @property
    def reached(self) -> int | None:
        """The id that a scan expects after the span; None after a torn tail, and where the search was given up.

        In the latter cases records may have been, or be, in these bytes.
        """
        if self.next_transaction_id is not None or self.cause is DamageCause.TORN_TAIL or self.unread:
            return self.next_transaction_id
        return self.transaction_id


@dataclass(frozen=True, slots=True, eq=False)
class RecordView:
    """One record, read from a known offset.  Its record checksum is right; `data_ok`: its data checksum is, too."""

    offset: int
    transaction_id: int
    request_id_high: int
    request_id_low: int
    header: int
    data_checksum: int
    record_checksum: int
    data_ok: bool
    record: memoryview
    """The whole record's bytes; a copy."""

    @property
    def data(self) -> memoryview:
        """The transaction's data."""
        return self.record[RECORD_HEADER.size : len(self.record) - (RECORD_OVERHEAD - RECORD_HEADER.size)]

    @property
    def end(self) -> int:
        """File offset after the record."""
        return self.offset + len(self.record)
