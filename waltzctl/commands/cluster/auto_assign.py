"""cluster auto-assign: deal all partitions to the nodes of a group."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.change_procedure import CLUSTER_SAFETY
from waltzctl.commands.cluster.cluster_target import CHANGING, MAX_GROUP, change_metadata
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches

MANUAL = Manual(
    name="auto-assign",
    page="cluster",
    summary="Distribute all partitions over the nodes of a group",
    description=(
        (
            "Each partition gets one replica in the group, in round-robin order. A group is refused if one of its"
            " nodes already has partitions."
        ),
    ),
    examples=(
        Example("waltzctl cluster auto-assign --group 0 --yes", "Every partition once, over the nodes of group 0."),
    ),
    statuses=CHANGING,
    objects=("plan", "result"),
    sections=(CLUSTER_SAFETY,),
)


def run(
    ctx: typer.Context,
    group: Annotated[int, typer.Option("--group", metavar="G", min=0, max=MAX_GROUP, help="The group.")] = 0,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, change."""
    target = ClusterTarget.of(ctx)
    switches = Switches(yes, dry_run, None)
    switches.check()

    from waltzctl.engine.metadata.cluster_changes import auto_assign

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return change_metadata(
            target,
            console,
            switches,
            "cluster auto-assign",
            lambda store, mode: auto_assign(store, group, mode=mode),
            f"Partitions dealt to the nodes of group {group}; waltzctl cluster sync tells them",
        )
