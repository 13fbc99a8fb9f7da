"""cluster key: the cluster's key alone, for scripts."""

from __future__ import annotations

import typer

from waltzctl.commands.cluster.cluster_target import LOOKING
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, QuietOption, VerboseOption

MANUAL = Manual(
    name="key",
    page="cluster",
    summary="Show only the cluster's key",
    description=(
        (
            "Prints one line, the key that all storage nodes of the cluster share, on a terminal and in a pipe alike."
            " If there is no key, the command fails; the release's tool prints an empty line and exits 0."
        ),
    ),
    examples=(
        Example(
            'waltzctl create-cluster /data/new --partitions 4 --key "$(waltzctl cluster key --metadata /data/waltz.meta)"',
            "A directory for one more node of the cluster.",
        ),
    ),
    statuses=LOOKING,
    objects=("cluster-key",),
)


def run(
    ctx: typer.Context,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Read and show."""
    target = ClusterTarget.of(ctx)

    from waltzctl.engine.metadata.partition_sessions import store_parameters
    from waltzctl.objects.cluster_objects import CLUSTER_KEY

    with Console(output_format, quiet=quiet, verbose=verbose, single=True) as console:
        parameters = target.ask(store_parameters)
        if console.for_people:
            console.line(str(parameters.cluster_key))
        else:
            console.emit(CLUSTER_KEY.shown(parameters))
    return ExitStatus.CLEAN
