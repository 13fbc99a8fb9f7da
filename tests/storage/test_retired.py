"""Partitions that were taken away: what goes with them, what does not, and what nobody asked to be deleted."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from tests.builders import build_directory, digest
from tests.repair.trees import recording
from tests.storage.support import LAYOUTS, opened, unexaminable
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskError, DiskFullError, DiskReadError, DiskWriteError, RefusedError
from waltzctl.engine.findings import Code
from waltzctl.engine.storage.availability_marks import Availability, load_marks, save_marks
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.loss_ledger import ledger_path, read_ledger
from waltzctl.engine.storage.retired import (
    begin_deletion,
    check_deletion,
    check_put_aside,
    finish_deletions,
    put_aside,
    take_from_aside,
)
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.control import FLAG_AVAILABLE, Layout, PartitionStruct, decode_control


@pytest.fixture(params=list(Layout))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three partitions, each with a fence, an accepted loss and a switch."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5, 2: 5}, layout=request.param)
    (path / ".waltzctl").mkdir()
    with SessionFences.open(path, 3) as fences:
        for number in range(3):
            fences.raise_to(number, 7)
    losses = [AcceptedLoss(number, 9, 9, 4, "2026-11-22T08:51:18.000Z", "test") for number in range(3)]
    ledger_path(path).write_bytes(encode_ledger(losses))  # type: ignore[attr-defined]
    save_marks(path, {number: Availability(False, True) for number in range(3)})
    return path


def known(path: Path) -> tuple[list[int], list[int], list[int], list[int]]:
    """The partitions that have a session in the control file, a fence, an accepted loss, a switch."""
    control = decode_control((path / "waltz-storage.ctl").read_bytes())
    with SessionFences.open(path, 3) as fences:
        fenced = [number for number in range(3) if fences.get(number) >= 0]
    lasting = [
        info.partition for info in control.partitions if info.current_struct and info.current_struct.session_id >= 0
    ]
    return lasting, fenced, [loss.partition for loss in read_ledger(path).losses], sorted(load_marks(path))


def finish(path: Path, only: list[int] | None = None) -> None:
    with OpenControlFile.open(path / "waltz-storage.ctl") as control:
        finish_deletions(path, control, only)


def test_everything_goes_with_the_files(storage: Path) -> None:
    begin_deletion(storage, 1)
    assert not (storage / "1").exists()
    assert known(storage) == ([0, 1, 2],) * 4, "nothing is forgotten before it is finished"
    finish(storage)
    assert known(storage) == ([0, 2],) * 4
    assert list((storage / ".waltzctl" / "deleting").iterdir()) == []
    for number in (0, 2):
        begin_deletion(storage, number)
    finish(storage)
    assert known(storage) == ([],) * 4
    assert not ledger_path(storage).exists(), "an empty ledger is none"  # type: ignore[attr-defined]


def test_on_a_full_disk_the_files_make_room_for_what_is_written_of_the_others(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = storage / ".waltzctl" / "deleting" / "1"
    write_whole = disk.write_whole

    def full(path: PurePath, parts: bytes) -> None:
        if any(waits.iterdir()):
            raise DiskFullError(path, 0, OSError(errno.ENOSPC, "full"), doing="write")
        assert waits.is_dir(), "the sign that something is left to do"
        write_whole(path, parts)

    begin_deletion(storage, 1)
    monkeypatch.setattr(disk, "write_whole", full)
    finish(storage)
    assert known(storage) == ([0, 2],) * 4
    assert not waits.exists()


@pytest.mark.parametrize("refused", [True, False])
def test_a_deletion_that_cannot_make_room_on_a_full_disk_keeps_no_other_partition_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 1: 5, 2: 5})
    (path / ".waltzctl").mkdir()
    save_marks(path, {1: Availability(False, True), 2: Availability(False, True)})
    begin_deletion(path, 1)
    left = path / ".waltzctl" / "deleting" / "1"

    def full(path: PurePath, *_: object) -> None:
        raise DiskFullError(path, 0, OSError(errno.ENOSPC, "full"), doing="write")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_whole", full)
        if refused:
            refusing(patch, "unlink", left)
        with opened(path) as storage:
            assert [(one.code, one.partition) for one in storage.findings if one.code is Code.READ_ERROR] == [
                (Code.READ_ERROR, 1)
            ]
            storage.partition(0).check_writable()
            with pytest.raises(DiskError):
                storage.assign(1)
        assert left.is_dir()
        assert not (path / "1").exists()
    with opened(path) as storage:
        assert storage.findings == ()
        assert not left.exists()
        assert load_marks(path) == {2: Availability(False, True)}


def test_only_those_that_are_asked_for(storage: Path) -> None:
    for number in (0, 1, 2):
        begin_deletion(storage, number)
    finish(storage, [])
    assert known(storage) == ([0, 1, 2],) * 4
    finish(storage, [2, 1])
    assert known(storage) == ([0],) * 4
    assert [one.name for one in (storage / ".waltzctl" / "deleting").iterdir()] == ["0"]


def test_what_was_not_put_there_by_us_stays(storage: Path) -> None:
    begin_deletion(storage, 1)
    deleting = storage / ".waltzctl" / "deleting"
    for name in ("x", "-1", "3", "1x", "02", "\u0662"):
        (deleting / name).mkdir()
        (deleting / name / "kept").write_bytes(b"")
    finish(storage)
    assert sorted(one.name for one in deleting.iterdir()) == ["-1", "02", "1x", "3", "x", "\u0662"]
    assert all((one / "kept").exists() for one in deleting.iterdir())


def test_the_files_go_after_everything_else_and_the_directory_s_name_durably(storage: Path) -> None:
    begin_deletion(storage, 1)
    with recording() as changes:
        finish(storage)
    steps = [(one.kind, one.path.name) for one in changes]
    removed = [
        place for place, (kind, name) in enumerate(steps) if kind == "unlink" and name.endswith((".seg", ".idx"))
    ]
    assert removed == [len(steps) - 4, len(steps) - 3]
    assert steps[-2:] == [("rmdir", "1"), ("sync-directory", "deleting")]


@pytest.mark.parametrize("initial", [True, False])
def test_a_partition_that_was_never_used_costs_no_reset(tmp_path: Path, initial: bool) -> None:
    """One that says anything but the initial values is reset, in whatever field."""
    for layout in Layout:
        changes: list[dict[str, int]] = [{}] if initial else [
            {"session_id": 0}, {"low_water_mark": 0}, {"local_low_water_mark": 0},
            *([{"flags": 0}, {"flags": 5}] if layout is Layout.RELEASED else []),
        ]  # fmt: skip
        for place, change in enumerate(changes):
            path = build_directory(tmp_path / f"{layout}{place}", {0: 0, 1: 0}, layout=layout)
            (path / ".waltzctl").mkdir()
            control = decode_control((path / "waltz-storage.ctl").read_bytes())
            fresh = PartitionStruct(*((-1,) * 3), *((FLAG_AVAILABLE, 5) if layout is Layout.RELEASED else ())).sealed()
            pair = (replace(fresh, **change).sealed(), fresh.preceding())
            info = replace(control.partitions[1].with_struct(1, pair[0]).with_struct(2, pair[1]))
            raw = replace(control, partitions=(control.partitions[0], info)).encode()
            (path / "waltz-storage.ctl").write_bytes(raw)
            begin_deletion(path, 1)
            with OpenControlFile.open(path / "waltz-storage.ctl") as held:
                finish_deletions(path, held)
                current = held.info(1).current_struct
            assert current is not None
            assert (current.marks, current.flags) == ((-1, -1, -1), None if layout is Layout.DOCUMENTED else 1)
            assert ((path / "waltz-storage.ctl").read_bytes() == raw) == initial, (layout, change)


@LAYOUTS
def test_a_pair_without_a_struct_in_force_is_written_anew_with_a_deletion(tmp_path: Path, layout: Layout) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
    raw = bytearray((path / "waltz-storage.ctl").read_bytes())
    control = decode_control(bytes(raw))
    begin, end = layout.file_size(1), layout.file_size(2)
    raw[begin + 4 : end] = b"\xa5" * (end - begin - 4)  # all but the number of the partition
    (path / "waltz-storage.ctl").write_bytes(raw)
    (path / ".waltzctl").mkdir(exist_ok=True)
    begin_deletion(path, 1)
    with OpenControlFile.open(path / "waltz-storage.ctl") as held:
        assert held.info(1).current_struct is None
        finish_deletions(path, held)
        current = held.info(1).current_struct
        assert current is not None
        assert current.marks == (-1, -1, -1)
        assert held.info(0) == control.partitions[0]
    assert list((path / ".waltzctl" / "deleting").iterdir()) == []


def test_marks_stay_where_the_partition_is_here_again_or_its_info_is_another_s(storage: Path) -> None:
    begin_deletion(storage, 1)
    (storage / "1").mkdir()
    finish(storage)
    assert known(storage) == ([0, 1, 2], [0, 2], [0, 2], [0, 2])
    begin_deletion(storage, 2)
    path = storage / "waltz-storage.ctl"
    control = decode_control(path.read_bytes())
    infos = [*control.partitions[:2], replace(control.partitions[2], stored_partition=0)]
    path.write_bytes(replace(control, partitions=tuple(infos)).encode())
    before = path.read_bytes()
    finish(storage)
    assert path.read_bytes() == before


def test_a_partition_whose_directory_is_lost_is_forgotten_all_the_same(storage: Path) -> None:
    for file in (storage / "1").iterdir():
        file.unlink()
    (storage / "1").rmdir()
    with recording() as changes:
        begin_deletion(storage, 1)
    steps = [(one.kind, one.path.name) for one in changes]
    assert steps[:2] == [("mkdir", "1"), ("sync-directory", storage.name)], "durable before it moves"
    assert ("rename", "1") in steps[2:]
    assert (storage / ".waltzctl" / "deleting" / "1").is_dir()
    finish(storage)
    assert known(storage) == ([0, 2],) * 4


def test_both_places_of_a_partition_are_deleted(storage: Path) -> None:
    put_aside(storage, 1)
    (storage / "1").mkdir()
    begin_deletion(storage, 1)
    assert not (storage / "1").exists()
    assert not (storage / ".waltzctl" / "unassigned" / "1").exists()
    finish(storage)
    assert known(storage) == ([0, 2],) * 4


def test_what_waits_for_its_deletion_makes_room_for_what_comes_after_it(storage: Path) -> None:
    begin_deletion(storage, 1)
    (storage / "1").mkdir()
    (storage / "1" / "0000000000000000000.seg").write_bytes(b"another one")
    begin_deletion(storage, 1)
    waits = storage / ".waltzctl" / "deleting" / "1"
    assert [path.read_bytes() for path in waits.iterdir()] == [b"another one"]
    assert not (storage / "1").exists()


def test_nothing_is_put_aside_over_what_was(storage: Path) -> None:
    aside = storage / ".waltzctl" / "unassigned" / "1"
    aside.mkdir(parents=True)
    with pytest.raises(RefusedError, match="were put aside here before"):
        put_aside(storage, 1)
    assert (storage / "1").is_dir()


def test_putting_aside_and_back_changes_no_byte(storage: Path) -> None:
    before = digest(storage)
    put_aside(storage, 1)
    assert not (storage / "1").exists()
    assert digest(storage / ".waltzctl" / "unassigned" / "1") == {
        name.partition("/")[2]: value for name, value in before.items() if name.startswith("1/")
    }
    with pytest.raises(RefusedError, match="directory of partition 1 is lost, so that there is nothing to put aside"):
        check_put_aside(storage, 1)
    (storage / "1").mkdir()
    with pytest.raises(RefusedError, match="files of partition 1 were put aside here before"):
        check_put_aside(storage, 1)
    (storage / "1").rmdir()
    take_from_aside(storage, 1)
    assert digest(storage) == before


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("what", ["notes.txt", "stray.seg", "0000000000000000009.seg/"])
def test_what_is_not_waltz_s_is_not_deleted(storage: Path, what: str, aside: bool) -> None:
    if aside:
        put_aside(storage, 1)
    directory = storage / ".waltzctl" / "unassigned" / "1" if aside else storage / "1"
    (directory / what).mkdir() if what.endswith("/") else (directory / what).write_bytes(b"")
    before = digest(storage)
    for call in (check_deletion, begin_deletion):
        with pytest.raises(RefusedError, match=r"not a file of Waltz, so its directory is not deleted") as refused:
            call(storage, 1)
        assert what.rstrip("/") in str(refused.value)
    assert digest(storage) == before
    check_deletion(storage, 0)


def test_a_place_that_cannot_be_listed_is_an_error(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(storage)
    begin_deletion(storage, 1)

    def refused(path: object) -> list[str]:
        raise PermissionError(errno.EACCES, "no", path)

    with monkeypatch.context() as patched, OpenControlFile.open(storage / "waltz-storage.ctl") as control:
        patched.setattr(os, "listdir", refused)
        with pytest.raises(DiskReadError, match="deleting"):
            finish_deletions(storage, control)


@LAYOUTS
def test_opening_finishes_what_was_begun(tmp_path: Path, layout: Layout) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
    (path / ".waltzctl").mkdir()
    begin_deletion(path, 1)
    with opened(path) as found:
        assert found.info(1).current_struct is not None
        assert found.info(1).current_struct.marks == (-1, -1, -1)  # type: ignore[union-attr]
    assert list((path / ".waltzctl" / "deleting").iterdir()) == []


@LAYOUTS
@pytest.mark.parametrize("call", ["stat", "listdir", "unlink"])
def test_a_deletion_that_the_disk_does_not_let_finish_keeps_no_other_partition_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, call: str
) -> None:
    """A bad block under what a deletion left: no node started any more, and `append` wrote to no partition."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5, 2: 5}, layout=layout)
    (path / ".waltzctl").mkdir()
    for number in (1, 2):
        begin_deletion(path, number)
    left = path / ".waltzctl" / "deleting" / "1"
    with monkeypatch.context() as patch:
        if call == "stat":
            unexaminable(patch, left)
        else:
            refusing(patch, call, left)
        with opened(path) as storage:
            assert [(one.code, one.partition) for one in storage.findings] == [(Code.READ_ERROR, 1)]
            assert str(left) in storage.findings[0].message
            assert list(storage.partitions) == [0]
            storage.partition(0).check_writable()
            with pytest.raises(DiskError):
                storage.assign(1)
            assert not (path / "1").exists()
            storage.assign(2)
            storage.unassign(2, delete_files=True)
    with opened(path) as storage:
        assert storage.findings == ()
        storage.assign(1)
        assert storage.partition(1).max_transaction_id == -1


def refusing(patch: pytest.MonkeyPatch, name: str, place: Path) -> None:
    """A call fails (EIO) for a directory, or for what is in it."""
    plain = getattr(os, name)

    def call(path: str | Path, *given: object, **named: object) -> object:
        if Path(path) == place or Path(path).parent == place:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return plain(path, *given, **named)

    patch.setattr(os, name, call)


@LAYOUTS
@pytest.mark.parametrize("leads", ["relative", "absolute", "nowhere"])
def test_what_lies_behind_a_link_is_not_deleted_by_halves(tmp_path: Path, layout: Layout, leads: str) -> None:
    """The link had moved, and could be neither listed nor removed: no node started any more."""
    path = behind_a_link(tmp_path, layout, leads)
    with opened(path) as storage:
        with pytest.raises(RefusedError, match="it is a symbolic link"):
            storage.unassign(1, delete_files=True)
        if leads != "nowhere":
            assert storage.partition(1).max_transaction_id == 4
            storage.partition(1).check_writable()
    before = digest(path)
    with opened(path):
        assert digest(path) == before


@pytest.mark.parametrize("leads", ["relative", "absolute"])
def test_a_link_is_put_aside_only_where_it_still_leads_to_the_files(tmp_path: Path, leads: str) -> None:
    """One that led nowhere from there counted as no files at all: the partition began anew, session and marks forgotten."""
    path = behind_a_link(tmp_path, Layout.DOCUMENTED, leads)
    with opened(path) as storage:
        if leads == "relative":
            with pytest.raises(RefusedError, match="it is a symbolic link"):
                storage.unassign(1, delete_files=False)
        else:
            storage.unassign(1, delete_files=False)
            assert 1 not in storage.partitions
        storage.assign(1)
        assert storage.partition(1).max_transaction_id == 4


@LAYOUTS
def test_a_link_that_was_put_away_before_stops_no_opening_and_begins_nothing_anew(
    tmp_path: Path, layout: Layout
) -> None:
    path = behind_a_link(tmp_path, layout, "relative")
    for number, kind in ((1, "unassigned"), (2, "deleting")):
        (path / ".waltzctl" / kind).mkdir(parents=True)
        (path / str(number)).rename(path / ".waltzctl" / kind / str(number))
    with opened(path) as storage:
        assert list((path / ".waltzctl" / "deleting").iterdir()) == []
        if layout is Layout.RELEASED:
            assert storage.partition(1).quarantined, "its directory is lost"
            storage.unassign(1, delete_files=False)
        assert 1 not in storage.partitions
        storage.assign(1)
        assert storage.partition(1).max_transaction_id == 4
    for name in ("1", "2"):
        assert any((tmp_path / "other" / name).iterdir())


def test_a_mounted_disk_is_not_moved_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=Layout.DOCUMENTED)
    monkeypatch.setattr(os.path, "ismount", lambda place: Path(place) == path / "1")
    with opened(path) as storage:
        for delete in (False, True):
            with pytest.raises(RefusedError, match="a disk is mounted there"):
                storage.unassign(1, delete_files=delete)
            storage.partition(1).check_writable()


@LAYOUTS
def test_session_and_marks_stay_while_a_link_leads_nowhere(tmp_path: Path, layout: Layout) -> None:
    """A disk that is not mounted at present: what it holds is not given up."""
    path = behind_a_link(tmp_path, layout, "absolute")
    with opened(path) as storage:
        storage.unassign(1, delete_files=False)
    (tmp_path / "other").rename(tmp_path / "away")
    with opened(path) as storage, contextlib.suppress(RefusedError):
        storage.assign(1)
        assert storage.partition(1).quarantined
    (tmp_path / "away").rename(tmp_path / "other")
    with opened(path) as storage:
        storage.assign(1)
        assert storage.partition(1).max_transaction_id == 4
        assert storage.partition(1).local_low_water_mark == 2


def behind_a_link(place: Path, layout: Layout, leads: str) -> Path:
    """Three partitions, of which 1 and 2 lie in another directory."""
    path = build_directory(place / "s", {0: 5, 1: 5, 2: 5}, layout=layout)
    (place / "other").mkdir()
    for name in ("1", "2"):
        (path / name).rename(place / "other" / name)
        (path / name).symlink_to(place / "other" / name if leads == "absolute" else f"../other/{name}")
    if leads == "nowhere":
        (place / "other").rename(place / "away")
    return path


@LAYOUTS
def test_a_deletion_that_failed_is_finished_before_the_partition_begins_anew(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next opening finished it, and forgot fence and switches of the new one."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
    unlink = os.unlink

    def failing(name: PurePath) -> None:
        if "deleting" in str(name):
            raise OSError(errno.EIO, "Input/output error")
        unlink(name)

    with opened(path) as storage:
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", failing)
            with pytest.raises(DiskWriteError):
                storage.unassign(1, delete_files=True)
            with pytest.raises(DiskWriteError):
                storage.assign(1)
        storage.assign(1)
        with SessionFences.open(path, 2) as fences:
            fences.raise_to(1, 9)
        storage.set_availability(1, writable=False)
    with opened(path) as storage, SessionFences.open(path, 2) as fences:
        assert fences.get(1) == 9
        assert storage.availability(1) == Availability(True, False)
        assert storage.partition(1).max_transaction_id == -1


@LAYOUTS
@pytest.mark.parametrize("step", range(8))
def test_what_was_put_aside_does_not_come_back_behind_a_deletion_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, step: int
) -> None:
    """The partition's own files were gone first, and an assignment took what had been put aside before for its log."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
    (path / ".waltzctl").mkdir()
    put_aside(path, 1)
    build_directory(tmp_path / "other", {1: 9}, layout=layout)
    (tmp_path / "other" / "1").rename(path / "1")
    calls = iter(range(100))

    def dies_at(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            if next(calls) >= step:
                raise KeyboardInterrupt
            real(*arguments)

        return call

    with opened(path) as storage, monkeypatch.context() as patched:
        for name in ("unlink", "remove_directory", "move_directory"):
            patched.setattr(disk, name, dies_at(getattr(disk, name)))
        with contextlib.suppress(KeyboardInterrupt):
            storage.unassign(1, delete_files=True)
    with opened(path) as storage:
        storage.assign(1)
        assert storage.partition(1).max_transaction_id in (-1, 8)
        assert storage.partition(1).quarantined is False
