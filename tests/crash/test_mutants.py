"""The harness catches engines that are not crash-safe: each of them forgets something, and must be found out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.crash.driver import STRADDLING, Driver, built, recorded
from tests.crash.harness import Effort, try_crashes
from tests.crash.recorder import Promise, Recording
from tests.crash.repairs import RepairChecker, RepairTruth, record_repair, record_undo
from tests.crash.simdisk import Loss
from tests.crash.storages import SMALL_SEGMENTS, StorageChecker
from tests.crash.truth import Seen, Truth
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.disk import Change, WritableFile
from waltzctl.engine.durable.edits import Cut, Edit, Overwrite, Remove
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageOptions
from waltzctl.engine.storage.store import apply_edits
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout

pytestmark = pytest.mark.turns(8)

QUICK = Effort(Loss(torn_positions=2, random_states=3), 8, Loss(torn_positions=1, random_states=1), failures=1)
LAYOUT = Layout.RELEASED
NUMBER = STRADDLING[LAYOUT]

Work = Callable[[Driver], None]


def some_appends(driver: Driver) -> None:
    driver.append(NUMBER, 2, 700)
    driver.append(NUMBER, 3, 20)


def roll_over(driver: Driver) -> None:
    driver.append(NUMBER, 4, 700)


def truncation(driver: Driver) -> None:
    driver.truncate(NUMBER, 25)


def truncation_across_segments(driver: Driver) -> None:
    driver.truncate(NUMBER, 14)


def a_session(driver: Driver) -> None:
    driver.set_low_water_mark(NUMBER, 5, 40)


def assignment(driver: Driver) -> None:
    driver.assign(2)
    driver.append(2, 1)


def availability(driver: Driver) -> None:
    driver.set_availability(NUMBER, readable=False)


def work_recorded(path: Path, work: Work, options: StorageOptions = SMALL_SEGMENTS) -> Recording[Truth]:
    storage, truth = built(path / "s", LAYOUT, 27)
    with recorded(storage, truth, options) as (driver, recording):
        work(driver)
    return recording


def syncs(suffix: str) -> Callable[[Change], bool]:
    return lambda change: (
        change.kind == "sync" and change.path.name.removesuffix(disk.TEMPORARY_SUFFIX).endswith(suffix)
    )


def directory_syncs(change: Change) -> bool:
    return change.kind == "sync-directory"


WORKS: list[Work] = [
    some_appends,
    roll_over,
    truncation,
    truncation_across_segments,
    a_session,
    assignment,
    availability,
]


FORGETFUL = [
    (some_appends, syncs(".seg")),
    (roll_over, syncs(".seg")),
    (roll_over, directory_syncs),
    (truncation, syncs(".seg")),
    (truncation_across_segments, directory_syncs),
    (a_session, syncs(".ctl")),
    (assignment, syncs(".ctl")),
    (assignment, directory_syncs),
    (availability, syncs(".ctl")),
    (availability, syncs(".json")),
]


@pytest.mark.parametrize("work", WORKS)
def test_the_engine_as_it_is_passes_with_the_same_effort(work: Work, tmp_path: Path) -> None:
    """Without this the mutants below would prove nothing."""
    report = try_crashes("as it is", work_recorded(tmp_path, work), StorageChecker(), QUICK)
    assert not report.failures, str(report.failures[0])
    assert report.states >= 3


@pytest.mark.parametrize(("work", "forgets"), FORGETFUL)
def test_an_engine_that_forgets_a_sync_is_found_out(
    work: Work, forgets: Callable[[Change], bool], tmp_path: Path
) -> None:
    recording = work_recorded(tmp_path, work)
    mutant = recording.without(forgets)
    assert len(mutant.changes) < len(recording.changes)
    assert try_crashes("forgets a sync", mutant, StorageChecker(), QUICK).failures


def test_an_engine_whose_syncs_do_nothing_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(WritableFile, "sync", lambda self: None)
        recording = work_recorded(tmp_path, some_appends)
    assert try_crashes("no sync", recording, StorageChecker(), QUICK).failures


def test_an_engine_that_syncs_no_directory_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(disk, "sync_directory", lambda path, opened=None: None)
        recording = work_recorded(tmp_path, roll_over)
    assert try_crashes("no directory sync", recording, StorageChecker(), QUICK).failures


def test_an_engine_that_acknowledges_before_it_writes_is_found_out(tmp_path: Path) -> None:
    recording = work_recorded(tmp_path, some_appends)
    place = next(n for n, event in enumerate(recording.events) if isinstance(event, Change) and event.kind == "write")
    acknowledged = next(n for n, one in enumerate(recording.events) if n > place and isinstance(one, Promise))
    recording.events.insert(place, recording.events.pop(acknowledged))
    assert try_crashes("too early", recording, StorageChecker(), QUICK).failures


class ShowsWhatIsNotDurable(StorageChecker):
    """A recovery that believes the page cache: it opens the directory without making durable what it shows."""

    def recover(self, root: Path) -> Seen:
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(WritableFile, "sync", lambda self: None)
            return StorageChecker.recover(self, root)


def test_a_recovery_that_shows_what_is_not_durable_is_found_out(tmp_path: Path) -> None:
    report = try_crashes("recovery without sync", work_recorded(tmp_path, some_appends), ShowsWhatIsNotDurable(), QUICK)
    assert report.failures
    assert report.failures[0].model.startswith("recovery of ")


def repaired(path: Path) -> Recording[RepairTruth]:
    storage = build_directory(path / "s", {0: 25}, per_segment=10)
    seg = storage / "0" / "0000000000000000020.seg"
    edits: list[Edit] = [Cut(seg, 700), Overwrite(seg, 200, b"Z" * 100), Remove(seg.with_suffix(".idx"))]

    def work() -> None:
        with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
            apply_edits(storage, edits, command="recover", arguments=[], plan_hash="0" * 64)

    return record_repair(storage, work)


def undone(path: Path) -> Recording[RepairTruth]:
    storage = repaired(path).root
    return record_undo(storage, lambda: undo(storage))


@pytest.mark.parametrize("recording", [repaired, undone])
def test_the_quarantine_as_it_is_passes_with_the_same_effort(
    recording: Callable[[Path], Recording[RepairTruth]], tmp_path: Path
) -> None:
    report = try_crashes("as it is", recording(tmp_path), RepairChecker(), QUICK)
    assert not report.failures, str(report.failures[0])


@pytest.mark.parametrize(
    ("recording", "forgets"),
    [
        (repaired, lambda change: change.kind == "sync" and change.path.name.startswith("range-")),
        (repaired, syncs("manifest.json")),
        (repaired, syncs(".seg")),
        (repaired, directory_syncs),
        (undone, syncs("manifest.json")),
        (undone, syncs(".seg")),
        (undone, directory_syncs),
    ],
)
def test_a_quarantine_that_forgets_a_sync_is_found_out(
    recording: Callable[[Path], Recording[RepairTruth]], forgets: Callable[[Change], bool], tmp_path: Path
) -> None:
    whole = recording(tmp_path)
    mutant = whole.without(forgets)
    assert len(mutant.changes) < len(whole.changes)
    assert try_crashes("forgets a sync", mutant, RepairChecker(), QUICK).failures
