"""node list: which partitions the node has."""

from __future__ import annotations

import typer

from waltzctl.commands.node.node_target import LOOKING, NodeTarget
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, PartitionsOption, QuietOption, VerboseOption, partitions_of
from waltzctl.values import counted

MANUAL = Manual(
    name="list",
    page="node",
    summary="Show the node's partitions, their sessions and marks",
    description=(
        (
            "One line for each partition that is assigned to the node; with --partition also for unassigned ones. A"
            " node tells only whether reads and writes are both on; if they are not, it is unknown which of the two is"
            " on."
        ),
        (
            "OUT is the reason why a partition is out of service, such as quarantined, sync-failed, disk-full or"
            " corrupt-record: Waltz servers continue with the other replicas. A released node does not report it."
        ),
    ),
    examples=(Example("waltzctl node 127.0.0.1:55281 list", "All partitions."),),
    statuses=LOOKING,
    objects=("node-partition",),
)


def run(
    ctx: typer.Context,
    partition: PartitionsOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Ask and show."""
    target = NodeTarget.of(ctx)
    wanted = partitions_of(partition)

    from waltzctl.engine.client.partition_readings import read_partitions
    from waltzctl.objects.node_objects import NODE_PARTITION

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        found = target.ask(console, lambda client: read_partitions(client, wanted))
        for reading in found:
            console.emit(NODE_PARTITION.shown(reading, node=str(target.admin)))
        console.success(
            f"{counted(sum(one.assigned is True for one in found), 'partition')} assigned to {target.admin}."
        )
    return ExitStatus.CLEAN
