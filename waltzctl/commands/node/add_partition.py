"""node add-partition: assign partitions to the node."""

from __future__ import annotations

import typer

from waltzctl.change_procedure import NODE_SAFETY
from waltzctl.commands.node.node_target import NodeTarget, WantedPartitions, change_partitions, wanted_of
from waltzctl.console import Console
from waltzctl.exit_status import CHANGING_NODES, ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches

MANUAL = Manual(
    name="add-partition",
    page="node",
    summary="Assign partitions to the node",
    description=(
        (
            "The node creates the partitions' files, or uses existing ones. Only the node is changed: change the"
            " cluster's metadata as well. Partitions that the node already has stay as they are."
        ),
    ),
    examples=(Example("waltzctl node 127.0.0.1:55281 add-partition --partition 0-3", "Four partitions."),),
    statuses=CHANGING_NODES,
    objects=("plan", "result"),
    sections=(NODE_SAFETY,),
)


def run(
    ctx: typer.Context,
    partition: WantedPartitions,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, assign."""
    target = NodeTarget.of(ctx)
    wanted = wanted_of(partition)
    switches = Switches(yes, dry_run, None)
    switches.check()

    from waltzctl.engine.client.changes import plan_add

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return change_partitions(target, console, switches, lambda client: plan_add(client, wanted), "assigned")
