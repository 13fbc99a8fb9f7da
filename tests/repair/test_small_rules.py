"""Refusals, surveys and choices of repairs that no table of plans shows, each with a step to its side."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.repair.test_replica_rules import RECORDS as HELD
from tests.repair.test_replica_rules import another, content, opened, raws
from tests.repair.test_replica_rules import build as build_replica
from tests.repair.trees import Crash, crashing_at, crashing_when, snapshot
from tests.repair.twelve import MARK, RECORDS, SIZE, Twelve, at, planned, told
from waltzctl.engine.columns.plan_columns import PLAN
from waltzctl.engine.durable.edits import Cut, Edit, MoveDirectory, Overwrite, Remove, Replace
from waltzctl.engine.durable.file_status import special_kind
from waltzctl.engine.durable.manifest import quarantine_directory
from waltzctl.engine.errors import (
    DamageError,
    DiskReadError,
    InvalidRequestError,
    NotWaltzError,
    RefusedError,
    StalePlanError,
)
from waltzctl.engine.findings import Code
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair import survey as surveys
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import Agreed, Arguments, Chosen, PartitionSetting
from waltzctl.engine.repair.content import Content, LiteralBytes
from waltzctl.engine.repair.plan import PlanDraft, bind
from waltzctl.engine.repair.planners import PLANNERS, load_plan, make
from waltzctl.engine.repair.prune import kept_bytes, plan_prune, prune
from waltzctl.engine.repair.recover import _numbers, plan_recover
from waltzctl.engine.repair.recover_ledger import plan_forget
from waltzctl.engine.repair.replicas import Agreement, open_replicas
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.survey import Loss, Survey, by_places, hint_of, open_hint, survey
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.scan.columns import Damage, DamageCause
from waltzctl.engine.scan.order import SKIPPED_ALLOWANCE
from waltzctl.engine.storage.assignment import put_aside_path
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.engine.storage.store import interrupted, list_entries
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE, encode_records


@pytest.fixture
def d(tmp_path: Path) -> Twelve:
    return Twelve(tmp_path / "d")


def refusal(error: type[Exception], call: object, *arguments: object, **more: object) -> str:
    with pytest.raises(error) as refused:
        call(*arguments, **more)  # type: ignore[operator]
    return str(refused.value)


# --- what a plan is bound to, and how it is carried out ---------------------------------------------------------------


def test_a_plan_is_bound_to_every_file_and_to_the_bytes_of_those_that_matter(d: Twelve) -> None:
    found = bind(d.root, (0, 0), [Cut(d.seg(4), 200)], [d.idx(8), d.idx(8)])
    names = ["waltz-storage.ctl", *(f"0/{one.name}" for first in (0, 4, 8) for one in (d.idx(first), d.seg(first)))]
    assert [one[0] for one in found.listing] == names
    assert [one[1] for one in found.listing] == [204, *[160, 368] * 3]
    assert [one[0] for one in found.digests] == [f"0/{d.seg(4).name}", "waltz-storage.ctl", str(d.idx(8).resolve())]
    assert all(one[1] is not None and len(one[1]) == 64 for one in found.digests)
    assert bind(d.root, (1,), []).listing == found.listing[:1]
    d.accepted((1, 2))
    assert [one[0] for one in bind(d.root, (), []).listing] == ["waltz-storage.ctl", ".waltzctl/accepted-losses"]
    (d.root / "1").write_bytes(b"a file")
    assert [one[0] for one in bind(d.root, (1, 0), []).listing[2:]] == [*names[1:], "1"]
    d.control.unlink()
    assert bind(d.root, (), []).digests == (("waltz-storage.ctl", None),)


def test_of_several_files_that_changed_the_first_is_named(d: Twelve) -> None:
    repair = plan_truncate(d.root, partition=0, after=10)
    for name in "zyxwvutsrqponm":
        (d.directory / name).write_bytes(b"x")
    (d.directory / "0").write_bytes(b"x")
    d.flip(d.seg(8), 300)
    assert refusal(StalePlanError, repair.check_current).startswith(f"{d.directory / '0'}: changed since")


def test_partitions_behind_one_that_has_no_directory_are_bound_as_well(d: Twelve) -> None:
    (d.root / "1").write_bytes(b"a file")
    d.directory.rename(d.root / "3")
    names = ["waltz-storage.ctl", "1", *sorted(f"3/{one.name}" for one in (d.root / "3").iterdir())]
    assert [one[0] for one in bind(d.root, (3, 2, 1, 0), []).listing] == names
    assert [one[0] for one in bind(d.root, (2, 3), []).listing] == [names[0], *names[2:]]
    (d.root / "8").write_bytes(b"a file")
    assert [one[0] for one in bind(d.root, (8, 1), []).listing] == ["waltz-storage.ctl", "1", "8"]
    draft = PlanDraft("truncate", d.root, d.root, Arguments())
    draft.partitions |= {8, 1}
    assert draft.finish().partitions == (1, 8)


def test_a_plan_of_many_files_has_the_same_hash_in_every_process(d: Twelve) -> None:
    """Nothing of it is in the order of a set, which is another one each time."""
    edits = [Replace(d.directory / f"{number:03}.new", lambda: [b"x"], 1) for number in range(40)]
    replica = [d.root / f"{number}.other" for number in range(40)]
    names = [one[0] for one in bind(d.root, (), edits, replica).digests]
    mine = sorted(["waltz-storage.ctl", *(f"0/{one.path.name}" for one in edits)])
    assert names == [*mine, *sorted(str(one.resolve()) for one in replica)]


def test_a_plan_is_refused_where_an_edit_would_leave_the_directory(d: Twelve, tmp_path: Path) -> None:
    """Already when it is made: a dry run refuses what the application would."""
    d.directory.rename(tmp_path / "elsewhere")
    d.directory.symlink_to(tmp_path / "elsewhere")
    draft = PlanDraft("truncate", d.root, d.root, Arguments((0,)))
    draft.edits.append(Cut(d.seg(8), 200))
    assert str(d.root) in refusal(RefusedError, draft.finish)


@pytest.mark.parametrize("loss", [False, True])
@pytest.mark.parametrize("stands", ["dead link", "circle", "pipe", "file"])
def test_nothing_is_planned_where_something_else_stands_in_the_place_of_a_directory(
    d: Twelve, tmp_path: Path, stands: str, loss: bool
) -> None:
    """A repair that would make the directory could neither be done there nor be taken back."""
    other = Twelve(tmp_path / "other")
    d.directory.rename(tmp_path / "elsewhere")
    match stands:
        case "pipe":
            os.mkfifo(d.directory)
        case "file":
            d.directory.write_bytes(b"a file")
        case _:
            d.directory.symlink_to("0" if stands == "circle" else "disk-2")
    repair = plan_recover(d.root, replicas=() if loss else (other.root,), allow_data_loss=loss)
    assert told(repair) == ["? partition-directory-missing 0 x10 in None"]
    assert "in its place" in repair.plan.undecided[0].message
    draft = PlanDraft("recover", d.root, d.root, Arguments((0,)))
    draft.edits.append(Replace(d.seg(0), lambda: [b"x"], 1))
    assert "not a directory" in refusal(RefusedError, draft.finish)


@pytest.mark.parametrize(("replica", "rest"), [(False, " --from REPLICA"), (True, " --from REPLICA --allow-data-loss")])
def test_what_a_plan_leaves_names_the_step_that_comes_behind_its_command(
    d: Twelve, tmp_path: Path, replica: bool, rest: str
) -> None:
    d.spoil(5)
    other = Twelve(tmp_path / "other")
    other.spoil(5)
    (left,) = plan_recover(d.root, replicas=[other.root] if replica else []).plan.undecided
    assert left.remedy == f"waltzctl recover {d.root} --partition 0{rest}"


def test_every_edit_has_a_part_in_the_hash_of_its_plan(d: Twelve) -> None:
    """Whatever its steps say."""
    aside = put_aside_path(d.root, 0)
    edits: list[list[Edit]] = [
        [],
        [Cut(d.seg(8), 200)],
        [Cut(d.seg(8), 201)],
        [Cut(d.seg(4), 200)],
        [Overwrite(d.seg(8), 200, b"x")],
        [Overwrite(d.seg(8), 201, b"x")],
        [Overwrite(d.seg(8), 200, b"y")],
        [Overwrite(d.seg(4), 200, b"x")],
        [Replace(d.seg(8), lambda: [b"x"], 1)],
        [Replace(d.seg(8), lambda: [b"x"], 2)],
        [Replace(d.seg(4), lambda: [b"x"], 1)],
        [Remove(d.seg(8))],
        [Remove(d.seg(4))],
        [MoveDirectory(d.directory, aside)],
    ]
    hashes = set()
    for one in edits:
        draft = PlanDraft("truncate", d.root, d.root, Arguments((0,)))
        draft.edits += one
        hashes.add(draft.finish().plan.hash)
    assert len(hashes) == len(edits)


def test_a_directory_that_cannot_be_listed_binds_nothing(d: Twelve, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("waltzctl.engine.durable.file_status.os.listdir", fail)
    assert "Permission denied" in refusal(DiskReadError, bind, d.root, (0,), [])


def test_without_a_control_file_nothing_is_carried_out(d: Twelve) -> None:
    repair = plan_truncate(d.root, partition=0, after=10)
    d.control.unlink()
    assert "there is no control file, so that the directory cannot be locked" in refusal(
        RefusedError, apply, repair, arguments=[]
    )
    assert d.seg(8).stat().st_size == 368


def test_what_a_crash_left_of_a_repair_that_had_changed_nothing_is_cleared_away(d: Twelve) -> None:
    repair = plan_truncate(d.root, partition=0, after=9)
    with pytest.raises(Crash), crashing_at(9):
        apply(repair, arguments=[])
    place = quarantine_directory(d.root)
    assert (len(list(place.iterdir())), list_entries(d.root)) == (1, ())
    apply(plan_truncate(d.root, partition=0, after=10), arguments=[])
    assert [one.name for one in place.iterdir() if one.is_dir()] == [one.id for one in list_entries(d.root)]


def test_a_repair_that_was_interrupted_since_keeps_another_plan_from_being_carried_out(d: Twelve) -> None:
    repair = plan_truncate(d.root, partition=0, after=10)
    with pytest.raises(Crash), crashing_when(lambda change: (change.kind, change.path) == ("truncate", d.idx(8))):
        apply(plan_truncate(d.root, partition=0, after=9), arguments=[])
    (left,) = interrupted(d.root)
    before = snapshot(d.root)
    assert f"the repair {left.id} was interrupted; take it back with undo" in refusal(
        RefusedError, apply, repair, arguments=[]
    )
    assert snapshot(d.root) == before


def test_the_files_of_replicas_that_were_read_are_named_in_order(d: Twelve, tmp_path: Path) -> None:
    others = [Twelve(tmp_path / name) for name in "zyx"]
    for first in (0, 4, 8):
        d.drop(first)
    found = plan_recover(d.root, replicas=[one.root for one in others])
    assert found.sources == tuple(others[0].seg(first) for first in (0, 4, 8))
    whole = Twelve(tmp_path / "whole")
    for first in (0, 4, 8):
        whole.put(first, range(first, first + 4), other=range(12))
        whole.flip(whole.seg(first), 13)
    every = plan_recover(whole.root, replicas=[one.root for one in others])
    assert every.sources == tuple(sorted(one.seg(first) for one in others for first in (0, 4, 8)))


def test_a_plan_that_is_empty_is_carried_out_without_a_control_file(d: Twelve) -> None:
    d.control.unlink()
    result = apply(plan_recover(d.root), arguments=[])
    assert (result.applied, result.undo_id, result.quarantine, result.taken_back) == (False, None, None, ())


def test_plans_are_made_by_the_command_that_is_named(d: Twelve) -> None:
    assert set(PLANNERS) == {"rebuild-index", "truncate", "recover", "convert", "set-partition", "pages recover"}
    for command, arguments in (
        ("nothing", Arguments()),
        ("truncate", Arguments()),
        ("truncate", Arguments((0,))),
        ("truncate", Arguments(after=3)),
        ("convert", Arguments()),
        ("set-partition", Arguments((0,))),
        ("set-partition", Arguments(settings=(Chosen("available", False),))),
    ):
        assert refusal(InvalidRequestError, make, command, d.root, arguments) == (
            f"{command!r} is not a command that makes plans"
        )
    assert make("truncate", d.root, Arguments((0,), after=10)) == plan_truncate(d.root, partition=0, after=10)
    assert make("convert", d.root, Arguments(layout=Layout.DOCUMENTED)).plan.steps
    d.accepted((1, 2))
    assert told(make("recover", d.root, Arguments(forget_losses=True)))[0] == "forget-accepted-loss ledger 1..2"


def test_a_plan_is_made_again_from_its_file_and_is_carried_out_as_a_whole(d: Twelve, tmp_path: Path) -> None:
    repair, file = plan_truncate(d.root, partition=0, after=10), tmp_path / "plan.json"
    body = PLAN.shown(repair.plan)
    file.write_text(json.dumps(body))
    assert load_plan(file) == repair
    for key, value, said in (
        ("schema", "other", "schema 'other'"),
        ("type", "other", "not a plan"),
        ("path", 3, "a text is missing"),
        ("path", f"{d.root}\0", "a text is missing"),
    ):
        file.write_text(json.dumps({**body, key: value}))
        assert said in refusal(InvalidRequestError, load_plan, file)
    file.write_text(json.dumps({**body, "steps": body["steps"][:-1]}))
    assert "its steps are not those that would be done" in refusal(StalePlanError, load_plan, file)
    file.write_text(json.dumps({**body, "hash": "0" * 64}))
    assert "no longer those that the plan was made for" in refusal(StalePlanError, load_plan, file)


def test_what_is_pruned_is_told_by_its_bytes(d: Twelve) -> None:
    apply(plan_truncate(d.root, partition=0, after=10), arguments=[])
    (entry,) = list_entries(d.root)
    prepared = plan_prune(d.root, older_than=0)
    (step,) = prepared.plan.steps
    assert (step.action, step.path, step.partition, step.from_transaction_id, step.to_transaction_id) == (
        "drop-kept-copies", entry.path, None, None, None,
    )  # fmt: skip
    assert (step.offset, step.length, step.loses_data, prepared.bytes) == (0, 68, True, 68)
    d.control.rename(d.root / "away")
    assert "there is no control file" in refusal(RefusedError, prune, prepared)
    (d.root / "away").rename(d.control)
    assert prune(prepared) == 68
    nothing = plan_prune(d.root, older_than=0)
    assert (nothing.entries, nothing.bytes, prune(nothing)) == ((), 0, 0)


def test_what_a_link_among_kept_copies_leads_to_is_not_counted(d: Twelve) -> None:
    apply(plan_truncate(d.root, partition=0, after=10), arguments=[])
    (entry,) = list_entries(d.root)
    before = kept_bytes(entry)
    (entry.path / "link").symlink_to(d.root / "none")
    assert (before, kept_bytes(entry)) == (68, 68 + len(str(d.root / "none")))


# --- what cannot be planned -------------------------------------------------------------------------------------------


def test_what_a_truncation_refuses_before_it_looks_at_records(d: Twelve) -> None:
    assert "not in a storage directory" in refusal(RefusedError, plan_truncate, d.seg(4), partition=0, after=3)
    assert "the first one is 0" in refusal(InvalidRequestError, plan_truncate, d.root, partition=0, after=-2)
    assert plan_truncate(d.directory, partition=0, after=11).plan.steps == ()
    os.truncate(d.control, 100)
    assert "no usable control file" in refusal(RefusedError, plan_truncate, d.root, partition=0, after=3)


def test_a_truncation_is_of_a_partition_in_a_storage_directory(d: Twelve, tmp_path: Path) -> None:
    assert "partition 1" in refusal(InvalidRequestError, plan_truncate, d.directory, partition=1, after=3)
    alone = tmp_path / "alone"
    alone.mkdir()
    d.directory.rename(alone / "5")
    assert "not in a storage directory" in refusal(RefusedError, plan_truncate, alone / "5", partition=5, after=3)


def test_a_partition_that_holds_only_headers_ends_in_front_of_them(d: Twelve) -> None:
    d.drop(0)
    d.cut(4, HEADER_SIZE)
    d.cut(8, HEADER_SIZE)
    assert told(plan_truncate(d.root, partition=0, after=3, allow_data_loss=True))[:3] == [
        "remove-segment 8.seg 8..8 [0+128]",
        "remove-index 8.idx 8..8 [0+160] loses",
        "cut-index 4.idx [128+32] loses",
    ]
    assert "ends at transaction 3, before 4" in refusal(RefusedError, plan_truncate, d.root, partition=0, after=4)
    assert told(plan_truncate(d.root, partition=0, after=-1, allow_data_loss=True))[:2] == [
        "remove-segment 8.seg 8..8 [0+128]",
        "remove-index 8.idx 8..8 [0+160] loses",
    ]
    d.cut(4, HEADER_SIZE - 1)
    assert "ends at transaction 3" in refusal(RefusedError, plan_truncate, d.root, partition=0, after=9)


def test_a_truncation_cuts_behind_the_record_in_front_of_damage(d: Twelve) -> None:
    """What is damaged begins where the one in front of it ends; a byte behind a header is data that is lost."""
    d.mark(-1)
    d.spoil(7)
    assert told(plan_truncate(d.root, partition=0, after=6))[2] == "cut-segment 4.seg 7..7 [308+60] loses"
    d.cut(8, HEADER_SIZE + 1)
    assert told(plan_truncate(d.root, partition=0, after=5))[0] == "remove-segment 8.seg 8..8 [0+129] loses"


def test_an_index_alone_takes_no_transactions_from_the_segment_that_holds_them(d: Twelve) -> None:
    d.write(6, [])
    d.drop(6, index=False)
    assert told(plan_truncate(d.root, partition=0, after=2, allow_data_loss=True))[2:5] == [
        "remove-index 6.idx 6..7 [0+128]",
        "remove-segment 4.seg 4..7 [0+368] loses",
        "remove-index 4.idx 4..7 [0+160]",
    ]


def test_a_recovery_is_of_a_storage_directory_and_its_own_partitions(d: Twelve, tmp_path: Path) -> None:
    for call in (plan_recover, plan_forget):
        assert "not a storage directory" in refusal(NotWaltzError, call, d.seg(4))
    (d.root / "3").mkdir()
    assert told(plan_recover(d.root)) == ["? partition-not-assigned in None"]
    assert told(plan_recover(d.root, partitions=[0])) == []
    os.mkfifo(tmp_path / "pipe")
    d.control.unlink()
    (tmp_path / "pipe").rename(d.control)
    assert special_kind(d.control) is not None
    assert told(plan_recover(d.root)) == ["? special-file in None"]


def test_partitions_are_planned_in_their_order() -> None:
    """Those that were named, or all, and those that have a directory; not those that the control file has not, or that cannot be
    listed.
    """
    control = SimpleNamespace(partitions=range(12))
    for named, there, numbers in (
        ([9, 1], [], [1, 9]),
        ([9, 1], [10, 2, 12], [1, 2, 9, 10]),
        (None, [3, 12], list(range(12))),
        ([], [11, 12, 13], [11]),
        ([], [], []),
    ):
        for unlisted in ([], [9], [3, 12]):
            view = SimpleNamespace(partitions=dict.fromkeys(there), unlisted=dict.fromkeys(unlisted))
            expected = [one for one in numbers if one not in unlisted]
            assert _numbers(view, control, named) == expected  # type: ignore[arg-type]


def test_a_partition_that_cannot_be_read_does_not_keep_the_others_from_it(
    d: Twelve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DiskReadError(d.seg(4), 200, OSError(5, "Input/output error"))

    monkeypatch.setattr("waltzctl.engine.repair.recover.plan_partition", fail)
    assert told(plan_recover(d.root)) == ["? read-error in None"]


def test_replicas_are_other_storage_directories_of_the_same_cluster(d: Twelve, tmp_path: Path) -> None:
    other = Twelve(tmp_path / "o")
    control = read_control(d.control)
    assert control is not None
    assert [one.path for one in open_replicas([other.root], d.root, control)] == [other.root]
    assert "a partition directory, not the storage directory" in refusal(
        NotWaltzError, open_replicas, [other.directory], d.root, control
    )
    assert "this is the directory to repair" in refusal(InvalidRequestError, open_replicas, [d.root], d.root, control)
    (tmp_path / "link").symlink_to(d.root)
    for named, root in ((tmp_path / "link", d.root), (d.root, tmp_path / "link")):
        said = refusal(InvalidRequestError, open_replicas, [other.root, named], root, control)
        assert said.startswith(f"{named}: this is the directory to repair")
    os.truncate(other.control, 100)
    assert "no usable control file" in refusal(NotWaltzError, open_replicas, [other.root], d.root, control)


@pytest.mark.parametrize("name", ["availability.json", "sessions"])
def test_state_files_that_nobody_understands_are_left_to_a_person(d: Twelve, name: str) -> None:
    path = d.root / ".waltzctl" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"{")
    assert told(plan_recover(d.root)) == ["? state-file-damaged in None"]
    assert told(plan_recover(d.directory, partitions=[0])) == ["? state-file-damaged in None"]
    path.unlink()
    assert told(plan_recover(d.root)) == []


def test_the_ledger_of_a_partition_is_forgotten(d: Twelve) -> None:
    d.accepted((1, 2), (5, 6))
    wanted = ["forget-accepted-loss ledger 1..2", "forget-accepted-loss ledger 5..6", "= remove ledger"]
    for path, partitions in ((d.root, None), (d.root, [0]), (d.directory, None), (d.directory, [0])):
        assert told(plan_forget(path, partitions=partitions)) == wanted
    for path, partitions in ((d.root, []), (d.directory, [])):
        assert told(plan_forget(path, partitions=partitions)) == []
    ledger = d.root / ".waltzctl" / "accepted-losses"
    ledger.write_bytes(ledger.read_bytes()[:-9])
    assert told(plan_forget(d.root))[-2:] == ["set-ledger-aside ledger", "= remove ledger"]
    assert "nobody knows whose losses" in refusal(RefusedError, plan_forget, d.root, partitions=[0])
    assert "? accepted-losses-damaged in None" in told(plan_recover(d.root))
    d.spoil(5)
    assert "nothing more can be entered" in refusal(RefusedError, plan_recover, d.root, allow_data_loss=True)
    ledger.unlink()
    assert told(plan_forget(d.root)) == []


def test_losses_enter_the_ledger_in_the_order_of_their_ids(d: Twelve) -> None:
    d.accepted((6, 6))
    d.spoil(1, 3)
    apply(plan_recover(d.root, allow_data_loss=True), arguments=[])
    found = read_ledger(d.root).losses
    assert [(one.first, one.last, one.local_low_water_mark, one.disputed) for one in found] == [
        (1, 1, MARK, False), (3, 3, MARK, False), (6, 6, 8, False),
    ]  # fmt: skip
    assert [bool(one.time) for one in found] == [True, True, True]


# --- surveys ----------------------------------------------------------------------------------------------------------


def test_a_hint_is_closed_behind_its_use(d: Twelve) -> None:
    with hint_of(d.idx(4)) as hint:
        assert hint is not None
        assert hint.size() == 160
        held = hint.fileno()
        os.fstat(held)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)
    d.idx(4).unlink()
    for path in (None, d.idx(4)):
        with hint_of(path) as none:
            assert none is None
    os.mkfifo(d.idx(4))
    assert open_hint(d.idx(4)) is None


def test_an_end_by_its_places_keeps_the_losses_in_front_of_it() -> None:
    losses = [Loss(Code.RECORD_CHECKSUM, 100 * n, 100 * n + 60, 10 * n, 10 * n + 1, None) for n in (2, 3, 4)]
    jump = Loss(Code.RECORD_ORDER, 500, 500, 50, 60, 440)
    found = Survey(0, 70, 1100, 1100, 57, 1040, (*losses, jump))
    other = by_places(found)
    assert other is not None
    tail = dataclasses.replace(jump, end=1100, stop=None)
    assert other == Survey(0, 50, 500, 1100, 47, 440, (*losses, tail))
    torn = Loss(Code.TORN_TAIL, 1100, 1130, 70, None, 1040)
    other = by_places(dataclasses.replace(found, size=1130, losses=(*losses, jump, torn)))
    assert other is not None
    assert other.losses == (*losses, dataclasses.replace(tail, end=1130))
    for change in ({"unread": True}, {"either": True}, {"doubtful": True}, {"cause": Code.RECORD_ORDER}):
        spoilt = dataclasses.replace(torn, **change)  # type: ignore[arg-type]
        assert by_places(dataclasses.replace(found, losses=(*losses, jump, spoilt))) is None
    assert by_places(dataclasses.replace(found, losses=())) is None
    assert by_places(dataclasses.replace(found, losses=(torn,))) is None


class Row(list[int]):
    """A run of records of 60 bytes as a scan gives it, with the id of the first."""

    def __init__(self, first: int, start: int, many: int) -> None:
        super().__init__(range(many))
        self.first_transaction_id, self.start, self.end = first, start, start + SIZE * many
        self.offset = surveys.np.arange(start, self.end, SIZE)
        self.data_damaged, self.data_ok = False, surveys.np.ones(many, bool)


def test_records_behind_what_was_taken_for_the_end_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scan gives that; if one did, nothing of them may be taken for a part of a torn end."""
    broken = [Damage(DamageCause.RECORD_CHECKSUM, at(n), SIZE, n, n + 1, None, None, None, None, "index") for n in (1,)]
    end = Damage(DamageCause.RECORD_ORDER, at(3), SIZE, 3, None, None, None, None, None, "end")
    items = [Row(0, at(0), 1), *broken, Row(2, at(2), 1), end, Row(5, 128 + 4 * SIZE, 2)]
    monkeypatch.setattr(surveys, "summarise_records", lambda *_, **__: iter(items))
    found = survey(Content("", (LiteralBytes(bytes(128 + 6 * SIZE)),)), 0)
    assert [(one.first, one.stop) for one in found.losses] == [(1, 2), (3, 5)]
    assert (found.tail, found.next_id, found.records) == (None, 7, 4)


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_a_survey_takes_no_jump_that_no_loss_explains(
    monkeypatch: pytest.MonkeyPatch, more: int, *, fits: bool
) -> None:
    """A record that follows may have any id; nothing is given up, or asked for, up to there."""
    size = 128 + 2 * SIZE
    stop = 1 + size // 40 + SKIPPED_ALLOWANCE + more
    jump = Damage(DamageCause.RECORD_CHECKSUM, at(1), SIZE, 1, stop, None, None, None, None, "index")
    monkeypatch.setattr(surveys, "summarise_records", lambda *_, **__: iter([Row(0, at(0), 1), jump]))
    content = Content("", (LiteralBytes(bytes(size)),))
    if fits:
        assert survey(content, 0).next_id == stop
    else:
        assert "no loss of records" in refusal(DamageError, survey, content, 0)


def test_a_torn_end_is_looked_over_from_its_second_byte_on(tmp_path: Path) -> None:
    """That byte reads as the first of an id, and what follows as a length beyond the end; a whole record begins behind it."""
    d = Twelve(tmp_path / "d")
    body = encode_records(RECORDS[:1])[0]
    d.seg(0).write_bytes(d.seg(0).read_bytes()[:128] + b"\0" + body + b"torn")
    found = survey(Content.of_file(d.seg(0), 128 + 1 + len(body) + 4), 0)
    assert [(one.cause, one.first, one.stop, one.doubtful) for one in found.losses] == [(Code.TORN_TAIL, 0, None, True)]


# --- replicas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("differing", [20, 21, 22, 23])
def test_each_record_of_a_row_that_a_replica_holds_in_part_is_compared(tmp_path: Path, differing: int) -> None:
    """The replica ends with 23; the row goes on to 24."""
    replica = opened(build_replica(tmp_path / "r"))
    more = another(dataclasses.replace(HELD[0], transaction_id=24))
    assert replica.compare(0, content(20, [*raws(20, 24), more]), 20) is Agreement.EQUAL
    changed = raws(20, 24, **{f"r{differing}": another})
    assert replica.compare(0, content(20, [*changed, more]), 20) is Agreement.DIFFERS


def test_replicas_that_agree_with_each_other_and_not_with_what_is_here_restore_it(tmp_path: Path) -> None:
    agreed = [Agreed(0, 11, None, ((10, 10),))]
    for way in ("replica", "loss replica"):
        lines = planned(tmp_path / way, lambda one: one.put(8, range(8, 12), other=[10]), way, agreed=agreed)
        assert lines == ["restore-record 8.seg 10..10 [248+60] loses", "= write 8.seg [248+60]"]


def test_of_replicas_those_that_hold_all_of_an_overlap_vote(tmp_path: Path) -> None:
    d, short, whole = (Twelve(tmp_path / name) for name in "dsw")
    d.put(4, range(4, 10), other=[8, 9])
    short.drop(8)
    for order in ([short.root, whole.root], [whole.root, short.root]):
        repair = plan_recover(d.root, replicas=order)
        assert told(repair)[0] == "cut-segment 4.seg 8..9 [368+120]"
        assert repair.sources == (whole.seg(8),)


def test_the_last_transaction_that_files_prove_is_not_cut_as_if_nobody_had_been_told_of_it(d: Twelve) -> None:
    """An index is called after the transaction behind it."""
    d.cut(8, at(11) + 20)
    d.write(12, [])
    d.seg(12).unlink()
    plan = plan_recover(d.root).plan
    assert plan.steps == ()
    assert "but transactions up to 11 were durable here" in plan.undecided[0].message


def test_behind_an_overlap_that_is_left_the_log_goes_on_from_the_highest_id(d: Twelve) -> None:
    """A segment with a torn end, and other records under ids in the middle of it."""
    d.put(4, range(4, 10))
    d.cut(4, HEADER_SIZE + 5 * SIZE + 20)
    d.put(6, [6, 7], other=[6, 7])
    d.drop(8)
    d.put(11, [11])
    assert told(plan_recover(d.root)) == ["? segment-overlap 6 in 6", "? segment-gap 9 x2 in 11"]


@pytest.mark.parametrize("layout", [Layout.RELEASED])
def test_a_partition_that_is_not_assigned_is_mended_where_its_files_are(tmp_path: Path, layout: Layout) -> None:
    d = Twelve(tmp_path / "d", layout=layout)
    apply(plan_set_partition(d.root, partition=0, setting=PartitionSetting(assigned=False)), arguments=[])
    d.list(4, 2)
    assert told(plan_recover(d.root))[0].startswith("rebuild-index")
    for first in (0, 4, 8):
        d.drop(first)
    assert "create-segment" not in [one.action for one in plan_recover(d.root, allow_data_loss=True).plan.steps]


def test_ids_beyond_the_name_of_the_next_segment_are_none_that_a_truncation_may_keep(d: Twelve) -> None:
    d.cut(8, HEADER_SIZE)
    d.put(4, [4, 9, 10], of=[4, 5, 6])
    said = refusal(RefusedError, plan_truncate, d.root, partition=0, after=5, allow_data_loss=True)
    assert "partition 0 ends at transaction 4, before 5" in said
