"""From records on the wire to records on disk and back, many at a time.

A record has the same fields in both places, but not the same order: on the wire the data stands in front of its checksum, on disk
behind it, and a checksum of the whole follows.  One call checks the ids and the data's checksum (which release 0.13.2 stores
without a look), copies, and computes or compares the record's checksum.  The interpreter lock is not held meanwhile.
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
    """Bytes are not the records that they should be.

    `transaction_id` is the id of the first one that is not right; `verdict` says what is wrong with it.
    """

    def __init__(self, transaction_id: int, verdict: FrameVerdict) -> None:
        self.transaction_id, self.verdict = transaction_id, verdict
        super().__init__(f"transaction {transaction_id}: {verdict.name.lower().replace('_', ' ')}")


class EncodedBlock(NamedTuple):
    """Consecutive records as they stand on disk, right by construction.

    `offsets`: int64, one more than there are records: where each one begins in `data`, and where the last one ends.
    """

    first_transaction_id: int
    records: int
    data: memoryview | bytes
    offsets: Table

    @property
    def next_transaction_id(self) -> int:
        """The id behind the last one."""
        return self.first_transaction_id + self.records


class EncodedAppends(NamedTuple):
    """What became of consecutive append requests.

    `frames` of them are right and their records are in `block`; `verdict` tells what is wrong with the next one, of which nothing
    is in the block.  `found_transaction_id`: of the record at which it shows, -1 for MALFORMED and DONE.
    """

    frames: int
    verdict: FrameVerdict
    block: EncodedBlock
    found_transaction_id: int


def room_for(table: Table, size: int) -> tuple[int, int]:
    """Records and bytes on disk that there is room to make for: no more than the requests' lengths allow."""
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
    """Turns append requests into blocks for `Partition.append_blocks`.  Thread-safe.

    `max_data_length`: bytes of data that one record may have.  `compiled`: as for `engine.scan.frames.FrameSplitter`.
    """

    def __init__(self, *, max_data_length: int, compiled: bool | None = None) -> None:
        if not 0 <= max_data_length <= MAX_DATA_LENGTH:
            raise ValueError(f"the longest data must be 0 to {MAX_DATA_LENGTH} bytes, not {max_data_length}")
        self._max_data_length = max_data_length
        self._loops = wire_code.chooser(compiled)

    @property
    def loops(self) -> str:
        """What runs now, for people."""
        return self._loops().name

    def encode(self, buffer: bytes | bytearray | memoryview, table: Table, next_transaction_id: int) -> EncodedAppends:
        """Encode the appends that `table` describes (rows of `Column`) in `buffer`, until one is not right.

        The first record must have the id `next_transaction_id`, and ids go on through all of them.  An append without records is
        right.  Neither the table nor the bytes are believed; the bytes must not change meanwhile.
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
        """As `encode`, for groups of rows of which each has ids of its own, in one call.

        A group ends in front of the row that `stops` names, the last one with the table; `following`: the id that its first
        record must have.  None for a group in which something is not right: `encode` tells what.
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
    """A table of frames as the loops take it."""
    if table.ndim != 2 or table.shape[1] != COLUMNS or table.dtype != np.int64:
        raise ValueError("a table has eight columns of 64-bit words")
    return np.ascontiguousarray(table)


class ListForm(NamedTuple):
    """Records as they stand in a list on the wire: `records` of them in `data`, which took `disk_bytes` on disk.

    `verdict` tells why there are no more, DONE when there are as many as were asked for.
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
    """The first `count` records of `disk` in wire form, or their record headers, until one is not right.

    Ids go on from `first_transaction_id`; both checksums of every record are compared, also where only headers are wanted.
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

    Raises TranscodeError for a record that is not right, and (MALFORMED) for bytes that are missing or left over.
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
