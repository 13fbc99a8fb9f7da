"""The workload of the release's smoke test: released clients write under locks while nodes, servers and ZooKeeper go up and down.

Nodes and servers are of both kinds.  What a client was told is committed is there once, and in the end the replicas are equal.

Source: release 0.13.2 (its smoke test).
"""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.interop.clusters import Cluster, Kind
from tests.interop.processes import Stage
from tests.interop.released import Java, ZooKeeper, needs_released
from tests.interop.replicas import wait_until_equal
from tests.interop.traffic import Traffic, expect_nothing_lost_or_doubled

pytestmark = needs_released

OURS, RELEASED = Kind.OURS, Kind.RELEASED
PARTITIONS, LOCKS, TIMES = 4, 100, 2
"""`TIMES`: how often each component goes down and comes up."""


class Smoke:
    """A cluster whose components go down and come up."""

    def __init__(
        self, cluster: Cluster, zookeeper: ZooKeeper, kinds: tuple[Kind, ...], servers: tuple[Kind, ...]
    ) -> None:
        self.cluster, self.zookeeper, self.kinds = cluster, zookeeper, kinds
        cluster.start(kinds)
        self._servers = servers
        for kind in servers:
            self._start_server(kind)
        self._chance = Random(1)

    def _start_server(self, kind: Kind) -> None:
        if kind is OURS:
            self.cluster.start_our_server()
        else:
            self.cluster.start_server()

    def components(self) -> list[str]:
        nodes = [f"node {number}" for number in range(len(self.kinds))]
        return [*nodes, *(f"server {number}" for number in range(len(self._servers))), "zookeeper"]

    def down_and_up(self, component: str) -> None:
        """Killed or stopped, away for a while, started again."""
        what, *number = component.split()
        kill = self._chance.random() < 0.5
        if what == "node":
            node = self.cluster.nodes[int(number[0])]
            node.kill() if kill else node.stop()
            time.sleep(self._chance.random() * 2)
            node.start(self.kinds[int(number[0])])
        elif what == "server":
            place = int(number[0])
            server = self.cluster.servers[place]
            server.running.kill() if kill else server.running.stop()
            time.sleep(self._chance.random() * 2)
            self._start_server(self._servers[place])
            self.cluster.servers[place] = self.cluster.servers.pop()
        else:
            self.zookeeper.running.kill() if kill else self.zookeeper.running.stop()
            time.sleep(self._chance.random() * 3)
            self.zookeeper.start()


@pytest.mark.parametrize(
    ("kinds", "servers"),
    [((OURS, OURS, OURS), (OURS, OURS)), ((OURS, RELEASED, OURS), (OURS, RELEASED))],
    ids=["ours", "mixed"],
)
def test_clients_write_while_everything_goes_up_and_down(
    stage: Stage,
    java: Java,
    tmp_path_factory: pytest.TempPathFactory,
    kinds: tuple[Kind, ...],
    servers: tuple[Kind, ...],
) -> None:
    with Stage(tmp_path_factory.mktemp("smoke")) as own:  # the other tests' ZooKeeper stays up
        zookeeper = ZooKeeper(own, java)
        cluster = Cluster(stage, java, zookeeper, nodes=len(kinds), partitions=PARTITIONS)
        smoke = Smoke(cluster, zookeeper, kinds, servers)
        traffics = [Traffic(cluster, LOCKS) for _ in range(2)]
        for traffic in traffics:
            traffic.wait_for(5, "the clients write")
        order = smoke.components() * TIMES
        Random(2).shuffle(order)
        for component in order:
            smoke.down_and_up(component)
            for traffic in traffics:
                traffic.wait_for(3, f"the clients write behind the fall of {component}")
        for traffic in traffics:
            traffic.stop()
            expect_nothing_lost_or_doubled(cluster, traffic)
        wait_until_equal(cluster)
