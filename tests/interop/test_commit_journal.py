"""A directory with a commit journal: the released node starts on it once the journal was written back, and not before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.interop.clusters import Kind, StorageNode
from tests.interop.conftest import MakeCluster
from tests.interop.processes import HOST, GivenUpError, wait_until
from tests.interop.released import expected_data, needs_released
from tests.interop.replicas import expect_clean
from tests.interop.test_released_directories import expect_records
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.net.tls import client_context
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.storage.journal_state import read_state
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlHeader
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import WireRecord

pytestmark = needs_released

PARTITIONS = 4
APPENDS = 300
SIZE = 100
REFUSAL = "the number of partitions does not match"


def journaled(directory: Path) -> bool:
    """Whether the control file says that records may stand in a journal only."""
    return ControlHeader.decode((directory / CONTROL_FILE_NAME).read_bytes()).journaled


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def append_to_all(node: StorageNode) -> None:
    """One record at a time and one request in flight in each partition, so that they share the journal's flushes."""
    trust = client_context(TlsOptions(), trust_all=True)
    client = await StorageClient.connect(HOST, node.port, ssl_context=trust)

    async def one(partition: int) -> None:
        await client.set_low_water_mark(5, partition, -1)
        for number in range(APPENDS):
            data = expected_data(partition, number, SIZE)
            await client.append(5, partition, [WireRecord.make(number, RequestId(11, 22, partition, number), 0, data)])

    async with asyncio.TaskGroup() as group:
        for partition in range(PARTITIONS):
            group.create_task(one(partition))
    await client.close()


def refuse_release(node: StorageNode) -> None:
    """The released node does not start, says why, and changes nothing."""
    before = contents(node.directory)
    with pytest.raises(GivenUpError):
        node.start(Kind.RELEASED)
    assert node.running is not None
    wait_until(lambda: REFUSAL in node.running.tail(), "the release says why")  # type: ignore[union-attr]
    node.kill()
    assert contents(node.directory) == before


def test_the_release_opens_no_marked_directory_and_every_other(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """After kill -9 records may stand in the journal only.  Any start of ours writes them back, a clean stop does so itself."""
    journal = tmp_path / "journal"
    cluster = make_cluster(nodes=1, partitions=PARTITIONS, settings={"waltzctl__journal": str(journal)})
    cluster.start([Kind.OURS])
    (node,) = cluster.nodes
    asyncio.run(append_to_all(node))
    node.kill()
    state = read_state(node.directory)
    assert journaled(node.directory)
    assert state is not None
    assert state.path == journal
    assert journal.exists()
    refuse_release(node)

    node.start(Kind.OURS)
    assert journaled(node.directory), "it has a journal of its own"
    node.stop()
    assert not journaled(node.directory)
    assert not journal.exists()
    expect_clean(node.directory)

    node.start(Kind.RELEASED)
    client = cluster.client(node)
    for partition in range(PARTITIONS):
        assert client.session(6, partition) == (5, -1, -1)
        expect_records(client, 6, partition, APPENDS - 1, SIZE)
    client.append(6, 0, APPENDS, 10)
    client.close()
    node.stop()
    assert expect_clean(node.directory)["records"] == PARTITIONS * APPENDS + 10
