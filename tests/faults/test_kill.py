"""kill -9 under load, at random points: what was acknowledged is there afterwards, and the client goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.served import Ledger, ServedNode, compare_everything, load, take_stock
from tests.interop.processes import Stage
from waltzctl.engine.inspect.verify import VerifyOptions, verify
from waltzctl.engine.storage.directory import create_cluster
from waltzctl.formats.control import Layout

PARTITIONS = 4
KILLS = 4
KILLS_WHEN_LONG = 200


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "logs") as made:
        yield made


@pytest.mark.parametrize("layout", [Layout.RELEASED, pytest.param(Layout.DOCUMENTED, marks=pytest.mark.long)])
def test_an_acknowledged_transaction_outlives_kills_under_load(stage: Stage, tmp_path: Path, layout: Layout) -> None:
    """A few kills; small segments, so that they also hit roll-overs and checkpoints.  Both layouts are written the same way."""
    _kill_again_and_again(stage, tmp_path, layout, KILLS)


@pytest.mark.long
def test_two_hundred_kills(stage: Stage, tmp_path: Path) -> None:
    """The same, 200 times in one directory."""
    _kill_again_and_again(stage, tmp_path, Layout.RELEASED, KILLS_WHEN_LONG)


def _kill_again_and_again(stage: Stage, tmp_path: Path, layout: Layout, kills: int) -> None:
    source = random.Random(f"kill {layout} {kills}")
    directory = tmp_path / "storage"
    create_cluster([directory], num_partitions=PARTITIONS, layout=layout)
    node = ServedNode(stage, directory, "--segment-size", "256KiB")
    ledgers = [Ledger(partition) for partition in range(PARTITIONS)]
    lost_requests = 0
    for session in range(1, kills + 1):
        node.start()
        asyncio.run(_load_and_kill(node, session, ledgers, source))
        lost_requests += sum(ledger.sent > ledger.acknowledged for ledger in ledgers)
    node.start()
    asyncio.run(take_stock(node, kills + 1, ledgers))
    asyncio.run(compare_everything(node, kills + 1, ledgers))
    assert node.stop() == 0
    *findings, summary = verify([directory], VerifyOptions(exclusive=True))
    assert (findings, summary.status) == ([], "clean")
    assert lost_requests, "no kill hit a partition with a request under way"
    assert all(ledger.acknowledged > 1000 for ledger in ledgers), "too little was written to mean anything"


async def _load_and_kill(node: ServedNode, session: int, ledgers: list[Ledger], source: random.Random) -> None:
    await take_stock(node, session, ledgers)
    client = await node.client()
    sizes = [source.choice((1, 1, 1, 10, 100, 700)) for _ in range(20)]
    loading = asyncio.create_task(load(client, session, ledgers, sizes, in_flight=source.choice((1, 8, 40))))
    reached = sum(ledger.acknowledged for ledger in ledgers) + source.randrange(50, 5000)
    while not loading.done() and sum(ledger.acknowledged for ledger in ledgers) < reached:
        await asyncio.sleep(source.random() / 500)
    assert not loading.done(), "the load ended by itself"
    node.kill()
    await loading
    await client.close()
