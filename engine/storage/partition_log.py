"""Reading the log of a partition across its segments.

A `PartitionLog` holds the segments and the next transaction id, as far as records are durable and acknowledged; the partition's
writer updates it.  Readers hold no lock while they read from the disk.

The log of a quarantined partition is a log *with gaps*: every record that can be verified is served, and reading a transaction
that was lost raises an error; it is never reported as "no such transaction".
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from waltzctl.engine.errors import CorruptRecordError, InvalidRequestError, RefusedError
from waltzctl.engine.storage.segment_files import SegmentExtent
from waltzctl.engine.storage.segment_reader import ReaderCache, SegmentReader, lost_record
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.engine.storage.wire_records import ListPart, WireRecords, packed
from waltzctl.formats.segment import HEADER_SIZE, Record
from waltzctl.formats.segment import RecordHeader as RecordHeader

if TYPE_CHECKING:
    from waltzctl.engine.scan.list_answers import ListAnswers, OpenSegment, Requests

CAREFUL_RECORDS = 100
"""Records that are read one by one, each verified by itself, before whole lists are read again."""
_ABOVE_EVERY_ID = 2**63


class _OvertakenError(Exception):
    """A truncation removed the segment that was about to be read.  Raised and handled in this module only."""


class PartitionLog:
    """The segments of a partition, oldest first, and what can be read from them.  Thread-safe."""

    def __init__(
        self,
        path: PurePath,
        storage: PurePath,
        options: StorageOptions,
        segments: Iterable[SegmentExtent],
        next_transaction_id: int,
        *,
        lost_below: int | None = None,
    ) -> None:
        """`lost_below`: makes this a log with gaps; a transaction below this id that is not found was lost."""
        self._path, self._storage = path, storage
        self._extents = list(segments)  # the last one may be out of date: see `_segments`
        self._last_end: int | None = None  # published size of the last segment; None: its extent is up to date
        self._next_id = next_transaction_id
        self._has_gaps = lost_below is not None
        self._lost_below = lost_below or 0
        self._hidden_from = _ABOVE_EVERY_ID  # readers do not see transactions from this id on
        self._closed = False
        # counted, so that a reader notices that a truncation overtook it
        self._truncations = 0
        self._lock = threading.Lock()
        self._readers = ReaderCache(options.cached_segments, max_data_length=options.max_data_length, storage=storage)

    @property
    def _segments(self) -> list[SegmentExtent]:
        """The segments; the lock is held.  The last one is brought up to date here, and not with every append."""
        if self._last_end is not None:
            self._extents[-1] = self._extents[-1].grown(self._next_id, self._last_end)
            self._last_end = None
        return self._extents

    @_segments.setter
    def _segments(self, segments: list[SegmentExtent]) -> None:
        self._extents, self._last_end = segments, None

    @property
    def segments(self) -> tuple[SegmentExtent, ...]:
        """The segments, oldest first."""
        with self._lock:
            return tuple(self._segments)

    @property
    def next_transaction_id(self) -> int:
        """One above the last transaction without a gap before it."""
        return self._next_id

    @property
    def open_segments(self) -> int:
        """How many segments are open for reading."""
        with self._lock:
            return len(self._readers)

    def extend(self, last: SegmentExtent, *further: SegmentExtent) -> None:
        """The last segment is now `last`, and `further` ones follow it; the next id stays as it was."""
        with self._lock:
            self._segments[-1:] = [last, *further]

    def publish(self, next_transaction_id: int, end: int) -> None:
        """The last segment now has `end` bytes up to `next_transaction_id`, and readers may see all of them."""
        with self._lock:
            self._next_id, self._last_end = next_transaction_id, end

    def end_with(self, last: SegmentExtent) -> tuple[SegmentExtent, ...]:
        """End the log with `last`, which replaces the segment of the same first id; return the later segments, now dropped."""
        with self._lock:
            self._truncations += 1
            first = last.first_transaction_id
            dropped = [segment for segment in self._segments if segment.first_transaction_id > first]
            self._segments = [s for s in self._segments if s.first_transaction_id < first] + [last]
            self._next_id = last.next_transaction_id
            for segment in (*dropped, last):
                self._readers.forget(segment.first_transaction_id)
        return tuple(dropped)

    def hide_behind(self, last: int) -> None:
        """Hide the transactions above `last` from readers; the files stay as they are.  `last` may be above the end."""
        with self._lock:
            self._hidden_from = last + 1
            self._next_id = min(self._next_id, last + 1)

    @property
    def _shown_below(self) -> int:
        """Readers see transactions below this id only: a batch may be being written behind it, or records are hidden."""
        return self._hidden_from if self._has_gaps else self._next_id

    def end_after(self, after: int) -> tuple[SegmentExtent, int]:
        """The segment that will be the last one, and its size in bytes, once everything above `after` is removed.

        Raises CorruptRecordError when record `after` cannot be verified, DiskReadError.
        """
        segments = list(self.segments)
        while segments[-1].first_transaction_id > after + 1:  # a sound log begins with transaction 0
            segments.pop()
        last = segments[-1]
        if after < last.first_transaction_id:
            return last, HEADER_SIZE
        if after == last.next_transaction_id - 1:
            return last, last.end
        with self._reader(last) as reader:
            return last, reader.end_of(last, after)

    def place_of(self, transaction_id: int) -> tuple[int, int] | None:
        """Where a record is: the first transaction of its segment, and its byte offset; None when there is no such record (yet).

        Raises CorruptRecordError for one that is damaged or was lost, DiskReadError.
        """
        while True:
            truncations = self._truncations
            extent = self._extent_of(transaction_id)
            if extent is None:
                return None
            try:
                with self._reader(extent) as reader:
                    return extent.first_transaction_id, reader.begin_of(extent, transaction_id)
            except CorruptRecordError:
                if self._truncations == truncations:
                    raise
                # as in `_records`: a truncation overtook the reader
            except _OvertakenError:
                continue

    def close(self) -> None:
        """Close all files, those in use when their readers are done."""
        with self._lock:
            self._closed = True
            self._readers.close()

    def read(self, transaction_id: int) -> Record | None:
        """One record, both checksums verified; None when there is no such transaction (yet).

        Raises CorruptRecordError for one that is damaged or was lost, DiskReadError.
        """
        found = self.read_range(transaction_id, 1)
        return found[0] if found else None

    def read_range(self, first: int, count: int, max_bytes: int | None = None) -> list[Record]:
        """Up to `count` consecutive records from `first`, fewer at the end of the log.

        `max_bytes` bounds the bytes that the records take on disk, but at least one record is returned.  The list also ends in
        front of a damaged record; when the first record is damaged, CorruptRecordError names it.  Raises DiskReadError,
        InvalidRequestError for a negative count.
        """
        if count < 0:
            raise InvalidRequestError(f"cannot read {count} records")
        found: list[Record] = []
        total = 0
        try:
            with contextlib.closing(self._records(first, count)) as records:
                for record in records:
                    total += record.size
                    if found and max_bytes is not None and total > max_bytes:
                        break
                    found.append(record)
        except CorruptRecordError:
            if not found:
                raise
        return found

    def read_headers(self, first: int, count: int) -> list[RecordHeader]:
        """As `read_range`, without the data; the data is verified all the same."""
        if count < 0:
            raise InvalidRequestError(f"cannot read {count} records")
        found: list[RecordHeader] = []
        try:
            found.extend(
                RecordHeader(record.transaction_id, record.request_id, record.header)
                for record in self._records(first, count)
            )
        except CorruptRecordError:
            if not found:
                raise
        return found

    def read_wire(self, first: int, count: int, max_bytes: int | None, *, headers: bool = False) -> WireRecords:
        """As `read_range`, or `read_headers`, in the form of a list on the wire.

        Records are read as whole lists through the index.  Where the index or a record is damaged, up to `CAREFUL_RECORDS`
        records are read one by one, which finds the damaged one.
        """
        if count < 0:
            raise InvalidRequestError(f"cannot read {count} records")
        pieces: list[memoryview | bytes] = []
        following, stop, left = first, first + count, max_bytes
        stop = min(stop, self._shown_below)
        while following < stop:
            try:
                found = self._list_part(following, stop - following, left, headers=headers)
            except CorruptRecordError:
                if not pieces and (self._has_gaps or following < self._next_id):
                    raise
                break
            if found is None or (left is not None and pieces and found.size > left):
                break
            if left is not None:
                left -= found.size
            pieces.append(found.data)
            following += found.records
        return WireRecords(following - first, b"".join(pieces))

    def answer_lists(self, answers: ListAnswers, requests: Requests) -> None:
        """Answer requests for few records, in their order, as long as none has to wait for the disk; `answers` collects them.

        A request is answered here when all of its records that exist lie in one segment that is open for reading.  The first
        other request ends the call; its caller answers it by `read_wire`.
        """
        answers.begin(requests)
        if self._has_gaps or not self._lock.acquire(blocking=False):
            return
        try:  # nothing in here waits, so the lock is held throughout, and no other thread closes the reader
            going_on = True
            while going_on:
                segment = self._open_segment(answers.first_transaction_id)
                going_on = segment is not None and answers.answer_from(segment, self._next_id)
        finally:
            self._lock.release()

    def _open_segment(self, transaction_id: int | None) -> OpenSegment | None:
        """The segment of a transaction, if it is open for reading; the lock is held."""
        if transaction_id is None:
            return None
        extent = self._segments[-1]  # the common case
        if transaction_id < extent.first_transaction_id:
            place = bisect_right(self._extents, transaction_id, key=lambda s: s.first_transaction_id) - 1
            extent = self._extents[max(0, place)]
        reader = self._readers.opened(extent)
        return None if reader is None else reader.open_segment(extent)

    def _list_part(self, first: int, count: int, max_bytes: int | None, *, headers: bool) -> ListPart | None:
        """At least one record from `first` on; None at the end of the log.  Raises CorruptRecordError, DiskReadError."""
        extent = self._extent_of(first)
        if extent is None:
            return None
        try:
            with self._reader(extent) as reader:
                found = reader.read_list(extent, first, count, max_bytes, headers=headers)
        except _OvertakenError:
            found = None  # `read_range` looks up the segment again
        if found is not None and found.records:
            return ListPart(found.records, found.disk_bytes, found.data)
        records = self.read_range(first, min(count, CAREFUL_RECORDS), max_bytes)
        if not records:
            return None
        return ListPart(len(records), sum(record.size for record in records), packed(records, headers=headers))

    def _records(self, first: int, count: int) -> Generator[Record, None, None]:
        expected, stop = first, first + count
        stop = min(stop, self._shown_below)
        while expected < stop:
            truncations = self._truncations
            extent = self._extent_of(expected)
            if extent is None:
                return
            try:
                with self._reader(extent) as reader:
                    for record in reader.read_from(extent, expected):
                        yield record
                        expected += 1
                        if expected >= stop:
                            return
            except CorruptRecordError:
                if self._truncations == truncations:
                    raise
                # a truncation overtook the reader: the record was cut off, or is being overwritten; look it up again
            except _OvertakenError:
                continue  # look it up again as well

    def _extent_of(self, transaction_id: int) -> SegmentExtent | None:
        """The segment in whose runs a transaction lies; None when the log does not hold it (yet).

        Raises CorruptRecordError for a transaction that was lost.
        """
        with self._lock:
            self._check_open()
            if transaction_id < 0 or transaction_id >= self._shown_below:
                return None
            place = bisect_right(self._segments, transaction_id, key=lambda s: s.first_transaction_id) - 1
            extent = self._segments[place] if place >= 0 else None
            if extent is not None and extent.run_of(transaction_id) is not None:
                return extent
            end = max((segment.next_transaction_id for segment in self._segments), default=0)
        if transaction_id >= max(end, self._lost_below):
            return None
        raise lost_record(self._path, self._storage, transaction_id, extent)

    @contextlib.contextmanager
    def _reader(self, extent: SegmentExtent) -> Iterator[SegmentReader]:
        with self._lock:
            self._check_open()
            first = extent.first_transaction_id
            place = bisect_left(self._segments, first, key=lambda s: s.first_transaction_id)
            if place == len(self._segments) or self._segments[place].first_transaction_id != first:
                raise _OvertakenError  # the files of a segment that is not listed may be gone
            reader = self._readers.take(extent)
        try:
            yield reader
        finally:
            with self._lock:
                self._readers.give_back(reader)

    def _check_open(self) -> None:
        if self._closed:
            raise RefusedError(f"{self._path}: the partition is closed")
