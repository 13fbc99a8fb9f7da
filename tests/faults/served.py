"""A node of ours as a process, and a load whose every record can be worked out again from partition and transaction id."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.interop.processes import Running, Stage, wait_until
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import WaltzError
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import WireRecord

PROJECT = Path(__file__).resolve().parents[2]
READ_AT_ONCE = 500


class ServedNode:
    """``waltzctl serve`` of one directory; may be killed and started again."""

    def __init__(self, stage: Stage, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self._stage = stage
        self._arguments = arguments
        self._ready = stage.directory / f"{directory.name}.ready"
        self._starts = 0
        self.process: Running | None = None
        self.port = self.admin_port = 0
        self.http_port: int | None = None

    def start(self, *more: str) -> None:
        """Start it on free ports, perhaps with more options, and wait until all of them answer."""
        self._starts += 1
        self._ready.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "waltzctl", "serve", str(self.directory), "--port", "0", "--plaintext",
            "--ready-file", str(self._ready), *self._arguments, *more,
        ]  # fmt: skip
        running = self._stage.start(f"node-{self._starts}", command, env={"PYTHONPATH": str(PROJECT)})
        wait_until(self._ready.exists, "the node is ready", of=running)
        ready = json.loads(self._ready.read_text())
        self.process, self.port, self.admin_port = running, ready["port"], ready["admin_port"]
        self.http_port = ready["http_port"]

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        return self.process.stop()

    async def client(self) -> StorageClient:
        """A client of its data port."""
        return await StorageClient.connect("127.0.0.1", self.port, ssl_context=None)


@cache
def record_of(partition: int, transaction_id: int) -> WireRecord:
    """The record that the load writes there, of 0 to 600 bytes."""
    seed = hashlib.sha256(f"{partition}.{transaction_id}".encode()).digest()
    data = (seed * 20)[: int.from_bytes(seed[:2], "big") % 600]
    sequence = transaction_id & 0x7FFFFFFF
    return WireRecord(transaction_id, RequestId(seed[2], 1, partition, sequence), seed[3], data, crc32(data))


def records_of(partition: int, first: int, count: int) -> tuple[WireRecord, ...]:
    """Consecutive ones."""
    return tuple(record_of(partition, number) for number in range(first, first + count))


class Ledger:
    """What a partition was sent and what it has acknowledged."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.sent = -1
        self.acknowledged = -1


async def load(
    client: StorageClient, session: int, ledgers: Sequence[Ledger], sizes: Sequence[int], *, in_flight: int
) -> None:
    """Append to all partitions at once, so many requests under way in each, until the node is gone.

    `sizes`: records of a request, in turn.  Every refusal that is not the end of the connection is raised.
    """

    async def one(ledger: Ledger, first: int, count: int, room: asyncio.Semaphore) -> None:
        try:
            await client.append(session, ledger.partition, records_of(ledger.partition, first, count))
        except WaltzError:
            if not client.closed:
                raise
            return
        finally:
            room.release()
        assert ledger.acknowledged == first - 1, "answers of a partition come in the order of its requests"
        ledger.acknowledged = first + count - 1

    async def feed(ledger: Ledger) -> None:
        room = asyncio.Semaphore(in_flight)
        turn = 0
        async with asyncio.TaskGroup() as requests:
            while not client.closed:
                await room.acquire()
                count = sizes[turn % len(sizes)]
                turn += 1
                first, ledger.sent = ledger.sent + 1, ledger.sent + count
                requests.create_task(one(ledger, first, count, room))
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as feeders:
        for ledger in ledgers:
            feeders.create_task(feed(ledger))


async def take_stock(node: ServedNode, session: int, ledgers: Sequence[Ledger]) -> None:
    """Begin a session as a log server does; what is there goes from the last acknowledged to at most the last sent."""
    client = await node.client()
    for ledger in ledgers:
        await client.last_session_info(session, ledger.partition)
        there = await client.max_transaction_id(session, ledger.partition)
        assert there >= ledger.acknowledged, f"partition {ledger.partition}: acknowledged transactions are lost"
        assert there <= ledger.sent, f"partition {ledger.partition}: transactions that nobody sent"
        tail = await client.records(session, ledger.partition, ledger.acknowledged + 1, READ_AT_ONCE)
        assert list(tail) == [record_of(ledger.partition, record.transaction_id) for record in tail]
        ledger.acknowledged = ledger.sent = there
        if session % 3 == 0:
            await client.set_low_water_mark(session, ledger.partition, there)
    await client.close()


async def compare_everything(node: ServedNode, session: int, ledgers: Sequence[Ledger]) -> None:
    """Every record up to the last acknowledged one is there, in its order, and is what was sent."""
    client = await node.client()
    for ledger in ledgers:
        following = 0
        while following <= ledger.acknowledged:
            found = await client.records(session, ledger.partition, following, READ_AT_ONCE)
            assert found, f"partition {ledger.partition}: nothing at transaction {following}"
            for record in found:
                assert record == record_of(ledger.partition, following)
                following += 1
        assert following == ledger.acknowledged + 1
    await client.close()
