"""Lowering the local low-water mark, where what it promised is given up by explicit wish.

The mark says what is durable here.  One that promises more than there is would quarantine the partition at its next opening.
Session and low-water mark of the cluster stay: this replica is behind its cluster then, and a Waltz server brings it up to date.
"""

from __future__ import annotations

from pathlib import PurePath

from waltzctl.engine.durable.edits import Edit, Overwrite
from waltzctl.engine.repair.plan import PlanDraft
from waltzctl.formats.control import PartitionInfo


def lower_mark(draft: PlanDraft, control_path: PurePath, info: PartitionInfo, after: int) -> None:
    """Plan that the local low-water mark falls to transaction `after`; does nothing when it is not above.

    `info` is the partition's info as the plan leaves it so far: what the plan writes of it anew is written once.
    """
    current = info.current_struct
    if current is None or after >= current.local_low_water_mark:
        return
    layout = current.layout
    number, lowered = info.updated(local_low_water_mark=after)
    offset, data = layout.struct_offset(info.partition, number), lowered.encode()
    if not layout.has_flags:  # where the higher marks win, both structs have to say it
        offset, data = layout.struct_offset(info.partition, 1), data * 2
    reason = f"the local low-water mark falls from {current.local_low_water_mark} to {after}: what it promised is gone"
    draft.step(
        "lower-local-low-water-mark", control_path, info.partition, reason,
        offset=offset, length=len(data), loses_data=True,
    )  # fmt: skip
    written = Overwrite(control_path, offset, data)
    draft.edits[:] = [edit for edit in draft.edits if not _inside(edit, written)] + [written]


def _inside(edit: Edit, written: Overwrite) -> bool:
    if not isinstance(edit, Overwrite) or edit.path != written.path:
        return False
    return written.offset <= edit.offset and edit.end <= written.end
