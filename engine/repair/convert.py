"""Converting a storage directory from one layout of its control file to the other.

Segments and indexes are the same in both layouts.  The control file differs, and so does where these facts are kept:

====================  ================================================  =======================================
..                    documented                                        released
====================  ================================================  =======================================
assigned              the partition's directory exists                  a flag
unassigned files      in ``.waltzctl/unassigned/``                      in the partition's directory
may be read, written  ``.waltzctl/availability.json``                   a flag; the file says which of both it clears
struct in force       larger session, higher marks                      sequence number
====================  ================================================  =======================================

Session and marks of both structs keep their place, so a documented file that is converted and converted back has the same
bytes.  The directory of an unassigned partition is moved to where the target layout keeps it.  Left where it is, it would count
as assigned in the documented layout, and would not be found by a release in the released layout.  The conversion is refused when
it is unknown whether a partition is assigned.

The control file is edited in place, not replaced.  The lock on it, which a released node takes too, is thereby held throughout,
and there is no moment without a control file: a release would create a new one, with every partition unassigned.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath

from waltzctl.engine.durable.edits import Cut, MoveDirectory, Overwrite, Replace
from waltzctl.engine.durable.file_status import is_named
from waltzctl.engine.errors import DamageError, DiskReadError, NotWaltzError, RefusedError
from waltzctl.engine.findings import Severity
from waltzctl.engine.inspect.control_checks import inspect_control
from waltzctl.engine.log.places import local
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import StorageView, view_storage
from waltzctl.engine.repair.arguments import Arguments
from waltzctl.engine.repair.plan import PlanDraft, Repair
from waltzctl.engine.shell_words import shell_join
from waltzctl.engine.storage.assignment import is_retired, put_aside_path
from waltzctl.engine.storage.availability_marks import (
    Availability,
    availability_path,
    combine,
    encode_marks,
    load_marks,
)
from waltzctl.engine.storage.retired import check_moved_offline
from waltzctl.formats.control import (
    CONTROL_HEADER,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    NEVER,
    ControlFile,
    Layout,
    PartitionInfo,
    convert_info,
)

COMMAND = "convert"


def plan_convert(path: PurePath, *, layout: Layout) -> Repair:
    """Plan to convert a storage directory to `layout`; no steps when it has that layout.  Read-only.

    Raises NotWaltzError, RefusedError for damage in the control file, for an interrupted repair, and when it is unknown whether a
    partition is assigned, DiskReadError.
    """
    target = resolve(path)
    if target.kind is not TargetKind.STORAGE or target.storage is None:
        raise NotWaltzError(f"{path}: not a storage directory", advice="a directory is converted as a whole")
    storage = local(target.storage)
    draft = PlanDraft(COMMAND, path, storage, Arguments.of(layout=layout))
    draft.refuse_unsettled()
    view = _viewed(storage)
    control = _sound(view)
    draft.partitions |= set(range(len(control.partitions)))
    if control.layout is layout:
        return draft.finish()
    for number in draft.partitions:
        draft.sees(number, view.partitions.get(number))
    draft.reads(availability_path(storage))
    marks = _availability(view, control)
    assigned = {info.partition: _check_assigned(view, info) for info in control.partitions}
    infos = tuple(
        convert_info(info, layout, available=marks[info.partition].available, assigned=assigned[info.partition])
        for info in control.partitions
    )
    unassigned = [number for number, yes in assigned.items() if not yes]
    if not layout.has_flags:  # before the control file: as long as it has flags, the directory's place does not count
        _put_aside(draft, view, unassigned)
        _keep_availability(draft, control, marks)
    body = replace(control, layout=layout, partitions=infos).encode()[CONTROL_HEADER.size :]
    size = layout.file_size(len(infos))
    if size < control.size:
        draft.edits.append(Cut(view.control_path, size))
    draft.edits.append(Overwrite(view.control_path, CONTROL_HEADER.size, body))
    draft.step(
        "convert-control-file",
        view.control_path,
        None,
        _in_words(control, layout, infos, marks, assigned),
        offset=CONTROL_HEADER.size,
        length=control.size - CONTROL_HEADER.size,
    )
    if layout.has_flags:  # after the control file, for the same reason
        _take_from_aside(draft, unassigned)
    return draft.finish()


def _viewed(storage: PurePath) -> StorageView:
    """Raises DiskReadError where one partition cannot be listed: there is one control file for all, which has one layout.

    Without its directory the partition would not be assigned in the target layout, or the directory would stay where it makes
    the partition assigned.
    """
    try:
        return view_storage(storage)
    except DiskReadError as error:
        error.advice = error.advice or "a directory is converted as a whole: convert it when the disk answers again"
        raise


def _sound(view: StorageView) -> ControlFile:
    """The control file.  Raises RefusedError when anything in it is damaged."""
    state = inspect_control(view.control_path, view.path)
    damage = next((one for one in state.findings if one.severity is not Severity.NOTE), None)
    if damage is not None:
        raise RefusedError(
            f"{view.control_path}: {damage.code}: {damage.message}",
            advice=f"nothing was modified; run {damage.remedy or shell_join(('waltzctl', 'verify', str(view.path)))} first",
        )
    assert state.control is not None  # a missing one is a finding
    return state.control


def _availability(view: StorageView, control: ControlFile) -> dict[int, Availability]:
    try:
        marks = load_marks(view.path)
    except DamageError as error:
        raise RefusedError(error.message, advice=error.advice) from error
    return {info.partition: combine(control, marks, info.partition) for info in control.partitions}


def _check_assigned(view: StorageView, info: PartitionInfo) -> bool:
    """Whether a partition is assigned.  Raises RefusedError when that is unknown, or when files are in both places."""
    number, current = info.partition, info.current_struct
    assert current is not None  # nothing is damaged
    directory, aside = view.path / str(number), local(put_aside_path(view.path, number))
    present = number in view.partitions
    if number in view.unmounted:
        raise RefusedError(
            f"{directory}: the link in the place of partition {number} leads nowhere: nobody knows whether it is assigned, or"
            " what is there; nothing was modified",
            advice="mount what it leads to first, or remove the link if the partition is given up",
        )
    assigned = present if current.assigned is None else current.assigned
    if assigned and not present:
        raise RefusedError(
            f"{directory}: partition {number} is assigned and its directory is missing; in the documented layout it would look"
            " as if it were not assigned",
            advice="bring the directory back first",
        )
    if not assigned and present and is_named(aside):
        raise RefusedError(
            f"{directory}: partition {number} is not assigned, and files of it are both here and in {aside}",
            advice="move one of the two away first",
        )
    if not present and not is_retired(view.path, number) and current.marks != NEVER:
        raise RefusedError(
            f"{directory}: partition {number} has seen session {current.session_id} (local low-water mark"
            f" {current.local_low_water_mark}) and its files are gone: nothing tells whether it is assigned",
            advice="bring the directory back first",
        )
    return assigned


def _put_aside(draft: PlanDraft, view: StorageView, unassigned: Iterable[int]) -> None:
    for number in unassigned:
        directory = draft.storage / str(number)
        if number in view.partitions:
            if os.path.islink(directory):
                assign = ("waltzctl", "set-partition", str(draft.storage), "--partition", str(number), "--assigned")
                raise RefusedError(
                    f"{directory}: partition {number} is not assigned, so that its directory is to be put aside, and it is a"
                    " link; nothing was modified",
                    advice=f"move its directory here in place of the link, or assign it: {shell_join(assign)}",
                )
            draft.edits.append(MoveDirectory(directory, put_aside_path(draft.storage, number)))
            reason = "it is not assigned, and in the documented layout a directory that exists is an assigned partition"
            draft.step("put-aside", directory, number, reason)


def _take_from_aside(draft: PlanDraft, unassigned: Iterable[int]) -> None:
    for number in unassigned:
        aside = put_aside_path(draft.storage, number)
        if is_named(aside):
            check_moved_offline(draft.storage, number)
            draft.edits.append(MoveDirectory(aside, draft.storage / str(number)))
            reason = "it is not assigned, which the flag says from now on; a release looks for its files in their usual place"
            draft.step("take-from-aside", aside, number, reason)


def _keep_availability(draft: PlanDraft, control: ControlFile, marks: Mapping[int, Availability]) -> None:
    """Write the availability file as the flags are.

    It is written before the control file: until then the flags count, and they agree with the file.
    """
    path = availability_path(draft.storage)
    wanted = {number: mark for number, mark in marks.items() if not mark.available}
    present = {number: mark for number, mark in load_marks(draft.storage).items() if not mark.available}
    if wanted == present:
        return
    data = encode_marks(wanted)
    draft.edits.append(Replace(path, lambda: [data], len(data)))
    for number in sorted(wanted.keys() | present.keys()):
        if wanted.get(number) != present.get(number) and number < len(control.partitions):
            mark = marks[number]
            said = f"readable: {str(mark.readable).lower()}, writable: {str(mark.writable).lower()}"
            draft.step("write-availability", path, number, f"the flag of partition {number} says so: {said}")


def _in_words(
    control: ControlFile,
    layout: Layout,
    infos: tuple[PartitionInfo, ...],
    marks: Mapping[int, Availability],
    assigned: Mapping[int, bool],
) -> str:
    """What the conversion does, for the plan."""
    off = sum(not mark.available for mark in marks.values())
    said = (
        f"{control.layout} layout to {layout} layout: {len(infos)} partitions, {sum(assigned.values())} of them assigned, {off}"
        " switched off; sessions and marks stay as they are"
    )
    if layout.has_flags:
        return said + "; sequence numbers begin at 0"
    said += "; sequence numbers go, the documented layout has none"
    older = [
        new.partition
        for old, new in zip(control.partitions, infos, strict=True)
        if sorted(one.marks for one in old.structs) != sorted(one.marks for one in new.structs)
    ]
    if older:
        said += (
            f"; the values in force stand in both structs of {len(older)} partitions whose older struct has higher ones"
        )
    unknown = {one.flags or 0 for info in control.partitions for one in info.structs}
    if any(flags & ~(FLAG_AVAILABLE | FLAG_ASSIGNED) for flags in unknown):
        said += "; flags that no release uses go"
    return said
