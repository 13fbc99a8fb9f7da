"""Taking a repair back where the log went on: judged over the whole partition, never over what somebody wrote since."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.durable.test_manifest import sealed
from tests.repair.scenes import MARK, Scene, codes, make_scene, status
from tests.repair.trees import contents, snapshot
from waltzctl.engine.durable import disk, execution, quarantine
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.edits import Edit, Overwrite, Replace
from waltzctl.engine.durable.manifest import (
    QuarantineEntry,
    RepairState,
    decode_entry,
    encode_entry,
    read_entry,
    write_entry,
)
from waltzctl.engine.durable.restore import Way, put_back
from waltzctl.engine.errors import DiskFullError, RefusedError, StalePlanError
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.apply import apply, undo_repair
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undo_conditions import falling_marks
from waltzctl.engine.repair.undoing import check_undo, undo
from waltzctl.engine.storage.append import PendingRecord, append_lines
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.store import STATE_FILES, apply_edits, list_entries
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout
from waltzctl.formats.segment import segment_name

LAST = 129
"""The last transaction of partition 0 of a scene."""


def truncate(scene: Scene, after: int, *, loss: bool = False) -> str:
    result = apply(plan_truncate(scene.root, partition=0, after=after, allow_data_loss=loss), arguments=[])
    assert result.undo_id is not None
    return result.undo_id


def append(root: Path, count: int, *, threshold: int = 1, partition: int = 0) -> None:
    """With the smallest threshold every record begins a segment of its own."""
    options = StorageOptions(segment_size_threshold=threshold)
    append_lines(root, partition=partition, records=[PendingRecord(b"new")] * count, options=options)


def new_session(root: Path) -> None:
    """Begin a session from the present end of partition 0, without a record."""
    with StorageDirectory.open(root) as storage:
        partition = storage.partition(0)
        partition.set_low_water_mark(partition.session_id + 1, partition.max_transaction_id)


def marks(root: Path, partition: int = 0) -> tuple[int, int, int]:
    control = read_control(root / CONTROL_FILE_NAME)
    assert control is not None
    current = control.partitions[partition].current_struct
    assert current is not None
    return current.marks


def refused(root: Path, undo_id: str, *, allow_data_loss: bool = False) -> str:
    """What the refusal says; nothing may have changed."""
    before = snapshot(root)
    entries = list_entries(root)
    with pytest.raises(StalePlanError) as error:
        undo(root, undo_id, allow_data_loss=allow_data_loss)
    assert snapshot(root) == before
    assert list_entries(root) == entries
    return str(error.value)


def segments(root: Path) -> dict[str, tuple[int, str, int]]:
    return {name: one for name, one in snapshot(root).items() if name != CONTROL_FILE_NAME}


def test_segments_that_came_since_a_truncation_are_named_and_stay(scene: Scene) -> None:
    undo_id = truncate(scene, 115)
    append(scene.root, 2)
    assert status(scene.root) == "clean"
    said = refused(scene.root, undo_id)
    assert "0000000000000000116.seg, " in said
    assert "0000000000000000117.seg" in said
    assert "would overlap" in said
    assert "--allow-data-loss" in said
    assert status(scene.root) == "clean"


@pytest.mark.parametrize("seconds", [-(2**31), 2**63 // 10**9, 2**63 // 10**9 + 1, 10_413_792_000])
def test_a_file_of_any_time_is_repaired_and_comes_back_with_it(scene: Scene, seconds: int) -> None:
    """From 2262-04-11 on, the nanoseconds since 1970 take more than 64 bits with a sign."""
    path = scene.seg(100)
    os.utime(path, (seconds, seconds))
    assert path.stat().st_mtime == seconds, "no time for the file system of the tests"
    before = segments(scene.root)
    truncate(scene, 115)
    assert status(scene.root) == "clean"
    undo(scene.root)
    assert segments(scene.root) == before
    assert path.stat().st_mtime == seconds


@pytest.mark.parametrize("by_truncation", [True, False])
def test_what_came_since_can_be_set_aside(scene: Scene, by_truncation: bool) -> None:
    before, marked = segments(scene.root), marks(scene.root)
    undo_id = truncate(scene, 115)
    append(scene.root, 2)
    after_append = contents(scene.root)
    answer = undo_repair(scene.root, undo_id, allow_data_loss=True)
    assert segments(scene.root) == before
    assert marks(scene.root) == marked
    assert (answer.status, answer.findings) == ("clean", ())
    aside = answer.done.set_aside
    assert aside is not None
    assert [entry.state for entry in list_entries(scene.root)] == ["undone", "applied"]
    # it can be taken back itself, once the log ends again where it ended when that was set aside
    assert "would overlap" in refused(scene.root, aside.id)
    if by_truncation:
        truncate(scene, 115)
    assert undo_repair(scene.root, aside.id, allow_data_loss=not by_truncation).status == "clean"
    assert {n: one for n, one in contents(scene.root).items() if n != CONTROL_FILE_NAME} == {
        n: one for n, one in after_append.items() if n != CONTROL_FILE_NAME
    }


def test_records_behind_the_cut_can_be_set_aside(scene: Scene) -> None:
    before = segments(scene.root)
    undo_id = truncate(scene, 115)
    append(scene.root, 2, threshold=10**9)
    said = refused(scene.root, undo_id)
    assert "0000000000000000100.seg" in said
    assert "--allow-data-loss" in said
    assert undo_repair(scene.root, undo_id, allow_data_loss=True).status == "clean"
    assert {name: one[:2] for name, one in segments(scene.root).items()} == {n: one[:2] for n, one in before.items()}


@pytest.mark.parametrize("threshold", [1, 10**9])
@pytest.mark.parametrize("gone", [True, False])
def test_nothing_is_set_aside_for_a_repair_whose_kept_copy_is_not_there(
    scene: Scene, threshold: int, *, gone: bool
) -> None:
    """The log would lose what came since, and the error would say that nothing was changed."""
    undo_id = truncate(scene, 115)
    append(scene.root, 2, threshold=threshold)
    (entry,) = list_entries(scene.root)
    kept = next(path for path in sorted(entry.path.iterdir()) if path.name.startswith(("old-", "range-")))
    if gone:
        kept.unlink()
    else:
        kept.write_bytes(bytes(kept.stat().st_size))
    said = refused(scene.root, undo_id, allow_data_loss=True)
    assert f"{kept}: " in said
    with pytest.raises(StalePlanError):
        check_undo(entry, [entry], allow_data_loss=True)


def test_a_file_that_was_changed_and_not_only_made_longer_is_no_case_for_setting_aside(scene: Scene) -> None:
    undo_id = truncate(scene, 115)
    append(scene.root, 2, threshold=10**9)
    scene.flip(101)
    assert "not only made longer" in refused(scene.root, undo_id, allow_data_loss=True)


def test_a_session_that_began_at_the_cut_is_in_the_way_without_any_record(scene: Scene) -> None:
    marked = marks(scene.root)
    undo_id = truncate(scene, 115)
    new_session(scene.root)
    said = refused(scene.root, undo_id)
    assert f"session {marked[0] + 1} with marks 115 and 115 now, and said session {marked[0]} with marks" in said
    assert "at transaction 115, and would find it at 129" in said
    assert undo_repair(scene.root, undo_id, allow_data_loss=True).status == "clean"
    assert marks(scene.root) == marked


def test_a_session_of_another_partition_is_not(scene: Scene) -> None:
    before = segments(scene.root)
    undo_id = truncate(scene, 115)
    append(scene.root, 1, partition=1)
    undo(scene.root, undo_id)
    assert {n: one for n, one in segments(scene.root).items() if n[0] == "0"} == {
        n: one for n, one in before.items() if n[0] == "0"
    }


def test_a_repair_of_the_control_file_is_not_taken_back_over_a_session(scene: Scene) -> None:
    undo_id = truncate(scene, MARK - 5, loss=True)
    append(scene.root, 1, partition=1)
    for allowed in (False, True):
        said = refused(scene.root, undo_id, allow_data_loss=allowed)
        assert CONTROL_FILE_NAME in said


def lose_a_record(scene: Scene) -> str:
    scene.flip(60)
    result = apply(plan_recover(scene.root, allow_data_loss=True), arguments=[])
    assert result.undo_id is not None
    return result.undo_id


def from_replica(scene: Scene) -> str:
    scene.flip(60)
    result = apply(plan_recover(scene.root, replicas=[scene.replica]), arguments=[])
    assert result.undo_id is not None
    return result.undo_id


@pytest.mark.parametrize("old_manifest", [False, True])
def test_a_repair_in_the_middle_is_taken_back_under_a_log_that_went_on(scene: Scene, old_manifest: bool) -> None:
    undo_id = from_replica(scene)
    append(scene.root, 3)
    if old_manifest:
        forget_partitions(scene.root, undo_id)
    answer = undo_repair(scene.root, undo_id)
    assert answer.done.set_aside is None
    assert answer.status == "damaged"
    assert [finding.transaction_id for finding in answer.findings] == [60]
    assert scene.seg(LAST + 1).exists()


@pytest.mark.parametrize("old_manifest", [False, True])
def test_a_split_around_a_loss_is_taken_back(scene: Scene, old_manifest: bool) -> None:
    undo_id = lose_a_record(scene)
    if old_manifest:
        forget_partitions(scene.root, undo_id)
    answer = undo_repair(scene.root, undo_id)
    assert [finding.transaction_id for finding in answer.findings] == [60]


def forget_partitions(root: Path, undo_id: str) -> QuarantineEntry:
    """As manifests were before they said how the partitions were left."""
    (entry,) = [one for one in list_entries(root) if one.id == undo_id]
    bare = replace(entry, partitions=None)
    (entry.path / "manifest.json").write_bytes(encode_entry(bare))
    assert read_entry(entry.path, STATE_FILES) == bare
    return bare


def test_an_old_manifest_is_judged_as_if_everything_else_had_come_since(scene: Scene) -> None:
    undo_id = truncate(scene, 115)
    append(scene.root, 2)
    forget_partitions(scene.root, undo_id)
    assert "would overlap" in refused(scene.root, undo_id, allow_data_loss=True)


def restored_tail(scene: Scene) -> str:
    """The last segment is lost; a replica gives back what the mark says was here."""
    scene.seg(100).unlink()
    scene.idx(100).unlink()
    result = apply(plan_recover(scene.root, replicas=[scene.replica]), arguments=[])
    assert result.undo_id is not None
    assert scene.seg(100).exists()
    return result.undo_id


def test_a_gap_in_front_of_what_came_since_is_not_made(scene: Scene) -> None:
    undo_id = restored_tail(scene)
    append(scene.root, 1)
    assert "would not join" in refused(scene.root, undo_id)


def test_what_came_since_is_not_left_alone(scene: Scene) -> None:
    """Everything in front of it was restored, and would go again."""
    for path in (scene.root / "0").iterdir():
        path.unlink()
    result = apply(plan_recover(scene.root, replicas=[scene.replica]), arguments=[])
    assert result.undo_id is not None
    append(scene.root, 1)
    assert "nothing would be left in front of" in refused(scene.root, result.undo_id)


def test_old_damage_comes_back_where_nothing_came_since(scene: Scene) -> None:
    undo_id = restored_tail(scene)
    answer = undo_repair(scene.root, undo_id)
    assert (answer.status, not scene.seg(100).exists()) == ("damaged", True)


def test_a_torn_end_does_not_come_back_in_front_of_what_came_since(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene")
    with scene.seg(100).open("ab") as file:
        file.write(b"half a record")
    with StorageDirectory.open(scene.root) as storage:
        (undo_id,) = storage.partition(0).undo_ids
    append(scene.root, 1)
    assert "torn" in refused(scene.root, undo_id)


def test_a_torn_end_comes_back_at_the_end_even_in_a_new_session(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene")
    with scene.seg(100).open("ab") as file:
        file.write(b"half a record")
    with StorageDirectory.open(scene.root) as storage:
        (undo_id,) = storage.partition(0).undo_ids
    new_session(scene.root)
    assert undo_repair(scene.root, undo_id).status == "repairable"
    assert codes(scene.root) == {"torn-tail"}


def test_an_index_that_was_rebuilt_since_is_in_nobodys_way(scene: Scene) -> None:
    undo_id = truncate(scene, 115)
    scene.idx(0).write_bytes(scene.idx(0).read_bytes()[:-8])
    undo(scene.root, undo_id)
    assert codes(scene.root) == {"index-short"}


@pytest.mark.parametrize("whole", [False, True])
def test_marks_that_fall_are_told(scene: Scene, whole: bool) -> None:
    """Whether the control file was changed in place or written anew."""
    control = read_control(scene.control)
    assert control is not None
    session, low, local = marks(scene.root)
    info = control.partitions[0]
    number, raised = info.updated(session_id=session + 3, low_water_mark=low + 2, local_low_water_mark=local)
    with DirectoryLock.acquire(scene.root, scene.control):
        edit: Edit = Overwrite(scene.control, control.layout.struct_offset(0, number), raised.encode())
        if whole:
            made = replace(control, partitions=(info.with_struct(number, raised), *control.partitions[1:])).encode()
            edit = Replace(scene.control, lambda: [made])
        entry = apply_edits(scene.root, [edit], command="set-partition", arguments=[], plan_hash="")
    assert marks(scene.root) == (session + 3, low + 2, local)
    assert [str(fall) for fall in falling_marks(entry)] == [
        f"partition 0: the session id goes back from {session + 3} to {session}",
        f"partition 0: the low-water mark goes back from {low + 2} to {low}",
    ]
    later = truncate(scene, LAST - 1)
    assert undo_repair(scene.root, later).falls == ()
    answer = undo_repair(scene.root, entry.id)
    assert answer.falls
    assert marks(scene.root) == (session, low, local)
    assert {state.partition for state in entry.partitions or ()} == ({0, 1} if whole else {0})


def test_marks_that_rise_again_are_not(scene: Scene) -> None:
    undo_id = truncate(scene, MARK - 5, loss=True)
    assert undo_repair(scene.root, undo_id).falls == ()


@pytest.mark.parametrize("layout", list(Layout))
def test_the_manifest_says_how_the_partitions_were_left(tmp_path: Path, layout: Layout) -> None:
    root = build_directory(tmp_path / "s", {0: 25, 1: 3}, layout=layout, per_segment=10, num_partitions=3)
    result = apply(plan_truncate(root, partition=0, after=14), arguments=[])
    assert result.quarantine is not None
    body = json.loads((result.quarantine / "manifest.json").read_text())
    (state,) = body["partitions"]
    assert (state["partition"], state["marks"]) == (0, list(marks(root)))
    assert state["files"] == {path.name: path.stat().st_size for path in (root / "0").iterdir()}


@pytest.mark.parametrize(
    "change",
    [
        {"partition": -1},
        {"marks": [1, 2]},
        {"marks": [1, 2, "3"]},
        {"files": None},
        {"files": {"../x": 1}},
        {"files": {"x": -1}},
        {"more": 1},
    ],
)
def test_a_manifest_with_impossible_partitions_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    root = build_directory(tmp_path / "s", {0: 25}, per_segment=10)
    path = apply(plan_truncate(root, partition=0, after=14), arguments=[]).quarantine
    assert path is not None
    body = json.loads((path / "manifest.json").read_text())
    body["partitions"][0].update(change)
    with pytest.raises(ValueError, match=r"partitions|path"):
        decode_entry(sealed(body), path, STATE_FILES)


def test_nothing_is_set_aside_that_was_not_allowed_to_be(scene: Scene) -> None:
    undo_id = truncate(scene, 115)
    append(scene.root, 2)
    before = snapshot(scene.root)
    with pytest.raises(StalePlanError):
        undo_repair(scene.root, undo_id)
    assert snapshot(scene.root) == before


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("how", ["gone", "flipped", "empty"])
def test_a_repair_of_the_control_file_whose_kept_copy_is_not_what_it_was_is_refused(
    scene: Scene, how: str, *, allowed: bool
) -> None:
    """The marks that would fall, and whether a journal comes back, are read in that copy: the undo ended with a traceback."""
    undo_id = truncate(scene, MARK - 5, loss=True)
    (entry,) = list_entries(scene.root)
    ranges = next(file for file in entry.files if file.path == CONTROL_FILE_NAME).ranges
    assert ranges[0].kept is not None
    kept = entry.path / ranges[0].kept
    data = kept.read_bytes()
    if how == "gone":
        kept.unlink()
    else:
        kept.write_bytes(b"" if how == "empty" else bytes([data[0] ^ 1]) + data[1:])
    before = snapshot(scene.root)
    for call in (
        lambda: undo_repair(scene.root, undo_id, allow_data_loss=allowed),
        lambda: check_undo(entry, [entry], allow_data_loss=allowed),
        lambda: falling_marks(entry),
    ):
        with pytest.raises(StalePlanError) as error:
            call()
        assert f"{kept}: the repair {undo_id} cannot be taken back: the kept copy is not " in str(error.value)
        assert snapshot(scene.root) == before
        assert list_entries(scene.root) == (entry,)


def test_of_a_repair_that_was_taken_back_no_mark_is_told_to_fall(scene: Scene) -> None:
    """Its copies are gone."""
    undo_id = truncate(scene, MARK - 5, loss=True)
    undo_repair(scene.root, undo_id)
    (entry,) = list_entries(scene.root)
    assert falling_marks(entry) == ()
    with pytest.raises(RefusedError, match="was taken back already"):
        undo_repair(scene.root, undo_id)


def test_what_a_repair_wrote_is_not_needed_to_take_it_back(scene: Scene) -> None:
    """Its copy serves only while the repair may be half-made: nothing was undone where it was damaged."""
    before = snapshot(scene.root)
    truncate(scene, MARK - 5, loss=True)
    (entry,) = list_entries(scene.root)
    built = [one.built for file in entry.files for one in file.ranges if one.built is not None]
    assert built
    for name in built:
        (entry.path / name).write_bytes(b"x")
    undo(scene.root)
    assert snapshot(scene.root) == before


@pytest.mark.parametrize("why", ["room", "mount"])
def test_nothing_is_set_aside_where_the_undo_could_not_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """What came since was taken into the quarantine first, and then the undo was refused: "nothing was changed"."""
    if why == "mount":
        (scene.root / "0" / segment_name(LAST + 1)).write_bytes(b"")
        undo_id = apply(plan_recover(scene.root), arguments=[]).undo_id
    else:
        undo_id = truncate(scene, 115)
    append(scene.root, 2)
    before, entries = snapshot(scene.root), list_entries(scene.root)
    if why == "mount":
        monkeypatch.setattr(quarantine, "mount_of", lambda path: (1, 2 if disk.QUARANTINE in Path(path).parts else 1))
    else:
        monkeypatch.setattr(disk, "free_bytes", lambda path: 70_000)  # for one manifest; some KiB were cut
        monkeypatch.setattr(execution, "check_space", lambda storage, groups: None)
    with pytest.raises(RefusedError if why == "mount" else DiskFullError):
        undo(scene.root, undo_id, allow_data_loss=True)
    assert snapshot(scene.root) == before
    assert list_entries(scene.root) == entries
    if why == "mount":  # a dry run is refused for the same reason
        with pytest.raises(RefusedError, match="lies on another file system"):
            check_undo(entries[0], entries, allow_data_loss=True)
    monkeypatch.undo()
    undo(scene.root, undo_id, allow_data_loss=True)


def test_an_undo_that_was_killed_behind_the_control_file_ends_without_its_copy(scene: Scene) -> None:
    """The file is as before already, so that no mark falls any more and no copy is needed; undo itself was refused."""
    before = snapshot(scene.root)
    undo_id = truncate(scene, MARK - 5, loss=True)
    (entry,) = list_entries(scene.root)
    names = [file.path for file in entry.files]
    file = entry.files[names.index(CONTROL_FILE_NAME)]
    write_entry(replace(entry, state=RepairState.UNDOING))
    put_back(entry, file, Way.RANGES)
    assert file.ranges[0].kept is not None
    (entry.path / file.ranges[0].kept).write_bytes(b"")
    undo_repair(scene.root, undo_id)
    assert snapshot(scene.root) == before
