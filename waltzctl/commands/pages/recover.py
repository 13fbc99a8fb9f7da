"""pages recover: a damaged store is brought back to service in place."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from waltzctl.commands.pages.verify import StoreArgument
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import DryRunOption, FormatOption, PlanOption, QuietOption, VerboseOption, YesOption, path_of
from waltzctl.repair_procedure import STATUSES, Switches, repair_with


class RecoveryModeName(enum.StrEnum):
    """What is taken of the log; the words are those of `engine.pages.wal_reader.RecoveryMode`."""

    TOLERATE_TORN_TAIL = "tolerate-torn-tail"
    ABSOLUTE_CONSISTENCY = "absolute-consistency"
    POINT_IN_TIME = "point-in-time"
    SKIP_DAMAGED = "skip-damaged"


MANUAL = Manual(
    name="recover",
    page="pages",
    summary="Repair a store whose log is damaged, in place",
    description=(
        (
            "A store whose log is damaged is not opened. recover writes a checkpoint of those log records that --mode"
            " accepts; it replaces all logs, which are moved to the quarantine. The plan names what is given up:"
            " places of the log, records, pages that are lost, that return in an older version, or that were deleted"
            " and return."
        ),
        (
            "A page whose data is damaged stays, and verify names it; it is dropped only if another page occupies its"
            " place. Page ids and sequence numbers continue after the highest ones. After the recovery of a backup"
            " vault, backup verify tells which backups need what was given up, and backup repair replaces damaged"
            " pages."
        ),
    ),
    examples=(
        Example("waltzctl pages recover /data/vault --mode skip-damaged --dry-run", "What would be given up?"),
        Example("waltzctl pages recover /data/vault --mode skip-damaged", "Do it, after yes has been typed."),
        Example("waltzctl pages recover /data/vault --plan plan.json", "Apply a plan that was reviewed before."),
    ),
    statuses=tuple(one for one in STATUSES if one is not ExitStatus.MISMATCH),
    objects=("plan", "result"),
    sections=(
        ManualSection(
            "MODES",
            (
                "tolerate-torn-tail: the whole log, except an interrupted write at its end. Damage is refused (4).",
                "absolute-consistency: the whole log; an interrupted write is refused as well (4).",
                (
                    "point-in-time: the records before the first damage. The store is as it was at one moment; pages"
                    " whose space was reused since are then damaged."
                ),
                (
                    "skip-damaged: every intact record, whatever is missing in between. This keeps the most pages;"
                    " some may be older versions or deleted pages."
                ),
            ),
        ),
        ManualSection(
            "SAFETY",
            (
                (
                    "The plan is shown first. On a terminal it is applied after yes has been typed; elsewhere it needs"
                    " --yes. --dry-run shows it and changes nothing; its exit status is that of verify. A plan kept"
                    " with --dry-run --format json can be applied later with --plan FILE: exactly this plan, or none"
                    " (13). A plan that gives something up still asks for confirmation, or needs --yes."
                ),
                (
                    "After a kill at any moment, the store is as it was, or becomes so when it is opened: the next"
                    " command that writes reverts the interrupted recovery, reports it on stderr and continues."
                ),
                (
                    "undo reverts the repair byte for byte, until the store has been opened for writing: then the"
                    " space of what was given up may hold other pages, and undo refuses (13). To try two modes, copy"
                    " the store first, or salvage into a new directory. The replaced logs stay in .waltzctl/quarantine"
                    " until undo --prune deletes them."
                ),
            ),
        ),
    ),
)


def run(
    path: StoreArgument,
    mode: Annotated[
        RecoveryModeName | None,
        typer.Option("--mode", help="Which log records to keep; default tolerate-torn-tail.", show_default=False),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    plan: PlanOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, recover."""
    store = path_of(path, name="DIR")
    switches = Switches(yes, dry_run, plan)
    switches.check()

    from waltzctl.engine.pages.recovery_mode import RecoveryMode
    from waltzctl.engine.repair.arguments import PAGES_RECOVER, Arguments
    from waltzctl.engine.repair.recover_pages import plan_recover_pages

    asked = None if mode is None else RecoveryMode(mode.value)
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return repair_with(
            console,
            switches,
            PAGES_RECOVER,
            store,
            Arguments(mode=asked),
            lambda: plan_recover_pages(store, mode=asked or RecoveryMode.TOLERATE_TORN_TAIL),
        )
