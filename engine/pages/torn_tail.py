"""Cutting the torn tail that a crashed process left at the end of a log; the bytes are kept in the quarantine.

No acknowledged record is in it.  But damage at the very end of a log that was never closed looks the same, so the bytes are kept
in ``.waltzctl/quarantine``.
"""

from __future__ import annotations

from pathlib import Path

from waltzctl.engine.durable.edits import Cut
from waltzctl.engine.durable.quarantine import Store, apply_edits, roll_back_interrupted
from waltzctl.engine.pages.wal_reader import LogFile

STORE = Store(frozenset(), lambda _entry: ())
"""A page store as `engine.durable.quarantine` sees it: without numbered directories."""


def take_back_interrupted(path: Path) -> None:
    """Roll back a cut that was interrupted.  The caller holds the lock.  Raises DamageError, DiskError."""
    roll_back_interrupted(path, STORE)


def cut_torn_tail(path: Path, log: LogFile) -> None:
    """Copy the bytes after the last intact record of a log to the quarantine, then cut them.

    The caller holds the lock.  Raises DiskError.
    """
    apply_edits(path, [Cut(log.path, log.end)], STORE, command="open", arguments=(), plan_hash="")
