"""Peers that push as fast as they can, and peers that never read: the node's memory stays within its bound.

What is measured is the peak of the process's resident memory (VmHWM), which the system keeps.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.served import ServedNode, records_of
from tests.interop.processes import Stage
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.storage.directory import create_cluster
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import Layout
from waltzctl.formats.wire import storage as wire
from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.hello import STORAGE_CLIENT, Hello
from waltzctl.formats.wire.records import WireRecord

pytestmark = pytest.mark.turns(10)

CONNECTIONS = 64
BOUND = 500 << 20
"""Bytes of resident memory."""
PUSHED = 4 << 20
PUSHED_WHEN_LONG = 64 << 20
"""Bytes that each connection sends."""
SESSION = 7


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "logs") as made:
        yield made


@pytest.fixture
def node(stage: Stage, tmp_path: Path) -> ServedNode:
    directory = tmp_path / "storage"
    create_cluster([directory], num_partitions=CONNECTIONS, layout=Layout.RELEASED)
    served = ServedNode(stage, directory)
    served.start()
    return served


def peak_memory(node: ServedNode) -> int:
    """Bytes."""
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def appends(partition: int, total: int, *, batch: int, size: int) -> Iterator[bytes]:
    """Append requests with consecutive ids, as one client sends them without waiting."""
    following = sequence = sent = 0
    blank = records_of(partition, 0, 1)[0]
    data = bytes(size)
    checksum = crc32(data)
    while sent < total:
        records = tuple(
            WireRecord(number, blank.request_id, 0, data, checksum) for number in range(following, following + batch)
        )
        raw = wire.encode(wire.AppendRequest(SESSION, sequence, partition, records, False))
        following, sequence, sent = following + batch, sequence + 1, sent + len(raw)
        yield raw


async def _connect(node: ServedNode) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(Hello((0,), STORAGE_CLIENT).encode())
    return reader, writer


async def _push(node: ServedNode, partition: int, total: int) -> None:
    """Send without looking at an answer; then ask what is there, in order behind all the rest."""
    reader, writer = await _connect(node)
    received = bytearray()

    async def collect() -> None:
        while part := await reader.read(1 << 16):
            received.extend(part)

    collecting = asyncio.create_task(collect())
    count = 0
    for raw in appends(partition, total, batch=100, size=1000):
        writer.write(raw)
        await writer.drain()
        count += 1
    expected = b"".join(wire.encode(wire.SuccessResponse(SESSION, sequence, partition)) for sequence in range(count))
    while len(received) < 7 or len(received) - _hello_size(received) < len(expected):
        assert not collecting.done(), "the node closed the connection"
        await asyncio.sleep(0.01)
    assert received[_hello_size(received) :] == expected
    writer.close()
    collecting.cancel()


def _hello_size(received: bytearray) -> int:
    assert received[0] == Magic.HELLO
    return 7 + int.from_bytes(received[3:7], "big")


def test_memory_is_bounded_while_64_connections_push(node: ServedNode, request: pytest.FixtureRequest) -> None:
    """Each pushes appends into a partition of its own as fast as the node takes them; all of them arrive."""
    total = PUSHED_WHEN_LONG if request.config.getoption("--long") else PUSHED

    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as pushing:
            for partition in range(CONNECTIONS):
                pushing.create_task(_push(node, partition, total))

    asyncio.run(all_at_once())
    assert peak_memory(node) < BOUND
    assert node.stop() == 0


def test_memory_is_bounded_with_peers_that_never_read(node: ServedNode) -> None:
    """They ask for long lists again and again and never read one; another client is served meanwhile."""

    async def flood() -> None:
        client = await node.client()
        for partition in range(4):
            await _fill(client, partition)
        stalled = [await _connect(node) for _ in range(CONNECTIONS)]
        for place, (_, writer) in enumerate(stalled):
            partition = place % 4
            for sequence in range(400):
                writer.write(wire.encode(wire.RecordListRequest(SESSION, sequence, partition, 0, 100_000)))
        for partition in range(4):
            for number in range(50):
                found = await client.record(SESSION, partition, number)
                assert found is not None
                assert found.transaction_id == number
        for _, writer in stalled:
            writer.transport.abort()
        await client.close()

    asyncio.run(flood())
    assert peak_memory(node) < BOUND
    assert node.stop() == 0


async def _fill(client: StorageClient, partition: int) -> None:
    """20 MB in records of 10 kB, so that one list reaches the bound of an answer."""
    data = bytes(10_000)
    blank, checksum = records_of(partition, 0, 1)[0], crc32(data)
    for first in range(0, 2000, 200):
        records = [WireRecord(number, blank.request_id, 0, data, checksum) for number in range(first, first + 200)]
        await client.append(SESSION, partition, records)


def test_a_thousand_connections(node: ServedNode) -> None:
    """All of them are served, in bounded memory, and their end leaves nothing behind."""

    async def thousand() -> None:
        clients = [await node.client() for _ in range(1000)]
        for place, client in enumerate(clients):
            assert await client.max_transaction_id(SESSION, place % CONNECTIONS) == -1
        for client in clients:
            await client.close()
        again = await node.client()
        await again.append(SESSION, 0, records_of(0, 0, 3))
        await again.close()

    asyncio.run(thousand())
    assert peak_memory(node) < BOUND
    assert node.stop() == 0
