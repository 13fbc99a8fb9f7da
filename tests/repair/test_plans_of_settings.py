"""What set-partition and convert plan, as a whole, or refuse, in both layouts.

Session 3 and marks 9 hold; the last transaction is 11.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.repair.twelve import Damage, Twelve, told, ways
from waltzctl.engine.errors import StalePlanError, WaltzError
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.storage.assignment import put_aside_path
from waltzctl.engine.storage.availability_marks import Availability, availability_path, encode_marks
from waltzctl.formats.control import Layout, decode_control


def aside(d: Twelve, *, stays: bool = False) -> None:
    """Put the partition's directory aside, or a copy of it."""
    target = put_aside_path(d.root, 0)
    target.parent.mkdir(parents=True)
    if stays:
        shutil.copytree(d.directory, target)
    else:
        d.directory.rename(target)


def gone(d: Twelve) -> None:
    shutil.rmtree(d.directory)


def sound(d: Twelve) -> None:
    """Nothing is wrong with it."""


def settled(d: Twelve, **setting: int | bool) -> None:
    """Set something beforehand."""
    apply(
        plan_set_partition(d.root, partition=0, setting=PartitionSetting(**setting), allow_data_loss=True),  # type: ignore[arg-type]
        arguments=[],
    )


def answer(place: Path, layout: Layout, damage: Damage, planner: Callable[[Twelve], Repair]) -> list[str]:
    """What is planned, or why nothing is."""
    d = Twelve(place, layout=layout)
    damage(d)
    try:
        repair = planner(d)
    except WaltzError as error:
        said = error.message.replace(f"{d.root}/", "").replace(str(d.root), "it")
        return [f"{type(error).__name__} {said}".replace(";", ",")]
    assert (repair.partitions, repair.storage, repair.roll_back) == ((0,), d.root, False)
    return told(repair)


SETTINGS: dict[str, tuple[Damage, dict[str, int | bool]]] = {
    "the session as it is": (sound, {"session_id": 3}),
    "a later session": (sound, {"session_id": 4}),
    "an earlier session": (sound, {"session_id": 2}),
    "no session": (sound, {"session_id": -1}),
    "a higher mark": (sound, {"low_water_mark": 10}),
    "a lower mark": (sound, {"low_water_mark": 8}),
    "the marks as they are": (sound, {"low_water_mark": 9, "local_low_water_mark": 9}),
    "a higher local mark": (sound, {"local_low_water_mark": 10}),
    "the last as local mark": (sound, {"local_low_water_mark": 11}),
    "a local mark behind the last": (sound, {"local_low_water_mark": 12}),
    "a lower local mark": (sound, {"local_low_water_mark": 8}),
    "a mark behind the last": (sound, {"low_water_mark": 12}),
    "one mark higher and one lower": (sound, {"low_water_mark": 10, "local_low_water_mark": 8}),
    "a session and both marks": (sound, {"session_id": 5, "low_water_mark": 10, "local_low_water_mark": 10}),
    "a local mark with a torn end": (lambda d: d.cut(8, 363), {"local_low_water_mark": 11}),
    "a local mark without records": (lambda d: [d.cut(one, 128) for one in (0, 4, 8)], {"local_low_water_mark": 10}),
    "a local mark behind headers": (
        lambda d: (d.drop(0), d.cut(4, 128), d.cut(8, 128), d.mark(1)),
        {"local_low_water_mark": 8},
    ),
    "a local mark without files": (lambda d: (gone(d), d.mark(-1)), {"local_low_water_mark": 0}),
    "a local mark of files put aside": (aside, {"local_low_water_mark": 12}),
    "switched off": (sound, {"available": False}),
    "switched on as it is": (sound, {"available": True}),
    "switched off as it is": (lambda d: settled(d, available=False), {"available": False}),
    "switched on again": (lambda d: settled(d, available=False), {"available": True}),
    "assigned as it is": (sound, {"assigned": True}),
    "unassigned": (sound, {"assigned": False}),
    "unassigned as it is": (lambda d: settled(d, assigned=False), {"assigned": False}),
    "unassigned, files put aside before": (lambda d: aside(d, stays=True), {"assigned": False}),
    "unassigned, files gone": (gone, {"assigned": False}),
    "unassigned, never used": (lambda d: (gone(d), d.mark(-1), settled(d, session_id=-1)), {"assigned": False}),
    "assigned again": (lambda d: settled(d, assigned=False), {"assigned": True}),
    "assigned, files gone": (gone, {"assigned": True}),
    "assigned, files gone, above no mark": (lambda d: (gone(d), d.mark(-1)), {"assigned": True}),
    "assigned without files": (gone, {"assigned": True, "local_low_water_mark": -1}),
    "unassigned and switched off": (sound, {"assigned": False, "available": False}),
    "an info that is damaged": (lambda d: d.forget_marks(), {"session_id": 4}),
    "an id that is damaged": (lambda d: d.flip(d.control, 131), {"session_id": 4}),
}
EXPECTED: dict[str, str] = {
    "the session as it is": """
        r, r!, d, d!:
        """,
    "a later session": """
        r, r!: set-session control [132+36]; = write control [132+36]
        d, d!: set-session control [132+28]; = write control [132+28]
        """,
    "an earlier session": """
        r, d: ConcurrentUpdateError it: partition 0: session 2 is older than session 3, which is in force, a server
          that was replaced would be let in again
        r!: set-session control [132+36] loses; = write control [132+36]
        d!: set-session control [132+56] loses; = write control [132+56]
        """,
    "no session": """
        r, d: ConcurrentUpdateError it: partition 0: session -1 is older than session 3, which is in force, a server
          that was replaced would be let in again
        r!: set-session control [132+36] loses; = write control [132+36]
        d!: set-session control [132+56] loses; = write control [132+56]
        """,
    "a higher mark": """
        r, r!: set-low-water-mark control [132+36]; = write control [132+36]
        d, d!: set-low-water-mark control [132+28]; = write control [132+28]
        """,
    "a lower mark": """
        r, d: MarkWouldFallError it: partition 0: the low-water mark would fall from 9 to 8: it says what is
          acknowledged
        r!: set-low-water-mark control [132+36] loses; = write control [132+36]
        d!: set-low-water-mark control [132+56] loses; = write control [132+56]
        """,
    "the marks as they are": """
        r, r!, d, d!:
        """,
    "a higher local mark": """
        r, r!: set-local-low-water-mark control [132+36]; = write control [132+36]
        d, d!: set-local-low-water-mark control [132+28]; = write control [132+28]
        """,
    "the last as local mark": """
        r, r!: set-local-low-water-mark control [132+36]; = write control [132+36]
        d, d!: set-local-low-water-mark control [132+28]; = write control [132+28]
        """,
    "a local mark behind the last": """
        r, d: BelowLowWaterMarkError it: partition 0: the local low-water mark would be 12, and the last transaction
          here is 11: the partition would promise what it does not have
        r!: set-local-low-water-mark control [132+36] loses; = write control [132+36]
        d!: set-local-low-water-mark control [132+28] loses; = write control [132+28]
        """,
    "a lower local mark": """
        r, d: MarkWouldFallError it: partition 0: the local low-water mark would fall from 9 to 8: it says what is
          acknowledged
        r!: set-local-low-water-mark control [132+36] loses; = write control [132+36]
        d!: set-local-low-water-mark control [132+56] loses; = write control [132+56]
        """,
    "a mark behind the last": """
        r, r!: set-low-water-mark control [132+36]; = write control [132+36]
        d, d!: set-low-water-mark control [132+28]; = write control [132+28]
        """,
    "one mark higher and one lower": """
        r!: set-low-water-mark control [132+36]; set-local-low-water-mark control [132+36] loses; = write control
          [132+36]
        d!: set-low-water-mark control [132+56]; set-local-low-water-mark control [132+56] loses; = write control
          [132+56]
        """,
    "a session and both marks": """
        r, r!: set-session control [132+36]; set-low-water-mark control [132+36]; set-local-low-water-mark control
          [132+36]; = write control [132+36]
        d, d!: set-session control [132+28]; set-low-water-mark control [132+28]; set-local-low-water-mark control
          [132+28]; = write control [132+28]
        """,
    "a local mark with a torn end": """
        r, d: BelowLowWaterMarkError it: partition 0: the local low-water mark would be 11, and the last transaction
          here is 10: the partition would promise what it does not have
        r!: set-local-low-water-mark control [132+36] loses; = write control [132+36]
        d!: set-local-low-water-mark control [132+28] loses; = write control [132+28]
        """,
    "a local mark without records": """
        r, d: BelowLowWaterMarkError it: partition 0: the local low-water mark would be 10, and the last transaction
          here is -1: the partition would promise what it does not have
        r!: set-local-low-water-mark control [132+36] loses; = write control [132+36]
        d!: set-local-low-water-mark control [132+28] loses; = write control [132+28]
        """,
    "a local mark behind headers": """
        r, d: BelowLowWaterMarkError it: partition 0: the local low-water mark would be 8, and the last transaction
          here is 3: the partition would promise what it does not have
        r!: set-local-low-water-mark control [132+36] loses; = write control [132+36]
        d!: set-local-low-water-mark control [132+28] loses; = write control [132+28]
        """,
    "a local mark without files": """
        r, d: BelowLowWaterMarkError it: partition 0: the local low-water mark would be 0, and the last transaction
          here is -1: the partition would promise what it does not have
        r!: set-local-low-water-mark control [132+36] loses; = write control [132+36]
        d!: set-local-low-water-mark control [132+28] loses; = write control [132+28]
        """,
    "a local mark of files put aside": """
        r, d: BelowLowWaterMarkError it: partition 0: the local low-water mark would be 12, and the last transaction
          here is 11: the partition would promise what it does not have
        r!: set-local-low-water-mark control [132+36] loses; = write control [132+36]
        d!: set-local-low-water-mark control [132+28] loses; = write control [132+28]
        """,
    "switched off": """
        r, r!: switch-off control [132+36]; = write control [132+36]
        d, d!: write-availability availability.json [0+108]; = make availability.json of 108
        """,
    "switched on as it is": """
        r, r!, d, d!:
        """,
    "switched off as it is": """
        r, r!, d, d!:
        """,
    "switched on again": """
        r, r!: switch-on control [168+36]; = write control [168+36]
        d, d!: write-availability availability.json [0+39]; = make availability.json of 39
        """,
    "assigned as it is": """
        r, r!, d, d!:
        """,
    "unassigned": """
        r, r!: unassign control [132+36]; = write control [132+36]
        d, d!: unassign 00000; = move 00000
        """,
    "unassigned as it is": """
        r, r!, d, d!:
        """,
    "unassigned, files put aside before": """
        r, r!: unassign control [132+36]; = write control [132+36]
        d, d!: RefusedError .waltzctl/unassigned/0: files of partition 0 were put aside here before
        """,
    "unassigned, files gone": """
        r, r!: unassign control [132+36]; = write control [132+36]
        d, d!: RefusedError 0: the directory of partition 0 is lost (session 3, local low-water mark 9), so that there
          is nothing to put aside
        """,
    "unassigned, never used": """
        r, r!: unassign control [168+36]; = write control [168+36]
        d, d!:
        """,
    "assigned again": """
        r, r!: assign control [168+36]; = write control [168+36]
        d, d!: assign 00000; = move 00000
        """,
    "assigned, files gone": """
        r, r!, d, d!: RefusedError 0: the directory of partition 0 is missing, and its local low-water mark 9 says
          that transactions were here
        """,
    "assigned, files gone, above no mark": """
        r, r!, d, d!: create-segment 0.seg [0+128]; create-index 0.idx [0+128]; = make 0.seg of 128; = make 0.idx of
          128
        """,
    "assigned without files": """
        r, d: MarkWouldFallError it: partition 0: the local low-water mark would fall from 9 to -1: it says what is
          acknowledged
        r!: create-segment 0.seg [0+128]; create-index 0.idx [0+128]; set-local-low-water-mark control [132+36] loses;
          = make 0.seg of 128; = make 0.idx of 128; = write control [132+36]
        d!: create-segment 0.seg [0+128]; create-index 0.idx [0+128]; set-local-low-water-mark control [132+56] loses;
          = make 0.seg of 128; = make 0.idx of 128; = write control [132+56]
        """,
    "unassigned and switched off": """
        r, r!: switch-off control [132+36]; unassign control [132+36]; = write control [132+36]
        d, d!: write-availability availability.json [0+108]; unassign 00000; = make availability.json of 108; = move
          00000
        """,
    "an info that is damaged": """
        r, r!, d, d!: RefusedError waltz-storage.ctl: partition 0: its info is damaged, so that nothing tells what
          holds now
        """,
    "an id that is damaged": """
        r, r!, d, d!: RefusedError waltz-storage.ctl: partition 0: its info is damaged, so that nothing tells what
          holds now
        """,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_planned_for_a_setting(tmp_path: Path, name: str) -> None:
    damage, setting = SETTINGS[name]
    chosen = PartitionSetting(**setting)  # type: ignore[arg-type]
    wanted = ways(EXPECTED[name])
    found = {}
    for way in wanted:
        allowed = way.endswith("!")
        layout = Layout.RELEASED if way[0] == "r" else Layout.DOCUMENTED
        found[way] = answer(
            tmp_path / way,
            layout,
            damage,
            lambda d, allowed=allowed: plan_set_partition(  # type: ignore[misc]
                d.root, partition=0, setting=chosen, allow_data_loss=allowed
            ),
        )
    assert found == wanted


def flagged(d: Twelve) -> None:
    """Let one struct have a flag that no release uses."""
    control = decode_control(d.control.read_bytes())
    if control.layout.has_flags:
        info = control.partitions[0]
        first, second = info.structs
        pair = (replace(first, flags=(first.flags or 0) | 64).sealed(), second)
        d.control.write_bytes(replace(control, partitions=(replace(info, structs=(pair[0], pair[1])),)).encode())


def another(d: Twelve) -> None:
    """Let a partition that there is not be switched off."""
    path = availability_path(d.root)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_marks({1: Availability(False, False)}))


def higher(d: Twelve) -> None:
    """Let the older struct have the higher marks, which a released file may."""
    settled(d, low_water_mark=5, local_low_water_mark=5)


CONVERSIONS: dict[str, tuple[Damage, str]] = {
    "sound": (
        sound,
        """
        r: convert-control-file control [128+76]; = cut control to 188; = write control [128+60]; released layout to
          documented layout: 1 partitions, 1 of them assigned, 0 switched off, sessions and marks stay as they are,
          sequence numbers go, the documented layout has none
        d: convert-control-file control [128+60]; = write control [128+76]; documented layout to released layout: 1
          partitions, 1 of them assigned, 0 switched off, sessions and marks stay as they are, sequence numbers begin
          at 0
        """,
    ),
    "unassigned": (
        lambda d: settled(d, assigned=False),
        """
        r: put-aside 00000; convert-control-file control [128+76]; = move 00000; = cut control to 188; = write control
          [128+60]; released layout to documented layout: 1 partitions, 0 of them assigned, 0 switched off, sessions
          and marks stay as they are, sequence numbers go, the documented layout has none
        d: convert-control-file control [128+60]; take-from-aside 00000; = write control [128+76]; = move 00000;
          documented layout to released layout: 1 partitions, 0 of them assigned, 0 switched off, sessions and marks
          stay as they are, sequence numbers begin at 0
        """,
    ),
    "put aside": (
        aside,
        """
        r: RefusedError 0: partition 0 is assigned and its directory is missing, in the documented layout it would
          look as if it were not assigned
        d: convert-control-file control [128+60]; take-from-aside 00000; = write control [128+76]; = move 00000;
          documented layout to released layout: 1 partitions, 0 of them assigned, 0 switched off, sessions and marks
          stay as they are, sequence numbers begin at 0
        """,
    ),
    "put aside and here": (
        lambda d: aside(d, stays=True),
        """
        r: convert-control-file control [128+76]; = cut control to 188; = write control [128+60]; released layout to
          documented layout: 1 partitions, 1 of them assigned, 0 switched off, sessions and marks stay as they are,
          sequence numbers go, the documented layout has none
        d: convert-control-file control [128+60]; = write control [128+76]; documented layout to released layout: 1
          partitions, 1 of them assigned, 0 switched off, sessions and marks stay as they are, sequence numbers begin
          at 0
        """,
    ),
    "unassigned, put aside and here": (
        lambda d: (settled(d, assigned=False), aside(d, stays=True) if d.directory.exists() else None),
        """
        r: RefusedError 0: partition 0 is not assigned, and files of it are both here and in .waltzctl/unassigned/0
        d: convert-control-file control [128+60]; take-from-aside 00000; = write control [128+76]; = move 00000;
          documented layout to released layout: 1 partitions, 0 of them assigned, 0 switched off, sessions and marks
          stay as they are, sequence numbers begin at 0
        """,
    ),
    "gone": (
        gone,
        """
        r: RefusedError 0: partition 0 is assigned and its directory is missing, in the documented layout it would
          look as if it were not assigned
        d: RefusedError 0: partition 0 has seen session 3 (local low-water mark 9) and its files are gone: nothing
          tells whether it is assigned
        """,
    ),
    "gone, and never used": (
        lambda d: (gone(d), d.mark(-1), settled(d, session_id=-1)),
        """
        r: RefusedError 0: partition 0 is assigned and its directory is missing, in the documented layout it would
          look as if it were not assigned
        d: convert-control-file control [128+60]; = write control [128+76]; documented layout to released layout: 1
          partitions, 0 of them assigned, 0 switched off, sessions and marks stay as they are, sequence numbers begin
          at 0
        """,
    ),
    "switched off": (
        lambda d: settled(d, available=False),
        """
        r: write-availability availability.json; convert-control-file control [128+76]; = make availability.json of
          108; = cut control to 188; = write control [128+60]; released layout to documented layout: 1 partitions, 1
          of them assigned, 1 switched off, sessions and marks stay as they are, sequence numbers go, the documented
          layout has none
        d: convert-control-file control [128+60]; = write control [128+76]; documented layout to released layout: 1
          partitions, 1 of them assigned, 1 switched off, sessions and marks stay as they are, sequence numbers begin
          at 0
        """,
    ),
    "another one switched off": (
        another,
        """
        r: convert-control-file control [128+76]; = make availability.json of 39; = cut control to 188; = write control
          [128+60]; released layout to documented layout: 1 partitions, 1 of them assigned, 0 switched off, sessions
          and marks stay as they are, sequence numbers go, the documented layout has none
        d: convert-control-file control [128+60]; = write control [128+76]; documented layout to released layout: 1
          partitions, 1 of them assigned, 0 switched off, sessions and marks stay as they are, sequence numbers begin
          at 0
        """,
    ),
    "with an older struct that has higher marks": (
        higher,
        """
        r: convert-control-file control [128+76]; = cut control to 188; = write control [128+60]; released layout to
          documented layout: 1 partitions, 1 of them assigned, 0 switched off, sessions and marks stay as they are,
          sequence numbers go, the documented layout has none, the values in force stand in both structs of 1
          partitions whose older struct has higher ones
        d: convert-control-file control [128+60]; = write control [128+76]; documented layout to released layout: 1
          partitions, 1 of them assigned, 0 switched off, sessions and marks stay as they are, sequence numbers begin
          at 0
        """,
    ),
    "with flags of nobody": (
        flagged,
        """
        r: convert-control-file control [128+76]; = cut control to 188; = write control [128+60]; released layout to
          documented layout: 1 partitions, 1 of them assigned, 0 switched off, sessions and marks stay as they are,
          sequence numbers go, the documented layout has none, flags that no release uses go
        d: convert-control-file control [128+60]; = write control [128+76]; documented layout to released layout: 1
          partitions, 1 of them assigned, 0 switched off, sessions and marks stay as they are, sequence numbers begin
          at 0
        """,
    ),
    "without a flag": (
        lambda d: settled(d, assigned=False, available=False),
        """
        r: put-aside 00000; write-availability availability.json; convert-control-file control [128+76]; = move 00000;
          = make availability.json of 108; = cut control to 188; = write control [128+60]; released layout to
          documented layout: 1 partitions, 0 of them assigned, 1 switched off, sessions and marks stay as they are,
          sequence numbers go, the documented layout has none
        """,
    ),
    "damaged": (
        lambda d: d.flip(d.control, 140),
        """
        r: RefusedError waltz-storage.ctl: control-struct-checksum: partition 0, struct 1 at offset 132: checksum
          stored 04ed1498, computed 85c871bf, struct 2 is in force
        d: RefusedError waltz-storage.ctl: control-struct-checksum: partition 0, struct 1 at offset 132: checksum
          stored dcdd16c2, computed 72b58753, struct 2 is in force
        """,
    ),
}


def conversion(place: Path, layout: Layout, damage: Damage) -> list[str]:
    """What a conversion to the other layout plans, with the words of its step."""
    other = Layout.DOCUMENTED if layout is Layout.RELEASED else Layout.RELEASED
    said: list[str] = []

    def planner(d: Twelve) -> Repair:
        assert plan_convert(d.root, layout=layout).plan.steps == () if damage is not CONVERSIONS["damaged"][0] else True
        repair = plan_convert(d.root, layout=other)
        said.extend(one.reason.replace(";", ",") for one in repair.plan.steps if one.action == "convert-control-file")
        return repair

    return [*answer(place, layout, damage, planner), *said]


@pytest.mark.parametrize("name", CONVERSIONS)
def test_what_is_planned_for_a_conversion(tmp_path: Path, name: str) -> None:
    damage, expected = CONVERSIONS[name]
    wanted = ways(expected)
    layouts = {"r": Layout.RELEASED, "d": Layout.DOCUMENTED}
    assert {way: conversion(tmp_path / way, layouts[way], damage) for way in wanted} == wanted


def test_availability_is_kept_in_the_order_of_partitions_and_a_plan_is_bound_to_it(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "d", {8: 3, 1: 2})
    path = availability_path(storage)
    for number in (8, 1):
        setting = PartitionSetting(available=False)
        repair = plan_set_partition(storage, partition=number, setting=setting)
        assert repair.sources == (path,)
        apply(repair, arguments=[])
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_marks({1: Availability(False, False)}))
    repair = plan_convert(storage, layout=Layout.DOCUMENTED)
    assert [one.partition for one in repair.plan.steps if one.action == "write-availability"] == [8]
    path.unlink()
    repair = plan_convert(storage, layout=Layout.DOCUMENTED)
    assert [one.partition for one in repair.plan.steps if one.action == "write-availability"] == [1, 8]
    assert (repair.sources, repair.partitions) == ((path,), tuple(range(9)))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_marks({2: Availability(False, False)}))
    with pytest.raises(StalePlanError):
        apply(repair, arguments=[])
