"""Whether a repair can be taken back as things are, and what would have to be set aside before.  Read-only."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from waltzctl.engine.durable.edits import Edit
from waltzctl.engine.durable.manifest import KeptFile, QuarantineEntry, State, locate
from waltzctl.engine.durable.restore import Way, same_contents, stamp_as, ways_back
from waltzctl.engine.errors import DamageError, StalePlanError
from waltzctl.engine.repair.since import ADVICE, check_nothing_stands_in_the_way, obstacles, set_aside


def check_ways_back(entry: QuarantineEntry, entries: Sequence[QuarantineEntry]) -> list[tuple[KeptFile, Way]]:
    """How each file of an applied entry can be brought back; `entries` are all of the storage directory.

    Raises StalePlanError when a file is not as the repair left it, or what came since would not join what comes back;
    DiskReadError.
    """
    _check_unchanged(entry, entries)
    try:
        ways = ways_back(entry)
    except DamageError as error:
        raise StalePlanError(error.message, advice=error.advice) from error
    check_nothing_stands_in_the_way(entry)
    return ways


def check_undo(
    entry: QuarantineEntry, entries: Sequence[QuarantineEntry], *, allow_data_loss: bool = False
) -> tuple[Path, ...]:
    """The files that an undo of an applied entry would set aside, in whole or in part, before it begins.  Read-only.

    Raises StalePlanError where the undo would be refused.
    """
    edits = to_set_aside(entry, entries) if allow_data_loss else []
    if not edits:
        check_ways_back(entry, entries)
    return tuple(edit.path for edit in edits)


def to_set_aside(entry: QuarantineEntry, entries: Sequence[QuarantineEntry]) -> list[Edit]:
    """The edits that take away what came since and stands in the way of an undo; none where nothing does."""
    unchanged = all(same_contents(stamp_as(entry.storage / one.path, one.after), one.after) for one in entry.files)
    if unchanged and next(obstacles(entry), None) is None:
        return []
    edits = set_aside(entry)
    if edits:
        _check_unchanged(entry, entries, but={edit.path for edit in edits})
    return edits


def _check_unchanged(entry: QuarantineEntry, entries: Sequence[QuarantineEntry], *, but: Collection[Path] = ()) -> None:
    """Refuse when a file (of others than `but`) is not as the repair left it."""
    touched = {file.path for file in entry.files}
    _check_moves(entry, entries)
    for file in entry.files:
        path = locate(entry.storage, file.path)
        if path in but or same_contents(stamp_as(path, file.after), file.after):
            continue
        for later in reversed(entries):
            if (
                later.number > entry.number
                and later.state is State.APPLIED
                and file.path in {f.path for f in later.files}
            ):
                raise StalePlanError(f"{path}: a later repair changed it too", advice=f"undo {later.id} first")
        raise StalePlanError(
            f"{path}: the file is not as the repair {entry.id} left it",
            advice=f"what was written since would be lost; the kept bytes are in {entry.path}" + _other_way(entry),
        )
    for name in entry.directories:
        inside = {path.relative_to(entry.storage).as_posix() for path in (entry.storage / name).iterdir()}
        if foreign := sorted(inside - touched - {path.relative_to(entry.storage).as_posix() for path in but}):
            raise StalePlanError(f"{entry.storage / foreign[0]}: came into a directory that the repair {entry.id} made")


def _check_moves(entry: QuarantineEntry, entries: Sequence[QuarantineEntry]) -> None:
    """Refuse when a directory that the repair moved is not where it left it, or a later repair went into it."""
    moved = {one for move in entry.moves for one in (move.path, move.target)}
    for later in reversed(entries) if moved else ():
        both = {file.path for file in later.files if file.path.rpartition("/")[0] in moved}
        both |= moved & {move.path for move in later.moves}
        if later.number > entry.number and later.state is State.APPLIED and both:
            raise StalePlanError(
                f"{entry.storage / min(both)}: a later repair changed it too", advice=f"undo {later.id} first"
            )
    for move in entry.moves:
        if not (entry.storage / move.target).is_dir() or os.path.lexists(entry.storage / move.path):
            raise StalePlanError(
                f"{entry.storage / move.path}: was moved again since the repair {entry.id} moved it to {move.target}",
                advice=f"bring partition {move.partition} to where that left it first",
            )


def _other_way(entry: QuarantineEntry) -> str:
    """What to add to the advice where what came since can be set aside."""
    try:
        return f"; {ADVICE}" if set_aside(entry) else ""
    except StalePlanError:
        return ""
