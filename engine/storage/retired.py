"""Partitions that were taken away: put aside with everything they have, or deleted.

Both begin with one rename of the partition's directory (`engine.durable.relocation`), so a crash never leaves half a partition
where a whole one is expected; what was to be deleted is deleted at the next opening.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.relocation import DELETING, relocate
from waltzctl.engine.errors import DiskFullError, DiskReadError, RefusedError
from waltzctl.engine.log.view import partition_number, view_partition
from waltzctl.engine.storage.assignment import put_aside_path, retired_place
from waltzctl.engine.storage.availability_marks import forget_availability
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.fences import forget_fence
from waltzctl.engine.storage.loss_ledger import forget_partition
from waltzctl.formats.control import FLAG_AVAILABLE


def check_put_aside(storage: Path, number: int) -> None:
    """Raise RefusedError when files of the partition were put aside before, or when there are none that can be put aside."""
    target = put_aside_path(storage, number)
    _refuse_elsewhere(storage / str(number), moved_back=True)
    if not (storage / str(number)).is_dir():
        raise RefusedError(
            f"{storage / str(number)}: the directory of partition {number} is lost, so that there is nothing to put aside",
            advice="bring it back, or take the partition away with its files deleted",
        )
    if os.path.lexists(target):
        raise RefusedError(
            f"{target}: files of partition {number} were put aside here before",
            advice="move one of the two away by hand",
        )


def _refuse_elsewhere(directory: Path, *, moved_back: bool) -> None:
    """Raises RefusedError where a partition's files lie elsewhere and cannot go: behind a link, or on a disk mounted here.

    `moved_back`: the directory is only put aside, as a link can be that leads to the same place from there.
    """
    linked = directory.is_symlink()
    if linked and not (moved_back and os.path.isabs(os.readlink(directory))):
        what = "it is a symbolic link"
    elif not linked and os.path.ismount(directory):
        what = "a disk is mounted there"
    else:
        return
    raise RefusedError(
        f"{directory}: {what}, so that it is not moved away",
        advice="switch the partition off instead, or stop the node and put the partition's own directory there",
    )


def prepare_relocation(storage: Path, kind: str) -> None:
    """Make durably what has to be there before a partition can be put aside (UNASSIGNED) or deleted (DELETING).

    A full disk does not give it; what follows needs no more space.  Raises DiskError.
    """
    disk.make_directories_above(retired_place(storage, kind, 0))


def put_aside(storage: Path, number: int) -> None:
    """Move a partition's directory out of the way, durably.  Raises RefusedError when one is there already, DiskError."""
    check_put_aside(storage, number)
    relocate(storage, storage / str(number), put_aside_path(storage, number))


def take_from_aside(storage: Path, number: int) -> None:
    """Bring a partition's directory back, durably.  Raises DiskError."""
    relocate(storage, put_aside_path(storage, number), storage / str(number))


def _sources(storage: Path, number: int) -> list[Path]:
    return [path for path in (storage / str(number), put_aside_path(storage, number)) if path.is_dir()]


def check_deletion(storage: Path, number: int) -> None:
    """Raise RefusedError when there is something in a partition's directories that is not Waltz's, or they lie elsewhere."""
    for place in (storage / str(number), put_aside_path(storage, number)):
        _refuse_elsewhere(place, moved_back=False)
    for source in _sources(storage, number):
        view = view_partition(source, number)
        if unknown := (*view.unknown, *(one.data.path for one in view.strays), *view.special):
            raise RefusedError(
                f"{unknown[0]}: not a file of Waltz, so its directory is not deleted", advice="move it away first"
            )


def begin_deletion(storage: Path, number: int) -> None:
    """Move a partition's directories to where they will be deleted.  Raises RefusedError as `check_deletion`, DiskError.

    Where its directory is lost an empty one takes its place, so that session and marks are forgotten all the same.  What was put
    aside goes first, where the partition is here as well: left behind, it would be the partition's at the next assignment.
    """
    check_deletion(storage, number)
    if not _sources(storage, number):
        disk.make_directory(storage / str(number))
        disk.sync_directory(storage)
    *put_aside_before, source = reversed(_sources(storage, number))
    for directory in put_aside_before:
        _delete(directory)
    target = retired_place(storage, DELETING, number)
    if target.exists():
        _delete(target)
    relocate(storage, source, target)


def empty_deleted(storage: Path, number: int) -> None:
    """Remove the files of a partition that waits for its deletion; `finish_deletions` does the rest.  Raises DiskError."""
    _empty(retired_place(storage, DELETING, number))


def finish_deletions(storage: Path, control: OpenControlFile, only: Collection[int] | None = None) -> None:
    """Delete what waits for it, and forget session, marks, fence, accepted losses and switches of those partitions.

    All of that before the files go, and last their directory, which is the sign that something is left to do.  Where the disk is
    too full for what has to be written the files make room first.  `only`: of these, unless None.

    Raises DamageError, DiskError.
    """
    directory = storage / disk.STATE_DIRECTORY / DELETING
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    except OSError as error:
        raise DiskReadError(directory, None, error, doing="list") from error
    for name in names:
        number = partition_number(name)
        if number is None or number >= control.num_partitions:
            continue  # nothing that was put there by us
        if only is not None and number not in only:
            continue
        try:
            _forget(storage, control, number)
        except DiskFullError:
            _empty(directory / name)
            _forget(storage, control, number)
        _delete(directory / name)


def _forget(storage: Path, control: OpenControlFile, number: int) -> None:
    info = control.info(number)
    current = info.current_struct
    forgotten = current is not None and current.marks == (-1, -1, -1) and current.flags in (None, FLAG_AVAILABLE)
    if not forgotten and info.stored_partition == number and not (storage / str(number)).is_dir():
        control.reset(number)
    forget_fence(storage, control.num_partitions, number)
    forget_partition(storage, number)
    forget_availability(storage, number)


def _empty(directory: Path) -> None:
    if directory.is_symlink():  # put there by an earlier version: what it leads to stays
        return
    for name in sorted(os.listdir(directory)):
        disk.unlink(directory / name)


def _delete(directory: Path) -> None:
    if directory.is_symlink():
        disk.unlink(directory)
    else:
        _empty(directory)
        disk.remove_directory(directory)
    disk.sync_directory(directory.parent)
