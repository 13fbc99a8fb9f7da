"""Whatever a peer does, a call ends: with an answer or with an error that says what happened.  Nothing else is raised."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.peers import ADMIN_HELLO, STORAGE_HELLO, Bodies, Script, scripted, until_closed
from tests.formats.settings import properties
from tests.node.running import LOOPS, run
from waltzctl.engine.client import client_connection
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.client_connection import MAX_BODY, WRITE_BUFFER
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import DeadlineError, PeerError, PeerUnreachableError, ProtocolError, RefusedError
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, keep_alive
from waltzctl.formats.wire.hello import ADMIN_SERVER, STORAGE_SERVER, WALTZ_SERVER, Hello
from waltzctl.formats.wire.records import WireRecord

SHORT = 0.2
"""Seconds for a deadline that is meant to pass."""


async def connect(address: Address, timeout: float = 30.0) -> StorageClient:
    return await StorageClient.connect(address.host, address.port, ssl_context=None, timeout=timeout)


def says(*pieces: bytes) -> Script:
    """A peer that sends these and then waits for the client to go."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        await until_closed(reader)

    return script


def answers(make: Callable[[storage.StorageMessage], bytes]) -> Script:
    """A data port that answers every request with what `make` makes of it."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STORAGE_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        while True:
            writer.write(make(storage.decode(await bodies.next(Magic.STORAGE))))

    return script


# --- before the greeting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no frame.*HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "speaks TLS"),
        (bytes(64), "no frame"),
        (FRAME_HEADER.struct.pack(Magic.HELLO, 0, -1), "negative"),
        (FRAME_HEADER.struct.pack(Magic.HELLO, 0, 2**31 - 1), "longest accepted"),
        (FRAME_HEADER.struct.pack(Magic.HELLO, 1, 4) + bytes(4), "version 1"),
        (FRAME_HEADER.struct.pack(Magic.HELLO, 0, 4) + struct.pack(">i", 2**30), "cannot be"),
        (FRAME_HEADER.struct.pack(Magic.HELLO, 0, 4) + struct.pack(">i", -5), "negative"),
        (Hello((7, 9), STORAGE_SERVER).encode(), "no common version: the peer speaks 7, 9, we 0"),
        (Hello((), STORAGE_SERVER).encode(), "the peer speaks none"),
        (Hello((0, 1), ADMIN_SERVER).encode(), "admin port of a storage node, not the data port"),
        (Hello((0, 1, 2, 3, 4), WALTZ_SERVER).encode(), "port of a Waltz server"),
    ],
    ids=[
        "http",
        "tls",
        "zeros",
        "negative",
        "huge",
        "version",
        "count",
        "negative-count",
        "versions",
        "none",
        "admin",
        "server",
    ],
)
@LOOPS
def test_a_greeting_that_is_none_is_a_protocol_error(sent: bytes, why: str, loop: str) -> None:
    async def work() -> None:
        async with scripted(says(sent)) as address:
            with pytest.raises(ProtocolError, match=why) as caught:
                await connect(address)
            assert caught.value.message.startswith(f"{address}: ")
            assert caught.value.status == "io-error"

    run(work(), loop)


@LOOPS
def test_a_peer_that_closes_without_a_greeting_is_unreachable(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    async def work() -> None:
        async with scripted(script) as address:
            with pytest.raises(PeerUnreachableError, match=r"closed|lost"):
                await connect(address)

    run(work(), loop)


@pytest.mark.parametrize("sent", [b"", STORAGE_HELLO[:-1], STORAGE_HELLO[:3]], ids=["silence", "truncated", "header"])
def test_a_greeting_that_does_not_end_meets_the_deadline(sent: bytes) -> None:
    async def work() -> None:
        async with scripted(says(sent)) as address:
            with pytest.raises(DeadlineError, match=rf"{address}: no answer within 0.2 s while connecting"):
                await connect(address, SHORT)

    run(work())


def test_a_port_without_listener_is_unreachable() -> None:
    async def work() -> None:
        async with scripted(says()) as address:
            pass
        with pytest.raises(PeerUnreachableError, match="cannot connect: connection refused"):
            await connect(address)
        with pytest.raises(PeerUnreachableError, match="name cannot be looked up"):
            await connect(Address("no-such-host.invalid", 1))
        with pytest.raises(PeerUnreachableError, match=r"cannot connect: .*label empty"):
            await connect(Address("10.0.0..7", 1))

    run(work())


# --- after it -----------------------------------------------------------------------------------------------------------


def response(message: storage.StorageMessage, **changes: int) -> bytes:
    """The right answer to a question for the last transaction, with fields of the prefix changed."""
    keys = {"session_id": message.session_id, "sequence": message.sequence, "partition": message.partition, **changes}
    return storage.encode(storage.MaxTransactionIdResponse(**keys, transaction_id=41))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda m: response(m, sequence=m.sequence + 1), "nobody waits for"),
        (lambda m: response(m, session_id=99), "about session 99 of partition 0"),
        (lambda m: response(m, partition=1), "of partition 1"),
        (lambda m: storage.encode(storage.SuccessResponse(m.session_id, m.sequence, m.partition)), "SuccessResponse is no"),
        (lambda m: storage.encode(m), "MaxTransactionIdRequest is no answer"),
        (lambda m: response(m)[:7] + b"\x63" + response(m)[8:], "type 99 is unknown"),
        (lambda m: FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 30) + response(m)[7:] + b"x", "left over"),
        (lambda m: FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 20) + response(m)[7:27], "beyond the body"),
        (lambda m: FRAME_HEADER.struct.pack(Magic.STORAGE, 0, -7), "negative"),
        (lambda m: FRAME_HEADER.struct.pack(Magic.STORAGE, 0, MAX_BODY + 1), "longest accepted"),
        (lambda m: FRAME_HEADER.struct.pack(Magic.ADMIN, 0, 29) + response(m)[7:], "magic 0x41"),
        (lambda m: FRAME_HEADER.struct.pack(Magic.STORAGE, 1, 29) + response(m)[7:], "version 1"),
        (lambda m: STORAGE_HELLO, "magic 0x48"),
    ],
    ids=["sequence", "session", "partition", "type", "echo", "unknown-type", "left-over", "short", "negative", "huge", "magic",
         "version", "second-hello"],
)  # fmt: skip
def test_an_answer_that_is_none_ends_the_call(make: Callable[[storage.StorageMessage], bytes], why: str) -> None:
    async def work() -> None:
        async with scripted(answers(make)) as address:
            client = await connect(address)
            with pytest.raises(ProtocolError, match=why):
                await client.max_transaction_id(3, 0)
            await client.close()

    run(work())


@LOOPS
def test_after_a_protocol_error_every_call_fails_with_its_reason(loop: str) -> None:
    async def work() -> None:
        async with scripted(says(STORAGE_HELLO, bytes(64))) as address:
            client = await connect(address)
            calls = [client.max_transaction_id(3, number) for number in range(20)]
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, ProtocolError)
                assert "no frame" in error.message
            with pytest.raises(ProtocolError, match=r"no frame.*\(truncate of partition 7\)"):
                await client.truncate(3, 7, 0)
            assert client.closed
            await client.close()

    run(work(), loop)


@LOOPS
def test_a_disconnect_fails_every_waiting_call(loop: str) -> None:
    """Also one by half: the peer stops sending and goes on reading."""

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STORAGE_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        for _ in range(10):
            await bodies.next(Magic.STORAGE)
        writer.write_eof()
        await until_closed(reader)

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STORAGE_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        for _ in range(10):
            await bodies.next(Magic.STORAGE)

    async def work() -> None:
        for script in (half, whole):
            async with scripted(script) as address:
                client = await connect(address)
                calls = [client.max_transaction_id(3, number) for number in range(10)]
                for number, error in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
                    assert isinstance(error, PeerUnreachableError)
                    assert f"max transaction id of partition {number}" in error.message
                assert client.in_flight == 0
                await client.close()

    run(work(), loop)


def test_an_answer_that_comes_too_late_is_nobody_s_and_the_connection_stays() -> None:
    """The peer said something else meanwhile, so it is there."""
    late: list[storage.StorageMessage] = []

    def make(message: storage.StorageMessage) -> bytes:
        if not late:
            late.append(message)
            return keep_alive(Magic.STORAGE, 0)
        return response(late[0]) + response(message)

    async def work() -> None:
        async with scripted(answers(make)) as address:
            client = await connect(address, SHORT)
            with pytest.raises(DeadlineError, match="no answer in time to max transaction id of partition 5"):
                await client.max_transaction_id(3, 5)
            assert not client.closed
            assert await client.max_transaction_id(3, 6) == 41
            await client.close()

    run(work())


@pytest.mark.parametrize("patience", [None, SHORT / 4], ids=["the deadline", "a shorter one"])
def test_a_connection_from_which_nothing_comes_ends_with_its_deadline(patience: float | None) -> None:
    """Whoever asks again makes a new one; the system would believe in this one for a quarter of an hour."""

    async def work() -> None:
        async with scripted(answers(lambda _: b"")) as address:
            client = await connect(address, SHORT)
            sequence = client._connection.next_sequence()
            frame = storage.encode(storage.MaxTransactionIdRequest(3, sequence, 5, False))
            with pytest.raises(DeadlineError, match="no answer in time to the end"):
                await client._connection.call(
                    sequence, frame, storage.MaxTransactionIdResponse, "the end", timeout=patience
                )
            assert client.closed is (patience is None), "one call's patience says nothing about the connection"
            if client.closed:
                with pytest.raises(DeadlineError, match=f"nothing was heard for {SHORT:g} s"):
                    await client.max_transaction_id(3, 5)
            await client.close()

    run(work())


def test_a_call_that_is_late_in_a_moment_without_memory_fails_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would wake who waits for it."""
    failed = list[bool]()

    def no_memory_once(*given: str, **named: str) -> DeadlineError:
        if not failed:
            failed.append(True)
            raise MemoryError
        return DeadlineError(*given, **named)

    async def work() -> None:
        async with scripted(answers(lambda _: b"")) as address:
            client = await connect(address, SHORT)
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            with monkeypatch.context() as patch:
                patch.setattr(client_connection, "DeadlineError", no_memory_once)
                sequence = client._connection.next_sequence()
                frame = storage.encode(storage.MaxTransactionIdRequest(3, sequence, 5, False))
                with pytest.raises(DeadlineError, match="no answer in time to the end"):
                    async with asyncio.timeout(20 * SHORT):
                        await client._connection.call(
                            sequence, frame, storage.MaxTransactionIdResponse, "the end", timeout=SHORT / 4
                        )
            assert failed
            await client.close()

    run(work())


def test_a_connection_that_is_lost_in_a_moment_without_memory_ends_all_its_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The calls behind the one whose error could not be made waited for ever."""

    async def work() -> None:
        async with scripted(answers(lambda _: b"")) as address:
            client = await connect(address, SHORT)
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            connection = client._connection
            failed = list[str]()
            error_for = connection._error_for

            def no_memory_once(what: str) -> PeerError:
                failed.append(what)
                if len(failed) == 1:
                    raise MemoryError
                return error_for(what)

            monkeypatch.setattr(connection, "_error_for", no_memory_once)
            calls = []
            for what in ("one", "another"):
                sequence = connection.next_sequence()
                frame = storage.encode(storage.MaxTransactionIdRequest(3, sequence, 5, False))
                calls.append(
                    asyncio.ensure_future(
                        connection.call(sequence, frame, storage.MaxTransactionIdResponse, what, timeout=60)
                    )
                )
            await asyncio.sleep(0)
            assert connection._transport is not None
            connection._transport.abort()
            async with asyncio.timeout(20 * SHORT):
                ended = await asyncio.gather(*calls, return_exceptions=True)
            assert failed == ["one", "another"]
            assert all(isinstance(one, PeerUnreachableError) for one in ended)
            await client.close()

    run(work())


def test_a_frame_that_swallows_every_answer_ends_the_connection() -> None:
    """A length that was garbled on the way: what is answered from then on is heard, and is no answer to anybody."""
    garbled = FRAME_HEADER.struct.pack(Magic.STORAGE, 0, MAX_BODY)

    async def work() -> None:
        async with scripted(answers(lambda message: garbled + response(message))) as address:
            client = await connect(address, SHORT)
            for _ in range(3):
                with pytest.raises(DeadlineError, match=r"no answer in time|does not come to its end"):
                    await client.max_transaction_id(3, 5)
            assert client.closed
            await client.close()

    run(work())


def test_a_long_answer_that_comes_fast_enough_is_waited_for() -> None:
    """What was asked behind it has its own deadline, and the connection stays."""
    whole = storage.encode(
        storage.RecordListResponse(3, 0, 0, (WireRecord.make(0, RequestId(1, 2, 0, 0), 0, bytes(200_000)),))
    )

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STORAGE_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        await bodies.next(Magic.STORAGE)
        for begin in range(0, len(whole), 20_000):
            writer.write(whole[begin : begin + 20_000])
            await asyncio.sleep(SHORT / 3)
        await until_closed(reader)

    async def work() -> None:
        async with scripted(script) as address:
            client = await connect(address, SHORT)
            connection = client._connection
            frame = storage.encode(storage.RecordListRequest(3, connection.next_sequence(), 0, 0, 1))
            found = connection.start(0, (frame,), storage.RecordListResponse, "the long one", timeout=30.0)
            with pytest.raises(DeadlineError, match="no answer in time"):
                await client.max_transaction_id(3, 5)
            assert len((await found).records[0].data) == 200_000
            assert not client.closed
            await client.close()

    run(work())


def test_a_peer_that_takes_nothing_stops_the_senders() -> None:
    """Back-pressure: what waits in the transport stays bounded, and the callers meet their deadline."""

    async def work() -> None:
        async with scripted(never_reads) as address:
            client = await connect(address, SHORT)
            transport = client._connection._transport
            assert transport is not None
            record = WireRecord.make(0, RequestId(1, 2, 0, 0), 0, bytes(1 << 20))
            calls = [asyncio.create_task(client.append(3, 0, [record])) for _ in range(64)]
            sizes, full = [0], False
            while not all(call.done() for call in calls):
                sizes.append(transport.get_write_buffer_size())
                full = full or client._connection.full
                await asyncio.sleep(0)
            assert WRITE_BUFFER < max(sizes) < WRITE_BUFFER + 4 * record.size
            assert full
            errors = [call.exception() for call in calls]
            assert all(isinstance(error, DeadlineError) for error in errors)
            waiting = ("the node took nothing", f"nothing was heard for {SHORT:g} s")
            assert sum(any(text in str(error) for text in waiting) for error in errors) > 32
            await client.close()

    run(work())


async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    transport = writer.transport
    assert isinstance(transport, asyncio.ReadTransport)
    transport.pause_reading()
    writer.write(STORAGE_HELLO)
    await asyncio.get_running_loop().create_future()


def test_a_list_longer_than_asked_for_is_refused() -> None:
    record = WireRecord.make(0, RequestId(1, 2, 0, 0), 0, b"x")

    def make(message: storage.StorageMessage) -> bytes:
        return storage.encode(
            storage.RecordListResponse(message.session_id, message.sequence, message.partition, (record,) * 3)
        )

    async def work() -> None:
        async with scripted(answers(make)) as address:
            client = await connect(address)
            assert len(await client.records(3, 0, 0, 3)) == 3
            with pytest.raises(ProtocolError, match="3 records in the answer, 2 were asked for"):
                await client.records(3, 0, 0, 2)
            await client.close()

    run(work())


def test_an_idle_connection_is_kept_alive() -> None:
    seen = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STORAGE_HELLO)
        hello = FRAME_HEADER.struct.unpack(await reader.readexactly(7))
        await reader.readexactly(hello[2])
        for _ in range(3):
            assert FRAME_HEADER.struct.unpack(await reader.readexactly(7)) == (Magic.STORAGE, 0, 0)
        seen.set()
        await until_closed(reader)

    async def work() -> None:
        async with scripted(script) as address:
            client = await StorageClient.connect(address.host, address.port, ssl_context=None, keep_alive_seconds=0.02)
            await seen.wait()
            await client.close()

    run(work())


def test_keep_alives_of_the_peer_mean_nothing() -> None:
    empty = FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 0)

    async def work() -> None:
        async with scripted(answers(lambda message: empty * 3 + response(message) + empty)) as address:
            client = await connect(address)
            assert await client.max_transaction_id(3, 0) == 41
            await client.close()

    run(work())


async def ask_once(address: Address) -> tuple[WireRecord, ...]:
    client = await connect(address)
    try:
        return await client.records(3, 0, 0, 4)
    finally:
        await client.close()


@properties
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_and_the_end_are_a_peer_error(noise: bytes, greeted: bool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((STORAGE_HELLO if greeted else b"") + noise)
        writer.write_eof()
        await until_closed(reader)

    async def work() -> None:
        async with scripted(script) as address:
            with pytest.raises(PeerError):
                await ask_once(address)

    run(work())


@pytest.mark.turns(10)
@properties
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=4))
def test_an_answer_with_flipped_bits_is_an_answer_or_an_error(places: list[int]) -> None:
    records = tuple(WireRecord.make(number, RequestId(1, 2, 0, number), 0, b"data") for number in range(4))

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STORAGE_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        asked = storage.decode(await bodies.next(Magic.STORAGE))
        answer = storage.RecordListResponse(asked.session_id, asked.sequence, asked.partition, records)
        whole = bytearray(storage.encode(answer))
        for place in places:
            whole[place // 8 % len(whole)] ^= 1 << (place % 8)
        writer.write(whole)
        writer.write_eof()
        await until_closed(reader)

    async def work() -> None:
        async with scripted(script) as address:
            with contextlib.suppress(PeerError):
                found = await ask_once(address)
                assert len(found) <= 4

    run(work())


# --- the admin port -----------------------------------------------------------------------------------------------------


def admin_answers(make: Callable[[admin.AdminMessage], bytes], hello: bytes = ADMIN_HELLO) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        while True:
            writer.write(make(admin.decode(await bodies.next(Magic.ADMIN))))

    return script


async def connect_admin(address: Address) -> AdminClient:
    return await AdminClient.connect(address.host, address.port, ssl_context=None)


@pytest.mark.parametrize(
    ("make", "ask", "why"),
    [
        (lambda n: admin.RecordListResponse(n, 4, ()), lambda c: c.records(3, 0, 1), "partition 4, asked about 3"),
        (lambda n: admin.MetricsResponse(n, "{}"), lambda c: c.session_info(3), "MetricsResponse is no answer"),
        (lambda n: admin.SuccessResponse(n + 1), lambda c: c.assign([1]), "nobody waits for"),
        (lambda n: admin.RecordListResponse(n, 3, (WireRecord.make(0, RequestId(0, 0, 0, 0), 0, b""),) * 2),
         lambda c: c.records(3, 0, 1), "2 records in the answer, 1 were asked for"),
    ],
    ids=["partition", "type", "sequence", "count"],
)  # fmt: skip
def test_a_wrong_answer_of_the_admin_port_is_refused(
    make: Callable[[int], admin.AdminMessage], ask: Callable[[AdminClient], Awaitable[object]], why: str
) -> None:
    async def work() -> None:
        async with scripted(admin_answers(lambda message: admin.encode(make(message.sequence)))) as address:
            client = await connect_admin(address)
            with pytest.raises(ProtocolError, match=why):
                await ask(client)
            await client.close()

    run(work())


def test_a_node_with_one_switch_is_asked_for_both_at_once_and_refused_for_one() -> None:
    asked: list[admin.AdminMessage] = []

    def make(message: admin.AdminMessage) -> bytes:
        asked.append(message)
        return admin.encode(admin.SuccessResponse(message.sequence))

    async def work() -> None:
        async with scripted(admin_answers(make)) as address:
            client = await connect_admin(address)
            assert not client.has_two_switches
            await client.set_available([1, 2], False)
            for switch in (client.set_readable, client.set_writable):
                with pytest.raises(RefusedError, match="one switch"):
                    await switch(1, True)
            await client.close()
        assert asked == [admin.PartitionAvailableRequest(0, (1, 2), False)]

    run(work())


def test_a_released_node_that_closes_over_a_wrong_partition_is_explained() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ADMIN_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        await bodies.next(Magic.ADMIN)

    async def work() -> None:
        async with scripted(script) as address:
            client = await connect_admin(address)
            with pytest.raises(PeerUnreachableError, match="assigning partitions") as caught:
                await client.assign([77])
            assert caught.value.advice is not None
            assert "partition number" in caught.value.advice
            await client.close()

    run(work())
