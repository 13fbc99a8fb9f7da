"""Calls of a node's client that are cancelled at each of their awaits, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.builders import KEY, make_records
from tests.cancelling import WAYS, Moment, at_each_await
from tests.client.peers import ReleasedAdmin, scripted
from tests.node.running import PATIENCE
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.admin_records import BatchSize, read_batches
from waltzctl.engine.client.partition_readings import read_partitions
from waltzctl.formats.wire.records import WireRecord

pytestmark = pytest.mark.turns(10)

RECORDS = [
    WireRecord.make(one.transaction_id, one.request_id, one.header, bytes(one.data)) for one in make_records(5, size=20)
]


@dataclass
class Peer:
    """A node's admin port; `open`: how many are connected to it."""

    port: int = 0
    open: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _admin: ReleasedAdmin = field(default_factory=lambda: ReleasedAdmin(RECORDS))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await self._admin(reader, writer)
        finally:
            self.open -= 1
            self.changed.set()

    async def connect(self, host: str = "127.0.0.1", **options: Any) -> AdminClient:
        return await AdminClient.connect(host, self.port, ssl_context=None, **options)


@contextlib.asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    made = Peer()
    async with scripted(made.serve) as where:
        made.port = where.port
        yield made


async def greets(made: Peer) -> None:
    async with await made.connect():
        pass


async def greets_by_name(made: Peer) -> None:
    async with await made.connect("localhost"):
        pass


async def compares_keys(made: Peer) -> None:
    async with await made.connect(cluster_key=KEY, num_partitions=1):
        pass


async def reads_batches(made: Peer) -> None:
    async with (
        await made.connect() as client,
        contextlib.aclosing(read_batches(client, 0, 0, 4, BatchSize(2))) as found,
    ):
        assert [len(batch) async for batch in found][:1] == [2]


async def reads_metrics(made: Peer) -> None:
    async with await made.connect() as client:
        assert [one.partition for one in await read_partitions(client)] == [0]


@pytest.mark.parametrize("call", [greets, greets_by_name, compares_keys, reads_batches, reads_metrics])
@WAYS
def test_no_connection_is_left_by_a_call_that_was_cancelled(
    call: Callable[[Peer], Coroutine[Any, Any, None]], moment: Moment, again: int
) -> None:
    async def then(made: Peer) -> None:
        await call(made)
        async with asyncio.timeout(PATIENCE):
            while made.open:
                made.changed.clear()
                await made.changed.wait()

    assert at_each_await(peer, call, then, moment=moment, again=again, run=asyncio.run) > 0
