"""Judgements of repairs that are functions of values, each one step to each side."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory
from waltzctl.engine.durable.edits import Replace
from waltzctl.engine.errors import RefusedError
from waltzctl.engine.findings import Code
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.salvage_control import assigned_by, salvaged_infos
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.survey import Loss, _joins
from waltzctl.engine.scan.columns import Damage, DamageCause
from waltzctl.formats.control import CONTROL_FILE_NAME, FLAG_ASSIGNED, FLAG_AVAILABLE, Layout


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
