"""cluster unprefer: let a log server prefer partitions no longer."""

from __future__ import annotations

import typer

from waltzctl.commands.cluster.cluster_target import LOOKING, EndpointArgument, change_preference
from waltzctl.commands.node.node_target import WantedPartitions, wanted_of
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, QuietOption, VerboseOption

MANUAL = Manual(
    name="unprefer",
    page="cluster",
    summary="Let a log server prefer partitions no longer",
    description=(("Partitions above the server's share move to other servers at once; the rest stay."),),
    examples=(Example("waltzctl cluster unprefer 10.0.0.7:55180 --partition 0-3", "Four partitions."),),
    statuses=LOOKING,
    objects=(),
)


def run(
    ctx: typer.Context,
    endpoint: EndpointArgument,
    partition: WantedPartitions,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Ask the server."""
    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        change_preference(ClusterTarget.of(ctx), console, endpoint, wanted_of(partition), preferred=False)
    return ExitStatus.CLEAN
