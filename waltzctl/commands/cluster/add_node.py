"""cluster add-node: name a storage node in the metadata."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.change_procedure import CLUSTER_SAFETY
from waltzctl.commands.cluster.cluster_target import CHANGING, MAX_GROUP, NodeArgument, change_metadata
from waltzctl.connection_options import address_of
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches

MANUAL = Manual(
    name="add-node",
    page="cluster",
    summary="Add a storage node to the metadata",
    description=(
        (
            "The node gets no partition yet: cluster assign or cluster auto-assign assigns partitions, and cluster"
            " sync applies the assignment to the node. The node's name is the address of its data port, which log"
            " servers connect to; the node itself is not contacted."
        ),
    ),
    examples=(
        Example("waltzctl cluster add-node 10.0.0.7:55280 --admin-port 55281 --group 1 --yes", "A node in group 1."),
    ),
    statuses=CHANGING,
    objects=("plan", "result"),
    sections=(CLUSTER_SAFETY,),
)


def run(
    ctx: typer.Context,
    node: NodeArgument,
    admin_port: Annotated[
        int | None,
        typer.Option("--admin-port", metavar="A", min=1, max=65535, help="Its admin port; default: data port + 1."),
    ] = None,
    group: Annotated[int, typer.Option("--group", metavar="G", min=0, max=MAX_GROUP, help="Its group.")] = 0,
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
    address = address_of(node, name="HOST:PORT")
    port = admin_port or address.with_port(address.port + 1).port

    from waltzctl.engine.metadata.cluster_changes import add_node

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return change_metadata(
            target,
            console,
            switches,
            "cluster add-node",
            lambda store, mode: add_node(store, str(address), admin_port=port, group=group, mode=mode),
            f"Storage node {address} is in the cluster; it has no partition yet",
        )
