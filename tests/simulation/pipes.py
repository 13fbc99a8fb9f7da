"""Connections between a client and a port, byte for byte, without sockets: delays, pieces, losses, and silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from waltzctl.engine.errors import PeerUnreachableError


@dataclass
class Way:
    """What happens on the way, now.  Shares of all writes: `loss` with which the connection is lost for both ends, `stall` with
    which nothing that is written at this end arrives any more, and nobody is told.  `slow`: how many times as long it takes.
    """

    loss: float = 0.0
    stall: float = 0.0
    slow: float = 1.0


class Pipe(asyncio.Transport):
    """One end: what is written here arrives at the other end's protocol, later and in pieces."""

    def __init__(self, chance: Random, way: Way) -> None:
        super().__init__()
        self._chance, self._way = chance, way
        self._loop = asyncio.get_running_loop()
        self.protocol: Any = None
        self.other: Pipe
        self._arrival = 0.0
        self._closing = self._gone = self._paused = self._silent = False
        self._waiting: list[bytes] = []

    def write(self, data: Any) -> None:
        way = self._way
        if self._closing or self._silent:
            return
        if way.loss and self._chance.random() < way.loss:
            self.cut()
        elif way.stall and self._chance.random() < way.stall:
            self._silent = True
        else:
            self._later(self.other._arrived, bytes(data))

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        delay = self._chance.uniform(0.0002, 0.01) * self._way.slow
        self._arrival = max(self._arrival + 1e-6, self._loop.time() + delay)
        self._loop.call_at(self._arrival, call, *arguments)

    def writelines(self, data: Any) -> None:
        self.write(b"".join(data))

    def _arrived(self, data: bytes) -> None:
        if self._gone:
            return
        if self._paused:
            self._waiting.append(data)
        elif isinstance(self.protocol, asyncio.BufferedProtocol):
            while data and not self._gone:
                room = self.protocol.get_buffer(-1)
                count = min(len(room), len(data))
                room[:count] = data[:count]
                data = data[count:]
                self.protocol.buffer_updated(count)
        else:
            self.protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._loop.call_soon(self._arrived, one)

    def cut(self) -> None:
        """The connection is lost for both ends, each of which hears of it sometime."""
        for end in (self, self.other):
            if not end._closing:
                end._closing = True
                end._later(end._lost)

    def _lost(self) -> None:
        if not self._gone:
            self._gone = True
            self.protocol.connection_lost(None)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._loop.call_soon(self._lost)
        if not self._silent:
            self._later(self.other._closed)

    def _closed(self) -> None:
        if not self._gone and not self._closing:
            self._closing = True
            self._lost()

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There are none."""


def connect(client: Any, server: Any, chance: Random, way: Way) -> Pipe:
    """Join two protocols; the client's end."""
    here, there = Pipe(chance, way), Pipe(chance, way)
    here.other, there.other = there, here
    here.protocol, there.protocol = client, server
    server.connection_made(there)
    client.connection_made(here)
    return here


class Greeting(Protocol):
    """A connection of ours (`engine.client.client_connection.NodePortConnection`)."""

    timeout: float
    _greeted: asyncio.Future[None]
    _closed: asyncio.Future[None]


async def greeted(connection: Greeting, peer: str) -> None:
    """Wait as `NodePortConnection.connect` does until both ends know each other.  Raises PeerUnreachableError."""
    waiting = {connection._greeted, connection._closed}
    done, _ = await asyncio.wait(waiting, timeout=connection.timeout, return_when=asyncio.FIRST_COMPLETED)
    if connection._greeted not in done:
        raise PeerUnreachableError(peer, "the connection was lost")
