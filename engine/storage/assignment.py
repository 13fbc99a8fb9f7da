"""Whether a partition is assigned to a storage directory; the only place where this is decided.

Released layout: the flag *assigned* of the struct in force decides.  The documented layout has no flag:

=====================  ================================================  ======================================
partition's directory  session and marks in its info                     assigned
=====================  ================================================  ======================================
exists                 any                                               yes
missing                initial values                                    no: never here, or deleted
missing                others, and ``.waltzctl/unassigned/N`` exists     no: put aside
missing                others, and ``.waltzctl/deleting/N`` exists       no: its deletion is not finished
missing                others                                            yes: its directory is lost
=====================  ================================================  ======================================
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
    """Directory of a partition that was taken away, whether or not it exists; `kind` is UNASSIGNED or DELETING."""
    return storage / f"{disk.STATE_DIRECTORY}/{kind}/{number}"  # one path object, not three: called for every partition


def put_aside_path(storage: Place, number: int) -> Place:
    """Directory of a partition of the documented layout while it is put aside."""
    return retired_place(storage, UNASSIGNED, number)


def is_retired(storage: PurePath, number: int) -> bool:
    """Whether a partition is put aside, or its deletion is not finished."""
    return any(places.is_directory(retired_place(storage, kind, number)) for kind in (UNASSIGNED, DELETING))


def assigned_here(
    storage: PurePath | None, control: ControlFile | None, partition: int, *, directory: bool
) -> bool | None:
    """Whether a partition is assigned to a storage directory; None where that is unknown.

    `directory`: whether the partition's directory exists.  Unknown: without a control file, for a partition that the control file
    does not have, or when a damaged struct may be the one that decides.
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
        return False  # without a look whether it is put aside: that costs two system calls for each partition
    if storage is not None and is_retired(storage, partition):
        return False
    if current is not None and current.marks != _INITIAL:
        return True
    return False if whole else None


def is_hosted(storage: PurePath | None, control: ControlFile | None, partition: int, *, directory: bool) -> bool:
    """`assigned_here` as a yes or no, for callers that have to act on it.

    Where it is unknown, the struct in force decides; without one, whether the partition's directory exists.
    """
    assigned = assigned_here(storage, control, partition, directory=directory)
    if assigned is not None:
        return assigned
    known = control is not None and 0 <= partition < len(control.partitions)
    current = control.partitions[partition].current_struct if control is not None and known else None
    return directory if current is None or current.assigned is None else current.assigned
