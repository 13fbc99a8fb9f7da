"""A repair of what no sync covers: a process died with writes in the system's memory, and a command repairs right after it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.crash.conftest import CrashTest
from tests.crash.recorder import LOCK, Recorder, Recording
from tests.crash.repairs import RepairChecker, RepairSeen, RepairTruth, outside_state
from tests.crash.simdisk import Loss, SimulatedDisk, Tree
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.formats.control import Layout

pytestmark = pytest.mark.turns(10)


class UnsyncedChecker(RepairChecker):
    """As of a repair; before it is applied the directory may be whatever a crash leaves of the un-synced writes."""

    def judge(self, truth: RepairTruth, seen: RepairSeen, state: Tree) -> list[str]:
        if seen.found is not None and seen.found in truth.allowed and not seen.applied:
            return list(seen.complaints)
        after = truth.allowed[-1:]  # an applied one is there as a whole, and its undo gives what it had seen
        return super().judge(replace(truth, allowed=after), seen, state)

    def narrowed(self, truth: RepairTruth, seen: RepairSeen) -> RepairTruth:
        """What was found stays, as far as it does not hang on the writes that nobody has synced."""
        return truth if not seen.applied else super().narrowed(truth, seen)


def append_without_sync(storage: Path, name: str, data: bytes) -> None:
    with WritableFile.open(storage / "0" / name) as file:
        file.write_at(file.size(), data)


def half_a_record(storage: Path) -> None:
    append_without_sync(storage, f"{20:019d}.seg", b"\1half a record" * 9)


def overwritten_index(storage: Path) -> None:
    with WritableFile.open(storage / "0" / f"{10:019d}.idx") as file:
        file.write_at(150, b"\2" * 30)


@dataclass(frozen=True)
class Scene:
    """25 records in partition 0, what a killed process left of its writes, and the repair."""

    name: str
    left: Callable[[Path], None]
    plan: Callable[[Path], Repair]


SCENES = [
    Scene("truncate", half_a_record, lambda path: plan_truncate(path, partition=0, after=21)),
    Scene("recover", half_a_record, lambda path: plan_recover(path)),
    Scene("rebuild-index", overwritten_index, lambda path: plan_rebuild_index(path)),
]


def record_repair_of_unsynced(scene: Scene, storage: Path) -> Recording[RepairTruth]:
    """The writes, the repair, and the promises from the writes on."""
    recorder: Recorder[RepairTruth] = Recorder(storage)
    recording = recorder.recording
    with recorder.listening():
        scene.left(storage)
        written = len(recording.changes)
        before = outside_state(Tree.read(storage, (LOCK,)))
        apply(scene.plan(storage), arguments=[scene.name])
    after = outside_state(Tree.read(storage, (LOCK,)))
    simulated = SimulatedDisk(storage, recording.before)
    for change in recording.changes[:written]:
        simulated.apply(change)
    possible = {tree.digest(): tree for _, tree in simulated.crashes(Loss(0, 100), random.Random(0))}
    left = tuple(outside_state(tree) for tree in possible.values())
    assert before in left
    assert len(left) > 1
    changes = recording.changes
    recorder.promise(RepairTruth((*left, after), before), settled=False)
    recording.events = [*changes[:written], recording.events[-1], *changes[written:]]
    recorder.promise(RepairTruth((after,), before), settled=True)
    return recording


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_repair_of_unsynced_writes(scene: Scene, tmp_path: Path, survive: CrashTest) -> None:
    storage = build_directory(tmp_path / "s", {0: 25}, layout=Layout.RELEASED, per_segment=10)
    recording = record_repair_of_unsynced(scene, storage)
    survive(f"repair of unsynced writes, {scene.name}", recording, UnsyncedChecker())
