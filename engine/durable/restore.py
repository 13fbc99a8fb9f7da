"""Restoring files from a quarantine entry: first check that every file can be restored, then restore them; repeatable.

A repair, or its roll-back, may have been interrupted anywhere, and another program may have changed a file since.  So a file is
restored only when its present contents are the original, the repair's result, or a mixture of the two that a crash can leave.
Anything else is newer data, which is never overwritten.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

import numpy as np

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import file_numbers, names_in
from waltzctl.engine.durable.manifest import KeptFile, KeptMove, KeptRange, QuarantineEntry, RepairState, Stamp, locate
from waltzctl.engine.durable.relocation import relocate, settle_relocations
from waltzctl.engine.errors import DamageError, DiskReadError, DiskWriteError
from waltzctl.engine.findings import Code, make_finding

CHUNK = 1 << 20
"""Bytes per read."""


class Way(enum.Enum):
    """The step that restores one file."""

    NOTHING = "as it was"
    RANGES = "write the kept ranges back"
    MOVE = "move the kept file back"
    REMOVE = "remove the file that the repair made"


def read_chunks(path: PurePath, start: int, stop: int) -> Iterator[bytes]:
    """Bytes from `start` up to `stop` of a file, in pieces; fewer when the file is shorter.  Raises DiskReadError."""
    while start < stop:
        part = disk.read_range(path, start, min(CHUNK, stop - start))
        if not part:
            return
        yield part
        start += len(part)


def stamp(path: PurePath, start: int = 0) -> Stamp | None:
    """Size, SHA-256 from byte `start` on and modification time of a file; None when there is none.  Raises DiskReadError."""
    state = file_numbers(path)
    if state is None:
        return None
    digest = hashlib.sha256()
    for part in read_chunks(path, start, state.size):
        digest.update(part)
    return Stamp(state.size, digest.hexdigest(), state.modified_ns, start)


def stamp_as(path: Path, known: Stamp | None) -> Stamp | None:
    """The stamp of a file with the same `start` as a known stamp.  Raises DiskReadError."""
    return stamp(path, 0 if known is None else known.start)


def same_contents(first: Stamp | None, second: Stamp | None) -> bool:
    """Whether two stamps have the same size and SHA-256 (or are both None, for no file); times are not compared."""
    if first is None or second is None:
        return first is second
    return (first.size, first.sha256, first.start) == (second.size, second.sha256, second.start)


def ways_back(entry: QuarantineEntry) -> list[tuple[KeptFile, Way]]:
    """The way to restore each file of an entry.  Raises DamageError when a file or a moved directory cannot be restored."""
    for move in entry.moves:
        moved_back(entry, move)
    return [(file, way_back(entry, file)) for file in entry.files]


def check_kept(entry: QuarantineEntry, files: Iterable[KeptFile]) -> None:
    """Raise DamageError when a kept copy of these files of an applied repair is missing, or not what it was.  Changes nothing."""
    for file in files:
        whole = None if file.before is None else file.before.sha256
        for name, digest in ((file.kept, whole), *((one.kept, one.kept_sha256) for one in file.ranges)):
            found = None if name is None or not _present(entry, name) else stamp(entry.path / name)
            if name is not None and (found is None or found.sha256 != digest):
                why = "the kept copy is not " + ("there any more" if found is None else "what the manifest says")
                raise _refuse(entry, entry.path / name, why)


def way_back(entry: QuarantineEntry, file: KeptFile) -> Way:
    """The way to restore a file.  Changes nothing.

    Raises DamageError when the present contents are neither the original nor anything that this repair can have left.
    """
    path = locate(entry.storage, file.path)
    if file.in_place:
        return _way_back_in_place(entry, file, path)
    now = stamp(path)
    if file.kept is not None:
        if not _present(entry, file.kept):
            if now is None:
                raise _refuse(entry, path, "neither the file nor its kept copy is there")
            if same_contents(now, file.after) and not (
                same_contents(now, file.before) or (file.built is not None and _present(entry, file.built))
            ):
                raise _refuse(entry, entry.path / file.kept, "the kept copy is not there any more")
            return Way.NOTHING  # not yet moved into the entry, or restored before
        if now is not None and not same_contents(now, file.before) and not same_contents(now, file.after):
            raise _refuse(entry, path, "somebody changed the file after the repair")
        if not same_contents(stamp(entry.path / file.kept), file.before):
            raise _refuse(entry, entry.path / file.kept, "the kept copy is not what the manifest says")
        return Way.MOVE
    if now is None:
        return Way.NOTHING
    if same_contents(now, file.after):
        return Way.REMOVE  # even if the built copy is still here: after a crash the same file may have both names
    if file.built is not None and _present(entry, file.built):
        return Way.NOTHING  # the repair had not made the file yet, so another program did
    raise _refuse(entry, path, "somebody changed the file after the repair made it")


def _present(entry: QuarantineEntry, name: str) -> bool:
    path = entry.path / name
    return path.is_file() and not path.is_symlink()


def _way_back_in_place(entry: QuarantineEntry, file: KeptFile, path: Path) -> Way:
    before, after = file.before, file.after
    assert before is not None
    assert after is not None  # an edit in place has both
    state = file_numbers(path)
    if state is None:
        raise _refuse(entry, path, "the file is missing")
    now = stamp_as(path, before)
    if same_contents(now, before):
        return Way.NOTHING
    shortest, longest = sorted((before.size, after.size))
    if not shortest <= state.size <= longest:
        raise _refuse(entry, path, f"it has {state.size} bytes now, which this repair does not explain")
    as_left = same_contents(now, after)  # then the copies of what the repair wrote explain nothing more
    for one in file.ranges:
        for name in (one.kept,) if as_left else (one.kept, one.built):
            if name is not None and not _present(entry, name):
                raise _refuse(entry, entry.path / name, "the kept copy is not there any more")
        if not as_left and not _is_explained(entry, one, path, state.size, shortest):
            raise _refuse(entry, path, f"the bytes at offset {one.offset} are neither the old nor the new ones")
    digest = hashlib.sha256()
    for part in _restored_bytes(entry, file, path, before):
        digest.update(part)
    if digest.hexdigest() != before.sha256:
        raise _refuse(entry, path, "somebody changed it outside of the places that the repair touched")
    return Way.RANGES


def _restored_bytes(entry: QuarantineEntry, file: KeptFile, path: Path, before: Stamp) -> Iterator[bytes]:
    """The bytes that restoring would give, from where the checksum begins: the file with every kept range written back."""
    position = before.start
    for one in sorted(file.ranges, key=lambda one: one.offset):
        if one.kept is not None:
            yield from read_chunks(path, position, one.offset)
            yield from read_chunks(entry.path / one.kept, 0, one.length)
            position = one.offset + one.length
    yield from read_chunks(path, position, before.size)


def _is_explained(entry: QuarantineEntry, one: KeptRange, path: Path, size: int, shortest: int) -> bool:
    """Whether every byte of a range is the old one, the new one, or a zero beyond the shorter of the two lengths."""
    stop = min(size, one.offset + max(one.length, one.written))
    for start in range(one.offset, stop, CHUNK):
        now = np.frombuffer(disk.read_range(path, start, min(CHUNK, stop - start)), np.uint8)
        right = (now == 0) & (np.arange(start, start + len(now)) >= shortest)
        for name in (one.kept, one.built):
            if name is not None:
                raw = disk.read_range(entry.path / name, start - one.offset, len(now))
                copy = np.frombuffer(raw, np.uint8)
                right[: len(copy)] |= now[: len(copy)] == copy
        if not right.all():
            return False
    return True


def moved_back(entry: QuarantineEntry, move: KeptMove) -> bool:
    """Whether a moved directory still has to be moved back.  Changes nothing.

    Raises DamageError when neither of its two paths exists, or both do.
    """
    source, target = locate(entry.storage, move.path), locate(entry.storage, move.target)
    here, there = os.path.lexists(source), os.path.lexists(target)
    if here == there:
        where = "something is there again" if here else "it is at neither of its places"
        raise _refuse(entry, source, f"{where}; it was moved to {target}")
    if not (source if here else target).is_dir():
        raise _refuse(entry, source if here else target, "it is no directory any more")
    return there


def move_back(entry: QuarantineEntry, move: KeptMove) -> None:
    """Move a directory back, durably, unless that is done already."""
    source, target = entry.storage / move.path, entry.storage / move.target
    if moved_back(entry, move):
        relocate(entry.storage, target, source)


def settle_interrupted(entries: Sequence[QuarantineEntry]) -> None:
    """Make the last rename of interrupted repairs durable: the process may have died before it was synced.

    The target's directory is synced first.  For a file moved into an entry that is the entry's directory; for a file moved back
    it is the file's own.  Raises DiskWriteError.
    """
    for entry in entries:
        if entry.state is RepairState.PREPARED:
            disk.sync_directory(entry.path)
    if entries:
        settle_relocations(entries[0].storage)
    for entry in entries:
        if entry.state is not RepairState.PREPARED:
            for parent in sorted({(entry.storage / file.path).parent for file in entry.files if not file.in_place}):
                if parent.is_dir():
                    disk.sync_directory(parent)
            disk.sync_directory(entry.path)


def put_back(entry: QuarantineEntry, file: KeptFile, way: Way) -> None:
    """Restore one file, durably.  Raises DiskWriteError, after which it may be repeated.

    The modification time is restored only for the file's owner and the superuser (`other_times`).

    What was changed in place and is right already is written again: a process may have restored it whose sync failed, or never
    came, and what a failed sync left in memory no other one finds.  (Renames are synced by `settle_interrupted`.)
    """
    path = entry.storage / file.path
    if way is Way.MOVE:
        assert file.kept is not None
        if not path.parent.is_dir():
            disk.make_directory(path.parent)
            disk.sync_directory(path.parent.parent)
        kept = entry.path / file.kept
        disk.rename(kept, path)
        disk.sync_directory(path.parent)  # the new name first; the next manifest syncs the removal of the old one
        if kept.exists():  # after a crash one file may have both names, and rename(2) between them does nothing
            disk.unlink(kept)
    elif way is Way.REMOVE:
        disk.unlink(path)
        disk.sync_directory(path.parent)
    elif way is Way.RANGES:
        assert file.before is not None
        with disk.WritableFile.open(path) as target:
            if target.size() > file.before.size:
                target.truncate(file.before.size)
            for one in sorted(file.ranges, key=lambda one: one.offset):
                if one.kept is None:
                    continue
                position = one.offset
                for part in read_chunks(entry.path / one.kept, 0, one.length):
                    target.write_at(position, part)
                    position += len(part)
            target.sync()
    elif file.in_place:
        _write_again(file, path)
        disk.sync_file(path)
    if file.in_place and file.before is not None:  # a file that was moved still has its modification time
        _put_time_back(path, file.before)


def _write_again(file: KeptFile, path: Path) -> None:
    """Write ranges that have their old bytes already, with the bytes that are read: the copies may be gone by now."""
    try:
        with disk.WritableFile.open(path) as target:
            for one in file.ranges:
                for start in range(one.offset, one.offset + one.length, CHUNK):
                    with contextlib.suppress(DiskReadError):  # not in memory, so that the disk has what there is
                        target.write_at(start, target.read_at(start, min(CHUNK, one.offset + one.length - start)))
    except DiskWriteError as error:
        if not isinstance(error.__cause__, PermissionError):  # the repair may have failed for that
            raise


def _put_time_back(path: Path, before: Stamp) -> None:
    state = file_numbers(path)
    assert state is not None  # it was open a moment ago
    if before.modified_ns is None or state.modified_ns == before.modified_ns:
        return
    try:
        disk.set_times(path, before.modified_ns)
    except DiskWriteError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        # Only the owner may set a file's time.  The contents are restored and durable, so this is no failure.


def other_times(entries: Iterable[QuarantineEntry]) -> tuple[Path, ...]:
    """Files restored from `entries`, in this order, whose modification time could not be restored."""
    before = {entry.storage / file.path: file.before for entry in entries for file in entry.files if file.in_place}
    found = [(path, file_numbers(path), known) for path, known in before.items()]
    return tuple(
        path for path, now, known in found if now and known and known.modified_ns not in (None, now.modified_ns)
    )


def remove_made_directories(entry: QuarantineEntry) -> None:
    """Remove the directories that the repair made, if they are empty."""
    for name in reversed(entry.directories):
        path = locate(entry.storage, name)
        if names_in(path) == []:
            disk.remove_directory(path)
        disk.sync_directory(path.parent)


def _refuse(entry: QuarantineEntry, path: Path, why: str) -> DamageError:
    message = f"{path}: the repair {entry.id} cannot be taken back: {why}"
    finding = make_finding(Code.REPAIR_INTERRUPTED, path, message, storage_directory=entry.storage)
    advice = f"nothing was changed; everything that the repair took away is in {entry.path}"
    return DamageError(message, (finding,), advice=advice)
