"""What a recovery takes of a damaged log.  Apart from the log, so that whoever only names a mode imports no more."""

from __future__ import annotations

import enum


class RecoveryMode(enum.StrEnum):
    """What is taken of a log."""

    TOLERATE_TORN_TAIL = "tolerate-torn-tail"
    """All of it, but for a torn end of the last file; damage is refused."""
    ABSOLUTE_CONSISTENCY = "absolute-consistency"
    """All of it; a torn end is refused as well."""
    POINT_IN_TIME = "point-in-time"
    """What stands in front of the first fault."""
    SKIP_DAMAGED = "skip-damaged"
    """Every record that is whole, whatever is missing between them."""
