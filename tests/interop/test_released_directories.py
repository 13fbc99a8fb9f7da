"""A storage directory written by one node goes on under the other, after a clean stop and after kill -9, both ways."""

from __future__ import annotations

import itertools

import pytest

from tests.interop.clusters import Kind
from tests.interop.conftest import MakeCluster
from tests.interop.released import ReleasedClient, expected_data, needs_released
from tests.interop.replicas import expect_clean

pytestmark = needs_released

BOTH_WAYS = [
    (Kind.OURS, Kind.RELEASED),
    (Kind.RELEASED, Kind.OURS),
    pytest.param(Kind.RELEASED, Kind.RELEASED, marks=pytest.mark.long),
    pytest.param(Kind.OURS, Kind.OURS, marks=pytest.mark.long),
]


def expect_records(client: ReleasedClient, session: int, partition: int, last: int, size: int) -> None:
    """Every record up to the last is what the client once appended."""
    records = client.records(session, partition, 0, last + 1)
    assert [record.transaction_id for record in records] == list(range(last + 1))
    for record in records:
        number = record.transaction_id
        assert record.request_id == (11, 22, partition, number)
        assert record.data == expected_data(partition, number, size)


@pytest.mark.parametrize(("writer", "reader"), BOTH_WAYS)
def test_after_a_clean_stop(make_cluster: MakeCluster, writer: Kind, reader: Kind) -> None:
    """Session, marks, flags, records and segments are those that were left; the next append continues."""
    cluster = make_cluster(nodes=1, partitions=4)
    cluster.start([writer])
    (node,) = cluster.nodes
    client = cluster.client(node)
    for partition in (0, 1):
        client.ask("lwm", 5, partition, -1)
        for first in range(0, 4000, 200):
            client.append(5, partition, first, 200)
    client.ask("lwm", 6, 1, 3999)
    client.ask("truncate", 5, 0, 3111)
    client.ask("available", "2", False)
    client.ask("unassign", "3")
    client.close()
    node.stop()
    expect_clean(node.directory)

    node.start(reader)
    client = cluster.client(node)
    assert client.ask("status") == "{0=true, 1=true, 2=false}"
    assert client.session(7, 0) == (5, -1, -1)
    assert client.session(7, 1) == (6, 3999, 3999)
    assert client.max_transaction_id(7, 0) == 3111
    assert client.max_transaction_id(7, 1) == 3999
    expect_records(client, 7, 0, 3111, 100)
    expect_records(client, 7, 1, 3999, 100)
    client.append(7, 0, 3112, 300)
    expect_records(client, 7, 0, 3411, 100)
    client.close()
    node.stop()
    summary = expect_clean(node.directory)
    assert summary["records"] == 3412 + 4000


@pytest.mark.parametrize(("writer", "reader"), BOTH_WAYS)
def test_after_kill_9_under_load(make_cluster: MakeCluster, writer: Kind, reader: Kind) -> None:
    """What was acknowledged is there under the other node, three times in a row, and the next append continues."""
    cluster = make_cluster(nodes=1, partitions=1)
    (node,) = cluster.nodes
    last = -1
    for turn, kind in enumerate((writer, reader, writer)):
        node.start(kind)
        if turn == 0:
            cluster.tools.storage("sync-partitions")
        client = cluster.client(node)
        session = 10 + turn
        assert client.session(session, 0)[0] == session - 1 if turn else -1
        found = client.max_transaction_id(session, 0)
        assert found >= last
        expect_records(client, session, 0, found, 100)
        client.ask("lwm", session, 0, found)
        acknowledged = client.flood(session, 0, found + 1, 300)
        last = list(itertools.islice(acknowledged, 40))[-1]
        node.kill()
        last = max([last, *acknowledged])
        client.close()
    node.start(reader)
    client = cluster.client(node)
    found = client.max_transaction_id(20, 0)
    assert found >= last
    expect_records(client, 20, 0, found, 100)
    client.append(20, 0, found + 1, 10)
    client.close()
    node.stop()
    assert expect_clean(node.directory)["records"] == found + 11
