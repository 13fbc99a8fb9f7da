"""Connections between a client and a log server's port, byte for byte, without sockets: delays, pieces, and losses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any


class Pipe(asyncio.Transport):
    """One end: what is written here arrives at the other end's protocol, later and in pieces."""

    def __init__(self, chance: Random, loss: Callable[[], float]) -> None:
        super().__init__()
        self._chance, self._loss = chance, loss
        self._loop = asyncio.get_running_loop()
        self.protocol: Any = None
        self.other: Pipe
        self._arrival = 0.0
        self._closing = self._gone = self._paused = False
        self._waiting: list[bytes] = []

    def write(self, data: Any) -> None:
        if self._closing:
            return
        if self._loss() and self._chance.random() < self._loss():
            self.cut()
            return
        self._later(self.other._arrived, bytes(data))

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        self._arrival = max(self._arrival + 1e-6, self._loop.time() + self._chance.uniform(0.0002, 0.01))
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


def connect(client: Any, server: Any, chance: Random, loss: Callable[[], float]) -> Pipe:
    """Join two protocols; the client's end."""
    here, there = Pipe(chance, loss), Pipe(chance, loss)
    here.other, there.other = there, here
    here.protocol, there.protocol = client, server
    server.connection_made(there)
    client.connection_made(here)
    return here
