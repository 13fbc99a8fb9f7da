"""What the directories of a cluster hold, read without any program that wrote them."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.interop.clusters import Cluster, StorageNode, environment, waltzctl
from tests.interop.processes import HOST, PATIENCE, wait_until

SEGMENT_HEADER_SIZE = 128


def record_bytes(directory: Path, partition: int) -> bytes:
    """All records of a partition back to back, wherever its segments begin and end."""
    segments = sorted((directory / str(partition)).glob("*.seg"))
    return b"".join(segment.read_bytes()[SEGMENT_HEADER_SIZE:] for segment in segments)


def written_bytes(directory: Path) -> int:
    """Bytes of all data files."""
    return sum(path.stat().st_size for path in directory.glob("*/*.seg"))


def metrics_of(node: StorageNode) -> dict[str, Any]:
    """The answer of the node's HTTP port."""
    with urllib.request.urlopen(f"http://{HOST}:{node.http_port}/metrics", timeout=PATIENCE) as answer:
        shown = json.load(answer)
    assert isinstance(shown, dict)
    return shown


def max_transaction_ids(node: StorageNode, partitions: int) -> list[int]:
    """The last transaction of each partition, as the node's metrics tell."""
    gauges = metrics_of(node)["gauges"]
    return [gauges[f"waltz-storage.partition-{number}.max-transaction-id"]["value"] for number in range(partitions)]


def wait_until_equal(cluster: Cluster) -> list[int]:
    """Wait until every replica is at the same transaction; gives the last one of each partition."""

    def state() -> list[list[int]]:
        return [max_transaction_ids(node, cluster.num_partitions) for node in cluster.nodes]

    wait_until(lambda: len({tuple(one) for one in state()}) == 1, "the replicas are at the same transaction")
    return state()[0]


def expect_clean(directory: Path) -> dict[str, Any]:
    """``waltzctl verify`` of a directory, which must find nothing but files of partitions that were taken away; its summary."""
    done = subprocess.run(
        waltzctl("verify", directory, "--format", "ndjson"),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment()},
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *findings, summary = map(json.loads, done.stdout.splitlines())
    assert {finding["code"] for finding in findings} <= {"partition-not-assigned"}
    assert isinstance(summary, dict)
    assert summary["status"] == "clean"
    return summary


def expect_equal_replicas(nodes: Sequence[StorageNode], partitions: int) -> int:
    """Every directory is clean and all hold the same records; gives how many one of them holds."""
    counts = {expect_clean(node.directory)["records"] for node in nodes}
    assert len(counts) == 1
    for partition in range(partitions):
        first, *others = (record_bytes(node.directory, partition) for node in nodes)
        assert all(other == first for other in others), f"partition {partition} differs between replicas"
    return int(counts.pop())
