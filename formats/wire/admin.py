"""Messages of a storage node's admin port (magic A), codec versions 0 and 1.

Every body begins with type and sequence number.  Version 0 is the release's.  Version 1 is ours, from the design documents: it
has their Partition Read Request and Partition Write Request (one partition and a toggle each) in place of version 0's
PartitionAvailableRequest, as types 4 and 5, and besides types 15 and 16, which tell where a record is on disk.  All else is as in
version 0.  A released client offers version 0 only.

Sources: design document *Storage protocol* (types 4 and 5 of version 1); types 15 and 16 are ours; everything else:
release 0.13.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from construct import Int8ub, Int32sb, Int64sb, Struct

from waltzctl.formats.adapters import Uuid
from waltzctl.formats.checksums import Buffer
from waltzctl.formats.schema import compile_schema
from waltzctl.formats.wire.codec import FastForm, Message, MessageCodec
from waltzctl.formats.wire.failure import Failure, FailureValue
from waltzctl.formats.wire.frame import Magic, frame_header
from waltzctl.formats.wire.primitives import (
    DEFAULT_LIMITS,
    Boolean,
    Limits,
    ListOf,
    MessageError,
    Text,
    most_partitions,
    pair_of,
)
from waltzctl.formats.wire.records import (
    RecordList,
    SessionInfo,
    SessionInfoValue,
    WireRecord,
    pack_count,
    pack_records,
    unpack_records,
)

if TYPE_CHECKING:
    import uuid

ADMIN_VERSIONS = (0, 1)
"""Versions of the codec that exist, in ascending order, as a Hello of ours names them."""

PREFIX_SCHEMA = Struct("type" / Int8ub, "sequence" / Int64sb)
PREFIX = compile_schema(PREFIX_SCHEMA)
"""The first 9 bytes of every body."""
OPEN_SEQUENCE = -1
"""Sequence number of an open request and of its response."""

PARTITION_SCHEMA = Struct("partition" / Int32sb)
PARTITION = compile_schema(PARTITION_SCHEMA)
PartitionList = ListOf("partitions", Int32sb, 4, most_partitions)
STATUS_SCHEMA = Struct("partition" / Int32sb, "available" / Boolean)
StatusList = ListOf("statuses", pair_of(STATUS_SCHEMA), 5, most_partitions)


@dataclass(frozen=True, slots=True)
class _AdminMessage:
    """The field that every message begins with."""

    sequence: int


@dataclass(frozen=True, slots=True)
class SuccessResponse(_AdminMessage):
    """Done, for all partitions of the request."""

    TYPE: ClassVar[int] = 1
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class FailureResponse(_AdminMessage):
    """Not done, and why."""

    TYPE: ClassVar[int] = 2
    FIELDS: ClassVar[Any] = Struct("failure" / FailureValue)
    failure: Failure


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Asks whether these are the node's cluster key and number of partitions."""

    TYPE: ClassVar[int] = 3
    FIELDS: ClassVar[Any] = Struct("cluster_key" / Uuid, "num_partitions" / Int32sb)
    cluster_key: uuid.UUID
    num_partitions: int
    sequence: int = OPEN_SEQUENCE


@dataclass(frozen=True, slots=True)
class PartitionAvailableRequest(_AdminMessage):
    """Switch reads and writes of these partitions on or off together (version 0 only)."""

    TYPE: ClassVar[int] = 4
    FIELDS: ClassVar[Any] = Struct("partitions" / PartitionList, "available" / Boolean)
    partitions: tuple[int, ...]
    available: bool


@dataclass(frozen=True, slots=True)
class PartitionReadRequest(_AdminMessage):
    """Switch reads of one partition on or off (version 1 only)."""

    TYPE: ClassVar[int] = 4
    FIELDS: ClassVar[Any] = Struct("partition" / Int32sb, "on" / Boolean)
    partition: int
    on: bool


@dataclass(frozen=True, slots=True)
class PartitionWriteRequest(_AdminMessage):
    """Switch writes of one partition on or off (version 1 only)."""

    TYPE: ClassVar[int] = 5
    FIELDS: ClassVar[Any] = Struct("partition" / Int32sb, "on" / Boolean)
    partition: int
    on: bool


@dataclass(frozen=True, slots=True)
class PartitionAssignmentRequest(_AdminMessage):
    """Assign these partitions to the node, or take them away, with or without their files."""

    TYPE: ClassVar[int] = 6
    FIELDS: ClassVar[Any] = Struct("partitions" / PartitionList, "assigned" / Boolean, "delete_files" / Boolean)
    partitions: tuple[int, ...]
    assigned: bool
    delete_files: bool = False


@dataclass(frozen=True, slots=True)
class RecordListRequest(_AdminMessage):
    """Asks for records from this transaction on, without the checks of the data port."""

    TYPE: ClassVar[int] = 7
    FIELDS: ClassVar[Any] = Struct("partition" / Int32sb, "first_transaction_id" / Int64sb, "max_count" / Int32sb)
    partition: int
    first_transaction_id: int
    max_count: int


@dataclass(frozen=True, slots=True)
class RecordListResponse(_AdminMessage):
    """Consecutive records, perhaps none."""

    TYPE: ClassVar[int] = 8
    FIELDS: ClassVar[Any] = Struct("partition" / Int32sb, "records" / RecordList)
    partition: int
    records: tuple[WireRecord, ...]


@dataclass(frozen=True, slots=True)
class LastSessionInfoRequest(_AdminMessage):
    """Asks for the last session and its marks, without the checks of the data port."""

    TYPE: ClassVar[int] = 9
    FIELDS: ClassVar[Any] = Struct("partition" / Int32sb)
    partition: int


@dataclass(frozen=True, slots=True)
class LastSessionInfoResponse(_AdminMessage):
    """The last session and its marks."""

    TYPE: ClassVar[int] = 10
    FIELDS: ClassVar[Any] = Struct("partition" / Int32sb, "info" / SessionInfoValue)
    partition: int
    info: SessionInfo


@dataclass(frozen=True, slots=True)
class MetricsRequest(_AdminMessage):
    """Asks for the node's metrics."""

    TYPE: ClassVar[int] = 11
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class MetricsResponse(_AdminMessage):
    """The node's metrics as a JSON text."""

    TYPE: ClassVar[int] = 12
    FIELDS: ClassVar[Any] = Struct("json" / Text)
    json: str


@dataclass(frozen=True, slots=True)
class AssignedPartitionStatusRequest(_AdminMessage):
    """Asks for the assigned partitions."""

    TYPE: ClassVar[int] = 13
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class AssignedPartitionStatusResponse(_AdminMessage):
    """Assigned partitions, each with whether it can be read and written."""

    TYPE: ClassVar[int] = 14
    FIELDS: ClassVar[Any] = Struct("statuses" / StatusList)
    statuses: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class RecordPlaceRequest(_AdminMessage):
    """Asks where a record is in the node's files (version 1 only)."""

    TYPE: ClassVar[int] = 15
    FIELDS: ClassVar[Any] = Struct("partition" / Int32sb, "transaction_id" / Int64sb)
    partition: int
    transaction_id: int


@dataclass(frozen=True, slots=True)
class RecordPlaceResponse(_AdminMessage):
    """The record's segment, by the first transaction in its name, and its byte offset there; both -1: there is no such record."""

    TYPE: ClassVar[int] = 16
    FIELDS: ClassVar[Any] = Struct("partition" / Int32sb, "segment" / Int64sb, "offset" / Int64sb)
    partition: int
    segment: int
    offset: int


AdminRequest = (
    OpenRequest
    | PartitionAvailableRequest
    | PartitionReadRequest
    | PartitionWriteRequest
    | PartitionAssignmentRequest
    | RecordListRequest
    | LastSessionInfoRequest
    | MetricsRequest
    | AssignedPartitionStatusRequest
    | RecordPlaceRequest
)
AdminResponse = (
    SuccessResponse
    | FailureResponse
    | RecordListResponse
    | LastSessionInfoResponse
    | MetricsResponse
    | AssignedPartitionStatusResponse
    | RecordPlaceResponse
)
AdminMessage = AdminRequest | AdminResponse
REQUEST_TYPES = frozenset(kind.TYPE for kind in get_args(AdminRequest))
"""Types that a client sends, in any version (types 5 and 15 in version 1 only)."""


# ---- codecs ------------------------------------------------------------------------------------------------------------


def _pack_list(message: RecordListResponse) -> bytes:
    return PARTITION.struct.pack(message.partition) + pack_count(len(message.records)) + pack_records(message.records)


def _unpack_list(body: memoryview, position: int, limits: Limits) -> tuple[dict[str, Any], int]:
    if position + PARTITION.size > len(body):
        raise MessageError(f"a field goes beyond the body of {len(body)} bytes")
    (partition,) = PARTITION.struct.unpack_from(body, position)
    records, position = unpack_records(body, position + PARTITION.size, limits)
    return {"partition": partition, "records": records}, position


def _codec(version: int, without: tuple[type[Message], ...]) -> MessageCodec:
    return MessageCodec(
        magic=Magic.ADMIN,
        version=version,
        prefix=PREFIX,
        messages=[kind for kind in get_args(AdminMessage) if kind not in without],
        fast={RecordListResponse: FastForm(_pack_list, _unpack_list)},
    )


CODECS: tuple[MessageCodec, ...] = (
    _codec(0, without=(PartitionReadRequest, PartitionWriteRequest, RecordPlaceRequest, RecordPlaceResponse)),
    _codec(1, without=(PartitionAvailableRequest,)),
)
"""By version."""


def encode(message: AdminMessage, version: int = 0) -> bytes:
    """The whole frame.  Raises ValueError where a field does not fit or the version has no such message."""
    return CODECS[version].encode(message)


def decode(body: Buffer, version: int = 0, *, limits: Limits = DEFAULT_LIMITS) -> AdminMessage:
    """The message in the body of a frame with the magic A.  Raises MessageError before it allocates more than `limits`."""
    message: AdminMessage = CODECS[version].decode(body, limits)
    return message


def record_list_response(sequence: int, partition: int, count: int, records: bytes, version: int = 0) -> list[bytes]:
    """A whole frame in pieces, `records` being one of them as it is.  Raises ValueError above 2^31 - 1 bytes."""
    prefix = PREFIX.struct.pack(RecordListResponse.TYPE, sequence)
    body = prefix + PARTITION.struct.pack(partition) + pack_count(count)
    header = frame_header(Magic.ADMIN, version, len(body) + len(records))
    return [part for part in (header + body, records) if part]
