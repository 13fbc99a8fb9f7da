"""cluster top: how the cluster does, again and again."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.commands.cluster.cluster_target import LOOKING
from waltzctl.console import Console, on_terminal
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import (
    Format,
    FormatOption,
    PartitionsOption,
    QuietOption,
    VerboseOption,
    parsed,
    partitions_of,
)
from waltzctl.values import parse_duration

if TYPE_CHECKING:
    from waltzctl.engine.cluster.overview import ClusterOverview
    from waltzctl.engine.columns.column import Object

MANUAL = Manual(
    name="top",
    page="cluster",
    summary="Show the state of the cluster continuously",
    description=(
        (
            "For each partition its server, generation, session, high-water mark and rate, and how far each replica is"
            " behind; if it has no session, the missing storage nodes. Each refresh asks every storage node and log"
            " server once, and each partition's server for its high-water mark. On a terminal the view is redrawn;"
            " elsewhere objects are printed."
        ),
    ),
    examples=(
        Example("waltzctl cluster top --metadata /data/waltz.meta", "A live view; Ctrl-C ends it."),
        Example("waltzctl cluster top --metadata /data/waltz.meta --once --format json", "One refresh, for a script."),
    ),
    statuses=LOOKING,
    objects=("cluster-top",),
)


def run(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Refresh once.")] = False,
    interval: Annotated[str, typer.Option("--interval", metavar="TIME", help="Time between refreshes.")] = "2s",
    partition: PartitionsOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Look and show, for ever or once."""
    target = ClusterTarget.of(ctx)
    wanted = partitions_of(partition)
    seconds = parsed("--interval", interval, parse_duration) or 2.0

    from waltzctl.engine.cluster.overview import observe
    from waltzctl.engine.metadata.cluster_state import read_cluster_state

    location = target.location
    with Console(output_format, quiet=quiet, verbose=verbose, single=once) as console:
        reach = target.connecting.reach(console)
        drawn = console.format is Format.TABLE and on_terminal(console.stream) and not once

        async def work() -> None:
            before: ClusterOverview | None = None
            async with location.open() as store:
                while True:
                    found = await observe(await read_cluster_state(store, wanted), reach, before, wanted)
                    _show(console, found, drawn=drawn)
                    before = found
                    if once:
                        return
                    await asyncio.sleep(seconds)

        run_async(work())
    return ExitStatus.CLEAN


def _show(console: Console, found: ClusterOverview, *, drawn: bool) -> None:
    from waltzctl.formats.adapters import format_time
    from waltzctl.objects.cluster_objects import CLUSTER_TOP
    from waltzctl.render.cluster_view import top_lines

    shown: Object = CLUSTER_TOP.shown(found, time=format_time(time.time_ns() // 1_000_000))
    if console.format is not Format.TABLE:
        console.emit(shown, flush=True)
        return
    if drawn:
        sys.stdout.write("\x1b[H\x1b[J")  # to the corner, and everything behind it cleared
    for line in top_lines(shown):
        console.line(line)
    console.flush()
