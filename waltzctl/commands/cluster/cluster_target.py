"""What the actions of ``cluster`` that change the metadata share: plan, agreement, change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.change_procedure import Changed, change
from waltzctl.connection_options import address_of
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.metadata_option import ClusterTarget
from waltzctl.values import counted, format_ranges

if TYPE_CHECKING:
    from waltzctl.console import Console
    from waltzctl.engine.cluster.cluster_plan import ClusterPlan
    from waltzctl.engine.metadata.cluster_steps import Mode, Steps
    from waltzctl.engine.metadata.metadata_store import MetadataStore
    from waltzctl.repair_procedure import Switches

LOOKING = (
    ExitStatus.CLEAN,
    ExitStatus.USAGE,
    ExitStatus.DAMAGED,
    ExitStatus.NOT_WALTZ,
    ExitStatus.MISMATCH,
    ExitStatus.REFUSED,
    ExitStatus.IO_ERROR,
    ExitStatus.INTERRUPTED,
)
"""What an action that only reads the metadata can answer."""
CHANGING = LOOKING
"""What one that changes it can answer."""
VERIFYING = tuple(sorted({*LOOKING, ExitStatus.REPAIRABLE}))
"""What one that judges the cluster can answer."""

MAX_GROUP = 2**31 - 1
"""The largest number of a group: the metadata has four bytes for it."""

# as the metadata has it, once it is there: tools of the release write down whatever they are given (``h:01``, ``h:abc``)
NodeArgument = Annotated[
    str,
    typer.Argument(metavar="HOST:PORT", help="The storage node: HOST:PORT of its data port.", show_default=False),
]

EndpointArgument = Annotated[
    str, typer.Argument(metavar="ENDPOINT", help="The log server: HOST:PORT of its client port.", show_default=False)
]


def change_preference(
    target: ClusterTarget, console: Console, endpoint: str, partitions: Collection[int], *, preferred: bool
) -> None:
    """Let a log server prefer partitions, or no longer.  Raises RefusedError where it does not."""
    address, wanted = address_of(endpoint, name="ENDPOINT"), sorted(partitions)
    reach = target.connecting.reach(console)

    async def ask() -> None:
        async with await reach.server(address) as client:
            await client.prefer(wanted, preferred)

    run_async(ask())
    done = f"{address} prefers partitions {format_ranges(wanted)}{'' if preferred else ' no longer'}."
    try:
        console.success(f"DONE  {done}")
        console.flush()
    except OSError:
        console.trouble(f"what was done, and could not be written to standard output: {done}")
        raise


def change_metadata(
    target: ClusterTarget,
    console: Console,
    switches: Switches,
    command: str,
    do: Callable[[MetadataStore, Mode], Awaitable[Steps]],
    done: str,
) -> ExitStatus:
    """Plan, and do what was agreed to; `done` is said afterwards."""
    from waltzctl.engine.cluster.cluster_plan import ClusterPlan
    from waltzctl.engine.metadata.cluster_steps import PLAN_ONLY, Mode
    from waltzctl.objects.cluster_objects import cluster_plan_object

    location = target.location

    async def make() -> ClusterPlan:
        async with location.open() as store:
            return ClusterPlan(command, str(location), await do(store, PLAN_ONLY))

    async def apply(agreed: ClusterPlan) -> Changed:
        async with location.open() as store:
            steps = await do(store, Mode(agreed=agreed.steps))
        return Changed(f"{done} ({counted(len(steps), 'step')} in {location}).")

    return change(console, switches, make, apply, cluster_plan_object)
