"""The quarantine: the only way in which a repair removes or replaces bytes, and the way back.

`apply_edits` goes through four stages, each durable before the next begins:

1. *preparing*: an entry ``.waltzctl/quarantine/<UTC time>-<command>[-n]/`` is made; copies of what edits in place will take
   away and the new files are written and synced there, and read again.  The storage's own files are as they were.
2. *prepared*: the manifest names everything, with SHA-256 before and after.  Now the edits are made, in order: cut,
   overwrite, or move the old file into the entry and the new one into its place.  At every instant the old bytes are
   either still in place or durably kept.
3. an audit line in the journal.
4. *applied*.

While a repair or an undo is under way the entry holds an empty file ``unsettled``.  Who finds it cannot know whether the
state that the manifest shows is durable (a process may have died between a rename and its sync), and syncs first.

A crash in stage 1 leaves nothing (the left-over entry is removed by the next writer); a crash in stage 2 or 3 leaves an
interrupted repair, which `roll_back_interrupted` takes back byte for byte.  `undo` takes an applied one back in the same way.

Everything here except `interrupted`, `list_entries` and `undo` expects that the caller holds the directory's lock.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import stat as stat_module
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine import disk
from engine.errors import (
    DiskFullError,
    DiskReadError,
    DiskWriteError,
    InvalidRequestError,
    RefusedError,
    StalePlanError,
    WaltzError,
)
from engine.regular import special_kind
from engine.repair import journal
from engine.repair.edits import Cut, Edit, FileEdits, MoveDirectory, Overwrite, Remove, Replace, group_edits
from engine.repair.manifest import (
    INTERRUPTED,
    MANIFEST,
    KeptFile,
    KeptMove,
    KeptRange,
    QuarantineEntry,
    Stamp,
    State,
    check_move,
    entry_name_valid,
    locate,
    quarantine_directory,
    read_entry,
    unusable,
    write_entry,
)
from engine.repair.restore import (
    Way,
    move_back,
    move_directory,
    put_back,
    read_chunks,
    remove_made_directories,
    same_contents,
    stamp,
    stamp_as,
    ways_back,
)
from engine.storage.view import FileState
from formats.adapters import format_time
from formats.control import CONTROL_FILE_NAME

__all__ = [
    "Cut",
    "Edit",
    "KeptFile",
    "KeptRange",
    "Overwrite",
    "QuarantineEntry",
    "Remove",
    "Replace",
    "Stamp",
    "State",
    "UndoResult",
    "apply_edits",
    "check_edits",
    "interrupted",
    "list_entries",
    "roll_back_interrupted",
    "undo",
    "undo_locked",
]

UNSETTLED = "unsettled"
MANIFEST_ALLOWANCE = 64 << 10
"""Bytes of free space asked for beside what is kept and built: manifest, journal, directories."""


@dataclass(frozen=True, slots=True)
class UndoResult:
    """What `undo` did: the entries taken back (several only when interrupted ones were), and the files that came back.

    `taken_back`: interrupted ones that were taken back before the entry that was meant.  `set_aside`: the entry that keeps what
    was written since.
    """

    entries: tuple[QuarantineEntry, ...]
    files: tuple[Path, ...]
    taken_back: tuple[QuarantineEntry, ...] = ()
    set_aside: QuarantineEntry | None = None

    @property
    def entry(self) -> QuarantineEntry:
        """The entry taken back, the latest of several."""
        return self.entries[-1]


def _entry_directories(storage: Path) -> list[Path]:
    try:
        names = os.listdir(quarantine_directory(storage))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DiskReadError(quarantine_directory(storage), None, error, doing="list") from error
    return [quarantine_directory(storage) / name for name in sorted(names) if entry_name_valid(name)]


def _all_entries(storage: Path) -> list[QuarantineEntry]:
    entries = [read_entry(path) for path in _entry_directories(storage)]
    return sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.number)


def list_entries(storage: Path) -> tuple[QuarantineEntry, ...]:
    """Every repair of a storage directory, oldest first; read-only.

    Raises DamageError for a manifest that is torn or was tampered with, DiskReadError.
    """
    return tuple(entry for entry in _all_entries(storage) if entry.state is not State.PREPARING)


def interrupted(storage: Path) -> tuple[QuarantineEntry, ...]:
    """Repairs and undos that were interrupted half-way, oldest first; read-only.  Raises as `list_entries`."""
    return tuple(entry for entry in _all_entries(storage) if entry.state in INTERRUPTED)


def apply_edits(
    storage: Path, edits: Sequence[Edit], *, command: str, arguments: Sequence[str], plan_hash: str
) -> QuarantineEntry:
    """Keep what the edits take away, carry them out, and return the entry, whose state is then *applied*.

    The caller holds the DirectoryLock and has rolled back what was interrupted before.  Paths begin with `storage`.

    Raises DiskFullError before anything is changed when there is not enough space; RefusedError when a repair was
    interrupted before or a path leads out of the directory; ValueError for edits that contradict one another; DiskError
    when the system fails, after everything was taken back (or is left for `roll_back_interrupted`).
    """
    groups, moves = check_edits(storage, edits)
    if not groups and not moves:
        raise ValueError("there is nothing to do")
    if left := interrupted(storage):
        raise RefusedError(f"{storage}: the repair {left[0].id} was interrupted", advice="take it back with undo first")
    _check_space(storage, groups)
    entry = _make_entry(storage, command, arguments, plan_hash)
    try:
        entry = _prepare(entry, groups, moves)
    except (Exception, KeyboardInterrupt):
        with contextlib.suppress(WaltzError, OSError):
            _discard(entry.path)
        raise
    try:
        _carry_out(entry, edits)
        return _finish(entry)
    except (Exception, KeyboardInterrupt):
        with contextlib.suppress(
            WaltzError, OSError
        ):  # what cannot be taken back now stays prepared, for the next writer
            _take_back(entry, State.ROLLED_BACK, ways_back(entry))
        raise


def check_edits(storage: Path, edits: Sequence[Edit]) -> tuple[tuple[FileEdits, ...], list[KeptMove]]:
    """The edits by file, and the directories that move, once it is certain that each can be done where it is; read-only.

    Plans are made through here as well, so that a dry run refuses what the application would.  Raises RefusedError when a path
    leads out of the directory or onto another file system, StalePlanError for a file that is gone, ValueError for edits that
    contradict one another.
    """
    groups = group_edits(storage, edits)
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
    path = locate(storage, group.name)
    status = FileState.of(path)
    if (kind := special_kind(path)) is not None:
        raise RefusedError(f"{path}: it is {kind}, not a regular file", advice="move it away by hand")
    if status is None and not isinstance(group.edits[0], Replace):
        raise StalePlanError(f"{path}: the file is not there any more", advice="make the plan again")
    if status is not None and not stat_module.S_ISREG(os.lstat(path).st_mode):
        raise RefusedError(f"{path}: not a regular file")
    state = storage / disk.STATE_DIRECTORY
    home = state if state.is_dir() else storage
    if path.parent.is_dir() and os.stat(path.parent).st_dev != os.stat(home).st_dev:
        raise RefusedError(
            f"{path.parent}: lies on another file system than {home}, so that files cannot be moved to the quarantine"
        )
    if group.in_place and status is not None:
        group.ranges(status.size)


def _check_space(storage: Path, groups: Iterable[FileEdits]) -> None:
    needed = MANIFEST_ALLOWANCE
    for group in groups:
        state = FileState.of(group.path)
        size = state.size if state else 0
        if group.in_place:
            needed += sum(length + len(data) for _, length, data in group.ranges(size))
        elif isinstance(group.edits[0], Replace):
            needed += size if group.edits[0].size is None else group.edits[0].size
    free = disk.free_bytes(storage)
    if needed > free:
        cause = OSError(errno.ENOSPC, f"{needed} bytes are needed, {free} are free; nothing was changed")
        raise DiskFullError(quarantine_directory(storage), None, cause, doing="keep what the repair replaces")


def _make_entry(storage: Path, command: str, arguments: Sequence[str], plan_hash: str) -> QuarantineEntry:
    directory = quarantine_directory(storage)
    for path in (directory.parent, directory):
        if not path.is_dir():
            disk.make_directory(path)
        disk.sync_directory(path.parent)  # always: whoever made it may have died before this
    now = disk.now_ms()
    stem = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now // 1000))}-{command}"
    taken = {path.name for path in _entry_directories(storage)}
    name = next(n for n in (stem, *(f"{stem}-{k}" for k in range(2, len(taken) + 3))) if n not in taken)
    number = 1 + max((entry.number for entry in _all_entries(storage)), default=0)
    path = directory / name
    disk.make_directory(path)
    disk.sync_directory(directory)
    created = format_time(now) or ""
    return QuarantineEntry(name, number, command, tuple(arguments), created, plan_hash, State.PREPARING, path)


def _prepare(entry: QuarantineEntry, groups: Iterable[FileEdits], moves: Iterable[KeptMove]) -> QuarantineEntry:
    write_entry(entry)  # before any copy: a directory with copies always has a manifest that says what they are
    _unsettle(entry.path)
    storage = entry.storage
    files: list[KeptFile] = []
    directories: list[str] = []
    numbers = itertools.count()
    for group in groups:
        if group.path.is_file():
            disk.sync_file(
                group.path
            )  # a killed process may have left it in memory only: what is kept must be what stays
        if group.in_place:
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
        after = _build(entry.path / f"new-{number}", first.parts())
        files.append(KeptFile(group.name, before, after, (), kept, f"new-{number}"))
        parent = group.path.parent
        relative = parent.relative_to(storage).as_posix()
        if not parent.exists() and relative not in directories:
            directories.append(relative)
    disk.sync_directory(entry.path)
    entry = replace(entry, state=State.PREPARED, files=tuple(files), directories=tuple(directories), moves=tuple(moves))
    write_entry(entry)
    return entry


def _build(path: Path, parts: Iterable[bytes]) -> Stamp:
    """Write and sync a new file, read it again and compare."""
    digest = hashlib.sha256()
    size = 0
    with disk.WritableFile.create(path) as file:
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
    """Copy what the edits of one file in place take away and bring, and compute the file's checksums before and after.

    None when the edits change nothing.
    """
    state = FileState.of(group.path)
    assert state is not None  # checked before
    ranges: list[KeptRange] = []
    for offset, length, data in group.ranges(state.size):
        number = next(numbers)
        kept = f"range-{number}" if length else None
        built = f"new-{number}" if data else None
        old = _build(directory / kept, read_chunks(group.path, offset, offset + length)) if kept else None
        new = _build(directory / built, [data]) if built else None
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


def _carry_out(entry: QuarantineEntry, edits: Iterable[Edit]) -> None:
    for name in entry.directories:
        path = locate(entry.storage, name)
        disk.make_directory(path)
        disk.sync_directory(path.parent)
    files = {entry.storage / file.path: file for file in entry.files}
    for edit in edits:
        if isinstance(edit, MoveDirectory):
            move_directory(edit.path, edit.target)
            continue
        file = files.get(edit.path)
        if file is None:
            continue  # edits in place that change nothing
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
            disk.sync_directory(entry.path)


def _finish(entry: QuarantineEntry) -> QuarantineEntry:
    from engine.repair.since import partition_states

    files: list[KeptFile] = []
    for file in entry.files:
        found = stamp_as(entry.storage / file.path, file.after)
        if not same_contents(found, file.after):
            cause = OSError(errno.EIO, "the file is not what the repair was to leave")
            raise DiskWriteError(entry.storage / file.path, None, cause, doing="verify the repair")
        files.append(replace(file, after=found))
    entry = replace(entry, state=State.APPLIED, files=tuple(files), partitions=partition_states(entry))
    journal.record(entry.storage, "applied", entry)
    write_entry(entry)
    _settle(entry.path)
    return entry


def _unsettle(path: Path) -> None:
    if not (path / UNSETTLED).exists():
        disk.WritableFile.create(path / UNSETTLED).close()


def _settle(path: Path) -> None:
    """Make the state that the manifest shows durable, where that is not known."""
    if (path / UNSETTLED).exists():
        disk.sync_directory(path)
        disk.unlink(path / UNSETTLED)


def _discard(path: Path) -> None:
    """Remove an entry under which nothing was changed; its manifest last."""
    names = sorted(os.listdir(path), key=lambda name: name == MANIFEST)
    if any(name.startswith("old-") for name in names):
        raise unusable(path, "it says that nothing was changed, but a file was moved here")
    for name in names:
        if name == MANIFEST:
            disk.sync_directory(path)
        disk.unlink(path / name)
    disk.remove_directory(path)
    disk.sync_directory(path.parent)


def _take_back(entry: QuarantineEntry, final: State, ways: list[tuple[KeptFile, Way]]) -> QuarantineEntry:
    """Restore every file of an entry, then mark it."""
    disk.sync_directory(entry.path)  # that it is being taken back must be known before the first file says so
    for file, way in reversed(ways):
        put_back(entry, file, way)
    for move in reversed(entry.moves):
        move_back(entry, move)
    remove_made_directories(entry)
    done = replace(entry, state=final)
    journal.record(entry.storage, final.value, done)
    write_entry(done)
    _drop_copies(done)
    _settle(done.path)
    return done


def _drop_copies(entry: QuarantineEntry) -> None:
    """Remove copies whose originals are back in place, or whose way back was given up; the manifest stays."""
    kinds = "range|new|old" if entry.state is State.PRUNED else "range|new"
    copies = [entry.path / name for name in sorted(os.listdir(entry.path)) if re.fullmatch(rf"({kinds})-\d+", name)]
    for path in copies:
        disk.unlink(path)
    if copies:
        disk.sync_directory(entry.path)


def give_up(entry: QuarantineEntry, size: int) -> None:
    """Drop the copies of an applied repair, `size` bytes, and the way back with them.  Raises DiskError.

    The manifest is the one durable step: before it the entry is whole, behind it `roll_back_interrupted` finishes the work.  The
    caller holds the DirectoryLock.
    """
    done = replace(entry, state=State.PRUNED)
    _unsettle(done.path)
    journal.record(done.storage, "pruned", done, freed=size)
    write_entry(done)
    _drop_copies(done)
    _settle(done.path)


def roll_back_interrupted(storage: Path) -> tuple[QuarantineEntry, ...]:
    """Take back every interrupted repair, latest first, and clear away entries under which nothing was changed.

    The caller holds the DirectoryLock.  May itself be interrupted and repeated; without anything to do it changes nothing.
    Raises DamageError when a file was changed by somebody else since (nothing of that repair is changed then), DiskError.
    """
    for path in _entry_directories(storage):
        found = read_entry(path)
        if found is None or found.state is State.PREPARING:
            _discard(path)
        elif found.state not in INTERRUPTED:
            _settle(path)
            if found.state is not State.APPLIED:
                _drop_copies(found)
    taken = []
    for entry in reversed(interrupted(storage)):
        final = State.UNDONE if entry.state is State.UNDOING else State.ROLLED_BACK
        taken.append(_take_back(entry, final, ways_back(entry)))
    return tuple(reversed(taken))


def undo(storage: Path, entry_id: str | None = None, *, allow_data_loss: bool = False) -> UndoResult:
    """Take the DirectoryLock, and a repair back; see `undo_locked`.  Raises DirectoryLockedError."""
    if not quarantine_directory(storage).is_dir():
        raise RefusedError(f"{storage}: no repair was made here, there is nothing to undo")
    with disk.DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        return undo_locked(storage, entry_id, allow_data_loss=allow_data_loss)


def undo_locked(storage: Path, entry_id: str | None = None, *, allow_data_loss: bool = False) -> UndoResult:
    """Take a repair back: bytes and times of every file it touched.  Without an id the latest; an interrupted one first.

    What was written since and would not join what comes back (`engine.repair.since`) is a reason to refuse.  With
    `allow_data_loss` it is first set aside, as an entry of its own: after a crash between the two the directory is as the repair
    had left it.

    The caller holds the DirectoryLock.  Raises InvalidRequestError for an unknown id, RefusedError when there is nothing to
    undo, StalePlanError naming the file when it is no longer as the repair left it, DamageError, DiskError.
    """
    from engine.repair.undoing import check_ways_back

    taken = roll_back_interrupted(storage)
    if taken and (entry_id is None or entry_id in {entry.id for entry in taken}):
        return UndoResult(taken, _paths(taken))
    entry = _choose(storage, list_entries(storage), entry_id)
    aside = _set_aside(entry, list_entries(storage)) if allow_data_loss else None
    ways = check_ways_back(entry, list_entries(storage))
    entry = replace(entry, state=State.UNDOING)
    _unsettle(entry.path)
    write_entry(entry)
    done = _take_back(entry, State.UNDONE, ways)
    return UndoResult((done,), _paths([done]), taken, aside)


def _set_aside(entry: QuarantineEntry, entries: Sequence[QuarantineEntry]) -> QuarantineEntry | None:
    """Where something came since that stands in the way of an undo, take it into the quarantine."""
    from engine.repair.undoing import to_set_aside

    edits = to_set_aside(entry, entries)
    if not edits:
        return None
    return apply_edits(entry.storage, edits, command="set-aside", arguments=[entry.id], plan_hash="")


def _paths(entries: Iterable[QuarantineEntry]) -> tuple[Path, ...]:
    entries = tuple(entries)
    files = tuple(entry.storage / file.path for entry in entries for file in entry.files)
    return files + tuple(entry.storage / move.path for entry in entries for move in entry.moves)


def _choose(storage: Path, entries: Sequence[QuarantineEntry], entry_id: str | None) -> QuarantineEntry:
    if entry_id is None:
        applied = [entry for entry in entries if entry.state is State.APPLIED]
        if not applied:
            raise RefusedError(f"{storage}: every repair was taken back already, there is nothing to undo")
        return applied[-1]
    for entry in entries:
        if entry.id == entry_id:
            if entry.state is not State.APPLIED:
                raise RefusedError(f"{entry_id}: {entry.state.why_final}")
            return entry
    raise InvalidRequestError(f"{storage}: there is no repair {entry_id!r}", advice="undo --list shows them")
