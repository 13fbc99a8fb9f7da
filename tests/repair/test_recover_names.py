"""Segments under another segment's name: they get their own names back where that is proven, and stay otherwise."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import make_records, segment_header
from tests.inspect.helpers import age
from tests.repair.scenes import COUNT, Scene, actions, codes, flip, make_scene, recover, same_bytes, undecided
from tests.repair.trees import snapshot
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.segment import Record, encode_records


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_scene(tmp_path)


def rename(scene: Scene, first: int, name: int, *, index: bool = True) -> None:
    scene.seg(first).rename(scene.seg(name))
    if index:
        scene.idx(first).rename(scene.idx(name))


@pytest.mark.turns(10)
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    ("first", "name"), [(0, 1), (0, 49), (0, 131), (50, 49), (50, 51), (50, 130), (100, 99), (100, 130), (100, 10**9)]
)
def test_a_renamed_segment_gets_its_name_back(scene: Scene, first: int, name: int, *, index: bool) -> None:
    """Without a replica; and the name that was wrong proves no transaction, not even where losses are accepted."""
    rename(scene, first, name, index=index)
    for loss in (True, False):
        repair = plan_recover(age(scene.root), allow_data_loss=loss)
        assert (actions(repair)[0], repair.plan.loses_data, undecided(repair)) == ("rename-segment", False, [])
    _, result = recover(scene)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def change(scene: Scene, records: list[Record]) -> None:
    """Segment 50, under the name 51, has other records."""
    head = segment_header(0, 50).encode()
    scene.seg(51).write_bytes(head + encode_records(records)[0])


def taken(scene: Scene) -> None:
    """Under the name 50 stands another history."""
    head = segment_header(0, 50).encode()
    scene.seg(50).write_bytes(head + encode_records(make_records(COUNT, size=None, seed=9)[50:100])[0])


AGAINST: dict[str, Callable[[Scene], object]] = {
    "key": lambda s: flip(s.seg(51), 12),
    "partition": lambda s: flip(s.seg(51), 31),
    "version": lambda s: flip(s.seg(51), 3),
    "first id": lambda s: flip(s.seg(51), 39, 2),
    "its index": lambda s: flip(s.idx(51), 39),
    "a record": lambda s: flip(s.seg(51), 128 + 9),
    "the last record": lambda s: os.truncate(s.seg(51), s.seg(51).stat().st_size - 1),
    "no record": lambda s: os.truncate(s.seg(51), 128),
    "a record is missing": lambda s: change(s, list(s.records[50:99])),
    "a record too many": lambda s: change(s, list(s.records[50:101])),
    "it begins with another": lambda s: change(s, list(s.records[51:100])),
    "another partition's": lambda s: change(s, make_records(130, partition=1)[50:100]),
    "the one in front of it": lambda s: flip(s.home(49), s.offset(49) + 9),
    "the name is taken": lambda s: taken(s),
    "something else has the name": lambda s: s.seg(50).mkdir(),
}


@pytest.mark.turns(10)
@pytest.mark.parametrize("what", AGAINST)
def test_it_stays_where_anything_is_against_it(scene: Scene, what: str) -> None:
    rename(scene, 50, 51)
    AGAINST[what](scene)
    repair = plan_recover(age(scene.root))
    assert "rename-segment" not in actions(repair)
    assert "segment-stray" not in undecided(repair), "it is a segment, and its name proves what names prove"
    assert not [one for one in repair.edits if one.path in (scene.seg(50), scene.seg(51))]


def test_a_replica_that_holds_other_records_is_against_it(scene: Scene, tmp_path: Path) -> None:
    other = make_scene(tmp_path / "other")
    data = encode_records(make_records(COUNT, seed=9)[50:100])[0]
    other.seg(50).write_bytes(other.seg(50).read_bytes()[:128] + data)
    rename(scene, 50, 51)
    repair = plan_recover(age(scene.root), replicas=[age(other.root)])
    assert "rename-segment" not in actions(repair)


@pytest.mark.parametrize("cut", [0, 1, 200])
def test_a_replica_that_holds_its_records_stands_for_a_damaged_neighbour(scene: Scene, cut: int) -> None:
    """The one in front of it lost its end: neither could be mended before the other one."""
    rename(scene, 50, 51)
    os.truncate(scene.seg(0), scene.seg(0).stat().st_size - cut)
    alone = plan_recover(age(scene.root))
    assert ("rename-segment" in actions(alone)) == (cut == 0)
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


@pytest.mark.parametrize("other", [True, False])
def test_a_copy_under_another_name_goes_where_the_segment_is_there(scene: Scene, *, other: bool) -> None:
    shutil.copy(scene.seg(50), scene.seg(130))
    if other:
        flip(scene.seg(130), scene.offset(60) + 44)
    repair = plan_recover(age(scene.root))
    assert actions(repair) == ([] if other else ["remove-stray-copy"])
    if not other:
        recover(scene)
        assert same_bytes(scene)


def test_two_that_changed_their_names_stay(scene: Scene) -> None:
    """Each stands where the other one belongs: neither name is free, and nothing is written over either."""
    scene.seg(0).rename(scene.root / "x")
    scene.seg(50).rename(scene.seg(0))
    (scene.root / "x").rename(scene.seg(50))
    before = snapshot(age(scene.root))
    repair, _ = recover(scene)
    assert actions(repair) == []
    assert {*undecided(repair)} == {"segment-name"}
    assert snapshot(scene.root) == before


def test_a_row_of_names_is_put_right_from_its_beginning_with_a_replica(scene: Scene) -> None:
    """Without one nothing tells where the segment behind each of them begins."""
    rename(scene, 100, 130)
    rename(scene, 50, 100)
    assert actions(plan_recover(age(scene.root))) == []
    for name in (50, 100):
        repair = plan_recover(age(scene.root), replicas=[scene.replica])
        assert [one.reason[-7:] for one in repair.plan.steps if one.action == "rename-segment"] == [
            f"{name:03}.seg"[-7:]
        ]
        result = apply(repair, arguments=[])
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


@pytest.mark.parametrize("index", [True, False])
def test_the_wrong_name_may_be_that_of_a_segment_which_is_restored(scene: Scene, *, index: bool) -> None:
    """Its file leaves that place and another one comes, in one repair: the edits of both contradicted each other."""
    for one in (scene.seg(100), scene.idx(100)):
        one.unlink()
    rename(scene, 50, 100, index=index)
    repair, result = recover(scene, scene.replica)
    assert {"rename-segment", "restore-segment"} <= {*actions(repair)}
    assert result.exit_status_name == "clean"
    for first, whole in ((50, True), (100, False)):  # of the lost one up to the mark
        theirs = (scene.replica / "0" / scene.seg(first).name).read_bytes()
        ours = scene.seg(first).read_bytes()
        assert theirs[128:].startswith(ours[128:])
        assert (len(ours) == len(theirs)) == whole


def test_a_stray_waits_for_the_file_under_its_name(scene: Scene) -> None:
    """That one leaves first: both repairs at once would write over the file that is read."""
    stray = scene.seg(50).with_name("x.seg")
    scene.seg(50).rename(stray)
    scene.idx(50).rename(stray.with_suffix(".idx"))
    rename(scene, 0, 50)
    repair = plan_recover(age(scene.root), replicas=[scene.replica])
    assert [one.reason[-7:] for one in repair.plan.steps if one.action == "rename-segment"] == ["000.seg"]
    assert "which has to get its own first" in repair.plan.undecided[0].message
    apply(repair, arguments=[])
    assert codes(scene.root) == {"segment-stray"}, "what belongs there is restored meanwhile"
    assert stray.is_file()
