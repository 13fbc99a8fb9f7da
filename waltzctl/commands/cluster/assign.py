"""cluster assign: give partitions to a storage node."""

from __future__ import annotations

import typer

from waltzctl.change_procedure import CLUSTER_SAFETY
from waltzctl.commands.cluster.cluster_target import CHANGING, NodeArgument, change_metadata
from waltzctl.commands.node.node_target import WantedPartitions, wanted_of
from waltzctl.connection_options import address_of
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches

MANUAL = Manual(
    name="assign",
    page="cluster",
    summary="Assign partitions to a storage node",
    description=(
        (
            "Writes to the metadata that the node holds replicas of the partitions. Log servers notice at once, and"
            " bring the replicas up to date after cluster sync has applied the assignment to the node."
        ),
    ),
    examples=(
        Example("waltzctl cluster assign 10.0.0.7:55280 --partition 0-3", "Assign four partitions."),
        Example("waltzctl cluster sync --yes", "Then apply it to the nodes."),
    ),
    statuses=CHANGING,
    objects=("plan", "result"),
    sections=(CLUSTER_SAFETY,),
)


def run(
    ctx: typer.Context,
    node: NodeArgument,
    partition: WantedPartitions,
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
    address_of(node, name="HOST:PORT")  # what is none cannot be asked for what it is given
    wanted = wanted_of(partition)

    from waltzctl.engine.metadata.cluster_changes import assign

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return change_metadata(
            target,
            console,
            switches,
            "cluster assign",
            lambda store, mode: assign(store, node, wanted, mode=mode),
            f"Partitions given to {node}; waltzctl cluster sync tells the node",
        )
