"""Data files that are gone, restored where their indexes and a replica say the same against records that stand elsewhere.

What a truncation should have removed may still stand behind the end of the segment in front, under the ids of a data file
that was begun afterwards and is lost.  Then no gap tells of it, and the records in front of the lost ones are not a replica's.
The index that is left has the length of each record but the last.  Where a replica's records under these ids have these lengths,
and the records that stand there have not, the replica's were in the lost file: it is restored, and the overlap is then
decided like any other (`engine.repair.recover_overlaps`).  A replica without the record in front of the file proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.log.evidence import written_entries
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import SegmentView, read_segment_header
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment, offsets
from waltzctl.engine.repair.replicas import Neighbours, Proven, ReplicaSegments, WitnessRecord, find_proven
from waltzctl.engine.repair.survey import survey
from waltzctl.engine.repair.witnesses import record_at, records_in_a_row
from waltzctl.engine.scan.byte_source import read_bytes
from waltzctl.engine.storage.orphans import listed_in
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, decode_entries, entry_position


def restore_listed(context: RepairContext, replicas: Sequence[ReplicaSegments]) -> None:
    """Add the data files to the plan that are proven in this way.  Raises DiskReadError for a segment that cannot be read."""
    for part in context.segments if replicas else ():
        if part.data is not None or part.content is not None or part.index is None:
            continue
        holder = _holder(context, part)
        if holder is None:
            continue
        try:
            found = _proven(context, part, holder, replicas)
        except (DiskReadError, FileNotFoundError):
            continue  # who reads these files for something else tells it
        if found is not None:
            _restore(context, part, found)


def _holder(context: RepairContext, part: RepairedSegment) -> RepairedSegment | None:
    """The segment in front of a lost data file that goes on behind its first id; None where its end is doubtful."""
    before = next(context.surveyed(part.first, behind=False), None)
    if before is None or before.survey is None or before.survey.tail is not None or before.survey.inner:
        return None
    return before if before.survey.next_id > part.first else None


def _proven(
    context: RepairContext, part: RepairedSegment, holder: RepairedSegment, replicas: Sequence[ReplicaSegments]
) -> Proven | None:
    assert part.index is not None
    assert holder.original is not None  # it was surveyed
    header, first = read_segment_header(part.index), part.first
    key = context.control.header.cluster_key
    orphan = SegmentView(context.partition, first, None, part.index)
    count = written_entries(orphan)
    if header is None or header != header.placed(key, context.partition, first):
        return None
    if count < 2 or listed_in(orphan, [(holder.first, holder.original)]):
        return None
    record = record_at(holder, offsets(holder, (first - 1,)).get(first - 1))
    before = None if record is None else WitnessRecord(first - 1, record)
    found = find_proven(replicas, context.partition, first, first + count, Neighbours(before, None))
    if before is None or not isinstance(found, Proven):
        return None
    theirs = Content("", tuple(run.span for run in found.runs))
    ends = [HEADER_SIZE, *(HEADER_SIZE + one.end for one in records_in_a_row(theirs, 0, theirs.size()))]
    with open_source(part.index.path) as index:
        listed = decode_entries(read_bytes(index, entry_position(first, first), count * ENTRY_SIZE))
    return found if np.array_equal(listed, ends[:-1]) else None


def _restore(context: RepairContext, part: RepairedSegment, found: Proven) -> None:
    new = context.new_part(part.first, found.runs[0].created)
    assert new.content is not None
    spans = tuple(run.span for run in found.runs)
    new.original = new.content = new.content.spliced(HEADER_SIZE, HEADER_SIZE, spans)
    new.survey = survey(new.content, part.first)
    context.draft.sources |= {run.span.path for run in found.runs}
    context.draft.step(
        "restore-segment", new.data_path, context.partition,
        f"its data file is gone, and its index lists the records of {found.by}, not those that stand under these ids",
        ids=(part.first, found.runs[-1].stop - 1), offset=HEADER_SIZE, length=len(found),
    )  # fmt: skip
