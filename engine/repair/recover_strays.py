"""Data files under names that are no segment's: given the name that is theirs, or set aside, where that is proven.

One is taken for the segment that its header names when its headers, every record from the first to its end, and the segments
on both sides of its place say so, and no data file stands there.  A copy of what stands under the right name, byte for byte,
is set aside.  Everything else is only named: a person decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltzctl.engine.durable.edits import Remove
from waltzctl.engine.durable.restore import read_chunks
from waltzctl.engine.errors import DamageError, DiskReadError
from waltzctl.engine.findings import Code
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.recover_parts import Ground, Part
from waltzctl.engine.repair.survey import Survey, open_hint, survey
from waltzctl.engine.storage.strays import StrayVerdict, judge_stray
from waltzctl.engine.storage.view import StraySegment
from waltzctl.formats.segment import segment_name


def plan_strays(ground: Ground, strays: Sequence[StraySegment]) -> None:
    """Add what can be done for the strays of a partition to the plan.  The segments are in `ground.parts`."""
    verdicts: list[StrayVerdict] = []
    for stray in strays:
        try:
            verdicts.append(judge_stray(stray, ground.control.header.cluster_key, ground.partition))
        except DiskReadError as error:
            ground.find(Code.READ_ERROR, stray.data.path, str(error))
    for verdict in sorted(verdicts, key=lambda one: (one.first or 0, one.stray.data.path)):
        try:
            why = _plan(ground, verdict)
        except DiskReadError as error:
            why = f"it cannot be read: {error}"
        except DamageError as error:
            why = error.message
        if why is not None:
            ground.find(
                Code.SEGMENT_STRAY,
                verdict.stray.data.path,
                f"no segment has this name, and nothing proves what it is: {why}",
                segment=verdict.first,
            )


def _plan(ground: Ground, verdict: StrayVerdict) -> str | None:
    """Plan for one stray; why nothing is planned, in words."""
    stray, first = verdict.stray, verdict.first
    if first is None or verdict.header is None:
        return verdict.refusal or "its header and its index's disagree"
    there = next((part for part in _standing(ground) if part.first == first), None)
    if there is not None:
        if there.data is None:
            return f"another file is taken for {there.data_path.name} already"
        if not _is_beginning_of(stray, there):
            return f"{there.data_path.name} stands in its place and holds other bytes"
        _set_aside(ground, stray, f"a copy of {there.data_path.name}, byte for byte")
        return None
    content = Content.of_file(stray.data.path, stray.data.size)
    hint = open_hint(stray.index_path)
    try:
        found = survey(content, first, hint)
    finally:
        if hint is not None:
            hint.close()
    why = _stands_against(ground, found)
    if why is not None:
        return why
    part = ground.new_part(first, verdict.header.created)
    part.header, part.survey = verdict.header, found
    part.original = part.content = content
    ground.draft.step(
        "rename-segment", stray.data.path, ground.partition,
        f"header, records and neighbours prove that it is {segment_name(first)}",
        ids=(first, found.next_id - 1), offset=0, length=stray.data.size,
    )  # fmt: skip
    _remove(ground, stray)
    return None


def _standing(ground: Ground) -> list[Part]:
    """The segments that have a data file, or will have one, in order."""
    standing = (part for part in ground.parts if part.data is not None or part.content is not None)
    return sorted(standing, key=lambda part: part.first)


def _stands_against(ground: Ground, found: Survey) -> str | None:
    """Why a file with such records is not taken for the segment that its header names; None when everything fits."""
    first = found.begins
    if not found.records:
        return "it holds no record"
    if found.losses:
        return f"it is damaged at offset {found.losses[0].offset}"
    ordered = _standing(ground)
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


def _is_beginning_of(stray: StraySegment, part: Part) -> bool:
    """Whether everything in a stray stands at the same place in a segment too."""
    if part.data is None or stray.data.size > part.data.size:
        return False
    pairs = zip(
        read_chunks(stray.data.path, 0, stray.data.size),
        read_chunks(part.data_path, 0, stray.data.size),
        strict=False,
    )
    return all(one == other for one, other in pairs)


def _set_aside(ground: Ground, stray: StraySegment, why: str) -> None:
    ground.draft.step(
        "remove-stray-copy", stray.data.path, ground.partition, why, offset=0, length=stray.data.size
    )  # fmt: skip
    _remove(ground, stray)


def _remove(ground: Ground, stray: StraySegment) -> None:
    ground.draft.edits.append(Remove(stray.data.path))
    if stray.index is not None:
        ground.draft.step(
            "remove-orphan-index", stray.index.path, ground.partition, "belongs to the data file",
            offset=0, length=stray.index.size,
        )  # fmt: skip
        ground.draft.edits.append(Remove(stray.index.path))
