"""A program: runs the wire loops on memory with a forbidden page on either side, so that one byte too far ends the process.

``python -m tests.scan.guarded WAY,WAY SEED ROUNDS``; every buffer has exactly the size that it needs, and lies against the page
behind it or against the one in front of it.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from waltzctl.engine.scan import wire_compiled
from waltzctl.engine.scan.transcode import room_for
from waltzctl.engine.scan.wire_code import Loops
from waltzctl.engine.scan.wire_layout import (
    COLUMNS,
    ENTRY,
    EXPECTED,
    FEED_FRAME,
    FEED_REQUEST_AT,
    FILLED,
    HELD_COLUMNS,
    LISTS,
    LOCKS,
    LONGEST,
    MAGIC,
    MOST_LOCKS,
    POSITION,
    ROWS,
    RUN_COLUMNS,
    SCRATCH_START,
    SLOTS,
    VERSION,
    OpenWord,
)
from waltzctl.engine.scan.wire_loops import INTERPRETED, new_state
from waltzctl.engine.scan.wire_trials import files_in_memory
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record
from waltzctl.formats.wire import client
from waltzctl.formats.wire.frame import keep_alive
from waltzctl.formats.wire.records import WireRecord, pack_records
from waltzctl.formats.wire.storage import (
    AppendRequest,
    MaxTransactionIdRequest,
    RecordHeaderListRequest,
    RecordListRequest,
    encode,
    list_heads,
)

_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0


class Guarded:
    """Memory between two pages that may not be touched.  `array` and `bytes_at` lie against one of them."""

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._map = mmap.mmap(-1, (pages + 2) * _PAGE)
        self._start = np.frombuffer(self._map, np.uint8).ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (0, pages + 1):
            address = ctypes.c_void_p(self._start + page * _PAGE)
            if libc.mprotect(address, ctypes.c_size_t(_PAGE), _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._whole = np.frombuffer(self._map, np.uint8)

    def take(self, size: int, *, high: bool) -> np.ndarray:
        """`size` bytes that end at the upper page, or begin behind the lower one."""
        begin = _PAGE + (self._pages * _PAGE - size if high else 0)
        return self._whole[begin : begin + size]

    def put(self, data: bytes, *, high: bool) -> np.ndarray:
        place = self.take(len(data), high=high)
        place[:] = np.frombuffer(data, np.uint8)
        return place


def _record(rng: random.Random, number: int) -> WireRecord:
    length = rng.choice([0, 1, rng.randrange(70), rng.randrange(600), 511, 512, 4095, 4096, 5000])
    return WireRecord.make(number, RequestId(1, 2, 3, 4), 5, rng.randbytes(length))


def _stream(rng: random.Random) -> bytes:
    parts, number = [], 0
    for sequence in range(rng.randrange(5)):
        records = tuple(_record(rng, number + place) for place in range(rng.randrange(3)))
        number += len(records)
        parts.append(encode(AppendRequest(7, sequence, 3, records, rng.random() < 0.5)))
        parts += rng.choices([b"", keep_alive(0x53, 0), encode(MaxTransactionIdRequest(7, 1, 3))], k=1)
    return b"".join(parts)


def _changed(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randrange(3)):
        if raw:
            place = rng.randrange(len(raw))
            raw[place : place + rng.choice([0, 1, 1, 1, 30])] = rng.choice([b"", b"\0", b"\xff", rng.randbytes(1)])
    return bytes(raw[: rng.choice([len(raw), rng.randrange(len(raw) + 1)])])


def _round(loops: Loops, rng: random.Random, memory: Sequence[Guarded]) -> None:
    source, tables, places, target = memory[:4]
    high = rng.random() < 0.5
    raw = _changed(rng, _stream(rng))
    buffer = source.put(raw, high=high)
    rows = rng.choice([1, 3, 64])
    table = tables.take(rows * COLUMNS * 8, high=high).view(np.int64).reshape(rows, COLUMNS)
    state = new_state()
    state[FILLED], state[ROWS], state[LONGEST] = len(raw), rows, rng.choice([100, 1 << 20])
    state[MAGIC] = 0x53
    loops.split(state, buffer, table)
    found = table[: state[3]]
    if found.size and rng.random() < 0.5:
        cell = rng.randrange(found.size)
        found.reshape(-1)[cell] = rng.choice([-1, 0, 26, 2**31, 2**62, rng.randrange(-(2**63), 2**63), len(raw)])
    records, size = room_for(found, len(raw))
    offsets = places.take((records + 1) * 8, high=high).view(np.int64)
    out = target.take(size, high=high)
    state = new_state()
    state[FILLED], state[ROWS], state[LONGEST], state[EXPECTED] = len(raw), len(found), 1 << 20, 0
    loops.encode(state, buffer, found, offsets, out)
    made = [_record(rng, number) for number in range(rng.randrange(4))]
    disk = b"".join(Record.make(r.transaction_id, r.request_id, r.header, r.data).encode() for r in made)
    disk = _changed(rng, disk)
    brief = rng.random() < 0.3
    most = len(disk) // 40
    out = target.take(most * 28 if brief else max(0, len(disk) - 4 * min(most, 1)), high=high)
    state = new_state()
    state[POSITION], state[FILLED], state[ROWS], state[LONGEST] = 0, len(disk), most, 1 << 20
    loops.to_list(state, source.put(disk, high=high), out, brief=brief)


def _list_round(loops: Loops, rng: random.Random, memory: Sequence[Guarded]) -> None:
    """Requests, an index and records that may be right or anything, and bounds of any kind."""
    source, tables, places, target, heads, scratch = memory
    high = rng.random() < 0.5
    made = [_record(rng, number) for number in range(rng.randrange(1, 5))]
    disk = [Record.make(r.transaction_id, r.request_id, r.header, r.data).encode() for r in made]
    begins = [*accumulate(map(len, disk), initial=HEADER_SIZE)]
    kinds = (RecordListRequest, RecordHeaderListRequest, MaxTransactionIdRequest)
    requests = [
        encode(kind(7, 1, 3, *((rng.randrange(-1, 6), rng.randrange(-1, 5)) if kind is not kinds[2] else ())))
        for kind in rng.choices(kinds, weights=(5, 5, 1), k=rng.randrange(6))
    ]
    raw = b"".join(requests)
    table = tables.take(len(requests) * COLUMNS * 8, high=high).view(np.int64).reshape(len(requests), COLUMNS)
    state = new_state()
    state[FILLED], state[ROWS], state[LONGEST], state[MAGIC] = len(raw), len(requests), 100, 0x53
    INTERPRETED.split(state, raw, table)
    if table.size and rng.random() < 0.3:
        table.reshape(-1)[rng.randrange(table.size)] = rng.choice([-1, 0, 33, 2**62, len(raw), rng.getrandbits(40)])
    few, most, room = rng.choice([1, 4]), rng.choice([0, 300, 10_000]), rng.choice([0, 40, 400, 20_000])
    words = dict.fromkeys(OpenWord, 0) | {
        OpenWord.NEXT: len(made),
        OpenWord.SHOWN: len(made) + rng.choice([0, 0, -1, 2]),
        OpenWord.START: HEADER_SIZE,
        OpenWord.END: begins[-1] + rng.choice([0, 0, 7, -7]),
        OpenWord.SESSION: 7,
        OpenWord.FEW: few,
        OpenWord.MOST: most,
        OpenWord.ROOM: room,
    }
    content = bytes(HEADER_SIZE) + _changed(rng, b"".join(disk))
    index = bytes(HEADER_SIZE) + b"".join(struct.pack(">q", one) for one in begins[:-1])
    if rng.random() < 0.3:
        index = bytes(HEADER_SIZE) + _changed(rng, index[HEADER_SIZE:])
    with files_in_memory(content, index) as files:
        words[OpenWord.DATA], words[OpenWord.INDEX] = files
        segment = places.put(array("q", words.values()).tobytes(), high=high).view(np.int64)
        state = new_state()
        state[FILLED], state[ROWS], state[LONGEST] = len(raw), len(requests), 1 << 20
        loops.answer_lists(
            state,
            source.put(raw, high=high),
            table,
            segment,
            heads.put(list_heads(), high=high),
            scratch.take(SCRATCH_START + (few + 1) * ENTRY + most, high=high),
            target.take(room, high=high),
        )


def _client_stream(rng: random.Random, version: int) -> bytes:
    parts = []
    for number in range(rng.randrange(5)):
        data = _record(rng, number).data
        lists = [()] * version + [tuple(range(rng.choice([0, 0, 3])))]
        request_id = RequestId(rng.randrange(2), 2, rng.randrange(2), number)
        parts.append(client.encode(client.AppendRequest(request_id, 5, 6, data, crc32(data), *lists), version))
        parts += rng.choices(
            [b"", keep_alive(0x4C, version), client.encode(client.FlushRequest(request_id), version)], k=1
        )
    return b"".join(parts)


def _client_round(loops: Loops, rng: random.Random, memory: Sequence[Guarded]) -> None:
    source, tables, places, target, locks, records_of = memory
    high = rng.random() < 0.5
    version = rng.randrange(3)
    raw = _changed(rng, _client_stream(rng, version))
    rows = rng.choice([1, 3, 64])
    runs = tables.take(rows * RUN_COLUMNS * 8, high=high).view(np.int64).reshape(rows, RUN_COLUMNS)
    begins = places.take((rows + 1) * 8, high=high).view(np.int64)
    state = new_state()
    state[FILLED], state[ROWS], state[LONGEST] = len(raw), rows, rng.choice([100, 1 << 20])
    state[MAGIC], state[VERSION], state[LISTS], state[MOST_LOCKS] = 0x4C, version, version + 1, 100
    held = target.take(rows * HELD_COLUMNS * 8, high=high).view(np.int64).reshape(rows, HELD_COLUMNS)
    words = locks.take(len(raw) // 4 * 8, high=high).view(np.int64)
    loops.take_appends(
        state, source.put(raw, high=high), runs, begins, held, words, records_of.take(len(raw), high=high)
    )
    _lock_round(loops, rng, memory)
    made = [_record(rng, number) for number in range(rng.randrange(4))]
    records = bytearray(_changed(rng, pack_records(made)))
    state = new_state()
    state[FILLED], state[ROWS], state[EXPECTED] = len(records), len(made), 7
    place, feed = target.put(bytes(records), high=high), source.put(bytes(FEED_REQUEST_AT), high=high)
    loops.number_records(state, place, feed, tables.take(len(made) * FEED_FRAME, high=high))


def _lock_round(loops: Loops, rng: random.Random, memory: Sequence[Guarded]) -> None:
    """A table of slots, and appends whose rows may be right or anything."""
    high = rng.random() < 0.5
    slots, known, count = rng.choice([1, 7, 300]), rng.randrange(9), rng.randrange(1, 9)
    written, in_flight, appends, locks, verdicts = (
        place.take(8 * words, high=high).view(np.int64)
        for place, words in zip(memory, (slots, slots, HELD_COLUMNS * count, known, count), strict=False)
    )
    written[:], in_flight[:] = 0, rng.choice([0, 1])
    stops = sorted(rng.randrange(known + 1) for _ in range(count))
    if rng.random() < 0.3:
        stops[rng.randrange(count)] = rng.choice([-1, known + 1, 1 << 62])
    appends[:] = np.array([(rng.randrange(-2, 2), stop) for stop in stops], np.int64).ravel()
    locks[:] = [rng.randrange(3) << 32 | rng.getrandbits(32) for _ in range(known)]
    state = new_state()
    state[FILLED], state[ROWS] = count, rng.choice([1, count])
    state[LOCKS], state[SLOTS] = known, slots
    loops.admit_appends(state, written, in_flight, appends, locks, verdicts)
    state[EXPECTED] = rng.choice([-1, 5])
    loops.settle_appends(state, written, in_flight, appends, locks)


def main(ways: str, seed: int, rounds: int) -> None:
    memory = [Guarded(32) for _ in range(6)]
    for way in ways.split(","):
        loops = INTERPRETED if way == "interpreted" else wire_compiled.load(way)
        rng = random.Random(seed)
        for _ in range(rounds):
            _round(loops, rng, memory)
            _client_round(loops, rng, memory)
            _list_round(loops, rng, memory)
    print("nothing was touched")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
