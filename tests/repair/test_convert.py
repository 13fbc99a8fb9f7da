"""Converting a directory: sessions, marks, assignment and what is switched off survive, in either direction."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import build_directory, digest
from tests.repair.scenes import Scene, flip, make_scene, rewrite_mark, status
from tests.repair.trees import snapshot
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import DirectoryLockedError, NotWaltzError, RefusedError, StalePlanError
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.apply import RepairResult, apply
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.availability_marks import Availability, load_marks, read_availability
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.retired import begin_deletion
from waltzctl.formats.control import (
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    Choice,
    ControlFile,
    Layout,
    PartitionInfo,
    PartitionStruct,
    choose_current,
    convert_info,
    decode_control,
)

CTL = "waltz-storage.ctl"
OTHER = {Layout.DOCUMENTED: Layout.RELEASED, Layout.RELEASED: Layout.DOCUMENTED}
MIXED = {
    0: Availability(readable=True, writable=False),
    1: Availability(readable=False, writable=True),
    2: Availability(readable=False, writable=False),
}
marks = st.tuples(*[st.integers(-1, 5)] * 3)
int32 = st.integers(-(2**31), 2**31 - 1)


def control_of(storage: Path) -> ControlFile:
    control = read_control(storage / CTL)
    assert control is not None
    return control


def current(info: PartitionInfo) -> PartitionStruct:
    assert info.current_struct is not None
    return info.current_struct


def convert(storage: Path, layout: Layout) -> RepairResult:
    """Plan (which changes nothing), apply, undo (which brings everything back), apply again."""
    before = snapshot(storage)
    repair = plan_convert(storage, layout=layout)
    assert snapshot(storage) == before
    assert not repair.plan.loses_data
    result = apply(repair, arguments=[])
    after = contents(storage)
    undo(storage, result.undo_id)
    assert {
        name: one for name, one in snapshot(storage).items() if not name.startswith(".waltzctl/quarantine")
    } == before
    result = apply(plan_convert(storage, layout=layout), arguments=[])
    assert contents(storage) == after
    assert control_of(storage).layout is layout
    return result


def contents(storage: Path) -> dict[str, bytes]:
    """Everything outside of our own state, and the marks in it."""
    return {
        str(path.relative_to(storage)): path.read_bytes()
        for path in storage.rglob("*")
        if path.is_file() and (".waltzctl" not in path.parts or path.name == "availability.json")
    }


@pytest.mark.parametrize("layout", Layout)
def test_nothing_is_lost_and_verify_is_clean_after_either_direction(tmp_path: Path, layout: Layout) -> None:
    storage = build_directory(tmp_path / "s", {0: 60, 1: 5, 3: 0}, num_partitions=6, layout=layout)
    before = control_of(storage)
    assert convert(storage, OTHER[layout]).exit_status_name == "clean"
    after = control_of(storage)
    assert after.header == before.header
    for old, new in zip(before.partitions, after.partitions, strict=True):
        assert (new.partition, new.stored_partition) == (old.partition, old.stored_partition)
        assert current(new).marks == current(old).marks
        assert sorted(one.marks for one in new.structs) == sorted(one.marks for one in old.structs)
    with StorageDirectory.open(storage) as opened:
        assert sorted(opened.partitions) == [0, 1, 3]
        assert opened.findings == ()
    assert status(storage) == "clean"


def test_there_and_back_again_gives_the_same_bytes(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60, 1: 5}, num_partitions=3, layout=Layout.DOCUMENTED)
    before = (storage / CTL).read_bytes()
    convert(storage, Layout.RELEASED)
    assert (storage / CTL).stat().st_size == Layout.RELEASED.file_size(3)
    convert(storage, Layout.DOCUMENTED)
    assert (storage / CTL).read_bytes() == before


@pytest.mark.parametrize("layout", Layout)
def test_a_directory_of_that_layout_already_is_left_alone(tmp_path: Path, layout: Layout) -> None:
    storage = build_directory(tmp_path / "s", {0: 5}, layout=layout)
    repair = plan_convert(storage, layout=layout)
    assert (repair.plan.steps, repair.edits) == ((), ())


class TestEveryPair:
    """One partition's pair, with any values."""

    @settings(max_examples=100)
    @given(marks, marks, st.booleans(), st.booleans())
    def test_documented_there_and_back(self, first, second, available: bool, assigned: bool) -> None:  # type: ignore[no-untyped-def]
        pair = PartitionStruct(*first).sealed(), PartitionStruct(*second).sealed()
        info = PartitionInfo(0, 0, pair, *choose_current(*pair))
        if info.choice is Choice.TIE:
            with pytest.raises(ValueError, match="in force"):
                convert_info(info, Layout.RELEASED, available=available, assigned=assigned)
            return
        there = convert_info(info, Layout.RELEASED, available=available, assigned=assigned)
        assert current(there).marks == current(info).marks
        assert {(one.available, one.assigned) for one in there.structs} == {(available, assigned)}
        assert there == PartitionInfo.decode(Layout.RELEASED, 0, there.encode())
        back = convert_info(there, Layout.DOCUMENTED, available=True, assigned=False)
        assert back == info

    @settings(max_examples=100)
    @given(marks, marks, int32, int32)
    def test_released_keeps_what_is_in_force(self, first, second, one: int, other: int) -> None:  # type: ignore[no-untyped-def]
        """Whatever sequence numbers say: also where the older struct has the higher marks, or the numbers wrap."""
        pair = PartitionStruct(*first, 5, one).sealed(), PartitionStruct(*second, 1, other).sealed()
        info = PartitionInfo(3, 3, pair, *choose_current(*pair))
        if info.choice is Choice.TIE:
            return
        there = convert_info(info, Layout.DOCUMENTED, available=True, assigned=True)
        assert current(there).marks == current(info).marks
        assert there == PartitionInfo.decode(Layout.DOCUMENTED, 3, there.encode())
        again = convert_info(there, Layout.RELEASED, available=True, assigned=True)
        assert current(again).marks == current(info).marks

    @settings(max_examples=80)
    @given(st.sampled_from(list(Layout)), st.sampled_from(list(Layout)), marks, marks, st.integers(1, 2))
    def test_of_one_valid_struct_the_values_stand_in_both(
        self, source: Layout, target: Layout, first, second, bad
    ) -> None:  # type: ignore[no-untyped-def]
        extra = [(5, 7), (5, 8)] if source is Layout.RELEASED else [(), ()]
        pair = [PartitionStruct(*values, *more).sealed() for values, more in zip((first, second), extra, strict=True)]
        kept = pair[2 - bad]
        pair[bad - 1] = replace(pair[bad - 1], valid=False)
        info = PartitionInfo(0, 0, (pair[0], pair[1]), *choose_current(*pair))
        there = convert_info(info, target, available=True, assigned=True)
        assert {one.marks for one in there.structs} == {kept.marks}
        assert there == PartitionInfo.decode(target, 0, there.encode())
        assert current(there).valid


def test_a_mark_that_was_lowered_on_purpose_stays_as_low(tmp_path: Path) -> None:
    """In the released layout the newer struct may have the lower mark; the documented layout would take the higher one."""
    storage = build_directory(tmp_path / "s", {0: 60}, local_low_water_mark=40)
    with StorageDirectory.open(storage) as opened:
        opened._control.lower_local_low_water_mark(0, 12)
    info = control_of(storage).partitions[0]
    assert sorted(one.local_low_water_mark for one in info.structs) == [12, 40]
    convert(storage, Layout.DOCUMENTED)
    assert current(control_of(storage).partitions[0]).marks == (3, 40, 12)


@pytest.mark.parametrize("layout", Layout)
def test_what_is_switched_off_stays_so_and_nothing_else(tmp_path: Path, layout: Layout) -> None:
    storage = build_directory(tmp_path / "s", {0: 5, 1: 5, 2: 5, 3: 5}, layout=layout)
    with StorageDirectory.open(storage) as opened:
        for number, mark in MIXED.items():
            opened.set_availability(number, readable=mark.readable, writable=mark.writable)
    wanted = {**MIXED, 3: Availability()}
    for target in (OTHER[layout], layout):
        convert(storage, target)
        assert read_availability(storage, control_of(storage)) == wanted


def test_the_flag_decides_what_a_stale_mark_says(tmp_path: Path) -> None:
    """A released node switches by the flag alone: 0 was switched on again, 1 switched off; the file knows neither."""
    storage = build_directory(tmp_path / "s", {0: 5, 1: 5})
    with StorageDirectory.open(storage) as opened:
        opened.set_availability(0, writable=False)
        opened._control.set_flag(0, FLAG_AVAILABLE, True)
        opened._control.set_flag(1, FLAG_AVAILABLE, False)
    before = read_availability(storage, control_of(storage))
    assert before == {0: Availability(), 1: Availability(readable=False, writable=False)}
    repair = plan_convert(storage, layout=Layout.DOCUMENTED)
    steps = [(step.action, step.partition) for step in repair.plan.steps]
    assert steps == [("write-availability", 0), ("write-availability", 1), ("convert-control-file", None)]
    convert(storage, Layout.DOCUMENTED)
    assert read_availability(storage, control_of(storage)) == before
    assert load_marks(storage) == {1: Availability(readable=False, writable=False)}


@pytest.mark.parametrize("layout", Layout)
def test_files_of_a_partition_that_is_not_assigned_move_to_where_the_layout_has_them(
    tmp_path: Path, layout: Layout
) -> None:
    storage = build_directory(tmp_path / "s", {0: 30, 1: 30}, layout=layout, local_low_water_mark=20)
    with StorageDirectory.open(storage) as opened:
        opened.unassign(1, delete_files=False)
    places = {Layout.RELEASED: storage / "1", Layout.DOCUMENTED: storage / ".waltzctl" / "unassigned" / "1"}
    whole = (storage / CTL).read_bytes()
    files = digest(places[layout])
    for target in (OTHER[layout], layout, OTHER[layout]):
        repair = plan_convert(storage, layout=target)
        assert [(step.action, step.partition) for step in repair.plan.steps if step.partition is not None] == [
            ("put-aside" if target is Layout.DOCUMENTED else "take-from-aside", 1)
        ]
        convert(storage, target)
        assert digest(places[target]) == files
        assert not places[OTHER[target]].exists()
        if target is layout is Layout.DOCUMENTED:
            assert (storage / CTL).read_bytes() == whole
    with StorageDirectory.open(storage) as opened:
        assert sorted(opened.partitions) == [0]
        opened.assign(1)
        assert opened.partition(1).max_transaction_id == 29
        assert current(opened.info(1)).marks == (3, 20, 20)


class TestRefused:
    """What would be lost in the other layout, or is damaged here, is refused; nothing is changed."""

    def refused(self, storage: Path, layout: Layout, match: str) -> None:
        before = snapshot(storage)
        with pytest.raises(RefusedError, match=match):
            plan_convert(storage, layout=layout)
        assert snapshot(storage) == before

    @pytest.mark.parametrize("layout", Layout)
    @pytest.mark.parametrize("numbers", [(1,), (2,), (1, 2)])
    def test_damaged_structs(self, tmp_path: Path, layout: Layout, numbers: tuple[int, ...]) -> None:
        storage = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
        for number in numbers:
            flip(storage / CTL, layout.struct_offset(1, number) + 3)
        self.refused(storage, OTHER[layout], r"control-(struct|pair)-checksum.*waltzctl recover")

    @pytest.mark.parametrize("layout", Layout)
    def test_a_wrong_id_version_or_length(self, tmp_path: Path, layout: Layout) -> None:
        storage = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
        whole = (storage / CTL).read_bytes()
        for place in (layout.info_offset(1) + 3, 3):
            flip(storage / CTL, place)
            self.refused(storage, OTHER[layout], r"control-partition-id|unknown-version")
            (storage / CTL).write_bytes(whole)
        (storage / CTL).write_bytes(whole[:-1])
        self.refused(storage, OTHER[layout], "control-file-size")
        (storage / CTL).unlink()
        before = snapshot(storage)
        with pytest.raises((RefusedError, NotWaltzError)):
            plan_convert(storage, layout=layout)
        assert snapshot(storage) == before

    def test_a_file_that_a_release_extended(self, tmp_path: Path) -> None:
        storage = build_directory(tmp_path / "s", {0: 5}, layout=Layout.DOCUMENTED)
        (storage / CTL).write_bytes((storage / CTL).read_bytes().ljust(Layout.RELEASED.file_size(1), b"\0"))
        self.refused(storage, Layout.RELEASED, "control-file-extended")

    def test_files_in_both_places(self, tmp_path: Path) -> None:
        storage = build_directory(tmp_path / "s", {0: 5, 1: 5})
        with StorageDirectory.open(storage) as opened:
            opened.unassign(1, delete_files=False)
        shutil.copytree(storage / "1", storage / ".waltzctl" / "unassigned" / "1")
        self.refused(storage, Layout.DOCUMENTED, "both here and in")

    @pytest.mark.parametrize("layout", Layout)
    def test_a_partition_whose_directory_is_gone(self, tmp_path: Path, layout: Layout) -> None:
        storage = build_directory(tmp_path / "s", {0: 5, 1: 50}, layout=layout)
        shutil.rmtree(storage / "1")
        self.refused(storage, OTHER[layout], "partition 1 .*(missing|gone)")

    def test_marks_of_availability_that_cannot_be_understood(self, tmp_path: Path) -> None:
        storage = build_directory(tmp_path / "s", {0: 5}, layout=Layout.DOCUMENTED)
        (storage / ".waltzctl").mkdir()
        (storage / ".waltzctl" / "availability.json").write_text("{}")
        self.refused(storage, Layout.RELEASED, "cannot be understood")

    def test_what_is_no_storage_directory(self, tmp_path: Path) -> None:
        storage = build_directory(tmp_path / "s", {0: 5})
        for path in (storage / "0", storage / CTL, tmp_path / "nothing"):
            with pytest.raises(NotWaltzError):
                plan_convert(path, layout=Layout.DOCUMENTED)

    @pytest.mark.parametrize("layout", Layout)
    def test_a_directory_in_use(self, tmp_path: Path, layout: Layout) -> None:
        storage = build_directory(tmp_path / "s", {0: 5}, layout=layout)
        repair = plan_convert(storage, layout=OTHER[layout])
        before = contents(storage)
        with DirectoryLock.acquire(storage, storage / CTL), pytest.raises(DirectoryLockedError):
            apply(repair, arguments=[])
        assert contents(storage) == before

    @pytest.mark.parametrize("layout", Layout)
    def test_a_plan_of_marks_that_moved_on(self, tmp_path: Path, layout: Layout) -> None:
        """Sessions that were started, and what was switched off, since the plan was made."""
        storage = build_directory(tmp_path / "s", {0: 5}, layout=layout)
        repair = plan_convert(storage, layout=OTHER[layout])
        with StorageDirectory.open(storage) as opened:
            opened.set_availability(0, writable=False)
        with pytest.raises(StalePlanError):
            apply(repair, arguments=[])
        repair = plan_convert(storage, layout=OTHER[layout])
        with StorageDirectory.open(storage) as opened:
            opened.partition(0).set_low_water_mark(8, 9)
        with pytest.raises(StalePlanError):
            apply(repair, arguments=[])
        assert control_of(storage).layout is layout


def test_undo_is_refused_once_a_session_was_started(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5}, layout=Layout.DOCUMENTED)
    result = apply(plan_convert(storage, layout=Layout.RELEASED), arguments=[])
    with StorageDirectory.open(storage) as opened:
        opened.partition(0).set_low_water_mark(8, 9)
    with pytest.raises(StalePlanError):
        undo(storage, result.undo_id)
    assert current(control_of(storage).partitions[0]).marks == (8, 9, 4)


def test_damaged_records_do_not_stand_in_the_way_and_stay_named(tmp_path: Path) -> None:
    scene: Scene = make_scene(tmp_path / "scene", Layout.DOCUMENTED)
    rewrite_mark(scene.root, 1, 10)
    scene.flip(60)
    result = convert(scene.root, Layout.RELEASED)
    assert result.exit_status_name == "damage-remains"
    assert {found.code.value for found in result.findings} == {"record-checksum"}


def test_an_assigned_flag_alone_is_enough_for_an_empty_partition(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 0, 1: 0}, layout=Layout.DOCUMENTED, session=-1)
    convert(storage, Layout.RELEASED)
    flags = [current(info).flags for info in decode_control((storage / CTL).read_bytes()).partitions]
    assert flags == [FLAG_AVAILABLE | FLAG_ASSIGNED] * 2


@pytest.mark.parametrize("layout", list(Layout))
def test_a_deletion_that_was_cut_short_needs_no_directory_back(tmp_path: Path, layout: Layout) -> None:
    """Its files are gone on purpose; the next opening forgets what the control file still says of it."""
    storage = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout)
    if layout is Layout.RELEASED:
        with StorageDirectory.open(storage) as opened:
            opened.unassign(1, delete_files=False)
    begin_deletion(storage, 1)
    other = Layout.DOCUMENTED if layout is Layout.RELEASED else Layout.RELEASED
    assert not plan_set_partition(storage, partition=1, setting=PartitionSetting(assigned=False)).edits
    assert convert(storage, other).applied
    with StorageDirectory.open(storage) as opened:
        assert list(opened.partitions) == [0]
        assert current(opened.info(1)).marks == (-1, -1, -1)
    assert current(control_of(storage).partitions[0]).marks[0] == 3
