"""node session: the last session of a partition."""

from __future__ import annotations

import typer

from waltzctl.commands.node.node_target import LOOKING, NodeTarget
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, PartitionsOption, QuietOption, VerboseOption, partitions_of

MANUAL = Manual(
    name="session",
    page="node",
    summary="Show the last session of partitions, and its marks",
    description=(
        (
            "Shows what the node has persisted with the last low-water mark: session id, low-water mark and local"
            " low-water mark, or -1 if there was no session yet. A newer session that has set no mark yet is not"
            " shown; a request that is refused because of it gets its id. The admin port is used, which shuts out no"
            " session."
        ),
    ),
    examples=(Example("waltzctl node 127.0.0.1:55281 session --partition 3", "Of one partition."),),
    statuses=LOOKING,
    objects=("node-session",),
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

    from waltzctl.engine.client.admin_client import AdminClient
    from waltzctl.engine.columns.column import Object
    from waltzctl.objects.node_objects import node_session_object

    async def ask(client: AdminClient) -> list[Object]:
        numbers = [number for number, _ in await client.assigned_status()] if wanted is None else sorted(wanted)
        return [node_session_object(target.admin, number, await client.session_info(number)) for number in numbers]

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        for shown in target.ask(console, ask):
            console.emit(shown)
    return ExitStatus.CLEAN
