"""Numbered directories, a partition's for instance, that leave their place: put aside with everything in them, or to be deleted.

Either is one rename, into ``.waltzctl/unassigned/`` or ``.waltzctl/deleting/``.  It happens or does not happen, so a crash never
leaves half a directory where a whole one is expected.

A rename is durable in two halves, and the directory must not lose its old name durably before it has the new one.  Where a
process died between the two, the next writer has to sync in the same order (`settle_relocations`).  Which one that is the places
tell, but for a directory that comes back from where it was put aside: that is marked while it is under way.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path, PurePath
from typing import TypeVar

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskError

Place = TypeVar("Place", bound=PurePath)

UNASSIGNED, DELETING = "unassigned", "deleting"
"""Directories of our own for numbered ones that were taken away: put aside with everything they have, or to be deleted."""
RETURNING = "returning"
"""Empty directory of our own, there only while a directory that was put aside is brought back."""


def retired_directories(storage: Place) -> tuple[Place, Place]:
    """Where directories are that were put aside, and that wait for their deletion."""
    return storage / disk.STATE_DIRECTORY / UNASSIGNED, storage / disk.STATE_DIRECTORY / DELETING


def relocate(storage: Path, source: Path, target: Path) -> None:
    """Move a numbered directory from one of its places to another, durably.  Raises DiskWriteError."""
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


def settle_relocations(storage: Path) -> None:
    """Make durable where the directories are, after a process that died in the midst of a move.

    There is one such move at most, and it went to where directories are deleted, or put aside, unless it was marked as one that
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
