"""The common part of the actions of ``node``: the node, and the connection to it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from waltzctl.change_procedure import Changed, change
from waltzctl.connection_options import Connecting
from waltzctl.engine.errors import PeerError, WaltzError
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.options import partitions_of
from waltzctl.values import format_ranges

if TYPE_CHECKING:
    from waltzctl.console import Console
    from waltzctl.engine.client.admin_client import AdminClient
    from waltzctl.engine.client.change_plan import NodePlan
    from waltzctl.engine.client.connection_factory import ConnectionFactory
    from waltzctl.engine.net.addresses import Address
    from waltzctl.repair_procedure import Switches

Result = TypeVar("Result")

LOOKING = (
    ExitStatus.CLEAN,
    ExitStatus.USAGE,
    ExitStatus.DAMAGED,
    ExitStatus.REFUSED,
    ExitStatus.IO_ERROR,
    ExitStatus.INTERRUPTED,
)
"""The exit statuses of an action that only reads."""

STATUSES = (
    ExitStatus.CLEAN,
    ExitStatus.USAGE,
    ExitStatus.DAMAGED,
    ExitStatus.NOT_WALTZ,
    ExitStatus.MISMATCH,
    ExitStatus.REFUSED,
    ExitStatus.IO_ERROR,
    ExitStatus.INTERRUPTED,
)
"""The exit statuses of any action."""

WantedPartitions = Annotated[
    str, typer.Option("--partition", metavar="RANGES", help="The partitions, for instance 0-3,7.", show_default=False)
]


@dataclass(frozen=True, slots=True)
class NodeTarget:
    """The node's admin and data port, and the options of the connection."""

    admin: Address
    data: Address
    connecting: Connecting
    data_assumed: bool = False
    """Whether the data port was not given, and is assumed (admin port - 1)."""

    @classmethod
    def of(cls, context: typer.Context) -> NodeTarget:
        """The target of the group ``node``."""
        target = context.obj
        assert isinstance(target, cls)
        return target

    def reach(self, console: Console) -> ConnectionFactory:
        """The factory of connections."""
        return self.connecting.reach(console)

    def ask(self, console: Console, work: Callable[[AdminClient], Awaitable[Result]]) -> Result:
        """Run `work` with a connection to the admin port."""
        return run_async(self._ask(self.reach(console), work))

    def explain(self, error: WaltzError) -> None:
        """Add to an error of an assumed data port how to give the right one."""
        if self.data_assumed and isinstance(error, PeerError) and error.peer == str(self.data):
            told = "the data port was taken to be the admin port - 1; --data-port says which it is"
            error.advice = told if error.advice is None else f"{error.advice}\n  {told}"

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Call `explain` for errors of the block."""
        try:
            yield
        except WaltzError as error:
            self.explain(error)
            raise

    async def _ask(self, reach: ConnectionFactory, work: Callable[[AdminClient], Awaitable[Result]]) -> Result:
        async with await reach.admin(self.admin) as client:
            return await work(client)


def wanted_of(text: str) -> frozenset[int]:
    """The partitions of a required ``--partition``."""
    found = partitions_of(text)
    assert found is not None
    return found


def change_partitions(
    target: NodeTarget,
    console: Console,
    switches: Switches,
    plan: Callable[[AdminClient], Awaitable[NodePlan]],
    done: str,
) -> ExitStatus:
    """Plan with `plan`, and apply the plan if the user agrees.  `done`: a verb for the result, such as "assigned"."""
    from waltzctl.engine.client.change_plan import apply_plan
    from waltzctl.objects.node_objects import node_plan_object

    reach = target.reach(console)

    async def make() -> NodePlan:
        async with await reach.admin(target.admin) as client:
            return await plan(client)

    async def apply(agreed: NodePlan) -> Changed:
        async with await reach.admin(target.admin) as client:
            await apply_plan(client, agreed, lambda: plan(client))
        touched = {step.partition for step in agreed.steps}
        noun = "Partition" if len(touched) == 1 else "Partitions"
        return Changed(f"{noun} {format_ranges(touched)} of {target.admin} {done}.")

    return change(console, switches, make, apply, node_plan_object)
