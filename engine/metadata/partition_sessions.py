"""The metadata of partitions: who holds replicas, and the session that is in force with the state of each replica in it.

Source: release 0.13.2 (store metadata); what the znodes hold: `formats.znodes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from waltzctl.engine.errors import (
    ConcurrentUpdateError,
    DamageError,
    MismatchError,
    NotWaltzError,
    unforeseen,
)
from waltzctl.engine.metadata.metadata_store import (
    Check,
    MetadataStore,
    NodeExistsError,
    NodeMissingError,
    NodeVersionError,
    Set,
    Watch,
    ZnodeState,
)
from waltzctl.engine.net.events import happens_within
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    PARTITION_PATH,
    STORE_PATH,
    NodeAssignment,
    PartitionMetadata,
    PayloadType,
    ReplicaState,
    StoreParameters,
    ZnodeError,
    ZnodeVersionError,
)

_PAUSE = 1.0
"""Seconds between looks at the storage nodes' assignment while the metadata does not answer."""
_CREATE = (
    "check the metadata's root, and create the cluster first: waltzctl cluster create; one that was made or deleted by half has"
    " to be deleted before that: waltzctl cluster delete"
)


async def read_payload(
    store: MetadataStore, path: str, kind: type[PayloadType], watch: Watch | None = None
) -> tuple[PayloadType, ZnodeState]:
    """A node that every cluster has, and its state.

    Raises NotWaltzError (there is none, or it holds nothing), MismatchError (a version that is not known), DamageError.
    """
    data, state = await _read(store, path, watch)
    return decoded(_where(store, path), kind, data), state


def _where(store: MetadataStore, path: str) -> str:
    return f"{store.where}, node {path or 'of the root'}"


async def _read(store: MetadataStore, path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
    try:
        data, state = await store.get(path, watch)
    except NodeMissingError:
        raise NotWaltzError(f"{_where(store, path)}: there is no such node", advice=_CREATE) from None
    if not data:
        raise NotWaltzError(f"{_where(store, path)}: holds nothing", advice=_CREATE)
    return data, state


def decoded(where: str, kind: type[PayloadType], data: bytes) -> PayloadType:
    """A payload.  Raises MismatchError, DamageError, which name `where`."""
    try:
        return kind.decode(data)
    except ZnodeVersionError as error:
        raise MismatchError(f"{where}: {error}") from None
    except ZnodeError as error:
        raise DamageError(f"{where}: {error}", advice="check the root; another program may use this path") from None


async def store_parameters(store: MetadataStore) -> StoreParameters:
    """The cluster's key and number of partitions.  Raises as `read_payload`."""
    return (await read_payload(store, STORE_PATH, StoreParameters))[0]


async def follow_replicas(
    store: MetadataStore, told: Callable[[Mapping[int, Collection[str]]], Awaitable[None]], *, log: logging.Logger
) -> None:
    """Tell the storage nodes of each partition that has any, now and whenever that may have changed.  For ever."""
    changed = asyncio.Event()
    while True:
        changed.clear()
        try:
            found, _ = await read_payload(store, ASSIGNMENT_PATH, NodeAssignment, changed.set)
            nodes: dict[int, set[str]] = {}
            for one in found.nodes:
                for partition in one.partitions:
                    nodes.setdefault(partition, set()).add(one.node)
            await told(nodes)
        except Exception as error:  # whatever it is, such as no memory: nobody else would follow
            log.warning("the storage nodes' assignment is not known: %s", error, exc_info=unforeseen(error))
            await asyncio.sleep(_PAUSE)
            continue
        await happens_within(changed, store.session_timeout)


class PartitionSessions:
    """What a log server's sessions ask of the metadata; see `engine.server.store_partition.SessionMetadata`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._assignment: tuple[bytes, Mapping[int, tuple[str, ...]]] = b"", {}

    async def assigned(self, partition: int) -> tuple[str, ...]:
        """The storage nodes of a partition, ``host:port``, sorted."""
        return (await self._all_assigned())[0].get(partition, ())

    async def nodes_of(self, partitions: Collection[int]) -> frozenset[str]:
        """The storage nodes that any of these partitions has, at one look."""
        held, _ = await self._all_assigned()
        return frozenset(node for number in partitions for node in held.get(number, ()))

    async def _all_assigned(self) -> tuple[Mapping[int, tuple[str, ...]], int]:
        """The storage nodes of each partition that has any, and the version of what says so."""
        data, state = await _read(self._store, ASSIGNMENT_PATH)
        if data != self._assignment[0]:  # one for all partitions: each of a thousand asks for it twice when it opens
            found = decoded(_where(self._store, ASSIGNMENT_PATH), NodeAssignment, data)
            held: dict[int, list[str]] = {}
            for one in found.nodes:
                for number in dict.fromkeys(one.partitions):
                    held.setdefault(number, []).append(one.node)
            self._assignment = data, {number: tuple(sorted(nodes)) for number, nodes in held.items()}
        return self._assignment[1], state.version

    async def partition(self, partition: int) -> tuple[PartitionMetadata, int]:
        """A partition's metadata and the version of its node, -1 where there is none yet."""
        path = f"{PARTITION_PATH}/{partition}"
        try:
            data, state = await self._store.get(path)
        except NodeMissingError:
            return PartitionMetadata(), -1
        if not data:
            return PartitionMetadata(), state.version
        return decoded(f"{self._store.where}, node {path}", PartitionMetadata, data), state.version

    async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
        """Count the session up under this generation; the metadata with the new session in it.

        Raises ConcurrentUpdateError when the stored generation is later.
        """
        while True:
            known, version = await self.partition(partition)
            if known.generation > generation:
                raise ConcurrentUpdateError(
                    f"partition {partition}: it is served under generation {known.generation}, and {generation} is what this"
                    " server was given"
                )
            begun = PartitionMetadata(generation, known.session_id + 1, known.replicas)
            if await self._write(partition, begun, version):
                return begun

    async def write_replicas(self, partition: int, session_id: int, replicas: tuple[ReplicaState, ...]) -> None:
        """Write replica states, as long as the partition has just these storage nodes.

        An operator's change is judged by the replicas that stand here.  Were those of a session written that began before the
        change, more of them might be gone than a recovery can do without (weakness V16).

        Raises ConcurrentUpdateError when the stored session is another one, or the storage nodes are.
        """
        while True:
            known, version = await self.partition(partition)
            if known.session_id != session_id:
                raise ConcurrentUpdateError(
                    f"partition {partition}: session {known.session_id} has begun behind session {session_id}"
                )
            if known.replicas == replicas:
                return
            held, assigned_at = await self._all_assigned()
            if {one.node for one in replicas} != {*held.get(partition, ())}:
                raise ConcurrentUpdateError(
                    f"partition {partition}: its storage nodes are others than when session {session_id} began"
                )
            written = PartitionMetadata(known.generation, session_id, replicas).encode()
            with contextlib.suppress(NodeVersionError, NodeMissingError):
                await self._store.commit(
                    (Check(ASSIGNMENT_PATH, assigned_at), Set(f"{PARTITION_PATH}/{partition}", written, version))
                )
                return

    async def _write(self, partition: int, metadata: PartitionMetadata, version: int) -> bool:
        path = f"{PARTITION_PATH}/{partition}"
        with contextlib.suppress(NodeVersionError, NodeExistsError, NodeMissingError):
            if version < 0:
                await self._store.create(path, metadata.encode())
            else:
                await self._store.set(path, metadata.encode(), version)
            return True
        return False
