"""Strays: data files whose names are not segment names.

=========================================================================================  ==============================
stray                                                                                      action
=========================================================================================  ==============================
its headers, all its records and both neighbouring segments prove which segment it is, or  renamed to the segment's name
a replica holds its records and there is room for them; and no data file has that name
byte for byte a copy (or the beginning) of the data file under that name                   removed into the quarantine
anything else                                                                              reported; the operator decides
=========================================================================================  ==============================
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from waltzctl.engine.durable.edits import Remove
from waltzctl.engine.durable.restore import read_chunks
from waltzctl.engine.errors import DamageError, DiskReadError
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.findings.directory_contents import Stray, stray_finding
from waltzctl.engine.log.view import FileState, StraySegment
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment
from waltzctl.engine.repair.replicas import Agreement
from waltzctl.engine.repair.survey import Survey, hint_of, survey
from waltzctl.engine.storage.strays import Ids, StrayVerdict, hidden, ids_of, judge_stray
from waltzctl.formats.segment import segment_name


def plan_strays(context: RepairContext, strays: Sequence[StraySegment], *, assigned: bool) -> None:
    """Add the repair of a partition's strays to the plan; the partition's segments are in `context.segments`.

    `assigned`: the partition is assigned to this node.
    """
    verdicts: list[StrayVerdict] = []
    for stray in strays:
        try:
            verdicts.append(judge_stray(stray, context.control.header.cluster_key, context.partition))
        except DiskReadError as error:
            context.find(Code.READ_ERROR, stray.data.path, str(error))
    for verdict in sorted(verdicts, key=lambda one: (one.first or 0, one.stray.data.path)):
        try:
            why = _plan(context, verdict)
        except DiskReadError as error:
            why = f"it cannot be read: {error}"
        except DamageError as error:
            why = error.message
        if why is not None:
            context.draft.leave(_finding(context, verdict, assigned=assigned), f"nothing proves what it is: {why}")


def _finding(context: RepairContext, verdict: StrayVerdict, *, assigned: bool) -> Finding:
    """The finding about a stray, worded as every command words it."""
    surveys = (part.survey for part in context.segments if part.survey is not None)
    ids: Sequence[Ids] = ()
    with contextlib.suppress(DiskReadError):  # the finding already says that the stray cannot be read
        ids = ids_of(verdict)
    unseen = hidden(ids, [(one.begins, one.next_id - 1) for one in surveys])
    stray = verdict.stray.data
    found = Stray(stray.path, stray.size, verdict.first, verdict.refusal, unseen, bool(ids))
    return stray_finding(found, context.where, opened=assigned)


def _plan(context: RepairContext, verdict: StrayVerdict) -> str | None:
    """Plan for one stray; return why nothing is planned, in words, or None."""
    stray, first, header = verdict.stray, verdict.first, verdict.header
    if first is None:
        return verdict.refusal or "its header is no segment's, or its index's says otherwise"
    assert header is not None  # the first id comes from the header
    there = next((part for part in _standing(context) if part.first == first), None)
    if there is not None:
        if there.data is None:
            return f"another file is taken for {there.data_path.name} already"
        if not _is_beginning_of(stray, there):
            return f"{there.data_path.name} stands in its place and holds other bytes"
        _set_aside(context, stray, f"a copy of {there.data_path.name}, byte for byte")
        return None
    if FileState.of(place := context.directory / segment_name(first)) is not None:
        return f"{place.name} is another segment under its name, which has to get its own first"
    content = Content.of_file(stray.data.path, stray.data.size)
    with hint_of(stray.index_path) as hint:
        found = survey(content, first, hint)
    why, proof = _why_not_taken(context, found), "header, records and neighbours prove"
    if why is not None and _replicated(context, content, found):
        why, proof = None, "header and records, which a replica holds under the same ids, prove"
    if why is not None:
        return why
    part = context.new_part(first, header.created)
    part.header, part.survey = header, found
    part.original = part.content = content
    context.draft.step(
        "rename-segment", stray.data.path, context.partition,
        f"{proof} that it is {segment_name(first)}",
        ids=(first, found.next_id - 1), offset=0, length=stray.data.size,
    )  # fmt: skip
    _remove(context, stray)
    return None


def _standing(context: RepairContext) -> list[RepairedSegment]:
    """The segments that have a data file, or will have one, in the order of their ids."""
    standing = (part for part in context.segments if part.data is not None or part.content is not None)
    return sorted(standing, key=lambda part: part.first)


def _why_not_taken(context: RepairContext, found: Survey) -> str | None:
    """Why a surveyed stray is not the segment that its header names, in words; None when everything fits."""
    first = found.begins
    if not found.records:
        return "it holds no record"
    if found.losses:
        return f"it is damaged at offset {found.losses[0].offset}"
    ordered = _standing(context)
    before = next((part for part in reversed(ordered) if part.first < first), None)
    behind = next((part for part in ordered if part.first > first), None)
    if before is None and first != 0:
        return f"it begins with transaction {first}, and no segment stands in front of it"
    if before is not None and (before.survey is None or before.survey.tail is not None):
        return f"{before.data_path.name}, which stands in front of it, is damaged itself"
    if before is not None and before.survey is not None and before.survey.next_id != first:
        return f"{before.data_path.name} leads to transaction {before.survey.next_id}, it begins with {first}"
    if behind is not None and behind.first != found.next_id:
        return f"it leads to transaction {found.next_id}, {behind.data_path.name} begins with {behind.first}"
    return None


def _replicated(context: RepairContext, content: Content, found: Survey) -> bool:
    """Whether replicas hold the records of a surveyed stray, none holds other ones, and the segments leave room for them.

    Then it needs no neighbour that is whole.
    """
    if not found.records or found.losses or not all(_leaves_room(one, found) for one in _standing(context)):
        return False
    replicas = context.around.replicas
    told = {one.compare(context.partition, content, found.begins) for one in replicas}
    context.draft.sources |= {held.path for one in replicas for held in one.segments(context.partition)}
    return Agreement.EQUAL in told and Agreement.DIFFERS not in told


def _leaves_room(part: RepairedSegment, found: Survey) -> bool:
    """Whether a segment ends in front of a surveyed stray, or begins behind it, as far as can be known."""
    if part.first >= found.next_id:
        return True
    return part.first < found.begins and part.survey is not None and part.survey.next_id <= found.begins


def _is_beginning_of(stray: StraySegment, part: RepairedSegment) -> bool:
    """Whether a stray's bytes equal the beginning of a segment's data file."""
    if part.data is None or stray.data.size > part.data.size:
        return False
    pairs = zip(
        read_chunks(stray.data.path, 0, stray.data.size),
        read_chunks(part.data_path, 0, stray.data.size),
        strict=False,
    )
    return all(one == other for one, other in pairs)


def _set_aside(context: RepairContext, stray: StraySegment, why: str) -> None:
    context.draft.step(
        "remove-stray-copy", stray.data.path, context.partition, why, offset=0, length=stray.data.size
    )  # fmt: skip
    _remove(context, stray)


def _remove(context: RepairContext, stray: StraySegment) -> None:
    context.draft.edits.append(Remove(stray.data.path))
    if stray.index is not None:
        context.draft.step(
            "remove-orphan-index", stray.index.path, context.partition, "belongs to the data file",
            offset=0, length=stray.index.size,
        )  # fmt: skip
        context.draft.edits.append(Remove(stray.index.path))
