"""The HTTP port: paths, bodies and headers of the release; and what a peer may not do to it."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.builders import build_directory
from tests.node.running import (
    LOOPS,
    Answer,
    Peer,
    StuckDisk,
    append,
    connected,
    get,
    http,
    read_to_the_end,
    run,
    running,
)
from waltzctl.engine.net.monitoring_options import HttpLimits
from waltzctl.engine.net.single_flight import SingleFlight
from waltzctl.engine.node.node import Node
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.wire.storage import SuccessResponse


def http_peer(node: Node) -> AbstractAsyncContextManager[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    assert node.addresses.http_port is not None
    return connected(node.addresses.host, node.addresses.http_port)


PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"


@LOOPS
def test_the_paths_of_the_release(tmp_path: Path, loop: str) -> None:
    """Status, type of content, body, and that nobody may keep it."""
    build_directory(tmp_path, {0: 3, 1: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            ping = await get(node, "/ping")
            assert (ping.status, ping.body) == (200, b"pong\n")
            assert ping.headers["Content-Type"].startswith("text/plain")
            info = await get(node, "/buildinfo")
            assert (info.status, info.json) == (200, {"version": "1.2.3", "service_name": "waltzctl"})
            health = await get(node, "/health")
            assert health.status == 200
            assert list(health.json) == ["storage-health-check"]
            assert health.json["storage-health-check"]["healthy"] is True
            assert health.health["storage"] == "true", "a text, as in the release"
            metrics = await get(node, "/metrics")
            assert metrics.status == 200
            assert metrics.json["gauges"]["waltz-storage.partition-0.max-transaction-id"] == {"value": 2}
            for answer in (info, health, metrics):
                assert answer.headers["Content-Type"] == "application/json"
            for answer in (ping, info, health, metrics):
                assert answer.headers["Cache-Control"] == "must-revalidate,no-cache,no-store"

    run(work(), loop)


def test_pretty_is_indented_as_in_the_release(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            for path, begin in (
                ("/metrics?pretty=true", b'{\n  "version" : "4.0.0",\n  "gauges" : {\n'),
                ("/health?pretty=TRUE", b'{\n  "storage-health-check" : {\n    "healthy" : true,\n'),
            ):
                pretty = await get(node, path)
                assert pretty.body.startswith(begin)
                assert len((await get(node, path.replace("pretty", "ugly"))).body.splitlines()) == 1
                assert pretty.json

    run(work())


def test_text_for_prometheus_json_for_everybody_else(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 3, 1: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            peer = await Peer.data(node)
            assert isinstance(await peer.request(append(3)), SuccessResponse)
            for accept, parse in (("text/plain", parse_text), (PROMETHEUS, parse_openmetrics)):
                answer = await get(node, "/metrics", Accept=accept)
                assert answer.headers["Vary"] == "Accept"
                samples = {
                    (one.name, one.labels.get("partition", "")): one.value
                    for family in parse(answer.body.decode())
                    for one in family.samples
                }
                assert samples["waltz_storage_healthy", ""] == 1
                assert samples["waltz_storage_max_transaction_id", "0"] == 3
                assert samples["waltz_storage_append_latency_seconds_count", "0"] == 1
                assert samples["waltz_storage_disk_free_bytes", ""] > 0
            for accept in ("text/plain; version=a", "application/openmetrics-text; version=1.x", "text/plain;version"):
                answer = await get(node, "/metrics", Accept=accept)
                assert (answer.status, answer.headers["Content-Type"][:25]) == (200, "text/plain; version=0.0.4"), (
                    accept
                )
                assert b"waltz_storage_healthy" in answer.body
            answer = await get(node, "/metrics", Accept="*/*")
            assert (answer.json["version"], answer.headers["Vary"]) == ("4.0.0", "Accept")
            await peer.close()

    run(work())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/ping/..", 404),
        ("GET", "/%2e%2e/etc/passwd", 404),
        ("GET", "/nothing?x=" + "y" * 4000, 404),
        ("POST", "/ping", 405),
        ("DELETE", "/metrics", 405),
        ("HEAD", "/ping", 200),
    ],
)
def test_other_requests(tmp_path: Path, method: str, path: str, status: int) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            answer = await get(node, path, method=method)
            assert answer.status == status
            assert answer.headers["Cache-Control"] == "must-revalidate,no-cache,no-store"

    run(work())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /ping HTTP/1.1\r\nHost: n\r\nContent-Length: 1000000000\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"GET /ping HTTP/9.9\r\nHost: n\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: n\r\n\r\n",
    ],
    ids=["long-body", "chunked-body", "no-http", "tls", "version", "bad-url"],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(tmp_path: Path, request_bytes: bytes) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node:
            port = node.addresses.http_port
            assert port is not None
            answer = await http("127.0.0.1", port, request_bytes)
            assert 400 <= answer.status < 500
            assert (await get(node, "/ping")).status == 200

    run(work())


@LOOPS
@pytest.mark.parametrize(
    "endless",
    [b"GET /" + b"x" * 65536, b"GET /ping HTTP/1.1\r\n" + b"A: b\r\n" * 20000, b"\r\n" * 50000],
    ids=["line", "headers", "blank-lines"],
)
def test_a_request_without_end_is_cut_off(tmp_path: Path, loop: str, endless: bytes) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path, http=HttpLimits(max_request_bytes=8192)) as node:
            async with http_peer(node) as (reader, writer):
                writer.write(endless)
                assert not (await read_to_the_end(reader)).startswith(b"HTTP/1.1 200")
            assert (await get(node, "/ping")).status == 200

    run(work(), loop)


@pytest.mark.turns(10)
@LOOPS
def test_a_slow_peer_is_cut_off(tmp_path: Path, loop: str) -> None:
    """One that never finishes its request, and one that says nothing at all: the node ends both, others are served."""
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path, http=HttpLimits(connection_seconds=0.5)) as node:
            async with http_peer(node) as (first, writer), http_peer(node) as (second, _):
                writer.write(b"GET /ping HTTP/1.1\r\nHost:")
                assert (await get(node, "/ping")).status == 200
                assert await read_to_the_end(first) == await read_to_the_end(second) == b""
            assert dict(node.connections())["http"] == 0

    run(work(), loop)


@LOOPS
def test_the_number_of_connections_is_bounded(tmp_path: Path, loop: str) -> None:
    """The newest is refused; when an old one goes there is room again."""
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path, http=HttpLimits(max_connections=3)) as node, http_peer(node), http_peer(node):
            async with http_peer(node) as (reader, writer):
                async with http_peer(node) as (one_too_many, _):
                    assert await read_to_the_end(one_too_many) == b""
                writer.write(b"GET /ping HTTP/1.1\r\nHost: n\r\n\r\n")
                assert (await reader.read()).endswith(b"pong\n")
            assert (await get(node, "/ping")).status == 200

    run(work(), loop)


def test_only_one_request_a_connection(tmp_path: Path) -> None:
    """What a peer sends after its request is not looked at: so bounds of a connection are bounds of a request."""
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node, http_peer(node) as (reader, writer):
            writer.write(b"GET /ping HTTP/1.1\r\nHost: n\r\n\r\n" * 50)
            assert (await read_to_the_end(reader)).count(b"HTTP/1.1 ") == 1

    run(work())


@pytest.mark.turns(8)
@LOOPS
def test_many_at_once(tmp_path: Path, loop: str) -> None:
    """Scrapers, health checks and appends together; each gets a whole answer."""
    build_directory(tmp_path, dict.fromkeys(range(8), 0))

    async def push(peer: Peer) -> None:
        for number in range(100):
            assert isinstance(await peer.request(append(number)), SuccessResponse)

    async def ask(answers: list[Answer], paths: list[str], node: Node) -> None:
        for path in paths:
            answers.append(await get(node, path, Accept="text/plain" if len(answers) % 2 else "*/*"))

    async def work() -> None:
        async with running(tmp_path) as node:
            peer = await Peer.data(node)
            answers: list[Answer] = []
            paths = ["/metrics", "/health", "/ping"] * 5
            await asyncio.gather(push(peer), *(ask(answers, paths, node) for _ in range(5)))
            assert len(answers) == 75
            assert {answer.status for answer in answers} == {200}
            assert json.loads((await get(node, "/metrics")).body)["counters"]
            await peer.close()

    run(work(), loop)


def test_ipv6(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path, host="::1") as node:
            assert node.addresses.host == "::1"
            assert (await get(node, "/ping")).body == b"pong\n"
            peer = await Peer.data(node)
            await peer.close()

    run(work())


def test_metrics_that_cannot_be_read_in_time_are_told_so(tmp_path: Path) -> None:
    """An administrator's change hangs in the disk and holds what the metrics need: /metrics comes back, and so do the others."""
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path, http=HttpLimits(answer_seconds=0.2)) as node:
            with StuckDisk(lambda path: path.name == CONTROL_FILE_NAME) as stuck:
                changing = asyncio.create_task(
                    SingleFlight(lambda: node.hosted.set_availability([0], readable=False), name="change").result(None)
                )
                await stuck.reached()
                answer = await get(node, "/metrics")
                assert answer.status == 503
                assert b"has not come back" in answer.body
                assert (await get(node, "/ping")).status == 200
                assert (await get(node, "/health")).status == 200
            await changing
            while (answer := await get(node, "/metrics")).status == 503:  # the look that came late is still on its way
                await asyncio.sleep(0.01)
            assert answer.json["gauges"]["waltz-storage.partition-0.flags"] == {"value": 4}

    run(work())
