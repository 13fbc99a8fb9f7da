"""cluster sync: storage nodes are told what the metadata says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.change_procedure import NODE_SAFETY, Changed, change
from waltzctl.commands.cluster.cluster_target import LOOKING
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches
from waltzctl.values import counted

if TYPE_CHECKING:
    from waltzctl.engine.cluster.synchronisation import SyncPlan
    from waltzctl.engine.metadata.cluster_state import ClusterState

MANUAL = Manual(
    name="sync",
    page="cluster",
    summary="Apply the metadata to the storage nodes",
    description=(
        (
            "Asks every storage node for its partitions, and plans which ones to add and which to remove, with the"
            " session and marks that removal would discard; files are kept. --only-add plans no removals. A node that"
            " does not answer is named, the other nodes are changed, and the exit status is 14. If the metadata gives a"
            " node other partitions while it is told, that is said (13): run the command once more."
        ),
    ),
    examples=(
        Example("waltzctl cluster sync --metadata /data/waltz.meta --dry-run", "What would change?"),
        Example("waltzctl cluster sync --metadata /data/waltz.meta --only-add --yes", "Remove no partitions."),
    ),
    statuses=LOOKING,
    objects=("plan", "result"),
    sections=(NODE_SAFETY,),
)


def run(
    ctx: typer.Context,
    only_add: Annotated[bool, typer.Option("--only-add", help="Remove no partitions.")] = False,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="HOST:PORT", help="Only this storage node (repeatable).")
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, tell."""
    target = ClusterTarget.of(ctx)
    switches = Switches(yes, dry_run, None)
    switches.check()
    names = None if not node else {*node}

    from waltzctl.engine.cluster.synchronisation import plan_synchronisation, synchronise
    from waltzctl.engine.errors import WaltzError
    from waltzctl.engine.metadata.cluster_state import read_cluster_state
    from waltzctl.objects.cluster_objects import sync_plan_object

    location = target.location
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        reach = target.connecting.reach(console)
        missing: list[tuple[str, str]] = []

        async def read() -> ClusterState:
            async with location.open() as store:
                return await read_cluster_state(store, ())  # what a node has to have says the assignment alone

        async def make() -> SyncPlan:
            state = await read()
            unknown = sorted((names or set()) - {one.node for one in state.nodes})
            if unknown:
                raise typer.BadParameter(f"the metadata knows no storage node {unknown[0]}", param_hint="'--node'")
            plan = await plan_synchronisation(state, reach, only_add=only_add, nodes=names)
            missing[:] = plan.unreachable
            for name, why in plan.unreachable:
                console.trouble(f"storage node {name} is not told anything: {why}")
            return plan

        async def apply(agreed: SyncPlan) -> Changed:
            state = await read()
            done: list[str] = []
            try:
                await synchronise(
                    state,
                    agreed,
                    reach,
                    only_add=only_add,
                    on_synchronised=lambda one: done.append(str(one)),
                    again=read,
                )
            except (WaltzError, asyncio.CancelledError):  # the latter by Ctrl-C
                if done:
                    console.trouble(f"told before that: {', '.join(done)}")
                raise
            told = counted(len([plan for plan in agreed.plans if plan.steps]), "storage node")
            return Changed(f"{told} told ({counted(len(agreed.steps), 'step')}).")

        return change(
            console,
            switches,
            make,
            apply,
            lambda plan: sync_plan_object(plan, str(location)),
            left=lambda: ExitStatus.IO_ERROR if missing else ExitStatus.CLEAN,
        )
