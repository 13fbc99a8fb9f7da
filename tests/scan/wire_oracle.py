"""What the wire loops must tell, said once more with slices, `int.from_bytes` and `formats`, without a word of their code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from waltzctl.engine.scan.frames import SplitStatus
from waltzctl.engine.scan.transcode import FrameVerdict
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record
from waltzctl.formats.wire.frame import keep_alive
from waltzctl.formats.wire.records import WireRecord
from waltzctl.formats.wire.storage import AppendRequest, TruncateRequest, encode

MAGIC = 0x53


def number(data: bytes, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], signed=True)


def expected_split(
    data: bytes, start: int, end: int, *, version: int, max_body: int, rows: int
) -> tuple[list[list[int]], int, SplitStatus, int]:
    """Rows, consumed, status, needed."""
    found: list[list[int]] = []
    position = start
    while True:
        if len(found) == rows:
            return found, position, SplitStatus.FULL, 0
        if end - position < 7:
            return found, position, SplitStatus.MORE, 0
        if data[position] != MAGIC:
            return found, position, SplitStatus.MAGIC, 0
        if number(data, position + 1, 2) != version:
            return found, position, SplitStatus.VERSION, 0
        length = number(data, position + 3, 4)
        if not 0 <= length <= max_body:
            return found, position, SplitStatus.LENGTH, 0
        if 0 < length < 21:
            return found, position, SplitStatus.SHORT, 0
        if position + 7 + length > end:
            return found, position, SplitStatus.MORE, 7 + length
        body = data[position + 7 : position + 7 + length]
        if body:
            row = [position + 7, length, body[0], number(body, 1, 8), number(body, 9, 8), number(body, 17, 4), 0, 0]
            if body[0] == 6:
                row[6] = number(body, 21, 4) if length >= 26 else -1
                row[7] = int(body[-1] == 1)
            found.append(row)
        position += 7 + length


@dataclass(frozen=True)
class Encoded:
    frames: int
    verdict: FrameVerdict
    found: int
    records: list[bytes]


def records_of(body: bytes, count: int) -> list[tuple[int, bytes, bytes, int]] | None:
    """Id, 28 bytes of the record, data and its checksum, for each record; None for a body that is malformed."""
    if len(body) < 26 or count < 0:
        return None
    found = []
    position, last = 25, len(body) - 1
    for _ in range(count):
        if position + 36 > last:
            return None
        length = number(body, position + 28, 4)
        if length < 0 or position + 36 + length > last:
            return None
        head, data = body[position : position + 28], body[position + 32 : position + 32 + length]
        checksum = int.from_bytes(body[position + 32 + length : position + 36 + length])
        found.append((number(head, 0, 8), head, data, checksum))
        position += 36 + length
    return found if position == last else None


def expected_encode(data: bytes, table: Sequence[Sequence[int]], following: int, max_data_length: int) -> Encoded:
    done: list[bytes] = []
    for frames, row in enumerate(table):
        body, length, count = row[0], row[1], row[6]
        if body < 0 or length < 0 or body + length > len(data):
            return Encoded(frames, FrameVerdict.MALFORMED, -1, done)
        records = records_of(data[body : body + length], count)
        if records is None:
            return Encoded(frames, FrameVerdict.MALFORMED, -1, done)
        for place, (found, _, payload, _) in enumerate(records):
            if found != following + len(done) + place:
                return Encoded(frames, FrameVerdict.ORDER, found, done)
            if len(payload) > max_data_length:
                return Encoded(frames, FrameVerdict.TOO_LONG, found, done)
        for found, _, payload, checksum in records:
            if crc32(payload) != checksum:
                return Encoded(frames, FrameVerdict.DATA_CHECKSUM, found, done)
        for found, head, payload, _ in records:
            request_id = RequestId(*(number(head, place, 4) for place in (8, 12, 16, 20)))
            done.append(Record.make(found, request_id, number(head, 24, 4), payload).encode())
    return Encoded(len(table), FrameVerdict.DONE, -1, done)


def expected_list(
    disk: bytes, first: int, count: int, headers: bool, max_data_length: int
) -> tuple[int, bytes, int, FrameVerdict]:
    """Records, their bytes on the wire, how many bytes they took on disk, and the verdict."""
    made, position = b"", 0
    for place in range(count):
        if len(disk) - position < 40:
            return place, made, position, FrameVerdict.MALFORMED
        length = number(disk, position + 28, 4)
        if not 0 <= length <= len(disk) - position - 40:
            return place, made, position, FrameVerdict.MALFORMED
        record = disk[position : position + 40 + length]
        data, checksum = record[36:-4], record[32:36]
        if number(record, 0, 8) != first + place:
            return place, made, position, FrameVerdict.ORDER
        if length > max_data_length:
            return place, made, position, FrameVerdict.TOO_LONG
        if crc32(record[:-4]) != int.from_bytes(record[-4:]):
            return place, made, position, FrameVerdict.RECORD_CHECKSUM
        if crc32(data) != int.from_bytes(checksum):
            return place, made, position, FrameVerdict.DATA_CHECKSUM
        made += record[:28] if headers else record[:32] + data + checksum
        position += len(record)
    return count, made, position, FrameVerdict.DONE


def disk_form(record: WireRecord) -> bytes:
    return Record.make(record.transaction_id, record.request_id, record.header, record.data).encode()


LENGTHS = st.one_of(
    st.integers(0, 130),
    st.sampled_from([255, 256, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 8191, 8192, 16384, 70000]),
)
_INT = st.integers(-(2**31), 2**31 - 1)


@st.composite
def wire_records(draw: st.DrawFn, first: int, most: int = 5) -> tuple[WireRecord, ...]:
    count = draw(st.integers(0, most))
    made = []
    for place in range(count):
        data = draw(st.binary(min_size=1, max_size=9)) * 8000
        length = draw(LENGTHS)
        request_id = RequestId(*(draw(_INT) for _ in range(4)))
        made.append(WireRecord.make(first + place, request_id, draw(_INT), data[:length]))
    return tuple(made)


@st.composite
def append_streams(draw: st.DrawFn) -> tuple[bytes, int, tuple[WireRecord, ...]]:
    """Frames of appends that follow one another, the first id, and all records."""
    first = draw(st.sampled_from([0, 1, 998, 2**40, 2**63 - 200]))
    parts, records = [], []
    for sequence in range(draw(st.integers(0, 6))):
        chosen = draw(wire_records(first + len(records)))
        session, offline = draw(st.integers(-1, 2**63 - 1)), draw(st.booleans())
        parts.append(encode(AppendRequest(session, sequence, draw(_INT), chosen, offline)))
        records += chosen
    return b"".join(parts), first, tuple(records)


@st.composite
def mixed_streams(draw: st.DrawFn) -> bytes:
    """Frames of several kinds, keep-alives among them."""
    parts = []
    for place in range(draw(st.integers(0, 8))):
        kind = draw(st.integers(0, 3))
        if kind == 0:
            parts.append(keep_alive(MAGIC, 0))
        elif kind == 1:
            parts.append(encode(TruncateRequest(draw(_INT), place, 3, draw(_INT), draw(st.booleans()))))
        else:
            parts.append(encode(AppendRequest(7, place, 3, draw(wire_records(0, 3)), draw(st.booleans()))))
    return b"".join(parts)


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """The same with some bytes changed, cut out or put in."""
    raw = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        if not raw:
            break
        place = draw(st.integers(0, len(raw) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                raw[place] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del raw[place : place + draw(st.integers(1, 40))]
            case 2:
                raw[place:place] = draw(st.binary(max_size=10))
            case _:
                raw[place] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    return bytes(raw)
