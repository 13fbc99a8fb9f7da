"""Released clients and tools on our log server, over our storage nodes and released ones; and beside a released server."""

from __future__ import annotations

import pytest

from tests.interop.clusters import Kind
from tests.interop.conftest import MakeCluster
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
