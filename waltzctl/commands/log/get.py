"""log get: single transactions."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.commands.log.log_target import STATUSES, options_of
from waltzctl.commands.log.tail import DataOption, RecordShower
from waltzctl.console import Console
from waltzctl.engine.amounts import chosen_partitions
from waltzctl.exit_status import ExitStatus
from waltzctl.log_session import use_log
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, OnePartitionOption, QuietOption, VerboseOption, transaction_of

if TYPE_CHECKING:
    from waltzctl.engine.client.log_client import LogClient

MANUAL = Manual(
    name="get",
    page="log",
    summary="Show single transactions",
    description=("Transactions are shown in the order of their ids. An id that is not committed is an error (13).",),
    examples=(
        Example("waltzctl log get --metadata /data/waltz.meta --partition 0 17 18 --data utf8", "Two transactions."),
    ),
    statuses=STATUSES,
    objects=("log-record",),
)


def run(
    ctx: typer.Context,
    transactions: Annotated[
        list[int], typer.Argument(metavar="TRANSACTION...", min=0, help="Transaction ids.", show_default=False)
    ],
    partition: OnePartitionOption,
    data: DataOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Ask and show."""
    target = ClusterTarget.of(ctx)
    for one in transactions:
        transaction_of(one, "TRANSACTION...")
    wanted = sorted(set(transactions))

    from waltzctl.engine.errors import RefusedError

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        shower = RecordShower(console, data, follow=False)

        async def work(client: LogClient) -> None:
            chosen_partitions({partition}, client.num_partitions)
            mark = await client.high_water_mark(partition)
            if wanted[-1] > mark:
                raise RefusedError(
                    f"partition {partition}: transaction {next(one for one in wanted if one > mark)} is not committed; the last"
                    f" one is {mark}"
                )
            for begin, end in _runs(wanted):
                feed = client.feed(
                    partition, after=begin - 1, until={partition: end}.__getitem__, timeout=client.options.timeout
                )
                async with aclosing(feed):
                    await shower.show_all(client, feed)

        use_log(target, console, work, options_of(target))
    return ExitStatus.CLEAN


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of numbers without a gap."""
    runs: list[tuple[int, int]] = []
    for one in numbers:
        if runs and one == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], one
        else:
            runs.append((one, one))
    return runs
