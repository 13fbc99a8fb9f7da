"""How long a batch may be: what goes to a storage node is one frame, and nodes take none that is too long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.held_locks import held_locks
from tests.server.test_partition import Told, unwritten
from waltzctl.engine.net.peer_limits import STORAGE_GROWTH, PortLimits
from waltzctl.engine.server.append_requests import Append
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import client, storage
from waltzctl.formats.wire.records import SMALLEST_RECORD, PackedRecords, WireRecord


def record(sequence: int, size: int) -> WireRecord:
    data = bytes(size)
    return WireRecord(-1, RequestId(1, 1, 1, sequence), 0, data, crc32(data))


@pytest.mark.parametrize("version", client.CLIENT_VERSIONS)
def test_an_append_grows_by_less_than_is_kept_for_it_on_its_way_to_a_node(version: int) -> None:
    one = record(1, 100)
    came = client.encode(client.AppendRequest(one.request_id, -1, 0, one.data, one.data_checksum), version)
    goes = storage.encode(storage.AppendRequest(2**62, 2**62, 1, (one,)))
    assert 0 < len(goes) - len(came) <= STORAGE_GROWTH


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("runs", "batches"),
    [
        ([[100] * 6], [3, 3]),
        ([[100], [100], [100], [100]], [3, 1]),
        ([[100, 100], [100, 100]], [3, 1]),
        ([[264]], [1]),
        ([[265]], [1]),
        ([[1000]], [1]),
        ([[1000], [1]], [1, 1]),
        ([[1], [1000]], [1, 1]),
        ([[1, 1000, 1]], [1, 1, 1]),
        ([[64, 164]], [2]),
        ([[64, 165]], [1, 1]),
        ([[0] * 20], [8, 8, 4]),
    ],
)
@pytest.mark.parametrize("locked", [False, True])
def test_a_batch_ends_where_it_would_be_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[list[int]], batches: list[int], locked: bool
) -> None:
    """300 bytes; a record has 36 beside its data.  One that is longer goes by itself."""
    assert SMALLEST_RECORD == 36
    most = 3 * 136 if any(100 in run for run in runs) else 300
    real, sent = StoreSession.append, list[int]()

    def append(session: StoreSession, records: PackedRecords) -> asyncio.Future[int]:
        sent.append(len(records))
        return real(session, records)

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            monkeypatch.setattr(StoreSession, "append", append)
            monkeypatch.setattr(partition, "_most_bytes", lambda: most)
            appender, sequence = Told(), 0
            for run in runs:
                taken = [record(sequence + number, size) for number, size in enumerate(run)]
                sequence += len(run)
                locks = (
                    held_locks((-1, client.AppendLocks(write=(one.request_id.sequence + 100,))) for one in taken)
                    if locked
                    else None
                )
                partition.append(Append(PackedRecords.of(taken), appender, locks))
            assert await partition.flush() == sequence - 1
            headers: list[RecordHeader] = []
            while len(headers) < sequence:
                headers += await partition.store.headers(len(headers), sequence)
            assert [one.request_id.sequence for one in headers] == [*range(sequence)]

    asyncio.run(work())
    assert sent == batches


def test_those_that_locks_refuse_do_not_make_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of 36 bytes that are refused, then three of 236; 300 bytes are the most."""
    real, sent = StoreSession.append, list[int]()

    def append(session: StoreSession, records: PackedRecords) -> asyncio.Future[int]:
        sent.append(len(records.data))
        return real(session, records)

    async def work() -> None:
        async with unwritten(tmp_path) as partition:
            appender = Told()
            written = held_locks([(-1, client.AppendLocks(write=(5,)))])
            partition.append(Append(PackedRecords.of([record(0, 10)]), appender, written))
            assert await partition.flush() == 0
            monkeypatch.setattr(StoreSession, "append", append)
            monkeypatch.setattr(partition, "_most_bytes", lambda: 300)
            taken = [record(number, 0 if number < 7 else 200) for number in range(1, 10)]
            locks = held_locks(
                (-1, client.AppendLocks(read=(5 if one.request_id.sequence < 7 else one.request_id.sequence + 100,)))
                for one in taken
            )
            partition.append(Append(PackedRecords.of(taken), appender, locks))
            assert await partition.flush() == 3
            assert [one for one in appender.told if isinstance(one, tuple) and one[1] == 0] == [
                (number, 0) for number in range(1, 7)
            ]
            headers = await partition.store.headers(1, 10)
            assert [one.request_id.sequence for one in headers] == [7, 8, 9]

    asyncio.run(work())
    assert sent == [236, 236, 236]


@pytest.mark.parametrize(("longest", "most"), [(1 << 20, (1 << 20) - STORAGE_GROWTH), (128 << 20, 16 << 20), (1, 0)])
def test_a_batch_is_no_longer_than_nodes_with_the_same_bound_take(longest: int, most: int) -> None:
    assert PortLimits(max_body=longest).max_batch == most
