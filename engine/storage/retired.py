"""Partitions that were taken away: put aside with everything they have, or deleted.

Both begin with one rename of the partition's directory, into ``.waltzctl/unassigned/`` or ``.waltzctl/deleting/``.  A rename
happens or does not happen, so a crash never leaves half a partition where a whole one is expected; what was to be deleted is
deleted at the next opening.

A rename is durable in two halves, and the directory must not lose its old name durably before it has the new one.  Where a
process died between the two, the next writer has to sync in the same order (`settle_places`).  Which one that is the places tell,
but for a partition that comes back from where it was put aside: that is marked while it is under way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskError, DiskReadError, RefusedError
from waltzctl.engine.storage.accepted_losses import forget_partition
from waltzctl.engine.storage.assignment import DELETING, RETURNING, UNASSIGNED, put_aside_path, retired_place
from waltzctl.engine.storage.availability import forget_availability
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.fences import forget_fence
from waltzctl.engine.storage.view import view_partition
from waltzctl.formats.control import FLAG_AVAILABLE


def retired_directories(storage: Path) -> tuple[Path, Path]:
    """Where partitions are that were put aside, and that wait for their deletion."""
    return storage / disk.STATE_DIRECTORY / UNASSIGNED, storage / disk.STATE_DIRECTORY / DELETING


def move_partition(storage: Path, source: Path, target: Path) -> None:
    """Move a partition's directory from one of its places to another, durably.  Raises DiskWriteError."""
    returning = storage / disk.STATE_DIRECTORY / RETURNING
    returns = source.parent == retired_directories(storage)[0] and target.parent == storage
    if returns and not returning.is_dir():
        disk.make_directory(returning)  # for the next process; after a power loss nothing is under way
    try:
        disk.move_directory(source, target)
    except BaseException:
        if returns and source.is_dir():
            with contextlib.suppress(DiskError):
                disk.remove_directory(returning)
        raise
    if returns:
        disk.remove_directory(returning)


def settle_places(storage: Path) -> None:
    """Make durable where the partitions are, after a process that died in the midst of a move.

    There is one such move at most, and it went to where partitions are deleted, or put aside, unless it was marked as one that
    comes back.  The place that it went to is synced first.  Raises DiskWriteError.
    """
    unassigned, deleting = retired_directories(storage)
    returning = storage / disk.STATE_DIRECTORY / RETURNING
    returned = returning.is_dir()
    for directory in (storage, unassigned, deleting) if returned else (deleting, unassigned, storage):
        if directory.is_dir():
            disk.sync_directory(directory)
    disk.sync_directory(storage / disk.STATE_DIRECTORY)
    if returned and not os.listdir(returning):
        disk.remove_directory(returning)


def check_put_aside(storage: Path, number: int) -> None:
    """Raise RefusedError when files of the partition were put aside before, or when there are none to put aside."""
    target = put_aside_path(storage, number)
    if not (storage / str(number)).is_dir():
        raise RefusedError(
            f"{storage / str(number)}: the directory of partition {number} is lost, so that there is nothing to put aside",
            advice="bring it back, or take the partition away with its files deleted",
        )
    if target.exists():
        raise RefusedError(
            f"{target}: files of partition {number} were put aside here before",
            advice="move one of the two away by hand",
        )


def put_aside(storage: Path, number: int) -> None:
    """Move a partition's directory out of the way, durably.  Raises RefusedError when one is there already, DiskError."""
    check_put_aside(storage, number)
    move_partition(storage, storage / str(number), put_aside_path(storage, number))


def take_from_aside(storage: Path, number: int) -> None:
    """Bring a partition's directory back, durably.  Raises DiskError."""
    move_partition(storage, put_aside_path(storage, number), storage / str(number))


def _sources(storage: Path, number: int) -> list[Path]:
    return [path for path in (storage / str(number), put_aside_path(storage, number)) if path.is_dir()]


def check_deletion(storage: Path, number: int) -> None:
    """Raise RefusedError when there is something in a partition's directories that is not Waltz's."""
    for source in _sources(storage, number):
        view = view_partition(source, number)
        if unknown := (*view.unknown, *(one.data.path for one in view.strays), *view.special):
            raise RefusedError(
                f"{unknown[0]}: not a file of Waltz, so its directory is not deleted", advice="move it away first"
            )


def begin_deletion(storage: Path, number: int) -> None:
    """Move a partition's directories to where they will be deleted.  Raises RefusedError as `check_deletion`, DiskError.

    Where its directory is lost an empty one takes its place, so that session and marks are forgotten all the same.
    """
    check_deletion(storage, number)
    if not _sources(storage, number):
        disk.make_directory(storage / str(number))
        disk.sync_directory(storage)
    for source in _sources(storage, number):
        target = retired_place(storage, DELETING, number)
        if target.exists():
            _delete(target)
        move_partition(storage, source, target)


def finish_deletions(storage: Path, control: OpenControlFile, only: Collection[int] | None = None) -> None:
    """Delete what waits for it, and forget session, marks, fence, accepted losses and switches of those partitions.

    All of that before the files go: with them goes the sign that something is left to do.  `only`: of these, unless None.

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
        if not name.isdecimal() or int(name) >= control.num_partitions:
            continue  # nothing that was put there by us
        number = int(name)
        if only is not None and number not in only:
            continue
        info = control.info(number)
        current = info.current_struct
        forgotten = current is not None and current.marks == (-1, -1, -1) and current.flags in (None, FLAG_AVAILABLE)
        if not forgotten and info.stored_partition == number and not (storage / name).is_dir():
            control.reset(number)
        forget_fence(storage, control.num_partitions, number)
        forget_partition(storage, number)
        forget_availability(storage, number)
        _delete(directory / name)


def _delete(directory: Path) -> None:
    for name in sorted(os.listdir(directory)):
        disk.unlink(directory / name)
    disk.remove_directory(directory)
    disk.sync_directory(directory.parent)
