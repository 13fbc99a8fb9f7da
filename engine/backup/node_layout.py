"""Files of a partition's directory, made of the records that were read through a node's port.

A port provides records and marks, but no files.  The files are therefore those that a node would write if it appended the records
one after the other: segments that are closed after a size, each with an index.  A record has the same bytes as in the files of
any replica, as its checksums are functions of its fields; so its pieces are the same as those of a directory.

A new segment also begins where transaction ids are missing, and after a record with damaged data, which is kept as it was read.

Headers are generated: their creation time is that of the first backup of this node, as the node's own is unknown.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from waltzctl.engine.backup.piece_cutting import LIMIT, PieceCutter, PieceRange
from waltzctl.engine.backup.section_plan import SMALL, PlannedPiece, PreviousSection, SectionPlan
from waltzctl.engine.scan.columns import Int64Column
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.formats.segment import (
    ENTRY_SIZE,
    FORMAT_VERSION,
    HEADER_SIZE,
    SEGMENT_SUFFIX,
    SegmentHeader,
    encode_entries,
    index_name,
    parse_name,
    segment_name,
)
from waltzctl.formats.vault import BackedFile, DerivedIndex, Extent, Literal, Piece, Slice, merged

SEGMENT_SIZE = StorageOptions().segment_size_threshold
"""Size in bytes after which a segment is closed: a node's default."""


@dataclass(frozen=True, slots=True)
class CutPiece:
    """A piece with its content.  A damaged record has -1 and 0 for `first_transaction_id` and `records`, as it is no run."""

    content: bytes
    first_transaction_id: int = -1
    records: int = 0


@dataclass(slots=True)
class _Segment:
    """A segment.

    - `start`: offset of its first record in the stream of all pieces.
    - `closed`: it takes no more records.
    - `damaged_at`: offset in the file of its last record, if that is damaged; `records` does not count it.
    """

    header: SegmentHeader
    start: int
    size: int = 0
    records: int = 0
    closed: bool = False
    damaged_at: int | None = None


class PartitionLayout:
    """The files of a partition, built as its records are added.  Every byte is returned as part of a piece, in order."""

    def __init__(
        self,
        partition: int,
        cluster_key: uuid.UUID,
        created_ms: int,
        *,
        limit: int = LIMIT,
        segment_size: int = SEGMENT_SIZE,
    ) -> None:
        """`limit`: bytes of a piece; `segment_size`: of a segment.

        `created_ms`: creation time in headers and of files, in milliseconds since 1970.
        """
        self._partition, self._key, self._created = partition, cluster_key, created_ms
        self._limit, self._segment_size = limit, segment_size
        self._segments: list[_Segment] = []
        self._cutter: PieceCutter | None = None
        self._pending = bytearray()
        self._pending_start = self._stream = 0
        self._next: int | None = None
        self.next_transaction_id = 0
        """The id after the last record; 0 without records."""
        self.damaged = 0
        """Number of places where ids are missing or a record is damaged."""

    # ---- reuse of the last backup ------------------------------------------------------------------------------------

    def resume(self, previous: PreviousSection, until: int) -> tuple[PlannedPiece, ...]:
        """Begin with the pieces of the last backup that end at or before transaction `until`; returns them.

        The last piece of the backup is never reused: its block may get more records.  No piece is reused if the backup has gaps
        or damage, or does not begin with transaction 0.
        """
        section, count, following, size = previous.section, 0, 0, 0
        for piece in section.pieces[:-1]:
            if piece.first_transaction_id != following or piece.next_transaction_id > until + 1:
                break
            count, following, size = count + 1, piece.next_transaction_id, size + piece.size
        segments = self._known_segments(previous, size)
        if not count or segments is None:
            return ()
        self._segments = segments
        ends = [*(one.header.first_transaction_id for one in segments[1:]), following]
        for one, end in zip(segments, ends, strict=True):
            one.records = end - one.header.first_transaction_id
        self._stream = self._pending_start = size
        self._next = self.next_transaction_id = following
        self._cutter = PieceCutter(following, size, begins=False, limit=self._limit)
        return tuple(
            PlannedPiece(one.size, one.first_transaction_id, one.records, kept=one, page=previous.first_page + number)
            for number, one in enumerate(section.pieces[:count])
        )

    def _known_segments(self, previous: PreviousSection, size: int) -> list[_Segment] | None:
        """The segments of the last backup up to `size` bytes of records; None if they are not as this class makes them."""
        starts = [0]
        for piece in previous.section.pieces:
            starts.append(starts[-1] + piece.size)
        found: list[_Segment] = []
        stream = 0
        for file in previous.section.files:
            parsed = parse_name(file.name.rpartition("/")[2])
            if parsed is None or parsed[1] != SEGMENT_SUFFIX or stream >= size:
                continue
            match file.extents:
                case (Literal(data=header), Slice(piece=number, offset=offset, size=length)) if (
                    len(header) == HEADER_SIZE and starts[number] + offset == stream
                ):
                    known = SegmentHeader.decode(header)
                case _:
                    return None
            if known.cluster_key != self._key or known.first_transaction_id != parsed[0]:
                return None
            found.append(_Segment(known, stream, min(length, size - stream)))
            stream += length
        return found

    # ---- records -----------------------------------------------------------------------------------------------------

    def add(self, first: int, data: bytes, sizes: Int64Column) -> Iterator[CutPiece]:
        """Add consecutive intact records, encoded as on disk; `sizes`: bytes of each.  Yields complete pieces."""
        if self._cutter is None or self._next != first:
            yield from self._end_run()
            self._close(first)
            self._cutter = PieceCutter(first, self._stream, limit=self._limit)
        self._assign(first, sizes)
        self._stream += len(data)
        self._pending += data
        self._next = self.next_transaction_id = first + len(sizes)
        for one in self._cutter.feed(sizes):
            yield self._cut(one)

    def add_damaged(self, transaction_id: int, data: bytes) -> Iterator[CutPiece]:
        """Add a record with damaged data.  Yields complete pieces."""
        yield from self._end_run()
        if self._next != transaction_id:
            self._close(transaction_id)
        self._assign(transaction_id, np.array([len(data)], np.int64))
        last = self._segments[-1]
        last.closed, last.damaged_at, last.records = True, HEADER_SIZE + last.size - len(data), last.records - 1
        self._stream += len(data)
        self._pending_start = self._stream
        self._next = self.next_transaction_id = transaction_id + 1
        self.damaged += 1
        yield CutPiece(data)

    def finish(self, end: int) -> Iterator[CutPiece]:
        """The last pieces.  `end`: the last transaction of the node; if the records end before it, that counts as damage."""
        yield from self._end_run()
        self.damaged += self.next_transaction_id <= end

    def _end_run(self) -> Iterator[CutPiece]:
        if self._cutter is not None:
            for one in self._cutter.finish():
                yield self._cut(one)
        self._cutter = None

    def _cut(self, one: PieceRange) -> CutPiece:
        size = one.end - one.start
        assert one.start == self._pending_start
        content = bytes(memoryview(self._pending)[:size])
        del self._pending[:size]
        self._pending_start = one.end
        return CutPiece(content, one.first_transaction_id, one.records)

    def _close(self, first: int) -> None:
        """Close the last segment; the next record, `first`, does not follow its last one, or that one is damaged."""
        if self._segments:
            self._segments[-1].closed = True
        self.damaged += first != self.next_transaction_id

    def _assign(self, first: int, sizes: Int64Column) -> None:
        """Assign records to segments."""
        ends = np.cumsum(sizes, dtype=np.int64)
        done, taken = 0, 0
        while done < len(sizes):
            last = self._segments[-1] if self._segments else None
            if last is None or last.closed or HEADER_SIZE + last.size > self._segment_size:
                last = _Segment(self._header(first + done), self._stream + taken)
                self._segments.append(last)
            left = self._segment_size - HEADER_SIZE - last.size  # the record that exceeds it is the segment's last
            count = int(np.searchsorted(ends[done:] - taken, left, side="right")) + 1
            stop = min(done + count, len(sizes))
            size = int(ends[stop - 1]) - taken
            last.size += size
            last.records += stop - done
            done, taken = stop, taken + size

    def _header(self, first: int) -> SegmentHeader:
        return SegmentHeader(FORMAT_VERSION, self._created, self._key, self._partition, first)

    # ---- files -------------------------------------------------------------------------------------------------------

    def plan(self, taken: tuple[Piece, ...]) -> SectionPlan:
        """The plan of the section.  `taken`: all pieces, in order, reused ones first."""
        if not self._segments:  # like a partition that was just assigned
            self._segments.append(_Segment(self._header(0), 0))
        ends = np.cumsum([one.size for one in taken], dtype=np.int64)
        files: list[BackedFile] = []
        for one in self._segments:
            begins = one.header.first_transaction_id
            name = f"{self._partition}/{segment_name(begins)}"
            header = Literal(one.header.encode())
            records: tuple[Extent, ...] = (_slice(one.start, one.size, ends),) if one.size else ()
            entries: list[Extent] = [DerivedIndex(name, ENTRY_SIZE * one.records)]
            if one.damaged_at is not None:
                entries.append(Literal(encode_entries([one.damaged_at])))
            files.append(self._file(name, (header, *records), taken))
            files.append(self._file(f"{self._partition}/{index_name(begins)}", (header, *entries), taken))
        first = self._segments[0].header.first_transaction_id if ends.size else None
        last = self.next_transaction_id - 1 if ends.size else None
        return SectionPlan((str(self._partition),), tuple(files), (), first, last, self.damaged)

    def _file(self, name: str, extents: tuple[Extent, ...], pieces: tuple[Piece, ...]) -> BackedFile:
        parts = merged(extents, pieces)
        return BackedFile(name, sum(one.size for one in parts), self._created * 1_000_000, 0, parts)


def _slice(start: int, size: int, ends: Int64Column) -> Slice:
    number = int(np.searchsorted(ends, start, side="right"))
    return Slice(number, start - (int(ends[number - 1]) if number else 0), size)


def control_pieces(content: bytes, limit: int = LIMIT) -> tuple[CutPiece, ...]:
    """The pieces of a control file; none if it is small enough for the section itself."""
    if len(content) <= SMALL:
        return ()
    return tuple(CutPiece(content[start : start + limit]) for start in range(0, len(content), limit))


def control_plan(name: str, content: bytes, modified_ms: int) -> SectionPlan:
    """The plan of the storage directory's own section: the control file only."""
    part: Extent = Literal(content) if len(content) <= SMALL else Slice(0, 0, len(content))
    return SectionPlan((), (BackedFile(name, len(content), modified_ms * 1_000_000, 0, (part,)),), ())
