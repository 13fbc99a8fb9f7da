"""Statistics of an open page store."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.pages.blob_stats import BlobFileStatus
from waltzctl.engine.pages.page_directory import DirectorySize
from waltzctl.engine.pages.snapshots import SnapshotStatistics


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Content of a store, and bytes written since it was opened: data by writers, data by garbage collection, logs."""

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
        """Bytes written per byte of page data; None before the first page."""
        return write_amplification(self.data_written, self.data_moved, self.log_written)

    @property
    def space_amplification(self) -> float | None:
        """Bytes of blob files per byte that pages use; None without pages."""
        valid = sum(blob.valid for blob in self.blobs)
        return sum(blob.boundary for blob in self.blobs) / valid if valid else None


def write_amplification(data_written: int, data_moved: int, log_written: int) -> float | None:
    """Bytes written (pages, moved pages, logs) per byte of page data; None if no page was written."""
    return (data_written + data_moved + log_written) / data_written if data_written else None
