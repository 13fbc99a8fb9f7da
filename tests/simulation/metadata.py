"""Metadata in memory, as ZooKeeper keeps it for several processes: sessions that are lost, watches and answers that come late.

`Tree` is what the ensemble holds, `TreeStore` one process's connection (`engine.metadata.metadata_store.MetadataStore`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from waltzctl.engine.errors import PeerUnreachableError
from waltzctl.engine.metadata.metadata_store import (
    ANY_VERSION,
    Change,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeVersionError,
    SessionLostError,
    Set,
    Watch,
    ZnodeState,
)

WHERE = "the simulated metadata"
SESSION_SECONDS = 4.0


@dataclass
class _Znode:
    data: bytes
    version: int = 0
    cversion: int = 0
    sequence: int = 0
    owner: TreeStore | None = None

    @property
    def state(self) -> ZnodeState:
        return ZnodeState(self.version, self.cversion, self.owner is not None)


@dataclass
class Tree:
    """What is stored.  `loss`: the share of calls whose connection is lost, before or behind what was asked."""

    chance: Random
    loss: float = 0.0
    late: bool = False
    nodes: dict[str, _Znode] = field(default_factory=dict)
    watches: dict[str, list[Watch]] = field(default_factory=dict)

    def fire(self, path: str) -> None:
        """Whoever watches a node hears of it, once, sometime."""
        for watch in self.watches.pop(path, ()):
            delay = self.chance.choice((0.001, 0.01, 0.01, 1.5)) if self.late else 0.001
            asyncio.get_running_loop().call_later(delay, watch)

    def children(self, path: str) -> list[str]:
        """The names below a node."""
        begin = f"{path}/" if path else ""
        return sorted(
            one[len(begin) :] for one in self.nodes if one and one.startswith(begin) and "/" not in one[len(begin) :]
        )

    def create(self, path: str, data: bytes, owner: TreeStore | None = None) -> None:
        if path in self.nodes:
            raise NodeExistsError(WHERE, path)
        if path:
            self._above(path).cversion += 1
        self.nodes[path] = _Znode(data, owner=owner)
        self.fire(path)
        self.fire(path.rpartition("/")[0])

    def _above(self, path: str) -> _Znode:
        above = path.rpartition("/")[0]
        if above not in self.nodes:
            raise NodeMissingError(WHERE, above)
        return self.nodes[above]

    def found(self, path: str, version: int = ANY_VERSION) -> _Znode:
        if path not in self.nodes:
            raise NodeMissingError(WHERE, path)
        if version not in (ANY_VERSION, self.nodes[path].version):
            raise NodeVersionError(WHERE, path)
        return self.nodes[path]

    def set(self, path: str, data: bytes, version: int) -> _Znode:
        found = self.found(path, version)
        found.data, found.version = data, found.version + 1
        self.fire(path)
        return found

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.found(path, version)
        if self.children(path):
            raise NodeNotEmptyError(WHERE, path)
        del self.nodes[path]
        self._above(path).cversion += 1
        self.fire(path)
        self.fire(path.rpartition("/")[0])

    def expire(self, store: TreeStore) -> None:
        """A session is over."""
        for path in [one for one, node in self.nodes.items() if node.owner is store]:
            self.delete(path)


class TreeStore:
    """One process's connection."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.reachable, self.closed = True, False
        self.where, self.session_timeout = WHERE, SESSION_SECONDS

    @property
    def lost(self) -> asyncio.Future[str]:
        if self._lost.done():
            self._lost = asyncio.get_running_loop().create_future()
        return self._lost

    async def lose_session(self, told_after: float, back_after: float) -> None:
        """The process cannot reach the metadata: its session is over after a while, for the process by its own clock.

        That may be earlier or later; when it comes back in time the session goes on, whatever the process thinks.
        """
        if not self.reachable:
            return
        self.reachable = False
        over = asyncio.get_running_loop().call_later(SESSION_SECONDS, self._tree.expire, self)
        await asyncio.sleep(told_after)
        if not self._lost.done():
            self._lost.set_result("the session is over")
        await asyncio.sleep(max(0.0, back_after - told_after))
        over.cancel()
        self.reachable = not self.closed

    async def _travel(self) -> None:
        chance = self._tree.chance
        await asyncio.sleep(chance.choice((0.001, 0.003, 0.003, 0.1)) if self._tree.late else 0.001)
        if not self.reachable:
            await asyncio.sleep(0.5)
        if not self.reachable or (self._tree.loss and chance.random() < self._tree.loss):
            raise PeerUnreachableError(WHERE, "the connection was lost")

    def _watch(self, path: str, watch: Watch | None) -> None:
        if watch is not None:
            self._tree.watches.setdefault(path, []).append(watch)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
        await self._travel()
        found = self._tree.found(path)
        self._watch(path, watch)
        answer = found.data, found.state
        await self._travel()
        return answer

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeState | None:
        await self._travel()
        self._watch(path, watch)
        found = self._tree.nodes.get(path)
        return None if found is None else found.state

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        await self._travel()
        self._tree.found(path)
        self._watch(path, watch)
        return tuple(self._tree.children(path))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        await self._travel()
        if ephemeral and self._lost.done():
            raise SessionLostError("the session is over")
        if sequence:
            above = self._tree.found(path.rpartition("/")[0])
            path, above.sequence = f"{path}{above.sequence:010d}", above.sequence + 1
        self._tree.create(path, data, self if ephemeral else None)
        await self._travel()
        return path

    async def create_root(self) -> bool:
        await self._travel()
        if "" in self._tree.nodes:
            return False
        self._tree.create("", b"")
        return True

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZnodeState:
        await self._travel()
        state = self._tree.set(path, data, version).state
        await self._travel()
        return state

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._travel()
        self._tree.delete(path, version)

    async def commit(self, changes: Sequence[Change]) -> None:
        await self._travel()
        made: set[str] = set()
        for one in changes:  # judged first, so that all are made or none
            if isinstance(one, Create):
                if one.path in self._tree.nodes:
                    raise NodeExistsError(WHERE, one.path)
                made.add(one.path)
            elif one.path not in made:
                self._tree.found(one.path, one.version)
        for one in changes:
            match one:
                case Create(path, data):
                    self._tree.create(path, data)
                case Set(path, data, version):
                    self._tree.set(path, data, version)
                case Delete(path, version):
                    self._tree.delete(path, version)
                case Check():
                    pass
        await self._travel()

    async def die(self) -> None:
        """The process is gone: nothing is heard of it, and its session is over when its time is."""
        self.reachable, self.closed = False, True
        await asyncio.sleep(SESSION_SECONDS)
        self._tree.expire(self)

    async def close(self) -> None:
        self._tree.expire(self)
