"""cluster connectivity: who answers, and whom the log servers reach."""

from __future__ import annotations

import typer

from waltzctl.cluster_report import report
from waltzctl.commands.cluster.cluster_target import VERIFYING
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, QuietOption, VerboseOption

MANUAL = Manual(
    name="connectivity",
    page="cluster",
    summary="Check which nodes and servers answer and reach each other",
    description=(
        (
            "Connects to every storage node and every log server in the metadata, and asks each log server which"
            " storage nodes it can reach."
        ),
    ),
    examples=(Example("waltzctl cluster connectivity --metadata /data/waltz.meta", "A first check."),),
    statuses=VERIFYING,
    objects=("finding", "verify-summary"),
)


def run(
    ctx: typer.Context,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Ask and report."""
    return report(
        ClusterTarget.of(ctx),
        lambda verification: verification.connectivity(),
        None,
        output_format,
        quiet=quiet,
        verbose=verbose,
    )
