"""Replicas that are taken away, by what those that stay say of themselves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.told_cluster import SESSION, ToldCluster, ToldNode
from waltzctl.engine.cluster.replica_removal import unassign
from waltzctl.engine.errors import InvalidRequestError, PeerUnreachableError, RefusedError
from waltzctl.engine.metadata.cluster_state import ReplicaInSession, read_cluster_state
from waltzctl.engine.metadata.cluster_steps import PLAN_ONLY
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.formats.znodes import ASSIGNMENT_PATH, NodeAssignment, NodePartitions

END = 9


def whole() -> ToldNode:
    return ToldNode({0: [END], 1: [END]})


def out_of_service() -> ToldNode:
    return ToldNode({0: [-1], 1: [END]}, out={0: "quarantined"})


def emptied(session: int = -1) -> ToldNode:
    return ToldNode({0: [-1], 1: [END]}, sessions={0: session})


def without(tmp_path: Path, cluster: ToldCluster, partitions: Sequence[int] = (0,), node: str = "n0:1") -> list[str]:
    """Take partitions from a node, first as a plan, and see that they are taken exactly where that is not refused.

    What was said of nodes that do not answer.
    """
    said: list[str] = []

    async def work() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", create=True, session_timeout=5.0)
        try:
            await cluster.write_metadata(store)
            before = await read_cluster_state(store)
            try:
                planned = await unassign(store, cluster.reach, node, partitions, mode=PLAN_ONLY, say=said.append)
                assert await read_cluster_state(store) == before
                assert await unassign(store, cluster.reach, node, partitions, say=said.append) == planned
            except (RefusedError, InvalidRequestError):
                assert await read_cluster_state(store) == before
                raise
            held = {one.node: one.partitions for one in (await read_cluster_state(store)).nodes}
            assert held[node] == tuple(number for number in (0, 1) if number not in partitions)
        finally:
            await store.close()

    asyncio.run(work())
    return said


def test_where_the_others_are_whole_a_replica_goes(tmp_path: Path) -> None:
    nodes = whole(), whole(), whole()
    without(tmp_path, ToldCluster(*nodes, server=None))
    assert [node.looks for node in nodes] == [0, 2, 2]  # the one that goes is not asked: it may be dead


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (out_of_service(), "out of service: quarantined"),
        (ToldNode({0: [END], 1: [END]}, off={0}), "switched off"),
        (ToldNode({1: [END]}), "the node does not hold it"),
        (emptied(), f"it has lost what it held: it is in session -1, and was in session {SESSION}"),
        (emptied(SESSION - 1), "it has lost what it held"),
    ],
)
def test_one_that_stays_and_is_of_no_use_does_not_count(tmp_path: Path, other: ToldNode, why: str) -> None:
    cluster = ToldCluster(whole(), other, whole(), server=None)
    message = f"partition 0: its last session had 3 replicas.*1 would be left without n0:1; n1:1 does not count: {re.escape(why)}"
    with pytest.raises(RefusedError, match=message) as refused:
        without(tmp_path, cluster)
    assert "cluster verify" in (refused.value.advice or "")


def test_another_partition_of_the_same_node_may_go(tmp_path: Path) -> None:
    without(tmp_path, ToldCluster(whole(), emptied(), whole(), server=None), (1,))


def test_of_several_partitions_one_that_may_not_go_keeps_all(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="partition 0"):
        without(tmp_path, ToldCluster(whole(), emptied(), whole(), server=None), (0, 1))


@pytest.mark.parametrize("other", [emptied(SESSION), emptied(SESSION + 1)])
def test_one_in_the_last_session_or_a_later_one_counts(tmp_path: Path, other: ToldNode) -> None:
    without(tmp_path, ToldCluster(whole(), other, whole(), server=None))


def test_one_that_does_not_answer_counts(tmp_path: Path) -> None:
    silent = ToldNode({0: [PeerUnreachableError("n1:2", "no")], 1: [END]})
    said = without(tmp_path, ToldCluster(whole(), silent, whole(), server=None))
    assert said == ["storage node n1:1 does not tell what it holds, and counts as whole: n1:2: no"]


@pytest.mark.parametrize("closing", [None, 4])
def test_a_new_one_that_is_still_empty_counts_as_before(tmp_path: Path, closing: int | None) -> None:
    """It was in no session, or in an earlier one, and the metadata says so: what it lacks it never acknowledged."""
    cluster = ToldCluster(whole(), emptied(), whole(), server=None)
    (first, second, third), (_, other) = cluster.state.partitions[0].replicas, cluster.state.partitions
    new = replace(second, session_id=-1 if closing is None else SESSION, closing_high_water_mark=closing)
    assert isinstance(new, ReplicaInSession)
    partition = replace(cluster.state.partitions[0], replicas=(first, new, third))
    cluster.state = replace(cluster.state, partitions=(partition, other))
    without(tmp_path, cluster)


@pytest.mark.parametrize(("bad", "refused"), [(1, False), (2, True)])
def test_of_five_one_may_be_of_no_use(tmp_path: Path, bad: int, refused: bool) -> None:
    nodes = [whole(), *(emptied() for _ in range(bad)), *(whole() for _ in range(4 - bad))]
    cluster = ToldCluster(*nodes, server=None)
    if refused:
        with pytest.raises(RefusedError, match=r"n1:1 does not count.*; n2:1 does not count"):
            without(tmp_path, cluster)
    else:
        without(tmp_path, cluster)


def test_what_the_metadata_refuses_is_refused_as_before(tmp_path: Path) -> None:
    cluster = ToldCluster(whole(), whole(), server=None)
    with pytest.raises(RefusedError, match="1 would be left without n0:1; nothing") as refused:
        without(tmp_path, cluster)
    assert "open a session" in (refused.value.advice or "")


def test_a_partition_beyond_the_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="0 to 1"):
        without(tmp_path, ToldCluster(whole(), whole(), server=None), (2,))


def test_one_beyond_the_cluster_that_two_nodes_were_given_is_taken_away(tmp_path: Path) -> None:
    cluster = ToldCluster(whole(), whole(), server=None)

    async def work() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", create=True, session_timeout=5.0)
        try:
            await cluster.write_metadata(store)
            given = NodeAssignment((NodePartitions("n0:1", (0, 1, 7)), NodePartitions("n1:1", (0, 1, 7))))
            await store.set(ASSIGNMENT_PATH, given.encode())
            (step,) = await unassign(store, cluster.reach, "n0:1", (7,))
            assert (step.node, step.partition) == ("n0:1", 7)
        finally:
            await store.close()

    asyncio.run(work())
