"""Plans are bound to the files they were made for, and nothing is applied to others."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import build_directory, write_segment
from tests.repair.scenes import Scene, actions, copy, flip, make_scene, recovered, same_bytes
from tests.repair.trees import Crash, crashing_at, recording, snapshot
from tests.repair.twelve import Twelve
from waltzctl.engine.columns.plan_columns import PLAN
from waltzctl.engine.durable import disk, journal
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import (
    DirectoryLockedError,
    DiskFullError,
    DiskReadError,
    InvalidRequestError,
    RefusedError,
    StalePlanError,
    WaltzError,
)
from waltzctl.engine.inspect import verify as verify_module
from waltzctl.engine.pages import inspection, page_recovery
from waltzctl.engine.repair import plan
from waltzctl.engine.repair.apply import apply, undo_repair, verify_again
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.plan import PlanDraft, Repair
from waltzctl.engine.repair.planners import load_plan
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_pages import StoreRepair
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.storage.availability_marks import Availability, save_marks
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.store import interrupted, list_entries
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout
from waltzctl.formats.segment import Record, index_name


def plans(scene: Scene) -> list[Repair]:
    scene.idx(0).unlink()
    scene.flip(60)
    return [
        plan_rebuild_index(scene.root),
        plan_truncate(scene.root, partition=0, after=120),
        plan_recover(scene.root, replicas=[scene.replica]),
    ]


def save(repair: Repair, path: Path) -> Path:
    path.write_text(json.dumps(PLAN.shown(repair.plan)))
    return path


def test_a_saved_plan_is_made_again_and_is_the_same(scene: Scene, tmp_path: Path) -> None:
    for repair in plans(scene):
        again = load_plan(save(repair, tmp_path / "plan"))
        assert (again.plan, again.edits == () or len(again.edits)) == (repair.plan, len(repair.edits))


def test_the_plan_object_has_the_keys_of_the_contract(scene: Scene) -> None:
    for repair in plans(scene):
        found = PLAN.shown(repair.plan)
        assert {"schema", "type", "hash", "command", "path", "steps", "undecided"} <= set(found)
        assert (found["schema"], found["type"]) == ("waltzctl.plan/1", "plan")
        for step in found["steps"]:
            assert list(step) == [
                "action",
                "path",
                "partition",
                "from_transaction_id",
                "to_transaction_id",
                "offset",
                "length",
                "reason",
                "loses_data",
            ]


@pytest.mark.parametrize("what", ["touched", "neighbour", "control", "new-file", "removed", "time", "replica"])
def test_a_stale_plan_is_refused_and_names_the_file(scene: Scene, tmp_path: Path, what: str) -> None:
    repair = plans(scene)[2]
    saved = save(repair, tmp_path / "plan")
    if what == "touched":
        state = scene.seg(50).stat()
        flip(scene.seg(50), 1000)
        os.utime(scene.seg(50), ns=(state.st_mtime_ns, state.st_mtime_ns))
    elif what == "neighbour":
        with scene.seg(100).open("ab") as file:
            file.write(b"x")
    elif what == "control":
        flip(scene.control, 127)
    elif what == "new-file":
        scene.seg(500).write_bytes(b"")
    elif what == "removed":
        scene.idx(100).unlink()
    elif what == "time":
        os.utime(scene.seg(50))
    else:
        flip(scene.replica / "0" / scene.seg(50).name, 5000 - 1000)
    before = snapshot(scene.root)
    with pytest.raises(StalePlanError) as caught:
        apply(repair, arguments=[])
    named = {
        "touched": scene.seg(50),
        "neighbour": scene.seg(100),
        "control": scene.control,
        "new-file": scene.seg(500),
    }
    if what in named:
        assert named[what].name in str(caught.value)
    with pytest.raises(WaltzError):
        load_plan(saved)
    assert snapshot(scene.root) == before
    assert list_entries(scene.root) == ()


def test_a_replica_that_changes_between_the_check_and_the_copying_gives_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody locks a replica: a node may run there, or another repair.  What is there then is whole, and of the same size."""
    scene.seg(50).unlink()
    repair = plan_recover(scene.root, replicas=[scene.replica])
    assert repair.edits
    before, check = snapshot(scene.root), Repair.check_current

    def check_and_write(one: Repair) -> None:
        check(one)
        with_others(scene)

    monkeypatch.setattr(Repair, "check_current", check_and_write)
    with pytest.raises(StalePlanError, match=scene.seg(50).name) as caught:
        apply(repair, arguments=[])
    assert str(scene.replica) in str(caught.value)
    assert snapshot(scene.root) == before
    assert list_entries(scene.root) == ()


def with_others(scene: Scene) -> None:
    """Other records stand in the replica's second segment."""
    others = [
        Record.make(old.transaction_id, old.request_id, old.header, bytes(255 - byte for byte in old.data))
        for old in scene.records[50:100]
    ]
    write_segment(scene.replica / "0", others)


def assert_stale_for_the_replica(scene: Scene) -> None:
    """A plan that is made now is refused for the replica's second segment, and changes nothing."""
    repair = plan_recover(scene.root, replicas=[scene.replica])
    assert repair.edits
    before = snapshot(scene.root)
    with pytest.raises(StalePlanError, match=scene.seg(50).name) as caught:
        apply(repair, arguments=[])
    assert str(scene.replica) in str(caught.value)
    assert snapshot(scene.root) == before


def test_a_replica_that_changes_while_the_plan_is_made_gives_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan says which bytes of it are the records that were proven, and would be bound to those that came in their place."""
    scene.seg(50).unlink()
    finish = PlanDraft.finish

    def written_and_finished(draft: PlanDraft, *given: Any) -> Repair:
        with_others(scene)
        return finish(draft, *given)

    monkeypatch.setattr(PlanDraft, "finish", written_and_finished)
    assert_stale_for_the_replica(scene)


def test_a_replica_that_changes_while_its_files_are_hashed_gives_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes minutes for files of gigabytes: a file that was looked at before its turn came would be bound as it is then."""
    scene.seg(50).unlink()
    digest = plan._digest

    def written_and_hashed(path: PurePath) -> str | None:
        if path == scene.replica / "0" / scene.seg(50).name:
            with_others(scene)
        return digest(path)

    monkeypatch.setattr(plan, "_digest", written_and_hashed)
    assert_stale_for_the_replica(scene)


def test_a_replica_file_that_is_removed_while_the_plan_is_made_gives_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it is not there was taken for the state which the plan was made for, and the repair ended in the middle."""
    scene.seg(50).unlink()
    digest = plan._digest

    def hashed_and_removed(path: PurePath) -> str | None:
        found = digest(path)
        if path == scene.replica / "0" / scene.seg(50).name:
            Path(path).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(plan, "_digest", hashed_and_removed)
    assert_stale_for_the_replica(scene)


def truncated(d: Twelve) -> Repair:
    return plan_truncate(d.root, partition=0, after=9)


def recovered_end(d: Twelve) -> Repair:
    return plan_recover(d.root, partitions=[0])


def rebuilt(d: Twelve) -> Repair:
    return plan_rebuild_index(d.root)


def converted(d: Twelve) -> Repair:
    return plan_convert(d.root, layout=Layout.DOCUMENTED)


def switched_off(d: Twelve) -> Repair:
    return plan_set_partition(d.root, partition=0, setting=PartitionSetting(available=False))


def marked(d: Twelve) -> Repair:
    return plan_set_partition(d.root, partition=0, setting=PartitionSetting(local_low_water_mark=10))


@pytest.mark.parametrize("make", [truncated, recovered_end, rebuilt, converted, switched_off, marked])
def test_a_plan_during_whose_making_a_node_wrote_is_stale(
    tmp_path: Path, make: Callable[[Twelve], Repair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning takes no lock, and may take minutes: the node that writes then ends before the user has agreed."""
    d = Twelve(tmp_path / "d")
    if make is recovered_end:
        with d.seg(8).open("ab") as file:
            file.write(b"half a record")
    if make is rebuilt:
        d.idx(0).unlink()
    finish = PlanDraft.finish

    def written_and_finished(draft: PlanDraft, *given: Any) -> Repair:
        with StorageDirectory.open(d.root) as storage:
            storage.partition(0).set_low_water_mark(7, 11)
        return finish(draft, *given)

    monkeypatch.setattr(PlanDraft, "finish", written_and_finished)
    repair = make(d)
    assert repair.edits
    before = snapshot(d.root)
    with pytest.raises(StalePlanError, match=r"changed since the plan was made"):
        apply(repair, arguments=[])
    assert snapshot(d.root) == before


@pytest.mark.parametrize("when", ["behind", "before"])
def test_a_session_is_not_set_below_a_fence_that_came_since(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node has let session 9 in, and ended, while the user was asked or the plan was made: nothing but the fence tells."""
    d = Twelve(tmp_path / "d")
    (d.root / disk.STATE_DIRECTORY).mkdir()
    finish = PlanDraft.finish

    def let_in() -> None:
        with SessionFences.open(d.root, 1) as fences:
            fences.raise_to(0, 9)

    def let_in_and_finished(draft: PlanDraft, *given: Any) -> Repair:
        let_in()
        return finish(draft, *given)

    if when == "before":
        monkeypatch.setattr(PlanDraft, "finish", let_in_and_finished)
    repair = plan_set_partition(d.root, partition=0, setting=PartitionSetting(session_id=5))
    if when == "behind":
        let_in()
    with pytest.raises(StalePlanError, match="sessions"):
        apply(repair, arguments=[])


def test_a_switch_that_came_while_the_plan_was_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan has the whole new file of switches, with those of the other partitions as they were."""
    d = Twelve(tmp_path / "d", layout=Layout.DOCUMENTED)
    finish = PlanDraft.finish

    def switched_and_finished(draft: PlanDraft, *given: Any) -> Repair:
        (d.root / disk.STATE_DIRECTORY).mkdir()
        save_marks(d.root, {1: Availability(readable=False, writable=False)})
        return finish(draft, *given)

    monkeypatch.setattr(PlanDraft, "finish", switched_and_finished)
    repair = plan_set_partition(d.root, partition=0, setting=PartitionSetting(available=False))
    with pytest.raises(StalePlanError, match="availability"):
        apply(repair, arguments=[])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"schema": "waltzctl.plan/1"}',
        '{"schema":"waltzctl.plan/1","type":"plan","hash":1,"command":"recover","path":"x","arguments":{}}',
        '{"schema":"waltzctl.plan/1","type":"plan","hash":"1","command":"shell","path":"x","arguments":{}}',
        '{"schema":"waltzctl.plan/1","type":"plan","hash":"1","command":"recover","path":"x","arguments":{"more":1}}',
        '{"schema":"waltzctl.plan/1","type":"plan","hash":"1","command":"recover","path":"x","arguments":{"partitions":["a"]}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_plan_is_a_usage_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan").write_text(text)
    with pytest.raises(InvalidRequestError):
        load_plan(tmp_path / "plan")
    with pytest.raises(InvalidRequestError):
        load_plan(tmp_path / "missing")


def test_the_hash_covers_the_arguments(scene: Scene) -> None:
    hashes = {
        plan_recover(scene.root).plan.hash,
        plan_recover(scene.root, allow_data_loss=True).plan.hash,
        plan_recover(scene.root, partitions=[0]).plan.hash,
        plan_recover(scene.root, replicas=[scene.replica]).plan.hash,
        plan_rebuild_index(scene.root).plan.hash,
    }
    assert len(hashes) == 5


def test_the_same_directory_by_another_name_has_the_same_plan(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.idx(0).unlink()
    absolute = plan_rebuild_index(scene.root).plan.hash
    monkeypatch.chdir(scene.root.parent)
    assert plan_rebuild_index(Path("root")).plan.hash == absolute
    result = apply(plan_rebuild_index(Path("root")), arguments=[])
    assert result.exit_status_name == "clean"
    undo(Path("root"), None)
    assert not scene.idx(0).exists()


def test_a_held_directory_is_refused(scene: Scene) -> None:
    repair = plans(scene)[0]
    with DirectoryLock.acquire(scene.root, scene.control), pytest.raises(DirectoryLockedError):
        apply(repair, arguments=[])


def test_a_full_disk_is_noticed_before_anything_changes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for repair in plans(scene):
        before = snapshot(scene.root)
        monkeypatch.setattr(disk, "free_bytes", lambda path: 100)
        with pytest.raises(DiskFullError, match="nothing was changed"):
            apply(repair, arguments=[])
        monkeypatch.undo()
        assert snapshot(scene.root) == before
        assert list_entries(scene.root) == ()


def test_the_audit_line_has_the_arguments_the_plan_and_both_states(scene: Scene) -> None:
    repair = plans(scene)[0]
    result = apply(repair, arguments=["rebuild-index", "somewhere"])
    (line,) = journal.journal_path(scene.root).read_text().splitlines()
    found = json.loads(line)
    assert found["arguments"] == ["rebuild-index", "somewhere"]
    assert found["plan_hash"] == repair.plan.hash == result.plan_hash
    assert found["entry"] == result.undo_id
    assert found["files"][0]["before"] is None
    assert found["files"][0]["after"]["size"] == scene.idx(0).stat().st_size


@pytest.mark.turns(10)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_crash_at_every_change_of_a_repair_ends_before_or_after_it(tmp_path: Path, which: int) -> None:
    """And recover itself takes an interrupted repair back, as its first and only step."""
    scene = make_scene(tmp_path / "scene", list(Layout)[which % 2])
    first = plans(scene)[which]
    before = snapshot(scene.root)
    change = 0
    while True:
        work = copy(scene, tmp_path / f"work{change}")
        repair = remade(first, work)
        try:
            with crashing_at(change):
                apply(repair, arguments=[])
            break
        except Crash:
            pass
        if interrupted(work.root):
            for planner in (plan_rebuild_index, lambda root: plan_truncate(root, partition=0, after=120)):
                with pytest.raises(RefusedError, match="interrupted"):
                    planner(work.root)
            rescue = plan_recover(work.root)
            assert set(actions(rescue)) == {"roll-back"}
            result = apply(rescue, arguments=[])
            assert result.applied
            assert result.undo_id is None
        if [entry.state for entry in list_entries(work.root)] == ["applied"]:
            undo(work.root, None)
        assert snapshot(work.root) == before, change
        change += 1
    assert change > 10


def test_an_interrupted_repair_is_taken_back_beside_a_partition_that_cannot_be_listed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of another partition is gone: the roll-back has nothing to do with that one."""
    scene.flip(60)
    before = snapshot(scene.root)
    repair = plan_recover(scene.root, partitions=[0], replicas=[scene.replica])
    with pytest.raises(Crash), crashing_at(24):
        apply(repair, arguments=[])
    assert interrupted(scene.root)
    listdir = os.listdir

    def failing(path: Any = ".") -> list[str]:
        if Path(path) == scene.root / "1":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return listdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", failing)
        rescue = plan_recover(scene.root)
        assert set(actions(rescue)) == {"roll-back"}
        assert apply(rescue, arguments=[]).applied
    assert snapshot(scene.root) == before


def remade(repair: Repair, scene: Scene) -> Repair:
    from waltzctl.engine.repair.planners import make

    return make(repair.plan.command, scene.root, repair.plan.arguments)


def test_one_undo_takes_a_whole_recovery_back(scene: Scene) -> None:
    for partition in (0, 1):
        scene.idx(0, partition).unlink()
    flip(scene.control, 3)
    scene.flip(60)
    before = snapshot(scene.root)
    result = apply(plan_recover(scene.root, replicas=[scene.replica]), arguments=[])
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)
    assert len(list_entries(scene.root)) == 1
    undo(scene.root, None)
    assert snapshot(scene.root) == before


def test_applying_an_empty_plan_changes_nothing_not_even_a_lock(scene: Scene) -> None:
    with recording() as changes:
        result = apply(plan_recover(scene.root), arguments=[])
    assert (changes, result.applied, result.exit_status_name) == ([], False, "clean")
    assert not (scene.root / ".waltzctl").exists()


def test_what_is_left_to_be_repaired_is_named_as_well_as_damage(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "d", {0: 5, 1: 5})
    assert verify_again(storage, (0, 1)) == ("clean", ())
    index = storage / "0" / index_name(0)
    index.unlink()
    status, findings = verify_again(storage, (0, 1), exclusive=True)
    assert (status, [one.code.value for one in findings]) == ("repairable", ["index-missing"])


def test_an_end_that_somebody_is_writing_is_torn_only_where_nobody_can_be(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "d", {0: 5})
    (data,) = (storage / "0").glob("*.seg")
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        with data.open("ab") as file:
            file.write(bytes(30))
        assert verify_again(storage, (0,)) == ("clean", ())
        status, findings = verify_again(storage, (0,), exclusive=True)
    assert (status, [one.code.value for one in findings]) == ("repairable", ["torn-tail"])


def test_an_end_that_is_torn_is_found_behind_a_repair_and_behind_its_undo(tmp_path: Path) -> None:
    """Both hold the lock, so that nobody can be writing it; a plan without edits does not."""
    storage = build_directory(tmp_path / "d", {0: 120})
    with sorted((storage / "0").glob("*.seg"))[-1].open("ab") as file:
        file.write(bytes(30))
    nothing = plan_rebuild_index(storage)
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        assert apply(nothing, arguments=[]).status == "clean"
    (storage / "0" / index_name(0)).unlink()
    result = apply(plan_rebuild_index(storage), arguments=[])
    assert (result.status, [one.code.value for one in result.findings]) == ("repairable", ["torn-tail"])
    assert result.undo_id is not None
    undone = undo_repair(storage, result.undo_id)
    assert (undone.status, sorted(one.code.value for one in undone.findings)) == (
        "repairable",
        ["index-missing", "torn-tail"],
    )


def test_what_cannot_be_read_afterwards_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_arguments: object) -> None:
        raise DiskReadError(tmp_path, 0, OSError(5, "no"), doing="read")

    storage = build_directory(tmp_path / "d", {0: 5})
    monkeypatch.setattr(verify_module, "verify", unreadable)
    assert verify_again(storage, (0,)) == ("damaged", ())


def test_what_cannot_be_read_and_was_not_mended_ends_as_verify_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = build_directory(tmp_path / "d", {0: 5})
    target = str(storage / "0" / "0000000000000000000.seg")
    original = FileSource.read_into

    def failing(self: FileSource, offset: int, buffer: memoryview) -> int:
        if self.name == target:
            raise DiskReadError(self.name, offset, OSError(5, "Input/output error"))
        return original(self, offset, buffer)

    monkeypatch.setattr(FileSource, "read_into", failing)
    _, result = recovered(storage)
    assert (result.applied, result.status, result.exit_status_name) == (False, "damaged", "io-error")
    assert [one.code.value for one in result.findings] == ["read-error"]


ENTRY = SimpleNamespace(id="1", path=Path("kept"), files=())


@pytest.mark.parametrize(
    ("planned", "done", "status", "said"),
    [
        ("", (ENTRY, (ENTRY,)), "damaged", (False, None, "damaged", ())),
        ("edits", (None, ()), "damaged", (False, None, "damaged", ())),
        ("edits", (ENTRY, ()), "damaged", (True, "1", "damage-remains", ())),
        ("edits", (ENTRY, ()), "repairable", (True, "1", "repairable", ())),
        ("roll back", (None, (ENTRY,)), "damaged", (True, None, "damage-remains", ("1",))),
        ("roll back", (None, (ENTRY,)), "clean", (True, None, "clean", ("1",))),
    ],
)
def test_what_is_told_of_the_repair_of_a_page_store(
    monkeypatch: pytest.MonkeyPatch,
    planned: str,
    done: tuple[object, tuple[object, ...]],
    status: str,
    said: tuple[object, ...],
) -> None:
    entry, taken = done
    verified = SimpleNamespace(status=status, grave=())
    monkeypatch.setattr(page_recovery, "apply_recovery", lambda *_, **__: (entry, verified, taken))
    monkeypatch.setattr(inspection, "verify_store", lambda path: verified if path == Path("store") else None)
    recovery = SimpleNamespace(
        path=Path("store"), edits=(None,) * (planned == "edits"), roll_back=planned == "roll back"
    )
    result = apply(StoreRepair(SimpleNamespace(hash="h"), recovery), arguments=[])  # type: ignore[arg-type]
    assert (result.applied, result.undo_id, result.exit_status_name, result.taken_back) == said
