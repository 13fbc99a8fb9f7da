"""A node whose start or stop is cancelled at each of its awaits, and work with a node that is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.cancelling import WAYS, Moment, at_each_await
from tests.node.running import LOG, PATIENCE, Held, node_options
from tests.node.test_lifecycle import nothing_is_left
from waltzctl.engine.node.node import Node

pytestmark = pytest.mark.turns(10)


@WAYS
def test_a_start_that_is_cancelled_anywhere_leaves_nothing(tmp_path: Path, moment: Moment, again: int) -> None:
    build_directory(tmp_path, {0: 3})
    asyncio.run(_start_and_stop(tmp_path))  # what is made once in a process is there

    @contextlib.asynccontextmanager
    async def scene() -> AsyncIterator[Held]:
        yield Held.now()

    async def call(_: Held) -> None:
        node = await Node.start(node_options(tmp_path), log=LOG)
        await node.stop(1.0)

    async def then(before: Held) -> None:
        await threads_are_gone(before)
        nothing_is_left(tmp_path, before)

    assert at_each_await(scene, call, then, moment=moment, again=again, run=asyncio.run) > 3


async def threads_are_gone(before: Held) -> None:
    """But for those of the event loop, which stay for its next call."""
    async with asyncio.timeout(PATIENCE):
        while [one for one in Held.now().threads - before.threads if not one.name.startswith("asyncio_")]:
            await asyncio.sleep(0.001)


async def _start_and_stop(path: Path) -> None:
    node = await Node.start(node_options(path), log=LOG)
    await node.stop(1.0)


@WAYS
def test_a_stop_that_is_cancelled_anywhere_stops_the_node(tmp_path: Path, moment: Moment, again: int) -> None:
    build_directory(tmp_path, {0: 3})

    @contextlib.asynccontextmanager
    async def scene() -> AsyncIterator[tuple[Node, Held]]:
        before = Held.now()
        yield await Node.start(node_options(tmp_path), log=LOG), before

    async def call(made: tuple[Node, Held]) -> None:
        await made[0].stop(1.0)

    async def then(made: tuple[Node, Held]) -> None:
        async with asyncio.timeout(PATIENCE):
            await made[0].wait_closed()
        await made[0].stop()
        nothing_is_left(tmp_path, made[1])

    assert at_each_await(scene, call, then, moment=moment, again=again, run=asyncio.run) > 0
