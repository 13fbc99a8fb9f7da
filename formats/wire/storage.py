"""Messages of a storage node's data port (magic S), codec version 0, the only one.

Every body begins with type, session id, sequence number and partition.  A response repeats those of its request; the sequence
number identifies the request.  `offline` marks a request of a recovery tool; the four requests that read records have no such
flag and always count as online.

`encode` and `decode` use forms derived from the schemas.  For hot paths there are functions that take records already in wire
form: `success_frames`, `record_list_response` and `record_header_list_response` for a node, `append_request` for a client.

Sources: design document *Storage protocol*; numbers of the types, `offline`, `present`, the local low-water mark and the number
of partitions in an open request: release 0.13.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from construct import Int8ub, Int32sb, Int64sb, Struct

from waltzctl.formats.adapters import Uuid
from waltzctl.formats.checksums import Buffer
from waltzctl.formats.schema import compile_schema
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.codec import FastForm, MessageCodec
from waltzctl.formats.wire.failure import Failure, FailureValue
from waltzctl.formats.wire.frame import FRAME_HEADER_SCHEMA, Magic, frame_header
from waltzctl.formats.wire.primitives import DEFAULT_LIMITS, Boolean, Limits, MessageError, optional
from waltzctl.formats.wire.records import (
    RecordHeaderList,
    RecordHeaderValue,
    RecordList,
    SessionInfo,
    SessionInfoValue,
    WireRecord,
    WireRecordValue,
    pack_count,
    pack_record,
    pack_record_header,
    pack_record_headers,
    pack_records,
    unpack_record,
    unpack_record_header,
    unpack_record_headers,
    unpack_records,
)

if TYPE_CHECKING:
    import uuid

    import numpy as np

__all__ = ["Failure", "Limits", "MessageError", "RecordHeader", "SessionInfo", "WireRecord"]

STORAGE_VERSION = 0
"""Version of the codec, in every frame after the Hello."""
STORAGE_VERSIONS = (STORAGE_VERSION,)

PREFIX_SCHEMA = Struct("type" / Int8ub, "session_id" / Int64sb, "sequence" / Int64sb, "partition" / Int32sb)
PREFIX = compile_schema(PREFIX_SCHEMA)
"""The first 21 bytes of every body."""
OPEN_SEQUENCE = -1
"""Session, sequence number and partition of an open request and of its response."""


@dataclass(frozen=True, slots=True)
class _PartitionMessage:
    """The fields that every message of a partition begins with."""

    session_id: int
    sequence: int
    partition: int


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Asks whether these are the node's cluster key and number of partitions."""

    TYPE: ClassVar[int] = 1
    FIELDS: ClassVar[Any] = Struct("cluster_key" / Uuid, "num_partitions" / Int32sb)
    cluster_key: uuid.UUID
    num_partitions: int
    session_id: int = OPEN_SEQUENCE
    sequence: int = OPEN_SEQUENCE
    partition: int = OPEN_SEQUENCE


@dataclass(frozen=True, slots=True)
class LastSessionInfoRequest(_PartitionMessage):
    """Asks for the last session and its marks."""

    TYPE: ClassVar[int] = 2
    FIELDS: ClassVar[Any] = Struct("offline" / Boolean)
    offline: bool = False


@dataclass(frozen=True, slots=True)
class LastSessionInfoResponse(_PartitionMessage):
    """The last session and its marks."""

    TYPE: ClassVar[int] = 3
    FIELDS: ClassVar[Any] = Struct("info" / SessionInfoValue)
    info: SessionInfo


@dataclass(frozen=True, slots=True)
class SetLowWaterMarkRequest(_PartitionMessage):
    """Begin a session at this low-water mark."""

    TYPE: ClassVar[int] = 4
    FIELDS: ClassVar[Any] = Struct("low_water_mark" / Int64sb, "offline" / Boolean)
    low_water_mark: int
    offline: bool = False


@dataclass(frozen=True, slots=True)
class TruncateRequest(_PartitionMessage):
    """Keep transactions up to this one; answered by MaxTransactionIdResponse."""

    TYPE: ClassVar[int] = 5
    FIELDS: ClassVar[Any] = Struct("transaction_id" / Int64sb, "offline" / Boolean)
    transaction_id: int
    offline: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest(_PartitionMessage):
    """Append these records."""

    TYPE: ClassVar[int] = 6
    FIELDS: ClassVar[Any] = Struct("records" / RecordList, "offline" / Boolean)
    records: tuple[WireRecord, ...]
    offline: bool = False


@dataclass(frozen=True, slots=True)
class SuccessResponse(_PartitionMessage):
    """Done."""

    TYPE: ClassVar[int] = 7
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class FailureResponse(_PartitionMessage):
    """Not done, and why."""

    TYPE: ClassVar[int] = 8
    FIELDS: ClassVar[Any] = Struct("failure" / FailureValue)
    failure: Failure


@dataclass(frozen=True, slots=True)
class RecordHeaderRequest(_PartitionMessage):
    """Asks for one record's header."""

    TYPE: ClassVar[int] = 9
    FIELDS: ClassVar[Any] = Struct("transaction_id" / Int64sb)
    transaction_id: int


@dataclass(frozen=True, slots=True)
class RecordHeaderResponse(_PartitionMessage):
    """The header, or None where there is no such record."""

    TYPE: ClassVar[int] = 10
    FIELDS: ClassVar[Any] = Struct("header" / optional(RecordHeaderValue))
    header: RecordHeader | None


@dataclass(frozen=True, slots=True)
class RecordRequest(_PartitionMessage):
    """Asks for one record."""

    TYPE: ClassVar[int] = 11
    FIELDS: ClassVar[Any] = Struct("transaction_id" / Int64sb)
    transaction_id: int


@dataclass(frozen=True, slots=True)
class RecordResponse(_PartitionMessage):
    """The record, or None where there is no such record."""

    TYPE: ClassVar[int] = 12
    FIELDS: ClassVar[Any] = Struct("record" / optional(WireRecordValue))
    record: WireRecord | None


@dataclass(frozen=True, slots=True)
class MaxTransactionIdRequest(_PartitionMessage):
    """Asks for the last transaction."""

    TYPE: ClassVar[int] = 13
    FIELDS: ClassVar[Any] = Struct("offline" / Boolean)
    offline: bool = False


@dataclass(frozen=True, slots=True)
class MaxTransactionIdResponse(_PartitionMessage):
    """The last transaction, -1 where there is none; acknowledged or not."""

    TYPE: ClassVar[int] = 14
    FIELDS: ClassVar[Any] = Struct("transaction_id" / Int64sb)
    transaction_id: int


LIST_RANGE_SCHEMA = Struct("first_transaction_id" / Int64sb, "max_count" / Int32sb)
LIST_RANGE = compile_schema(LIST_RANGE_SCHEMA)
"""The range of a list request: first transaction id and largest number of records."""


@dataclass(frozen=True, slots=True)
class RecordHeaderListRequest(_PartitionMessage):
    """Asks for record headers from this transaction on."""

    TYPE: ClassVar[int] = 15
    FIELDS: ClassVar[Any] = LIST_RANGE_SCHEMA
    first_transaction_id: int
    max_count: int


@dataclass(frozen=True, slots=True)
class RecordHeaderListResponse(_PartitionMessage):
    """Consecutive record headers, perhaps none."""

    TYPE: ClassVar[int] = 16
    FIELDS: ClassVar[Any] = Struct("headers" / RecordHeaderList)
    headers: tuple[RecordHeader, ...]


@dataclass(frozen=True, slots=True)
class RecordListRequest(_PartitionMessage):
    """Asks for records from this transaction on."""

    TYPE: ClassVar[int] = 17
    FIELDS: ClassVar[Any] = LIST_RANGE_SCHEMA
    first_transaction_id: int
    max_count: int


@dataclass(frozen=True, slots=True)
class RecordListResponse(_PartitionMessage):
    """Consecutive records, perhaps none."""

    TYPE: ClassVar[int] = 18
    FIELDS: ClassVar[Any] = Struct("records" / RecordList)
    records: tuple[WireRecord, ...]


StorageRequest = (
    OpenRequest
    | LastSessionInfoRequest
    | SetLowWaterMarkRequest
    | TruncateRequest
    | AppendRequest
    | RecordHeaderRequest
    | RecordRequest
    | MaxTransactionIdRequest
    | RecordHeaderListRequest
    | RecordListRequest
)
StorageResponse = (
    LastSessionInfoResponse
    | SuccessResponse
    | FailureResponse
    | RecordHeaderResponse
    | RecordResponse
    | MaxTransactionIdResponse
    | RecordHeaderListResponse
    | RecordListResponse
)
StorageMessage = StorageRequest | StorageResponse
REQUEST_TYPES = frozenset(kind.TYPE for kind in get_args(StorageRequest))
"""Types that a client sends; a node need not decode the others to refuse them."""


# ---- fast forms --------------------------------------------------------------------------------------------------------

_FALSE, _TRUE = b"\x00", b"\x01"


def _boolean(body: memoryview, position: int) -> bool:
    if position >= len(body):
        raise MessageError(f"a field goes beyond the body of {len(body)} bytes")
    return body[position] == 1


def _pack_append(message: AppendRequest) -> bytes:
    offline = _TRUE if message.offline else _FALSE
    return pack_count(len(message.records)) + pack_records(message.records) + offline


def _unpack_append(body: memoryview, position: int, limits: Limits) -> tuple[dict[str, Any], int]:
    records, position = unpack_records(body, position, limits)
    return {"records": records, "offline": _boolean(body, position)}, position + 1


def _pack_header(message: RecordHeaderResponse) -> bytes:
    return _FALSE if message.header is None else _TRUE + pack_record_header(message.header)


def _unpack_header(body: memoryview, position: int, limits: Limits) -> tuple[dict[str, Any], int]:
    if not _boolean(body, position):
        return {"header": None}, position + 1
    header, end = unpack_record_header(body, position + 1)
    return {"header": header}, end


def _pack_one(message: RecordResponse) -> bytes:
    return _FALSE if message.record is None else _TRUE + pack_record(message.record)


def _unpack_one(body: memoryview, position: int, limits: Limits) -> tuple[dict[str, Any], int]:
    if not _boolean(body, position):
        return {"record": None}, position + 1
    record, end = unpack_record(body, position + 1, limits)
    return {"record": record}, end


def _unpack_list(body: memoryview, position: int, limits: Limits) -> tuple[dict[str, Any], int]:
    records, position = unpack_records(body, position, limits)
    return {"records": records}, position


def _unpack_headers(body: memoryview, position: int, limits: Limits) -> tuple[dict[str, Any], int]:
    headers, position = unpack_record_headers(body, position, limits)
    return {"headers": headers}, position


CODEC = MessageCodec(
    magic=Magic.STORAGE,
    version=STORAGE_VERSION,
    prefix=PREFIX,
    messages=get_args(StorageMessage),
    fast={
        AppendRequest: FastForm(_pack_append, _unpack_append),
        RecordHeaderResponse: FastForm(_pack_header, _unpack_header),
        RecordResponse: FastForm(_pack_one, _unpack_one),
        RecordHeaderListResponse: FastForm(
            lambda message: pack_count(len(message.headers)) + pack_record_headers(message.headers), _unpack_headers
        ),
        RecordListResponse: FastForm(
            lambda message: pack_count(len(message.records)) + pack_records(message.records), _unpack_list
        ),
    },
)


def encode(message: StorageMessage) -> bytes:
    """The whole frame.  Raises ValueError where a field does not fit."""
    return CODEC.encode(message)


def decode(body: Buffer, *, limits: Limits = DEFAULT_LIMITS) -> StorageMessage:
    """The message in the body of a frame with the magic S.  Raises MessageError before it allocates more than `limits`."""
    message: StorageMessage = CODEC.decode(body, limits)
    return message


# ---- many messages at once, and records already in wire form -------------------------------------------------------------

_SUCCESS = compile_schema(Struct(*FRAME_HEADER_SCHEMA.subcons, *PREFIX_SCHEMA.subcons))


def success_frames(
    session_ids: Sequence[int] | np.ndarray[Any, Any],
    sequences: Sequence[int] | np.ndarray[Any, Any],
    partitions: Sequence[int] | np.ndarray[Any, Any] | int,
) -> bytes:
    """Success responses back to back, whole frames, one for each sequence number."""
    import numpy as np

    rows = np.empty(len(sequences), _SUCCESS.dtype)
    rows["magic"], rows["version"], rows["length"] = CODEC.magic, STORAGE_VERSION, PREFIX.size
    rows["type"] = SuccessResponse.TYPE
    rows["session_id"], rows["sequence"], rows["partition"] = session_ids, sequences, partitions
    return rows.tobytes()


def _in_wire_form(
    kind: int, prefix: tuple[int, int, int], count: int, records: bytes, tail: bytes = b""
) -> list[bytes]:
    body = PREFIX.struct.pack(kind, *prefix) + pack_count(count)
    header = frame_header(CODEC.magic, STORAGE_VERSION, len(body) + len(records) + len(tail))
    return [part for part in (header + body, records, tail) if part]


def list_heads() -> bytes:
    """The first 8 bytes (header and type) of the frames of a record list and of a record header list, back to back.

    The length in them is a placeholder.
    """
    kinds = (RecordListResponse.TYPE, RecordHeaderListResponse.TYPE)
    return b"".join(frame_header(CODEC.magic, STORAGE_VERSION, PREFIX.size) + bytes([kind]) for kind in kinds)


def record_list_response(session_id: int, sequence: int, partition: int, count: int, records: bytes) -> list[bytes]:
    """A whole frame in pieces; `records`, in wire form, is one of them, uncopied.  Raises ValueError above 2^31 - 1 bytes."""
    return _in_wire_form(RecordListResponse.TYPE, (session_id, sequence, partition), count, records)


def record_header_list_response(
    session_id: int, sequence: int, partition: int, count: int, headers: bytes
) -> list[bytes]:
    """As `record_list_response`, for headers of 28 bytes each."""
    return _in_wire_form(RecordHeaderListResponse.TYPE, (session_id, sequence, partition), count, headers)


def append_request(
    session_id: int, sequence: int, partition: int, count: int, records: bytes, *, offline: bool = False
) -> list[bytes]:
    """A whole frame in pieces, from `count` records that are already in wire form.  Raises as `record_list_response`."""
    tail = _TRUE if offline else _FALSE
    return _in_wire_form(AppendRequest.TYPE, (session_id, sequence, partition), count, records, tail)
