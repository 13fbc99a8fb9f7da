"""Whether a partition belongs to a storage directory: one answer, and everybody gives it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath

import pytest

from tests.builders import KEY, build_directory, digest, make_records
from tests.storage.support import codes, full_disk, opened, put_aside_behind_a_link, unexaminable
from waltzctl.engine.durable.relocation import DELETING, UNASSIGNED
from waltzctl.engine.errors import DiskFullError, DiskReadError, RefusedError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.verify import VerifySummary, verify
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.storage import assignment
from waltzctl.engine.storage.assignment import assigned_here, is_hosted
from waltzctl.formats.control import (
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    ControlFile,
    Layout,
    PartitionStruct,
    initial_control,
)

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


def control(layout: Layout, first: PartitionStruct, second: PartitionStruct) -> ControlFile:
    made = initial_control(layout, KEY, 1, 0)
    return replace(made, partitions=(made.partitions[0].with_struct(1, first).with_struct(2, second),))


def documented(session: int, low: int, local: int, *, valid: bool = True) -> PartitionStruct:
    return replace(PartitionStruct(session, low, local).sealed(), valid=valid)


def released(flags: int, sequence: int, *, valid: bool = True) -> PartitionStruct:
    return replace(PartitionStruct(flags=flags, sequence=sequence).sealed(), valid=valid)


NOTHING = documented(-1, -1, -1)
ON, OFF = FLAG_AVAILABLE | FLAG_ASSIGNED, FLAG_AVAILABLE


@pytest.mark.parametrize(
    ("pair", "present", "missing"),
    [
        ((NOTHING, NOTHING), True, False),
        ((documented(0, -1, -1), NOTHING), True, True),
        ((documented(-1, 0, -1), NOTHING), True, True),
        ((documented(-1, -1, 0), NOTHING), True, True),
        ((NOTHING, documented(5, 9, 9)), True, True),
        ((NOTHING, documented(5, 9, 9, valid=False)), True, None),
        ((documented(5, 9, 9), documented(4, 9, 9, valid=False)), True, True),
        ((documented(5, 9, 9, valid=False), documented(4, 9, 9, valid=False)), True, None),
    ],
)
def test_documented(
    tmp_path: Path, pair: tuple[PartitionStruct, PartitionStruct], present: bool, missing: bool | None
) -> None:
    """The directory, or what its info proves."""
    file = control(Layout.DOCUMENTED, *pair)
    assert assigned_here(tmp_path, file, 0, directory=True) is present
    assert assigned_here(tmp_path, file, 0, directory=False) is missing
    assert assigned_here(None, file, 0, directory=False) is missing, "nobody knows where it would have been put aside"
    assert is_hosted(tmp_path, file, 0, directory=False) is bool(missing)
    for kind in ("unassigned", "deleting"):
        place = tmp_path / ".waltzctl" / kind / "0"
        place.mkdir(parents=True)
        assert assigned_here(tmp_path, file, 0, directory=False) is False, "taken away on purpose"
        place.rmdir()


@pytest.mark.parametrize(
    ("pair", "known", "hosted"),
    [
        ((released(ON, 1), released(OFF, 0)), True, (True, True)),
        ((released(OFF, 1), released(ON, 0)), False, (False, False)),
        ((released(ON, 1), released(OFF, 0, valid=False)), True, (True, True)),
        ((released(OFF, 1), released(ON, 0, valid=False)), None, (False, False)),
        ((released(OFF, 1, valid=False), released(ON, 0, valid=False)), None, (True, False)),
    ],
)
def test_released(
    tmp_path: Path, pair: tuple[PartitionStruct, PartitionStruct], known: bool | None, hosted: tuple[bool, bool]
) -> None:
    """The flag in force, whether there is a directory or not."""
    file = control(Layout.RELEASED, *pair)
    for directory, expected in zip((True, False), hosted, strict=True):
        assert assigned_here(tmp_path, file, 0, directory=directory) is known
        assert is_hosted(tmp_path, file, 0, directory=directory) is expected


def test_nothing_tells_without_a_control_file_or_beyond_it(tmp_path: Path) -> None:
    file = control(Layout.DOCUMENTED, NOTHING, NOTHING)
    for known, number in ((None, 0), (file, 1), (file, -1)):
        assert assigned_here(tmp_path, known, number, directory=True) is None
        assert is_hosted(tmp_path, known, number, directory=True)
        assert not is_hosted(tmp_path, known, number, directory=False)


def found(path: Path) -> list[str]:
    return codes([one for one in verify((path,)) if isinstance(one, Finding)])


@LAYOUTS
def test_a_lost_directory_is_damage_for_everybody(tmp_path: Path, layout: Layout) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 1: 100}, layout=layout, session=1, local_low_water_mark=99)
    shutil.rmtree(path / "1")
    shutil.rmtree(path / "0")
    assert found(path) == ["partition-directory-missing", "partition-directory-missing"]
    assert [one.health for one in storage_status(path).partitions] == ["damaged", "damaged"]
    assert [one.assigned for one in storage_status(path).partitions] == [True, True]
    assert codes(plan_recover(path).plan.undecided) == ["partition-directory-missing", "partition-directory-missing"]
    with opened(path) as storage:
        assert [(number, one.quarantined) for number, one in storage.partitions.items()] == [(0, True), (1, True)]
    assert not (path / "1").exists()


@LAYOUTS
def test_a_partition_that_was_taken_away_is_no_damage(tmp_path: Path, layout: Layout) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
    with opened(path) as storage:
        storage.unassign(0, delete_files=False)
        storage.unassign(1, delete_files=True)
    assert set(found(path)) <= {"partition-not-assigned"}
    assert [one.health for one in storage_status(path).partitions] == ["unassigned", "unassigned"]
    assert plan_recover(path).plan.undecided == ()
    with opened(path) as storage:
        assert list(storage.partitions) == []


@LAYOUTS
@pytest.mark.parametrize("delete", [False, True])
def test_on_a_full_disk_a_partition_stays_assigned_and_open_or_goes_whole(
    tmp_path: Path, layout: Layout, delete: bool
) -> None:
    """What needs space is asked for before anything is closed; where it is there already the deletion makes room."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
    with opened(path) as storage:
        needs = delete or layout is Layout.DOCUMENTED
        before = digest(path)
        with full_disk(), pytest.raises(DiskFullError) if needs else contextlib.nullcontext():
            storage.unassign(0, delete_files=delete)
        assert (0 in storage.partitions) == needs
        if needs:
            assert digest(path) == before
            assert storage.partition(0).read_range(0, 10) == make_records(5)
            storage.partition(0).append(make_records(1, first=5))
            (path / ".waltzctl" / (DELETING if delete else UNASSIGNED)).mkdir()
            with full_disk():
                storage.unassign(0, delete_files=delete)
        assert list(storage.partitions) == [1]
        assert (path / "0").exists() == (not needs)


@LAYOUTS
def test_a_lost_partition_can_be_taken_away_and_given_again(tmp_path: Path, layout: Layout) -> None:
    """There is nothing to put aside; its deletion forgets session and marks, so that nothing is missed any more."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
    shutil.rmtree(path / "1")
    with opened(path) as storage:
        if layout is Layout.DOCUMENTED:
            with pytest.raises(RefusedError, match="nothing to put aside"):
                storage.unassign(1, delete_files=False)
        storage.unassign(1, delete_files=True)
        assert list(storage.partitions) == [0]
    made = read_control(path / "waltz-storage.ctl")
    assert made is not None
    assert [one.marks for one in made.partitions[1].structs] == [(-1, -1, -1)] * 2
    assert found(path) == []
    with opened(path) as storage:
        storage.assign(1)
        assert not storage.partition(1).quarantined
    assert isinstance(list(verify((path,)))[-1], VerifySummary)
    assert found(path) == []


def test_a_partition_that_was_put_aside_stays_so_while_its_disk_is_not_mounted(tmp_path: Path) -> None:
    """It counted as assigned and lost: a node took it up again, and `recover --allow-data-loss` gave up all that it holds."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=Layout.DOCUMENTED)
    put_aside_behind_a_link(path, tmp_path / "disk", 1)
    (tmp_path / "disk").rename(tmp_path / "away")
    before = digest(path)
    assert found(path) == []
    assert [one.health for one in storage_status(path).partitions] == ["ok", "unassigned"]
    assert plan_recover(path, allow_data_loss=True).plan.steps == ()
    aside, anew = path / ".waltzctl" / "unassigned" / "1", PartitionSetting(assigned=True, local_low_water_mark=-1)
    with pytest.raises(RefusedError, match="a link that leads nowhere"):
        plan_set_partition(path, partition=1, setting=anew, allow_data_loss=True)
    with pytest.raises(RefusedError, match="a link that leads nowhere"):
        plan_convert(path, layout=Layout.RELEASED)
    with opened(path) as storage:
        assert list(storage.partitions) == [0]
        with pytest.raises(RefusedError, match=f"{aside}: it is a link that leads nowhere") as refused:
            storage.assign(1)
        assert "mount what it leads to" in (refused.value.advice or "")
    after = digest(path)
    assert {name: after[name] for name in before} == before
    (tmp_path / "away").rename(tmp_path / "disk")
    for plan in (
        partial(plan_set_partition, partition=1, setting=anew, allow_data_loss=True),
        partial(plan_convert, layout=Layout.RELEASED),
    ):
        with pytest.raises(RefusedError, match="which only a node moves back") as refused:
            plan(path)
        assert "let the node assign partition 1" in (refused.value.advice or "")
    with opened(path) as storage:
        storage.assign(1)
        assert storage.partition(1).max_transaction_id == 4


def test_a_relative_link_that_an_earlier_version_put_aside_is_told_as_one_that_a_node_moves_back(
    tmp_path: Path,
) -> None:
    """The advice was to mount what it leads to, which leads there only from where the partition's directory stands."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=Layout.DOCUMENTED)
    aside = path / ".waltzctl" / "unassigned" / "1"
    aside.parent.mkdir(parents=True)
    (path / "1").rename(tmp_path / "disk")
    aside.symlink_to("../disk")
    anew = PartitionSetting(assigned=True)
    for plan in (partial(plan_set_partition, partition=1, setting=anew), partial(plan_convert, layout=Layout.RELEASED)):
        with pytest.raises(RefusedError, match="which only a node moves back"):
            plan(path)
    with opened(path) as storage:
        storage.assign(1)
        assert storage.partition(1).max_transaction_id == 4


def test_files_that_were_put_aside_and_cannot_be_examined_are_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Session and marks were reset, and an empty partition was made beside them; and nobody looked at the other partitions."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=Layout.DOCUMENTED)
    with opened(path) as storage:
        storage.unassign(1, delete_files=False)
    before = digest(path)
    with monkeypatch.context() as patch:
        unexaminable(patch, path / ".waltzctl" / "unassigned" / "1")
        assert found(path) == []
        assert [one.health for one in storage_status(path).partitions] == ["ok", "unassigned"]
        with opened(path) as storage:
            assert list(storage.partitions) == [0]
            with pytest.raises(DiskReadError):
                storage.assign(1)
    assert {name: each for name, each in digest(path).items() if name in before} == before
    with opened(path) as storage:
        storage.assign(1)
        assert storage.partition(1).max_transaction_id == 4


def test_a_place_of_which_nothing_can_be_told_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the system alone was the message, without a path."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=Layout.DOCUMENTED)
    with opened(path) as storage:
        storage.unassign(1, delete_files=False)
    above = path / ".waltzctl" / "unassigned"
    listed = os.listdir

    def refuse(place: Path) -> list[str]:
        if Path(place) == above:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return listed(place)

    unexaminable(monkeypatch, above / "1", error=errno.EACCES)
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(DiskReadError, match=f"{above}: cannot list: Permission denied"):
        list(verify((path,)))


def test_nobody_looks_for_where_a_partition_that_never_was_here_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a million of them, and the answer is the same."""
    asked: list[PurePath] = []

    def counted(path: PurePath) -> bool:
        asked.append(path)
        return plain(path)

    plain = assignment.places.is_directory
    monkeypatch.setattr(assignment.places, "is_directory", counted)
    never = documented(-1, -1, -1)
    for number, (first, second, known) in enumerate(
        [
            (never, never, False),
            (never, replace(never, valid=False), None),
            (documented(3, 5, 5), never, True),
        ]
    ):
        file = control(Layout.DOCUMENTED, first, second)
        assert assigned_here(tmp_path, file, 0, directory=False) is known
        assert bool(asked) is (number > 0)
