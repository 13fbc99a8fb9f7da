"""Writing the salvaged records: a clean storage directory, built under a temporary name and renamed as a whole.

Session and marks of a partition are those of the control file that was found.  Without one they are the initial values (session,
low-water mark and local low-water mark -1), since records do not contain them.  A Waltz server would truncate such a partition;
the directory is for reading, for comparing, and for restoring records of another replica.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import numpy as np

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.work_directory import renamed, work_directory
from waltzctl.engine.errors import DamageError
from waltzctl.engine.repair.salvage_selection import RecordPiece
from waltzctl.engine.scan.byte_source import ByteSource, FileSource
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import scan_records
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    Layout,
    PartitionInfo,
    initial_control,
)
from waltzctl.formats.segment import (
    ENTRY_SIZE,
    FORMAT_VERSION,
    HEADER_SIZE,
    SegmentHeader,
    encode_offsets,
    index_name,
    segment_name,
)

SEGMENT_SIZE_THRESHOLD = 1_000_000_000
"""Bytes of a data file above which the next record begins a new one (default of release 0.13.2)."""
BLOCK = 1 << 20
SPARE = 1 << 20
"""Bytes to be left free on the file system."""


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    """A segment as written: ids of its first and last record, number of records, bytes of its data file."""

    first: int
    last: int
    size: int

    @property
    def records(self) -> int:
        """Number of records; their ids are consecutive."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Description:
    """The values for the control file and the headers.  `created`: ms since 1970 (UTC).

    `infos`: by partition, the known sessions and marks, in the layout to be written.
    """

    cluster_key: UUID
    num_partitions: int
    layout: Layout
    created: int
    infos: Mapping[int, PartitionInfo] = field(default_factory=dict)


class _SegmentWriter:
    """One data file and its index, being written."""

    def __init__(self, directory: Path, partition: int, first: int, described: Description) -> None:
        header = SegmentHeader(FORMAT_VERSION, described.created, described.cluster_key, partition, first).encode()
        self.first, self.next, self.size = first, first, HEADER_SIZE
        with contextlib.ExitStack() as until_complete:
            self._data = until_complete.enter_context(disk.WritableFile.create(directory / segment_name(first)))
            self._index = until_complete.enter_context(disk.WritableFile.create(directory / index_name(first)))
            self._data.write_at(0, header)
            self._index.write_at(0, header)
            until_complete.pop_all()

    def add(self, piece: RecordPiece, source: ByteSource, copied: Callable[[int], None]) -> None:
        """Append a piece; `copied` is called with the bytes of each block.  Raises DiskReadError, DiskWriteError, DamageError."""
        offsets = piece.offsets()
        entries = offsets[:-1] - offsets[0] + self.size
        self._index.write_at(HEADER_SIZE + (self.next - self.first) * ENTRY_SIZE, encode_offsets(entries))
        position, stop = int(offsets[0]), int(offsets[-1])
        buffer = memoryview(bytearray(min(BLOCK, stop - position)))
        while position < stop:
            part = buffer[: min(BLOCK, stop - position)]
            if source.read_into(position, part) < len(part):
                raise DamageError(f"{source.name}: became shorter while it was read", advice="salvage a copy of it")
            self._data.write_at(self.size, part)
            self.size += len(part)
            position += len(part)
            copied(len(part))
        self.next = piece.last + 1

    def finish(self) -> WrittenSegment:
        """Sync both files and close them."""
        self._data.sync()
        self._index.sync()
        self.close()
        return WrittenSegment(self.first, self.next - 1, self.size)

    def close(self) -> None:
        self._data.close()
        self._index.close()


def _cut(pieces: Iterable[RecordPiece], threshold: int) -> Iterable[tuple[bool, RecordPiece]]:
    """The pieces, cut where a segment is full; with each, whether it begins a new segment.  After a gap a new one begins."""
    size, expected = HEADER_SIZE, None
    for piece in pieces:
        rest: RecordPiece | None = piece
        fresh = piece.first != expected
        while rest is not None:
            if fresh or size > threshold:
                fresh, size = True, HEADER_SIZE
            offsets = rest.offsets()
            reach = offsets - offsets[0] + size  # where each record would begin in the data file
            count = int(np.searchsorted(reach[:-1], threshold, side="right")) or 1
            last = min(rest.first + count - 1, rest.last)
            taken = replace(rest, last=last)
            yield fresh, taken
            size = int(reach[last - rest.first + 1])
            rest = replace(rest, first=last + 1) if last < rest.last else None
        expected = piece.last + 1


def _write_partition(
    directory: Path,
    partition: int,
    pieces: Sequence[RecordPiece],
    sources: Sequence[ByteSource],
    described: Description,
    threshold: int,
    copied: Callable[[int], None],
) -> list[WrittenSegment]:
    disk.make_directory(directory)
    segments: list[WrittenSegment] = []
    writer: _SegmentWriter | None = None
    try:
        for fresh, piece in _cut(pieces, threshold):
            if fresh:
                if writer is not None:
                    segments.append(writer.finish())
                writer = _SegmentWriter(directory, partition, piece.first, described)
            assert writer is not None
            writer.add(piece, sources[piece.run.source], copied)
        if writer is None:  # the partition was assigned, but none of its records was found
            writer = _SegmentWriter(directory, partition, 0, described)
        segments.append(writer.finish())
    finally:
        if writer is not None:
            writer.close()
    disk.sync_directory(directory)
    for segment in segments:
        _check(directory, segment)
    return segments


def _check(directory: Path, segment: WrittenSegment) -> None:
    """Read a written segment back and check that it holds the carved records."""
    path = directory / segment_name(segment.first)
    with FileSource(path) as source:
        records = 0
        for part in scan_records(source, first_transaction_id=segment.first):
            if isinstance(part, Damage):
                raise DamageError(
                    f"{path}: transaction {part.transaction_id} at offset {part.offset} did not arrive as it was found",
                    advice="the source changed while it was read, or a disk fails: salvage a copy of the source",
                )
            records += len(part)
    if records != segment.records:
        raise DamageError(f"{path}: holds {records} records, {segment.records} were written", advice="check the disk")


def _control(described: Description, partitions: Iterable[int]) -> bytes:
    """A control file with the known marks; in the released layout the written partitions are flagged as assigned."""
    control = initial_control(described.layout, described.cluster_key, described.num_partitions, described.created)
    infos: list[PartitionInfo] = list(control.partitions)
    if described.layout.has_flags:
        for number in partitions:
            infos[number] = infos[number].with_struct(*infos[number].updated(flags=FLAG_AVAILABLE | FLAG_ASSIGNED))
    for number, info in described.infos.items():
        infos[number] = info
    return replace(control, partitions=tuple(infos)).encode()


def write_directory(
    to: Path,
    described: Description,
    selected: Mapping[int, Sequence[RecordPiece]],
    sources: Sequence[ByteSource],
    *,
    threshold: int = SEGMENT_SIZE_THRESHOLD,
    copied: Callable[[int], None] = lambda amount: None,
) -> dict[int, list[WrittenSegment]]:
    """Write a storage directory durably, as a whole or not at all; return the segments of each partition.

    `selected`: the pieces of each partition in the order of their ids; empty for a partition that was assigned and of which no
    record was found.  `copied` is called with the bytes of each block.  Raises DiskFullError, before anything is written, when
    it would not fit, RefusedError while another process writes the same target, DiskReadError, DiskWriteError, DamageError.
    """
    beside = to.with_name(to.name + disk.TEMPORARY_SUFFIX)
    needed = described.layout.file_size(described.num_partitions) + SPARE
    for pieces in selected.values():
        for piece in pieces:
            offsets = piece.offsets()
            needed += int(offsets[-1] - offsets[0]) + ENTRY_SIZE * (len(offsets) - 1) + 2 * HEADER_SIZE
    with work_directory(beside):
        # after `work_directory` has removed the leftovers of a killed run
        disk.check_free_space(to.parent, needed, to)
        written = {
            number: _write_partition(beside / str(number), number, pieces, sources, described, threshold, copied)
            for number, pieces in selected.items()
        }
        with disk.WritableFile.create(beside / CONTROL_FILE_NAME) as file:
            file.write_at(0, _control(described, selected))
            file.sync()
        disk.sync_directory(beside)
        with renamed(beside, to):
            disk.sync_directory(to.parent)
    return written
