"""undo: bring back what a repair removed or replaced."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.errors import InvalidRequestError, RefusedError
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, Section
from waltzctl.options import FormatOption, QuietOption, StorageArgument, VerboseOption, YesOption, path_of
from waltzctl.values import counted, format_ranges

if TYPE_CHECKING:
    from engine.repair.manifest import QuarantineEntry

MANUAL = Manual(
    name="undo",
    summary="Take a repair back, byte for byte",
    description=(
        (
            "truncate, rebuild-index, recover and convert keep everything that they remove or replace in a quarantine inside the"
            " storage directory. undo brings it back: the latest repair, or the one named by ID. A repair that was"
            " interrupted is taken back first."
        ),
        (
            "Files that changed after the repair are never overwritten: undo then refuses and changes nothing. Afterwards the"
            " exit status is 0 when the directory is as it was before the repair, whatever state that is."
        ),
    ),
    examples=(
        Example("waltzctl undo /data/waltz --list", "What was kept, latest last?"),
        Example("waltzctl undo /data/waltz", "Take the latest repair back, after typing its partition's number."),
        Example("waltzctl undo /data/waltz 20260314T151617Z-recover --yes", "Take that one back, in a script."),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.DAMAGED,
        ExitStatus.NOT_WALTZ,
        ExitStatus.LOCKED,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("undo-entry", "result"),
    sections=(
        Section(
            "FILES",
            (
                ".waltzctl/quarantine/ID/manifest.json: each file's size, time and SHA-256 before and after the repair.",
                ".waltzctl/quarantine/ID/old-N, range-N: the kept bytes.",
                ".waltzctl/journal.jsonl: a line for every repair and every undo.",
                "A quarantine that nobody wants any more may be removed by hand.",
            ),
        ),
    ),
)


def run(
    path: StorageArgument,
    entry_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The repair to take back; the latest unless given.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List what can be taken back, and change nothing.")] = False,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would come back and change nothing.")] = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """List, or confirm and bring back."""
    storage = path_of(path)
    if listing and (entry_id is not None or yes):
        raise typer.BadParameter("--list changes nothing; leave out ID and --yes", param_hint="'--list'")

    from engine.repair.quarantine import list_entries
    from engine.storage.view import TargetKind, resolve

    target = resolve(storage)
    if target.kind is not TargetKind.STORAGE:
        raise InvalidRequestError(f"{storage}: a {target.kind}, not a storage directory")
    entries = list_entries(storage)
    if listing:
        return _list(Console(output_format, quiet=quiet, verbose=verbose), entries)
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        chosen = _choose(storage, entries, entry_id)
        if dry_run:
            return _dry_run(console, storage, chosen)
        if not yes:
            _confirm(chosen)
        return _undo(console, storage, chosen)


def _list(console: Console, entries: Sequence[QuarantineEntry]) -> ExitStatus:
    from waltzctl.render.objects import undo_entry_object

    with console:
        for entry in entries:
            console.emit(undo_entry_object(entry))
        console.success(f"{counted(len(entries), 'repair')} kept. Nothing was modified.")
    return ExitStatus.CLEAN


def _choose(storage: Path, entries: Sequence[QuarantineEntry], entry_id: str | None) -> QuarantineEntry:
    from engine.repair.manifest import State

    advice = f"waltzctl undo {storage} --list shows what was kept"
    open_states = (State.APPLIED, State.PREPARED, State.UNDOING)
    if entry_id is None:
        left = [entry for entry in entries if entry.state in open_states]
        if not left:
            raise RefusedError(f"{storage}: there is no repair to take back", advice=advice)
        return left[-1]
    for entry in entries:
        if entry.id == entry_id:
            if entry.state not in open_states:
                raise RefusedError(f"{entry_id}: was taken back before ({entry.state})", advice=advice)
            return entry
    raise InvalidRequestError(f"{storage}: there is no repair {entry_id!r}", advice=advice)


def _touched(entry: QuarantineEntry) -> set[int]:
    """The partitions whose files the repair touched."""
    parts = (file.path.split("/") for file in entry.files)
    return {int(part[0]) for part in parts if len(part) > 1 and part[0].isascii() and part[0].isdigit()}


def _confirm(entry: QuarantineEntry) -> None:
    if not sys.stdin.isatty():
        raise RefusedError("not confirmed, nothing was modified", advice="add --yes, or look with --dry-run first")
    touched = _touched(entry)
    word = format_ranges(touched) if touched else "yes"
    what = f"{entry.command} of {entry.created}, {counted(len(entry.files), 'file')}"
    print(f"Taking back {entry.id} ({what}).\nType {word} to do it: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != word:
        raise RefusedError("not confirmed, nothing was modified")


def _dry_run(console: Console, storage: Path, entry: QuarantineEntry) -> ExitStatus:
    from waltzctl.render.objects import undo_entry_object
    from waltzctl.repairing import verified

    console.emit(undo_entry_object(entry), flush=True)
    status = verified(storage, None)
    console.sentence(f"PLANNED  {counted(len(entry.files), 'file')} would come back. Nothing was modified.")
    return status


def _undo(console: Console, storage: Path, entry: QuarantineEntry) -> ExitStatus:
    from engine.repair.quarantine import undo
    from waltzctl.interrupt import finishing
    from waltzctl.render.objects import result_object

    with finishing("the undo", "the next command that writes then finishes it"):
        done = undo(storage, entry.id)
    if not (console.quiet and console.for_people):
        console.emit(
            result_object(
                plan_hash=entry.plan_hash,
                applied=True,
                undo_id=entry.id,
                quarantine=done.entry.path,
                status="undone",
                exit_status=ExitStatus.CLEAN,
            )
        )
    console.success(f"UNDONE  {counted(len(done.files), 'file')} brought back as before {entry.id}.")
    return ExitStatus.CLEAN
