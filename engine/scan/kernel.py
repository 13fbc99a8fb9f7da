"""The kernel: one loop that walks records back to back in a buffer and checks both checksums of each.

The loop, `walk`, is written once.  Here it runs interpreted, on the primitives of this module (`struct` and the fastest CRC-32
library); `engine.scan.compiled` takes the same code object, replaces the primitives by machine-level ones of the same names, and
compiles it.  Layout constants come from the compiled schema of the record (`formats.segment`).

A `Lane` is the memory of one walk: the buffer, the loop's state (64-bit words, `Slot`), and the columns that the loop fills.
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
    """The words of a lane's state.  *In*: set by the caller; *out*: set by the loop."""

    POSITION = 0
    """In and out: where in the buffer the next record begins."""
    FILLED = 1
    """In: bytes of the buffer that are filled."""
    ROOM = 2
    """In: position of the end of the walk, which may be beyond the buffer; no record may reach beyond it."""
    BASE = 3
    """In: file offset of the buffer's first byte; may be negative."""
    EXPECTED = 4
    """In and out: the id that the next record must have."""
    ROW = 5
    """In and out: number of rows that are filled."""
    CAPACITY = 6
    """In: number of rows."""
    MAX_LENGTH = 7
    """In: bound for a record's data length."""
    WIDE = 8
    """In: 1 to fill every column, 0 for offset and data_ok only."""
    NOTES = 9
    """Internal: results of `note` for the current stretch (in the compiled loop the address of scratch memory)."""
    TABLES = 10
    """In: address of the constants (compiled loop only)."""
    FUNCTION = 11
    """In: address of a checksum function (compiled loop only)."""
    RESULT = 12
    """Out: the status (compiled loop only)."""


SLOTS = 16
"""Words in a lane's state."""
MARGIN = 64
"""Bytes of memory after the buffer that are never filled; the loop may load them."""


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
    """The next record has right checksums but another id."""
    END = 5
    """Nothing is left.  Returned by `engine.scan.walk` only, not by the loop."""
    SHORT = 6
    """Fewer bytes are left than the shortest record has.  Returned by `engine.scan.walk` only."""


STRETCH = 64
"""Number of records whose checksums are verified together (a *stretch*)."""

# Plain integers: the compiled loop takes them as constants.
POSITION, FILLED, ROOM, BASE = int(Slot.POSITION), int(Slot.FILLED), int(Slot.ROOM), int(Slot.BASE)
EXPECTED, ROW, CAPACITY = int(Slot.EXPECTED), int(Slot.ROW), int(Slot.CAPACITY)
MAX_LENGTH, WIDE, NOTES = int(Slot.MAX_LENGTH), int(Slot.WIDE), int(Slot.NOTES)
TABLES, FUNCTION, RESULT = int(Slot.TABLES), int(Slot.FUNCTION), int(Slot.RESULT)
FULL, MORE, LENGTH = int(Status.FULL), int(Status.MORE), int(Status.LENGTH)
BAD_CHECKSUM, ORDER = int(Status.CHECKSUM), int(Status.ORDER)


def walk(state: Any, memory: Any, columns: Any) -> int:
    """Walk records in `memory` until something stops the loop; returns a `Status` and leaves the rest in `state`.

    What bytes mean depends on their position:

    ======================== =========================================================================================
    below FILLED             read from the file; a record there is valid if its checksum is right
    FILLED to the buffer's   undefined.  The length in a header may be loaded from there, which costs less than a
    end                      comparison first; the comparison with FILLED that follows discards it
    ROOM and above           outside of the walk: a record whose length reaches there stops the loop (`Status.LENGTH`)
    ======================== =========================================================================================

    A length is compared with its bounds before it is used; a negative one counts as too large.

    Checksums are verified for a stretch of records at a time, because a compiled loop verifies several at once faster than one
    after the other.  If one is wrong, the rows after it are dropped, because its length led to them.
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


# --- primitives of the interpreted loop; the compiled loop has others of the same names ------------------------------


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
"""Data of fewer bytes is read twice, for both checksums: in Python that is cheaper than joining two checksums."""

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
    """Compute both checksums of the record at `position`, which is wholly in the buffer, for `settle`.

    `place`: the number of the record in its stretch.
    """
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
    """Fill the column `data_ok` for the `count` records of `note`, from row `first` on.

    Returns the number of records before the first one with a wrong record checksum; rows from that one on are undefined.
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
    """Fill all columns but `data_ok` for the record at ``[position, end)``, in the order of `COLUMN_TYPES`."""
    del columns.rows[row:]
    columns.rows.append((offset, *_read_header(memory, position), *_read_word(memory, end - CHECKSUM.size)))


def put_place(columns: Any, row: int, offset: int) -> None:
    """Fill the column `offset` only."""
    del columns.rows[row:]
    columns.rows.append((offset,))


def place_of(columns: Any, row: int) -> int:
    """The offset in a row."""
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
        """Append a row with these values of `COLUMN_TYPES`, for a record that the loop did not check."""

    def take(self, *, copy: bool) -> dict[str, np.ndarray[Any, Any]]:
        """The filled rows by column name; the rows are empty afterwards.  Without `copy` they are valid until the next `walk`."""


class Kernel(Protocol):
    """One implementation of the loop.  Thread-safe."""

    name: str
    """For people, for example ``interpreted, isal``."""

    def lane(self, buffer_size: int, rows: int, *, wide: bool, max_length: int) -> Lane:
        """A lane with a buffer of at least `buffer_size` bytes and `rows` rows.

        `wide`: all columns, else only `offset` and `data_ok`.  `max_length`: bound for a record's data length.  A lane may be
        reused: the caller has to set its `state`, and must not rely on the contents of its buffer.
        """

    def give_back(self, lane: Lane) -> None:
        """Return a lane for reuse.  The lane, and arrays of `Lane.take` without `copy`, must not be used any more."""


@dataclass(slots=True)
class _Rows:
    """Columns of the interpreted loop: tuples of all values but `data_ok`, and the values of `data_ok` (`verdicts`)."""

    rows: list[tuple[int | bool, ...]]
    verdicts: list[bool]


_SMALL = 128 << 10
"""Bytes up to which a buffer is allocated on the heap and not mapped."""


class InterpretedLane:
    """A lane of the interpreted loop."""

    def __init__(self, buffer_size: int, rows: int, *, wide: bool, max_length: int) -> None:
        # A mapping costs system calls, and a page fault for each page, which is more than the walk over a small file.
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
        self._drop_rest()  # also the `data_ok` of a record with another id, which has no row
        return status

    def push(self, row: tuple[int | bool, ...]) -> None:
        """See `Lane.push`."""
        self._columns.rows.append(row[:-1] if self.state[Slot.WIDE] else row[:1])
        self._columns.verdicts.append(bool(row[-1]))
        self.state[Slot.ROW] += 1

    def _drop_rest(self) -> None:
        """Drop the rows after the first record that is not valid."""
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
    """The loop as Python code, which is always available."""

    name = f"interpreted, {CRC32_LIBRARY}"

    def lane(self, buffer_size: int, rows: int, *, wide: bool, max_length: int) -> Lane:
        """See `Kernel.lane`."""
        return InterpretedLane(buffer_size, rows, wide=wide, max_length=max_length)

    def give_back(self, lane: Lane) -> None:
        """See `Kernel.give_back`; the lane is not kept."""


INTERPRETED = InterpretedKernel()


# --- self-test of a kernel -----------------------------------------------------------------------------------------------


def made_up_record(transaction_id: int, length: int) -> bytes:
    """A generated record with right checksums and `length` bytes of pseudo-random data."""
    whole = shake_128(b"%d" % transaction_id).digest(_INVENTED.size + length)
    data = whole[_INVENTED.size :]
    header = HEADER_WORDS.pack(transaction_id, *_INVENTED.unpack_from(whole), length, crc32(data))
    return header + data + CHECKSUM.struct.pack(crc32(data, crc32(header)))


_INVENTED = struct.Struct(">qqi")
"""Request id (two words) and header."""


def answers(kernel: Kernel, records: bytes | bytearray) -> list[Any]:
    """All results of a kernel for `records`, of which the first should have the id 0."""
    lane = kernel.lane(_BEFORE + len(records), STRETCH, wide=True, max_length=len(records))
    end = _BEFORE + len(records)
    lane.memory[_BEFORE:end] = records
    for slot, value in ((POSITION, _BEFORE), (FILLED, end), (ROOM, end), (BASE, 0), (EXPECTED, 0)):
        lane.state[slot] = value
    status = lane.walk()
    place = lane.state[POSITION], lane.state[EXPECTED], lane.state[ROW]
    return [status, place, *([name, column.tolist()] for name, column in lane.take(copy=True).items())]


_BEFORE = 4096
