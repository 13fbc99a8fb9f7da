"""Storage nodes are told what the metadata says: all that was agreed to, or nothing where anything has changed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from tests.cluster.told_cluster import KEY, ToldCluster, ToldNode
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.cluster.synchronisation import SyncPlan, plan_synchronisation, synchronise
from waltzctl.engine.errors import ConcurrentUpdateError, MismatchError, PeerUnreachableError, StalePlanError
from waltzctl.engine.metadata.cluster_state import ClusterState
from waltzctl.engine.net.addresses import Address


@dataclass
class Node(ToldNode):
    """One that takes partitions and gives them back; `dies`: at the next of these it breaks the connection.

    `key`: of its cluster.
    """

    dies: bool = False
    key: uuid.UUID = KEY

    async def assign(self, partitions: Collection[int]) -> None:
        self._lives()
        self.ends |= {number: [-1] for number in partitions}

    async def unassign(self, partitions: Collection[int], *, delete_files: bool) -> None:
        self._lives()
        assert not delete_files
        for number in partitions:
            del self.ends[number]

    def _lives(self) -> None:
        if self.dies:
            raise PeerUnreachableError(str(self.address), "the connection broke")

    @property
    def held(self) -> list[int]:
        return sorted(self.ends)


class Reach:
    """Connections to the nodes ``n0:2``, ``n1:2``, ...; `open`: how many there are at the moment."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes, self.open = nodes, 0

    async def admin(
        self, address: Address, *, cluster_key: uuid.UUID | None = None, num_partitions: int | None = None
    ) -> Any:
        node = self.nodes[int(address.host[1:])]
        if cluster_key not in (None, node.key):
            raise MismatchError(f"{address}: another cluster key")
        return self._connection(address, node)

    @contextlib.asynccontextmanager
    async def _connection(self, address: Address, node: Node) -> AsyncIterator[Node]:
        node.address = cast("str", address)
        self.open += 1
        try:
            yield node
        finally:
            self.open -= 1


def lacking_one() -> Node:
    return Node({0: [9]})


def synchronise_all(
    told: list[str],
    *nodes: Node,
    meanwhile: Callable[[ClusterState], ClusterState] = lambda state: state,
    only_add: bool = False,
) -> None:
    """Plan, let something happen, and apply; into `told` go those that were told, also where it fails."""
    state = ToldCluster(*nodes, server=None).state
    reach = Reach(*nodes)

    async def work() -> None:
        factory = cast("ConnectionFactory", reach)
        plan: SyncPlan = await plan_synchronisation(state, factory, only_add=only_add)
        assert not plan.unreachable
        await synchronise(
            meanwhile(state), plan, factory, only_add=only_add, on_synchronised=lambda one: told.append(str(one))
        )

    try:
        asyncio.run(work())
    finally:
        assert not reach.open


def test_every_node_is_told() -> None:
    nodes = lacking_one(), Node({0: [9], 1: [9], 7: [9]}), Node({0: [9], 1: [9]})
    told: list[str] = []
    synchronise_all(told, *nodes)
    assert told == ["n0:2", "n1:2"], "of the third one nothing was wanted"
    assert [node.held for node in nodes] == [[0, 1]] * 3


def test_nothing_is_taken_away_where_only_adding_is_wanted() -> None:
    nodes = lacking_one(), Node({0: [9], 1: [9], 7: [9]})
    synchronise_all([], *nodes, only_add=True)
    assert [node.held for node in nodes] == [[0, 1], [0, 1, 7]]


def test_a_node_that_has_changed_keeps_the_others_from_being_told() -> None:
    first, second, told = lacking_one(), lacking_one(), list[str]()

    def changed(state: ClusterState) -> ClusterState:
        second.ends[5] = [1]
        return state

    with pytest.raises(StalePlanError, match="n1:2: the node has changed since the plan was made; nothing was done"):
        synchronise_all(told, first, second, meanwhile=changed)
    assert (first.held, told) == ([0], [])


def test_a_node_of_another_cluster_that_listens_there_meanwhile_is_told_nothing() -> None:
    first, second, told = lacking_one(), lacking_one(), list[str]()

    def replaced(state: ClusterState) -> ClusterState:
        second.key = uuid.UUID(int=8)
        return state

    with pytest.raises(MismatchError, match="n1:2: another cluster key"):
        synchronise_all(told, first, second, meanwhile=replaced)
    assert ([first.held, second.held], told) == ([[0], [0]], [])


@pytest.mark.parametrize(
    "gone",
    [
        lambda state: replace(state, nodes=state.nodes[:1]),
        lambda state: replace(state, nodes=(state.nodes[0], replace(state.nodes[1], admin_port=3))),
        lambda state: replace(state, nodes=(state.nodes[0], replace(state.nodes[1], admin_port=65536))),
    ],
    ids=["removed", "another port", "a port that does not exist"],
)
def test_a_node_that_has_left_the_metadata_keeps_the_others_from_being_told(
    gone: Callable[[ClusterState], ClusterState],
) -> None:
    first, told = lacking_one(), list[str]()
    with pytest.raises(
        StalePlanError, match="n1:2: the metadata knows no storage node there any more; nothing was done"
    ):
        synchronise_all(told, first, lacking_one(), meanwhile=gone)
    assert (first.held, told) == ([0], [])


def test_who_was_told_before_one_failed_is_known() -> None:
    nodes = lacking_one(), lacking_one(), lacking_one()
    nodes[1].dies = True
    told: list[str] = []
    with pytest.raises(PeerUnreachableError, match="n1:2: the connection broke"):
        synchronise_all(told, *nodes)
    assert [node.held for node in nodes] == [[0, 1], [0], [0]]
    assert told == ["n0:2"]


def test_a_node_whose_port_does_not_exist_leaves_the_others_alone() -> None:
    first, second = lacking_one(), lacking_one()
    state = ToldCluster(first, second, server=None).state
    broken = replace(state, nodes=(state.nodes[0], replace(state.nodes[1], admin_port=65536)))

    async def work() -> SyncPlan:
        factory = cast("ConnectionFactory", Reach(first, second))
        plan = await plan_synchronisation(broken, factory, only_add=False)
        await synchronise(broken, plan, factory, only_add=False)
        return plan

    plan = asyncio.run(work())
    assert (first.held, second.held) == ([0, 1], [0])
    assert plan.unreachable == (("n1:1", "n1: port 65536 does not exist; ports are 1 to 65535"),)


@pytest.mark.parametrize("changed", [0, 1, None], ids=["of who was told", "of another", "not changed"])
def test_an_assignment_that_is_changed_while_nodes_are_told_is_told(changed: int | None) -> None:
    """Somebody gave the partition back, and told the node before it was taken away: nothing showed that it has it no more."""
    first, second = Node({0: [9], 1: [9], 7: [9]}), Node({0: [9], 1: [9]})
    state, told = ToldCluster(first, second, server=None).state, list[str]()
    nodes = [replace(one, partitions=(0, 1, 7)) if place == changed else one for place, one in enumerate(state.nodes)]

    async def again() -> ClusterState:
        assert first.held == [0, 1], "it is read behind the last step"
        return replace(state, nodes=tuple(nodes))

    async def work() -> None:
        factory = cast("ConnectionFactory", Reach(first, second))
        plan = await plan_synchronisation(state, factory, only_add=False)
        await synchronise(
            state, plan, factory, only_add=False, on_synchronised=lambda one: told.append(str(one)), again=again
        )

    if changed == 0:
        with pytest.raises(
            ConcurrentUpdateError, match=r"^n0:2: the metadata gave the storage node other partitions"
        ) as caught:
            asyncio.run(work())
        assert "cluster sync once more" in str(caught.value.advice)
    else:
        asyncio.run(work())
    assert told == ["n0:2"]


def test_where_nobody_is_told_anything_the_metadata_is_not_read_again() -> None:
    node = Node({0: [9], 1: [9]})
    state = ToldCluster(node, server=None).state

    async def again() -> ClusterState:
        raise AssertionError("nothing was done")

    async def work() -> None:
        factory = cast("ConnectionFactory", Reach(node))
        plan = await plan_synchronisation(state, factory, only_add=False)
        await synchronise(state, plan, factory, only_add=False, again=again)

    asyncio.run(work())
