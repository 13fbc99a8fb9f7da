"""Progress of workers, sent to the driver in small UDP datagrams: a packet's number, and how many of its bytes are done.

Spark reports only completed tasks, and a task may read for minutes.  A lost datagram, or a network that blocks them, affects
nothing but the displayed progress, which is then that of completed tasks.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from waltzctl.engine.spark.masters import master_addresses

_MESSAGE = struct.Struct("!16sIQ")
_EVERY = 0.2
"""Seconds between two datagrams of a worker, at least."""


@dataclass(frozen=True, slots=True)
class MessageAddress:
    """The receiver's address.  The token distinguishes the messages of one job from any other datagram."""

    host: str
    port: int
    token: bytes


class Receiver:
    """Receives messages and adds them up.  A context manager; not thread-safe."""

    def __init__(self, master: str) -> None:
        """`master`: Spark's, which determines the address of this machine that its workers can reach."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._done: dict[int, int] = {}
        self.address: MessageAddress | None = None
        with contextlib.suppress(OSError):
            self._socket.setblocking(False)
            self._socket.bind((_own_address(master), 0))
            host, port = self._socket.getsockname()
            self.address = MessageAddress(host, port, secrets.token_bytes(16))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def done(self) -> int:
        """Bytes done in all packets, as far as messages tell.  A packet that is run again does not count twice."""
        while self.address is not None:
            try:
                data = self._socket.recv(_MESSAGE.size + 1)
            except OSError:
                break
            if len(data) == _MESSAGE.size:
                token, packet, amount = _MESSAGE.unpack(data)
                if secrets.compare_digest(token, self.address.token):
                    self._done[packet] = max(amount, self._done.get(packet, 0))
        return sum(self._done.values())


def _own_address(master: str) -> str:
    """The address of this machine on the route to the master; the loopback address where workers are local."""
    masters = master_addresses(master)
    if not masters:
        return "127.0.0.1"
    host = masters[0][0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: it only chooses the way
        own: str = probe.getsockname()[0]
        return own


class ProgressSender:
    """Sends the progress of a packet, a few times a second at most."""

    def __init__(self, address: MessageAddress | None, packet: int) -> None:
        self._address = address
        self._packet = packet
        self._done = 0
        self._told = 0.0

    def advance(self, amount: int) -> None:
        """Add `amount` bytes to those done."""
        self._done += amount
        now = time.monotonic()
        if self._address is None or now - self._told < _EVERY:
            return
        self._told = now
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            message = _MESSAGE.pack(self._address.token, self._packet, self._done)
            line.sendto(message, (self._address.host, self._address.port))
