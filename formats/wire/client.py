"""Messages between a client and a log server (magic L), codec versions 0 to 4.

Every body begins with a type and a request id.  A response has the request id of its request.  A transaction in a feed has that
of the append that made it, whichever client sent the append.  A request about the server itself has a `server_request_id`.

| version | adds |
|---|---|
| 0 | types 0 to 12; write locks |
| 1 | read locks in an append; types 13 and 14 |
| 2 | append locks in an append; types 15 to 20 |
| 3 | the state in a mount response; a boolean before, where a client that is ahead is told that the partition is not ready |
| 4 | types 21 and 22 |

A message that a version cannot express (locks that it does not know) is refused by `encode`.

Source: release 0.13.2; the design documents do not describe this protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, get_args

from construct import Adapter, If, Int8ub, Int32sb, Int32ub, Int64sb, Struct, this

from waltzctl.formats.checksums import Buffer, crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.schema import compile_schema
from waltzctl.formats.wire.codec import FastForm, MessageCodec
from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.message_forms import BeyondBodyError, DerivedForm
from waltzctl.formats.wire.primitives import (
    COUNT,
    DEFAULT_LIMITS,
    Boolean,
    ByteArray,
    Limits,
    ListOf,
    MessageError,
    NullableText,
    Text,
    most_partitions,
    pair_of,
)
from waltzctl.formats.wire.records import RequestIdValue

PREFIX_SCHEMA = Struct("type" / Int8ub, "request_id" / RequestIdValue)
PREFIX = compile_schema(PREFIX_SCHEMA)
"""The first 17 bytes of every body."""
UNKNOWN_HIGH_WATER_MARK = -(2**63)
"""The high-water mark in the response of a server that owns the partition and has not opened it yet."""


def server_request_id(client: int, partition: int = 0) -> RequestId:
    """The request id of a request about a server: no generation, no sequence number."""
    return RequestId(client, 0, partition, 0)


class MountState(IntEnum):
    """The server's answer to a mount request."""

    READY = 0
    NOT_READY = 1
    """The server does not own the partition, or has not opened it yet."""
    CLIENT_AHEAD = 2
    """The client has applied transactions that the log does not have."""


class _MountStateAdapter(Adapter):  # type: ignore[misc]  # construct carries no types
    def _decode(self, obj: int, context: Any, path: Any) -> MountState:
        try:
            return MountState(obj)
        except ValueError:
            raise MessageError(f"{obj} is no state of a mount") from None

    def _encode(self, obj: MountState, context: Any, path: Any) -> int:
        return int(obj)


class _ReadyAdapter(Adapter):  # type: ignore[misc]
    """The boolean that versions 0 to 2 have in place of the state: whether it is READY."""

    def _decode(self, obj: bool, context: Any, path: Any) -> MountState:
        return MountState.READY if obj else MountState.NOT_READY

    def _encode(self, obj: MountState, context: Any, path: Any) -> bool:
        return obj is MountState.READY


@dataclass(frozen=True, slots=True)
class TransactionData:
    """A transaction's data, with its CRC-32 as the server sent it, unsigned."""

    data: bytes
    checksum: int

    @property
    def data_ok(self) -> bool:
        """Whether the data agrees with its checksum."""
        return crc32(self.data) == self.checksum


@dataclass(frozen=True, slots=True)
class TransactionRefused:
    """The server's reason for sending no data.  None: it has an error without a text, which Java's may lack."""

    message: str | None


_OUTCOME_SCHEMA = Struct(
    "success" / Boolean,
    "data" / If(this.success, ByteArray),
    "checksum" / If(this.success, Int32ub),
    "message" / If(lambda outcome: not outcome.success, NullableText),
)


class _OutcomeAdapter(Adapter):  # type: ignore[misc]
    def _decode(self, obj: Any, context: Any, path: Any) -> TransactionData | TransactionRefused:
        return TransactionData(obj["data"], obj["checksum"]) if obj["success"] else TransactionRefused(obj["message"])

    def _encode(self, obj: TransactionData | TransactionRefused, context: Any, path: Any) -> dict[str, Any]:
        if isinstance(obj, TransactionData):
            return {"success": True, "data": obj.data, "checksum": obj.checksum, "message": None}
        return {"success": False, "data": None, "checksum": None, "message": obj.message}


_FOUND = compile_schema(Struct("transaction_id" / Int64sb, "success" / Boolean)).struct
_DATA = DerivedForm(Struct("data" / ByteArray, "checksum" / Int32ub))
_REFUSED = DerivedForm(Struct("message" / NullableText))


def _pack_outcome(message: TransactionDataResponse) -> bytes:
    outcome = message.outcome
    found = isinstance(outcome, TransactionData)
    return _FOUND.pack(message.transaction_id, found) + (_DATA if found else _REFUSED).pack(outcome)


def _unpack_outcome(body: memoryview, position: int, limits: Limits) -> tuple[dict[str, Any], int]:
    if position + _FOUND.size > len(body):
        raise BeyondBodyError
    transaction_id, found = _FOUND.unpack_from(body, position)
    success = found == 1
    values, end = (_DATA if success else _REFUSED).unpack(body, position + _FOUND.size, limits)
    outcome = TransactionData(**values) if success else TransactionRefused(**values)
    return {"transaction_id": transaction_id, "outcome": outcome}, end


_LockList = ListOf("list of locks", Int32sb, Int32sb.sizeof())
_PartitionList = ListOf("list of partitions", Int32sb, Int32sb.sizeof(), most_partitions)
_CONNECTED = Struct("address" / Text, "connected" / Boolean)
_HEALTHY = Struct("partition" / Int32sb, "healthy" / Boolean)


@dataclass(frozen=True, slots=True)
class _Message:
    """The field that every message begins with."""

    request_id: RequestId

    @property
    def sequence(self) -> int:
        """The request's sequence number; in a response, that of the request it answers."""
        return self.request_id.sequence


@dataclass(frozen=True, slots=True)
class MountRequest(_Message):
    """Asks for the transactions after the client's high-water mark, and for permission to append.  Its request id names the feed.

    `connection_sequence` grows with each connection of a client to a server, so that the server can tell the newest one.
    """

    TYPE: ClassVar[int] = 0
    FIELDS: ClassVar[Any] = Struct("client_high_water_mark" / Int64sb, "connection_sequence" / Int64sb)
    client_high_water_mark: int
    connection_sequence: int


@dataclass(frozen=True, slots=True)
class MountResponse(_Message):
    """The outcome of a mount; READY is sent after all transactions that were committed at the time of the request."""

    TYPE: ClassVar[int] = 1
    FIELDS: ClassVar[Any] = Struct("state" / _MountStateAdapter(Int32sb))
    state: MountState


@dataclass(frozen=True, slots=True)
class AppendRequest(_Message):
    """One transaction.  Locks are 32-bit hashes (`engine.server.locks`); `checksum` is the CRC-32 of the data, unsigned."""

    TYPE: ClassVar[int] = 2
    FIELDS: ClassVar[Any] = Struct(
        "client_high_water_mark" / Int64sb,
        "write_locks" / _LockList,
        "read_locks" / _LockList,
        "append_locks" / _LockList,
        "header" / Int32sb,
        "data" / ByteArray,
        "checksum" / Int32ub,
    )
    client_high_water_mark: int
    header: int
    data: bytes
    checksum: int
    write_locks: tuple[int, ...] = ()
    read_locks: tuple[int, ...] = ()
    append_locks: tuple[int, ...] = ()

    @property
    def data_ok(self) -> bool:
        """Whether the data agrees with its checksum."""
        return crc32(self.data) == self.checksum


APPEND_FRONT = compile_schema(Struct(*PREFIX_SCHEMA.subcons, AppendRequest.FIELDS.subcons[0]))
"""The body of an append up to its lists of locks."""


@dataclass(frozen=True, slots=True)
class FeedRequest(_Message):
    """Asks for further transactions after a high-water mark, for the mount with the same request id."""

    TYPE: ClassVar[int] = 3
    FIELDS: ClassVar[Any] = Struct("client_high_water_mark" / Int64sb)
    client_high_water_mark: int


@dataclass(frozen=True, slots=True)
class FeedData(_Message):
    """A committed transaction without its data.  Its request id is that of the append."""

    TYPE: ClassVar[int] = 4
    FIELDS: ClassVar[Any] = Struct("transaction_id" / Int64sb, "header" / Int32sb)
    transaction_id: int
    header: int


@dataclass(frozen=True, slots=True)
class FeedSuspended(_Message):
    """The server has sent as many transactions as one request allows; the client sends the next FeedRequest."""

    TYPE: ClassVar[int] = 5
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class TransactionDataRequest(_Message):
    """Asks for a transaction's data."""

    TYPE: ClassVar[int] = 6
    FIELDS: ClassVar[Any] = Struct("transaction_id" / Int64sb)
    transaction_id: int


@dataclass(frozen=True, slots=True)
class TransactionDataResponse(_Message):
    """The data, or why there is none."""

    TYPE: ClassVar[int] = 7
    FIELDS: ClassVar[Any] = Struct("transaction_id" / Int64sb, "outcome" / _OutcomeAdapter(_OUTCOME_SCHEMA))
    transaction_id: int
    outcome: TransactionData | TransactionRefused


@dataclass(frozen=True, slots=True)
class FlushRequest(_Message):
    """Asks for a response once every append sent before it is decided.  In the release its request id is that of the last one."""

    TYPE: ClassVar[int] = 8
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class FlushResponse(_Message):
    """The high-water mark when every append before the flush was decided."""

    TYPE: ClassVar[int] = 9
    FIELDS: ClassVar[Any] = Struct("high_water_mark" / Int64sb)
    high_water_mark: int


@dataclass(frozen=True, slots=True)
class LockFailure(_Message):
    """The append was refused.  `transaction_id`: that of the last transaction that set one of its locks, or a later one."""

    TYPE: ClassVar[int] = 10
    FIELDS: ClassVar[Any] = Struct("transaction_id" / Int64sb)
    transaction_id: int


@dataclass(frozen=True, slots=True)
class HighWaterMarkRequest(_Message):
    """Asks for the last committed transaction."""

    TYPE: ClassVar[int] = 11
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class HighWaterMarkResponse(_Message):
    """The last committed transaction; -1: none; `UNKNOWN_HIGH_WATER_MARK`: the partition is not open yet."""

    TYPE: ClassVar[int] = 12
    FIELDS: ClassVar[Any] = Struct("transaction_id" / Int64sb)
    transaction_id: int


@dataclass(frozen=True, slots=True)
class CheckStorageConnectivityRequest(_Message):
    """Asks the server whether it reaches the storage nodes of the assignment."""

    TYPE: ClassVar[int] = 13
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class CheckStorageConnectivityResponse(_Message):
    """Each node's ``host:port`` and whether it answered."""

    TYPE: ClassVar[int] = 14
    FIELDS: ClassVar[Any] = Struct("nodes" / ListOf("list of nodes", pair_of(_CONNECTED), COUNT.sizeof() + 1))
    nodes: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class ServerPartitionsAssignmentRequest(_Message):
    """Asks which partitions the server holds."""

    TYPE: ClassVar[int] = 15
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class ServerPartitionsAssignmentResponse(_Message):
    """The partitions that the server holds."""

    TYPE: ClassVar[int] = 16
    FIELDS: ClassVar[Any] = Struct("partitions" / _PartitionList)
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddPreferredPartitionRequest(_Message):
    """Asks the server to hold these partitions by preference."""

    TYPE: ClassVar[int] = 17
    FIELDS: ClassVar[Any] = Struct("partitions" / _PartitionList)
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddPreferredPartitionResponse(_Message):
    """Whether the server now prefers them."""

    TYPE: ClassVar[int] = 18
    FIELDS: ClassVar[Any] = Struct("done" / Boolean)
    done: bool


@dataclass(frozen=True, slots=True)
class RemovePreferredPartitionRequest(_Message):
    """Asks the server to prefer these partitions no longer."""

    TYPE: ClassVar[int] = 19
    FIELDS: ClassVar[Any] = Struct("partitions" / _PartitionList)
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemovePreferredPartitionResponse(_Message):
    """Whether the server no longer prefers them."""

    TYPE: ClassVar[int] = 20
    FIELDS: ClassVar[Any] = Struct("done" / Boolean)
    done: bool


@dataclass(frozen=True, slots=True)
class ServerPartitionsHealthRequest(_Message):
    """Asks whether the server's partitions are healthy."""

    TYPE: ClassVar[int] = 21
    FIELDS: ClassVar[Any] = Struct()


@dataclass(frozen=True, slots=True)
class ServerPartitionsHealthResponse(_Message):
    """Each partition that the server holds, and whether it is healthy."""

    TYPE: ClassVar[int] = 22
    FIELDS: ClassVar[Any] = Struct(
        "partitions"
        / ListOf("list of partitions", pair_of(_HEALTHY), Int32sb.sizeof() + Boolean.sizeof(), most_partitions)
    )
    partitions: tuple[tuple[int, bool], ...]


ClientRequest = (
    MountRequest
    | AppendRequest
    | FeedRequest
    | TransactionDataRequest
    | FlushRequest
    | HighWaterMarkRequest
    | CheckStorageConnectivityRequest
    | ServerPartitionsAssignmentRequest
    | AddPreferredPartitionRequest
    | RemovePreferredPartitionRequest
    | ServerPartitionsHealthRequest
)
ServerResponse = (
    MountResponse
    | FeedData
    | FeedSuspended
    | TransactionDataResponse
    | FlushResponse
    | LockFailure
    | HighWaterMarkResponse
    | CheckStorageConnectivityResponse
    | ServerPartitionsAssignmentResponse
    | AddPreferredPartitionResponse
    | RemovePreferredPartitionResponse
    | ServerPartitionsHealthResponse
)
ClientMessage = ClientRequest | ServerResponse
REQUEST_TYPES = frozenset(kind.TYPE for kind in get_args(ClientRequest))
"""Types that a client sends; a server need not decode the others to refuse them."""

CLIENT_VERSIONS = (0, 1, 2, 3, 4)
_FIRST_TYPE_BEYOND = (13, 15, 21, 21, 23)
"""By version: the lowest message type that the version does not have."""
_LOCKS_SINCE = {"read_locks": 1, "append_locks": 2}
_STATE_SINCE = 3


def _fields(kind: type[Any], version: int) -> Any:
    """The fields of a message in a version."""
    if kind is AppendRequest:
        return Struct(*(one for one in kind.FIELDS.subcons if _LOCKS_SINCE.get(one.name, 0) <= version))
    if kind is MountResponse and version < _STATE_SINCE:
        return Struct("state" / _ReadyAdapter(Boolean))
    return kind.FIELDS


def _codec(version: int) -> MessageCodec:
    kinds: Sequence[type[Any]] = [kind for kind in get_args(ClientMessage) if _FIRST_TYPE_BEYOND[version] > kind.TYPE]
    return MessageCodec(
        magic=Magic.CLIENT,
        version=version,
        prefix=PREFIX,
        messages=kinds,
        fast={TransactionDataResponse: FastForm(_pack_outcome, _unpack_outcome)},
        fields={kind: _fields(kind, version) for kind in kinds},
    )


class AppendLocks(NamedTuple):
    """The locks of one append, by kind, as ids (`formats.lock_id`)."""

    write: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    append: tuple[int, ...] = ()


_LOCK_FIELDS = tuple(
    [f for f in _fields(AppendRequest, v).subcons if f.name.endswith("_locks")] for v in CLIENT_VERSIONS
)
LOCK_LISTS = tuple(map(len, _LOCK_FIELDS))
"""By version: the number of lists of locks in an append."""


CODECS = tuple(_codec(version) for version in CLIENT_VERSIONS)
"""By version."""


def encode(message: ClientMessage, version: int = CLIENT_VERSIONS[-1]) -> bytes:
    """The whole frame.  Raises ValueError where a field does not fit, or where the version cannot express the message."""
    return CODECS[version].encode(message)


def decode(body: Buffer, version: int = CLIENT_VERSIONS[-1], *, limits: Limits = DEFAULT_LIMITS) -> ClientMessage:
    """The message in the body of a frame with the magic L.  Raises MessageError before it allocates more than `limits`.

    Checksums are not verified: the user of the data checks `data_ok`.
    """
    message: ClientMessage = CODECS[version].decode(body, limits)
    return message
