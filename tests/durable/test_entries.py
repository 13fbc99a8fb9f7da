"""The entries of a quarantine: numbers and names, the order of what is undone, and what is durable before what."""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections.abc import Collection
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.repair.trees import recording
from waltzctl.engine.durable import disk, quarantine
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.durable.edits import Cut, MoveDirectory, Overwrite, Remove, Replace
from waltzctl.engine.durable.journal import journal_path
from waltzctl.engine.durable.manifest import (
    INTERRUPTED,
    MANIFEST,
    KeptMove,
    PartitionLeft,
    QuarantineEntry,
    RepairState,
    quarantine_directory,
    read_entry,
    write_entry,
)
from waltzctl.engine.durable.quarantine import (
    UNSETTLED,
    Store,
    apply_edits,
    give_up,
    interrupted,
    list_entries,
    roll_back_interrupted,
    take_back,
)
from waltzctl.engine.durable.restore import ways_back
from waltzctl.engine.errors import DamageError, DiskReadError, RefusedError

LEFT = (PartitionLeft(0, (1, 2, 3), (("a.seg", 5),)),)
STORE = Store(frozenset(), lambda entry: LEFT)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / "0").mkdir()
    for name in "abcdefgh":
        (tmp_path / "0" / name).write_bytes(name.encode() * 10)
    return tmp_path


def run(storage: Path, *edits: object) -> QuarantineEntry:
    return apply_edits(storage, edits, STORE, command="recover", arguments=["x"], plan_hash="ff")  # type: ignore[arg-type]


def made(storage: Path, number: int, state: RepairState, **changes: object) -> QuarantineEntry:
    """An entry as a process that died leaves it."""
    place = quarantine_directory(storage) / f"20260101T00000{number}Z-recover"
    place.mkdir(parents=True)
    created = "2026-01-01T00:00:00Z"
    entry = QuarantineEntry(place.name, number, "recover", (), created, "ff", state, place, **changes)  # type: ignore[arg-type]
    write_entry(entry)
    return entry


def steps(changes: list[Change], entry: QuarantineEntry) -> list[tuple[str, str]]:
    """What was done to names and what was synced, as paths of the storage directory; the entry's own is called so."""
    own = str(entry.path.relative_to(entry.storage))
    named = [(one.kind, str((one.target or one.path).relative_to(entry.storage))) for one in changes]
    return [(kind, name.replace(own, "entry")) for kind, name in named if kind not in ("write", "times")]


def events(storage: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in journal_path(storage).read_text().splitlines()]
    return [(line["event"], line["entry"]) for line in lines]


BUILT = [
    ("create", f"entry/{MANIFEST}.waltzctl-tmp"), ("sync", f"entry/{MANIFEST}.waltzctl-tmp"),
    ("rename", f"entry/{MANIFEST}"), ("sync-directory", "entry"),
]  # fmt: skip
"""A manifest, written whole."""


def test_an_entry_from_its_first_file_to_its_last(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "now_ms", lambda: 1_700_000_000_999)
    with recording() as changes:
        entry = run(storage, Cut(storage / "0" / "a", 4), Remove(storage / "0" / "b"))
    assert (entry.id, entry.number, entry.created) == ("20231114T221320Z-recover", 1, "2023-11-14T22:13:20.999Z")
    assert (entry.command, entry.arguments, entry.plan_hash) == ("recover", ("x",), "ff")
    assert (entry.state, entry.partitions) == (RepairState.APPLIED, LEFT)
    assert list_entries(storage, STORE) == (entry,)
    state = ".waltzctl"
    assert steps(changes, entry) == [
        ("mkdir", state), ("sync-directory", "."), ("mkdir", f"{state}/quarantine"), ("sync-directory", state),
        ("mkdir", "entry"), ("sync-directory", f"{state}/quarantine"),
        *BUILT, ("create", f"entry/{UNSETTLED}"),
        ("sync", "0/a"), ("create", "entry/range-0"), ("sync", "entry/range-0"), ("sync", "0/b"),
        *BUILT,
        ("truncate", "0/a"), ("sync", "0/a"),
        ("rename", "entry/old-1"), ("sync-directory", "entry"), ("sync-directory", "0"),
        ("create", f"{state}/journal.jsonl"), ("sync-directory", state), ("sync", f"{state}/journal.jsonl"),
        *BUILT,
        ("sync-directory", "entry"), ("unlink", f"entry/{UNSETTLED}"),
    ]  # fmt: skip
    assert entry.files[0].after is not None
    assert entry.files[0].after.modified_ns == (storage / "0" / "a").stat().st_mtime_ns
    second = run(storage, Cut(storage / "0" / "c", 4))
    third = run(storage, Cut(storage / "0" / "d", 4))
    assert [one.number for one in (second, third)] == [2, 3]
    assert [one.id[24:] for one in (second, third)] == ["-2", "-3"]
    assert list_entries(storage, STORE) == (entry, second, third)
    with recording() as changes:
        run(storage, Cut(storage / "0" / "e", 4))
    assert changes[0].kind == "sync-directory", "what is there is not made again"


def test_what_is_not_begun(storage: Path) -> None:
    with pytest.raises(ValueError, match="there is nothing to do"):
        run(storage)
    left = made(storage, 3, RepairState.PREPARED)
    made(storage, 5, RepairState.UNDOING)
    with recording() as changes, pytest.raises(RefusedError, match=f"the repair {left.id} was interrupted"):
        run(storage, Cut(storage / "0" / "a", 4))
    assert changes == []


def test_a_directory_that_moves_is_something_to_do(storage: Path) -> None:
    entry = run(storage, MoveDirectory(storage / "0", storage / ".waltzctl" / "unassigned" / "0"))
    assert (entry.files, entry.moves) == ((), (KeptMove("0", ".waltzctl/unassigned/0"),))
    assert not (storage / "0").exists()
    take_back(entry, ways_back(entry))
    assert (storage / "0" / "a").read_bytes() == b"a" * 10


def test_which_entries_there_are(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_entries(storage, STORE) == ()
    of = {state: made(storage, number, state) for number, state in enumerate(reversed(RepairState), 1)}
    (quarantine_directory(storage) / "something else").mkdir()
    (quarantine_directory(storage) / "20270101T000000Z-recover").mkdir()
    shown = [of[state] for state in reversed(RepairState) if state is not RepairState.PREPARING]
    assert list_entries(storage, STORE) == tuple(shown)
    assert interrupted(storage, STORE) == tuple(one for one in shown if one.state in INTERRUPTED)
    assert INTERRUPTED == (RepairState.PREPARED, RepairState.ROLLING_BACK, RepairState.UNDOING)

    def fails(_: Path) -> list[str]:
        raise OSError(errno.EIO, "made up")

    monkeypatch.setattr(os, "listdir", fails)
    with pytest.raises(DiskReadError, match="list"):
        list_entries(storage, STORE)


def test_no_number_is_given_twice_where_an_earlier_entry_was_moved_away(storage: Path) -> None:
    first, second = (run(storage, Cut(storage / "0" / name, 4)) for name in "ab")
    first.path.rename(storage / "moved away by hand")
    third = run(storage, Cut(storage / "0" / "c", 4))
    assert (second.number, third.number) == (2, 3)
    assert list_entries(storage, STORE) == (second, third)


def test_what_is_over_is_looked_at_once_while_the_lock_is_held(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every repair examined all earlier ones: of the time to mend 600 partitions a third time, that was more than half."""
    read: list[str] = []
    examined: list[str] = []
    stat, listdir = os.stat, os.listdir

    def heard(path: Path, state_files: Collection[str]) -> QuarantineEntry | None:
        read.append(path.name)
        return read_entry(path, state_files)

    def change(data: bytes) -> QuarantineEntry:
        return run(storage, Overwrite(storage / "0" / "a", 0, data))

    monkeypatch.setattr(quarantine, "read_entry", heard)
    with DirectoryLock.acquire(storage, None):
        done = [change(bytes((count,))) for count in range(20)]
        assert [one.number for one in done] == [*range(1, 21)]
        assert read == [done[0].id]
        monkeypatch.setattr(os, "stat", lambda path, **given: (examined.append(str(path)), stat(path, **given))[1])
        monkeypatch.setattr(os, "listdir", lambda path: (examined.append(str(path)), listdir(path))[1])
        last = change(b"w")
        monkeypatch.undo()
        above = str(quarantine_directory(storage))
        of_entries = [one for one in examined if one.startswith(above + "/") and last.id not in one]
        assert (last.number, of_entries) == (21, [])
        assert examined.count(above) < 5, "its names are not listed either, or a few times"
        take_back(last, ways_back(last))
        assert change(b"v").number == 22
    again = [replace(done[3], number=70), replace(done[5], state=RepairState.UNDOING)]
    for one in again:  # by another process, between two locks
        write_entry(one)
        with DirectoryLock.acquire(storage, None):
            if one.state is RepairState.APPLIED:
                assert change(b"x").number == 71
            else:
                with pytest.raises(RefusedError, match=f"the repair {done[5].id} was interrupted"):
                    change(b"y")
    manifest = done[7].path / MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:-9])
    with DirectoryLock.acquire(storage, None), pytest.raises(DamageError):
        change(b"z")


def test_a_repair_that_could_not_be_taken_back_is_known_under_the_same_lock(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DirectoryLock.acquire(storage, None):
        for data in (b"v", b"w"):
            run(storage, Overwrite(storage / "0" / "a", 0, data))
        with monkeypatch.context() as failing:

            def fail(*_: object) -> None:
                raise OSError(errno.EIO, "the disk fails")

            failing.setattr(quarantine, "carry_out", fail)
            failing.setattr(quarantine, "_take_back", fail)
            with pytest.raises(OSError, match="the disk fails"):
                run(storage, Overwrite(storage / "0" / "a", 0, b"x"))
        with pytest.raises(RefusedError, match="was interrupted"):
            run(storage, Overwrite(storage / "0" / "a", 0, b"y"))
        (taken,) = roll_back_interrupted(storage, STORE)
        assert run(storage, Overwrite(storage / "0" / "a", 0, b"z")).number == taken.number + 1


def test_entries_of_which_few_are_wanted_are_not_held_all(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each manifest has the names of all files of its partitions: of thousands of repairs a node that began held them all."""
    for count in range(6):
        run(storage, Overwrite(storage / "0" / "a", 0, bytes((count,))))
    held: list[weakref.ref[Manifest]] = []
    most: list[int] = []

    class Manifest(QuarantineEntry):
        """One that can be referred to weakly."""

    def heard(path: Path, state_files: Collection[str]) -> QuarantineEntry | None:
        entry = read_entry(path, state_files)
        assert entry is not None
        made = Manifest(*(getattr(entry, one.name) for one in fields(entry)))
        held.append(weakref.ref(made))
        most.append(sum(one() is not None for one in held))
        return made

    monkeypatch.setattr(quarantine, "read_entry", heard)
    assert interrupted(storage, STORE) == ()
    assert roll_back_interrupted(storage, STORE) == ()
    assert len(most) == 12
    assert max(most) <= 2


def test_entries_are_in_the_order_of_their_numbers(storage: Path) -> None:
    later = made(storage, 2, RepairState.APPLIED)
    (other,) = [
        replace(later, number=1, id=name, path=later.path.with_name(name)) for name in ["20270101T000000Z-open"]
    ]
    other.path.mkdir()
    write_entry(other)
    assert list_entries(storage, STORE) == (other, later)
    (quarantine_directory(storage) / "x").write_bytes(b"")
    assert list_entries(storage / "0" / "a", STORE) == (), "no directory at all"


def test_what_was_interrupted_goes_back_latest_first(storage: Path) -> None:
    """And is told oldest first."""
    first, second, third = (
        made(storage, number, state)
        for number, state in ((1, RepairState.PREPARED), (2, RepairState.ROLLING_BACK), (3, RepairState.UNDOING))
    )
    found = roll_back_interrupted(storage, STORE)
    assert [(one.id, one.state) for one in found] == [
        (first.id, RepairState.ROLLED_BACK), (second.id, RepairState.ROLLED_BACK), (third.id, RepairState.UNDONE),
    ]  # fmt: skip
    assert events(storage) == [("undone", third.id), ("rolled-back", second.id), ("rolled-back", first.id)]
    assert list_entries(storage, STORE) == found
    assert roll_back_interrupted(storage, STORE) == ()


def test_files_and_directories_go_back_the_way_they_came(storage: Path) -> None:
    for number in range(1, 4):
        (storage / str(number)).mkdir()
    moves = [MoveDirectory(storage / str(n), storage / ".waltzctl" / "unassigned" / str(n)) for n in range(1, 4)]
    entry = run(storage, *moves, *(Remove(storage / "0" / name) for name in "abc"))
    with recording() as changes:
        done = take_back(entry, ways_back(entry))
    assert done.state is RepairState.UNDONE
    renamed = [name for kind, name in steps(changes, entry) if kind == "rename" and name != f"entry/{MANIFEST}"]
    assert renamed == ["0/c", "0/b", "0/a", "3", "2", "1"]
    assert events(storage)[-1] == ("undone", entry.id)
    assert sorted(os.listdir(entry.path)) == [MANIFEST]


def test_from_applied_to_undone(storage: Path) -> None:
    entry = run(storage, Replace(storage / "0" / "a", lambda: [b"new"]), Cut(storage / "0" / "b", 4))
    ways = ways_back(entry)
    with recording() as changes:
        take_back(entry, ways)
    journal = [("sync-directory", ".waltzctl"), ("sync", ".waltzctl/journal.jsonl")]
    assert steps(changes, entry) == [
        ("create", f"entry/{UNSETTLED}"), ("sync", f"entry/{UNSETTLED}"), *BUILT,
        ("sync", "0/b"), ("rename", "0/a"), ("sync-directory", "0"),
        ("truncate", f"entry/{UNSETTLED}"), *journal, *BUILT,
        ("unlink", "entry/range-1"), ("sync-directory", "entry"), ("unlink", f"entry/{UNSETTLED}"),
    ]  # fmt: skip


def test_what_is_prepared_says_that_it_goes_back_before_it_does(storage: Path) -> None:
    entry = made(storage, 1, RepairState.PREPARED)
    with recording() as changes:
        roll_back_interrupted(storage, STORE)
    renames = [one for one in changes if one.kind == "rename"]
    assert len(renames) == 2
    going = made(storage, 2, RepairState.ROLLING_BACK)
    with recording() as changes:
        roll_back_interrupted(storage, STORE)
    renames = [one for one in changes if one.kind == "rename"]
    assert [one.target for one in renames] == [going.path / MANIFEST], "it says so already"
    assert entry.path.exists()


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (RepairState.APPLIED, {"range-0", "new-1", "old-2", "range-3", "new-4", "old-5"}),
        (RepairState.UNDONE, {"old-2", "old-5"}),
        (RepairState.ROLLED_BACK, {"old-2", "old-5"}),
        (RepairState.PRUNED, set()),
    ],
)
@pytest.mark.parametrize("unsettled", [True, False])
def test_copies_that_a_crash_left(storage: Path, state: RepairState, left: set[str], unsettled: bool) -> None:
    entry = made(storage, 1, state)
    names = ["range-0", "new-1", "old-2", "range-3", "new-4", "old-5"]
    for name in (*reversed(names), "range-x", "range-12x", "xnew-1", *([UNSETTLED] if unsettled else [])):
        (entry.path / name).write_bytes(b"")
    with recording() as changes:
        assert roll_back_interrupted(storage, STORE) == ()
    assert set(os.listdir(entry.path)) == {MANIFEST, "range-x", "range-12x", "xnew-1", *left}
    gone = [Path(name).name for kind, name in steps(changes, entry) if kind == "unlink"]
    assert gone == [*([UNSETTLED] if unsettled else []), *sorted(set(names) - left)]
    settled = [("sync-directory", "entry"), ("unlink", f"entry/{UNSETTLED}")] if unsettled else []
    assert steps(changes, entry)[2 : 2 + len(settled)] == settled


def test_what_a_repair_kept_is_given_up(storage: Path) -> None:
    entry = run(storage, Remove(storage / "0" / "a"), Cut(storage / "0" / "b", 4))
    with recording() as changes:
        give_up(entry, 16)
    assert steps(changes, entry) == [
        ("create", f"entry/{UNSETTLED}"),
        ("sync-directory", ".waltzctl"), ("sync", ".waltzctl/journal.jsonl"),
        *BUILT,
        ("unlink", "entry/old-0"), ("unlink", "entry/range-1"),
        ("sync-directory", "entry"), ("unlink", f"entry/{UNSETTLED}"),
    ]  # fmt: skip
    assert events(storage)[-1] == ("pruned", entry.id)
    assert json.loads(journal_path(storage).read_text().splitlines()[-1])["bytes_freed"] == 16
    assert [one.state for one in list_entries(storage, STORE)] == [RepairState.PRUNED]


@pytest.mark.parametrize("names", [[], ["range-0", "new-1"], ["old-2"], ["range-0", "old-2"]])
def test_an_entry_under_which_nothing_changed_is_cleared_away(storage: Path, names: list[str]) -> None:
    entry = made(storage, 1, RepairState.PREPARING)
    for name in names:
        (entry.path / name).write_bytes(b"")
    if "old-2" in names:
        with pytest.raises(DamageError, match="it says that nothing was changed, but a file was moved here"):
            roll_back_interrupted(storage, STORE)
        assert set(os.listdir(entry.path)) == {MANIFEST, *names}
        return
    with recording() as changes:
        roll_back_interrupted(storage, STORE)
    assert sorted(steps(changes, entry)[2:-3]) == sorted(("unlink", f"entry/{name}") for name in names)
    assert steps(changes, entry)[-3:] == [
        ("sync-directory", "entry"),
        ("unlink", f"entry/{MANIFEST}"),
        ("rmdir", "entry"),
    ]
    entry.path.mkdir()
    with recording() as changes:
        roll_back_interrupted(storage, STORE)
    assert steps(changes, entry)[2:] == [("rmdir", "entry")]


def test_an_interruption_by_the_user_is_taken_back(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    for name, left in (("prepare", 0), ("carry_out", 1)):
        monkeypatch.setattr(quarantine, name, stops)
        with pytest.raises(KeyboardInterrupt):
            run(storage, Remove(storage / "0" / "a"))
        monkeypatch.undo()
        assert len(os.listdir(quarantine_directory(storage))) == left
        assert (storage / "0" / "a").read_bytes() == b"a" * 10
    assert [one.state for one in list_entries(storage, STORE)] == [RepairState.ROLLED_BACK]
