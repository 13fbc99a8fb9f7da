"""The quarantine keeps what a repair takes away, and gives it back byte for byte, whatever happens in between."""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.repair.trees import (
    Crash,
    contents,
    crashing_at,
    crashing_when,
    expected,
    make_tree,
    plain,
    random_edits,
    recording,
    snapshot,
)
from waltzctl.engine.durable import disk, execution, journal, quarantine
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.edits import Cut, Edit, MoveDirectory, Overwrite, Remove, Replace
from waltzctl.engine.durable.manifest import KeptMove, QuarantineEntry, RepairState, write_entry
from waltzctl.engine.durable.restore import other_times
from waltzctl.engine.durable.undoable import check_as_left
from waltzctl.engine.errors import (
    DamageError,
    DirectoryLockedError,
    DiskFullError,
    DiskWriteError,
    InvalidRequestError,
    RefusedError,
    StalePlanError,
    SyncFailedError,
)
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.store import STORE, apply_edits, interrupted, list_entries, roll_back_interrupted

SEEDS = st.integers(0, 2**32)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where thousands of small files are written and synced within no time."""


def run(root: Path, edits: list[Edit]) -> QuarantineEntry:
    return apply_edits(root, edits, command="recover", arguments=["recover", str(root)], plan_hash="0" * 64)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "storage"
    (root / "0").mkdir(parents=True)
    (root / "waltz-storage.ctl").write_bytes(b"c" * 280)
    (root / "0" / "a.seg").write_bytes(bytes(range(200)))
    (root / "0" / "b.seg").write_bytes(b"b" * 50)
    return root


@pytest.mark.turns(10)
@given(seed=SEEDS)
@settings(max_examples=60)
def test_edits_do_what_they_say_and_undo_gives_bytes_and_times_back(seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        source = random.Random(seed)
        root = make_tree(Path(name) / "s", source)
        edits = random_edits(root, source)
        before, files = snapshot(root), plain(root)
        entry = run(root, edits)
        assert plain(root) == expected(files, root, edits)
        assert entry.state == "applied"
        assert list_entries(root) == (entry,)
        undo(root, None)
        assert snapshot(root) == before
        assert [one.state for one in list_entries(root)] == ["undone"]
        assert roll_back_interrupted(root) == ()
        assert snapshot(root) == before


@pytest.mark.turns(8)
@given(seed=SEEDS)
@settings(max_examples=10)
def test_a_crash_at_every_change_of_a_repair_is_rolled_back_byte_for_byte(seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        source = random.Random(seed)
        root = make_tree(Path(name) / "s", source)
        edits = random_edits(root, source)
        before = snapshot(root)
        work = Path(name) / "work"
        moved = [_moved(edit, root, work) for edit in edits]
        change = 0
        while True:
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(root, work)
            try:
                with crashing_at(change):
                    run(work, moved)
                break
            except Crash:
                pass
            applied = [one.state for one in list_entries(work)] == ["applied"]
            prepared = bool(interrupted(work))
            if not prepared and not applied:
                assert snapshot(work) == before, change
            roll_back_interrupted(work)
            if applied:  # the manifest was renamed into place, only its directory's sync was not seen to end
                undo(work, None)
            assert snapshot(work) == before, change
            with recording() as again:
                assert roll_back_interrupted(work) == ()
            assert {one.kind for one in again} <= {"sync-directory"}, "a second roll-back changes nothing"
            change += 1
        assert change > 8


@pytest.mark.turns(8)
@given(seed=SEEDS)
@settings(max_examples=4)
def test_a_roll_back_and_an_undo_may_be_interrupted_at_every_change(seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        source = random.Random(seed)
        root = make_tree(Path(name) / "s", source)
        edits = random_edits(root, source)
        before = snapshot(root)
        done = Path(name) / "done"
        shutil.copytree(root, done)
        with recording() as changes:
            run(done, [_moved(edit, root, done) for edit in edits])
        half = Path(name) / "half"
        shutil.copytree(root, half)
        with pytest.raises(Crash), crashing_at(source.randrange(len(changes) // 2, len(changes) - 1)):
            run(half, [_moved(edit, root, half) for edit in edits])
        for start, resume in ((done, undo_latest), (half, roll_back_interrupted)):
            change = 0
            while True:
                work = Path(name) / "work"
                shutil.rmtree(work, ignore_errors=True)
                shutil.copytree(start, work)
                try:
                    with crashing_at(change):
                        resume(work)
                    break
                except Crash:
                    pass
                roll_back_interrupted(work)
                if list_entries(work) and list_entries(work)[0].state == "applied":  # before the undo had begun
                    undo(work, None)
                assert snapshot(work) == before, (start, change)
                change += 1


def undo_latest(root: Path) -> None:
    undo(root, None)


def _moved(edit: Edit, old: Path, new: Path) -> Edit:
    path = new / edit.path.relative_to(old)
    if isinstance(edit, Cut):
        return Cut(path, edit.size)
    if isinstance(edit, Overwrite):
        return Overwrite(path, edit.offset, edit.data)
    return Replace(path, edit.parts) if isinstance(edit, Replace) else Remove(path)


def test_a_torn_overwrite_or_a_half_restored_tail_is_still_restored(tree: Path) -> None:
    """What a power loss makes of un-synced writes: sectors old, new, or zero where the file grows."""
    path = tree / "0" / "a.seg"
    original = path.read_bytes()
    for state in (
        original[:50] + b"N" * 10 + original[60:],
        original[:50] + b"N" * 4 + original[54:],
        original[:50] + b"N" * 10 + original[60:150],
        original[:150] + bytes(50),
        original[:150] + original[150:170] + bytes(5),
    ):
        path.write_bytes(original)
        with recording() as changes:
            pass
        with pytest.raises(Crash), crashing_at(_first(tree, "write", "a.seg")) as changes:
            run(tree, [Overwrite(path, 50, b"N" * 10), Cut(path, 150)])
        assert changes
        path.write_bytes(state)
        roll_back_interrupted(tree)
        assert path.read_bytes() == original
        shutil.rmtree(tree / disk.STATE_DIRECTORY)


def _first(tree: Path, kind: str, name: str) -> int:
    """The place of the first change of a kind to a file outside our state, in the repair of the test above."""
    copy = tree.with_name("probe")
    shutil.copytree(tree, copy)
    with recording() as changes:
        run(copy, [Overwrite(copy / "0" / "a.seg", 50, b"N" * 10), Cut(copy / "0" / "a.seg", 150)])
    shutil.rmtree(copy)
    return next(n for n, one in enumerate(changes) if one.kind == kind and one.path == copy / "0" / name)


@pytest.mark.parametrize("change", ["appended", "elsewhere", "inside", "recreated"])
def test_newer_data_of_somebody_else_is_never_rolled_back_over(tree: Path, change: str) -> None:
    """A released node may start on a directory whose repair was interrupted: what it writes is not ours to remove."""
    data, other = tree / "0" / "a.seg", tree / "0" / "b.seg"
    probe = shutil.copytree(tree, tree.with_name("probe"))
    with recording() as changes:
        run(probe, [Cut(probe / "0" / "a.seg", 100), Remove(probe / "0" / "b.seg")])
    last = max(n for n, one in enumerate(changes) if one.kind == "rename" and one.path.name == "b.seg")
    with pytest.raises(Crash), crashing_at(last):
        run(tree, [Cut(data, 100), Remove(other)])
    assert not other.exists()
    if change == "appended":
        data.write_bytes(data.read_bytes() + b"new record" * 10)
    elif change == "elsewhere":
        data.write_bytes(b"X" + data.read_bytes()[1:])
    elif change == "inside":
        data.write_bytes(data.read_bytes() + b"Z" * 5)
    else:
        other.write_bytes(b"made anew")
    before = contents(tree)
    with pytest.raises(DamageError, match="cannot be taken back"):
        roll_back_interrupted(tree)
    assert contents(tree) == before, "nothing at all was changed"
    assert len(interrupted(tree)) == 1


def test_a_file_that_a_crash_left_under_both_names_has_one_again_after_the_roll_back(tree: Path) -> None:
    """Both names are then one file, between whose names a rename does nothing."""
    before = snapshot(tree)
    path = tree / "0" / "b.seg"
    with pytest.raises(Crash), crashing_when(lambda change: change.kind == "rename" and change.path == path):
        run(tree, [Remove(path)])
    (entry,) = interrupted(tree)
    os.link(entry.path / "old-0", path)
    roll_back_interrupted(tree)
    assert snapshot(tree) == before
    assert not (entry.path / "old-0").exists()


def test_a_failure_of_the_system_half_way_is_taken_back_at_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(tree)
    real = disk.WritableFile.truncate

    def failing(self: disk.WritableFile, size: int) -> None:
        real(self, size)
        raise disk.write_error(self.path, size, OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(disk.WritableFile, "truncate", failing)
    with pytest.raises(disk.DiskError):
        run(tree, [Overwrite(tree / "0" / "b.seg", 3, b"X"), Cut(tree / "0" / "a.seg", 10)])
    assert snapshot(tree) == before
    assert [one.state for one in list_entries(tree)] == ["rolled-back"]


def test_too_little_space_is_refused_before_anything_changes(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda path: execution.MANIFEST_ALLOWANCE + 99)
    with recording() as changes, pytest.raises(DiskFullError, match="nothing was changed"):
        run(tree, [Cut(tree / "0" / "a.seg", 100)])
    assert changes == []
    with pytest.raises(DiskFullError):
        run(tree, [Replace(tree / "0" / "c.seg", lambda: [b"x" * 100], size=100)])
    run(tree, [Cut(tree / "0" / "a.seg", 101)])


def test_an_undo_without_the_room_that_it_needs_is_refused_before_anything_changes(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left half done on a full disk, where no node could finish it, and so none started."""
    before = snapshot(tree)
    cut = [
        Cut(tree / "0" / "a.seg", 100),
        Cut(tree / "0" / "b.seg", 20),
        Overwrite(tree / "waltz-storage.ctl", 270, b"w" * 30),
    ]
    entry = run(tree, cut)
    repaired = snapshot(tree)
    monkeypatch.setattr(disk, "free_bytes", lambda path: execution.MANIFEST_ALLOWANCE + 100 + 30 - 1)
    with recording() as changes, pytest.raises(DiskFullError, match="nothing was changed"):
        undo(tree, None)
    assert {one.kind for one in changes} <= {"sync-directory"}
    assert (snapshot(tree), list_entries(tree)) == (repaired, (entry,))
    monkeypatch.setattr(disk, "free_bytes", lambda path: execution.MANIFEST_ALLOWANCE + 100 + 30)
    undo(tree, None)
    assert snapshot(tree) == before


def test_an_undo_that_only_moves_files_needs_no_room(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(tree)
    run(tree, [Remove(tree / "0" / "a.seg"), Overwrite(tree / "0" / "b.seg", 40, b"w" * 30)])
    monkeypatch.setattr(disk, "free_bytes", lambda path: 0)
    undo(tree, None)
    assert snapshot(tree) == before


@pytest.mark.parametrize("edit", ["remove", "cut", "make"])
def test_a_quarantine_that_was_moved_to_another_disk_has_to_come_back_before_an_undo(
    tree: Path, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    """The undo was begun, could not move the first file, and no node started until the quarantine was where it had been."""
    before, path = snapshot(tree), tree / "0" / "b.seg"
    made: dict[str, Edit] = {
        "remove": Remove(path),
        "cut": Cut(path, 3),
        "make": Replace(tree / "0" / "c.seg", lambda: [b"c"]),
    }
    entry = run(tree, [Cut(tree / "0" / "a.seg", 100), made[edit]])
    repaired = snapshot(tree)
    monkeypatch.setattr(quarantine, "mount_of", lambda path: (1, 2 if disk.QUARANTINE in Path(path).parts else 1))
    if edit == "remove":
        with recording() as changes, pytest.raises(RefusedError, match="lies on another file system, or mount, than"):
            undo(tree, None)
        assert {one.kind for one in changes} <= {"sync-directory"}
        assert (snapshot(tree), list_entries(tree)) == (repaired, (entry,))
        monkeypatch.undo()
    undo(tree, None)
    assert snapshot(tree) == before


def test_nothing_is_begun_where_the_journal_cannot_be_written(tree: Path) -> None:
    """It could neither end nor be taken back, and a node would not start any more."""
    entry = run(tree, [Cut(tree / "0" / "b.seg", 5)])
    kept = journal.journal_path(tree)
    kept.rename(tree / "journal")
    kept.symlink_to(tree / "nowhere" / "else")
    before = snapshot(tree)
    for call in (partial(run, tree, [Cut(tree / "0" / "a.seg", 100)]), partial(undo, tree, None)):
        with pytest.raises(DiskWriteError, match="a link that leads nowhere"):
            call()
        assert snapshot(tree) == before
        assert [(one.id, one.state) for one in list_entries(tree)] == [(entry.id, RepairState.APPLIED)]


def test_a_disk_that_fills_up_while_copies_are_made_leaves_nothing(tree: Path) -> None:
    """A real limit of the system on file sizes, in a process of its own, stands for the full disk."""
    before = snapshot(tree)
    code = f"""
import resource, signal, sys
from pathlib import Path
from waltzctl.engine.errors import DiskWriteError
from waltzctl.engine.durable.edits import Cut, Replace
from waltzctl.engine.storage.store import apply_edits
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
root = Path({str(tree)!r})
try:
    apply_edits(root, [Cut(root / "0/a.seg", 3), Replace(root / "0/b.seg", lambda: [b"x" * 30000])],
                command="recover", arguments=[], plan_hash="")
except DiskWriteError as error:
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == 7
    assert snapshot(tree) == before
    assert list_entries(tree) == ()
    assert list((tree / disk.STATE_DIRECTORY / "quarantine").iterdir()) == []


def test_undo_refuses_a_file_that_is_not_as_the_repair_left_it(tree: Path) -> None:
    run(tree, [Cut(tree / "0" / "a.seg", 100)])
    (tree / "0" / "a.seg").write_bytes(b"appended since")
    before = contents(tree)
    with pytest.raises(StalePlanError, match=r"a\.seg"):
        undo(tree, None)
    assert contents(tree) == before
    assert list_entries(tree)[0].state == "applied"


def test_undo_demands_that_later_repairs_of_the_same_file_go_first(tree: Path) -> None:
    before = snapshot(tree)
    first = run(tree, [Cut(tree / "0" / "a.seg", 100)])
    second = run(tree, [Cut(tree / "0" / "a.seg", 50)])
    third = run(tree, [Cut(tree / "0" / "b.seg", 5)])
    with pytest.raises(StalePlanError, match=f"undo {second.id} first"):
        undo(tree, first.id)
    assert undo(tree, second.id).entry.id == second.id
    assert undo(tree, first.id).files == (tree / "0" / "a.seg",)
    assert undo(tree, None).entry.id == third.id
    assert snapshot(tree) == before
    with pytest.raises(RefusedError, match="nothing to undo"):
        undo(tree, None)
    with pytest.raises(RefusedError, match="already"):
        undo(tree, first.id)


def test_ids_within_one_second_differ_and_stay_in_order(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "now_ms", lambda: 1_700_000_000_123)
    ids = [run(tree, [Cut(tree / "0" / "a.seg", 199 - n)]).id for n in range(12)]
    assert ids[0] == "20231114T221320Z-recover"
    assert ids[11] == "20231114T221320Z-recover-12"
    assert [entry.id for entry in list_entries(tree)] == ids


def test_undo_of_an_interrupted_repair_takes_that_one_back(tree: Path) -> None:
    before = snapshot(tree)
    run(tree, [Cut(tree / "0" / "b.seg", 5)])
    after = snapshot(tree)
    with recording() as changes:
        run(tree, [Cut(tree / "0" / "a.seg", 5)])
    undo(tree, None)
    with pytest.raises(Crash), crashing_at(len(changes) - 6):
        run(tree, [Cut(tree / "0" / "a.seg", 5)])
    assert len(interrupted(tree)) == 1
    with pytest.raises(RefusedError, match="interrupted"):
        run(tree, [Cut(tree / "0" / "a.seg", 5)])
    undo(tree, None)
    assert snapshot(tree) == after
    undo(tree, None)
    assert snapshot(tree) == before


def test_undo_where_nothing_was_ever_repaired_makes_no_files(tree: Path) -> None:
    with recording() as changes, pytest.raises(RefusedError):
        undo(tree, None)
    assert changes == []


def test_undo_of_an_unknown_id_is_a_usage_error(tree: Path) -> None:
    run(tree, [Cut(tree / "0" / "b.seg", 5)])
    for name in ("20200101T000000Z-recover", "../../x", ""):
        with pytest.raises(InvalidRequestError):
            undo(tree, name)


def test_undo_needs_the_lock(tree: Path) -> None:
    run(tree, [Cut(tree / "0" / "b.seg", 5)])
    with DirectoryLock.acquire(tree, tree / "waltz-storage.ctl"), pytest.raises(DirectoryLockedError):
        undo(tree, None)


def test_a_made_directory_goes_again_unless_something_else_came_into_it(tree: Path) -> None:
    run(tree, [Replace(tree / "5" / "a.seg", lambda: [b"1"])])
    (tree / "5" / "foreign").write_bytes(b"")
    with pytest.raises(StalePlanError, match="foreign"):
        undo(tree, None)
    (tree / "5" / "foreign").unlink()
    undo(tree, None)
    assert not (tree / "5").exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda root: [Cut(root / "0" / "a.seg", 5), Remove(root / "0" / "a.seg")],
        lambda root: [Cut(root / "0" / "a.seg", 201)],
        lambda root: [Overwrite(root / "0" / "a.seg", 201, b"x")],
        lambda root: [Overwrite(root / "0" / "a.seg", 0, b"xx"), Overwrite(root / "0" / "a.seg", 1, b"y")],
        lambda root: [Overwrite(root / "0" / "a.seg", 90, b"x" * 20), Cut(root / "0" / "a.seg", 100)],
        lambda root: [Remove(root / ".waltzctl" / "lock")],
        lambda root: [Remove(root.parent / "other")],
        lambda root: [],
    ],
)
def test_edits_that_contradict_one_another_or_leave_the_directory_are_refused(tree: Path, make: object) -> None:
    with recording() as changes, pytest.raises(ValueError):  # noqa: PT011  # the kind of contradiction is the parameter
        run(tree, make(tree))  # type: ignore[operator]
    assert changes == []


def test_no_edit_follows_a_symbolic_link_out_of_the_directory(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.seg").write_bytes(b"precious")
    (tree / "1").symlink_to(tmp_path / "elsewhere")
    (tree / "0" / "link.seg").symlink_to(tmp_path / "elsewhere" / "a.seg")
    for path in (tree / "1" / "a.seg", tree / "0" / "link.seg"):
        with pytest.raises(RefusedError, match="symbolic link"):
            run(tree, [Cut(path, 1)])
    assert (tmp_path / "elsewhere" / "a.seg").read_bytes() == b"precious"


def test_the_journal_gets_one_line_per_event_and_survives_a_torn_line(tree: Path) -> None:
    import json

    run(tree, [Cut(tree / "0" / "a.seg", 5)])
    path = journal.journal_path(tree)
    with path.open("ab") as file:
        file.write(b'{"torn')
    undo(tree, None)
    lines = path.read_text().splitlines()
    assert lines[1] == '{"torn'
    first, last = json.loads(lines[0]), json.loads(lines[2])
    assert (first["event"], last["event"]) == ("applied", "undone")
    assert first["arguments"] == ["recover", str(tree)]
    assert first["files"][0]["before"] == last["files"][0]["after"]
    assert first["files"][0]["before"]["size"] == 200


def test_the_kept_bytes_are_durable_before_the_first_change_of_the_storage(tree: Path) -> None:
    """Every file of the entry, its directory and the manifest are synced before anything outside is touched."""
    with recording() as changes:
        run(tree, [Cut(tree / "0" / "a.seg", 5), Replace(tree / "0" / "b.seg", lambda: [b"n"])])
    first = next(n for n, one in enumerate(changes) if one.path.parent == tree / "0" and one.kind != "sync")
    last_write = {one.path: n for n, one in enumerate(changes[:first]) if one.kind == "write"}
    for path, place in last_write.items():
        assert any(c.kind == "sync" and c.path == path for c in changes[place:first]), path
    names = [n for n, c in enumerate(changes[:first]) if c.kind in ("create", "rename")]
    assert changes[first - 1].kind == "sync-directory"
    assert max(names) < first - 1


def test_reading_entries_changes_nothing(tree: Path) -> None:
    run(tree, [Cut(tree / "0" / "a.seg", 5)])
    os.chmod(tree / disk.STATE_DIRECTORY, 0o555)
    with recording() as changes:
        list_entries(tree)
        interrupted(tree)
    assert changes == []
    os.chmod(tree / disk.STATE_DIRECTORY, 0o755)


@pytest.mark.parametrize("spoiled", ["0/a.seg", "0/b.seg"])
def test_a_repair_that_does_not_leave_what_it_was_to_leave_is_not_applied(
    tree: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    """Whoever wrote into the file, or lost what was written: it stays interrupted, and what was kept stays."""
    real = quarantine.carry_out

    def carried_out(entry: QuarantineEntry, edits: list[Edit]) -> None:
        real(entry, edits)
        file = tree / spoiled
        file.write_bytes(file.read_bytes()[:-1] + b"?")

    monkeypatch.setattr(quarantine, "carry_out", carried_out)
    with pytest.raises(DiskWriteError, match="verify the repair"):
        run(tree, [Cut(tree / "0/a.seg", 100), Replace(tree / "0/b.seg", lambda: [b"new"])])
    assert [entry.state for entry in list_entries(tree) if entry.state is RepairState.APPLIED] == []
    assert len(interrupted(tree)) == 1


def test_what_the_manifest_shows_is_durable_before_it_is_said_to_be(tree: Path) -> None:
    entry = run(tree, [Cut(tree / "0/a.seg", 100)])
    (entry.path / quarantine.UNSETTLED).touch()  # as a crash leaves it behind the manifest's change
    with recording() as changes:
        roll_back_interrupted(tree)
    settled = [(one.kind, one.path) for one in changes].index(("unlink", entry.path / quarantine.UNSETTLED))
    assert (changes[settled - 1].kind, changes[settled - 1].path) == ("sync-directory", entry.path)


def test_of_an_entry_that_is_discarded_the_manifest_goes_last_and_behind_a_sync(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash leaves copies of which nothing says what they are."""

    def fails(*_arguments: object) -> None:
        raise DiskFullError(tree, None, OSError(errno.ENOSPC, "full"), doing="copy")

    real = quarantine.prepare

    def prepared(entry: QuarantineEntry, *rest: object) -> None:
        real(entry, *rest)  # type: ignore[arg-type]
        (entry.path / "zz").write_bytes(b"behind the manifest in any order of names")
        fails()

    monkeypatch.setattr(quarantine, "prepare", prepared)
    with recording() as changes, pytest.raises(DiskFullError):
        run(tree, [Cut(tree / "0/a.seg", 100), Remove(tree / "0/b.seg")])
    gone = [(one.kind, one.path.name) for one in changes if one.kind in ("unlink", "rmdir", "sync-directory")]
    manifest = gone.index(("unlink", "manifest.json"))
    assert gone[manifest - 1][0] == "sync-directory"
    assert gone[manifest + 1][0] == "rmdir"


def whole(name: str, *, directory: bool = True) -> list[str]:
    """The steps in which a file is written whole."""
    beside = f"{name}.waltzctl-tmp"
    steps = [f"create {beside}", f"write {beside}", f"sync {beside}", f"rename {beside}"]
    return [*steps, "sync-directory entry"] if directory else steps


def test_every_stage_is_durable_before_the_next_begins(tree: Path) -> None:
    with recording() as changes:
        entry = run(
            tree,
            [Replace(tree / "0/a.seg", lambda: [b"new"]), Remove(tree / "0/b.seg"), Cut(tree / "waltz-storage.ctl", 9)],
        )
    found = [f"{one.kind} {one.path.name}".replace(entry.id, "entry") for one in changes]
    assert found == [
        *("mkdir .waltzctl", "sync-directory storage", "mkdir quarantine", "sync-directory .waltzctl"),
        *("mkdir entry", "sync-directory quarantine"),
        *whole("manifest.json"),  # an entry that has anything says what it is
        "create unsettled",
        *("sync a.seg", "create new-0", "write new-0", "sync new-0"),
        "sync b.seg",
        *("sync waltz-storage.ctl", "create range-2", "write range-2", "sync range-2"),
        *whole("manifest.json"),  # prepared
        *("rename a.seg", "sync-directory entry", "sync-directory 0", "rename new-0", "sync-directory 0"),
        *("rename b.seg", "sync-directory entry", "sync-directory 0"),
        *("truncate waltz-storage.ctl", "sync waltz-storage.ctl"),
        *("create journal.jsonl", "sync-directory .waltzctl", "write journal.jsonl", "sync journal.jsonl"),
        *whole("manifest.json"),  # applied
        *("sync-directory entry", "unlink unsettled"),
    ]


def test_repairs_are_numbered_in_their_order(tree: Path) -> None:
    for size in (90, 80, 70, 60):
        run(tree, [Cut(tree / "0/a.seg", size)])
    assert [one.number for one in list_entries(tree)] == [1, 2, 3, 4]


def test_what_was_interrupted_is_settled_first_and_taken_back_latest_first(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [run(tree, [Cut(tree / "0/a.seg", size)]) for size in (90, 80)]
    left = (replace(entries[0], state=RepairState.PREPARED), replace(entries[1], state=RepairState.UNDOING))
    done: list[tuple[object, ...]] = []
    for entry in left:
        write_entry(entry)
    monkeypatch.setattr(quarantine, "settle_interrupted", lambda given: done.append(("settle", *given)))
    monkeypatch.setattr(quarantine, "ways_back", lambda _: [])
    monkeypatch.setattr(quarantine, "_take_back", lambda entry, state, _: done.append((entry, state)) or entry)
    assert roll_back_interrupted(tree) == left
    assert done == [("settle", *left), (left[1], RepairState.UNDONE), (left[0], RepairState.ROLLED_BACK)]


def not_the_owner(number: int) -> Callable[..., None]:
    """What the system answers whoever may write to a file that is not his own, or can for other reasons not do it."""

    def utime(path: Path, **_: object) -> None:
        raise OSError(number, os.strerror(number))

    return utime


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_whoever_may_write_but_is_not_the_owner_takes_a_repair_back_but_for_the_time(
    tree: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """And rolls an interrupted one back."""
    before = plain(tree)
    cut, overwritten, removed = tree / "0/a.seg", tree / "waltz-storage.ctl", tree / "0/b.seg"
    edits: list[Edit] = [Cut(cut, 90), Overwrite(overwritten, 1, b"x"), Remove(removed)]
    for one in (cut, overwritten, removed):
        os.utime(one, (1000, 1000))
    first = run(tree, edits)
    monkeypatch.setattr(os, "utime", not_the_owner(number))
    with recording() as changes:
        undo(tree)
    assert plain(tree) == before
    (entry,) = list_entries(tree)
    assert entry.state == "undone"
    assert other_times([entry]) == (cut, overwritten)
    assert removed.stat().st_mtime == 1000, "a file that was moved has kept its time"
    assert [one.path for one in changes if one.kind == "sync" and one.path in (cut, overwritten)] == [overwritten, cut]
    again = run(tree, edits[:1])
    write_entry(replace(again, state=RepairState.PREPARED))
    assert [one.id for one in roll_back_interrupted(tree)] == [again.id]
    assert plain(tree) == before
    assert first.id != again.id


def test_a_time_that_cannot_be_set_for_another_reason_leaves_the_undo_to_be_finished(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tree, [Cut(tree / "0/a.seg", 90)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", not_the_owner(errno.EIO))
        with pytest.raises(DiskWriteError, match="cannot set the time of"):
            undo(tree)
    assert [one.state for one in list_entries(tree)] == ["undoing"]
    (entry,) = undo(tree).entries
    assert (entry.state, other_times([entry])) == ("undone", ())


def give(root: Path, user: int, group: int) -> None:
    for one in (root, *root.rglob("*")):
        os.chown(one, user, group)


@pytest.mark.parametrize("owner", [None, (65534, 65533)])
def test_what_a_repair_makes_is_as_what_it_replaces_and_its_copies_are_as_what_they_are_of(
    tree: Path, owner: tuple[int, int] | None
) -> None:
    """Whose it is and who may read it; the superuser's repair of somebody else's directory is that one's."""
    if owner is not None and os.geteuid() != 0:
        pytest.skip("only the superuser gives files away")
    modes = {"waltz-storage.ctl": 0o640, "0/a.seg": 0o600, "0/b.seg": 0o604, "0/c.idx": 0o660, "": 0o751}
    (tree / "0" / "c.idx").write_bytes(b"c" * 30)
    for name, mode in modes.items():
        (tree / name).chmod(mode)
    if owner is not None:
        give(tree, *owner)
    edits: list[Edit] = [
        Cut(tree / "0" / "a.seg", 90),
        Overwrite(tree / "0" / "b.seg", 10, b"new"),
        Replace(tree / "0" / "c.idx", lambda: [b"new"]),
        Replace(tree / "0" / "c.seg", lambda: [b"new"]),  # the other half of c.idx
        Replace(tree / "0" / "b.idx", lambda: [b"new"]),
        Replace(tree / "7" / "d.seg", lambda: [b"new"]),  # none of its kind is there
    ]
    with DirectoryLock.acquire(tree, tree / "waltz-storage.ctl"):
        entry = run(tree, edits)
    found = {one.relative_to(entry.path).as_posix(): one for one in entry.path.iterdir()}
    found |= {one.relative_to(tree).as_posix(): one for one in tree.rglob("*") if not one.is_relative_to(entry.path)}
    if owner is not None:
        assert {(one.stat().st_uid, one.stat().st_gid) for one in (*found.values(), entry.path)} == {owner}
    told = {name: stat.S_IMODE(one.stat().st_mode) for name, one in found.items() if one.is_file()}
    assert told == {
        "waltz-storage.ctl": 0o640, "0/a.seg": 0o600, "0/b.seg": 0o604, "0/b.idx": 0o604, "0/c.idx": 0o660, "0/c.seg": 0o660,
        "7/d.seg": 0o640, "range-0": 0o600, "range-1": 0o604, "new-1": 0o604, "old-2": 0o660, "manifest.json": 0o640,
        ".waltzctl/journal.jsonl": 0o640, ".waltzctl/lock": 0o640,
    }  # fmt: skip
    assert {stat.S_IMODE(one.stat().st_mode) for one in (entry.path, *entry.path.parents[:2])} == {0o751}
    assert stat.S_IMODE((tree / "7").stat().st_mode) == 0o751
    undo(tree)
    assert {name: stat.S_IMODE((tree / name).stat().st_mode) for name in modes} == modes


def test_a_directory_without_its_control_file_cannot_be_locked(tree: Path) -> None:
    (tree / "waltz-storage.ctl").unlink()
    with pytest.raises(RefusedError, match="there is no control file, so that the directory cannot be locked"):
        STORE.lock(tree)
    assert not (tree / ".waltzctl").exists()


# --- as it was left ---------------------------------------------------------------------------------------------------


def test_what_a_later_repair_changed_is_told_apart_from_what_anybody_changed(tree: Path) -> None:
    first = run(tree, [Cut(tree / "0/a.seg", 90)])
    second = run(tree, [Cut(tree / "0/a.seg", 80)])
    both = (first, second)
    with pytest.raises(StalePlanError, match="a later repair changed it too") as caught:
        check_as_left(first, both)
    assert caught.value.advice == f"undo {second.id} first"
    check_as_left(first, both, but=[tree / "0/a.seg"])
    check_as_left(second, both)
    (tree / "0/a.seg").write_bytes(b"newer")
    with pytest.raises(StalePlanError, match=f"the file is not as the repair {second.id} left it"):
        check_as_left(second, both)
    with pytest.raises(StalePlanError, match="left it"):
        check_as_left(first, (first, replace(second, state=RepairState.UNDONE)))


@pytest.mark.parametrize("changed", ["0/a.seg", "waltz-storage.ctl"])
@pytest.mark.parametrize("first", ["0/a.seg", "waltz-storage.ctl"])
def test_every_file_of_a_repair_has_to_be_as_it_left_it(tree: Path, first: str, changed: str) -> None:
    names = sorted(["0/a.seg", "waltz-storage.ctl"], key=lambda name: name != first)
    entry = run(tree, [Cut(tree / name, 9) for name in names])
    check_as_left(entry, (entry,))
    (tree / changed).write_bytes(b"newer")
    with pytest.raises(StalePlanError, match=f"{changed}: the file is not as the repair {entry.id} left it"):
        check_as_left(entry, (entry,))


@pytest.mark.parametrize("now", ["there", "nowhere", "both", "a file is in its place"])
def test_a_directory_that_was_moved_is_where_it_was_moved_to(tree: Path, now: str) -> None:
    move = KeptMove("0", ".waltzctl/unassigned/0")
    base = run(tree, [Cut(tree / "waltz-storage.ctl", 9)])
    entry = replace(base, files=(), moves=(move,))
    target = tree / move.target
    target.parent.mkdir()
    (tree / "0").rename(target)
    if now == "nowhere":
        target.rename(tree / "elsewhere")
    elif now == "both":
        (tree / "0").mkdir()
    elif now == "a file is in its place":
        (tree / "0").write_bytes(b"")
    if now == "there":
        check_as_left(entry, (entry,))
        later = replace(
            entry, id="later", number=2, moves=(), files=(replace(base.files[0], path=f"{move.target}/a.seg"),)
        )
        with pytest.raises(StalePlanError, match="a later repair changed it too"):
            check_as_left(entry, (entry, later))
    else:
        with pytest.raises(StalePlanError, match="was moved again since the repair"):
            check_as_left(entry, (entry,))


def test_what_a_failed_sync_restored_in_memory_only_is_written_again(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the copies are dropped: the next sync of the file succeeds, and brings nothing to the disk."""
    path, sync = tree / "0" / "a.seg", disk.WritableFile.sync
    old = path.read_bytes()
    run(tree, [Overwrite(path, 100, b"new" * 20)])
    on_disk = bytearray(path.read_bytes())

    def failing(file: disk.WritableFile) -> None:
        if file.path == path:
            raise SyncFailedError(path, None, OSError(errno.EIO, os.strerror(errno.EIO)), doing="sync")
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(disk.WritableFile, "sync", failing)
        with pytest.raises(SyncFailedError):
            undo(tree)
    assert path.read_bytes() == old
    with recording() as changes:
        undo(tree)
    for one in changes:
        if one.path == path and one.kind == "write":
            on_disk[one.offset : one.offset + len(one.data)] = one.data
    assert bytes(on_disk) == old


@pytest.mark.parametrize("returns", [False, True])
def test_a_directory_that_could_not_be_moved_back_is_told_before_an_undo_begins(
    tree: Path, monkeypatch: pytest.MonkeyPatch, *, returns: bool
) -> None:
    """With no file in the entry nothing was looked at: the undo was begun, and no node started any more."""
    here, there = tree / "0", tree / ".waltzctl" / "unassigned" / "0"
    if returns:
        disk.move_directory(here, there)
    before = sorted(tree.rglob("*.seg"))
    entry = run(tree, [MoveDirectory(there, here) if returns else MoveDirectory(here, there)])
    monkeypatch.setattr(quarantine, "mount_of", lambda path: (1, 2 if Path(path).name == "unassigned" else 1))
    with recording() as changes, pytest.raises(RefusedError, match="lies on another file system"):
        undo(tree, None)
    assert {one.kind for one in changes} <= {"sync-directory"}
    assert list_entries(tree) == (entry,)
    monkeypatch.undo()
    undo(tree, None)
    assert sorted(tree.rglob("*.seg")) == before
