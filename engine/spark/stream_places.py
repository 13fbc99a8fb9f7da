"""Positions in the segments of a partition: its last record, the record of an id, and the ranges of a batch.

An index entry is trusted only if it leads to a record with its id and a right checksum.  So the last record is found by the end
of the last index and a scan of the bytes after the record there: none, or those that are being written.  A whole segment is read
only where it has no usable index.

A segment *owns* the ids from the one in its name to the last before the next segment's.  Every id has one owner, and so each
finding belongs to one batch.  A segment without records that stands inside the one in front of it owns nothing.  Ids behind the
last record of one with records are its own as well, and are read from a segment in front of it that goes further.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import SegmentCheck
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log.index import RecordPlace, prove_at_or_before
from waltzctl.engine.log.parts import Part, cut
from waltzctl.engine.log.places import on_this_machine
from waltzctl.engine.log.segments_in_front import SegmentsInFront
from waltzctl.engine.log.view import FileState, PartitionView, SegmentView
from waltzctl.engine.scan.columns import Damage, RecordBatch, RecordView
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.engine.spark.offsets import BEGINNING, Anchor
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD

SPLIT_BYTES = 128 << 20
"""Bytes of a segment in one range, approximately."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A part of a batch: the ids from `first` to `last` (inclusive), which one segment owns."""

    node: str
    directory: PurePath
    partition: int
    segment: int
    first: int
    last: int
    start: int
    """Where the scan begins, an offset in bytes: the record `start_id` is there."""
    start_id: int
    stop: int | None = None
    """Where the scan ends, an offset in bytes; None: at the end of the file, which is complete."""
    following: int | None = None
    """The first id of the next segment, where the range reaches up to it; else None."""
    before: bool = False
    """Whether the ids are before those of the partition's first segment (`segment`), so that there is nothing to read."""
    ends_at: Anchor | None = None
    """The record that must be the last one; None: not checked."""
    others: bool = False
    """Whether a segment in front of it may go beyond its beginning, and so hold ids behind its last record."""
    cluster_key: uuid.UUID | None = None
    local_low_water_mark: int | None = None
    storage: PurePath | None = None
    bytes: int = 0

    @property
    def job(self) -> SegmentJob:
        """The segment, for the code that inspects it."""
        return SegmentJob(
            self.directory,
            self.segment,
            self.partition,
            last=self.stop is not None,
            storage=self.storage,
            cluster_key=self.cluster_key,
            local_low_water_mark=self.local_low_water_mark,
            following=self.following,
        )


def open_segment(job: SegmentJob) -> SegmentCheck:
    """A segment whose first id is taken from its file's name, not from its header.

    Raises FilesChangedError (when entered), DiskReadError.
    """
    return _Opened(job, ReadLimits())


class _Opened(SegmentCheck):
    def _open(self) -> None:
        super()._open()
        self.begins = self.job.first
        if self.reader is not None:
            self.reader.begins = self.begins


def anchor_of_view(view: RecordView, segment: int) -> Anchor:
    """The anchor of a record that was read by itself."""
    request_id = RequestId.from_words(view.request_id_high, view.request_id_low)
    return Anchor(view.transaction_id, request_id, view.record_checksum, segment, view.offset, len(view.record))


def anchor_of_row(batch: RecordBatch, row: int, segment: int) -> Anchor:
    """The anchor of a row of a scan."""
    return Anchor(
        int(batch.transaction_id[row]),
        RequestId.from_words(int(batch.request_id_high[row]), int(batch.request_id_low[row])),
        int(batch.record_checksum[row]),
        segment,
        int(batch.offset[row]),
        RECORD_OVERHEAD + int(batch.data_length[row]),
    )


class PartitionPlaces:
    """The segments of a partition as they were listed.

    Every call raises FilesChangedError when a listed file is gone, and DiskReadError.
    """

    def __init__(self, view: PartitionView, before: PartitionPlaces | None = None) -> None:
        """`before`: those of an earlier listing, of which the ends of unchanged segments are known."""
        assert view.partition is not None
        self.partition: int = view.partition
        self._directory = view.path
        self._listed: Sequence[SegmentView] = view.data_segments
        self._ends: dict[SegmentView, int] = {}  # what `_end_of` found
        if before is not None and before._ends:
            known = set(self._listed)
            self._ends.update((one, end) for one, end in before._ends.items() if one in known)

    def _owns(self, place: int) -> bool:
        """Whether a segment owns ids: none does that is empty and stands inside the one in front of it that has records.

        Only of an empty one that segment is opened, and of the last one only where the index in front does not tell that it was
        begun where that ends: nothing is opened while a log goes on.
        """
        before = self._in_front[place]
        if before is None or not _is_empty(self._listed[place]):
            return True
        number, one = self._listed[place].first_transaction_id, self._listed[before]
        if place == len(self._listed) - 1 and one.first_transaction_id + one.entries == number:
            return True
        return self._end_of(one) < number

    @cached_property
    def _in_front(self) -> Sequence[int | None]:
        """Of each segment the place of the last one in front of it that is not empty; None: there is none."""
        found: list[int | None] = []
        before: int | None = None
        for place, one in enumerate(self._listed):
            found.append(before)
            before = before if _is_empty(one) else place
        return found

    @cached_property
    def _bounds(self) -> Sequence[int | None]:
        """Of each segment the last id that it may own, by the name of the next one that is not empty; None: there is none."""
        found: list[int | None] = []
        bound: int | None = None
        for one in reversed(self._listed):
            found.append(bound)
            bound = bound if _is_empty(one) else one.first_transaction_id - 1
        return found[::-1]

    def _end_of(self, one: SegmentView) -> int:
        """The id of a segment's last intact record; -1 without any."""
        if one not in self._ends:
            found = self._in_segment(one.first_transaction_id, None, BEGINNING)
            self._ends[one] = -1 if found is None else found.transaction_id
        return self._ends[one]

    @cached_property
    def _led(self) -> frozenset[int]:
        """The names of the segments whose indexes lead exactly to the name of the next one that is not empty, by their sizes."""
        pairs = zip(self._listed, self._bounds, strict=True)
        return frozenset(
            one.first_transaction_id
            for one, bound in pairs
            if one.index is not None and bound is not None and one.first_transaction_id + one.entries == bound + 1
        )

    @cached_property
    def _holders(self) -> SegmentsInFront[SegmentView]:
        """The segments, asked for ids that those behind them lack: each may hold as many as its size lets it.

        One whose size lets it go no further than the name of the next one that is not empty is not asked; and behind a URL none
        whose index leads exactly there, as for findings (`engine.inspect.segment_reach`).
        """
        most: list[int] = []
        here = on_this_machine(self._directory)
        for one, bound in zip(self._listed, self._bounds, strict=True):
            first, size = one.first_transaction_id, HEADER_SIZE if one.data is None else one.data.size
            able = first + (size - HEADER_SIZE) // RECORD_OVERHEAD
            believed = not here and first in self._led
            most.append(0 if bound is None or believed or able <= bound + 1 else able)
        return SegmentsInFront(self._listed, most, self._reach_of)

    def _reach_of(self, one: SegmentView) -> int:
        """The id after a segment's last intact record.  One that cannot be read goes as far as its index, if that leads on."""
        try:
            return self._end_of(one) + 1
        except DiskReadError:
            if one.first_transaction_id not in self._led:
                raise
            return one.first_transaction_id + one.entries  # who reads behind it needs nothing of it

    def _held_in_front(self, place: int, number: int, bound: int | None) -> Anchor | None:
        """The last record behind `number` and up to `bound` of the segments in front of one that hold these ids, or None.

        Each id is looked for in the segment in which a range reads it.
        """
        found: Anchor | None = None
        for held in self._holders.held(place, number + 1, None if bound is None else bound + 1):
            seen = self._in_segment(held.segment.first_transaction_id, held.stop - 1, BEGINNING)
            found = seen if seen is not None and seen.transaction_id >= held.first else found
        return found

    @property
    def first(self) -> int | None:
        """The id with which the first segment begins; None without segments."""
        return self._listed[0].first_transaction_id if self._listed else None

    @property
    def last_states(self) -> tuple[FileState | None, ...]:
        """The states of the last segment's files; every write to the partition changes them."""
        return (self._listed[-1].data, self._listed[-1].index) if self._listed else ()

    def _owned_up_to(self, place: int) -> int | None:
        """The last id that a segment owns; None: it owns all further ids."""
        behind = next((one for one in range(place + 1, len(self._listed)) if self._owns(one)), None)
        return None if behind is None else self._listed[behind].first_transaction_id - 1

    def at_or_before(self, transaction_id: int | None, known: Anchor = BEGINNING) -> Anchor | None:
        """The intact record with the highest id up to this one (None: of all); None when there is none.

        `known`: a record that was read earlier, from which a scan may start where there is no index.
        """
        for place in range(len(self._listed) - 1, -1, -1):
            first = self._listed[place].first_transaction_id
            if (transaction_id is not None and first > transaction_id) or not self._owns(place):
                continue
            bound = self._owned_up_to(place)
            if transaction_id is not None:
                bound = transaction_id if bound is None else min(bound, transaction_id)
            if bound is not None and first > bound:
                continue
            found = self._in_segment(first, bound, known)
            last = first - 1 if found is None else found.transaction_id
            if bound is None or last < bound:
                found = self._held_in_front(place, last, bound) or found
            if found is not None:
                return found
        return None

    def _in_segment(self, first: int, bound: int | None, known: Anchor) -> Anchor | None:
        with open_segment(SegmentJob(self._directory, first, self.partition)) as opened:
            if opened.short:
                return None
            found = _proven(opened, bound)
            if (
                known.segment == first
                and known.transaction_id > (-1 if found is None else found.transaction_id)
                and (bound is None or known.transaction_id <= bound)
            ):
                seen = _look(opened, known)
                found = seen if seen is not None and seen.is_record(known) else found
            if found is not None and found.transaction_id == bound:
                return found
            return _scan_up_to(opened, found, bound)

    def record_now(self, anchor: Anchor) -> Anchor | None:
        """The intact record that has the anchor's id now, in whatever segment; None when there is none."""
        if any(one.first_transaction_id == anchor.segment for one in self._listed):
            assert anchor.segment is not None
            owner = self._owner(anchor.transaction_id)
            if owner is not None and self._listed[owner].first_transaction_id == anchor.segment:
                with open_segment(SegmentJob(self._directory, anchor.segment, self.partition)) as opened:
                    seen = _look(opened, anchor)
                if seen is not None:
                    return seen
        found = self.at_or_before(anchor.transaction_id)
        return found if found is not None and found.transaction_id == anchor.transaction_id else None

    def _owner(self, transaction_id: int) -> int | None:
        able = bisect_right(self._listed, transaction_id, key=lambda one: one.first_transaction_id)
        return next((place for place in range(able - 1, -1, -1) if self._owns(place)), None)

    def ranges(self, start: Anchor, end: Anchor, template: SegmentRange) -> Iterator[SegmentRange]:
        """The ranges of the ids after `start` up to `end`.

        Both anchors were verified in this listing; `start` need not name a record.  `template`: what all ranges have in common.
        """
        low, high = start.transaction_id + 1, end.transaction_id
        head = self.first
        if head is None:
            return
        if low < head:
            yield replace(template, segment=head, first=low, last=min(head - 1, high), before=True)
            low = head
        for place, segment in enumerate(self._listed):
            first, most = segment.first_transaction_id, self._bounds[place]
            if first > high or (most is not None and most < low) or not self._owns(place):
                continue
            bound = self._owned_up_to(place)
            if bound is not None and bound < low:
                continue
            last = high if bound is None else min(bound, high)
            stop, others = None, self._holders.may_hold(place, max(low, first))
            ends_here = last == high and end.segment == first
            if ends_here:
                stop = end.end
            elif others and bound is None and segment.data is not None:
                stop = segment.data.size  # the last record is in front of it: its own end may be being written
            whole = replace(
                template,
                segment=first,
                first=max(low, first),
                last=last,
                start=HEADER_SIZE,
                start_id=first,
                stop=stop,
                following=None if bound is None or last < bound or stop is not None else bound + 1,
                ends_at=end if ends_here or (others and last == high) else None,
                others=others,
            )
            yield from self._split(whole, start)

    def _split(self, whole: SegmentRange, start: Anchor) -> Iterator[SegmentRange]:
        """Split the part of one segment into ranges, at records that its index proves."""
        place = start.end if start.segment == whole.segment and start.transaction_id + 1 == whole.first else None
        if place is not None:
            whole = replace(whole, start=place, start_id=whole.first)
        if place is not None and whole.stop is not None and whole.stop - place <= SPLIT_BYTES:
            parts = [Part(whole.first, place, whole.stop)]  # the place is known: the file need not be opened
        else:
            with open_segment(whole.job) as opened:
                stop = opened.size if whole.stop is None else whole.stop
                whole = from_proven(whole, opened) if place is None else whole
                begin, ids = RecordPlace(whole.start, whole.start_id), (whole.first, whole.last + 1)
                parts = cut(opened.data, opened.reader, begin, ids, stop, -(-(stop - whole.start) // SPLIT_BYTES))
        for part, behind in zip_longest(parts, parts[1:]):
            yield replace(
                whole,
                first=whole.first if part is parts[0] else part.first,
                last=whole.last if behind is None else behind.first - 1,
                start=part.start,
                start_id=part.first,
                following=whole.following if behind is None else None,
                ends_at=whole.ends_at if behind is None else None,
                bytes=max(0, part.stop - part.start),
            )


def _is_empty(one: SegmentView) -> bool:
    """Whether a data file has no record, with a header or without."""
    return one.data is not None and one.data.size <= HEADER_SIZE


def from_proven(whole: SegmentRange, opened: SegmentCheck) -> SegmentRange:
    """A range whose scan begins at the nearest record up to its first id that the index proves, if it proves one."""
    found = _proven(opened, whole.first)
    if found is None or found.offset is None:
        return whole
    return replace(whole, start=found.offset, start_id=found.transaction_id)


def _proven(opened: SegmentCheck, bound: int | None) -> Anchor | None:
    """The record with the highest id up to `bound` that the index proves by a short search; None: it proves none."""
    if opened.reader is None:
        return None
    wanted = opened.reader.end() if bound is None else bound
    found = prove_at_or_before(opened.data, opened.reader, wanted, opened.size, above=opened.begins - 1)
    return None if found is None else anchor_of_view(found, opened.job.first)


def _look(opened: SegmentCheck, anchor: Anchor) -> Anchor | None:
    """The intact record of the anchor's id at the anchor's place."""
    if anchor.offset is None or anchor.offset < HEADER_SIZE or anchor.size is None:
        return None
    found = read_record_at(opened.data, anchor.offset, expected_id=anchor.transaction_id, limit=opened.size)
    return None if isinstance(found, Damage) else anchor_of_view(found, opened.job.first)


def _scan_up_to(opened: SegmentCheck, found: Anchor | None, bound: int | None) -> Anchor | None:
    """Scan on from the record `found` (None: from the beginning) to the last record with an id up to `bound`."""
    place, following = HEADER_SIZE, opened.begins
    if found is not None and found.end is not None:
        place, following = found.end, found.transaction_id + 1
    if place >= opened.size:
        return found
    for item in opened.scan(following, place, stop=opened.size):
        if isinstance(item, Damage):
            if bound is not None and item.next_transaction_id is not None and item.next_transaction_id > bound:
                break
            continue
        rows = len(item) if bound is None else int(item.transaction_id.searchsorted(bound, side="right"))
        if rows:
            found = anchor_of_row(item, rows - 1, opened.job.first)
        if rows < len(item):
            break
    return found
