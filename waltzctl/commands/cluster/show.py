"""cluster show: what the metadata says."""

from __future__ import annotations

import typer

from waltzctl.commands.cluster.cluster_target import LOOKING
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import Format, FormatOption, QuietOption, VerboseOption

MANUAL = Manual(
    name="show",
    page="cluster",
    summary="Show the metadata",
    description=(
        "Storage nodes with their partitions, log servers with theirs, and each partition's session and replicas.",
    ),
    examples=(
        Example("waltzctl cluster show --metadata /data/waltz.meta", "For people."),
        Example(
            "waltzctl cluster show --metadata /data/waltz.meta --format json | jq -r .cluster_key", "The key alone."
        ),
    ),
    statuses=LOOKING,
    objects=("cluster-state",),
)


def run(
    ctx: typer.Context,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Read and show."""
    target = ClusterTarget.of(ctx)

    from waltzctl.engine.metadata.cluster_state import read_cluster_state
    from waltzctl.objects.cluster_objects import CLUSTER_STATE

    with Console(output_format, quiet=quiet, verbose=verbose, single=True) as console:
        state = target.ask(read_cluster_state)
        shown = CLUSTER_STATE.shown(state)
        if console.format is Format.TABLE:
            from waltzctl.render.cluster_view import cluster_lines

            for line in cluster_lines(shown, str(target.location)):
                console.line(line)
        else:
            console.emit(shown)
    return ExitStatus.CLEAN
