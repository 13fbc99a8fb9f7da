"""How a cluster does, for people: the lines of `cluster top`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import invoke
from tests.cluster.told_cluster import ToldCluster, ToldNode, ToldServer
from waltzctl.engine.cluster.overview import ClusterOverview, observe
from waltzctl.engine.metadata.partition_sessions import PartitionSessions
from waltzctl.objects.cluster_objects import CLUSTER_TOP
from waltzctl.render.cluster_view import top_lines

NOW = "2026-03-04T05:06:07.890Z"


def lines(found: ClusterOverview) -> list[str]:
    return list(top_lines(CLUSTER_TOP.shown(found, time=NOW)))


def test_the_first_look_knows_no_rates_and_the_next_does() -> None:
    nodes = [ToldNode({0: [20], 1: [20]}) for _ in range(3)]
    server = ToldServer({0: 20, 1: 5})
    cluster = ToldCluster(*nodes, server=server)
    first = asyncio.run(observe(cluster.state, cluster.reach))
    told = lines(first)
    assert told[0] == "05:06:07 UTC   3 of 3 storage nodes, 1 of 1 log servers answer"
    assert told[2].split() == ["P", "SERVER", "GENERATION", "SESSION", "MARK", "TX/S", "BEHIND", "WAITS", "FOR"]
    assert told[3].split() == ["0", "1", "1", "5", "20", "-", "-"]
    server.marks = {0: 1020, 1: 5}
    second = asyncio.run(observe(cluster.state, cluster.reach, replace(first, time=0.0)))
    rates = [one.rate for one in second.partitions]
    assert rates[1] == 0
    told = lines(replace(second, partitions=(replace(second.partitions[0], rate=1234.4), second.partitions[1])))
    assert told[0].endswith("answer   1,234 transactions a second")
    assert told[3].endswith("1,234  n0:1 1000, n1:1 1000, n2:1 1000")


def test_who_does_not_answer_is_named_with_the_reason() -> None:
    nodes = ToldNode({0: [20], 1: [-1]}, out={1: "quarantined"}), ToldNode({0: [17], 1: [20]}), None
    found = asyncio.run(observe(ToldCluster(*nodes, server=None).state, ToldCluster(*nodes, server=None).reach))
    told = lines(found)
    assert told[0] == "05:06:07 UTC   2 of 3 storage nodes, 0 of 1 log servers answer"
    assert told[1:3] == ["n2:1 does not answer: n2:2: nobody listens", "s:1 does not answer: s:1: nobody listens"]
    assert told[-1].endswith("n0:1 out of service: quarantined, n2:1 does not answer  n0:1, n2:1")


def test_a_look_at_one_partition_reads_the_metadata_of_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cluster of 40: each look of the live view read those of all, as many requests to ZooKeeper."""
    where = tmp_path / "meta"
    assert invoke("cluster", "create", "--metadata", where, "--partitions", 40).status == 0
    read: list[int] = []
    real = PartitionSessions.partition

    async def partition(self: PartitionSessions, number: int) -> Any:
        read.append(number)
        return await real(self, number)

    monkeypatch.setattr(PartitionSessions, "partition", partition)
    look = ("cluster", "top", "--metadata", where, "--once", "--format", "json")
    every = json.loads(invoke(*look).out)["partitions"]
    assert read == list(range(40))
    read.clear()
    found = json.loads(invoke(*look, "--partition", "7,31").out)
    assert (read, found["partitions"]) == ([7, 31], [every[7], every[31]])
    beyond = invoke(*look, "--partition", "40")
    assert (beyond.status, "partition 40 does not exist: they are 0 to 39" in beyond.err) == (2, True)
