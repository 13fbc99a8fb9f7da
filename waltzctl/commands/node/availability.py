"""node availability: switch partitions on and off."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from waltzctl.change_procedure import NODE_SAFETY
from waltzctl.commands.node.node_target import NodeTarget, WantedPartitions, change_partitions, wanted_of
from waltzctl.console import Console
from waltzctl.exit_status import CHANGING_NODES, ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches


class Truth(enum.StrEnum):
    """The two values that the release's tool takes."""

    TRUE = "true"
    FALSE = "false"


class Switch(enum.StrEnum):
    """A switch's positions."""

    ON = "on"
    OFF = "off"


MANUAL = Manual(
    name="availability",
    page="node",
    summary="Switch reads and writes of partitions on or off",
    description=(
        (
            "--online true or false switches both. An offline partition answers no Waltz server; recover-partition"
            " requires an offline destination. --readable and --writable switch one of the two; only nodes of waltzctl"
            " support them. The settings survive a restart of the node."
        ),
    ),
    examples=(
        Example("waltzctl node 127.0.0.1:55281 availability --partition 3 --online false", "Take it offline."),
        Example("waltzctl node 127.0.0.1:55281 availability --partition 3 --writable off --yes", "Reads only."),
    ),
    statuses=CHANGING_NODES,
    objects=("plan", "result"),
    sections=(NODE_SAFETY,),
)


def run(
    ctx: typer.Context,
    partition: WantedPartitions,
    online: Annotated[Truth | None, typer.Option("--online", help="Switch both reads and writes.")] = None,
    readable: Annotated[Switch | None, typer.Option("--readable", help="Reads only.")] = None,
    writable: Annotated[Switch | None, typer.Option("--writable", help="Writes only.")] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, switch."""
    target = NodeTarget.of(ctx)
    wanted = wanted_of(partition)
    switches = Switches(yes, dry_run, None)
    switches.check()
    if online is None and readable is None and writable is None:
        raise typer.BadParameter("say true or false, or use --readable or --writable", param_hint="'--online'")
    if online is not None and (readable is not None or writable is not None):
        raise typer.BadParameter("switches both; leave --readable and --writable out", param_hint="'--online'")

    from waltzctl.engine.client.changes import plan_availability

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return change_partitions(
            target,
            console,
            switches,
            lambda client: plan_availability(
                client,
                wanted,
                online=None if online is None else online is Truth.TRUE,
                readable=None if readable is None else readable is Switch.ON,
                writable=None if writable is None else writable is Switch.ON,
            ),
            "switched",
        )
