"""cluster verify: the metadata against every storage node and log server."""

from __future__ import annotations

import typer

from waltzctl.cluster_report import report
from waltzctl.commands.cluster.cluster_target import VERIFYING
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, PartitionsOption, QuietOption, VerboseOption, partitions_of

MANUAL = Manual(
    name="verify",
    page="cluster",
    summary="Compare the metadata with every node and server",
    description=(
        (
            "Asks all storage nodes and log servers at the same time, and names every difference from the metadata:"
            " nodes that do not answer or hold other partitions; servers that serve other partitions or have no"
            " session; partitions without a server or without a quorum of replicas in service; replicas that are out"
            " of service, behind, or not in the last session. Replicas that are behind are checked again for up to two"
            " seconds. Use verify and compare to check the files on disk."
        ),
    ),
    examples=(
        Example("waltzctl cluster verify --metadata /data/waltz.meta", "The whole cluster."),
        Example(
            "waltzctl cluster verify --metadata /data/waltz.meta --partition 0-3 --format ndjson | jq -r '.code // empty'",
            "Four partitions, for a script.",
        ),
    ),
    statuses=VERIFYING,
    objects=("finding", "verify-summary"),
    sections=(ManualSection("FINDINGS", ("Every code is explained in waltzctl-findings(7).",)),),
)


def run(
    ctx: typer.Context,
    partition: PartitionsOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Ask, judge, report."""
    return report(
        ClusterTarget.of(ctx),
        lambda verification: verification.findings(),
        partitions_of(partition),
        output_format,
        quiet=quiet,
        verbose=verbose,
    )
