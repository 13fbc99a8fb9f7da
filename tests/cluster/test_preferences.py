"""V18: what a log server prefers by its own configuration holds again when it is started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run
from tests.cluster.processes import ClusterOfProcesses
from tests.interop.processes import Stage, wait_until


@pytest.mark.turns(10)
def test_a_server_that_is_started_again_prefers_the_same(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        cluster = ClusterOfProcesses(stage, partitions=4)
        cluster.start_servers(1)
        for _ in range(2):
            second = cluster._start(
                "s2",
                "log-server",
                "--metadata",
                cluster.metadata,
                "--port",
                0,
                "--storage-plaintext",
                "--prefer",
                "1,3",
            )
            cluster._answers("s2", second)

            def has_them() -> bool:
                servers = {one["server_id"]: one for one in cluster.state()["servers"]}
                mine = servers[cluster.ready("s2")["server_id"]]
                return mine["preferred"] == [1, 3] == [one["partition"] for one in mine["partitions"]]

            wait_until(has_them, "it has what it prefers")
            second.process.terminate()
            second.process.wait()
        for given, message in (("4", "cluster has 0 to 3"), ("x", "neither a number nor a range")):
            refused = run("log-server", "--metadata", cluster.metadata, "--port", "0", "--plaintext", "--prefer", given)
            assert refused.status != 0
            assert message in refused.err


def test_the_configuration_says_it_as_well(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    for text in ('"0-2"', "7"):
        config.write_text(f"waltzctl.metadata: /m\nserver.port: 0\nwaltzctl.preferredPartitions: {text}\n")
        shown = run("log-server", "--config", config, "--show-config", "--format", "ndjson")
        assert shown.status == 0, shown.err
        found = [one for one in shown.objects if one.get("key") == "waltzctl.preferredPartitions"]
        assert found[0]["value"] == {"7": "7", '"0-2"': "0,1,2"}[text]
