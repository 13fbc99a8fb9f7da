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
    summary="Bring a store whose log is damaged back to service, in place",
    description=(
        (
            "A store whose log is damaged is not opened. recover makes a checkpoint of what --mode takes of the log, which stands"
            " for all logs from then on; these go into the quarantine. The plan names what is given up: places of the log,"
            " records, pages that are gone, that are older than they were, or that were deleted and come back."
        ),
        (
            "A page whose data is damaged stays, and verify names it; it goes only where another one lies in its place. Ids of"
            " pages and sequences go on behind the highest ones. Of a backup vault, backup verify then tells which backups"
            " need what was given up, and backup repair takes damaged pages anew."
        ),
    ),
    examples=(
        Example("waltzctl pages recover /data/vault --mode skip-damaged --dry-run", "What would be given up?"),
        Example("waltzctl pages recover /data/vault --mode skip-damaged", "Do it, after yes has been typed."),
        Example("waltzctl pages recover /data/vault --plan plan.json", "Apply a plan that was looked at before."),
    ),
    statuses=tuple(one for one in STATUSES if one is not ExitStatus.MISMATCH),
    objects=("plan", "result"),
    sections=(
        ManualSection(
            "MODES",
            (
                "tolerate-torn-tail: all of the log, but for what an interrupted write left at its end. Damage is refused (4).",
                "absolute-consistency: all of it; an interrupted write is refused as well (4).",
                (
                    "point-in-time: what stands in front of the first fault. The store is as it was at one moment; pages whose"
                    " room was used again since are damaged then."
                ),
                (
                    "skip-damaged: every record that is whole, whatever is missing between them. The most pages, and perhaps a"
                    " page in an older version, or one that was deleted."
                ),
            ),
        ),
        ManualSection(
            "SAFETY",
            (
                (
                    "The plan is shown first. On a terminal it is applied after yes has been typed; elsewhere it needs --yes."
                    " --dry-run shows it and changes nothing; its exit status is the one that verify would give. Kept with"
                    " --dry-run --format json it can be applied later with --plan FILE: exactly that one, or none (13). A plan"
                    " that gives something up is asked for, or needs --yes, all the same."
                ),
                (
                    "Killed at any moment, the store is as it was, or is so once it is opened: the next command that writes takes"
                    " an interrupted recovery back, says so on stderr and then goes on."
                ),
                (
                    "undo takes the repair back byte for byte, until the store has been opened for writing: then room of what was"
                    " given up may hold other pages, and undo refuses (13). To try two modes, copy the store first, or salvage"
                    " into a new directory. What is kept of the log stays in .waltzctl/quarantine until undo --prune gives it up."
                ),
            ),
        ),
    ),
)


def run(
    path: StoreArgument,
    mode: Annotated[
        RecoveryModeName | None,
        typer.Option("--mode", help="What is taken of the log; tolerate-torn-tail unless given.", show_default=False),
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
