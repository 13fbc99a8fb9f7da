"""What a planner is asked for, and what comes back from a plan file: values and their kinds, one step to each side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import build_directory
from waltzctl.engine.columns.plan_columns import PLAN
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.repair.arguments import Agreed, Arguments, Chosen, PartitionSetting, arguments_of
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.planners import load_plan, make
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_ledger import plan_forget
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.storage.loss_ledger import ledger_path
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE, segment_name

FULL = Arguments(
    (1, 2),
    True,
    7,
    ("/r/1",),
    True,
    (Agreed(1, 9, 8, ((3, 4), (6, 6)), True), Agreed(2, -1, missing=("/r/3/2",))),
    Layout.RELEASED,
    (Chosen("session_id", 4), Chosen("assigned", False)),
    True,
    forget_journal=True,
)


def loaded(value: Arguments, **changes: Any) -> Arguments:
    """As it comes back from a plan file, with something changed in the file."""
    return arguments_of({**json.loads(json.dumps(value.as_object())), **changes})


@pytest.mark.parametrize("given", [FULL, Arguments(), Arguments((0,)), Arguments(after=0), Arguments(everything=True)])
def test_arguments_come_back_from_a_plan_file_as_they_were(given: Arguments) -> None:
    assert loaded(given) == given
    for name in ("forget_losses", "forget_journal", "allow_data_loss", "everything"):
        assert type(getattr(loaded(given), name)) is bool


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": [1, True]},
        {"partitions": ["1"]},
        {"after": True},
        {"after": "7"},
        {"replicas": ["/r", 1]},
        {"layout": "other"},
        {"unknown": 1},
        {"settings": [{"name": "session_id", "value": True}]},
        {"settings": [{"name": "session_id"}]},
        {"agreed": [{"partition": True, "clean_to": 1}]},
        {"agreed": [{"partition": 1, "clean_to": "1"}]},
        {"agreed": [{"partition": 1, "clean_to": 1, "cut_after": True}]},
        {"agreed": [{"partition": 1, "clean_to": 1, "outvoted": [[1, "2"]]}]},
        {"agreed": [{"partition": 1, "clean_to": 1, "outvoted": [[True, 2]]}]},
        {"agreed": [{"partition": 1, "clean_to": 1, "outvoted": [[1]]}]},
        {"agreed": [{"partition": 1, "clean_to": 1, "missing": "/a/0"}]},
        {"agreed": [{"partition": 1, "clean_to": 1, "missing": [1]}]},
        {"agreed": [{"partition": 1, "clean_to": 1, "restore_end": 1}]},
        {"agreed": [{"partition": 1}]},
    ],
)
def test_arguments_of_another_kind_are_no_arguments(changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        loaded(FULL, **changes)


def test_what_was_added_later_is_left_out_where_there_is_nothing() -> None:
    assert Arguments((1,)).as_object() == {
        "partitions": (1,),
        "everything": False,
        "after": None,
        "replicas": (),
        "allow_data_loss": False,
    }
    later = {"agreed", "layout", "settings", "forget_losses", "forget_journal"}
    assert set(FULL.as_object()) - set(Arguments().as_object()) == later


def test_partitions_are_in_order_and_each_once() -> None:
    assert Arguments.of([2, 0, 2, 1], after=3) == Arguments((0, 1, 2), after=3)
    assert Arguments.of([8, 1]).partitions == (1, 8)
    assert Arguments.of().partitions is None


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (Arguments(), set()),
        (Arguments(replicas=("x",)), {"--from"}),
        (Arguments(allow_data_loss=True), {"--allow-data-loss"}),
        (Arguments(everything=True), {"--all"}),
        (FULL, {"--from", "--allow-data-loss", "--all"}),
    ],
)
def test_the_options_that_make_a_repair_go_further(given: Arguments, options: set[str]) -> None:
    assert given.options == options


@pytest.mark.parametrize("name", ["session_id", "low_water_mark", "local_low_water_mark"])
@pytest.mark.parametrize(("value", "refused"), [(-2, True), (-1, False), (0, False), (2**63 - 1, False), (2**63, True)])
def test_a_mark_goes_from_none_to_the_largest_id(name: str, value: int, refused: bool) -> None:
    setting = PartitionSetting.of([Chosen(name, value)])
    assert setting.chosen() == (Chosen(name, value),)
    if refused:
        with pytest.raises(InvalidRequestError, match=f" {value}: they go from -1, which is none, to {2**63 - 1}"):
            setting.check()
    else:
        setting.check()


def test_something_has_to_be_set() -> None:
    with pytest.raises(InvalidRequestError, match="nothing is to be set"):
        PartitionSetting().check()
    PartitionSetting(available=False).check()


@pytest.mark.parametrize(
    "chosen",
    [
        [Chosen("nothing", 1)],
        [Chosen("session_id", 1), Chosen("session_id", 1)],
        [Chosen("session_id", True)],
        [Chosen("assigned", 1)],
        [Chosen("available", 0)],
    ],
)
def test_what_cannot_be_set(chosen: list[Chosen]) -> None:
    with pytest.raises(TypeError, match="cannot be set to"):
        PartitionSetting.of(chosen)


PLANS: dict[str, Callable[[Path, Path], Repair]] = {
    "recover": lambda root, replica: plan_recover(root),
    "recover a partition": lambda root, replica: plan_recover(root, partitions=[1]),
    "recover, from a replica": lambda root, replica: plan_recover(root, replicas=[replica]),
    "recover, with loss": lambda root, replica: plan_recover(root, allow_data_loss=True),
    "recover, by agreement": lambda root, replica: plan_recover(
        root, replicas=[replica], allow_data_loss=True, agreed=[Agreed(0, 9, 9, ((2, 3),), True)]
    ),
    "forget losses": lambda root, replica: plan_forget(root),
    "forget losses of a partition": lambda root, replica: plan_forget(root, partitions=[1]),
    "rebuild": lambda root, replica: plan_rebuild_index(root, partitions=[0]),
    "rebuild everything": lambda root, replica: plan_rebuild_index(root, everything=True),
    "truncate": lambda root, replica: plan_truncate(root, partition=0, after=10),
    "truncate below the mark": lambda root, replica: plan_truncate(root, partition=1, after=2, allow_data_loss=True),
    "convert": lambda root, replica: plan_convert(root, layout=Layout.DOCUMENTED),
    "set a partition": lambda root, replica: plan_set_partition(
        root, partition=1, setting=PartitionSetting(session_id=9, available=False)
    ),
    "set a partition back": lambda root, replica: plan_set_partition(
        root, partition=1, setting=PartitionSetting(low_water_mark=1), allow_data_loss=True
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_comes_from_a_file_is_the_one_that_was_written(tmp_path: Path, name: str) -> None:
    """Whatever it was asked for."""
    for root in ("root", "replica"):
        build_directory(tmp_path / root, {0: 12, 1: 12}, per_segment=4, size=20, local_low_water_mark=5)
    record = (tmp_path / "root" / "1").joinpath(segment_name(4))
    data = bytearray(record.read_bytes())
    data[HEADER_SIZE + 9] ^= 1
    record.write_bytes(data)
    losses = [AcceptedLoss(number, 20, 21, 8, "then", "why", False) for number in (0, 1)]
    ledger_path(tmp_path / "root").parent.mkdir()
    ledger_path(tmp_path / "root").write_bytes(encode_ledger(losses))
    written = PLANS[name](tmp_path / "root", tmp_path / "replica")
    assert isinstance(written, Repair)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN.shown(written.plan)))
    assert load_plan(tmp_path / "plan.json").plan == written.plan


@pytest.mark.parametrize("command", ["truncate", "set-partition"])
@pytest.mark.parametrize("partitions", [None, (), (0, 1)])
def test_a_plan_for_one_partition_is_made_for_exactly_one(
    tmp_path: Path, command: str, partitions: tuple[int, ...] | None
) -> None:
    storage = build_directory(tmp_path / "s", {0: 12, 1: 12}, per_segment=4)
    with pytest.raises(InvalidRequestError):
        make(command, storage, Arguments(partitions, after=10, settings=(Chosen("session_id", 9),)))
