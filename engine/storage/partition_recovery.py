"""Recovery of a partition at its opening: all of it is examined first (`examine_partition`), then mended (`mend`) if it is sound.

*Mended*, because a crash may leave it:

- a torn tail above the local low-water mark;
- an empty or short data file behind the last segment;
- an index that lags behind, is missing or is stale.

Anything else *quarantines* the partition:

- damage at or below the local low-water mark, or in front of valid records;
- a gap or an overlap between segments, or a missing first segment;
- a header that disagrees with the partition, or a right header with another partition's records behind it;
- missing records whose existence is proven by the mark, an index or a segment's name (`engine.log.evidence`).

A quarantined partition keeps every byte and accepts no write; records whose checksums are right can still be read.

Bytes that are cut off data files, and indexes that are replaced, are kept in the quarantine of the storage directory (command
*open*), and `undo` restores them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.edits import Cut, Edit, Remove, Replace
from waltzctl.engine.durable.file_status import special_kind
from waltzctl.engine.errors import DiskReadError, SyncFailedError
from waltzctl.engine.findings import Finding, SegmentFiles, Where, loss_finding
from waltzctl.engine.findings.directory_contents import Stray, special_finding, special_index, stray_finding
from waltzctl.engine.log.assess import (
    IndexExcess,
    Stretch,
    counted_elsewhere,
    data_gone,
    joints,
    losses,
    reached_in_front,
)
from waltzctl.engine.log.evidence import Evidence, evidence
from waltzctl.engine.log.places import local
from waltzctl.engine.log.view import FileState, PartitionView, SegmentView, view_partition
from waltzctl.engine.losses import BelowMark, BelowProof, DataGone, NoSegment, ShortHeader, covered
from waltzctl.engine.storage.failed_syncs import (
    PIECE,
    forget_failed_sync,
    note_failed_sync,
    sync_failed,
    write_again,
)
from waltzctl.engine.storage.orphans import stand_elsewhere, without_held_records
from waltzctl.engine.storage.segment_files import SegmentExtent, create_segment
from waltzctl.engine.storage.segment_recovery import SegmentPlace, SegmentState, examine_segment, index_entries
from waltzctl.engine.storage.store import apply_edits
from waltzctl.engine.storage.strays import hidden, ids_of, judge_stray
from waltzctl.formats.segment import CHECKPOINT_INTERVAL, ENTRY_SIZE, HEADER_SIZE, entry_position

KNOWN_BEFORE_CUT = 1 << 20
"""Bytes in front of a torn tail that the manifest's checksums cover; each byte is read three times while the node starts."""
UNKNOWN_END = 2**63
"""Above every transaction id: stands for an unknown end of the log."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Result of examining a partition's directory.

    `states`: the segments that stay, in order.  `short`: a data file behind them that is shorter than its header; None for none.
    `proven`: evidence of the transactions that were durable here.
    """

    path: PurePath
    place: SegmentPlace
    view: PartitionView
    states: tuple[SegmentState, ...]
    short: SegmentView | None
    findings: tuple[Finding, ...]
    quarantined: bool
    proven: Evidence

    @property
    def lost_below(self) -> int:
        """Below this id, a transaction that cannot be read counts as lost: it was durable here, or that is unknown."""
        unreadable = any(state.extent is None for state in self.states)
        return UNKNOWN_END if unreadable else self.proven.required

    @property
    def extents(self) -> tuple[SegmentExtent, ...]:
        """The readable segments, in order."""
        return tuple(state.extent for state in self.states if state.extent is not None)

    @property
    def contiguous_next(self) -> int:
        """The lowest transaction id, from 0 on, that cannot be read."""
        following = 0
        for state in self.states:
            extent = state.extent
            if extent is None or extent.first_transaction_id != following:
                break
            following = extent.contiguous_next
            if following != extent.next_transaction_id:
                break
        return following


def examine_partition(
    directory: Path, place: SegmentPlace, *, local_low_water_mark: int | None, session_id: int
) -> Examination:
    """Examine all segments of a partition; changes nothing.

    `local_low_water_mark`: None when it is unknown.  `session_id`: the session in force, -1 for none.  Raises DiskReadError;
    NotWaltzError without a directory.
    """
    view = view_partition(directory, place.partition)
    proven = evidence(view, local_low_water_mark)
    findings: list[Finding] = []
    where = Where(place.storage, place.partition, directory)

    present = list(view.data_segments)
    short: SegmentView | None = None
    findings += [_special(path, view, where) for path in view.special]
    if present and _is_short(present[-1]):
        short = present.pop()
    states: list[SegmentState] = []
    for number, segment in enumerate(present):
        behind = present[number + 1] if number + 1 < len(present) else short
        if _is_short(segment):
            findings.append(loss_finding(_short_header(segment, behind), where))
            states.append(SegmentState(segment, None, trusted=False))
            continue
        state = examine_segment(
            segment,
            place,
            next_first=behind.first_transaction_id if behind else None,
            durable_to=proven.required - 1,
            mark=local_low_water_mark,
        )
        findings.extend(state.findings)
        states.append(state)
    stretches = [state.stretch or _short_stretch(state.view) for state in states]
    if short is not None:
        stretches.append(_short_stretch(short))
    stretches.sort(key=lambda one: one.begins)
    in_front = reached_in_front(stretches)

    def without_held(one: Finding) -> Finding:
        """As `SegmentReach.without_held`, for segments that were read already."""
        reached = 0 if one.segment is None else in_front.get(one.segment, 0)
        return without_held_records(one, reached, view.data_segments)

    findings = [without_held(one) for one in findings]
    joined = tuple(joints(stretches, 0))
    lost = tuple(losses(stretches, proven, local_low_water_mark, joined))
    excess = {state.view.first_transaction_id: state.index_excess for state in states}
    for one in lost:
        if not isinstance(one, IndexExcess):
            findings.append(loss_finding(one, where))
        elif (known := excess.get(one.segment)) is not None:
            findings.append(known)
    empty = None if short is None else _short_header(short, None)
    hiding = tuple(_hiding_strays(view, states, place))
    examination = Examination(directory, place, view, tuple(states), short, (), False, proven)
    gone = tuple(_data_gone(examination))
    no_log = None
    if not view.segments and local_low_water_mark in (None, -1):
        no_log = NoSegment(session_id if session_id >= 0 else None)
    findings += [] if empty is None else [without_held(loss_finding(empty, where))]
    findings += hiding
    ends = [one for one in lost if isinstance(one, (BelowMark, BelowProof))]
    last = view.data_segments[-1].first_transaction_id if view.data_segments else None
    told = covered(counted_elsewhere(stretches, last, ends))
    findings += [loss_finding(one, where, elsewhere=told) for one in gone]
    findings += [] if no_log is None else [loss_finding(no_log, where)]
    sound = (
        not view.special
        and all(state.trusted for state in states)
        and all(isinstance(one, IndexExcess) for one in joined)
        and not ends
        and (empty is None or empty.harmless)
        and not hiding
        and not any(one.lost for one in gone)
        and (no_log is None or no_log.began is None)
        # every transaction that is proven to have existed must be in the contiguous log from 0 on
        and examination.contiguous_next >= max(proven.mark, proven.names, proven.with_data)
    )
    return replace(examination, findings=tuple(findings), quarantined=not sound)


def _data_gone(examination: Examination) -> Iterator[DataGone]:
    """The indexes whose data file is missing, each with whether the records that it lists are in other segments."""
    view = examination.view
    held = covered((one.first_transaction_id, one.next_transaction_id) for one in examination.extents)
    for orphan in view.segments:
        if orphan.data is None and orphan.index is not None and orphan.data_path not in view.special:
            alike = partial(stand_elsewhere, orphan, view.data_segments)
            yield data_gone(orphan.first_transaction_id, orphan.entries, orphan.index.size, held, alike)


def _hiding_strays(view: PartitionView, states: Sequence[SegmentState], place: SegmentPlace) -> Iterator[Finding]:
    """Findings of data files with records of this partition that no segment has, under names that are not a segment's.

    An append to the partition would assign the ids of these records a second time.
    """
    known = [
        (extent.first_transaction_id, extent.next_transaction_id - 1)
        for extent in (state.extent for state in states)
        if extent is not None
    ]
    where = Where(place.storage, place.partition, view.path)
    for stray in view.strays:
        verdict = judge_stray(stray, place.cluster_key, place.partition)
        ids = ids_of(verdict)
        if unseen := hidden(ids, known):
            yield stray_finding(
                Stray(stray.data.path, stray.data.size, verdict.first, verdict.refusal, unseen, held=True), where
            )


def _special(path: PurePath, view: PartitionView, where: Where) -> Finding:
    """The finding for a special file in the place of a data file or an index."""
    kind = special_kind(path) or "gone"
    for segment in view.data_segments:
        if segment.index_path == path:
            return special_index(kind, SegmentFiles(where, segment.first_transaction_id, segment.data_path, path))
    return special_finding(path, kind, where)


def _is_short(segment: SegmentView) -> bool:
    assert segment.data is not None
    return segment.data.size < HEADER_SIZE


def _short_header(segment: SegmentView, behind: SegmentView | None) -> ShortHeader:
    assert segment.data is not None
    following = None if behind is None else behind.first_transaction_id
    return ShortHeader(segment.first_transaction_id, segment.data.size, segment.entries, following)


def _short_stretch(segment: SegmentView) -> Stretch:
    """A segment whose data file ends inside its header."""
    first = segment.first_transaction_id
    return Stretch(first, first, None, first - 1 + segment.entries, told=segment.entries)


@dataclass(frozen=True, slots=True)
class Mended:
    """A mended partition: its segments, and the id of the quarantine entry with the removed bytes (None: nothing was removed)."""

    extents: tuple[SegmentExtent, ...]
    undo_id: str | None


def mend(examination: Examination) -> Mended:
    """Mend what a crash left in a partition that was found sound.

    Idempotent: after a crash at any point the partition is examined and mended again.  Raises DiskWriteError, DiskReadError,
    RefusedError when an interrupted repair has to be rolled back first.
    """
    if examination.quarantined:
        raise ValueError(f"{examination.path}: a quarantined partition is not mended")
    undo_id = _apply_kept_edits(examination)
    for state in examination.states:
        extent = _sound(state)
        if state.view.index is None:
            disk.write_whole(extent.index_path, _index_parts(extent))
        elif state.index_from is not None:
            _mend_index_tail(state, extent)
    extents = [replace(_sound(state), index_usable=True) for state in examination.states]
    _remove_empty_orphans(examination)
    if not extents:
        place = examination.place
        extents = [
            create_segment(
                examination.path, partition=place.partition, first_transaction_id=0, cluster_key=place.cluster_key
            )
        ]
    return Mended(tuple(extents), undo_id)


def _sound(state: SegmentState) -> SegmentExtent:
    assert state.extent is not None, "a partition with an unreadable segment is quarantined"
    return state.extent


def _apply_kept_edits(examination: Examination) -> str | None:
    """Cut torn tails, remove a short data file, replace stale indexes: all changes that remove bytes, through the quarantine.

    Returns the id of the quarantine entry; None when there was nothing to do.
    """
    place = examination.place
    edits: list[Edit] = []
    for state in examination.states:
        extent = _sound(state)
        if state.cut_at is not None:
            edits.append(Cut(extent.data_path, state.cut_at, max(0, state.cut_at - KNOWN_BEFORE_CUT)))
        if state.rebuild_index and state.view.index is not None:
            size = entry_position(extent.next_transaction_id, extent.first_transaction_id)
            edits.append(Replace(extent.index_path, _Parts(extent), size))
    short = examination.short
    if short is not None:
        edits.append(Remove(short.data_path))
        if short.index is not None:
            edits.append(Remove(short.index_path))
    # An orphaned index with entries, whose records are all in other segments, was left by a truncation; a copy is kept.
    edits += [Remove(orphan.path) for orphan in _orphans(examination) if orphan.size > HEADER_SIZE]
    if not edits:
        return None
    text = "\n".join(
        f"{type(edit).__name__} {edit.path.relative_to(place.storage)} {getattr(edit, 'size', '')}" for edit in edits
    )
    entry = apply_edits(
        local(place.storage),
        edits,
        command="open",
        arguments=[f"--partition={place.partition}"],
        plan_hash=hashlib.sha256(text.encode()).hexdigest(),
    )
    return entry.id


@dataclass(frozen=True, slots=True)
class _Parts:
    """Builds the bytes of a segment's index when it is called (`engine.durable.edits.Replace.parts`)."""

    extent: SegmentExtent

    def __call__(self) -> Iterable[bytes]:
        return _index_parts(self.extent)


def _index_parts(extent: SegmentExtent) -> Iterator[bytes]:
    """A whole index file: the data file's header, then the entries."""
    yield disk.read_range(extent.data_path, 0, HEADER_SIZE)
    yield from index_entries(extent, (extent.first_transaction_id, HEADER_SIZE))


def _mend_index_tail(state: SegmentState, extent: SegmentExtent) -> None:
    """Write the wrong or missing entries behind the last checkpoint, and cut entries behind the last record.

    No copy is kept of these entries, which were not promised to be durable before the next checkpoint.  Where the data goes
    beyond a further checkpoint (a truncation had cut the index but not yet the data), the index is written anew as a whole: once
    the entry of that checkpoint is there, its record proves all entries in front of it.
    """
    assert state.index_from is not None
    size = entry_position(extent.next_transaction_id, extent.first_transaction_id)
    if (extent.next_transaction_id - 1) // CHECKPOINT_INTERVAL * CHECKPOINT_INTERVAL > state.index_from:
        good = disk.read_range(extent.index_path, 0, entry_position(state.index_from, extent.first_transaction_id))
        disk.write_whole(extent.index_path, itertools.chain([good], (part for _, part in _tail(state, extent))))
        return
    with disk.WritableFile.open(extent.index_path) as index:
        for number, part in _tail(state, extent):
            index.write_at(entry_position(number, extent.first_transaction_id), part)
        if index.size() > size:
            index.truncate(size)
        index.sync()


def _tail(state: SegmentState, extent: SegmentExtent) -> Iterator[tuple[int, bytes]]:
    """The index entries from `index_from` on, in parts, each with the transaction id of its first entry."""
    assert state.index_from is not None
    assert state.scanned_from is not None
    number = state.scanned_from[0]
    for part in index_entries(extent, state.scanned_from):
        skip = max(0, state.index_from - number)
        if wanted := part[skip * ENTRY_SIZE :]:
            yield number + skip, wanted
        number += len(part) // ENTRY_SIZE


def _orphans(examination: Examination) -> Iterator[FileState]:
    """Indexes without a data file."""
    for segment in examination.view.segments:
        if segment.data is None and segment.index is not None:
            yield segment.index


def _remove_empty_orphans(examination: Examination) -> None:
    """Remove indexes without a data file and without entries, which a crash during a roll-over leaves.

    Not durable: such an index that comes back after a power loss is harmless, and is removed again.
    """
    for orphan in _orphans(examination):
        if orphan.size <= HEADER_SIZE:
            disk.unlink(orphan.path)


def settle_partition(directory: PurePath, partition: int) -> None:
    """Make the last segment durable before it is read; the other segments were synced when they were closed.

    After a crash of the process alone, its last writes may be in the page cache only; a power loss would then take back records
    that readers have seen.  After a sync that failed another one tells nothing: the last segment is written again first
    (`engine.storage.failed_syncs`).  Raises DiskWriteError, DiskReadError.
    """
    storage = directory.parent
    failed = sync_failed(storage, partition)
    try:
        if failed:
            renew_last_segment(directory, partition, data=True)
        view = view_partition(directory, partition)
        for segment in view.data_segments[-1:]:
            sync_file(segment.data_path)
            if segment.index is not None:
                sync_file(segment.index_path)
        disk.sync_directory(directory)
    except SyncFailedError:
        note_failed_sync(storage, partition)
        raise
    if failed:
        forget_failed_sync(storage, partition)


def clear_unfinished(directory: PurePath, partition: int) -> None:
    """Remove temporary files that a process left when it ended; no acknowledged record is in them.

    Not durable: a file that comes back after a power loss is removed again.  Raises DiskWriteError, DiskReadError.
    """
    for path in view_partition(directory, partition).temporary:
        disk.unlink(path)


def renew_last_segment(directory: PurePath, partition: int, *, data: bool) -> None:
    """Write the last segment's index again, and with `data` its data too.  Raises DiskWriteError, DiskReadError."""
    if data:
        renew_last_data(directory, partition)
    renew_last_index(directory, partition)


def renew_last_index(directory: PurePath, partition: int) -> None:
    """Write the last segment's index again, with the contents that are read.

    After a failed sync, the page cache may hold entries that the disk does not, marked clean; only bytes that are written again
    reach the disk for certain.  (The data file does not need this: its acknowledged records were synced before.)  Raises
    DiskWriteError, DiskReadError.
    """
    for segment in _last_segment(directory, partition):
        if segment.index is not None:
            size = segment.index.size
            parts = (disk.read_range(segment.index_path, at, PIECE) for at in range(0, size, PIECE))
            disk.write_whole(segment.index_path, parts)


def renew_last_data(directory: PurePath, partition: int) -> None:
    """Write the last segment's data again, with the bytes that are read, durably.

    After `settle_partition` could not sync it: whatever a process that died had written to it may be in the page cache only,
    marked clean, and the next sync would not fail.  Raises DiskWriteError, DiskReadError.
    """
    for segment in _last_segment(directory, partition):
        with disk.WritableFile.open(segment.data_path) as file:
            write_again(file)


def _last_segment(directory: PurePath, partition: int) -> tuple[SegmentView, ...]:
    """The last segment, if there is one.

    Raises DiskReadError for a file that could not be examined: it may be of the segment that is to be written again.
    """
    view = view_partition(directory, partition)
    for path in view.special:
        if FileState.of(path) is not None:
            raise DiskReadError(path, None, OSError(0, "it could not be examined a moment ago"), doing="examine")
    return view.data_segments[-1:]


def sync_file(path: PurePath) -> None:
    """Make a file durable; does nothing when there is none.  Raises DiskWriteError."""
    try:
        with disk.WritableFile.open(path) as file:
            file.sync()
    except FileNotFoundError:
        return
