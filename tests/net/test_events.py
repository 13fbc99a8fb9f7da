"""An event is waited for so long, and no longer."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.virtual_time import simulate
from waltzctl.engine.net.events import happens_within


@pytest.mark.parametrize(("after", "happened", "took"), [(0.0, True, 0.0), (1.9, True, 1.9), (2.1, False, 2.0)])
def test_an_event_is_waited_for_so_long_and_no_longer(after: float, happened: bool, took: float) -> None:
    async def work() -> None:
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.call_later(after, event.set)
        assert await happens_within(event, 2.0) is happened
        assert loop.time() == pytest.approx(took)

    simulate(work())


def test_who_is_cancelled_while_it_waits_is_cancelled() -> None:
    async def work() -> None:
        waiting = asyncio.ensure_future(happens_within(asyncio.Event(), 2.0))
        await asyncio.sleep(1.0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    simulate(work())
