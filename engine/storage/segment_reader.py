"""Reading records from one segment: both checksums of every record are compared before it is returned.

A record is looked up in the index.  Where its entry does not lead to the record, the record is reached by walking forward from an
earlier entry, or from the beginning of its run, so that a damaged index costs time but no record.  (Release 0.13.2 compares only
the transaction id of the record that it finds.)

No memory is allocated for a length before it was compared with the rest of the file and with the configured maximum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from waltzctl.engine.errors import CorruptRecordError
from waltzctl.engine.findings import Code, make_finding
from waltzctl.engine.scan.byte_source import FileSource, read_bytes
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordView
from waltzctl.engine.scan.kernel import HEADER_WORDS
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.engine.storage.segment_files import BelievedRun, SegmentExtent
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import (
    CHECKSUM,
    ENTRY_SIZE,
    HEADER_SIZE,
    INDEX_ENTRY,
    RECORD_HEADER,
    RECORD_OVERHEAD,
    Record,
    decode_entries,
    entry_position,
    unpack_entries,
)

if TYPE_CHECKING:
    from waltzctl.engine.scan.list_answers import OpenSegment
    from waltzctl.engine.scan.transcode import ListForm

READ_AHEAD = 256 << 10
"""Bytes per read when several consecutive records are read."""
LIST_BYTES = 1 << 20
"""Most bytes on disk that are read and transcoded at once for a list; so many stay in a core's cache."""
LIST_RECORDS = LIST_BYTES // RECORD_OVERHEAD
"""Most records in `LIST_BYTES`."""
_FEW = 32
"""Up to this number of index entries, plain Python is faster than NumPy."""

_CODES = {
    DamageCause.RECORD_CHECKSUM: Code.RECORD_CHECKSUM,
    DamageCause.RECORD_LENGTH: Code.RECORD_LENGTH,
    DamageCause.RECORD_ORDER: Code.RECORD_ORDER,
    DamageCause.TORN_TAIL: Code.RECORD_LENGTH,
}
_WORDS = {
    Code.RECORD_CHECKSUM: "its checksum is wrong",
    Code.RECORD_LENGTH: "its length cannot be believed, or is above the configured maximum",
    Code.RECORD_ORDER: "another transaction stands in its place",
    Code.DATA_CHECKSUM: "its data does not agree with the checksum that came with it",
}


def corrupt_record(
    extent: SegmentExtent,
    transaction_id: int,
    code: Code,
    offset: int | None,
    length: int | None,
    storage: PurePath | None,
    *,
    wanted_maximum: int | None = None,
) -> CorruptRecordError:
    """The error for a record that cannot be served.

    `wanted_maximum`: its length, where only the configured maximum is against that: it was lowered since the record was appended,
    and no replica with the same setting serves the record, either.
    """
    finding = make_finding(
        code,
        extent.data_path,
        f"transaction {transaction_id}: {_WORDS[code]}",
        storage_directory=storage,
        partition=extent.partition,
        segment=extent.first_transaction_id,
        transaction_id=transaction_id,
        offset=offset,
        length=length,
    )
    place = f" at offset {offset}" if offset is not None else ""
    return CorruptRecordError(
        f"{extent.data_path}: partition {extent.partition}, transaction {transaction_id}{place}: {_WORDS[code]}",
        [finding],
        advice="run waltzctl verify; another replica may have the record"
        if wanted_maximum is None
        else f"if waltzctl verify finds it whole, set waltzctl.maxDataLength to {wanted_maximum} or more",
    )


def lost_record(
    directory: PurePath, storage: PurePath, transaction_id: int, extent: SegmentExtent | None
) -> CorruptRecordError:
    """The error for a transaction that was lost; `extent` is the segment where it should be, None when there is none."""
    path = directory if extent is None else extent.data_path
    inside = extent is not None and transaction_id < extent.next_transaction_id
    message = "it is damaged" if inside else "it is missing"
    finding = make_finding(
        Code.RECORD_CHECKSUM if inside else Code.SEGMENT_GAP,
        path,
        f"transaction {transaction_id}: {message}",
        storage_directory=storage,
        partition=int(directory.name),
        segment=None if extent is None else extent.first_transaction_id,
        transaction_id=transaction_id,
    )
    return CorruptRecordError(
        f"{path}: partition {directory.name}, transaction {transaction_id}: {message}",
        [finding],
        advice="run waltzctl verify; another replica may have the record",
    )


def record_of(view: RecordView) -> Record:
    """A copy of a record that does not refer to the buffer it was read from."""
    request_id = RequestId.from_words(view.request_id_high, view.request_id_low)
    return Record(
        view.transaction_id, request_id, view.header, bytes(view.data), view.data_checksum, view.record_checksum
    )


class SegmentReader:
    """One segment open for reading: two descriptors.  Reading is thread-safe."""

    def __init__(self, extent: SegmentExtent, *, max_data_length: int, storage: PurePath | None) -> None:
        """Raises FileNotFoundError, DiskReadError."""
        self._storage = storage
        self._max_data_length = max_data_length
        data = FileSource(extent.data_path)
        try:
            index = FileSource(extent.index_path) if extent.index_usable else None
        except BaseException:
            data.close()
            raise
        self._data = data
        self._index = index

    def open_segment(self, extent: SegmentExtent) -> OpenSegment | None:
        """The open files and the readable part of a sound `extent`; None without an index or records.

        Raises ValueError when the reader is closed.
        """
        if self._index is None or not extent.runs:
            return None
        from waltzctl.engine.scan.list_answers import OpenSegment  # not needed for appending or inspecting

        run = extent.runs[0]
        return OpenSegment(
            self._data.fileno(),
            self._index.fileno(),
            extent.first_transaction_id,
            run.first_transaction_id,
            run.next_transaction_id,
            run.start,
            run.end,
            self._max_data_length,
        )

    def close(self) -> None:
        """Close both files; a second call does nothing."""
        self._data.close()
        if self._index is not None:
            self._index.close()

    def read(self, extent: SegmentExtent, transaction_id: int) -> Record:
        """One record that lies within a run of `extent`.  Raises CorruptRecordError, DiskReadError."""
        return record_of(self._view(extent, transaction_id))

    def end_of(self, extent: SegmentExtent, transaction_id: int) -> int:
        """Byte offset where a record ends; the record is verified, except for its data checksum.

        Raises CorruptRecordError, DiskReadError.
        """
        return self._view(extent, transaction_id, data_must_agree=False).end

    def begin_of(self, extent: SegmentExtent, transaction_id: int) -> int:
        """Byte offset where a record begins; verified as for `end_of`.  Raises CorruptRecordError, DiskReadError."""
        return self._view(extent, transaction_id, data_must_agree=False).offset

    def read_from(self, extent: SegmentExtent, transaction_id: int) -> Iterator[Record]:
        """Records from `transaction_id` to the end of its run, read ahead.

        Raises CorruptRecordError at the record that fails, DiskReadError.
        """
        run = _run_of(extent, transaction_id)
        view = self._view(extent, transaction_id)
        yield record_of(view)
        position, expected = view.end, transaction_id + 1
        while expected < run.next_transaction_id:
            buffer = memoryview(read_bytes(self._data, position, min(READ_AHEAD, run.end - position)))
            consumed = 0
            while True:  # the buffer ends with the run, if not before
                record, size = _parse(buffer, consumed, expected)
                if record is None:
                    break
                yield record
                consumed += size
                expected += 1
            position += consumed
            if not consumed:  # larger than the buffer, or damaged: read it by itself
                view = self._view(extent, expected, at=position)
                yield record_of(view)
                position, expected = view.end, expected + 1

    def read_list(
        self, extent: SegmentExtent, transaction_id: int, count: int, max_bytes: int | None, *, headers: bool
    ) -> ListForm | None:
        """Up to `count` records of a run in the form of a list on the wire, at the offsets that the index gives.

        One read of the index, one of the data, one pass over the data.  The records take at most `max_bytes` on disk, but at
        least one is returned; one call returns at most `LIST_BYTES` and `LIST_RECORDS`.

        Returns None when the index is wrong, and a list that ends early, its verdict not DONE, in front of a wrong record.
        Reading the records one by one then tells what is wrong.  Raises DiskReadError.
        """
        from waltzctl.engine.scan.transcode import list_form  # not needed for appending or inspecting

        run = _run_of(extent, transaction_id)
        count = min(count, run.next_transaction_id - transaction_id, LIST_RECORDS)
        span = self._span(extent, run, transaction_id, count, LIST_BYTES if max_bytes is None else max_bytes)
        if span is None:
            return None
        start, count, size = span
        if size > self._max_data_length + RECORD_OVERHEAD and count == 1:
            return None
        data = np.empty(size, np.uint8).data
        if self._data.read_into(start, data) < size:
            return None
        return list_form(data, transaction_id, count, headers=headers, max_data_length=self._max_data_length)

    def _span(
        self, extent: SegmentExtent, run: BelievedRun, transaction_id: int, count: int, max_bytes: int
    ) -> tuple[int, int, int] | None:
        """By the index: byte offset of the first record, how many records a list may have (see `read_list`), and their bytes.

        None when the index has too few entries, or impossible ones.
        """
        if self._index is None:
            return None
        at_end = transaction_id + count == run.next_transaction_id
        wanted = count if at_end else count + 1
        position = entry_position(transaction_id, extent.first_transaction_id)
        raw = read_bytes(self._index, position, wanted * ENTRY_SIZE)
        if len(raw) < wanted * ENTRY_SIZE:
            return None
        room = min(LIST_BYTES, max_bytes)
        if count <= _FEW:
            few = (*unpack_entries(raw), run.end) if at_end else unpack_entries(raw)
            if few[0] < run.start or few[-1] > run.end or any(b - a < RECORD_OVERHEAD for a, b in pairwise(few)):
                return None
            count = max(1, bisect_right(few, few[0] + room) - 1)
            return few[0], count, few[count] - few[0]
        offsets = np.empty(count + 1, np.int64)
        offsets[:wanted] = decode_entries(raw)
        if at_end:
            offsets[count] = run.end
        if offsets[0] < run.start or offsets[-1] > run.end or (np.diff(offsets) < RECORD_OVERHEAD).any():
            return None
        count = max(1, int(np.searchsorted(offsets, offsets[0] + room, side="right")) - 1)
        return int(offsets[0]), count, int(offsets[count] - offsets[0])

    def _view(
        self, extent: SegmentExtent, transaction_id: int, *, at: int | None = None, data_must_agree: bool = True
    ) -> RecordView:
        run = _run_of(extent, transaction_id)
        offset = at if at is not None else self._entry(extent, transaction_id)
        found = None if offset is None else self._look(offset, transaction_id, run)
        if not isinstance(found, RecordView):
            walked = self._walk_to(extent, transaction_id, run)
            if walked is not None:
                found = walked
        if found is None:
            raise corrupt_record(extent, transaction_id, Code.RECORD_CHECKSUM, None, None, self._storage)
        if isinstance(found, Damage):
            code, maximum = _CODES[found.cause], self._needed_maximum(found, run)
            raise corrupt_record(
                extent, transaction_id, code, found.offset, found.length, self._storage, wanted_maximum=maximum
            )
        if data_must_agree and not found.data_ok:
            size = len(found.record)
            raise corrupt_record(extent, transaction_id, Code.DATA_CHECKSUM, found.offset, size, self._storage)
        return found

    def _needed_maximum(self, found: Damage, run: BelievedRun) -> int | None:
        """The length of a record that is refused for the configured maximum alone; None for any other damage."""
        length = found.found_length
        if found.cause is not DamageCause.RECORD_LENGTH or length is None or length <= self._max_data_length:
            return None
        return length if found.offset + RECORD_OVERHEAD + length <= run.end else None

    def _look(self, offset: int, transaction_id: int, run: BelievedRun) -> RecordView | Damage:
        return read_record_at(
            self._data, offset, expected_id=transaction_id, limit=run.end, max_record=self._max_data_length
        )

    def _entry(self, extent: SegmentExtent, transaction_id: int) -> int | None:
        """Byte offset that the index gives for a record; None when it has no entry or the offset is impossible."""
        if self._index is None:
            return None
        raw = read_bytes(self._index, entry_position(transaction_id, extent.first_transaction_id), ENTRY_SIZE)
        if len(raw) < ENTRY_SIZE:
            return None
        (offset,) = INDEX_ENTRY.struct.unpack(raw)
        return offset if HEADER_SIZE <= offset <= extent.end - RECORD_OVERHEAD else None

    def _walk_to(self, extent: SegmentExtent, transaction_id: int, run: BelievedRun) -> RecordView | Damage | None:
        """Walk to a record from an earlier index entry, at doubling distances, at last from the beginning of its run."""
        distance = 1
        while True:
            start = transaction_id - distance
            if start <= run.first_transaction_id:
                return self._walk(run.first_transaction_id, run.start, transaction_id, run)
            offset = self._entry(extent, start)
            found = None if offset is None else self._walk(start, offset, transaction_id, run)
            if isinstance(found, RecordView):
                return found
            distance *= 2

    def _walk(self, start: int, offset: int, transaction_id: int, run: BelievedRun) -> RecordView | Damage | None:
        """Walk record by record from id `start` at `offset`; None when a record before `transaction_id` is damaged."""
        for expected in range(start, transaction_id + 1):
            found = self._look(offset, expected, run)
            if isinstance(found, Damage):
                return found if expected == transaction_id else None
            offset = found.end
        return found


def _run_of(extent: SegmentExtent, transaction_id: int) -> BelievedRun:
    run = extent.run_of(transaction_id)
    if run is None:
        raise ValueError(f"transaction {transaction_id} lies in no run of {extent.data_path}")
    return run


def _parse(buffer: memoryview, position: int, expected: int) -> tuple[Record | None, int]:
    """The record at `position` and its size in bytes; None and 0 when it is not wholly in the buffer, or is damaged."""
    start = position + RECORD_HEADER.size
    if start + CHECKSUM.size > len(buffer):
        return None, 0
    number, high, low, header, length, data_checksum = HEADER_WORDS.unpack_from(buffer, position)
    end = start + length
    if number != expected or length < 0 or end + CHECKSUM.size > len(buffer):
        return None, 0
    (stored,) = CHECKSUM.struct.unpack_from(buffer, end)
    if crc32(buffer[start:end]) != data_checksum or crc32(buffer[position:end]) != stored:
        return None, 0
    record = Record(number, RequestId.from_words(high, low), header, bytes(buffer[start:end]), data_checksum, stored)
    return record, RECORD_OVERHEAD + length


class ReaderCache:
    """An LRU cache of open segment readers.  Not thread-safe: the caller guards it with a lock.

    A reader that is evicted while it is in use is closed when its last user gives it back.  So at most `capacity` readers and
    those in use are open.
    """

    def __init__(self, capacity: int, *, max_data_length: int, storage: PurePath | None) -> None:
        self._capacity = max(1, capacity)
        self._max_data_length = max_data_length
        self._storage = storage
        self._open: OrderedDict[int, SegmentReader] = OrderedDict()
        self._users: dict[SegmentReader, int] = {}
        self._evicted_in_use: set[SegmentReader] = set()

    def __len__(self) -> int:
        return len(self._open) + len(self._evicted_in_use)

    def take(self, extent: SegmentExtent) -> SegmentReader:
        """A reader of a segment, opened if need be; the caller calls `give_back`.  Raises FileNotFoundError, DiskReadError."""
        reader = self._open.get(extent.first_transaction_id)
        if reader is None:
            while len(self._open) >= self._capacity:
                self._evict(self._open.popitem(last=False)[1])
            reader = SegmentReader(extent, max_data_length=self._max_data_length, storage=self._storage)
            self._open[extent.first_transaction_id] = reader
        self._open.move_to_end(extent.first_transaction_id)
        self._users[reader] = self._users.get(reader, 0) + 1
        return reader

    def opened(self, extent: SegmentExtent) -> SegmentReader | None:
        """The reader of a segment, valid while the caller holds the lock; None when the segment is not open."""
        reader = self._open.get(extent.first_transaction_id)
        if reader is not None:
            self._open.move_to_end(extent.first_transaction_id)
        return reader

    def give_back(self, reader: SegmentReader) -> None:
        """End one use of a reader that `take` returned."""
        self._users[reader] -= 1
        if not self._users[reader]:
            del self._users[reader]
            if reader in self._evicted_in_use:
                self._evicted_in_use.remove(reader)
                reader.close()

    def forget(self, first_transaction_id: int) -> None:
        """Drop a segment's reader from the cache; it is closed at once, or when its last user gives it back."""
        reader = self._open.pop(first_transaction_id, None)
        if reader is not None:
            self._evict(reader)

    def close(self) -> None:
        """Close every reader, those in use when their last user gives them back."""
        while self._open:
            self._evict(self._open.popitem()[1])

    def _evict(self, reader: SegmentReader) -> None:
        if reader in self._users:
            self._evicted_in_use.add(reader)
        else:
            reader.close()
