"""What holds a cluster's metadata: a tree of small nodes with versions, as ZooKeeper has it, and the rules that stores keep.

============  ==========================================================================================================
term          meaning
============  ==========================================================================================================
path          relative to the cluster's root: ``""`` is the root, ``store/group`` a node below it
version       0 when a node is created, and one more with each `set`
cversion      of a node's children: 0 at first, one more with each child that is created or deleted
session       what an ephemeral node lives as long as; begins with the first node of that kind, ends with `close`, or when
              the store did not hear of this process for `session_timeout` seconds
watch         called once in the event loop, when what was read may have changed; then it is forgotten
transaction   all of its changes are made, or none
============  ==========================================================================================================

`zookeeper_store` is ZooKeeper; `embedded_store` is one SQLite file, for the processes of one machine.  One suite of tests holds
both to the table.

Source: ZooKeeper's data model; the paths: `formats.znodes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from waltzctl.engine.errors import RefusedError

ANY_VERSION = -1
Watch: TypeAlias = Callable[[], None]


class MetadataConflictError(RefusedError):
    """The metadata is not as it was when it was read; `path` is the node."""

    def __init__(self, where: str, path: str, what: str) -> None:
        super().__init__(f"{where}, node {path or '/'}: {what}")
        self.path = path


class NodeMissingError(MetadataConflictError):
    """There is no such node."""

    def __init__(self, where: str, path: str) -> None:
        super().__init__(where, path, "there is no such node")


class NodeExistsError(MetadataConflictError):
    """There is such a node already."""

    def __init__(self, where: str, path: str) -> None:
        super().__init__(where, path, "it exists already")


class NodeVersionError(MetadataConflictError):
    """The node's version is another one: somebody wrote it meanwhile."""

    def __init__(self, where: str, path: str) -> None:
        super().__init__(where, path, "it was written by somebody else meanwhile")


class NodeNotEmptyError(MetadataConflictError):
    """The node has children and cannot be deleted."""

    def __init__(self, where: str, path: str) -> None:
        super().__init__(where, path, "it has children")


class SessionLostError(RefusedError):
    """The session ended before this change: nothing was changed, and its ephemeral nodes are gone."""


@dataclass(frozen=True, slots=True)
class ZnodeState:
    """Of a node: the version of its data, that of its children, and whether it lives as long as somebody's session."""

    version: int
    cversion: int
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """In a transaction: make a node, not ephemeral."""

    path: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Set:
    """In a transaction: write a node that has this version, or `ANY_VERSION`."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """In a transaction: delete a node without children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """In a transaction: the node has this version still."""

    path: str
    version: int


Change: TypeAlias = Create | Set | Delete | Check


class MetadataStore(Protocol):
    """A connection to a store.  Belongs to one event loop.

    Every call ends within the store's deadline, and raises PeerUnreachableError or DeadlineError where the store does not answer;
    then a change may or may not have been made.  The `MetadataConflictError` that fits tells what else stands in the way.
    """

    @property
    def where(self) -> str:
        """The store and the root, for people and as ``--metadata`` takes it."""

    @property
    def session_timeout(self) -> float:
        """Seconds after which the nodes of a process that is not heard of go."""

    @property
    def lost(self) -> asyncio.Future[str]:
        """Done, with the reason, when the session that is in force ended by itself; the next one has another future."""

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
        """A node's data; the watch also fires when it is deleted, or when its children change."""

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeState | None:
        """A node's state, None where there is none; the watch also fires when it is created."""

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        """The names of a node's children, sorted."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Make a node below one that exists; its path, which has ten more digits where `sequence` is asked for."""

    async def create_root(self) -> bool:
        """Make the root, with what is above it; False where it is there already."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZnodeState:
        """Write a node."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node without children."""

    async def commit(self, changes: Sequence[Change]) -> None:
        """A transaction."""

    async def close(self) -> None:
        """End the session, if there is one, and the connection."""
