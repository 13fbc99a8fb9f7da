"""Ports over a real storage directory, in an event loop on a thread of its own; and plain sockets to talk to them."""

from __future__ import annotations

import asyncio
import datetime
import functools
import ipaddress
import logging
import select
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.builders import build_directory, make_records
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.node.admin_port import AdminPort
from waltzctl.engine.node.data_port import DataPort
from waltzctl.engine.node.hosted_storage import HostedStorage, ServiceOptions
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.formats.segment import Record
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic
from waltzctl.formats.wire.hello import ADMIN_CLIENT, STORAGE_CLIENT, Hello
from waltzctl.formats.wire.storage import WireRecord

T = TypeVar("T")
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
WAYS = [
    pytest.param((loop, tls), id=f"{loop}-{'tls' if tls else 'plain'}", marks=[] if often else [pytest.mark.long])
    for loop, tls, often in (
        ("uvloop", False, True),
        ("asyncio", True, True),
        ("uvloop", True, False),
        ("asyncio", False, False),
    )
]
"""Loops and transports, each once; with ``--long`` each with the other."""
SESSION = 7
METRICS = '{"gauges" : { "waltz-storage.number" : 3 } }'
LOG = logging.getLogger("tests.node.ports")
PATIENCE = 60.0
"""Seconds after which a socket of a test gives up: only so that a hanging test ends."""


@functools.cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate made for this run, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(secret + pem)
        file.flush()
        server.load_cert_chain(file.name)
    client = ssl.create_default_context(cadata=pem.decode())
    return server, client


class Serving:
    """Both ports of a node, and the loop that they live in."""

    def __init__(
        self, hosted: HostedStorage, limits: PortLimits, loop: asyncio.AbstractEventLoop, *, tls: bool
    ) -> None:
        self.hosted, self.limits, self.tls = hosted, limits, tls
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever, name="ports")
        self._thread.start()
        self.data: DataPort
        self.admin: AdminPort
        self.address: tuple[str, int]
        self.admin_address: tuple[str, int]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the ports' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def connections_of_data(self) -> int:
        """How many clients the data port has."""
        return self.call(lambda: len(self.data.connections))

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run something in the ports' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[[], T]) -> T:
        """Call something in the ports' loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def settle(self) -> None:
        """Return when everything that was sent to the ports before was looked at."""
        for _ in range(3):
            self.call(lambda: None)

    def connect(self, *, hello: bool = True) -> Peer:
        """A client of the data port."""
        return Peer(self.address, context=contexts()[1] if self.tls else None, hello=hello)

    def connect_admin(self, *, hello: bool = True, versions: tuple[int, ...] = (0,)) -> AdminPeer:
        """A client of the admin port."""
        return AdminPeer(
            self.admin_address, context=contexts()[1] if self.tls else None, hello=hello, versions=versions
        )

    def start(self) -> None:
        context = contexts()[0] if self.tls else None

        async def work() -> None:
            self.data = DataPort(self.hosted, limits=self.limits, log=LOG)
            self.admin = AdminPort(self.hosted, metrics=lambda: METRICS, limits=self.limits, log=LOG)
            self.address = await self.data.start("127.0.0.1", 0, context)
            self.admin_address = await self.admin.start("127.0.0.1", 0, context)

        self.run(work())

    def stop(self) -> None:
        try:
            for port in (self.data, self.admin):
                self.run(port.close())
                assert port.budget.used == 0, "something is still counted as under way"
                assert (port.output_budget.queued, port.output_budget.made, port.output_budget.promised) == (0, 0, 0)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@contextmanager
def serving(
    path: Path,
    *,
    partitions: int = 2,
    records: int = 0,
    size: int | None = None,
    limits: PortLimits | None = None,
    service: ServiceOptions | None = None,
    tls: bool = False,
    loop: str = "uvloop",
) -> Iterator[Serving]:
    """Serve a directory with partitions 0 to `partitions` - 1 of `records` records each, and one that is not assigned."""
    build_directory(
        path, dict.fromkeys(range(partitions), records), num_partitions=partitions + 1, size=size, session=SESSION
    )
    directory = StorageDirectory.open(path, options=StorageOptions(segment_size_threshold=1 << 30))
    hosted = HostedStorage(directory, options=service or ServiceOptions(), metrics=NodeMetrics(), log=LOG)
    try:
        serving = Serving(hosted, limits or PortLimits(), LOOPS[loop](), tls=tls)
        serving.start()
        try:
            yield serving
        finally:
            hosted.close()
            serving.stop()
    finally:
        hosted.close()


class SharedTls:
    """A TLS connection that one thread may read while another writes, which OpenSSL's own is not made for."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        connected.setblocking(False)
        self._socket, self._lock = connected, threading.Lock()

    def sendall(self, data: bytes) -> None:
        left, deadline = memoryview(data), time.monotonic() + PATIENCE
        while left:
            try:
                with self._lock:
                    left = left[self._socket.send(left[: 1 << 16]) :]
                deadline = time.monotonic() + PATIENCE
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                assert time.monotonic() < deadline, "nobody takes it"
                select.select([], [self._socket], [], 0.002)

    def recv(self, size: int) -> bytes:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with self._lock:
                    return self._socket.recv(size)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                assert time.monotonic() < deadline, "nothing comes"
                select.select([self._socket], [], [], 0.02)

    def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        data = b""
        while len(data) < size and (piece := self.recv(size - len(data))):
            data += piece
        return data

    def fileno(self) -> int:
        return self._socket.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class Peer:
    """A client made of a blocking socket: it sends what it is told to, right or wrong, and reads frames."""

    MAGIC = Magic.STORAGE
    TEXT = STORAGE_CLIENT

    def __init__(
        self,
        address: tuple[str, int],
        *,
        context: ssl.SSLContext | None = None,
        hello: bool = True,
        versions: tuple[int, ...] = (0,),
    ) -> None:
        raw = socket.create_connection(address, timeout=PATIENCE)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket: socket.socket | SharedTls = raw
        self.stream: BufferedReader | SharedTls
        if context is None:
            self.stream = raw.makefile("rb")
        else:
            self.socket = self.stream = SharedTls(context.wrap_socket(raw, server_hostname="localhost"))
        self.version = max(versions)
        if hello:
            self.send(Hello(versions, self.TEXT).encode())
            self.hello()

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def frame(self) -> tuple[int, int, bytes]:
        """Magic, version and body of the next frame, keep-alives included.  Raises EOFError."""
        magic, version, length = FRAME_HEADER.struct.unpack(self._read(FRAME_HEADER.size))
        return magic, version, self._read(length)

    def hello(self) -> Hello:
        magic, version, body = self.frame()
        assert (magic, version) == (Magic.HELLO, 0)
        return Hello.decode(body)

    def body(self) -> bytes:
        """Body of the next frame that is no keep-alive."""
        while True:
            magic, _, body = self.frame()
            assert magic == self.MAGIC
            if body:
                return body

    def receive(self) -> Any:
        return storage.decode(self.body())

    def ask(self, message: Any) -> Any:
        self.send(storage.encode(message))
        return self.receive()

    def _read(self, size: int) -> bytes:
        data = self.stream.read(size)
        if len(data) < size:
            raise EOFError(f"{len(data)} of {size} bytes")
        return data

    def rest(self) -> bytes:
        """Everything up to the end of the connection; a reset is an end as well."""
        data = bytearray()
        try:
            while piece := self.socket.recv(1 << 16):
                data += piece
        except (ConnectionError, ssl.SSLError):
            pass
        return bytes(data)

    def wait_until_reset(self) -> None:
        """Return when the peer has ended the connection; nothing is read."""
        poll = select.poll()
        poll.register(self.socket, 0)  # hang-ups and errors are always told
        assert poll.poll(PATIENCE * 1000), "the connection is still there"

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AdminPeer(Peer):
    """A client of the admin port."""

    MAGIC = Magic.ADMIN
    TEXT = ADMIN_CLIENT

    def receive(self) -> Any:
        return admin.decode(self.body(), self.version)

    def ask(self, message: Any) -> Any:
        self.send(admin.encode(message, self.version))
        return self.receive()


def wire(record: Record) -> WireRecord:
    return WireRecord(record.transaction_id, record.request_id, record.header, record.data, record.data_checksum)


def appends(
    first: int, count: int, *, partition: int = 0, records: int = 1, size: int | None = None, session: int = SESSION
) -> list[bytes]:
    """Frames of `count` append requests with consecutive transactions; their sequence number is their first transaction."""
    made = make_records(count * records, first=first, partition=partition, size=size)
    return [
        storage.encode(
            storage.AppendRequest(session, first + i, partition, tuple(wire(r) for r in made[i : i + records]))
        )
        for i in range(0, count * records, records)
    ]


def success(sequence: int, partition: int = 0, session: int = SESSION) -> storage.SuccessResponse:
    return storage.SuccessResponse(session, sequence, partition)


def bodies(frames: Sequence[bytes]) -> list[bytes]:
    return [frame[FRAME_HEADER.size :] for frame in frames]


def header(magic: int, version: int, length: int) -> bytes:
    return struct.pack(">BHi", magic, version & 0xFFFF, length)
