"""The interface of metadata stores: a tree of small nodes with versions, after ZooKeeper's data model.

============  ==========================================================================================================
term          meaning
============  ==========================================================================================================
path          relative to the cluster's root: ``""`` is the root, ``store/group`` a node below it
version       of a node's data: 0 when the node is created, incremented by each `set`
cversion      of a node's children: 0 at first, incremented when a child is created or deleted
session       the lifetime of a process's ephemeral nodes: begins with the first such node; ends with `close`, or when
              the store has not heard of the process for `session_timeout` seconds
watch         a callback, called once in the event loop when what was read may have changed, and then removed
transaction   a sequence of changes of which all are made, or none
============  ==========================================================================================================

Implementations: `zookeeper_store` (ZooKeeper), and `embedded_store` (one SQLite file, for the processes of one machine).  The
same tests run for both.

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
    """A node is not in the state that a call requires; `path`: the node."""

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
    """The node has another version than given: it was written meanwhile."""

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
    """The version of a node's data, the version of its children, and whether it is ephemeral."""

    version: int
    cversion: int
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """In a transaction: create a node that is not ephemeral."""

    path: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Set:
    """In a transaction: write a node, if it has this version; `ANY_VERSION`: in any case."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """In a transaction: delete a node without children, if it has this version; `ANY_VERSION`: in any case."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """In a transaction: fail unless the node has this version."""

    path: str
    version: int


Change: TypeAlias = Create | Set | Delete | Check


class MetadataStore(Protocol):
    """A connection to a store, bound to one event loop.

    Every call ends within the store's deadline.  It raises PeerUnreachableError or DeadlineError if the store does not answer;
    then a change may or may not have been made.  It raises a subclass of `MetadataConflictError` if the node's state forbids it.
    """

    @property
    def where(self) -> str:
        """The location of store and root, for messages and for ``--metadata``."""

    @property
    def session_timeout(self) -> float:
        """Seconds without a sign of life after which a process's session, and its ephemeral nodes, end."""

    @property
    def lost(self) -> asyncio.Future[str]:
        """Resolves to the reason when the session in force ends without `close`; the next session has a new future."""

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
        """A node's data and state; the watch fires when it is written or deleted, or when its children change."""

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeState | None:
        """A node's state, None if there is no such node; the watch also fires when it is created."""

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        """The names of a node's children, sorted."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Create a node below an existing one; returns its path.  `sequence`: append a number of ten digits to the name."""

    async def create_root(self) -> bool:
        """Create the root, with its parents; False if it exists already."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZnodeState:
        """Write a node."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node without children."""

    async def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes in one transaction."""

    async def close(self) -> None:
        """End the session, if there is one, and the connection."""
