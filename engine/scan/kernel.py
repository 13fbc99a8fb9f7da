"""The kernel: one loop that walks records back to back in a buffer and checks both checksums of each.

The loop, `walk`, is written once.  As it stands here it runs interpreted, on the primitives of this module (`struct` and the
fastest CRC-32 library); `engine.scan.compiled` takes the same code object, puts machine-level primitives of the same names
in their place and compiles it.  Layout constants come from the compiled schema of the record (`formats.segment`).

A `Lane` is what one walk needs: the buffer, the loop's state (64-bit words, `Slot`), and the columns that it fills.
"""

from __future__ import annotations

import enum
import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_128
from typing import Any, Protocol

import numpy as np

from waltzctl.engine.scan.columns import COLUMN_TYPES
from waltzctl.formats.checksums import CRC32_LIBRARY, crc32, multiply, shift_operator
from waltzctl.formats.segment import CHECKSUM, RECORD_HEADER, RECORD_OVERHEAD

HEADER = RECORD_HEADER.size
OVERHEAD = RECORD_OVERHEAD
LENGTH_AT = RECORD_HEADER.offset_of("data_length")
DATA_CHECKSUM_AT = RECORD_HEADER.offset_of("data_checksum")
REQUEST_ID_HIGH_AT = RECORD_HEADER.offset_of("request_id.client")
REQUEST_ID_LOW_AT = RECORD_HEADER.offset_of("request_id.partition")


class Slot(enum.IntEnum):
    """Places in a lane's state."""

    POSITION = 0
    """In and out: where in the buffer the next record begins."""
    FILLED = 1
    """In: bytes of the buffer that are filled."""
    ROOM = 2
    """In: bytes from the start of the buffer to the end of the walk, in the buffer or not; no record may reach beyond."""
    BASE = 3
    """In: file offset of the buffer's first byte; may be negative."""
    EXPECTED = 4
    """In and out: the id that the next record must have."""
    ROW = 5
    """In and out: rows filled."""
    CAPACITY = 6
    """In: rows there are."""
    MAX_LENGTH = 7
    """In: bound for a record's data length."""
    WIDE = 8
    """In: 1 to fill every column, 0 for offset and data_ok only."""
    NOTES = 9
    """Inner: what was noted of a stretch (address of scratch memory in the compiled loop)."""
    TABLES = 10
    """In: address of the constants (compiled loop only)."""
    FUNCTION = 11
    """In: address of a checksum function (compiled loop only)."""
    RESULT = 12
    """Out: the status (compiled loop only)."""


SLOTS = 16
"""Words in a lane's state."""
MARGIN = 64
"""Bytes of memory behind the buffer; they are never filled."""


class Status(enum.IntEnum):
    """Why the loop stopped."""

    FULL = 0
    """Every row is filled."""
    MORE = 1
    """The next record is not wholly in the buffer."""
    LENGTH = 2
    """The next record's length is negative, above the bound, or reaches beyond the end."""
    CHECKSUM = 3
    """The next record's checksum is wrong."""
    ORDER = 4
    """The next record is right but has another id."""
    END = 5
    """Nothing is left (never the loop's own answer; see `engine.scan.walk`)."""
    SHORT = 6
    """Fewer bytes are left than the shortest record has (likewise)."""


STRETCH = 64
"""Records whose checksums are settled at once."""

# Plain integers: the compiled loop takes them as constants.
POSITION, FILLED, ROOM, BASE = int(Slot.POSITION), int(Slot.FILLED), int(Slot.ROOM), int(Slot.BASE)
EXPECTED, ROW, CAPACITY = int(Slot.EXPECTED), int(Slot.ROW), int(Slot.CAPACITY)
MAX_LENGTH, WIDE, NOTES = int(Slot.MAX_LENGTH), int(Slot.WIDE), int(Slot.NOTES)
TABLES, FUNCTION, RESULT = int(Slot.TABLES), int(Slot.FUNCTION), int(Slot.RESULT)
FULL, MORE, LENGTH = int(Status.FULL), int(Status.MORE), int(Status.LENGTH)
BAD_CHECKSUM, ORDER = int(Status.CHECKSUM), int(Status.ORDER)


def walk(state: Any, memory: Any, columns: Any) -> int:
    """Walk records in `memory` until something stops the loop; returns a `Status` and leaves the rest in `state`.

    Bytes are taken for what they are worth by where they stand:

    ======================== =========================================================================================
    in front of FILLED       read from the file: believed, once a record's checksum agrees
    FILLED to the buffer's   loaded perhaps, never believed: a header's length may be loaded from there, as that costs less
    end                      than to ask first; the comparison with FILLED that follows drops it
    ROOM and behind          belongs to nobody: a record whose length reaches there ends the walk (`Status.LENGTH`)
    ======================== =========================================================================================

    A length is compared with its bounds before anything is done with it; a negative one counts as too large.

    Checksums are settled a stretch of records at a time, as a compiled loop checks several at once faster than one after the
    other.  Where one is wrong, the rows behind it are dropped: they were found by its length.
    """
    position = get(state, POSITION)
    filled = get(state, FILLED)
    room = get(state, ROOM)
    base = get(state, BASE)
    expected = get(state, EXPECTED)
    row = get(state, ROW)
    capacity = get(state, CAPACITY)
    longest = get(state, MAX_LENGTH)
    wide = get(state, WIDE)
    status = FULL
    while status == FULL and row < capacity:
        first = row
        goal = min(first + STRETCH, capacity)
        strangers = 0
        while row < goal:
            length = data_length(memory, position)
            end = position + OVERHEAD + length
            if length > longest or end > filled:
                status = MORE
                if position + HEADER <= filled and (length > longest or end > room):
                    status = LENGTH
                break
            note(state, memory, position, length, row - first)
            if transaction_id(memory, position) != expected:
                status = ORDER
                strangers = 1
                break
            if wide:
                put_row(columns, row, base + position, memory, position, end)
            else:
                put_place(columns, row, base + position)
            row += 1
            expected += 1
            position = end
        noted = row - first
        right = settle(state, columns, first, noted + strangers)
        if right < noted:
            row = first + right
            expected -= noted - right
            position = place_of(columns, row) - base
        if right < noted + strangers:
            status = BAD_CHECKSUM
    put(state, POSITION, position)
    put(state, EXPECTED, expected)
    put(state, ROW, row)
    return status


# --- primitives of the interpreted loop; a compiled loop has its own of the same names -------------------------------


def _words_of_header() -> struct.Struct:
    """The record header's structure with the request id as two 64-bit words, derived from the compiled schema."""
    codes = {field.offset: field.code for field in RECORD_HEADER.fields if not field.name.startswith("request_id.")}
    codes |= {REQUEST_ID_HIGH_AT: "q", REQUEST_ID_LOW_AT: "q"}
    words = struct.Struct(">" + "".join(codes[offset] for offset in sorted(codes)))
    assert words.size == HEADER, "the request id is not two words"
    return words


HEADER_WORDS = _words_of_header()
"""transaction id, request id (two words), header, data length, data checksum"""
_read_id = struct.Struct(">" + RECORD_HEADER.fields[0].code).unpack_from
_read_length = struct.Struct(">I").unpack_from
_read_word = CHECKSUM.struct.unpack_from
_read_header = HEADER_WORDS.unpack_from
_TWO_PASSES = 16 << 10
"""Data of fewer bytes is passed over twice: cheaper, interpreted, than joining two checksums."""

_shift = lru_cache(maxsize=64)(shift_operator)


def get(state: Any, slot: int) -> int:
    """A word of the state."""
    return state[slot]  # type: ignore[no-any-return]


def put(state: Any, slot: int, value: int) -> None:
    """Set a word of the state."""
    state[slot] = value


def transaction_id(memory: Any, position: int) -> int:
    """The id of the record at `position`."""
    return _read_id(memory, position)[0]  # type: ignore[no-any-return]


def data_length(memory: Any, position: int) -> int:
    """The data length of the record at `position`, as an unsigned number."""
    return _read_length(memory, position + LENGTH_AT)[0]  # type: ignore[no-any-return]


def note(state: Any, memory: Any, position: int, length: int, place: int) -> None:
    """Compute both checksums of the record at `position`, which is wholly in the buffer, as number `place` of a stretch."""
    start = position + HEADER
    end = start + length
    data_sum = crc32(memory[start:end])
    if length < _TWO_PASSES:
        record_sum = crc32(memory[position:end])
    else:
        record_sum = multiply(_shift(length), crc32(memory[position:start])) ^ data_sum
    data_ok = data_sum == _read_word(memory, position + DATA_CHECKSUM_AT)[0]
    state[NOTES].append((record_sum == _read_word(memory, end)[0], data_ok))


def settle(state: Any, columns: Any, first: int, count: int) -> int:
    """Deliver the data's verdict for `count` noted records from row `first` on; returns how many records are right.

    It counts up to the first whose record checksum is wrong; what is delivered from there on is not meant.
    """
    notes = state[NOTES]
    for place, (record_ok, data_ok) in enumerate(notes):
        if not record_ok:
            count = place
            break
        columns.verdicts.append(data_ok)
    notes.clear()
    del columns.verdicts[first + count :]
    return count


def put_row(columns: Any, row: int, offset: int, memory: Any, position: int, end: int) -> None:
    """Deliver every column but the verdict of the record at ``[position, end)``, in the order of `COLUMN_TYPES`."""
    del columns.rows[row:]
    columns.rows.append((offset, *_read_header(memory, position), *_read_word(memory, end - CHECKSUM.size)))


def put_place(columns: Any, row: int, offset: int) -> None:
    """Deliver a record's offset."""
    del columns.rows[row:]
    columns.rows.append((offset,))


def place_of(columns: Any, row: int) -> int:
    """The offset that was delivered for a row."""
    return columns.rows[row][0]  # type: ignore[no-any-return]


# --- lanes and kernels -------------------------------------------------------------------------------------------------


class Lane(Protocol):
    """Buffer, state and columns of one walk.  Used by one thread at a time."""

    memory: memoryview
    """The buffer and its margin, aligned to a page."""
    state: Any
    """Words by `Slot`."""

    def walk(self) -> int:
        """Run the loop; returns a `Status`."""

    def push(self, row: tuple[int | bool, ...]) -> None:
        """Add a row by hand: the values of `COLUMN_TYPES`."""

    def take(self, *, copy: bool) -> dict[str, np.ndarray[Any, Any]]:
        """The filled rows by column name, and begin anew.  Without `copy` they hold until the next walk."""


class Kernel(Protocol):
    """A way to run the loop.  Thread-safe."""

    name: str
    """What runs, for people: for example ``interpreted, isal``."""

    def lane(self, buffer_size: int, rows: int, *, wide: bool, max_length: int) -> Lane:
        """A lane; every column when `wide`, else offset and data_ok.

        Its buffer may be larger, and hold what a walk before left there; `state` is to be set for another one.
        """

    def give_back(self, lane: Lane) -> None:
        """Nobody uses the lane any more, nor anything that `Lane.take` gave without a copy: the next walk may have it."""


@dataclass(slots=True)
class _Rows:
    """Columns of the interpreted loop: tuples of all values but the verdict, and the verdicts."""

    rows: list[tuple[int | bool, ...]]
    verdicts: list[bool]


_SMALL = 128 << 10
"""Bytes of a buffer that comes from the heap."""


class InterpretedLane:
    """A lane of the interpreted loop."""

    def __init__(self, buffer_size: int, rows: int, *, wide: bool, max_length: int) -> None:
        # A mapping costs calls of the system, and a page fault for each page, which is more than a small file costs to walk.
        size = buffer_size + MARGIN
        self.memory = memoryview(bytearray(size) if size <= _SMALL else mmap.mmap(-1, size))
        self.state: list[Any] = [0] * SLOTS
        self.state[Slot.CAPACITY] = rows
        self.state[Slot.WIDE] = int(wide)
        self.state[Slot.MAX_LENGTH] = min(max_length, 2**31 - 1)
        self.state[Slot.NOTES] = []
        self._columns = _Rows([], [])

    def walk(self) -> int:
        """See `Lane.walk`."""
        status = walk(self.state, self.memory, self._columns)
        self._drop_rest()  # a stranger's verdict as well, which would be the next record's
        return status

    def push(self, row: tuple[int | bool, ...]) -> None:
        """See `Lane.push`."""
        self._columns.rows.append(row[:-1] if self.state[Slot.WIDE] else row[:1])
        self._columns.verdicts.append(bool(row[-1]))
        self.state[Slot.ROW] += 1

    def _drop_rest(self) -> None:
        """Rows behind a wrong record were delivered and taken back."""
        del self._columns.rows[self.state[Slot.ROW] :]
        del self._columns.verdicts[self.state[Slot.ROW] :]

    def take(self, *, copy: bool) -> dict[str, np.ndarray[Any, Any]]:
        """See `Lane.take`."""
        names = list(COLUMN_TYPES) if self.state[Slot.WIDE] else ["offset", "data_ok"]
        values = [*zip(*self._columns.rows, strict=True)] or [()] * (len(names) - 1)
        values.append(tuple(self._columns.verdicts))
        taken = {name: np.array(column, COLUMN_TYPES[name]) for name, column in zip(names, values, strict=True)}
        self._columns = _Rows([], [])
        self.state[Slot.ROW] = 0
        return taken


class InterpretedKernel:
    """The loop as Python runs it: nothing to load and nothing to wait for."""

    name = f"interpreted, {CRC32_LIBRARY}"

    def lane(self, buffer_size: int, rows: int, *, wide: bool, max_length: int) -> Lane:
        """See `Kernel.lane`."""
        return InterpretedLane(buffer_size, rows, wide=wide, max_length=max_length)

    def give_back(self, lane: Lane) -> None:
        """See `Kernel.give_back`; a small lane costs next to nothing here."""


INTERPRETED = InterpretedKernel()


# --- one question for any kernel -----------------------------------------------------------------------------------------


def made_up_record(transaction_id: int, length: int) -> bytes:
    """A record with right checksums and `length` bytes of data that look like nothing."""
    whole = shake_128(b"%d" % transaction_id).digest(_INVENTED.size + length)
    data = whole[_INVENTED.size :]
    header = HEADER_WORDS.pack(transaction_id, *_INVENTED.unpack_from(whole), length, crc32(data))
    return header + data + CHECKSUM.struct.pack(crc32(data, crc32(header)))


_INVENTED = struct.Struct(">qqi")
"""Request id (two words) and header."""


def answers(kernel: Kernel, records: bytes | bytearray) -> list[Any]:
    """Everything that a kernel tells about `records`, the first of which should have the id 0."""
    lane = kernel.lane(_BEFORE + len(records), STRETCH, wide=True, max_length=len(records))
    end = _BEFORE + len(records)
    lane.memory[_BEFORE:end] = records
    for slot, value in ((POSITION, _BEFORE), (FILLED, end), (ROOM, end), (BASE, 0), (EXPECTED, 0)):
        lane.state[slot] = value
    status = lane.walk()
    place = lane.state[POSITION], lane.state[EXPECTED], lane.state[ROW]
    return [status, place, *([name, column.tolist()] for name, column in lane.take(copy=True).items())]


_BEFORE = 4096
