"""Names of the files of a page store: logs and checkpoints below ``wal/``, data below ``blob/``.

``log_{number}_{level}``: level 0 is a log; level 1 is the checkpoint that replaces all logs up to its number.
``blobfile_{id}``: data without a header; ids begin at 1 and end below 2^31.
"""

from __future__ import annotations

import re
from typing import NamedTuple

WAL_DIRECTORY = "wal"
BLOB_DIRECTORY = "blob"
LOG_LEVEL, CHECKPOINT_LEVEL = 0, 1

_LOG = re.compile(r"log_(0|[1-9][0-9]{0,9})_([01])", re.ASCII)
_BLOB = re.compile(r"blobfile_([1-9][0-9]{0,9})", re.ASCII)


class LogName(NamedTuple):
    """A log or checkpoint file.  They sort in the order in which they are read: a checkpoint after the log with its number."""

    number: int
    level: int

    def __str__(self) -> str:
        return f"log_{self.number}_{self.level}"

    @property
    def is_checkpoint(self) -> bool:
        """Whether the file is a checkpoint."""
        return self.level == CHECKPOINT_LEVEL


def parse_log_name(name: str) -> LogName | None:
    """A log's or checkpoint's number and level, from its file name; None for any other name."""
    found = _LOG.fullmatch(name)
    return LogName(int(found[1]), int(found[2])) if found and 0 < int(found[1]) < 2**32 else None


def blob_name(file_id: int) -> str:
    """The name of a blob file."""
    return f"blobfile_{file_id}"


def parse_blob_name(name: str) -> int | None:
    """The id in a blob file's name; None for any other name."""
    found = _BLOB.fullmatch(name)
    return int(found[1]) if found and int(found[1]) < 2**31 else None
