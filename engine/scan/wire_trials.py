"""Self-test of the wire loops: generated input, valid and damaged, and all results of the loops for it (`answers`)."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np

from waltzctl.engine.scan.kernel import made_up_record
from waltzctl.engine.scan.wire_layout import (
    APPEND_TYPE,
    BYTES,
    BYTES_END_COLUMN,
    CLIENT_LOCKS_AT,
    COLUMNS,
    COUNT,
    DATA_LENGTH_AT,
    DISK_HEAD,
    ENTRY,
    EXPECTED,
    EXPECTED_COLUMN,
    FEED_FRAME,
    FEED_REQUEST_AT,
    FILLED,
    FUNCTION,
    GROUP_COLUMNS,
    GROUPS,
    HEAD,
    HELD_COLUMNS,
    INDEX_HEADER,
    LISTS,
    LOCK_BITS,
    LOCK_MASK,
    LOCKS,
    LONGEST,
    MAGIC,
    MOST_LOCKS,
    OPEN_WORDS,
    POSITION,
    READ,
    RECORDS_COLUMN,
    RECORDS_END_COLUMN,
    RESULT,
    ROW,
    ROWS,
    RUN_COLUMNS,
    RUNS,
    SCRATCH_START,
    SLOTS,
    STOP_COLUMN,
    TABLES,
    TAKEN,
    VERSION,
    WORD,
    FrameColumn,
    OpenWord,
)
from waltzctl.engine.scan.wire_loops import INTERPRETED, State, new_state
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import CHECKSUM, INDEX_ENTRY
from waltzctl.formats.wire.client import AppendRequest, encode
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic
from waltzctl.formats.wire.storage import (
    PREFIX,
    MaxTransactionIdRequest,
    RecordHeaderListRequest,
    RecordListRequest,
    RecordRequest,
    StorageMessage,
    list_heads,
)
from waltzctl.formats.wire.storage import encode as encode_message

if TYPE_CHECKING:
    from waltzctl.engine.scan.wire_code import Loops

_LENGTHS = (0, 1, 3, 4, 7, 8, 31, 32, 33, 63, 64, 65, 100, 255, 511, 512, 513, 1023, 4095, 4096, 4097, 9001)
_LETTER, _VERSION = 0x53, 1
_IN_FRAMES = (0, 2, 4, 6, 7, 40, 60, 65, 97, 220, -1, -3, -9000)
_ON_DISK = (0, 7, 29, 33, 36, 50, -1, -8000, -12000)
_IN_APPENDS = (0, 1, 2, 6, 7, 8, 14, 20, 32, 35, 36, 39, 44, 47, 60, 95, 96, 130, 400, 500, 520)
"""Offsets in the generated frames, records and appends of the bytes that are damaged, one after the other."""


def _wire_record(transaction_id: int, length: int) -> bytes:
    disk = made_up_record(transaction_id, length)
    return disk[:HEAD] + disk[DISK_HEAD:-WORD] + disk[HEAD:DISK_HEAD]


def _append(sequence: int, records: list[bytes]) -> bytes:
    prefix = PREFIX.struct.pack(APPEND_TYPE, -7, sequence, 3)
    body = prefix + COUNT.struct.pack(len(records)) + b"".join(records) + bytes([sequence & 1])
    return FRAME_HEADER.struct.pack(_LETTER, _VERSION, len(body)) + body


def _stream() -> bytes:
    frames, following = [], 0
    for sequence, length in enumerate(_LENGTHS):
        records = [_wire_record(following + place, length) for place in range(sequence % 4)]
        following += len(records)
        frames.append(_append(sequence, records))
    frames.insert(3, FRAME_HEADER.struct.pack(_LETTER, _VERSION, 0))
    return b"".join(frames)


def _of_other_data() -> bytes:
    """A record with a right record checksum and a wrong data checksum."""
    head = bytearray(made_up_record(0, 0)[:DISK_HEAD])
    head[-1] ^= 1
    return bytes(head) + CHECKSUM.struct.pack(crc32(head))


def answers(loops: Loops) -> list[Any]:
    """All results of these loops for generated input, valid and damaged; equal for all correct implementations."""
    results: list[Any] = []
    good = _stream()
    tables = [_split(loops, good, rows, results) for rows in (1, 5, 64)]
    for place in _IN_FRAMES:
        data = bytearray(good)
        data[place] ^= 4
        _encode(loops, data, _split(loops, data, 64, results), results)
        _encode(loops, data, tables[-1], results)
        _encode_groups(loops, data, tables[-1], 5, results)
    for rows in (1, 3, 64):
        _encode_groups(loops, good, tables[-1], rows, results)
    _encode(loops, good, tables[-1], results)
    _encode(loops, good, tables[-1], results, max(_LENGTHS) - 1)
    _encode(loops, good, tables[0], results)
    for cell in range(0, tables[-1].size, 7):
        table = tables[-1].copy()
        table.reshape(-1)[cell] += (-1) ** cell * 5
        _encode(loops, good, table, results)
    disk = b"".join(made_up_record(place, length) for place, length in enumerate(_LENGTHS))
    for place, change in ((0, 0), *((place, 1) for place in _ON_DISK)):
        data = bytearray(disk)
        data[place] ^= change
        for brief in (False, True):
            _list(loops, data, brief, results)
    _list(loops, disk[:-1], False, results)
    _list(loops, disk, False, results, max(_LENGTHS) - 1)
    _list(loops, _of_other_data(), False, results)
    _answers_to_clients(loops, results)
    _lock(loops, results)
    if hasattr(os, "memfd_create"):  # without it there is no preadv2 either, and `answer_lists` answers nothing
        _answer_lists(loops, results)
    return results


def _answers_to_clients(loops: Loops, results: list[Any]) -> None:
    """Appends in three versions of the protocol: damaged in turn, truncated, and beyond the limits; then `number_records`."""
    for version in (0, 1, 2):
        frames = [_client_append(number, version) for number in range(len(_LENGTHS))]
        frames.insert(5, FRAME_HEADER.struct.pack(Magic.CLIENT, version, 0))
        good = b"".join(frames)
        for rows in (1, 4, 64):
            _take(loops, good, version, rows, results)
        for place in _IN_APPENDS:
            data = bytearray(good)
            data[place] ^= 4
            _take(loops, data, version, 64, results)
        for count in (3, -1, 1 << 30):
            _take(loops, _with_locks(frames[1], count), version, 64, results)
        _take(loops, good[:-1], version, 64, results)
        _take(loops, good, version, 64, results, longest=4200)
        _take(loops, good, version, 64, results, most_locks=1)
    records = b"".join(_wire_record(0, length) for length in _LENGTHS)
    for first in (0, 77, 1 << 40):
        _number(loops, bytearray(records), len(_LENGTHS), first, results)
    for wrong in (records[:-1], records[:HEAD] + b"\xff" + records[HEAD + 1 :], _longer(records)):
        _number(loops, bytearray(wrong), len(_LENGTHS), 5, results)


def _client_append(number: int, version: int) -> bytes:
    """An append of one of two clients to one of two partitions; every fifth one has locks."""
    data = bytes(place * 7 & 0xFF for place in range(_LENGTHS[number]))
    request_id = RequestId(number // 3 % 2, -5, number // 4 % 2, number)
    locks = ((1, -2, 3)[: 1 + number // 5 % 3],) * (version + 1) if number % 5 == 4 else ()
    return encode(AppendRequest(request_id, number - 3, 70 - number, data, crc32(data), *locks), version)


def _with_locks(frame: bytes, count: int) -> bytes:
    """An append whose count of the first list of locks is replaced by `count`."""
    changed = bytearray(frame)
    COUNT.struct.pack_into(changed, FRAME_HEADER.size + CLIENT_LOCKS_AT, count)
    return bytes(changed)


def _longer(records: bytes) -> bytes:
    """The records, with a data length of the first one that reaches beyond the end."""
    changed = bytearray(records)
    COUNT.struct.pack_into(changed, DATA_LENGTH_AT, len(records))
    return bytes(changed)


def _take(
    loops: Loops,
    data: bytes | bytearray,
    version: int,
    rows: int,
    results: list[Any],
    longest: int = 100_000,
    most_locks: int = 100,
) -> None:
    state = new_state()
    state[FILLED], state[ROWS], state[LONGEST], state[MAGIC] = len(data), rows, longest, Magic.CLIENT
    state[VERSION], state[LISTS], state[MOST_LOCKS] = version, version + 1, most_locks
    runs, places = np.zeros((rows, RUN_COLUMNS), np.int64), np.zeros(rows + 1, np.int64)
    held, locks = np.zeros((rows, HELD_COLUMNS), np.int64), np.zeros(len(data) // WORD, np.int64)
    out = np.zeros(len(data), np.uint8)
    loops.take_appends(state, data, runs, places, held, locks, out)
    found = runs[: state[RUNS]].tolist(), places[: state[TAKEN] + 1].tolist(), out[: state[BYTES]].tobytes()
    results.append((_words(state), *found, held[: state[TAKEN]].tolist(), locks[: state[LOCKS]].tolist()))


def _lock(loops: Loops, results: list[Any]) -> None:
    """Appends with up to three locks of any kind, admitted in pieces to a table of few slots, and some aborted; bad tables."""
    words = array("q", [number // 2 % 3 << LOCK_BITS | (number * 2654435761 & LOCK_MASK) for number in range(120)])
    marks, counts = [number * 5 % 23 - 2 for number in range(64)], [number % 4 for number in range(64)]
    for slots in (1, 5, 97):
        written, in_flight = array("q", range(slots)), array("q", bytes(8 * slots))
        for first in range(0, 64, 7):
            piece = slice(first, first + 9)
            rows = zip(marks[piece], accumulate(counts[piece]), strict=True)
            appends, locks = array("q", chain.from_iterable(rows)), words[sum(counts[:first]) :]
            state = new_state()
            state[FILLED], state[ROWS], state[LOCKS], state[SLOTS] = len(marks[piece]), 6, len(locks), slots
            state[EXPECTED] = 15 if first % 3 else 3  # above most marks, and below most
            verdicts = array("q", bytes(8 * 9))
            status = loops.admit_appends(state, written, in_flight, appends, locks, verdicts)
            results.append((status, _words(state), [*written], [*in_flight], [*verdicts]))
            if first % 2:  # of the others something stays in flight
                continue
            state[EXPECTED] = first * 3 - 1
            status = loops.settle_appends(state, written, in_flight, appends, locks)
            results.append((status, _words(state), [*written], [*in_flight]))
    appends = array("q", chain.from_iterable(zip(marks, accumulate(counts), strict=True)))
    for known, slots in ((5, 3), (len(words), 0)):
        state = new_state()
        state[FILLED], state[ROWS], state[LOCKS], state[SLOTS] = 20, 20, known, slots
        arrays = (array("q", bytes(24)), array("q", bytes(24)), appends, words)
        status = loops.admit_appends(state, *arrays, array("q", bytes(8 * 20)))
        results.append((status, _words(state), [*arrays[1]], loops.settle_appends(state, *arrays), _words(state)))
    backwards = array("q", [0, 3, 0, 1])
    state = new_state()
    state[FILLED], state[ROWS], state[LOCKS], state[SLOTS] = 2, 2, 3, 3
    arrays = (array("q", bytes(24)), array("q", bytes(24)), backwards, words)
    results.append((loops.admit_appends(state, *arrays, array("q", bytes(16))), loops.settle_appends(state, *arrays)))


def _number(loops: Loops, records: bytearray, rows: int, first: int, results: list[Any]) -> None:
    state = new_state()
    state[FILLED], state[ROWS], state[EXPECTED] = len(records), rows, first
    out = bytearray(rows * FEED_FRAME)
    status = loops.number_records(state, records, bytes(range(FEED_REQUEST_AT)), out)
    results.append((status, _words(state), bytes(records), bytes(out)))


def _split(loops: Loops, data: bytes | bytearray, rows: int, results: list[Any]) -> Any:
    state = new_state()
    state[FILLED], state[ROWS], state[LONGEST] = len(data), rows, 100_000
    state[MAGIC], state[VERSION] = _LETTER, _VERSION
    table = np.zeros((rows, COLUMNS), np.int64)
    status = loops.split(state, data, table)
    results.append((status, _words(state), table.tolist()))
    return table


def _encode(
    loops: Loops, data: bytes | bytearray, table: Any, results: list[Any], longest: int = max(_LENGTHS)
) -> None:
    state = new_state()
    state[FILLED], state[ROWS], state[LONGEST], state[EXPECTED] = len(data), len(table), longest, 0
    out, offsets = np.zeros(2 * len(data), np.uint8), np.zeros(4 * len(_LENGTHS), np.int64)
    status = loops.encode(state, data, table, offsets, out)
    results.append((status, _words(state), offsets.tobytes(), out[: state[BYTES]].tobytes()))


def _encode_groups(loops: Loops, data: bytes | bytearray, table: Any, rows: int, results: list[Any]) -> None:
    """`encode_groups` with groups of `rows` rows; every fourth group is given a wrong first id."""
    state = new_state()
    stops = [*range(rows, len(table), rows), len(table)]
    before = np.cumsum([0, *table[:, RECORDS_COLUMN]])
    groups = np.zeros((len(stops), GROUP_COLUMNS), np.int64)
    groups[:, STOP_COLUMN] = stops
    groups[:, EXPECTED_COLUMN] = before[[0, *stops[:-1]]] + (np.arange(len(stops)) % 4 == 1)
    state[FILLED], state[GROUPS], state[LONGEST] = len(data), len(stops), max(_LENGTHS)
    out, offsets = np.zeros(2 * len(data), np.uint8), np.zeros(4 * len(_LENGTHS), np.int64)
    loops.encode_groups(state, data, table, groups, offsets, out)
    records, size = int(groups[-1, RECORDS_END_COLUMN]), int(groups[-1, BYTES_END_COLUMN])
    results.append((_words(state), groups.tolist(), offsets[: records + 1].tobytes(), out[:size].tobytes()))


def _list(loops: Loops, data: bytes | bytearray, brief: bool, results: list[Any], longest: int = max(_LENGTHS)) -> None:
    state = new_state()
    state[POSITION], state[FILLED], state[ROWS], state[LONGEST] = 0, len(data), len(_LENGTHS), longest
    out = np.zeros(len(data), np.uint8)
    status = loops.to_list(state, data, out, brief=brief)
    results.append((status, _words(state), out.tobytes()))


_KNOWN, _FOLLOWING = 2, 20
"""Records of the generated segment that may be read: the first, and the one after the last."""
_FEW = 12
_NEARLY = (0, 1, 5, 9)
"""Numbers of the requests after which the limit on the size of all answers is exact, or one byte too small."""


def _answer_lists(loops: Loops, results: list[Any]) -> None:
    """`answer_lists` with requests that can and cannot be answered, with a damaged record or index, and with limits."""
    disk = [made_up_record(place, length) for place, length in enumerate(_LENGTHS)]
    begins = [INDEX_HEADER, *accumulate(map(len, disk), initial=INDEX_HEADER)][1:]
    whole, entries = bytes(INDEX_HEADER) + b"".join(disk), INDEX_ENTRY.struct.pack
    index = bytes(INDEX_HEADER) + b"".join(map(entries, begins[:-1]))
    words = {
        OpenWord.FIRST: _KNOWN,
        OpenWord.NEXT: _FOLLOWING,
        OpenWord.SHOWN: _FOLLOWING,
        OpenWord.START: begins[_KNOWN],
        OpenWord.END: begins[_FOLLOWING],
        OpenWord.SESSION: 7,
        OpenWord.FEW: _FEW,
        OpenWord.MOST: 12_000,
        OpenWord.ROOM: 60_000,
    }
    good: list[StorageMessage] = [
        kind(7, number, 3, first, count)
        for number, (first, count) in enumerate(((2, 1), (2, 12), (8, 3), (17, 1), (18, 2), (19, 1), (16, 4)))
        for kind in (RecordListRequest, RecordHeaderListRequest)
    ]
    others: list[StorageMessage] = [
        *(RecordListRequest(7, 1, 3, first, count) for first, count in ((1, 1), (20, 1), (3, 0), (3, -1), (3, 13))),
        RecordListRequest(8, 1, 3, 2, 1),
        RecordRequest(7, 1, 3, 2),
        MaxTransactionIdRequest(7, 1, 3),
    ]
    with files_in_memory(whole, index) as files:
        for messages in (good, good[3:], *([*good[:3], one, *good[3:]] for one in others)):
            _answer(loops, files, messages, words, results)
        for word, value in (
            *((OpenWord.SHOWN, 22), (OpenWord.SHOWN, 19), (OpenWord.FLAGS, 1 << 30), (OpenWord.SEGMENT, 1)),
            *((OpenWord.MOST, sum(map(len, disk[16:20])) - step) for step in (0, 1)),
            *((OpenWord.START, begins[_KNOWN] + 1), (OpenWord.START, begins[_KNOWN] - 1), (OpenWord.END, begins[18])),
            *((OpenWord.END, begins[_FOLLOWING] + 5), (OpenWord.END, begins[_FOLLOWING] - 5), (OpenWord.END, 1 << 40)),
        ):
            _answer(loops, files, good, words | {word: value}, results)
            _answer(loops, files, good[8:], words | {word: value}, results)
        for number in _NEARLY:
            size = _answer(loops, files, good[: number + 1], words, results)
            for step in (0, 1):
                _answer(loops, files, good[: number + 2], words | {OpenWord.ROOM: size - step}, results)
        for column in (FrameColumn.BODY, FrameColumn.LENGTH):
            for change in (-1, 1, -(1 << 40), 1 << 40):
                _answer(loops, files, good[:3], words, results, change=(column, change))
        _answer(loops, files, good[:3], words, results, longest=len(disk[2]))
        _answer(loops, files, good[:3], words, results, row=1)
    for place in (*range(begins[_KNOWN], begins[_KNOWN] + len(disk[2]), 5), begins[16] + 60):
        with files_in_memory(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :], index) as files:
            _answer(loops, files, good, words, results)
    for number in (_KNOWN, 3, 14, 17, 18):
        at = INDEX_HEADER + number * ENTRY
        for entry in (0, begins[number] + 1, begins[number + 2], -1, 1 << 62):
            with files_in_memory(whole, index[:at] + entries(entry) + index[at + ENTRY :]) as files:
                _answer(loops, files, good, words, results)
                _answer(loops, files, good[4:], words, results)
    with files_in_memory(whole[: begins[18] + 9], index) as files:
        _answer(loops, files, good, words, results)
    with files_in_memory(whole, index[: INDEX_HEADER + 18 * ENTRY + 1]) as files:
        _answer(loops, files, good, words, results)


@contextlib.contextmanager
def files_in_memory(data: bytes, index: bytes) -> Iterator[tuple[int, int]]:
    """Descriptors of two files in memory."""
    with contextlib.ExitStack() as stack:
        descriptors = []
        for content in (data, index):
            descriptor = os.memfd_create("waltzctl-trial")
            stack.callback(os.close, descriptor)
            os.pwrite(descriptor, content, 0)
            descriptors.append(descriptor)
        yield descriptors[0], descriptors[1]


def _answer(
    loops: Loops,
    files: tuple[int, int],
    messages: Sequence[StorageMessage],
    words: dict[OpenWord, int],
    results: list[Any],
    *,
    row: int = 0,
    change: tuple[int, int] = (0, 0),
    longest: int = max(_LENGTHS),
) -> int:
    """Bytes of the answers.  `change`: in which column of the second row's what is added."""
    frames = b"".join(map(encode_message, messages))
    state = new_state()
    state[FILLED], state[ROWS], state[LONGEST], state[MAGIC] = len(frames), len(messages), 100_000, _LETTER
    table = np.zeros((len(messages), COLUMNS), np.int64)
    INTERPRETED.split(state, frames, table)
    table[1:2, change[0]] += change[1]
    segment = array("q", bytes(8 * OPEN_WORDS))
    segment[OpenWord.DATA], segment[OpenWord.INDEX] = files
    for word, value in words.items():
        segment[word] = value
    state = new_state()
    state[FILLED], state[ROWS], state[ROW], state[LONGEST] = len(frames), len(messages), row, longest
    scratch = bytearray(SCRATCH_START + (_FEW + 1) * ENTRY + words[OpenWord.MOST])
    out = bytearray(max(0, words[OpenWord.ROOM]))
    status = loops.answer_lists(state, frames, table, segment, list_heads(), scratch, out)
    results.append((status, _words(state), bytes(out[: state[BYTES]])))
    return state[BYTES]


def _words(state: State) -> list[int]:
    """The words of a state, without those that are set for compiled loops only."""
    return [word for place, word in enumerate(state) if place not in (TABLES, FUNCTION, RESULT, READ)]
