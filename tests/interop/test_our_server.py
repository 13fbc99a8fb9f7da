"""Released clients and tools on our log server, over our storage nodes and released ones; and beside a released server."""

from __future__ import annotations

import pytest

from tests.cli.running import Answer, invoke
from tests.interop.clusters import Cluster, Kind
from tests.interop.conftest import MakeCluster
from tests.interop.processes import wait_until
from tests.interop.released import needs_released
from tests.interop.replicas import expect_equal_replicas, max_transaction_ids, wait_until_equal
from tests.interop.test_released_server import EACH, PARTITIONS, THREADS, expect_verified, produce
from tests.interop.traffic import Traffic, expect_nothing_lost_or_doubled

pytestmark = needs_released

OURS, RELEASED = Kind.OURS, Kind.RELEASED


@pytest.mark.parametrize("kinds", [(OURS, OURS, OURS), (OURS, RELEASED, RELEASED)], ids=["ours", "mixed"])
def test_released_clients_and_tools_on_our_server(make_cluster: MakeCluster, kinds: tuple[Kind, ...]) -> None:
    cluster = make_cluster(nodes=3, partitions=PARTITIONS)
    cluster.start(kinds)
    cluster.start_our_server()
    tools = cluster.tools
    assert tools.client("validate", "-tpc", 40, "-nc", 3, "-i", 1, "-ap", PARTITIONS) == ""
    made = 3 * 40 + produce(cluster)
    shown = tools.performance("test-consumers", "-s", 512, "-t", 10, "-ap", PARTITIONS, "-ml")
    assert "Read 10 transactions" in shown
    expect_verified(cluster)
    for partition in range(PARTITIONS):
        shown = tools.client("high-water-mark", "-p", partition)
        last = max_transaction_ids(cluster.nodes[0], PARTITIONS)[partition]
        assert shown.strip() == f"Partition {partition} current high watermark: {last}"
    last_ones = wait_until_equal(cluster)
    cluster.stop_servers()
    for node in cluster.nodes:
        node.stop()
    held = expect_equal_replicas(cluster.nodes, PARTITIONS)
    assert held == sum(last_ones) + PARTITIONS
    assert held >= made + 10
    assert made > THREADS * EACH


def test_servers_of_both_kinds_take_over_from_one_another(make_cluster: MakeCluster) -> None:
    """Partitions move between a released server and ours, both ways, while a released client writes."""
    cluster = make_cluster(nodes=3, partitions=PARTITIONS)
    cluster.start((OURS, OURS, RELEASED))
    first = cluster.start_server()
    traffic = Traffic(cluster)
    traffic.wait_for(20, "the client writes through the released server")
    cluster.start_our_server()
    traffic.wait_for(20, "both servers have partitions")
    first.running.kill()
    cluster.servers.remove(first)
    traffic.wait_for(20, "ours has taken over")
    cluster.start_server()
    traffic.wait_for(20, "a released server has its part again")
    traffic.stop()
    expect_nothing_lost_or_doubled(cluster, traffic)
    wait_until_equal(cluster)


def ours(cluster: Cluster, *arguments: object, given: str | None = None) -> Answer:
    """A command of ours on the cluster; certificates of this machine's loopback are believed."""
    command, *rest = arguments
    done = invoke(command, "--metadata", cluster.metadata, *rest, given=given)
    assert done.status == 0, done
    return done


@pytest.mark.parametrize("released_server", [True, False], ids=["released-server", "our-server"])
def test_our_tools_and_client_on_a_released_cluster(make_cluster: MakeCluster, released_server: bool) -> None:
    """What the released tools made, ours read, check and change, and the other way round."""
    cluster = make_cluster(nodes=3, partitions=PARTITIONS)
    cluster.start((OURS, RELEASED, RELEASED))
    if released_server:
        cluster.start_server()
    else:
        cluster.start_our_server()
    wait_until(lambda: invoke("cluster", "--metadata", cluster.metadata, "verify", "-q").status == 0, "all is well")
    (state,) = ours(cluster, "cluster", "show", "--format", "ndjson").objects
    assert (state["name"], state["num_partitions"]) == ("interop", PARTITIONS)
    assert state["cluster_key"] == str(cluster.key)
    assert [node["partitions"] for node in state["nodes"]] == [[*range(PARTITIONS)]] * 3
    assert ours(cluster, "cluster", "connectivity", "--format", "ndjson").only("finding") == []
    (validated,) = ours(cluster, "log", "validate", "--clients", 3, "--transactions", 30, "--format", "ndjson").only(
        "log-validation"
    )
    assert validated["transactions"] == 90
    ours(cluster, "log", "append", "--partition", 0, given="".join(f"{n}\n" for n in range(500)))
    read = ours(cluster, "log", "tail", "--partition", 0, "--data", "utf8", "--format", "ndjson").objects
    assert [one["data"] for one in read[-500:]] == [str(n) for n in range(500)]
    last = max_transaction_ids(cluster.nodes[0], PARTITIONS)[0]
    assert [one["transaction_id"] for one in read] == [*range(last + 1)]
    node = state["nodes"][0]["node"]
    ours(cluster, "cluster", "unassign", node, "--partition", 1, "--yes")
    shown = cluster.tools.zookeeper("list")
    assert f"{node} = [0, 2, 3]" in shown
    cluster.tools.zookeeper("assign-partition", "-s", node, "-p", 1)
    wait_until(
        lambda: invoke("cluster", "--metadata", cluster.metadata, "verify", "-q").status == 0, "all is well again"
    )
    expect_verified(cluster)
