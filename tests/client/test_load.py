"""The load generator: what it sends, on a real node, is what it says it sends; and it says why it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node.running import LOOPS, run, running
from waltzctl.engine.client.load import LoadOptions, LoadResult, begin, run_load, survey, take_away
from waltzctl.engine.client.load_frames import AppendFrames, LoadPartition, ReadFrames
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import (
    DeadlineError,
    InvalidRequestError,
    PeerUnreachableError,
    ProtocolError,
    RefusedError,
    RemoteError,
)
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.node.node import Node
from waltzctl.engine.storage.directory import create_cluster
from waltzctl.formats.control import Layout
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, decode_frame_header, frame
from waltzctl.formats.wire.hello import STORAGE_SERVER, Hello
from waltzctl.formats.wire.storage import AppendRequest, RecordListRequest, decode

places_of = st.lists(
    st.builds(LoadPartition, st.integers(0, 2**31 - 1), st.integers(0, 2**60), st.integers(-1, 2**40)),
    min_size=1,
    max_size=5,
)
QUICK = LoadOptions(batch=3, data_size=50, in_flight=4, seconds=0.2, warm_up=0.05)


def bodies(made: bytes) -> list[bytes]:
    """The bodies of frames back to back."""
    found = []
    while made:
        header = decode_frame_header(made)
        assert (header.magic, header.version) == (Magic.STORAGE, 0)
        end = FRAME_HEADER.size + header.length
        found.append(made[FRAME_HEADER.size : end])
        made = made[end:]
    return found


@given(places_of, st.integers(1, 20), st.integers(0, 300), st.lists(st.integers(0, 10_000), min_size=1, max_size=8))
def test_append_frames_are_appends_that_continue_their_partition(
    places: list[LoadPartition], batch: int, size: int, numbers: list[int]
) -> None:
    frames = AppendFrames(places, batch=batch, data_size=size)
    made = frames.make(np.array(numbers[: frames.rows], np.int64))
    assert len(made) == frames.size * len(numbers[: frames.rows])
    for number, body in zip(numbers, bodies(made), strict=False):
        message = decode(body)
        assert isinstance(message, AppendRequest)
        place = places[number % len(places)]
        first = place.last_transaction_id + 1 + number // len(places) * batch
        assert (message.session_id, message.sequence, message.partition) == (place.session_id, number, place.partition)
        assert not message.offline
        assert [record.transaction_id for record in message.records] == list(range(first, first + batch))
        for record in message.records:
            assert len(record.data) == size
            assert record.data_ok
            assert record.request_id.partition == place.partition
            assert record.header == record.request_id.sequence
            assert (record.header - record.transaction_id) % 2**32 == 0


@given(places_of, st.integers(1, 1000), st.lists(st.integers(0, 10_000), min_size=1, max_size=8))
def test_read_frames_go_round_the_whole_lists_of_a_partition(
    places: list[LoadPartition], batch: int, numbers: list[int]
) -> None:
    for number, body in zip(numbers, bodies(ReadFrames(places, batch=batch).make(np.array(numbers))), strict=True):
        message = decode(body)
        assert isinstance(message, RecordListRequest)
        place = places[number % len(places)]
        lists = max(1, (place.last_transaction_id + 1) // batch)
        assert (message.session_id, message.sequence, message.partition) == (place.session_id, number, place.partition)
        assert message.max_count == batch
        assert message.first_transaction_id == number // len(places) % lists * batch


@contextlib.asynccontextmanager
async def node_and_client(path: Path, *, partitions: int = 3) -> AsyncIterator[tuple[Node, StorageClient]]:
    """A node with new partitions and a client of its data port."""
    create_cluster([path / "node"], num_partitions=partitions, layout=Layout.RELEASED)
    async with (
        running(path / "node", http_port=None) as node,
        await StorageClient.connect("127.0.0.1", node.addresses.port, ssl_context=None) as client,
    ):
        yield node, client


async def load(
    client: StorageClient, partitions: range, options: LoadOptions = QUICK
) -> tuple[tuple[LoadPartition, ...], LoadResult]:
    places = await begin(client, await survey(client, partitions), options)
    return places, await run_load(client, places, options, ssl_context=None)


@pytest.mark.turns(8)
@LOOPS
@pytest.mark.parametrize("connections", [1, 2])
def test_appended_records_are_there_and_counted(tmp_path: Path, loop: str, connections: int) -> None:
    async def work() -> None:
        async with node_and_client(tmp_path) as (_, client):
            options = LoadOptions(
                batch=3, data_size=50, in_flight=4, seconds=0.2, warm_up=0.05, connections=connections
            )
            places, result = await load(client, range(3), options)
            assert result.requests == result.latency.count > 0
            assert result.transactions == 3 * result.requests
            assert result.data_bytes == 50 * result.transactions
            assert result.seconds >= 0.2
            assert sum(result.last_transaction_ids) + 3 >= result.transactions
            for place, last in zip(places, result.last_transaction_ids, strict=True):
                assert place.last_transaction_id == -1
                assert (last + 1) % 3 == 0
                records = await client.records(place.session_id, place.partition, 0, last + 1)
                assert [record.transaction_id for record in records] == list(range(last + 1))
                assert all(record.data_ok and len(record.data) == 50 for record in records)

    run(work(), loop)


@pytest.mark.turns(10)
def test_a_load_continues_what_is_there_and_take_away_removes_no_more(tmp_path: Path) -> None:
    async def work() -> None:
        async with node_and_client(tmp_path) as (_, client):
            _, first = await load(client, range(2))
            places, second = await load(client, range(2))
            assert tuple(place.last_transaction_id for place in places) == first.last_transaction_ids
            assert all(
                after > before
                for before, after in zip(first.last_transaction_ids, second.last_transaction_ids, strict=True)
            )
            await take_away(client, places)
            left = [found.last_transaction_id for found in await survey(client, range(2))]
            assert left == list(first.last_transaction_ids)

    run(work())


def test_reading_counts_records_and_writes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with node_and_client(tmp_path) as (_, client):
            _, filled = await load(client, range(2))
            before = await survey(client, range(3))
            _, result = await load(client, range(2), LoadOptions(batch=2, seconds=0.2, warm_up=0.0, read=True))
            assert result.requests > 0
            assert result.transactions == 2 * result.requests
            assert result.data_bytes == 50 * result.transactions
            assert result.last_transaction_ids == filled.last_transaction_ids
            assert await survey(client, range(3)) == before

    run(work())


def test_lists_longer_than_the_first_read_buffer_are_read(tmp_path: Path) -> None:
    async def work() -> None:
        async with node_and_client(tmp_path) as (_, client):
            await load(client, range(1), LoadOptions(batch=100, data_size=30_000, in_flight=2, seconds=0.2, warm_up=0))
            options = LoadOptions(batch=100, in_flight=3, seconds=0.2, warm_up=0, read=True)
            _, result = await load(client, range(1), options)
            assert result.requests > 0
            assert result.data_bytes == 30_000 * result.transactions

    run(work())


def test_a_survey_shuts_nobody_out_and_tells_the_session_in_force(tmp_path: Path) -> None:
    async def work() -> None:
        async with node_and_client(tmp_path) as (_, client):
            (fresh,) = await survey(client, [1])
            assert fresh.is_fresh
            assert (fresh.session_id, fresh.last_transaction_id) == (-1, -1)
            await client.last_session_info(5, 1)
            await client.set_low_water_mark(5, 1, -1)
            await client.last_session_info(8, 1)  # in force, and not persisted as the last session
            (found,) = await survey(client, [1])
            assert (found.session_id, found.is_fresh) == (8, False)
            assert await client.max_transaction_id(8, 1) == -1

    run(work())


def test_a_newer_session_ends_the_load_with_what_the_node_says(tmp_path: Path) -> None:
    async def work() -> None:
        async with node_and_client(tmp_path) as (_, client):
            places = await begin(client, await survey(client, range(1)), QUICK)
            options = LoadOptions(in_flight=2, seconds=30.0, warm_up=0.0)
            measuring = asyncio.Event()

            def phase(name: str) -> None:
                if name == "measuring":
                    measuring.set()

            running_load = asyncio.ensure_future(run_load(client, places, options, ssl_context=None, on_phase=phase))
            await measuring.wait()
            await client.last_session_info(places[0].session_id + 1, 0)
            with pytest.raises(RemoteError, match="session id has changed to 1, but request context contains 0"):
                await running_load

    run(work())


def test_lists_longer_than_the_partition_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with node_and_client(tmp_path) as (_, client):
            with pytest.raises(RefusedError, match="partition 0 holds 0 records, too few for lists of 10"):
                await load(client, range(1), LoadOptions(batch=10, read=True))

    run(work())


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def greeted(writer: asyncio.StreamWriter) -> None:
    writer.write(Hello((0,), STORAGE_SERVER).encode())
    await writer.drain()


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greeted(writer)
    while await reader.read(1 << 16):
        pass


async def goes_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greeted(writer)
    await reader.read(1)


async def answers_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greeted(writer)
    await reader.read(1)
    writer.write(frame(Magic.STORAGE, 0, bytes([7]) + bytes(19)))
    await says_nothing(reader, writer)


async def answers_another_magic(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greeted(writer)
    await reader.read(1)
    writer.write(frame(Magic.ADMIN, 0, bytes(30)))
    await says_nothing(reader, writer)


async def answers_with_a_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greeted(writer)
    await reader.read(1)
    writer.write(frame(Magic.STORAGE, 0, bytes([13]) + bytes(21)))
    await says_nothing(reader, writer)


async def speaks_no_version_of_ours(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(Hello((7,), STORAGE_SERVER).encode())
    await says_nothing(reader, writer)


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (says_nothing, DeadlineError, "no answer has come for 0.3 s"),
        (goes_away, PeerUnreachableError, "closed the connection|connection was lost"),
        (answers_nonsense, ProtocolError, "wrong short"),
        (answers_another_magic, ProtocolError, "wrong magic"),
        (answers_with_a_request, ProtocolError, "MaxTransactionIdRequest is no answer"),
        (speaks_no_version_of_ours, ProtocolError, "no common version"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_peer_that_is_no_node_ends_the_load_with_its_fault(
    tmp_path: Path, script: Script, error: type[Exception], words: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await script(reader, writer)
        finally:
            writer.close()

    async def work() -> None:
        async with node_and_client(tmp_path) as (_, client):
            places = await begin(client, await survey(client, range(1)), QUICK)
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            async with server:
                client._connection.address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
                options = LoadOptions(seconds=60.0, warm_up=0.0, timeout=0.3)
                with pytest.raises(error, match=words):
                    await run_load(client, places, options, ssl_context=None)

    run(work())


@pytest.mark.parametrize(
    "options",
    [
        LoadOptions(batch=0),
        LoadOptions(batch=100_001),
        LoadOptions(data_size=-1),
        LoadOptions(batch=100_000, data_size=1 << 20),
        LoadOptions(in_flight=0),
        LoadOptions(seconds=0),
        LoadOptions(warm_up=-1),
        LoadOptions(session_id=-1),
        LoadOptions(session_id=2**63 - 1),
        LoadOptions(connections=0),
    ],
)
def test_what_cannot_be_meant_is_refused(options: LoadOptions) -> None:
    with pytest.raises(InvalidRequestError):
        options.check()
