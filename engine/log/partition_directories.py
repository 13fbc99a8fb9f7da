"""The partitions in a storage directory, by the names and types of its entries; what is in them is not looked at.

In the place of a partition's directory there may be a link to one on another disk.  Where that disk is not mounted, the link
leads nowhere, and the partition is neither there nor gone.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePath

from waltzctl.engine.amounts import MAX_PARTITION
from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.log import places
from waltzctl.engine.log.access import PlaceKind
from waltzctl.formats.control import NEVER, ControlFile

_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
EntryKinds = Mapping[str, PlaceKind | None]
"""The entries of a storage directory, as `entry_kinds` returns them."""


def partition_number(name: str) -> int | None:
    """The partition whose directory has this name; None where it is not the name of a partition directory."""
    return int(name) if _PARTITION.fullmatch(name) and int(name) <= MAX_PARTITION else None


@contextlib.contextmanager
def listing_errors(path: PurePath) -> Iterator[None]:
    """Raise NotWaltzError where `path` is no directory that can be listed."""
    try:
        yield
    except NotADirectoryError as error:
        raise NotWaltzError(f"{path}: not a directory") from error
    except FileNotFoundError as error:
        raise NotWaltzError(f"{path}: no such directory") from error
    except OSError as error:
        circle = error.errno == errno.ELOOP
        what = "a link that leads in a circle, no directory" if circle else f"no directory: {error.strerror}"
        raise NotWaltzError(f"{path}: {what}") from error


def entry_kinds(path: PurePath) -> dict[str, PlaceKind | None]:
    """The entries of a directory by their names, each with its type; None: a link that leads nowhere.

    Raises NotWaltzError, DiskReadError.
    """
    with listing_errors(path):
        return places.kinds(path)


def partition_directories(path: PurePath) -> list[int]:
    """The numbers of all partition directories of a storage directory, sorted.  Raises NotWaltzError, DiskReadError."""
    return mounted(entry_kinds(path))


def partition_places(path: PurePath) -> list[int]:
    """As `partition_directories`, with those that are links to disks which are not mounted."""
    return _partitions(entry_kinds(path), PlaceKind.DIRECTORY, None)


def mounted(kinds: EntryKinds) -> list[int]:
    """The partitions in whose places directories are; sorted.

    Who asks for `unmounted` as well asks both of one listing: a disk may come or go between two of them.
    """
    return _partitions(kinds, PlaceKind.DIRECTORY)


def unmounted(kinds: EntryKinds) -> tuple[int, ...]:
    """The partitions in whose places links lead nowhere: to disks that are not mounted; sorted."""
    return tuple(_partitions(kinds, None))


def _partitions(kinds: EntryKinds, *wanted: PlaceKind | None) -> list[int]:
    numbers = (partition_number(name) for name, kind in kinds.items() if kind in wanted)
    return sorted(number for number in numbers if number is not None)


def unmounted_errors(path: PurePath, control: ControlFile | None, links: Collection[int]) -> dict[int, DiskReadError]:
    """The partitions that are out of reach, and of which nothing else tells: links to disks that are not mounted.

    In the documented layout one that was in no session is assigned because its directory exists: without its disk it would pass
    for one that was never here.  Any other such partition counts as lost, or as one that is not assigned.  In a backup they are
    those that could not be read when it was made.  `links`: what `unmounted` returned.
    """
    if control is None or control.layout.has_flags:
        return {}
    errors = {number: leads_nowhere(path / str(number)) for number in links}
    for number in places.left_unread(path):
        cause = OSError(errno.ENOENT, "the backup lacks it, as it could not be read then")
        errors[number] = DiskReadError(path / str(number), None, cause, doing="list")
    infos = control.partitions
    return {
        number: error
        for number, error in sorted(errors.items())
        if number < len(infos) and ((current := infos[number].current_struct) is None or current.marks == NEVER)
    }


def leads_nowhere(directory: PurePath) -> DiskReadError:
    """The error for a link in the place of a partition's directory whose disk is not mounted."""
    error = DiskReadError(directory, None, OSError(errno.ENOENT, "its link leads nowhere"), doing="list")
    error.advice = "mount what it leads to, or remove the link if the partition is given up"
    return error
