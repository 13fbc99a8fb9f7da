"""Checkpoints: a partition begins a new session after so many transactions, and nobody notices but the low-water marks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.server.serving import QUICK, serving
from tests.server.storing import PARTITION, until
from waltzctl.engine.server.server_settings import PartitionOptions, ServerOptions
from waltzctl.formats.wire.client import MountState


@pytest.mark.parametrize(("count", "sessions"), [(9, 0), (10, 1), (19, 1), (20, 2), (57, 5)])
def test_a_session_ends_after_so_many_transactions(tmp_path: Path, count: int, sessions: int) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            options = ServerOptions(
                session=QUICK.session, partition=PartitionOptions(checkpoint=10, batch=1, in_flight=1)
            )
            server = await cluster.server(options=options)
            client = await cluster.client()
            assert (await client.mount())[0] is MountState.READY
            first = server.partitions[PARTITION].store.state.session_id
            for number in range(count):
                client.append(b"%d" % number)
            mark, _ = await client.flush()
            assert mark == count - 1
            await until(lambda: server.partitions[PARTITION].store.state.session_id == first + sessions)
            await asyncio.sleep(0.05)
            state = server.partitions[PARTITION].store.state
            assert state.session_id == first + sessions
            (node,) = cluster.cluster.nodes.values()
            struct = node.storage.info(PARTITION).current_struct
            assert struct is not None
            assert struct.low_water_mark == sessions * 10 - 1

    asyncio.run(work())


def test_appends_under_way_wait_and_are_all_there_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, 3) as cluster:
            options = ServerOptions(session=QUICK.session, partition=PartitionOptions(checkpoint=25, batch=4))
            await cluster.server(options=options)
            client = await cluster.client()
            await client.mount()
            made = [client.append(b"%d" % number) for number in range(300)]
            assert (await client.flush())[0] == 299
            client.ask_for_feed(-1)
            from waltzctl.formats.wire import client as wire

            found = [(await client.hear_one(wire.FeedData))[0].request_id for _ in range(300)]
            assert found == made

    asyncio.run(work())
