"""Giving up a lost commit journal: the control file's mark and the state file that names the journal are removed.

Nothing else is changed.  Records that were only in the journal are then lost: verify reports them as far as marks and indexes
prove them, and `recover --from` restores them from a replica.  The journal file itself is not touched, so that after an undo
(as long as nothing was written since) the next opening of the directory can still write it back.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from waltzctl.engine.durable.edits import Overwrite, Remove
from waltzctl.engine.errors import NotWaltzError
from waltzctl.engine.log.places import local
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import FileState, read_control
from waltzctl.engine.repair.arguments import Arguments
from waltzctl.engine.repair.plan import PlanDraft, Repair
from waltzctl.engine.storage.journal_state import look_at_journal, state_path
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER

COMMAND = "recover"


def plan_forget_journal(path: PurePath) -> Repair:
    """Plan to take the commit journal of a storage directory out of force; no steps when none is in force.  Read-only.

    Raises NotWaltzError, RefusedError when a repair was interrupted, DiskReadError.
    """
    target = resolve(path)
    if target.storage is None or target.kind is not TargetKind.STORAGE:
        raise NotWaltzError(
            f"{path}: not a storage directory", advice="a journal is that of a whole directory: name it"
        )
    storage = local(target.storage)
    draft = PlanDraft(COMMAND, path, storage, Arguments.of(forget_journal=True), of_marked=True)
    draft.refuse_interrupted()
    control_path = storage / CONTROL_FILE_NAME
    control = read_control(control_path)
    if control is None or not control.header.journaled:
        return draft.finish()
    found = look_at_journal(storage)
    place, size = CONTROL_HEADER.offset_of("num_partitions"), CONTROL_HEADER.size_of("num_partitions")
    header = replace(control.header, journaled=False).encode()
    draft.edits.append(Overwrite(control_path, place, header[place : place + size]))
    where = "its commit journal" if found.path is None else f"the commit journal {found.path}"
    seen = found.fault or "it is there, and the node, or append, would write them back"
    draft.step(
        "forget-journal", control_path, None,
        f"acknowledged records that stand in {where} and not in their segments are given up ({seen}); its file is not touched",
        offset=place, length=size, loses_data=True,
    )  # fmt: skip
    named_in = local(state_path(storage))
    if FileState.of(named_in) is not None:
        draft.edits.append(Remove(named_in))
        draft.step("remove-journal-state", named_in, None, "it names the journal; undo brings it back")
    return draft.finish()
