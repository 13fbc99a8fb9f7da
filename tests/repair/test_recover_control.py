"""The control file is mended by its own redundancy; what it cannot prove is left to a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.inspect.helpers import age
from tests.repair.scenes import Scene, actions, codes, flip, make_scene, recover, same_bytes, undecided
from tests.repair.trees import snapshot
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, Choice, Layout, decode_control


def layout_of(scene: Scene) -> Layout:
    return decode_control(scene.control.read_bytes()).layout


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("place", [0, 8, 23])
def test_an_invalid_struct_becomes_a_copy_of_the_valid_one_which_stays_in_force(
    scene: Scene, number: int, place: int
) -> None:
    before = decode_control(scene.control.read_bytes())
    flip(scene.control, before.layout.struct_offset(0, number) + place)
    valid = before.partitions[0].structs[2 - number]
    repair, result = recover(scene)
    assert actions(repair) == ["write-control-struct"]
    assert not repair.plan.loses_data
    info = decode_control(scene.control.read_bytes()).partitions[0]
    assert info.current_struct is not None
    assert info.current_struct.marks == valid.marks
    assert all(struct.valid and struct.marks == valid.marks for struct in info.structs)
    assert info.choice in (Choice.NEWER, Choice.SAME)
    if before.layout is Layout.RELEASED:
        assert info.current == 3 - number
        assert info.structs[number - 1].flags == valid.flags
    assert "control-struct-checksum" not in codes(scene.root)
    assert result.applied


def test_the_copy_of_a_struct_stays_older_where_sequence_numbers_wrap(tmp_path: Path) -> None:
    from dataclasses import replace

    scene = make_scene(tmp_path / "scene")
    control = decode_control(scene.control.read_bytes())
    infos = list(control.partitions)
    pair = infos[0].structs
    infos[0] = replace(infos[0], structs=(replace(pair[0], sequence=-(2**31)).sealed(), pair[1]))
    scene.control.write_bytes(replace(control, partitions=tuple(infos)).encode())
    flip(scene.control, control.layout.struct_offset(0, 2))
    recover(scene)
    info = decode_control(scene.control.read_bytes()).partitions[0]
    assert (info.current, info.structs[1].sequence, info.choice) == (1, 2**31 - 1, Choice.NEWER)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_stored_partition_id_is_written_anew(scene: Scene, partition: int) -> None:
    flip(scene.control, layout_of(scene).info_offset(partition) + 2)
    repair, result = recover(scene)
    assert actions(repair) == ["write-partition-id"]
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_a_lost_pair_is_left_to_a_person_and_begins_anew_when_told(scene: Scene) -> None:
    layout = layout_of(scene)
    for number in (1, 2):
        flip(scene.control, layout.struct_offset(0, number) + 3)
    repair, _ = recover(scene)
    assert (actions(repair), undecided(repair)) == ([], ["control-pair-checksum"])
    repair, result = recover(scene, loss=True)
    assert actions(repair) == ["reset-control-pair"]
    assert repair.plan.loses_data
    info = decode_control(scene.control.read_bytes()).partitions[0]
    assert info.current_struct is not None
    assert info.current_struct.marks == (-1, -1, -1)
    if layout is Layout.RELEASED:
        assert info.current_struct.flags == FLAG_AVAILABLE | FLAG_ASSIGNED, "its records are here, so it stays assigned"
    assert scene.intact_ids() == list(range(130)), "no record is touched"
    assert result.exit_status_name == "clean"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_lost_pair_waits_for_what_stands_in_the_partitions_place(scene: Scene, kind: str) -> None:
    """To give it up was named as the next command, which did nothing: it would no longer be assigned."""
    layout = layout_of(scene)
    for number in (1, 2):
        flip(scene.control, layout.struct_offset(1, number))
    place = scene.root / "1"
    place.rename(scene.root / "elsewhere")
    place.write_bytes(b"") if kind == "file" else place.symlink_to("nowhere")
    for loss in (False, True):
        repair = plan_recover(age(scene.root), allow_data_loss=loss)
        left = [one for one in repair.plan.undecided if one.code == "control-pair-checksum"]
        assert [(one.remedy, "move that away by hand" in one.message) for one in left] == [(None, True)]
    place.unlink()
    (scene.root / "elsewhere").rename(place)
    (left,) = plan_recover(scene.root).plan.undecided
    assert str(left.remedy).endswith("--partition 1 --allow-data-loss")


def test_with_a_lost_pair_no_torn_end_is_cut(scene: Scene) -> None:
    """Nothing tells whether the torn record was acknowledged."""
    for number in (1, 2):
        flip(scene.control, layout_of(scene).struct_offset(0, number) + 3)
    path = scene.seg(100)
    path.write_bytes(path.read_bytes()[:-5])
    repair, _ = recover(scene)
    assert "cut-torn-tail" not in actions(repair)
    assert set(undecided(repair)) == {"control-pair-checksum", "torn-tail"}


def test_a_tie_is_left_to_a_person_and_the_higher_marks_win_when_told(tmp_path: Path) -> None:
    from dataclasses import replace

    scene = make_scene(tmp_path / "scene")
    control = decode_control(scene.control.read_bytes())
    infos = list(control.partitions)
    pair = infos[0].structs
    low = replace(pair[0], sequence=9, local_low_water_mark=5).sealed()
    high = replace(pair[1], sequence=9, local_low_water_mark=77).sealed()
    for structs in ((low, high), (high, low)):
        infos[0] = replace(infos[0], structs=structs)
        scene.control.write_bytes(replace(control, partitions=tuple(infos)).encode())
        repair, _ = recover(scene)
        assert (actions(repair), undecided(repair)) == ([], ["control-pair-tie"])
        repair, _ = recover(scene, loss=True)
        assert actions(repair) == ["decide-control-tie"]
        current = decode_control(scene.control.read_bytes()).partitions[0].current_struct
        assert current is not None
        assert current.local_low_water_mark == 77


@pytest.mark.turns(8)
@pytest.mark.parametrize("count", [1, 3, 0, -1, 2**30])
def test_a_wrong_number_of_partitions_follows_from_the_length(scene: Scene, count: int) -> None:
    data = scene.control.read_bytes()
    scene.control.write_bytes(data[:28] + count.to_bytes(4, "big", signed=True) + data[32:])
    repair, result = recover(scene)
    assert actions(repair) == ["write-num-partitions"]
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_bytes_behind_the_last_info_are_cut(scene: Scene) -> None:
    scene.control.write_bytes(scene.control.read_bytes() + b"\7" * 33)
    repair, result = recover(scene)
    assert actions(repair) == ["cut-control-file"]
    assert same_bytes(scene)
    assert result.exit_status_name == "clean"


@pytest.mark.parametrize("size", [0, 127, 128, 150, 220])
def test_a_control_file_that_lost_its_end_is_left_to_a_person(scene: Scene, size: int) -> None:
    scene.control.write_bytes(scene.control.read_bytes()[:size])
    before = snapshot(age(scene.root))
    repair = plan_recover(scene.root, allow_data_loss=True)
    assert (actions(repair), undecided(repair)) == ([], ["control-file-size"])
    assert snapshot(scene.root) == before


def test_a_control_file_cut_at_the_end_of_an_info_forgets_no_partition(scene: Scene) -> None:
    """What is left reads well, and a length that fits proves nothing: partition 1 has a directory with files."""
    layout = layout_of(scene)
    scene.control.write_bytes(scene.control.read_bytes()[: layout.info_offset(1)])
    before = snapshot(age(scene.root))
    for loss in (False, True):
        repair, _ = recover(scene, loss=loss)
        assert (actions(repair), undecided(repair)) == ([], ["control-file-size"])
        assert "there is a directory of partition 1" in repair.plan.undecided[0].message
    assert snapshot(scene.root) == before
    assert "control-file-size" in codes(scene.root)


@pytest.mark.parametrize(("stated", "left", "believed"), [(3, 1, True), (3, 2, True), (4, 3, False), (6, 1, False)])
def test_a_length_is_believed_where_one_bit_of_the_header_explains_it(
    tmp_path: Path, stated: int, left: int, believed: bool
) -> None:
    """Without any directory beyond, more than one wrong bit says that the file was cut rather than the number flipped."""
    storage = build_directory(tmp_path / "s", {0: 3}, num_partitions=stated)
    control = storage / "waltz-storage.ctl"
    layout = decode_control(control.read_bytes()).layout
    control.write_bytes(control.read_bytes()[: layout.info_offset(left)])
    repair = plan_recover(storage)
    assert actions(repair) == (["write-num-partitions"] if believed else [])
    assert undecided(repair) == ([] if believed else ["control-file-size"])


def test_a_missing_control_file_is_left_to_a_person(scene: Scene) -> None:
    scene.control.unlink()
    repair = plan_recover(scene.root, allow_data_loss=True)
    assert (actions(repair), undecided(repair)) == ([], ["control-file-missing"])


def test_a_damaged_version_is_restored(scene: Scene) -> None:
    flip(scene.control, 3)
    repair, result = recover(scene)
    assert actions(repair) == ["write-version"]
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_only_the_partitions_asked_for_are_mended(scene: Scene) -> None:
    for partition in (0, 1):
        flip(scene.control, layout_of(scene).info_offset(partition) + 2)
    repair = plan_recover(scene.root, partitions=[1])
    assert [(step.action, step.partition) for step in repair.plan.steps] == [("write-partition-id", 1)]


def test_several_faults_are_mended_together(scene: Scene) -> None:
    layout = layout_of(scene)
    flip(scene.control, 3)
    flip(scene.control, layout.info_offset(0) + 1)
    flip(scene.control, layout.info_offset(1) + 1)
    flip(scene.control, layout.struct_offset(1, 1) + 1)
    repair, result = recover(scene)
    assert sorted(actions(repair)) == sorted(
        ["write-version", "write-partition-id", "write-partition-id", "write-control-struct"]
    )
    assert result.exit_status_name == "clean"


def extend(scene: Scene) -> None:
    """What release 0.13.2 leaves of a control file of the documented layout."""
    whole = scene.control.read_bytes()
    count = decode_control(whole).header.num_partitions
    scene.control.write_bytes(whole.ljust(Layout.RELEASED.file_size(count), b"\0"))


def test_zeros_that_a_release_put_behind_a_documented_file_are_cut_off(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene", Layout.DOCUMENTED)
    extend(scene)
    assert codes(scene.root) == {"control-file-extended"}
    repair, result = recover(scene)
    assert (actions(repair), repair.plan.loses_data) == (["cut-control-file"], False)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_zeros_are_cut_and_a_torn_struct_is_mended_at_once(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene", Layout.DOCUMENTED)
    extend(scene)
    flip(scene.control, Layout.DOCUMENTED.struct_offset(1, 2) + 3)
    repair, result = recover(scene)
    assert actions(repair) == ["cut-control-file", "write-control-struct"]
    assert result.exit_status_name == "clean"
    assert scene.control.stat().st_size == Layout.DOCUMENTED.file_size(2)


def test_zeros_are_cut_beside_a_lost_pair_which_is_left(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene", Layout.DOCUMENTED)
    whole = scene.control.read_bytes()
    extend(scene)
    for number in (1, 2):
        flip(scene.control, Layout.DOCUMENTED.struct_offset(1, number) + 3)
    repair, result = recover(scene)
    assert (actions(repair), undecided(repair)) == (["cut-control-file"], ["control-pair-checksum"])
    assert result.exit_status_name == "damage-remains"
    assert scene.control.read_bytes()[:188] == whole[:188], "the other partition's marks are as they were"


def test_a_single_byte_behind_the_documented_infos_is_never_cut(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene", Layout.DOCUMENTED)
    extend(scene)
    flip(scene.control, scene.control.stat().st_size - 1)
    assert "cut-control-file" not in actions(plan_recover(scene.root))
    assert "control-file-extended" not in codes(scene.root)
