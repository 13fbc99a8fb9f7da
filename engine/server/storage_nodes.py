"""Connections to storage nodes: one for each node, shared by all partitions of a server, and opened on first use.

Concurrent callers share one attempt to connect.  A connection that has ended is opened again on the next call.

While a node cannot be reached, one probe tries it at a short fixed interval for all partitions that have a replica there.  (In
the release each partition tries by itself, after pauses that double up to 20 s.)  The loss of a node, the reason, and its return
are logged here once, whatever the number of partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol
from weakref import WeakSet

from waltzctl.engine.errors import DeadlineError, InvalidRequestError, PeerError, PeerUnreachableError, RemoteError
from waltzctl.engine.net.addresses import Address, parse_address
from waltzctl.engine.net.futures import taken
from waltzctl.formats.wire.records import SessionInfo, WireRecord


class Storage(Protocol):
    """A connection to a storage node, as store sessions use it (`engine.client.storage_client.StorageClient`)."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""

    @property
    def ended(self) -> asyncio.Future[PeerError]:
        """Resolves to the reason when the connection ends, even if no request is in progress."""

    async def close(self) -> None:
        """Close the connection."""

    async def last_session_info(self, session_id: int, partition: int, *, offline: bool = False) -> SessionInfo:
        """Admit the session on the node; returns the session that was in force there before."""

    async def max_transaction_id(self, session_id: int, partition: int, *, offline: bool = False) -> int:
        """The id of the partition's last transaction; -1 if there is none."""

    async def set_low_water_mark(
        self, session_id: int, partition: int, low_water_mark: int, *, offline: bool = False
    ) -> None:
        """Begin the session on the node with this low-water mark."""

    async def truncate(self, session_id: int, partition: int, transaction_id: int, *, offline: bool = False) -> int:
        """Remove the transactions above `transaction_id`; returns the id of the last one left."""

    async def records(
        self, session_id: int, partition: int, first_transaction_id: int, max_count: int
    ) -> tuple[WireRecord, ...]:
        """At most `max_count` records from `first_transaction_id` on."""

    async def append(
        self, session_id: int, partition: int, records: Sequence[WireRecord], *, offline: bool = False
    ) -> None:
        """Append records; durable on return."""

    def start_append_encoded(
        self, session_id: int, partition: int, count: int, records: bytes, *, offline: bool = False
    ) -> asyncio.Future[Any]:
        """As `append`, for `count` records in wire form, sent before it returns: appends arrive in the order of the calls."""


Connect = Callable[[str], Awaitable[Storage]]
"""Connects to a node by its name, ``host:port``.  Raises PeerError, RemoteError."""
_PROBE_SECONDS = 0.5
"""Seconds between two attempts of a probe."""


def address_of(node: str) -> Address:
    """The address of a node by its name in the metadata.

    Raises PeerUnreachableError where that is none: then one replica is missing, and the others go on without it.
    """
    try:
        return parse_address(node)
    except InvalidRequestError as error:
        raise PeerUnreachableError(node, f"the metadata names a storage node so: {error}") from None


class _Probe:
    """A task that tries to connect to a node until it succeeds or has no callers any more; `waiting`: the number of callers."""

    def __init__(self, attempts: asyncio.Task[None]) -> None:
        self.attempts, self.waiting = attempts, 0


class StorageNodes:
    """The connections of one server to storage nodes."""

    def __init__(self, connect: Connect, *, log: logging.Logger) -> None:
        self._connect, self._log = connect, log
        self._lost: dict[str, str] = {}  # nodes that cannot be used, each with the reason as logged
        self._closed = False
        self._connections: dict[str, asyncio.Task[Storage]] = {}
        self._probes: dict[str, _Probe] = {}
        # what closes dropped connections, and which
        self._dropped: dict[asyncio.Task[None], asyncio.Task[Storage]] = {}
        self._unwanted = WeakSet[asyncio.Task[Storage]]()  # all that were dropped: nothing is logged of them

    async def get(self, node: str) -> Storage:
        """The connection to a node.  Raises what connecting raises, and PeerUnreachableError behind `close`."""
        if self._closed:
            raise self._is_closed(node)
        found = self._connections.get(node)
        if found is None or (found.done() and (found.cancelled() or found.exception() or found.result().closed)):
            found = asyncio.ensure_future(self._connected(node))
            found.add_done_callback(taken)
            self._connections[node] = found
        if not found.done():
            await asyncio.wait([found])
        if found.cancelled():
            raise self._is_closed(node)
        return found.result()

    @staticmethod
    def _is_closed(node: str) -> PeerUnreachableError:
        return PeerUnreachableError(node, "the connections to storage nodes are closed here")

    async def _connected(self, node: str) -> Storage:
        made = asyncio.current_task()
        try:
            storage = await self._connect(node)
        except (PeerError, RemoteError) as error:
            self._note_lost(node, made, error)
            raise
        if made not in self._unwanted and self._lost.pop(node, None) is not None:
            self._log.info("storage node %s: connected", node)
        storage.ended.add_done_callback(lambda ended: self._note_lost(node, made, ended.result()))
        return storage

    def _note_lost(self, node: str, made: object, why: PeerError | RemoteError) -> None:
        """The connection that the task `made` made, or was to make, is lost."""
        known = self._lost.get(node)
        gone = isinstance(why, PeerUnreachableError | DeadlineError)
        if self._closed or made in self._unwanted or (known is not None and (gone or known == str(why))):
            return  # dropped, or logged already; for a node that is known to be lost only a new reason to refuse us is news
        self._lost[node] = str(why)
        self._log.warning("storage node %s is left out until it can be reached: %s", node, why)

    @property
    def known(self) -> frozenset[str]:
        """The nodes that were asked for and not dropped since."""
        return frozenset(self._connections)

    def drop(self, nodes: Collection[str]) -> None:
        """Close the connections to nodes of which nothing is needed any more, and forget why they were lost.

        Whoever asks for one all the same gets a new connection.
        """
        for node in nodes:
            self._lost.pop(node, None)
            if (made := self._connections.pop(node, None)) is not None:
                self._unwanted.add(made)
                closing = asyncio.ensure_future(_close_dropped(made))
                self._dropped[closing] = made
                closing.add_done_callback(lambda done: self._dropped.pop(done, None))

    async def returned(self, node: str, seconds: float) -> None:
        """Wait until a node that could not be reached is connected, at most `seconds`."""
        probe = self._probes.get(node)
        if probe is None or probe.attempts.done():
            probe = self._probes[node] = _Probe(asyncio.ensure_future(self._probe(node)))
        probe.waiting += 1
        try:
            await asyncio.wait({probe.attempts}, timeout=seconds)
        finally:
            probe.waiting -= 1
            if not probe.waiting:
                probe.attempts.cancel()
                if self._probes.get(node) is probe:
                    del self._probes[node]

    async def _probe(self, node: str) -> None:
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            with contextlib.suppress(PeerError, RemoteError):
                await self.get(node)
                return

    async def close(self) -> None:
        """Close all connections, also where the caller is cancelled meanwhile."""
        self._closed = True
        for probe in self._probes.values():
            probe.attempts.cancel()
        connections = [*self._dropped.values(), *self._connections.values()]
        self._connections = {}
        for one in self._dropped:  # what closes a dropped connection may not have begun
            one.cancel()
        closing = [asyncio.ensure_future(_close(one)) for one in connections]
        if closing:
            await asyncio.wait([*self._dropped, *closing])
        for done in closing:
            done.result()


async def _close_dropped(made: asyncio.Task[Storage]) -> None:
    """Close a connection once it is made."""
    await asyncio.wait([made])
    if not made.cancelled() and made.exception() is None:
        await made.result().close()


async def _close(connecting: asyncio.Task[Storage]) -> None:
    """Close a connection, or end the attempt to make it."""
    connecting.cancel()
    try:
        await asyncio.wait([connecting])
    finally:  # also where this is cancelled, as at the end of a loop
        if connecting.done() and not connecting.cancelled() and connecting.exception() is None:
            await connecting.result().close()
