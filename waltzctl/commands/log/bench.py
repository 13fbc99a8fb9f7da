"""log bench: load of appends on a cluster, and what it took."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.commands.log.log_target import STATUSES, options_of
from waltzctl.console import Console
from waltzctl.engine.amounts import chosen_partitions
from waltzctl.exit_status import ExitStatus
from waltzctl.log_session import use_log
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, QuietOption, VerboseOption, parsed, partitions_of
from waltzctl.values import parse_duration, parse_size

MANUAL = Manual(
    name="bench",
    page="log",
    summary="Put load on a cluster and measure it",
    description=(
        (
            "Appends with up to --in-flight transactions in flight in each partition, and shows the rate and the"
            " distribution of latencies, from the call until the transaction is committed. IT WRITES: appended"
            " transactions stay. The load runs in one process on one processor."
        ),
    ),
    examples=(
        Example(
            "waltzctl log bench --metadata /data/waltz.meta --partition 0-3 --in-flight 64 --duration 10s",
            "Four partitions, ten seconds.",
        ),
    ),
    statuses=STATUSES,
    objects=("log-load",),
)


def run(
    ctx: typer.Context,
    partition: Annotated[
        str, typer.Option("--partition", metavar="RANGES", help="These partitions, for instance 0-3,7.")
    ] = "0",
    data_size: Annotated[
        str, typer.Option("--data-size", metavar="SIZE", help="Data size of a transaction, for instance 1KiB.")
    ] = "100",
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", metavar="N", min=1, max=100_000, help="Transactions in flight in each partition."),
    ] = 16,
    duration: Annotated[str, typer.Option("--duration", metavar="TIME", help="Duration of the load.")] = "5s",
    lock_pool: Annotated[
        int, typer.Option("--lock-pool", metavar="N", min=0, help="Number of locks, one per transaction; 0: none.")
    ] = 0,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Append, measure, show."""
    target = ClusterTarget.of(ctx)
    wanted = partitions_of(partition)
    size = parsed("--data-size", data_size, parse_size) or 0
    seconds = parsed("--duration", duration, parse_duration) or 0.0

    from waltzctl.engine.client.log_client import LogClient
    from waltzctl.engine.client.log_load import LogLoadOptions, LogLoadResult, load
    from waltzctl.objects.log_objects import LOG_LOAD

    with Console(output_format, quiet=quiet, verbose=verbose, single=True) as console:

        async def work(client: LogClient) -> LogLoadResult:
            numbers = tuple(chosen_partitions(wanted, client.num_partitions))
            return await load(client, LogLoadOptions(numbers, size, seconds, lock_pool))

        result = use_log(target, console, work, options_of(target, in_flight))
        rate = result.transactions / result.seconds
        console.emit_done(LOG_LOAD.shown(result, transactions_per_second=round(rate, 1)))
        console.success(f"APPENDED  {rate:,.0f} transactions a second.")
    return ExitStatus.CLEAN
