"""Pruning the quarantine: a crash leaves each repair whole, so that undo takes it back, or pruned; the storage never changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.crash.conftest import CrashTest
from tests.crash.layouts import LAYOUTS
from tests.crash.recorder import LOCK, Recorder
from tests.crash.repairs import RepairChecker, RepairSeen, RepairTruth, outside_state
from tests.crash.simdisk import Tree
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.manifest import MANIFEST, RepairState
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.prune import plan_prune, prune
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.storage.store import list_entries
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout

pytestmark = pytest.mark.turns(10)


class PruneChecker(RepairChecker):
    """As of a repair; and an entry has its copies exactly while it is not pruned."""

    def recover(self, root: Path) -> RepairSeen:
        seen = super().recover(root)
        halves = [
            f"{entry.id} is {entry.state} and has {sorted(kept)}"
            for entry in list_entries(root)
            if bool(kept := {path.name for path in entry.path.iterdir()} - {MANIFEST})
            == (entry.state is RepairState.PRUNED)
        ]
        return replace(seen, complaints=(*seen.complaints, *halves))

    def judge(self, truth: RepairTruth, seen: RepairSeen, state: Tree) -> list[str]:
        failures = list(seen.complaints)
        if seen.found is not None and seen.found not in truth.allowed:
            failures.append(f"the storage changed: {seen.found.differences(truth.allowed[0])}")
        if seen.applied and seen.after_undo is not None and seen.after_undo != truth.undone:
            failures.append(f"undo does not bring back the state before: {seen.after_undo.differences(truth.undone)}")
        return failures


@LAYOUTS
def test_prune(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    storage = build_directory(tmp_path / "s", {0: 35, 1: 12}, layout=layout, per_segment=10)
    original = outside_state(Tree.read(storage, (LOCK,)))
    (storage / "0" / f"{20:019d}.idx").unlink()
    apply(plan_rebuild_index(storage, everything=True), arguments=["rebuild-index"])
    before = outside_state(Tree.read(storage, (LOCK,)))
    apply(plan_truncate(storage, partition=0, after=18), arguments=["truncate"])
    assert original.files.keys() == before.files.keys()
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        pass
    prepared = plan_prune(storage, older_than=0)
    assert len(prepared.entries) == 2
    recorder: Recorder[RepairTruth] = Recorder(storage)
    after = outside_state(recorder.recording.before)
    truth = RepairTruth((after,), before)
    recorder.promise(truth, settled=True)
    with recorder.listening():
        prune(prepared)
    assert outside_state(Tree.read(storage, (LOCK,))) == after
    survive("prune", recorder.recording, PruneChecker())
