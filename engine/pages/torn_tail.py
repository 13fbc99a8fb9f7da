"""What a process that died left at the end of a log, put into the quarantine and cut.

No record was promised to anybody there.  Still nothing is thrown away: if it was damage after all, at the very end of a log
that was never closed, the bytes are in ``.waltzctl/quarantine``.
"""

from __future__ import annotations

from pathlib import Path

from waltzctl.engine.durable.edits import Cut
from waltzctl.engine.durable.quarantine import Store, apply_edits, roll_back_interrupted
from waltzctl.engine.pages.wal_reader import LogFile

STORE = Store(frozenset(), lambda _entry: ())
"""A page store as its quarantine sees it: it has no numbered directories."""


def take_back_interrupted(path: Path) -> None:
    """Take a cut back that was interrupted.  The caller holds the lock.  Raises DamageError, DiskError."""
    roll_back_interrupted(path, STORE)


def cut_torn_tail(path: Path, log: LogFile) -> None:
    """Keep what stands behind the last whole record of a log, then cut it.  The caller holds the lock.  Raises DiskError."""
    apply_edits(path, [Cut(log.path, log.end)], STORE, command="open", arguments=(), plan_hash="")
