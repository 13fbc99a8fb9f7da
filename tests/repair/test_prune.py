"""The quarantine pruned by age: what goes, what stays because something else needs it, and that nothing else is touched."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from tests.builders import build_directory, digest
from tests.repair.trees import Crash, crashing_at, crashing_when, snapshot
from waltzctl.engine.durable import disk, ownership
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.journal import journal_path
from waltzctl.engine.durable.manifest import MANIFEST, QuarantineEntry, RepairState
from waltzctl.engine.errors import (
    DirectoryLockedError,
    DiskFullError,
    InvalidRequestError,
    RefusedError,
    StalePlanError,
)
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.prune import Prune, kept_bytes, plan_prune, prune
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.store import list_entries, roll_back_interrupted
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout

DAY = 86_400.0
NOW = 1_700_000_000_000


class Clock:
    """Days since the first repair."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._days = 0.0
        monkeypatch.setattr(disk, "now_ms", self.now_ms)

    def now_ms(self) -> int:
        return NOW + int(self._days * DAY * 1000)

    def set(self, days: float) -> None:
        self._days = days


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "s", {0: 60, 1: 60, 2: 60}, per_segment=20, local_low_water_mark=3)


def cut(storage: Path, partition: int, after: int) -> str:
    done = apply(plan_truncate(storage, partition=partition, after=after), arguments=["truncate"])
    assert done.undo_id is not None
    return done.undo_id


def entry(storage: Path, name: str) -> QuarantineEntry:
    return next(one for one in list_entries(storage) if one.id == name)


def copies(storage: Path, name: str) -> list[str]:
    return sorted(path.name for path in entry(storage, name).path.iterdir() if path.name != MANIFEST)


def names(prepared: Prune) -> list[str]:
    return [name for name, _ in prepared.entries]


def test_what_is_old_enough_goes_and_nothing_else_changes(storage: Path, clock: Clock) -> None:
    old = cut(storage, 0, 30)
    clock.set(10)
    young = cut(storage, 1, 30)
    clock.set(39)
    before, everything = snapshot(storage), digest(storage)
    prepared = plan_prune(storage, older_than=30 * DAY)
    assert digest(storage) == everything, "planning changes nothing"
    assert names(prepared) == [old]
    size = kept_bytes(entry(storage, old))
    assert prepared.bytes == size > 0
    assert [(step.path, step.length, step.loses_data) for step in prepared.plan.steps] == [
        (entry(storage, old).path, size, True)
    ]
    assert prune(prepared) == size
    assert snapshot(storage) == before
    assert (entry(storage, old).state, copies(storage, old)) == (RepairState.PRUNED, [])
    assert entry(storage, young).state is RepairState.APPLIED
    with pytest.raises(RefusedError, match="pruned, so it cannot be taken back"):
        undo(storage, old)
    assert snapshot(storage) == before
    undo(storage, young)
    with pytest.raises(RefusedError, match="nothing to undo"):
        undo(storage)


@pytest.mark.parametrize(("days", "pruned"), [(29.999, False), (30.0, True), (30.001, True)])
def test_the_age_is_exact(storage: Path, clock: Clock, days: float, pruned: bool) -> None:
    cut(storage, 0, 30)
    clock.set(days)
    assert bool(plan_prune(storage, older_than=30 * DAY).entries) == pruned


@pytest.mark.parametrize(("keep", "pruned"), [(0, 3), (1, 2), (2, 1), (3, 0), (4, 0)])
def test_the_latest_are_kept_whatever_their_age(storage: Path, clock: Clock, keep: int, pruned: int) -> None:
    made = [cut(storage, partition, 30) for partition in range(3)]
    clock.set(365)
    assert names(plan_prune(storage, older_than=DAY, keep=keep)) == made[:pruned]


def test_a_repair_stays_while_an_older_one_of_the_same_files_does(storage: Path, clock: Clock) -> None:
    """The clock was set back in between, so that the later repair looks older: pruned alone, it would bar the first one's way."""
    clock.set(20)
    first = cut(storage, 0, 50)
    clock.set(0)
    second = cut(storage, 0, 40)
    other = cut(storage, 1, 40)
    clock.set(35)
    assert names(plan_prune(storage, older_than=30 * DAY)) == [other]
    clock.set(50)
    assert names(plan_prune(storage, older_than=30 * DAY)) == [first, second, other]
    before = snapshot(storage)
    prune(plan_prune(storage, older_than=30 * DAY, keep=2))
    assert [entry(storage, one).state for one in (first, second)] == [RepairState.PRUNED, RepairState.APPLIED]
    undo(storage, second)
    assert snapshot(storage) != before


def set_assigned(storage: Path, partition: int, assigned: bool) -> str:
    setting = PartitionSetting(assigned=assigned)
    done = apply(plan_set_partition(storage, partition=partition, setting=setting), arguments=["set-partition"])
    assert done.undo_id is not None
    return done.undo_id


def test_what_was_pruned_before_does_not_count_among_those_that_are_kept(storage: Path, clock: Clock) -> None:
    made = [cut(storage, partition, 30) for partition in range(3)]
    clock.set(365)
    prune(plan_prune(storage, older_than=DAY, keep=2))
    assert names(plan_prune(storage, older_than=DAY, keep=1)) == made[1:2]
    assert names(plan_prune(storage, older_than=DAY, keep=2)) == []


def test_every_repair_that_stays_holds_the_later_ones_of_its_files(storage: Path, clock: Clock) -> None:
    """Not only the last of them."""
    clock.set(20)
    cut(storage, 0, 50)
    cut(storage, 1, 50)
    clock.set(0)
    for partition in (0, 1):
        cut(storage, partition, 40)
    other = cut(storage, 2, 40)
    clock.set(35)
    assert names(plan_prune(storage, older_than=30 * DAY)) == [other]


@pytest.mark.parametrize("moved_first", [True, False])
def test_a_directory_that_was_moved_is_one_of_the_places_of_a_repair(
    tmp_path: Path, clock: Clock, moved_first: bool
) -> None:
    storage = build_directory(
        tmp_path / "d", {0: 60, 1: 60}, per_segment=20, local_low_water_mark=3, layout=Layout.DOCUMENTED
    )
    steps = [lambda: set_assigned(storage, 0, False), lambda: set_assigned(storage, 0, True)] if moved_first else []
    clock.set(20)
    (steps[0] if steps else lambda: cut(storage, 0, 40))()
    clock.set(0)
    (steps[1] if steps else lambda: set_assigned(storage, 0, False))()
    clock.set(35)
    assert names(plan_prune(storage, older_than=30 * DAY)) == []


def test_what_was_taken_back_has_nothing_to_give(storage: Path, clock: Clock) -> None:
    cut(storage, 0, 30)
    undo(storage)
    clock.set(100)
    assert plan_prune(storage, older_than=DAY).entries == ()


def test_nothing_is_pruned_twice(storage: Path, clock: Clock) -> None:
    cut(storage, 0, 30)
    clock.set(100)
    prepared = plan_prune(storage, older_than=DAY)
    prune(prepared)
    assert plan_prune(storage, older_than=DAY).entries == ()
    with pytest.raises(StalePlanError, match="changed since the plan"):
        prune(prepared)


def test_an_interrupted_repair_stops_everything(storage: Path, clock: Clock) -> None:
    old = cut(storage, 1, 30)
    clock.set(100)
    prepared = plan_prune(storage, older_than=DAY)
    with pytest.raises(Crash), crashing_when(lambda change: change.kind == "truncate"):
        cut(storage, 0, 30)
    with pytest.raises(RefusedError, match="was interrupted"):
        plan_prune(storage, older_than=DAY)
    before = digest(storage)
    with pytest.raises(RefusedError, match="was interrupted"):
        prune(prepared)
    assert {**digest(storage), ".waltzctl/lock": ""} == {**before, ".waltzctl/lock": ""}
    assert entry(storage, old).state is RepairState.APPLIED


def test_an_undo_that_was_interrupted_stops_everything(storage: Path, clock: Clock) -> None:
    cut(storage, 0, 30)
    clock.set(100)
    with pytest.raises(Crash), crashing_when(lambda change: change.target is not None):  # of the manifest
        undo(storage)
    with pytest.raises(RefusedError, match="was interrupted"):
        plan_prune(storage, older_than=DAY)


def test_a_quarantine_that_changed_since_is_left_alone(storage: Path, clock: Clock) -> None:
    first, second = cut(storage, 0, 30), cut(storage, 1, 30)
    clock.set(100)
    prepared = plan_prune(storage, older_than=DAY)
    undo(storage, second)
    with pytest.raises(StalePlanError, match=second):
        prune(prepared)
    assert entry(storage, first).state is RepairState.APPLIED


def test_the_latest_that_was_to_stay_and_is_taken_back_since_lets_none_go(storage: Path, clock: Clock) -> None:
    """The one before it is the latest now, and nobody agreed to give that up; a repair that came since changes nothing."""
    first, second = cut(storage, 0, 50), cut(storage, 1, 50)
    clock.set(3)
    plan = plan_prune(storage, older_than=DAY, keep=1)
    assert [name for name, _ in plan.entries] == [first]
    undo(storage, second)
    with pytest.raises(StalePlanError, match=f"{second}: changed since the plan was made"):
        prune(plan)
    assert entry(storage, first).state is RepairState.APPLIED
    second = cut(storage, 1, 50)
    plan = plan_prune(storage, older_than=DAY, keep=1)
    cut(storage, 2, 50)
    assert prune(plan) > 0
    assert entry(storage, first).state is RepairState.PRUNED


def test_what_was_changed_among_kept_copies_is_left_alone(storage: Path, clock: Clock) -> None:
    old = cut(storage, 0, 30)
    clock.set(100)
    prepared = plan_prune(storage, older_than=DAY)
    (entry(storage, old).path / "more").write_bytes(b"x")
    with pytest.raises(StalePlanError, match=old):
        prune(prepared)
    assert entry(storage, old).state is RepairState.APPLIED


def test_a_held_directory_is_not_touched(storage: Path, clock: Clock) -> None:
    old = cut(storage, 0, 30)
    clock.set(100)
    prepared = plan_prune(storage, older_than=DAY)
    with (
        DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME),
        pytest.raises(DirectoryLockedError),
    ):
        prune(prepared)
    assert entry(storage, old).state is RepairState.APPLIED


def test_the_journal_has_a_line(storage: Path, clock: Clock) -> None:
    old = cut(storage, 0, 30)
    clock.set(100)
    freed = prune(plan_prune(storage, older_than=DAY))
    line = json.loads(journal_path(storage).read_text().splitlines()[-1])
    assert (line["event"], line["entry"], line["files"], line["bytes_freed"]) == ("pruned", old, [], freed)


def test_a_pruning_that_was_cut_short_is_finished_by_the_next(storage: Path, clock: Clock) -> None:
    """It counts as pruned from its manifest on, and its copies still take room."""
    old = cut(storage, 0, 30)
    size = kept_bytes(entry(storage, old))
    clock.set(100)

    with pytest.raises(Crash), crashing_when(lambda change: change.target is not None):
        prune(plan_prune(storage, older_than=DAY))
    assert (entry(storage, old).state, bool(copies(storage, old))) == (RepairState.PRUNED, True)
    left = kept_bytes(entry(storage, old))
    assert 0 < left <= size
    assert prune(plan_prune(storage, older_than=365 * DAY, keep=5)) == left
    assert copies(storage, old) == []


@pytest.mark.parametrize("place", [journal_path, lambda storage: storage / ".waltzctl" / "quarantine"])
def test_on_a_full_disk_what_was_kept_makes_room_for_saying_that_it_is_gone(
    storage: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, place: Callable[[Path], Path]
) -> None:
    """Nothing could be written, and so nothing given up."""
    old = cut(storage, 0, 30)
    clock.set(40)
    prepared, kept, write_at = (
        plan_prune(storage, older_than=30 * DAY),
        entry(storage, old).path,
        disk.WritableFile.write_at,
    )
    lines = len(journal_path(storage).read_text().splitlines())

    def full(self: disk.WritableFile, offset: int, data: bytes) -> None:
        if Path(self.path).is_relative_to(place(storage)) and any(kept.glob("range-*")):
            write_at(self, offset, data[:10])
            raise DiskFullError(self.path, offset, OSError(errno.ENOSPC, "No space left on device"))
        write_at(self, offset, data)

    monkeypatch.setattr(disk.WritableFile, "write_at", full)
    assert prune(prepared) == prepared.bytes > 0
    assert (entry(storage, old).state, copies(storage, old)) == (RepairState.PRUNED, [])
    told = [one for one in journal_path(storage).read_text().splitlines()[lines:] if one.endswith("}")]
    assert [json.loads(one)["event"] for one in told] == ["pruned"]


def test_without_an_inode_what_was_kept_makes_room_for_saying_that_it_is_gone(
    storage: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file is the mark that the state may not be durable."""
    old = cut(storage, 0, 30)
    clock.set(40)
    prepared, kept, make_file = plan_prune(storage, older_than=30 * DAY), entry(storage, old).path, ownership.make_file

    def full(path: PurePath, like: PurePath) -> int:
        if any(kept.glob("range-*")):
            raise OSError(errno.ENOSPC, "No space left on device")
        return make_file(path, like)

    monkeypatch.setattr(ownership, "make_file", full)
    assert prune(prepared) == prepared.bytes > 0
    assert (entry(storage, old).state, copies(storage, old)) == (RepairState.PRUNED, [])


def test_an_entry_whose_copies_went_before_it_said_so_is_pruned_again(storage: Path, clock: Clock) -> None:
    old = cut(storage, 0, 30)
    for one in entry(storage, old).path.glob("range-*"):
        one.unlink()
    with pytest.raises(StalePlanError, match="the kept copy is not there any more"):
        undo(storage, old)
    clock.set(40)
    prune(plan_prune(storage, older_than=30 * DAY))
    assert entry(storage, old).state is RepairState.PRUNED


def test_values_that_cannot_be_meant(storage: Path) -> None:
    for values in (
        {"older_than": -1.0},
        {"older_than": -0.5},
        {"older_than": float("nan")},
        {"older_than": 1.0, "keep": -1},
    ):
        with pytest.raises(InvalidRequestError):
            plan_prune(storage, **values)  # type: ignore[arg-type]


@pytest.mark.turns(10)
@pytest.mark.parametrize("layout", list(Layout))
def test_killed_at_any_moment_an_entry_is_whole_or_pruned(tmp_path: Path, layout: Layout) -> None:
    for change in range(40):
        storage = build_directory(
            tmp_path / str(change), {0: 60, 1: 60}, per_segment=20, local_low_water_mark=3, layout=layout
        )
        original = snapshot(storage)
        made = [cut(storage, 0, 30), cut(storage, 1, 30)]
        after = snapshot(storage)
        prepared = plan_prune(storage, older_than=0)
        try:
            with crashing_at(change):
                prune(prepared)
        except Crash:
            pass
        else:
            assert change > 10
            break
        assert snapshot(storage) == after
        with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
            roll_back_interrupted(storage)  # as the next writer does, whichever it is
        states = [entry(storage, one).state for one in made]
        for name, state in zip(made, states, strict=True):
            assert state in (RepairState.APPLIED, RepairState.PRUNED)
            assert bool(copies(storage, name)) == (state is RepairState.APPLIED)
        if states[1] is RepairState.APPLIED:
            undo(storage, made[1])
            parted = {name: value for name, value in snapshot(storage).items() if name.startswith("1")}
            assert parted == {name: value for name, value in original.items() if name.startswith("1")}
    else:
        pytest.fail("the pruning never came to its end")
