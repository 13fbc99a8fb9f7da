"""Files of a page store's write-ahead log: records cut into fragments that never cross a block.

A file ``log_{number}_{level}`` is a sequence of blocks of 32,768 bytes; the last one may be shorter.  A block holds fragments
back to back; if less than a fragment header is left at its end, that rest is zeros (the *trailer*).  Integers are little-endian.

======  =========================  ===================================================================================
offset  what                       meaning
======  =========================  ===================================================================================
0       checksum, 8 bytes          CRC-32C of all that follows: length, type, log number and payload; the upper four
                                   bytes are zero
8       length, 2 bytes            bytes of the payload
10      type, 1 byte               5 a whole record (Full), 6 the first, 7 a middle, 8 the last fragment of one
11      log number, 4 bytes        that of the file; it shows that a fragment is not left over from an earlier file
15      payload
======  =========================  ===================================================================================

A record that does not fit into the rest of its block is cut into fragments: a First, Middles, a Last.  If exactly a header fits
into the rest, the First has no payload.  The checksum covers the length too: a damaged length that was not detected could make a
reader skip intact records.

Types 1 to 4 are the same four in a header without log number (11 bytes).  They are read and never written.

Zeros at the end of a file are preallocated space; the file is read as if it ended before them.

A record that equals the record before it, byte by byte, is a copy and has no effect: a store may write each record twice, so that
one damaged copy loses nothing.

`read_log` reads a whole file and never fails: it returns the intact records and, for each range of bytes that belongs to none, a
fault.  After a fault it looks for the next fragment with a right checksum, and it never joins fragments across a fault.
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
"""Offset in a fragment of the first byte that its checksum covers."""
LAST_LOG_NUMBER = 2**32 - 1

_HEADER, _PLAIN = FRAGMENT_HEADER.struct, PLAIN_HEADER.struct
_NUMBER = FRAGMENT_HEADER.offset_of("log_number")
_COVERED = compile_schema(Struct("length" / Int16ul, "type" / Int8ul, "log_number" / Int32ul)).struct
_CHECKSUM = compile_schema(Struct("checksum" / Int64ul)).struct


class FragmentType(enum.IntEnum):
    """The type of a fragment; the types of headers without log number are lower by four."""

    ZERO = 0
    FULL = 5
    FIRST = 6
    MIDDLE = 7
    LAST = 8


_PLAIN_BELOW = 4
_BEGINS = (FragmentType.FULL, FragmentType.FIRST)


class FaultKind(enum.Enum):
    """What is wrong with a range of a log; the value is the text for people."""

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
    """An intact record.  `offset`: of its first fragment; `end`: after its last one, both in bytes of the file.

    `is_copy`: it equals the intact record before it.
    """

    offset: int
    end: int
    payload: bytes
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class LogFault:
    """Bytes `offset` to `end` that are not part of an intact record.

    `torn`: no record begins after them, so an interrupted write explains them: a write is one record, which is durable before the
    next write begins.
    """

    offset: int
    end: int
    kind: FaultKind
    torn: bool = False


@dataclass(frozen=True, slots=True)
class ReadLog:
    """The contents of a log file, in the order of the file.

    `size`: bytes of the file without preallocated space; equal to `end` when there is no fault after the last intact record.
    """

    records: tuple[LogRecord, ...]
    faults: tuple[LogFault, ...]
    size: int

    @property
    def end(self) -> int:
        """Offset after the last intact record; 0: there is none."""
        return self.records[-1].end if self.records else 0


def fragment(kind: FragmentType, payload: Buffer, log_number: int) -> bytes:
    """One fragment with its header."""
    covered = _COVERED.pack(len(payload), kind, log_number)
    return _CHECKSUM.pack(crc32c(payload, crc32c(covered))) + covered + bytes(payload)


def cut_record(payload: Buffer, position: int, log_number: int) -> bytes:
    """The bytes to write at byte `position` of a file for a record: its fragments, and the trailers of blocks that they end."""
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
    """The fragment at `offset`, or what is wrong with it; a header must have room in the block there."""
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
    """The first offset from `offset` on where a fragment may begin: the next block if this one has no room for a header."""
    room = BLOCK_SIZE - offset % BLOCK_SIZE
    return offset if room >= FRAGMENT_HEADER.size else offset + room


def _next_fragment(data: memoryview, offset: int, log_number: int) -> int:
    """Offset of the first intact fragment from `offset` on, or the end of the file.

    Candidates are places where the log number occurs and, for fragments without one, the beginnings of blocks.
    """
    number = log_number.to_bytes(4, "little")
    raw = data.obj if isinstance(data.obj, bytes) else bytes(data)
    block = -(-offset // BLOCK_SIZE) * BLOCK_SIZE
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
    """All fragments and faults of a file, in order."""
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
    """All intact records and all faults of a file."""
    records: list[LogRecord] = []
    faults: list[LogFault] = []
    begun = 0  # records with an intact first fragment so far; a fault with such a record after it is not torn
    starts: list[int] = []  # for each fault, the value of `begun` at that place
    open_parts: list[_Fragment] = []  # fragments of a record whose last one is still to come
    written = 0  # offset after the last intact fragment, whose payload may end with zeros

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
