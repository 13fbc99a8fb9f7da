"""undo: bring back what a repair removed or replaced."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.console import Console
from waltzctl.engine.errors import InvalidRequestError, RefusedError, WaltzError
from waltzctl.engine.shell_words import shell_quote
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import FormatOption, QuietOption, StorageArgument, VerboseOption, YesOption, parsed, path_of
from waltzctl.outcome import say
from waltzctl.repair_procedure import Switches
from waltzctl.values import counted, format_ranges, parse_duration

if TYPE_CHECKING:
    from waltzctl.engine.durable.manifest import QuarantineEntry
    from waltzctl.engine.repair.plan import Binding

MANUAL = Manual(
    name="undo",
    summary="Revert a repair, byte for byte",
    description=(
        (
            "truncate, rebuild-index, recover, convert, set-partition and append keep everything that they remove or"
            " replace in a quarantine inside the storage directory. undo restores it: of the latest repair, or of the"
            " repair named by ID. An interrupted repair is reverted first."
        ),
        (
            "Files that changed after the repair are never overwritten. Each partition is checked as it would be after"
            " the undo, with files that were added since. undo refuses (13), names the files and changes nothing if"
            " such files would overlap with the restored ones or not join them, or if a session began from the end"
            " that the repair had left. With --allow-data-loss these files, and session and marks as the repair had"
            " left them, are first set aside as a repair of its own."
        ),
        (
            "Afterwards the affected partitions are verified, under the lock, and the exit status is that of verify:"
            " with the files the damage that was repaired comes back (3, 4). A session or mark that is lowered is"
            " reported on stderr."
        ),
        (
            "PATH may be a page store after pages recover: the repair is reverted unless the store has been opened for"
            " writing since (13). --prune deletes what it kept."
        ),
        ("PATH may be a partition's directory: the repair is then the latest one that changed this partition."),
        (
            "--prune deletes the kept copies of repairs older than --older-than; these repairs can then not be undone."
            " It refuses while a repair is interrupted. A repair stays if an older repair of the same files stays,"
            " because undo needs both."
        ),
    ),
    examples=(
        Example("waltzctl undo /data/waltz --list", "List what was kept, latest last."),
        Example("waltzctl undo /data/waltz", "Revert the latest repair, after typing its partition's number."),
        Example("waltzctl undo /data/waltz 20260314T151617Z-recover --yes", "Revert this repair, in a script."),
        Example(
            "waltzctl undo /data/waltz --prune --older-than 30d --keep 3 --yes",
            "Delete what repairs kept 30 days ago and earlier, except for the latest three.",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.REPAIRABLE,
        ExitStatus.DAMAGED,
        ExitStatus.NOT_WALTZ,
        ExitStatus.LOCKED,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("undo-entry", "plan", "result"),
    sections=(
        ManualSection(
            "FILES",
            (
                ".waltzctl/quarantine/ID/manifest.json: each file's size, time and SHA-256 before and after the repair.",
                ".waltzctl/quarantine/ID/old-N, range-N: the kept bytes.",
                ".waltzctl/journal.jsonl: a line for every repair, every undo and every repair that was pruned.",
                "The manifest of a pruned repair stays, so that --list still names it.",
            ),
        ),
    ),
)


def run(
    path: StorageArgument,
    entry_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The repair to revert; default: the latest.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the repairs that can be reverted, and change nothing.")
    ] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete what old repairs kept; needs --older-than.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="TIME", help="With --prune: only repairs at least this old, for instance 30d."
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=0, help="With --prune: keep the latest N, whatever their age."),
    ] = None,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="First set aside conflicting files written since.")
    ] = False,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done and change nothing.")] = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """List, or confirm and bring back."""
    named = path_of(path)
    if listing and (entry_id is not None or yes or allow_data_loss):
        raise typer.BadParameter(
            "--list changes nothing; leave out ID, --yes and --allow-data-loss", param_hint="'--list'"
        )

    Switches(yes, dry_run, None).check()
    age = parsed("--older-than", older_than, parse_duration)
    _check_prune(prune, age, keep, others=listing or entry_id is not None or allow_data_loss)

    from waltzctl.engine.repair.store_kinds import is_page_store

    page_store = is_page_store(named)
    if page_store and allow_data_loss:
        raise typer.BadParameter(
            "what was written to a page store since is not set aside", param_hint="'--allow-data-loss'"
        )
    with Console(output_format, quiet=quiet, verbose=verbose, single=not listing, must_finish=not listing) as console:
        storage, partition = (Path(named), None) if page_store else _storage_of(named, prune=prune)
        if prune:
            from waltzctl.quarantine_pruning import prune_quarantine

            assert age is not None  # checked above
            return prune_quarantine(console, storage, older_than=age, keep=keep or 0, yes=yes, dry_run=dry_run)
        entries = _entries(storage, partition, entry_id)
        if listing:
            return _list(console, entries)
        chosen = _choose(named, entries, entry_id)
        if dry_run:
            return _dry_run(console, storage, chosen, allow_data_loss=allow_data_loss)
        shown = None if yes else _confirm(chosen, allow_data_loss=allow_data_loss)
        return _undo(console, storage, chosen, shown, allow_data_loss=allow_data_loss)


def _storage_of(named: Path, *, prune: bool) -> tuple[Path, int | None]:
    """The storage directory of a path, and the partition that is meant in it.

    Raises InvalidRequestError for a path that undo, or undo --prune, cannot work on; NotWaltzError.
    """
    from waltzctl.engine.log.places import local
    from waltzctl.engine.log.target import TargetKind, resolve

    target = resolve(named)
    if target.storage is None or target.kind not in (TargetKind.STORAGE, TargetKind.PARTITION):
        raise InvalidRequestError(
            f"{named}: a {target.kind}, not a storage directory or a partition's directory in one"
        )
    if prune and target.kind is not TargetKind.STORAGE:
        raise InvalidRequestError(f"{named}: a {target.kind}; --prune works on a whole storage directory")
    return local(target.storage), target.partition


def _entries(storage: Path, partition: int | None, entry_id: str | None) -> Sequence[QuarantineEntry]:
    """What was kept, oldest first; with a partition, what touched it.

    Raises InvalidRequestError where the repair that is named touched nothing of the partition, and what
    `list_entries` raises.
    """
    from waltzctl.engine.durable.quarantine import list_entries
    from waltzctl.engine.repair.store_kinds import store_of
    from waltzctl.engine.storage.store import concerned

    entries = list_entries(storage, store_of(storage))
    if partition is None:
        return entries
    mine = tuple(entry for entry in entries if partition in (concerned(entry) or {partition}))
    if others := {entry.id for entry in entries} - {entry.id for entry in mine} & {entry_id}:
        raise InvalidRequestError(
            f"{others.pop()}: this repair touched nothing of partition {partition}",
            advice=f"name the storage directory: {storage}",
        )
    return mine


def _check_prune(prune: bool, age: float | None, keep: int | None, *, others: bool) -> None:
    """Refuse options that cannot be meant together.  Raises typer.BadParameter."""
    if not prune and (age is not None or keep is not None):
        raise typer.BadParameter("says what --prune may give up", param_hint="'--older-than' / '--keep'")
    if prune and others:
        raise typer.BadParameter(
            "takes nothing back and lists nothing; leave out ID, --list and --allow-data-loss", param_hint="'--prune'"
        )
    if prune and age is None:
        raise typer.BadParameter("needs an age: add for instance --older-than 30d", param_hint="'--prune'")


def _list(console: Console, entries: Sequence[QuarantineEntry]) -> ExitStatus:
    from waltzctl.objects.repair_objects import UNDO_ENTRY

    for entry in entries:
        console.emit(UNDO_ENTRY.shown(entry))
    console.success(f"{counted(len(entries), 'repair')} kept. Nothing was modified.")
    return ExitStatus.CLEAN


def _choose(storage: Path, entries: Sequence[QuarantineEntry], entry_id: str | None) -> QuarantineEntry:
    from waltzctl.engine.durable.manifest import INTERRUPTED, RepairState

    advice = f"waltzctl undo {shell_quote(str(storage))} --list shows what was kept"
    open_states = (RepairState.APPLIED, *INTERRUPTED)
    if entry_id is None:
        left = [entry for entry in entries if entry.state in open_states]
        if not left:
            raise RefusedError(f"{storage}: there is no repair to take back", advice=advice)
        return left[-1]
    for entry in entries:
        if entry.id == entry_id:
            if entry.state not in open_states:
                raise RefusedError(f"{entry_id}: {entry.state.why_final}", advice=advice)
            return entry
    raise InvalidRequestError(f"{storage}: there is no repair {entry_id!r}", advice=advice)


def _outlook(entry: QuarantineEntry, *, allow_data_loss: bool) -> Binding | None:
    """Say what else changes; return what that rests on, None where nothing may be set aside.

    Raises StalePlanError where the undo would be refused.
    """
    from waltzctl.engine.durable.manifest import RepairState
    from waltzctl.engine.pages import page_recovery
    from waltzctl.engine.repair.store_kinds import is_page_store
    from waltzctl.engine.repair.undo_conditions import falling_marks
    from waltzctl.engine.repair.undoing import check_undo, seen_by_undo
    from waltzctl.engine.storage.store import list_entries

    if entry.state is not RepairState.APPLIED:
        return None  # interrupted half-way: that is taken back whatever came since, or refused when it is tried
    if is_page_store(entry.storage):
        page_recovery.check_undo(entry)
        return None
    seen = seen_by_undo(entry) if allow_data_loss else None
    for path in check_undo(entry, list_entries(entry.storage), allow_data_loss=allow_data_loss):
        say(f"waltzctl: set aside first, in the quarantine: what was written since of {path}")
    for fall in falling_marks(entry):
        say(f"waltzctl: {fall}")
    return seen


def _confirm(entry: QuarantineEntry, *, allow_data_loss: bool) -> Binding | None:
    """Ask the user; return what the answer rests on, as `_outlook` does.  Raises RefusedError, and what `_outlook` raises."""
    from waltzctl.engine.durable.manifest import partitions_of
    from waltzctl.repair_procedure import UNASKED, not_confirmed, typed

    if not sys.stdin.isatty():
        raise not_confirmed(advice=UNASKED)
    shown = _outlook(entry, allow_data_loss=allow_data_loss)
    touched = partitions_of(entry)
    word = format_ranges(touched) if touched else "yes"
    what = f"{entry.command} of {entry.created}, {counted(len(entry.files), 'file')}"
    if not typed(word, f"Taking back {entry.id} ({what}).\nType {word} to do it: "):
        raise not_confirmed()
    return shown


def _dry_run(console: Console, storage: Path, entry: QuarantineEntry, *, allow_data_loss: bool) -> ExitStatus:
    from waltzctl.objects.repair_objects import UNDO_ENTRY
    from waltzctl.repair_procedure import verified

    _outlook(entry, allow_data_loss=allow_data_loss)
    console.emit(UNDO_ENTRY.shown(entry), flush=True)
    status = verified(storage, None)
    console.sentence(f"PLANNED  {counted(len(entry.files), 'file')} would come back. Nothing was modified.")
    return status


def _say_if_done(error: WaltzError, storage: Path, entry_id: str) -> None:
    """Add to an error behind the last restored file that the undo is done.  Raises as `_entries`.

    Whoever repeats it without an id would take back the repair before this one.
    """
    from waltzctl.engine.durable.manifest import RepairState

    over = (RepairState.UNDONE, RepairState.ROLLED_BACK)
    if any(one.id == entry_id and one.state in over for one in _entries(storage, None, None)):  # it may be gone as well
        done = f"{entry_id} is taken back all the same: another undo without an id takes back the repair before it"
        error.advice = f"{error.advice}; {done}" if error.advice else done


def _undo(
    console: Console, storage: Path, entry: QuarantineEntry, seen: Binding | None, *, allow_data_loss: bool
) -> ExitStatus:
    from waltzctl.engine.repair.apply import undo_repair
    from waltzctl.interrupt import finishing
    from waltzctl.objects.repair_objects import result_object
    from waltzctl.outcome import say_taken_back

    try:
        with finishing("the undo", "the next command that writes then finishes it"):
            undone = undo_repair(storage, entry.id, allow_data_loss=allow_data_loss, shown=seen)
    except WaltzError as error:
        with contextlib.suppress(WaltzError):
            _say_if_done(error, storage, entry.id)
        raise
    done, status = undone.done, ExitStatus.from_label(undone.status)
    say_taken_back([one.id for one in done.taken_back])
    if done.set_aside is not None:
        say(f"waltzctl: what was written since is kept as {done.set_aside.id}")
    for fall in undone.falls:
        say(f"waltzctl: {fall}")
    for path in undone.other_times:
        say(f"waltzctl: {path}: its bytes are back, and its time is not, which only its owner may set")
    shown = result_object(
        plan_hash=entry.plan_hash,
        applied=True,
        undo_id=entry.id,
        quarantine=done.entry.path,
        status="undone",
        exit_status=status,
        findings=undone.findings,
    )
    console.emit_result(shown, status)
    sentence = f"UNDONE  {counted(len(done.files), 'file')} brought back as before {entry.id}"
    if status is ExitStatus.CLEAN:
        console.success(f"{sentence}; verified again: clean.")
    else:
        console.sentence(f"{sentence}; verified again: {undone.status}, with what the repair was for.")
    return status
