"""Calls are sent in the order in which they were made, also where they had to wait for room in the write buffer."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory
from tests.client.nodes import data_of, records
from tests.node.running import run, running
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import DeadlineError
from waltzctl.formats.wire.records import pack_records

COUNT = 200


@contextlib.asynccontextmanager
async def connected(storage: Path) -> AsyncIterator[StorageClient]:
    """A client of a node over one empty partition, in session 5."""
    build_directory(storage, {0: 0})
    async with running(storage, plaintext=True) as node, data_of(node, cluster_key=KEY, num_partitions=1) as client:
        assert await client.last_session_info(5, 0)
        yield client


@pytest.mark.turns(8)
@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_appends_of_a_partition_stay_in_order_whoever_waits(tmp_path: Path, encoded: bool, seed: int) -> None:
    """A call that came when there was room again overtook those that had been woken: transaction out of order."""
    chance = random.Random(seed)

    async def work() -> None:
        async with connected(tmp_path) as client:
            connection = client._connection

            async def append(number: int) -> None:
                sent = records(number, 1)
                if encoded:
                    await client.append_encoded(5, 0, 1, pack_records(sent))
                else:
                    await client.append(5, 0, sent)
                if chance.random() < 0.3:
                    connection.pause_writing()

            async with asyncio.TaskGroup() as calls:
                made = []
                for number in range(COUNT):
                    if chance.random() < 0.2:
                        connection.pause_writing()
                    made.append(calls.create_task(append(number)))
                    if chance.random() < 0.2:
                        await asyncio.sleep(0)
                    if chance.random() < 0.3:
                        connection.resume_writing()
                    if chance.random() < 0.1:
                        connection.resume_writing()
                        connection.pause_writing()
                while not all(one.done() for one in made):
                    connection.resume_writing()
                    await asyncio.sleep(0.001)
            connection.resume_writing()
            assert await client.max_transaction_id(5, 0) == COUNT - 1

    run(work())


def test_who_waits_no_longer_holds_up_nobody(tmp_path: Path) -> None:
    """A call whose time is over, and one that is cancelled, while others wait behind them."""

    async def work() -> None:
        async with connected(tmp_path) as client:
            connection = client._connection
            connection.pause_writing()
            connection.timeout = 0.05
            late = asyncio.create_task(client.max_transaction_id(5, 0))
            await asyncio.sleep(0)
            connection.timeout = 20.0
            cancelled = asyncio.create_task(client.max_transaction_id(5, 0))
            third = asyncio.create_task(client.append(5, 0, records(0, 1)))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(DeadlineError):
                await late
            connection.resume_writing()
            await third
            assert await client.max_transaction_id(5, 0) == 0

    run(work())
