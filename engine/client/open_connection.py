"""Connecting to a host that may have several addresses, some of which do not answer (RFC 8305, without its order).

An event loop tries one address after the other, and one whose packets are dropped on the way takes all of the time that a
connection may take: a host with a dead IPv6 route counted as unreachable.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable
from typing import Any

from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.connect_socket import connect_socket

NEXT_AFTER = 0.25
"""Seconds after which the next address is tried as well, while the one before has not answered."""


async def open_connection(make: Callable[[], asyncio.BaseProtocol], address: Address, **tls: Any) -> None:
    """Connect, to the first address of the host that answers.  `tls`: as of `asyncio.loop.create_connection`.

    Raises OSError: that of the first address, where none can be reached; ValueError for no possible host or port.
    """
    loop = asyncio.get_running_loop()
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        connected = await _connected_socket(address)
        await loop.create_connection(make, sock=connected, **tls)
    else:  # nothing to look up, for which the event loop would need a thread
        await loop.create_connection(make, address.host, address.port, **tls)


async def _connected_socket(address: Address) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    places = [*dict.fromkeys(found)]
    attempts: list[asyncio.Task[socket.socket]] = []
    given: asyncio.Task[socket.socket] | None = None
    try:
        while given is None and (places or not all(one.done() for one in attempts)):
            if places:
                attempts.append(asyncio.ensure_future(_attempt(*places.pop(0))))
            waiting = [one for one in attempts if not one.done()]
            await asyncio.wait(waiting, timeout=NEXT_AFTER if places else None, return_when=asyncio.FIRST_COMPLETED)
            given = next((one for one in attempts if one.done() and one.exception() is None), None)
        return (given or attempts[0]).result()
    finally:
        for one in attempts:
            if one is not given:
                one.cancel()
                one.add_done_callback(_close)


async def _attempt(family: int, kind: int, protocol: int, name: str, where: Any) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        await connect_socket(made, where)
    except BaseException:
        made.close()
        raise
    return made


def _close(attempt: asyncio.Task[socket.socket]) -> None:
    """Close the connection of an attempt that nobody waits for any more, if it was made."""
    with contextlib.suppress(OSError, asyncio.CancelledError):
        attempt.result().close()
