"""Storage directories: creation, opening, assignment, availability (behaviours 26 to 29), real data."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import KEY, build_directory, digest, make_records
from tests.golden import GOLDEN, golden_directories, needs_golden
from tests.storage.support import LAYOUTS, built, codes, damage, data_path, full_disk, index_path, opened
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    DamageError,
    DiskFullError,
    DiskReadError,
    DiskWriteError,
    InvalidRequestError,
    MismatchError,
    NotAssignedError,
    NotWaltzError,
    PartitionQuarantinedError,
    RefusedError,
)
from waltzctl.engine.log.view import read_control
from waltzctl.engine.storage import creation, directory, partition_opening
from waltzctl.engine.storage.availability_marks import Availability, load_marks, read_availability
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions, create_cluster
from waltzctl.engine.storage.partition import Partition
from waltzctl.engine.storage.partition_opening import PartitionOpener
from waltzctl.engine.storage.retired import begin_deletion
from waltzctl.formats.control import ControlFile, Layout, decode_control
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader


@LAYOUTS
def test_a_new_cluster_has_one_key_and_empty_first_segments(tmp_path: Path, layout: Layout) -> None:
    (tmp_path / "b").mkdir()
    result = create_cluster([tmp_path / "a", tmp_path / "b"], num_partitions=4, layout=layout, assign=[3, 1])
    assert (result.num_partitions, result.layout) == (4, layout)
    assert [(d.path, d.assigned) for d in result.directories] == [(tmp_path / n, (1, 3)) for n in ("a", "b")]
    for path in (tmp_path / "a", tmp_path / "b"):
        names = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
        assert names == [f"{p}/{0:019d}.{s}" for p in (1, 3) for s in ("idx", "seg")] + ["waltz-storage.ctl"]
        for partition in (1, 3):
            for file in (data_path(path, partition=partition), index_path(path, partition=partition)):
                header = SegmentHeader.decode(file.read_bytes())
                assert file.stat().st_size == HEADER_SIZE
                assert (header.version, header.cluster_key, header.partition, header.first_transaction_id) == (
                    0, result.cluster_key, partition, 0,
                )  # fmt: skip
                assert header.reserved == bytes(88)
        with StorageDirectory.open(path, expected_key=result.cluster_key, expected_partitions=4) as storage:
            assert list(storage.partitions) == [1, 3]
            assert storage.findings == ()


def test_26_all_partitions_have_initial_values(tmp_path: Path) -> None:
    create_cluster([tmp_path / "a"], num_partitions=3, layout=Layout.RELEASED, cluster_key=KEY)
    with opened(tmp_path / "a") as storage:
        assert storage.cluster_key == KEY
        for number, partition in storage.partitions.items():
            assert (partition.session_id, partition.low_water_mark, partition.local_low_water_mark) == (-1, -1, -1)
            assert partition.max_transaction_id == -1
            assert storage.availability(number) == Availability(True, True)


def test_creation_refuses_before_it_makes_anything(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(RefusedError, match="not empty"):
        create_cluster([tmp_path / "new", tmp_path / "full"], num_partitions=1)
    with pytest.raises(RefusedError, match="not a directory"):
        create_cluster([tmp_path / "full" / "x"], num_partitions=1)
    (tmp_path / "lost").symlink_to("nowhere")
    with pytest.raises(RefusedError, match="not a directory"):
        create_cluster([tmp_path / "new", tmp_path / "lost"], num_partitions=1)
    for arguments in (
        {"num_partitions": 0},
        {"num_partitions": 2, "assign": [2]},
        {"num_partitions": 2, "assign": [-1]},
        {"num_partitions": 10**7},
    ):
        with pytest.raises(InvalidRequestError):
            create_cluster([tmp_path / "new"], **arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="twice"):
        create_cluster([tmp_path / "new", tmp_path / "full" / ".." / "new"], num_partitions=1)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(InvalidRequestError, match="twice"):
        create_cluster([tmp_path / "link" / "new", tmp_path / "new"], num_partitions=1)
    with pytest.raises(InvalidRequestError, match="above it"):
        create_cluster([tmp_path / "a" / "b"], num_partitions=1)
    with pytest.raises(InvalidRequestError):
        create_cluster([], num_partitions=1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("there", [True, False], ids=["empty", "missing"])
@pytest.mark.parametrize("ended", [True, False], ids=["done", "under way"])
def test_of_two_creations_at_once_one_gets_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool, ended: bool
) -> None:
    """The second one looks while the directory is empty, and has no partition that would be in its way."""
    path, keys = tmp_path / "a", [KEY, uuid.uuid4()]
    make, look = creation.create_control_file, creation.check_new
    refused: list[RefusedError] = []
    if there:
        path.mkdir()

    def second() -> None:
        with pytest.raises(RefusedError) as caught:
            create_cluster([path], num_partitions=3, cluster_key=keys[1], assign=())
        refused.append(caught.value)

    def looked(*arguments: object, **options: object) -> None:
        """What the second one sees: the directory as it was before the first one had it."""
        monkeypatch.setattr(creation, "check_new", look)

    def under_way(file: Path, control: ControlFile) -> None:
        monkeypatch.setattr(creation, "create_control_file", make)
        if not ended:
            monkeypatch.setattr(creation, "check_new", looked)
            second()
        make(file, control)

    monkeypatch.setattr(creation, "create_control_file", under_way)
    create_cluster([path], num_partitions=3, cluster_key=keys[0], assign=())
    if ended:
        monkeypatch.setattr(creation, "check_new", looked)
        second()
    assert len(refused) == 1
    assert not refused[0].advice or "made and kept" not in refused[0].advice
    control = read_control(path / "waltz-storage.ctl")
    assert control is not None
    assert control.header.cluster_key == keys[0]


@pytest.mark.parametrize("assign", [(), (5,)])
def test_a_directory_that_somebody_else_completes_meanwhile_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assign: tuple[int, ...]
) -> None:
    """On NFS, where nobody can be locked out; or a restore put its directory in the place of the empty one."""
    path, other = tmp_path / "a", tmp_path / "b"
    create_cluster([other], num_partitions=6, assign=[0])
    make = creation._make_partitions

    def made(*arguments: Any) -> None:
        make(*arguments)
        shutil.copytree(other, path, dirs_exist_ok=True)

    monkeypatch.setattr(creation, "_make_partitions", made)
    with pytest.raises(RefusedError, match="somebody else made a storage directory there meanwhile") as caught:
        create_cluster([path], num_partitions=6, cluster_key=KEY, assign=assign)
    assert "made and kept" not in str(caught.value.advice)
    assert digest(path) == digest(other)


def test_what_somebody_else_copies_into_the_directory_meanwhile_is_not_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a storage directory: its segments took the place of the empty ones."""
    path, other = tmp_path / "a", build_directory(tmp_path / "b", {0: 5}, num_partitions=6)
    make = creation._make_partitions

    def made(*arguments: Any) -> None:
        make(*arguments)
        shutil.copytree(other, path, dirs_exist_ok=True)

    monkeypatch.setattr(creation, "_make_partitions", made)
    with pytest.raises(RefusedError, match="somebody else made a storage directory there meanwhile"):
        create_cluster([path], num_partitions=6, assign=(0, 5))
    assert digest(path) == digest(other)


def test_a_refusal_behind_the_first_directory_names_what_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole by then and stays; the same command again is refused for it."""
    first, second, make = tmp_path / "a", tmp_path / "b", creation.create_control_file

    def made(path: Path, control: ControlFile) -> None:
        make(path, control)
        (second / path.name).write_bytes(b"of somebody else")

    monkeypatch.setattr(creation, "create_control_file", made)
    with pytest.raises(RefusedError, match="somebody else made a storage directory there meanwhile") as caught:
        create_cluster([first, second], num_partitions=3, cluster_key=KEY)
    assert caught.value.advice == (
        f"name another directory; made and kept: {first}; the same with --key {KEY} makes the others"
    )


@pytest.mark.parametrize("inner", ["sub", "0", "sub/.."])
def test_one_new_directory_does_not_lie_inside_another(tmp_path: Path, inner: str) -> None:
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "a" / "sub").rmdir()
    paths = [tmp_path / "a", tmp_path / "a" / inner]
    for order in (paths, paths[::-1]):
        with pytest.raises(InvalidRequestError, match="twice" if inner == "sub/.." else "lies inside"):
            create_cluster(order, num_partitions=2)
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.turns(8)
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_a_creation_that_fails_leaves_no_half_made_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Whatever step is the last one; the directory that was there before stays, and the same can be tried again."""
    for last in range(100):
        there, new = tmp_path / f"{last}-there", tmp_path / f"{last}-new"
        there.mkdir()
        steps = iter(range(last))

        def step(_change: object, steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                monkeypatch.setattr(disk, "observer", None)
                raise copy.copy(error)  # each with a traceback of its own

        monkeypatch.setattr(disk, "observer", step)
        try:
            create_cluster([new, there], num_partitions=2)
        except type(error):
            left = [path for path in (new, there) if (path / "waltz-storage.ctl").exists()]
            for path in left:
                StorageDirectory.open(path, expected_partitions=2).close()
            if new not in left:
                assert not new.exists()
            if there not in left:
                assert list(there.iterdir()) == []
            create_cluster(
                [path for path in (new, there) if path not in left] or [tmp_path / f"{last}-x"], num_partitions=2
            )
        else:
            break
    else:
        raise AssertionError("it never ends well")
    assert last > 20


def test_the_control_file_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash while a cluster is created leaves no directory that would be taken for one."""
    renamed: list[str] = []
    monkeypatch.setattr(
        disk, "observer", lambda c: renamed.append(c.target.name) if c.kind == "rename" and c.target else None
    )
    create_cluster([tmp_path / "a"], num_partitions=2)
    assert renamed[-1] == "waltz-storage.ctl"
    assert renamed.count("waltz-storage.ctl") == 1


def test_27_what_is_no_storage_directory_or_another_ones(tmp_path: Path) -> None:
    with pytest.raises(NotWaltzError), opened(tmp_path):
        pass
    with pytest.raises(NotWaltzError), opened(tmp_path / "missing"):
        pass
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"
    built(tmp_path, 3)
    with pytest.raises(MismatchError):
        StorageDirectory.open(tmp_path, expected_key=uuid.uuid4())
    with pytest.raises(MismatchError):
        StorageDirectory.open(tmp_path, expected_partitions=9)
    (tmp_path / "waltz-storage.ctl").unlink()
    with pytest.raises(DamageError) as caught, opened(tmp_path):
        pass
    assert codes(caught.value.findings) == ["control-file-missing"]


def test_options_that_cannot_be_meant(tmp_path: Path) -> None:
    built(tmp_path, 3)
    for options in (StorageOptions(-1), StorageOptions(cached_segments=0), StorageOptions(max_data_length=2**31)):
        with pytest.raises(InvalidRequestError):
            StorageDirectory.open(tmp_path, options=options)


@LAYOUTS
def test_28_unassigning_keeps_or_deletes_the_files(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 20, 1: 20}, layout=layout, num_partitions=3, per_segment=10)
    kept = {name.split("/")[-1]: d for name, d in digest(tmp_path).items() if name.startswith("1/")}
    with opened(tmp_path) as storage:
        storage.unassign(0, delete_files=True)
        storage.unassign(1, delete_files=False)
        assert list(storage.partitions) == []
        for number in (0, 1):
            with pytest.raises(NotAssignedError):
                storage.partition(number)
    assert not (tmp_path / "0").exists()
    assert {name.split("/")[-1]: d for name, d in digest(tmp_path).items() if "/1/" in "/" + name} == kept
    info = decode_control((tmp_path / "waltz-storage.ctl").read_bytes()).partitions[0]
    assert [s.marks for s in info.structs] == [(-1, -1, -1)] * 2
    with opened(tmp_path) as storage:
        assert list(storage.partitions) == []
        storage.unassign(1, delete_files=True)  # what was kept can be deleted later
        assert not any("/1/" in "/" + name for name in digest(tmp_path))
        with pytest.raises(NotAssignedError):
            storage.unassign(1, delete_files=True)
        for number in (0, 1, 2):
            storage.assign(number)
            storage.assign(number)
            assert storage.partition(number).max_transaction_id == -1
            storage.partition(number).append(make_records(3, partition=number))
    with opened(tmp_path) as storage:
        assert [p.max_transaction_id for p in storage.partitions.values()] == [2, 2, 2]
        assert storage.findings == ()


@LAYOUTS
def test_deleting_refuses_what_is_not_its_own(tmp_path: Path, layout: Layout) -> None:
    built(tmp_path, 3, layout=layout)
    (tmp_path / "0" / "notes.txt").write_text("mine")
    with opened(tmp_path) as storage:
        with pytest.raises(RefusedError, match=r"notes\.txt"):
            storage.unassign(0, delete_files=True)
        assert storage.partition(0).max_transaction_id == 2


@LAYOUTS
def test_a_quarantined_partition_can_be_given_up_and_begun_anew(tmp_path: Path, layout: Layout) -> None:
    built(tmp_path, 30, layout=layout, mark=20)
    damage(data_path(tmp_path, 20), HEADER_SIZE + 1)
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined
        storage.unassign(0, delete_files=True)
        storage.assign(0)
        assert not storage.partition(0).quarantined
        assert storage.partition(0).max_transaction_id == -1


@LAYOUTS
def test_a_missing_partition_directory(tmp_path: Path, layout: Layout) -> None:
    """It is damage, and no empty one is made in its place: the flag, or session and mark, prove that it was here."""
    build_directory(tmp_path, {0: 5, 1: 5}, layout=layout, local_low_water_mark=3)
    shutil.rmtree(tmp_path / "1")
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined
        assert storage.partition(1).quarantined
        assert "partition-directory-missing" in codes(storage.findings)
        with pytest.raises(DamageError):
            storage.partition(1).read(0)
    assert not (tmp_path / "1").exists()


def test_29_a_partition_that_is_not_assigned(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5}, num_partitions=3)
    (tmp_path / "2").mkdir()
    with opened(tmp_path) as storage:
        assert codes(storage.findings) == [], "nothing was left in it"
    shutil.copy(data_path(tmp_path), tmp_path / "2")
    with opened(tmp_path) as storage:
        with pytest.raises(NotAssignedError, match=r"Partition:1 is not assigned\."):
            storage.partition(1)
        with pytest.raises(NotAssignedError):
            storage.unassign(1, delete_files=False)
        with pytest.raises(InvalidRequestError):
            storage.partition(3)
        with pytest.raises(InvalidRequestError):
            storage.assign(3)
        assert codes(storage.findings) == ["partition-not-assigned"]


@LAYOUTS
def test_availability_survives_and_the_documented_bytes_do_not_change(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 5, 1: 5}, layout=layout, num_partitions=3)
    control = tmp_path / "waltz-storage.ctl"
    before = control.read_bytes()
    states = [(True, True), (True, False), (False, False), (False, True), (True, True), (False, True), (True, True)]
    states.append((False, False))
    for readable, writable in states:
        with opened(tmp_path) as storage:
            storage.set_availability(1, readable=readable, writable=writable)
            assert storage.availability(1) == Availability(readable, writable)
            assert storage.availability(0) == Availability(True, True)
        with opened(tmp_path) as storage:
            assert storage.availability(1) == Availability(readable, writable)
        stored = read_control(control)
        assert stored is not None
        assert read_availability(tmp_path, stored)[1] == Availability(readable, writable)
        if layout is Layout.RELEASED:
            current = stored.partitions[1].current_struct
            assert current is not None
            assert current.available == (readable and writable)
            assert current.assigned
        else:
            assert control.read_bytes() == before
    with opened(tmp_path) as storage:
        storage.set_availability(1, writable=True)
        assert storage.availability(1) == Availability(False, True), "None leaves as it is"
        storage.set_availability(2, readable=False)  # not assigned, and may be marked
        assert storage.availability(2) == Availability(False, True)
        with pytest.raises(InvalidRequestError):
            storage.availability(3)


def test_the_released_flag_decides_whatever_the_file_says(tmp_path: Path) -> None:
    """A released tool sets or clears the flag and knows nothing of the file."""
    build_directory(tmp_path, {0: 5})
    with opened(tmp_path) as storage:
        storage.set_availability(0, writable=False)
        storage._control.set_flag(0, 1, True)
        assert storage.availability(0) == Availability(True, True)
        storage._control.set_flag(0, 1, False)
        assert storage.availability(0) == Availability(True, False)
        storage.set_availability(0, writable=True)
        storage._control.set_flag(0, 1, False)
        assert storage.availability(0) == Availability(False, False)


def test_marks_that_cannot_be_understood_are_named(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5}, layout=Layout.DOCUMENTED)
    file = tmp_path / ".waltzctl" / "availability.json"
    with opened(tmp_path) as storage:
        storage.set_availability(0, writable=False)
        assert json.loads(file.read_text())["partitions"] == {"0": {"readable": True, "writable": False}}
        for text in (
            "",
            "[]",
            "{",
            '{"version": 2}',
            '{"version": 1, "partitions": {"0": {"readable": 1, "writable": 0}}}',
        ):
            file.write_text(text)
            with pytest.raises(DamageError, match=r"availability\.json"):
                storage.availability(0)


def test_availability_of_a_partition_without_a_struct_in_force(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5})
    for number in (1, 2):
        damage(tmp_path / "waltz-storage.ctl", Layout.RELEASED.struct_offset(0, number))
    with opened(tmp_path) as storage:
        with pytest.raises(PartitionQuarantinedError):
            storage.set_availability(0, writable=False)
        with pytest.raises(PartitionQuarantinedError):
            storage.unassign(0, delete_files=False)
        assert storage.partition(0).read_range(0, 10) == make_records(5)


@pytest.mark.parametrize("before", [{}, {"readable": False}, {"writable": False}], ids=str)
def test_a_partition_is_switched_off_by_its_flag_alone(tmp_path: Path, before: dict[str, bool]) -> None:
    """Also on a full disk, unless an entry says that one of the two is allowed: that has to go."""
    build_directory(tmp_path, {0: 3, 1: 3})
    with opened(tmp_path) as storage:
        storage.set_availability(1, writable=False)
        if before:
            storage.set_availability(0, **before)
        with full_disk(), pytest.raises(DiskFullError) if before else contextlib.nullcontext():
            storage.set_availability(0, readable=False, writable=False)
        if before:
            storage.set_availability(0, readable=False, writable=False)
        assert storage.availability(0) == Availability(False, False)
        assert load_marks(tmp_path) == {1: Availability(True, False)}
        storage.set_availability(0, readable=True)
        assert storage.availability(0) == Availability(True, False)
        assert load_marks(tmp_path) == {0: Availability(True, False), 1: Availability(True, False)}


@LAYOUTS
def test_a_partition_that_was_switched_off_comes_back_so(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 3}, layout=layout)
    with opened(tmp_path) as storage:
        storage.set_availability(0, readable=False, writable=False)
        storage.unassign(0, delete_files=False)
        storage.assign(0)
        assert storage.availability(0) == Availability(False, False)


@pytest.mark.parametrize("delete_files", [False, True])
def test_a_partition_that_was_given_up_holds_no_file(tmp_path: Path, delete_files: bool) -> None:
    build_directory(tmp_path, {0: 3, 1: 3})
    with opened(tmp_path) as storage:
        before = len(os.listdir("/proc/self/fd"))
        partition = storage.partition(1)
        storage.unassign(1, delete_files=delete_files)
        assert len(os.listdir("/proc/self/fd")) == before - 2
        with pytest.raises(RefusedError, match="closed"):
            partition.append(make_records(1, first=3))


def test_a_partition_that_is_opened_again_is_held_once(tmp_path: Path) -> None:
    """Two that write the same files would spoil them."""

    def held() -> list[str]:
        links = (f"/proc/self/fd/{one}" for one in os.listdir("/proc/self/fd"))
        return sorted(os.readlink(one) for one in links if os.path.lexists(one) and str(tmp_path) in os.readlink(one))

    build_directory(tmp_path, {0: 3})
    with opened(tmp_path) as storage:
        before = held()
        old = storage.partition(0)
        storage.reopen(0).append(make_records(1, first=3))
        assert held() == before != []
        with pytest.raises(RefusedError, match="closed"):
            old.append(make_records(1, first=3))


def test_the_control_file_is_durable_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that died may have left in the system's memory what is about to be believed."""
    build_directory(tmp_path, {0: 3})
    done: list[str] = []
    real = directory.OpenControlFile.open
    monkeypatch.setattr(disk, "observer", lambda change: done.append(f"{change.kind} {change.path.name}"))
    monkeypatch.setattr(
        directory.OpenControlFile, "open", lambda *given, **words: done.append("read") or real(*given, **words)
    )
    with opened(tmp_path):
        assert "sync waltz-storage.ctl" in done[: done.index("read")]


def test_the_last_segment_is_durable_before_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_directory(tmp_path, {0: 30}, per_segment=10)
    done: list[str] = []
    real = partition_opening.examine_partition
    monkeypatch.setattr(disk, "observer", lambda change: done.append(f"{change.kind} {change.path.name}"))
    monkeypatch.setattr(
        partition_opening, "examine_partition", lambda *given, **words: done.append("look") or real(*given, **words)
    )
    with opened(tmp_path):
        before = done[: done.index("look")]
    last = f"{20:019d}"
    assert before[-3:] == [f"sync {last}.seg", f"sync {last}.idx", "sync-directory 0"]


@pytest.mark.parametrize("step", ["examine_partition", "clear_unfinished", "Partition"])
@pytest.mark.parametrize(
    "error",
    [
        DiskWriteError(Path("/d"), 0, OSError(5, "no")),
        DiskReadError(Path("/d"), 0, OSError(5, "no")),
        FileNotFoundError("gone"),
        NotWaltzError("none"),
        RefusedError("a repair waits"),
        DamageError("torn"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_stands_in_the_way_of_one_partition_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    build_directory(tmp_path, {0: 3, 1: 3})
    real = getattr(partition_opening, step)
    failed: list[object] = []

    def fails(*given: Any, **words: Any) -> Any:
        concerned = given[2] == 0 if step == "Partition" else given[0].name == "0"
        if concerned and not failed:
            failed.append(1)
            raise error
        return real(*given, **words)

    monkeypatch.setattr(partition_opening, step, fails)
    with opened(tmp_path) as storage:
        assert [storage.partition(number).quarantined for number in (0, 1)] == [True, False]
        assert str(error) in [finding.message for finding in storage.partition(0).findings]


def test_the_lock_goes_when_everything_is_closed_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_directory(tmp_path, {0: 3, 1: 3})
    done: list[str] = []
    storage = StorageDirectory.open(tmp_path)

    def noting(owner: Any, method: str, name: str, *, fails: bool = False) -> None:
        real = getattr(owner, method)

        def call() -> None:
            done.append(name)
            real()
            if fails:
                raise ZeroDivisionError

        monkeypatch.setattr(owner, method, call)

    noting(storage._directory_lock, "release", "lock")
    noting(storage._control, "close", "control")
    noting(storage.partition(0), "close", "partition", fails=True)
    noting(storage.partition(1), "close", "partition", fails=True)
    with pytest.raises(ZeroDivisionError):
        storage.close()
    assert done == ["partition", "partition", "control", "lock"]


def test_damage_in_the_info_of_a_partition_that_is_not_assigned_is_told(tmp_path: Path) -> None:
    create_cluster([tmp_path / "s"], num_partitions=3, layout=Layout.RELEASED, assign=[0])
    damage(tmp_path / "s" / "waltz-storage.ctl", Layout.RELEASED.struct_offset(2, 1))
    with opened(tmp_path / "s") as storage:
        [finding] = storage.findings
        assert finding.partition == 2


def test_what_was_taken_back_is_told_whether_or_not_the_directory_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_directory(tmp_path, {0: 3})
    monkeypatch.setattr(
        directory, "roll_back_interrupted", lambda _: (SimpleNamespace(id="one"), SimpleNamespace(id="two"))
    )
    with opened(tmp_path) as storage:
        assert storage.taken_back == ("one", "two")
    with pytest.raises(MismatchError) as caught:
        StorageDirectory.open(tmp_path, expected_partitions=77)
    assert caught.value.taken_back == ("one", "two")


@pytest.mark.parametrize("step", ["examine_partition", "clear_unfinished", "Partition"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_shortage_of_descriptors_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    """Quarantined, half of the partitions would ask to be recovered from a replica, while nothing is wrong with them."""
    build_directory(tmp_path, {0: 3, 1: 3})
    real = getattr(partition_opening, step)

    def fails(*given: Any, **words: Any) -> Any:
        examined = given[2] == 1 and given[4] is not None if step == "Partition" else given[0].name == "1"
        if examined:
            raise DiskReadError(Path("/d"), None, OSError(number, os.strerror(number)))
        return real(*given, **words)

    with monkeypatch.context() as patch:
        patch.setattr(partition_opening, step, fails)
        with pytest.raises(DiskReadError, match="open files") as raised:
            StorageDirectory.open(tmp_path)
        assert raised.value.advice is not None
        patch.setattr(partition_opening, step, real)
        with opened(tmp_path) as storage:
            patch.setattr(partition_opening, step, fails)
            assert storage.reopen(1).quarantined, "one that is opened again later does not end the node"


@LAYOUTS
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_partition_on_a_disk_that_is_gone_keeps_no_other_one_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, layout: Layout
) -> None:
    """Where it is mounted from a disk of its own, even its directory cannot be looked at; the node did not start."""
    build_directory(tmp_path, {0: 3, 1: 3}, layout=layout)
    real = os.stat

    def failing(path: Any, *given: Any, **words: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "1")):
            raise OSError(number, os.strerror(number))
        return real(path, *given, **words)

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat"):
            patch.setattr(os, name, failing)
        with opened(tmp_path) as storage:
            assert storage.partition(0).condition.writable
            assert [one.code for one in storage.partition(1).findings] == ["read-error"]
            assert storage.partition(1).condition.damaged
            if layout.has_flags:
                storage.unassign(1, delete_files=False)
                with pytest.raises(DiskReadError):  # and not made anew
                    storage.assign(1)
            else:
                with pytest.raises(DiskReadError):  # it would have to be moved
                    storage.unassign(1, delete_files=False)
            patch.setattr(os, "stat", real)
            storage.reopen(1) if 1 in storage.partitions else storage.assign(1)
            assert storage.partition(1).max_transaction_id == 2


def test_an_opening_that_fails_leaves_no_file_open_and_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_directory(tmp_path, {0: 3, 1: 3})
    real = PartitionOpener.open

    def fails_at_the_second(one: PartitionOpener, number: int) -> Partition:
        if number:
            raise ZeroDivisionError
        return real(one, number)

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(PartitionOpener, "open", fails_at_the_second)
        with pytest.raises(ZeroDivisionError):
            StorageDirectory.open(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    with opened(tmp_path):
        pass


@pytest.mark.parametrize("wanted", [None, (), (0,), (1,)])
def test_an_opening_finishes_the_deletions_of_what_it_opens_and_of_nothing_else(
    tmp_path: Path, wanted: tuple[int, ...] | None
) -> None:
    build_directory(tmp_path, {0: 3, 1: 3})
    (tmp_path / ".waltzctl").mkdir()
    begin_deletion(tmp_path, 1)
    with StorageDirectory.open(tmp_path, partitions=wanted):
        waits = (tmp_path / ".waltzctl" / "deleting" / "1").exists()
    assert waits == (wanted is not None and 1 not in wanted)


@LAYOUTS
def test_a_clean_directory_is_opened_and_closed_without_a_change(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 120, 2: 5}, layout=layout)
    before = digest(tmp_path)
    with opened(tmp_path) as storage:
        assert storage.findings == ()
        storage.close()
        storage.close()
    assert {name: d for name, d in digest(tmp_path).items() if name != ".waltzctl/lock"} == before


def test_a_file_that_was_being_built_when_its_process_ended_goes(tmp_path: Path) -> None:
    """A kill in the middle of a roll-over leaves one; it holds nothing, and the next opening removes it."""
    build_directory(tmp_path, {0: 5}, layout=Layout.RELEASED)
    unfinished = tmp_path / "0" / ("0000000000000000005.seg" + disk.TEMPORARY_SUFFIX)
    unfinished.write_bytes(bytes(77))
    with opened(tmp_path) as directory:
        assert not unfinished.exists()
        assert directory.partition(0).max_transaction_id == 4


@pytest.mark.turns(8)
@needs_golden
@pytest.mark.parametrize("source", golden_directories(), ids=lambda path: path.name)
def test_directories_of_the_release_open_with_every_record(source: Path, tmp_path: Path) -> None:
    """Clean ones do not change; crashed ones hold at least what was acknowledged, and a second opening changes nothing."""
    assert GOLDEN is not None
    path = tmp_path / "s"
    shutil.copytree(source, path)
    for entry in [path, *path.rglob("*")]:
        entry.chmod(0o755 if entry.is_dir() else 0o644)
    before = digest(path)
    crashed = "crashed" in str(source)
    with opened(path) as storage:
        assert not any(p.quarantined for p in storage.partitions.values())
        found = {number: p.read_range(0, 10**6) for number, p in storage.partitions.items()}
        assert {number: p.max_transaction_id for number, p in storage.partitions.items()} == {
            number: records[-1].transaction_id for number, records in found.items()
        }
    once = {name: d for name, d in digest(path).items() if name != ".waltzctl/lock"}
    with opened(path) as storage:
        assert storage.findings == ()
    assert {name: d for name, d in digest(path).items() if name != ".waltzctl/lock"} == once
    if crashed:
        acknowledged = json.loads((GOLDEN / "crashed" / f"{source.name}.acked.json").read_text())["acked"]
        assert all(len(found[number]) - 1 >= last for number, last in enumerate(acknowledged))
        return
    assert once == before
    for number, records in found.items():
        listed = (
            (GOLDEN / "expected" / "cluster-a" / source.name / f"partition-{number}.jsonl").read_text().splitlines()
        )
        assert len(listed) == len(records)
        for line, record in zip(listed, records, strict=True):
            expected = json.loads(line)
            assert record.transaction_id == expected["transactionId"]
            assert record.header == expected["header"]
            assert len(record.data) == expected["dataLength"]
            assert f"{record.data_checksum:08x}" == expected["dataCrc32"]


def test_a_control_file_that_a_release_extended_is_used_as_before_and_named(tmp_path: Path) -> None:
    records = built(tmp_path, 20, layout=Layout.DOCUMENTED, mark=12)
    control = tmp_path / "waltz-storage.ctl"
    control.write_bytes(control.read_bytes().ljust(Layout.RELEASED.file_size(1), b"\0"))
    with opened(tmp_path) as storage:
        assert codes(storage.findings) == ["control-file-extended"]
        assert (storage.layout, storage.partition(0).max_transaction_id) == (Layout.DOCUMENTED, len(records) - 1)
        storage.partition(0).set_low_water_mark(9, 19)
    read = decode_control(control.read_bytes())
    assert (read.extended, read.layout) == (True, Layout.DOCUMENTED)
    assert read.partitions[0].current_struct is not None
    assert read.partitions[0].current_struct.marks == (9, 19, 19)
