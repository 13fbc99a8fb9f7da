"""Synchronisation of storage nodes with the metadata: each node gets the partitions that are assigned to it.

A node does not read the assignment itself: it starts without metadata, and keeps the partitions it has.  Each node gets a plan of
its own, which names the partitions to add, and those to remove with their sessions and marks.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

from waltzctl.engine.client.change_plan import NodePlan, NodeStep, check_still_holds, do_steps
from waltzctl.engine.client.changes import plan_sync
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.errors import ConcurrentUpdateError, InvalidRequestError, StalePlanError, WaltzError
from waltzctl.engine.metadata.cluster_state import ClusterState, NodeState
from waltzctl.engine.net.addresses import Address, parse_address


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """A plan for each node that answered; `unreachable`: the other nodes, each with the error."""

    plans: tuple[NodePlan, ...]
    unreachable: tuple[tuple[str, str], ...]

    @property
    def hash(self) -> str:
        """SHA-256 of the hashes of all plans, hexadecimal."""
        return hashlib.sha256("".join(plan.hash for plan in self.plans).encode()).hexdigest()

    @property
    def steps(self) -> tuple[NodeStep, ...]:
        """The steps of all plans."""
        return tuple(step for plan in self.plans for step in plan.steps)


def admin_address(node: NodeState) -> Address:
    """The address of a storage node's admin port.  Raises InvalidRequestError if the node's name is not an address."""
    address = parse_address(node.node)
    return address.with_port(address.port + 1 if node.admin_port is None else node.admin_port)


async def plan_synchronisation(
    state: ClusterState, reach: ConnectionFactory, *, only_add: bool, nodes: Collection[str] | None = None
) -> SyncPlan:
    """Plan for every node, or for those named.  `only_add`: remove nothing."""
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
    on_synchronised: Callable[[Address], None] = lambda _: None,
    again: Callable[[], Awaitable[ClusterState]] | None = None,
) -> None:
    """Apply an agreed plan, node by node; `on_synchronised` is called with the admin address of each node that was changed.

    `again` reads the state once more behind that: somebody may have changed the assignment while the nodes were told, and may
    have told them as well, before this call took a partition away that they have by then.

    Raises StalePlanError, before anything is done, if a node has changed or is no longer in the metadata; ConcurrentUpdateError,
    behind it, if another assignment is in force; and what the calls to nodes raise.
    """
    partitions = dict(_assigned_by_address(state))
    async with AsyncExitStack() as connections:
        clients = []
        for plan in agreed.plans:
            wanted = partitions.get(plan.address)
            if wanted is None:
                raise StalePlanError(
                    f"{plan.address}: the metadata knows no storage node there any more; nothing was done",
                    advice="look at it again",
                )
            # the cluster key is checked: a node of another cluster may listen at this address by now
            reached = reach.admin(plan.address, cluster_key=state.cluster_key, num_partitions=state.num_partitions)
            client = await connections.enter_async_context(await reached)
            await check_still_holds(plan, partial(plan_sync, client, wanted, only_add=only_add))
            clients.append(client)
        for client, plan in zip(clients, agreed.plans, strict=True):
            if plan.steps:
                await do_steps(client, plan)
                on_synchronised(plan.address)
    told = [plan.address for plan in agreed.plans if plan.steps]
    if again is None or not told:
        return
    now = dict(_assigned_by_address(await again()))
    if other := [str(one) for one in told if now.get(one) != partitions[one]]:
        raise ConcurrentUpdateError(
            f"{', '.join(other)}: the metadata gave the storage node other partitions while it was told the ones of before",
            advice="run waltzctl cluster sync once more",
        )


def _assigned_by_address(state: ClusterState) -> Iterator[tuple[Address, tuple[int, ...]]]:
    """The partitions assigned to each storage node, by its admin address; nodes whose name is not an address are left out."""
    for node in state.nodes:
        with suppress(InvalidRequestError):
            yield admin_address(node), node.partitions
