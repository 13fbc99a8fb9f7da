"""Edits kept in the quarantine: a crash leaves the directory as before the repair or after it, and undo still works."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.crash.conftest import CrashTest
from tests.crash.layouts import LAYOUTS
from tests.crash.recorder import LOCK
from tests.crash.repairs import RepairChecker, record_repair, record_set_aside, record_undo
from tests.crash.simdisk import Tree
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.edits import Cut, Edit, Overwrite, Remove, Replace
from waltzctl.engine.durable.manifest import RepairState
from waltzctl.engine.repair import apply as repair
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import to_set_aside, undo
from waltzctl.engine.storage.append import PendingRecord, append_lines
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.engine.storage.store import apply_edits, list_entries
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout

pytestmark = pytest.mark.turns(10)


def segment(storage: Path, first: int, suffix: str = "seg") -> Path:
    return storage / "0" / f"{first:019d}.{suffix}"


def everything(storage: Path) -> list[Edit]:
    """Each kind of edit, and several of one file."""
    return [
        Cut(segment(storage, 20), 700),
        Overwrite(segment(storage, 20), 128, b"Z" * 100),
        Overwrite(segment(storage, 10), 400, b"Q" * 700),
        Overwrite(storage / CONTROL_FILE_NAME, 150, b"W" * 60),
        Replace(segment(storage, 0, "idx"), lambda: [b"new" * 300, b"index" * 100]),
        Replace(segment(storage, 17), lambda: [b"split" * 200]),
        Replace(storage / "1" / "0000000000000000000.seg", lambda: [b"made with its directory"]),
        Remove(segment(storage, 10, "idx")),
    ]


def apply(storage: Path, edits: list[Edit]) -> None:
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        apply_edits(storage, edits, command="recover", arguments=["recover", str(storage)], plan_hash="0" * 64)


@LAYOUTS
def test_edits_are_made_as_a_whole_or_not_at_all(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    storage = build_directory(tmp_path / "s", {0: 25}, layout=layout, per_segment=10, num_partitions=2)
    recording = record_repair(storage, lambda: apply(storage, everything(storage)))
    survive("quarantine: edits", recording, RepairChecker())


@LAYOUTS
def test_undo_is_done_as_a_whole_or_not_at_all(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    storage = build_directory(tmp_path / "s", {0: 25}, layout=layout, per_segment=10, num_partitions=2)
    apply(storage, everything(storage))
    recording = record_undo(storage, lambda: undo(storage))
    survive("quarantine: undo", recording, RepairChecker())


class SetAsideChecker(RepairChecker):
    """Goes on with an undo that sets aside what came since, from wherever a crash ended it."""

    def take_back(self, root: Path) -> None:
        first = list_entries(root)[0]
        if first.state is RepairState.APPLIED:
            undo(root, first.id, allow_data_loss=True)


@LAYOUTS
def test_what_came_since_is_set_aside_as_a_whole_before_the_undo(
    layout: Layout, tmp_path: Path, survive: CrashTest
) -> None:
    """Between the two the directory is as the repair had left it; from everywhere the same command gets to the end."""
    storage = build_directory(tmp_path / "s", {0: 25}, layout=layout, per_segment=10, num_partitions=2)
    repair.apply(plan_truncate(storage, partition=0, after=15), arguments=[])
    small = StorageOptions(segment_size_threshold=1)
    append_lines(storage, partition=0, records=[PendingRecord(b"new")] * 2, options=small)
    between = Path(shutil.copytree(storage, tmp_path / "between"))
    (entry,) = list_entries(between)
    apply(between, to_set_aside(entry, [entry]))
    recording = record_set_aside(
        storage, Tree.read(between, (LOCK,)), lambda: undo(storage, entry.id, allow_data_loss=True)
    )
    survive("quarantine: undo over what came since", recording, SetAsideChecker())
