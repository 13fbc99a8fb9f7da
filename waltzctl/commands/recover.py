"""recover: plan and apply what is safe, name what a person must decide."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, Section
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
from waltzctl.repair_procedure import SAFETY, STATUSES, Switches, repair_with

MANUAL = Manual(
    name="recover",
    summary="Repair what a crash or a damaged disk left behind",
    description=(
        (
            "Makes a plan for each partition: a partition info with one valid struct, an orphan or missing index, a torn tail,"
            " an empty last segment, a gap, damage in the middle, two segments that overlap, a header or a file name that is"
            " wrong. Applies what loses nothing and names what a person must decide."
        ),
        (
            "A damaged or missing record is never papered over and never costs what follows it. --from takes exactly that"
            " record from another replica, if it proves to be the right one; without a replica, --allow-data-loss splits the"
            " segment around the loss, so that everything else reads again and the gap stays a named finding (exit status 5)."
        ),
        (
            "Whatever is given up in this way stands in the ledger .waltzctl/accepted-losses, and verify, status and compare name"
            " it until it is there again, or until --forget-losses: a loss at the end leaves no hole to see."
        ),
        "Without a terminal and without --yes this is a dry run.",
    ),
    examples=(
        Example("waltzctl recover /data/waltz --dry-run", "What would be done, and what is left to decide?"),
        Example("waltzctl recover /data/waltz --yes", "Do everything that loses nothing."),
        Example(
            "waltzctl recover /data/waltz --partition 3 --from /mnt/replica/waltz",
            "Bring damaged records back from another node's directory.",
        ),
        Example(
            "waltzctl recover /data/waltz --partition 3 --allow-data-loss",
            "No replica has it: give the record up and read on behind it.",
        ),
        Example(
            "waltzctl recover /data/waltz --partition 3 --forget-losses",
            "Nobody will ever have it, and everybody knows: no longer name what was given up.",
        ),
        Example(
            "waltzctl recover /data/waltz --dry-run --format json > plan.json",
            "Keep the plan; recover /data/waltz --plan plan.json applies exactly that.",
        ),
    ),
    statuses=STATUSES,
    objects=("plan", "result"),
    sections=(
        Section(
            "REPLICAS",
            (
                (
                    "A record is taken from a replica only if cluster key, partition and transaction id are right, both of its"
                    " checksums agree, and the replica's records on either side are the same as those here. The replica is only"
                    " read. With several --from the first one that proves right is used."
                ),
            ),
        ),
        Section(
            "ACCEPTED LOSSES",
            (
                (
                    "--allow-data-loss says that nobody has the records any more. A loss at the end lowers the local low-water"
                    " mark to what is left, so that a node opens the partition again and a running cluster goes on with it. As"
                    " long as another replica may have them, use --from: a replica that has forgotten what it acknowledged can"
                    " outvote the one that has not."
                ),
                (
                    "append refuses to give the lost ids away. A loss is over when its transactions are here again, from --from"
                    " or from the cluster, and when a session has begun since that held them. undo takes an acceptance back"
                    " together with its repair; --forget-losses only makes the ledger shorter, is planned and confirmed like a"
                    " repair, and can be undone."
                ),
            ),
        ),
        SAFETY,
    ),
)


def run(
    path: StorageArgument,
    replicas: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="DIR", help="Storage directory of another replica; may be repeated."),
    ] = None,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Give up what is lost, and read on behind it.")
    ] = False,
    forget_losses: Annotated[
        bool, typer.Option("--forget-losses", help="Only take losses that were accepted out of the ledger.")
    ] = False,
    partition: PartitionsOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    plan: PlanOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, repair."""
    storage = path_of(path)
    sources = tuple(path_of(text, name="--from") for text in replicas or ())
    partitions = partitions_of(partition)
    switches = Switches(yes, dry_run, plan, dry_run_unasked=True)
    switches.check()
    if forget_losses and (sources or allow_data_loss):
        raise typer.BadParameter(
            "it repairs nothing; leave --from and --allow-data-loss out", param_hint="'--forget-losses'"
        )

    from waltzctl.engine.repair.arguments import Arguments
    from waltzctl.engine.repair.planners import make

    given = Arguments.of(
        partitions, replicas=tuple(map(str, sources)), allow_data_loss=allow_data_loss, forget_losses=forget_losses
    )
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return repair_with(console, switches, MANUAL.name, storage, given, lambda: make(MANUAL.name, storage, given))
