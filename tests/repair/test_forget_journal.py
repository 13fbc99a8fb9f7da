"""Repairs of a directory with a commit journal in force: none, but for what gives the journal up, or lets it be written back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import build_directory, digest, make_records
from tests.cli.running import invoke
from tests.inspect.helpers import age, run
from tests.journals import COUNT, JOURNALED, SIZE, Marked, append_journaled, crashed, journaling
from tests.repair.trees import Crash, crashing_when
from waltzctl.engine.errors import RefusedError, StalePlanError
from waltzctl.engine.repair import apply as apply_room
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import Arguments, PartitionSetting
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.planners import load_plan, make
from waltzctl.engine.repair.prune import plan_prune, prune
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_journal import plan_forget_journal
from waltzctl.engine.repair.recover_ledger import plan_forget
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import check_undo, undo
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.store import interrupted, list_entries
from waltzctl.formats.control import Layout

ALL = COUNT + JOURNALED
PLANS: dict[str, Callable[[Path], object]] = {
    "recover": plan_recover,
    "recover a partition": lambda root: plan_recover(root / "0"),
    "recover what is lost": lambda root: plan_recover(root, allow_data_loss=True),
    "forget losses": plan_forget,
    "truncate": lambda root: plan_truncate(root, partition=0, after=20),
    "rebuild-index": lambda root: plan_rebuild_index(root, everything=True),
    "set-partition": lambda root: plan_set_partition(root, partition=1, setting=PartitionSetting(session_id=9)),
    "convert": lambda root: plan_convert(root, layout=Layout.DOCUMENTED),
    "prune": lambda root: plan_prune(root, older_than=0),
}


@pytest.mark.parametrize("name", PLANS)
def test_nothing_is_planned_while_a_journal_is_in_force(tmp_path: Path, name: str) -> None:
    here = crashed(tmp_path)
    before = digest(tmp_path)
    with pytest.raises(RefusedError, match="may stand in the commit journal") as caught:
        PLANS[name](here.root)
    assert "start the node" in str(caught.value.advice)
    assert str(here.journal) in str(caught.value)
    assert digest(tmp_path) == before
    assert here.ids() == list(range(ALL))
    PLANS[name](here.root)


def test_the_advice_is_true(tmp_path: Path) -> None:
    """append writes back before anything else, even where there is nothing to append."""
    here = crashed(tmp_path, power=True)
    refused = invoke("recover", here.root, "--yes")
    assert (refused.status, "append" in refused.err) == (13, True)
    assert invoke("append", here.root, "--partition", "0", given=b"").status == 0
    assert (here.marked, here.state.exists()) == (False, False)
    assert invoke("recover", here.root, "--yes").status == 0
    assert here.ids() == list(range(ALL))


def test_a_plan_of_before_is_not_carried_out_once_a_journal_is_in_force(tmp_path: Path) -> None:
    root = build_directory(tmp_path / "s", {0: 30}, per_segment=10)
    (root / "0" / f"{10:019}.idx").unlink()
    repair = plan_rebuild_index(root)
    undone = apply(plan_rebuild_index(root), arguments=[])
    assert undone.undo_id is not None
    pruned = plan_prune(root, older_than=0)
    (entry,) = list_entries(root)
    with journaling(root, tmp_path / "journal"):
        shutil.copytree(root, tmp_path / "copy")
    copy = tmp_path / "copy"
    moved = [apply_room.Repair(repair.plan, copy, repair.edits, (), repair.binding, (), False)]
    with pytest.raises(RefusedError, match="commit journal"):
        apply(moved[0], arguments=[])
    with pytest.raises(RefusedError, match="commit journal"):
        undo(copy)
    (there,) = list_entries(copy)
    with pytest.raises(RefusedError, match="commit journal"):
        check_undo(there, [there])
    with pytest.raises(RefusedError, match="commit journal"):
        prune(type(pruned)(pruned.plan, copy, pruned.entries))
    assert undo(root).entry.id == entry.id, "the node was stopped in between"


# --- giving a journal up ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(Layout))
def test_a_lost_journal_is_given_up_and_that_can_be_undone(tmp_path: Path, layout: Layout) -> None:
    here = crashed(tmp_path, layout, power=True)
    age(here.root)
    away = here.journal.rename(tmp_path / "away")
    before = {name: value for name, value in digest(here.root).items() if "quarantine" not in name}
    repair = plan_forget_journal(here.root)
    assert [(one.action, one.loses_data) for one in repair.plan.steps] == [
        ("forget-journal", True),
        ("remove-journal-state", False),
    ]
    assert "that file is not there" in repair.plan.steps[0].reason
    result = apply(repair, arguments=["recover"])
    assert (result.exit_status_name, result.findings) == ("clean", ())
    assert (here.marked, here.state.exists(), away.exists()) == (False, False, True)
    assert run(age(here.root))[0] == []
    assert plan_forget_journal(here.root).plan.steps == ()
    undo(here.root)
    own = [".waltzctl/journal.jsonl", ".waltzctl/lock"]
    after = {name: value for name, value in digest(here.root).items() if "quarantine" not in name}
    assert {name: value for name, value in after.items() if name not in own} == {
        name: value for name, value in before.items() if name not in own
    }
    away.rename(here.journal)
    assert here.ids() == list(range(ALL)), "it was found again"


def test_what_stands_in_the_segments_stays(tmp_path: Path) -> None:
    here = crashed(tmp_path)
    repair = plan_forget_journal(here.root)
    assert "it is there, and the node, or append, would write them back" in repair.plan.steps[0].reason
    apply(repair, arguments=[])
    assert here.journal.exists()
    assert here.ids() == list(range(ALL))


def test_without_the_file_that_names_it(tmp_path: Path) -> None:
    here = crashed(tmp_path)
    here.state.unlink()
    repair = plan_forget_journal(here.root)
    assert [one.action for one in repair.plan.steps] == ["forget-journal"]
    apply(repair, arguments=[])
    assert (here.marked, here.journal.exists()) == (False, True)
    undo(here.root)
    assert here.marked


def test_from_the_command_line(tmp_path: Path) -> None:
    here = crashed(tmp_path)
    here.journal.unlink()
    for others in (["--from", here.root], ["--allow-data-loss"], ["--forget-losses"], ["--partition", "0"]):
        assert invoke("recover", here.root, "--forget-journal", "--yes", *others).status == 2
    assert invoke("recover", "--replicas", here.root, "--forget-journal").status == 2
    unasked = invoke("recover", here.root, "--forget-journal", "--format", "json")
    assert (unasked.status, here.marked) == (4, True), "nobody said yes"
    assert json.loads(unasked.out)["arguments"]["forget_journal"] is True
    plan = tmp_path / "plan.json"
    plan.write_text(unasked.out)
    assert load_plan(plan).plan.arguments == Arguments(forget_journal=True)
    assert invoke("recover", here.root, "--plan", plan).status == 13, "it loses data"
    done = invoke("recover", here.root, "--plan", plan, "--yes", "--format", "json")
    assert (done.status, json.loads(done.out)["applied"], here.marked) == (0, True, False)
    again = invoke("recover", here.root, "--forget-journal", "--yes", "--format", "json")
    assert (again.status, json.loads(again.out)["applied"]) == (0, False)
    assert invoke("undo", here.root, "--yes").status == 4
    assert here.marked


def test_not_while_the_node_runs(tmp_path: Path) -> None:
    root = build_directory(tmp_path / "s", {0: 10})
    with journaling(root, tmp_path / "journal"):
        assert invoke("recover", root, "--forget-journal", "--dry-run").status == 0
        assert invoke("recover", root, "--forget-journal", "--yes").status == 11


@pytest.mark.parametrize("since", ["append", "session", "nothing"])
def test_it_does_not_come_back_over_what_was_written_since(tmp_path: Path, since: str) -> None:
    here = crashed(tmp_path, power=True)
    here.journal.rename(tmp_path / "away")
    apply(plan_forget_journal(here.root), arguments=[])
    with StorageDirectory.open(here.root) as storage:
        if since == "append":
            storage.partition(0).append(make_records(2, first=COUNT, size=SIZE, seed=8))
        if since == "session":
            storage.partition(1).set_low_water_mark(9, COUNT - 1)
    if since == "nothing":
        undo(here.root)
        assert here.marked
        return
    with pytest.raises(StalePlanError):
        undo(here.root)
    assert not here.marked
    if since == "append":
        assert "--allow-data-loss" in invoke("undo", here.root, "--yes").err
        undo(here.root, allow_data_loss=True)
        (tmp_path / "away").rename(here.journal)
        assert here.ids() == list(range(ALL))


def test_it_does_not_come_back_over_a_later_repair(tmp_path: Path) -> None:
    here = crashed(tmp_path)
    apply(plan_forget_journal(here.root), arguments=[])
    (entry,) = list_entries(here.root)
    later = apply(plan_rebuild_index(here.root, everything=True), arguments=[])
    if later.undo_id is None:  # every index was as it is to be
        later = apply(plan_truncate(here.root, partition=0, after=31), arguments=[])
    with pytest.raises(StalePlanError, match="over what a later repair left") as caught:
        undo(here.root, entry.id)
    assert caught.value.advice == f"undo {later.undo_id} first"
    undo(here.root)
    undo(here.root, entry.id)
    assert here.marked


def test_an_interrupted_one_is_taken_back(tmp_path: Path) -> None:
    """The mark and the file that names the journal come back together, and what the journal holds is written back."""
    here = crashed(tmp_path, power=True)
    with pytest.raises(Crash), crashing_when(lambda change: (change.kind, change.path) == ("write", here.control)):
        apply(plan_forget_journal(here.root), arguments=[])
    assert interrupted(here.root), "the case does not hold otherwise"
    assert (here.marked, here.state.exists()) == (False, True)
    repair = make("recover", here.root, Arguments())
    assert repair.roll_back  # type: ignore[union-attr]
    with pytest.raises(RefusedError, match="was interrupted"):
        plan_forget_journal(here.root)
    assert here.ids() == list(range(ALL))


# --- a marked control file that nothing opens -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("bit", [0, 1, 4, 20, 30])
def test_a_damaged_number_of_partitions_is_mended_with_its_mark(tmp_path: Path, layout: Layout, bit: int) -> None:
    """Whether the damaged number still looks like a turned one or not: written unturned, the records would be lost."""
    here = crashed(tmp_path, layout, power=True)
    clean = here.control.read_bytes()
    raw = bytearray(clean)
    raw[31 - bit // 8] ^= 1 << bit % 8
    here.control.write_bytes(raw)
    age(here.root)
    assert invoke("append", here.root, "--partition", "0", given=b"").status != 0
    result = invoke("recover", here.root, "--yes", "--format", "json")
    assert (result.status, here.control.read_bytes()) == (0, clean)
    assert here.ids() == list(range(ALL))


def test_a_damaged_version_is_mended_and_nothing_else(tmp_path: Path) -> None:
    here = crashed(tmp_path, power=True)
    clean = here.control.read_bytes()
    raw = bytearray(clean)
    raw[3] ^= 1
    here.control.write_bytes(raw)
    sorted((here.root / "1").glob("*.idx"))[0].unlink()
    repair = plan_recover(here.root)
    assert [one.action for one in repair.plan.steps] == ["write-version"]
    apply(repair, arguments=[])
    assert here.control.read_bytes() == clean
    with pytest.raises(RefusedError, match="commit journal"):
        plan_recover(here.root)
    assert here.ids() == list(range(ALL))


# --- salvage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(Layout))
def test_a_marked_control_file_is_found_and_written_without_the_mark(tmp_path: Path, layout: Layout) -> None:
    here = crashed(tmp_path, layout)
    image = tmp_path / "image"
    image.write_bytes(bytes(4096) + here.control.read_bytes() + bytes(4096))
    target = tmp_path / "target"
    shutil.copytree(here.root, target)
    (target / "waltz-storage.ctl").unlink()
    (target / ".waltzctl" / here.state.name).unlink()
    assert invoke("salvage", image, "--control", "--to", target).status == 0
    salvaged = Marked(target, here.journal, here.records)
    assert not salvaged.marked
    assert salvaged.ids() == list(range(ALL))
    assert invoke("salvage", here.root, "--to", tmp_path / "whole").status == 0
    assert run(tmp_path / "whole")[1].exit_status_name == "clean"


def test_what_a_journal_holds_of_a_partition_goes_with_it(tmp_path: Path) -> None:
    """A directory that is at rest again is repaired as ever."""
    root = build_directory(tmp_path / "s", {0: COUNT}, per_segment=COUNT, size=SIZE)
    with journaling(root, tmp_path / "journal") as storage:
        append_journaled(storage, 0, make_records(3, first=COUNT, size=SIZE))
    apply(plan_truncate(root, partition=0, after=COUNT), arguments=[])
    assert run(age(root))[0] == []
