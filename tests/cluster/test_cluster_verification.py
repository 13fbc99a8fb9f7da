"""What is told of replicas: those that take no part, those that are behind, by how nodes and servers answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.told_cluster import SESSION, ToldCluster, ToldNode, ToldServer
from waltzctl.engine.cluster import cluster_verification
from waltzctl.engine.cluster.cluster_answers import ServerAnswer, ask_servers
from waltzctl.engine.cluster.cluster_verification import ClusterVerification
from waltzctl.engine.cluster.overview import look
from waltzctl.engine.cluster.quorum_recovery import plan_recovery
from waltzctl.engine.errors import DeadlineError, PeerUnreachableError, WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.metadata.cluster_changes import add_node, assign, create_cluster
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.formats.znodes import PARTITION_PATH, PartitionMetadata, ReplicaState

MARK = 20


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_verification, "_PAUSES", (0.0, 0.0, 0.0))


def whole() -> ToldNode:
    return ToldNode({0: [MARK], 1: [MARK]})


def server() -> ToldServer:
    return ToldServer({0: MARK, 1: MARK})


def findings(cluster: ToldCluster, partitions: Sequence[int] | None = None) -> tuple[Finding, ...]:
    return asyncio.run(ClusterVerification(cluster.state, "where", cluster.reach, partitions).findings())


def told(cluster: ToldCluster, partitions: Sequence[int] | None = None) -> list[tuple[str, str, int | None]]:
    return [(one.code.value, one.path, one.partition) for one in findings(cluster, partitions)]


def test_of_replicas_that_are_whole_nothing_is_told_at_one_look() -> None:
    nodes = whole(), whole(), whole()
    assert told(ToldCluster(*nodes, server=server())) == []
    assert [node.looks for node in nodes] == [1, 1, 1]


def test_a_replica_out_of_service_is_told_and_counts_for_no_quorum() -> None:
    damaged = ToldNode({0: [MARK], 1: [-1]}, out={1: "quarantined"})
    (one,) = findings(ToldCluster(whole(), damaged, whole(), server=server()))
    assert (one.code.value, one.severity.value, one.path, one.partition) == (
        "replica-out-of-service",
        "repairable",
        "n1:1",
        1,
    )
    assert one.message == "this replica takes no part: out of service: quarantined"
    assert told(ToldCluster(whole(), damaged, whole(), server=server()), [0]) == []
    full = ToldNode({0: [MARK], 1: [MARK]}, out={1: "disk-full"})
    of_quorum = [one for one in findings(ToldCluster(whole(), damaged, full, server=server())) if one.path == "where"]
    assert [(one.code.value, one.partition) for one in of_quorum] == [("quorum-missing", 1)]
    assert of_quorum[0].message == "1 of its 3 replicas are at work, and a quorum is 2; missing: n1:1, n2:1"


def test_a_replica_that_is_switched_off_is_a_note() -> None:
    off = ToldNode({0: [3], 1: [MARK]}, off={0})
    (one,) = findings(ToldCluster(whole(), whole(), off, server=server()))
    assert (one.code.value, one.severity.value, one.path, one.partition) == (
        "replica-not-in-session",
        "note",
        "n2:1",
        0,
    )
    assert one.message == "this replica takes no part: switched off"
    assert off.looks == 1, "nobody waits for it"


@pytest.mark.parametrize(
    ("ends", "code", "looks"),
    [
        ([MARK], None, 1),
        ([MARK + 1], None, 1),
        ([MARK - 1], "replica-behind", 4),
        ([MARK - 1, MARK], None, 2),
        ([3, 3, MARK - 1, MARK], None, 4),
        ([3, 3, MARK - 1], "replica-not-in-session", 4),
        ([3, 3, 3, 4], "replica-not-in-session", 4),
        ([3, 3, 3, 3, MARK], "replica-behind", 4),
        ([3, 2], "replica-behind", 4),
        ([3, PeerUnreachableError("n1:2", "it went away")], "node-unreachable", 2),
    ],
)
def test_a_replica_that_is_behind_is_looked_at_until_it_is_not(
    ends: list[int | WaltzError], code: str | None, looks: int
) -> None:
    late, others = ToldNode({0: ends, 1: [MARK]}), (whole(), whole())
    partition = None if code == "node-unreachable" else 0
    cluster = ToldCluster(others[0], late, others[1], server=server())
    assert told(cluster) == ([] if code is None else [(code, "n1:1", partition)])
    assert late.looks == looks
    assert [node.looks for node in others] == [1, 1], "only who is behind is asked again"


def test_how_far_a_replica_is_behind_is_told() -> None:
    (stands,) = findings(ToldCluster(whole(), ToldNode({0: [3], 1: [MARK]}), whole(), server=server()))
    assert stands.message == "this replica ends at transaction 3, 20 is committed, and it came no nearer in 0 s"
    assert stands.severity.value == "repairable"
    (nearer,) = findings(ToldCluster(whole(), ToldNode({0: [3, 5], 1: [MARK]}), whole(), server=server()))
    assert nearer.message == "this replica catches up: 15 transactions behind 20"
    assert nearer.severity.value == "note"


def test_who_is_to_hold_nothing_is_not_behind() -> None:
    """That it holds the partition all the same is told."""
    cluster = ToldCluster(whole(), whole(), whole(), ToldNode({0: [3], 1: [MARK]}), server=server())
    *others, last = cluster.state.nodes
    cluster.state = replace(cluster.state, nodes=(*others, replace(last, partitions=(1,))))
    assert [one for one in told(cluster) if one[1] == "n3:1"] == [("node-differs", "n3:1", 0)]


def test_where_no_server_tells_a_mark_nobody_is_behind() -> None:
    late = ToldNode({0: [3], 1: [3]})
    silent = ToldServer({1: 3}, silent={0: DeadlineError("s:1", "no answer")})
    assert told(ToldCluster(whole(), late, whole(), server=silent)) == []
    old = ToldServer({}, tells_health=False)
    assert told(ToldCluster(whole(), late, whole(), server=old)) == []
    gone = told(ToldCluster(whole(), late, whole(), server=None))
    assert gone == [("server-unreachable", "s:1", None)]


def test_what_servers_are_asked() -> None:
    def ask(told: ToldServer | None, marks_of: Sequence[int], *, connectivity: bool = False) -> ServerAnswer:
        cluster = ToldCluster(server=told)
        (answer,) = asyncio.run(ask_servers(cluster.state, cluster.reach, marks_of, connectivity=connectivity))
        return answer

    one = ToldServer({0: 7, 1: -(2**63)})
    found = ask(one, [0, 1], connectivity=True)
    assert (found.partitions, found.health, found.marks) == ((0, 1), ((0, True), (1, True)), ((0, 7),))
    assert (one.asked, one.tried) == ([0, 1], 1)
    one = ToldServer({0: 7}, partitions_=range(2))
    assert ask(one, [1]).marks == ()
    assert (one.asked, one.tried) == ([], 0), "one without a session is not asked"
    many = ToldServer(dict.fromkeys(range(600), 7), partitions_=range(600))
    assert len(ask(many, range(599)).marks) == 599
    broken = ask(ToldServer({}, silent={0: PeerUnreachableError("s:1", "it went away")}), [0])
    assert isinstance(broken.error, PeerUnreachableError)
    assert ask(ToldServer({}, tells_health=False), [0]) == ServerAnswer(found.server, (0, 1))


def test_how_a_cluster_does_says_why_a_replica_takes_no_part() -> None:
    nodes = (
        ToldNode({0: [MARK], 1: [-1]}, out={1: "quarantined"}),
        ToldNode({0: [MARK - 3], 1: [MARK]}, off={1}),
        None,
    )
    cluster = ToldCluster(*nodes, server=server())
    found = asyncio.run(look(cluster.state, cluster.reach))
    assert (found.nodes, found.nodes_answering, found.servers, found.servers_answering) == (3, 2, 1, 1)
    replicas = [
        [(one.last_transaction_id, one.behind, one.why_absent) for one in partition.replicas]
        for partition in found.partitions
    ]
    assert replicas == [
        [(MARK, 0, None), (MARK - 3, 3, None), (None, None, None)],
        [(None, None, "out of service: quarantined"), (None, None, "switched off"), (None, None, None)],
    ]
    assert [one.waits_for for one in found.partitions] == [(), ()]
    without = asyncio.run(look(cluster.state, ToldCluster(*nodes, server=ToldServer({0: MARK})).reach))
    assert [one.waits_for for one in without.partitions] == [(), ("n0:1", "n1:1", "n2:1")]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (ToldNode({0: [-1], 1: [9]}, out={0: "quarantined"}), "n1:1 (out of service: quarantined)"),
        (ToldNode({0: [-1], 1: [9]}, off={0}), "n1:1 (switched off)"),
        (ToldNode({1: [9]}), "n1:1 (the node does not hold it)"),
    ],
)
def test_a_replica_that_lets_no_session_in_has_no_vote_in_what_recovery_would_do(
    second: ToldNode, reason: str, tmp_path: Path
) -> None:
    cluster = ToldCluster(ToldNode({0: [9], 1: [9]}), second, None, server=None)

    async def work() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", create=True, session_timeout=5.0)
        try:
            await create_cluster(store, name="demo", num_partitions=2, cluster_key=cluster.state.cluster_key)
            for node in cluster.state.nodes:
                await add_node(store, node.node, admin_port=2, group=node.group or 0)
                await assign(store, node.node, [0, 1])
            for number in (0, 1):
                replicas = tuple(ReplicaState(number, node.node, SESSION) for node in cluster.state.nodes)
                await store.create(f"{PARTITION_PATH}/{number}", PartitionMetadata(1, SESSION, replicas).encode())
            damaged, whole = (await plan_recovery(store, cluster.reach)).forecasts
        finally:
            await store.close()
        assert (damaged.high_water_mark, damaged.voters) == (None, (("n0:1", 9),))
        assert reason in damaged.waits_for
        assert whole.high_water_mark == 9

    asyncio.run(work())
