"""Each weakness that is put back is found by a history: see `tests.simulation.weaknesses`."""

from __future__ import annotations

import itertools

import pytest

from tests.simulation.history import run
from tests.simulation.weaknesses import WEAKNESSES, Weakness


@pytest.mark.turns(3)
@pytest.mark.parametrize("weakness", WEAKNESSES, ids=[one.name for one in WEAKNESSES])
def test_a_weakness_that_is_put_back_is_found(weakness: Weakness, monkeypatch: pytest.MonkeyPatch) -> None:
    weakness.put_back(monkeypatch)
    seeds = itertools.chain(range(weakness.near, weakness.most), range(weakness.near))
    assert any(_fails(weakness.where, seed) for seed in seeds), f"none of {weakness.most} histories finds it"


def _fails(world: str, seed: int) -> bool:
    try:
        run(world, seed)
    except (AttributeError, NameError, TypeError):  # the weakness does not fit the code any more
        raise
    except Exception:
        return True
    return False
