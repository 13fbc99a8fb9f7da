"""Undoing a repair: check whether that is possible, set aside what was written since, and restore the kept files.

`undo` and `undo_locked` change the directory; all other functions here are read-only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.edits import Edit
from waltzctl.engine.durable.manifest import KeptFile, QuarantineEntry, quarantine_directory
from waltzctl.engine.durable.quarantine import check_can_end, check_mounts, room_to_end, take_back
from waltzctl.engine.durable.restore import Way, same_contents, stamp_as, ways_back
from waltzctl.engine.durable.undoable import check_as_left, choose_applied
from waltzctl.engine.errors import DamageError, RefusedError, StalePlanError, with_roll_backs
from waltzctl.engine.log.places import local
from waltzctl.engine.repair.plan import Binding, bind
from waltzctl.engine.repair.undo_conditions import (
    ADVICE,
    SET_ASIDE,
    check_copies,
    check_journal_comes_back,
    check_nothing_stands_in_the_way,
    obstacles,
    set_aside,
)
from waltzctl.engine.storage.journal_state import refuse_marked
from waltzctl.engine.storage.store import apply_edits, concerned, list_entries, roll_back_interrupted
from waltzctl.formats.control import CONTROL_FILE_NAME


@dataclass(frozen=True, slots=True)
class UndoResult:
    """The outcome of `undo`.

    `entries`: the entries taken back; more than one only when several interrupted repairs were.  `files`: the files and
    directories restored.  `taken_back`: interrupted entries that were rolled back before the requested entry.  `set_aside`: the
    new entry that keeps what was written since, None for none.
    """

    entries: tuple[QuarantineEntry, ...]
    files: tuple[Path, ...]
    taken_back: tuple[QuarantineEntry, ...] = ()
    set_aside: QuarantineEntry | None = None

    @property
    def entry(self) -> QuarantineEntry:
        """The entry taken back, the latest of several."""
        return self.entries[-1]


def undo(storage: Path, entry_id: str | None = None, *, allow_data_loss: bool = False) -> UndoResult:
    """Take the DirectoryLock and undo a repair; see `undo_locked`.  Also raises DirectoryLockedError."""
    if not quarantine_directory(storage).is_dir():
        raise RefusedError(f"{storage}: no repair was made here, there is nothing to undo")
    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
        return undo_locked(storage, entry_id, allow_data_loss=allow_data_loss)


def undo_locked(storage: Path, entry_id: str | None, *, allow_data_loss: bool) -> UndoResult:
    """Undo a repair: restore bytes and modification times of every file it changed.  The caller holds the DirectoryLock.

    `entry_id` None: the latest repair.  Interrupted repairs are rolled back first, whatever the id.

    The undo is refused when the restored files would not join what was written since (`engine.repair.undo_conditions`).  With
    `allow_data_loss` that is first set aside, as an entry of its own; after a crash between the two steps the directory is as the
    repair left it.

    Raises InvalidRequestError for an unknown id, RefusedError when there is nothing to undo, StalePlanError naming a file that
    is no longer as the repair left it, DamageError, DiskError.  Each error names the interrupted repairs rolled back before it.
    """
    taken = roll_back_interrupted(storage)
    if taken and (entry_id is None or entry_id in {entry.id for entry in taken}):
        return UndoResult(taken, paths_of(taken))
    with with_roll_backs(one.id for one in taken):
        refuse_marked(storage)
        entry = choose_applied(storage, list_entries(storage), entry_id)
        aside = _set_aside(entry, list_entries(storage)) if allow_data_loss else None
        ways = check_ways_back(entry, list_entries(storage))
        done = take_back(entry, ways)
    return UndoResult((done,), paths_of([done]), taken, aside)


def _set_aside(entry: QuarantineEntry, entries: Sequence[QuarantineEntry]) -> QuarantineEntry | None:
    """Move what was written since and prevents the undo into the quarantine; None when there is nothing of that kind."""
    edits = to_set_aside(entry, entries)
    if not edits:
        return None
    check_can_end(entry, manifests=2)  # or it would be set aside in vain
    with room_to_end(entry):
        return apply_edits(entry.storage, edits, command=SET_ASIDE, arguments=[entry.id], plan_hash="")


def paths_of(entries: Iterable[QuarantineEntry]) -> tuple[Path, ...]:
    """The files and directories that undoing `entries` restores."""
    entries = tuple(entries)
    files = tuple(entry.storage / file.path for entry in entries for file in entry.files)
    return files + tuple(entry.storage / move.path for entry in entries for move in entry.moves)


def check_ways_back(entry: QuarantineEntry, entries: Sequence[QuarantineEntry]) -> list[tuple[KeptFile, Way]]:
    """How each file of an applied entry is restored; `entries`: all entries of the storage directory.

    Raises StalePlanError when a file is not as the repair left it, or when newer files would not join the restored ones;
    DiskReadError.
    """
    check_as_left(entry, entries, other_way=_other_way)
    try:
        ways = ways_back(entry)
    except DamageError as error:
        check_copies(entry, entry.files)  # a damaged copy looks as if somebody had changed the file
        raise StalePlanError(error.message, advice=error.advice) from error
    check_journal_comes_back(entry, entries)
    check_nothing_stands_in_the_way(entry)
    return ways


def check_undo(
    entry: QuarantineEntry, entries: Sequence[QuarantineEntry], *, allow_data_loss: bool = False
) -> tuple[Path, ...]:
    """The files that the undo of an applied entry would set aside first, as a whole or in part.  Read-only.

    Raises StalePlanError when the undo would be refused; RefusedError while a commit journal is in force, and when the quarantine
    has been moved to another disk.
    """
    refuse_marked(entry.storage)
    edits = to_set_aside(entry, entries) if allow_data_loss else []
    if not edits:
        check_ways_back(entry, entries)
    check_mounts(entry)
    return tuple(local(edit.path) for edit in edits)


def seen_by_undo(entry: QuarantineEntry) -> Binding:
    """The state of the partitions of an entry, before `check_undo` tells what would be set aside.  Raises DiskReadError."""
    return bind(entry.storage, concerned(entry), ())


def check_as_shown(storage: Path, entry_id: str, shown: Binding) -> None:
    """Raise StalePlanError if something was written to an entry's partitions since: more than was shown would be set aside."""
    for entry in list_entries(storage):
        changed = shown.changed(seen_by_undo(entry)) if entry.id == entry_id else None
        if changed is not None:
            raise StalePlanError(
                f"{storage / changed}: changed since it was shown what the undo sets aside; nothing was modified",
                advice="look at it again",
            )


def to_set_aside(entry: QuarantineEntry, entries: Sequence[QuarantineEntry]) -> list[Edit]:
    """The edits that set aside what was written since and prevents an undo; empty when nothing does.

    Raises StalePlanError when the undo would be refused anyway, so that nothing is set aside in vain.
    """
    check_copies(entry, entry.files)
    unchanged = all(same_contents(stamp_as(entry.storage / one.path, one.after), one.after) for one in entry.files)
    if unchanged and next(obstacles(entry), None) is None:
        return []
    edits = set_aside(entry)
    if edits:
        check_as_left(entry, entries, but={local(edit.path) for edit in edits}, other_way=_other_way)
    return edits


def _other_way(entry: QuarantineEntry) -> str:
    """An addition to the advice of a refusal, when setting newer files aside would help; else empty."""
    try:
        return f"; {ADVICE}" if set_aside(entry) else ""
    except StalePlanError:
        return ""
