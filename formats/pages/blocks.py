"""Files of a page store's write-ahead log: records cut into fragments that never cross a block.

A file ``log_{number}_{level}`` is a sequence of blocks of 32,768 bytes, the last of which may be short.  A block holds fragments,
one behind another; where less than a header is left in it, zeros follow up to its end.  Integers are little-endian.

======  =========================  ===================================================================================
offset  what                       meaning
======  =========================  ===================================================================================
0       checksum, 8 bytes          CRC-32C of everything behind it: length, type, log number and payload; the upper four
                                   bytes are zero
8       length, 2 bytes            bytes of the payload
10      type, 1 byte               5 a whole record (Full), 6 the first, 7 a middle, 8 the last fragment of one
11      log number, 4 bytes        that of the file, so that what stood in its place before is never taken for its own
15      payload
======  =========================  ===================================================================================

A record longer than its block's rest is cut: a First, Middles, a Last.  Exactly a header of room takes a First without payload.
The checksum covers the length too: with it alone a reader could be led past records that are whole.

Types 1 to 4 are the same four in a header without log number (11 bytes).  They are read and never written.

Zeros behind the last byte that was written are room for fragments to come, and the file is read as if it ended before them.

A record that is equal to the one in front of it, byte by byte, is its copy and says nothing anew: a store may write each record
twice, so that one that is damaged is read all the same.

`read_log` takes a whole file and never fails: it returns the records that are whole and, for each place that is not, a fault.
Behind a fault it looks for the next fragment that proves itself, and it never joins fragments across a fault.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from construct import Int8ul, Int16ul, Int32ul, Int64ul, Struct

from waltzctl.formats.checksums import Buffer, crc32c
from waltzctl.formats.schema import compile_schema

BLOCK_SIZE = 32_768
"""Bytes of a block."""

FRAGMENT_HEADER_SCHEMA = Struct("checksum" / Int64ul, "length" / Int16ul, "type" / Int8ul, "log_number" / Int32ul)
PLAIN_HEADER_SCHEMA = Struct("checksum" / Int64ul, "length" / Int16ul, "type" / Int8ul)
FRAGMENT_HEADER = compile_schema(FRAGMENT_HEADER_SCHEMA)
PLAIN_HEADER = compile_schema(PLAIN_HEADER_SCHEMA)
COVERED_FROM = FRAGMENT_HEADER.offset_of("length")
"""Where in a fragment the bytes begin that its checksum covers."""
LAST_LOG_NUMBER = 2**32 - 1

_HEADER, _PLAIN = FRAGMENT_HEADER.struct, PLAIN_HEADER.struct
_NUMBER = FRAGMENT_HEADER.offset_of("log_number")
_COVERED = compile_schema(Struct("length" / Int16ul, "type" / Int8ul, "log_number" / Int32ul)).struct
_CHECKSUM = compile_schema(Struct("checksum" / Int64ul)).struct


class FragmentType(enum.IntEnum):
    """What a fragment is; the types of headers without log number are four lower."""

    ZERO = 0
    FULL = 5
    FIRST = 6
    MIDDLE = 7
    LAST = 8


_PLAIN_BELOW = 4
_BEGINS = (FragmentType.FULL, FragmentType.FIRST)


class FaultKind(enum.Enum):
    """What is wrong with a place of a log; the value says it."""

    HEADER_CUT = "the file ends within a fragment's header"
    BODY_CUT = "the file ends within a fragment"
    LENGTH = "a fragment's length leads out of its block"
    CHECKSUM = "a fragment's checksum is wrong"
    OTHER_LOG = "a fragment of another log stands here"
    ZEROS = "zeros stand where a fragment should"
    TYPE = "a fragment is of an unknown type"
    NO_FIRST = "a record's first fragment is missing"
    NO_LAST = "a record's last fragment is missing"
    TRAILER = "the end of a block is not zero"
    DATA = "data that was written with the record is not there"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record that is whole.  `offset` is that of its first fragment, `end` that behind its last one, in bytes in the file.

    `is_copy`: it is equal to the whole record in front of it.
    """

    offset: int
    end: int
    payload: bytes
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class LogFault:
    """Bytes `offset` to `end` that are no part of a whole record.

    `torn`: no record begins behind them, so that a write that was interrupted explains them: a write is one record, and it is
    made durable before the next one begins.
    """

    offset: int
    end: int
    kind: FaultKind
    torn: bool = False


@dataclass(frozen=True, slots=True)
class ReadLog:
    """What a file of a log holds, in the order of the file.

    `end`: behind the last whole record; 0: there is none.  `size`: behind the last byte that was written, in bytes; `end` where
    nothing is wrong behind it.
    """

    records: tuple[LogRecord, ...]
    faults: tuple[LogFault, ...]
    size: int

    @property
    def end(self) -> int:
        """Offset behind the last whole record."""
        return self.records[-1].end if self.records else 0


def fragment(kind: FragmentType, payload: Buffer, log_number: int) -> bytes:
    """One fragment with its header."""
    covered = _COVERED.pack(len(payload), kind, log_number)
    return _CHECKSUM.pack(crc32c(payload, crc32c(covered))) + covered + bytes(payload)


def cut_record(payload: Buffer, position: int, log_number: int) -> bytes:
    """A record as it is written at byte `position` of a file, with the zeros in front of it that end the block."""
    view, parts, begun = memoryview(payload), [], False
    while True:
        room = BLOCK_SIZE - position % BLOCK_SIZE
        if room < FRAGMENT_HEADER.size:
            parts.append(bytes(room))
            position += room
            continue
        taken = view[: room - FRAGMENT_HEADER.size]
        view = view[len(taken) :]
        if begun:
            kind = FragmentType.MIDDLE if view else FragmentType.LAST
        else:
            kind = FragmentType.FIRST if view else FragmentType.FULL
        parts.append(fragment(kind, taken, log_number))
        position += FRAGMENT_HEADER.size + len(taken)
        begun = True
        if not view:
            return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _Fragment:
    offset: int
    end: int
    kind: FragmentType
    payload: memoryview


def _fragment_at(data: memoryview, offset: int, log_number: int) -> _Fragment | FaultKind:
    """What stands at `offset`, where a header has room in the block."""
    block_end = offset - offset % BLOCK_SIZE + BLOCK_SIZE
    if len(data) - offset < PLAIN_HEADER.size:
        return FaultKind.HEADER_CUT if any(data[offset:]) else FaultKind.ZEROS
    checksum, length, kind = _PLAIN.unpack_from(data, offset)
    if kind == FragmentType.ZERO and length == 0 and checksum == 0:
        return FaultKind.ZEROS
    plain = 0 < kind <= FragmentType.LAST - _PLAIN_BELOW
    if not plain and kind not in FragmentType.__members__.values():
        return FaultKind.TYPE
    start = offset + (PLAIN_HEADER.size if plain else FRAGMENT_HEADER.size)
    if start > len(data):
        return FaultKind.HEADER_CUT
    if start + length > block_end:
        return FaultKind.LENGTH
    if start + length > len(data):
        return FaultKind.BODY_CUT
    if kind == FragmentType.ZERO or crc32c(data[offset + COVERED_FROM : start + length]) != checksum:
        return FaultKind.CHECKSUM
    if not plain and _HEADER.unpack_from(data, offset)[3] != log_number:
        return FaultKind.OTHER_LOG
    return _Fragment(offset, start + length, FragmentType(kind + _PLAIN_BELOW * plain), data[start : start + length])


def _next_place(offset: int) -> int:
    """Where a fragment may stand at or behind `offset`: in the next block where this one has no room for a header."""
    room = BLOCK_SIZE - offset % BLOCK_SIZE
    return offset if room >= FRAGMENT_HEADER.size else offset + room


def _next_fragment(data: memoryview, offset: int, log_number: int) -> int:
    """Offset of the first fragment from `offset` on that proves itself, or the end of the file."""
    number = log_number.to_bytes(4, "little")
    raw = data.obj if isinstance(data.obj, bytes) else bytes(data)
    block = (
        -(-offset // BLOCK_SIZE) * BLOCK_SIZE
    )  # where the number is damaged, or there is none, blocks begin with fragments
    place = raw.find(number, offset + _NUMBER)
    while place >= 0 or block < len(raw):
        found = place - _NUMBER if place >= 0 else len(raw)
        if block <= found:
            found, block = block, block + BLOCK_SIZE
        else:
            place = raw.find(number, place + 1)
        if found >= len(raw):
            break
        if BLOCK_SIZE - found % BLOCK_SIZE >= FRAGMENT_HEADER.size and isinstance(
            _fragment_at(data, found, log_number), _Fragment
        ):
            return found
    return len(raw)


def _walk(data: memoryview, log_number: int) -> Iterator[_Fragment | LogFault]:
    """Fragments and faults from the first byte to the last."""
    offset = 0
    while offset < len(data):
        place = min(_next_place(offset), len(data))
        if any(data[offset:place]):
            yield LogFault(offset, place, FaultKind.TRAILER)
        if place >= len(data):
            break
        found = _fragment_at(data, place, log_number)
        if isinstance(found, _Fragment):
            yield found
            offset = found.end
        else:
            offset = _next_fragment(data, place + 1, log_number)
            yield LogFault(place, offset, found)


def read_log(data: bytes, log_number: int) -> ReadLog:
    """Every whole record of a file, and every fault."""
    records: list[LogRecord] = []
    faults: list[LogFault] = []
    begun = 0  # records whose first fragment is there; a fault in front of one of them is not the end
    starts: list[int] = []  # for each fault, how many records had begun before it
    open_parts: list[_Fragment] = []
    written = 0  # behind the last fragment, which may end with zeros

    def fault(one: LogFault) -> None:
        faults.append(one)
        starts.append(begun)

    def drop_open() -> None:
        if open_parts:
            fault(LogFault(open_parts[0].offset, open_parts[-1].end, FaultKind.NO_LAST))
            open_parts.clear()

    for one in _walk(memoryview(data), log_number):
        if isinstance(one, LogFault):
            drop_open()
            fault(one)
            continue
        written = one.end
        if one.kind in _BEGINS:
            drop_open()
            begun += 1
            open_parts.append(one)
        elif not open_parts:
            fault(LogFault(one.offset, one.end, FaultKind.NO_FIRST))
            continue
        else:
            open_parts.append(one)
        if one.kind in (FragmentType.FULL, FragmentType.LAST):
            payload = b"".join(part.payload for part in open_parts)
            is_copy = bool(records) and records[-1].payload == payload
            records.append(LogRecord(open_parts[0].offset, one.end, payload, is_copy))
            open_parts.clear()
    drop_open()
    size = max(written, len(data.rstrip(b"\0")))
    judged = (
        LogFault(one.offset, min(one.end, size), one.kind, torn=before == begun)
        for one, before in zip(faults, starts, strict=True)
        if one.offset < size
    )
    return ReadLog(tuple(records), tuple(sorted(judged, key=lambda one: one.offset)), size)
