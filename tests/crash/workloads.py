"""The recorded workloads in which the durable steps of the engine are tried, by name.

They are the workloads of the crash tests: each test hands what it recorded to `survive`, and here that is who asks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.builders import build_directory, make_records
from tests.crash import (
    test_commit_journal,
    test_damaged,
    test_group_commit,
    test_page_recovery,
    test_pages,
    test_process_deaths,
    test_prune,
    test_quarantine,
    test_random_work,
    test_repair_of_unsynced,
    test_repairs,
    test_set_partition,
    test_storage,
    test_vaults,
)
from tests.crash.driver import STRADDLING, built, recorded
from tests.crash.harness import LONG, Checker, Report
from tests.crash.recorder import Recorder, Recording
from tests.crash.repairs import RepairChecker, record_undo
from tests.crash.simdisk import Tree
from tests.crash.storages import SMALL_SEGMENTS, StorageChecker
from tests.crash.truth import Seen, Truth
from waltzctl.engine.durable.disk import TEMPORARY_SUFFIX
from waltzctl.engine.inspect.verification import ManifestRequest
from waltzctl.engine.inspect.verify import VerifyOptions, verify
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.salvage import salvage
from waltzctl.engine.repair.salvage_control_file import salvage_control_file
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout
from waltzctl.formats.segment import HEADER_SIZE, index_name

Recorded = tuple[Recording[Any], Checker[Any, Any]]
RELEASED, DOCUMENTED = Layout.RELEASED, Layout.DOCUMENTED


class Captured:
    """What a crash test with these parameters would have tried."""

    def __init__(self, test: Callable[..., None], **parameters: object) -> None:
        self.test = test
        self._parameters = parameters

    def __call__(self, path: Path) -> Recorded:
        """See `WORKLOADS`."""
        found: list[Recorded] = []

        def survive(workload: str, recording: Recording[Any], checker: Checker[Any, Any], *_: object) -> Report:
            found.append((recording, checker))
            return Report(workload)

        try:
            self.test(**self._parameters, tmp_path=path, survive=survive)
        except AssertionError:
            if not found:
                raise  # otherwise it is about a report, and nothing was tried here
        return found[-1]


def _reopened(path: Path) -> Recorded:
    """A partition that is opened again, as after a failed sync."""
    storage, truth = built(path / "s", RELEASED, 5)
    with recorded(storage, truth, SMALL_SEGMENTS) as (driver, recording):
        number = STRADDLING[RELEASED]
        driver.append(number, 2)
        driver.reopen_partition(number)
        driver.append(number, 1)
    return recording, StorageChecker(SMALL_SEGMENTS)


def _deleted_with_losses(path: Path) -> Recorded:
    """Two partitions with accepted losses are deleted: the ledger is written anew, and then goes."""
    from waltzctl.engine.storage.loss_ledger import ledger_path
    from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger

    storage, truth = built(path / "s", RELEASED, 3)
    numbers = (STRADDLING[RELEASED], 0)
    StorageDirectory.open(storage).close()
    losses = [AcceptedLoss(number, 5, 9, 2, "2026-01-01T00:00:00Z", "lost") for number in numbers]
    ledger_path(storage).write_bytes(encode_ledger(losses))
    with recorded(storage, truth, SMALL_SEGMENTS) as (driver, recording):
        for number in numbers:
            driver.unassign(number, delete_files=True)
    return recording, StorageChecker(SMALL_SEGMENTS)


class WholeChecker:
    """A file or directory is there as a whole or not at all; half-built things under temporary names do not count.

    A promise is the set of trees that may be there.
    """

    def recover(self, root: Path) -> Tree:
        """Only look."""
        found = Tree.read(root)
        return Tree(
            {name: data for name, data in found.files.items() if TEMPORARY_SUFFIX not in name},
            frozenset(name for name in found.directories if TEMPORARY_SUFFIX not in name),
        )

    def examine(self, root: Path, seen: Tree) -> Tree:
        """There is nothing more to see."""
        return seen

    def judge(self, truth: tuple[Tree, ...], seen: Tree, state: Tree) -> list[str]:
        """One of them."""
        return [] if seen in truth else [f"neither nothing nor all of it: {seen.differences(truth[-1])}"]

    def narrowed(self, truth: tuple[Tree, ...], seen: Tree) -> tuple[Tree, ...]:
        """Nothing was acted on."""
        return truth


def _whole(root: Path, work: Callable[[], object]) -> Recorded:
    """Work that makes something as a whole below `root`."""
    recorder: Recorder[tuple[Tree, ...]] = Recorder(root)
    recording = recorder.recording
    with recorder.listening():
        work()
    after = Tree.read(root)
    changes = recording.changes
    recorder.promise((recording.before, after), settled=False)
    recording.events = [recording.events[-1], *changes]
    recorder.promise((after,), settled=True)
    return recording, WholeChecker()


def _salvage(path: Path) -> Recorded:
    source = build_directory(path / "source", {0: 12, 1: 3}, layout=RELEASED, per_segment=5)
    root = path / "root"
    root.mkdir()
    return _whole(root, lambda: salvage([source], to=root / "to"))


def _salvaged_control(path: Path) -> Recorded:
    source = build_directory(path / "source", {0: 3}, layout=RELEASED)
    root = build_directory(path / "root", {0: 3}, layout=RELEASED)
    (root / CONTROL_FILE_NAME).unlink()
    return _whole(root, lambda: salvage_control_file([source], to=root))


def _resume_state(path: Path) -> Recorded:
    storage = build_directory(path / "s", {0: 3}, layout=RELEASED)
    root = path / "root"
    root.mkdir()
    return _whole(root, lambda: list(verify([storage], VerifyOptions(threads=1, resume=root / "state"))))


def _manifest(path: Path) -> Recorded:
    storage = build_directory(path / "s", {0: 3}, layout=RELEASED)
    root = path / "root"
    root.mkdir()
    options = VerifyOptions(threads=1, manifest=ManifestRequest(root / "manifest"))
    return _whole(root, lambda: list(verify([storage], options)))


def _spark_write(path: Path) -> Recorded:
    """What driver and tasks of a Spark job write, in one process."""
    from tests.spark.writing import rows, write

    root = path / "root"
    root.mkdir()
    tasks = [[rows(0, make_records(30))], [rows(2, make_records(3, partition=2))]]
    return _whole(root, lambda: write(root / "to", tasks, numPartitions="3", segmentSize="1000"))


def _empty_orphan(path: Path) -> Recorded:
    """An index that has no data file and no entry, as a roll-over of release 0.13.2 leaves it; opening removes it."""
    storage, truth = built(path / "s", RELEASED, 5)
    directory = storage / str(STRADDLING[RELEASED])
    shutil.copy(directory / index_name(0), directory / index_name(5))
    with (directory / index_name(5)).open("r+b") as file:
        file.truncate(HEADER_SIZE)
    with recorded(storage, truth, SMALL_SEGMENTS) as (_, recording):
        pass
    return recording, StorageChecker(SMALL_SEGMENTS)


def _lost_directory_deleted(path: Path) -> Recorded:
    """A partition whose directory is lost is deleted: an empty one takes its place for that."""
    storage, truth = built(path / "s", RELEASED, 3)
    number = STRADDLING[RELEASED]
    shutil.rmtree(storage / str(number))
    promised = truth.partitions[number]
    lost = truth.with_partition(number, replace(promised, possible=(), least=0, assigned=frozenset({True, False})))
    with recorded(storage, lost, SMALL_SEGMENTS) as (driver, recording):
        driver.unassign(number, delete_files=True)
    return recording, LostChecker(SMALL_SEGMENTS)


class LostChecker(StorageChecker):
    """As long as the lost partition is assigned nothing is asked of it."""

    def judge(self, truth: Truth, seen: Seen, state: Tree) -> list[str]:
        """Only what is left once it is deleted."""
        kept = {number: one for number, one in seen.partitions.items() if not one.quarantined}
        gone = [n for n in seen.partitions.keys() - kept.keys() if True in truth.partitions[n].assigned]
        rest = Truth({n: one for n, one in truth.partitions.items() if n not in gone}, truth.exists)
        return StorageChecker.judge(self, rest, replace(seen, partitions=kept, complaints=()), state)


def _undone(path: Path, damage: Callable[[Path], None]) -> Recorded:
    storage = build_directory(path / "s", {0: 3, 1: 3}, layout=RELEASED)
    damage(storage)
    apply(plan_recover(storage), arguments=["recover"])
    return record_undo(storage, lambda: undo(storage)), RepairChecker()


def _undo_of_a_new_file(path: Path) -> Recorded:
    return _undone(path, lambda storage: (storage / "0" / index_name(0)).unlink())


def _storage() -> Mapping[str, Callable[[Path], Recorded]]:
    found: dict[str, Callable[[Path], Recorded]] = {
        "reopen": _reopened,
        "an index without anything": _empty_orphan,
        "a lost directory is deleted": _lost_directory_deleted,
        "salvage": _salvage,
        "salvage of a control file": _salvaged_control,
        "resume": _resume_state,
        "manifest": _manifest,
        "Spark write": _spark_write,
        "delete with losses": _deleted_with_losses,
        "append": Captured(test_storage.test_append, layout=RELEASED),
        "roll-over": Captured(test_storage.test_roll_over, layout=RELEASED),
        "checkpoint": Captured(test_storage.test_checkpoint, layout=RELEASED, number=995),
        "checkpoint, earlier sector": Captured(
            test_storage.test_entries_of_another_sector_in_front_of_a_checkpoint, layout=RELEASED
        ),
        "truncate": Captured(test_storage.test_truncate, layout=RELEASED, number=10),
        "truncate with permission": Captured(test_storage.test_truncate_with_permission, layout=DOCUMENTED, number=20),
        "truncate across checkpoints": Captured(
            test_storage.test_truncate_across_checkpoints, layout=RELEASED, number=995
        ),
        "truncate segments": Captured(
            test_storage.test_truncate_segments_with_checkpoints, layout=RELEASED, number=999
        ),
        "create-cluster": Captured(test_storage.test_create_cluster, layout=RELEASED),
        "append, out of order": Captured(
            test_storage.test_records_in_flight_that_arrive_out_of_order_close_the_partition_and_lose_nothing,
            effort=LONG,
        ),
        "open and close": Captured(test_storage.test_opening_and_closing_an_undamaged_directory, layout=RELEASED),
        "group commit": Captured(test_group_commit.test_groups_that_roll_over, layout=RELEASED),
        "group commit, passes": Captured(test_group_commit.test_passes_over_two_partitions, layout=RELEASED),
        "group commit, one segment": Captured(test_group_commit.test_groups_within_a_segment, layout=RELEASED),
        "group commit, checkpoint": Captured(test_group_commit.test_a_group_across_a_checkpoint, layout=RELEASED),
        "node session": Captured(test_group_commit.test_a_session_of_a_node, layout=RELEASED),
        "random work": Captured(test_random_work.test_random_work, seed=0, layout=RELEASED),
        "fences": Captured(test_group_commit.test_fences_never_fall, layout=RELEASED),
        "session": Captured(test_storage.test_a_session_of_a_waltz_server, layout=RELEASED),
    }
    for layout in Layout:
        found |= {
            f"marks, {layout}": Captured(test_storage.test_session_and_low_water_marks, layout=layout),
            f"availability, {layout}": Captured(test_storage.test_availability, layout=layout),
            f"assign, {layout}": Captured(test_storage.test_assign, layout=layout),
            f"unassign, {layout}": Captured(test_storage.test_unassign_and_keep, layout=layout),
            f"delete, {layout}": Captured(test_storage.test_what_is_deleted_is_forgotten_as_a_whole, layout=layout),
            f"delete and assign again, {layout}": Captured(
                test_storage.test_unassign_and_delete_then_assign_again, layout=layout
            ),
            f"put aside and back, {layout}": Captured(
                test_process_deaths.test_a_partition_is_put_aside_comes_back_and_is_deleted, layout=layout
            ),
        }
    return found


def _repairs() -> Mapping[str, Callable[[Path], Recorded]]:
    found: dict[str, Callable[[Path], Recorded]] = {
        "small repair": Captured(test_process_deaths.test_a_repair_dies),
        "undo of a new file": _undo_of_a_new_file,
        "small undo": Captured(test_process_deaths.test_an_undo_dies),
        "a repair gives a partition back": Captured(
            test_process_deaths.test_a_repair_that_moves_a_partition_dies, assigned=True
        ),
        "a repair takes a partition away": Captured(
            test_process_deaths.test_a_repair_that_moves_a_partition_dies, assigned=False
        ),
        "recovery of a damaged directory": Captured(test_damaged.test_recovery_of_a_damaged_directory, first=100_000),
        "undo of it": Captured(test_damaged.test_undo_of_it, first=100_000),
        "prune": Captured(test_prune.test_prune, layout=RELEASED),
        "edits": Captured(test_quarantine.test_edits_are_made_as_a_whole_or_not_at_all, layout=RELEASED),
        "undo of edits": Captured(test_quarantine.test_undo_is_done_as_a_whole_or_not_at_all, layout=RELEASED),
        "undo over what came since": Captured(
            test_quarantine.test_what_came_since_is_set_aside_as_a_whole_before_the_undo, layout=RELEASED
        ),
    }
    for unsynced in test_repair_of_unsynced.SCENES:
        found[f"{unsynced.name} of unsynced writes"] = Captured(
            test_repair_of_unsynced.test_repair_of_unsynced_writes, scene=unsynced
        )
    for scene in test_repairs.SCENES:
        found[scene.name] = Captured(test_repairs.test_repair, scene=scene, layout=RELEASED)
        found[f"undo of {scene.name}"] = Captured(test_repairs.test_undo, scene=scene, layout=RELEASED)
    for setting in test_set_partition.SCENES:
        layout = setting.layouts[-1]
        found[f"set-partition, {setting.name}"] = Captured(test_set_partition.test_set, scene=setting, layout=layout)
        found[f"undo of set-partition, {setting.name}"] = Captured(
            test_set_partition.test_undo, scene=setting, layout=layout
        )
    return found


def _pages() -> Mapping[str, Callable[[Path], Recorded]]:
    found: dict[str, Callable[[Path], Recorded]] = {
        f"pages, {work}": Captured(test_pages.test_pages, work=work) for work in test_pages.WORK
    }
    return {
        **found,
        **{
            f"{'undo of ' if undo else ''}page recovery, {scene}": Captured(
                test_page_recovery.test_page_recovery, scene=scene, undo=undo
            )
            for scene in test_page_recovery.SCENES
            for undo in (False, True)
        },
        **{
            f"process deaths, {'undo of ' if undo else ''}page recovery": Captured(
                test_page_recovery.test_a_process_dies_and_then_the_power_fails, undo=undo
            )
            for undo in (False, True)
        },
        "prune, page recovery": Captured(test_page_recovery.test_prune_of_a_page_recovery),
        "pages, random": Captured(test_pages.test_random_work_on_pages, number=0),
        "process deaths, pages": Captured(test_pages.test_a_process_dies_and_then_the_power_fails, work="opening"),
    }


def _journals() -> Mapping[str, Callable[[Path], Recorded]]:
    found: dict[str, Callable[[Path], Recorded]] = {
        "commit journal": Captured(test_commit_journal.test_passes, layout=RELEASED),
        "commit journal, outside": Captured(test_commit_journal.test_a_journal_on_another_device, layout=RELEASED),
        "commit journal, areas": Captured(test_commit_journal.test_areas_become_full, layout=RELEASED),
        "commit journal, begun anew": Captured(test_commit_journal.test_areas_are_begun_anew, layout=RELEASED),
        "commit journal, left": Captured(test_commit_journal.test_the_journal_is_left, layout=RELEASED),
        "commit journal, checkpoint": Captured(test_commit_journal.test_a_checkpoint, layout=RELEASED),
        "commit journal, assignment": Captured(test_commit_journal.test_partitions_come_and_go, layout=RELEASED),
        "commit journal, written back": Captured(
            test_commit_journal.test_what_is_written_back_is_crashed_again, effort=LONG
        ),
        "commit journal, random work": Captured(test_commit_journal.test_random_work, seed=0, layout=RELEASED),
    }
    for failure in test_commit_journal.FAILURES:
        name = f"commit journal, {failure.__name__.replace('_', ' ')}"
        found[name] = Captured(test_commit_journal.test_a_disk_that_fails, failure=failure)
    for fault in test_commit_journal.FAULTS:
        name = f"commit journal, {fault.__name__.replace('_', ' ')} in writing back"
        found[name] = Captured(test_commit_journal.test_writing_back_fails, failure=fault)
    return found


def _vaults() -> Mapping[str, Callable[[Path], Recorded]]:
    return {
        "vault": Captured(test_vaults.test_a_vault),
        "restore of a backup": Captured(test_vaults.test_a_restored_directory),
    }


WORKLOADS: Mapping[str, Callable[[Path], Recorded]] = {
    **_storage(),
    **_journals(),
    **_repairs(),
    **_pages(),
    **_vaults(),
}
"""Each records itself in an empty directory."""
