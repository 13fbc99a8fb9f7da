"""Stages 1 and 2 of a repair (`engine.durable.quarantine`): keep the bytes that edits remove, then carry the edits out."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.edits import Cut, Edit, FileEdits, MoveDirectory, Overwrite, Remove, Replace, group_edits
from waltzctl.engine.durable.file_status import file_numbers, special_kind
from waltzctl.engine.durable.manifest import (
    KeptFile,
    KeptMove,
    KeptRange,
    QuarantineEntry,
    RepairState,
    Stamp,
    check_move,
    locate,
    quarantine_directory,
    write_entry,
)
from waltzctl.engine.durable.mounts import mount_of
from waltzctl.engine.durable.relocation import relocate
from waltzctl.engine.durable.restore import read_chunks, same_contents, stamp
from waltzctl.engine.errors import DiskReadError, DiskWriteError, RefusedError, StalePlanError

MANIFEST_ALLOWANCE = 64 << 10
"""Bytes of free space required in addition to the copies and new files: for manifest, audit journal and directories."""


def check_edits(
    storage: Path, edits: Sequence[Edit], state_files: Collection[str]
) -> tuple[tuple[FileEdits, ...], list[KeptMove]]:
    """Check that every edit can be made; return the edits by file, and the moves of directories.  Read-only.

    Also called when a plan is made, so that a dry run is refused for the same reasons as the application.  Raises RefusedError
    when a path leads out of the directory or onto another file system, StalePlanError for a missing file, DiskReadError, and
    ValueError for edits that contradict one another.
    """
    groups = group_edits(storage, edits, state_files)
    for group in groups:
        _check_place(storage, group)
    return groups, [_check_move(storage, edit) for edit in edits if isinstance(edit, MoveDirectory)]


def _check_move(storage: Path, edit: MoveDirectory) -> KeptMove:
    names = (edit.path.relative_to(storage).as_posix(), edit.target.relative_to(storage).as_posix())
    move = check_move(*names)
    source, target = locate(storage, move.path), locate(storage, move.target)
    if not source.is_dir():
        raise StalePlanError(f"{source}: the directory is not there any more", advice="make the plan again")
    if os.path.lexists(target):
        raise RefusedError(
            f"{target}: files of partition {move.partition} are here already", advice="move one of the two away"
        )
    return move


def _check_place(storage: Path, group: FileEdits) -> None:
    above = (storage / group.name).parent
    if os.path.lexists(above) and not above.is_dir():
        raise RefusedError(
            f"{above}: it is {special_kind(above) or 'a file'}, not a directory", advice="move it away by hand"
        )
    path = locate(storage, group.name)
    status = file_numbers(path)
    if (kind := special_kind(path)) is not None:
        raise RefusedError(f"{path}: it is {kind}, not a regular file", advice="move it away by hand")
    if status is None and not isinstance(group.edits[0], Replace):
        raise StalePlanError(f"{path}: the file is not there any more", advice="make the plan again")
    state = storage / disk.STATE_DIRECTORY
    home = state if state.is_dir() else storage
    try:
        here, there = (mount_of(path.parent), mount_of(home)) if path.parent.is_dir() else (None, None)
    except OSError as error:
        raise DiskReadError(error.filename or path.parent, None, error, doing="look at") from error
    if here != there and not (group.in_place and here and there and here[0] == there[0]):
        raise RefusedError(
            f"{path.parent}: lies on another file system, or mount, than {home}, so that files cannot be moved to the quarantine",
            advice="while nobody has the directory, unmount that, or remove the link, and copy its files there",
        )
    if group.in_place:
        assert status is not None  # a missing file was refused above
        group.ranges(status.size)


def check_space(storage: Path, groups: Iterable[FileEdits]) -> None:
    """Raise DiskFullError when the kept copies and the new files would not fit on the file system."""
    needed = MANIFEST_ALLOWANCE
    for group in groups:
        state = file_numbers(group.path)
        size = state.size if state else 0
        if group.in_place:
            needed += sum(length + len(data) for _, length, data in group.ranges(size))
        elif isinstance(group.edits[0], Replace):
            needed += size if group.edits[0].size is None else group.edits[0].size
    disk.check_free_space(storage, needed, quarantine_directory(storage), doing="keep what the repair replaces")


def prepare(entry: QuarantineEntry, groups: Iterable[FileEdits], moves: Iterable[KeptMove]) -> QuarantineEntry:
    """Copy the bytes that the edits remove and build the new files, durably; the entry is *prepared* then.

    Raises StalePlanError, DiskError; the caller has to discard the entry after an error.
    """
    storage = entry.storage
    files: list[KeptFile] = []
    directories: list[str] = []
    numbers = itertools.count()
    for group in groups:
        if group.path.is_file():
            # a killed process may have left its last writes in the page cache: the copy must match what the disk holds
            disk.sync_file(group.path)
        if group.in_place:
            disk.check_writable(group.path)  # one that cannot be written to ends the repair before it begins
            ranged = _keep_ranges(entry.path, group, numbers)
            files += [ranged] if ranged else []
            continue
        number = next(numbers)
        before = stamp(group.path)
        kept = None if before is None else f"old-{number}"
        first = group.edits[0]
        if isinstance(first, Remove):
            files.append(KeptFile(group.name, before, None, (), kept, None))
            continue
        assert isinstance(first, Replace)
        after = _build(entry.path / f"new-{number}", first.parts(), group.path)
        files.append(KeptFile(group.name, before, after, (), kept, f"new-{number}"))
        parent = group.path.parent
        relative = parent.relative_to(storage).as_posix()
        if not parent.exists() and relative not in directories:
            directories.append(relative)
    entry = replace(
        entry, state=RepairState.PREPARED, files=tuple(files), directories=tuple(directories), moves=tuple(moves)
    )
    write_entry(entry)  # also syncs the entry's directory, and so the names of the copies
    return entry


def _build(path: Path, parts: Iterable[bytes], like: Path) -> Stamp:
    """Write and sync a new file, read it back and compare.  `like`: the file whose ownership and mode it gets."""
    digest = hashlib.sha256()
    size = 0
    with disk.WritableFile.create(path, like=like) as file:
        for part in parts:
            file.write_at(size, part)
            digest.update(part)
            size += len(part)
        file.sync()
    wanted = Stamp(size, digest.hexdigest(), None)
    found = stamp(path)
    if not same_contents(found, wanted):
        cause = OSError(errno.EIO, "it does not read back as it was written")
        raise DiskWriteError(path, None, cause, doing="build the file")
    return wanted


def _keep_ranges(directory: Path, group: FileEdits, numbers: Iterator[int]) -> KeptFile | None:
    """Copy the bytes that edits in place of one file remove and write, and compute the file's checksums before and after.

    None when the edits change nothing.
    """
    state = file_numbers(group.path)
    assert state is not None  # checked before
    ranges: list[KeptRange] = []
    for offset, length, data in group.ranges(state.size):
        number = next(numbers)
        kept = f"range-{number}" if length else None
        built = f"new-{number}" if data else None
        taken = read_chunks(group.path, offset, offset + length)
        old = _build(directory / kept, taken, group.path) if kept else None
        new = _build(directory / built, [data], group.path) if built else None
        if old is not None and old.size != length:
            raise StalePlanError(f"{group.path}: the file became shorter", advice="make the plan again")
        if length or data:
            sums = (old.sha256 if old else None, new.sha256 if new else None)
            ranges.append(KeptRange(offset, length, len(data), kept, sums[0], built, sums[1]))
    if not ranges:
        return None
    start = group.known_from
    before = stamp(group.path, start)
    digest, size, position = hashlib.sha256(), start, start
    pieces = sorted(group.ranges(state.size))
    for offset, length, data in [*pieces, (state.size, 0, b"")]:
        for part in read_chunks(group.path, position, offset):
            digest.update(part)
            size += len(part)
        digest.update(data)
        size += len(data)
        position = max(position, offset + length)
    return KeptFile(group.name, before, Stamp(size, digest.hexdigest(), None, start), tuple(ranges))


def carry_out(entry: QuarantineEntry, edits: Iterable[Edit]) -> None:
    """Make the edits of a prepared entry, in order.  Raises DiskError; the edits made before it can be rolled back."""
    for name in entry.directories:
        path = locate(entry.storage, name)
        disk.make_directory(path)
        disk.sync_directory(path.parent)
    files = {entry.storage / file.path: file for file in entry.files}
    for edit in edits:
        if isinstance(edit, MoveDirectory):
            relocate(entry.storage, edit.path, edit.target)
            continue
        file = files.get(Path(edit.path))
        if file is None:
            continue  # its edits in place change nothing, so it is not in the entry
        if isinstance(edit, Cut | Overwrite):
            with disk.WritableFile.open(edit.path) as target:
                if isinstance(edit, Cut):
                    target.truncate(edit.size)
                else:
                    target.write_at(edit.offset, edit.data)
                target.sync()
            continue
        if file.kept is not None:
            disk.rename(edit.path, entry.path / file.kept)
            disk.sync_directory(entry.path)  # the kept name first: the file is never without a durable name
            disk.sync_directory(edit.path.parent)
        if file.built is not None:
            disk.rename(entry.path / file.built, edit.path)
            disk.sync_directory(edit.path.parent)
