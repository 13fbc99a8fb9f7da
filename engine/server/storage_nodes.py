"""Connections to storage nodes: one for each node, shared by all partitions of the server, made when somebody wants it.

Who wants a node that is just being connected waits for the same attempt; a connection that ended is forgotten.  Who waits for a
node to return waits for one probe of it, however many partitions have a replica there: so it is asked often enough to be back
soon (in the release each partition asks by itself, after pauses that double up to 20 s).  That a node is gone or cannot be
reached, why it refuses, and that it is there again, is logged here, once, whatever the number of partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from waltzctl.engine.errors import DeadlineError, PeerError, PeerUnreachableError, RemoteError
from waltzctl.engine.net.futures import taken
from waltzctl.formats.wire.records import SessionInfo, WireRecord


class Storage(Protocol):
    """What a store session asks of a node; `engine.client.storage_client.StorageClient` is one."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked any more."""

    @property
    def ended(self) -> asyncio.Future[PeerError]:
        """Done with the reason once nothing can be asked any more, also where nothing is asked."""

    async def close(self) -> None:
        """Close the connection."""

    async def last_session_info(self, session_id: int, partition: int, *, offline: bool = False) -> SessionInfo:
        """Let the session in, and tell the one before."""

    async def max_transaction_id(self, session_id: int, partition: int, *, offline: bool = False) -> int:
        """The last transaction."""

    async def set_low_water_mark(
        self, session_id: int, partition: int, low_water_mark: int, *, offline: bool = False
    ) -> None:
        """Begin the session."""

    async def truncate(self, session_id: int, partition: int, transaction_id: int, *, offline: bool = False) -> int:
        """Keep transactions up to this one."""

    async def records(
        self, session_id: int, partition: int, first_transaction_id: int, max_count: int
    ) -> tuple[WireRecord, ...]:
        """Records from a transaction on."""

    async def append(
        self, session_id: int, partition: int, records: Sequence[WireRecord], *, offline: bool = False
    ) -> None:
        """Append records; durable on return."""

    def start_append_encoded(
        self, session_id: int, partition: int, count: int, records: bytes, *, offline: bool = False
    ) -> asyncio.Future[Any]:
        """As `append`, for records in wire form, sent at once: what is started first arrives first."""


Connect = Callable[[str], Awaitable[Storage]]
"""Connects to a node by its name, ``host:port``.  Raises PeerError or RemoteError."""


_PROBE_SECONDS = 0.5
"""Between two attempts to reach a node that somebody waits for."""


class _Probe:
    """Tries to reach a node until it is there, or nobody waits any more."""

    def __init__(self, attempts: asyncio.Task[None]) -> None:
        self.attempts, self.waiting = attempts, 0


class StorageNodes:
    """The connections of one server."""

    def __init__(self, connect: Connect, *, log: logging.Logger) -> None:
        self._connect, self._log = connect, log
        self._lost: dict[str, str] = {}
        self._closed = False
        self._connections: dict[str, asyncio.Task[Storage]] = {}
        self._probes: dict[str, _Probe] = {}

    async def get(self, node: str) -> Storage:
        """The connection to a node.  Raises what connecting raises."""
        found = self._connections.get(node)
        if found is None or (found.done() and (found.cancelled() or found.exception() or found.result().closed)):
            found = asyncio.ensure_future(self._connected(node))
            found.add_done_callback(taken)
            self._connections[node] = found
        return await asyncio.shield(found)

    async def _connected(self, node: str) -> Storage:
        try:
            storage = await self._connect(node)
        except (PeerError, RemoteError) as error:
            self._left_out(node, error)
            raise
        if self._lost.pop(node, None) is not None:
            self._log.info("storage node %s: connected", node)
        storage.ended.add_done_callback(lambda ended: self._left_out(node, ended.result()))
        return storage

    def _left_out(self, node: str, why: PeerError | RemoteError) -> None:
        known = self._lost.get(node)
        gone = isinstance(why, PeerUnreachableError | DeadlineError)
        if self._closed or (known is not None and (gone or known == str(why))):
            return  # that a node which is left out cannot be connected to is nothing new; that it refuses is
        self._lost[node] = str(why)
        self._log.warning("storage node %s is left out until it can be reached: %s", node, why)

    async def returned(self, node: str, seconds: float) -> None:
        """Wait for a node that could not be reached: until it can, at most `seconds`."""
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
        """Close them all."""
        self._closed = True
        for probe in self._probes.values():
            probe.attempts.cancel()
        connections, self._connections = self._connections, {}
        for task in connections.values():
            task.cancel()
        for result in await asyncio.gather(*connections.values(), return_exceptions=True):
            if not isinstance(result, BaseException):
                await result.close()
