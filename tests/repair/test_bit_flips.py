"""Whatever bit flips: recovery does what verify promised, a replica brings every byte back, and nothing is made worse."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.repair.scenes import flip
from tests.repair.trees import contents, snapshot
from waltzctl.engine.errors import MismatchError
from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.control import Layout


def scene(path: Path, layout: Layout) -> tuple[Path, Path]:
    root = build_directory(path / "root", {0: 6}, layout=layout, per_segment=3, local_low_water_mark=5)
    shutil.copytree(root, path / "replica")
    return root, path / "replica"


def findings(root: Path) -> tuple[str, set[str]]:
    seen = list(verify((root,), VerifyOptions(exclusive=True)))
    codes = {one.code.value for one in seen if not isinstance(one, VerifySummary) and one.severity != "note"}
    (summary,) = [one for one in seen if isinstance(one, VerifySummary)]
    return summary.status, codes


def check(root: Path, replica: Path, path: Path, bit: int) -> None:
    before = contents(root)
    flip(path, bit // 8, 1 << bit % 8)
    damaged = snapshot(root)
    status, found = findings(root)
    alone = plan_recover(root)
    assert not alone.plan.loses_data
    assert snapshot(root) == damaged
    if status == "clean":
        assert alone.plan.steps == (), (path, bit)
        return
    if status == "repairable":
        assert alone.plan.undecided == (), (path, bit, found)
    if path.name == "waltz-storage.ctl" and 12 <= bit // 8 < 28:  # its own cluster key: the replica looks foreign
        with pytest.raises(MismatchError):
            plan_recover(root, replicas=[replica])
        assert "segment-key" in {one.code.value for one in alone.plan.undecided}
        return
    result = apply(plan_recover(root, replicas=[replica]), arguments=[])
    decided = result.exit_status_name == "clean"
    assert decided or found & {"control-file-size"}, (path, bit, found, result.findings)
    if decided and path.name != "waltz-storage.ctl":
        assert contents(root) == before, (path, bit, found)


def places(root: Path) -> list[tuple[str, int]]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return [(str(path.relative_to(root)), bit) for path in files for bit in range(path.stat().st_size * 8)]


@pytest.mark.turns(10)
@pytest.mark.parametrize("layout", list(Layout))
def test_some_flipped_bits(tmp_path: Path, layout: Layout) -> None:
    run(tmp_path, layout, 40)


@pytest.mark.long
@pytest.mark.parametrize("layout", list(Layout))
def test_every_flipped_bit(tmp_path: Path, layout: Layout) -> None:
    run(tmp_path, layout, None)


def run(tmp_path: Path, layout: Layout, count: int | None) -> None:
    root, replica = scene(tmp_path / "s", layout)
    chosen = places(root)
    if count is not None:
        chosen = random.Random(3).sample(chosen, count)
    for name, bit in chosen:
        work = tmp_path / "work"
        shutil.copytree(root, work)
        check(work, replica, work / name, bit)
        shutil.rmtree(work)
