"""What recover gives up is never forgotten: it stands in the ledger until it is here again, or until somebody says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.formats.test_accepted_losses import of_version
from tests.repair.scenes import (
    MARK,
    Scene,
    actions,
    codes,
    flip,
    make_scene,
    recover,
    rewrite_mark,
    snapshot,
    status,
    undecided,
)
from waltzctl.engine.columns.plan_columns import PLAN
from waltzctl.engine.errors import RefusedError, StalePlanError
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.planners import load_plan
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_ledger import plan_forget
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.loss_ledger import ledger_path, read_ledger
from waltzctl.formats.accepted_losses import encode_ledger
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE


def accepted(root: Path) -> list[tuple[int, int, int, int]]:
    """Partition, first, last and mark of each loss in the ledger."""
    ledger = read_ledger(root)
    assert ledger.fault is None
    return [(one.partition, one.first, one.last, one.local_low_water_mark) for one in ledger.losses]


def mark_of(root: Path, partition: int = 0) -> int:
    control = read_control(root / "waltz-storage.ctl")
    assert control is not None
    current = control.partitions[partition].current_struct
    assert current is not None
    return current.local_low_water_mark


def cut_header(scene: Scene) -> None:
    scene.seg(100).write_bytes(scene.seg(100).read_bytes()[:103])


def lose_data_file(scene: Scene) -> None:
    scene.seg(100).unlink()


def lose_segment(scene: Scene) -> None:
    scene.seg(100).unlink()
    scene.idx(100).unlink()


def tear_at_mark(scene: Scene) -> None:
    scene.seg(100).write_bytes(scene.seg(100).read_bytes()[: scene.offset(MARK) + 9])


def lose_one(scene: Scene) -> None:
    scene.flip(60)


def tear_middle(scene: Scene) -> None:
    scene.seg(50).write_bytes(scene.seg(50).read_bytes()[: scene.offset(97) + 20])


LOSSES: list[tuple[Callable[[Scene], None], list[tuple[int, int, int, int]], set[str]]] = [
    (cut_header, [(0, 100, 129, 99)], {"loss-accepted"}),
    (lose_data_file, [(0, 100, 129, 99)], {"loss-accepted"}),
    (lose_segment, [(0, 100, MARK, 99)], {"loss-accepted"}),
    (tear_at_mark, [(0, MARK, MARK, MARK - 1)], {"loss-accepted"}),
    (lose_one, [(0, 60, 60, MARK)], {"loss-accepted", "segment-gap"}),
    (tear_middle, [(0, 97, 99, MARK)], {"loss-accepted", "segment-gap"}),
]
EACH = pytest.mark.parametrize(("lose", "wanted", "named"), LOSSES, ids=[one[0].__name__ for one in LOSSES])


@pytest.mark.turns(10)
@EACH
def test_what_is_given_up_is_named_until_it_is_here_again(
    scene: Scene, lose: Callable[[Scene], None], wanted: list[tuple[int, int, int, int]], named: set[str]
) -> None:
    lose(scene)
    assert status(scene.root) == "damaged"
    repair, result = recover(scene, loss=True)
    assert result.exit_status_name == "damage-remains"
    assert accepted(scene.root) == wanted
    assert codes(scene.root) == named
    steps = [step for step in repair.plan.steps if step.action == "accept-loss"]
    assert [(step.from_transaction_id, step.to_transaction_id) for step in steps] == [one[1:3] for one in wanted]
    assert all(step.loses_data for step in steps)
    kept = plan_recover(scene.root)
    assert undecided(kept)[-1] == "loss-accepted", "recover says what verify says"
    undo(scene.root)
    assert not ledger_path(scene.root).exists(), "undo takes the acceptance back with its repair"
    apply(plan_recover(scene.root, allow_data_loss=True), arguments=[])
    repair, result = recover(scene, scene.replica)
    assert actions(repair)[-1] == "settle-accepted-loss"
    assert result.exit_status_name == "clean"
    assert scene.intact_ids() == list(range(wanted[0][2] + 1 if wanted[0][1] >= 100 else 130))
    assert not ledger_path(scene.root).exists()


@pytest.mark.turns(8)
@EACH
def test_a_node_opens_what_was_given_up_at_the_end_and_a_cluster_brings_it_back(
    scene: Scene, lose: Callable[[Scene], None], wanted: list[tuple[int, int, int, int]], named: set[str]
) -> None:
    lose(scene)
    recover(scene, loss=True)
    with StorageDirectory.open(scene.root) as storage:
        partition = storage.partition(0)
        if "segment-gap" in named:
            assert partition.quarantined, "a hole in the log is no end to go on from"
            return
        first = wanted[0][1]
        assert partition.next_transaction_id == first
        partition.append(scene.records[first : wanted[0][2]])
        assert codes(scene.root) == ({"loss-accepted"} if wanted[0][2] >= first else set())
        partition.append(scene.records[wanted[0][2] : wanted[0][2] + 1])
        partition.set_low_water_mark(9, wanted[0][2])
    assert codes(scene.root) == set()
    with StorageDirectory.open(scene.root) as storage:
        storage.partition(0).truncate(wanted[0][1], allow_data_loss=True)
    assert mark_of(scene.root) == wanted[0][1]


def test_a_cut_on_purpose_after_the_loss_was_over_is_no_loss(scene: Scene) -> None:
    """The server cuts what no quorum holds; the mark tells that the lost transactions had come back."""
    lose_segment(scene)
    recover(scene, loss=True)
    with StorageDirectory.open(scene.root) as storage:
        partition = storage.partition(0)
        partition.append(scene.records[100:120])
        partition.set_low_water_mark(9, 119)
        partition.append(scene.records[120:])
        partition.truncate(119)
    assert codes(scene.root) == set()


@pytest.mark.parametrize("layout", list(Layout))
def test_a_partition_of_which_nothing_is_left_begins_anew(tmp_path: Path, layout: Layout) -> None:
    """One segment, cut to 103 bytes, with 78 entries: the segment is made anew, the mark falls, and the 78 stay in mind."""
    root = build_directory(tmp_path / "s", {0: 78}, layout=layout, per_segment=100, local_low_water_mark=70)
    replica = shutil.copytree(root, tmp_path / "replica")
    path = next((root / "0").glob("*.seg"))
    path.write_bytes(path.read_bytes()[:103])
    before = snapshot(root)
    result = apply(plan_recover(root, allow_data_loss=True), arguments=[])
    assert result.exit_status_name == "damage-remains"
    assert (accepted(root), mark_of(root)) == ([(0, 0, 77, -1)], -1)
    assert codes(root) == {"loss-accepted"}
    assert path.stat().st_size == HEADER_SIZE
    with StorageDirectory.open(root) as storage:
        assert not storage.partition(0).quarantined
    undo(root)
    assert snapshot(root) == before
    apply(plan_recover(root, allow_data_loss=True), arguments=[])
    assert apply(plan_recover(root, replicas=[replica]), arguments=[]).exit_status_name == "clean"
    assert path.read_bytes() == (replica / "0" / path.name).read_bytes()


@pytest.mark.parametrize("layout", list(Layout))
def test_a_lost_directory_comes_back_or_is_given_up(tmp_path: Path, layout: Layout) -> None:
    root = build_directory(tmp_path / "s", {0: 5, 1: 40}, layout=layout, per_segment=15, local_low_water_mark=4)
    rewrite_mark(root, 1, 33)
    replica = shutil.copytree(root, tmp_path / "replica")
    shutil.rmtree(root / "1")
    assert undecided(plan_recover(root)) == ["partition-directory-missing"]
    result = apply(plan_recover(root, replicas=[replica]), arguments=[])
    assert result.exit_status_name == "clean"
    undo(root)
    assert not (root / "1").exists()
    result = apply(plan_recover(root, allow_data_loss=True), arguments=[])
    assert (result.exit_status_name, codes(root)) == ("damage-remains", {"loss-accepted"})
    assert (accepted(root), mark_of(root, 1)) == ([(1, 0, 33, -1)], -1)


def test_a_lost_directory_of_which_only_a_session_is_known_begins_anew(tmp_path: Path) -> None:
    root = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=Layout.DOCUMENTED, local_low_water_mark=-1)
    shutil.rmtree(root / "1")
    assert undecided(plan_recover(root)) == ["partition-directory-missing"]
    repair = plan_recover(root, allow_data_loss=True)
    assert actions(repair)[0] == "create-segment"
    assert repair.plan.loses_data
    assert apply(repair, arguments=[]).exit_status_name == "clean"
    for path in (root / "0").iterdir():
        path.unlink()
    assert undecided(plan_recover(root)) == ["partition-empty"]
    assert apply(plan_recover(root, allow_data_loss=True), arguments=[]).exit_status_name == "clean"


@pytest.mark.parametrize(("kept", "lost"), [(999, True), (1000, False)])
def test_a_data_file_cut_to_a_record_boundary(tmp_path: Path, kept: int, lost: bool) -> None:
    """1003 entries: up to 999 everything was durable.  Above that the index is what a crash leaves."""
    root = build_directory(tmp_path / "s", {0: 1003}, per_segment=2000, size=0, local_low_water_mark=-1)
    replica = shutil.copytree(root, tmp_path / "replica")
    path = next((root / "0").glob("*.seg"))
    path.write_bytes(path.read_bytes()[: HEADER_SIZE + 40 * kept])
    index = path.with_suffix(".idx").read_bytes()
    assert codes(root) == ({"durable-missing"} if lost else {"index-long"})
    rebuilt = plan_rebuild_index(root)
    assert (actions(rebuilt), undecided(rebuilt)) == (([], ["durable-missing"]) if lost else (["rebuild-index"], []))
    repair = plan_recover(root)
    assert (actions(repair), undecided(repair)) == (([], ["durable-missing"]) if lost else (["rebuild-index"], []))
    apply(repair, arguments=[])
    if not lost:
        assert codes(root) == set()
        return
    assert path.with_suffix(".idx").read_bytes() == index, "it is all that knows of the loss"
    result = apply(plan_recover(root, replicas=[replica]), arguments=[])
    assert result.exit_status_name == "clean"
    assert path.read_bytes() == (replica / "0" / path.name).read_bytes(), "all that the index lists"
    undo(root)
    result = apply(plan_recover(root, allow_data_loss=True), arguments=[])
    assert (result.exit_status_name, accepted(root)) == ("damage-remains", [(0, kept, 999, -1)])
    assert codes(root) == {"loss-accepted"}


def test_another_loss_enters_beside_the_first_and_none_twice(scene: Scene) -> None:
    scene.flip(60)
    recover(scene, loss=True)
    scene.flip(20)
    rewrite_mark(scene.root, 1, 25)
    recover(scene, loss=True)
    assert accepted(scene.root) == [(0, 20, 20, MARK), (0, 60, 60, MARK), (1, 20, 25, 19)]
    assert actions(plan_recover(scene.root, allow_data_loss=True)) == []


def test_a_mark_is_lowered_where_the_other_struct_of_its_pair_was_torn(scene: Scene) -> None:
    """Both would write the same struct; it is written once."""
    lose_segment(scene)
    control = read_control(scene.control)
    assert control is not None
    older = 3 - (control.partitions[0].current or 1)
    flip(scene.control, control.layout.struct_offset(0, older) + 2)
    repair, _ = recover(scene, loss=True)
    assert {"write-control-struct", "lower-local-low-water-mark"} <= set(actions(repair))
    assert mark_of(scene.root) == 99
    assert codes(scene.root) == {"loss-accepted"}


def test_forgetting_is_planned_for_some_partitions_and_undone(scene: Scene, tmp_path: Path) -> None:
    lose_segment(scene)
    rewrite_mark(scene.root, 1, 25)
    recover(scene, loss=True)
    assert accepted(scene.root) == [(0, 100, MARK, 99), (1, 20, 25, 19)]
    before = ledger_path(scene.root).read_bytes()
    repair = plan_forget(scene.root, partitions=[0])
    assert ledger_path(scene.root).read_bytes() == before
    assert [(s.action, s.partition, s.from_transaction_id, s.loses_data) for s in repair.plan.steps] == [
        ("forget-accepted-loss", 0, 100, False)
    ]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN.shown(repair.plan)))
    result = apply(load_plan(file), arguments=[])
    assert (result.exit_status_name, accepted(scene.root)) == ("clean", [(1, 20, 25, 19)])
    with pytest.raises(StalePlanError):
        load_plan(file)
    assert apply(plan_forget(scene.root), arguments=[]).exit_status_name == "clean"
    assert not ledger_path(scene.root).exists()
    assert plan_forget(scene.root).plan.steps == ()
    undo(scene.root)
    assert accepted(scene.root) == [(1, 20, 25, 19)]
    undo(scene.root)
    assert ledger_path(scene.root).read_bytes() == before
    assert codes(scene.root) == {"loss-accepted"}


def test_a_plan_is_stale_when_the_ledger_changed(scene: Scene) -> None:
    lose_segment(scene)
    recover(scene, loss=True)
    scene.seg(50).write_bytes(scene.seg(50).read_bytes()[:-3])
    repair = plan_recover(scene.root, allow_data_loss=True)
    apply(plan_forget(scene.root), arguments=[])
    with pytest.raises(StalePlanError):
        apply(repair, arguments=[])


def test_a_damaged_ledger_is_named_kept_and_set_aside_only_as_a_whole(scene: Scene) -> None:
    lose_segment(scene)
    recover(scene, loss=True)
    path = ledger_path(scene.root)
    path.write_bytes(path.read_bytes()[:-1])
    torn = path.read_bytes()
    assert codes(scene.root) >= {"accepted-losses-damaged"}
    assert "accepted-losses-damaged" in undecided(plan_recover(scene.root))
    scene.flip(60)
    with pytest.raises(RefusedError, match="nothing more can be entered"):
        plan_recover(scene.root, allow_data_loss=True)
    with pytest.raises(RefusedError, match="nobody knows whose losses"):
        plan_forget(scene.root, partitions=[0])
    apply(plan_forget(scene.root), arguments=[])
    assert not path.exists()
    undo(scene.root)
    assert path.read_bytes() == torn


def test_a_ledger_of_another_version_is_left_to_who_can_read_it(scene: Scene) -> None:
    """Set aside, it would protect the lost ids no longer: an append would give them to other transactions."""
    lose_segment(scene)
    recover(scene, loss=True)
    path = ledger_path(scene.root)
    path.write_bytes(of_version("waltzctl.accepted-losses/2", path.read_bytes()))
    before = path.read_bytes()
    (found,) = [one for one in plan_recover(scene.root).plan.undecided if one.code == "accepted-losses-damaged"]
    assert "of another version" in found.message
    assert found.remedy is None
    scene.flip(60)
    for plan in (plan_forget, lambda root: plan_recover(root, allow_data_loss=True)):
        with pytest.raises(RefusedError, match="of another version") as refused:
            plan(scene.root)
        assert "--forget-losses" not in str(refused.value.advice)
    assert path.read_bytes() == before


@pytest.mark.turns(8)
def test_truncating_on_purpose_is_no_loss(scene: Scene) -> None:
    """Who cuts below the mark for a cluster to bring the replica up to date is not reminded of it."""
    result = apply(plan_truncate(scene.root, partition=0, after=30, allow_data_loss=True), arguments=[])
    assert (result.exit_status_name, mark_of(scene.root)) == ("clean", 30)
    assert not ledger_path(scene.root).exists()


def test_a_torn_end_behind_an_accepted_loss_is_an_ordinary_one(scene: Scene) -> None:
    """A node was bringing the lost transactions back when it was killed."""
    lose_segment(scene)
    recover(scene, loss=True)
    with StorageDirectory.open(scene.root) as storage:
        storage.partition(0).append(scene.records[100:105])
    last = scene.seg(max(int(path.stem) for path in (scene.root / "0").glob("*.seg")))
    last.write_bytes(last.read_bytes()[:-1])
    repair, _ = recover(scene)
    assert actions(repair) == ["cut-torn-tail", "rebuild-index"]
    assert undecided(repair) == ["loss-accepted"]
    (found,) = repair.plan.undecided
    assert found.transaction_id == 104


def test_a_ledger_of_somebody_else_is_read_and_bound(tmp_path: Path) -> None:
    """Losses of partitions that this repair does not look at stay as they are."""
    scene = make_scene(tmp_path / "scene")
    lose_segment(scene)
    recover(scene, loss=True)
    (loss,) = read_ledger(scene.root).losses
    ledger_path(scene.root).write_bytes(encode_ledger([loss, replace(loss, partition=1, first=500, last=501)]))
    apply(plan_recover(scene.root, partitions=[0], replicas=[scene.replica]), arguments=[])
    assert accepted(scene.root) == [(1, 500, 501, 99)]
    assert scene.intact_ids() == list(range(MARK + 1))


def test_a_loss_stays_named_when_its_partition_is_taken_away_and_comes_back(scene: Scene) -> None:
    """As long as the files are here (released layout), or are here again (documented: they were put aside)."""
    lose_data_file(scene)
    recover(scene, loss=True)
    before = accepted(scene.root)
    apply(
        plan_set_partition(scene.root, partition=0, setting=PartitionSetting(assigned=False)),
        arguments=["set-partition"],
    )
    assert accepted(scene.root) == before
    kept_here = (scene.root / "0").is_dir()
    assert ("loss-accepted" in codes(scene.root)) == kept_here
    assert ("loss-accepted" in undecided(plan_recover(scene.root))) == kept_here
    apply(
        plan_set_partition(scene.root, partition=0, setting=PartitionSetting(assigned=True)),
        arguments=["set-partition"],
    )
    assert "loss-accepted" in codes(scene.root)


def test_what_is_restored_in_one_partition_is_given_up_in_another(scene: Scene) -> None:
    """The same ids of both are damaged, and the replica has those of the first only."""
    for path, place in ((scene.seg(0), scene.offset(5) + 9), (scene.seg(0, 1), 128 + 60)):
        flip(path, place)
    shutil.rmtree(scene.replica / "1")
    lost = {one.transaction_id for one in plan_recover(scene.root, partitions=[1]).plan.undecided}
    (number,) = lost - {None}
    assert number is not None
    scene.flip(number)
    repair = plan_recover(scene.root, replicas=[scene.replica], allow_data_loss=True)
    found = {(one.action, one.partition, one.from_transaction_id) for one in repair.plan.steps}
    assert ("restore-record", 0, number) in found
    assert ("accept-loss", 1, number) in found
    apply(repair, arguments=[])
    assert [one[:3] for one in accepted(scene.root)] == [(1, number, number)]


def test_a_loss_of_a_damaged_record_is_not_over_when_another_one_comes_back(scene: Scene) -> None:
    scene.flip(60)
    recover(scene, loss=True)
    assert [one[1:3] for one in accepted(scene.root)] == [(60, 60)]
    ledger = ledger_path(scene.root).read_bytes()
    shutil.rmtree(scene.root)
    shutil.copytree(scene.other, scene.root)
    ledger_path(scene.root).parent.mkdir(exist_ok=True)
    ledger_path(scene.root).write_bytes(ledger)
    for number in (60, 70):  # given up, and damaged again; and one that the replica has
        scene.flip(number)
    held = scene.replica / "0" / scene.seg(50).name
    flip(held, scene.offset(60) + 9)
    repair = plan_recover(scene.root, replicas=[scene.replica])
    assert [(one.action, one.from_transaction_id) for one in repair.plan.steps] == [("restore-record", 70)]
    apply(repair, arguments=[])
    assert [one[1:3] for one in accepted(scene.root)] == [(60, 60)]
