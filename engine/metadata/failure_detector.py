"""Detection of dead log servers by their connections, before their sessions with the metadata time out.

Each server keeps a connection to the next `WATCHED` servers in the order of their ids, cyclically.  If such a connection ends,
and further connections to the address are refused, the process has ended:

===================================================  ===========================================================================
observation                                          conclusion
===================================================  ===========================================================================
was connected, the connection ended, and             the process has ended: its descriptor is deleted
`_REFUSALS` attempts in a row were refused
was connected, the connection ended; attempts time   none: the machine or the network may be down; the session with the metadata
out or fail otherwise                                decides
never connected                                      none: the address may be reachable for clients only
connected                                            the process lives; it may be stopped
===================================================  ===========================================================================

A server wrongly taken for dead (a firewall that refuses in its name) registers again by itself.  No partition has two owners
meanwhile, because a later generation ends the sessions of an earlier one.  The release has no such detection and waits for the
session timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from waltzctl.engine.errors import PeerError
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.connect_socket import connect_socket
from waltzctl.engine.net.look_up import look_up
from waltzctl.formats.znodes import ServerDescriptor

WATCHED = 3
"""Servers that each one watches: so many may die at the same time and be detected."""
_REFUSALS = 3
"""Refused attempts in a row after which a process counts as ended."""
_RETRY = 0.1
"""Seconds between attempts to reach a server whose connection ended."""
_LONGEST_RETRY = 2.0
_NEVER_CONNECTED_RETRY = 60.0
"""The longest pause between attempts to reach a server that was never connected: its death could not be detected anyway."""


class PeerConnection(Protocol):
    """A connection to a log server."""

    @property
    def ended(self) -> asyncio.Future[PeerError]:
        """Resolves to the reason when the connection ends."""

    async def close(self) -> None:
        """Close the connection."""


Connect = Callable[[Address], Awaitable[PeerConnection]]
"""Connects to a log server.  Raises PeerError."""
Refused = Callable[[Address], Awaitable[bool]]
"""Whether an address refuses connections, so that no process listens there."""
Delete = Callable[[str], Awaitable[None]]
"""Deletes a server's descriptor, by its path; it is no error if there is none.  Raises WaltzError."""


async def is_refused(address: Address) -> bool:
    """Whether every address of the host name refuses a connection; False for a timeout or any other failure."""
    try:
        found = await look_up(address.host, address.port)
        for family, kind, protocol, _, where in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setblocking(False)
                with contextlib.suppress(ConnectionRefusedError):
                    async with asyncio.timeout(_LONGEST_RETRY):
                        await connect_socket(probe, where)
                    return False
    except (OSError, UnicodeError):  # TimeoutError is an OSError; UnicodeError: not a host name
        return False
    return bool(found)


class FailureDetector:
    """The failure detector of one server.  Call `watch` whenever the set of servers changes, and `close` at the end."""

    def __init__(self, connect: Connect, delete: Delete, *, log: logging.Logger, refused: Refused = is_refused) -> None:
        self._connect, self._delete, self._refused, self._log = connect, delete, refused, log
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Those of `_watched`, and of servers that are watched no longer, until they have ended; in the order of their start."""

    def watch(self, own: int, servers: Sequence[tuple[str, ServerDescriptor]]) -> None:
        """Set the registered servers, each with the path of its descriptor; `own`: the id of this server."""
        wanted = successors(own, servers)
        for path in [one for one in self._watched if one not in wanted]:
            self._watched.pop(path).cancel()
        for path, server in wanted.items():
            if path not in self._watched:
                task = self._watched[path] = asyncio.ensure_future(self._watch_server(path, server))
                self._tasks[task] = None
                task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def close(self) -> None:
        """Stop watching."""
        self._watched.clear()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_server(self, path: str, server: ServerDescriptor) -> None:
        address = Address(server.host, server.port)
        was_connected, refusals, pause = False, 0, _RETRY
        while refusals < _REFUSALS or not await self._delete_descriptor(path, server):
            try:
                connection = await self._connect(address)
                was_connected, refusals, pause = True, 0, _RETRY
                try:
                    await asyncio.shield(connection.ended)
                finally:
                    await connection.close()
            except PeerError:
                refusals = refusals + 1 if was_connected and await self._is_refused(address) else 0
                longest = _LONGEST_RETRY if was_connected else _NEVER_CONNECTED_RETRY
                pause = _RETRY if 0 < refusals <= _REFUSALS else min(2 * pause, longest)
            except Exception as error:  # for instance a descriptor without a valid address, or MemoryError
                self._log.warning("server %d at %s:%d: %r", server.server, server.host, server.port, error)
                refusals, pause = 0, min(2 * pause, _LONGEST_RETRY if was_connected else _NEVER_CONNECTED_RETRY)
            await asyncio.sleep(pause)

    async def _is_refused(self, address: Address) -> bool:
        try:
            return await self._refused(address)
        except Exception as error:  # for instance MemoryError: nothing follows from it
            self._log.warning("%s: whether somebody listens there is not known: %r", address, error)
            return False

    async def _delete_descriptor(self, path: str, server: ServerDescriptor) -> bool:
        try:
            await self._delete(path)
        except Exception as error:  # of any kind: the next attempt may succeed
            why = str(error) or type(error).__name__
            self._log.warning("server %d at %s:%d has ended: %s", server.server, server.host, server.port, why)
            return False
        self._log.warning(
            "server %d at %s:%d has ended and is taken from the servers: it closed its connection, and nobody listens there",
            server.server,
            server.host,
            server.port,
        )
        return True


def successors(own: int, servers: Sequence[tuple[str, ServerDescriptor]]) -> Mapping[str, ServerDescriptor]:
    """The next `WATCHED` servers after `own` in the order of their ids, cyclically, by the paths of their descriptors."""
    others = sorted((one for one in servers if one[1].server != own), key=lambda one: one[1].server)
    behind = sum(one.server < own for _, one in others)
    return dict([*others[behind:], *others[:behind]][:WATCHED])
