"""Recoveries of directories that were damaged by chance, crashed at every change with every loss of power."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.conftest import CrashTest
from tests.crash.repairs import RepairChecker, record_repair, record_undo
from tests.trust.damage import draw
from tests.trust.running import aged
from tests.trust.scene import plant
from waltzctl.engine.durable.disk import STATE_DIRECTORY
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.undoing import undo
from waltzctl.formats.control import CONTROL_FILE_NAME

pytestmark = pytest.mark.turns(10)

DIRECTORIES, MANY = 3, 150
MOST_CHANGES = 6
"""Edits of a recovery that is crashed here: each adds tens of states, and more of a kind show nothing new."""


def prepared(seed: int, path: Path) -> tuple[Path, Repair] | None:
    """The directory of a seed and the plan of its recovery; None where there is nothing, or very much, to do."""
    damaged = draw(seed)
    files = damaged.scene.files
    if damaged.scene.special or any(name.startswith(STATE_DIRECTORY) for name in files):
        return None
    if files.get(CONTROL_FILE_NAME) != damaged.scene.sound[CONTROL_FILE_NAME]:
        return None  # the checker opens what a crash leaves as a node does, and some control files close the whole directory
    root = aged(plant(files, path / f"{seed}"))
    replica = plant(damaged.scene.replica.files(), path / f"{seed}-replica")
    repair = plan_recover(root, allow_data_loss=seed % 3 == 0, replicas=[replica] if seed % 3 == 1 else [])
    return (root, repair) if 0 < len(repair.edits) <= MOST_CHANGES else None


def chosen(first: int, path: Path) -> tuple[int, Path, Repair]:
    """The first seed from `first` on whose directory suits."""
    for seed in range(first, first + 1000):
        found = prepared(seed, path)
        if found is not None:
            return seed, *found
    raise AssertionError("no directory suits")


EACH = pytest.mark.parametrize(
    "first", [pytest.param(10_000 * (n + 10), marks=pytest.mark.long if n >= DIRECTORIES else ()) for n in range(MANY)]
)


@EACH
def test_recovery_of_a_damaged_directory(first: int, tmp_path: Path, survive: CrashTest) -> None:
    seed, root, repair = chosen(first, tmp_path)
    recording = record_repair(root, lambda: apply(repair, arguments=[f"seed {seed}"]))
    survive("recovery of a damaged directory", recording, RepairChecker())


@EACH
def test_undo_of_it(first: int, tmp_path: Path, survive: CrashTest) -> None:
    seed, root, repair = chosen(first, tmp_path)
    apply(repair, arguments=[f"seed {seed}"])
    recording = record_undo(root, lambda: undo(root))
    survive("undo of it", recording, RepairChecker())
