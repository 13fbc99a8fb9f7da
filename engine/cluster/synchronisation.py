"""Telling storage nodes what the metadata says that they hold.

The two are kept apart on purpose (a node starts without metadata, and keeps what it has); here they are brought together, each
node by a plan of its own that names what would be added, and what taken away with the session and marks that go with it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

from waltzctl.engine.client.change_plan import NodePlan, NodeStep, check_still_holds, do_steps
from waltzctl.engine.client.changes import plan_sync
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.errors import InvalidRequestError, StalePlanError, WaltzError
from waltzctl.engine.metadata.cluster_state import ClusterState, NodeState
from waltzctl.engine.net.addresses import Address, parse_address


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """A plan for each node that answered; `unreachable`: the others, and why."""

    plans: tuple[NodePlan, ...]
    unreachable: tuple[tuple[str, str], ...]

    @property
    def hash(self) -> str:
        """Of all of them."""
        return hashlib.sha256("".join(plan.hash for plan in self.plans).encode()).hexdigest()

    @property
    def steps(self) -> tuple[NodeStep, ...]:
        """Of all of them."""
        return tuple(step for plan in self.plans for step in plan.steps)


def admin_address(node: NodeState) -> Address:
    """Where a storage node is looked after.  Raises InvalidRequestError for a name that is no address."""
    address = parse_address(node.node)
    return address.with_port(address.port + 1 if node.admin_port is None else node.admin_port)


async def plan_synchronisation(
    state: ClusterState, reach: ConnectionFactory, *, only_add: bool, nodes: Collection[str] | None = None
) -> SyncPlan:
    """Ask every node, or those named, what it has."""
    wanted = [node for node in state.nodes if nodes is None or node.node in nodes]
    found = await asyncio.gather(*(_plan(state, node, reach, only_add) for node in wanted))
    plans = [one for one in found if isinstance(one, NodePlan)]
    failed = [(node.node, one) for node, one in zip(wanted, found, strict=True) if isinstance(one, str)]
    return SyncPlan(tuple(plans), tuple(failed))


async def _plan(state: ClusterState, node: NodeState, reach: ConnectionFactory, only_add: bool) -> NodePlan | str:
    try:
        address = admin_address(node)
        async with await reach.admin(
            address, cluster_key=state.cluster_key, num_partitions=state.num_partitions
        ) as client:
            return await plan_sync(client, node.partitions, only_add=only_add)
    except WaltzError as error:
        return str(error)


async def synchronise(
    state: ClusterState,
    agreed: SyncPlan,
    reach: ConnectionFactory,
    *,
    only_add: bool,
    told: Callable[[Address], None] = lambda _: None,
) -> None:
    """Do what was agreed to, node by node; `told` is called with the admin address of each for which there was something.

    Raises StalePlanError, before anything is done, where a node has changed or the metadata does not know it any more; and what
    the calls raise.
    """
    partitions = dict(_known(state))
    async with AsyncExitStack() as connections:
        clients = []
        for plan in agreed.plans:
            wanted = partitions.get(plan.address)
            if wanted is None:
                raise StalePlanError(
                    f"{plan.address}: the metadata knows no storage node there any more; nothing was done",
                    advice="look at it again",
                )
            # another cluster's node may listen there by now, and would be told what this one's was to hold
            reached = reach.admin(plan.address, cluster_key=state.cluster_key, num_partitions=state.num_partitions)
            client = await connections.enter_async_context(await reached)
            await check_still_holds(plan, partial(plan_sync, client, wanted, only_add=only_add))
            clients.append(client)
        for client, plan in zip(clients, agreed.plans, strict=True):
            if plan.steps:
                await do_steps(client, plan)
                told(plan.address)


def _known(state: ClusterState) -> Iterator[tuple[Address, tuple[int, ...]]]:
    """What each storage node is to hold, by its admin address; a name that is no address is nobody's."""
    for node in state.nodes:
        with suppress(InvalidRequestError):
            yield admin_address(node), node.partitions
