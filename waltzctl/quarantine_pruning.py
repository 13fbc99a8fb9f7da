"""undo --prune: delete the quarantine of old repairs, with plan and confirmation like any other change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.console import Console
from waltzctl.engine.columns.plan_columns import PLAN
from waltzctl.exit_status import ExitStatus
from waltzctl.interrupt import finishing
from waltzctl.objects.repair_objects import result_object
from waltzctl.repair_procedure import ask
from waltzctl.values import counted, human_bytes

if TYPE_CHECKING:
    from waltzctl.engine.repair.prune import Prune


def prune_quarantine(
    console: Console, storage: Path, *, older_than: float, keep: int, yes: bool, dry_run: bool
) -> ExitStatus:
    """Plan, show, confirm, prune; `older_than` in seconds.

    Raises RefusedError without the user's agreement, and what the engine raises.
    """
    from waltzctl.engine.repair.prune import plan_prune

    prepared = plan_prune(storage, older_than=older_than, keep=keep)
    shown = PLAN.shown(prepared.plan)
    if dry_run:
        console.emit(shown, flush=True)
        console.sentence(f"PLANNED  {_in_words(prepared, 'would be pruned')} Nothing was modified.")
        return ExitStatus.CLEAN
    if not prepared.entries:
        _report(console, prepared, applied=False)
        console.success("NOTHING TO DO. Nothing was modified.")
        return ExitStatus.CLEAN
    if not yes:
        ask(console, shown, ())
    elif console.for_people and not console.quiet:
        console.emit(shown, flush=True)
    _carry_out(prepared)
    _report(console, prepared, applied=True)
    console.success(f"PRUNED  {_in_words(prepared, 'can no longer be taken back')}")
    return ExitStatus.CLEAN


def _carry_out(prepared: Prune) -> None:
    from waltzctl.engine.repair.prune import prune

    with finishing("the pruning", "each repair is then either pruned or whole"):
        prune(prepared)


def _report(console: Console, prepared: Prune, *, applied: bool) -> None:
    console.emit_result(
        result_object(
            plan_hash=prepared.plan.hash,
            applied=applied,
            undo_id=None,
            quarantine=None,
            status="pruned" if applied else ExitStatus.CLEAN.label,
            exit_status=ExitStatus.CLEAN,
            bytes_freed=prepared.bytes,
        )
    )


def _in_words(prepared: Prune, what: str) -> str:
    size = prepared.bytes
    amount = human_bytes(size) if size < 1024 else f"{human_bytes(size)} ({size} bytes)"
    return f"{counted(len(prepared.entries), 'repair')} {what}; {amount} of kept copies."
