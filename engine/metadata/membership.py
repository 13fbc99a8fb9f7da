"""A log server among the servers of its cluster: its descriptor, what it prefers, and which partitions it is to serve.

Every server has an ephemeral descriptor.  The one with the smallest id that lives computes the assignment anew when the
descriptors changed, and writes it if nobody was faster.  Every server reads it and serves what it names.

A server whose session with the store is lost serves nothing from then on, and stands among the servers again under its id once
the store answers (release 0.13.2 serves on until it reads that others were given its partitions, weakness Z5).  The same holds
for one that finds its descriptor gone: another server took it for dead (`engine.metadata.failure_detector`).

An assignment is always computed from what was just read, a bounded number of times (Z3).  A descriptor is never left twice (Z8);
nor is that of a server which had the address of a new one, as it cannot live any more.

Source: release 0.13.2 (its cluster manager); what the znodes hold: `formats.znodes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from waltzctl.engine.errors import ConcurrentUpdateError, PeerError, RefusedError, WaltzError, unforeseen
from waltzctl.engine.metadata.assignment_policy import assign
from waltzctl.engine.metadata.metadata_store import (
    MetadataStore,
    NodeMissingError,
    NodeVersionError,
    SessionLostError,
    Watch,
)
from waltzctl.engine.metadata.partition_sessions import decoded, read_payload, store_parameters
from waltzctl.formats.znodes import (
    CLIENT_IDS_PATH,
    SERVER_IDS_PATH,
    SERVERS_PATH,
    IssuedId,
    ServerAssignment,
    ServerDescriptor,
)

Assigned = Callable[[Mapping[int, int]], None]
"""Called in the event loop with the partitions that a server is to serve, each with its generation."""
Seen = Callable[[int, Sequence[tuple[str, ServerDescriptor]]], None]
"""Called with a server's own id and the servers that live, with the paths of their descriptors, itself among them."""
_DESCRIPTOR = "s_"
LAST_ID = 2**31 - 1
"""The metadata, and each request, has four bytes for the id of a server or a client."""
_ATTEMPTS = 20
"""How often a change that others interfere with is tried."""
_PAUSE = 1.0
"""Seconds between attempts while the store does not answer."""


async def next_id(store: MetadataStore, path: str) -> int:
    """Take the next server or client id; none is ever given twice.  Raises RefusedError where all were given."""
    while True:
        issued, state = await read_payload(store, path, IssuedId)
        if issued.last >= LAST_ID:
            raise RefusedError(
                f"{store.where}, node {path}: the last id that there is, {LAST_ID}, was given",
                advice="if nobody has had so many, the node was written by hand: set it back to the last one that was given",
            )
        with contextlib.suppress(NodeVersionError):
            await store.set(path, IssuedId(issued.last + 1).encode(), state.version)
            return issued.last + 1


async def new_client_id(store: MetadataStore) -> int:
    """An id for a client of the cluster."""
    return await next_id(store, CLIENT_IDS_PATH)


async def read_servers(
    store: MetadataStore, watch: Watch | None = None
) -> tuple[ServerAssignment, int, int, tuple[tuple[str, ServerDescriptor], ...]]:
    """The assignment, its node's version and child version, and the descriptors of exactly that child version with their paths.

    `watch` fires when the servers or the assignment changed, not when a descriptor was written.
    """
    while True:
        assignment, state = await read_payload(store, SERVERS_PATH, ServerAssignment, watch)
        servers = []
        with contextlib.suppress(NodeMissingError):
            for name in await store.children(SERVERS_PATH):
                path = f"{SERVERS_PATH}/{name}"
                data, _ = await store.get(path)
                servers.append((path, decoded(f"{store.where}, node {path}", ServerDescriptor, data)))
            now = await store.exists(SERVERS_PATH)
            if now is not None and now.cversion == state.cversion:
                return assignment, state.version, state.cversion, tuple(servers)


class _TakenAwayError(WaltzError):
    """This server's descriptor is gone, its session is not."""


class Membership:
    """One server's place.  `register` first, then `follow`."""

    def __init__(self, store: MetadataStore, *, log: logging.Logger, seen: Seen | None = None) -> None:
        self._store, self._log, self._seen = store, log, seen
        self._changed = asyncio.Event()
        self._descriptor: ServerDescriptor | None = None
        self._path = ""
        self._lost: asyncio.Future[str] | None = None  # None: not among the servers
        self._writes = asyncio.Lock()  # of the descriptor

    @property
    def present(self) -> bool:
        """Whether this server stands among the servers, as far as it knows."""
        return self._lost is not None and not self._lost.done()

    async def register(self, host: str, port: int, preferred: Sequence[int] = ()) -> int:
        """Take the next server id and stand among the servers, with what this one prefers; the id."""
        number = await next_id(self._store, SERVER_IDS_PATH)
        own = ServerDescriptor(number, host, port, tuple(preferred))
        async with self._writes:
            await self._stand(own, lambda one: (one.host, one.port) == (host, port))
        return number

    async def delete(self, path: str) -> None:
        """Delete a descriptor of a server that has ended; one that is gone is no error."""
        with contextlib.suppress(NodeMissingError):
            await self._store.delete(path)

    async def _stand(self, descriptor: ServerDescriptor, ended: Callable[[ServerDescriptor], bool]) -> None:
        _, _, _, servers = await read_servers(self._store)
        for path, one in servers:
            if one.server == descriptor.server or ended(one):
                await self.delete(path)
        lost = self._store.lost  # before the descriptor is there: a session that ends meanwhile is noticed
        self._path = await self._store.create(
            f"{SERVERS_PATH}/{_DESCRIPTOR}", descriptor.encode(), ephemeral=True, sequence=True
        )
        self._descriptor, self._lost = descriptor, lost

    async def follow(self, assigned: Assigned) -> None:
        """Tell the registered server what it is to serve, whenever that changes; assign where that is its duty.  For ever."""
        told: Mapping[int, int] | None = None
        while True:
            assert self._lost is not None, "it registered"
            if self._lost.done():
                await self._close_and_return(assigned, self._lost.result(), "the metadata answers again")
                told = {}
            self._changed.clear()
            try:
                now = await self._look()
            except _TakenAwayError as error:
                await self._close_and_return(assigned, str(error), "it stands there again")
                told, now = {}, None
                self._changed.set()
            except (PeerError, SessionLostError) as error:
                self._log.warning("%s", error)
                await self._wait(_PAUSE)
                continue
            except Exception as error:  # whatever it is, such as no memory: nobody else would follow
                self._log.error("the assignment stays as it is: %s", error, exc_info=unforeseen(error))
                now = None
            if now is not None and now != told and not self._lost.done():
                told = now
                assigned(now)
            await self._wait(self._store.session_timeout)

    async def _wait(self, seconds: float) -> None:
        """Until something changed, the session is lost, or the time is over."""
        assert self._lost is not None, "it registered"
        changed = asyncio.ensure_future(self._changed.wait())
        either: set[asyncio.Future[Any]] = {changed, self._lost}
        try:
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def _close_and_return(self, assigned: Assigned, why: str, until: str) -> None:
        """Serve nothing, and stand among the servers again, under the same id."""
        assert self._descriptor is not None, "it registered"
        self._log.error("%s: every partition is closed until %s", why, until)
        self._lost = None
        assigned({})
        while True:
            try:
                async with self._writes:
                    await self._stand(self._descriptor, lambda _: False)
            except Exception as error:  # whatever it is: somebody may mend it
                self._log.warning("not among the servers: %s", error, exc_info=unforeseen(error))
                await asyncio.sleep(_PAUSE)
            else:
                self._log.info("server %d is among the servers again", self._descriptor.server)
                return

    async def _look(self) -> Mapping[int, int] | None:
        """What this server serves now; None while the assignment is not that of the servers that live."""
        assert self._descriptor is not None, "it registered"
        own = self._descriptor.server
        assignment, version, cversion, servers = await read_servers(self._store, self._changed.set)
        if not self._stands_among(servers):
            raise _TakenAwayError(f"server {own} was taken from the servers of {self._store.where}")
        if self._seen is not None:
            self._seen(own, servers)
        if assignment.cversion != cversion:
            if not servers or min(one.server for _, one in servers) != own:
                return None
            written = await self._assign(assignment, version, cversion, [one for _, one in servers])
            if written is None:
                self._changed.set()  # somebody was faster, or the servers changed: look again
                return None
            assignment = written
        return {
            held.partition: held.generation
            for one in assignment.servers
            if one.server == own
            for held in one.partitions
        }

    def _stands_among(self, servers: Iterable[tuple[str, ServerDescriptor]]) -> bool:
        """Whether this server's descriptor is one of them."""
        return self._path in (path for path, _ in servers)

    async def _assign(
        self, before: ServerAssignment, version: int, cversion: int, servers: Sequence[ServerDescriptor]
    ) -> ServerAssignment | None:
        """Compute the assignment and write it; None when it was written by somebody else meanwhile."""
        parameters = await store_parameters(self._store)
        made = assign(before, cversion, parameters.num_partitions, servers)
        with contextlib.suppress(NodeVersionError):
            await self._store.set(SERVERS_PATH, made.encode(), version)
            return made
        return None

    async def prefer(self, partitions: Sequence[int], preferred: bool) -> None:
        """Prefer these partitions from now on, or no longer, and assign anew.

        Raises RefusedError where it has no descriptor, or none any more, ConcurrentUpdateError when others kept changing the
        assignment.
        """
        async with self._writes:
            old = self._descriptor
            if old is None or self._lost is None or not self._path:
                raise RefusedError(f"{self._store.where}: this server is not among the servers; nothing was changed")
            named = {*partitions}
            kept = dict.fromkeys(one for one in old.preferred if preferred or one not in named)
            added = dict.fromkeys(partitions if preferred else ())
            new = ServerDescriptor(old.server, old.host, old.port, tuple(kept | added))
            await self._store.set(self._path, new.encode())
            self._descriptor = new
        for _ in range(_ATTEMPTS):
            assignment, version, cversion, servers = await read_servers(self._store)
            if not self._stands_among(servers):  # if nobody is left, all generations would be forgotten
                raise RefusedError(
                    f"{self._store.where}: this server was taken from the servers; its preferences are kept for when it is there"
                    " again"
                )
            if await self._assign(assignment, version, cversion, [one for _, one in servers]) is not None:
                return
        raise ConcurrentUpdateError(
            f"{self._store.where}: the preferences are kept, but others wrote the assignment {_ATTEMPTS} times meanwhile"
        )

    async def unregister(self) -> None:
        """Leave the servers: the partitions are given to others at once, and not when the session times out."""
        async with self._writes:
            path, self._path = self._path, ""
            if path:
                with contextlib.suppress(WaltzError):
                    await self.delete(path)
