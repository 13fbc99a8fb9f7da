"""What the tests of a whole node share: a running one, and a peer of its ports made of nothing but a socket and frames."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.descriptors import open_descriptors
from waltzctl.engine.durable import disk
from waltzctl.engine.net.single_flight import SingleFlight
from waltzctl.engine.node.node import Node
from waltzctl.engine.node.node_settings import NodeOptions
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.frame import FrameReader, Magic
from waltzctl.formats.wire.hello import ADMIN_CLIENT, STORAGE_CLIENT, Hello
from waltzctl.formats.wire.storage import AppendRequest, StorageMessage, WireRecord

LOG = logging.getLogger("waltzctl.test")
PATIENCE = 60.0
"""Seconds after which a wait counts as a failure; nothing takes nearly as long."""

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def run(work: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    """Run a test's coroutine on one of the two event loops."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if loop == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(work, PATIENCE))


@contextlib.asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[Node]:
    """A node with free ports, without TLS unless told otherwise; stopped at the end."""
    node = await Node.start(node_options(path, **options), log=LOG, version="1.2.3")
    try:
        yield node
    finally:
        await node.stop(PATIENCE)


def node_options(path: Path, **options: Any) -> NodeOptions:
    return NodeOptions(**{"directory": path, "port": 0, "plaintext": True, **options})


class Peer:
    """A connection to one of the two binary ports."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, magic: Magic, decode: Callable[[bytes], Any]
    ) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameReader()
        self._magic, self._decode = magic, decode

    @classmethod
    async def data(
        cls, node: Node, context: ssl.SSLContext | None = None, *, receive_buffer: int | None = None
    ) -> Peer:
        """A client of the data port that has sent its Hello and read the node's."""
        where = node.addresses
        return await cls._open(
            where.host, where.port, Magic.STORAGE, STORAGE_CLIENT, storage.decode, context, receive_buffer
        )

    @classmethod
    async def admin(cls, node: Node, context: ssl.SSLContext | None = None) -> Peer:
        """The same for the admin port, version 0."""
        where = node.addresses
        return await cls._open(where.host, where.admin_port, Magic.ADMIN, ADMIN_CLIENT, admin.decode, context)

    @classmethod
    async def _open(
        cls,
        host: str,
        port: int,
        magic: Magic,
        text: str,
        decode: Callable[[bytes], Any],
        context: ssl.SSLContext | None,
        receive_buffer: int | None = None,
    ) -> Peer:
        own = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if receive_buffer is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, (host, port))
        name = host if context is not None else None
        opened = await asyncio.open_connection(
            sock=own, ssl=context, server_hostname=name, limit=receive_buffer or 1 << 16
        )
        peer = cls(*opened, magic, decode)
        peer.writer.write(Hello((0,), text).encode())
        hello = await peer._body(Magic.HELLO)
        assert hello is not None
        assert 0 in Hello.decode(hello).versions
        return peer

    async def _body(self, magic: Magic) -> bytes | None:
        while (body := self._frames.next(magic, 0)) is None:
            data = await self.reader.read(1 << 16)
            if not data:
                return None
            self._frames.feed(data)
        return bytes(body)

    async def receive(self) -> Any:
        """The next message; None at the end."""
        body = await self._body(self._magic)
        return None if body is None else self._decode(body)

    async def ask(self, frame: bytes) -> Any:
        """Send a frame and wait for the next message."""
        self.writer.write(frame)
        return await self.receive()

    async def request(self, message: StorageMessage) -> Any:
        """The answer to a message of the data port."""
        return await self.ask(storage.encode(message))

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await self.writer.wait_closed()


def record(transaction_id: int, data: bytes = b"abc", *, partition: int = 0) -> WireRecord:
    return WireRecord.make(transaction_id, RequestId(1, 2, partition, transaction_id), 5, data)


def append(transaction_id: int, *, session_id: int = 7, count: int = 1, partition: int = 0) -> AppendRequest:
    """An append of `count` records; its sequence number is its first id."""
    records = tuple(record(transaction_id + step, partition=partition) for step in range(count))
    return AppendRequest(session_id, transaction_id, partition, records)


@dataclass(frozen=True)
class Answer:
    """What the HTTP port answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def health(self) -> Any:
        """The message of the health check, which is JSON as well."""
        return json.loads(self.json["storage-health-check"]["message"])


async def get(node: Node, path: str, *, method: str = "GET", **headers: str) -> Answer:
    """One HTTP request, written by hand."""
    port = node.addresses.http_port
    assert port is not None
    lines = [f"{method} {path} HTTP/1.1", "Host: node", *(f"{name}: {value}" for name, value in headers.items())]
    return await http(node.addresses.host, port, ("\r\n".join(lines) + "\r\n\r\n").encode())


async def http(host: str, port: int, request: bytes) -> Answer:
    """Send bytes to the HTTP port and read until the node closes."""
    async with connected(host, port) as (reader, writer):
        writer.write(request)
        raw = await reader.read()
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    found = dict(line.split(": ", 1) for line in lines)
    assert len(body) == int(found["Content-Length"]) or not body
    return Answer(int(status.split()[1]), found, body)


@contextlib.asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection; gone at the end of the block."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    """What the node sends until it closes, or cuts, the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(1 << 16):
            received += data
    return received


class StuckDisk:
    """While the block runs, whoever has changed a file that is meant by `which` does not come back from it.

    The real disk layer, with a real change: only its return is late.
    """

    def __init__(self, which: Callable[[Path], bool]) -> None:
        self._which = which
        self._hit, self._go_on = threading.Event(), threading.Event()

    def _observe(self, change: disk.Change) -> None:
        if self._which(change.path):
            self._hit.set()
            assert self._go_on.wait(PATIENCE)

    async def reached(self) -> None:
        """Returns when somebody hangs."""
        await SingleFlight(lambda: self._hit.wait(PATIENCE), name="reached").result(None)

    def __enter__(self) -> StuckDisk:
        assert disk.observer is None
        disk.observer = self._observe
        return self

    def __exit__(self, *_: object) -> None:
        disk.observer = None
        self._go_on.set()


@dataclass(frozen=True)
class Held:
    """What a process holds of the system."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[str]

    @classmethod
    def now(cls) -> Held:
        """Threads by identity, descriptors by number and what they are open for."""
        found = frozenset(f"{number} {what}" for number, what in open_descriptors().items())
        return cls(frozenset(threading.enumerate()), found)

    def sockets_and_files(self, path: Path) -> set[str]:
        """Descriptors of sockets, and of files below a directory."""
        return {one for one in self.descriptors if "socket:" in one or str(path) in one}
