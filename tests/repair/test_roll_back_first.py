"""An interrupted repair is taken back before anything else is planned: the plan as a whole, for each command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.repair.trees import Crash, crashing_when
from waltzctl.engine.errors import RefusedError
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import Arguments, Chosen, PartitionSetting
from waltzctl.engine.repair.plan import Step, plan_roll_back
from waltzctl.engine.repair.planners import make
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.storage.store import interrupted


def test_what_is_planned_where_a_repair_was_interrupted(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 6, 1: 6, 2: 6}, per_segment=3, local_low_water_mark=1)
    arguments = Arguments.of((0,), after=2, settings=(Chosen("session_id", 9),))
    assert plan_roll_back("truncate", storage, arguments) is None
    assert plan_roll_back("truncate", tmp_path / "nowhere", arguments) is None
    with pytest.raises(Crash), crashing_when(lambda change: change.kind == "truncate"):
        apply(plan_truncate(storage, partition=1, after=1), arguments=["truncate"])
    (entry,) = interrupted(storage)
    for command in ("truncate", "recover", "rebuild-index", "set-partition", "convert"):
        repair = make(command, storage / "0", arguments)
        said = f"the repair {entry.id} was interrupted; this comes before {command}"
        assert repair.plan.steps == (Step("roll-back", storage, 1, None, None, None, None, said),)
        assert (repair.plan.command, repair.plan.path, repair.plan.arguments) == (command, storage / "0", arguments)
        assert (repair.partitions, repair.edits, repair.sources, repair.roll_back) == ((1,), (), (), True)
        assert not repair.plan.loses_data
    with pytest.raises(RefusedError, match="interrupted"):
        plan_set_partition(storage, partition=0, setting=PartitionSetting(session_id=9))
    done = apply(repair, arguments=["convert"])
    assert (done.applied, done.taken_back, done.status, done.exit_status_name) == (True, (entry.id,), "clean", "clean")
    assert (done.undo_id, done.quarantine, done.findings) == (None, None, ())
    assert plan_roll_back("truncate", storage, arguments) is None
