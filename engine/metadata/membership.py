"""Membership of a log server in its cluster: its descriptor, its preferences, and the partitions it is to serve.

Every server registers with an ephemeral descriptor.  When the set of descriptors changes, the live server with the smallest id
computes the assignment and writes it, unless another server wrote first.  Every server reads the assignment and serves its
partitions.

=====================================================  =================================================================
a server finds that                                    it
=====================================================  =================================================================
its session with the store is lost                     closes all partitions, and registers again under the same id once
                                                       the store answers; release 0.13.2 serves on until it reads that
                                                       others have its partitions (weakness Z5)
its descriptor was deleted: another server thinks it   does the same
dead (`engine.metadata.failure_detector`)
=====================================================  =================================================================

An assignment is always computed from what was just read, in a bounded number of attempts (Z3).  Registering deletes older
descriptors of the same server (Z8), and of any server with the same address, which cannot be alive.

Source: release 0.13.2 (its cluster manager); the content of the znodes: `formats.znodes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from waltzctl.engine.errors import ConcurrentUpdateError, DamageError, PeerError, RefusedError, WaltzError, unforeseen
from waltzctl.engine.metadata.assignment_policy import assign
from waltzctl.engine.metadata.metadata_store import (
    MetadataStore,
    NodeMissingError,
    NodeVersionError,
    SessionLostError,
    Watch,
)
from waltzctl.engine.metadata.partition_sessions import decoded, read_payload, store_parameters
from waltzctl.engine.metadata.watch_loop import PAUSE, watch_loop
from waltzctl.engine.net.addresses import Address
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
"""The highest id of a server or client: a signed 32-bit integer in metadata and requests."""
_ATTEMPTS = 20
"""Attempts for a change that concurrent writers may defeat."""


async def next_id(store: MetadataStore, path: str) -> int:
    """Issue the next server or client id; none is issued twice.  Raises RefusedError if none is left, DamageError."""
    while True:
        issued, state = await read_payload(store, path, IssuedId)
        if issued.last >= LAST_ID:
            raise RefusedError(
                f"{store.where}, node {path}: the last id that there is, {LAST_ID}, was given",
                advice="if nobody has had so many, the node was written by hand: set it back to the last one that was given",
            )
        if issued.last < 0:  # the next ones were given before, and -1 stands for nobody
            raise DamageError(
                f"{store.where}, node {path}: {issued.last} is no id that was given; something else wrote it",
                advice="set it back to the last one that was given",
            )
        with contextlib.suppress(NodeVersionError):
            await store.set(path, IssuedId(issued.last + 1).encode(), state.version)
            return issued.last + 1


async def new_client_id(store: MetadataStore) -> int:
    """Issue an id for a client of the cluster."""
    return await next_id(store, CLIENT_IDS_PATH)


async def read_servers(
    store: MetadataStore, watch: Watch | None = None
) -> tuple[ServerAssignment, int, int, tuple[tuple[str, ServerDescriptor], ...]]:
    """The assignment, its node's version and cversion, and the descriptors with their paths, exactly as at that cversion.

    `watch` fires when the assignment or the set of descriptors changes, but not when a descriptor is rewritten.
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


class _DescriptorGoneError(WaltzError):
    """This server's descriptor is gone: its session was lost, or another server deleted it.

    `until`: when the server's partitions may be opened again, for the log.
    """

    def __init__(self, why: str, until: str) -> None:
        super().__init__(why)
        self.until = until


class Membership:
    """The membership of one server.  Call `register` first, then `follow`."""

    def __init__(self, store: MetadataStore, *, log: logging.Logger, seen: Seen | None = None) -> None:
        self._store, self._log, self._seen = store, log, seen
        self._changed = asyncio.Event()
        self._descriptor: ServerDescriptor | None = None
        self._path = ""
        self._lost: asyncio.Future[str] | None = None  # of the session of the descriptor; None: not registered
        self._writes = asyncio.Lock()  # of the descriptor
        self._namesakes: frozenset[int] = frozenset()  # other servers with the same address

    @property
    def present(self) -> bool:
        """Whether this server is registered, as far as it knows."""
        return self._lost is not None and not self._lost.done()

    async def register(self, host: str, port: int, preferred: Sequence[int] = ()) -> int:
        """Register under a new server id, which is returned; `preferred`: partitions to prefer."""
        number = await next_id(self._store, SERVER_IDS_PATH)
        own = ServerDescriptor(number, host, port, tuple(preferred))
        async with self._writes:
            await self._create_descriptor(own, lambda one: (one.host, one.port) == (host, port))
        return number

    async def delete(self, path: str) -> None:
        """Delete the descriptor of a server that has ended; it is no error if there is none."""
        with contextlib.suppress(NodeMissingError):
            await self._store.delete(path)

    async def _create_descriptor(self, descriptor: ServerDescriptor, ended: Callable[[ServerDescriptor], bool]) -> None:
        _, _, _, servers = await read_servers(self._store)
        for path, one in servers:
            if one.server == descriptor.server or ended(one):
                await self.delete(path)
        lost = self._store.lost  # taken before the descriptor is created, so that the session's end cannot be missed
        self._path = await self._store.create(
            f"{SERVERS_PATH}/{_DESCRIPTOR}", descriptor.encode(), ephemeral=True, sequence=True
        )
        self._descriptor, self._lost = descriptor, lost

    async def follow(self, assigned: Assigned) -> None:
        """Call `assigned` whenever this server's partitions change; compute the assignment if that is due.  Never returns."""
        reported: Mapping[int, int] | None = None

        async def look() -> None:
            nonlocal reported
            if self._lost is None:
                raise _DescriptorGoneError("this server did not register again", "it is among the servers")
            if self._lost.done():
                raise _DescriptorGoneError(self._lost.result(), "the metadata answers again")
            now = await self._read_assignment()
            if now is not None and now != reported and not self._lost.done():
                assigned(now)
                reported = now

        async def failed(error: Exception) -> None:
            nonlocal reported
            match error:
                case _DescriptorGoneError():
                    reported = {}  # before, as it may be interrupted at any place
                    await self._close_and_register_again(assigned, str(error), error.until)
                case PeerError() | SessionLostError():
                    self._log.warning("%s", error)
                    await self._wait(PAUSE)
                case _:
                    self._log.error("the assignment stays as it is: %s", error, exc_info=unforeseen(error))
                    await self._wait(self._store.session_timeout)

        await watch_loop(self._changed, look=look, wait=lambda: self._wait(self._store.session_timeout), failed=failed)

    async def _wait(self, seconds: float) -> None:
        """Wait for a change or the loss of the session, at most `seconds`."""
        changed = asyncio.ensure_future(self._changed.wait())
        either: set[asyncio.Future[Any]] = {changed} if self._lost is None else {changed, self._lost}
        try:
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def _close_and_register_again(self, assigned: Assigned, why: str, until: str) -> None:
        """Close all partitions, and register again under the same id; it may be begun again after an error (MemoryError)."""
        assert self._descriptor is not None, "it registered"
        self._log.error("%s: every partition is closed until %s", why, until)
        assigned({})
        self._lost = None
        while True:
            try:
                async with self._writes:
                    await self._create_descriptor(self._descriptor, lambda _: False)
            except Exception as error:  # of any kind: try until it succeeds
                self._log.warning("not among the servers: %s", error, exc_info=unforeseen(error))
                await asyncio.sleep(PAUSE)
            else:
                self._log.info("server %d is among the servers again", self._descriptor.server)
                return

    async def _read_assignment(self) -> Mapping[int, int] | None:
        """The generations of this server's partitions; None while the assignment was made for another set of servers."""
        assert self._descriptor is not None, "it registered"
        own = self._descriptor.server
        assignment, version, cversion, servers = await read_servers(self._store, self._changed.set)
        if not self._has_descriptor_in(servers):
            raise _DescriptorGoneError(
                f"server {own} was taken from the servers of {self._store.where}", "it stands there again"
            )
        self._tell_namesakes(servers)
        if self._seen is not None:
            self._seen(own, servers)
        if assignment.cversion != cversion:
            if not servers or min(one.server for _, one in servers) != own:
                return None
            written = await self._assign(assignment, version, cversion, [one for _, one in servers])
            if written is None:
                self._changed.set()  # another server wrote first, or the servers changed: read again
                return None
            assignment = written
        return {
            held.partition: held.generation
            for one in assignment.servers
            if one.server == own
            for held in one.partitions
        }

    def _tell_namesakes(self, servers: Iterable[tuple[str, ServerDescriptor]]) -> None:
        """Log other servers with the address of this one, once: ``localhost`` on two machines is two addresses.

        Whoever registered later took the other one for ended; it lives, and has registered again.
        """
        assert self._descriptor is not None, "it registered"
        own, told = self._descriptor, self._namesakes
        self._namesakes = frozenset(
            one.server
            for _, one in servers
            if one.server != own.server and (one.host, one.port) == (own.host, own.port)
        )
        if self._namesakes - told:
            self._log.error(
                "server %s has the address %s as well, and clients reach only one of them: start each with an --advertised-host"
                " of its own",
                ", ".join(map(str, sorted(self._namesakes))),
                Address(own.host, own.port),
            )

    def _has_descriptor_in(self, servers: Iterable[tuple[str, ServerDescriptor]]) -> bool:
        """Whether this server's descriptor is among these."""
        return self._path in (path for path, _ in servers)

    async def _assign(
        self, before: ServerAssignment, version: int, cversion: int, servers: Sequence[ServerDescriptor]
    ) -> ServerAssignment | None:
        """Compute the assignment and write it; None if it has been written since `version`."""
        parameters = await store_parameters(self._store)
        made = assign(before, cversion, parameters.num_partitions, servers)
        with contextlib.suppress(NodeVersionError):
            await self._store.set(SERVERS_PATH, made.encode(), version)
            return made
        return None

    async def prefer(self, partitions: Sequence[int], preferred: bool) -> None:
        """Add partitions to the preferred ones (`preferred`), or remove them, and compute a new assignment.

        Raises RefusedError if this server is not registered, or no longer; ConcurrentUpdateError if other servers wrote the
        assignment in each of `_ATTEMPTS` attempts.
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
            if not self._has_descriptor_in(servers):  # an assignment without servers would lose all generations
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
        """Delete the descriptor, so that other servers get the partitions at once and not after the session timeout."""
        async with self._writes:
            path, self._path = self._path, ""
            if path:
                with contextlib.suppress(WaltzError):
                    await self.delete(path)
