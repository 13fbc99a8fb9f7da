"""The released storage client and the released storage tool cannot tell our node from a released one, over TLS.

Every scenario also runs against a released node under ``--long``: what holds for ours must hold for the original.
"""

from __future__ import annotations

import re

import pytest

from tests.interop.clusters import Kind
from tests.interop.conftest import MakeCluster
from tests.interop.released import ClientError, Shown, ToolError, expected_data, needs_released, signed32
from tests.interop.replicas import expect_clean, record_bytes

pytestmark = needs_released

either_kind = pytest.mark.parametrize("kind", [Kind.OURS, pytest.param(Kind.RELEASED, marks=pytest.mark.long)])
NOT_AVAILABLE = (
    "com.wepay.waltz.storage.exception.StorageException:"
    " read and write for partition=2 have been disabled on storage node"
)


def listed(shown: str) -> dict[int, dict[str, str]]:
    """The blocks of ``storage list``: partition to its values."""
    blocks: dict[int, dict[str, str]] = {}
    for line in shown.splitlines():
        if found := re.match(r"Partition Info for id: (\d+)", line):
            current = blocks.setdefault(int(found[1]), {})
        elif found := re.fullmatch(r"\t (\w+): (\S+)", line):
            current[found[1]] = found[2]
    return blocks


@either_kind
def test_the_storage_tool_administers_a_node(make_cluster: MakeCluster, kind: Kind) -> None:
    """Behaviours 134 to 137, 141 and 142."""
    cluster = make_cluster(nodes=1, assigned=False)
    cluster.start([kind], sync=False)
    (node,) = cluster.nodes
    tool, admin = cluster.tools.storage, node.admin_address

    tool("add-partition", "-s", admin, "-p", "0, 2")
    assert set(listed(tool("list", "-s", admin))) == {0, 2}

    client = cluster.client(node)
    assert client.session(5, 0) == (-1, -1, -1)
    client.ask("lwm", 5, 0, -1)
    client.append(5, 0, 0, 10)
    assert tool("max-transaction-id", "-s", admin, "-sp", node.port, "-p", 0).strip() == "Max Transaction ID: 9"
    with pytest.raises(ToolError, match="cannot run offline recovery while partition is online"):
        tool("max-transaction-id", "-s", admin, "-sp", node.port, "-p", 0, "-o")

    tool("availability", "-s", admin, "-p", "2", "-o", "false")
    shown = listed(tool("list"))
    assert {number: block["isAvailable"] for number, block in shown.items()} == {0: "true", 2: "false"}
    assert shown[0]["sessionId"] == "5"
    with pytest.raises(ClientError, match=f"{re.escape(NOT_AVAILABLE)}$"):
        client.append(5, 2, 0, 1)
    assert tool("max-transaction-id", "-s", admin, "-sp", node.port, "-p", 2, "-o").strip() == "Max Transaction ID: -1"
    tool("availability", "-s", admin, "-p", "0,2", "-o", "true")
    client.append(5, 2, 0, 1)
    tool("validate")

    tool("remove-partition", "-s", admin, "-p", "2", "-d")
    tool("remove-partition", "-s", admin, "-p", "0")
    assert listed(tool("list", "-s", admin)) == {}
    assert list((node.directory / "2").glob("*")) == []
    assert len(list((node.directory / "0").glob("*.seg"))) == 1
    with pytest.raises(ClientError, match=r"java\.lang\.Exception: Partition:0 is not assigned\.$"):
        client.session(6, 0)


@either_kind
def test_sync_partitions_gives_a_node_what_zookeeper_says(make_cluster: MakeCluster, kind: Kind) -> None:
    """Behaviour 140: none before, those of ZooKeeper afterwards; what ZooKeeper does not know is taken away."""
    cluster = make_cluster(nodes=1, assigned=False)
    cluster.tools.zookeeper("assign-partition", "-s", cluster.nodes[0].address, "-p", "0-2")
    cluster.start([kind], sync=False)
    client = cluster.client(cluster.nodes[0])
    with pytest.raises(ClientError, match=r"Partition:1 is not assigned\.$"):
        client.ask("admin-session", 1)
    client.ask("assign", "2,3")
    assert client.ask("status") == "{2=true, 3=true}"
    cluster.tools.storage("sync-partitions")
    assert client.ask("status") == "{0=true, 1=true, 2=true}"


@either_kind
def test_the_released_client_writes_and_reads(make_cluster: MakeCluster, kind: Kind) -> None:
    """Behaviours 30 to 42, through the released clients of both ports."""
    cluster = make_cluster(nodes=1, partitions=4)
    cluster.start([kind])
    node = cluster.nodes[0]
    client = cluster.client(node)
    assert client.session(0, 1) == (-1, -1, -1)
    client.ask("lwm", 0, 1, -1)
    assert client.session(0, 1) == (0, -1, -1)
    first = 0
    for count, size in ((1, 0), (7, 1000), (300, 100), (1, 5000), (1000, 300), (0, 1), (91, 77)):
        client.append(0, 1, first, count, size)
        first += count
    assert client.max_transaction_id(0, 1) == 1399
    assert client.max_transaction_id(0, 0) == -1

    (one,) = client.records(0, 1, 1399, 20)
    assert one == Shown(1399, (11, 22, 1, 1399), signed32(1399 * 3), expected_data(1, 1399, 77), one.data_checksum)
    assert client.ask("record", 0, 1, 1400) == "none"
    assert client.ask("record", 0, 1, -1) == "none"
    assert client.ask("header", 0, 1, 308) == "308:11:22:1:308:924"
    assert client.ask("headers", 0, 1, 1398, 9).split() == ["1398:11:22:1:1398:4194", "1399:11:22:1:1399:4197"]
    assert client.records(0, 1, 0, 0) == []
    everything = client.records(0, 1, 0, 5000)
    assert [shown.transaction_id for shown in everything] == list(range(1400))
    assert client.admin_records(1, 3, 700) == everything[3:703]
    assert len(list((node.directory / "1").glob("*.seg"))) >= 2

    with pytest.raises(ClientError, match="transaction out of order"):
        client.append(0, 1, 1399, 2)
    assert client.session(1, 1) == (0, -1, -1)
    with pytest.raises(ClientError, match="session id has changed to 1, but request context contains 0"):
        client.append(0, 1, 1400, 1)
    client.ask("lwm", 1, 1, 1399)
    client.append(1, 1, 1400, 1)
    assert client.ask("admin-session", 1) == "1 1399 1399"
    with pytest.raises(ClientError, match=r"smaller than|less than|lower"):
        client.ask("lwm", 1, 1, 10)

    client.append(1, 1, 1401, 50)
    assert client.ask("truncate", 1, 1, 1420) == "1420"
    assert client.max_transaction_id(1, 1) == 1420
    assert client.ask("record", 1, 1, 1421) == "none"
    client.append(1, 1, 1421, 10)
    client.close()
    node.stop()
    assert expect_clean(node.directory)["records"] == 1431


BOTH_WAYS = [
    (Kind.OURS, Kind.RELEASED),
    (Kind.RELEASED, Kind.OURS),
    pytest.param(Kind.OURS, Kind.OURS, marks=pytest.mark.long),
    pytest.param(Kind.RELEASED, Kind.RELEASED, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("source_kind", "destination_kind"), BOTH_WAYS)
def test_recover_partition_between_nodes(make_cluster: MakeCluster, source_kind: Kind, destination_kind: Kind) -> None:
    """Behaviours 138 and 139: the destination is cut to its low-water mark and filled up to the source's local one."""
    cluster = make_cluster(nodes=2)
    cluster.start([source_kind, destination_kind])
    source, destination = cluster.nodes
    client = cluster.client(source)
    client.ask("lwm", 3, 1, -1)
    for first in range(0, 3000, 100):
        client.append(3, 1, first, 100)
    client.ask("lwm", 4, 1, 2999)
    client.append(4, 1, 3000, 50)  # above the mark: not copied

    behind = cluster.client(destination)
    behind.ask("lwm", 1, 1, -1)
    behind.append(1, 1, 0, 50)
    behind.ask("lwm", 2, 1, 49)
    behind.append(2, 1, 50, 20, 33)  # what nobody else has: cut away

    tool = cluster.tools.storage
    tool("availability", "-s", destination.admin_address, "-p", 1, "-o", "false")
    tool(
        "recover-partition",
        *("-s", source.admin_address),
        *("-d", destination.admin_address),
        *("-dp", destination.port),
        *("-p", 1),
        *("-b", 700),
    )
    assert behind.ask("offline-max", 2, 1) == "2999"
    assert behind.ask("admin-session", 1) == "2 2999 2999"
    tool("availability", "-s", destination.admin_address, "-p", 1, "-o", "true")
    assert behind.max_transaction_id(2, 1) == 2999
    assert behind.records(2, 1, 2990, 10) == client.records(4, 1, 2990, 10)
    client.close()
    behind.close()
    for node in cluster.nodes:
        node.stop()
        expect_clean(node.directory)
    copied = record_bytes(destination.directory, 1)
    assert record_bytes(source.directory, 1)[: len(copied)] == copied
    assert len(copied) == 3000 * 140
