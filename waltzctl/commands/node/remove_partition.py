"""node remove-partition: take partitions away from the node."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.change_procedure import NODE_SAFETY
from waltzctl.commands.node.node_target import NodeTarget, WantedPartitions, change_partitions, wanted_of
from waltzctl.console import Console
from waltzctl.exit_status import CHANGING_NODES, ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches

MANUAL = Manual(
    name="remove-partition",
    page="node",
    summary="Unassign partitions from the node",
    description=(
        (
            "Their files stay unless --delete-storage-files is given; deleted files cannot be restored. A node of"
            " waltzctl keeps session and marks with the files, so a partition that is assigned again continues with"
            " them; a node of release 0.13.2 discards them in any case. Change the cluster's metadata first: otherwise"
            " servers keep using this node."
        ),
    ),
    examples=(
        Example(
            "waltzctl node 127.0.0.1:55281 remove-partition --partition 3 --dry-run",
            ("Which session and marks would be discarded?"),
        ),
        Example(
            "waltzctl node 127.0.0.1:55281 remove-partition --partition 3 --delete-storage-files",
            "Delete the files, too.",
        ),
    ),
    statuses=CHANGING_NODES,
    objects=("plan", "result"),
    sections=(NODE_SAFETY,),
)


def run(
    ctx: typer.Context,
    partition: WantedPartitions,
    delete_storage_files: Annotated[
        bool, typer.Option("--delete-storage-files", help="Delete their files as well.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, take away."""
    target = NodeTarget.of(ctx)
    wanted = wanted_of(partition)
    switches = Switches(yes, dry_run, None)
    switches.check()

    from waltzctl.engine.client.changes import plan_remove

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return change_partitions(
            target,
            console,
            switches,
            lambda client: plan_remove(client, wanted, delete_files=delete_storage_files),
            "taken away",
        )
