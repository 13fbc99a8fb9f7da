"""rebuild-index: write indexes anew from the data."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import (
    DryRunOption,
    FormatOption,
    PartitionsOption,
    PlanOption,
    QuietOption,
    StorageArgument,
    VerboseOption,
    YesOption,
    partitions_of,
    path_of,
)
from waltzctl.repairing import SAFETY, STATUSES, Switches, carry_out, planned

MANUAL = Manual(
    name="rebuild-index",
    summary="Rebuild index files from the data",
    description=(
        (
            "Reads every segment and writes the index that belongs to it, the same bytes as the release writes. Only indexes"
            " that differ are replaced, unless --all is given. Data files are not touched, and no data can be lost."
        ),
        "Each index is built beside the old one, synced and renamed over it.",
    ),
    examples=(
        Example("waltzctl rebuild-index /data/waltz --dry-run", "Which indexes differ?"),
        Example("waltzctl rebuild-index /data/waltz --partition 0-3 --yes", "Mend those of four partitions."),
    ),
    statuses=STATUSES,
    objects=("plan", "result"),
    sections=(SAFETY,),
)


def run(
    path: StorageArgument,
    everything: Annotated[bool, typer.Option("--all", help="Also replace indexes that are right.")] = False,
    partition: PartitionsOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    plan: PlanOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, rebuild."""
    storage = path_of(path)
    partitions = partitions_of(partition)
    switches = Switches(yes, dry_run, plan)
    switches.check()

    from engine.repair.plan import Arguments
    from engine.repair.rebuild_index import plan_rebuild_index

    given = Arguments.of(partitions, everything=everything)
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        repair = planned(
            switches,
            MANUAL.name,
            storage,
            given,
            lambda: plan_rebuild_index(storage, partitions=partitions, everything=everything),
        )
        return carry_out(console, repair, switches)
