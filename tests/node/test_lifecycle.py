"""From the first step of a node's start to the last of its stop, with real directories and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.builders import KEY, build_directory
from tests.node.running import LOG, LOOPS, Held, Peer, append, connected, get, node_options, record, run, running
from waltzctl.engine.durable.directory_lock import lock_holder
from waltzctl.engine.errors import (
    DirectoryLockedError,
    InvalidRequestError,
    ListenError,
    MismatchError,
    NotWaltzError,
    PeerUnreachableError,
    WaltzError,
)
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.settings import Reloaded
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight
from waltzctl.engine.net.tls import self_signed
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.node import node as node_room
from waltzctl.engine.node.node import Node
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.storage import (
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    OpenRequest,
    RecordRequest,
    SetLowWaterMarkRequest,
    SuccessResponse,
)


def trusting() -> ssl.SSLContext:
    """A client that takes any certificate, as a released one does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_what_the_start_mends_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_directory(tmp_path / "s", {0: 5, 1: 5})
    with (tmp_path / "s" / "1" / "0000000000000000000.seg").open("ab") as file:
        file.write(b"half a record")

    async def start() -> None:
        async with running(tmp_path / "s"):
            pass

    with caplog.at_level("WARNING", logger=LOG.name):
        run(start())
    mended, kept = (entry.getMessage() for entry in caplog.records)
    assert mended.startswith("mended: torn-tail: ")
    assert "taken away from partition 1 is kept in " in kept


# --- serving ----------------------------------------------------------------------------------------------------------


@LOOPS
@pytest.mark.parametrize("plaintext", [True, False])
def test_a_raw_client_opens_appends_and_reads_back(tmp_path: Path, loop: str, plaintext: bool) -> None:
    """The thin slice: every layer of the node, on both event loops, with and without TLS."""
    build_directory(tmp_path, {0: 0, 1: 0})

    async def work() -> None:
        async with running(tmp_path, plaintext=plaintext) as node:
            context = None if plaintext else trusting()
            peer = await Peer.data(node, context)
            assert await peer.request(OpenRequest(KEY, 2)) == SuccessResponse(-1, -1, -1)
            assert isinstance(await peer.request(OpenRequest(KEY, 3)), FailureResponse)
            info = await peer.request(LastSessionInfoRequest(100, 1, 0))
            assert isinstance(info, LastSessionInfoResponse)
            assert await peer.request(append(0, session_id=100)) == SuccessResponse(100, 0, 0)
            answer = await peer.request(RecordRequest(100, 9, 0, 0))
            assert answer.record == record(0)
            administrator = await Peer.admin(node, context)
            status = await administrator.ask(admin.encode(admin.AssignedPartitionStatusRequest(3)))
            assert status.statuses == ((0, True), (1, True))
            await peer.close()
            await administrator.close()

    run(work(), loop)
    with StorageDirectory.open(tmp_path) as directory:
        assert directory.partition(0).read(0) is not None


def test_free_ports_are_taken_and_told(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 3, 1: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            where, info = node.addresses, node.ready_info
            assert where.host == "127.0.0.1"
            assert where.http_port is not None
            assert len({where.port, where.admin_port, where.http_port}) == 3
            assert 0 not in (where.port, where.admin_port, where.http_port)
            assert (info.directory, info.cluster_key, info.num_partitions) == (tmp_path, KEY, 2)
            assert (info.assigned, info.quarantined, info.tls) == ((0, 1), (), False)
            assert info.addresses == where

    run(work())


def test_http_can_be_off(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path, http_port=None) as node:
            assert node.addresses.http_port is None
            assert (await node.check()).healthy
            assert [name for name, _ in node.connections()] == ["data", "admin"]

    run(work())


def test_the_admin_port_tells_the_metrics_of_what_was_done(tmp_path: Path) -> None:
    """The registry through the wire: what the released list tool asks for."""
    build_directory(tmp_path, {0: 0, 1: 5})

    async def work() -> None:
        async with running(tmp_path) as node:
            peer = await Peer.data(node)
            assert isinstance(await peer.request(SetLowWaterMarkRequest(100, 1, 0, -1)), SuccessResponse)
            for number in range(4):
                assert isinstance(await peer.request(append(number, session_id=100)), SuccessResponse)
            assert (await peer.request(RecordRequest(100, 9, 0, 3))).record == record(3)
            administrator = await Peer.admin(node)
            answer = await administrator.ask(admin.encode(admin.MetricsRequest(8)))
            found = json.loads(answer.json)
            prefix = "waltz-storage.partition-0."
            assert found["gauges"]["waltz-storage.waltz-storage-partition-ids"]["value"] == [0, 1]
            assert found["gauges"][f"{prefix}session-id"]["value"] == 100
            assert found["gauges"][f"{prefix}max-transaction-id"]["value"] == 3
            assert found["gauges"][f"{prefix}flags"]["value"] == 5
            assert found["gauges"]["waltz-storage.partition-1.max-transaction-id"]["value"] == 4
            assert found["counters"][f"{prefix}set-low-water-mark-request"]["count"] == 1
            assert found["counters"][f"{prefix}record-request"]["count"] == 1
            assert found["meters"][f"{prefix}append"]["count"] == 4
            assert found["timers"][f"{prefix}append-latency"]["count"] == 4
            gone = await administrator.ask(admin.encode(admin.PartitionAssignmentRequest(9, (0,), False, False)))
            assert isinstance(gone, admin.SuccessResponse)
            answer = await administrator.ask(admin.encode(admin.MetricsRequest(10)))
            found = json.loads(answer.json)
            assert found["gauges"]["waltz-storage.waltz-storage-partition-ids"]["value"] == [1]
            assert not any("partition-0." in name for name in found["metrics"])
            await peer.close()
            await administrator.close()

    run(work())


# --- a start that fails -----------------------------------------------------------------------------------------------


def nothing_is_left(path: Path, before: Held) -> None:
    """No thread, no socket, no file of the directory; and the lock is free."""
    after = Held.now()
    left = [thread.name for thread in after.threads - before.threads]
    assert [name for name in left if not name.startswith("asyncio_")] == [], "but for the event loop's own"
    assert after.sockets_and_files(path) <= before.sockets_and_files(path)
    StorageDirectory.open(path).close()


@LOOPS
@pytest.mark.parametrize("taken", ["port", "admin_port", "http_port"])
def test_a_port_that_is_taken_ends_the_start(tmp_path: Path, loop: str, taken: str) -> None:
    """The release runs on without it (S6).  Whatever was open before the port failed is closed again."""
    build_directory(tmp_path, {0: 3})

    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            number = other.getsockname()[1]
            before = Held.now()
            with pytest.raises(ListenError) as caught:
                await Node.start(node_options(tmp_path, **{taken: number}), log=LOG)
            assert str(number) in str(caught.value)
            nothing_is_left(tmp_path, before)

    run(work(), loop)


def test_an_address_of_another_machine_ends_the_start(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 3})

    async def work() -> None:
        before = Held.now()
        with pytest.raises(ListenError, match=r"192\.0\.2\.1"):
            await Node.start(node_options(tmp_path, host="192.0.2.1", insecure=True), log=LOG)
        nothing_is_left(tmp_path, before)

    run(work())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"directory": Path("/nonexistent/storage")}, NotWaltzError),
        ({"plaintext": False, "tls": TlsOptions(certificate=Path("/nonexistent/cert.pem"))}, WaltzError),
        ({"zookeeper": ZooKeeperOptions("127.0.0.1:1", "/w", connect_timeout=0.2)}, PeerUnreachableError),
        ({"port": 70000}, InvalidRequestError),
    ],
)
def test_what_is_missing_ends_the_start(tmp_path: Path, options: dict[str, Any], error: type[WaltzError]) -> None:
    build_directory(tmp_path, {0: 3})

    async def work() -> None:
        before = Held.now()
        with pytest.raises(error):
            await Node.start(node_options(**{"path": tmp_path, **options}), log=LOG)
        nothing_is_left(tmp_path, before)

    run(work())


@pytest.mark.parametrize(("key", "partitions", "fits"), [(KEY, 2, True), (KEY, 3, False), (UUID(int=5), 2, False)])
def test_a_directory_that_does_not_fit_the_cluster_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: UUID, partitions: int, fits: bool
) -> None:
    """As the cluster's metadata tells key and number of partitions."""
    build_directory(tmp_path, {0: 3, 1: 3})
    monkeypatch.setattr(node_room, "_expected_cluster", lambda _options: (key, partitions))

    async def work() -> None:
        before = Held.now()
        if fits:
            async with running(tmp_path) as node:
                assert node.ready_info.num_partitions == 2
        else:
            with pytest.raises(MismatchError):
                await Node.start(node_options(tmp_path), log=LOG)
        nothing_is_left(tmp_path, before)

    run(work())


def test_a_directory_that_another_node_holds_ends_the_start_and_stays_with_it(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 3})

    async def work() -> None:
        async with running(tmp_path) as node:
            with pytest.raises(DirectoryLockedError):
                await Node.start(node_options(tmp_path), log=LOG)
            assert (await get(node, "/ping")).body == b"pong\n"

    run(work())


class PemPipe:
    """A certificate that comes through a pipe: who reads it stays away until the other end is opened as well."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "certificate.pem"
        os.mkfifo(self.path)
        self.options = TlsOptions(certificate=self.path, key_password="secret")

    async def reached(self) -> int:
        """Returns when the start has come to it, with a descriptor to let it go on with."""
        return await SingleFlight(lambda: os.open(self.path, os.O_WRONLY), name="other end").result(None)

    def let_go(self, other_end: int) -> None:
        with os.fdopen(other_end, "wb") as pipe:
            pipe.write(self_signed().to_pem("secret"))


@LOOPS
def test_a_start_does_not_block_the_event_loop(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, loop: str
) -> None:
    """While the start hangs in a system call the loop goes on: otherwise nobody here could open the pipe's other end."""
    build_directory(tmp_path, {0: 3})
    pipe = PemPipe(tmp_path_factory.mktemp("keys"))

    async def work() -> None:
        options = node_options(tmp_path, plaintext=False, tls=pipe.options)
        starting = asyncio.create_task(Node.start(options, log=LOG))
        other_end = await pipe.reached()
        assert not starting.done()
        pipe.let_go(other_end)
        node = await starting
        peer = await Peer.data(node, trusting())
        await peer.close()
        await node.stop()

    run(work(), loop)


@LOOPS
def test_a_start_that_is_cancelled_leaves_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, loop: str
) -> None:
    """The thread that opens the directory cannot be stopped: it is waited for, and what it opened is closed."""
    build_directory(tmp_path, {0: 3})
    pipe = PemPipe(tmp_path_factory.mktemp("keys"))

    async def work() -> None:
        before = Held.now()
        options = node_options(tmp_path, plaintext=False, tls=pipe.options)
        starting = asyncio.create_task(Node.start(options, log=LOG))
        other_end = await pipe.reached()
        starting.cancel()
        pipe.let_go(other_end)
        with pytest.raises(asyncio.CancelledError):
            await starting
        nothing_is_left(tmp_path, before)

    run(work(), loop)


# --- the stop ---------------------------------------------------------------------------------------------------------


@LOOPS
def test_a_stop_leaves_nothing_and_can_be_asked_for_twice(tmp_path: Path, loop: str) -> None:
    build_directory(tmp_path, {0: 3, 1: 2})

    async def work() -> None:
        before = Held.now()
        node = await Node.start(node_options(tmp_path, plaintext=False), log=LOG)
        peer = await Peer.data(node, trusting())
        assert isinstance(await peer.request(append(3)), SuccessResponse)
        assert (await get(node, "/metrics")).status == 200
        assert (await get(node, "/health")).status == 200
        waiting = asyncio.create_task(node.wait_closed())
        await asyncio.gather(node.stop(30), node.stop(30), waiting)
        await node.stop()
        assert await peer.receive() is None
        await peer.close()
        nothing_is_left(tmp_path, before)

    run(work(), loop)


@pytest.mark.turns(8)
@LOOPS
@pytest.mark.parametrize("plaintext", [True, False])
def test_a_stop_under_load_answers_everything_that_it_read(tmp_path: Path, loop: str, plaintext: bool) -> None:
    """Peers have sent much and wait; then the node stops.  Each gets answers without a gap, then the end; and what is on the disk
    is exactly what was answered."""
    build_directory(tmp_path, dict.fromkeys(range(4), 0))
    answered: dict[int, int] = {}

    async def push(node: Node, partition: int, sent: asyncio.Event) -> None:
        peer = await Peer.data(node, None if plaintext else trusting())
        for number in range(1500):
            peer.writer.write(storage.encode(append(number, partition=partition)))
        sent.set()
        expected = 0
        with contextlib.suppress(ConnectionResetError):  # what it did not read any more it throws away
            while (answer := await peer.receive()) is not None:
                assert answer == SuccessResponse(7, expected, partition)
                expected += 1
        answered[partition] = expected
        await peer.close()

    async def work() -> None:
        node = await Node.start(node_options(tmp_path, plaintext=plaintext), log=LOG)
        sent = [asyncio.Event() for _ in range(4)]
        pushing = [asyncio.create_task(push(node, partition, sent[partition])) for partition in range(4)]
        for event in sent:
            await event.wait()
        await node.stop(60)
        await asyncio.gather(*pushing)

    run(work(), loop)
    with StorageDirectory.open(tmp_path) as directory:
        on_disk = {partition: directory.partition(partition).next_transaction_id for partition in range(4)}
    assert answered == on_disk


@LOOPS
@pytest.mark.parametrize("plaintext", [True, False])
def test_a_stop_loses_no_answer_that_is_on_its_way(tmp_path: Path, loop: str, plaintext: bool) -> None:
    """A slow reader that also sent something which nobody reads any more: closing its socket at once would reset the connection,
    and the system would throw away the answers that it has not sent yet."""
    build_directory(tmp_path, {0: 200}, per_segment=1000)
    requests = 40

    async def work() -> None:
        node = await Node.start(node_options(tmp_path, plaintext=plaintext), log=LOG)
        peer = await Peer.data(node, None if plaintext else trusting(), receive_buffer=4096)
        assert isinstance(await peer.request(LastSessionInfoRequest(100, 1, 0)), LastSessionInfoResponse)
        for number in range(requests):
            peer.writer.write(storage.encode(storage.RecordListRequest(100, number, 0, 0, 200)))
        while node.metrics.partition(0).record_list_request.count < requests:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(node.stop(60))
        while not node.data.draining:
            await asyncio.sleep(0)
        peer.writer.write(storage.encode(append(200)))
        for number in range(requests):
            answer = await peer.receive()
            assert (answer.sequence, len(answer.records)) == (number, 200)
        with contextlib.suppress(ConnectionResetError):
            assert await peer.receive() is None
        await peer.close()
        await stopping

    run(work(), loop)


def test_a_stop_does_not_wait_for_ever_for_a_peer_that_takes_nothing(tmp_path: Path) -> None:
    """The peer asks for much and reads nothing: after the time to drain its connection is cut."""
    build_directory(tmp_path, {0: 200}, per_segment=1000)

    async def work() -> None:
        before = Held.now()
        node = await Node.start(node_options(tmp_path), log=LOG)
        peer = await Peer.data(node)
        assert isinstance(await peer.request(LastSessionInfoRequest(100, 1, 0)), LastSessionInfoResponse)
        for number in range(400):
            peer.writer.write(storage.encode(storage.RecordListRequest(100, number, 0, 0, 200)))
        await node.stop(0.2)
        peer.writer.transport.abort()
        await peer.close()
        nothing_is_left(tmp_path, before)

    run(work())


def test_the_lock_goes_last(tmp_path: Path) -> None:
    """As long as a port listens or a partition is open nobody else gets the directory: seen from a second process' view."""
    build_directory(tmp_path, {0: 3})
    seen: list[tuple[bool, bool]] = []

    async def work() -> None:
        node = await Node.start(node_options(tmp_path), log=LOG)
        closing = node.storage.close

        def look_and_close() -> None:
            held = lock_holder(tmp_path, tmp_path / CONTROL_FILE_NAME) is not None
            seen.append((held, any(node._listening().values())))
            closing()

        node.storage.close = look_and_close  # type: ignore[method-assign]  # only to look when it is called
        await node.stop(5)
        assert lock_holder(tmp_path, tmp_path / CONTROL_FILE_NAME) is None

    run(work())
    assert seen == [(True, False)]


def test_health_turns_bad_before_the_node_stops_answering(tmp_path: Path) -> None:
    """A load balancer that looks while the node drains must go elsewhere."""
    build_directory(tmp_path, {0: 3})

    async def work() -> None:
        async with running(tmp_path) as node:
            node.health.begin_draining()
            answer = await get(node, "/health")
            assert answer.status == 500
            assert "the node is stopping" in answer.health["problems"]

    run(work())


# --- reload -----------------------------------------------------------------------------------------------------------


def certificate_of(peer: Peer) -> bytes:
    """What the node showed."""
    shown = peer.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(shown, bytes)
    return shown


def test_a_reload_whose_certificate_is_never_read_to_its_end_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_directory(tmp_path, {0: 0})
    begun, answered = threading.Event(), threading.Event()

    def hanging(_options: object) -> None:
        begun.set()
        answered.wait(60)

    async def work() -> None:
        async with running(tmp_path) as node:
            monkeypatch.setattr(node_room, "_server_context", hanging)
            reload = asyncio.ensure_future(node.reload(node.options))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            reload.cancel()
            done, _ = await asyncio.wait([reload], timeout=10)
            answered.set()
            assert done == {reload}

    run(work())


def test_a_reload_whose_certificate_is_never_read_to_its_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep the process from every later one."""
    build_directory(tmp_path, {0: 0})
    answered = threading.Event()

    async def work() -> None:
        async with running(tmp_path) as node:
            with monkeypatch.context() as patch:
                patch.setattr(node_room, "RELOAD_SECONDS", 0.1)
                patch.setattr(node_room, "_server_context", lambda _options: answered.wait(60))
                try:
                    with pytest.raises(OverdueError, match="reading the certificates has not come back"):
                        await asyncio.wait_for(node.reload(replace(node.options, drain_seconds=9.0)), 10)
                finally:
                    answered.set()
            assert node.options.drain_seconds != 9.0
            assert (await node.reload(replace(node.options, drain_seconds=8.0))).changed == ("drain_seconds",)

    run(work())


@LOOPS
def test_a_reload_shows_new_certificates_to_new_peers(tmp_path: Path, loop: str) -> None:
    """Read again although the path is the same: that is how certificates are renewed.  Who is connected stays connected."""
    build_directory(tmp_path, {0: 0})
    pem = tmp_path.parent / f"{tmp_path.name}.pem"
    pem.write_bytes(self_signed().to_pem("secret"))
    tls = TlsOptions(certificate=pem, key_password="secret")

    async def work() -> None:
        async with running(tmp_path, plaintext=False, tls=tls) as node:
            old = await Peer.data(node, trusting())
            pem.write_bytes(self_signed().to_pem("secret"))
            assert await node.reload(node.options) == Reloaded((), ())
            new, administrator = await Peer.data(node, trusting()), await Peer.admin(node, trusting())
            assert certificate_of(new) == certificate_of(administrator) != certificate_of(old)
            for number, peer in enumerate((old, new)):
                assert isinstance(await peer.request(append(number)), SuccessResponse)
            pem.write_bytes(b"no certificate")
            with pytest.raises(WaltzError):
                await node.reload(node.options)
            third = await Peer.data(node, trusting())
            assert certificate_of(third) == certificate_of(new), "a reload that fails changes nothing"
            for peer in (old, new, third, administrator):
                await peer.close()

    run(work(), loop)


def test_a_reload_says_what_needs_a_restart(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            limits = PortLimits(max_connections=1)
            wanted = replace(node.options, limits=limits, host="127.0.0.2", drain_seconds=1.0)
            assert await node.reload(wanted) == Reloaded(("drain_seconds", "limits"), ("host",))
            first = await Peer.data(node)
            async with connected(node.addresses.host, node.addresses.port) as (reader, _):
                assert await reader.read() == b"", "the second connection is one too many now"
            await first.close()

    run(work())
