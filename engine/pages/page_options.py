"""Options of a page store."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidOptionsError
from waltzctl.engine.pages.page_directory import LARGEST_PAGE
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.wal_store import LOG_SIZE

BLOB_LIMIT = 256 << 20
"""Bytes of a blob file."""


@dataclass(frozen=True, slots=True)
class PageOptions:
    """How a store is kept.

    `blob_limit`: bytes of a blob file; `log_size`: bytes after which the next log begins; `max_log_files`: more than these make
    a checkpoint due; `full_gc_rate`: files of which no larger share is in use are emptied (at 1 for ever: a full file as well);
    `recovery`: what is taken of a log that is not whole (POINT_IN_TIME and SKIP_DAMAGED are for reading, and refused here).
    """

    blob_limit: int = BLOB_LIMIT
    log_size: int = LOG_SIZE
    max_log_files: int = 4
    full_gc_rate: float = 0.5
    recovery: RecoveryMode = RecoveryMode.TOLERATE_TORN_TAIL

    def __post_init__(self) -> None:
        """Raises InvalidOptionsError."""
        for name, lowest, highest in (
            ("blob_limit", 1, LARGEST_PAGE), ("log_size", 1, None), ("max_log_files", 1, None), ("full_gc_rate", 0, 0.9),
        ):  # fmt: skip
            value = getattr(self, name)
            if value < lowest or (highest is not None and value > highest):
                said = f"at least {lowest}" + ("" if highest is None else f" and at most {highest}")
                raise InvalidOptionsError(f"{name} is {value}, and has to be {said}", self, name)


DEFAULT_OPTIONS = PageOptions()
