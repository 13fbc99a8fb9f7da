"""Each weakness that is put back is found by a history: see `tests.simulation.weaknesses`."""

from __future__ import annotations

import itertools

import pytest

from tests.simulation.history import run
from tests.simulation.weaknesses import WEAKNESSES, Weakness


@pytest.mark.turns(10)
@pytest.mark.parametrize("weakness", WEAKNESSES, ids=[one.name for one in WEAKNESSES])
def test_a_weakness_that_is_put_back_is_found(weakness: Weakness, monkeypatch: pytest.MonkeyPatch) -> None:
    weakness.put_back(monkeypatch)
    assert _found(weakness) is not None, f"none of {weakness.most} histories finds it"


def _found(weakness: Weakness) -> int | None:
    """The first history that finds it, from the seed where one did."""
    seeds = itertools.chain(range(weakness.near, weakness.most), range(weakness.near))
    return next((seed for seed in seeds if _fails(weakness.where, seed)), None)


def _fails(world: str, seed: int) -> bool:
    try:
        run(world, seed)
    except (AttributeError, NameError, TypeError):  # the weakness does not fit the code any more
        raise
    except Exception:
        return True
    return False


if __name__ == "__main__":
    for one in WEAKNESSES:
        with pytest.MonkeyPatch.context() as patch:
            one.put_back(patch)
            seed = _found(one)
        print(f"{one.name}: {seed}{'' if seed == one.near else f', and not {one.near} any more'}", flush=True)
