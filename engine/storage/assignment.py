"""Whether a partition belongs to a storage directory: the one answer for all who ask.

Released layout: the flag of the struct in force.  The documented layout has no flag: a partition belongs to the storage directory
that has a directory for it.  But a session or a mark in its info proves that the partition was here.  If its directory is not,
it was taken away on purpose, which leaves a mark of its own (``.waltzctl/unassigned/N`` while it is put aside,
``.waltzctl/deleting/N`` until its deletion is finished, an info with initial values after that), or it is lost, and the partition
still belongs here.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TypeVar

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.relocation import DELETING, UNASSIGNED
from waltzctl.engine.log import places
from waltzctl.formats.control import ControlFile

_INITIAL = (-1, -1, -1)
Place = TypeVar("Place", bound=PurePath)


def retired_place(storage: Place, kind: str, number: int) -> Place:
    """Where a partition is, or would be, that was taken away; `kind` is UNASSIGNED or DELETING."""
    return storage / f"{disk.STATE_DIRECTORY}/{kind}/{number}"  # one path, not three: every look at a partition asks


def put_aside_path(storage: Place, number: int) -> Place:
    """Where a partition of the documented layout is while it is not assigned."""
    return retired_place(storage, UNASSIGNED, number)


def is_retired(storage: PurePath, number: int) -> bool:
    """Whether a partition was taken away on purpose: it is put aside, or waits for its deletion."""
    return any(places.is_directory(retired_place(storage, kind, number)) for kind in (UNASSIGNED, DELETING))


def assigned_here(
    storage: PurePath | None, control: ControlFile | None, partition: int, *, directory: bool
) -> bool | None:
    """Whether a partition belongs to a storage directory; None where nothing tells.

    `directory`: whether there is a directory for it.  Nothing tells without a control file, for a partition that it does not
    have, or when the struct that is lost may be the one that says so.
    """
    if control is None or not 0 <= partition < len(control.partitions):
        return None
    info = control.partitions[partition]
    current, whole = info.current_struct, all(one.valid for one in info.structs)
    if control.layout.has_flags:
        if current is None or (not current.assigned and not whole):
            return None
        return bool(current.assigned)
    if directory:
        return True
    if whole and (current is None or current.marks == _INITIAL):
        return False  # also where it is put aside: nobody looks for that, twice for each of a million partitions
    if storage is not None and is_retired(storage, partition):
        return False
    if current is not None and current.marks != _INITIAL:
        return True
    return False if whole else None


def is_hosted(storage: PurePath | None, control: ControlFile | None, partition: int, *, directory: bool) -> bool:
    """The same as a yes or no, for those who have to act on it.

    Where nothing tells for sure the struct in force decides, and where there is none whether there is a directory.
    """
    assigned = assigned_here(storage, control, partition, directory=directory)
    if assigned is not None:
        return assigned
    known = control is not None and 0 <= partition < len(control.partitions)
    current = control.partitions[partition].current_struct if control is not None and known else None
    return directory if current is None or current.assigned is None else current.assigned
