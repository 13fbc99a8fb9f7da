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
    summary="Convert a directory to the other layout",
    description=(
        (
            "Rewrites the control file in the other layout: released, which release 0.13.2 can open, or documented,"
            " which the design documents describe. Sessions, marks, assignment and availability stay as they are."
            " Segments and indexes are the same in both layouts and are not touched."
        ),
        (
            "A damaged control file is refused: run recover first. The directory is converted as a whole and verified."
            " undo reverts the conversion as long as no session has been started since."
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
                    "In the documented layout a partition is assigned if its directory exists; in the released layout,"
                    " if its flag is set. Availability is in .waltzctl/availability.json; in the released layout the"
                    " flag decides, and the file tells whether reading, writing or both are switched off."
                ),
                (
                    "Of the two structs of a partition, the one in force is the one with the newer sequence number"
                    " (released layout), or the one with the larger session and the higher marks (documented layout)."
                    " Both structs are converted. If the older struct would be in force in the documented layout"
                    " (after a mark was lowered on purpose), both get the values in force."
                ),
                (
                    "The directory of an unassigned partition moves: to .waltzctl/unassigned in the documented layout,"
                    " back to its usual place in the released one. A partition that has a session but no directory is"
                    " refused (13): it is unknown whether it is assigned. So is one whose directory is a link to a"
                    " disk that is not mounted; one whose directory cannot be listed is an error (14). There is one"
                    " control file for all partitions, so that none of them can be left out."
                ),
            ),
        ),
        SAFETY,
    ),
)


def run(
    path: StorageArgument,
    layout: Annotated[LayoutName, typer.Option("--layout", help="The target layout.", show_default=False)],
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
