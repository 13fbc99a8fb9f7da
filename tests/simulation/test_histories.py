"""Histories of faults, one for each seed: nothing acknowledged is lost, moved or doubled; locks serialize; it goes on in peace.

A failing history is repeated by ``python -m tests.simulation.history WORLD SEED``, which a failure prints.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.history import history, run
from tests.simulation.virtual_time import StuckError, simulate

AT_A_TIME = {"partition": 25, "storage": 25, "cluster": 5}
DEFAULT = {"partition": 900, "storage": 75, "cluster": 25}
DAYS = {"partition": 1, "storage": 3, "cluster": 2}
"""The default ones of a world are tried in so many days."""
LONG = {"partition": 60_000, "storage": 20_000, "cluster": 20_000}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first" in metafunc.fixturenames:
        numbers = LONG if metafunc.config.getoption("--long") else DEFAULT
        blocks = [
            pytest.param(world, first, marks=pytest.mark.turns(DAYS[world]), id=f"{world}-{first}")
            for world, most in numbers.items()
            for first in range(0, most, AT_A_TIME[world])
        ]
        metafunc.parametrize(("world", "first"), blocks)


def test_a_history(world: str, first: int) -> None:
    for seed in range(first, first + AT_A_TIME[world]):
        run(world, seed)


def test_a_history_is_the_same_every_time() -> None:
    first, second = history("partition", 7), history("partition", 7)
    assert [one.told for one in first.all_servers] == [one.told for one in second.all_servers]
    assert len(first.all_servers[-1].told) > 10
    one, two = history("cluster", 3), history("cluster", 3)
    assert one.told == two.told
    assert sum(map(len, one.told)) > 10
    first, second = history("storage", 2), history("storage", 2)
    assert [one.told for one in first.all_servers] == [one.told for one in second.all_servers]
    assert len(first.all_servers[-1].told) > 10


def test_a_history_that_does_not_end_fails() -> None:
    async def ever() -> None:
        while True:
            await asyncio.sleep(1.0)

    with pytest.raises(StuckError, match="3600 s have gone by"):
        simulate(ever())
