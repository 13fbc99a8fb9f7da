"""Z7 with real programs: a cluster in ZooKeeper that belongs to one user."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import invoke
from tests.cluster.processes import ClusterOfProcesses
from tests.interop.processes import Stage
from tests.zookeeper import ZooKeeperServer, new_root
from waltzctl.engine.metadata.zookeeper_connection import AUTH_FILE_VARIABLE, AUTH_VARIABLE

pytestmark = pytest.mark.turns(10)


def test_commands_servers_and_clients_show_who_they_are(
    zookeeper: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"zk://{zookeeper.connect_string}{new_root()}"
    file = tmp_path / "auth"
    file.write_text("waltz:secret-word\n")
    monkeypatch.setenv(AUTH_FILE_VARIABLE, str(file))
    with Stage(tmp_path) as stage:
        cluster = ClusterOfProcesses(stage, metadata=where)
        cluster.add_nodes(1)
        cluster.start_servers(1)
        cluster.settle()
        assert cluster.log("append", "--partition", 0, given="a\nb\n").status == 0
        assert cluster.log("high-water-mark", "--partition", 0, "--format", "ndjson").status == 0
        monkeypatch.delenv(AUTH_FILE_VARIABLE)
        for command in (("cluster", "--metadata", where, "show"), ("log", "--metadata", where, "--plaintext", "tail")):
            refused = invoke(*command)
            assert refused.status != 0
            assert "not permitted" in refused.err
            assert AUTH_VARIABLE in refused.err
        assert "secret-word" not in "".join(one.read_text(errors="replace") for one in tmp_path.glob("*.log"))
    monkeypatch.setenv(AUTH_FILE_VARIABLE, str(file))
    made = invoke("create-cluster", tmp_path / "d", "--partitions", 1, "--metadata", f"{where}-2", "-q")
    assert made.status == 0, made.err
    monkeypatch.delenv(AUTH_FILE_VARIABLE)
    assert "not permitted" in invoke("cluster", "--metadata", f"{where}-2", "show").err
