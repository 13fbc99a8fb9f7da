"""cluster prefer: let a log server prefer partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.commands.cluster.target import LOOKING
from waltzctl.commands.node.target import WantedPartitions, wanted_of
from waltzctl.connection_options import address_of, run_async
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, QuietOption, VerboseOption
from waltzctl.values import format_ranges

MANUAL = Manual(
    name="prefer",
    page="cluster",
    summary="Let a log server prefer partitions",
    description=(
        (
            "The server that is asked writes it into the metadata, where it stays while the server lives, and the partitions"
            " move to it at once. If two servers prefer the same partition, the one with the smaller id has it."
        ),
    ),
    examples=(Example("waltzctl cluster prefer 10.0.0.7:55180 --partition 0-3", "Four partitions."),),
    statuses=LOOKING,
    objects=(),
)


def run(
    ctx: typer.Context,
    endpoint: Annotated[
        str,
        typer.Argument(metavar="ENDPOINT", help="The log server: HOST:PORT of its client port.", show_default=False),
    ],
    partition: WantedPartitions,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Ask the server."""
    target = ClusterTarget.of(ctx)
    address, wanted = address_of(endpoint, name="ENDPOINT"), sorted(wanted_of(partition))
    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        reach = target.connecting.reach(console)

        async def ask() -> None:
            async with await reach.server(address) as client:
                await client.prefer(wanted, True)

        run_async(ask())
        console.success(f"DONE  {address} prefers partitions {format_ranges(wanted)}.")
    return ExitStatus.CLEAN
