"""An interrupted repair is taken back before anything else is planned: the plan as a whole, for each command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.repair.scenes import flip
from tests.repair.trees import Crash, crashing_when
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import DirectoryLockedError, RefusedError
from waltzctl.engine.repair import apply as module
from waltzctl.engine.repair.apply import apply, undo_repair
from waltzctl.engine.repair.arguments import Arguments, Chosen, PartitionSetting
from waltzctl.engine.repair.plan import Step, plan_roll_back
from waltzctl.engine.repair.planners import make
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import paths_of, undo
from waltzctl.engine.storage.store import interrupted, list_entries
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.segment import HEADER_SIZE, segment_name


def test_what_is_planned_where_a_repair_was_interrupted(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 6, 1: 6, 2: 6}, per_segment=3, local_low_water_mark=1)
    arguments = Arguments.of((0,), after=2, settings=(Chosen("session_id", 9),))
    assert plan_roll_back("truncate", storage, arguments) is None
    assert plan_roll_back("truncate", tmp_path / "nowhere", arguments) is None
    with pytest.raises(Crash), crashing_when(lambda change: change.kind == "truncate"):
        apply(plan_truncate(storage, partition=1, after=1), arguments=["truncate"])
    (entry,) = interrupted(storage)
    for command in ("truncate", "recover", "rebuild-index", "set-partition", "convert"):
        repair = make(command, storage / "0", arguments)
        said = f"the repair {entry.id} was interrupted; this comes before {command}"
        assert repair.plan.steps == (Step("roll-back", storage, 1, None, None, None, None, said),)
        assert (repair.plan.command, repair.plan.path, repair.plan.arguments) == (command, storage / "0", arguments)
        assert (repair.partitions, repair.edits, repair.sources, repair.roll_back) == ((1,), (), (), True)
        assert not repair.plan.loses_data
    with pytest.raises(RefusedError, match="interrupted"):
        plan_set_partition(storage, partition=0, setting=PartitionSetting(session_id=9))
    done = apply(repair, arguments=["convert"])
    assert (done.applied, done.taken_back, done.status, done.exit_status_name) == (True, (entry.id,), "clean", "clean")
    assert (done.undo_id, done.quarantine, done.findings) == (None, None, ())
    assert plan_roll_back("truncate", storage, arguments) is None


@pytest.mark.parametrize("way", ["apply", "undo"])
def test_what_was_taken_back_is_named_where_its_files_cannot_be_looked_at_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    storage = build_directory(tmp_path / "s", {0: 6}, per_segment=3, local_low_water_mark=1)
    with pytest.raises(Crash), crashing_when(lambda change: change.kind == "truncate"):
        apply(plan_truncate(storage, partition=0, after=1), arguments=["truncate"])
    (entry,) = interrupted(storage)

    def failing(*more: object, **options: object) -> object:
        raise RefusedError("made up")

    monkeypatch.setattr(module, "verify_again", failing)
    repair = plan_roll_back("recover", storage, Arguments())
    assert repair is not None
    with pytest.raises(RefusedError, match="made up") as caught:
        apply(repair, arguments=[]) if way == "apply" else undo_repair(storage, entry.id)
    assert caught.value.taken_back == (entry.id,)


def test_the_partitions_of_an_interrupted_repair_are_verified_as_well_when_another_one_is_taken_back(
    tmp_path: Path,
) -> None:
    storage = build_directory(tmp_path / "s", {0: 6, 1: 6, 2: 6}, per_segment=3, local_low_water_mark=1)
    for path in (storage / "1" / segment_name(0), storage / "2" / segment_name(0)):
        flip(path, HEADER_SIZE + 9)
    first = apply(plan_truncate(storage, partition=0, after=4), arguments=["truncate"])
    with pytest.raises(Crash), crashing_when(lambda change: change.kind == "truncate"):
        apply(plan_truncate(storage, partition=1, after=1), arguments=["truncate"])
    (entry,) = interrupted(storage)
    assert first.undo_id is not None
    done = undo_repair(storage, first.undo_id)
    assert [one.id for one in done.done.taken_back] == [entry.id]
    assert {one.partition for one in done.findings} == {1}


@pytest.mark.parametrize("named", [True, False])
def test_an_interrupted_repair_is_taken_back_whether_it_is_named_or_not(tmp_path: Path, named: bool) -> None:
    storage = build_directory(tmp_path / "s", {0: 6}, per_segment=3, local_low_water_mark=1)
    with pytest.raises(Crash), crashing_when(lambda change: change.kind == "truncate"):
        apply(plan_truncate(storage, partition=0, after=1), arguments=["truncate"])
    (entry,) = interrupted(storage)
    done = undo(storage, entry.id if named else None)
    assert [one.id for one in done.entries] == [entry.id]
    assert not interrupted(storage)


def test_the_files_of_every_repair_that_was_taken_back_are_told(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 6, 1: 6}, per_segment=6, local_low_water_mark=1)
    for partition in (0, 1):
        apply(plan_truncate(storage, partition=partition, after=4), arguments=["truncate"])
    found = paths_of(list_entries(storage))
    assert {path.parent.name for path in found} == {"0", "1"}
    assert len(found) == 4


def test_nothing_is_taken_back_while_a_process_holds_the_directory(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 6}, per_segment=6, local_low_water_mark=1)
    apply(plan_truncate(storage, partition=0, after=4), arguments=["truncate"])
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME), pytest.raises(DirectoryLockedError):
        undo(storage)
    assert len(undo(storage).files) == 2
