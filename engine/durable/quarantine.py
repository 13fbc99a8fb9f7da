"""The quarantine: every repair removes or replaces bytes through it, so that the repair can be rolled back or undone.

`apply_edits` goes through four stages, each durable before the next begins:

1. *preparing*: an entry ``.waltzctl/quarantine/<UTC time>-<command>[-n]/`` is made.  Copies of the bytes that edits in place will
   remove, and the new files, are written there, synced and read back.  No file of the storage is changed.
2. *prepared*: the manifest names every file and copy, with SHA-256 before and after.  Now the edits are made, in order: cut,
   overwrite, or move the old file into the entry and the new one into its place.  At every instant the old bytes are
   either still in place or durably kept.  A roll-back sets the state *rolling-back* before it restores the first file.
3. a line is appended to the audit journal.
4. *applied*.

==================  =====================================================================================================
a crash in          leaves
==================  =====================================================================================================
stage 1             an entry that the next writer removes
stage 2 or 3        an interrupted repair, which `roll_back_interrupted` reverts byte for byte
==================  =====================================================================================================

`take_back` reverts an applied repair (undo).

While a repair or an undo is in progress, the entry has a file ``unsettled``.  A writer that finds it does not know whether the
state in the manifest is durable (a process may have died between a rename and its sync), and syncs first.  That of a repair is
empty; that of an undo has the size of what is written last, and makes room for it then (`room_to_end`).

The caller holds the directory's lock, except for the read-only functions `interrupted`, `interruptions` and `list_entries`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from waltzctl.engine.durable import disk, journal
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.edits import Edit
from waltzctl.engine.durable.execution import MANIFEST_ALLOWANCE, carry_out, check_edits, check_space, prepare
from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.durable.manifest import (
    INTERRUPTED,
    MANIFEST,
    KeptFile,
    PartitionLeft,
    QuarantineEntry,
    RepairState,
    encode_entry,
    entry_name_valid,
    quarantine_directory,
    read_entry,
    unusable,
    write_entry,
)
from waltzctl.engine.durable.mounts import mount_of
from waltzctl.engine.durable.relocation import settle_relocations
from waltzctl.engine.durable.restore import (
    Way,
    move_back,
    put_back,
    remove_made_directories,
    same_contents,
    settle_interrupted,
    stamp_as,
    ways_back,
)
from waltzctl.engine.errors import DiskFullError, DiskReadError, DiskWriteError, RefusedError, WaltzError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.formats.adapters import format_time

UNSETTLED = "unsettled"
"""Name of a file in an entry: the state in the manifest may not be durable."""
_ROOM = 32 << 10
"""Bytes that the end of an undo needs besides its line and its manifest: names, and what is left over of blocks."""


@dataclass(slots=True)
class _Known:
    """What the holder of a directory's lock knows of its quarantine: none of its entries is interrupted or in preparation.

    `lock`: the one that was held; `numbers`: of the quarantine's directory; `names`: of all entries; `highest`: number of all.
    """

    lock: DirectoryLock
    numbers: tuple[int, int]
    names: set[str]
    highest: int


_KNOWN: dict[Path, _Known] = {}
"""By the quarantine's directory."""


@dataclass(frozen=True, slots=True)
class Store:
    """What the quarantine has to know about one kind of directory, such as storage directories.

    `state_files`: files in ``.waltzctl`` that a repair may change, as paths relative to the directory.  `partition_states`:
    returns the present state of the numbered directories that an entry touches, for its manifest; raises DiskReadError.
    `control`: name of the control file, on which the directory's lock is taken as well; None where there is none.
    """

    state_files: frozenset[str]
    partition_states: Callable[[QuarantineEntry], tuple[PartitionLeft, ...]]
    control: str | None = None

    def lock(self, storage: Path) -> DirectoryLock:
        """Take the directory's lock.  Raises RefusedError without a control file, DirectoryLockedError, DiskWriteError."""
        control = None if self.control is None else storage / self.control
        if control is not None and not control.is_file():
            raise RefusedError(f"{storage}: there is no control file, so that the directory cannot be locked")
        return DirectoryLock.acquire(storage, control)


def _entry_names(storage: Path) -> list[str]:
    return [name for name in names_in(quarantine_directory(storage)) or () if entry_name_valid(name)]


def _entry_directories(storage: Path) -> list[Path]:
    above = quarantine_directory(storage)
    return [above / name for name in _entry_names(storage)]


def _entries(storage: Path, store: Store) -> Iterator[QuarantineEntry]:
    """All entries that have a manifest, in any order.  Whoever needs few of them holds few: there may be thousands."""
    for path in _entry_directories(storage):
        if (entry := read_entry(path, store.state_files)) is not None:
            yield entry


def _in_order(entries: Iterable[QuarantineEntry]) -> list[QuarantineEntry]:
    return sorted(entries, key=lambda entry: entry.number)


def _look_back(storage: Path, store: Store) -> tuple[int, list[QuarantineEntry]]:
    """The highest number of an entry, 0 where there is none, and the interrupted entries, oldest first.

    Nobody changes the quarantine but who holds the lock.  So the entries are not looked at again while this process holds it:
    after a power failure a node may have to mend thousands of partitions, one after the other, each with an entry of its own, and
    those of earlier power failures are there as well.  Raises as `list_entries`.
    """
    above = quarantine_directory(storage)
    if (known := _known(above)) is not None:
        return known.highest, []
    lock, numbers, names = DirectoryLock.latest, _numbers(above), set[str]()
    highest, left, over = 0, list[QuarantineEntry](), True
    for path in _entry_directories(storage):
        # one after the other: a manifest has the names of all files of its partitions
        names.add(path.name)
        entry = read_entry(path, store.state_files)
        over &= entry is not None and entry.state not in (RepairState.PREPARING, *INTERRUPTED)
        if entry is not None:
            highest = max(highest, entry.number)
            left += [entry] if entry.state in INTERRUPTED else []
    if lock is not None and lock.held and numbers is not None and over:
        _KNOWN.clear()  # of directories with earlier locks, which are not believed any more
        _KNOWN[above] = _Known(lock, numbers, names, highest)
    return highest, _in_order(left)


def _known(above: Path) -> _Known | None:
    """What is known of a quarantine since the lock was taken."""
    known = _KNOWN.get(above)
    if known is None or known.lock is not DirectoryLock.latest or not known.lock.held:
        return None
    return known if known.numbers == _numbers(above) else None


def _numbers(above: Path) -> tuple[int, int] | None:
    """Inode and time of a quarantine's directory: it may be another one by now, or somebody may have removed entries."""
    try:
        status = os.stat(above)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def list_entries(storage: Path, store: Store) -> tuple[QuarantineEntry, ...]:
    """Every repair of a storage directory, oldest first; read-only.

    Raises DamageError for a manifest that is torn or was tampered with, DiskReadError.
    """
    return tuple(_in_order(entry for entry in _entries(storage, store) if entry.state is not RepairState.PREPARING))


def interrupted(storage: Path, store: Store) -> tuple[QuarantineEntry, ...]:
    """Repairs and undos that were interrupted, oldest first; read-only.  Raises as `list_entries`."""
    return tuple(_in_order(entry for entry in _entries(storage, store) if entry.state in INTERRUPTED))


def interruptions(storage: Path, store: Store) -> Iterator[Finding]:
    """A finding for each interrupted repair or undo, or for an unreadable quarantine; read-only."""
    try:
        entries = interrupted(storage, store)
    except WaltzError as error:
        yield make_finding(Code.READ_ERROR, quarantine_directory(storage).parent, str(error))
        return
    for entry in entries:
        yield make_finding(
            Code.REPAIR_INTERRUPTED,
            entry.path,
            f"{entry.command} of {entry.created} was interrupted half-way; quarantine {entry.id} keeps what it replaced",
            storage_directory=storage,
        )


def apply_edits(
    storage: Path,
    edits: Sequence[Edit],
    store: Store,
    *,
    command: str,
    arguments: Sequence[str],
    plan_hash: str,
    check_built: Callable[[], None] = lambda: None,
) -> QuarantineEntry:
    """Keep the bytes that the edits remove, carry the edits out, and return the entry, whose state is then *applied*.

    The caller holds the DirectoryLock and has rolled back interrupted repairs.  Paths begin with `storage`.  `check_built` is
    called when the new files are built and nothing is changed yet; where it raises, nothing is.

    ===============  =================================================================================================
    raises           when
    ===============  =================================================================================================
    DiskFullError    there is not enough space; nothing was changed
    RefusedError     an earlier repair is interrupted, or a path leads out of the directory; nothing was changed
    ValueError       edits contradict one another; nothing was changed
    DiskError        the disk fails; the repair was rolled back, or is left for `roll_back_interrupted`
    ===============  =================================================================================================
    """
    groups, moves = check_edits(storage, edits, store.state_files)
    if not groups and not moves:
        raise ValueError("there is nothing to do")
    number, left = _look_back(storage, store)
    if left:
        raise RefusedError(f"{storage}: the repair {left[0].id} was interrupted", advice="take it back with undo first")
    check_space(storage, groups)
    journal.check(storage)
    known = _KNOWN.pop(quarantine_directory(storage), None)  # it holds again when this repair is over
    taken = set(_entry_names(storage)) if known is None else known.names
    entry = _make_entry(storage, number + 1, command, arguments, plan_hash, taken)
    try:
        write_entry(entry)  # before any copy: an entry with copies always has a manifest
        _unsettle(entry.path)
        entry = prepare(entry, groups, moves)
        check_built()
    except (Exception, KeyboardInterrupt):
        with contextlib.suppress(WaltzError, OSError):
            _discard(entry.path)
        raise
    try:
        carry_out(entry, edits)
        done = _finish(entry, store)
    except (Exception, KeyboardInterrupt):
        with contextlib.suppress(WaltzError, OSError):  # if this fails, the next writer rolls the repair back
            _take_back(entry, RepairState.ROLLED_BACK, ways_back(entry))
        raise
    if known is not None and (numbers := _numbers(entry.path.parent)) is not None:
        known.names.add(entry.id)
        _KNOWN[entry.path.parent] = replace(known, numbers=numbers, highest=entry.number)
    return done


def _make_entry(
    storage: Path, number: int, command: str, arguments: Sequence[str], plan_hash: str, taken: Collection[str]
) -> QuarantineEntry:
    """Make the directory of a new entry, under none of the `taken` names."""
    directory = quarantine_directory(storage)
    for path in (directory.parent, directory):
        if not path.is_dir():
            disk.make_directory(path)
        disk.sync_directory(path.parent)  # always: the process that made it may have died before this
    now = disk.now_ms()
    stem = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now // 1000))}-{command}"
    further = (f"{stem}-{count}" for count in itertools.count(2))
    name = next(name for name in itertools.chain([stem], further) if name not in taken)
    path = directory / name
    disk.make_directory(path)
    disk.sync_directory(directory)
    created = format_time(now) or ""
    return QuarantineEntry(name, number, command, tuple(arguments), created, plan_hash, RepairState.PREPARING, path)


def _finish(entry: QuarantineEntry, store: Store) -> QuarantineEntry:
    """Stages 3 and 4: verify that every file has the intended contents, write the audit line, set the state *applied*."""
    files: list[KeptFile] = []
    for file in entry.files:
        found = stamp_as(entry.storage / file.path, file.after)
        if not same_contents(found, file.after):
            cause = OSError(errno.EIO, "the file is not what the repair was to leave")
            raise DiskWriteError(entry.storage / file.path, None, cause, doing="verify the repair")
        files.append(replace(file, after=found))
    entry = replace(entry, state=RepairState.APPLIED, files=tuple(files), partitions=store.partition_states(entry))
    journal.record(entry.storage, "applied", entry)
    write_entry(entry)
    _settle(entry.path)
    return entry


def _unsettle(path: Path) -> None:
    """Mark an entry as one whose state may not be durable."""
    if not (path / UNSETTLED).exists():
        disk.WritableFile.create(path / UNSETTLED).close()


@contextlib.contextmanager
def room_to_end(entry: QuarantineEntry) -> Iterator[None]:
    """Mark an entry as unsettled and take the room for the last line and manifest of its undo; kept unless the body fails.

    Only bytes that are written tell whether there is room: of a quota `disk.free_bytes` knows nothing, and another process may
    fill the disk meanwhile.  Raises DiskFullError, DiskWriteError; nothing is changed then.
    """
    needed = 2 * len(encode_entry(entry)) + _ROOM  # what compresses well would take no room
    _unsettle(entry.path)
    try:
        with disk.WritableFile.open(entry.path / UNSETTLED) as file:
            if file.size() < needed:
                file.write_at(0, os.urandom(needed))
                file.sync()
        yield
    except (Exception, KeyboardInterrupt):
        with contextlib.suppress(WaltzError, OSError):
            _settle(entry.path)
        raise


def _give_room(path: Path) -> None:
    """Give the room back that `room_to_end` took."""
    if (path / UNSETTLED).exists():
        with disk.WritableFile.open(path / UNSETTLED) as file:
            if file.size():
                file.truncate(0)


def _settle(path: Path) -> None:
    """Make the state in an entry's manifest durable, unless it is known to be, and remove the mark."""
    if (path / UNSETTLED).exists():
        disk.sync_directory(path)
        disk.unlink(path / UNSETTLED)


def _discard(path: Path) -> None:
    """Remove an entry in state *preparing*, whose edits were not begun; its manifest last."""
    names = sorted(names_in(path) or (), key=lambda name: name == MANIFEST)
    if any(name.startswith("old-") for name in names):
        raise unusable(path, "it says that nothing was changed, but a file was moved here")
    for name in names:
        if name == MANIFEST:
            disk.sync_directory(path)
        disk.unlink(path / name)
    disk.remove_directory(path)  # if a crash brings it back, it is empty, or still in state *preparing*


def _take_back(entry: QuarantineEntry, final: RepairState, ways: list[tuple[KeptFile, Way]]) -> QuarantineEntry:
    """Restore every file and directory of an entry, then set its state to `final`."""
    if entry.state is RepairState.PREPARED:  # after a crash the next writer has to know that files are being restored
        entry = replace(entry, state=RepairState.ROLLING_BACK)
        write_entry(entry)
    for file, way in reversed(ways):
        put_back(entry, file, way)
    for move in reversed(entry.moves):
        move_back(entry, move)
    remove_made_directories(entry)
    done = replace(entry, state=final)
    _give_room(entry.path)
    # everything is as it was, so that no copy is needed any more
    _retry_without_copies(done, lambda: journal.record(entry.storage, final.value, done))
    _retry_without_copies(done, lambda: write_entry(done))
    _drop_copies(done.path, done.state)
    _settle(done.path)
    return done


def _drop_copies(entry: Path, state: RepairState) -> None:
    """Remove the copies of an entry that was reverted or pruned, as its state is; the manifest stays.

    Not durable: copies that a crash brings back are removed by the next writer.
    """
    kinds = "range|new|old" if state is RepairState.PRUNED else "range|new"
    copies = [entry / name for name in names_in(entry) or () if re.fullmatch(rf"({kinds})-\d+", name)]
    for path in copies:
        disk.unlink(path)


def give_up(entry: QuarantineEntry, size: int) -> None:
    """Prune an applied repair: delete its copies, `size` bytes, after which it cannot be undone.  Raises DiskError.

    The new manifest is the step that takes effect: before it the entry is complete, after it `roll_back_interrupted` finishes the
    deletion.  Only when the disk is too full for the audit line or the manifest, or has no inode for a file, the copies are
    deleted first, because pruning must be able to free space.  An entry that a crash then leaves without copies cannot be undone,
    and is pruned again.

    The caller holds the DirectoryLock.
    """
    done = replace(entry, state=RepairState.PRUNED)
    _retry_without_copies(done, lambda: _unsettle(done.path))
    _retry_without_copies(done, lambda: journal.record(done.storage, "pruned", done, freed=size))
    _retry_without_copies(done, lambda: write_entry(done))
    _drop_copies(done.path, done.state)
    _settle(done.path)


def _retry_without_copies(done: QuarantineEntry, write: Callable[[], None]) -> None:
    """Call `write`; when the disk is full, delete the copies that the entry needs no more, and call it again."""
    try:
        write()
    except DiskFullError:
        _drop_copies(done.path, done.state)
        write()


def roll_back_interrupted(storage: Path, store: Store) -> tuple[QuarantineEntry, ...]:
    """Revert every interrupted repair, latest first, and remove entries whose edits were not begun.

    The caller holds the DirectoryLock.  May itself be interrupted and repeated; without anything to do it changes nothing.  A
    rename that a process did not live to sync is made durable first.  Raises DamageError when a file was changed after the repair
    (nothing of that repair is reverted then), DiskError.
    """
    _KNOWN.pop(quarantine_directory(storage), None)
    others: dict[Path, RepairState | None] = {}  # not the entries: there may be thousands, each with many names
    found: list[QuarantineEntry] = []
    for path in _entry_directories(storage):
        entry = read_entry(path, store.state_files)
        if entry is not None and entry.state in INTERRUPTED:
            found.append(entry)
        else:
            others[path] = None if entry is None else entry.state
    left = _in_order(found)
    settle_interrupted(left)
    if not left:
        settle_relocations(storage)
    for path, state in others.items():
        if state is None or state is RepairState.PREPARING:
            _discard(path)
        else:
            _settle(path)
            if state is not RepairState.APPLIED:
                _drop_copies(path, state)
    taken = []
    for entry in reversed(left):
        final = RepairState.UNDONE if entry.state is RepairState.UNDOING else RepairState.ROLLED_BACK
        taken.append(_take_back(entry, final, ways_back(entry)))
    return tuple(reversed(taken))


def check_can_end(entry: QuarantineEntry, *, manifests: int = 1) -> None:
    """Check that the undo of an applied repair, whose files are as it left them, can end once it is begun.  Read-only.

    Nobody can write until it has: the next writer continues it first.  `manifests`: of how many entries, this one's included, one
    is written before it ends.  Raises DiskFullError when there is no room for what was cut, and as `check_mounts`.
    """
    check_mounts(entry)
    sizes = [
        (file.before.size, file.after.size) for file in entry.files if file.in_place and file.before and file.after
    ]
    if needed := sum(max(0, before - after) for before, after in sizes):
        needed += manifests * MANIFEST_ALLOWANCE
        disk.check_free_space(entry.storage, needed, entry.path, doing="bring back what was cut")


def check_mounts(entry: QuarantineEntry) -> None:
    """Raise RefusedError when kept files, or moved directories, lie where rename(2) cannot move them back from; DiskReadError."""
    parents = {(entry.storage / file.path).parent for file in entry.files if file.kept is not None}
    for parent in sorted(parents):
        _check_mount(entry.path, parent if parent.is_dir() else entry.storage)
    for move in entry.moves:
        _check_mount((entry.storage / move.target).parent, (entry.storage / move.path).parent)


def _check_mount(source: Path, target: Path) -> None:
    try:
        here, there = mount_of(source), mount_of(target)
    except OSError as error:
        raise DiskReadError(error.filename or source, None, error, doing="look at") from error
    if here != there:
        raise RefusedError(
            f"{source}: lies on another file system, or mount, than {target}, so that nothing can be moved back from there;"
            " nothing was modified",
            advice=f"while nobody has the directory, bring it back to the disk of {target}",
        )


def take_back(entry: QuarantineEntry, ways: list[tuple[KeptFile, Way]]) -> QuarantineEntry:
    """Revert an applied repair (undo); return its entry, whose state is then *undone*.

    `ways`: from `engine.durable.restore.ways_back`.  The caller holds the DirectoryLock and has rolled back interrupted repairs.
    Raises RefusedError and DiskFullError before anything is changed, and DiskError; `roll_back_interrupted` then completes the
    undo, if it was begun.
    """
    _KNOWN.pop(entry.path.parent, None)
    journal.check(entry.storage)
    for file, way in ways:
        if way is Way.RANGES:  # one that cannot be written to ends the undo before it begins
            disk.check_writable(entry.storage / file.path)
    check_can_end(entry)
    entry = replace(entry, state=RepairState.UNDOING)
    with room_to_end(entry):
        write_entry(entry)
    return _take_back(entry, RepairState.UNDONE, ways)
