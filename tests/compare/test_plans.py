"""From a comparison to plans: carried out they bring each replica to what is kept, and undo brings back every byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.compare.clusters import (
    COUNT,
    MARK,
    compared,
    extend,
    flip,
    keep_up_to,
    make_cluster,
    place_of,
    read,
    remove_segment,
    rewrite,
    segment_of,
    segments,
    states,
    tear,
)
from tests.inspect.test_codes import break_struct
from tests.repair.trees import snapshot
from waltzctl.engine.columns.plan_columns import PLAN
from waltzctl.engine.compare.comparison import PartitionComparison
from waltzctl.engine.compare.plans import plans
from waltzctl.engine.durable.edits import Remove
from waltzctl.engine.errors import InvalidRequestError, StalePlanError
from waltzctl.engine.log.places import place
from waltzctl.engine.quorum.vote import Verdict
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import Arguments
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.planners import load_plan
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.loss_ledger import ledger_path
from waltzctl.formats.segment import segment_name

LAST = COUNT - 1


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    return make_cluster(tmp_path)


def planned(nodes: list[Path], *, loss: bool = False, replicas: int | None = None) -> dict[str, Repair]:
    answer = compared(*nodes, replicas=replicas)
    before = [snapshot(path) for path in nodes]
    found = plans(list(answer.partitions.values()), nodes, allow_data_loss=loss)
    assert [snapshot(path) for path in nodes] == before, "planning changes nothing"
    return {repair.plan.path.name: repair for repair in found}


def carried_out(nodes: list[Path], found: dict[str, Repair], tmp_path: Path) -> PartitionComparison:
    """Through a file, as recover --plan does; undone and carried out again; the comparison afterwards."""
    for repair in found.values():
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(PLAN.shown(repair.plan)))
        before = snapshot(repair.storage)
        result = apply(load_plan(file), arguments=["recover"])
        assert (result.applied, result.status) == (True, "clean")
        undo(repair.storage, result.undo_id)
        assert snapshot(repair.storage) == before, "undo brings back bytes and times"
        apply(load_plan(file), arguments=["recover"])
    return compared(*nodes)[0]


def actions(repair: Repair) -> list[str]:
    return [step.action for step in repair.plan.steps]


def test_equal_replicas_need_no_plan(nodes: list[Path]) -> None:
    assert planned(nodes) == {}


def test_what_no_quorum_holds_is_cut(nodes: list[Path], tmp_path: Path) -> None:
    extend(nodes[0], 5)
    found = planned(nodes)
    assert list(found) == ["node-1"]
    assert actions(found["node-1"]) == ["cut-segment", "rebuild-index"]
    assert found["node-1"].plan.loses_data, "intact records go, and that is said"
    assert found["node-1"].plan.undecided == ()
    one = carried_out(nodes, found, tmp_path)
    assert one.verdict is Verdict.EQUAL
    assert one.clean_to == LAST


def test_whole_segments_behind_what_is_kept_are_removed(nodes: list[Path], tmp_path: Path) -> None:
    for path in nodes[1:]:
        keep_up_to(path, 80)
    found = planned(nodes)
    assert actions(found["node-1"]) == ["cut-segment", "rebuild-index", "remove-segment", "remove-index"]
    assert carried_out(nodes, found, tmp_path).verdict is Verdict.EQUAL
    assert [file.name for file in segments(nodes[0])] == [segment_name(0), segment_name(50)]


def test_a_cut_at_the_border_of_a_segment_leaves_it_empty(nodes: list[Path], tmp_path: Path) -> None:
    for path in nodes[1:]:
        keep_up_to(path, 99)
    one = carried_out(nodes, planned(nodes), tmp_path)
    assert one.verdict is Verdict.EQUAL
    assert segments(nodes[0])[-1].stat().st_size == 128


def test_a_fork_above_the_mark_is_cut_and_left_to_the_cluster(nodes: list[Path], tmp_path: Path) -> None:
    keep_up_to(nodes[2], 99)
    extend(nodes[2], 40, seed=1)
    found = planned(nodes)
    assert list(found) == ["node-3"]
    one = carried_out(nodes, found, tmp_path)
    assert states(one) == ["equal", "equal", "behind"]
    assert one.replicas[2].last_transaction_id == 99


def test_a_fork_below_the_mark_is_cut_only_with_leave_and_restored_up_to_the_mark(
    nodes: list[Path], tmp_path: Path
) -> None:
    keep_up_to(nodes[2], 29)
    extend(nodes[2], 100, seed=1)
    found = planned(nodes)
    assert actions(found["node-3"]) == []
    assert [finding.code for finding in found["node-3"].plan.undecided] == ["replica-differs"]
    found = planned(nodes, loss=True)
    assert actions(found["node-3"]) == [
        "cut-segment",
        "restore-record",
        "restore-segment",
        "rebuild-index",
        "rebuild-index",
    ]
    assert found["node-3"].plan.loses_data
    one = carried_out(nodes, found, tmp_path)
    assert states(one) == ["equal", "equal", "behind"]
    assert one.replicas[2].last_transaction_id == MARK, "what it had promised is there again"


@pytest.mark.parametrize("number", [0, 61, 99, 100, LAST])
def test_an_outvoted_record_is_replaced_by_that_of_the_others(nodes: list[Path], tmp_path: Path, number: int) -> None:
    rewrite(nodes[1], number)
    found = planned(nodes, loss=number <= MARK)
    if number == LAST:  # nothing of the others follows: it is cut, and the cluster brings the other one
        assert actions(found["node-2"]) == ["cut-segment", "rebuild-index"]
        assert states(carried_out(nodes, found, tmp_path)) == ["equal", "behind", "equal"]
        return
    assert "restore-record" in actions(found["node-2"])
    assert found["node-2"].plan.loses_data, "the record that goes was intact"
    assert carried_out(nodes, found, tmp_path).verdict is Verdict.EQUAL
    assert place_of(nodes[1], number)[2] == place_of(nodes[0], number)[2]


@pytest.mark.parametrize("numbers", [[61], [0], [60, 61, 62], [61, 70]])
def test_exactly_what_was_outvoted_is_replaced(nodes: list[Path], numbers: list[int]) -> None:
    for number in numbers:
        rewrite(nodes[1], number)
    repair = planned(nodes, loss=True)["node-2"]
    (agreed,) = repair.plan.arguments.agreed
    assert [number for first, last in agreed.outvoted for number in range(first, last + 1)] == numbers
    restored = [one for one in repair.plan.steps if one.action == "restore-record"]
    ids = [(one.from_transaction_id or 0, one.to_transaction_id or 0) for one in restored]
    assert sorted(number for first, last in ids for number in range(first, last + 1)) == numbers


@pytest.mark.parametrize("partition", [0, 1])
def test_who_was_outvoted_in_one_partition_is_a_source_in_none(tmp_path: Path, partition: int) -> None:
    """One recovery mends all of a replica's partitions from the same sources."""
    nodes = [
        build_directory(tmp_path / f"node-{number}", {0: 30, 1: 30}, local_low_water_mark=20) for number in range(1, 6)
    ]
    for number in (0, 1):
        flip(nodes[0], 5, number)
    rewrite(nodes[1], 5, partition=partition)
    replicas = planned(nodes, loss=True)["node-1"].plan.arguments.replicas
    assert sorted(Path(one).name for one in replicas) == ["node-3", "node-4", "node-5"]


def test_an_outvoted_record_below_the_mark_stays_without_leave(nodes: list[Path]) -> None:
    rewrite(nodes[1], 10)
    (repair,) = planned(nodes).values()
    assert repair.plan.steps == ()
    (finding,) = repair.plan.undecided
    assert (finding.code, finding.transaction_id) == ("replica-differs", 10)
    assert "--allow-data-loss" in finding.message


@pytest.mark.turns(8)
@pytest.mark.parametrize("numbers", [[10], [0], [49], [50, 51], [99], [100], [128], [3, 70, 110]])
def test_damaged_records_are_restored(nodes: list[Path], tmp_path: Path, numbers: list[int]) -> None:
    for number in numbers:
        flip(nodes[0], number)
    found = planned(nodes)
    assert list(found) == ["node-1"]
    assert set(actions(found["node-1"])) == {"restore-record"}
    one = carried_out(nodes, found, tmp_path)
    assert one.verdict is Verdict.EQUAL


def test_damage_beside_an_outvoted_record_is_one_loss(nodes: list[Path], tmp_path: Path) -> None:
    rewrite(nodes[1], 70)
    flip(nodes[1], 71)
    found = planned(nodes)
    assert actions(found["node-2"])[0] == "restore-record"
    assert carried_out(nodes, found, tmp_path).verdict is Verdict.EQUAL


@pytest.mark.parametrize("rewritten", [69, 70, 71])
def test_who_was_outvoted_is_no_source_of_what_it_was_outvoted_in(tmp_path: Path, rewritten: int) -> None:
    nodes = make_cluster(tmp_path, 5)
    flip(nodes[0], 70)
    rewrite(nodes[1], rewritten)
    found = planned(nodes)
    assert actions(found["node-1"]) == ["restore-record"]
    assert {path.parents[1].name for path in found["node-1"].sources} == {"node-3"}
    assert carried_out(nodes, found, tmp_path).verdict is Verdict.EQUAL


def test_replicas_that_restore_each_other_take_turns(nodes: list[Path], tmp_path: Path) -> None:
    flip(nodes[0], 10)
    flip(nodes[1], 20)
    found = planned(nodes)
    for repair in found.values():
        assert repair.sources
        assert {path.parents[1].name for path in repair.sources} == {"node-3"}, "the one that needs no plan comes first"
    assert carried_out(nodes, found, tmp_path).verdict is Verdict.EQUAL
    only = make_cluster(tmp_path / "two", 2)
    flip(only[0], 10)
    flip(only[1], 20)
    first, second = planned(only).values()
    apply(first, arguments=[])
    with pytest.raises(StalePlanError):
        apply(second, arguments=[])
    assert carried_out(only, planned(only), tmp_path).verdict is Verdict.EQUAL


def test_a_lost_segment_comes_back(nodes: list[Path], tmp_path: Path) -> None:
    remove_segment(nodes[1], 60)
    assert carried_out(nodes, planned(nodes), tmp_path).verdict is Verdict.EQUAL


def test_an_index_alone_brings_its_segment_back_up_to_what_is_kept(nodes: list[Path], tmp_path: Path) -> None:
    segment_of(nodes[1], 120).unlink()
    extend(nodes[0], 5)
    extend(nodes[2], 0)
    found = planned(nodes)
    assert sorted(found) == ["node-1", "node-2"]
    one = carried_out(nodes, found, tmp_path)
    assert (one.verdict, one.clean_to) == (Verdict.EQUAL, LAST)


def test_a_torn_tail_is_cut(nodes: list[Path], tmp_path: Path) -> None:
    tear(nodes[0])
    found = planned(nodes)
    assert actions(found["node-1"]) == ["cut-torn-tail", "rebuild-index"]
    assert states(carried_out(nodes, found, tmp_path)) == ["behind", "equal", "equal"]


def test_a_missing_partition_directory_is_restored(nodes: list[Path], tmp_path: Path) -> None:
    for file in (nodes[2] / "0").iterdir():
        file.unlink()
    (nodes[2] / "0").rmdir()
    found = planned(nodes)
    assert actions(found["node-3"]) == ["restore-segment"] * 3 + ["rebuild-index"] * 3
    assert carried_out(nodes, found, tmp_path).verdict is Verdict.EQUAL


def test_who_may_have_acknowledged_all_that_is_kept_gets_all_of_it_back_or_nothing(
    nodes: list[Path], tmp_path: Path
) -> None:
    """Restored only up to its mark, it would look like one that never held the rest, and a quorum would be gone."""
    for path in nodes[1:]:
        keep_up_to(path, 0)
    found = planned(nodes)
    assert sorted(found) == ["node-2", "node-3"]
    one = carried_out(nodes, {"node-2": found["node-2"]}, tmp_path)
    assert (one.clean_to, one.decision.caught_up) == (LAST, False)
    flip(nodes[0], 90)
    flip(nodes[1], 95)
    (repair,) = [one for name, one in planned(nodes).items() if name == "node-3"]
    assert repair.plan.steps[-1].action == "rebuild-index", "either has what the other lacks"
    flip(nodes[0], 95)
    (repair,) = [one for name, one in planned(nodes).items() if name == "node-3"]
    assert repair.plan.steps == ()
    assert [finding.code for finding in repair.plan.undecided] == ["acknowledged-missing"]


def test_a_stale_index_is_rebuilt(nodes: list[Path], tmp_path: Path) -> None:
    index = segments(nodes[2])[0].with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:-16])
    found = planned(nodes)
    assert actions(found["node-3"]) == ["rebuild-index"]
    assert carried_out(nodes, found, tmp_path).verdict is Verdict.EQUAL


def test_what_is_undecidable_is_left_alone(nodes: list[Path]) -> None:
    rewrite(nodes[1], 100)
    extend(nodes[0], 4)
    assert planned(nodes[:2], replicas=3) == {}
    break_struct(nodes[0], 0, 1)
    segments(nodes[1])[0].with_suffix(".idx").write_bytes(b"")
    ledger = ledger_path(nodes[1])
    ledger.parent.mkdir(exist_ok=True)
    ledger.write_bytes(b"?")
    assert planned(nodes[:2], replicas=3) == {}


def test_all_that_can_happen_to_three_replicas_at_once(nodes: list[Path], tmp_path: Path) -> None:
    flip(nodes[0], 20)
    extend(nodes[0], 3, seed=4)
    rewrite(nodes[1], 110)
    tear(nodes[1])
    remove_segment(nodes[2], 60)
    extend(nodes[2], 2, seed=5)
    found = planned(nodes)
    one = carried_out(nodes, {name: repair for name, repair in found.items() if name == "node-1"}, tmp_path)
    for name in ("node-2", "node-3"):
        repair = planned(nodes)[name]
        one = carried_out(nodes, {name: repair}, tmp_path)
    assert states(one) == ["equal", "behind", "equal"]
    assert (one.verdict, one.clean_to) == (Verdict.RECOVERABLE, LAST)
    assert [record.transaction_id for record in read(segment_of(nodes[2], 60))] == list(range(50, 100))


def test_plans_are_for_files_of_this_machine(nodes: list[Path]) -> None:
    with pytest.raises(InvalidRequestError):
        plans([], [nodes[0], place("memory://bucket/node")], allow_data_loss=False)


def test_plans_without_an_agreement_keep_their_form(nodes: list[Path]) -> None:
    flip(nodes[0], 20)
    repair = plan_recover(nodes[0], replicas=[nodes[1]])
    assert "agreed" not in PLAN.shown(repair.plan)["arguments"]
    assert "agreed" not in Arguments().as_object()


@pytest.mark.parametrize(
    "agreed",
    [7, [7], [{"partition": 0}], [{"partition": 0, "clean_to": "x"}], [{"partition": 0, "clean_to": 1, "more": 1}],
     [{"partition": 0, "clean_to": 1, "outvoted": [[1]]}], [{"partition": 0, "clean_to": 1, "outvoted": [["a", "b"]]}]],
)  # fmt: skip
def test_an_agreement_that_cannot_be_meant_is_no_plan(nodes: list[Path], tmp_path: Path, agreed: object) -> None:
    body = PLAN.shown(plan_recover(nodes[0]).plan)
    body["arguments"]["agreed"] = agreed
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(body))
    with pytest.raises(InvalidRequestError):
        load_plan(file)


def test_a_changed_agreement_is_another_plan(nodes: list[Path], tmp_path: Path) -> None:
    extend(nodes[0], 5)
    (repair,) = planned(nodes).values()
    body = PLAN.shown(repair.plan)
    body["arguments"]["agreed"][0]["cut_after"] = 80
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(body))
    with pytest.raises(StalePlanError):
        load_plan(file)


def test_a_replica_without_a_control_file_gives_nothing_and_hinders_nobody(nodes: list[Path], tmp_path: Path) -> None:
    (nodes[1] / "waltz-storage.ctl").unlink()
    extend(nodes[2], 3)
    found = planned(nodes)
    assert actions(found["node-3"]) == ["cut-segment", "rebuild-index"]
    assert [finding.code for finding in found["node-2"].plan.undecided] == ["control-file-missing"]
    assert found["node-2"].plan.steps == ()
    assert carried_out(nodes, {"node-3": found["node-3"]}, tmp_path).verdict is Verdict.EQUAL


@pytest.mark.parametrize(("last", "removed"), [(98, [100]), (99, []), (100, [])])
def test_a_segment_goes_when_it_begins_behind_the_cut(nodes: list[Path], last: int, removed: list[int]) -> None:
    """One that begins right behind what is kept stays and is empty."""
    for path in nodes[1:]:
        keep_up_to(path, last)
    steps = planned(nodes)["node-1"].plan.steps
    assert [step.from_transaction_id for step in steps if step.action == "remove-segment"] == removed
    assert all(step.loses_data for step in steps if step.action in ("cut-segment", "remove-segment"))


@pytest.mark.parametrize(("last", "loses"), [(LAST - 1, True), (LAST - 2, True)])
def test_a_cut_of_one_record_is_a_loss(nodes: list[Path], last: int, loses: bool) -> None:
    for path in nodes[1:]:
        keep_up_to(path, last)
    (cut,) = [step for step in planned(nodes)["node-1"].plan.steps if step.action == "cut-segment"]
    assert cut.loses_data is loses


def test_of_segments_behind_a_cut_the_last_goes_first(tmp_path: Path) -> None:
    """So that a repair that ends anywhere leaves a shorter log, and no gap."""
    nodes = make_cluster(tmp_path, mark=10)
    for path in nodes[1:]:
        keep_up_to(path, 20)
    repair = planned(nodes)["node-1"]
    gone = [step.from_transaction_id for step in repair.plan.steps if step.action == "remove-segment"]
    assert gone == [100, 50]
    assert [edit.path.name for edit in repair.edits if isinstance(edit, Remove) and edit.path.suffix == ".seg"] == [
        segment_name(100),
        segment_name(50),
    ]
