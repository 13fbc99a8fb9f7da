"""cluster delete: delete a cluster's metadata."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.change_procedure import CLUSTER_SAFETY
from waltzctl.commands.cluster.cluster_target import CHANGING, change_metadata
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches

MANUAL = Manual(
    name="delete",
    page="cluster",
    summary="Delete a cluster's metadata",
    description=(
        (
            "Without the metadata it is unknown which replicas are up to date. Storage nodes keep their files."
            " Deletion is refused while a log server is running, and where another cluster lies below the root. More"
            " than 500 metadata nodes are deleted in several transactions; run the command again to continue an"
            " interrupted deletion."
        ),
    ),
    examples=(Example("waltzctl cluster delete --name demo", "Asks for confirmation on a terminal."),),
    statuses=CHANGING,
    objects=("plan", "result"),
    sections=(CLUSTER_SAFETY,),
)


def run(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Delete only if the cluster has this name.")
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, change."""
    target = ClusterTarget.of(ctx)
    switches = Switches(yes, dry_run, None)
    switches.check()

    from waltzctl.engine.metadata.cluster_deletion import delete_cluster

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return change_metadata(
            target,
            console,
            switches,
            "cluster delete",
            lambda store, mode: delete_cluster(store, name=name, mode=mode),
            "The cluster's metadata is deleted",
        )
