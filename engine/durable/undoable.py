"""Checks before an undo: which repair is meant, and whether everything is still as the repair left it.  Read-only."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from waltzctl.engine.durable.file_status import file_numbers, is_directory, names_in
from waltzctl.engine.durable.manifest import QuarantineEntry, RepairState, locate
from waltzctl.engine.durable.restore import same_contents, stamp_as
from waltzctl.engine.errors import InvalidRequestError, RefusedError, StalePlanError


def choose_applied(storage: Path, entries: Sequence[QuarantineEntry], entry_id: str | None) -> QuarantineEntry:
    """The applied repair with this id, or without an id the latest applied repair.

    Raises InvalidRequestError for an unknown id, RefusedError when no repair is applied, or when this one was undone or pruned.
    """
    if entry_id is None:
        applied = [entry for entry in entries if entry.state is RepairState.APPLIED]
        if not applied:
            raise RefusedError(f"{storage}: every repair was taken back already, there is nothing to undo")
        return applied[-1]
    for entry in entries:
        if entry.id == entry_id:
            if entry.state is not RepairState.APPLIED:
                raise RefusedError(f"{entry_id}: {entry.state.why_final}")
            return entry
    raise InvalidRequestError(f"{storage}: there is no repair {entry_id!r}", advice="undo --list shows them")


def check_as_left(
    entry: QuarantineEntry,
    entries: Sequence[QuarantineEntry],
    *,
    but: Collection[Path] = (),
    other_way: Callable[[QuarantineEntry], str] = lambda _entry: "",
) -> None:
    """Raise StalePlanError when a file or directory is not as an applied repair left it.

    `entries`: every entry of the directory.  `but`: files that are not checked.  `other_way`: text that is added to the advice,
    for another way to restore the contents.
    """
    touched = {file.path for file in entry.files}
    _check_directories(entry, entries)
    _check_moves(entry, entries)
    for file in entry.files:
        path = locate(entry.storage, file.path)
        if path in but or same_contents(stamp_as(path, file.after), file.after):
            continue
        for later in reversed(entries):
            if (
                later.number > entry.number
                and later.state is RepairState.APPLIED
                and file.path in {f.path for f in later.files}
            ):
                raise StalePlanError(f"{path}: a later repair changed it too", advice=f"undo {later.id} first")
        raise StalePlanError(
            f"{path}: the file is not as the repair {entry.id} left it",
            advice=f"what was written since would be lost; the kept bytes are in {entry.path}" + other_way(entry),
        )
    for name in entry.directories:
        inside = {f"{name}/{one}" for one in names_in(entry.storage / name) or ()}
        if foreign := sorted(inside - touched - {path.relative_to(entry.storage).as_posix() for path in but}):
            raise StalePlanError(f"{entry.storage / foreign[0]}: came into a directory that the repair {entry.id} made")


def _check_directories(entry: QuarantineEntry, entries: Sequence[QuarantineEntry]) -> None:
    """Raise StalePlanError when a directory in which the repair changed files was moved away since, or is gone.

    A file would come back alone, and with it the directory.  One that a later repair moved away was brought back by hand if it
    has all other files that the repair left, at least as long.
    """
    moved: dict[str, str] = {}  # where a later repair moved a directory away, and none moved it back: id of that repair
    for later in entries:
        if later.number > entry.number and later.state is RepairState.APPLIED:
            for move in later.moves:
                moved[move.path] = later.id
                moved.pop(move.target, None)
    touched = {file.path for file in entry.files}
    left = {str(state.partition): state.files for state in entry.partitions or ()}
    for name in sorted({one.rpartition("/")[0] for one in touched}):
        path = entry.storage / name
        others = [(path / one, size) for one, size in left.get(name, ()) if f"{name}/{one}" not in touched]
        if name in moved:
            if not others or not all(
                (now := file_numbers(one)) is not None and now.size >= size for one, size in others
            ):
                raise StalePlanError(f"{path}: a later repair changed it too", advice=f"undo {moved[name]} first")
        elif others and not is_directory(path):
            raise StalePlanError(
                f"{path}: the directory is gone since the repair {entry.id}, and files would come back to it alone",
                advice=f"bring the directory back first; the kept bytes are in {entry.path}",
            )


def _check_moves(entry: QuarantineEntry, entries: Sequence[QuarantineEntry]) -> None:
    """Raise StalePlanError when a directory that the repair moved is elsewhere now, or a later repair changed it."""
    moved = {one for move in entry.moves for one in (move.path, move.target)}
    for later in reversed(entries) if moved else ():
        both = {file.path for file in later.files if file.path.rpartition("/")[0] in moved}
        both |= moved & {move.path for move in later.moves}
        if later.number > entry.number and later.state is RepairState.APPLIED and both:
            raise StalePlanError(
                f"{entry.storage / min(both)}: a later repair changed it too", advice=f"undo {later.id} first"
            )
    for move in entry.moves:
        if not (entry.storage / move.target).is_dir() or os.path.lexists(entry.storage / move.path):
            raise StalePlanError(
                f"{entry.storage / move.path}: was moved again since the repair {entry.id} moved it to {move.target}",
                advice=f"bring partition {move.partition} to where that left it first",
            )
