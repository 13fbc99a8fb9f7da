"""Memory of a node's process while many clients send as fast as they can and some never read: under 500 MiB."""

from __future__ import annotations

import contextlib
import functools
import itertools
import selectors
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.cli.nodes import Served, serving
from tests.node.serving import SESSION, SharedTls, appends
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.hello import STORAGE_CLIENT, STORAGE_SERVER, Hello

BOUND = 500
"""MiB."""
MIB = 1 << 20
HEAD = 7 + 33
"""Bytes of an append request up to behind the id of its first transaction."""
HELLO = Hello((0,), STORAGE_CLIENT).encode()
SIZES = {
    "small": [100],
    "64 KiB": [60_000, 70_000],
    "1 MiB": [MIB],
    "16 MiB": [16 * MIB],
    "mixed": [100, 1000, 60_000, 70_000, MIB, 16 * MIB, 40 * MIB],
}


def most_memory(served: Served) -> float:
    """The most that the process ever had in memory, MiB."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    most = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(f"{most:.0f} MiB")
    return most


@functools.cache
def template_of(size: int) -> bytes:
    """An append request of one record with so much data."""
    return appends(0, 1, size=size)[0]


@dataclass
class Flood:
    """Append requests of one partition with consecutive transactions, a burst at a time; made without encoding each."""

    partition: int
    size: int
    following: int = 0

    def burst(self) -> list[memoryview]:
        """What to send, in parts: the bulk of a big frame is shared by all floods."""
        template = template_of(self.size)
        count = max(1, 60_000 // len(template))
        frames = bytearray(template * count if count > 1 else template[:HEAD])
        for start in range(0, len(frames), len(template)):
            struct.pack_into(">q", frames, start + 7 + 9, self.following)  # sequence number
            struct.pack_into(">i", frames, start + 7 + 17, self.partition)
            struct.pack_into(">q", frames, start + 7 + 25, self.following)  # transaction
            self.following += 1
        return [memoryview(frames)] if count > 1 else [memoryview(frames), memoryview(template)[HEAD:]]


def push(served: Served, floods: list[Flood], total: int, *, read: bool = True) -> int:
    """Send over a connection each, until so many bytes were sent or nobody takes any more; the answers that came."""
    selector = selectors.DefaultSelector()
    with contextlib.ExitStack() as stack:
        stack.callback(selector.close)
        pending: dict[int, list[memoryview]] = {}
        received = [0] * len(floods)
        for number in range(len(floods)):
            connection = stack.enter_context(served.connect())
            connection.sendall(HELLO)
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ * read | selectors.EVENT_WRITE, number)
            pending[number] = []
        sent = 0
        while sent < total:
            ready = selector.select(3.0)
            if not ready:
                break  # peers that do not read are not read from either
            for key, events in ready:
                number, connection = key.data, key.fileobj
                assert isinstance(connection, socket.socket)
                if events & selectors.EVENT_READ:
                    received[number] += len(connection.recv(MIB))
                if events & selectors.EVENT_WRITE:
                    if not pending[number]:
                        pending[number] = floods[number].burst()
                    with contextlib.suppress(BlockingIOError):
                        done = connection.send(pending[number][0])
                        pending[number][0] = pending[number][0][done:]
                        sent += done
                        if not pending[number][0]:
                            del pending[number][0]
        if not read:
            return 0
        greeting, answer = (
            len(Hello((0,), STORAGE_SERVER).encode()),
            len(storage.encode(storage.SuccessResponse(1, 1, 1))),
        )
        for key in list(selector.get_map().values()):
            selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
        while any((one - greeting) % answer for one in received) and (ready := selector.select(3.0)):
            for key, _ in ready:  # the rest of what had come in part
                assert isinstance(key.fileobj, socket.socket)
                received[key.data] += len(piece := key.fileobj.recv(MIB))
                if not piece:
                    selector.unregister(key.fileobj)
        assert not any((one - greeting) % answer for one in received)  # nothing but successes
        return sum(received) - greeting * len(received)


@contextlib.contextmanager
def node(path: Path, *options: object, partitions: int = 64, records: int = 0, size: int = 100) -> Iterator[Served]:
    build_directory(path, dict.fromkeys(range(partitions), records), size=size, session=SESSION)
    with serving(path, "--port", "0", "--http-port", "off", *options) as served:
        yield served


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("connections", "sizes", "total"),
    [
        (64, "mixed", 150 * MIB),
        *(pytest.param(64, name, 2000 * MIB, marks=pytest.mark.long) for name in SIZES),
        pytest.param(1000, "mixed", 2000 * MIB, marks=pytest.mark.long),
    ],
)
def test_memory_is_bounded_while_clients_append_as_fast_as_they_can(
    tmp_path: Path, connections: int, sizes: str, total: int
) -> None:
    found = itertools.cycle(SIZES[sizes])
    floods = [Flood(number, next(found)) for number in range(connections)]
    with node(tmp_path / "d", "--plaintext", partitions=connections) as served:
        assert push(served, floods, total) > 0
        assert most_memory(served) < BOUND


@pytest.mark.long
def test_memory_is_bounded_when_nobody_reads_the_answers(tmp_path: Path) -> None:
    with node(tmp_path / "d", "--plaintext") as served:
        push(served, [Flood(number, 100) for number in range(64)], 2000 * MIB, read=False)
        assert most_memory(served) < BOUND


@pytest.mark.long
@pytest.mark.parametrize("size", [1000, MIB])
def test_memory_is_bounded_when_nobody_reads_the_lists_that_were_asked_for(tmp_path: Path, size: int) -> None:
    count = 8 * MIB // size
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(node(tmp_path / "d", "--plaintext", partitions=16, records=count, size=size))
        for number in range(64):
            ask = storage.encode(storage.RecordListRequest(SESSION, 1, number % 16, 0, 1_000_000))
            connection = stack.enter_context(served.connect())
            connection.setblocking(False)
            connection.send(HELLO + ask * 1000)
        with served.connect() as connection:  # somebody else is served all the while
            connection.sendall(HELLO)
            connection.recv(100)
            for _ in range(2000):
                connection.sendall(storage.encode(storage.MaxTransactionIdRequest(SESSION, 1, 3)))
                assert connection.recv(100)
        assert most_memory(served) < BOUND


@pytest.mark.long
def test_memory_is_bounded_under_tls(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    found = itertools.cycle(SIZES["mixed"])

    def work(flood: Flood) -> None:
        sent = 0
        with served.connect() as plain:
            connection = SharedTls(context.wrap_socket(plain))
            connection.sendall(HELLO)
            reader = threading.Thread(target=read, args=(connection,), daemon=True)
            reader.start()
            while sent < 30 * MIB:
                for part in flood.burst():
                    connection.sendall(part)
                    sent += len(part)
            connection.shutdown(socket.SHUT_RDWR)
            reader.join()

    def read(connection: SharedTls) -> None:
        with contextlib.suppress(OSError):
            while connection.recv(MIB):
                pass

    with node(tmp_path / "d") as served:
        threads = [threading.Thread(target=work, args=(Flood(number, next(found)),)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most_memory(served) < BOUND
