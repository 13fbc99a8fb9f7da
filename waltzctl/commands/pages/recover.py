"""pages recover: a damaged store is brought back to service in place."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from waltzctl.commands.pages.verify import StoreArgument
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption, path_of
from waltzctl.repair_procedure import STATUSES, Switches


class Mode(enum.StrEnum):
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
        Example("waltzctl undo /data/vault", "Take it back, as long as nothing has opened the store since."),
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
                    " --dry-run shows it and changes nothing; its exit status is the one that verify would give. Killed at any"
                    " moment, the store is as it was, or is so once it is opened. undo takes the repair back byte for byte,"
                    " until the store has been opened for writing: then room of what was given up may hold other pages, and"
                    " undo refuses (13). To try both, copy the store first, or salvage into a new directory."
                ),
            ),
        ),
    ),
)


def run(
    path: StoreArgument,
    mode: Annotated[Mode, typer.Option("--mode", help="What is taken of the log.")] = Mode.TOLERATE_TORN_TAIL,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, recover."""
    store, switches = path_of(path, name="DIR"), Switches(yes, dry_run, None)
    switches.check()

    from waltzctl.engine.pages.wal_reader import RecoveryMode
    from waltzctl.page_repairs import recover_store

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return recover_store(console, switches, store, RecoveryMode(mode.value))
