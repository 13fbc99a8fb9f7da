"""What is told of replicas: those that take no part, those that are behind, by how nodes and servers answer."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.told_cluster import SESSION, ToldCluster, ToldNode, ToldServer
from waltzctl.engine.cluster import cluster_verification
from waltzctl.engine.cluster.cluster_answers import ServerAnswer, ask_servers
from waltzctl.engine.cluster.cluster_verification import ClusterVerification
from waltzctl.engine.cluster.overview import ClusterOverview, Unheard, observe
from waltzctl.engine.cluster.quorum_recovery import plan_recovery
from waltzctl.engine.errors import DeadlineError, MismatchError, PeerUnreachableError, RemoteError, WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.metadata.cluster_state import NodeState, ReplicaInSession, ServerState
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.formats.znodes import AssignedPartition

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
    found = asyncio.run(observe(cluster.state, cluster.reach))
    assert (found.nodes, found.nodes_answering, found.servers, found.servers_answering) == (3, 2, 1, 1)
    assert found.unheard == (Unheard("n2:1", "n2:2: nobody listens"),)
    alone = asyncio.run(observe(cluster.state, ToldCluster(*nodes, server=None).reach))
    assert [(one.address, one.why) for one in alone.unheard] == [
        ("n2:1", "n2:2: nobody listens"),
        ("s:1", "s:1: nobody listens"),
    ]
    replicas = [
        [(one.last_transaction_id, one.behind, one.why_absent) for one in partition.replicas]
        for partition in found.partitions
    ]
    assert replicas == [
        [(MARK, 0, None), (MARK - 3, 3, None), (None, None, None)],
        [(None, None, "out of service: quarantined"), (None, None, "switched off"), (None, None, None)],
    ]
    assert [one.waits_for for one in found.partitions] == [(), ()]
    without = asyncio.run(observe(cluster.state, ToldCluster(*nodes, server=ToldServer({0: MARK})).reach))
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
            await cluster.write_metadata(store)
            damaged, whole = (await plan_recovery(store, cluster.reach)).forecasts
        finally:
            await store.close()
        assert (damaged.high_water_mark, damaged.voters) == (None, (("n0:1", 9),))
        assert reason in damaged.waits_for
        assert whole.high_water_mark == 9

    asyncio.run(work())


# --- what the metadata says, beside what nodes and servers say --------------------------------------------------------


def sound() -> ToldCluster:
    return ToldCluster(whole(), whole(), whole(), server=server())


def said(cluster: ToldCluster, partitions: Sequence[int] | None = None) -> list[tuple[str, str, int | None, str]]:
    return [(one.code.value, one.path, one.partition, one.message) for one in findings(cluster, partitions)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MismatchError("another key"), "node-key"),
        (RemoteError("n1:2", "another key", status="mismatch"), "node-key"),
        (RemoteError("n1:2", "no"), "node-unreachable"),
        (PeerUnreachableError("n1:2", "nobody listens"), "node-unreachable"),
    ],
)
def test_a_node_of_another_cluster_is_told_from_one_that_gives_no_answer(error: WaltzError, code: str) -> None:
    cluster = ToldCluster(whole(), ToldNode({0: [error], 1: [MARK]}), whole(), server=server())
    assert said(cluster) == [(code, "n1:1", None, str(error))]


def test_maps_that_disagree_are_told() -> None:
    cluster = sound()
    first, second, third = cluster.state.nodes
    nodes = (
        replace(first, group=None),
        replace(second, group=None, admin_port=None),
        replace(third, partitions=(0, 1, 2)),
    )
    cluster.state = replace(cluster.state, nodes=nodes)
    told_so = [one for one in said(cluster) if one[0] == "cluster-maps"]
    assert told_so == [
        ("cluster-maps", "n0:1", None, "storage node n0:1 has no group: the maps of the metadata disagree"),
        (
            "cluster-maps",
            "n1:1",
            None,
            "storage node n1:1 has no group and no admin port: the maps of the metadata disagree",
        ),
        ("cluster-maps", "n2:1", None, "storage node n2:1 is given partition 2 of 2"),
    ]


def test_what_a_server_serves_beside_what_it_is_given() -> None:
    cluster = ToldCluster(whole(), whole(), whole(), server=ToldServer({0: MARK, 7: MARK}, partitions_=(0, 7)))
    (one,) = said(cluster)
    assert one == (
        *("server-differs", "s:1", 1, "the assignment gives partition 1 to server 1, and it does not serve it"),
    )
    (only,) = cluster.state.servers
    cluster.state = replace(cluster.state, servers=(replace(only, partitions=only.partitions[1:]),))
    cluster.server_ = server()
    assert said(cluster) == [
        (
            "server-differs",
            "s:1",
            0,
            "the assignment does not give partition 0 to server 1, and it serves it all the same",
        ),
        ("partition-without-server", "where", 0, "no live server has it"),
    ]
    assert said(cluster, [1]) == []
    cluster.state = replace(cluster.state, servers=(only, replace(only, server_id=4)), assignment_is_current=False)
    codes = {(code, partition): message for code, _, partition, message in said(cluster)}
    assert codes["partition-without-server", 0] == "servers 1, 4 have it"
    assert codes["server-differs", None].startswith(
        "servers 1, 4 live, and the assignment was made for others: server 1,"
    )


def test_servers_that_share_an_address_are_told() -> None:
    cluster = ToldCluster(whole(), whole(), whole(), server=server())
    (only,) = cluster.state.servers
    halves = (replace(only, partitions=only.partitions[:1]), replace(only, server_id=4, partitions=only.partitions[1:]))
    cluster.state = replace(cluster.state, servers=halves)
    text = (
        "servers 1, 4 have this address, and clients reach only one of them: if the others run, start each with an"
        " --advertised-host of its own"
    )
    assert ("server-differs", "s:1", None, text) in said(cluster)


def test_a_partition_without_a_session_and_one_without_replicas() -> None:
    cluster = ToldCluster(whole(), whole(), whole(), server=ToldServer({1: MARK}))
    text = "server 1 has no session for it: nothing can be appended; its /health says whom it waits for"
    assert said(cluster) == [("partition-unhealthy", "s:1", 0, text)]
    assert said(cluster, [1]) == []
    cluster = ToldCluster(server=server())
    assert [one for one in said(cluster) if one[1] == "where"] == [
        ("partition-without-replica", "where", number, "no storage node is to hold it") for number in (0, 1)
    ]


@pytest.mark.parametrize(
    ("replicas", "text"),
    [
        ([("n0:1", 0, None), ("n1:1", 0, None), ("n2:1", 0, None)], None),
        ([("n0:1", 0, None), ("n1:1", 0, None), ("n2:1", -1, 9)], "session 5 is without n2:1"),
        ([("n0:1", 0, None), ("n2:1", 0, 9)], "session 5 is without n1:1, n2:1"),
        (
            [("n0:1", 0, None), ("n1:1", 0, None), ("n2:1", 0, None), ("x:1", -1, 9), ("a:1", -1, None)],
            None,
        ),
        (
            [("n0:1", 0, None), ("n1:1", 0, None), ("n2:1", 0, None), ("x:1", 0, None), ("a:1", 0, None)],
            "session 5 is without none, and still names a:1, x:1",
        ),
    ],
)
def test_who_is_in_the_last_session_is_told(replicas: list[tuple[str, int, int | None]], text: str | None) -> None:
    cluster = sound()
    first, second = cluster.state.partitions
    states = tuple(ReplicaInSession(node, SESSION + shift, mark) for node, shift, mark in replicas)
    cluster.state = replace(cluster.state, partitions=(replace(first, replicas=states), second))
    assert said(cluster) == ([] if text is None else [("replica-not-in-session", "where", 0, text)])
    cluster.state = replace(cluster.state, partitions=(replace(first, session_id=-1, replicas=()), second))
    assert said(cluster) == [], "no session has begun"


def test_what_a_node_holds_beside_what_it_is_given() -> None:
    cluster = ToldCluster(whole(), ToldNode({5: [0], 0: [MARK], 3: [0]}), whole(), server=server())
    first = cluster.state.partitions[0]
    partitions = tuple(replace(first, partition=number) for number in range(6))
    cluster.state = replace(cluster.state, num_partitions=6, partitions=partitions)
    connecting = ("--insecure", "--trust-store", "it's one")
    verification = ClusterVerification(cluster.state, "where", cluster.reach, [0, 1, 3, 5], connecting=connecting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "_check_partitions", lambda _: iter(()))
        found = asyncio.run(verification.findings())
    assert [(one.partition, one.message) for one in found] == [
        (1, "the metadata gives it partition 1, and the node does not hold it"),
        (3, "the node holds partition 3, and the metadata does not give it to the node"),
        (5, "the node holds partition 5, and the metadata does not give it to the node"),
    ]
    wanted = ("waltzctl", "cluster", "sync", "--node", "n1:1", "--metadata", "where", *connecting)
    assert {one.remedy for one in found} == {shlex.join(wanted)}
    summary = verification.summary
    assert (summary.status, summary.partitions, summary.damage, summary.repairable, summary.notes) == (
        *("repairable", 4, 0, 3, 0),
    )


def test_rates_are_counted_from_the_look_before() -> None:
    cluster = sound()

    async def work() -> tuple[ClusterOverview, ClusterOverview, ClusterOverview]:
        first = await observe(cluster.state, cluster.reach)
        cluster.server_ = ToldServer({0: MARK + 30, 1: MARK - 1})
        earlier = replace(first, time=asyncio.get_running_loop().time() - 10.0)
        second = await observe(cluster.state, cluster.reach, earlier)
        later = replace(first, time=asyncio.get_running_loop().time() + 60.0)
        return first, second, await observe(cluster.state, cluster.reach, later)

    first, second, third = asyncio.run(work())
    assert [one.rate for one in first.partitions] == [None, None]
    rising, falling = [one.rate for one in second.partitions]
    assert rising == pytest.approx(3.0, rel=0.1)
    assert falling == 0
    assert [one.rate for one in third.partitions] == [None, None], "no time has passed"
    assert [one.behind for one in second.partitions[0].replicas] == [30, 30, 30]
    assert [one.behind for one in second.partitions[1].replicas] == [0, 0, 0]
    cluster.server_ = ToldServer({0: MARK})
    without = asyncio.run(observe(cluster.state, cluster.reach)).partitions[1]
    assert [(one.last_transaction_id, one.behind) for one in without.replicas] == [(MARK, None)] * 3


def test_a_cluster_of_many_partitions_is_looked_at_in_no_time() -> None:
    """The time grew with the square of their number: 30,000 took a minute."""
    count = 30_000
    state = replace(
        ToldCluster(whole(), server=None).state,
        num_partitions=count,
        nodes=tuple(NodeState(f"n{node}:1", 2, node, tuple(range(count))) for node in range(3)),
        servers=tuple(
            ServerState(one, f"s{one}:1", (), tuple(AssignedPartition(number, 1) for number in range(one, count, 3)))
            for one in range(3)
        ),
    )
    begun = time.process_time()
    for number in range(count):
        owner = state.owner_of(number)
        assert owner is not None
        assert owner.server_id == number % 3
        assert len(state.nodes_of(number)) == 3
    assert time.process_time() - begun < 3
    assert state.owner_of(count) is None
    assert state.nodes_of(count) == ()


def test_two_numbers_of_partitions_that_differ_are_told() -> None:
    """Z10: clients go by the one in the root, log servers by the one in ``store``."""
    cluster = ToldCluster(whole(), whole(), whole(), server=server())
    cluster.state = replace(cluster.state, stored_partitions=4)
    (one,) = findings(cluster)
    assert (one.code.value, one.path) == ("cluster-maps", "where")
    assert "there are 2 partitions, and in node store 4" in one.message
