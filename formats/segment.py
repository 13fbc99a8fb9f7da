"""Segment data file, index file and transaction record.

A data file ``<first id, 19 digits>.seg`` is a header of 128 bytes and records back to back, ids consecutive.  The index
file of the same name with ``.idx`` has the same header and one 8-byte offset for each record.  All integers are big-endian
and signed, checksums are CRC-32.

Record (40 + L bytes): transaction id 8, request id 16, transaction header 4, data length L 4, checksum of the data 4,
data L, checksum of everything before it 4.  The index entry of transaction t stands at 128 + 8 * (t - first id).

Sources: design document *On-Disk Data Structures*; checksum algorithm and coverage, file names: release 0.13.2.
"""

from __future__ import annotations

import functools
import re
import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from construct import Bytes, GreedyRange, Int32sb, Int32ub, Int64sb, Struct, this

from waltzctl.formats.adapters import Uuid
from waltzctl.formats.checksums import Buffer, crc32
from waltzctl.formats.request_id import REQUEST_ID_SCHEMA, RequestId
from waltzctl.formats.schema import compile_schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FORMAT_VERSION = 0
"""The only version of segment and index headers that exists."""

SEGMENT_HEADER_SCHEMA = Struct(
    "version" / Int32sb,
    "created" / Int64sb,
    "cluster_key" / Uuid,
    "partition" / Int32sb,
    "first_transaction_id" / Int64sb,
    "reserved" / Bytes(88),
)
"""Header of data and index files: 128 bytes.  `created`: milliseconds since 1970-01-01 UTC."""

RECORD_HEADER_SCHEMA = Struct(
    "transaction_id" / Int64sb,
    "request_id" / REQUEST_ID_SCHEMA,
    "header" / Int32sb,
    "data_length" / Int32sb,
    "data_checksum" / Int32ub,
)
"""The header of a record, before its data: 36 bytes."""

RECORD_SCHEMA = Struct(*RECORD_HEADER_SCHEMA.subcons, "data" / Bytes(this.data_length), "record_checksum" / Int32ub)
"""A whole record: 40 + data_length bytes."""

INDEX_ENTRY_SCHEMA = Struct("offset" / Int64sb)
"""Byte offset of a record in the data file."""

INDEX_FILE_SCHEMA = Struct("header" / SEGMENT_HEADER_SCHEMA, "entries" / GreedyRange(INDEX_ENTRY_SCHEMA))
SEGMENT_FILE_SCHEMA = Struct("header" / SEGMENT_HEADER_SCHEMA, "records" / GreedyRange(RECORD_SCHEMA))
CHECKSUM_SCHEMA = Struct("checksum" / Int32ub)

SEGMENT_HEADER = compile_schema(SEGMENT_HEADER_SCHEMA)
RECORD_HEADER = compile_schema(RECORD_HEADER_SCHEMA)
INDEX_ENTRY = compile_schema(INDEX_ENTRY_SCHEMA)
CHECKSUM = compile_schema(CHECKSUM_SCHEMA)

HEADER_SIZE = SEGMENT_HEADER.size
"""128: byte offset of the first record, and of the first index entry."""
RECORD_OVERHEAD = RECORD_HEADER.size + CHECKSUM.size
"""40: bytes of a record without its data."""
ENTRY_SIZE = INDEX_ENTRY.size
CHECKPOINT_INTERVAL = 1000
"""Transactions between two syncs of the index (release 0.13.2); ids k*1000 - 1 and below are durable in both files."""
MAX_DATA_LENGTH = 2**31 - 1

SEGMENT_SUFFIX = ".seg"
INDEX_SUFFIX = ".idx"
_NAME = re.compile(r"([0-9]{19})\.(seg|idx)")


@functools.lru_cache(maxsize=64)
def _cluster_key(key: bytes) -> uuid.UUID:
    """Cached, because the headers of a directory usually share one key, and making it is half the cost of decoding a header."""
    return uuid.UUID(bytes=key)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Header of a data or index file.  `created` is in milliseconds since 1970-01-01 UTC."""

    version: int
    created: int
    cluster_key: uuid.UUID
    partition: int
    first_transaction_id: int
    reserved: bytes = bytes(88)

    @classmethod
    def decode(cls, data: Buffer) -> SegmentHeader:
        """From the first 128 bytes of `data`.  Raises struct.error when there are fewer."""
        version, created, key, partition, first, reserved = SEGMENT_HEADER.struct.unpack_from(data)
        return cls(version, created, _cluster_key(key), partition, first, reserved)

    def placed(self, cluster_key: uuid.UUID, partition: int, first_transaction_id: int) -> SegmentHeader:
        """What a header with this time and these reserved bytes has to be in such a place."""
        return SegmentHeader(FORMAT_VERSION, self.created, cluster_key, partition, first_transaction_id, self.reserved)

    def encode(self) -> bytes:
        """128 bytes."""
        return SEGMENT_HEADER.struct.pack(
            self.version,
            self.created,
            self.cluster_key.bytes,
            self.partition,
            self.first_transaction_id,
            self.reserved,
        )


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A record without its data and checksums."""

    transaction_id: int
    request_id: RequestId
    header: int


@dataclass(frozen=True, slots=True)
class Record:
    """A transaction record.  Both checksums are the stored ones (unsigned); `data_checksum` came from the client."""

    transaction_id: int
    request_id: RequestId
    header: int
    data: bytes
    data_checksum: int
    record_checksum: int

    @classmethod
    def make(cls, transaction_id: int, request_id: RequestId, header: int, data: bytes) -> Record:
        """A record with both checksums computed.  Raises struct.error where a field does not fit."""
        data_checksum = crc32(data)
        head = pack_record_header(transaction_id, request_id, header, len(data), data_checksum)
        return cls(transaction_id, request_id, header, data, data_checksum, crc32(data, crc32(head)))

    @classmethod
    def decode(cls, data: Buffer) -> Record:
        """From exactly one record's bytes.  Checks lengths, not checksums.  Raises ValueError when they do not fit."""
        if len(data) < RECORD_OVERHEAD:
            raise ValueError(f"a record has at least {RECORD_OVERHEAD} bytes, here are {len(data)}")
        number, c, g, p, s, header, length, checksum = RECORD_HEADER.struct.unpack_from(data)
        if length != len(data) - RECORD_OVERHEAD:
            raise ValueError(f"data length {length} does not fit a record of {len(data)} bytes")
        body = bytes(data[RECORD_HEADER.size : RECORD_HEADER.size + length])
        (own,) = CHECKSUM.struct.unpack_from(data, RECORD_HEADER.size + length)
        return cls(number, RequestId(c, g, p, s), header, body, checksum, own)

    def encode(self) -> bytes:
        """40 + len(data) bytes, with the checksums as they are held."""
        head = pack_record_header(self.transaction_id, self.request_id, self.header, len(self.data), self.data_checksum)
        return head + self.data + CHECKSUM.struct.pack(self.record_checksum)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return RECORD_OVERHEAD + len(self.data)

    @property
    def data_ok(self) -> bool:
        """Whether the data agrees with its own checksum."""
        return crc32(self.data) == self.data_checksum

    @property
    def record_ok(self) -> bool:
        """Whether the record agrees with the record checksum."""
        return crc32(self.encode()[: -CHECKSUM.size]) == self.record_checksum


def pack_record_header(
    transaction_id: int, request_id: RequestId, header: int, data_length: int, data_checksum: int
) -> bytes:
    """The 36 bytes in front of the data."""
    return RECORD_HEADER.struct.pack(
        transaction_id,
        request_id.client,
        request_id.generation,
        request_id.partition,
        request_id.sequence,
        header,
        data_length,
        data_checksum,
    )


def encode_records(records: Iterable[Record]) -> tuple[bytes, list[int]]:
    """Records back to back, and each one's offset from the start of the result."""
    parts: list[bytes] = []
    offsets: list[int] = []
    position = 0
    for record in records:
        offsets.append(position)
        part = record.encode()
        parts.append(part)
        position += len(part)
    return b"".join(parts), offsets


def encode_entries(offsets: Sequence[int]) -> bytes:
    """Index entries, 8 bytes each, for byte offsets in the data file."""
    return struct.pack(f">{len(offsets)}{INDEX_ENTRY.fields[0].code}", *offsets)


def encode_offsets(offsets: npt.NDArray[np.int64]) -> bytes:
    """As `encode_entries`, of an array."""
    return offsets.astype(INDEX_ENTRY.dtype["offset"]).tobytes()


def decode_entries(raw: Buffer) -> npt.NDArray[np.int64]:
    """Byte offsets in the data file, from the whole index entries in `raw`; an incomplete last entry is ignored."""
    import numpy as np

    return np.frombuffer(raw, INDEX_ENTRY.dtype["offset"], len(raw) // ENTRY_SIZE).astype(np.int64)


def unpack_entries(raw: bytes | bytearray) -> tuple[int, ...]:
    """As `decode_entries`, of whole entries; faster for up to some dozens."""
    return struct.unpack(f">{len(raw) // ENTRY_SIZE}{INDEX_ENTRY.fields[0].code}", raw)


def entry_position(transaction_id: int, first_transaction_id: int) -> int:
    """Byte offset of a transaction's entry in the index file."""
    return HEADER_SIZE + ENTRY_SIZE * (transaction_id - first_transaction_id)


def segment_name(first_transaction_id: int) -> str:
    """Name of a data file.  Raises ValueError for a negative id."""
    if first_transaction_id < 0:
        raise ValueError(f"a segment cannot begin at transaction {first_transaction_id}")
    return f"{first_transaction_id:019d}{SEGMENT_SUFFIX}"


def index_name(first_transaction_id: int) -> str:
    """Name of an index file."""
    return segment_name(first_transaction_id)[: -len(SEGMENT_SUFFIX)] + INDEX_SUFFIX


def parse_name(name: str) -> tuple[int, str] | None:
    """First transaction id and suffix of a segment's or index's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    if not match or int(match[1]) >= 2**63:
        return None
    return int(match[1]), "." + match[2]
