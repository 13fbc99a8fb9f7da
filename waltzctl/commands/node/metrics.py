"""node metrics: what the node measures of itself."""

from __future__ import annotations

import typer

from waltzctl.commands.node.node_target import LOOKING, NodeTarget
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, PartitionsOption, QuietOption, VerboseOption, partitions_of

MANUAL = Manual(
    name="metrics",
    page="node",
    summary="Show the node's metrics",
    description=(
        (
            "One object for each metric, under the node's own metric names; metrics of a partition carry its number."
            " Times are in seconds, rates in events per second. --partition selects the metrics of these partitions."
        ),
    ),
    examples=(
        Example(
            "waltzctl node 127.0.0.1:55281 metrics --format ndjson | jq -r 'select(.name == \"append-latency\").p99'",
            "Latency of appends.",
        ),
    ),
    statuses=LOOKING,
    objects=("node-metric",),
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

    from waltzctl.engine.client.partition_readings import parse_metrics
    from waltzctl.objects.node_objects import NODE_METRIC

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        text = target.ask(console, lambda client: client.metrics())
        for metric in parse_metrics(text, str(target.admin)):
            if wanted is None or metric.partition in wanted:
                console.emit(NODE_METRIC.shown(metric, node=str(target.admin)))
    return ExitStatus.CLEAN
