"""What a recovery takes of a damaged log.  A module of its own, so that naming a mode imports nothing else."""

from __future__ import annotations

import enum


class RecoveryMode(enum.StrEnum):
    """What is taken of a log."""

    TOLERATE_TORN_TAIL = "tolerate-torn-tail"
    """All records; a torn tail of the last file is ignored, damage is refused."""
    ABSOLUTE_CONSISTENCY = "absolute-consistency"
    """All records; a torn tail is refused as well."""
    POINT_IN_TIME = "point-in-time"
    """The records before the first fault."""
    SKIP_DAMAGED = "skip-damaged"
    """Every intact record, whatever is missing between them."""
