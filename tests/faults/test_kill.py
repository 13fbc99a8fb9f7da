"""kill -9 under load, at random points: what was acknowledged is there afterwards, and the client goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.served import Ledger, ServedNode, load, record_of
from tests.interop.processes import Stage
from waltzctl.engine.inspect.verify import VerifyOptions, verify
from waltzctl.engine.storage.directory import create_cluster
from waltzctl.formats.control import Layout

PARTITIONS = 4
KILLS = 4
KILLS_WHEN_LONG = 200
READ_AT_ONCE = 500


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
    asyncio.run(_take_stock(node, kills + 1, ledgers))
    asyncio.run(_compare_everything(node, kills + 1, ledgers))
    assert node.stop() == 0
    *findings, summary = verify([directory], VerifyOptions(exclusive=True))
    assert (findings, summary.status) == ([], "clean")
    assert lost_requests, "no kill hit a partition with a request under way"
    assert all(ledger.acknowledged > 1000 for ledger in ledgers), "too little was written to mean anything"


async def _load_and_kill(node: ServedNode, session: int, ledgers: list[Ledger], source: random.Random) -> None:
    await _take_stock(node, session, ledgers)
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


async def _take_stock(node: ServedNode, session: int, ledgers: list[Ledger]) -> None:
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


async def _compare_everything(node: ServedNode, session: int, ledgers: list[Ledger]) -> None:
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
