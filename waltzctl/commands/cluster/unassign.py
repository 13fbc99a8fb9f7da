"""cluster unassign: take partitions from a storage node."""

from __future__ import annotations

import typer

from waltzctl.change_procedure import CLUSTER_SAFETY
from waltzctl.commands.cluster.cluster_target import CHANGING, NodeArgument, change_metadata
from waltzctl.commands.node.node_target import WantedPartitions, wanted_of
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches

MANUAL = Manual(
    name="unassign",
    page="cluster",
    summary="Unassign partitions from a storage node",
    description=(
        (
            "Writes to the metadata that the node holds no replica of the partitions; log servers continue with the"
            " other replicas at once. The node keeps its files until cluster sync applies the change. If fewer than a"
            " quorum of the last session's replicas would be left, it is refused, because recovery could wait for them"
            " for ever. The remaining nodes are asked: a replica that is out of service, or has lost what it held,"
            " does not count; a replica whose node does not answer counts."
        ),
    ),
    examples=(Example("waltzctl cluster unassign 10.0.0.7:55280 --partition 0-3", "Unassign four partitions."),),
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
    wanted = wanted_of(partition)

    from waltzctl.engine.cluster.replica_removal import unassign

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        reach = target.connecting.reach(console)
        return change_metadata(
            target,
            console,
            switches,
            "cluster unassign",
            lambda store, mode: unassign(store, reach, node, wanted, mode=mode, say=console.trouble),
            f"Partitions taken from {node}; waltzctl cluster sync tells the node",
        )
