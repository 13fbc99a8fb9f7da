"""Lowering the local low-water mark when durable transactions are given up (``--allow-data-loss``).

The mark says up to which transaction the log is durable here.  A mark above the last transaction would make the node quarantine
the partition at its next opening.  The session and the cluster's low-water mark are unchanged: this replica is then behind its
cluster, and a Waltz server brings it up to date.
"""

from __future__ import annotations

from pathlib import PurePath

from waltzctl.engine.durable.edits import Edit, Overwrite
from waltzctl.engine.repair.plan import PlanDraft
from waltzctl.formats.control import PartitionInfo


def lower_mark(draft: PlanDraft, control_path: PurePath, info: PartitionInfo, after: int) -> None:
    """Plan to lower the local low-water mark to transaction `after`; does nothing when it is not higher.

    `info` is the partition's info with the edits planned so far; planned edits of the same bytes are dropped, so that they are
    written once.
    """
    current = info.current_struct
    if current is None or after >= current.local_low_water_mark:
        return
    layout = current.layout
    number, lowered = info.updated(local_low_water_mark=after)
    offset, data = layout.struct_offset(info.partition, number), lowered.encode()
    if not layout.has_flags:  # in the documented layout the higher marks win, so both structs must be lowered
        offset, data = layout.struct_offset(info.partition, 1), data * 2
    reason = f"the local low-water mark falls from {current.local_low_water_mark} to {after}: what it promised is gone"
    draft.step(
        "lower-local-low-water-mark", control_path, info.partition, reason,
        offset=offset, length=len(data), loses_data=True,
    )  # fmt: skip
    written = Overwrite(control_path, offset, data)
    if not draft.overwritten(control_path).isdisjoint(range(written.offset, written.end)):
        draft.edits[:] = [edit for edit in draft.edits if not _inside(edit, written)]
    draft.edits.append(written)


def _inside(edit: Edit, written: Overwrite) -> bool:
    if not isinstance(edit, Overwrite) or edit.path != written.path:
        return False
    return written.offset <= edit.offset and edit.end <= written.end
