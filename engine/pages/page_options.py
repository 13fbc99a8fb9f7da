"""Options of a page store."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidOptionsError
from waltzctl.engine.pages.page_directory import LARGEST_PAGE
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.wal_store import LOG_SIZE

BLOB_LIMIT = 256 << 20
"""Default size limit of a blob file, in bytes."""
FLUSHED_WITH_RECORD = 4 << 20
"""Default size of a write, in bytes, up to which data and record share one flush."""
SUPERSEDED_KEPT = 8 << 20
"""Default bytes of superseded data that are not overwritten yet."""
CACHE_SIZE = 128 << 20
"""Default bytes of pages in memory."""


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Options of a store; sizes in bytes.

    - `blob_limit`: size limit of a blob file.
    - `log_size`: size after which the next log begins.
    - `max_log_files`: garbage collection writes a checkpoint if there are more log files.
    - `full_gc_rate`: files with at most this share in use are emptied.  (With 1, full files would be emptied for ever.)
    - `flushed_with_record`: a write up to this size is made durable by the flush of its record, not by an earlier one.
    - `superseded_kept`: superseded data is not overwritten until this many bytes more were superseded, or garbage is collected.
    - `cache_size`: page cache; 0: none.
    - `records_twice`: write and flush each record of the log twice, so that one damaged record loses nothing.  A store whose log
      has such records continues so, whatever this says.  Pages of one batch with equal bytes are then stored a sector apart.
    - `recovery`: what is taken of a log with faults.  POINT_IN_TIME and SKIP_DAMAGED are for reading only; a store is not opened
      with them.
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
