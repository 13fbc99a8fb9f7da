"""The work of pages recover, and of undo where a page store is meant: plan, confirm, apply, report."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.console import Console
from waltzctl.engine.errors import InvalidRequestError, RefusedError
from waltzctl.exit_status import ExitStatus
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.pages.names import WAL_DIRECTORY
from waltzctl.interrupt import finishing
from waltzctl.outcome import say_taken_back
from waltzctl.repair_procedure import Switches, confirm, show_to_person
from waltzctl.values import counted

if TYPE_CHECKING:
    from waltzctl.engine.durable.manifest import QuarantineEntry
    from waltzctl.engine.pages.inspection import PageVerification
    from waltzctl.engine.pages.page_recovery import PageRecovery, PageRepair
    from waltzctl.engine.pages.wal_reader import RecoveryMode


def is_page_store(path: Path) -> bool:
    """Whether a page store is meant, and no storage directory."""
    return os.path.isdir(path / WAL_DIRECTORY) and not os.path.lexists(path / CONTROL_FILE_NAME)


def recover_store(console: Console, switches: Switches, store: Path, mode: RecoveryMode) -> ExitStatus:
    """Bring a store back to service.  Raises RefusedError where nobody agreed, and what the engine raises."""
    from waltzctl.engine.pages.inspection import verify_store
    from waltzctl.engine.pages.page_recovery import apply_recovery, plan_recovery
    from waltzctl.objects.pages import recovery_plan_object

    plan = plan_recovery(store, mode)
    shown = recovery_plan_object(plan)
    if switches.dry_run:
        console.emit(shown, flush=True)
        console.sentence(f"PLANNED  {_in_words(plan)} Nothing was modified.")
        return _verdict(verify_store(store))
    if not plan.steps:
        found = verify_store(store)
        _report(console, plan.hash, None, found, status=_verdict(found), word=found.status)
        console.success("NOTHING TO DO. Nothing was modified.")
        return _verdict(found)
    if not switches.yes:
        if not sys.stdin.isatty():
            console.emit(shown, flush=True)
            raise RefusedError("not confirmed, nothing was modified", advice="add --yes, or look with --dry-run first")
        show_to_person(console, shown)
        confirm(())
    elif console.for_people and not console.quiet:
        console.emit(shown, flush=True)
    with finishing("the repair", "the next command that opens the store takes it back"):
        done = apply_recovery(plan, arguments=sys.argv[1:])
    say_taken_back(done.taken_back)
    if plan.roll_back:
        status = _verdict(done.verified)
        _report(console, plan.hash, done, done.verified, status=status, word=done.verified.status)
        console.sentence("TAKEN BACK  what was interrupted; the same command makes its plan now.")
        return status
    status = ExitStatus.DAMAGE_REMAINS if done.damaged else ExitStatus.CLEAN
    _report(console, plan.hash, done, done.verified, status=status, word=done.verified.status)
    said = f"{store} is opened again with {counted(done.verified.pages, 'page')}; {_way_back(store, done)}"
    if done.damaged:
        left = counted(len(done.verified.findings), "finding")
        console.sentence(f"RECOVERED, DAMAGE REMAINS  {said} {left} left: waltzctl pages verify {store}")
    else:
        console.success(f"RECOVERED  {said}")
    return status


def _way_back(store: Path, done: PageRepair) -> str:
    assert done.entry is not None
    return f"until it is, waltzctl undo {store} {done.entry.id} takes it back."


def _verdict(found: PageVerification) -> ExitStatus:
    return {"damaged": ExitStatus.DAMAGED, "repairable": ExitStatus.REPAIRABLE}.get(found.status, ExitStatus.CLEAN)


def _in_words(plan: PageRecovery) -> str:
    losing = sum(step.loses_data for step in plan.steps)
    return counted(len(plan.steps), "step") + (f", {losing} of them lose data." if losing else ".")


def _report(
    console: Console,
    plan_hash: str,
    done: PageRepair | None,
    found: PageVerification,
    *,
    status: ExitStatus,
    word: str,
) -> None:
    from waltzctl.objects.repair import result_object

    if status is ExitStatus.CLEAN and console.quiet and console.for_people:
        return
    entry = None if done is None else done.entry
    console.emit(
        result_object(
            plan_hash=plan_hash,
            applied=entry is not None,
            undo_id=None if entry is None else entry.id,
            quarantine=None if entry is None else entry.path,
            status=word,
            exit_status=status,
            findings=found.findings,
        ),
        flush=True,
    )


# ---- undo --------------------------------------------------------------------------------------------------------------


def undo_in_store(
    store: Path,
    entry_id: str | None,
    *,
    listing: bool,
    yes: bool,
    dry_run: bool,
    output_format: str | None,
    quiet: bool,
    verbose: int,
) -> ExitStatus:
    """List the repairs of a page store, or take one back.  Raises RefusedError, and what the engine raises."""
    from waltzctl.engine.pages.page_recovery import check_undo, repairs_of, undo_repair
    from waltzctl.objects.repair import UNDO_ENTRY
    from waltzctl.options import Format

    chosen = None if output_format is None else Format(output_format)
    if listing:
        entries = repairs_of(store)
        with Console(chosen, quiet=quiet, verbose=verbose) as console:
            for entry in entries:
                console.emit(UNDO_ENTRY.shown(entry))
            console.success(f"{counted(len(entries), 'repair')} kept. Nothing was modified.")
        return ExitStatus.CLEAN
    with Console(chosen, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        entry = _choose(store, repairs_of(store), entry_id)
        check_undo(entry)
        if dry_run:
            from waltzctl.engine.pages.inspection import verify_store

            console.emit(UNDO_ENTRY.shown(entry), flush=True)
            console.sentence(f"PLANNED  {counted(len(entry.files), 'file')} would come back. Nothing was modified.")
            return _verdict(verify_store(store))
        if not yes:
            if not sys.stdin.isatty():
                raise RefusedError(
                    "not confirmed, nothing was modified", advice="add --yes, or look with --dry-run first"
                )
            show_to_person(console, UNDO_ENTRY.shown(entry))
            confirm(())
        with finishing("the undo", "the next command that opens the store then finishes it"):
            done = undo_repair(store, entry.id)
        say_taken_back(done.taken_back)
        status = _verdict(done.verified)
        _report(console, entry.plan_hash, done, done.verified, status=status, word="undone")
        sentence = f"UNDONE  {counted(len(entry.files), 'file')} brought back as before {entry.id}"
        console.sentence(f"{sentence}; verified again: {done.verified.status}.")
        return status


def _choose(store: Path, entries: Sequence[QuarantineEntry], entry_id: str | None) -> QuarantineEntry:
    from waltzctl.engine.durable.manifest import INTERRUPTED, RepairState

    advice = f"waltzctl undo {store} --list shows what was kept"
    there = [one for one in entries if one.state in (RepairState.APPLIED, *INTERRUPTED)]
    if entry_id is None:
        if not there:
            raise RefusedError(f"{store}: there is no repair to take back", advice=advice)
        return there[-1]
    for one in entries:
        if one.id == entry_id:
            if one not in there:
                raise RefusedError(f"{entry_id}: {one.state.why_final}", advice=advice)
            return one
    raise InvalidRequestError(f"{store}: there is no repair {entry_id!r}", advice=advice)
