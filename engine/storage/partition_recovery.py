"""Opening a partition: first everything is examined, and only when all of it is understood is anything changed.

What a crash may leave is mended: a torn tail above the local low-water mark, an empty or short data file behind the last
segment, an index that lags behind, is missing or is stale.  Everything else *quarantines* the partition: damage at or below
the mark or in front of valid records, a gap or an overlap between segments, a header that disagrees, another partition's records
behind one that does not, a missing first segment, records that are gone though the mark, an index or a segment's name proves that
they were here (`engine.storage.evidence`).  A quarantined partition keeps every byte and accepts no write; records whose
checksums agree can still be read.

Bytes of data files that are cut off, and indexes that are replaced, are kept in the quarantine of the storage directory
(command *open*) and `undo` brings them back.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.edits import Cut, Edit, Remove, Replace
from waltzctl.engine.durable.regular import special_kind
from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.storage.evidence import Evidence, evidence
from waltzctl.engine.storage.orphans import stand_elsewhere
from waltzctl.engine.storage.segment import SegmentExtent, create_segment
from waltzctl.engine.storage.segment_recovery import Place, SegmentState, examine_segment, index_entries
from waltzctl.engine.storage.store import apply_edits
from waltzctl.engine.storage.strays import Ids, hidden, ids_of, judge_stray, spelled
from waltzctl.engine.storage.view import FileState, PartitionView, SegmentView, view_partition
from waltzctl.formats.segment import CHECKPOINT_INTERVAL, HEADER_SIZE, entry_position, parse_name

KNOWN_BEFORE_CUT = 1 << 20
"""Bytes in front of a torn tail that the manifest's checksums cover: more would be read three times while a node waits."""
UNKNOWN_END = 2**63
"""Above every transaction id: nobody can know where the log ended."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found in a partition's directory.

    `states` are the segments that stay, in order; `short` is a data file behind them that never got its header.
    `contiguous_next` is the id up to which every transaction is there; `proven` tells up to where they were.
    """

    path: Path
    place: Place
    view: PartitionView
    states: tuple[SegmentState, ...]
    short: SegmentView | None
    findings: tuple[Finding, ...]
    quarantined: bool
    proven: Evidence

    @property
    def lost_below(self) -> int:
        """Below this id a transaction that cannot be read was lost: it was durable here, or nobody can know."""
        unreadable = any(state.extent is None for state in self.states)
        return UNKNOWN_END if unreadable else self.proven.required

    @property
    def extents(self) -> tuple[SegmentExtent, ...]:
        """Segments of which something can be read."""
        return tuple(state.extent for state in self.states if state.extent is not None)

    @property
    def contiguous_next(self) -> int:
        """The first id that is not there, counted from 0."""
        following = 0
        for state in self.states:
            extent = state.extent
            if extent is None or extent.first_transaction_id != following:
                break
            following = extent.contiguous_next
            if following != extent.next_transaction_id:
                break
        return following


def examine_partition(directory: Path, place: Place, *, local_low_water_mark: int, session_id: int = -1) -> Examination:
    """Look at all segments of a partition; changes nothing.  `session_id`: the one in force, -1 for none.

    Raises DiskReadError, NotWaltzError without a directory.
    """
    view = view_partition(directory, place.partition)
    proven = evidence(view, local_low_water_mark)
    findings: list[Finding] = []

    def note(code: Code, path: Path, message: str, **where: int | Severity | None) -> None:
        found = make_finding(code, path, message, storage_directory=place.storage, partition=place.partition, **where)  # type: ignore[arg-type]
        findings.append(found)

    present = list(view.data_segments)
    short: SegmentView | None = None
    sound = not view.special
    for path in view.special:
        parsed = parse_name(path.name)
        note(
            Code.SPECIAL_FILE,
            path,
            f"it is {special_kind(path) or 'gone'}, not a regular file",
            segment=None if parsed is None else parsed[0],
        )
    if present and _is_short(present[-1]):
        short = present.pop()
    states: list[SegmentState] = []
    for number, segment in enumerate(present):
        if _is_short(segment):
            sound = False
            note(
                Code.SEGMENT_HEADER_SHORT,
                segment.data_path,
                "the data file is shorter than its header",
                segment=segment.first_transaction_id,
            )
            states.append(SegmentState(segment, None, trusted=False))
            continue
        behind = present[number + 1] if number + 1 < len(present) else short
        state = examine_segment(
            segment,
            place,
            next_first=behind.first_transaction_id if behind else None,
            durable_to=proven.required - 1,
        )
        findings.extend(state.findings)
        states.append(state)
        sound = sound and state.trusted
    followed = [state.view for state in states] + ([short] if short else [])
    sound = _check_joints(states, followed, note) and sound
    if short is not None:
        held = short.entries
        sound = sound and not held
        why = f"its index has {held} entries, so that records were in it" if held else "it holds no record"
        note(
            Code.SEGMENT_HEADER_SHORT,
            short.data_path,
            f"the data file is shorter than its header; {why}",
            segment=short.first_transaction_id,
            severity=Severity.REPAIRABLE if sound else Severity.DAMAGE,
        )
    if hiding := _hidden_in_strays(view, states, place):
        sound = False
        for stray, ids in hiding:
            note(
                Code.SEGMENT_STRAY,
                stray,
                f"no segment has this name, and {spelled(ids)} stand only here",
                transaction_id=ids[0][0],
            )
    examination = Examination(directory, place, view, tuple(states), short, tuple(findings), not sound, proven)
    lost = (segment for segment in view.segments if segment.data is None and segment.data_path not in view.special)
    for orphan in lost:
        first = orphan.first_transaction_id
        covered = _covered(examination.extents, first, first + orphan.entries)
        if covered and orphan.entries:
            covered = stand_elsewhere(orphan, view.data_segments)
        sound = sound and covered
        note(
            Code.INDEX_ORPHAN,
            orphan.index_path,
            "an index without a data file"
            + ("" if covered else f": transactions {first} to {first + orphan.entries - 1} were in it"),
            segment=first,
            transaction_id=first,
            severity=Severity.REPAIRABLE if covered else Severity.DAMAGE,
        )
    last = examination.contiguous_next - 1
    if not view.segments and session_id >= 0 and local_low_water_mark < 0:
        note(
            Code.PARTITION_EMPTY,
            directory,
            f"session {session_id} began here, so that the partition had a segment then; now there is no file",
            severity=Severity.DAMAGE,
        )
        sound = False
    if last < local_low_water_mark:
        note(
            Code.ACKNOWLEDGED_MISSING,
            directory,
            f"the last transaction that can be relied on is {last}, and everything up to {local_low_water_mark} was"
            " known to be durable here",
            transaction_id=last + 1,
        )
        sound = False
    reached = max((extent.next_transaction_id for extent in examination.extents), default=0)
    unreadable = any(state.extent is None for state in states)  # of which nobody can say where it ends
    if not unreadable and max(reached, proven.mark) < max(proven.names, proven.with_data):
        note(
            Code.DURABLE_MISSING,
            directory,
            f"the last transaction is {reached - 1}, and {proven.said_by()}: everything in front of that was durable here",
            transaction_id=reached,
        )
        sound = False
    return replace(examination, findings=tuple(findings), quarantined=not sound)


def _hidden_in_strays(
    view: PartitionView, states: Sequence[SegmentState], place: Place
) -> list[tuple[Path, tuple[Ids, ...]]]:
    """Data files of this partition under names that are no segment's, and the ids that stand nowhere else.

    Whoever writes on would give these ids away a second time.
    """
    known = [
        (extent.first_transaction_id, extent.next_transaction_id - 1)
        for extent in (state.extent for state in states)
        if extent is not None
    ]
    judged = (judge_stray(stray, place.cluster_key, place.partition) for stray in view.strays)
    found = [(one.stray.data.path, hidden(ids_of(one), known)) for one in judged]
    return [(path, ids) for path, ids in found if ids]


def _covered(extents: Sequence[SegmentExtent], first: int, stop: int) -> bool:
    """Whether every transaction from `first` to `stop` - 1 can be read."""
    for extent in extents:
        for run in extent.runs:
            if run.first_transaction_id <= first:
                first = max(first, run.next_transaction_id)
    return first >= stop


def _is_short(segment: SegmentView) -> bool:
    return segment.data is not None and segment.data.size < HEADER_SIZE


def _check_joints(states: Sequence[SegmentState], views: Sequence[SegmentView], note: Callable[..., None]) -> bool:
    """Whether the partition begins at transaction 0 and every segment where the one before it ends.

    Waltz never drops the beginning of a log, so a first segment that begins later means that one is gone.
    """
    joined = True
    if views and views[0].first_transaction_id != 0:
        joined = False
        first = views[0].first_transaction_id
        note(
            Code.SEGMENT_GAP,
            views[0].data_path,
            f"transactions 0 to {first - 1} are missing: the first segment begins at {first}",
            segment=first,
            transaction_id=0,
        )
    for number, (_, behind) in enumerate(pairwise(views)):
        extent = states[number].extent
        if extent is None:
            continue
        following, begins = extent.next_transaction_id, behind.first_transaction_id
        if following < begins:
            joined = False
            if states[number].trusted:  # otherwise the damage at its end says the same
                note(
                    Code.SEGMENT_GAP,
                    behind.data_path,
                    f"transactions {following} to {begins - 1} are missing in front of it",
                    segment=begins,
                    transaction_id=following,
                )
        elif following > begins:
            joined = False
            note(
                Code.SEGMENT_OVERLAP,
                behind.data_path,
                f"it begins at transaction {begins}, and the segment in front of it ends with {following - 1}",
                segment=begins,
                transaction_id=begins,
            )
    return joined


@dataclass(frozen=True, slots=True)
class Mended:
    """A partition's segments, all sound; `undo_id` names the quarantine's entry with what was taken away, None for nothing."""

    extents: tuple[SegmentExtent, ...]
    undo_id: str | None


def mend(examination: Examination) -> Mended:
    """Change what an examination of a sound partition found to be left by a crash.

    Idempotent: a crash at any point leaves a partition that is examined and mended again.  Raises DiskWriteError,
    DiskReadError, RefusedError when an interrupted repair waits.
    """
    if examination.quarantined:
        raise ValueError(f"{examination.path}: a quarantined partition is not mended")
    undo_id = _apply_kept_edits(examination)
    for state in examination.states:
        extent = _sound(state)
        if state.rebuild_index and state.view.index is None:
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
    """Cut torn tails, remove a short data file, replace stale indexes: what takes bytes away goes through the quarantine.

    Returns the entry's id.
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
    # with entries, all of them in other segments too, it is what a truncation left: it is kept
    edits += [Remove(orphan.path) for orphan in _orphans(examination) if orphan.size > HEADER_SIZE]
    if not edits:
        return None
    text = "\n".join(
        f"{type(edit).__name__} {edit.path.relative_to(place.storage)} {getattr(edit, 'size', '')}" for edit in edits
    )
    entry = apply_edits(
        place.storage,
        edits,
        command="open",
        arguments=[f"--partition={place.partition}"],
        plan_hash=hashlib.sha256(text.encode()).hexdigest(),
    )
    return entry.id


@dataclass(frozen=True, slots=True)
class _Parts:
    """Delivers the bytes of a segment's index when they are asked for."""

    extent: SegmentExtent

    def __call__(self) -> Iterable[bytes]:
        return _index_parts(self.extent)


def _index_parts(extent: SegmentExtent) -> Iterator[bytes]:
    """A whole index file: the data file's header, then the entries."""
    yield disk.read_range(extent.data_path, 0, HEADER_SIZE)
    yield from index_entries(extent, (extent.first_transaction_id, HEADER_SIZE))


def _mend_index_tail(state: SegmentState, extent: SegmentExtent) -> None:
    """Write the entries behind the last checkpoint that are wrong or missing, and cut what is too much.

    These entries are never durable before the next checkpoint, so nothing is kept of them.  Where the data goes beyond another
    checkpoint (a truncation had cut the index, and not yet the data), its record there proves all entries in front of it: then
    the index is written anew, as a whole.
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
    """The entries from `index_from` on, in parts, each with the transaction of its first one."""
    assert state.index_from is not None
    assert state.scanned_from is not None
    number = state.scanned_from[0]
    for part in index_entries(extent, state.scanned_from):
        skip = min(max(0, state.index_from - number), len(part) // 8)
        if skip * 8 < len(part):
            yield number + skip, part[skip * 8 :]
        number += len(part) // 8


def _orphans(examination: Examination) -> Iterator[FileState]:
    """Indexes without a data file."""
    for segment in examination.view.segments:
        if segment.data is None and segment.index is not None:
            yield segment.index


def _remove_empty_orphans(examination: Examination) -> None:
    """Remove indexes without data file that hold no entry: a crash during roll-over leaves them, and they say nothing.

    One that a power loss brings back says nothing either.
    """
    for orphan in _orphans(examination):
        if orphan.size <= HEADER_SIZE and orphan.path.exists():
            disk.unlink(orphan.path)


def settle_partition(directory: Path, partition: int) -> None:
    """Make durable what is about to be read of the last segment; the others were synced when they were closed.

    After a crash of the process alone it may be in the system's memory only, and a power loss would take back what was shown
    to somebody.  Raises DiskWriteError, DiskReadError.
    """
    view = view_partition(directory, partition)
    for segment in view.data_segments[-1:]:
        sync_file(segment.data_path)
        if segment.index is not None:
            sync_file(segment.index_path)
    disk.sync_directory(directory)


def clear_unfinished(directory: Path, partition: int) -> None:
    """Remove the files that were being built when a process ended: they hold nothing that anybody was promised.

    One that a power loss brings back is removed again.  Raises DiskWriteError, DiskReadError.
    """
    for path in view_partition(directory, partition).temporary:
        disk.unlink(path)


def renew_last_index(directory: Path, partition: int) -> None:
    """Write the last segment's index anew, as it reads.

    After a failed sync the system may show entries which the disk does not hold, and take them for written; only what is
    written again is sure to get there.  (The data needs none of this: what was acknowledged of it was synced before.)  Raises
    DiskWriteError, DiskReadError.
    """
    for segment in view_partition(directory, partition).data_segments[-1:]:
        if segment.index is not None:
            size = segment.index.size
            parts = (disk.read_range(segment.index_path, at, _PIECE) for at in range(0, size, _PIECE))
            disk.write_whole(segment.index_path, parts)


_PIECE = 1 << 20


def sync_file(path: Path) -> None:
    """Make a file durable as it is, if it is there.  Raises DiskWriteError."""
    try:
        with disk.WritableFile.open(path) as file:
            file.sync()
    except FileNotFoundError:
        return
