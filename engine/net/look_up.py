"""Looking up an address, and naming where somebody listens, with the zone of a link-local one (``fe80::1%eth0``, RFC 4007)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any


async def look_up(host: str | None, port: int, *, flags: int = 0) -> list[Any]:
    """As `socket.getaddrinfo`, for TCP.  An address with a zone is not left to the event loop: uvloop's forgets the zone.

    AI_ADDRCONFIG leaves out what is of no use beside others: the C library does not count the loopback address among those that
    the machine has, and would not find ``::1`` where that is the only one of IPv6.
    """
    if host is not None and "%" in host:  # no name is looked up, so that this takes no time
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST)
    loop = asyncio.get_running_loop()
    if flags & socket.AI_ADDRCONFIG:
        with contextlib.suppress(socket.gaierror):
            return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags & ~socket.AI_ADDRCONFIG)


def host_of(name: Any) -> str:
    """The host in a socket's name, as somebody on this machine can give it: with its zone, if it has one."""
    if len(name) > 3 and name[3]:
        return socket.getnameinfo(name, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
    return str(name[0])
