"""An event is waited for so long, and no longer, and by very many."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.simulation.virtual_time import simulate
from waltzctl.engine.net.events import Turns, happens_within


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


def test_whoever_waits_goes_on_when_it_happens_and_not_for_what_happened_before() -> None:
    async def work() -> None:
        turns = Turns()
        turns.happened()
        await turns.beyond(0)
        waiting = [asyncio.ensure_future(turns.beyond(turns.count)) for _ in range(3)]
        await asyncio.sleep(1.0)
        waiting[1].cancel()
        await asyncio.sleep(1.0)
        assert [one.done() for one in waiting] == [False, True, False]
        turns.happened()
        await asyncio.sleep(1.0)
        assert all(one.done() for one in waiting)

    simulate(work())


@pytest.mark.turns(8)
def test_who_gives_up_does_not_look_through_all_others() -> None:
    """The last one that came first: with `asyncio.Event` that takes some ten seconds."""

    async def work() -> float:
        turns = Turns()
        waiting = [asyncio.ensure_future(turns.beyond(0)) for _ in range(20_000)]
        await asyncio.sleep(0)
        begun = time.perf_counter()
        for one in reversed(waiting):
            one.cancel()
        await asyncio.wait(waiting)
        return time.perf_counter() - begun

    assert asyncio.run(work()) < 3.0


def test_what_happens_in_the_moment_in_which_the_time_is_over_has_happened() -> None:
    async def work() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(2.0, event.set)
        assert await happens_within(event, 2.0)

    simulate(work())
