"""Updating the ledger of accepted losses in a recovery: losses given up are entered, losses restored are removed.

The ledger is a file of the repair like the others, so edits and ledger entries are durable together, and undo reverts both.
Entries whose transactions came back without a repair (from a running cluster) stay in the file and are no longer reported;
`recover --forget-losses` removes them, and also entries that the operator no longer wants to be reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.edits import Remove, Replace
from waltzctl.engine.errors import NotWaltzError, RefusedError
from waltzctl.engine.findings.directory_contents import ledger_damaged
from waltzctl.engine.log.places import local
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import FileState, check_partitions, read_control
from waltzctl.engine.losses import GivenUp, Ids, covered, without
from waltzctl.engine.repair.arguments import Arguments
from waltzctl.engine.repair.plan import PlanDraft, Repair, Step
from waltzctl.engine.repair.repaired_segments import RepairContext
from waltzctl.engine.storage.loss_ledger import ledger_path, read_ledger, still_lost
from waltzctl.formats.accepted_losses import AcceptedLoss, Ledger, encode_ledger
from waltzctl.formats.adapters import format_time
from waltzctl.formats.control import CONTROL_FILE_NAME

COMMAND = "recover"


def settle_ledger(context: RepairContext, present: Sequence[AcceptedLoss], mark: int | None, steps_before: int) -> None:
    """Plan the ledger changes that follow from a partition's finished plan.

    `present`: the partition's losses in the ledger now.  `mark`: the local low-water mark before the repair, None when unknown.
    `steps_before`: number of steps of the draft that precede this partition's.
    """
    draft, after = context.draft, -1 if mark is None else mark
    if context.lowered_to is not None:
        after = min(after, context.lowered_to)
    restored = restored_by(draft.steps[steps_before:])
    known = [(loss.first, loss.last + 1) for loss in present]
    for entries, disputed in ((sorted(context.given_up), False), (sorted(context.disputed), True)):
        entered, reached = covered([*known, *restored]), 0
        for first, stop, why in entries:
            # in order: what is below `reached` was entered just now
            for low, high in without((max(first, reached), stop), entered):
                until = "a replica tells which record is right" if disputed else "it is here again"
                draft.step(
                    "accept-loss", ledger_path(draft.storage), context.partition,
                    f"{'disputed' if disputed else 'given up'}; verify names it until {until}, or until recover --forget-losses",
                    ids=(low, high - 1), loses_data=True,
                )  # fmt: skip
                draft.accepted.append(AcceptedLoss(context.partition, low, high - 1, after, "", why, disputed))
            reached = max(reached, stop)
        known += [(first, stop) for first, stop, _ in entries]
    held = covered([*restored, *_held(context)])
    told = covered([*restored, *context.confirmed])
    for loss in present:
        rest = without((loss.first, loss.last + 1), told) if loss.disputed else still_lost(loss, held, mark)
        ids = (loss.first, loss.last)
        if rest:
            context.leave(GivenUp(loss.first, loss.last + 1, loss.time, loss.reason, loss.disputed, tuple(rest)))
        elif restored or loss.disputed:
            said = "a replica tells which record is right" if loss.disputed else "what was given up is here again"
            draft.step("settle-accepted-loss", ledger_path(draft.storage), context.partition, said, ids=ids)
            draft.settled.append(loss)


def restored_by(steps: Iterable[Step]) -> list[Ids]:
    """The ids that steps of a plan restore from a replica."""
    restored: list[Ids] = []
    for step in steps:
        if step.action.startswith("restore-"):
            assert step.from_transaction_id is not None
            assert step.to_transaction_id is not None
            restored.append((step.from_transaction_id, step.to_transaction_id + 1))
    return restored


def _held(context: RepairContext) -> Iterable[Ids]:
    """The ids of intact records before the repair."""
    for part in context.segments:
        if part.survey is not None:
            lost = [
                (loss.first, part.survey.next_id if loss.stop is None else loss.stop) for loss in part.survey.losses
            ]
            yield from without((part.survey.begins, part.survey.next_id), lost)


def plan_ledger(draft: PlanDraft, ledger: Ledger) -> None:
    """Add the edit that replaces the ledger, if the plan changes it.

    Raises RefusedError when it is damaged: the new ledger would silently drop the losses of the damaged one.
    """
    if ledger.fault is not None:
        draft.leave(ledger_damaged(ledger_path(draft.storage), ledger, draft.storage))
    if not draft.accepted and not draft.settled:
        return
    if ledger.fault is not None:
        aside = "set it aside with recover --forget-losses first; undo brings it back"
        raise RefusedError(
            f"{ledger_path(draft.storage)}: {ledger.fault}, so that nothing more can be entered",
            advice=None if ledger.other_version else aside,
        )
    settled = frozenset(draft.settled)
    _write(draft, [loss for loss in ledger.losses if loss not in settled], draft.accepted)


def _write(draft: PlanDraft, kept: Sequence[AcceptedLoss], new: Sequence[AcceptedLoss]) -> None:
    path = ledger_path(draft.storage)
    if kept or new:
        contents = _Contents(tuple(kept), tuple(new))
        draft.edits.append(Replace(path, contents, len(b"".join(contents()))))
    elif FileState.of(path) is not None:
        draft.edits.append(Remove(path))


@dataclass(frozen=True, slots=True)
class _Contents:
    """The bytes of a ledger; the `new` losses get the time of the call."""

    kept: tuple[AcceptedLoss, ...]
    new: tuple[AcceptedLoss, ...]

    def __call__(self) -> list[bytes]:
        now = format_time(disk.now_ms()) or ""
        losses = [*self.kept, *(replace(loss, time=now) for loss in self.new)]
        return [encode_ledger(sorted(losses, key=lambda loss: (loss.partition, loss.first)))]


def plan_forget(path: PurePath, *, partitions: Collection[int] | None = None) -> Repair:
    """Plan that the ledger forgets the losses of a storage directory, or of some partitions.  Read-only.

    Raises NotWaltzError, InvalidRequestError for an impossible partition, RefusedError when a repair was interrupted, when the
    ledger is of another version, or when single partitions are named and it is damaged; DiskReadError.
    """
    target = resolve(path)
    if target.storage is None or target.kind not in (TargetKind.STORAGE, TargetKind.PARTITION):
        raise NotWaltzError(f"{path}: not a storage directory", advice="name the storage directory")
    if target.partition is not None:
        partitions = {target.partition} & set(partitions if partitions is not None else {target.partition})
    draft = PlanDraft(COMMAND, path, local(target.storage), Arguments.of(partitions, forget_losses=True))
    control = read_control(target.storage / CONTROL_FILE_NAME)
    if partitions is not None and control is not None:
        check_partitions(control, partitions)
    draft.refuse_unsettled()
    draft.partitions |= set(partitions or ())
    ledger, where = read_ledger(target.storage), ledger_path(target.storage)
    if ledger.other_version:
        raise RefusedError(f"{where}: {ledger.fault}", advice="nothing was changed")
    if partitions is not None and ledger.fault is not None:
        raise RefusedError(
            f"{where}: {ledger.fault}, so that nobody knows whose losses it kept", advice="leave --partition out"
        )
    forgotten = [loss for loss in ledger.losses if partitions is None or loss.partition in partitions]
    for loss in forgotten:
        said = f"given up on {loss.time} ({loss.reason}); verify no longer names it"
        draft.step("forget-accepted-loss", where, loss.partition, said, ids=(loss.first, loss.last))
        draft.partitions.add(loss.partition)
    if ledger.fault is not None:
        draft.step("set-ledger-aside", where, None, f"{ledger.fault}; it is kept in the quarantine")
    if draft.steps:
        gone = frozenset(forgotten)
        _write(draft, [loss for loss in ledger.losses if loss not in gone], ())
    return draft.finish()
