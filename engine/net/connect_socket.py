"""Connecting a socket in an event loop, to an address that may have a zone (``fe80::1%eth0``, RFC 4007)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any


async def connect_socket(made: socket.socket, where: Any) -> None:
    """As `loop.sock_connect`, of which uvloop's forgets the zone of an address."""
    with contextlib.suppress(BlockingIOError):
        made.connect(where)
        return
    loop, writable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(made, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(made)
    if number := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(number, os.strerror(number))
