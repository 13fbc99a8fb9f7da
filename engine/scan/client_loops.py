"""The loops of a log server: appends in a receive buffer to records without ids; then ids and feed frames.

Like those of `engine.scan.wire_loops` they are written once, run interpreted or compiled, and trust none of their input.
"""

from __future__ import annotations

from typing import Any

from waltzctl.engine.scan.wire_layout import (
    BODY_LENGTH_AT,
    BYTES,
    CLIENT_APPEND,
    CLIENT_AT,
    CLIENT_LOCKS_AT,
    CLIENT_MARK_AT,
    CLIENT_PARTITION_AT,
    CLIENT_REQUEST_AT,
    CLIENT_TYPE_AT,
    DATA_LENGTH_AT,
    EXPECTED,
    FEED_FRAME,
    FEED_HEADER_AT,
    FEED_ID_AT,
    FEED_REQUEST_AT,
    FILLED,
    FINE,
    FRAME_SIZE,
    HELD_COLUMNS,
    HELD_MARK,
    HELD_STOP,
    ID_SIZE,
    LISTS,
    LOCK_BITS,
    LOCK_MASK,
    LOCKS,
    LONGEST,
    MAGIC,
    MAGIC_AT,
    MALFORMED,
    MOST_LOCKS,
    POSITION,
    REQUEST_AT,
    REQUEST_SIZE,
    REST_AT,
    REST_HEAD,
    REST_LENGTH_AT,
    ROWS,
    RUN_CLIENT,
    RUN_COLUMNS,
    RUN_LOCKED,
    RUN_PARTITION,
    RUN_STOP,
    RUNS,
    TAKEN,
    VERSION,
    VERSION_AT,
    WIRE_OVERHEAD,
    WORD,
)
from waltzctl.engine.scan.wire_memory import (
    byte_at,
    checksum,
    copy,
    get,
    half_at,
    long_at,
    put,
    put_word,
    unsigned_at,
    word_at,
)


def take_appends(state: Any, memory: Any, runs: Any, places: Any, held: Any, locks: Any, out: Any) -> int:
    """Turn the append frames between POSITION and FILLED into records with the id 0, up to the first frame that is not one.

    That frame is incomplete, invalid or another message, which the caller finds out.  Keep-alives are skipped.

    `places` receives the offset of each record in `out`, and the end of the last one; `held` and `locks` receive the locks of
    each append.  `out` has room for as many bytes as the buffer has, `locks` for as many locks as they could hold.
    """
    position = get(state, POSITION)
    filled = get(state, FILLED)
    rows = get(state, ROWS)
    magic = get(state, MAGIC)
    version = get(state, VERSION)
    longest = get(state, LONGEST)
    lists = get(state, LISTS)
    most_locks = get(state, MOST_LOCKS)
    count = 0
    size = 0
    run = -1
    client = 0
    partition = 0
    locked = 0
    known = 0
    put(places, 0, 0)
    while count < rows:
        left = filled - position - FRAME_SIZE
        if left < 0:
            break
        if byte_at(memory, position + MAGIC_AT) != magic:
            break
        if half_at(memory, position + VERSION_AT) != version:
            break
        length = word_at(memory, position + BODY_LENGTH_AT)
        if length < 0 or length > longest or length > left:
            break
        body = position + FRAME_SIZE
        if length == 0:
            position = body
            continue
        if length < CLIENT_LOCKS_AT:
            break
        if byte_at(memory, body + CLIENT_TYPE_AT) != CLIENT_APPEND:
            break
        end = body + length
        place = body + CLIENT_LOCKS_AT
        found = known
        seen = 0
        while seen < lists:
            left = end - place - WORD
            if left < 0:
                break
            more = word_at(memory, place)
            if more < 0 or more > most_locks or more * WORD > left:
                break
            place += WORD
            listed = place + more * WORD
            while place < listed:
                put(locks, found, seen << LOCK_BITS | (word_at(memory, place) & LOCK_MASK))
                found += 1
                place += WORD
            seen += 1
        left = end - place - REST_HEAD - WORD
        if seen < lists or left < 0:
            break
        data = word_at(memory, place + REST_LENGTH_AT)
        if data != left:
            break
        source = place + REST_HEAD
        if checksum(state, 0, memory, source, data) != unsigned_at(memory, source + data):
            break
        put_word(out, size, 0)
        put_word(out, size + WORD, 0)
        copy(out, size + REQUEST_AT, memory, body + CLIENT_REQUEST_AT, REQUEST_SIZE)
        copy(out, size + REST_AT, memory, place, REST_HEAD + data + WORD)
        number = word_at(memory, body + CLIENT_AT)
        where = word_at(memory, body + CLIENT_PARTITION_AT)
        has = 0
        if found > known:
            has = 1
        if run < 0 or has != locked or number != client or where != partition:
            run += 1
            client = number
            partition = where
            locked = has
            put(runs, run * RUN_COLUMNS + RUN_CLIENT, client)
            put(runs, run * RUN_COLUMNS + RUN_PARTITION, partition)
            put(runs, run * RUN_COLUMNS + RUN_LOCKED, locked)
        put(held, count * HELD_COLUMNS + HELD_MARK, long_at(memory, body + CLIENT_MARK_AT))
        put(held, count * HELD_COLUMNS + HELD_STOP, found)
        known = found
        size += WIRE_OVERHEAD + data
        count += 1
        put(runs, run * RUN_COLUMNS + RUN_STOP, count)
        put(places, count, size)
        position = end
    put(state, POSITION, position)
    put(state, TAKEN, count)
    put(state, BYTES, size)
    put(state, RUNS, run + 1)
    put(state, LOCKS, known)
    return FINE


def number_records(state: Any, memory: Any, feed: Any, out: Any) -> int:
    """Store ids into records, from EXPECTED on, and write for each record the frame that a feed sends for it.

    `feed`: the bytes with which all of these frames begin.
    """
    position = get(state, POSITION)
    filled = get(state, FILLED)
    rows = get(state, ROWS)
    number = get(state, EXPECTED)
    count = 0
    status = FINE
    while count < rows:
        left = filled - position - WIRE_OVERHEAD
        if left < 0:
            status = MALFORMED
            break
        data = word_at(memory, position + DATA_LENGTH_AT)
        if data < 0 or data > left:
            status = MALFORMED
            break
        put_word(memory, position, number >> 32)
        put_word(memory, position + WORD, number & 0xFFFFFFFF)
        at = count * FEED_FRAME
        copy(out, at, feed, 0, FEED_REQUEST_AT)
        copy(out, at + FEED_REQUEST_AT, memory, position + REQUEST_AT, REQUEST_SIZE)
        copy(out, at + FEED_ID_AT, memory, position, ID_SIZE)
        copy(out, at + FEED_HEADER_AT, memory, position + REST_AT, WORD)
        position += WIRE_OVERHEAD + data
        number += 1
        count += 1
    put(state, POSITION, position)
    put(state, TAKEN, count)
    return status
