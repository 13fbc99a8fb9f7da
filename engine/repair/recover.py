"""Recovery of a storage directory: restore what can be proven, clear what a crash leaves, report what is lost.

The plan consists of the control file's repair (`engine.repair.recover_control`) and, for each partition, of the repair of
headers, losses, indexes and leftover files (`engine.repair.recover_partition`).  All of it becomes one quarantine entry, so
that one undo takes everything back.

A loss is never hidden: a lost record stays a finding until it is restored from a replica.  A loss that the operator accepts
(``--allow-data-loss``) enters the ledger of accepted losses (`engine.repair.recover_ledger`) in the same repair.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.inspect.storage_checks import state_file_findings
from waltzctl.engine.log.places import local
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import PartitionView, StorageView, beyond, check_partitions, view_storage
from waltzctl.engine.repair.arguments import Agreed, Arguments
from waltzctl.engine.repair.plan import NotedFiles, PlanDraft, Repair, plan_roll_back
from waltzctl.engine.repair.recover_control import opens, plan_control
from waltzctl.engine.repair.recover_ledger import plan_ledger
from waltzctl.engine.repair.recover_partition import plan_partition
from waltzctl.engine.repair.replicas import open_replicas
from waltzctl.engine.storage.assignment import is_hosted
from waltzctl.engine.storage.journal_state import refuse_marked
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.formats.control import ControlFile

COMMAND = "recover"


def plan_recover(
    path: PurePath,
    *,
    partitions: Collection[int] | None = None,
    replicas: Sequence[PurePath] = (),
    allow_data_loss: bool = False,
    agreed: Sequence[Agreed] = (),
    seen: NotedFiles | None = None,
) -> Repair:
    """Plan the recovery of a storage directory, or of one of its partitions.  Read-only.

    `replicas`: storage directories of other replicas, from which damaged and missing records are restored.
    `allow_data_loss`: split segments around lost records, and give up what cannot be decided.  `agreed`: for each partition
    what a comparison of all its replicas decided to keep, and what to cut or replace in this replica.  `seen`: what was noted of
    the directory before that comparison, so that the plan is stale if it was written since.

    Raises NotWaltzError, InvalidRequestError for an impossible partition, MismatchError for a replica of another
    cluster, RefusedError while a commit journal is in force, DiskReadError.
    """
    target = resolve(path)
    if target.storage is None or target.kind not in (TargetKind.STORAGE, TargetKind.PARTITION):
        raise NotWaltzError(
            f"{path}: not a storage directory", advice="recover works on a whole one, or on its partitions"
        )
    partitions = target.selected(partitions)
    arguments = Arguments.of(
        partitions,
        replicas=tuple(str(one) for one in replicas),
        allow_data_loss=allow_data_loss,
        agreed=tuple(agreed),
    )
    if (first := plan_roll_back(COMMAND, path, arguments)) is not None:
        return first
    # a copy: other plans may be bound to the same
    noted = NotedFiles() if seen is None else NotedFiles({**seen.listings}, {**seen.digests})
    draft = PlanDraft(COMMAND, path, local(target.storage), arguments, seen=noted)
    view = view_storage(target.storage, partitions, each_alone=True)
    if view.control is not None and opens(view.control):
        refuse_marked(draft.storage)
    control = plan_control(draft, view, partitions, allow_data_loss=allow_data_loss)
    if control is None:
        return draft.finish()
    if partitions is not None:
        check_partitions(control, partitions)
    for stray in beyond(view.partitions, control):
        draft.undecided.append(_not_ours(draft, stray, control))
    others = open_replicas(replicas, target.storage, control)
    kept = {one.partition: one for one in agreed}
    ledger = read_ledger(target.storage)
    draft.leave_unlisted(view, control)
    for number in _numbers(view, control, partitions):
        found = view.partitions.get(number)
        draft.sees(number, found)
        planned = [(rows, [*rows]) for rows in (draft.steps, draft.edits, draft.accepted, draft.settled)]
        try:
            plan_partition(
                draft, control, found, number,
                assigned=is_hosted(target.storage, control, number, directory=number in view.partitions),
                replicas=others, allow_data_loss=allow_data_loss, agreed=kept.get(number),
                accepted=ledger.of_partition(number),
            )  # fmt: skip
        except DiskReadError as error:
            draft.leave_unread(number, error)
            # half of what the partition needs: steps without the edits that they tell of, and a lowered mark in place of the
            # planned mending of a struct
            for rows, before in planned:
                rows[:] = before
        if number in kept and any(step.loses_data for step in draft.steps[len(planned[0][1]) :]):
            draft.rests_on(PurePath(one) for one in kept[number].missing)
    plan_ledger(draft, ledger)
    draft.undecided += state_file_findings(draft.storage, control, _numbers(view, control, partitions))
    return draft.finish(others)


def _numbers(view: StorageView, control: ControlFile, partitions: Collection[int] | None) -> list[int]:
    known = range(len(control.partitions))
    wanted = {*(known if partitions is None else partitions), *(one for one in view.partitions if one in known)}
    return sorted(wanted - view.unlisted.keys())


def _not_ours(draft: PlanDraft, view: PartitionView, control: ControlFile) -> Finding:
    """A note about a directory whose number is beyond the cluster's partitions."""
    said = f"the control file has partitions 0 to {len(control.partitions) - 1}, and none of this number; it is left as it is"
    return make_finding(
        Code.PARTITION_NOT_ASSIGNED, view.path, said, storage_directory=draft.storage, partition=view.partition
    )
