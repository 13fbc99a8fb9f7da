"""Random sequences of everything a storage node does, in both layouts: the order of operations matters to no promise."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.conftest import CrashTest
from tests.crash.driver import STRADDLING, Driver, built, recorded
from tests.crash.layouts import LAYOUTS
from tests.crash.storages import SMALL_SEGMENTS, StorageChecker
from waltzctl.formats.control import Layout

pytestmark = pytest.mark.turns(8)

DEFAULT_SEEDS, LONG_SEEDS = 1, 12


def one_operation(driver: Driver, rng: random.Random, numbers: list[int]) -> None:
    number = rng.choice(numbers)
    truth = driver.truth.partitions.get(number)
    if truth is None or truth.assigned == {False}:
        driver.assign(number)
        return
    ((session, mark, local),) = truth.marks
    last = len(truth.possible) - 1
    kinds = ["append"] * 3 + ["group"] * 4 + ["truncate", "session", "fence"] * 2 + ["reopen", "switch", "unassign"]
    match rng.choice(kinds):
        case "append":
            driver.append(number, rng.choice([1, 2, 3, 9]), rng.choice([None, 0, 40, 600, 1700]))
        case "group":
            driver.append_blocks(number, rng.choices([None, 0, 40, 600], k=rng.choice([1, 2, 3])), rng.choice([1, 2]))
        case "fence":
            driver.raise_fence(number, session + rng.choice([0, 1, 5]))
        case "truncate" if last >= local:
            driver.truncate(number, rng.randint(local, last))
        case "session" if last >= local:
            driver.set_low_water_mark(number, session + rng.choice([0, 1]), max(mark, last) + rng.choice([0, 0, 3]))
        case "reopen":
            driver.reopen()
        case "switch":
            readable, writable = rng.choice([(True, None), (False, None), (None, True), (None, False)])
            driver.set_availability(number, readable=readable, writable=writable)
        case "unassign":
            driver.unassign(number, delete_files=rng.random() < 0.5)
        case _:
            pass


@LAYOUTS
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=() if seed < DEFAULT_SEEDS else pytest.mark.long) for seed in range(LONG_SEEDS)],
)
def test_random_work(seed: int, layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    rng = random.Random(seed)
    path, truth = built(tmp_path / "s", layout, rng.choice([0, 3, 21]))
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        for _ in range(10):
            one_operation(driver, rng, [0, 1, STRADDLING[layout]])
    survive(f"random work, {layout}", recording, StorageChecker(SMALL_SEGMENTS))
