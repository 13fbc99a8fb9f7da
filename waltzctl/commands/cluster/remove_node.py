"""cluster remove-node: forget a storage node without partitions."""

from __future__ import annotations

import typer

from waltzctl.change_procedure import CLUSTER_SAFETY
from waltzctl.commands.cluster.cluster_target import CHANGING, NodeArgument, change_metadata
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches

MANUAL = Manual(
    name="remove-node",
    page="cluster",
    summary="Remove a storage node without partitions from the metadata",
    description=(
        (
            "The node itself is not contacted and keeps its files. A node that has partitions is refused: first assign"
            " them to other nodes, then unassign them here."
        ),
    ),
    examples=(Example("waltzctl cluster remove-node 10.0.0.7:55280", "After it was replaced by another node."),),
    statuses=CHANGING,
    objects=("plan", "result"),
    sections=(CLUSTER_SAFETY,),
)


def run(
    ctx: typer.Context,
    node: NodeArgument,
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

    from waltzctl.engine.metadata.cluster_changes import remove_node

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return change_metadata(
            target,
            console,
            switches,
            "cluster remove-node",
            lambda store, mode: remove_node(store, node, mode=mode),
            f"Storage node {node} is no longer in the cluster",
        )
