"""set-partition: what is written, what is refused one step before it would be a loss, and that undo gives every byte back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from tests.builders import build_directory, digest
from tests.repair.trees import snapshot
from waltzctl.engine.columns.plan_columns import PLAN
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.journal import journal_path
from waltzctl.engine.durable.manifest import MANIFEST, KeptMove, encode_entry
from waltzctl.engine.errors import (
    BelowLowWaterMarkError,
    ConcurrentUpdateError,
    DamageError,
    DirectoryLockedError,
    InvalidRequestError,
    MarkWouldFallError,
    RefusedError,
    StalePlanError,
)
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.apply import RepairResult, apply
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.planners import load_plan
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.assignment import put_aside_path
from waltzctl.engine.storage.availability_marks import Availability, read_availability, save_marks
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.store import list_entries
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlFile, Layout, PartitionStruct
from waltzctl.formats.fence import FENCE_HEADER, encode_fence_header
from waltzctl.formats.segment import segment_name

SESSION, MARK, LAST = 3, 9, 29
"""Of partition 0; partition 1 has twelve records, partition 2 was never here."""
BOTH = pytest.mark.parametrize("layout", list(Layout))


@pytest.fixture(params=list(Layout))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return build(tmp_path, request.param)


def build(place: Path, layout: Layout) -> Path:
    return build_directory(
        place / "s", {0: LAST + 1, 1: 12}, layout=layout, per_segment=10, local_low_water_mark=MARK, num_partitions=3
    )


def control_of(storage: Path) -> ControlFile:
    found = read_control(storage / CONTROL_FILE_NAME)
    assert found is not None
    return found


def current(storage: Path, partition: int = 0) -> PartitionStruct:
    found = control_of(storage).partitions[partition].current_struct
    assert found is not None
    return found


def everything(storage: Path) -> dict[str, str]:
    """Every file but those that only record what was done."""
    own = (".waltzctl/lock", ".waltzctl/journal.jsonl", ".waltzctl/quarantine/")
    return {name: value for name, value in digest(storage).items() if not name.startswith(own)}


def plan(storage: Path, partition: int = 0, *, loss: bool = False, **values: int | bool) -> Repair:
    return plan_set_partition(storage, partition=partition, setting=PartitionSetting(**values), allow_data_loss=loss)  # type: ignore[arg-type]


def settled(storage: Path, partition: int = 0, *, loss: bool = False, **values: int | bool) -> RepairResult:
    """Plan (which changes nothing), apply, take back to the very bytes, apply again."""
    before, times = everything(storage), snapshot(storage)
    repair = plan(storage, partition, loss=loss, **values)
    assert repair.plan == plan(storage, partition, loss=loss, **values).plan, "the same files give the same plan"
    assert (everything(storage), snapshot(storage)) == (before, times), "planning changes nothing"
    result = apply(repair, arguments=["set-partition"])
    assert result.applied
    after = everything(storage)
    undo(storage, result.undo_id)
    assert (everything(storage), snapshot(storage)) == (before, times), "undo brings back bytes and times"
    result = apply(plan(storage, partition, loss=loss, **values), arguments=["set-partition"])
    assert everything(storage) == after
    assert plan(storage, partition, loss=True, **values).plan.steps == (), "it is so already"
    return result


def test_a_rising_session_and_rising_marks_write_only_the_struct_that_is_next(storage: Path) -> None:
    before = control_of(storage).partitions[0]
    raw = (storage / CONTROL_FILE_NAME).read_bytes()
    result = settled(storage, session_id=7, low_water_mark=40, local_low_water_mark=LAST)
    assert result.exit_status_name == "clean"
    assert current(storage).marks == (7, 40, LAST)
    after = control_of(storage).partitions[0]
    assert before.current is not None
    assert after.structs[before.current - 1] == before.structs[before.current - 1]
    assert after.current == 3 - before.current
    changed = [
        place
        for place, (a, b) in enumerate(zip(raw, (storage / CONTROL_FILE_NAME).read_bytes(), strict=True))
        if a != b
    ]
    layout = control_of(storage).layout
    start = layout.struct_offset(0, 3 - before.current)
    assert start <= changed[0] <= changed[-1] < start + layout.struct_schema.size


def test_the_plan_says_what_it_does_step_by_step(storage: Path) -> None:
    repair = plan(storage, session_id=7, low_water_mark=40)
    assert [(step.action, step.partition, step.loses_data) for step in repair.plan.steps] == [
        ("set-session", 0, False), ("set-low-water-mark", 0, False)
    ]  # fmt: skip
    assert "session 3 becomes 7" in repair.plan.steps[0].reason


@pytest.mark.parametrize(
    ("field", "value", "loses"),
    [
        ("local_low_water_mark", MARK + 1, False),
        ("local_low_water_mark", LAST, False),
        ("local_low_water_mark", LAST + 1, True),
        ("local_low_water_mark", MARK - 1, True),
        ("low_water_mark", MARK + 1, False),
        ("low_water_mark", LAST + 1, False),
        ("low_water_mark", MARK - 1, True),
        ("session_id", SESSION + 1, False),
        ("session_id", SESSION - 1, True),
    ],
)
def test_a_step_says_whether_something_is_lost_by_it(storage: Path, field: str, value: int, loses: bool) -> None:
    """A mark that falls, one of the partition's own above its last transaction, a session that falls."""
    steps = [one for one in plan(storage, loss=True, **{field: value}).plan.steps if one.action.startswith("set-")]
    assert [one.loses_data for one in steps] == [loses]
    if not loses:
        assert [one.loses_data for one in plan(storage, **{field: value}).plan.steps] == [False]


# --- what falls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"session_id": SESSION - 1}, ConcurrentUpdateError),
        ({"session_id": -1}, ConcurrentUpdateError),
        ({"low_water_mark": MARK - 1}, MarkWouldFallError),
        ({"local_low_water_mark": MARK - 1}, MarkWouldFallError),
        ({"local_low_water_mark": -1}, MarkWouldFallError),
        ({"session_id": SESSION + 1, "low_water_mark": MARK - 1}, MarkWouldFallError),
    ],
)
def test_what_falls_needs_to_be_allowed_and_then_holds(
    storage: Path, values: dict[str, int], error: type[Exception]
) -> None:
    with pytest.raises(error, match="allow-data-loss"):
        plan(storage, **values)
    repair = plan(storage, loss=True, **values)
    assert repair.plan.loses_data
    settled(storage, loss=True, **values)
    now = current(storage)
    assert {name: getattr(now, name) for name in values} == values
    with StorageDirectory.open(storage) as opened:
        assert opened.info(0).current_struct == now


@pytest.mark.parametrize("name", ["session_id", "low_water_mark", "local_low_water_mark"])
def test_the_same_value_is_nothing_to_do(storage: Path, name: str) -> None:
    value = getattr(current(storage), name)
    assert plan(storage, **{name: value}).plan.steps == ()
    assert plan(storage, **{name: value + 1}).plan.steps != ()


def test_the_documented_layout_says_a_lower_mark_twice(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.DOCUMENTED)
    settled(storage, loss=True, local_low_water_mark=4)
    info = control_of(storage).partitions[0]
    assert [one.marks for one in info.structs] == [(SESSION, MARK, 4)] * 2


def test_a_lower_mark_in_a_later_session_needs_one_struct_only(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.DOCUMENTED)
    settled(storage, loss=True, session_id=SESSION + 1, local_low_water_mark=4)
    info = control_of(storage).partitions[0]
    assert {one.session_id for one in info.structs} == {SESSION, SESSION + 1}
    assert current(storage).marks == (SESSION + 1, MARK, 4)


# --- a mark above what is here ------------------------------------------------------------------------------------------


def test_a_local_mark_promises_no_more_than_is_here(storage: Path) -> None:
    assert plan(storage, local_low_water_mark=LAST).plan.steps
    with pytest.raises(BelowLowWaterMarkError, match=f"last transaction here is {LAST}"):
        plan(storage, local_low_water_mark=LAST + 1)
    result = apply(plan(storage, loss=True, local_low_water_mark=LAST + 1), arguments=[])
    assert result.exit_status_name == "damage-remains"
    assert [one.code.value for one in result.findings] == ["acknowledged-missing"]


def test_without_a_word_nothing_is_given_up(storage: Path) -> None:
    with pytest.raises(MarkWouldFallError):
        plan_set_partition(storage, partition=0, setting=PartitionSetting(low_water_mark=2))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"session_id": 2}, "session 3 becomes 2: older servers are let in again"),
        ({"session_id": 4}, "session 3 becomes 4"),
        ({"low_water_mark": 2}, f"the low-water mark {MARK} becomes 2: what it promised is given up"),
    ],
)
def test_a_plan_says_what_is_given_up(storage: Path, setting: dict[str, int], said: str) -> None:
    assert [one.reason for one in plan(storage, loss=True, **setting).plan.steps] == [said]


def test_a_plan_waits_for_nobody_who_might_be_writing(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the log was torn just now."""
    path = storage / "0" / segment_name(20)
    path.write_bytes(path.read_bytes() + b"torn")
    monkeypatch.setattr(Event, "wait", lambda *_: pytest.fail("it waits"))
    assert plan(storage, local_low_water_mark=LAST).plan.steps


def test_the_cluster_s_mark_may_be_above_what_is_here(storage: Path) -> None:
    assert settled(storage, low_water_mark=LAST + 1000).exit_status_name == "clean"


def test_an_empty_last_segment_ends_in_front_of_its_first_id(storage: Path) -> None:
    apply(plan_truncate(storage, partition=0, after=19), arguments=[])
    assert plan(storage, local_low_water_mark=19).plan.steps
    with pytest.raises(BelowLowWaterMarkError):
        plan(storage, local_low_water_mark=20)


@pytest.mark.parametrize("directory", [False, True])
def test_a_partition_without_files_has_no_transaction(storage: Path, directory: bool) -> None:
    (storage / "2").mkdir() if directory else None
    with pytest.raises(BelowLowWaterMarkError, match="last transaction here is -1"):
        plan(storage, 2, local_low_water_mark=0)


# --- fences --------------------------------------------------------------------------------------------------------------


def fenced(storage: Path, session: int) -> None:
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME), SessionFences.open(storage, 3) as fences:
        fences.raise_to(0, session)
        fences.raise_to(1, session + 100)


def fence(storage: Path, partition: int = 0) -> int:
    with SessionFences.open(storage, 3) as fences:
        return fences.get(partition)


@pytest.mark.parametrize(("session", "refused"), [(8, True), (9, False), (10, False)])
def test_a_fence_is_not_undercut_silently(storage: Path, session: int, refused: bool) -> None:
    fenced(storage, 9)
    if not refused:
        settled(storage, session_id=session)
        assert (current(storage).session_id, fence(storage)) == (session, 9)
        return
    with pytest.raises(ConcurrentUpdateError, match="has let session 9 in"):
        plan(storage, session_id=session)
    assert plan(storage, session_id=session, loss=True).plan.loses_data
    settled(storage, loss=True, session_id=session)
    assert (current(storage).session_id, fence(storage), fence(storage, 1)) == (session, session, 109)


@pytest.mark.turns(8)
@pytest.mark.parametrize("sessions", [(9,), (8, 9), (7, 8, 9)])
@pytest.mark.parametrize("session", [-1, 0, 5])
def test_a_fence_is_lowered_wherever_it_stands(storage: Path, sessions: tuple[int, ...], session: int) -> None:
    """Of the two places that a fence has the higher one counts."""
    for one in sessions:
        fenced(storage, one)
    settled(storage, loss=True, session_id=session)
    assert (fence(storage), fence(storage, 1)) == (session, 109)


@pytest.mark.parametrize("session", [0, 1])
def test_a_fence_that_is_lowered_to_the_first_sessions_is_still_one(storage: Path, session: int) -> None:
    fenced(storage, 2)
    settled(storage, loss=True, session_id=session)
    assert (current(storage).session_id, fence(storage), fence(storage, 1)) == (session, session, 102)


def test_a_fence_can_be_forgotten(storage: Path) -> None:
    fenced(storage, 9)
    settled(storage, loss=True, session_id=-1)
    assert (current(storage).session_id, fence(storage)) == (-1, -1)


@pytest.mark.parametrize("damage", ["shorter", "longer", "of two partitions"])
def test_a_fence_that_cannot_be_read_is_named(storage: Path, damage: str) -> None:
    fenced(storage, 9)
    path = storage / ".waltzctl" / "sessions"
    data = path.read_bytes()
    damaged = {
        "shorter": data[:-1],
        "longer": data + b"x",
        "of two partitions": encode_fence_header(2) + data[FENCE_HEADER.size :],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(RefusedError, match="cannot be understood"):
        plan(storage, session_id=12)
    assert plan(storage, low_water_mark=12).plan.steps, "the others do not depend on it"


# --- assignment ----------------------------------------------------------------------------------------------------------


def is_assigned(storage: Path, partition: int) -> bool:
    with StorageDirectory.open(storage) as opened:
        return partition in opened.partitions


def test_taken_away_and_given_back_a_partition_goes_on_where_it_was(storage: Path) -> None:
    before = snapshot(storage)
    result = settled(storage, assigned=False)
    assert result.status == "clean"
    assert not is_assigned(storage, 0)
    assert current(storage).marks == (SESSION, MARK, MARK)
    result = settled(storage, assigned=True)
    assert result.status == "clean"
    assert is_assigned(storage, 0)
    assert {name: value for name, value in snapshot(storage).items() if name[0] == "0"} == {
        name: value for name, value in before.items() if name[0] == "0"
    }


def test_a_running_node_and_this_agree(storage: Path) -> None:
    """What one takes away the other gives back."""
    with StorageDirectory.open(storage) as opened:
        opened.unassign(0, delete_files=False)
    settled(storage, assigned=True)
    settled(storage, assigned=False)
    with StorageDirectory.open(storage) as opened:
        opened.assign(0)
        assert opened.partition(0).max_transaction_id == LAST


def test_a_partition_that_was_never_here_begins_empty(storage: Path) -> None:
    result = settled(storage, 2, assigned=True)
    assert result.status == "clean"
    with StorageDirectory.open(storage) as opened:
        assert opened.partition(2).max_transaction_id == -1
        assert not opened.partition(2).quarantined
    assert plan(storage, 2, assigned=True).plan.steps == ()


def test_a_lost_directory_is_not_replaced_by_an_empty_one(storage: Path) -> None:
    shutil.rmtree(storage / "0")
    if control_of(storage).layout is Layout.RELEASED:
        assert plan(storage, assigned=False).plan.steps, "the flag can always be cleared"
        apply(plan(storage, assigned=False), arguments=[])
    else:
        with pytest.raises(RefusedError, match="is lost"):
            plan(storage, assigned=False)
    with pytest.raises(RefusedError, match="says that transactions were here"):
        plan(storage, assigned=True)
    settled(storage, loss=True, assigned=True, session_id=-1, low_water_mark=-1, local_low_water_mark=-1)
    with StorageDirectory.open(storage) as opened:
        assert opened.partition(0).max_transaction_id == -1


def test_files_that_were_put_aside_before_are_not_covered(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.DOCUMENTED)
    aside = storage / ".waltzctl" / "unassigned" / "0"
    aside.mkdir(parents=True)
    with pytest.raises(RefusedError, match="put aside here before"):
        plan(storage, assigned=False)


def test_the_order_of_undo_counts_moves(tmp_path: Path) -> None:
    """What was done to the files before they moved, and after they came back."""
    storage = build(tmp_path, Layout.DOCUMENTED)
    cut = apply(plan_truncate(storage, partition=0, after=20), arguments=[])
    away = apply(plan(storage, assigned=False), arguments=[])
    with pytest.raises(StalePlanError):
        undo(storage, cut.undo_id)
    back = apply(plan(storage, assigned=True), arguments=[])
    with pytest.raises(StalePlanError, match=f"undo {back.undo_id} first"):
        undo(storage, away.undo_id)
    later = apply(plan_truncate(storage, partition=0, after=15), arguments=[])
    with pytest.raises(StalePlanError, match=f"undo {later.undo_id} first"):
        undo(storage, back.undo_id)
    for one in (later, back, away, cut):
        undo(storage, one.undo_id)
    assert everything(storage) == everything(build(tmp_path / "again", Layout.DOCUMENTED))


def test_what_a_repair_removed_does_not_come_back_where_its_directory_was_put_aside(tmp_path: Path) -> None:
    """It came back alone, in a new directory, with which the partition was assigned again, and the other could not come back."""
    storage = build(tmp_path, Layout.DOCUMENTED)
    (storage / "0" / segment_name(LAST + 1)).write_bytes(b"")
    before = everything(storage)
    first = apply(plan_recover(storage), arguments=[]).undo_id
    (entry,) = list_entries(storage)
    assert [file.after for file in entry.files] == [None]
    second = apply(plan(storage, assigned=False), arguments=[]).undo_id
    aside = everything(storage)
    with pytest.raises(StalePlanError, match=f"a later repair changed it too; undo {second} first"):
        undo(storage, first)
    assert everything(storage) == aside
    third = apply(plan(storage, assigned=True), arguments=[]).undo_id  # where it was: nothing stands in the way
    for one in (first, third, second):
        undo(storage, one)
    assert everything(storage) == before


@pytest.mark.parametrize("delete_files", [False, True])
def test_what_a_repair_removed_does_not_come_back_where_a_node_took_the_partition_away(
    tmp_path: Path, *, delete_files: bool
) -> None:
    """No repair says so: the file came back alone, and with it a partition that a node would assign."""
    storage = build(tmp_path, Layout.DOCUMENTED)
    (storage / "0" / segment_name(LAST + 1)).write_bytes(b"")
    before = everything(storage)
    first = apply(plan_recover(storage), arguments=[]).undo_id
    with StorageDirectory.open(storage) as node:
        node.unassign(0, delete_files=delete_files)
    gone = everything(storage)
    with pytest.raises(StalePlanError, match="0: the directory is gone since the repair"):
        undo(storage, first)
    assert everything(storage) == gone
    if not delete_files:
        put_aside_path(storage, 0).rename(storage / "0")
        undo(storage, first)
        assert everything(storage) == before


def test_a_directory_that_was_brought_back_by_hand_is_where_it_was(tmp_path: Path) -> None:
    """The repair that put it aside cannot be undone any more, and was named as the one to undo first."""
    storage = build(tmp_path, Layout.DOCUMENTED)
    (storage / "0" / segment_name(LAST + 1)).write_bytes(b"")
    before = everything(storage)
    first = apply(plan_recover(storage), arguments=[]).undo_id
    apply(plan(storage, assigned=False), arguments=[])
    put_aside_path(storage, 0).rename(storage / "0")
    undo(storage, first)
    assert everything(storage) == before


def test_an_undo_does_not_move_a_directory_to_where_another_one_came(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.DOCUMENTED)
    away = apply(plan(storage, assigned=False), arguments=[])
    (storage / "0").mkdir()
    (storage / "0" / "mine").write_bytes(b"came since")
    before = everything(storage)
    with pytest.raises(StalePlanError, match="was moved again"):
        undo(storage, away.undo_id)
    assert everything(storage) == before


def test_a_partition_that_a_node_took_back_is_not_moved_by_undo(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.DOCUMENTED)
    away = apply(plan(storage, assigned=False), arguments=[])
    with StorageDirectory.open(storage) as opened:
        opened.assign(0)
    before = everything(storage)
    with pytest.raises(StalePlanError, match="was moved again"):
        undo(storage, away.undo_id)
    assert everything(storage) == before


# --- availability --------------------------------------------------------------------------------------------------------


def availability(storage: Path, partition: int = 0) -> Availability:
    return read_availability(storage, control_of(storage))[partition]


def test_switched_off_and_on(storage: Path) -> None:
    settled(storage, available=False)
    assert availability(storage) == Availability(False, False)
    assert availability(storage, 1) == Availability()
    with StorageDirectory.open(storage) as opened:
        assert opened.availability(0) == Availability(False, False)
    settled(storage, available=True)
    assert availability(storage) == Availability()


@pytest.mark.parametrize(("wanted", "said"), [(False, "neither read nor written"), (True, "read and written")])
def test_a_plan_says_what_becomes_of_the_partition(storage: Path, wanted: bool, said: str) -> None:
    settled(storage, available=not wanted) if wanted else None
    assert {one.reason.partition(" may be ")[2] for one in plan(storage, available=wanted).plan.steps} == {said}


def test_a_half_that_is_off_counts(storage: Path) -> None:
    with StorageDirectory.open(storage) as opened:
        opened.set_availability(0, writable=False)
        opened.set_availability(1, readable=False)
    assert [one.action for one in plan(storage, available=False).plan.steps] == ["write-availability"]
    settled(storage, available=False)
    assert availability(storage) == Availability(False, False)
    settled(storage, available=True)
    assert (availability(storage), availability(storage, 1)) == (Availability(), Availability(readable=False))


def test_what_a_cleared_flag_stood_for_long_ago_does_not_come_back(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.RELEASED)
    (storage / ".waltzctl").mkdir()
    save_marks(storage, {0: Availability(readable=True, writable=False)})
    assert availability(storage) == Availability(), "the flag is set"
    settled(storage, available=False)
    assert availability(storage) == Availability(False, False)
    assert [one.action for one in plan(storage, available=True).plan.steps] == ["switch-on"]


def test_the_released_layout_needs_no_file_beside_it(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.RELEASED)
    settled(storage, available=False)
    assert not (storage / ".waltzctl" / "availability.json").exists()


# --- all together --------------------------------------------------------------------------------------------------------


def test_everything_at_once_is_one_repair(storage: Path) -> None:
    settled(storage, session_id=5, low_water_mark=20, local_low_water_mark=20, assigned=False, available=False)
    assert current(storage).marks == (5, 20, 20)
    assert len([one for one in list_entries(storage) if one.state == "applied"]) == 1
    assert availability(storage) == Availability(False, False)
    assert not is_assigned(storage, 0)


def test_values_that_cannot_be_meant(storage: Path) -> None:
    for values in ({}, {"session_id": -2}, {"low_water_mark": 2**63}, {"local_low_water_mark": -5}):
        with pytest.raises(InvalidRequestError):
            plan(storage, **values)
    with pytest.raises(InvalidRequestError, match="partitions 0 to 2"):
        plan(storage, 3, session_id=5)
    with pytest.raises(InvalidRequestError, match="not a storage directory"):
        plan(storage / "0", session_id=5)


def test_a_damaged_pair_is_mended_first(storage: Path) -> None:
    path, layout = storage / CONTROL_FILE_NAME, control_of(storage).layout
    raw = bytearray(path.read_bytes())
    raw[layout.info_offset(1)] ^= 1
    for number in (1, 2):
        raw[layout.struct_offset(0, number)] ^= 1
    path.write_bytes(raw)
    for partition in (0, 1):
        with pytest.raises(RefusedError, match="its info is damaged"):
            plan(storage, partition, session_id=9)
    assert plan(storage, 2, session_id=9).plan.steps


def test_one_damaged_struct_is_the_one_that_is_written(storage: Path) -> None:
    path, info = storage / CONTROL_FILE_NAME, control_of(storage).partitions[0]
    assert info.current is not None
    raw = bytearray(path.read_bytes())
    raw[control_of(storage).layout.struct_offset(0, 3 - info.current)] ^= 1
    path.write_bytes(raw)
    assert settled(storage, session_id=9).exit_status_name == "clean"


def test_a_held_directory_and_a_stale_plan_are_left_alone(storage: Path) -> None:
    repair = plan(storage, session_id=9)
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME), pytest.raises(DirectoryLockedError):
        apply(repair, arguments=[])
    apply(plan(storage, 1, session_id=9), arguments=[])
    with pytest.raises(StalePlanError):
        apply(repair, arguments=[])


def test_a_plan_file_is_made_again(storage: Path, tmp_path: Path) -> None:
    repair = plan(storage, loss=True, session_id=2, assigned=False, available=False)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN.shown(repair.plan)))
    assert load_plan(file).plan == repair.plan
    body = PLAN.shown(repair.plan)
    twice = [{"name": "session_id", "value": 2}] * 2
    for bad in (
        [{"name": "session_id", "value": "2"}],
        [{"name": "session_id", "value": True}],
        [{"name": "assigned", "value": 1}],
        [{"name": "more", "value": 1}],
        [{"name": "check", "value": False}],
        twice,
        [1],
        {"session_id": 2},
    ):
        file.write_text(json.dumps({**body, "arguments": {**body["arguments"], "settings": bad}}))
        with pytest.raises((InvalidRequestError, StalePlanError)):
            load_plan(file)


def test_the_sequence_goes_on(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.RELEASED)
    before = current(storage)
    assert before.sequence is not None
    settled(storage, loss=True, local_low_water_mark=3)
    assert current(storage) == replace(before, local_low_water_mark=3, sequence=before.sequence + 1).sealed()


def test_the_journal_names_what_moved(tmp_path: Path) -> None:
    storage = build(tmp_path, Layout.DOCUMENTED)
    apply(plan(storage, assigned=False), arguments=["set-partition"])
    undo(storage)
    lines = [json.loads(line) for line in journal_path(storage).read_text().splitlines()]
    here, aside = "0", ".waltzctl/unassigned/0"
    assert [(line["event"], line["moves"], line["files"]) for line in lines] == [
        ("applied", [{"from": here, "to": aside}], []), ("undone", [{"from": aside, "to": here}], [])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "target"),
    [("0", "1"), ("0", ".waltzctl/unassigned/1"), ("../0", ".waltzctl/unassigned/../0"), ("0", ".waltzctl/deleting/0"),
     (".waltzctl/unassigned/0", ".waltzctl/unassigned/0"), ("00", ".waltzctl/unassigned/00")],
)  # fmt: skip
def test_a_manifest_moves_no_other_directory(tmp_path: Path, path: str, target: str) -> None:
    """It is read as if somebody hostile had written it."""
    storage = build(tmp_path, Layout.DOCUMENTED)
    apply(plan(storage, assigned=False), arguments=[])
    (entry,) = list_entries(storage)
    for wanted, refused in ((entry.moves, False), ((KeptMove(path, target),), True)):
        (entry.path / MANIFEST).write_bytes(encode_entry(replace(entry, moves=wanted)))
        before = everything(storage)
        if refused:
            with pytest.raises(DamageError, match="not a usable manifest"):
                undo(storage)
            assert everything(storage) == before
        else:
            assert list_entries(storage) == (entry,)


@BOTH
def test_what_is_being_deleted_is_not_assigned(tmp_path: Path, layout: Layout) -> None:
    """Each opening that did not get to the end of the deletion dropped fence and availability of the new partition."""
    storage = build(tmp_path, layout)
    with StorageDirectory.open(storage) as opened:
        opened.unassign(1, delete_files=True)
    left = storage / ".waltzctl" / "deleting" / "1"
    left.mkdir()
    before = digest(storage)
    with pytest.raises(RefusedError, match="is not finished"):
        plan(storage, 1, assigned=True, available=False)
    assert digest(storage) == before
    StorageDirectory.open(storage).close()
    apply(plan(storage, 1, assigned=True, available=False), arguments=[])
    StorageDirectory.open(storage).close()
    assert read_availability(storage, read_control(storage / CONTROL_FILE_NAME))[1] == Availability(False, False)
