"""The end of a TCP connection that loses no answer on its way (lingering close), or at once, with a reset.

Closing a socket that has unread bytes sends a reset, and the peer would lose answers that are still on their way.  So a socket is
closed only when nothing is `unacknowledged`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios

_LINGER_RESET = struct.pack("ii", 1, 0)
"""`struct linger` (on, 0 s): `close` sends a reset and discards unsent bytes."""


def unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes in the socket's send queue that the peer's TCP has not acknowledged; 0 where the system does not tell."""
    accepted = transport.get_extra_info("socket")
    if accepted is None:
        return 0
    waiting = bytearray(4)
    try:
        fcntl.ioctl(accepted.fileno(), termios.TIOCOUTQ, waiting)
    except (OSError, ValueError):  # the socket has been closed meanwhile
        return 0
    return int.from_bytes(waiting, sys.byteorder)


def reset(transport: asyncio.Transport) -> None:
    """Close at once, with a reset, so that the kernel does not keep unsent answers either."""
    accepted = transport.get_extra_info("socket")
    if accepted is not None:  # under TLS the socket may be gone before the connection is lost
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    transport.abort()
