"""Exit statuses: the same for every command, and the only place where their numbers stand."""

from __future__ import annotations

import enum


class ExitStatus(enum.IntEnum):
    """Number by name.  1 and 2 are what the interpreter and argument parsers already use; neither is ever benign."""

    CLEAN = 0
    INTERNAL = 1
    USAGE = 2
    REPAIRABLE = 3
    DAMAGED = 4
    DAMAGE_REMAINS = 5
    NOT_WALTZ = 10
    LOCKED = 11
    MISMATCH = 12
    REFUSED = 13
    IO_ERROR = 14
    INTERRUPTED = 130

    @property
    def label(self) -> str:
        """The name that the engine and the manual use, for instance ``damage-remains``."""
        return self.name.lower().replace("_", "-")

    @property
    def meaning(self) -> str:
        """One line for the manual."""
        return _MEANINGS[self]

    @classmethod
    def from_label(cls, label: str) -> ExitStatus:
        """The status that the engine names.  Raises KeyError for a name that does not exist."""
        return cls[label.upper().replace("-", "_")]


_MEANINGS = {
    ExitStatus.CLEAN: "clean; or every repair done and verified again",
    ExitStatus.INTERNAL: "internal error: a mistake in waltzctl",
    ExitStatus.USAGE: "usage: an option, argument or input that cannot be meant",
    ExitStatus.REPAIRABLE: "damage that can be repaired without loss",
    ExitStatus.DAMAGED: "data is damaged, missing or different",
    ExitStatus.DAMAGE_REMAINS: "the repair was done, damage remains",
    ExitStatus.NOT_WALTZ: "not a Waltz directory or file",
    ExitStatus.LOCKED: "locked by a running process",
    ExitStatus.MISMATCH: "cluster key, partition count or version differ",
    ExitStatus.REFUSED: "refused: unconfirmed, stale plan, or would lose data",
    ExitStatus.IO_ERROR: "the system failed to read or write",
    ExitStatus.INTERRUPTED: "interrupted",
}

INSPECTING = (
    ExitStatus.CLEAN,
    ExitStatus.USAGE,
    ExitStatus.REPAIRABLE,
    ExitStatus.DAMAGED,
    ExitStatus.NOT_WALTZ,
    ExitStatus.IO_ERROR,
    ExitStatus.INTERRUPTED,
)
"""What a command that only reads can answer."""

CHANGING_NODES = (
    ExitStatus.CLEAN,
    ExitStatus.USAGE,
    ExitStatus.REFUSED,
    ExitStatus.IO_ERROR,
    ExitStatus.INTERRUPTED,
)
"""What a command that changes a running node can answer."""
