"""Applying and undoing a plan.

Both take the directory lock, check that the files are those that the plan was made for, copy what will change into the
quarantine, change the files, and verify the result before the lock is released.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.manifest import QuarantineEntry, RepairState
from waltzctl.engine.durable.ownership import Ownership
from waltzctl.engine.durable.restore import other_times
from waltzctl.engine.errors import DiskReadError, RefusedError, with_roll_backs
from waltzctl.engine.findings import Finding, Ran, Severity, left_by
from waltzctl.engine.findings.obstacles import held_back
from waltzctl.engine.log.cluster_keys import SalvagedCluster
from waltzctl.engine.repair.plan import Binding, Repair, check_lockable
from waltzctl.engine.repair.store_kinds import is_page_store
from waltzctl.engine.repair.undoing import UndoResult, check_as_shown, paths_of, undo_locked
from waltzctl.engine.storage.journal_state import refuse_marked
from waltzctl.engine.storage.store import apply_edits, interrupted, list_entries, roll_back_interrupted
from waltzctl.formats.control import CONTROL_FILE_NAME

if TYPE_CHECKING:
    from waltzctl.engine.repair.recover_pages import StoreRepair
    from waltzctl.engine.repair.undo_conditions import MarkFall


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The outcome of a repair.

    ==================  ===========================================================================================
    `undo_id`           id of the quarantine entry; None when nothing had to be kept
    `quarantine`        directory of that entry; None with it
    `status`            clean, repairable or damaged: verify's status of the plan's partitions after the repair
    `exit_status_name`  verify's, or *damage-remains* when something was applied and the status is not clean
    `findings`          verify's findings after the repair, without notes
    `taken_back`        ids of the interrupted repairs that were rolled back
    `others_files`      files that the repair wrote and whose owner or group it could not set to the original's
    ==================  ===========================================================================================
    """

    plan_hash: str
    applied: bool
    undo_id: str | None
    quarantine: Path | None
    status: str
    exit_status_name: str
    findings: tuple[Finding, ...]
    taken_back: tuple[str, ...] = ()
    others_files: tuple[Path, ...] = ()


def apply(repair: Repair | StoreRepair, *, arguments: Sequence[str]) -> RepairResult:
    """Carry out a repair.  The caller has asked for confirmation.  `arguments`: the command line, for the audit journal.

    Raises DirectoryLockedError, StalePlanError when a file changed since the plan was made, DiskFullError before anything is
    changed, RefusedError, DiskError (the changes made so far are rolled back then), DamageError.
    """
    if not isinstance(repair, Repair):
        return _apply_to_store(repair, arguments)
    storage, plan = repair.storage, repair.plan
    control = storage / CONTROL_FILE_NAME
    undo_id = quarantine = None
    applied = False
    taken_back: tuple[str, ...] = ()
    others_files: tuple[Path, ...] = ()
    if repair.edits or repair.roll_back:
        check_lockable(storage)
        with DirectoryLock.acquire(storage, control):
            if repair.roll_back:
                taken_back = tuple(entry.id for entry in roll_back_interrupted(storage))
                applied = bool(taken_back)
            else:
                if left := interrupted(storage):
                    raise RefusedError(
                        f"{storage}: the repair {left[0].id} was interrupted", advice="take it back with undo"
                    )
                if not repair.of_marked:
                    refuse_marked(storage)
                roll_back_interrupted(storage)  # removes the entry of a repair that crashed before its first change
                repair.check_current()
                entry = apply_edits(
                    storage,
                    repair.edits,
                    command=plan.command,
                    arguments=arguments,
                    plan_hash=plan.hash,
                    check_built=repair.check_sources,
                )
                undo_id, quarantine, applied = entry.id, entry.path, True
                others_files = _with_other_owner(entry)
            with with_roll_backs(taken_back):
                status, findings = _verified(repair, exclusive=True)
    else:
        status, findings = _verified(repair, exclusive=False)
    name = "damage-remains" if applied and status != "clean" else _exit_status_name(status, findings)
    return RepairResult(plan.hash, applied, undo_id, quarantine, status, name, findings, taken_back, others_files)


def _exit_status_name(status: str, findings: Sequence[Finding]) -> str:
    """The name of verify's exit status for these findings, which tells unreadable files from damaged ones."""
    from waltzctl.engine.inspect.verification import Tally

    tally = Tally()
    for one in findings:
        tally.add(one)
    return tally.exit_status_name if tally.status == status else status


def _apply_to_store(repair: StoreRepair, arguments: Sequence[str]) -> RepairResult:
    """Carry out a repair of a page store.  Unused space (status repairable) does not count as remaining damage."""
    from waltzctl.engine.pages.inspection import verify_store
    from waltzctl.engine.pages.page_recovery import apply_recovery

    entry: QuarantineEntry | None = None
    taken: tuple[QuarantineEntry, ...] = ()
    if repair.edits or repair.roll_back:
        entry, verified, taken = apply_recovery(repair.recovery, arguments=arguments)
    else:
        verified = verify_store(repair.storage)
    applied = entry is not None or bool(taken)
    name = "damage-remains" if applied and verified.status == "damaged" else verified.status
    return RepairResult(
        repair.plan.hash, applied, None if entry is None else entry.id, None if entry is None else entry.path,
        verified.status, name, verified.grave, tuple(one.id for one in taken), () if entry is None else _with_other_owner(entry),
    )  # fmt: skip


def _with_other_owner(entry: QuarantineEntry) -> tuple[Path, ...]:
    """Files written by an applied repair whose user or group differs from the original's; of a new file, the control file's."""
    found = []
    for file in (one for one in entry.files if one.built is not None):
        path, control = entry.storage / file.path, entry.storage / CONTROL_FILE_NAME
        old, new = Ownership.of(control if file.kept is None else entry.path / file.kept), Ownership.of(path)
        if old is not None and new is not None and (new.user, new.group) != (old.user, old.group):
            found.append(path)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class UndoneRepair:
    """The outcome of an undo: what was taken back, and verify's verdict on the partitions concerned afterwards.

    `status`: clean, repairable or damaged, which is also the exit status; damage is expected, since an undo brings back the
    damage that the repair mended.  `findings`: without notes.  `falls`: sessions and marks that are lower than before the undo.
    `other_times`: files whose bytes were restored but not their modification time, which only the file's owner may set.
    """

    done: UndoResult
    status: str
    findings: tuple[Finding, ...]
    falls: tuple[MarkFall, ...]
    other_times: tuple[Path, ...] = ()


def undo_repair(
    storage: Path, entry_id: str, *, allow_data_loss: bool = False, shown: Binding | None = None
) -> UndoneRepair:
    """Take a repair back and verify the partitions that it touched.  The caller has asked for confirmation.

    `shown`: how the files were when the user saw what would be set aside (`seen_by_undo`); if they are others by now, nothing is
    done and StalePlanError is raised.  Also raises what `engine.repair.undoing.undo` raises; of a page store, what
    `engine.pages.page_recovery.undo_repair` raises.
    """
    if is_page_store(storage):
        from waltzctl.engine.pages.page_recovery import undo_repair as undo_in_store

        entry, verified, taken = undo_in_store(storage, entry_id)
        done = UndoResult((entry,), paths_of([entry]), taken)
        return UndoneRepair(done, verified.status, verified.grave, (), _other_times(done))
    from waltzctl.engine.repair.undo_conditions import falling_marks
    from waltzctl.engine.storage.store import concerned

    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        if shown is not None:
            check_as_shown(storage, entry_id, shown)
        falls = tuple(
            fall
            for one in list_entries(storage)
            if one.id == entry_id and one.partitions
            for fall in falling_marks(one)
        )
        done = undo_locked(storage, entry_id, allow_data_loss=allow_data_loss)
        partitions = {number for entry in (*done.entries, *done.taken_back) for number in concerned(entry)}
        back = (*done.taken_back, *(one for one in done.entries if one.state is RepairState.ROLLED_BACK))
        with with_roll_backs(one.id for one in back):
            status, findings = verify_again(storage, partitions, exclusive=True)
        times = _other_times(done)
    return UndoneRepair(done, status, findings, falls, times)


def _other_times(done: UndoResult) -> tuple[Path, ...]:
    return other_times([*reversed(done.taken_back), *reversed(done.entries)])  # several entries are listed latest first


def _verified(repair: Repair, *, exclusive: bool) -> tuple[str, tuple[Finding, ...]]:
    ran = Ran("") if repair.roll_back else repair.ran  # a roll-back is not the command's own work
    mended = {step.partition for step in repair.plan.steps}
    partitions = {*repair.partitions, *repair.unlisted}
    return verify_again(repair.storage, partitions, exclusive=exclusive, ran=ran, mended=mended)


def verify_again(
    storage: Path,
    partitions: Collection[int],
    *,
    exclusive: bool = False,
    ran: Ran | None = None,
    mended: Collection[int | None] = (),
) -> tuple[str, tuple[Finding, ...]]:
    """Verify's status and findings (without notes) of `partitions`; of all partitions when that is empty.

    `ran`: the command, from which the remedy in each finding follows; `mended`: the partitions that it changed.
    `exclusive`: the caller holds the directory lock, so that no writer is active.
    """
    from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
    from waltzctl.engine.inspect.verify import verify

    findings: list[Finding] = []
    status = "damaged"
    try:
        for seen in verify((storage,), VerifyOptions(partitions=partitions or None, exclusive=exclusive)):
            if isinstance(seen, VerifySummary):
                status = seen.status
            elif seen.severity is not Severity.NOTE:
                findings.append(seen if ran is None else left_by(seen, storage, ran, mended))
    except DiskReadError:
        status = "damaged"
    return status, held_back(map(SalvagedCluster(storage).named, findings))
