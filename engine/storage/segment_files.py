"""Segments: what is known of one, making a new one, and the last one, which grows.

The data file is the truth, the index is derived from it.  So the data is written first and synced before anybody is told, and
the index is only synced at checkpoints (when the next transaction id is a multiple of 1000), when the segment is closed and
when a session starts.  The index's bytes are those that release 0.13.2 writes; only the order in which they reach the disk
differs.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, SyncFailedError
from waltzctl.engine.findings import Code, make_finding
from waltzctl.formats.segment import (
    CHECKPOINT_INTERVAL,
    FORMAT_VERSION,
    HEADER_SIZE,
    INDEX_ENTRY,
    SegmentHeader,
    encode_offsets,
    entry_position,
    index_name,
    segment_name,
)


@dataclass(frozen=True, slots=True)
class BelievedRun:
    """Believable records back to back: ids ``first`` to ``next - 1`` in the bytes from ``start`` to ``end``."""

    first_transaction_id: int
    next_transaction_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """What is known of a segment that can be read.

    `runs` is in file order; a sound segment has at most one, from its header to its end.  `index_usable` is False when the
    index file is missing or belongs to something else.
    """

    partition: int
    first_transaction_id: int
    data_path: PurePath
    index_path: PurePath
    runs: tuple[BelievedRun, ...]
    index_usable: bool = True

    @property
    def next_transaction_id(self) -> int:
        """The id behind the last believable record; the first id when there is none."""
        return self.runs[-1].next_transaction_id if self.runs else self.first_transaction_id

    @property
    def end(self) -> int:
        """Bytes from the start of the file to the end of the last believable record."""
        return self.runs[-1].end if self.runs else HEADER_SIZE

    def run_of(self, transaction_id: int) -> BelievedRun | None:
        """The run in which a transaction lies."""
        for run in self.runs:
            if run.first_transaction_id <= transaction_id < run.next_transaction_id:
                return run
        return None

    def grown(self, next_transaction_id: int, end: int) -> SegmentExtent:
        """As this sound segment will be known with records up to `next_transaction_id`, which ends its `end` bytes."""
        return replace(self, runs=(BelievedRun(self.first_transaction_id, next_transaction_id, HEADER_SIZE, end),))

    @property
    def contiguous_next(self) -> int:
        """The first id that is not there: of the unbroken records from the segment's beginning."""
        if self.runs and self.runs[0].first_transaction_id == self.first_transaction_id:
            return self.runs[0].next_transaction_id
        return self.first_transaction_id


def whole_extent(
    partition: int, directory: PurePath, first_transaction_id: int, next_transaction_id: int, end: int
) -> SegmentExtent:
    """The extent of a sound segment of `end` bytes."""
    runs = (
        (BelievedRun(first_transaction_id, next_transaction_id, HEADER_SIZE, end),)
        if next_transaction_id > first_transaction_id
        else ()
    )
    return SegmentExtent(
        partition,
        first_transaction_id,
        directory / segment_name(first_transaction_id),
        directory / index_name(first_transaction_id),
        runs,
    )


def create_segment(
    directory: PurePath, *, partition: int, first_transaction_id: int, cluster_key: uuid.UUID
) -> SegmentExtent:
    """Make an empty segment, durably: data file first, then index, each built under a temporary name.

    An index file of the same name without a data file is replaced; a crash between the two leaves a data file without index,
    which the next opening mends.  (Release 0.13.2 makes the index first and then refuses for ever to write over it.)

    Raises DamageError when the data file exists, DiskWriteError after which neither file is there, unless the data file could
    not be removed again.
    """
    header = SegmentHeader(FORMAT_VERSION, disk.now_ms(), cluster_key, partition, first_transaction_id).encode()
    extent = whole_extent(partition, directory, first_transaction_id, first_transaction_id, HEADER_SIZE)
    if Path(extent.data_path).exists():
        message = "a segment is to begin here, and its data file exists already"
        finding = make_finding(Code.SEGMENT_OVERLAP, extent.data_path, message, partition=partition)
        raise DamageError(f"{extent.data_path}: {message}", [finding], advice="run waltzctl verify")
    with disk.opened_directory(directory) as opened:
        disk.write_whole(extent.data_path, header)
        try:
            disk.write_whole(extent.index_path, header)
        except BaseException:
            disk.unlink(extent.data_path)
            disk.sync_directory(directory, opened)
            raise
    return extent


class BatchPart(NamedTuple):
    """Encoded records that are written at once.

    `pieces` are their bytes; `offsets` (int64, one more than there are records) where each one begins in them, from 0, and where
    the last one ends.
    """

    pieces: tuple[bytes | memoryview, ...]
    offsets: npt.NDArray[np.int64]


class ActiveSegment:
    """The last segment of a partition, open for writing.  Not thread-safe.

    `next_transaction_id` and `end` tell what is durable and acknowledged; bytes behind `end` are nobody's.  Of the data up to
    there `data_synced` tells whether it is durable in this file (otherwise the end of it is in a commit journal only), of the
    index `index_synced` (what was there when the segment was opened is: see
    `engine.storage.partition_recovery.settle_partition`).
    """

    def __init__(
        self,
        extent: SegmentExtent,
        data: disk.WritableFile,
        index: disk.WritableFile,
        next_transaction_id: int,
        end: int,
    ) -> None:
        self.first_transaction_id = extent.first_transaction_id
        self.data = data
        self.index = index
        self.next_transaction_id = next_transaction_id
        self.end = end
        self.data_synced = self.index_synced = True

    @classmethod
    def open(cls, extent: SegmentExtent) -> ActiveSegment:
        """Open both files of a sound segment; changes nothing.  Raises DiskWriteError, FileNotFoundError."""
        data = disk.WritableFile.open(extent.data_path)
        try:
            index = disk.WritableFile.open(extent.index_path)
        except BaseException:
            data.close()
            raise
        return cls(extent, data, index, extent.next_transaction_id, extent.end)

    def append(self, part: BatchPart) -> None:
        """Write encoded records behind the last one, in one write, and their index entries in one; durable on return.

        Records that reach a checkpoint must end with it: then the index is synced, too.

        Raises DiskWriteError; what was written is then cut off again as far as the disk allows, and `end` is as before.
        SyncFailedError means that nobody knows what the disk holds: the caller must not write again.
        """
        following = self.next_transaction_id + len(part.offsets) - 1
        try:
            self._write(part)
            self.data.sync()
            self.data_synced = True
            if following % CHECKPOINT_INTERVAL == 0:
                self.sync_index()
        except SyncFailedError:
            raise
        except BaseException:
            self.cut_back()
            raise
        self.count(part)

    def write(self, part: BatchPart) -> None:
        """As `append`, without syncing anything: for records that end in front of a checkpoint.

        When the data has been synced, `count` has to follow; nothing may be written before that.  Raises DiskWriteError, as
        `append`.
        """
        try:
            self._write(part)
        except BaseException:
            self.cut_back()
            raise

    def _write(self, part: BatchPart) -> None:
        alone = len(part.offsets) == 2  # as often; arrays cost more than the one entry
        entries = INDEX_ENTRY.struct.pack(self.end) if alone else encode_offsets(part.offsets[:-1] + self.end)
        self.data.write_pieces_at(self.end, part.pieces)
        self.index_synced = False
        self.index.write_at(entry_position(self.next_transaction_id, self.first_transaction_id), entries)

    def count(self, part: BatchPart) -> None:
        """The records of a part are durable: they count from now on."""
        self.next_transaction_id += len(part.offsets) - 1
        self.end += int(part.offsets[-1])

    def cut_back(self) -> None:
        """Cut both files to what is acknowledged, data first, and sync.  Raises DiskWriteError.

        An index that leads behind a later checkpoint proves that the records in front of it were durable, so it is cut to that
        before the data is.
        """
        first, following = self.first_transaction_id, self.next_transaction_id
        checkpoint = entry_position((following // CHECKPOINT_INTERVAL + 1) * CHECKPOINT_INTERVAL, first)
        if self.index.size() > checkpoint:
            self.index.truncate(checkpoint)
            self.index.sync()
        for file, size in ((self.data, self.end), (self.index, entry_position(following, first))):
            if file.size() > size:
                file.truncate(size)
            file.sync()
        self.data_synced = self.index_synced = True

    def sync_data(self) -> None:
        """Make durable in this file what a commit journal made durable; does nothing when it is.  Raises SyncFailedError."""
        if not self.data_synced:
            self.data.sync()
            self.data_synced = True

    def sync_index(self) -> None:
        """Make the index durable, as the data is already; does nothing when it is.  Raises SyncFailedError."""
        if not self.index_synced:
            self.index.sync()
            self.index_synced = True

    def close(self) -> None:
        """Close both files without syncing; a second call does nothing."""
        self.data.close()
        self.index.close()
