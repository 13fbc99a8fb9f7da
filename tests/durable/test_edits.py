"""What edits of a file may be, one step to each side of every bound, and how much space they are taken to need."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from waltzctl.engine.durable import disk, execution
from waltzctl.engine.durable.edits import (
    Cut,
    Edit,
    FileEdit,
    FileEdits,
    MoveDirectory,
    Overwrite,
    Remove,
    Replace,
    group_edits,
)
from waltzctl.engine.durable.execution import MANIFEST_ALLOWANCE, carry_out, check_edits, check_space, prepare
from waltzctl.engine.durable.manifest import (
    MANIFEST,
    KeptFile,
    KeptMove,
    KeptRange,
    QuarantineEntry,
    RepairState,
    Stamp,
)
from waltzctl.engine.errors import DiskFullError, DiskWriteError, RefusedError, StalePlanError
from waltzctl.engine.storage.store import STATE_FILES

FILE = Path("/s/0/a.seg")


def cut(size: int) -> Cut:
    return Cut(FILE, size)


def over(offset: int, length: int) -> Overwrite:
    return Overwrite(FILE, offset, b"n" * length)


# --- the ranges of one file, of 100 bytes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "ranges"),
    [
        ((cut(0),), [(0, 100, b"")]),
        ((cut(1),), [(1, 99, b"")]),
        ((cut(99),), [(99, 1, b"")]),
        ((cut(100),), [(100, 0, b"")]),
        ((over(0, 1),), [(0, 1, b"n")]),
        ((over(0, 100),), [(0, 100, b"n" * 100)]),
        ((over(0, 101),), [(0, 100, b"n" * 101)]),
        ((over(99, 1),), [(99, 1, b"n")]),
        ((over(99, 3),), [(99, 1, b"nnn")]),
        ((over(100, 2),), [(100, 0, b"nn")]),
        ((over(100, 0),), [(100, 0, b"")]),
        ((over(50, 10), cut(60)), [(50, 10, b"n" * 10), (60, 40, b"")]),
        ((cut(60), over(0, 60)), [(60, 40, b""), (0, 60, b"n" * 60)]),
        ((over(20, 10), over(10, 10)), [(20, 10, b"n" * 10), (10, 10, b"n" * 10)]),
        ((over(10, 0), over(10, 5)), [(10, 0, b""), (10, 5, b"n" * 5)]),
    ],
)
def test_what_edits_in_place_take_and_write(edits: tuple[FileEdit, ...], ranges: list[tuple[int, int, bytes]]) -> None:
    found = FileEdits(FILE, "0/a.seg", edits)
    assert found.ranges(100) == ranges
    assert found.in_place


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ((cut(101),), "cannot cut 100 bytes to 101"),
        ((cut(-1),), "cannot cut 100 bytes to -1"),
        ((over(101, 1),), "1 bytes at 101 lie outside"),
        ((over(-1, 2),), "2 bytes at -1 lie outside"),
        ((over(50, 11), cut(60)), "11 bytes at 50 lie outside"),
        ((over(60, 1), cut(60)), "lie outside"),
        ((over(10, 11), over(20, 10)), "overlap"),
        ((over(20, 10), over(10, 11)), "overlap"),
        ((over(0, 30), over(10, 2)), "overlap"),
        ((over(98, 5), over(100, 3)), "overlap"),
    ],
)
def test_edits_that_do_not_fit_the_file_or_one_another(edits: tuple[FileEdit, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FileEdits(FILE, "0/a.seg", edits).ranges(100)


def test_checksums_begin_later_for_a_cut_alone() -> None:
    known = Cut(FILE, 60, 7)
    assert FileEdits(FILE, "0/a.seg", (known,)).known_from == 7
    assert FileEdits(FILE, "0/a.seg", (known, over(0, 1))).known_from == 0
    assert FileEdits(FILE, "0/a.seg", (over(0, 1),)).known_from == 0
    assert not FileEdits(FILE, "0/a.seg", (Remove(FILE),)).in_place
    assert over(5, 3).end == 8


def none() -> Iterator[bytes]:
    return iter(())


@pytest.mark.parametrize(
    "edits",
    [
        [cut(1), cut(1)],
        [cut(1), Remove(FILE)],
        [Remove(FILE), Remove(FILE)],
        [Replace(FILE, none), over(0, 1)],
        [Replace(FILE, none), Remove(FILE)],
    ],
)
def test_edits_that_cannot_be_combined(edits: list[Edit]) -> None:
    with pytest.raises(ValueError, match=r"0/a\.seg: these edits cannot be combined"):
        group_edits(Path("/s"), edits, STATE_FILES)


def test_edits_are_grouped_in_the_order_of_the_files() -> None:
    other = Path("/s/0/b.seg")
    moved = MoveDirectory(Path("/s/1"), Path("/s/.waltzctl/unassigned/1"))
    found = group_edits(Path("/s"), [Remove(other), over(0, 1), moved, cut(50), over(5, 1)], STATE_FILES)
    assert found == (
        FileEdits(other, "0/b.seg", (Remove(other),)),
        FileEdits(FILE, "0/a.seg", (over(0, 1), cut(50), over(5, 1))),
    )
    assert group_edits(Path("/s"), [moved], STATE_FILES) == ()
    with pytest.raises(ValueError, match="lies in a directory that is moved"):
        group_edits(Path("/s"), [Remove(Path("/s/1/a.seg")), moved], STATE_FILES)


# --- space --------------------------------------------------------------------------------------------------------


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "a.seg").write_bytes(bytes(range(100)))
    return tmp_path


@pytest.mark.parametrize(
    ("make", "needed"),
    [
        (lambda path: [Cut(path, 40)], 60),
        (lambda path: [Cut(path, 100)], 0),
        (lambda path: [Overwrite(path, 98, b"n" * 5)], 7),
        (lambda path: [Overwrite(path, 0, b"n"), Cut(path, 90)], 12),
        (lambda path: [Replace(path, none)], 100),
        (lambda path: [Replace(path, none, 0)], 0),
        (lambda path: [Replace(path, none, 3)], 3),
        (lambda path: [Replace(path.with_name("new.seg"), none)], 0),
        (lambda path: [Replace(path.with_name("new.seg"), none, 5)], 5),
        (lambda path: [Remove(path)], 0),
        (lambda path: [Cut(path, 40), Replace(path.with_name("new.seg"), none, 5)], 65),
    ],
)
def test_space_for_what_is_kept_and_built(
    storage: Path, monkeypatch: pytest.MonkeyPatch, make: object, needed: int
) -> None:
    groups = group_edits(storage, make(storage / "0" / "a.seg"), STATE_FILES)  # type: ignore[operator]
    needed += MANIFEST_ALLOWANCE
    monkeypatch.setattr(disk, "free_bytes", lambda _: needed)
    check_space(storage, groups)
    monkeypatch.setattr(disk, "free_bytes", lambda _: needed - 1)
    with pytest.raises(DiskFullError, match=f"{needed} bytes are needed, {needed - 1} are free; nothing was changed"):
        check_space(storage, groups)


def test_the_allowance_is_64_kib() -> None:
    assert MANIFEST_ALLOWANCE == 65536


# --- whether each can be done -------------------------------------------------------------------------------------


def test_what_is_gone_or_in_the_way_is_told_before_anything_changes(storage: Path) -> None:
    def told(*edits: Edit) -> None:
        check_edits(storage, edits, STATE_FILES)

    (storage / "1").mkdir()
    gone, made = storage / "0" / "gone.seg", storage / "0" / "directory"
    made.mkdir()
    for edit in (Cut(gone, 0), Overwrite(gone, 0, b"n"), Remove(gone)):
        with pytest.raises(StalePlanError, match="the file is not there any more"):
            told(edit)
    told(Replace(gone, none), Replace(storage / "7" / "new.seg", none))
    for edit in (Remove(made), Replace(made, none)):
        with pytest.raises(RefusedError, match="it is a directory, not a regular file"):
            told(edit)
    with pytest.raises(ValueError, match="cannot cut"):
        told(Cut(storage / "0" / "a.seg", 101))
    aside = storage / ".waltzctl" / "unassigned" / "1"
    move = MoveDirectory(storage / "1", aside)
    assert check_edits(storage, [move], STATE_FILES) == ((), [KeptMove("1", ".waltzctl/unassigned/1")])
    aside.mkdir(parents=True)
    with pytest.raises(RefusedError, match="files of partition 1 are here already"):
        told(move)
    with pytest.raises(StalePlanError, match="the directory is not there any more"):
        told(MoveDirectory(storage / "2", aside.with_name("2")))
    with pytest.raises(ValueError, match="never moves"):
        told(MoveDirectory(storage / "1", aside.with_name("2")))


def test_no_file_of_another_file_system_is_moved_to_the_quarantine(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    real = os.stat

    def stat(path: object, **options: bool) -> os.stat_result:
        found = real(path, **options)  # type: ignore[call-overload]
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:])) if str(path) == str(storage / "0") else found

    monkeypatch.setattr(os, "stat", stat)
    for state in (storage, storage / ".waltzctl"):
        state.mkdir(exist_ok=True)
        with pytest.raises(RefusedError, match=f"lies on another file system, or mount, than {state}, so"):
            check_edits(storage, [Remove(storage / "0" / "a.seg")], STATE_FILES)


# --- keeping, and carrying out ------------------------------------------------------------------------------------


def entry_of(storage: Path) -> QuarantineEntry:
    place = storage / ".waltzctl" / "quarantine" / "20260101T000000Z-recover"
    place.mkdir(parents=True)
    return QuarantineEntry(place.name, 1, "recover", (), "2026-01-01T00:00:00Z", "ff", RepairState.PREPARING, place)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_what_is_kept_and_built(storage: Path) -> None:
    data, entry = bytes(range(100)), entry_of(storage)
    path, other, new = storage / "0" / "a.seg", storage / "0" / "b.seg", storage / "7" / "new.seg"
    other.write_bytes(b"other")
    disk.set_times(other, 17)
    disk.set_times(path, 18)
    edits: list[Edit] = [
        Overwrite(path, 60, b"N" * 10), Cut(path, 90), Overwrite(path, 10, b""),
        Remove(other), Replace(new, lambda: [b"ne", b"w"]), Replace(new.with_name("x.seg"), list),
    ]  # fmt: skip
    groups = group_edits(storage, edits, STATE_FILES)
    found = prepare(entry, groups, [KeptMove("1", ".waltzctl/unassigned/1")])
    left = data[:60] + b"N" * 10 + data[70:90]
    assert found.state is RepairState.PREPARED
    assert found.moves == (KeptMove("1", ".waltzctl/unassigned/1"),)
    assert found.directories == ("7",)
    assert found.files == (
        KeptFile(
            "0/a.seg",
            Stamp(100, sha(data), 18),
            Stamp(90, sha(left), None),
            (
                KeptRange(60, 10, 10, "range-0", sha(data[60:70]), "new-0", sha(b"N" * 10)),
                KeptRange(90, 10, 0, "range-1", sha(data[90:]), None, None),
            ),
        ),
        KeptFile("0/b.seg", Stamp(5, sha(b"other"), 17), None, (), "old-3", None),
        KeptFile("7/new.seg", None, Stamp(3, sha(b"new"), None), (), None, "new-4"),
        KeptFile("7/x.seg", None, Stamp(0, sha(b""), None), (), None, "new-5"),
    )
    kept = {one.name: one.read_bytes() for one in entry.path.iterdir() if one.name != MANIFEST}
    assert kept == {"range-0": data[60:70], "new-0": b"N" * 10, "range-1": data[90:], "new-4": b"new", "new-5": b""}
    assert path.read_bytes() == data
    seen: list[tuple[str, str]] = []
    disk.observer = lambda change: seen.append((change.kind, str((change.target or change.path).relative_to(storage))))
    try:
        carry_out(found, edits)
    finally:
        disk.observer = None
    own = ".waltzctl/quarantine/20260101T000000Z-recover"
    assert seen == [
        ("mkdir", "7"), ("sync-directory", "."),
        ("write", "0/a.seg"), ("sync", "0/a.seg"),
        ("truncate", "0/a.seg"), ("sync", "0/a.seg"),
        ("sync", "0/a.seg"),
        ("rename", f"{own}/old-3"), ("sync-directory", own), ("sync-directory", "0"),
        ("rename", "7/new.seg"), ("sync-directory", "7"),
        ("rename", "7/x.seg"), ("sync-directory", "7"),
    ]  # fmt: skip
    assert path.read_bytes() == left
    assert not other.exists()
    assert new.read_bytes() == b"new"


@pytest.mark.parametrize("start", [0, 30, 60])
def test_checksums_of_a_cut_cover_what_they_say(storage: Path, start: int) -> None:
    data = bytes(range(100))
    (group,) = group_edits(storage, [Cut(storage / "0" / "a.seg", 60, start)], STATE_FILES)
    ((before, after),) = [(f.before, f.after) for f in prepare(entry_of(storage), [group], []).files]
    assert before is not None
    assert (before.size, before.sha256, before.start) == (100, sha(data[start:]), start)
    assert after == Stamp(60, sha(data[start:60]), None, start)


def test_edits_that_change_nothing_keep_nothing(storage: Path) -> None:
    path, entry = storage / "0" / "a.seg", entry_of(storage)
    edits = [Cut(path, 100), Overwrite(path, 5, b"")]
    found = prepare(entry, group_edits(storage, edits, STATE_FILES), [])
    assert found.files == ()
    carry_out(found, edits)
    assert [one.name for one in entry.path.iterdir()] == [MANIFEST]
    assert path.read_bytes() == bytes(range(100))


def test_what_does_not_read_back_is_not_built(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "stamp", lambda path, start=0: Stamp(2, "ff", None))
    with pytest.raises(DiskWriteError, match="build the file") as raised:
        execution._build(storage / "new", [b"ab"], storage / "a")
    assert raised.value.__cause__ is None or raised.value.errno == errno.EIO  # type: ignore[attr-defined]


def test_a_file_that_shrinks_while_it_is_kept_makes_the_plan_stale(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group,) = group_edits(storage, [Cut(storage / "0" / "a.seg", 60)], STATE_FILES)
    monkeypatch.setattr(execution, "read_chunks", lambda path, start, stop: iter([b"x" * (stop - start - 1)]))
    with pytest.raises(StalePlanError, match="became shorter"):
        prepare(entry_of(storage), [group], [])
