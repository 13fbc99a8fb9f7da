"""Partitions that were taken away from a storage directory: put aside with all of their files, or deleted.

Both begin with one rename of the partition's directory (`engine.durable.relocation`), so a crash never leaves half a partition in
its place.  An unfinished deletion is finished when the storage directory is opened next (`finish_deletions`).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.durable.file_status import is_named, names_in, special_kind
from waltzctl.engine.durable.mounts import is_mount
from waltzctl.engine.durable.relocation import DELETING, relocate
from waltzctl.engine.errors import DiskError, DiskFullError, DiskReadError, RefusedError
from waltzctl.engine.log.partition_directories import partition_number
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.storage.assignment import put_aside_path, retired_place
from waltzctl.engine.storage.availability_marks import forget_availability
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.fences import forget_fence
from waltzctl.engine.storage.loss_ledger import forget_partition
from waltzctl.formats.control import FLAG_AVAILABLE, NEVER


def check_directory(place: Path, number: int, *, back_in: Path | None = None) -> None:
    """Raise RefusedError when something is where a partition's directory stands, or is put aside, and is none; DiskReadError.

    What leads to a disk that is not mounted, or cannot be examined, is there: an empty partition beside it would have lost it.
    `back_in`: where it is moved to next; a relative link, which an earlier version put aside, leads from there.
    """
    if file_status.is_directory(place) or not is_named(place):
        return
    if back_in is None or not place.is_symlink() or not file_status.is_directory(back_in / os.readlink(place)):
        raise RefusedError(
            f"{place}: it is {special_kind(place) or 'a file'}, not a directory",
            advice=f"mount what it leads to, or bring the directory of partition {number} back",
        )


def check_moved_offline(storage: Path, number: int) -> None:
    """Raise RefusedError when what is put aside is no directory, or a link, through which no repair goes; DiskReadError."""
    aside = put_aside_path(storage, number)
    check_directory(aside, number, back_in=storage)
    if _is_link(aside):
        raise RefusedError(
            f"{aside}: it is a symbolic link, which only a node moves back",
            advice=f"let the node assign partition {number}; or move the link to {storage / str(number)} by hand, and repeat it",
        )


def check_put_aside(storage: Path, number: int) -> None:
    """Raise RefusedError when the partition cannot be put aside: there are files put aside before, or no directory to move."""
    target = put_aside_path(storage, number)
    _refuse_elsewhere(storage / str(number), moved_back=True)
    if not file_status.is_directory(storage / str(number)):
        raise RefusedError(
            f"{storage / str(number)}: the directory of partition {number} is lost, so that there is nothing to put aside",
            advice="bring it back, or take the partition away with its files deleted",
        )
    if is_named(target):
        raise RefusedError(
            f"{target}: files of partition {number} were put aside here before",
            advice="move one of the two away by hand",
        )


def _refuse_elsewhere(directory: Path, *, moved_back: bool) -> None:
    """Raise RefusedError when a partition's directory is a symbolic link or a mount point, and so cannot be moved; DiskReadError.

    `moved_back`: the directory is only put aside; an absolute link is then accepted, as it leads to the same place when moved.
    """
    linked = _is_link(directory)
    if linked and not (moved_back and os.path.isabs(os.readlink(directory))):
        what = "it is a symbolic link"
    elif not linked and is_mount(directory):
        what = "a disk is mounted there"
    else:
        return
    raise RefusedError(
        f"{directory}: {what}, so that it is not moved away",
        advice="switch the partition off instead, or stop the node and put the partition's own directory there",
    )


def prepare_relocation(storage: Path, kind: str) -> None:
    """Make, durably, the directory into which a partition is put aside (UNASSIGNED) or moved for deletion (DELETING).

    Called first, because it needs disk space and the later steps do not.  Raises DiskError.
    """
    disk.make_directories_above(retired_place(storage, kind, 0))


def put_aside(storage: Path, number: int) -> None:
    """Put a partition's directory aside, durably.  Raises RefusedError as `check_put_aside`, DiskError."""
    check_put_aside(storage, number)
    relocate(storage, storage / str(number), put_aside_path(storage, number))


def take_from_aside(storage: Path, number: int) -> None:
    """Move a partition's directory back from where it was put aside, durably.  Raises DiskError."""
    relocate(storage, put_aside_path(storage, number), storage / str(number))


def left_directories(storage: Path, number: int) -> list[Path]:
    """The directories of a partition that exist: its own, and the one put aside.  Raises DiskReadError."""
    return [path for path in (storage / str(number), put_aside_path(storage, number)) if file_status.is_directory(path)]


def check_deletion(storage: Path, number: int) -> None:
    """Raise RefusedError when a partition's directories hold foreign files, or cannot be moved (`_refuse_elsewhere`)."""
    for place in (storage / str(number), put_aside_path(storage, number)):
        _refuse_elsewhere(place, moved_back=False)
    for source in left_directories(storage, number):
        view = view_partition(source, number)
        if unknown := (*view.unknown, *(one.data.path for one in view.strays), *view.special):
            raise RefusedError(
                f"{unknown[0]}: not a file of Waltz, so its directory is not deleted", advice="move it away first"
            )


def begin_deletion(storage: Path, number: int) -> None:
    """Move a partition's directory into ``.waltzctl/deleting/``.  Raises RefusedError as `check_deletion`, DiskError.

    A lost directory is replaced by an empty one, so that session and marks are deleted all the same.  A second directory, which
    was put aside, is deleted first: otherwise the next assignment would take it for the partition's.
    """
    check_deletion(storage, number)
    if not left_directories(storage, number):
        disk.make_directory(storage / str(number))
        disk.sync_directory(storage)
    *put_aside_before, source = reversed(left_directories(storage, number))
    for directory in put_aside_before:
        _delete(directory)
    target = retired_place(storage, DELETING, number)
    if target.exists():
        _delete(target)
    relocate(storage, source, target)


def empty_deleted(storage: Path, number: int) -> None:
    """Remove the files of a partition whose deletion was begun; `finish_deletions` does the rest.  Raises DiskError."""
    _empty(retired_place(storage, DELETING, number))


def finish_deletions(
    storage: Path, control: OpenControlFile, only: Collection[int] | None = None
) -> dict[int, DiskError]:
    """Finish every deletion that was begun; with `only`, those of these partitions.  Raises DamageError, DiskError.

    Returns the errors for which files could not be removed, by partition: nothing is stored about these any more (but on a full
    disk), and they cannot be assigned again before the disk lets the rest go.  No other partition waits for that.

    Order for each partition:

    1. reset session and marks, drop fence, accepted losses and availability mark;
    2. remove the files;
    3. remove their directory, which until then shows that the deletion is unfinished.

    When the disk is too full for step 1, the files are removed before it; where that makes no room, the deletion waits as well.
    """
    directory = storage / disk.STATE_DIRECTORY / DELETING
    failed: dict[int, DiskError] = {}
    for name in names_in(directory) or ():
        number = partition_number(name)
        if number is None or number >= control.num_partitions:
            continue  # not put there by a deletion
        if only is not None and number not in only:
            continue
        try:
            _forget(storage, control, number)
        except DiskFullError:
            try:
                _empty(directory / name)
                _forget(storage, control, number)
            except DiskError as error:
                failed[number] = error
                continue
        try:
            _delete(directory / name)
        except DiskError as error:
            failed[number] = error
    return failed


def _forget(storage: Path, control: OpenControlFile, number: int) -> None:
    """Delete everything stored about a partition outside its directory; may be repeated."""
    info = control.info(number)
    current = info.current_struct
    forgotten = current is not None and current.marks == NEVER and current.flags in (None, FLAG_AVAILABLE)
    if not forgotten and info.stored_partition == number and not (storage / str(number)).is_dir():
        control.reset(number)
    forget_fence(storage, control.num_partitions, number)
    forget_partition(storage, number)
    forget_availability(storage, number)


def _empty(directory: Path) -> None:
    if _is_link(directory):  # moved there by an earlier version: the link's target is kept
        return
    for name in names_in(directory) or ():
        disk.unlink(directory / name)


def _is_link(directory: Path) -> bool:
    try:
        return directory.is_symlink()
    except OSError as error:
        raise DiskReadError(directory, None, error, doing="look at") from error


def _delete(directory: Path) -> None:
    if _is_link(directory):
        disk.unlink(directory)
    else:
        _empty(directory)
        disk.remove_directory(directory)
    disk.sync_directory(directory.parent)
