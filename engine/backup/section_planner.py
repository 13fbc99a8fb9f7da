"""Section planner: plans the section of a directory, file by file, reading as little of it as possible.

- Intact records of consecutive segments form one *run*, cut into pieces as `piece_cutting` defines.
- Everything else is kept as it is (*raw*), in pieces of a fixed size: headers, bytes after damage, indexes that do not match
  their segments, unknown files.

Incremental planning: a data file and its index are not read if size, modification time and inode are as in the previous backup,
and those of all segments before them are as well.  The last piece reused is cut again, as it may have grown.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np

from waltzctl.engine.backup.piece_cutting import LIMIT, PieceCutter, PieceRange
from waltzctl.engine.backup.section_plan import (
    SMALL,
    FileRange,
    PlannedPiece,
    PreviousSection,
    SectionPlan,
    SourceChangedError,
)
from waltzctl.engine.durable.file_status import FileNumbers
from waltzctl.engine.log import places
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.columns import Damage, DamageCause, Int64Column
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, INDEX_SUFFIX, SEGMENT_SUFFIX, parse_name
from waltzctl.formats.vault import BackedFile, DerivedIndex, Extent, Literal, Piece, Slice, merged

_SETTLED_NS = 2_000_000_000
"""A file modified less than this before the backup began counts as changed: a later write may have got the same timestamp."""


@dataclass(slots=True)
class _StreamRange:
    """A range of bytes of a stream of pieces; `start` counts from the beginning of the stream."""

    start: int
    size: int


@dataclass(slots=True)
class _DraftFile:
    """A file whose extents are ranges of the two streams: that of records, and the raw stream of everything else.

    `parts`: (True, range) is a range of the stream of records, (False, range) one of the raw stream.
    """

    name: str
    numbers: FileNumbers
    parts: list[Literal | DerivedIndex | tuple[bool, _StreamRange]] = field(default_factory=list)


class SectionPlanner:
    """Plans a section, file by file.

    `live`: a process writes to the directory; half a record at the end of the log is left out.  `as_it_is`: damage in the last
    segment of a live directory counts as damage; otherwise it raises SourceChangedError, as a truncation in progress may look
    like damage.
    """

    def __init__(
        self,
        previous: PreviousSection | None = None,
        *,
        live: bool = False,
        limit: int = LIMIT,
        as_it_is: bool = True,
    ) -> None:
        self._live = live
        self._as_it_is = as_it_is
        self._limit = limit
        self._previous = previous
        self._known: Mapping[str, BackedFile] = {}
        if previous is not None:
            self._known = {one.name: one for one in previous.section.files}
        self._records: list[PlannedPiece] = []
        self._raw: list[PlannedPiece] = []
        self._drafts: list[_DraftFile] = []
        self._cutter: PieceCutter | None = None
        self._record_ranges: list[tuple[int, FileRange]] = []
        self._records_size = 0
        self._raw_size = 0
        self._next_transaction_id: int | None = None
        self._first_transaction_id: int | None = None
        self._damaged = 0

    # ---- segments ----------------------------------------------------------------------------------------------------

    def add_segments(self, directory: PurePath, prefix: str, files: Mapping[str, FileNumbers]) -> None:
        """Add the data files of a partition and their indexes.  Raises DiskReadError, FileNotFoundError."""
        names = sorted(name for name in files if parse_name(name) is not None and name.endswith(SEGMENT_SUFFIX))
        taken = self._reuse_segments(directory, prefix, names, files)
        for place, name in enumerate(names[taken:], taken):
            self._read_segment(directory, prefix, name, files, last=place == len(names) - 1)
        self._end_run()

    def _read_segment(
        self, directory: PurePath, prefix: str, name: str, files: Mapping[str, FileNumbers], *, last: bool
    ) -> None:
        parsed = parse_name(name)
        assert parsed is not None
        first, path, numbers, damaged = parsed[0], directory / name, files[name], self._damaged
        with places.open_source(path) as source:
            header = bytes(read_bytes(source, 0, min(HEADER_SIZE, numbers.size)))
            draft = _DraftFile(prefix + name, numbers, [Literal(header)])
            sizes, end, torn = self._scan(source, first, HEADER_SIZE, numbers.size)
        if len(sizes):
            draft.parts.append((True, self._add_run(path, first, HEADER_SIZE, sizes)))
        if self._live and last and self._damaged > damaged and not self._as_it_is:
            raise SourceChangedError(f"{path}: what is no record at byte {end} may be one that is just being replaced")
        size = end if len(sizes) else len(header)
        if self._live and last and size < numbers.size and not torn and self._damaged == damaged:
            raise SourceChangedError(f"{path}: it became shorter while it was read")
        dropped = self._live and last and torn
        if size < numbers.size and not dropped:
            draft.parts.append((False, self._add_raw(path, size, numbers.size - size)))
            size = numbers.size
        draft.numbers = numbers._replace(size=size)
        self._drafts.append(draft)
        index = name.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX
        if index in files:
            self._read_index(directory / index, prefix, draft, files[index], first, sizes, derive=self._live and last)

    def _scan(self, source: ByteSource, first: int, start: int, stop: int) -> tuple[Int64Column, int, bool]:
        """Sizes of the intact records from `start` on, the offset of their end, and whether a torn tail follows."""
        found: list[Int64Column] = []
        end, torn = start, False
        for one in summarise_records(source, first_transaction_id=first, start=start, stop=stop):
            if isinstance(one, Damage):
                torn = one.cause is DamageCause.TORN_TAIL
                self._damaged += not (torn and self._live)
                break
            found.append(np.diff(one.offset, append=one.end))
            end = one.end
        return np.concatenate(found) if found else np.zeros(0, np.int64), end, torn

    def _read_index(
        self,
        path: PurePath,
        prefix: str,
        segment: _DraftFile,
        numbers: FileNumbers,
        first: int,
        sizes: Int64Column,
        *,
        derive: bool,
    ) -> None:
        """Add the index of a data file: derived from the records if it matches them, otherwise kept as it is."""
        offsets = np.cumsum(np.concatenate(([HEADER_SIZE], sizes[:-1]))) if len(sizes) else sizes
        derived = ENTRY_SIZE * len(sizes)
        draft = _DraftFile(prefix + path.name, numbers)
        with places.open_source(path) as source:
            header = bytes(read_bytes(source, 0, min(HEADER_SIZE, numbers.size)))
            if not derive and numbers.size == HEADER_SIZE + derived:
                entries = IndexReader(source, first).entries(first, len(sizes))
                derive = len(entries) == len(offsets) and bool((entries == offsets).all())
        if derive and len(header) == HEADER_SIZE:
            draft.parts = [Literal(header), DerivedIndex(segment.name, derived)]
            draft.numbers = numbers._replace(size=HEADER_SIZE + derived)
        else:
            draft.parts = [(False, self._add_raw(path, 0, numbers.size))]
        self._drafts.append(draft)

    def _add_run(self, path: PurePath, first: int, offset: int, sizes: Int64Column) -> _StreamRange:
        """Add records to the current run, or to a new one; returns their range in the stream of records."""
        if self._cutter is None or self._next_transaction_id != first:
            self._end_run()
            self._cutter = PieceCutter(first, self._records_size, limit=self._limit)
        total = int(sizes.sum())
        span = _StreamRange(self._records_size, total)
        self._record_ranges.append((self._records_size, FileRange(path, offset, total)))
        self._records_size += total
        self._first_transaction_id = first if self._first_transaction_id is None else self._first_transaction_id
        self._next_transaction_id = first + len(sizes)
        for one in self._cutter.feed(sizes):
            self._add_piece(one)
        return span

    def _end_run(self) -> None:
        if self._cutter is not None:
            for one in self._cutter.finish():
                self._add_piece(one)
        self._cutter = None

    def _add_piece(self, one: PieceRange) -> None:
        self._records.append(
            PlannedPiece(
                one.end - one.start, one.first_transaction_id, one.records, tuple(self._ranges(one.start, one.end))
            )
        )

    def _ranges(self, start: int, end: int) -> Iterable[FileRange]:
        """Where a range of the stream of records is in the source."""
        place = bisect.bisect_right(self._record_ranges, start, key=lambda one: one[0]) - 1
        while start < end:
            begins, source = self._record_ranges[place]
            inside = start - begins
            size = min(end - start, source.size - inside)
            yield FileRange(source.path, source.offset + inside, size)
            start += size
            place += 1

    # ---- raw bytes: everything that is no record ---------------------------------------------------------------------

    def add_file(self, path: PurePath, name: str, numbers: FileNumbers, content: bytes | None = None) -> None:
        """Add a file as it is.  `content`: its bytes, if they were read already; they are then used as they are.

        Raises DiskReadError, FileNotFoundError, SourceChangedError if a small file changed while it was read.
        """
        draft = _DraftFile(name, numbers)
        self._drafts.append(draft)
        if content is None and (old := self._unchanged(name, numbers)) is not None and self._previous is not None:
            pieces = self._previous.section.pieces
            if all(isinstance(one, Literal) for one in old.extents):
                draft.parts = [one for one in old.extents if isinstance(one, Literal)]
                return
            only = old.extents[0]
            if len(old.extents) == 1 and isinstance(only, Slice) and pieces[only.piece].first_transaction_id < 0:
                draft.parts = [(False, self._reuse_raw(only))]
                return
        if content is None and numbers.size <= SMALL:
            content = places.read_range(path, 0, numbers.size)
            if self._live and places.file_numbers(path) != numbers:
                raise SourceChangedError(f"{path}: it changed while it was read")
        draft.numbers = numbers if content is None else numbers._replace(size=len(content))
        if content is not None and len(content) <= SMALL:
            draft.parts = [Literal(content)]
        else:
            draft.parts = [(False, self._add_raw(path, 0, draft.numbers.size, content))]

    def _add_raw(self, path: PurePath, offset: int, size: int, content: bytes | None = None) -> _StreamRange:
        """Add bytes to the raw stream.  `content`: all of them, if they were read already."""
        span = _StreamRange(self._raw_size, size)
        for start in range(0, size, self._limit):
            length = min(self._limit, size - start)
            read = None if content is None else content[start : start + length]
            self._raw.append(PlannedPiece(length, ranges=(FileRange(path, offset + start, length),), content=read))
        self._raw_size += size
        return span

    def _reuse_raw(self, old: Slice) -> _StreamRange:
        """Add raw pieces of the previous backup; `old` consists of whole pieces."""
        assert self._previous is not None
        span = _StreamRange(self._raw_size, old.size)
        number, left = old.piece, old.size
        while left > 0:
            piece = self._previous.section.pieces[number]
            self._raw.append(PlannedPiece(piece.size, kept=piece, page=self._previous.first_page + number))
            number, left = number + 1, left - piece.size
        self._raw_size += old.size
        return span

    # ---- reuse of the previous backup ----------------------------------------------------------------------------------

    def _unchanged(self, name: str, numbers: FileNumbers) -> BackedFile | None:
        old = self._known.get(name)
        if old is None or self._previous is None:
            return None
        same = (old.size, old.modified_ns, old.inode) == tuple(numbers)
        return old if same and numbers.modified_ns < self._previous.created_ms * 1_000_000 - _SETTLED_NS else None

    def _reuse_segments(
        self, directory: PurePath, prefix: str, names: list[str], files: Mapping[str, FileNumbers]
    ) -> int:
        """Reuse the leading segments that did not change since the previous backup; returns how many."""
        count = 0
        while count < len(names) and self._segment_unchanged(prefix, names[count], files):
            count += 1
        if not count or self._previous is None:
            return 0
        pieces, page = self._previous.section.pieces, self._previous.first_page
        extents = [one for name in names[:count] for one in self._known[prefix + name].extents]
        slices = [one for one in extents if isinstance(one, Slice) and pieces[one.piece].first_transaction_id >= 0]
        if not slices:
            return 0  # nothing but damage and empty segments: reading them costs little
        low = slices[0].piece
        ends = [0]
        for piece in pieces[low:]:
            if piece.first_transaction_id < 0:
                break
            ends.append(ends[-1] + piece.size)
        until = ends[slices[-1].piece - low] + slices[-1].offset + slices[-1].size
        high = low + bisect.bisect_right(ends, until) - 1  # the pieces that end within the reused records
        closed = high < len(pieces) and pieces[high].first_transaction_id == pieces[high - 1].next_transaction_id
        if high > low and not (closed and high - low < len(ends) - 1):
            high -= 1  # the last piece ended with the log, and may grow: cut it again
        for number in range(low, high):
            piece = pieces[number]
            self._records.append(
                PlannedPiece(piece.size, piece.first_transaction_id, piece.records, kept=piece, page=page + number)
            )
        kept = ends[high - low]
        self._records_size = kept
        if high > low:
            last = pieces[high - 1]
            self._next_transaction_id = last.next_transaction_id
            self._cutter = PieceCutter(self._next_transaction_id, kept, begins=False, limit=self._limit)
        for name in names[:count]:
            if self._first_transaction_id is None and any(one in slices for one in self._known[prefix + name].extents):
                parsed = parse_name(name)
                self._first_transaction_id = None if parsed is None else parsed[0]
            self._reuse_data_file(directory / name, prefix + name, files[name], low, ends, kept)
            index = name.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX
            if index in files:
                self._reuse_index(prefix + index, files[index])
        return count

    def _segment_unchanged(self, prefix: str, name: str, files: Mapping[str, FileNumbers]) -> bool:
        index = name.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX
        if (index in files) != (prefix + index in self._known):
            return False
        return all(self._unchanged(prefix + one, files[one]) is not None for one in (name, index) if one in files)

    def _reuse_data_file(
        self, path: PurePath, name: str, numbers: FileNumbers, low: int, ends: list[int], kept: int
    ) -> None:
        """Add an unchanged data file.  Its records after stream offset `kept` are cut into pieces again."""
        assert self._previous is not None
        draft = _DraftFile(name, numbers)
        offset = 0
        for one in self._known[name].extents:
            if isinstance(one, Slice) and self._previous.section.pieces[one.piece].first_transaction_id >= 0:
                start = ends[one.piece - low] + one.offset
                inside = min(max(kept - start, 0), one.size)
                if inside:
                    draft.parts.append((True, _StreamRange(start, inside)))
                if inside < one.size:
                    self._plan_again(draft, path, offset + inside, one.size - inside)
            elif isinstance(one, Slice):
                draft.parts.append((False, self._reuse_raw(one)))
                self._damaged += 1
            else:
                draft.parts.append(one)
            offset += one.size
        self._drafts.append(draft)

    def _plan_again(self, draft: _DraftFile, path: PurePath, offset: int, size: int) -> None:
        parsed = parse_name(path.name)
        first = (
            self._next_transaction_id if self._cutter is not None and self._next_transaction_id is not None else None
        )
        assert parsed is not None
        if first is None or offset == HEADER_SIZE:
            first = parsed[0]
        with places.open_source(path) as source:
            sizes, end, _ = self._scan(source, first, offset, offset + size)
        if len(sizes):
            draft.parts.append((True, self._add_run(path, first, offset, sizes)))
        if end < offset + size:  # damaged since the previous backup
            draft.parts.append((False, self._add_raw(path, end, offset + size - end)))

    def _reuse_index(self, name: str, numbers: FileNumbers) -> None:
        draft = _DraftFile(name, numbers)
        for one in self._known[name].extents:
            draft.parts.append((False, self._reuse_raw(one)) if isinstance(one, Slice) else one)
        self._drafts.append(draft)

    # ---- the plan ----------------------------------------------------------------------------------------------------

    def plan(self, directories: Iterable[str]) -> SectionPlan:
        """The plan of everything that was added.  Pieces of records come before raw ones."""
        self._end_run()
        pieces = (*self._records, *self._raw)
        ends = np.cumsum([one.size for one in self._records], dtype=np.int64)
        raw_ends = np.cumsum([one.size for one in self._raw], dtype=np.int64)
        sized = [Piece(b"", one.size, 0) for one in pieces]
        files = []
        for draft in self._drafts:
            extents: list[Extent] = []
            for part in draft.parts:
                if isinstance(part, tuple):
                    of_records, span = part
                    extents.append(_slice(span, ends, 0) if of_records else _slice(span, raw_ends, len(ends)))
                else:
                    extents.append(part)
            files.append(BackedFile(draft.name, *draft.numbers, merged(extents, sized)))
        last = None if self._next_transaction_id is None else self._next_transaction_id - 1
        return SectionPlan(tuple(directories), tuple(files), pieces, self._first_transaction_id, last, self._damaged)


def _slice(span: _StreamRange, ends: Int64Column, base: int) -> Slice:
    number = int(np.searchsorted(ends, span.start, side="right"))
    begins = int(ends[number - 1]) if number else 0
    return Slice(base + number, span.start - begins, span.size)
