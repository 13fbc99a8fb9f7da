"""What an open page store says of itself: what it holds, and what writing it came to."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.pages.blob_stats import BlobFileStatus
from waltzctl.engine.pages.page_directory import DirectorySize
from waltzctl.engine.pages.snapshots import SnapshotStatistics


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """What a store holds, and what writing it came to since it was opened (bytes)."""

    sequence: int
    directory: DirectorySize
    blobs: tuple[BlobFileStatus, ...]
    log_files: int
    snapshots: SnapshotStatistics
    data_written: int
    data_moved: int
    log_written: int

    @property
    def write_amplification(self) -> float | None:
        """Bytes written for each byte of a page; None before the first one."""
        return write_amplification(self.data_written, self.data_moved, self.log_written)

    @property
    def space_amplification(self) -> float | None:
        """Bytes of blob files for each byte of a page in them; None without any."""
        valid = sum(blob.valid for blob in self.blobs)
        return sum(blob.boundary for blob in self.blobs) / valid if valid else None


def write_amplification(data_written: int, data_moved: int, log_written: int) -> float | None:
    """Bytes written for each byte of a page: of pages, of those that were moved, of logs; None where no page was written."""
    return (data_written + data_moved + log_written) / data_written if data_written else None
