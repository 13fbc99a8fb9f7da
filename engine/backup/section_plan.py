"""What a backup takes of a partition's directory, or of what lies beside the partitions: files, and the pieces they are made of.

A plan says of each piece either where its bytes lie in the source, or that a backup of the same source has it already.  Intact
records of consecutive segments are one run, cut where `piece_cutting` says; whatever else a file holds is kept as it is, in
pieces of a fixed size: headers, what stands behind damage, indexes that are not what their segments say, unknown files.

A data file and its index that are the same as in the backup before (size, time of last change, inode) are not read, as far as
every segment in front of them is the same as well.  The last piece of what is taken over is cut again: it may have grown.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np

from waltzctl.engine.backup.piece_cutting import LIMIT, PieceCutter, PieceRange
from waltzctl.engine.durable.regular import FileNumbers
from waltzctl.engine.errors import UnavailableError
from waltzctl.engine.log import places
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.columns import Damage, DamageCause, Int64Column
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, INDEX_SUFFIX, SEGMENT_SUFFIX, parse_name
from waltzctl.formats.vault import BackedFile, DerivedIndex, Extent, Literal, Piece, Section, Slice, merged


class SourceChangedError(UnavailableError):
    """Records that were there when a partition was looked at are not there when they are read."""


SMALL = 1024
"""Bytes up to which a file that is no segment stands in the section itself."""
_SETTLED_NS = 2_000_000_000
"""A file that changed later than so long before a backup began may have changed again within the tick of its clock."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file of the source."""

    path: PurePath
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """A piece, and where its content comes from: `ranges` of the source, or the page of a backup that has it as `kept`.

    `content`: what was read of the source already, None for what is still to be read.
    """

    size: int
    first_transaction_id: int = -1
    records: int = 0
    ranges: tuple[FileRange, ...] = ()
    kept: Piece | None = None
    page: int | None = None
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class PreviousSection:
    """The same directory in the last backup of the same source: begun at `created_ms`; its pieces begin at `first_page`."""

    section: Section
    first_page: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """What is taken.  `first` and `last`: transaction ids, None without records; `damaged`: places that were no records."""

    directories: tuple[str, ...]
    files: tuple[BackedFile, ...]
    pieces: tuple[PlannedPiece, ...]
    first: int | None = None
    last: int | None = None
    damaged: int = 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.files)


@dataclass(slots=True)
class _Stretch:
    """Bytes of a stream of pieces: `start` counts from the stream's beginning."""

    start: int
    size: int


@dataclass(slots=True)
class _Draft:
    """A file whose extents count from the beginnings of the two streams: of records, and of everything else."""

    name: str
    numbers: FileNumbers
    parts: list[Literal | DerivedIndex | tuple[bool, _Stretch]] = field(default_factory=list)


class SectionPlanner:
    """Plans a section, file by file.

    `live`: somebody writes there, and half a record at the end is none.  `as_it_is`: damage in the last segment of such a
    directory is damage, and not what a truncation left for a moment.
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
        self._drafts: list[_Draft] = []
        self._cutter: PieceCutter | None = None
        self._sources: list[tuple[int, FileRange]] = []
        self._stream = 0
        self._raw_size = 0
        self._next: int | None = None
        self._first: int | None = None
        self._damaged = 0

    # ---- segments ----------------------------------------------------------------------------------------------------

    def add_segments(self, directory: PurePath, prefix: str, files: Mapping[str, FileNumbers]) -> None:
        """The data files of a partition and their indexes.  Raises DiskReadError, FileNotFoundError."""
        names = sorted(name for name in files if parse_name(name) is not None and name.endswith(SEGMENT_SUFFIX))
        taken = self._take_over(directory, prefix, names, files)
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
            draft = _Draft(prefix + name, numbers, [Literal(header)])
            sizes, end, torn = self._scan(source, first, HEADER_SIZE, numbers.size)
        if len(sizes):
            draft.parts.append((True, self._feed(path, first, HEADER_SIZE, sizes)))
        if self._live and last and self._damaged > damaged and not self._as_it_is:
            raise SourceChangedError(f"{path}: what is no record at byte {end} may be one that is just being replaced")
        size = end if len(sizes) else len(header)
        if self._live and last and size < numbers.size and not torn and self._damaged == damaged:
            raise SourceChangedError(f"{path}: it became shorter while it was looked at")
        dropped = self._live and last and torn
        if size < numbers.size and not dropped:
            draft.parts.append((False, self._keep(path, size, numbers.size - size)))
            size = numbers.size
        draft.numbers = numbers._replace(size=size)
        self._drafts.append(draft)
        index = name.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX
        if index in files:
            self._read_index(directory / index, prefix, draft, files[index], first, sizes, derive=self._live and last)

    def _scan(self, source: ByteSource, first: int, start: int, stop: int) -> tuple[Int64Column, int, bool]:
        """Sizes of the intact records from `start` on, where they end, and whether nothing but half a record follows."""
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
        segment: _Draft,
        numbers: FileNumbers,
        first: int,
        sizes: Int64Column,
        *,
        derive: bool,
    ) -> None:
        """The index of a data file: its entries are not kept where they are what the records say."""
        offsets = np.cumsum(np.concatenate(([HEADER_SIZE], sizes[:-1]))) if len(sizes) else sizes
        derived = ENTRY_SIZE * len(sizes)
        draft = _Draft(prefix + path.name, numbers)
        with places.open_source(path) as source:
            header = bytes(read_bytes(source, 0, min(HEADER_SIZE, numbers.size)))
            if not derive and numbers.size == HEADER_SIZE + derived:
                entries = IndexReader(source, first).entries(first, len(sizes))
                derive = len(entries) == len(offsets) and bool((entries == offsets).all())
        if derive and len(header) == HEADER_SIZE:
            draft.parts = [Literal(header), DerivedIndex(segment.name, derived)]
            draft.numbers = numbers._replace(size=HEADER_SIZE + derived)
        else:
            draft.parts = [(False, self._keep(path, 0, numbers.size))]
        self._drafts.append(draft)

    def _feed(self, path: PurePath, first: int, offset: int, sizes: Int64Column) -> _Stretch:
        """More records of the run, or of a new one; returns where they are in the stream."""
        if self._cutter is None or self._next != first:
            self._end_run()
            self._cutter = PieceCutter(first, self._stream, limit=self._limit)
        total = int(sizes.sum())
        stretch = _Stretch(self._stream, total)
        self._sources.append((self._stream, FileRange(path, offset, total)))
        self._stream += total
        self._first = first if self._first is None else self._first
        self._next = first + len(sizes)
        for one in self._cutter.feed(sizes):
            self._add(one)
        return stretch

    def _end_run(self) -> None:
        if self._cutter is not None:
            for one in self._cutter.finish():
                self._add(one)
        self._cutter = None

    def _add(self, one: PieceRange) -> None:
        self._records.append(
            PlannedPiece(
                one.end - one.start, one.first_transaction_id, one.records, tuple(self._ranges(one.start, one.end))
            )
        )

    def _ranges(self, start: int, end: int) -> Iterable[FileRange]:
        """Where bytes of the stream of records lie in the source."""
        place = bisect.bisect_right(self._sources, start, key=lambda one: one[0]) - 1
        while start < end:
            begins, source = self._sources[place]
            inside = start - begins
            size = min(end - start, source.size - inside)
            yield FileRange(source.path, source.offset + inside, size)
            start += size
            place += 1

    # ---- everything else ---------------------------------------------------------------------------------------------

    def add_file(self, path: PurePath, name: str, numbers: FileNumbers, content: bytes | None = None) -> None:
        """A file as it is.  `content`: what was read of it already, and is taken as it was then.

        Raises DiskReadError, FileNotFoundError, SourceChangedError for one that is another one once it was read.
        """
        draft = _Draft(name, numbers)
        self._drafts.append(draft)
        if content is None and (old := self._unchanged(name, numbers)) is not None and self._previous is not None:
            pieces = self._previous.section.pieces
            if all(isinstance(one, Literal) for one in old.extents):
                draft.parts = [one for one in old.extents if isinstance(one, Literal)]
                return
            only = old.extents[0]
            if len(old.extents) == 1 and isinstance(only, Slice) and pieces[only.piece].first_transaction_id < 0:
                draft.parts = [(False, self._keep_known(only))]
                return
        if content is None and numbers.size <= SMALL:
            content = places.read_range(path, 0, numbers.size)
            if self._live and places.file_numbers(path) != numbers:
                raise SourceChangedError(f"{path}: it changed while it was read")
        draft.numbers = numbers if content is None else numbers._replace(size=len(content))
        if content is not None and len(content) <= SMALL:
            draft.parts = [Literal(content)]
        else:
            draft.parts = [(False, self._keep(path, 0, draft.numbers.size, content))]

    def _keep(self, path: PurePath, offset: int, size: int, content: bytes | None = None) -> _Stretch:
        """Bytes as they are.  `content`: all of them, where they were read already."""
        stretch = _Stretch(self._raw_size, size)
        for start in range(0, size, self._limit):
            length = min(self._limit, size - start)
            read = None if content is None else content[start : start + length]
            self._raw.append(PlannedPiece(length, ranges=(FileRange(path, offset + start, length),), content=read))
        self._raw_size += size
        return stretch

    def _keep_known(self, old: Slice) -> _Stretch:
        """Pieces that are no records, as the backup before has them; `old` is made of whole ones."""
        assert self._previous is not None
        stretch = _Stretch(self._raw_size, old.size)
        number, left = old.piece, old.size
        while left > 0:
            piece = self._previous.section.pieces[number]
            self._raw.append(PlannedPiece(piece.size, kept=piece, page=self._previous.first_page + number))
            number, left = number + 1, left - piece.size
        self._raw_size += old.size
        return stretch

    # ---- what the backup before has ------------------------------------------------------------------------------------

    def _unchanged(self, name: str, numbers: FileNumbers) -> BackedFile | None:
        old = self._known.get(name)
        if old is None or self._previous is None:
            return None
        same = (old.size, old.modified_ns, old.inode) == tuple(numbers)
        return old if same and numbers.modified_ns < self._previous.created_ms * 1_000_000 - _SETTLED_NS else None

    def _take_over(self, directory: PurePath, prefix: str, names: list[str], files: Mapping[str, FileNumbers]) -> int:
        """Take the segments that did not change from the backup before; returns how many, from the first on."""
        count = 0
        while count < len(names) and self._same(prefix, names[count], files):
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
        high = low + bisect.bisect_right(ends, until) - 1  # pieces that end within what is taken
        closed = high < len(pieces) and pieces[high].first_transaction_id == pieces[high - 1].next_transaction_id
        if high > low and not (closed and high - low < len(ends) - 1):
            high -= 1  # the run ended with it, and goes on
        for number in range(low, high):
            piece = pieces[number]
            self._records.append(
                PlannedPiece(piece.size, piece.first_transaction_id, piece.records, kept=piece, page=page + number)
            )
        kept = ends[high - low]
        self._stream = kept
        if high > low:
            last = pieces[high - 1]
            self._next = last.next_transaction_id
            self._cutter = PieceCutter(self._next, kept, begins=False, limit=self._limit)
        for name in names[:count]:
            if self._first is None and any(one in slices for one in self._known[prefix + name].extents):
                parsed = parse_name(name)
                self._first = None if parsed is None else parsed[0]
            self._take_file(directory / name, prefix + name, files[name], low, ends, kept)
            index = name.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX
            if index in files:
                self._take_index(prefix + index, files[index])
        return count

    def _same(self, prefix: str, name: str, files: Mapping[str, FileNumbers]) -> bool:
        index = name.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX
        if (index in files) != (prefix + index in self._known):
            return False
        return all(self._unchanged(prefix + one, files[one]) is not None for one in (name, index) if one in files)

    def _take_file(self, path: PurePath, name: str, numbers: FileNumbers, low: int, ends: list[int], kept: int) -> None:
        """A data file of the backup before.  Of its records behind `kept` the pieces are cut again."""
        assert self._previous is not None
        draft = _Draft(name, numbers)
        offset = 0
        for one in self._known[name].extents:
            if isinstance(one, Slice) and self._previous.section.pieces[one.piece].first_transaction_id >= 0:
                start = ends[one.piece - low] + one.offset
                inside = min(max(kept - start, 0), one.size)
                if inside:
                    draft.parts.append((True, _Stretch(start, inside)))
                if inside < one.size:
                    self._cut_again(draft, path, offset + inside, one.size - inside)
            elif isinstance(one, Slice):
                draft.parts.append((False, self._keep_known(one)))
                self._damaged += 1
            else:
                draft.parts.append(one)
            offset += one.size
        self._drafts.append(draft)

    def _cut_again(self, draft: _Draft, path: PurePath, offset: int, size: int) -> None:
        parsed = parse_name(path.name)
        first = self._next if self._cutter is not None and self._next is not None else None
        assert parsed is not None
        if first is None or offset == HEADER_SIZE:
            first = parsed[0]
        with places.open_source(path) as source:
            sizes, end, _ = self._scan(source, first, offset, offset + size)
        if len(sizes):
            draft.parts.append((True, self._feed(path, first, offset, sizes)))
        if end < offset + size:  # it was intact then, and is not now
            draft.parts.append((False, self._keep(path, end, offset + size - end)))

    def _take_index(self, name: str, numbers: FileNumbers) -> None:
        draft = _Draft(name, numbers)
        for one in self._known[name].extents:
            draft.parts.append((False, self._keep_known(one)) if isinstance(one, Slice) else one)
        self._drafts.append(draft)

    # ---- the plan ----------------------------------------------------------------------------------------------------

    def plan(self, directories: Iterable[str]) -> SectionPlan:
        """What was added.  Pieces of records come first."""
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
                    ofrecords, stretch = part
                    extents.append(_slice(stretch, ends, 0) if ofrecords else _slice(stretch, raw_ends, len(ends)))
                else:
                    extents.append(part)
            files.append(BackedFile(draft.name, *draft.numbers, merged(extents, sized)))
        last = None if self._next is None else self._next - 1
        return SectionPlan(tuple(directories), tuple(files), pieces, self._first, last, self._damaged)


def _slice(stretch: _Stretch, ends: Int64Column, base: int) -> Slice:
    number = int(np.searchsorted(ends, stretch.start, side="right"))
    begins = int(ends[number - 1]) if number else 0
    return Slice(base + number, stretch.start - begins, stretch.size)
