"""A page store under a recovery in place and its undo: after any crash it is as before or after, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.conftest import CrashTest
from tests.crash.harness import DEATHS
from tests.crash.recorder import Recorder, Recording
from tests.crash.repairs import outside_state
from tests.crash.simdisk import Tree
from tests.pages.stores import crash, put, ref
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.manifest import MANIFEST, RepairState
from waltzctl.engine.durable.quarantine import list_entries
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.pages.page_recovery import apply_recovery, plan_recovery, undo_repair
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.torn_tail import STORE, take_back_interrupted
from waltzctl.engine.repair.prune import plan_prune, prune

pytestmark = pytest.mark.turns(10)

Truth = tuple[Tree, ...]
"""What may be there, outside of our own state."""


@dataclass(frozen=True)
class RecoverySeen:
    """What was there after the roll-back, or what went wrong."""

    found: Tree | None
    complaint: str = ""


class RecoveryChecker:
    """Takes back what was interrupted, as whoever opens the store does, and then goes the whole way there and back."""

    def __init__(self, mode: RecoveryMode) -> None:
        self._mode = mode

    def recover(self, root: Path) -> RecoverySeen:
        try:
            with DirectoryLock.acquire(root / "store", None):
                take_back_interrupted(root / "store")
            for entry in list_entries(root / "store", STORE):
                copies = {path.name for path in entry.path.iterdir()} - {MANIFEST}
                if bool(copies) == (entry.state is RepairState.PRUNED) and entry.state in (
                    RepairState.PRUNED,
                    RepairState.APPLIED,
                ):
                    return RecoverySeen(None, f"{entry.id} is {entry.state} and has {sorted(copies)}")
            return RecoverySeen(outside_state(Tree.read(root / "store")))
        except (WaltzError, OSError, ValueError) as error:
            return RecoverySeen(None, f"{type(error).__name__}: {error}".replace(str(root), ""))

    def examine(self, root: Path, seen: RecoverySeen) -> RecoverySeen:
        if seen.found is None:
            return seen
        store = root / "store"
        try:
            plan = plan_recovery(store, self._mode)
            if plan.edits:
                done = apply_recovery(plan, arguments=())
                assert done.entry is not None
                undo_repair(store, done.entry.id)
                assert outside_state(Tree.read(store)) == seen.found
                apply_recovery(plan_recovery(store, self._mode), arguments=())
            elif any(one.state is RepairState.APPLIED for one in list_entries(store, STORE)):
                undo_repair(
                    store, [one for one in list_entries(store, STORE) if one.state is RepairState.APPLIED][-1].id
                )
                assert plan_recovery(store, self._mode).edits
                apply_recovery(plan_recovery(store, self._mode), arguments=())
                assert outside_state(Tree.read(store)) == seen.found
            PageStorage.open(store).close()
        except (WaltzError, OSError, ValueError, AssertionError, IndexError) as error:
            return RecoverySeen(None, f"{type(error).__name__}: {error}".replace(str(root), ""))
        return seen

    def judge(self, truth: Truth, seen: RecoverySeen, state: Tree) -> list[str]:
        if seen.found is None:
            return [seen.complaint]
        return [] if seen.found in truth else [str(seen.found.differences(truth[0]))]

    def narrowed(self, truth: Truth, seen: RecoverySeen) -> Truth:
        return truth if seen.found is None else (seen.found,)


def torn(store: Path) -> None:
    with (store / "wal" / "log_2_0").open("ab") as file:
        file.write(b"torn" * 3)


def damaged(store: Path) -> None:
    path = store / "wal" / "log_1_0"
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)


SCENES: dict[str, tuple[Callable[[Path], None], RecoveryMode]] = {
    "torn": (torn, RecoveryMode.TOLERATE_TORN_TAIL),
    "damaged": (damaged, RecoveryMode.SKIP_DAMAGED),
}


def _recover(store: Path, mode: RecoveryMode) -> None:
    apply_recovery(plan_recovery(store, mode), arguments=())


def _undo(store: Path, mode: RecoveryMode) -> None:
    undo_repair(store, list_entries(store, STORE)[-1].id)


def recorded(path: Path, scene: str, *, undo: bool) -> Recording[Truth]:
    """A recovery, or its undo, of a store in which something is wrong."""
    damage, mode = SCENES[scene]
    root = path / "root"
    root.mkdir()
    store = root / "store"
    opened = PageStorage.create(store)
    for page in range(4):
        put(opened, page, b"page %d" % page * 50)
    opened.close()
    opened = PageStorage.open(store)
    put(opened, 2, b"again" * 50)
    ref(opened, 9, 3)
    crash(opened)
    damage(store)
    if undo:
        _recover(store, mode)
    work = _undo if undo else _recover
    before = outside_state(Tree.read(store))
    shutil.copytree(store, path / "copy")
    work(path / "copy", mode)
    after = outside_state(Tree.read(path / "copy"))
    assert after != before
    recorder: Recorder[Truth] = Recorder(root)
    recorder.promise((before,), settled=True)
    with recorder.listening():
        recorder.promise((before, after), settled=False)
        work(store, mode)
        recorder.promise((after,), settled=True)
    return recorder.recording


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("scene", SCENES)
def test_page_recovery(scene: str, undo: bool, tmp_path: Path, survive: CrashTest) -> None:
    what = f"{'undo of ' if undo else ''}page recovery, {scene}"
    report = survive(what, recorded(tmp_path, scene, undo=undo), RecoveryChecker(SCENES[scene][1]))
    assert report.moments > 10


@pytest.mark.parametrize("undo", [False, True])
def test_a_process_dies_and_then_the_power_fails(undo: bool, tmp_path: Path, survive: CrashTest) -> None:
    what = f"process deaths, {'undo of ' if undo else ''}page recovery"
    survive(what, recorded(tmp_path, "damaged", undo=undo), RecoveryChecker(RecoveryMode.SKIP_DAMAGED), DEATHS)


def test_prune_of_a_page_recovery(tmp_path: Path, survive: CrashTest) -> None:
    """Each crash leaves the repair whole, so that undo takes it back, or pruned; the store never changes."""
    mode = RecoveryMode.SKIP_DAMAGED
    recorded(tmp_path, "damaged", undo=False)
    root = tmp_path / "root"
    store = root / "store"
    after = outside_state(Tree.read(store))
    recorder: Recorder[Truth] = Recorder(root)
    recorder.promise((after,), settled=True)
    with recorder.listening():
        assert prune(plan_prune(store, older_than=0)) > 0
    assert outside_state(Tree.read(store)) == after
    survive("prune, page recovery", recorder.recording, RecoveryChecker(mode))
