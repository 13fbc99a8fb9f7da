"""The commands that repair: a crash leaves the directory as before or as after, the rest is rolled back, and undo works."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.crash.conftest import CrashTest
from tests.crash.repairs import RepairChecker, record_repair, record_undo
from waltzctl.engine.durable.manifest import quarantine_directory
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_ledger import plan_forget
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout

pytestmark = pytest.mark.turns(12)


def segment(storage: Path, first: int, suffix: str = "seg") -> Path:
    return storage / "0" / f"{first:019d}.{suffix}"


def flip(path: Path, offset: int, length: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for place in range(offset, offset + length):
        data[place] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path, missing: int) -> None:
    path.write_bytes(path.read_bytes()[:-missing])


def no_damage(storage: Path, layout: Layout) -> None:
    pass


def indexes_of_every_kind(storage: Path, layout: Layout) -> None:
    flip(segment(storage, 10, "idx"), 140, 20)
    segment(storage, 20, "idx").unlink()
    cut(segment(storage, 30, "idx"), 8)


def what_a_crash_leaves(storage: Path, layout: Layout) -> None:
    with segment(storage, 30).open("ab") as file:
        file.write(b"\0" * 7 + b"\x23" + b"half a record" * 60)
    segment(storage, 40, "idx").write_bytes(segment(storage, 30, "idx").read_bytes()[:128])
    segment(storage, 20, "idx").unlink()
    (storage / "0" / "0000000000000000030.seg.waltzctl-tmp").write_bytes(b"half built")
    flip(storage / CONTROL_FILE_NAME, layout.struct_offset(1, 1) + 3)


def a_record_in_the_middle(storage: Path, layout: Layout) -> None:
    flip(segment(storage, 10), segment(storage, 10).stat().st_size // 2, 3)


def a_lost_end(storage: Path, layout: Layout) -> None:
    segment(storage, 30).write_bytes(segment(storage, 30).read_bytes()[:103])
    segment(storage, 20).unlink()
    segment(storage, 20, "idx").unlink()
    flip(storage / CONTROL_FILE_NAME, layout.struct_offset(0, 1) + 3)


def an_accepted_loss(storage: Path, layout: Layout) -> None:
    a_lost_end(storage, layout)
    apply(plan_recover(storage, allow_data_loss=True), arguments=["recover"])
    shutil.rmtree(quarantine_directory(storage))  # the repair under test is the only one that undo can take back


def headers(storage: Path, layout: Layout) -> None:
    flip(segment(storage, 20), 14)
    flip(storage / CONTROL_FILE_NAME, layout.info_offset(1))


def switched_off(storage: Path, layout: Layout) -> None:
    with StorageDirectory.open(storage) as opened:
        opened.set_availability(1, writable=False)
        if layout is Layout.RELEASED:  # so that there is a mark to write, too
            (storage / ".waltzctl" / "availability.json").unlink()


def to_the_other_layout(storage: Path, replica: Path) -> Repair:
    control = read_control(storage / CONTROL_FILE_NAME)
    assert control is not None
    (other,) = set(Layout) - {control.layout}
    return plan_convert(storage, layout=other)


@dataclass(frozen=True)
class Scene:
    """A directory of 35 records in partition 0 and 12 in partition 1, damaged, and what is done about it."""

    name: str
    damage: Callable[[Path, Layout], None]
    plan: Callable[[Path, Path], Repair]  # the directory, a sound replica of it


SCENES = [
    Scene("rebuild-index", indexes_of_every_kind, lambda path, _: plan_rebuild_index(path)),
    Scene("rebuild-index --all", no_damage, lambda path, _: plan_rebuild_index(path, everything=True)),
    Scene("truncate, one segment", no_damage, lambda path, _: plan_truncate(path, partition=0, after=32)),
    Scene("truncate, segments", no_damage, lambda path, _: plan_truncate(path, partition=0, after=18)),
    Scene(
        "truncate, below the mark",
        no_damage,
        lambda path, _: plan_truncate(path, partition=0, after=4, allow_data_loss=True),
    ),
    Scene("recover, left by a crash", what_a_crash_leaves, lambda path, _: plan_recover(path)),
    Scene("recover, headers", headers, lambda path, _: plan_recover(path)),
    Scene(
        "recover, from a replica",
        a_record_in_the_middle,
        lambda path, replica: plan_recover(path, replicas=[replica]),
    ),
    Scene(
        "recover, split",
        a_record_in_the_middle,
        lambda path, _: plan_recover(path, allow_data_loss=True),
    ),
    Scene("convert", switched_off, to_the_other_layout),
    Scene(
        "recover, the end given up",
        a_lost_end,
        lambda path, _: plan_recover(path, allow_data_loss=True),
    ),
    Scene(
        "recover, what was given up comes back",
        an_accepted_loss,
        lambda path, replica: plan_recover(path, replicas=[replica]),
    ),
    Scene("recover, losses forgotten", an_accepted_loss, lambda path, _: plan_forget(path)),
]
EACH = pytest.mark.parametrize(
    ("scene", "layout"),
    list(product(SCENES, Layout)),
    ids=lambda value: value.name if isinstance(value, Scene) else str(value),
)


def prepared(scene: Scene, layout: Layout, tmp_path: Path) -> tuple[Path, Repair]:
    storage, replica = tmp_path / "s", tmp_path / "replica"
    for path in (storage, replica):
        build_directory(path, {0: 35, 1: 12}, layout=layout, per_segment=10)
    scene.damage(storage, layout)
    repair = scene.plan(storage, replica)
    assert repair.edits, "a scene in which nothing is repaired would prove nothing"
    return storage, repair


@EACH
def test_repair(scene: Scene, layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    storage, repair = prepared(scene, layout, tmp_path)
    recording = record_repair(storage, lambda: apply(repair, arguments=[scene.name]))
    survive(scene.name, recording, RepairChecker())


@EACH
def test_undo(scene: Scene, layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    storage, repair = prepared(scene, layout, tmp_path)
    apply(repair, arguments=[scene.name])
    recording = record_undo(storage, lambda: undo(storage))
    survive(f"undo of {scene.name}", recording, RepairChecker())
