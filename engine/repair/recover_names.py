"""Segments under another segment's name: a renamed or copied data file, found by its header and its records.

Such a file is judged as a stray (`engine.repair.recover_strays`): it gets its own name back, or goes where it is a copy of the
segment under that name.  For the rest of the plan it does not stand under the wrong name, which would prove that there were
transactions up to it.

=================================================================================  ==============================================
it is one if                                                                       otherwise
=================================================================================  ==============================================
cluster key, partition and version in its header are right, and the header and     it is judged as a segment whose header is wrong
the first record agree on another first id than the name                           (`engine.repair.provenance`)
it holds no other partition's records, and no replica holds other ones             the same
the name that it should have is free, or a segment that stays is under it          it waits until that one has its name back
=================================================================================  ==============================================
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.log.view import PartitionView, SegmentView, StraySegment, read_segment_header
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.plan import PlanDraft
from waltzctl.engine.repair.provenance import SegmentSurroundings
from waltzctl.engine.repair.recover_strays import plan_strays
from waltzctl.engine.repair.repaired_segments import RepairContext, open_part
from waltzctl.engine.repair.replicas import Agreement, ReplicaSegments
from waltzctl.engine.repair.survey import begins_at
from waltzctl.engine.storage.belonging import stranger
from waltzctl.formats.control import ControlFile
from waltzctl.formats.segment import HEADER_SIZE


def with_own_names(
    draft: PlanDraft,
    control: ControlFile,
    view: PartitionView,
    partition: int,
    replicas: Sequence[ReplicaSegments],
    *,
    allow_data_loss: bool,
) -> PartitionView:
    """The partition with those segments among its strays whose names are proven to be wrong; `view` where there are none.

    Nothing is added to the draft.
    """
    if view.special:
        return view
    found = tuple(one for one in view.data_segments if _renamed(one, control, view, partition, replicas))
    while found:
        seen = _without(view, found)
        trial = copy(draft)
        trial.steps, trial.edits, trial.undecided, trial.sources = [], [], [], set()
        around = SegmentSurroundings(control, partition, seen.segments, replicas)
        context = RepairContext(trial, control, partition, view.path, allow_data_loss, around)
        context.segments = [open_part(context, one) for one in around.segments]
        plan_strays(context, [_stray(one) for one in found], assigned=True)
        taken = {step.path for step in trial.steps if step.action in ("rename-segment", "remove-stray-copy")}
        if all(one.data_path in taken for one in found):
            return seen
        found = tuple(one for one in found if one.data_path in taken)
    return view


def _without(view: PartitionView, found: Collection[SegmentView]) -> PartitionView:
    return replace(
        view,
        segments=tuple(one for one in view.segments if one not in found),
        strays=(*view.strays, *map(_stray, found)),
    )


def _stray(segment: SegmentView) -> StraySegment:
    assert segment.data is not None  # a segment is only renamed where it has a data file
    return StraySegment(segment.data, segment.index)


def _renamed(
    segment: SegmentView,
    control: ControlFile,
    view: PartitionView,
    partition: int,
    replicas: Sequence[ReplicaSegments],
) -> bool:
    """Whether nothing speaks against a segment being the one that its header names, under a wrong name."""
    try:
        header = read_segment_header(segment.data)
        if header is None or header.first_transaction_id == segment.first_transaction_id:
            return False
        assert segment.data is not None  # it has a header
        first = header.first_transaction_id
        right = header.placed(control.header.cluster_key, partition, first)
        content = Content.of_file(segment.data.path, segment.data.size)
        if header != right or segment.data.size == HEADER_SIZE or begins_at(content, -1, first) != first:
            return False
        there = next((one for one in view.data_segments if one.first_transaction_id == first), None)
        if there is not None and not _named_right(there):
            return False
        named = SegmentView(partition, first, segment.data, segment.index)
        if stranger(named, content, partition, header.cluster_key, view.segments) is not None:
            return False
        return not any(one.compare(partition, content, first) is Agreement.DIFFERS for one in replicas)
    except DiskReadError:
        return False


def _named_right(segment: SegmentView) -> bool:
    header = read_segment_header(segment.data)
    return header is not None and header.first_transaction_id == segment.first_transaction_id
