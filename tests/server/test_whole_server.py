"""A whole server over an embedded store: what it shows to nodes and servers, and what it tells while it starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.net.certificates import Authority
from tests.node.running import Answer, http, run
from tests.server.storing import until
from waltzctl.engine.errors import PeerError, WaltzError
from waltzctl.engine.metadata.cluster_changes import add_node, assign
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.membership import Membership
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.http_port import HttpPort
from waltzctl.engine.net.settings import Reloaded
from waltzctl.engine.net.single_flight import OverdueError
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.server import server as rooms
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.server import Server
from waltzctl.engine.server.server_settings import ServerOptions, SessionOptions

GET = "GET {} HTTP/1.1\r\nHost: server\r\n{}\r\n"
LOG = logging.getLogger("waltzctl.test")


@contextlib.asynccontextmanager
async def metadata(path: Path, *nodes: str) -> AsyncIterator[Path]:
    """Of a cluster with one partition, assigned to these storage nodes."""
    place = path / "metadata"
    store = await EmbeddedStore.open(place, create=True)
    try:
        await create_cluster(store, name="demo", num_partitions=1, cluster_key=uuid.uuid4())
        for group, node in enumerate(nodes):
            await add_node(store, node, admin_port=1, group=group)
            await assign(store, node, [0])
        yield place
    finally:
        await store.close()


def test_new_certificates_are_shown_to_storage_nodes_and_other_servers(tmp_path: Path) -> None:
    """To whom it connects behind the reload; a store that cannot be read leaves those that are in force."""
    authority, own = Authority(), tmp_path / "own.pem"
    trusted = authority.write(tmp_path, "PEM")
    seen: list[str] = []

    def issue(name: str) -> None:
        issued = authority.issue(name, "127.0.0.1")
        own.write_bytes(issued.key_pem() + issued.certificate_pem())

    async def looks_and_hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        seen.append(x509.load_der_x509_certificate(shown).subject.rfc4514_string())
        writer.close()

    async def work() -> None:
        issue("a node")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own)
        context.load_verify_locations(trusted)
        context.verify_mode = ssl.CERT_REQUIRED
        listener = await asyncio.start_server(looks_and_hangs_up, "127.0.0.1", 0, ssl=context)
        port = listener.sockets[0].getsockname()[1]
        async with listener, metadata(tmp_path, f"127.0.0.1:{port}") as place:
            issue("before")
            options = ServerOptions(
                metadata=str(place),
                port=0,
                tls=TlsOptions(key_store=own, key_store_type="PEM", trust_store=trusted, trust_store_type="PEM"),
                session=SessionOptions(first_retry=0.01, longest_retry=0.02),
            )
            server = await Server.start(options, log=LOG)
            await until(lambda: seen)
            issue("behind")
            assert await server.reload(options) == Reloaded((), ())
            await until(lambda: "CN=behind" in seen)
            assert {*seen[: seen.index("CN=behind")]} == {"CN=before"}
            seen.clear()
            with contextlib.suppress(PeerError):
                await server._connect_server(Address("127.0.0.1", port))
            assert {*seen} == {"CN=behind"}
            own.write_text("no certificate")
            with pytest.raises(WaltzError):
                await server.reload(options)
            seen.clear()
            await until(lambda: seen)
            assert {*seen} == {"CN=behind"}
            await server.stop(0)

    run(work())


def test_a_reload_whose_certificate_is_never_read_to_its_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep the process from every later one."""
    answered = threading.Event()

    async def work() -> None:
        async with metadata(tmp_path) as place:
            options = ServerOptions(metadata=str(place), port=0, plaintext=True)
            server = await Server.start(options, log=LOG)
            with monkeypatch.context() as patch:
                patch.setattr(rooms, "RELOAD_SECONDS", 0.1)
                patch.setattr(rooms, "_contexts", lambda _options: (answered.wait(60), None))
                try:
                    with pytest.raises(OverdueError, match="reading the certificates has not come back"):
                        await asyncio.wait_for(server.reload(options), 10)
                finally:
                    answered.set()
            assert await server.reload(options) == Reloaded((), ())
            await server.stop(0)

    run(work())


def test_a_server_that_waits_for_the_metadata_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it starts as well as later, without a line in the log for each who asks."""
    register, start, go_on = Membership.register, HttpPort.start, asyncio.Event()
    where: list[tuple[str, int]] = []

    async def registered(self: Membership, *arguments: Any) -> int:
        await go_on.wait()
        return await register(self, *arguments)

    async def started(self: HttpPort[Any, Any], *arguments: Any) -> tuple[str, int]:
        where.append(await start(self, *arguments))
        return where[0]

    monkeypatch.setattr(Membership, "register", registered)
    monkeypatch.setattr(HttpPort, "start", started)

    async def look(path: str, header: str = "") -> Answer:
        return await http(*where[0], GET.format(path, header).encode())

    async def work() -> None:
        async with metadata(tmp_path) as place:
            options = ServerOptions(metadata=str(place), port=0, plaintext=True, http_port=0)
            starting = asyncio.ensure_future(Server.start(options, log=LOG))
            await until(lambda: where)
            health = await look("/health")
            assert health.status == 500
            assert health.json["server-health-check"]["problems"] == [
                "the server is starting: it waits for the metadata, to be among the servers of its cluster"
            ]
            metrics = await look("/metrics")
            assert (metrics.status, metrics.json["gauges"]["waltz-server.server-id"]) == (200, {"value": -1})
            text = await look("/metrics", "Accept: text/plain\r\n")
            assert b"waltz_server_healthy 0.0" in text.body
            go_on.set()
            server = await starting
            await until(lambda: server.read().partitions)  # the assignment is made a moment later
            health, metrics = await look("/health"), await look("/metrics")
            assert health.json["server-health-check"]["zookeeper"] is True
            gauges = metrics.json["gauges"]
            assert gauges["waltz-server.server-id"] == {"value": server.ready_info.server_id}
            await server.stop(0)

    run(work())


def test_a_server_without_partitions_tells_of_all_storage_nodes(tmp_path: Path) -> None:
    """`check-connectivity` and `list` of the release go by that; it may be given any partition at any moment."""
    nodes = ("127.0.0.1:1", "127.0.0.1:2")

    async def work() -> None:
        async with metadata(tmp_path, *nodes) as place:
            options = ServerOptions(metadata=str(place), port=0, plaintext=True, http_port=0)
            owner = await Server.start(options, log=LOG)
            await until(lambda: owner.read().partitions)
            other = await Server.start(options, log=LOG)
            for server in (owner, other):
                await until(lambda asked=server: asked.read().replicas)
                where = server.addresses
                assert where.http_port is not None
                shown = await http(where.host, where.http_port, GET.format("/metrics", "").encode())
                assert shown.json["gauges"]["waltz-server.replica-info"] == {"value": {"0": [*nodes]}}
                assert await server.log_server.check_connectivity() == tuple((one, False) for one in nodes)
            assert not other.read().partitions
            await other.stop(0)
            await owner.stop(0)

    run(work())


@pytest.mark.parametrize("at", [1, 2])
def test_what_a_server_is_given_in_a_moment_without_memory_is_served_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """It stood among the servers and was well, and never opened the partition: nobody tells the same assignment twice."""
    begun, start = list[int](), Partition.start

    def started(partition: Partition) -> None:
        begun.append(partition.number)
        if len(begun) == at:
            raise MemoryError
        start(partition)

    async def work() -> None:
        monkeypatch.setattr(Partition, "start", started)
        monkeypatch.setattr(rooms, "_PAUSE", 0.01)
        async with metadata(tmp_path) as place:
            server = await Server.start(ServerOptions(metadata=str(place), port=0, plaintext=True), log=LOG)
            await until(lambda: begun)
            if at == 2:
                await until(lambda: server.log_server.partitions)
                await server.log_server.assign({})
                server._assigned({0: 1})
            await until(lambda: len(begun) == at + 1 and [*server.log_server.partitions] == [0])
            assert all(one._tasks for one in server.log_server.partitions.values()), "it works"
            await server.stop(0)

    run(work())
