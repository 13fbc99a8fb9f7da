"""The loops that make lists of records for the wire: `to_list` from records on disk, `answer_lists` from requests.

Like those of `engine.scan.wire_loops` they are written once, run interpreted or compiled, and trust neither the requests, nor the
index, nor the records.
"""

from __future__ import annotations

from typing import Any

from waltzctl.engine.scan.wire_layout import (
    ANSWERED,
    ANSWERED_AT,
    BAD_DATA,
    BAD_ORDER,
    BAD_RECORD,
    BODY_COLUMN,
    BODY_LENGTH_AT,
    BRIEF,
    BYTES,
    COLUMNS,
    DATA_LENGTH_AT,
    DISK_HEAD,
    DISK_OVERHEAD,
    ENTRY,
    EXPECTED,
    FILLED,
    FINE,
    FRAME_SIZE,
    HEAD,
    HEADERS_TYPE,
    INDEX_HEADER,
    LENGTH_COLUMN,
    LIST_BODY,
    LIST_COUNT_AT,
    LIST_FIRST_AT,
    LIST_HEAD,
    LONGEST,
    MALFORMED,
    NO_ROOM,
    OPEN_DATA,
    OPEN_END,
    OPEN_FEW,
    OPEN_FIRST,
    OPEN_FLAGS,
    OPEN_INDEX,
    OPEN_MOST,
    OPEN_NEXT,
    OPEN_ROOM,
    OPEN_SEGMENT,
    OPEN_SESSION,
    OPEN_SHOWN,
    OPEN_START,
    OTHERWISE,
    POSITION,
    PREFIX_SIZE,
    RECORDS_TYPE,
    ROW,
    ROWS,
    SCRATCH_START,
    SESSION_COLUMN,
    TAKEN,
    TOO_LONG,
    TYPE_COLUMN,
    WIRE_OVERHEAD,
    WORD,
)
from waltzctl.engine.scan.wire_memory import (
    checksum,
    copy,
    get,
    joined,
    long_at,
    put,
    put_word,
    read,
    unsigned_at,
    word_at,
)


def to_list(state: Any, memory: Any, out: Any, brief: Any) -> int:
    """Turn records on disk into the records of a list (or, when `brief`, into record headers), up to the first invalid one.

    The output is appended after the BYTES that `out` has.  Both checksums of each record are verified, also when `brief`.
    """
    position = get(state, POSITION)
    filled = get(state, FILLED)
    rows = get(state, ROWS)
    longest = get(state, LONGEST)
    expected = get(state, EXPECTED)
    count = 0
    size = get(state, BYTES)
    status = FINE
    while count < rows:
        left = filled - position - DISK_OVERHEAD
        if left < 0:
            status = MALFORMED
            break
        data = word_at(memory, position + DATA_LENGTH_AT)
        if data < 0 or data > left:
            status = MALFORMED
            break
        number = long_at(memory, position)
        if number != expected + count:
            status = BAD_ORDER
            break
        if data > longest:
            status = TOO_LONG
            break
        source = position + DISK_HEAD
        data_sum = checksum(state, 0, memory, source, data)
        record_sum = checksum(state, 0, memory, position, DISK_HEAD)
        record_sum = joined(state, record_sum, data_sum, memory, source, data)
        if record_sum != unsigned_at(memory, source + data):
            status = BAD_RECORD
            break
        if data_sum != unsigned_at(memory, position + HEAD):
            status = BAD_DATA
            break
        if brief:
            copy(out, size, memory, position, BRIEF)
            size += BRIEF
        else:
            copy(out, size, memory, position, HEAD)
            copy(out, size + HEAD, memory, source, data)
            put_word(out, size + HEAD + data, data_sum)
            size += WIRE_OVERHEAD + data
        position = source + data + WORD
        count += 1
    put(state, POSITION, position)
    put(state, TAKEN, count)
    put(state, BYTES, size)
    return status


def answer_lists(state: Any, memory: Any, table: Any, segment: Any, heads: Any, scratch: Any, out: Any) -> int:
    """Answer requests for lists, rows ROW to ROWS of the table, from one open segment; answers go after the BYTES of `out`.

    It stops at the first request that it cannot answer; ROW is the number of that row, and BYTES the end of the answers before.
    `segment`: words by `OpenWord`.  `heads`: the beginnings of the answers of both types, up to the type.  `scratch` has room for
    FEW + 1 index entries, and MOST bytes after them.
    """
    filled = get(state, FILLED)
    rows = get(state, ROWS)
    row = get(state, ROW)
    size = get(state, BYTES)
    begun = get(state, POSITION)
    first_known = get(segment, OPEN_FIRST)
    following = get(segment, OPEN_NEXT)
    few = get(segment, OPEN_FEW)
    data_at = SCRATCH_START + (few + 1) * ENTRY
    status = ANSWERED
    while row < rows:
        status = OTHERWISE
        cell = row * COLUMNS
        body = get(table, cell + BODY_COLUMN)
        kind = get(table, cell + TYPE_COLUMN)
        if get(table, cell + LENGTH_COLUMN) != LIST_BODY or body < 0 or body > filled - LIST_BODY:
            break
        if kind != RECORDS_TYPE and kind != HEADERS_TYPE:
            break
        if get(table, cell + SESSION_COLUMN) != get(segment, OPEN_SESSION):
            break
        first = long_at(memory, body + LIST_FIRST_AT)
        count = word_at(memory, body + LIST_COUNT_AT)
        if first < first_known or first >= following or count > few:
            break
        if count > get(segment, OPEN_SHOWN) - first:
            count = get(segment, OPEN_SHOWN) - first
        if count <= 0 or count > following - first:
            break
        entries = count
        if count < following - first:
            entries = count + 1
        at = INDEX_HEADER + (first - get(segment, OPEN_SEGMENT)) * ENTRY
        flags = get(segment, OPEN_FLAGS)
        length = entries * ENTRY
        if read(state, get(segment, OPEN_INDEX), scratch, SCRATCH_START, length, at, flags) != length:
            break
        begin = long_at(scratch, SCRATCH_START)
        end = get(segment, OPEN_END)
        if begin < get(segment, OPEN_START) or begin > end:
            break
        if entries > count:
            stop = long_at(scratch, SCRATCH_START + count * ENTRY)
            if stop < begin or stop > end:
                break
            end = stop
        length = end - begin
        if length < count * DISK_OVERHEAD or length > get(segment, OPEN_MOST):
            break
        brief = 0
        answer = LIST_HEAD + length - count * (DISK_OVERHEAD - WIRE_OVERHEAD)
        if kind == HEADERS_TYPE:
            brief = 1
            answer = LIST_HEAD + count * BRIEF
        if answer > get(segment, OPEN_ROOM) - size:
            status = NO_ROOM
            break
        if read(state, get(segment, OPEN_DATA), scratch, data_at, length, begin, flags) != length:
            break
        put(state, POSITION, data_at)
        put(state, FILLED, data_at + length)
        put(state, ROWS, count)
        put(state, EXPECTED, first)
        put(state, BYTES, size + LIST_HEAD)
        if to_list(state, scratch, out, brief) != FINE or get(state, POSITION) != data_at + length:
            break
        copy(out, size, heads, brief * (FRAME_SIZE + ANSWERED_AT), FRAME_SIZE + ANSWERED_AT)
        put_word(out, size + BODY_LENGTH_AT, get(state, BYTES) - size - FRAME_SIZE)
        copy(out, size + FRAME_SIZE + ANSWERED_AT, memory, body + ANSWERED_AT, PREFIX_SIZE - ANSWERED_AT)
        put_word(out, size + FRAME_SIZE + PREFIX_SIZE, count)
        size = get(state, BYTES)
        row += 1
        status = ANSWERED
    put(state, POSITION, begun)
    put(state, FILLED, filled)
    put(state, ROWS, rows)
    put(state, ROW, row)
    put(state, BYTES, size)
    return status
