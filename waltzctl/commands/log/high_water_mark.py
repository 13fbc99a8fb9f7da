"""log high-water-mark: the last committed transaction of partitions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from waltzctl.commands.log.log_target import STATUSES, options_of
from waltzctl.console import Console
from waltzctl.engine.amounts import chosen_partitions
from waltzctl.exit_status import ExitStatus
from waltzctl.log_session import use_log
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, PartitionsOption, QuietOption, VerboseOption, partitions_of

if TYPE_CHECKING:
    from waltzctl.engine.client.log_client import LogClient

MANUAL = Manual(
    name="high-water-mark",
    page="log",
    summary="Show the last committed transaction of partitions",
    description=("Asks the server of each partition; -1 if nothing was ever committed.",),
    examples=(
        Example("waltzctl log high-water-mark --metadata /data/waltz.meta --partition 0-3", "Of four partitions."),
    ),
    statuses=STATUSES,
    objects=("high-water-mark",),
)


def run(
    ctx: typer.Context,
    partition: PartitionsOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Ask and show."""
    target = ClusterTarget.of(ctx)
    wanted = partitions_of(partition)

    from waltzctl.objects.log_objects import HIGH_WATER_MARK

    with Console(output_format, quiet=quiet, verbose=verbose) as console:

        async def work(client: LogClient) -> list[tuple[int, int]]:
            numbers = chosen_partitions(wanted, client.num_partitions)
            return list(zip(numbers, await asyncio.gather(*map(client.high_water_mark, numbers)), strict=True))

        for number, mark in use_log(target, console, work, options_of(target)):
            console.emit(HIGH_WATER_MARK.named({"partition": number, "high_water_mark": mark}))
    return ExitStatus.CLEAN
