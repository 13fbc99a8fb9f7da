"""The state of a segment when its partition is opened.  This module only reads.

================  ======================================================================================================
segment           what is checked
================  ======================================================================================================
every segment     both headers, and by the first records, whether the records are this partition's
                  (`engine.storage.belonging`)
sealed (all but   the index's length against the first id of the next segment, its first entry, and the last record, which
the last)         must end where the file ends; when a check fails, the whole segment is scanned
last              scanned from its last proven checkpoint, or from its header when no checkpoint is proven
================  ======================================================================================================

A checkpoint is a transaction k*1000 - 1: data and index up to it are synced before transaction k*1000 is written, here and in
release 0.13.2.  So an intact record k*1000 proves the checkpoint, although that record itself need not be durable.  (Release
0.13.2 starts its scan at k*1000, and fails when that record is torn.)

A scan accepts every record length for which the format and the file have room, not only lengths up to the configured maximum, and
never holds a whole record in memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np

from waltzctl.engine.durable.file_status import special_kind
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Finding, SegmentFiles, Tail, Where, damage_finding, tail_finding, told_of_end
from waltzctl.engine.findings.headers import index_header_short, index_missing, strange_finding
from waltzctl.engine.log.assess import Stretch, begun, held_by
from waltzctl.engine.log.bad_data import bad_data
from waltzctl.engine.log.header_judgement import Expected, beginning_behind, judge_headers
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.index_comparison import IndexComparison
from waltzctl.engine.log.view import SegmentView, read_segment_header
from waltzctl.engine.scan.byte_source import FileSource, read_bytes
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordRun, RecordView
from waltzctl.engine.scan.scanner import read_record_at, summarise_records
from waltzctl.engine.storage.belonging import stranger
from waltzctl.engine.storage.segment_files import BelievedRun, SegmentExtent
from waltzctl.formats.segment import (
    CHECKPOINT_INTERVAL,
    ENTRY_SIZE,
    HEADER_SIZE,
    INDEX_ENTRY,
    RECORD_OVERHEAD,
    encode_offsets,
    entry_position,
)

CHECKPOINTS_TRIED = 4
"""Checkpoints of the last segment that are tried, last to first, before the segment is scanned from its header."""


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """What the headers of a partition's segments must contain, and the longest data of a record that is read as a whole."""

    storage: PurePath
    partition: int
    cluster_key: uuid.UUID
    max_data_length: int


@dataclass(frozen=True, slots=True)
class SegmentState:
    """Result of examining a segment.

    ================  ==================================================================================================
    `extent`          the readable records; None when nothing of the segment can be read
    `trusted`         False when the segment has damage other than a torn tail, so that the partition must not be written
    `cut_at`          offset from which a torn tail has to be cut off; None for none
    `index_from`      first id whose index entry is wrong, missing or too much; None when the index is right, or when
                      `rebuild_index` is set
    `rebuild_index`   the index has to be written anew as a whole
    `scanned_from`    id and offset where the scan began; None when the segment was not scanned
    `stretch`         ids of the segment, for the comparison with the neighbouring segments; None for a data file that
                      ends inside its header
    `index_excess`    finding that the index lists more records than the data file has; it is reported only where no gap
                      behind the segment explains it
    ================  ==================================================================================================
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
    index_excess: Finding | None = None


def examine_segment(
    view: SegmentView, place: SegmentPlace, *, next_first: int | None, durable_to: int, mark: int | None
) -> SegmentState:
    """State of a segment whose data file has at least a header's length.

    `next_first`: first id of the next segment; None for the last segment.  `durable_to`: every transaction up to this one is
    proven to have been durable, so that a crash cannot have torn it.  `mark`: the local low-water mark, one of the possible
    proofs (None: unknown).  Raises DiskReadError, FileNotFoundError.
    """
    first = view.first_transaction_id
    where = Where(place.storage, place.partition, view.data_path.parent)
    files = SegmentFiles(where, first, view.data_path, view.index_path)
    header = read_segment_header(view.data)
    index_header = read_segment_header(view.index)
    if header is None:
        raise FileNotFoundError(view.data_path)
    expected = Expected(first, place.partition, place.cluster_key)
    with FileSource(view.data_path) as data:
        verdict = judge_headers(expected, header, index_header, data)
        findings = [*verdict.findings(files), *_no_index(view, files)]
        index_fits = expected.met_by(index_header)
        if not verdict.data_wrong and (why := stranger(view, data, place.partition, place.cluster_key)) is not None:
            findings.append(strange_finding(why, files))
        elif verdict.begins == first and (not verdict.data_wrong or index_fits):
            tail = Tail(next_first is None, mark, durable_to, next_first)
            with FileSource(view.index_path) if index_fits else nullcontext() as index:
                state = _Examination(view, place, files, findings, data, index, tail).run()
            return replace(state, trusted=False) if verdict.data_wrong else state
    return SegmentState(view, None, tuple(findings), trusted=False, stretch=begun(first, verdict.begins))


def _no_index(view: SegmentView, files: SegmentFiles) -> Iterator[Finding]:
    """A finding when there is no index to read.  A special file in its place is reported by the partition's examination."""
    if view.index is not None and view.index.size < HEADER_SIZE:
        yield index_header_short(view.index.size, files)
    elif view.index is None and special_kind(view.index_path) is None:
        yield index_missing(files)


class _Examination:
    """The examination of one segment whose headers were read."""

    def __init__(
        self,
        view: SegmentView,
        place: SegmentPlace,
        files: SegmentFiles,
        findings: list[Finding],
        data: FileSource,
        index: FileSource | None,
        tail: Tail,
    ) -> None:
        self.view, self.place, self.files, self.findings = view, place, files, findings
        self.data, self.index = data, index
        self.tail, self.next_first = tail, tail.following
        self.torn: Damage | None = None
        self.order_end: Damage | None = None
        self.open_end = False
        self.first = view.first_transaction_id
        self.expected = Expected(self.first, place.partition, place.cluster_key)
        self.size = data.size()
        self.index_size = index.size() if index is not None else 0
        self.comparison = None if index is None else IndexComparison(IndexReader(index, self.first))

    def run(self) -> SegmentState:
        if self.next_first is not None and self._sealed_looks_right(self.next_first):
            run = BelievedRun(self.first, self.next_first, HEADER_SIZE, self.size)
            return self._state((run,))
        start = (self.first, HEADER_SIZE) if self.next_first is not None else self._last_checkpoint()
        return self._scan(*start)

    # --- checks without a full scan ----------------------------------------------------------------------------------

    def _entry(self, transaction_id: int) -> int | None:
        """Byte offset that the index gives for a record; None where it has no entry or the offset is impossible."""
        if self.index is None:
            return None
        raw = read_bytes(self.index, entry_position(transaction_id, self.first), ENTRY_SIZE)
        if len(raw) < ENTRY_SIZE:
            return None
        (offset,) = INDEX_ENTRY.struct.unpack(raw)
        return offset if HEADER_SIZE <= offset <= self.size - RECORD_OVERHEAD else None

    def _record(self, transaction_id: int) -> RecordView | None:
        """The record at its index entry, if both of its checksums are right."""
        offset = self._entry(transaction_id)
        found = None if offset is None else self._look(offset, transaction_id)
        return found if found is not None and found.data_ok else None

    def _look(self, offset: int, transaction_id: int) -> RecordView | None:
        found = read_record_at(self.data, offset, expected_id=transaction_id, max_record=self.place.max_data_length)
        return found if isinstance(found, RecordView) else None

    def _sealed_looks_right(self, next_first: int) -> bool:
        if self.index_size != entry_position(next_first, self.first):
            return False
        if self._entry(self.first) != HEADER_SIZE:
            return False
        last = self._record(next_first - 1)
        return last is not None and last.end == self.size

    def _last_checkpoint(self) -> tuple[int, int]:
        """Id and offset from which the last segment has to be scanned."""
        if self.index is None:
            return self.first, HEADER_SIZE
        entries = (self.index_size - HEADER_SIZE) // ENTRY_SIZE
        low = outside = self.first // CHECKPOINT_INTERVAL  # the last checkpoint in front of the segment
        high = (self.first + entries) // CHECKPOINT_INTERVAL
        while low < high:  # binary search for the last checkpoint whose entry lies inside the data file
            middle = (low + high + 1) // 2
            if self._entry(middle * CHECKPOINT_INTERVAL - 1) is None:
                high = middle - 1
            else:
                low = middle
        for k in range(high, max(high - CHECKPOINTS_TRIED, outside), -1):
            checkpoint = k * CHECKPOINT_INTERVAL - 1
            record = self._record(checkpoint)
            if record is None:
                continue
            if checkpoint == self.first:
                joined = record.offset == HEADER_SIZE
            else:
                before = self._record(checkpoint - 1)
                joined = before is not None and before.end == record.offset
            if joined and self._look(record.end, checkpoint + 1) is not None:
                return checkpoint + 1, record.end
        return self.first, HEADER_SIZE

    # --- scan --------------------------------------------------------------------------------------------------------

    def _scan(self, start_id: int, start: int) -> SegmentState:
        runs = [BelievedRun(self.first, start_id, HEADER_SIZE, start)] if start_id > self.first else []
        trusted, cut_at = True, None
        parts = summarise_records(
            self.data,
            first_transaction_id=start_id,
            start=start,
            index=self.index,
            ceiling=self.next_first,
        )
        for part in parts:
            if isinstance(part, RecordRun):
                _extend(runs, part)
                if self.comparison is not None:
                    self.comparison.compare(part.first_transaction_id, part.offset)
                self._note_data(part)
            elif part.cause is DamageCause.TORN_TAIL:
                self.torn = part
                comparison, torn_id = self.comparison, part.transaction_id
                listed = 0 if comparison is None else comparison.explained_by_tail(part, self.size, torn_id)
                begins = beginning_behind(torn_id, self.view.data_path.parent, self.next_first, self.expected)
                self.tail = replace(self.tail, listed=listed, begun=begins.whole, header=begins.header)
                self.findings.append(tail_finding(part, self.tail, self.files))
                if self._may_be_cut(part):
                    cut_at = part.offset
                else:
                    trusted = False
            else:
                trusted = False
                self._note_damage(part)
        return self._state(tuple(runs), trusted=trusted, cut_at=cut_at, scanned_from=(start_id, start))

    def _may_be_cut(self, torn: Damage) -> bool:
        """Whether a torn tail is the rest of a write that was never acknowledged, so that it may be cut off.

        A tail that contains intact records may have a damaged length field instead, and these records may have been acknowledged:
        then the operator has to decide.
        """
        whole = torn.proof == "end" and torn.end == self.size
        return whole and not torn.holds_records and self.tail.harmless(torn.transaction_id)

    def _note_damage(self, damage: Damage) -> None:
        self.findings.append(damage_finding(damage, self.files))
        self.open_end = damage.unread
        if self.comparison is not None:
            self.comparison.compare_span(damage)
        if damage.cause is DamageCause.RECORD_ORDER:
            self.order_end = damage

    def _note_data(self, run: RecordRun) -> None:
        if run.data_damaged:
            for place in np.flatnonzero(~run.data_ok):
                found = bad_data(self.data, run.first_transaction_id + int(place), int(run.offset[place]))
                self.findings.append(found.finding(self.files))

    # --- result ------------------------------------------------------------------------------------------------------

    def _state(
        self,
        runs: tuple[BelievedRun, ...],
        *,
        trusted: bool = True,
        cut_at: int | None = None,
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
        following = extent.next_transaction_id
        explained, excess, index_from = 0, None, None
        if self.comparison is not None and scanned_from is not None:
            explained = self.comparison.explained_by_tail(self.torn, self.size, following)
            excess = self._note_index(following, explained)
            index_from = self._index_from(following)
        rebuild = self.index is None
        if index_from is not None:
            # Only wrong entries behind the last checkpoint of the last segment are mended in place.
            rebuild = self.next_first is not None or (
                index_from < following // CHECKPOINT_INTERVAL * CHECKPOINT_INTERVAL
                and scanned_from == (self.first, HEADER_SIZE)
            )
        held = held_by(
            following,
            torn=self.torn is not None,
            explained=explained,
            last=self.tail.last,
            uncertain=self.open_end,
        )
        listed = None if self.comparison is None else self.comparison.reader.end()
        return SegmentState(
            self.view,
            extent,
            tuple(self.findings),
            trusted,
            cut_at,
            None if rebuild else index_from,
            rebuild,
            scanned_from,
            Stretch(
                self.first,
                self.first,
                held.next_id,
                held.accounted,
                held.uncertain,
                listed,
                excess is not None,
                self.torn is not None,
                told=told_of_end(self.findings),
            ),
            excess,
        )

    def _note_index(self, following: int, explained: int) -> Finding | None:
        """Note findings about the entries that were compared; return, and do not note, the one about too many entries."""
        assert self.comparison is not None
        comparison = self.comparison
        listed = explained or comparison.explained_by_tail(self.order_end, self.size, following)
        short = comparison.short(following - 1)
        too_long = comparison.long(following + listed) if short is None else None
        if short is not None:
            self.findings.append(short.finding(self.files))
        if comparison.wrong.count:
            self.findings.append(comparison.wrong.finding(self.first, self.files))
        if comparison.unreadable is not None:
            raise comparison.unreadable
        return None if too_long is None else too_long.finding(self.files)

    def _index_from(self, following: int) -> int | None:
        """The first id whose index entry is wrong, missing or beyond the last record; None when the index is right."""
        assert self.comparison is not None
        comparison, expected = self.comparison, entry_position(following, self.first)
        lengths = () if self.index_size == expected else (min(following, comparison.reader.end()),)
        wrong = (comparison.wrong.first,) if comparison.wrong.count else ()
        return min((*wrong, *lengths), default=None)


def _extend(runs: list[BelievedRun], part: RecordRun) -> None:
    """Add scanned records to `runs`, joined to the last run where they follow it directly."""
    following = part.first_transaction_id + len(part)
    if runs and runs[-1].end == part.start and runs[-1].next_transaction_id == part.first_transaction_id:
        last = runs[-1]
        runs[-1] = BelievedRun(last.first_transaction_id, following, last.start, part.end)
    else:
        runs.append(BelievedRun(part.first_transaction_id, following, part.start, part.end))


def index_entries(extent: SegmentExtent, start: tuple[int, int]) -> Iterator[bytes]:
    """Index entries (big-endian byte offsets) of a sound segment's records from `start` (id and offset) to its end, in pieces.

    Raises DiskReadError when the file has changed since it was examined.
    """
    expected, offset = start
    with FileSource(extent.data_path) as data:
        parts = summarise_records(data, first_transaction_id=expected, start=offset, stop=extent.end)
        for part in parts:
            if isinstance(part, Damage):
                cause = OSError(f"transaction {part.transaction_id} changed while the index was built")
                raise DiskReadError(extent.data_path, part.offset, cause)
            yield encode_offsets(part.offset)
