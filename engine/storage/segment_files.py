"""The two files of a segment: what is known of them (`SegmentExtent`), creating and removing them, and the last segment, open for
writing.

The data file is authoritative; the index is derived from it.

======  ============================================================================================================
file    synced
======  ============================================================================================================
data    before an append is acknowledged (in this file, or in a commit journal)
index   at a checkpoint (the next transaction id is a multiple of 1000), when the segment is closed, and when a
        session starts
======  ============================================================================================================

The index has the same bytes as with release 0.13.2; only the order in which they reach the disk differs.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.errors import DamageError, SyncFailedError
from waltzctl.engine.findings import Code, Severity, Where, make_finding
from waltzctl.engine.log.view import FileState, SegmentView
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
    """Consecutive records without a gap in the data file that passed the examination.

    Ids from `first_transaction_id` up to `next_transaction_id` - 1, in the bytes from `start` up to `end`.
    """

    first_transaction_id: int
    next_transaction_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """A segment that can be read: its files, and where its records lie.

    `runs`: in file order; a sound segment has at most one, from its header to its end.  `index_usable`: False when the index
    file is missing or belongs to another segment.
    """

    partition: int
    first_transaction_id: int
    data_path: PurePath
    index_path: PurePath
    runs: tuple[BelievedRun, ...]
    index_usable: bool = True

    @property
    def next_transaction_id(self) -> int:
        """One above the id of the last record of the runs; the segment's first id when there are none."""
        return self.runs[-1].next_transaction_id if self.runs else self.first_transaction_id

    @property
    def end(self) -> int:
        """Byte offset in the data file where the last run ends."""
        return self.runs[-1].end if self.runs else HEADER_SIZE

    def run_of(self, transaction_id: int) -> BelievedRun | None:
        """The run in which a transaction lies."""
        for run in self.runs:
            if run.first_transaction_id <= transaction_id < run.next_transaction_id:
                return run
        return None

    def grown(self, next_transaction_id: int, end: int) -> SegmentExtent:
        """The extent of this sound segment once its records reach up to `next_transaction_id` - 1 and its data up to `end`."""
        return replace(self, runs=(BelievedRun(self.first_transaction_id, next_transaction_id, HEADER_SIZE, end),))

    @property
    def contiguous_next(self) -> int:
        """The first id without a record; the segment's first id when its first record is missing."""
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

    An index of the same name without a data file is replaced.  A crash between the two files leaves a data file without index,
    which the next opening mends.  (Release 0.13.2 makes the index first; after such a crash it never overwrites that index.)

    Raises DamageError when the data file exists; DiskWriteError, after which neither file exists unless the data file could not
    be removed again.
    """
    header = SegmentHeader(FORMAT_VERSION, disk.now_ms(), cluster_key, partition, first_transaction_id).encode()
    extent = whole_extent(partition, directory, first_transaction_id, first_transaction_id, HEADER_SIZE)
    if file_status.exists(extent.data_path):
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


def refuse_orphan_index(where: Where, first_transaction_id: int) -> None:
    """Raise DamageError when the index of a segment to be created exists, without a data file and with entries.

    Its entries prove that records with these ids existed.  An index without entries proves nothing, and is overwritten.
    """
    assert where.partition is not None
    path = where.directory / index_name(first_transaction_id)
    orphan = SegmentView(where.partition, first_transaction_id, None, FileState.of(path))
    if orphan.entries:
        said = f"an index without a data file has {orphan.entries} entries where a segment is to begin"
        finding = make_finding(
            Code.INDEX_ORPHAN,
            path,
            said,
            severity=Severity.DAMAGE,
            storage_directory=where.storage,
            partition=where.partition,
            segment=first_transaction_id,
            transaction_id=first_transaction_id,
        )
        raise DamageError(f"{path}: {said}", [finding], advice="run waltzctl verify, then recover")


def remove_segment(directory: PurePath, segment: SegmentExtent, opened: int | None = None) -> None:
    """Remove both files of a segment, durably; the index first, as an index without data file proves that records were lost.

    `opened`: see `engine.durable.disk.sync_directory`.
    """
    for path in (segment.index_path, segment.data_path):
        if file_status.exists(path):
            disk.unlink(path)
        disk.sync_directory(directory, opened)


class BatchPart(NamedTuple):
    """Encoded records that are written in one call.

    `pieces`: their bytes.  `offsets` (int64, one more than there are records): where each record begins in the joined pieces,
    starting with 0, and where the last one ends.
    """

    pieces: tuple[bytes | memoryview, ...]
    offsets: npt.NDArray[np.int64]


class ActiveSegment:
    """The last segment of a partition, open for writing.  Not thread-safe.

    =====================  =========================================================================================
    `next_transaction_id`  one above the last record that is durable and acknowledged
    `end`                  byte offset where that record ends; bytes behind it belong to no acknowledged record
    `data_synced`          whether the data up to `end` is durable in this file; if not, its end is in a commit journal
    `index_synced`         whether the index is durable; it is when the segment is opened
                           (`engine.storage.partition_recovery.settle_partition`)
    =====================  =========================================================================================
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

        Records that reach a checkpoint must end with it; the index is synced too then.

        Raises DiskWriteError: the records are then cut off again as far as the disk allows, and `end` is as before.  Raises
        SyncFailedError: the contents of the disk are unknown then, and the caller must not write again.
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
        """As `append`, without any sync, for records that end in front of a checkpoint.

        The caller syncs the data and then calls `count`, before anything else is written.  Raises DiskWriteError, as `append`.
        """
        try:
            self._write(part)
        except BaseException:
            self.cut_back()
            raise

    def _write(self, part: BatchPart) -> None:
        alone = len(part.offsets) == 2  # a single record is common, and packing one entry is cheaper than an array
        entries = INDEX_ENTRY.struct.pack(self.end) if alone else encode_offsets(part.offsets[:-1] + self.end)
        self.data.write_pieces_at(self.end, part.pieces)
        self.index_synced = False
        self.index.write_at(entry_position(self.next_transaction_id, self.first_transaction_id), entries)

    def count(self, part: BatchPart) -> None:
        """Move `next_transaction_id` and `end` behind the records of a part, which are durable now."""
        self.next_transaction_id += len(part.offsets) - 1
        self.end += int(part.offsets[-1])

    def cut_back(self) -> None:
        """Cut both files to the acknowledged records, data first, and sync.  Raises DiskWriteError.

        An index with entries beyond a later checkpoint would prove that the records up to that checkpoint were durable.  Such an
        index is cut to that checkpoint before the data is cut.
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
        """Make the data durable in this file, if it is not yet (`data_synced`).  Raises SyncFailedError."""
        if not self.data_synced:
            self.data.sync()
            self.data_synced = True

    def sync_index(self) -> None:
        """Make the index durable, if it is not yet (`index_synced`); the data must be durable.  Raises SyncFailedError."""
        if not self.index_synced:
            self.index.sync()
            self.index_synced = True

    def close(self) -> None:
        """Close both files without syncing; a second call does nothing."""
        self.data.close()
        self.index.close()
