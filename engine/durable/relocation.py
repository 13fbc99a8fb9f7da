"""Moving numbered directories (a partition's, for instance) out of their place: to put them aside, or to delete them.

====================================  ========================================
purpose                               target of the rename
====================================  ========================================
put aside, with all files             ``.waltzctl/unassigned/N``
deletion                              ``.waltzctl/deleting/N``
brought back from being put aside     ``N``
====================================  ========================================

Each is one rename, so a crash never leaves half a directory in its place.

The change of the name becomes durable by two syncs.  The target's parent is synced first, so that the directory is never without
a durable name.  When a process died between the two syncs, the next writer has to sync in the same order (`settle_relocations`).
Moves out of a place and moves back need opposite orders; so a move back is marked by an empty directory (`RETURNING`) while it is
in progress.
"""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePath
from typing import TypeVar

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.errors import DiskError

Place = TypeVar("Place", bound=PurePath)

UNASSIGNED, DELETING = "unassigned", "deleting"
"""Names of the directories in ``.waltzctl`` for directories that were put aside, and for those to be deleted."""
RETURNING = "returning"
"""Name of an empty directory in ``.waltzctl`` that exists only while a directory is brought back from being put aside."""


def retired_directories(storage: Place) -> tuple[Place, Place]:
    """Parents of the directories that were put aside, and of those to be deleted."""
    return storage / disk.STATE_DIRECTORY / UNASSIGNED, storage / disk.STATE_DIRECTORY / DELETING


def relocate(storage: Path, source: Path, target: Path) -> None:
    """Move a numbered directory from one of the places of this module to another, durably.  Raises DiskWriteError."""
    returning = storage / disk.STATE_DIRECTORY / RETURNING
    returns = source.parent == retired_directories(storage)[0] and target.parent == storage
    if returns and not returning.is_dir():
        disk.make_directory(returning)  # not synced: it serves only after the death of the process alone
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
    """Make the places of the directories durable, after a process that died during a move.  Raises DiskWriteError.

    At most one move was interrupted.  It was a move back if `RETURNING` exists, otherwise one to be put aside or deleted.  The
    parent of its target is synced first.
    """
    unassigned, deleting = retired_directories(storage)
    returning = storage / disk.STATE_DIRECTORY / RETURNING
    returned = file_status.is_directory(returning)
    for directory in (storage, unassigned, deleting) if returned else (deleting, unassigned, storage):
        if directory.is_dir():
            disk.sync_directory(directory)
    disk.sync_directory(storage / disk.STATE_DIRECTORY)
    if returned and not file_status.names_in(returning):
        disk.remove_directory(returning)
