"""What seldom happens: errors of the system in places where hardly anything ever fails, and whoever else is at work there."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from waltzctl.engine.durable import directory_lock, disk, file_status, file_system, mounts, quarantine, restore
from waltzctl.engine.durable.directory_lock import DirectoryLock, hold_file, lock_holder
from waltzctl.engine.durable.edits import Cut, MoveDirectory, Overwrite, Remove, Replace
from waltzctl.engine.durable.execution import check_edits
from waltzctl.engine.durable.manifest import QuarantineEntry, RepairState
from waltzctl.engine.durable.new_directory import check_new, check_not_beside
from waltzctl.engine.durable.quarantine import give_up, interruptions
from waltzctl.engine.durable.work_directory import lock_directory, work_directory
from waltzctl.engine.errors import (
    DamageError,
    DirectoryLockedError,
    DiskError,
    DiskFullError,
    DiskReadError,
    DiskWriteError,
    InvalidRequestError,
    RefusedError,
)
from waltzctl.engine.findings import Code
from waltzctl.engine.storage.store import STORE, apply_edits, list_entries, roll_back_interrupted

OLD = bytes(range(200))


def failing(number: int) -> Callable[..., Any]:
    """A call of the system that fails."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fails


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "storage"
    (root / "0").mkdir(parents=True)
    (root / "waltz-storage.ctl").write_bytes(b"c" * 280)
    (root / "0" / "a.seg").write_bytes(OLD)
    (root / "0" / "b.seg").write_bytes(b"b" * 50)
    return root


def run(root: Path, *edits: Cut | Overwrite | Remove | Replace | MoveDirectory) -> QuarantineEntry:
    return apply_edits(root, edits, command="recover", arguments=(), plan_hash="0" * 64)


# --- copies that are not what they were ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["old-1", "range-0"])
@pytest.mark.parametrize("now", [None, b"other bytes", "a link"])
def test_before_anything_is_set_aside_every_kept_copy_has_to_be_there(tree: Path, name: str, now: object) -> None:
    """What was written since the repair would lie in the quarantine, and the repair could not be taken back all the same."""
    entry = run(
        tree, Cut(tree / "0" / "a.seg", 10), Remove(tree / "0" / "b.seg"), Replace(tree / "1", lambda: [b"new"])
    )
    restore.check_kept(entry, entry.files)
    copies = sorted(one.name for one in entry.path.iterdir())
    assert name in copies
    kept = entry.path / name
    held = kept.read_bytes()
    kept.unlink()
    if isinstance(now, bytes):
        kept.write_bytes(now)
    elif now is not None:
        (entry.path / "elsewhere").write_bytes(held)
        kept.symlink_to(entry.path / "elsewhere")
    why = "what the manifest says" if isinstance(now, bytes) else "there any more"
    with pytest.raises(DamageError, match=f"the kept copy is not {why}") as raised:
        restore.check_kept(entry, entry.files)
    assert raised.value.findings[0].path == kept


@pytest.mark.parametrize("name", ["range-0", "new-1", "new-0"])
def test_a_half_made_change_without_its_copies_is_left_as_it_is(tree: Path, name: str) -> None:
    """Of a file that is neither old nor new nothing is written, neither what is kept nor what was to be there."""
    path = tree / "0" / "a.seg"
    entry = run(tree, Overwrite(path, 3, b"N" * 10), Overwrite(path, 100, b"N" * 10))
    path.write_bytes(OLD[:3] + b"N" * 5 + OLD[8:])
    copies = {one.name: one for one in entry.path.iterdir()}
    assert {"range-0", "range-1", "new-0", "new-1"} <= copies.keys()
    (file,) = entry.files
    assert restore.way_back(entry, file) is restore.Way.RANGES
    copies[name].unlink()
    with pytest.raises(DamageError, match="the kept copy is not there any more") as raised:
        restore.way_back(entry, file)
    assert raised.value.findings[0].path == copies[name]


@pytest.mark.parametrize(("number", "over"), [(errno.EACCES, True), (errno.EPERM, True), (errno.EROFS, False)])
def test_what_is_right_already_needs_no_right_to_write(
    tree: Path, monkeypatch: pytest.MonkeyPatch, number: int, over: bool
) -> None:
    """A repair that failed because its user may not write there is over.  A disk that takes nothing is another matter."""
    entry = run(tree, Cut(tree / "0" / "a.seg", 10))
    (file,) = entry.files
    (tree / "0" / "a.seg").write_bytes(OLD)
    monkeypatch.setattr(disk, "open_regular", failing(number))
    monkeypatch.setattr(disk, "sync_file", lambda _: None)
    with contextlib.nullcontext() if over else pytest.raises(DiskWriteError, match="Read-only"):
        restore.put_back(entry, file, restore.Way.NOTHING)


# --- pruning, and what is told of an interrupted repair --------------------------------------------------------------


@pytest.mark.parametrize("full", ["_unsettle", "record", "write_entry", "nothing"])
def test_pruning_makes_the_room_that_it_needs(tree: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """On a full disk the copies go before the manifest says so; otherwise behind it, so that a crash leaves all or nothing."""
    entry = run(tree, Cut(tree / "0" / "a.seg", 10))
    seen: list[bool] = []
    for room, name in ((quarantine, "_unsettle"), (quarantine.journal, "record"), (quarantine, "write_entry")):
        real = getattr(room, name)

        def may_be_full(*given: Any, real: Callable[..., None] = real, name: str = name, **named: Any) -> None:
            there = (entry.path / "range-0").exists()
            if name == full and there:
                raise DiskFullError(entry.path, None, OSError(errno.ENOSPC, "no space"))
            seen.append(there)
            real(*given, **named)

        monkeypatch.setattr(room, name, may_be_full)
    give_up(entry, 190)
    behind = ["_unsettle", "record", "write_entry", "nothing"].index(full)
    assert seen == [place < behind for place in range(3)]
    (left,) = list_entries(tree)
    assert left.state is RepairState.PRUNED
    assert sorted(one.name for one in entry.path.iterdir()) == ["manifest.json"]


def test_an_interrupted_repair_and_a_quarantine_that_cannot_be_read_are_told(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(interruptions(tree, STORE)) == []
    path, write = tree / "0" / "a.seg", quarantine.write_entry
    with monkeypatch.context() as patch:
        patch.setattr(quarantine, "carry_out", failing(errno.EIO))
        patch.setattr(quarantine, "_take_back", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            run(tree, Cut(path, 10))
    assert write is quarantine.write_entry
    (found,) = interruptions(tree, STORE)
    assert (found.code, found.path.parent.name) == (Code.REPAIR_INTERRUPTED, "quarantine")
    assert found.message.startswith("recover of 2")
    assert found.message.endswith(f" was interrupted half-way; quarantine {found.path.name} keeps what it replaced")
    (Path(found.path) / "manifest.json").write_bytes(b"{}")
    (unread,) = interruptions(tree, STORE)
    assert (unread.code, unread.path) == (Code.READ_ERROR, tree / ".waltzctl")
    assert "not a usable manifest" in unread.message


def test_an_entry_in_preparation_into_which_a_file_was_moved_is_not_discarded(tree: Path) -> None:
    """Its manifest says that nothing was changed, and it may hold the only copy there is."""
    entry = run(tree, Remove(tree / "0" / "b.seg"))
    quarantine.write_entry(replace(entry, state=RepairState.PREPARING, files=(), partitions=None))
    with pytest.raises(DamageError, match="a file was moved here"):
        roll_back_interrupted(tree)
    assert (entry.path / "old-0").read_bytes() == b"b" * 50


@pytest.mark.parametrize("kind", ["a file", "a FIFO"])
def test_where_a_partition_s_directory_should_be_stands_something_else(tree: Path, kind: str) -> None:
    place = tree / "1"
    place.write_bytes(b"") if kind == "a file" else os.mkfifo(place)
    with pytest.raises(RefusedError, match=f"1: it is {kind}, not a directory"):
        check_edits(tree, [Replace(place / "x.seg", lambda: [b""], 0)], ())


# --- errors of the system --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE])
def test_what_cannot_be_examined_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert file_status.is_named(tmp_path / "a")
    assert file_status.is_examinable(tmp_path / "a")
    made = os.lstat(tmp_path / "a")
    assert file_status.is_at(tmp_path / "a", made)
    absent = number in file_status.NOTHING_THERE
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", failing(number))
        assert file_status.is_named("a") is not absent
        assert file_status.is_examinable("a") is absent
        assert not file_status.is_at(tmp_path / "a", made)
    monkeypatch.setattr(os, "stat", failing(number))
    if absent or number == errno.EACCES:
        assert file_status.file_numbers("a") is None
    else:
        with pytest.raises(DiskReadError, match="a: cannot examine"):
            file_status.file_numbers("a")


def test_a_disk_that_tells_nothing_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (file_status.is_directory(tmp_path), file_status.exists(tmp_path / "no")) == (True, False)
    monkeypatch.setattr(Path, "is_dir", failing(errno.EIO))
    monkeypatch.setattr(Path, "exists", failing(errno.EIO))
    with pytest.raises(DiskReadError, match="a: cannot look at"):
        file_status.is_directory(tmp_path / "a")
    with pytest.raises(DiskWriteError, match="a: cannot look at"):
        file_status.exists(tmp_path / "a")


def test_errors_of_an_open_file_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    with disk.WritableFile.create(path) as file:
        file.set_mode(0o640)
        assert path.stat().st_mode & 0o777 == 0o640
        with monkeypatch.context() as patch:
            patch.setattr(os, "fchmod", failing(errno.EPERM))
            patch.setattr(os, "fstat", failing(errno.EIO))
            with pytest.raises(DiskWriteError, match="a: cannot set the mode of: Operation not permitted"):
                file.set_mode(0o600)
            with pytest.raises(DiskWriteError, match="a: cannot get the size of: Input/output"):
                file.size()
    with monkeypatch.context() as patch:
        patch.setattr(disk, "open_regular", failing(errno.EIO))
        with pytest.raises(DiskReadError, match="a: cannot open: Input/output"):
            disk.open_for_reading(path)
    with pytest.raises(DiskWriteError, match="none: cannot open directory"), disk.opened_directory(tmp_path / "none"):
        pass
    with pytest.raises(DiskWriteError, match="create: File name too long"), disk.replacing(tmp_path / ("x" * 300)):
        pass


def test_what_is_being_replaced_stays_where_the_new_file_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    create = disk.WritableFile.create
    with monkeypatch.context() as patch:

        def made(path: Path, *, like: Path | None = None) -> disk.WritableFile:
            file = create(path, like=like)
            patch.setattr(os, "fstat", failing(errno.EIO))
            return file

        patch.setattr(disk.WritableFile, "create", made)
        with pytest.raises(DiskWriteError, match="a: cannot replace: Input/output"):
            disk.write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    disk.write_whole(tmp_path / "a", b"new")
    assert sorted(os.listdir(tmp_path)) == ["a"]


def test_where_nothing_can_be_looked_at_nothing_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not mounts.is_mount(tmp_path / "none")
    assert not mounts.is_mount(tmp_path)
    numbers = iter([(1, 1), (1, 2)])
    monkeypatch.setattr(mounts, "mount_of", lambda _: next(numbers))
    assert mounts.is_mount(tmp_path)


@pytest.mark.parametrize("renamed", [True, False])
@pytest.mark.parametrize("call", ["stat", "listdir"])
def test_where_a_directory_may_be_made_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, renamed: bool
) -> None:
    """Whatever the system does not tell is told as an error of the disk, which names the place."""
    monkeypatch.setattr(os, call, failing(errno.EIO))
    with pytest.raises(DiskReadError, match=f"{tmp_path.name}/.*Input/output"):
        check_new(tmp_path / "new", renamed=renamed, not_beside="waltz-storage.ctl")


def test_a_name_that_is_too_long_is_an_error_of_the_disk_and_not_of_the_program(tmp_path: Path) -> None:
    for place in (tmp_path / ("x" * 300), tmp_path / ("x" * 300) / "y"):
        with pytest.raises(DiskReadError, match="File name too long"):
            check_new(place, renamed=True, not_beside="waltz-storage.ctl")


def test_no_directory_is_made_among_partitions(tmp_path: Path) -> None:
    (tmp_path / "waltz-storage.ctl").write_bytes(b"")
    (tmp_path / "7").mkdir()
    (tmp_path / "link").symlink_to("7")
    for taken in (RefusedError, InvalidRequestError):
        with pytest.raises(taken, match=f"8: lies in {tmp_path}, a storage directory"):
            check_new(tmp_path / "8", renamed=False, not_beside="waltz-storage.ctl", taken=taken)
        with pytest.raises(taken, match="a storage directory"):
            check_not_beside(tmp_path / "link", "waltz-storage.ctl", taken)
    check_new(tmp_path / "7" / "8", renamed=False, not_beside="waltz-storage.ctl")
    check_new(tmp_path / "8", renamed=False)


# --- others at work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["made", "not made", "another run's"])
def test_an_interrupt_while_a_work_directory_is_made_leaves_what_is_another_run_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    place = tmp_path / "work"

    def make(path: Path) -> None:
        if state != "not made":
            os.mkdir(path)
            (path / "x").write_bytes(b"")
        raise KeyboardInterrupt

    with contextlib.ExitStack() as other:
        if state == "another run's":

            def make(path: Path) -> None:
                os.mkdir(path)
                lock_directory(path, other)
                raise KeyboardInterrupt

        monkeypatch.setattr(disk, "make_directory", make)
        with pytest.raises(KeyboardInterrupt), work_directory(place):
            pass
        assert place.exists() == (state == "another run's")


def test_a_directory_that_another_run_is_faster_to_make_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, make = tmp_path / "work", disk.make_directory

    def slow(path: Path) -> None:
        os.mkdir(path)
        (path / "its own").write_bytes(b"")
        make(path)

    monkeypatch.setattr(disk, "make_directory", slow)
    with pytest.raises(DiskError, match="File exists"), work_directory(place):
        pass
    assert (place / "its own").exists()


def test_a_work_directory_that_is_gone_or_replaced_when_it_is_locked_is_another_run_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    with contextlib.ExitStack() as held:
        assert lock_directory(tmp_path / "work", held) >= 0
    monkeypatch.setattr(file_status, "is_still_at", lambda *_: False)
    for name in ("work", "none"):
        with pytest.raises(RefusedError, match="another run is at work there"), contextlib.ExitStack() as held:
            lock_directory(tmp_path / name, held)


@pytest.mark.parametrize("faster", [True, False])
def test_the_directory_of_the_lock_may_be_made_by_another_process_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    make = directory_lock.make_directory

    def raced(path: Path) -> None:
        if faster:
            make(path)
        raise DiskWriteError(path, None, OSError(errno.EEXIST if faster else errno.EROFS, "raced"), doing="make")

    monkeypatch.setattr(directory_lock, "make_directory", raced)
    with contextlib.nullcontext() if faster else pytest.raises(DiskWriteError, match="raced"):
        DirectoryLock.acquire(tmp_path, None).release()


def test_an_open_file_is_held_against_everybody_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(300))
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        assert lock_holder(tmp_path, path) is None
        hold_file(first)
        assert lock_holder(tmp_path, path) == 0, "somebody, of whom nothing tells"
        with pytest.raises(OSError, match="unavailable") as raised:
            hold_file(second)
        assert raised.value.errno == errno.EAGAIN
    finally:
        os.close(first)
        os.close(second)
    assert lock_holder(tmp_path, path) is None


@pytest.mark.parametrize("told", [True, False])
def test_a_directory_that_was_moved_is_no_longer_the_one_that_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    (tmp_path / "s").mkdir()
    lock = DirectoryLock.acquire(tmp_path / "s", None)
    try:
        lock.check_in_place()
        with pytest.raises(DirectoryLockedError):
            DirectoryLock.acquire(tmp_path / "s", None)
        if told:
            (tmp_path / "s").rename(tmp_path / "t")
        else:
            monkeypatch.setattr(directory_lock, "is_still_at", failing(errno.EIO))
        with pytest.raises(DiskWriteError, match="moved or replaced" if told else "Input/output"):
            lock.check_in_place()
    finally:
        lock.release()
    lock.check_in_place()


def test_no_file_system_is_taken_at_its_word_that_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(file_system, "keeps_its_promise", lambda *_: False)
        assert file_system.FileSystem.of(tmp_path) is None
    with monkeypatch.context() as patch:
        patch.setattr(file_system, "keeps_its_promise", lambda *_: True)
        patch.setattr(file_system.ctypes, "CDLL", failing(errno.ENOENT))
        assert file_system.FileSystem.of(tmp_path) is None
        file_system._begin_call.cache_clear()
        assert file_system._begin_call() is None
        with disk.WritableFile.create(tmp_path / "a") as file:
            file_system.begin_writing(file, 0, 1)
    file_system._begin_call.cache_clear()
    if platform.system() == "Linux":
        assert file_system._begin_call() is not None
