"""The live view of a node: the state of its partitions, refreshed periodically."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from waltzctl.engine.net.single_flight import OverdueError, SingleFlight
from waltzctl.objects.serve_objects import live_object

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object
    from waltzctl.engine.node.node import Node


async def show_live(node: Node, show: Callable[[Object], None], interval: float) -> None:
    """Show the node every `interval` seconds, until cancelled.

    `show` is called in a thread: a terminal that was stopped, or a reader that stands still, would stop the node with it.
    """
    reading = SingleFlight(node.read, name="the live view")
    newest: list[Object] = []
    showing = SingleFlight(lambda: show(newest[-1]), name="showing the live view")
    before: dict[int, int] = {}
    then = asyncio.get_running_loop().time()
    while True:
        with contextlib.suppress(OverdueError):  # of a disk or reader that does not answer: the last state stays there
            found = await reading.result(interval * 10)
            now = asyncio.get_running_loop().time()
            newest[:] = [live_object(found, node.connections(), before, now - then)]
            before = {one.partition: one.metrics.append.count for one in found.partitions}
            then = now
            await showing.result(interval)
        await asyncio.sleep(interval)
