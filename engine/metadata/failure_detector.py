"""Log servers that died, found out by their connections before their sessions with the metadata time out.

Each server keeps a connection to the next ones in the order of their ids, the first following the last.  When the system at the
other end ends it, and nobody listens under the address any more, the process has ended:

==========================================  ====================================================================================
what is seen                                what it says
==========================================  ====================================================================================
a connection stood and ended; then every    the process ended, its descriptor is deleted
one of `_REFUSALS` attempts was refused
it stood and ended; attempts find nobody    the machine or the network may be the reason: the session with the metadata decides
no connection ever stood                    nothing: the address may be one that only clients reach
it stands                                   the process lives, perhaps stopped: as far as this goes, nothing
==========================================  ====================================================================================

A server that is taken for dead wrongly (a firewall that refuses in its name) stands among the servers again by itself, and never
had two owners of a partition to fear: a later generation ends the session of an earlier one.  Ours: the release waits for the
session's timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from waltzctl.engine.errors import PeerError, WaltzError
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.znodes import ServerDescriptor

WATCHED = 3
"""How many servers each one watches: so many may die at once and be noticed."""
_REFUSALS = 3
_RETRY = 0.1
"""Seconds between attempts to reach a server whose connection ended."""
_LONGEST_RETRY = 2.0
_UNKNOWN_RETRY = 60.0
"""The longest pause between attempts to reach one to which no connection ever stood: of its death nothing would be known."""


class PeerConnection(Protocol):
    """To a log server."""

    @property
    def ended(self) -> asyncio.Future[PeerError]:
        """Done with the reason once it has ended."""

    async def close(self) -> None:
        """End it."""


Connect = Callable[[Address], Awaitable[PeerConnection]]
"""Connects to a log server.  Raises PeerError."""
Refused = Callable[[Address], Awaitable[bool]]
"""Whether the system at an address says that nobody listens there."""
Delete = Callable[[str], Awaitable[None]]
"""Deletes a server's descriptor, by its path.  Raises WaltzError; one that is gone is no error."""


async def is_refused(address: Address) -> bool:
    """Whether every address that the name stands for refuses a connection; an attempt that finds nobody does not count."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setblocking(False)
                with contextlib.suppress(ConnectionRefusedError):
                    async with asyncio.timeout(_LONGEST_RETRY):
                        await loop.sock_connect(probe, where)
                    return False
    except (OSError, UnicodeError):  # a deadline as well, and what can be no name
        return False
    return bool(found)


class FailureDetector:
    """What one server, `own` by its id, knows of the others.  `watch` whenever they changed, `close` in the end."""

    def __init__(self, connect: Connect, delete: Delete, *, log: logging.Logger, refused: Refused = is_refused) -> None:
        self._connect, self._delete, self._refused, self._log = connect, delete, refused, log
        self._watched: dict[str, asyncio.Task[None]] = {}

    def watch(self, own: int, servers: Sequence[tuple[str, ServerDescriptor]]) -> None:
        """These servers live, says the metadata: each with the path of its descriptor."""
        wanted = successors(own, servers)
        for path in [one for one in self._watched if one not in wanted]:
            self._watched.pop(path).cancel()
        for path, server in wanted.items():
            if path not in self._watched:
                self._watched[path] = asyncio.ensure_future(self._follow(path, server))

    async def close(self) -> None:
        """Watch nobody any more."""
        tasks = [*self._watched.values()]
        self._watched.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, path: str, server: ServerDescriptor) -> None:
        address = Address(server.host, server.port)
        stood, refusals, pause = False, 0, _RETRY
        while refusals < _REFUSALS or not await self._deleted(path, server):
            try:
                connection = await self._connect(address)
            except PeerError:
                refusals = refusals + 1 if stood and await self._refused(address) else 0
                longest = _LONGEST_RETRY if stood else _UNKNOWN_RETRY
                pause = _RETRY if 0 < refusals <= _REFUSALS else min(2 * pause, longest)
            except Exception as error:  # a descriptor that names no address, no memory: nobody else would watch it
                self._log.warning("server %d at %s:%d: %r", server.server, server.host, server.port, error)
                refusals, pause = 0, min(2 * pause, _LONGEST_RETRY if stood else _UNKNOWN_RETRY)
            else:
                stood, refusals, pause = True, 0, _RETRY
                try:
                    await asyncio.shield(connection.ended)
                finally:
                    await connection.close()
            await asyncio.sleep(pause)

    async def _deleted(self, path: str, server: ServerDescriptor) -> bool:
        try:
            await self._delete(path)
        except WaltzError as error:
            self._log.warning("server %d at %s:%d has ended: %s", server.server, server.host, server.port, error)
            return False
        self._log.warning(
            "server %d at %s:%d has ended and is taken from the servers: it closed its connection, and nobody listens there",
            server.server,
            server.host,
            server.port,
        )
        return True


def successors(own: int, servers: Sequence[tuple[str, ServerDescriptor]]) -> Mapping[str, ServerDescriptor]:
    """The next `WATCHED` servers behind `own` in the order of their ids, the first following the last, by their paths."""
    others = sorted((one for one in servers if one[1].server != own), key=lambda one: one[1].server)
    behind = sum(one.server < own for _, one in others)
    return dict([*others[behind:], *others[:behind]][:WATCHED])
