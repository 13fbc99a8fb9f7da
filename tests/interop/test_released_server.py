"""A released Waltz server and its clients over our nodes, and over ours and released ones mixed.

Everything that the released tools can tell must be well, every transaction must be in every replica once, and a node that is
killed under traffic must catch up.
"""

from __future__ import annotations

import re

import pytest

from tests.interop.clusters import Cluster, Kind
from tests.interop.conftest import MakeCluster
from tests.interop.processes import wait_until
from tests.interop.released import needs_released
from tests.interop.replicas import expect_equal_replicas, max_transaction_ids, wait_until_equal, written_bytes

pytestmark = needs_released

OURS, RELEASED = Kind.OURS, Kind.RELEASED
PARTITIONS = 4
MIXTURES = [
    pytest.param((OURS, OURS, OURS), id="three-of-ours"),
    pytest.param((OURS, OURS, RELEASED), id="two-of-ours-one-released"),
    pytest.param((OURS, RELEASED, RELEASED), id="one-of-ours-two-released"),
    pytest.param((RELEASED, RELEASED, RELEASED), id="three-released", marks=pytest.mark.long),
]
THREADS, EACH, SIZE = 4, 150, 512


def failures(verdict: str) -> list[str]:
    """The validations that ``cluster verify`` reports as failed."""
    return re.findall(r"^Validation .* failed for partition .*$", verdict, re.M)


def expect_verified(cluster: Cluster) -> None:
    """``cluster verify`` passes: it exits 0 either way, so its words count."""
    wait_until(lambda: _verified(cluster), "cluster verify finds every replica recovered and every partition served")


def _verified(cluster: Cluster) -> bool:
    shown = cluster.tools.cluster("verify", "-t", 30)
    return failures(shown) == [] and len(shown.strip().splitlines()) <= 6  # nothing but the banner


def produce(cluster: Cluster, each: int = EACH) -> int:
    """Append through the released performance tool; gives the number of transactions, its own first ones included."""
    shown = cluster.tools.performance(
        "test-producers", "-s", SIZE, "-p", each, "-t", THREADS, "-i", 0, "-ap", PARTITIONS
    )
    assert f"Appended {THREADS * each} transactions" in shown
    return THREADS * (each + 1)


@pytest.mark.parametrize("kinds", MIXTURES)
def test_a_released_server_and_its_clients(make_cluster: MakeCluster, kinds: tuple[Kind, ...]) -> None:
    """Behaviours 156, 157 and 159 to 162."""
    cluster = make_cluster(nodes=3, partitions=PARTITIONS)
    cluster.start(kinds)
    server = cluster.start_server()
    tools = cluster.tools

    assert tools.client("validate", "-tpc", 40, "-nc", 3, "-i", 1, "-ap", PARTITIONS) == ""
    made = 3 * 40 + produce(cluster)
    shown = tools.performance("test-consumers", "-s", 512, "-t", 10, "-ap", PARTITIONS, "-ml")
    assert "Read 10 transactions" in shown
    connectivity = tools.cluster("check-connectivity")
    assert f"Connectivity status of localhost:{server.port} is: " in connectivity
    for node in cluster.nodes:
        assert f"{node.address}=true" in connectivity
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


@pytest.mark.parametrize("killed", [0, 2], ids=["first-killed", "last-killed"])
@pytest.mark.parametrize("kinds", MIXTURES)
def test_a_node_killed_under_traffic_catches_up(
    make_cluster: MakeCluster, kinds: tuple[Kind, ...], killed: int
) -> None:
    """Behaviour 164: the traffic goes on with two of three, and the third has everything in the end, each transaction once."""
    cluster = make_cluster(nodes=3, partitions=PARTITIONS)
    cluster.start(kinds)
    cluster.start_server()
    each = 1500
    command = cluster.tools.command(
        *("performance.PerformanceCli", "test-producers"),
        *("-s", SIZE, "-p", each, "-t", THREADS, "-i", 1, "-ap", PARTITIONS),
    )
    producers = cluster.stage.start("producers", command)
    victim, witness = cluster.nodes[killed], cluster.nodes[1]

    def grown(directory_size: int) -> bool:
        return written_bytes(witness.directory) > directory_size

    wait_until(lambda: grown(200_000), "the producers have begun", of=producers)
    victim.kill()
    there = written_bytes(witness.directory)
    wait_until(lambda: grown(there + 200_000), "the traffic goes on with two of three", of=producers)
    assert producers.status is None
    victim.start(kinds[killed])
    wait_until(lambda: producers.status is not None, "the producers have ended", seconds=300)
    assert producers.status == 0, producers.tail()
    assert f"Appended {THREADS * each} transactions" in producers.log.read_text()

    last_ones = wait_until_equal(cluster)
    assert sum(last_ones) + PARTITIONS == THREADS * (each + 1)
    cluster.stop_servers()
    for node in cluster.nodes:
        node.stop()
    assert expect_equal_replicas(cluster.nodes, PARTITIONS) == THREADS * (each + 1)


def test_a_replica_of_one_kind_goes_on_as_the_other(make_cluster: MakeCluster) -> None:
    """Nodes are exchanged one at a time under a running server: released ones by ours and ours by released ones."""
    cluster = make_cluster(nodes=3, partitions=PARTITIONS)
    cluster.start((RELEASED, OURS, RELEASED))
    cluster.start_server()
    made = produce(cluster)
    for number, kind in ((0, OURS), (1, RELEASED), (2, OURS), (1, OURS)):
        wait_until_equal(cluster)
        cluster.nodes[number].stop()
        cluster.nodes[number].start(kind)
        made += produce(cluster, each=50)
    wait_until_equal(cluster)
    expect_verified(cluster)
    cluster.stop_servers()
    for node in cluster.nodes:
        node.stop()
    assert expect_equal_replicas(cluster.nodes, PARTITIONS) == made
