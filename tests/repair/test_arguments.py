"""What a planner is asked for, and what comes back from a plan file: values and their kinds, one step to each side."""

from __future__ import annotations

import json
from typing import Any

import pytest

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.repair.arguments import Agreed, Arguments, Chosen, PartitionSetting, arguments_of
from waltzctl.formats.control import Layout

FULL = Arguments(
    (1, 2),
    True,
    7,
    ("/r/1",),
    True,
    (Agreed(1, 9, 8, ((3, 4), (6, 6)), True), Agreed(2, -1)),
    Layout.RELEASED,
    (Chosen("session_id", 4), Chosen("assigned", False)),
    True,
)


def loaded(value: Arguments, **changes: Any) -> Arguments:
    """As it comes back from a plan file, with something changed in the file."""
    return arguments_of({**json.loads(json.dumps(value.as_object())), **changes})


@pytest.mark.parametrize("given", [FULL, Arguments(), Arguments((0,)), Arguments(after=0), Arguments(everything=True)])
def test_arguments_come_back_from_a_plan_file_as_they_were(given: Arguments) -> None:
    assert loaded(given) == given
    for name in ("forget_losses", "allow_data_loss", "everything"):
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
    assert set(FULL.as_object()) - set(Arguments().as_object()) == {"agreed", "layout", "settings", "forget_losses"}


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
