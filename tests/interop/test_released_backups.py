"""A released node backed up through its admin port: restored is what its own directory holds, and the release serves it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.interop.clusters import Kind, StorageNode
from tests.interop.conftest import MakeCluster
from tests.interop.released import needs_released
from tests.interop.replicas import expect_clean, record_bytes
from tests.interop.test_our_client import appended, ours

pytestmark = needs_released
FILLED = {0: 1200, 1: 40}
"""Transactions by partition: of the first several segments of the release."""


def _backed_up(vault: Path, node: StorageNode, key: str, partitions: int) -> dict[str, object]:
    """A released node does not tell of which cluster it is."""
    (made,) = ours(
        *("backup", "create", vault, f"waltz://{node.admin_address}", "--key", key, "--partitions", partitions)
    )
    return made


def test_a_released_node_is_backed_up_restored_and_served_again(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(nodes=1)
    cluster.start([Kind.RELEASED])
    (node,) = cluster.nodes
    for partition, count in FILLED.items():
        appended(cluster, node, partition, count, 5, count - 1)
    vault = tmp_path / "vault"
    ours("backup", "init", vault)
    first = _backed_up(vault, node, cluster.key, cluster.num_partitions)
    assert (first["live"], first["damaged"], first["new_pages"]) == (True, 0, first["pages"])
    assert _backed_up(vault, node, cluster.key, cluster.num_partitions)["new_pages"] == 0
    node.stop()
    (of_directory,) = ours("backup", "create", vault, node.directory)
    assert of_directory["new_pages"] == 0, "the same transactions are the same pages, however they were read"
    ours("backup", "verify", vault)
    restored = tmp_path / "restored"
    ours("backup", "restore", vault, first["id"], "--to", restored)
    assert expect_clean(restored)["records"] == sum(FILLED.values())
    for partition in FILLED:
        assert record_bytes(restored, partition) == record_bytes(node.directory, partition)
    shutil.rmtree(node.directory)
    restored.rename(node.directory)
    node.start(Kind.RELEASED)
    for partition, count in FILLED.items():
        (told,) = ours(
            "node", node.admin_address, "--data-port", node.port, "max-transaction-id", "--partition", partition
        )
        assert told["max_transaction_id"] == count - 1
