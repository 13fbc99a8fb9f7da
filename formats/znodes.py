"""Payloads of the metadata nodes in ZooKeeper, as release 0.13.2 writes them.

Below the root of a cluster (release default in its samples: ``/waltz_cluster``)::

    ROOT                          ClusterParameters
    ROOT/serverDescriptors        ServerAssignment
    ROOT/serverDescriptors/s_N    ServerDescriptor (ephemeral, N of ten digits)
    ROOT/ids/client, ids/server   last id issued: i32
    ROOT/store                    StoreParameters
    ROOT/store/group              NodeGroups
    ROOT/store/assignment         NodeAssignment
    ROOT/store/connection         NodeConnections
    ROOT/store/partition/P        PartitionMetadata

Numbers are big-endian and signed; UTF is a length of two bytes and Java's modified UTF-8 (`formats.java_text`).  Every
structure begins with a version byte of its own; an unknown version is an error.  Bytes after a structure are ignored, as in the
release.  A storage node is identified by its *connect string*, ``host:port`` of its data port.  The release writes maps in no
particular order, so readers must not rely on it; decoding and encoding here keep the order.
"""

from __future__ import annotations

import abc
import io
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from construct import (
    Adapter,
    Const,
    ConstructError,
    Default,
    GreedyBytes,
    Int8sb,
    Int16ub,
    Int32sb,
    Int32ub,
    Int64sb,
    Prefixed,
    PrefixedArray,
    Struct,
)

from waltzctl.formats.adapters import Uuid
from waltzctl.formats.java_text import decode_modified_utf8, encode_modified_utf8

CLUSTER_MAGIC = 0xB4E87347
UNRESOLVED = -(2**63)
"""Closing high-water mark of a replica whose last session is not closed."""

STORE_PATH = "store"
GROUP_PATH = "store/group"
ASSIGNMENT_PATH = "store/assignment"
CONNECTION_PATH = "store/connection"
PARTITION_PATH = "store/partition"
SERVERS_PATH = "serverDescriptors"
IDS_PATH = "ids"
CLIENT_IDS_PATH = "ids/client"
SERVER_IDS_PATH = "ids/server"
LOCK_PATH = "store/adminLock"
"""An ephemeral node without data that exists while a tool of the release changes the assignment."""
LAST_GENERATION = 2**31 - 1
"""The last generation of a partition that fits its field."""


class ZnodeError(ValueError):
    """The bytes are not the structure that should be there."""


class ZnodeVersionError(ZnodeError):
    """The structure, or one inside it, has an unknown version."""


class _UtfAdapter(Adapter):  # type: ignore[misc]  # construct carries no types
    def _decode(self, obj: bytes, context: Any, path: Any) -> str:
        return decode_modified_utf8(obj)

    def _encode(self, obj: str, context: Any, path: Any) -> bytes:
        return encode_modified_utf8(obj)


class _VersionAdapter(Adapter):  # type: ignore[misc]  # construct carries no types
    """A version byte with one known value."""

    def __init__(self, known: int) -> None:
        super().__init__(Int8sb)
        self.known = known

    def _decode(self, obj: int, context: Any, path: Any) -> int:
        if obj != self.known:
            raise ZnodeVersionError(f"version {obj} is not known, only {self.known}")
        return obj

    def _encode(self, obj: int, context: Any, path: Any) -> int:
        return obj


def _version(known: int) -> Any:
    return Default(_VersionAdapter(known), known)


Utf = _UtfAdapter(Prefixed(Int16ub, GreedyBytes))

CLUSTER_SCHEMA = Struct(
    "magic" / Const(CLUSTER_MAGIC, Int32ub), "version" / _version(1), "name" / Utf, "num_partitions" / Int32sb
)
ISSUED_ID_SCHEMA = Struct("last" / Int32sb)
SERVER_ASSIGNMENT_SCHEMA = Struct(
    "version" / _version(3),
    "cversion" / Int32sb,
    "num_partitions" / Int32sb,
    "servers"
    / PrefixedArray(
        Int32sb,
        Struct(
            "server" / Int32sb,
            "partitions" / PrefixedArray(Int32sb, Struct("partition" / Int32sb, "generation" / Int32sb)),
        ),
    ),
)
SERVER_DESCRIPTOR_SCHEMA = Struct(
    "version" / _version(1),
    "server" / Int32sb,
    "host" / Utf,
    "port" / Int32sb,
    "preferred" / PrefixedArray(Int32sb, Int32sb),
)
STORE_SCHEMA = Struct("version" / _version(1), "cluster_key" / Uuid, "num_partitions" / Int32sb)
NODE_GROUPS_SCHEMA = Struct(
    "version" / _version(1), "nodes" / PrefixedArray(Int32sb, Struct("node" / Utf, "group" / Int32sb))
)
NODE_ASSIGNMENT_SCHEMA = Struct(
    "version" / _version(1),
    "nodes" / PrefixedArray(Int32sb, Struct("node" / Utf, "partitions" / PrefixedArray(Int32sb, Int32sb))),
)
NODE_CONNECTIONS_SCHEMA = Struct(
    "version" / _version(1), "nodes" / PrefixedArray(Int32sb, Struct("node" / Utf, "admin_port" / Int32sb))
)
REPLICA_STATE_SCHEMA = Struct(
    "version" / _version(1),
    "id_version" / _version(1),
    "partition" / Int32sb,
    "node" / Utf,
    "session_id" / Int64sb,
    "closing_high_water_mark" / Int64sb,
)
PARTITION_SCHEMA = Struct(
    "version" / _version(1),
    "generation" / Int32sb,
    "session_id" / Int64sb,
    "replicas" / PrefixedArray(Int32sb, REPLICA_STATE_SCHEMA),
)


class Payload(abc.ABC):
    """The base of all payloads: decodes bytes to a value and encodes it again."""

    SCHEMA: ClassVar[Any]
    __slots__ = ()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From a node's data; bytes after the structure are ignored.

        Raises ZnodeVersionError for an unknown version, and ZnodeError for any other bytes that are not this structure.
        """
        stream = io.BytesIO(data)
        try:
            return cls._of(cls.SCHEMA.parse_stream(stream))
        except ZnodeVersionError as error:
            raise ZnodeVersionError(f"{cls.__name__}: {error}") from None
        except (ConstructError, UnicodeError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise ZnodeError(
                f"{cls.__name__}: not readable at offset {stream.tell()} of {len(data)} bytes: {reason}"
            ) from None

    def encode(self) -> bytes:
        """The node's data."""
        return bytes(self.SCHEMA.build(self._fields()))

    @classmethod
    @abc.abstractmethod
    def _of(cls, parsed: Any) -> Self:
        """The payload from what the schema parsed."""

    @abc.abstractmethod
    def _fields(self) -> dict[str, Any]:
        """The values for the schema to build."""


PayloadType = TypeVar("PayloadType", bound=Payload)


@dataclass(frozen=True, slots=True)
class ClusterParameters(Payload):
    """A cluster's name and number of partitions."""

    SCHEMA: ClassVar[Any] = CLUSTER_SCHEMA

    name: str
    num_partitions: int

    @classmethod
    def _of(cls, parsed: Any) -> Self:
        return cls(parsed.name, parsed.num_partitions)

    def _fields(self) -> dict[str, Any]:
        return {"name": self.name, "num_partitions": self.num_partitions}


@dataclass(frozen=True, slots=True)
class IssuedId(Payload):
    """The last id that was given to a server, or to a client; 0 at first.  The one structure without a version."""

    SCHEMA: ClassVar[Any] = ISSUED_ID_SCHEMA

    last: int

    @classmethod
    def _of(cls, parsed: Any) -> Self:
        return cls(parsed.last)

    def _fields(self) -> dict[str, Any]:
        return {"last": self.last}


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """A partition that a server owns, and the generation in which it got it."""

    partition: int
    generation: int


@dataclass(frozen=True, slots=True)
class ServerPartitions:
    """The partitions that one server owns.  `server`: its id."""

    server: int
    partitions: tuple[AssignedPartition, ...]


@dataclass(frozen=True, slots=True)
class ServerAssignment(Payload):
    """Which server owns which partition.  `cversion`: child version of the node for which this was computed; -1 at first."""

    SCHEMA: ClassVar[Any] = SERVER_ASSIGNMENT_SCHEMA

    cversion: int
    num_partitions: int
    servers: tuple[ServerPartitions, ...]

    @classmethod
    def _of(cls, parsed: Any) -> Self:
        servers = tuple(
            ServerPartitions(one.server, tuple(AssignedPartition(p.partition, p.generation) for p in one.partitions))
            for one in parsed.servers
        )
        return cls(parsed.cversion, parsed.num_partitions, servers)

    def _fields(self) -> dict[str, Any]:
        servers = [
            {
                "server": one.server,
                "partitions": [{"partition": p.partition, "generation": p.generation} for p in one.partitions],
            }
            for one in self.servers
        ]
        return {"cversion": self.cversion, "num_partitions": self.num_partitions, "servers": servers}


@dataclass(frozen=True, slots=True)
class ServerDescriptor(Payload):
    """A live server: its id, its address for clients, and the partitions it prefers, in the order in which they were added."""

    SCHEMA: ClassVar[Any] = SERVER_DESCRIPTOR_SCHEMA

    server: int
    host: str
    port: int
    preferred: tuple[int, ...]

    @classmethod
    def _of(cls, parsed: Any) -> Self:
        return cls(parsed.server, parsed.host, parsed.port, tuple(parsed.preferred))

    def _fields(self) -> dict[str, Any]:
        return {"server": self.server, "host": self.host, "port": self.port, "preferred": list(self.preferred)}


@dataclass(frozen=True, slots=True)
class StoreParameters(Payload):
    """What a storage node reads at its start: the cluster key and the number of partitions."""

    SCHEMA: ClassVar[Any] = STORE_SCHEMA

    cluster_key: uuid.UUID
    num_partitions: int

    @classmethod
    def _of(cls, parsed: Any) -> Self:
        return cls(parsed.cluster_key, parsed.num_partitions)

    def _fields(self) -> dict[str, Any]:
        return {"cluster_key": self.cluster_key, "num_partitions": self.num_partitions}


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A storage node's group."""

    node: str
    group: int


@dataclass(frozen=True, slots=True)
class NodeGroups(Payload):
    """Every storage node's group."""

    SCHEMA: ClassVar[Any] = NODE_GROUPS_SCHEMA

    nodes: tuple[NodeGroup, ...]

    @classmethod
    def _of(cls, parsed: Any) -> Self:
        return cls(tuple(NodeGroup(one.node, one.group) for one in parsed.nodes))

    def _fields(self) -> dict[str, Any]:
        return {"nodes": [{"node": one.node, "group": one.group} for one in self.nodes]}


@dataclass(frozen=True, slots=True)
class NodePartitions:
    """The partitions that a storage node should hold."""

    node: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeAssignment(Payload):
    """Which storage node should hold which partitions; includes nodes without any."""

    SCHEMA: ClassVar[Any] = NODE_ASSIGNMENT_SCHEMA

    nodes: tuple[NodePartitions, ...]

    @classmethod
    def _of(cls, parsed: Any) -> Self:
        return cls(tuple(NodePartitions(one.node, tuple(one.partitions)) for one in parsed.nodes))

    def _fields(self) -> dict[str, Any]:
        return {"nodes": [{"node": one.node, "partitions": list(one.partitions)} for one in self.nodes]}


@dataclass(frozen=True, slots=True)
class NodeConnection:
    """A storage node's admin port; its data port is part of its name."""

    node: str
    admin_port: int


@dataclass(frozen=True, slots=True)
class NodeConnections(Payload):
    """Every storage node's admin port."""

    SCHEMA: ClassVar[Any] = NODE_CONNECTIONS_SCHEMA

    nodes: tuple[NodeConnection, ...]

    @classmethod
    def _of(cls, parsed: Any) -> Self:
        return cls(tuple(NodeConnection(one.node, one.admin_port) for one in parsed.nodes))

    def _fields(self) -> dict[str, Any]:
        return {"nodes": [{"node": one.node, "admin_port": one.admin_port} for one in self.nodes]}


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica in its partition's last session.  `session_id` -1: never part of one."""

    partition: int
    node: str
    session_id: int
    closing_high_water_mark: int = UNRESOLVED


@dataclass(frozen=True, slots=True)
class PartitionMetadata(Payload):
    """A partition's generation, session and replicas; -1, -1 and none at first."""

    SCHEMA: ClassVar[Any] = PARTITION_SCHEMA

    generation: int = -1
    session_id: int = -1
    replicas: tuple[ReplicaState, ...] = ()

    @classmethod
    def _of(cls, parsed: Any) -> Self:
        replicas = tuple(
            ReplicaState(one.partition, one.node, one.session_id, one.closing_high_water_mark)
            for one in parsed.replicas
        )
        return cls(parsed.generation, parsed.session_id, replicas)

    def _fields(self) -> dict[str, Any]:
        replicas = [
            {
                "partition": one.partition,
                "node": one.node,
                "session_id": one.session_id,
                "closing_high_water_mark": one.closing_high_water_mark,
            }
            for one in self.replicas
        ]
        return {"generation": self.generation, "session_id": self.session_id, "replicas": replicas}
