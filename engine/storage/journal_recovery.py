"""Write-back from a commit journal: copying journaled bytes into their segments.

It happens when a marked directory is opened (`engine.storage.journal_state` defines the mark), and when a background flush of a
segment failed.

An entry may be written back long after it was journaled, and repeatedly.  So an operation that a write-back would undo (a
truncation, a partition that is taken away) first makes the partition's records durable in the segments and has the journal
*forget* the partition, durably (`engine.storage.commit_journal`).  Appends need neither.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.durable.directory_lock import lock_holder
from waltzctl.engine.durable.relocation import DELETING
from waltzctl.engine.errors import DamageError, DiskError, DiskFullError, DiskReadError, WaltzError
from waltzctl.engine.log import places
from waltzctl.engine.storage.assignment import retired_place
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.journal_state import (
    GIVING_UP,
    JournalState,
    owner_of,
    read_state,
    remove_state,
    state_path,
    write_state,
)
from waltzctl.formats.journal_file import (
    AREAS,
    BLOCK,
    JournalPart,
    PartKind,
    WriteTo,
    decode_area_header,
    read_areas,
)
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader, segment_name


def segment_path(storage: PurePath, part: JournalPart | WriteTo) -> PurePath:
    """The data file that a part's bytes are written back to."""
    return storage / str(part.partition) / segment_name(part.segment)


def in_force(state: JournalState, areas: Sequence[bytes]) -> dict[int, list[JournalPart]]:
    """The journaled writes of each partition that were not forgotten, oldest first.

    `areas`: the bytes of the journal's two areas.  Raises DamageError where an entry is damaged.
    """
    found: dict[int, list[JournalPart]] = {}
    for read in read_areas(state.journal_id, areas):
        if read.damage is not None:
            raise DamageError(
                f"{state.path}: the commit journal is damaged, at byte {read.damage.position} of the area with epoch"
                f" {read.epoch}: {read.damage.shown_by}",
                advice="acknowledged records stand there and perhaps nowhere else: keep the file, and bring them from a replica:"
                f" {GIVING_UP}, then recover --from",
            )
        for entry in read.entries:
            for part in entry.parts:
                if part.kind is PartKind.FORGET:
                    found.pop(part.partition, None)
                else:
                    found.setdefault(part.partition, []).append(part)
    if state.partitions is not None:
        found = {partition: parts for partition, parts in found.items() if partition in state.partitions}
    return found


def write_back(storage: PurePath, parts: Iterable[JournalPart], cluster_key: uuid.UUID) -> None:
    """Write journaled bytes into their segments, in order, and make them durable.  Raises DamageError, DiskError.

    Nothing is written unless every segment exists, its header has the cluster key, partition and first id of the journal, and it
    reaches as far as the first of the journaled bytes: a copy of a directory may be older than the journal, and would get a hole.
    """
    by_segment: dict[PurePath, list[JournalPart]] = {}
    for part in parts:
        by_segment.setdefault(segment_path(storage, part), []).append(part)
    for path, of_one in by_segment.items():
        _check_segment(path, of_one, cluster_key)
    for path, of_one in by_segment.items():
        with disk.WritableFile.open(path) as file:
            for part in of_one:
                file.write_at(part.offset, part.data)
            file.sync()


def _check_segment(path: PurePath, parts: Sequence[JournalPart], cluster_key: uuid.UUID) -> None:
    part = parts[0]
    try:
        raw = places.read_range(path, 0, HEADER_SIZE)
    except FileNotFoundError:
        what = "is not there"
    else:
        header = SegmentHeader.decode(raw) if len(raw) == HEADER_SIZE else None
        expected = (cluster_key, part.partition, part.segment)
        if header is not None and (header.cluster_key, header.partition, header.first_transaction_id) == expected:
            if (behind := _hole(path, parts)) is None:
                return
            what = f"ends at byte {behind[0]}, and what the journal has of it begins at byte {behind[1]}"
        else:
            what = "is another one by its header"
    raise DamageError(
        f"{path}: {what}, and the commit journal holds acknowledged records of this segment",
        advice=f"bring it back as it was; {GIVING_UP}",
    )


def _hole(path: PurePath, parts: Sequence[JournalPart]) -> tuple[int, int] | None:
    """Begin and end of the first bytes that neither a segment nor the journal has; None where there are none."""
    numbers = places.file_numbers(path)
    end = 0 if numbers is None else numbers.size
    for part in parts:
        if part.offset > end:
            return end, part.offset
        end = max(end, part.offset + len(part.data))
    return None


def stands_in_segments(storage: PurePath, state: JournalState) -> bool:
    """Whether a directory's segments have every byte that a journal has in force; False where that cannot be read.

    Takes no lock, writes nothing.
    """
    try:
        journaled = in_force(state, list(_areas_of(state)))
        return all(
            places.read_range(segment_path(storage, part), part.offset, len(part.data)) == part.data
            for parts in journaled.values()
            for part in parts
        )
    except (DamageError, DiskReadError, FileNotFoundError):  # a closed partition keeps no node from starting
        return False


@dataclass(frozen=True, slots=True)
class WrittenBack:
    """Result of the write-back from the journal of a marked directory.

    `path`: the journal file.  `failed`: the partitions whose records could not be written back, with the error of each; the
    journal is kept for them, and the directory stays marked.
    """

    path: Path
    failed: dict[int, WaltzError]


def write_back_journal(storage: Path, control: OpenControlFile) -> WrittenBack | None:
    """Write back the journal of a marked directory, durably, and clear the mark; None where the directory is not marked.

    The caller holds the directory's lock, and none of its partitions is open.  After a crash at any point the next call completes
    the work.  A journal file made by another directory is not removed: this directory is then a copy of that one, or was moved.

    Raises DamageError (state file or journal missing, or damaged), DiskError; the segments then hold their former bytes or the
    journaled ones.
    """
    if not control.journaled:
        if Path(state_path(storage)).exists():  # the mark was cleared, but perhaps not durably
            control.set_journaled(False)
            remove_state(storage)
        return None
    state = _state_in_force(storage)
    failed: dict[int, WaltzError] = {}
    journaled = in_force(state, list(_areas_of(state)))
    for partition, parts in sorted(journaled.items()):
        try:
            if not _deletion_unfinished(storage, partition):
                write_back(storage, parts, control.cluster_key)
        except (DamageError, DiskError) as error:
            failed[partition] = error
    try:
        _keep(storage, control, state, failed)
    except DiskFullError as error:
        if not failed:
            raise
        # the next opening will write back all of them, so none may change meanwhile: each waits for room, as those that failed
        failed = {**dict.fromkeys(journaled, error), **failed}
    return WrittenBack(state.path, failed)


def write_back_partition(storage: Path, control: OpenControlFile, partition: int) -> None:
    """Write back one partition of which `write_back_journal` could not do so.  Raises DamageError, DiskError.

    The journal is still kept for it (`keep_for`).
    """
    if control.journaled:
        state = _state_in_force(storage)
        write_back(storage, in_force(state, list(_areas_of(state))).get(partition, ()), control.cluster_key)


def _state_in_force(storage: Path) -> JournalState:
    """The state file of a marked directory.  Raises DamageError, also where there is none."""
    state = read_state(storage)
    if state is None:
        raise DamageError(
            f"{state_path(storage)}: is missing, and the control file says that acknowledged records stand in a commit journal",
            advice=f"put the file back: it names the journal; {GIVING_UP}",
        )
    return state


def keep_for(storage: Path, control: OpenControlFile, partitions: Iterable[int]) -> None:
    """Keep the journal of a marked directory for these partitions only, durably; without any, clear the mark.

    Raises DiskError.
    """
    state = read_state(storage)
    if state is not None:
        _keep(storage, control, state, partitions)


def _keep(storage: Path, control: OpenControlFile, state: JournalState, partitions: Iterable[int]) -> None:
    if kept := tuple(sorted(partitions)):
        write_state(storage, replace(state, partitions=kept))
        return
    control.set_journaled(False)
    remove_state(storage)
    if _is_own(storage, state):
        remove_file(state.path)


def _deletion_unfinished(storage: Path, partition: int) -> bool:
    """Whether a deletion of the partition is unfinished, so that its records need no write-back.  Raises DiskReadError."""
    return not file_status.is_directory(storage / str(partition)) and file_status.is_directory(
        retired_place(storage, DELETING, partition)
    )


def _areas_of(state: JournalState) -> Iterator[bytes]:
    """The bytes of a journal's areas.  Raises DamageError where it is not there, DiskReadError."""
    try:
        size = state.path.stat().st_size // AREAS
        for number in range(AREAS):
            yield places.read_range(state.path, number * size, size)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamageError(
            f"{state.path}: is not there, and acknowledged records may stand in this commit journal and nowhere else",
            advice=f"bring its device back; {GIVING_UP}",
        ) from error
    except OSError as error:
        raise DiskReadError(state.path, None, error, doing="examine") from error


def _is_own(storage: Path, state: JournalState) -> bool:
    """Whether a journal belongs to this directory alone: it is inside, or was made for the directory at this path.

    Otherwise the directory may be a copy, whose original still needs the journal, or is writing it.  Nothing tells a copy from a
    directory that was moved: also its device and inode may be those that the original had, as file systems give inodes away
    again, their roots have the same ones, and devices get other numbers at a reboot.  A copy may have been put at its original's
    path, and containers may each have a directory at the same path: a journal that is written is never its own.
    """
    if is_written(state.path):
        return False
    # links followed: one that leads out of the directory is in a copy as well
    if Path(os.path.realpath(state.path.parent)).is_relative_to(os.path.realpath(storage)):
        return True
    with contextlib.suppress(DiskError, FileNotFoundError):
        header = decode_area_header(disk.read_range(state.path, 0, BLOCK))
        if header is not None and header.owner == owner_of(storage):
            return header.journal_id == state.journal_id  # else it is one that was made since, in this one's place
    return False


def is_written(path: Path) -> bool:
    """Whether a process has this journal in use.  Takes no lock."""
    return lock_holder(path.parent, path) is not None


def remove_file(path: Path) -> None:
    """Remove a journal that is no longer needed; errors are ignored."""
    with contextlib.suppress(DiskError):
        disk.unlink(path)
