"""Conversion of records between their forms on the wire and on disk, many at a time.

Both forms have the same fields in another order: on the wire the data precedes its checksum; on disk it follows its checksum, and
is followed by the checksum of the whole record.  One call checks the ids and the data checksum (which release 0.13.2 stores
without a check), copies the bytes, and computes or compares the record checksum.  The interpreter lock is released meanwhile.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from waltzctl.engine.scan import wire_code
from waltzctl.engine.scan.wire_layout import (
    APPEND_LEAST,
    BRIEF,
    BYTES,
    COLUMNS,
    DISK_OVERHEAD,
    EXPECTED,
    FILLED,
    FOUND,
    GROUP_COLUMNS,
    GROUPS,
    LENGTH_COLUMN,
    LONGEST,
    POSITION,
    RECORDS,
    RECORDS_COLUMN,
    ROWS,
    TAKEN,
    WIRE_OVERHEAD,
    FrameVerdict,
    GroupColumn,
)
from waltzctl.engine.scan.wire_loops import Table, new_state
from waltzctl.formats.segment import MAX_DATA_LENGTH

__all__ = [
    "AppendEncoder",
    "EncodedAppends",
    "EncodedBlock",
    "FrameVerdict",
    "ListForm",
    "TranscodeError",
    "headers_to_wire",
    "list_form",
    "to_wire",
]

_FEW = 8
"""Rows up to which plain Python is faster than NumPy."""
_STOP, _EXPECTED, _VERDICT = int(GroupColumn.STOP), int(GroupColumn.EXPECTED), int(GroupColumn.VERDICT)
_VERDICTS = {int(verdict): verdict for verdict in FrameVerdict}


class TranscodeError(ValueError):
    """The bytes are not the expected records.

    `transaction_id`: the id that the first invalid record should have; `verdict`: what is wrong with it.
    """

    def __init__(self, transaction_id: int, verdict: FrameVerdict) -> None:
        self.transaction_id, self.verdict = transaction_id, verdict
        super().__init__(f"transaction {transaction_id}: {verdict.name.lower().replace('_', ' ')}")


class EncodedBlock(NamedTuple):
    """Consecutive records in their form on disk, valid by construction.

    `offsets`: int64, `records` + 1 values: the offset of each record in `data`, and the end of the last one.
    """

    first_transaction_id: int
    records: int
    data: memoryview | bytes
    offsets: Table

    @property
    def next_transaction_id(self) -> int:
        """The id after the last record."""
        return self.first_transaction_id + self.records


class EncodedAppends(NamedTuple):
    """The result of encoding consecutive append requests.

    The first `frames` requests are valid, and `block` has their records.  `verdict`: what is wrong with the next request, whose
    records are not in the block.  `found_transaction_id`: the id of the invalid record; -1 for MALFORMED and DONE.
    """

    frames: int
    verdict: FrameVerdict
    block: EncodedBlock
    found_transaction_id: int


def room_for(table: Table, size: int) -> tuple[int, int]:
    """Upper bounds for the records of requests and for their bytes on disk, by the lengths of the requests."""
    records = length = 0
    if len(table) <= _FEW:
        for row in table.tolist():
            left = min(max(row[LENGTH_COLUMN] - APPEND_LEAST, 0), size)
            length += left
            records += max(min(row[RECORDS_COLUMN], left // WIRE_OVERHEAD), 0)
    else:
        lefts = np.minimum(np.maximum(table[:, LENGTH_COLUMN], APPEND_LEAST) - APPEND_LEAST, size)
        length = int(lefts.sum())
        records = int(np.maximum(np.minimum(table[:, RECORDS_COLUMN], lefts // WIRE_OVERHEAD), 0).sum())
    return records, length + records * (DISK_OVERHEAD - WIRE_OVERHEAD)


class AppendEncoder:
    """Encodes append requests as blocks for `Partition.append_blocks`.  Thread-safe.

    `max_data_length`: bytes of data that one record may have.  `compiled`: as for `engine.scan.frames.FrameSplitter`.
    """

    def __init__(self, *, max_data_length: int, compiled: bool | None = None) -> None:
        if not 0 <= max_data_length <= MAX_DATA_LENGTH:
            raise ValueError(f"the longest data must be 0 to {MAX_DATA_LENGTH} bytes, not {max_data_length}")
        self._max_data_length = max_data_length
        self._loops = wire_code.chooser(compiled)

    @property
    def loops(self) -> str:
        """The name of the loops in use, for people."""
        return self._loops().name

    def encode(self, buffer: bytes | bytearray | memoryview, table: Table, next_transaction_id: int) -> EncodedAppends:
        """Encode the appends in `buffer` that `table` describes (columns by `FrameColumn`), up to the first invalid one.

        The first record must have the id `next_transaction_id`, and ids must be consecutive through all appends.  An append
        without records is valid.  Neither table nor bytes are trusted; the bytes must not change meanwhile.
        """
        table = _checked(table)
        records, size = room_for(table, len(buffer))
        out, offsets = np.empty(size, np.uint8), np.empty(records + 1, np.int64)
        state = new_state()
        state[FILLED], state[ROWS], state[LONGEST] = len(buffer), len(table), self._max_data_length
        state[EXPECTED] = next_transaction_id
        verdict = _VERDICTS[self._loops().encode(state, buffer, table, offsets, out)]
        records, size = state[RECORDS], state[BYTES]
        block = EncodedBlock(next_transaction_id, records, out.data[:size].toreadonly(), offsets[: records + 1])
        return EncodedAppends(state[TAKEN], verdict, block, state[FOUND])

    def encode_groups(
        self, buffer: bytes | bytearray | memoryview, table: Table, stops: Sequence[int], following: Sequence[int]
    ) -> list[EncodedBlock | None]:
        """As `encode`, in one call for groups of rows with separate sequences of ids.

        `stops`: for each group the number of the row after its last one; `following`: the id that its first record must have.
        None for a group with an invalid append; `encode` gives the reason.
        """
        table = _checked(table)
        if not stops or stops[-1] != len(table) or any(map(operator.gt, [0, *stops], stops)):
            raise ValueError(f"groups end with rows {list(stops)} of {len(table)}")
        groups = np.zeros((len(stops), GROUP_COLUMNS), np.int64)
        groups[:, _STOP], groups[:, _EXPECTED] = stops, following
        records, size = room_for(table, len(buffer))
        out, offsets = np.empty(size, np.uint8), np.empty(records + 1, np.int64)
        state = new_state()
        state[FILLED], state[GROUPS], state[LONGEST] = len(buffer), len(stops), self._max_data_length
        self._loops().encode_groups(state, buffer, table, groups, offsets, out)
        blocks: list[EncodedBlock | None] = []
        encoded = out.data.toreadonly()
        first = start = 0
        for expected, (verdict, last, stop) in zip(following, groups[:, _VERDICT:].tolist(), strict=True):
            if verdict == FrameVerdict.DONE:
                block = EncodedBlock(expected, last - first, encoded[start:stop], offsets[first : last + 1] - start)
                blocks.append(block)
                first, start = last, stop
            else:
                blocks.append(None)
        return blocks


def _checked(table: Table) -> Table:
    """The table in C order, as the loops need it.  Raises ValueError for another shape or type."""
    if table.ndim != 2 or table.shape[1] != COLUMNS or table.dtype != np.int64:
        raise ValueError("a table has eight columns of 64-bit words")
    return np.ascontiguousarray(table)


class ListForm(NamedTuple):
    """Records in the form of a list on the wire: `records` of them in `data`; on disk they have `disk_bytes` bytes.

    `verdict`: why there are no more records; DONE if there are as many as were requested.
    """

    records: int
    data: memoryview
    disk_bytes: int
    verdict: FrameVerdict


def list_form(
    disk: bytes | bytearray | memoryview,
    first_transaction_id: int,
    count: int,
    *,
    headers: bool = False,
    max_data_length: int = MAX_DATA_LENGTH,
    compiled: bool | None = None,
) -> ListForm:
    """The first `count` records of `disk` in wire form, or with `headers` their record headers, up to the first invalid one.

    Ids must be consecutive from `first_transaction_id` on.  Both checksums of every record are verified, also with `headers`.
    """
    if count < 0:
        raise ValueError(f"{count} records")
    most = min(count, len(disk) // DISK_OVERHEAD)
    out = np.empty(most * BRIEF if headers else len(disk), np.uint8)
    state = new_state()
    state[POSITION], state[FILLED], state[ROWS] = 0, len(disk), count
    state[LONGEST], state[EXPECTED] = max_data_length, first_transaction_id
    verdict = wire_code.chooser(compiled)().to_list(state, disk, out, brief=headers)
    return ListForm(state[TAKEN], out.data[: state[BYTES]].toreadonly(), state[POSITION], _VERDICTS[verdict])


def to_wire(disk: bytes | bytearray | memoryview, first_transaction_id: int, count: int) -> bytes:
    """Exactly `count` records on disk as records of a list on the wire.

    Raises TranscodeError for an invalid record, and (MALFORMED) for missing or excess bytes.
    """
    return _whole(disk, first_transaction_id, count, headers=False)


def headers_to_wire(disk: bytes | bytearray | memoryview, first_transaction_id: int, count: int) -> bytes:
    """As `to_wire`, as record headers."""
    return _whole(disk, first_transaction_id, count, headers=True)


def _whole(disk: bytes | bytearray | memoryview, first_transaction_id: int, count: int, *, headers: bool) -> bytes:
    found = list_form(disk, first_transaction_id, count, headers=headers)
    if found.verdict is not FrameVerdict.DONE or found.disk_bytes != len(disk):
        wrong = FrameVerdict.MALFORMED if found.verdict is FrameVerdict.DONE else found.verdict
        raise TranscodeError(first_transaction_id + found.records, wrong)
    return bytes(found.data)
