"""The wire loops: frames in a receive buffer (`split`), append requests to records on disk (`encode`, `encode_groups`).

`engine.scan.list_loops` has those for lists of records, `client_loops` and `lock_loops` those of a log server.
`InterpretedLoops` runs all of them.

Each loop is written once.  Here it runs interpreted, on the primitives of `engine.scan.wire_memory`; `engine.scan.wire_native`
takes the same code objects, replaces the primitives by machine-level ones of the same names, and compiles them.  Offsets come
from the compiled schemas of the formats.

A loop trusts none of its input: not the table (which may describe another buffer), not a count, not a length.  Each value is
compared with its bounds before it is used, by subtraction, so that nothing overflows.  Where a loop reads a frame twice, the
second pass uses the offsets that the first one stored, and reads no length again.
"""

from __future__ import annotations

from array import array
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from waltzctl.engine.scan.client_loops import number_records, take_appends
from waltzctl.engine.scan.list_loops import answer_lists, to_list
from waltzctl.engine.scan.lock_loops import admit_appends, settle_appends
from waltzctl.engine.scan.wire_layout import (
    APPEND_HEAD,
    APPEND_LEAST,
    APPEND_TYPE,
    BAD_DATA,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_ORDER,
    BAD_VERSION,
    BODY_COLUMN,
    BODY_LENGTH_AT,
    BYTES,
    BYTES_END_COLUMN,
    COLUMNS,
    DATA_LENGTH_AT,
    DISK_HEAD,
    DISK_OVERHEAD,
    EXPECTED,
    EXPECTED_COLUMN,
    FILLED,
    FINE,
    FOUND,
    FRAME_SIZE,
    FULL,
    GROUP_COLUMNS,
    GROUPS,
    HEAD,
    HELD_COLUMNS,
    LENGTH_COLUMN,
    LOCKS,
    LONGEST,
    MAGIC,
    MAGIC_AT,
    MALFORMED,
    MORE,
    NEEDED,
    OFFLINE_COLUMN,
    PARTITION_AT,
    PARTITION_COLUMN,
    POSITION,
    PREFIX_SIZE,
    RECORDS,
    RECORDS_COLUMN,
    RECORDS_END_COLUMN,
    ROW,
    ROWS,
    RUN_COLUMNS,
    RUNS,
    SEQUENCE_AT,
    SEQUENCE_COLUMN,
    SESSION_AT,
    SESSION_COLUMN,
    SHORT,
    STOP_COLUMN,
    TAKEN,
    TOO_LONG,
    TYPE_AT,
    TYPE_COLUMN,
    VERDICT_COLUMN,
    VERSION,
    VERSION_AT,
    WIRE_OVERHEAD,
    WORD,
    WORDS,
)
from waltzctl.engine.scan.wire_memory import (
    byte_at,
    checksum,
    copy,
    get,
    half_at,
    joined,
    long_at,
    put,
    put_word,
    unsigned_at,
    word_at,
)

# --- the loops --------------------------------------------------------------------------------------------------------


def split(state: Any, memory: Any, table: Any) -> int:
    """Enter every whole frame between POSITION and FILLED into a row of the table; keep-alives are skipped."""
    position = get(state, POSITION)
    filled = get(state, FILLED)
    rows = get(state, ROWS)
    magic = get(state, MAGIC)
    version = get(state, VERSION)
    longest = get(state, LONGEST)
    row = 0
    needed = 0
    status = FULL
    while row < rows:
        left = filled - position - FRAME_SIZE
        if left < 0:
            status = MORE
            break
        if byte_at(memory, position + MAGIC_AT) != magic:
            status = BAD_MAGIC
            break
        if half_at(memory, position + VERSION_AT) != version:
            status = BAD_VERSION
            break
        length = word_at(memory, position + BODY_LENGTH_AT)
        if length < 0 or length > longest:
            status = BAD_LENGTH
            break
        body = position + FRAME_SIZE
        if length == 0:
            position = body
            continue
        if length < PREFIX_SIZE:
            status = SHORT
            break
        if length > left:
            needed = FRAME_SIZE + length
            status = MORE
            break
        kind = byte_at(memory, body + TYPE_AT)
        records = 0
        offline = 0
        if kind == APPEND_TYPE:
            records = -1
            if length >= APPEND_LEAST:
                records = word_at(memory, body + PREFIX_SIZE)
            if byte_at(memory, body + length - 1) == 1:
                offline = 1
        cell = row * COLUMNS
        put(table, cell + BODY_COLUMN, body)
        put(table, cell + LENGTH_COLUMN, length)
        put(table, cell + TYPE_COLUMN, kind)
        put(table, cell + SESSION_COLUMN, long_at(memory, body + SESSION_AT))
        put(table, cell + SEQUENCE_COLUMN, long_at(memory, body + SEQUENCE_AT))
        put(table, cell + PARTITION_COLUMN, word_at(memory, body + PARTITION_AT))
        put(table, cell + RECORDS_COLUMN, records)
        put(table, cell + OFFLINE_COLUMN, offline)
        row += 1
        position = body + length
    put(state, POSITION, position)
    put(state, TAKEN, row)
    put(state, NEEDED, needed)
    return status


def encode(state: Any, memory: Any, table: Any, offsets: Any, out: Any) -> int:
    """Turn the records of append requests into records on disk, up to the first invalid request, of which no record is written.

    `offsets` receives the offset of each record in `out`, and the end of the last one.  Both have room for all requests whose
    count is possible for their length.  The output is appended to the RECORDS and BYTES that `out` has; EXPECTED is the id of
    the first one of those.
    """
    filled = get(state, FILLED)
    rows = get(state, ROWS)
    longest = get(state, LONGEST)
    expected = get(state, EXPECTED)
    row = get(state, ROW)
    total = get(state, RECORDS)
    size = get(state, BYTES)
    found = -1
    status = FINE
    put(offsets, total, size)
    while row < rows:
        cell = row * COLUMNS
        body = get(table, cell + BODY_COLUMN)
        length = get(table, cell + LENGTH_COLUMN)
        records = get(table, cell + RECORDS_COLUMN)
        if body < 0 or length < APPEND_LEAST or body > filled - length:
            status = MALFORMED
            break
        if records < 0 or records > length or records * WIRE_OVERHEAD > length - APPEND_LEAST:
            status = MALFORMED
            break
        position = body + APPEND_HEAD
        last = body + length - 1
        end = size
        count = total
        stop = total + records
        while count < stop:
            left = last - position - WIRE_OVERHEAD
            if left < 0:
                break
            data = word_at(memory, position + DATA_LENGTH_AT)
            if data < 0 or data > left:
                break
            if status == FINE:
                number = long_at(memory, position)
                if number != expected + count:
                    status = BAD_ORDER
                    found = number
                elif data > longest:
                    status = TOO_LONG
                    found = number
            position += WIRE_OVERHEAD + data
            end += DISK_OVERHEAD + data
            count += 1
            put(offsets, count, end)
        if count < stop or position != last:
            status = MALFORMED
            found = -1
        if status != FINE:
            break
        position = body + APPEND_HEAD
        count = total
        while count < stop:
            start = get(offsets, count)
            data = get(offsets, count + 1) - start - DISK_OVERHEAD
            source = position + HEAD
            data_sum = checksum(state, 0, memory, source, data)
            if data_sum != unsigned_at(memory, source + data):
                status = BAD_DATA
                found = expected + count
                break
            copy(out, start, memory, position, HEAD)
            put_word(out, start + HEAD, data_sum)
            copy(out, start + DISK_HEAD, memory, source, data)
            record_sum = checksum(state, 0, out, start, DISK_HEAD)
            record_sum = joined(state, record_sum, data_sum, out, start + DISK_HEAD, data)
            put_word(out, start + DISK_HEAD + data, record_sum)
            position = source + data + WORD
            count += 1
        if status != FINE:
            break
        total = stop
        size = end
        row += 1
    put(state, TAKEN, row)
    put(state, RECORDS, total)
    put(state, BYTES, size)
    put(state, FOUND, found)
    return status


def encode_groups(state: Any, memory: Any, table: Any, groups: Any, offsets: Any, out: Any) -> int:
    """As `encode`, for consecutive groups of requests with separate sequences of ids; a group is encoded whole or not at all."""
    count = get(state, GROUPS)
    row = 0
    records = 0
    size = 0
    group = 0
    while group < count:
        cell = group * GROUP_COLUMNS
        stop = get(groups, cell + STOP_COLUMN)
        put(state, ROW, row)
        put(state, ROWS, stop)
        put(state, RECORDS, records)
        put(state, BYTES, size)
        put(state, EXPECTED, get(groups, cell + EXPECTED_COLUMN) - records)
        status = encode(state, memory, table, offsets, out)
        if status == FINE:
            records = get(state, RECORDS)
            size = get(state, BYTES)
        put(groups, cell + VERDICT_COLUMN, status)
        put(groups, cell + RECORDS_END_COLUMN, records)
        put(groups, cell + BYTES_END_COLUMN, size)
        row = stop
        group += 1
    return FINE


# --- running them -----------------------------------------------------------------------------------------------------

Table = npt.NDArray[np.int64]
State: TypeAlias = "array[int]"


def new_state() -> State:
    """A state: words by `Word`, all zero."""
    return array("q", _ZEROS)


_ZEROS = bytes(8 * WORDS)


class InterpretedLoops:
    """The loops as Python code, which are always available.  Thread-safe."""

    name = "interpreted"

    def split(self, state: State, buffer: Any, table: Table) -> int:
        """Run `split`; `table` has ROWS rows."""
        cells = [0] * (state[ROWS] * COLUMNS)
        status = split(state, memoryview(buffer), cells)
        filled = state[TAKEN]
        table[:filled] = np.array(cells[: filled * COLUMNS], np.int64).reshape(filled, COLUMNS)
        return status

    def encode(self, state: State, buffer: Any, table: Table, offsets: Table, out: npt.NDArray[np.uint8]) -> int:
        """Run `encode`."""
        places = [0] * len(offsets)
        status = encode(state, memoryview(buffer), table.ravel().tolist(), places, out.data)
        offsets[:] = places
        return status

    def encode_groups(
        self, state: State, buffer: Any, table: Table, groups: Table, offsets: Table, out: npt.NDArray[np.uint8]
    ) -> None:
        """Run `encode_groups`."""
        cells, places = groups.ravel().tolist(), [0] * len(offsets)
        encode_groups(state, memoryview(buffer), table.ravel().tolist(), cells, places, out.data)
        groups[:] = np.array(cells, np.int64).reshape(groups.shape)
        offsets[:] = places

    def to_list(self, state: State, buffer: Any, out: npt.NDArray[np.uint8], *, brief: bool) -> int:
        """Run `to_list`."""
        return to_list(state, memoryview(buffer), out.data, int(brief))

    def answer_lists(
        self, state: State, buffer: Any, table: Table, segment: State, heads: bytes, scratch: Any, out: Any
    ) -> int:
        """Run `engine.scan.list_loops.answer_lists`."""
        memory, cells = memoryview(buffer), table.ravel().tolist()
        return answer_lists(state, memory, cells, segment, heads, memoryview(scratch), memoryview(out))

    def take_appends(
        self,
        state: State,
        buffer: Any,
        runs: Table,
        places: Table,
        held: Table,
        locks: Table,
        out: npt.NDArray[np.uint8],
    ) -> None:
        """Run `engine.scan.client_loops.take_appends`; `runs` and `held` have ROWS rows, `places` one word more."""
        cells, begins, rows, words = [0] * runs.size, [0] * len(places), [0] * held.size, [0] * len(locks)
        take_appends(state, memoryview(buffer), cells, begins, rows, words, out.data)
        held[: state[TAKEN]] = np.array(rows[: state[TAKEN] * HELD_COLUMNS], np.int64).reshape(-1, HELD_COLUMNS)
        locks[: state[LOCKS]] = words[: state[LOCKS]]
        runs[: state[RUNS]] = np.array(cells[: state[RUNS] * RUN_COLUMNS], np.int64).reshape(-1, RUN_COLUMNS)
        places[: state[TAKEN] + 1] = begins[: state[TAKEN] + 1]

    def number_records(self, state: State, records: bytearray, feed: Any, out: bytearray) -> int:
        """Run `engine.scan.client_loops.number_records`; `feed`: the bytes with which every feed frame begins."""
        return number_records(state, memoryview(records), memoryview(feed), memoryview(out))

    def admit_appends(
        self, state: State, written: State, in_flight: State, appends: State, locks: State, verdicts: State
    ) -> int:
        """Run `engine.scan.lock_loops.admit_appends`."""
        return admit_appends(state, written, in_flight, appends, locks, verdicts)

    def settle_appends(self, state: State, written: State, in_flight: State, appends: State, locks: State) -> int:
        """Run `engine.scan.lock_loops.settle_appends`."""
        return settle_appends(state, written, in_flight, appends, locks)


INTERPRETED = InterpretedLoops()
