"""Both clients against a node of ours: every call, many at a time, with and without TLS, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import KEY, build_directory, make_records
from tests.client.nodes import admin_of, data_of, records
from tests.client.peers import ADMIN_HELLO, Bodies, scripted, until_closed
from tests.node.running import LOOPS, run, running
from waltzctl.engine.client import admin_client, storage_client
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.port_protocol import LIMITS
from waltzctl.engine.client.server_client import ServerClient
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import DeadlineError, InvalidRequestError, PeerUnreachableError, RemoteError
from waltzctl.engine.net.addresses import parse_address
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.tls import client_context
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.storage.creation import create_cluster
from waltzctl.formats.segment import HEADER_SIZE
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.hello import WALTZ_SERVER, Hello
from waltzctl.formats.wire.records import SessionInfo, pack_records


def test_a_number_that_has_no_room_is_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node, data_of(node) as client, admin_of(node) as admin:
            (good,) = records(0, 1)
            for wrong in (2**31, -(2**31) - 1):
                with pytest.raises(InvalidRequestError, match="append of partition 0: a field does not fit"):
                    await client.append(5, 0, [good, replace(good, transaction_id=1, header=wrong)])
                with pytest.raises(InvalidRequestError, match="does not fit"):
                    await client.last_session_info(5, wrong)
                with pytest.raises(InvalidRequestError, match="does not fit"):
                    await client.open(KEY, wrong)
                with pytest.raises(InvalidRequestError, match="does not fit"):
                    await admin.records(wrong, 0, 1)
            assert client.in_flight == 0
            await client.append(5, 0, [good])
            assert await admin.records(0, 0, 5) == (good,)

    run(work())


def test_a_preference_is_asked_for_as_in_the_release() -> None:
    """The request id has the first of the partitions, and not -1."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies = Bodies(reader)
        writer.write(Hello((4,), WALTZ_SERVER).encode())
        await bodies.next(Magic.HELLO)
        while True:
            request = wire.decode(await bodies.next(Magic.CLIENT, 4), 4)
            assert isinstance(request, wire.AddPreferredPartitionRequest | wire.RemovePreferredPartitionRequest)
            add = isinstance(request, wire.AddPreferredPartitionRequest)
            kind = wire.AddPreferredPartitionResponse if add else wire.RemovePreferredPartitionResponse
            well = (request.request_id.partition, request.partitions) == (3, (3, 1))
            writer.write(wire.encode(kind(request.request_id, done=well), 4))

    async def work() -> None:
        async with (
            scripted(script) as address,
            await ServerClient.connect(address.host, address.port, ssl_context=None) as client,
        ):
            await client.prefer([3, 1], True)
            await client.prefer([3, 1], False)

    asyncio.run(work())


@pytest.mark.turns(10)
@pytest.mark.parametrize("held", [65_537, 200_000])
def test_partitions_of_which_a_cluster_may_have_a_million(held: int) -> None:
    """Frames of more numbers than the peer takes ended the connection; and so did the list of those that a server has."""
    named: list[int] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies = Bodies(reader)
        writer.write(Hello((4,), WALTZ_SERVER).encode())
        await bodies.next(Magic.HELLO)
        while True:
            body = await bodies.next(Magic.CLIENT, 4)
            assert len(body) < PortLimits().big_frame
            request, everything = wire.decode(body, 4), tuple(range(held))
            match request:
                case wire.AddPreferredPartitionRequest():
                    named.extend(request.partitions)
                    answer: Any = wire.AddPreferredPartitionResponse(request.request_id, done=True)
                case wire.ServerPartitionsHealthRequest():
                    answer = wire.ServerPartitionsHealthResponse(
                        request.request_id, tuple((n, True) for n in everything)
                    )
                case _:
                    answer = wire.ServerPartitionsAssignmentResponse(request.request_id, everything)
            writer.write(wire.encode(answer, 4))

    async def work() -> None:
        async with (
            scripted(script) as address,
            await ServerClient.connect(address.host, address.port, ssl_context=None) as client,
        ):
            await client.prefer(range(held), True)
            assert named == [*range(held)]
            assert len(await client.partitions()) == len(await client.health()) == held

    asyncio.run(work())


def test_many_partitions_are_assigned_in_several_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "MOST_CHANGED", 3)
    create_cluster([tmp_path / "node"], num_partitions=8, cluster_key=KEY, assign=())

    async def work() -> None:
        async with running(tmp_path / "node") as node, admin_of(node) as admin:
            await admin.assign(range(8))
            assert [number for number, _ in await admin.assigned_status()] == [*range(8)]
            await admin.unassign(range(7))
            assert [number for number, _ in await admin.assigned_status()] == [7]

    run(work())


@pytest.mark.parametrize("most", [4, 5])
def test_a_list_of_more_than_is_decoded_here_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The node gave them all, which ended the connection with every call on it: records may be so short that a list has many."""
    build_directory(tmp_path, {0: 0})
    for module in (storage_client, admin_client):
        monkeypatch.setattr(module, "LIMITS", replace(LIMITS, max_records=most))

    async def work() -> None:
        async with running(tmp_path) as node, data_of(node) as client, admin_of(node) as admin:
            sent = records(0, 5)
            await client.append(5, 0, sent)
            for count in (5, 2**31, 2**40):
                assert await client.records(5, 0, 0, count) == tuple(sent[:most])
                assert len(await client.record_headers(5, 0, 0, count)) == most
                assert await admin.records(0, 0, count) == tuple(sent[:most])

    asyncio.run(work())


@LOOPS
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_every_call_of_the_data_port(tmp_path: Path, loop: str, tls: bool) -> None:
    build_directory(tmp_path, {0: 0, 1: 0})
    context = client_context(TlsOptions(), trust_all=True) if tls else None

    async def work() -> None:
        async with (
            running(tmp_path, plaintext=not tls) as node,
            data_of(node, context, cluster_key=KEY, num_partitions=2) as client,
        ):
            assert await client.last_session_info(5, 0) == SessionInfo(3, -1, -1)
            assert await client.max_transaction_id(5, 0) == -1
            await client.set_low_water_mark(5, 0, -1)
            sent = records(0, 10)
            await client.append(5, 0, sent)
            await client.append_encoded(5, 0, 3, pack_records(records(10, 3)))
            sent += records(10, 3)
            assert await client.max_transaction_id(5, 0) == 12
            assert await client.records(5, 0, 4, 3) == tuple(sent[4:7])
            assert await client.records(5, 0, 13, 3) == ()
            headers = await client.record_headers(5, 0, 0, 100)
            assert [(one.transaction_id, one.request_id, one.header) for one in headers] == [
                (one.transaction_id, one.request_id, one.header) for one in sent
            ]
            assert await client.record(5, 0, 3) == sent[3]
            assert await client.record(5, 0, 13) is None
            assert await client.record_header(5, 0, 3) == headers[3]
            assert await client.record_header(5, 0, -1) is None
            assert await client.truncate(5, 0, 7) == 7
            assert await client.max_transaction_id(5, 0) == 7
            assert await client.last_session_info(5, 0) == SessionInfo(5, -1, -1)

    run(work(), loop)


@LOOPS
def test_every_call_of_the_admin_port(tmp_path: Path, loop: str) -> None:
    storage = build_directory(tmp_path, {0: 5}, num_partitions=4)

    async def work() -> None:
        async with running(storage) as node, admin_of(node, cluster_key=KEY, num_partitions=4) as client:
            assert client.has_two_switches
            assert await client.assigned_status() == ((0, True),)
            await client.assign([2, 1])
            assert await client.assigned_status() == ((0, True), (1, True), (2, True))
            await client.set_available([0, 1], False)
            assert await client.assigned_status() == ((0, False), (1, False), (2, True))
            await client.set_readable(0, True)
            assert (await client.assigned_status())[0] == (0, False)
            await client.set_writable(0, True)
            await client.set_available([1], True)
            assert await client.assigned_status() == ((0, True), (1, True), (2, True))
            made = make_records(5)
            read = await client.records(0, 1, 3)
            assert [(one.transaction_id, one.data) for one in read] == [
                (one.transaction_id, one.data) for one in made[1:4]
            ]
            places = [await client.place_of(0, number) for number in (-1, 0, 1, 5)]
            assert places == [None, (0, HEADER_SIZE), (0, HEADER_SIZE + made[0].size), None]
            assert await client.session_info(0) == SessionInfo(3, 2, 2)
            assert '"waltz-storage.partition-0.max-transaction-id"' in await client.metrics()
            await client.unassign([1, 2], delete_files=True)
            assert await client.assigned_status() == ((0, True),)
            assert not list((storage / "2").glob("*"))
            with pytest.raises(RemoteError) as caught:
                await client.session_info(2)
            assert (caught.value.code, caught.value.text) == ("not-assigned", "Partition:2 is not assigned.")

    run(work(), loop)


def test_switching_one_of_two_leaves_the_other(tmp_path: Path) -> None:
    """Version 1 of the admin protocol keeps reads and writes apart."""
    build_directory(tmp_path, {0: 5})

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as admin, data_of(node) as client:
            await admin.set_writable(0, False)
            assert len(await client.records(3, 0, 0, 10)) == 5
            with pytest.raises(RemoteError) as caught:
                await client.append(3, 0, records(5, 1))
            assert caught.value.code == "not-available"
            await admin.set_writable(0, True)
            await client.append(3, 0, records(5, 1))
            await admin.set_readable(0, False)
            with pytest.raises(RemoteError):
                await client.records(3, 0, 0, 10)
            await client.append(3, 0, records(6, 1))

    run(work())


@pytest.mark.parametrize("connect", [StorageClient.connect, AdminClient.connect], ids=["data", "admin"])
@pytest.mark.parametrize(("key", "count"), [(uuid.UUID(int=1), 1), (KEY, 2)], ids=["key", "count"])
def test_another_cluster_is_a_mismatch(tmp_path: Path, connect: type, key: uuid.UUID, count: int) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            port = node.addresses.port if connect == StorageClient.connect else node.addresses.admin_port
            with pytest.raises(RemoteError) as caught:
                await connect("127.0.0.1", port, ssl_context=None, cluster_key=key, num_partitions=count)
            assert (caught.value.code, caught.value.status) == ("mismatch", "mismatch")
            with pytest.raises(InvalidRequestError):
                await connect("127.0.0.1", port, ssl_context=None, cluster_key=KEY)

    run(work())


@LOOPS
def test_many_calls_are_under_way_at_a_time_and_each_gets_its_own_answer(tmp_path: Path, loop: str) -> None:
    build_directory(tmp_path, dict.fromkeys(range(4), 0))

    async def work() -> None:
        async with running(tmp_path) as node, data_of(node) as client:

            async def fill(partition: int) -> None:
                appends = [client.append(5, partition, records(n, 1, partition=partition)) for n in range(200)]
                await asyncio.gather(*appends)

            await asyncio.gather(*(fill(partition) for partition in range(4)))
            asked = [client.record(5, n % 4, n // 4) for n in range(800)]
            assert client.in_flight == 0
            found = await asyncio.gather(*asked)
            assert found == [records(n // 4, 1, partition=n % 4)[0] for n in range(800)]

    run(work(), loop)


def test_a_record_with_a_wrong_checksum_is_refused_by_the_node(tmp_path: Path) -> None:
    """S12; and the connection goes on."""
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node, data_of(node) as client:
            wrong = replace(records(0, 1)[0], data_checksum=7)
            with pytest.raises(RemoteError) as caught:
                await client.append(3, 0, [wrong])
            assert (caught.value.code, caught.value.status) == ("data-checksum", "damaged")
            assert await client.max_transaction_id(3, 0) == -1

    run(work())


def test_an_older_session_is_told_so(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node, data_of(node) as client:
            await client.last_session_info(9, 0)
            with pytest.raises(RemoteError) as caught:
                await client.append(8, 0, records(0, 1))
            assert (caught.value.code, caught.value.status) == ("session-changed", "refused")

    run(work())


@LOOPS
def test_a_node_that_stops_fails_the_calls_that_come_after(tmp_path: Path, loop: str) -> None:
    build_directory(tmp_path, {0: 3})

    async def work() -> None:
        async with running(tmp_path) as node, data_of(node) as client, admin_of(node) as admin:
            assert await client.max_transaction_id(3, 0) == 2
            await node.stop(10)
            with pytest.raises(PeerUnreachableError):
                await client.max_transaction_id(3, 0)
            with pytest.raises(PeerUnreachableError):
                await admin.session_info(0)

    run(work(), loop)


def test_a_node_at_an_ipv6_address_is_reached(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 3})
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")

    async def work() -> None:
        async with running(tmp_path, host="::1") as node:
            address = parse_address(f"[::1]:{node.addresses.admin_port}")
            async with await ConnectionFactory(plaintext=True).admin(address) as client:
                assert await client.assigned_status() == ((0, True),)
                assert str(client.address) == f"[::1]:{node.addresses.admin_port}"

    run(work())


@pytest.mark.parametrize("late", [False, True], ids=["cancelled", "late"])
def test_a_connection_that_nobody_waits_for_any_more_when_the_greeting_comes_is_closed(late: bool) -> None:
    async def work() -> None:
        gone = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await Bodies(reader).next(Magic.HELLO)
            writer.write(Hello((4,), WALTZ_SERVER).encode())
            if late:
                time.sleep(0.2)  # so that greeting and deadline come in one turn of the loop, in this order
            with contextlib.suppress(OSError):
                await until_closed(reader)
            gone.set()

        class Greeted(LogConnection):
            def _greet(self, hello: Hello) -> None:
                super()._greet(hello)
                made.append(self)
                if not late:
                    connecting.cancel()

        made: list[Greeted] = []
        async with scripted(script) as at:
            connecting = asyncio.ensure_future(Greeted.connect(PORT, at, ssl_context=None, timeout=0.2))
            await asyncio.wait([connecting])
            if late:
                assert isinstance(connecting.exception(), DeadlineError)
            else:
                assert connecting.cancelled()
            assert [one.closed for one in made] == [True]
            await asyncio.wait_for(gone.wait(), 10)

    run(work())


def test_a_close_that_is_cancelled_leaves_no_connection_to_a_peer_that_takes_nothing() -> None:
    """What is in its write buffer would keep it open until TCP gives the peer up."""

    async def work() -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await Bodies(reader).next(Magic.HELLO)
            writer.write(Hello((4,), WALTZ_SERVER).encode())
            writer.transport.pause_reading()
            await ended.wait()

        ended = asyncio.Event()
        async with scripted(script) as at:
            connection = await LogConnection.connect(PORT, at, ssl_context=None, timeout=5.0)
            while not connection.full:
                connection.send_frames([bytes(1 << 20)])
                await asyncio.sleep(0)
            closing = asyncio.ensure_future(connection.close())
            await asyncio.sleep(0.05)
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            async with asyncio.timeout(5):
                await connection._closed
            ended.set()

    run(work())


def test_who_is_cancelled_while_it_waits_for_the_end_of_a_connection_does_not_keep_it_from_ending() -> None:
    """The connection never counted as closed, and the calls in flight were never told."""

    async def work() -> None:
        answers = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(ADMIN_HELLO)
            await Bodies(reader).next(Magic.HELLO)
            await answers.wait()

        async def end_of(client: AdminClient) -> None:
            await client.ended

        async with scripted(script) as where:
            client = await AdminClient.connect(where.host, where.port, ssl_context=None)
            waiting = asyncio.ensure_future(end_of(client))
            asking = asyncio.ensure_future(client.metrics())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
            answers.set()
            with pytest.raises(PeerUnreachableError):
                await asking
            assert client.closed
            await client.close()

    run(work())
