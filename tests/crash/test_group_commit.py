"""A node's group commit: many requests share one write and one sync, and none is answered before that sync.

What was acknowledged is there after a crash at any instant, a group that was under way is there as an unbroken beginning of
itself or not at all, and the fence of a session never falls.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.conftest import CrashTest
from tests.crash.driver import STRADDLING, Driver, built, recorded
from tests.crash.harness import Effort, try_crashes
from tests.crash.layouts import EACH_DAY, LAYOUTS
from tests.crash.simdisk import Loss
from tests.crash.storages import SMALL_SEGMENTS, StorageChecker
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.storage.directory import StorageOptions
from waltzctl.formats.control import Layout
from waltzctl.formats.fence import FENCE_FILE_NAME

pytestmark = pytest.mark.turns(12)

ONE_SEGMENT = StorageOptions()


@EACH_DAY
def test_groups_within_a_segment(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Blocks of one request and of several, small and larger than a sector, one and many to a group."""
    path, truth = built(tmp_path / "s", layout, 7)
    with recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        number = STRADDLING[layout]
        driver.append_blocks(number, [None])
        driver.append_blocks(number, [0, 30, 700])
        driver.append_blocks(number, [3], frames=3)
        driver.append_blocks(0, [40, None])
        driver.append_blocks(number, [])
    survive(f"group commit, {layout}", recording, StorageChecker(ONE_SEGMENT))


@LAYOUTS
def test_groups_that_roll_over(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """A segment ends inside a block, between two, and several times within one group."""
    path, truth = built(tmp_path / "s", layout, 13)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.append_blocks(number, [100, 400, 100])
        driver.append_blocks(number, [1700, 0])
        driver.append_blocks(number, [30])
    survive(f"group commit, roll-over, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@LAYOUTS
def test_a_group_across_a_checkpoint(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Records of one group on both sides of transaction 1000."""
    path, truth = built(tmp_path / "s", layout, 996, per_segment=2000, size=10)
    with recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        driver.append_blocks(STRADDLING[layout], [10, 10, 10])
        driver.append_blocks(STRADDLING[layout], [10])
    survive(f"group commit, checkpoint, {layout}", recording, StorageChecker(ONE_SEGMENT))


@LAYOUTS
def test_passes_over_two_partitions(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Both are written before either is synced; one of them ends a segment meanwhile, or reaches a checkpoint."""
    path, truth = built(tmp_path / "s", layout, 7)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.append_in_a_pass({number: [10], 0: [30, 700]})
        driver.append_in_a_pass({0: [10], number: [1700]})
        driver.append_in_a_pass({number: [10], 0: [None]})
    survive(f"group commit, passes, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@LAYOUTS
def test_fences_never_fall(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Sessions come and go; partitions share the file, one of them is deleted and comes back."""
    path, truth = built(tmp_path / "s", layout, 3)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        for session in (4, 5, 5, 3, 900):
            driver.raise_fence(number, session)
        driver.raise_fence(0, 7)
        driver.reopen()
        driver.raise_fence(number, 901)
        driver.unassign(number, delete_files=True)
        driver.assign(number)
        driver.raise_fence(number, 2)
    survive(f"session fences, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@LAYOUTS
def test_a_session_of_a_node(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Fence, truncate, catch up, set the mark, groups of appends, and the next session: as a node does it for a server."""
    path, truth = built(tmp_path / "s", layout, 26, mark=20)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.raise_fence(number, 4)
        driver.truncate(number, 21)
        driver.append_blocks(number, [100])
        driver.set_low_water_mark(number, 4, 24)
        driver.append_blocks(number, [300, 40])
        driver.raise_fence(number, 5)
        driver.truncate(number, 26)
        driver.append_blocks(number, [10, 1700])
    survive(f"node session, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


def groups(driver: Driver) -> None:
    driver.append_blocks(STRADDLING[Layout.RELEASED], [20, 700, 30])


def passes(driver: Driver) -> None:
    driver.append_in_a_pass({STRADDLING[Layout.RELEASED]: [20, 700], 0: [30]})


def fences(driver: Driver) -> None:
    driver.raise_fence(STRADDLING[Layout.RELEASED], 4)
    driver.raise_fence(STRADDLING[Layout.RELEASED], 9)


def _syncs_of(suffix: str) -> Callable[[Change], bool]:
    return lambda change: change.kind == "sync" and change.path.name.endswith(suffix)


@pytest.mark.parametrize(
    ("work", "records", "forgets"),
    [(groups, 5, _syncs_of(".seg")), (passes, 5, _syncs_of(".seg")), (fences, 5, _syncs_of(FENCE_FILE_NAME))],
)
def test_an_engine_that_forgets_a_sync_is_found_out(
    work: Callable[[Driver], None], records: int, forgets: Callable[[Change], bool], tmp_path: Path
) -> None:
    """The workloads above prove something: without these syncs the harness finds what is lost."""
    path, truth = built(tmp_path / "s", Layout.RELEASED, records)
    with recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        work(driver)
    effort = Effort(Loss(torn_positions=2, random_states=3), 4, Loss(torn_positions=1, random_states=1), failures=1)
    assert not try_crashes("as it is", recording, StorageChecker(ONE_SEGMENT), effort).failures
    mutant = recording.without(forgets)
    assert len(mutant.changes) < len(recording.changes)
    assert try_crashes("forgets a sync", mutant, StorageChecker(ONE_SEGMENT), effort).failures
