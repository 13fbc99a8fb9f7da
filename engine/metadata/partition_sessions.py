"""The metadata of partitions: the storage nodes of each, the session in force, and the state of each replica in it.

Source: release 0.13.2 (store metadata); what the znodes hold: `formats.znodes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from waltzctl.engine.errors import (
    ConcurrentUpdateError,
    DamageError,
    MismatchError,
    NotWaltzError,
    unforeseen,
)
from waltzctl.engine.metadata.metadata_store import (
    Check,
    Create,
    MetadataStore,
    NodeExistsError,
    NodeMissingError,
    NodeVersionError,
    Set,
    Watch,
    ZnodeState,
)
from waltzctl.engine.metadata.watch_loop import PAUSE, watch_loop
from waltzctl.engine.net.events import happens_within
from waltzctl.formats.control import MAX_PARTITIONS
from waltzctl.formats.ids import LAST_SESSION_ID
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    PARTITION_PATH,
    STORE_PATH,
    ClusterParameters,
    NodeAssignment,
    PartitionMetadata,
    PayloadType,
    ReplicaState,
    StoreParameters,
    ZnodeError,
    ZnodeVersionError,
)

_ADVICE = (
    "check the metadata's root, and create the cluster first: waltzctl cluster create; one that was made or deleted by half has"
    " to be deleted before that: waltzctl cluster delete"
)


async def read_payload(
    store: MetadataStore, path: str, kind: type[PayloadType], watch: Watch | None = None
) -> tuple[PayloadType, ZnodeState]:
    """Read and decode a znode that every cluster has; returns its payload and state.

    Raises NotWaltzError (it is missing or empty), MismatchError (unknown version of the payload), DamageError.
    """
    data, state = await _read(store, path, watch)
    return decoded(_where(store, path), kind, data), state


def _where(store: MetadataStore, path: str) -> str:
    return f"{store.where}, node {path or 'of the root'}"


async def _read(store: MetadataStore, path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
    try:
        data, state = await store.get(path, watch)
    except NodeMissingError:
        raise NotWaltzError(f"{_where(store, path)}: there is no such node", advice=_ADVICE) from None
    if not data:
        raise NotWaltzError(f"{_where(store, path)}: holds nothing", advice=_ADVICE)
    return data, state


def decoded(where: str, kind: type[PayloadType], data: bytes) -> PayloadType:
    """Decode a payload; `where`: the place for error messages.  Raises MismatchError, DamageError."""
    try:
        return kind.decode(data)
    except ZnodeVersionError as error:
        raise MismatchError(f"{where}: {error}") from None
    except ZnodeError as error:
        raise DamageError(f"{where}: {error}", advice="check the root; another program may use this path") from None


async def store_parameters(store: MetadataStore) -> StoreParameters:
    """The cluster's key and number of partitions.  Raises as `read_payload`, MismatchError for a number that cannot be."""
    found, _ = await read_payload(store, STORE_PATH, StoreParameters)
    _check_partitions(_where(store, STORE_PATH), found.num_partitions)
    return found


async def cluster_parameters(store: MetadataStore) -> ClusterParameters:
    """The cluster's name and number of partitions.  Raises as `store_parameters`."""
    found, _ = await read_payload(store, "", ClusterParameters)
    _check_partitions(_where(store, ""), found.num_partitions)
    return found


def _check_partitions(where: str, number: int) -> None:
    """Refuse a number with which a cluster would seem to have nothing at all, or more than there is memory for."""
    if not 0 < number <= MAX_PARTITIONS:
        raise MismatchError(f"{where}: {number} partitions; a cluster has 1 to {MAX_PARTITIONS}")


async def follow_replicas(
    store: MetadataStore, on_change: Callable[[Mapping[int, Collection[str]]], Awaitable[None]], *, log: logging.Logger
) -> None:
    """Call `on_change` with the storage nodes of each partition that has any, now and whenever they change.  Never returns."""
    changed = asyncio.Event()

    async def look() -> None:
        found, _ = await read_payload(store, ASSIGNMENT_PATH, NodeAssignment, changed.set)
        nodes: dict[int, set[str]] = {}
        for one in found.nodes:
            for partition in one.partitions:
                nodes.setdefault(partition, set()).add(one.node)
        await on_change(nodes)

    async def failed(error: Exception) -> None:
        log.warning("the storage nodes' assignment is not known: %s", error, exc_info=unforeseen(error))
        await asyncio.sleep(PAUSE)

    await watch_loop(changed, look=look, wait=lambda: happens_within(changed, store.session_timeout), failed=failed)


@dataclass(frozen=True, slots=True)
class _Assignment:
    """The assignment of storage nodes as read: encoded, the znode's version, and the nodes of each partition that has any."""

    data: bytes
    version: int
    nodes: Mapping[int, tuple[str, ...]]


class PartitionSessions:
    """The metadata of all partitions; implements `engine.server.store_partition.SessionMetadata`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._assignment = _Assignment(b"", -1, {})  # as read last
        # what was written last for each partition, and the version of its znode then
        self._written: dict[int, tuple[PartitionMetadata, int]] = {}

    async def assigned(self, partition: int) -> tuple[str, ...]:
        """The storage nodes of a partition, ``host:port``, sorted."""
        return (await self._read_assignment()).nodes.get(partition, ())

    async def nodes(self) -> frozenset[str]:
        """Every storage node of the assignment, those without a partition among them, in one read."""
        found, _ = await read_payload(self._store, ASSIGNMENT_PATH, NodeAssignment)
        return frozenset(one.node for one in found.nodes)

    async def _read_assignment(self) -> _Assignment:
        data, state = await _read(self._store, ASSIGNMENT_PATH)
        nodes = self._assignment.nodes
        # decode only what has changed: each of a thousand partitions reads the assignment to open
        if data != self._assignment.data:
            found = decoded(_where(self._store, ASSIGNMENT_PATH), NodeAssignment, data)
            held: dict[int, list[str]] = {}
            for one in found.nodes:
                for number in dict.fromkeys(one.partitions):
                    held.setdefault(number, []).append(one.node)
            nodes = {number: tuple(sorted(named)) for number, named in held.items()}
        self._assignment = _Assignment(data, state.version, nodes)
        return self._assignment

    async def partition(self, partition: int) -> tuple[PartitionMetadata, int]:
        """A partition's metadata and the version of its znode, -1 if there is none yet."""
        path = f"{PARTITION_PATH}/{partition}"
        try:
            data, state = await self._store.get(path)
        except NodeMissingError:
            return PartitionMetadata(), -1
        if not data:
            return PartitionMetadata(), state.version
        return decoded(f"{self._store.where}, node {path}", PartitionMetadata, data), state.version

    async def begin_session(
        self, partition: int, generation: int, *, guard: Callable[[], Awaitable[Check]] | None = None
    ) -> PartitionMetadata:
        """Increment the session id, store the generation, and return the metadata as stored.

        `guard` is called before each attempt, which counts only while what it returns holds.

        Raises ConcurrentUpdateError when the stored generation is later, DamageError when the stored session is the last one, and
        what `guard` raises.
        """
        while True:
            guards = () if guard is None else (await guard(),)
            known, version = await self.partition(partition)
            if known.generation > generation:
                raise ConcurrentUpdateError(
                    f"partition {partition}: it is served under generation {known.generation}, and {generation} is what this"
                    " server was given"
                )
            if known.session_id >= LAST_SESSION_ID:
                raise DamageError(
                    f"{self._store.where}: partition {partition}: session {known.session_id} is the last that there can be, and"
                    " no server has come so far: something else wrote it",
                    advice="put back what stood there; storage nodes that have seen this session refuse every earlier one",
                )
            begun = PartitionMetadata(generation, known.session_id + 1, known.replicas)
            if await self._write(partition, begun, version, guards):
                return begun

    async def write_replicas(self, partition: int, session_id: int, replicas: tuple[ReplicaState, ...]) -> None:
        """Write replica states, if the partition is assigned to exactly these storage nodes.

        An operator's change of the assignment is checked against the replica states stored here (`unassign` in
        `engine.metadata.cluster_changes`).  If a session that began before the change could write its replicas after it, more
        of them might be unassigned than recovery can do without (weakness V16).

        What this object knows of partition and assignment is tried first: when a thousand partitions open, each read takes as
        long as a thousand.  The transaction of the write compares both versions, so that nothing is written on the strength of
        what has changed meanwhile; then both are read.

        Raises ConcurrentUpdateError when the stored session id, or the assigned storage nodes, are different ones.
        """
        wanted = tuple(sorted(one.node for one in replicas))
        known, version = self._written.pop(partition, (PartitionMetadata(), -1))
        as_known = known.session_id == session_id and self._assignment.nodes.get(partition, ()) == wanted
        if as_known and await self._write_replicas(partition, known, version, replicas):
            return
        while True:
            known, version = await self.partition(partition)
            if known.session_id != session_id:
                raise ConcurrentUpdateError(
                    f"partition {partition}: session {known.session_id} has begun behind session {session_id}"
                )
            if known.replicas == replicas:
                return
            if (await self._read_assignment()).nodes.get(partition, ()) != wanted:
                raise ConcurrentUpdateError(
                    f"partition {partition}: its storage nodes are others than when session {session_id} began"
                )
            if await self._write_replicas(partition, known, version, replicas):
                return

    async def _write_replicas(
        self, partition: int, known: PartitionMetadata, version: int, replicas: tuple[ReplicaState, ...]
    ) -> bool:
        """False: partition or assignment have changed since they were read."""
        written = PartitionMetadata(known.generation, known.session_id, replicas)
        change = Set(f"{PARTITION_PATH}/{partition}", written.encode(), version)
        try:
            await self._store.commit((Check(ASSIGNMENT_PATH, self._assignment.version), change))
        except (NodeVersionError, NodeMissingError):
            return False
        self._written[partition] = written, version + 1
        return True

    async def _write(
        self, partition: int, metadata: PartitionMetadata, version: int, guards: tuple[Check, ...] = ()
    ) -> bool:
        path, data = f"{PARTITION_PATH}/{partition}", metadata.encode()
        if guards:
            change = Create(path, data) if version < 0 else Set(path, data, version)
            with contextlib.suppress(NodeExistsError, NodeVersionError):
                await self._store.commit((*guards, change))
                return True
            return False
        if version < 0:
            with contextlib.suppress(NodeExistsError):
                await self._store.create(path, data)  # without a node above it the cluster is deleted
                self._written[partition] = metadata, 0
                return True
            return False
        with contextlib.suppress(NodeVersionError, NodeMissingError):
            state = await self._store.set(path, data, version)
            self._written[partition] = metadata, state.version
            return True
        return False
