"""log validate: appends under a lock by several clients, read back and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.commands.log.log_target import STATUSES, options_of
from waltzctl.console import Console
from waltzctl.engine.amounts import chosen_partitions
from waltzctl.exit_status import ExitStatus
from waltzctl.log_session import use_logs
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, PartitionsOption, QuietOption, VerboseOption, partitions_of
from waltzctl.values import counted

if TYPE_CHECKING:
    from waltzctl.engine.client.log_client import LogClient
    from waltzctl.engine.client.log_load import Validation

MANUAL = Manual(
    name="validate",
    page="log",
    summary="Test that appends and locks of a cluster work",
    description=(
        (
            "Several clients append to the partitions at the same time. Every transaction has the same lock; its data"
            " is the id that it gets if no other client is faster. Then everything is read: every id must exist once,"
            " in order, and none of these transactions may lie between another one and the state on which that one was"
            " built. Other clients may append meanwhile. IT WRITES: appended transactions stay."
        ),
    ),
    examples=(
        Example("waltzctl log validate --metadata /data/waltz.meta --clients 4 --transactions 100", "Four clients."),
    ),
    statuses=STATUSES,
    objects=("log-validation",),
)


def run(
    ctx: typer.Context,
    partition: PartitionsOption = None,
    clients: Annotated[int, typer.Option("--clients", metavar="N", min=1, max=1000, help="Number of clients.")] = 3,
    transactions: Annotated[
        int, typer.Option("--transactions", metavar="N", min=1, help="Transactions per client.")
    ] = 100,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Append, read, compare."""
    target = ClusterTarget.of(ctx)
    wanted = partitions_of(partition)

    from waltzctl.engine.client.log_load import validate
    from waltzctl.objects.log_objects import LOG_VALIDATION

    with Console(output_format, quiet=quiet, verbose=verbose, single=True) as console:

        async def work(opened: list[LogClient]) -> Validation:
            return await validate(opened, chosen_partitions(wanted, opened[0].num_partitions), transactions)

        done = use_logs(target, console, work, options_of(target), clients=clients)
        console.emit_result(LOG_VALIDATION.shown(done))
        console.success(f"OK  {counted(done.transactions, 'transaction')}, {done.retries} of them built again.")
    return ExitStatus.CLEAN
