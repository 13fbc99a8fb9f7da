"""Records in wire form, and the session of a partition.

On the wire a record's data precedes its checksum; on disk the checksum precedes the data, and the record checksum follows it.

Sources: design document *Storage protocol*; the local low-water mark and the algorithm of the checksum (CRC-32 of the data):
release 0.13.2.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from construct import Int32sb, Int32ub, Int64sb, Struct

from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import REQUEST_ID_SCHEMA, RequestId
from waltzctl.formats.schema import compile_schema
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.primitives import ByteArray, Limits, ListOf, MessageError, ValueOf, check_count

RequestIdValue = ValueOf(RequestId, REQUEST_ID_SCHEMA)
RECORD_HEADER_SCHEMA = Struct("transaction_id" / Int64sb, "request_id" / RequestIdValue, "header" / Int32sb)
"""A record header: 28 bytes."""
WIRE_RECORD_SCHEMA = Struct(*RECORD_HEADER_SCHEMA.subcons, "data" / ByteArray, "data_checksum" / Int32ub)
"""A record: 36 bytes and the data."""
SESSION_INFO_SCHEMA = Struct("session_id" / Int64sb, "low_water_mark" / Int64sb, "local_low_water_mark" / Int64sb)

WIRE_RECORD_HEADER = compile_schema(RECORD_HEADER_SCHEMA)
"""28 bytes: an element of a list of record headers."""
WIRE_RECORD_HEAD = compile_schema(Struct(*RECORD_HEADER_SCHEMA.subcons, "data_length" / Int32sb))
"""The part of a record before its data: 32 bytes."""
WIRE_RECORD_TAIL = compile_schema(Struct("data_checksum" / Int32ub))
"""The part of a record after its data: 4 bytes."""
SMALLEST_RECORD = WIRE_RECORD_HEAD.size + WIRE_RECORD_TAIL.size
"""36: bytes of a record without data."""


@dataclass(frozen=True, slots=True)
class WireRecord:
    """A record on the wire.  `data_checksum`: the CRC-32 of the data as the sender gave it, unsigned."""

    transaction_id: int
    request_id: RequestId
    header: int
    data: bytes
    data_checksum: int

    @classmethod
    def make(cls, transaction_id: int, request_id: RequestId, header: int, data: bytes) -> WireRecord:
        """A record with its checksum computed."""
        return cls(transaction_id, request_id, header, data, crc32(data))

    @property
    def data_ok(self) -> bool:
        """Whether the data agrees with its checksum."""
        return crc32(self.data) == self.data_checksum

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return SMALLEST_RECORD + len(self.data)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A partition's last session and its marks; all are -1 when there was no session."""

    session_id: int
    low_water_mark: int
    local_low_water_mark: int


RecordHeaderValue = ValueOf(RecordHeader, RECORD_HEADER_SCHEMA)
WireRecordValue = ValueOf(WireRecord, WIRE_RECORD_SCHEMA)
SessionInfoValue = ValueOf(SessionInfo, SESSION_INFO_SCHEMA)
RECORDS = "records"
RECORD_HEADERS = "record headers"
RecordList = ListOf(RECORDS, WireRecordValue, SMALLEST_RECORD, lambda limits: limits.max_records)
RecordHeaderList = ListOf(RECORD_HEADERS, RecordHeaderValue, WIRE_RECORD_HEADER.size, lambda limits: limits.max_records)


# ---- fast forms, derived from the schemas above ------------------------------------------------------------------------

_COUNT = struct.Struct(">i")
_HEADER = WIRE_RECORD_HEADER.struct
_HEAD = WIRE_RECORD_HEAD.struct
_TAIL = WIRE_RECORD_TAIL.struct


def pack_count(count: int) -> bytes:
    """The 4 bytes in front of a list."""
    return _COUNT.pack(count)


def unpack_count(what: str, body: memoryview, position: int, smallest: int, limit: int) -> int:
    """A count that fits the rest of the body and the limit.  Raises MessageError."""
    if position + _COUNT.size > len(body):
        raise MessageError(f"{what}: the count goes beyond the body of {len(body)} bytes")
    (count,) = _COUNT.unpack_from(body, position)
    check_count(what, count, limit, smallest, len(body) - position - _COUNT.size)
    return int(count)


def pack_record(record: WireRecord) -> bytes:
    """36 + len(data) bytes.  Raises struct.error where a field does not fit."""
    i = record.request_id
    head = _HEAD.pack(
        record.transaction_id, i.client, i.generation, i.partition, i.sequence, record.header, len(record.data)
    )
    return head + record.data + _TAIL.pack(record.data_checksum)


def pack_records(records: Iterable[WireRecord]) -> bytes:
    """Records back to back, without a count."""
    return b"".join(map(pack_record, records))


@dataclass(frozen=True, slots=True)
class PackedRecords:
    """Records in wire form, back to back.  `places`: the byte offset of each in `data`, then the end of the last one."""

    data: bytes
    places: Sequence[int]

    @classmethod
    def of(cls, records: Iterable[WireRecord]) -> PackedRecords:
        """Pack them.  Raises struct.error where a field does not fit."""
        packed = [pack_record(one) for one in records]
        return cls(b"".join(packed), [0, *accumulate(map(len, packed))])

    def __len__(self) -> int:
        return len(self.places) - 1

    def part(self, first: int, stop: int) -> PackedRecords:
        """The records with the indexes `first` to `stop` - 1."""
        begin, end = self.places[first], self.places[stop]
        return PackedRecords(self.data[begin:end], [place - begin for place in self.places[first : stop + 1]])

    def fitting(self, size: int) -> int:
        """The number of records, counted from the first, that fit into `size` bytes."""
        return max(bisect_right(self.places, self.places[0] + size) - 1, 0)

    def transaction_id(self, number: int) -> int:
        """The transaction id of the record with this index."""
        return int(_HEAD.unpack_from(self.data, self.places[number])[0])

    def request_id(self, number: int) -> RequestId:
        """The request id of the record with this index."""
        return RequestId(*_HEAD.unpack_from(self.data, self.places[number])[1:5])


def data_between(records: bytes, begin: int, end: int) -> tuple[bytes, int]:
    """Data and data checksum of the packed record in bytes `begin` to `end`."""
    tail = end - _TAIL.size
    (checksum,) = _TAIL.unpack_from(records, tail)
    return records[begin + _HEAD.size : tail], checksum


def unpack_record(body: memoryview, position: int, limits: Limits) -> tuple[WireRecord, int]:
    """The record at `position`, and the position after it.  Raises MessageError."""
    start = position + _HEAD.size
    if start > len(body):
        raise MessageError(f"a record at offset {position} goes beyond the body of {len(body)} bytes")
    transaction_id, client, generation, partition, sequence, header, length = _HEAD.unpack_from(body, position)
    check_count("byte array", length, limits.max_data, 1, len(body) - start)
    end = start + length
    if end + _TAIL.size > len(body):
        raise MessageError(f"a record at offset {position} goes beyond the body of {len(body)} bytes")
    (checksum,) = _TAIL.unpack_from(body, end)
    request_id = RequestId(client, generation, partition, sequence)
    return WireRecord(transaction_id, request_id, header, bytes(body[start:end]), checksum), end + _TAIL.size


def unpack_records(body: memoryview, position: int, limits: Limits) -> tuple[tuple[WireRecord, ...], int]:
    """A counted list of records at `position`, and the position after it.  Raises MessageError."""
    count = unpack_count(RECORDS, body, position, SMALLEST_RECORD, limits.max_records)
    position += _COUNT.size
    found = []
    for _ in range(count):
        record, position = unpack_record(body, position, limits)
        found.append(record)
    return tuple(found), position


def pack_record_header(header: RecordHeader) -> bytes:
    """28 bytes.  Raises struct.error where a field does not fit."""
    i = header.request_id
    return _HEADER.pack(header.transaction_id, i.client, i.generation, i.partition, i.sequence, header.header)


def pack_record_headers(headers: Iterable[RecordHeader]) -> bytes:
    """Record headers back to back, without a count."""
    return b"".join(map(pack_record_header, headers))


def unpack_record_header(body: memoryview, position: int) -> tuple[RecordHeader, int]:
    """The record header at `position`, and the position after it.  Raises MessageError."""
    end = position + _HEADER.size
    if end > len(body):
        raise MessageError(f"a record header at offset {position} goes beyond the body of {len(body)} bytes")
    transaction_id, client, generation, partition, sequence, header = _HEADER.unpack_from(body, position)
    return RecordHeader(transaction_id, RequestId(client, generation, partition, sequence), header), end


def unpack_record_headers(body: memoryview, position: int, limits: Limits) -> tuple[tuple[RecordHeader, ...], int]:
    """A counted list of record headers at `position`, and the position after it.  Raises MessageError."""
    count = unpack_count(RECORD_HEADERS, body, position, _HEADER.size, limits.max_records)
    begin = position + _COUNT.size
    end = begin + count * _HEADER.size
    found = tuple(
        RecordHeader(transaction_id, RequestId(client, generation, partition, sequence), header)
        for transaction_id, client, generation, partition, sequence, header in _HEADER.iter_unpack(body[begin:end])
    )
    return found, end
