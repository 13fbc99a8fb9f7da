"""set-partition: a crash leaves a partition set or not, its directory at one of its two places, and undo works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.crash.conftest import CrashTest
from tests.crash.repairs import RepairChecker, record_repair, record_undo
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.formats.control import Layout

pytestmark = pytest.mark.turns(8)


def as_built(storage: Path) -> None:
    pass


def taken_away(storage: Path) -> None:
    with StorageDirectory.open(storage) as opened:
        opened.unassign(0, delete_files=False)


def fenced(storage: Path) -> None:
    with StorageDirectory.open(storage), SessionFences.open(storage, 2) as fences:
        fences.raise_to(0, 40)


def switched_off(storage: Path) -> None:
    with StorageDirectory.open(storage) as opened:
        opened.set_availability(0, writable=False)
        opened.set_availability(1, readable=False)


@dataclass(frozen=True)
class Scene:
    """A directory of 35 records in partition 0, and what is set of it."""

    name: str
    before: Callable[[Path], None]
    setting: PartitionSetting
    layouts: tuple[Layout, ...] = tuple(Layout)


SCENES = [
    Scene("marks fall", as_built, PartitionSetting(session_id=2, low_water_mark=4, local_low_water_mark=3)),
    Scene("a fence falls", fenced, PartitionSetting(session_id=7), (Layout.RELEASED,)),
    Scene("taken away, switched off", as_built, PartitionSetting(session_id=9, assigned=False, available=False)),
    Scene("switched on again", switched_off, PartitionSetting(available=True), (Layout.DOCUMENTED,)),
    Scene(
        "given back",
        taken_away,
        PartitionSetting(low_water_mark=30, assigned=True, available=False),
        (Layout.DOCUMENTED,),
    ),
]
EACH = pytest.mark.parametrize(
    ("scene", "layout"),
    [pytest.param(scene, layout, id=f"{scene.name}-{layout}") for scene in SCENES for layout in scene.layouts],
)


def prepared(scene: Scene, layout: Layout, tmp_path: Path) -> tuple[Path, Callable[[], object]]:
    storage = build_directory(tmp_path / "s", {0: 35, 1: 12}, layout=layout, per_segment=10)
    scene.before(storage)
    repair = plan_set_partition(storage, partition=0, setting=scene.setting, allow_data_loss=True)
    assert repair.edits
    return storage, lambda: apply(repair, arguments=["set-partition"])


@EACH
def test_set(scene: Scene, layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    storage, work = prepared(scene, layout, tmp_path)
    survive(f"set-partition, {scene.name}", record_repair(storage, work), RepairChecker())


@EACH
def test_undo(scene: Scene, layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    storage, work = prepared(scene, layout, tmp_path)
    work()
    recording = record_undo(storage, lambda: undo(storage))
    survive(f"undo of set-partition, {scene.name}", recording, RepairChecker())
