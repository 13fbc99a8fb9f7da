"""node max-transaction-id: the last transaction of partitions, asked of the data port."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.commands.node.node_target import LOOKING, NodeTarget, WantedPartitions, wanted_of
from waltzctl.console import Console
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption

MANUAL = Manual(
    name="max-transaction-id",
    page="node",
    summary="Show the last transaction of partitions",
    description=(
        (
            "The last transaction may be unacknowledged; -1 if there is none. The request goes to the data port with"
            " the session that the node has persisted, so it shuts out no Waltz server. If a server has begun a newer"
            " session meanwhile, the request is refused."
        ),
        "Use --offline for partitions that are switched off, and only for those.",
    ),
    examples=(
        Example("waltzctl node 127.0.0.1:55281 max-transaction-id --partition 3", "Of a partition that is online."),
        Example(
            "waltzctl node 127.0.0.1:55281 max-transaction-id --partition 0-3",
            ("Four partitions, one after the other."),
        ),
    ),
    statuses=LOOKING,
    objects=("max-transaction-id",),
)


def run(
    ctx: typer.Context,
    partition: WantedPartitions,
    offline: Annotated[bool, typer.Option("--offline", help="The partitions are switched off.")] = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Ask and show."""
    target = NodeTarget.of(ctx)
    wanted = sorted(wanted_of(partition))

    from waltzctl.engine.client.connection_factory import ConnectionFactory
    from waltzctl.objects.node_objects import max_transaction_id_object

    async def ask(reach: ConnectionFactory, console: Console) -> None:
        async with await reach.admin(target.admin) as admin, await reach.storage(target.data) as client:
            for number in wanted:
                session = (await admin.session_info(number)).session_id
                last = await client.max_transaction_id(session, number, offline=offline)
                console.emit(max_transaction_id_object(target.admin, number, session, last, offline=offline))

    single = len(wanted) == 1
    with Console(output_format, quiet=quiet, verbose=verbose, single=single) as console, target.explaining():
        run_async(ask(target.reach(console), console))
    return ExitStatus.CLEAN
