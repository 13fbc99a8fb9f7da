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

import os
from pathlib import PurePath
from typing import TypeVar

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.durable.file_status import NOTHING_THERE
from waltzctl.engine.durable.relocation import DELETING, UNASSIGNED
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.log import places
from waltzctl.engine.log.partition_directories import partition_number
from waltzctl.formats.control import NEVER, ControlFile, struct_in_force

Place = TypeVar("Place", bound=PurePath)


def retired_place(storage: Place, kind: str, number: int) -> Place:
    """Directory of a partition that was taken away, whether or not it exists; `kind` is UNASSIGNED or DELETING."""
    return storage / f"{disk.STATE_DIRECTORY}/{kind}/{number}"  # one path object, not three: called for every partition


def put_aside_path(storage: Place, number: int) -> Place:
    """Directory of a partition of the documented layout while it is put aside."""
    return retired_place(storage, UNASSIGNED, number)


def names_put_aside(name: str) -> bool:
    """Whether a name, relative to the storage directory and with slashes, is that of a partition's directory that is put aside.

    Like a partition's directory in its place, it may be a link to another disk.
    """
    above, _, last = name.rpartition("/")
    return above == f"{disk.STATE_DIRECTORY}/{UNASSIGNED}" and partition_number(last) is not None


def out_of_reach(storage: PurePath) -> tuple[PurePath, ...]:
    """What is put aside on a disk that is not mounted: links that lead nowhere, to partitions' directories or to files in them.

    No inspection looks there, so that nobody else tells of them.  Raises DiskReadError.
    """
    if not places.on_this_machine(storage):
        return ()  # there are no links
    aside = put_aside_path(storage, 0).parent
    found = []
    for place in (aside / name for name in _names(aside) if partition_number(name) is not None):
        if os.path.islink(place) and not file_status.is_directory(place):
            found.append(place)
        else:
            found += [one for one in (place / name for name in _names(place)) if _leads_nowhere(one)]
    return tuple(found)


def _leads_nowhere(place: PurePath) -> bool:
    if not os.path.islink(place):
        return False
    try:
        os.stat(place)
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return True
        raise DiskReadError(place, None, error, doing="examine") from error  # it may well be there
    return False


def _names(directory: PurePath) -> list[str]:
    try:
        return places.names(directory)
    except OSError:  # none there
        return []


def is_retired(storage: PurePath, number: int) -> bool:
    """Whether a partition is put aside, or its deletion is not finished."""
    return any(_is_named(retired_place(storage, kind, number)) for kind in (UNASSIGNED, DELETING))


def _is_named(place: PurePath) -> bool:
    """Whether a directory is there, also a link to one whose disk is not mounted, and one that cannot be examined (EIO)."""
    try:
        return places.is_directory(place) or places.access(place).link(place)
    except OSError:  # what lists it tells it as well; a listing for each partition would be too much
        return place.name in _names(place.parent)


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
    if whole and (current is None or current.marks == NEVER):
        return False  # without a look whether it is put aside: that costs two system calls for each partition
    if storage is not None and is_retired(storage, partition):
        return False
    if current is not None and current.marks != NEVER:
        return True
    return False if whole else None


def is_hosted(storage: PurePath | None, control: ControlFile | None, partition: int, *, directory: bool) -> bool:
    """`assigned_here` as a yes or no, for callers that have to act on it.

    Where it is unknown, the struct in force decides; without one, whether the partition's directory exists.
    """
    assigned = assigned_here(storage, control, partition, directory=directory)
    if assigned is not None:
        return assigned
    current = struct_in_force(control, partition)
    return directory if current is None or current.assigned is None else current.assigned
