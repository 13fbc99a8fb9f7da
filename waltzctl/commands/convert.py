"""convert: bring a storage directory to the other layout."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import (
    DryRunOption,
    FormatOption,
    LayoutName,
    PlanOption,
    QuietOption,
    StorageArgument,
    VerboseOption,
    YesOption,
    path_of,
)
from waltzctl.repair_procedure import SAFETY, STATUSES, Switches, repair_with

MANUAL = Manual(
    name="convert",
    summary="Bring a directory to the other layout",
    description=(
        (
            "Rewrites the control file in the other layout, so that release 0.13.2 can open the directory (released) or the"
            " design documents describe it (documented). Sessions, marks, assignment and what is switched off stay as they are;"
            " segments and indexes are the same in both layouts and are not touched."
        ),
        (
            "A control file with damage is refused: run recover first. The directory is converted as a whole, verified, and undo"
            " brings it back as long as no session has been started since."
        ),
    ),
    examples=(
        Example("waltzctl convert /data/waltz --layout released --dry-run", "What would change?"),
        Example("waltzctl convert /data/waltz --layout released --yes", "Let a released node open it."),
        Example("waltzctl convert /data/waltz --layout documented --yes", "And back again."),
    ),
    statuses=STATUSES,
    objects=("plan", "result"),
    sections=(
        ManualSection(
            "WHAT STANDS WHERE",
            (
                (
                    "Assigned is, in the documented layout, a partition whose directory exists; in the released layout, one whose"
                    " flag is set. Switched off is what .waltzctl/availability.json says; in the released layout the flag"
                    " decides, and the file tells which of reading and writing is meant."
                ),
                (
                    "Of the two structs of a partition the released layout takes the one with the newer sequence number, the"
                    " documented layout the one with the larger session and the higher marks. Both structs are carried over."
                    " Where an older struct would win in the documented layout (a mark that was lowered on purpose), both get the"
                    " values in force."
                ),
                (
                    "The directory of a partition that is not assigned moves: to .waltzctl/unassigned in the documented layout,"
                    " back to its usual place in the released one. A partition with a session whose directory is missing is"
                    " refused (13): nothing tells whether it is assigned."
                ),
            ),
        ),
        SAFETY,
    ),
)


def run(
    path: StorageArgument,
    layout: Annotated[LayoutName, typer.Option("--layout", help="The layout to go to.", show_default=False)],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    plan: PlanOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, convert."""
    storage = path_of(path)
    switches = Switches(yes, dry_run, plan)
    switches.check()

    from waltzctl.engine.repair.arguments import Arguments
    from waltzctl.engine.repair.convert import plan_convert
    from waltzctl.formats.control import Layout

    wanted = Layout(layout.value)
    given = Arguments.of(layout=wanted)
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return repair_with(console, switches, MANUAL.name, storage, given, lambda: plan_convert(storage, layout=wanted))
