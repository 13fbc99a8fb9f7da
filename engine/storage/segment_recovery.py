"""What state a segment is in when its partition is opened.  Everything here reads; nothing here writes.

A sealed segment is checked cheaply: both headers, the index's length against the first id of the next segment, and the last
record, which must end where the file ends.  Anything odd leads to a scan of the whole segment.  The last segment is scanned
from its last checkpoint that proves itself, else from its header.  Of every segment the first record says whose records these are
(`engine.storage.belonging`).

A checkpoint is a transaction k*1000 - 1: index and data up to it are synced before transaction k*1000 is written, by us and by
the release.  So the checkpoint is proven by the record behind it, which itself no sync need cover.  (Release 0.13.2 starts at
k*1000 and is fatally surprised when that record is torn.)

Whether a record is there does not depend on how long the configured maximum allows one to be: a scan accepts every length that
the format and the file have room for (and holds no record as a whole).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from waltzctl.engine.durable.regular import special_kind
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, Severity, Tail, Where, damage_finding, make_finding, tail_finding
from waltzctl.engine.log.assess import Stretch, begun
from waltzctl.engine.scan.byte_source import FileSource, read_bytes
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordRun, RecordView
from waltzctl.engine.scan.scanner import read_record_at, summarise_records
from waltzctl.engine.storage.belonging import stranger
from waltzctl.engine.storage.segment_files import Run, SegmentExtent
from waltzctl.engine.storage.view import SegmentView, read_segment_header
from waltzctl.formats.segment import (
    CHECKPOINT_INTERVAL,
    ENTRY_SIZE,
    FORMAT_VERSION,
    HEADER_SIZE,
    INDEX_ENTRY,
    MAX_DATA_LENGTH,
    RECORD_OVERHEAD,
    SegmentHeader,
    decode_entries,
    encode_offsets,
    entry_position,
)

CHECKPOINTS_TRIED = 4
"""Checkpoints of the last segment that are looked at before everything is scanned."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a partition's segments belong: what their headers must say."""

    storage: PurePath
    partition: int
    cluster_key: uuid.UUID
    max_data_length: int


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A segment as it was found.

    `extent` is None when nothing of it can be read.  `trusted` is False for what stands in the way of writing: damage that
    is no torn tail.  `cut_at` is the offset behind which a torn tail has to go; `index_from` the first id whose index entry
    is wrong or missing (or where entries have to be cut off), None when the index is right or has to be written anew as a
    whole (`rebuild_index`); `scanned_from` is the id and offset where the scan began.  `stretch`: what its neighbours have to
    know of it, None for a data file that ends inside its header.
    """

    view: SegmentView
    extent: SegmentExtent | None
    findings: tuple[Finding, ...] = ()
    trusted: bool = True
    cut_at: int | None = None
    index_from: int | None = None
    rebuild_index: bool = False
    scanned_from: tuple[int, int] | None = None
    stretch: Stretch | None = None


class _Notes:
    """Collects findings of one segment."""

    def __init__(self, place: Place, view: SegmentView) -> None:
        self._place, self._view = place, view
        self.found: list[Finding] = []

    def add(
        self,
        code: Code,
        path: PurePath,
        message: str,
        *,
        severity: Severity | None = None,
        transaction_id: int | None = None,
        offset: int | None = None,
        length: int | None = None,
    ) -> None:
        self.found.append(
            make_finding(
                code,
                path,
                message,
                severity=severity,
                storage_directory=self._place.storage,
                partition=self._place.partition,
                segment=self._view.first_transaction_id,
                transaction_id=transaction_id,
                offset=offset,
                length=length,
            )
        )


def _header_faults(header: SegmentHeader, place: Place, first: int) -> Iterator[tuple[Code, str]]:
    if header.version != FORMAT_VERSION:
        yield Code.UNKNOWN_VERSION, f"format version {header.version}, and only {FORMAT_VERSION} is known"
    if header.cluster_key != place.cluster_key:
        yield Code.SEGMENT_KEY, f"cluster key {header.cluster_key}, and the control file has {place.cluster_key}"
    if header.partition != place.partition:
        yield Code.SEGMENT_PARTITION, f"its header says partition {header.partition}"
    if header.first_transaction_id != first:
        yield Code.SEGMENT_NAME, f"its header says that it begins at transaction {header.first_transaction_id}"


def examine_segment(
    view: SegmentView, place: Place, *, next_first: int | None, durable_to: int, mark: int = -1
) -> SegmentState:
    """State of a segment whose data file has at least a header's length.

    `next_first` is the first id of the segment behind it, None for the last one.  `durable_to`: everything up to this
    transaction is proven to have been durable, so that no crash tears it; `mark`: the local low-water mark, which may be what
    proves that.  Raises DiskReadError, FileNotFoundError.
    """
    notes = _Notes(place, view)
    first = view.first_transaction_id
    header = read_segment_header(view.data)
    index_header = read_segment_header(view.index)
    if header is None or view.data is None:
        raise FileNotFoundError(view.data_path)
    faults = list(_header_faults(header, place, first))
    index_fits = index_header is not None and not any(_header_faults(index_header, place, first))
    if faults:
        for code, message in faults:
            notes.add(code, view.data_path, message, offset=0, length=HEADER_SIZE)
        if not index_fits:
            return SegmentState(view, None, tuple(notes.found), trusted=False, stretch=begun(first, first))
    if header.reserved.count(0) != len(header.reserved):
        notes.add(Code.RESERVED_NOT_ZERO, view.data_path, "reserved bytes of the header are not zero")
    if not index_fits:
        if special_kind(view.index_path) is not None:
            pass  # the examination of the partition names it
        elif view.index is None:
            notes.add(Code.INDEX_MISSING, view.index_path, "the index is missing")
        else:
            notes.add(Code.INDEX_HEADER, view.index_path, "the index's header disagrees with the data file's")
    with FileSource(view.data_path) as data:
        if not faults and (why := stranger(view, data, place.partition, place.cluster_key)) is not None:
            notes.add(Code.SEGMENT_PARTITION, view.data_path, f"its header is right, but {why}", offset=HEADER_SIZE)
            return SegmentState(view, None, tuple(notes.found), trusted=False, stretch=begun(first, first))
        index = FileSource(view.index_path) if index_fits else None
        try:
            tail = Tail(next_first is None, mark, durable_to, next_first)
            examination = _Examination(view, place, notes, data, index, next_first, tail)
            state = examination.run()
        finally:
            if index is not None:
                index.close()
    if faults:
        return SegmentState(view, state.extent, state.findings, trusted=False, stretch=state.stretch)
    return state


class _Examination:
    """The examination of one segment whose headers were read."""

    def __init__(
        self,
        view: SegmentView,
        place: Place,
        notes: _Notes,
        data: FileSource,
        index: FileSource | None,
        next_first: int | None,
        tail: Tail,
    ) -> None:
        self.view, self.place, self.notes = view, place, notes
        self.data, self.index = data, index
        self.next_first, self.tail = next_first, tail
        self.where = Where(place.storage, place.partition, view.data_path.parent)
        self.torn = self.open_end = False
        self.first = view.first_transaction_id
        self.size = data.size()
        self.index_size = index.size() if index is not None else 0

    def run(self) -> SegmentState:
        if self.next_first is not None and self._sealed_looks_right(self.next_first):
            run = Run(self.first, self.next_first, HEADER_SIZE, self.size)
            return self._state((run,))
        start = (self.first, HEADER_SIZE) if self.next_first is not None else self._last_checkpoint()
        return self._scan(*start)

    # --- what can be believed without reading everything -------------------------------------------------------------

    def _entry(self, transaction_id: int) -> int | None:
        if self.index is None:
            return None
        raw = read_bytes(self.index, entry_position(transaction_id, self.first), ENTRY_SIZE)
        if len(raw) < ENTRY_SIZE:
            return None
        (offset,) = INDEX_ENTRY.struct.unpack(raw)
        return offset if HEADER_SIZE <= offset <= self.size - RECORD_OVERHEAD else None

    def _record(self, transaction_id: int) -> RecordView | None:
        """A record that its index entry leads to and that both checksums confirm."""
        offset = self._entry(transaction_id)
        found = None if offset is None else self._look(offset, transaction_id)
        return found if found is not None and found.data_ok else None

    def _look(self, offset: int, transaction_id: int) -> RecordView | None:
        found = read_record_at(self.data, offset, expected_id=transaction_id, max_record=self.place.max_data_length)
        return found if isinstance(found, RecordView) else None

    def _sealed_looks_right(self, next_first: int) -> bool:
        if next_first <= self.first or self.index_size != entry_position(next_first, self.first):
            return False
        if self._entry(self.first) != HEADER_SIZE:
            return False
        last = self._record(next_first - 1)
        return last is not None and last.end == self.size

    def _last_checkpoint(self) -> tuple[int, int]:
        """Id and offset from which the last segment has to be scanned."""
        entries = max(0, (self.index_size - HEADER_SIZE) // ENTRY_SIZE)
        low = self.first // CHECKPOINT_INTERVAL + 1  # k of the first checkpoint inside: k * 1000 - 1 >= first
        high = (self.first + entries) // CHECKPOINT_INTERVAL
        while low < high:  # entries behind the end of the data say nothing; below it they rise
            middle = (low + high + 1) // 2
            if self._entry(middle * CHECKPOINT_INTERVAL - 1) is None:
                high = middle - 1
            else:
                low = middle
        for k in range(high, max(high - CHECKPOINTS_TRIED, self.first // CHECKPOINT_INTERVAL), -1):
            checkpoint = k * CHECKPOINT_INTERVAL - 1
            record = self._record(checkpoint)
            if record is None:
                continue
            before = self._record(checkpoint - 1) if checkpoint > self.first else None
            joined = (
                record.offset == HEADER_SIZE if checkpoint == self.first else before and before.end == record.offset
            )
            if joined and self._look(record.end, checkpoint + 1) is not None:
                return checkpoint + 1, record.end
        return self.first, HEADER_SIZE

    # --- reading what has to be read ---------------------------------------------------------------------------------

    def _scan(self, start_id: int, start: int) -> SegmentState:
        runs = [Run(self.first, start_id, HEADER_SIZE, start)] if start_id > self.first else []
        trusted, cut_at = True, None
        index_from: int | None = None
        parts = summarise_records(
            self.data,
            first_transaction_id=start_id,
            start=start,
            index=self.index,
            max_record=MAX_DATA_LENGTH,
            ceiling=self.next_first,
        )
        for part in parts:
            if isinstance(part, RecordRun):
                _extend(runs, part)
                if index_from is None:
                    index_from = self._first_wrong_entry(part)
                self._note_data(part)
            elif self._is_torn_tail(part):
                cut_at = part.offset
            else:
                trusted = False
                self._note_damage(part)
        following = runs[-1].next_transaction_id if runs else self.first
        if trusted and index_from is None and self.index_size != entry_position(following, self.first):
            index_from = following
        return self._state(
            tuple(runs), trusted=trusted, cut_at=cut_at, index_from=index_from, scanned_from=(start_id, start)
        )

    def _is_torn_tail(self, damage: Damage) -> bool:
        """Whether this may be cut: what a crash leaves of a write that nobody was told had succeeded."""
        harmless = (
            damage.cause is DamageCause.TORN_TAIL
            and damage.proof == "end"
            and damage.end == self.size
            and self.tail.harmless(damage.transaction_id)
        )
        if harmless:
            self._tell_tail(damage)
        return harmless

    def _tell_tail(self, damage: Damage) -> None:
        self.torn = True
        self.notes.found.append(tail_finding(damage, self.tail, self.where, self.first, self.view.data_path))

    def _note_damage(self, damage: Damage) -> None:
        if damage.cause is DamageCause.TORN_TAIL:
            self._tell_tail(damage)
        else:
            self.open_end = damage.next_transaction_id is None
            self.notes.found.append(damage_finding(damage, self.where, self.first, self.view.data_path))

    def _note_data(self, run: RecordRun) -> None:
        if not run.data_damaged:
            return
        for place in np.flatnonzero(~run.data_ok):
            number = run.first_transaction_id + int(place)
            self.notes.add(
                Code.DATA_CHECKSUM,
                self.view.data_path,
                f"transaction {number}: its data does not agree with the checksum that came with it",
                transaction_id=number,
                offset=int(run.offset[place]),
            )

    def _first_wrong_entry(self, run: RecordRun) -> int | None:
        if self.index is None:
            return run.first_transaction_id
        position = entry_position(run.first_transaction_id, self.first)
        raw = read_bytes(self.index, position, len(run) * ENTRY_SIZE)
        entries = decode_entries(raw)
        whole = len(entries)
        wrong = np.flatnonzero(entries != run.offset[:whole])
        if len(wrong):
            return run.first_transaction_id + int(wrong[0])
        return run.first_transaction_id + whole if whole < len(run) else None

    # --- the verdict -------------------------------------------------------------------------------------------------

    def _state(
        self,
        runs: tuple[Run, ...],
        *,
        trusted: bool = True,
        cut_at: int | None = None,
        index_from: int | None = None,
        scanned_from: tuple[int, int] | None = None,
    ) -> SegmentState:
        extent = SegmentExtent(
            self.place.partition,
            self.first,
            self.view.data_path,
            self.view.index_path,
            runs,
            index_usable=self.index is not None,
        )
        rebuild = self.index is None
        if index_from is not None and not rebuild:
            self._note_index(extent, index_from)
            # entries behind the last checkpoint are mended in place; anything else is a whole new file
            rebuild = self.next_first is not None or (
                index_from < extent.next_transaction_id // CHECKPOINT_INTERVAL * CHECKPOINT_INTERVAL
                and scanned_from == (self.first, HEADER_SIZE)
            )
        return SegmentState(
            self.view,
            extent,
            tuple(self.notes.found),
            trusted,
            cut_at,
            None if rebuild else index_from,
            rebuild,
            scanned_from,
            self._stretch(extent),
        )

    def _stretch(self, extent: SegmentExtent) -> Stretch:
        """What its neighbours have to know of it; the record that a torn tail was to be counts as here."""
        following = extent.next_transaction_id
        listed = None if self.index is None else self.first + max(0, (self.index_size - HEADER_SIZE) // ENTRY_SIZE)
        accounted = following - 1 + self.torn
        return Stretch(
            self.first,
            self.first,
            None if self.torn or self.open_end else following,
            accounted,
            self.open_end,
            listed,
            listed is not None and listed > accounted + 1,
            self.torn,
        )

    def _note_index(self, extent: SegmentExtent, index_from: int) -> None:
        expected = entry_position(extent.next_transaction_id, self.first)
        if self.index_size < expected:
            code, message = Code.INDEX_SHORT, f"{self.index_size} bytes, and the records need {expected}"
        elif index_from == extent.next_transaction_id:
            code, message = Code.INDEX_LONG, f"{self.index_size} bytes, and the records need {expected}"
        else:
            code, message = Code.INDEX_ENTRY, f"the entry of transaction {index_from} is wrong"
        self.notes.add(
            code,
            self.view.index_path,
            message,
            transaction_id=index_from,
            offset=entry_position(index_from, self.first),
        )


def _extend(runs: list[Run], part: RecordRun) -> None:
    following = part.first_transaction_id + len(part)
    if runs and runs[-1].end == part.start and runs[-1].next_transaction_id == part.first_transaction_id:
        last = runs[-1]
        runs[-1] = Run(last.first_transaction_id, following, last.start, part.end)
    else:
        runs.append(Run(part.first_transaction_id, following, part.start, part.end))


def index_entries(extent: SegmentExtent, start: tuple[int, int]) -> Iterator[bytes]:
    """Index entries of a sound segment's records, big-endian, in pieces: from `start` (id and offset) to its end.

    Raises DiskReadError when the file no longer holds what it held when it was examined.
    """
    expected, offset = start
    with FileSource(extent.data_path) as data:
        parts = summarise_records(
            data, first_transaction_id=expected, start=offset, stop=extent.end, max_record=MAX_DATA_LENGTH
        )
        for part in parts:
            if isinstance(part, Damage):
                cause = OSError(f"transaction {part.transaction_id} changed while the index was built")
                raise DiskReadError(extent.data_path, part.offset, cause)
            yield encode_offsets(part.offset)
