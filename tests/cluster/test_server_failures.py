"""A log server that is killed is no server any more long before its session with ZooKeeper ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.processes import ClusterOfProcesses
from tests.interop.processes import Stage, wait_until
from tests.zookeeper import ZooKeeperServer, new_root

SESSION_SECONDS = 30
"""The default of a log server."""


@pytest.mark.turns(10)
def test_the_partitions_of_a_server_that_is_killed_go_to_the_others(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with Stage(tmp_path) as stage:
        metadata = f"zk://{zookeeper.connect_string}{new_root()}"
        cluster = ClusterOfProcesses(stage, partitions=4, metadata=metadata)
        first, second = (one["server_id"] for one in cluster.start_servers(1, 2, more=("--log-level", "debug")))

        def held() -> dict[int, int]:
            return {one["server_id"]: len(one["partitions"]) for one in cluster.state()["servers"]}

        wait_until(lambda: held() == {first: 2, second: 2}, "each has its half")
        wait_until(lambda: "connected" in cluster.servers[1].log.read_text(), "the second knows the first")
        cluster.servers[1].kill()
        wait_until(lambda: held() == {second: 4}, "the second has everything", seconds=SESSION_SECONDS * 2 // 3)
