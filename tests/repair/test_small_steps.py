"""Judgements of repairs that are functions of values, each one step to each side."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import CREATED, KEY, build_directory
from waltzctl.engine.durable.edits import Replace
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError, RefusedError
from waltzctl.engine.findings import Code
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair import salvage_sources
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.salvage_control import (
    FoundControl,
    _not_older,
    assigned_by,
    choose_control,
    salvaged_infos,
)
from waltzctl.engine.repair.salvage_sources import list_sources
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.survey import Loss, _joins
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.scan.columns import Damage, DamageCause
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    ControlFile,
    Layout,
    PartitionStruct,
    initial_control,
)


@pytest.mark.parametrize(
    ("changes", "joins"),
    [
        ({}, True),
        ({"stop": None}, True),
        ({"stop": 6}, False),
        ({"stop": 8}, False),
        ({"end": 299}, False),
        ({"end": 301}, False),
        ({"record_ok": True}, False),
        ({"unread": True}, False),
        ({"stop": None, "end": 1, "record_ok": True, "unread": True}, True),
    ],
)
def test_damage_that_touches_a_loss_is_one_with_it(changes: dict[str, object], joins: bool) -> None:
    """Unless there is a record between them that can be read, or bytes that nobody has read."""
    before = Loss(Code.RECORD_CHECKSUM, 200, 300, 5, 7, None)
    damage = Damage(DamageCause.RECORD_CHECKSUM, 300, 50, 7, 8, None, None, None, None, "index")
    assert _joins(replace(before, **changes), damage) is joins  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [0, 1, 10])
def test_an_index_takes_no_more_than_its_data_file_can_have_records(tmp_path: Path, records: int) -> None:
    storage = build_directory(tmp_path / "s", {0: records}, size=0, local_low_water_mark=-1)
    (index,) = (storage / "0").glob("*.idx")
    index.unlink()
    (edit,) = plan_rebuild_index(storage).edits
    assert isinstance(edit, Replace)
    data = index.with_suffix(".seg").stat().st_size
    assert edit.size == 128 + 8 * (data // 40)


@pytest.mark.parametrize("size", [0, 20, 127, 128, 129])
def test_without_a_usable_control_file_nothing_is_set(tmp_path: Path, size: int) -> None:
    storage = build_directory(tmp_path / "s", {0: 3})
    os.truncate(storage / CONTROL_FILE_NAME, size)
    with pytest.raises(RefusedError, match="no usable control file"):
        plan_set_partition(storage, partition=0, setting=PartitionSetting(session_id=9))


@pytest.mark.parametrize("before", list(Layout))
@pytest.mark.parametrize("after", list(Layout))
def test_what_is_salvaged_of_a_control_file_is_assigned_and_switched_on(
    tmp_path: Path, before: Layout, after: Layout
) -> None:
    storage = build_directory(tmp_path / "s", {0: 3, 1: 3}, layout=before, num_partitions=3, key=KEY)
    control = read_control(storage / CONTROL_FILE_NAME)
    assert control is not None
    infos = salvaged_infos(control, after, (1, 2, 7))
    assert set(infos) <= {1, 2}
    current = infos[1].current_struct
    assert current is not None
    assert (current.session_id, current.low_water_mark, current.local_low_water_mark) == (3, 1, 1)
    if after.has_flags:
        assert current.flags == FLAG_ASSIGNED | FLAG_AVAILABLE
    assert assigned_by(control) == {0, 1}


# --- control files that were found --------------------------------------------------------------------------------------


def control(
    partitions: int = 2, *, sequence: int = 5, mark: int = 9, created: int = CREATED, second: int | None = None
) -> ControlFile:
    """A control file whose partitions have all this sequence and mark; partition 1 another sequence where `second` is given."""
    made = initial_control(Layout.RELEASED, KEY, partitions, created)
    infos = []
    for number, info in enumerate(made.partitions):
        at = sequence if second is None or number != 1 else second
        pair = [
            replace(one, session_id=3, low_water_mark=mark, local_low_water_mark=mark, sequence=at - n).sealed()
            for n, one in enumerate(info.structs)
        ]
        infos.append(replace(info, structs=(pair[0], pair[1])))
    return replace(made, partitions=tuple(infos))


def found(*controls: ControlFile) -> list[FoundControl]:
    return [FoundControl(Path(f"/{number}"), 0, one) for number, one in enumerate(controls)]


@pytest.mark.parametrize(
    ("controls", "reasons"),
    [
        ([control()], ["+the only one"]),
        ([control(), control()], ["+all say the same", "says the same"]),
        (
            [control(), control(sequence=6)],
            ["not newer than the one that is used", "+sequence numbers, sessions and marks are the newest"],
        ),
        (
            [control(sequence=6, second=4), control(second=5)],
            ["states of one file contradict each other: each has a partition that is newer than in another"] * 2,
        ),
    ],
)
def test_which_control_file_is_used(controls: list[ControlFile], reasons: list[str]) -> None:
    chosen = choose_control(found(*controls))
    assert [("+" if one.used else "") + one.reason for one in chosen.found] == reasons


def test_a_copy_that_lost_something_does_not_make_an_older_state_say_the_same() -> None:
    """Neither does it count for more than the one that is whole, wherever it lies."""
    whole, older = control(second=6), control()
    first, second = whole.partitions[1].structs
    lost = replace(whole.partitions[1], structs=(replace(first, valid=False), replace(second, valid=False)))
    torn = replace(whole, partitions=(whole.partitions[0], lost))
    newest = "sequence numbers, sessions and marks are the newest"
    for order in ((whole, older, torn), (torn, older, whole), (older, torn, whole)):
        chosen = choose_control(found(*order))
        assert [one.reason for one in chosen.found if one.control is whole and one.used] == [newest]
        assert {one.reason for one in chosen.found if not one.used} == {"not newer than the one that is used"}


def held(session: int, low: int, local: int, sequence: int | None = None, flags: int = 5) -> PartitionStruct:
    """A struct of the released layout, or without a sequence number of the documented one."""
    return PartitionStruct(session, low, local, None if sequence is None else flags, sequence)


@pytest.mark.parametrize(
    ("mine", "theirs", "both"),
    [
        (held(3, 9, 9, 5), held(3, 9, 9, 5), (True, True)),
        (held(3, 9, 9, 5), held(3, 9, 9, 5, flags=0), (True, True)),
        (held(3, 9, 9, 6), held(3, 9, 9, 5), (True, False)),
        (held(3, 8, 8, 6), held(3, 9, 9, 5), (True, False)),  # a mark was lowered
        (held(4, 9, 9, 6), held(3, 9, 9, 5), (True, False)),
        (held(2, 9, 9, 6), held(3, 9, 9, 5), (False, False)),  # the session says otherwise
        (held(4, 9, 9, 5), held(3, 9, 9, 5), (False, False)),
        (held(3, 9, 9), held(3, 9, 9), (True, True)),
        (held(4, 1, 1), held(3, 9, 9), (True, False)),
        (held(3, 10, 9), held(3, 9, 9), (True, False)),
        (held(3, 9, 8), held(3, 8, 9), (False, False)),
        # converted in between: marks alone
        (held(3, 9, 9, 5), held(3, 9, 9), (True, True)),
        (held(3, 10, 9, 5), held(3, 9, 9), (True, False)),
        (held(3, 9, 9, 5), held(4, 1, 1), (False, True)),
        (held(3, 9, 8, 5), held(3, 8, 9), (False, False)),
    ],
)
def test_which_of_two_states_is_not_older(
    mine: PartitionStruct, theirs: PartitionStruct, both: tuple[bool, bool]
) -> None:
    assert (_not_older(mine, theirs), _not_older(theirs, mine)) == both


def test_structs_count_where_their_partition_is_known() -> None:
    whole = control(3)
    first, second = whole.partitions[1].structs
    for info, structs, unknown in (
        (whole.partitions[1], 6, ()),
        (replace(whole.partitions[1], structs=(first, replace(second, valid=False))), 5, ()),
        (replace(whole.partitions[1], stored_partition=2), 4, (1,)),
        (replace(whole.partitions[1], current=None), 4, (1,)),
    ):
        (one,) = found(replace(whole, partitions=(whole.partitions[0], info, whole.partitions[2])))
        assert (one.structs, one.unknown) == (structs, unknown)
    (short,) = found(replace(whole, partitions=whole.partitions[:1]))
    assert (short.structs, short.unknown) == (2, (1, 2))


@pytest.mark.parametrize(
    ("wanted", "reasons"),
    [
        (2, ["+the only one", "it is for 3 partitions, 2 were asked for"]),
        (3, ["+the only one", "it is for 2 partitions, 3 were asked for"]),
        (4, ["it is for 2 partitions, 4 were asked for", "it is for 3 partitions, 4 were asked for"]),
    ],
)
def test_the_number_of_partitions_that_was_given_decides(wanted: int, reasons: list[str]) -> None:
    chosen = choose_control(found(control(2), control(3)), num_partitions=wanted)
    assert sorted(("+" if one.used else "") + one.reason for one in chosen.found) == sorted(reasons)


def test_control_files_of_several_nodes_are_not_chosen_from() -> None:
    for both in ((control(2), control(3)), (control(created=CREATED), control(created=CREATED + 1))):
        chosen = choose_control(found(*both))
        assert not any(one.used for one in chosen.found)
        assert all("those of several nodes were found" in one.reason for one in chosen.found)


def test_a_control_file_that_was_named_is_used() -> None:
    every = found(control(2), control(3))
    chosen = choose_control(every, at="/1:0")
    assert [(one.used, one.reason) for one in chosen.found] == [
        (False, "another one was named"),
        (True, "it was named"),
    ]
    assert choose_control(every, at="/1:0", num_partitions=3).found[1].used
    for at, number in (("/1:0", 2), ("/2:0", None)):
        with pytest.raises(InvalidRequestError):
            choose_control(every, at=at, num_partitions=number)
    with pytest.raises(InvalidRequestError) as refused:
        choose_control(every, at="/2:0")
    assert refused.value.advice == "there are /0:0, /1:0"
    with pytest.raises(InvalidRequestError) as refused:
        choose_control([], at="/1:0")
    assert refused.value.advice is None


# --- what is salvaged from ----------------------------------------------------------------------------------------------


def test_sources_are_what_can_be_read_at_any_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "d"
    (folder / "b").mkdir(parents=True)
    for name in ("x", "b/y", "a"):
        (folder / name).write_bytes(b"x")
    (folder / "link").symlink_to(folder / "x")
    os.mkfifo(folder / "pipe")
    target = tmp_path / "to"
    assert list_sources([folder], target) == [folder / "a", folder / "x", folder / "b" / "y"]
    assert list_sources([folder / "x", folder], target) == [folder / "x", folder / "a", folder / "b" / "y"]
    with pytest.raises(InvalidRequestError, match="a pipe or terminal"):
        list_sources([folder / "pipe"], target)
    with pytest.raises(NotWaltzError, match="no such file"):
        list_sources([folder / "none"], target)
    for inside in (folder, folder / "b", folder / "new"):
        with pytest.raises(InvalidRequestError, match="lies inside the source"):
            list_sources([folder], inside)
    real = os.stat

    def block(path: Path, **more: bool) -> object:
        return os.stat_result((stat.S_IFBLK, *real(path)[1:])) if path == folder / "x" else real(path, **more)

    monkeypatch.setattr(salvage_sources.os, "stat", block)  # type: ignore[attr-defined]
    assert list_sources([folder / "x"], target) == [folder / "x"]


# --- the end of a partition that is cut --------------------------------------------------------------------------------------


def test_a_truncation_step_by_step(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=-1)
    told = [
        (one.action, one.from_transaction_id, one.to_transaction_id, one.offset, one.length, one.loses_data)
        for one in plan_truncate(storage, partition=0, after=18).plan.steps
    ]
    assert sorted(told, key=str) == [
        ("cut-index", None, None, 200, 8, False),
        ("cut-segment", 19, 19, 668, 60, True),
        ("remove-index", 20, 29, 0, 208, False),
        ("remove-segment", 20, 29, 0, 728, True),
    ]
    assert plan_truncate(storage, partition=0, after=29).plan.steps == ()
