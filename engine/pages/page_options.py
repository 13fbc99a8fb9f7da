"""Options of a page store."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidOptionsError
from waltzctl.engine.pages.page_directory import LARGEST_PAGE
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.wal_store import LOG_SIZE

BLOB_LIMIT = 256 << 20
"""Bytes of a blob file."""
FLUSHED_WITH_RECORD = 4 << 20
"""Bytes of a write up to which data and record are flushed at once."""
SUPERSEDED_KEPT = 8 << 20
"""Bytes of data that was superseded and is not written over yet."""
CACHE_SIZE = 128 << 20
"""Bytes of pages that are kept in memory."""


@dataclass(frozen=True, slots=True)
class PageOptions:
    """How a store is kept.

    `blob_limit`: bytes of a blob file; `log_size`: bytes after which the next log begins; `max_log_files`: more than these make
    a checkpoint due; `full_gc_rate`: files of which no larger share is in use are emptied (at 1 for ever: a full file as well);
    `flushed_with_record`: bytes of a write up to which its data is made durable by the flush of its record, and not before;
    `superseded_kept`: bytes of data that was superseded last and stays where it is until more follows, or garbage is collected;
    `cache_size`: bytes of pages in memory, of those that were read or written last (0: none);
    `records_twice`: each record of the log is written and flushed twice, so that one that is damaged loses nothing; a store whose
    log has such records goes on so, whatever this says; pages of one batch that hold the same bytes lie a sector apart there;
    `recovery`: what is taken of a log that is not whole (POINT_IN_TIME and SKIP_DAMAGED are for reading, and refused here).
    """

    blob_limit: int = BLOB_LIMIT
    log_size: int = LOG_SIZE
    max_log_files: int = 4
    full_gc_rate: float = 0.5
    flushed_with_record: int = FLUSHED_WITH_RECORD
    superseded_kept: int = SUPERSEDED_KEPT
    cache_size: int = CACHE_SIZE
    records_twice: bool = False
    recovery: RecoveryMode = RecoveryMode.TOLERATE_TORN_TAIL

    def __post_init__(self) -> None:
        """Raises InvalidOptionsError."""
        for name, lowest, highest in (
            ("blob_limit", 1, LARGEST_PAGE), ("log_size", 1, None), ("max_log_files", 1, None), ("full_gc_rate", 0, 0.9),
            ("flushed_with_record", 0, None), ("superseded_kept", 0, None), ("cache_size", 0, None),
        ):  # fmt: skip
            value = getattr(self, name)
            if value < lowest or (highest is not None and value > highest):
                said = f"at least {lowest}" + ("" if highest is None else f" and at most {highest}")
                raise InvalidOptionsError(f"{name} is {value}, and has to be {said}", self, name)


DEFAULT_OPTIONS = PageOptions()
