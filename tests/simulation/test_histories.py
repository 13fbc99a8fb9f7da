"""Histories of faults, one for each seed: nothing acknowledged is lost, moved or doubled; locks serialize; it goes on in peace.

A failing history is repeated by ``python -m tests.simulation.test_histories SEED``.
"""

from __future__ import annotations

import sys

import pytest

from tests.simulation.virtual_time import simulate
from tests.simulation.world import World

AT_A_TIME = 25
SEEDS = [pytest.param(first, marks=[pytest.mark.long] if first >= 400 else []) for first in range(0, 20_000, AT_A_TIME)]


def history(seed: int) -> World:
    world = World(seed)
    simulate(world.live())
    return world


@pytest.mark.parametrize("first", SEEDS)
def test_a_history(first: int) -> None:
    for seed in range(first, first + AT_A_TIME):
        try:
            history(seed)
        except BaseException as error:
            error.add_note(f"repeat it: python -m tests.simulation.test_histories {seed}")
            raise


def test_a_history_is_the_same_every_time() -> None:
    first, second = history(7), history(7)
    assert [one.told for one in first.all_servers] == [one.told for one in second.all_servers]
    assert len(first.all_servers[-1].told) > 10


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.DEBUG)
    history(int(sys.argv[1]))
