"""Deadlines that share a timer, in virtual time, held against `asyncio.timeout`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random

import pytest

from tests.simulation.virtual_time import hold_up, simulate
from waltzctl.engine.net.deadlines import Deadlines, Watchdog


class LateError(Exception):
    """The call took too long."""


async def call(deadlines: Deadlines, seconds: float, takes: float) -> str:
    try:
        with deadlines.within(seconds, LateError):
            await asyncio.sleep(takes)
    except LateError:
        return f"late at {asyncio.get_running_loop().time():g}"
    return "done"


def test_what_takes_longer_is_cancelled_when_its_time_is_over_and_nothing_else() -> None:
    async def work() -> None:
        deadlines = Deadlines()
        found = await asyncio.gather(
            call(deadlines, 2.0, 1.875),
            call(deadlines, 2.0, 2.125),
            call(deadlines, 0.5, 2.0),
            call(deadlines, 3.0, 2.5),
        )
        assert found == ["done", "late at 2", "late at 0.5", "done"]
        assert await call(deadlines, 2.0, 2.125) == "late at 4.5", "a timer of a length that was in use before"

    simulate(work())


@pytest.mark.parametrize("seed", range(20))
def test_calls_end_as_with_a_timer_for_each(seed: int) -> None:
    """Sevenths and fifths: no call ends in the moment in which its time is over."""
    chance = Random(seed)
    calls = [
        (chance.randrange(40) / 7, chance.choice((1 / 5, 1.0, 11 / 5)), 0.001 + chance.randrange(20) / 7)
        for _ in range(60)
    ]

    async def each(within: Callable[[float], object], begins: float, seconds: float, takes: float) -> tuple[str, float]:
        await asyncio.sleep(begins)
        said = "done"
        try:
            if isinstance(deadlines := within(seconds), asyncio.Timeout):
                async with deadlines:
                    await asyncio.sleep(takes)
            else:
                with deadlines:  # type: ignore[attr-defined]
                    await asyncio.sleep(takes)
        except TimeoutError:
            said = "late"
        return said, round(asyncio.get_running_loop().time(), 9)

    async def work(within: Callable[[float], object]) -> list[tuple[str, float]]:
        return await asyncio.gather(*(each(within, *one) for one in calls))

    async def shared() -> list[tuple[str, float]]:
        deadlines = Deadlines()
        return await work(lambda seconds: deadlines.within(seconds, TimeoutError))

    expected = simulate(work(asyncio.timeout))
    assert simulate(shared()) == expected
    assert {said for said, _ in expected} == {"done", "late"}


def test_a_cancellation_from_outside_and_what_the_call_raises_are_its_own() -> None:
    async def work() -> None:
        deadlines = Deadlines()
        task = asyncio.ensure_future(call(deadlines, 5.0, 10.0))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError, match="of the builder"), deadlines.within(5.0, LateError):
            raise TimeoutError("of the builder")
        await asyncio.sleep(10.0)  # a deadline of theirs would ring now

    simulate(work())


def test_a_cancellation_in_the_moment_in_which_time_is_over_stays_one() -> None:
    async def work() -> None:
        deadlines = Deadlines()
        task = asyncio.ensure_future(call(deadlines, 1.0, 10.0))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_at(1.0, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    simulate(work())


def test_one_within_another() -> None:
    async def work() -> None:
        deadlines, said = Deadlines(), list[str]()

        async def outer() -> None:
            with deadlines.within(1.0, LateError):
                said.append(await call(deadlines, 0.5, 10.0))
                said.append(await call(deadlines, 2.0, 10.0))

        with pytest.raises(LateError):
            await outer()
        assert said == ["late at 0.5"]
        assert asyncio.get_running_loop().time() == 1.0

    simulate(work())


def test_a_length_that_nobody_uses_is_forgotten_and_a_closed_client_leaves_no_timer() -> None:
    async def work() -> None:
        deadlines = Deadlines()
        for number in range(100):
            assert await call(deadlines, 1.0 + number / 128, 0.125) == "done"
        await asyncio.sleep(3.0)
        assert deadlines._groups == {}
        assert await call(deadlines, 7.0, 0.125) == "done"
        deadlines.close()
        assert [one for one in asyncio.get_running_loop()._scheduled if not one.cancelled()] == []  # type: ignore[attr-defined]

    simulate(work())


def test_what_still_runs_when_its_client_is_closed_ends_in_its_time() -> None:
    async def work() -> None:
        deadlines = Deadlines()
        running = asyncio.ensure_future(call(deadlines, 2.0, 10.0))
        await asyncio.sleep(1.0)
        deadlines.close()
        assert await running == "late at 2"
        assert deadlines._groups == {}
        assert [one for one in asyncio.get_running_loop()._scheduled if not one.cancelled()] == []  # type: ignore[attr-defined]

    simulate(work())


@pytest.mark.turns(8)
def test_time_in_which_the_loop_was_held_up_counts_for_nothing() -> None:
    """What came meanwhile is looked at first; what has not come is late all the same."""

    async def work() -> None:
        deadlines = Deadlines()
        came = asyncio.ensure_future(call(deadlines, 0.1, 0.2))
        never = asyncio.ensure_future(call(deadlines, 0.1, 3600.0))
        await asyncio.sleep(0)
        time.sleep(0.8)
        assert await came == "done"
        assert (await never).startswith("late")
        deadlines.close()

    asyncio.run(work())


def test_a_loop_that_is_held_up_all_the_time_has_deadlines_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltzctl.engine.net.deadlines.HELD_UP", 0.01)

    async def work() -> None:
        deadlines = Deadlines()
        first, second = (asyncio.ensure_future(call(deadlines, 0.05, 3600.0)) for _ in range(2))
        for _ in range(100):
            time.sleep(0.07)
            await asyncio.sleep(0)
            if first.done() and second.done():
                break
        assert first.done()
        assert second.done()
        deadlines.close()

    asyncio.run(work())


def test_a_watchdog_barks_once_behind_the_last_progress_and_not_when_it_is_at_rest() -> None:
    async def work() -> None:
        now = asyncio.get_running_loop().time
        barked, quiet = list[float](), [False]
        watchdog = Watchdog(2.0, fed=lambda: quiet[0], expired=lambda: barked.append(now()))
        await asyncio.sleep(10)
        with watchdog:  # the time before does not count
            await asyncio.sleep(1.5)
            watchdog.feed()
            await asyncio.sleep(1.75)
            assert barked == []
            await asyncio.sleep(10)
        assert barked == [13.5]
        with watchdog:
            quiet[0] = True
            await asyncio.sleep(5)  # it asks after each two seconds
            quiet[0] = False
            await asyncio.sleep(0.75)
            assert barked == [13.5]
        await asyncio.sleep(10)
        assert barked == [13.5]

    simulate(work())


def test_a_watchdog_of_a_loop_that_is_held_up_looks_again_three_times() -> None:
    async def work() -> None:
        barked = list[int]()
        with Watchdog(2.0, fed=lambda: False, expired=lambda: barked.append(1)):
            for times in range(5):
                assert barked == [1] * (times > 3)
                hold_up(10.0)
                for _ in range(3):
                    await asyncio.sleep(0)
        assert barked == [1]

    simulate(work())


def test_a_watchdog_of_a_loop_that_is_held_up_looks_again_as_soon_as_it_is_told() -> None:
    async def work() -> None:
        now = asyncio.get_running_loop().time
        barked = list[float]()
        with Watchdog(2.0, fed=lambda: False, expired=lambda: barked.append(now()), anew=0.25):
            hold_up(10.0)
            await asyncio.sleep(5)
        assert barked == [10.25]

    simulate(work())


@pytest.mark.parametrize("where", ["fed", "expired", "outside"])
@pytest.mark.parametrize("again", [True, False])
def test_a_watchdog_can_be_stopped_and_begun_anew_at_any_time(where: str, again: bool) -> None:
    async def work() -> None:
        now = asyncio.get_running_loop().time
        looked, barked = list[float](), list[float]()

        def change() -> None:
            if len(looked) + len(barked) == 1:
                (watchdog.start if again else watchdog.stop)()

        def fed() -> bool:
            if where == "fed":
                looked.append(now())
                change()
            return False

        def expired() -> None:
            barked.append(now())
            if where == "expired":
                change()

        watchdog = Watchdog(2.0, fed=fed, expired=expired)
        watchdog.start()
        if where == "outside":
            await asyncio.sleep(1)
            looked.append(now())
            change()
        await asyncio.sleep(20)
        expected = {"fed": [4.0], "expired": [2.0, 4.0], "outside": [3.0]}[where]
        assert barked == (expected if again else expected[:-1])

    simulate(work())


@pytest.mark.parametrize("again", [True, False])
def test_a_watchdog_without_memory_behind_a_change_of_it_stays_as_it_was_changed(again: bool) -> None:
    async def work() -> None:
        now = asyncio.get_running_loop().time
        barked = list[float]()

        def expired() -> None:
            barked.append(now())
            if len(barked) == 1:
                (watchdog.start if again else watchdog.stop)()
                raise MemoryError

        watchdog = Watchdog(2.0, fed=lambda: False, expired=expired)
        watchdog.start()
        await asyncio.sleep(20)
        assert barked == ([2.0, 4.0] if again else [2.0])

    simulate(work())


def test_a_watchdog_that_had_no_memory_to_bark_barks_later() -> None:
    async def work() -> None:
        now = asyncio.get_running_loop().time
        barked = list[float]()

        def expired() -> None:
            barked.append(now())
            if len(barked) == 1:
                raise MemoryError

        with Watchdog(2.0, fed=lambda: False, expired=expired):
            await asyncio.sleep(10)
        assert barked == [2.0, 4.0]

    simulate(work())
