"""rebuild-index: write indexes anew from the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.console import Console
from waltzctl.engines import ENGINE, Computing, with_engine
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
from waltzctl.render.progress_bar import progress
from waltzctl.repair_procedure import SAFETY, STATUSES, Switches, repair_with

if TYPE_CHECKING:
    from waltzctl.engine.repair.plan import Repair

MANUAL = Manual(
    name="rebuild-index",
    summary="Rebuild index files from the data",
    description=(
        (
            "Reads every segment and writes its index, with the same bytes as the release writes. Only indexes that"
            " differ are replaced, unless --all is given. Data files are not touched, and no data can be lost."
        ),
        (
            "With Spark the workers find the indexes that differ; the indexes are written on this machine, under the"
            " directory's lock."
        ),
        "Each index is built beside the old one, synced and renamed over it.",
    ),
    examples=(
        Example("waltzctl rebuild-index /data/waltz --dry-run", "Which indexes differ?"),
        Example("waltzctl rebuild-index /data/waltz --partition 0-3 --yes", "Repair the indexes of four partitions."),
    ),
    statuses=STATUSES,
    objects=("plan", "result"),
    sections=(ENGINE, SAFETY),
)


@with_engine
def run(
    path: StorageArgument,
    everything: Annotated[bool, typer.Option("--all", help="Also replace correct indexes.")] = False,
    partition: PartitionsOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    plan: PlanOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    computing: Computing = Computing(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Plan, confirm, rebuild."""
    storage = path_of(path)
    partitions = partitions_of(partition)
    switches = Switches(yes, dry_run, plan)
    switches.check()

    from waltzctl.engine.repair.arguments import Arguments
    from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
    from waltzctl.engine.task_executor import LocalExecutor

    given = Arguments.of(partitions, everything=everything)
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:

        def make() -> Repair:
            with (
                progress(quiet=quiet, verbose=verbose) as listener,
                computing.executor([storage], listener, quiet=quiet) as executor,
            ):
                executor = executor or LocalExecutor(progress=listener)
                return plan_rebuild_index(storage, partitions=partitions, everything=everything, executor=executor)

        return repair_with(console, switches, MANUAL.name, storage, given, make)
