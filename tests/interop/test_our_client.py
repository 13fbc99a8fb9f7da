"""Our client, ``waltzctl node``, ``bench`` and ``waltz://`` against a released node over TLS, and under ``--long`` ours."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import uuid
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.interop.clusters import Cluster, Kind, StorageNode, environment, waltzctl
from tests.interop.conftest import MakeCluster
from tests.interop.processes import HOST, PATIENCE
from tests.interop.released import needs_released
from tests.interop.replicas import expect_clean, record_bytes
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import RemoteError
from waltzctl.engine.net.tls import client_context
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import SessionInfo, WireRecord

pytestmark = needs_released

either_kind = pytest.mark.parametrize("kind", [Kind.RELEASED, pytest.param(Kind.OURS, marks=pytest.mark.long)])


def _run(*words: object, status: int) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        waltzctl(*words, "--format", "ndjson"),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment()},
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def ours(*words: object) -> list[dict[str, Any]]:
    """Run a command of ours; the objects that it printed."""
    return [json.loads(line) for line in _run(*words, status=0).stdout.splitlines()]


def ours_fails(*words: object, status: int) -> str:
    """Run a command of ours that must end with this status; what it said."""
    return _run(*words, status=status).stderr


def at(node: StorageNode) -> tuple[object, ...]:
    """``node`` and which one."""
    return ("node", node.admin_address, "--data-port", node.port)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


def context() -> Any:
    return client_context(TlsOptions(), trust_all=True)


async def storage_client(cluster: Cluster, node: StorageNode) -> StorageClient:
    return await StorageClient.connect(
        HOST,
        node.port,
        ssl_context=context(),
        cluster_key=uuid.UUID(cluster.key),
        num_partitions=cluster.num_partitions,
    )


def record(partition: int, transaction_id: int, size: int) -> WireRecord:
    data = bytes((transaction_id + place) & 0xFF for place in range(size))
    return WireRecord.make(transaction_id, RequestId(-1, 2, partition, transaction_id), -transaction_id, data)


def appended(cluster: Cluster, node: StorageNode, partition: int, count: int, session: int, mark: int) -> None:
    """Fill an empty partition in a session, then persist a mark in the next one."""

    async def work() -> None:
        async with await storage_client(cluster, node) as client:
            await client.last_session_info(session, partition)
            await client.set_low_water_mark(session, partition, -1)
            for first in range(0, count, 100):
                records = [record(partition, number, 80) for number in range(first, min(first + 100, count))]
                await client.append(session, partition, records)
            await client.set_low_water_mark(session + 1, partition, mark)

    run(work())


@either_kind
def test_our_client_of_both_ports(make_cluster: MakeCluster, kind: Kind) -> None:
    """Behaviours 30 to 42 from our side, the refusals told by their codes."""
    cluster = make_cluster(nodes=1)
    cluster.start([kind])
    (node,) = cluster.nodes

    async def work() -> None:
        async with (
            await storage_client(cluster, node) as client,
            await AdminClient.connect(HOST, node.admin_port, ssl_context=context()) as admin,
        ):
            assert await client.last_session_info(0, 1) == SessionInfo(-1, -1, -1)
            await client.set_low_water_mark(0, 1, -1)
            records = [record(1, number, number % 900) for number in range(2500)]
            for first in range(0, 2500, 250):
                await client.append(0, 1, records[first : first + 250])
            await client.append(0, 1, [])
            assert await client.max_transaction_id(0, 1) == 2499
            assert await client.records(0, 1, 100, 2000) == tuple(records[100:2100])
            assert await client.record(0, 1, 2500) is None
            assert await client.record(0, 1, 17) == records[17]
            header = await client.record_header(0, 1, 17)
            assert header is not None
            assert (header.transaction_id, header.request_id, header.header) == (17, RequestId(-1, 2, 1, 17), -17)
            assert len(await client.record_headers(0, 1, 2400, 1000)) == 100
            with pytest.raises(RemoteError, match="transaction out of order"):
                await client.append(0, 1, records[:1])
            assert await client.last_session_info(1, 1) == SessionInfo(0, -1, -1)
            with pytest.raises(RemoteError, match="session id has changed to 1") as refused:
                await client.max_transaction_id(0, 1)
            assert refused.value.code == "session-changed"
            await client.set_low_water_mark(1, 1, 2499)
            assert await admin.session_info(1) == SessionInfo(1, 2499, 2499)
            assert await admin.records(1, 2490, 100) == tuple(records[2490:])
            assert await client.truncate(1, 1, 2499) == 2499
            await admin.set_available([1], False)
            with pytest.raises(RemoteError, match="read and write for partition=1 have been disabled"):
                await client.record(1, 1, 3)
            assert await client.max_transaction_id(1, 1, offline=True) == 2499
            assert await admin.assigned_status() == ((0, True), (1, False), (2, True), (3, True))
            await admin.set_available([1], True)
            await admin.unassign([2], delete_files=True)
            with pytest.raises(RemoteError, match=r"Partition:2 is not assigned\."):
                await client.max_transaction_id(1, 2)
            await admin.assign([2])
            assert "gauges" in json.loads(await admin.metrics())

    run(work())
    node.stop()
    assert expect_clean(node.directory)["records"] == 2500


@either_kind
def test_waltzctl_node(make_cluster: MakeCluster, kind: Kind) -> None:
    """Everything that ``waltzctl node`` does, in the order in which an operator would."""
    cluster = make_cluster(nodes=1, assigned=False)
    cluster.tools.zookeeper("assign-partition", "-s", cluster.nodes[0].address, "-p", "0-2")
    cluster.start([kind], sync=False)
    (node,) = cluster.nodes
    command = at(node)

    ports = ours(*command, "validate", "--key", cluster.key, "--partitions", 4)
    assert [port["ok"] for port in ports] == [True, True]
    ours_fails(*command, "validate", "--key", "01234567-89ab-cdef-0123-456789abcdef", "--partitions", 4, status=12)
    ours(*command, "add-partition", "--partition", "2-3", "--yes")
    assert [one["partition"] for one in ours(*command, "list")] == [2, 3]
    zookeeper = cluster.tools.config.read_text().split("connectString: ")[1].split('"')[1]
    root = cluster.tools.config.read_text().split("cluster.root: ")[1].split('"')[1]
    ours(*command, "sync-partitions", "--zookeeper", zookeeper, "--root", root, "--as", node.address, "--yes")
    assert [one["partition"] for one in ours(*command, "list")] == [0, 1, 2]

    appended(cluster, node, 1, 1000, session=4, mark=999)
    (session,) = ours(*command, "session", "--partition", 1)
    assert (session["session_id"], session["low_water_mark"], session["local_low_water_mark"]) == (5, 999, 999)
    (last,) = ours(*command, "max-transaction-id", "--partition", 1)
    assert last["max_transaction_id"] == 999
    shown = ours(*command, "records", "--partition", 1, "--from", 990)
    assert [one["transaction_id"] for one in shown] == list(range(990, 1000))
    assert any(one["type"] == "node-metric" for one in ours(*command, "metrics"))
    ours(*command, "availability", "--partition", 1, "--online", "false", "--yes")
    (listed,) = ours(*command, "list", "--partition", 1)
    assert listed["available"] is False
    (last,) = ours(*command, "max-transaction-id", "--partition", 1, "--offline")
    assert last["max_transaction_id"] == 999
    ours_fails(*command, "max-transaction-id", "--partition", 1, status=13)
    ours(*command, "availability", "--partition", 1, "--online", "true", "--yes")

    url = f"waltz://{node.admin_address}"
    (status,) = ours("status", url)
    sessions = {one["partition"]: one["session_id"] for one in status["partitions"] if one["assigned"]}
    assert sessions == {0: -1, 1: 5, 2: -1}
    *findings, summary = ours("verify", url)
    assert [finding["code"] for finding in findings] == ["seen-from-outside"]
    assert (summary["status"], summary["records"]) == ("clean", 1000)
    dumped = ours("dump", url, "--partition", 1)
    assert [one["transaction_id"] for one in dumped] == list(range(1000))

    ours(*command, "remove-partition", "--partition", 1, "--delete-storage-files", "--yes")
    assert [one["partition"] for one in ours(*command, "list")] == [0, 2]
    assert list((node.directory / "1").glob("*.seg")) == []


@either_kind
def test_waltzctl_bench(make_cluster: MakeCluster, kind: Kind) -> None:
    """Load on a node: appended transactions are there, a read finds them, and --truncate takes away what it added."""
    cluster = make_cluster(nodes=1)
    cluster.start([kind])
    (node,) = cluster.nodes
    short = ("bench", node.address, "--duration", "500ms", "--warm-up", "200ms")
    (first,) = ours(*short, "--partition", "0-3", "--batch", 20, "--in-flight", 5)
    assert first["transactions"] > 0
    (read,) = ours(*short, "--partition", "0-3", "--batch", 20, "--read")
    assert read["transactions"] == 20 * read["requests"] > 0
    assert "nobody confirmed" in ours_fails(*short, "--partition", 0, status=13)
    (again,) = ours(*short, "--partition", 0, "--truncate", "--yes")
    lasts = {one["partition"]: one["last_transaction_id_after"] for one in first["partitions"]}
    assert again["partitions"][0]["last_transaction_id_before"] == lasts[0]
    node.stop()
    assert expect_clean(node.directory)["records"] == sum(lasts.values()) + 4


BOTH_WAYS = [
    (Kind.OURS, Kind.RELEASED),
    (Kind.RELEASED, Kind.OURS),
    pytest.param(Kind.RELEASED, Kind.RELEASED, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("source_kind", "destination_kind"), BOTH_WAYS)
def test_waltzctl_recover_partition(make_cluster: MakeCluster, source_kind: Kind, destination_kind: Kind) -> None:
    """The destination gets everything up to the source's local low-water mark, and nothing that only it had."""
    cluster = make_cluster(nodes=2)
    cluster.start([source_kind, destination_kind])
    source, destination = cluster.nodes
    appended(cluster, source, 1, 2500, session=3, mark=2499)
    appended(cluster, destination, 1, 700, session=1, mark=699)
    ours(
        *at(destination),
        *("recover-partition", "--partition", 1),
        *("--from", source.admin_address, "--offline-first", "--compare", "all", "--yes"),
    )
    (session,) = ours(*at(destination), "session", "--partition", 1)
    assert (session["session_id"], session["local_low_water_mark"]) == (2, 2499)
    (listed,) = ours(*at(destination), "list", "--partition", 1)
    assert listed["available"] is True
    for node in cluster.nodes:
        node.stop()
        assert expect_clean(node.directory)["records"] == 2500
    assert record_bytes(source.directory, 1) == record_bytes(destination.directory, 1)
