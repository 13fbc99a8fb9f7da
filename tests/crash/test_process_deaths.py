"""A process dies, and the power fails while the next one looks at what it left in the system's memory.

A file or directory that moves has its new name durably before it loses the old one, also where one process moved it and another
one syncs.  Every moment of these workloads is tried, where the other tests try some.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.crash.conftest import CrashTest
from tests.crash.driver import STRADDLING, built, recorded
from tests.crash.harness import DEATHS
from tests.crash.repairs import RepairChecker, record_repair, record_undo
from tests.crash.storages import SMALL_SEGMENTS, StorageChecker
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import Layout

pytestmark = pytest.mark.turns(10)


@pytest.mark.parametrize(
    "layout", [pytest.param(Layout.RELEASED, marks=pytest.mark.long), pytest.param(Layout.DOCUMENTED)]
)
def test_a_partition_is_put_aside_comes_back_and_is_deleted(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    path, truth = built(tmp_path / "s", layout, 2)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.unassign(number, delete_files=False)
        driver.assign(number)
        driver.unassign(number, delete_files=True)
    survive(f"process deaths, assignment, {layout}", recording, StorageChecker(SMALL_SEGMENTS), DEATHS)


def damaged(path: Path) -> Path:
    """A partition with a torn end, and one whose index is missing."""
    storage = build_directory(path / "s", {0: 3, 1: 3}, layout=Layout.RELEASED)
    with (storage / "0" / f"{0:019d}.seg").open("ab") as file:
        file.write(b"half a record")
    (storage / "1" / f"{0:019d}.idx").write_bytes(b"short")
    return storage


def test_a_repair_dies(tmp_path: Path, survive: CrashTest) -> None:
    storage = damaged(tmp_path)
    recording = record_repair(storage, lambda: apply(plan_recover(storage), arguments=["recover"]))
    survive("process deaths, repair", recording, RepairChecker(), DEATHS)


def test_an_undo_dies(tmp_path: Path, survive: CrashTest) -> None:
    storage = damaged(tmp_path)
    apply(plan_recover(storage), arguments=["recover"])
    survive("process deaths, undo", record_undo(storage, lambda: undo(storage)), RepairChecker(), DEATHS)


@pytest.mark.parametrize("assigned", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_repair_that_moves_a_partition_dies(assigned: bool, tmp_path: Path, survive: CrashTest) -> None:
    storage = build_directory(tmp_path / "s", {0: 3, 1: 3}, layout=Layout.DOCUMENTED)
    if assigned:
        with StorageDirectory.open(storage) as opened:
            opened.unassign(0, delete_files=False)
    repair = plan_set_partition(storage, partition=0, setting=PartitionSetting(assigned=assigned), allow_data_loss=True)
    recording = record_repair(storage, lambda: apply(repair, arguments=["set-partition"]))
    survive(f"process deaths, moved {assigned}", recording, RepairChecker(), DEATHS)
