"""The file-backed store: after a crash at any instant every acknowledged record is there and nothing is invented."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from tests.crash.conftest import CrashTest
from tests.crash.driver import STRADDLING, built, recorded
from tests.crash.harness import LONG, Effort
from tests.crash.layouts import EACH_DAY, LAYOUTS
from tests.crash.recorder import Recorder, Recording
from tests.crash.simdisk import SECTOR, Loss, Tree, sector_boundaries
from tests.crash.storages import SMALL_SEGMENTS, StorageChecker
from tests.crash.truth import PartitionTruth, Seen, Truth
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions, create_cluster
from waltzctl.formats.control import Layout

pytestmark = pytest.mark.turns(12)

ONE_SEGMENT = StorageOptions()


def across(ids: Sequence[int]) -> pytest.MarkDecorator:
    """Each id in both layouts."""
    return pytest.mark.parametrize(("layout", "number"), list(product(Layout, ids)))


@LAYOUTS
def test_the_partition_under_test_has_a_struct_that_can_tear(layout: Layout) -> None:
    """Otherwise no workload here would ever tear an update of the control file."""
    size = layout.struct_schema.size
    offsets = [layout.struct_offset(STRADDLING[layout], number) for number in (1, 2)]
    assert any(sector_boundaries(offset, size) for offset in offsets), (offsets, SECTOR)


def append_work(tmp_path: Path, layout: Layout) -> Recording[Truth]:
    path, truth = built(tmp_path / "s", layout, 7)
    with recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        number = STRADDLING[layout]
        for count, size in ((1, None), (5, None), (1, 0), (2, 700), (1, 3000), (12, 30)):
            driver.append(number, count, size)
        driver.append(0, 3)
    return recording


@EACH_DAY
def test_append(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    survive(f"append, {layout}", append_work(tmp_path, layout), StorageChecker(ONE_SEGMENT))


class RemembersQuarantine(StorageChecker):
    """Counts the states in which a partition was quarantined."""

    quarantined = 0

    def judge(self, truth: Truth, seen: Seen, state: Tree) -> list[str]:
        RemembersQuarantine.quarantined += any(one.quarantined for one in seen.partitions.values())
        return StorageChecker.judge(self, truth, seen, state)


@pytest.mark.parametrize(
    "effort",
    [
        pytest.param(Effort(Loss(torn_positions=2, random_states=3), 2, Loss(1, 1)), id="some"),
        pytest.param(LONG, marks=pytest.mark.long, id="thorough"),
    ],
)
def test_records_in_flight_that_arrive_out_of_order_close_the_partition_and_lose_nothing(
    effort: Effort, tmp_path: Path, survive: CrashTest
) -> None:
    """The one case of a legitimate quarantine does occur here: otherwise nothing would prove what is promised for it.

    What is drawn by the day may leave it out.
    """
    path, truth = built(tmp_path / "s", Layout.RELEASED, 4)
    with recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        for _ in range(4):
            driver.append(STRADDLING[Layout.RELEASED], 6, 450)
    RemembersQuarantine.quarantined = 0
    survive("append, out of order", recording, RemembersQuarantine(ONE_SEGMENT), effort)
    assert RemembersQuarantine.quarantined >= 3


@EACH_DAY
def test_roll_over(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Batches that end before, at and behind the threshold, and one that fills several segments."""
    path, truth = built(tmp_path / "s", layout, 13)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        for count, size in ((2, 400), (1, 1600), (7, 500), (1, 20)):
            driver.append(number, count, size)
    survive(f"roll-over, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@across([995, 999, 1000, 998])
def test_checkpoint(layout: Layout, number: int, tmp_path: Path, survive: CrashTest) -> None:
    """The batch that reaches transaction 1000, whose index entry and data no earlier sync covers."""
    path, truth = built(tmp_path / "s", layout, number, per_segment=5000, size=10)
    with recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        for count in (3, 6, 1):
            driver.append(STRADDLING[layout], count, 10)
    survive(f"checkpoint, {layout}", recording, StorageChecker(ONE_SEGMENT))


@LAYOUTS
def test_entries_of_another_sector_in_front_of_a_checkpoint(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Entries that no sync covers lie in the sector in front of the one that the batch with the checkpoint writes."""
    path, truth = built(tmp_path / "s", layout, 920, per_segment=5000, size=0)
    with recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        driver.append(STRADDLING[layout], 25, 0)
        driver.append(STRADDLING[layout], 57, 0)
    survive(f"checkpoint, earlier sector, {layout}", recording, StorageChecker(ONE_SEGMENT))


@across([33, 30, 29, 10, 9, 0, -1])
def test_truncate(layout: Layout, number: int, tmp_path: Path, survive: CrashTest) -> None:
    """Within the last segment, at its first record, to the end of the one before, across several, and to nothing."""
    path, truth = built(tmp_path / "s", layout, 36, mark=-1)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        partition, after = STRADDLING[layout], number
        driver.truncate(partition, after)
        driver.append(partition, 2)
        driver.truncate(partition, max(after, 0))
    survive(f"truncate, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@across([33, 20, 9, -1])
def test_truncate_with_permission(layout: Layout, number: int, tmp_path: Path, survive: CrashTest) -> None:
    """Below the mark, within a segment and across several: the mark falls first, or the cut would look like a loss."""
    path, truth = built(tmp_path / "s", layout, 36, mark=34)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        driver.truncate(STRADDLING[layout], number, allow_data_loss=True)
        driver.append(STRADDLING[layout], 1)
    survive(f"truncate with permission, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@across([995, 1000, 1003])
def test_truncate_across_checkpoints(layout: Layout, number: int, tmp_path: Path, survive: CrashTest) -> None:
    """An index that still leads behind a checkpoint that the data file no longer reaches would prove that records were lost."""
    path, truth = built(tmp_path / "s", layout, 2003, per_segment=5000, size=0, mark=-1)
    with recorded(path, truth, ONE_SEGMENT) as (driver, recording):
        driver.truncate(STRADDLING[layout], number)
        driver.append(STRADDLING[layout], 1, 0)
    survive(f"truncate across checkpoints, {layout}", recording, StorageChecker(ONE_SEGMENT))


@across([999, 1500])
def test_truncate_segments_with_checkpoints(layout: Layout, number: int, tmp_path: Path, survive: CrashTest) -> None:
    """Whole segments go, each with an index that proves what was in it."""
    path, truth = built(tmp_path / "s", layout, 3100, per_segment=1200, size=0, mark=-1)
    with recorded(path, truth, StorageOptions(segment_size_threshold=128 + 40 * 1200)) as (driver, recording):
        driver.truncate(STRADDLING[layout], number)
    survive(f"truncate segments, {layout}", recording, StorageChecker(ONE_SEGMENT))


@LAYOUTS
def test_session_and_low_water_marks(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    path, truth = built(tmp_path / "s", layout, 7)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.set_low_water_mark(number, 3, 6)
        driver.append(number, 4)
        driver.set_low_water_mark(number, 7, 15)
        driver.append(number, 15)
        driver.set_low_water_mark(number, 8, 40)
        driver.set_low_water_mark(0, 4, 2)
        driver.append(0, 2)
        driver.set_low_water_mark(0, 5, 2)
    survive(f"low-water mark, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@EACH_DAY
def test_a_session_of_a_waltz_server(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Truncate what the last session left, catch up, set the mark, go on: the order that recovery of a partition has."""
    path, truth = built(tmp_path / "s", layout, 26, mark=20)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.truncate(number, 21)
        driver.append(number, 3, 100)
        driver.set_low_water_mark(number, 4, 24)
        driver.append(number, 9, 300)
        driver.truncate(number, 30)
        driver.append(number, 1, 10)
        driver.set_low_water_mark(number, 5, 31)
    survive(f"server session, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@LAYOUTS
def test_availability(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    path, truth = built(tmp_path / "s", layout, 7)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.set_availability(number, writable=False)
        driver.set_availability(number, readable=False)
        driver.set_availability(number, writable=True)
        driver.set_availability(0, readable=False, writable=False)
        driver.set_availability(number, readable=True)
    survive(f"availability, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@LAYOUTS
def test_assign(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    path, truth = built(tmp_path / "s", layout, 7)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        driver.assign(2)
        driver.append(2, 3)
        driver.assign(1)
    survive(f"assign, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@LAYOUTS
def test_unassign_and_delete_then_assign_again(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """A partition whose files were deleted comes back empty, with initial marks."""
    path, truth = built(tmp_path / "s", layout, 27)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.unassign(number, delete_files=True)
        driver.unassign(0, delete_files=True)
        driver.assign(number)
        driver.append(number, 2)
    survive(f"unassign, delete, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@LAYOUTS
def test_what_is_deleted_is_forgotten_as_a_whole(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Fence, marks and switches go with the files: a partition that comes back is a new one, wherever the crash was."""
    path, truth = built(tmp_path / "s", layout, 3)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.raise_fence(number, 9)
        driver.set_availability(number, writable=False)
        driver.set_availability(0, readable=False)
        driver.unassign(number, delete_files=True)
        driver.unassign(0, delete_files=False)
        driver.assign(number)
        driver.raise_fence(number, 1)
    survive(f"deleted and forgotten, {layout}", recording, StorageChecker(SMALL_SEGMENTS, assign_again=True))


@LAYOUTS
def test_unassign_and_keep(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    path, truth = built(tmp_path / "s", layout, 27)
    with recorded(path, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[layout]
        driver.unassign(number, delete_files=False)
        driver.assign(number)
        driver.append(number, 2)
    survive(f"unassign, keep, {layout}", recording, StorageChecker(SMALL_SEGMENTS))


@LAYOUTS
def test_create_cluster(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """No directory at all or a whole one: a control file is only there once everything behind it is."""
    key = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
    recorder: Recorder[Truth] = Recorder(tmp_path)
    empty = {number: PartitionTruth() for number in range(3)}
    with recorder.listening():
        recorder.promise(Truth(empty, frozenset({True, False})), settled=False)
        create_cluster([tmp_path / "a", tmp_path / "b"], num_partitions=3, cluster_key=key, layout=layout)
        recorder.promise(Truth(empty), settled=True)
    for name in ("a", "b"):
        survive(f"create-cluster, {layout}", recorder.recording, StorageChecker(SMALL_SEGMENTS, name))


@LAYOUTS
def test_opening_and_closing_an_undamaged_directory(layout: Layout, tmp_path: Path, survive: CrashTest) -> None:
    """Opening promises nothing new, and takes nothing away."""
    path, truth = built(tmp_path / "s", layout, 23)
    recorder: Recorder[Truth] = Recorder(path)
    with recorder.listening():
        recorder.promise(truth, settled=True)
        for _ in range(2):
            StorageDirectory.open(path, options=SMALL_SEGMENTS).close()
    survive(f"open, {layout}", recorder.recording, StorageChecker(SMALL_SEGMENTS))
