"""Bounds of the HTTP port and of what configures a node, each with one step to either side, at several values."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from multidict import CIMultiDict
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tests.node.running import LOOPS, connected, http, read_to_the_end, run
from tests.reserved_ports import reserved_ports
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.http_port import HttpPort, _BoundedServer
from waltzctl.engine.net.metrics import NamedMetric
from waltzctl.engine.net.monitoring_options import HttpLimits
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.single_flight import OverdueError
from waltzctl.engine.node.health import DiskHealth, NodeHealthReport
from waltzctl.engine.node.node_settings import HealthOptions, ServiceOptions


class Well:
    """Stands for the health of a node."""

    async def check(self) -> NodeHealthReport:
        return NodeHealthReport(DiskHealth(1, 0.0, None), (), ())


class Reading:
    """Stands for the look at the metrics: notes how long it may take."""

    def __init__(self) -> None:
        self.asked: list[float | None] = []

    async def result(self, seconds: float | None) -> Any:
        self.asked.append(seconds)
        raise OverdueError("the look at the metrics", 1.0)

    async def idle(self, seconds: float) -> None:
        self.asked.append(seconds)


class Wire:
    """A transport that notes how it is ended, and whoever handles what comes over it."""

    _task_handler = None

    def __init__(self) -> None:
        self.ended: list[str] = []

    def abort(self) -> None:
        self.ended.append("aborted")

    def close(self) -> None:
        self.ended.append("closed")


@contextlib.asynccontextmanager
async def serving(look: Any = None, **limits: Any) -> AsyncIterator[tuple[HttpPort, int, Reading]]:
    """The port alone, without a node, on the loopback."""
    port = HttpPort(
        look or Well().check,
        read=lambda: pytest.fail("nobody looks"),
        collect=lambda reading, report: pytest.fail("nobody collects"),
        version="1",
        log=logging.getLogger("test"),
        limits=HttpLimits(**limits),
    )
    reading = Reading()
    port._reading = reading  # type: ignore[assignment]
    assert not port.listening
    assert port.open_connections == 0
    _, number = await port.start("127.0.0.1", 0)
    assert port.listening
    try:
        yield port, number, reading
    finally:
        await port.close()
        await port.close()
        assert not port.listening


def request(size: int) -> bytes:
    """A right request of so many bytes."""
    bare = b"GET /ping HTTP/1.1\r\nHost: n\r\nA: \r\n\r\n"
    return bare.replace(b"A: ", b"A: " + b"x" * (size - len(bare)))


@LOOPS
@pytest.mark.parametrize("most", [40, 500, 4096, 16 << 10, 100_000])
def test_a_request_may_be_as_long_as_its_bound_and_no_byte_longer(most: int, loop: str) -> None:
    async def work() -> None:
        async with serving(max_request_bytes=most) as (_, number, _):
            answer = await http("127.0.0.1", number, request(most))
            assert (answer.status, answer.body) == (200, b"pong\n")
            async with connected("127.0.0.1", number) as (reader, writer):
                writer.write(request(most + 1))
                assert not (await read_to_the_end(reader)).startswith(b"HTTP/1.1 200")

    run(work(), loop)


@pytest.mark.parametrize("parts", [2, 10, 40])
def test_the_bound_counts_everything_that_a_peer_sends(parts: int) -> None:
    """However it arrives."""

    async def work() -> None:
        async with serving(max_request_bytes=400) as (_, number, _):
            for size, served in ((400, True), (401, False)):
                async with connected("127.0.0.1", number) as (reader, writer):
                    raw = request(size)
                    step = size // parts + 1
                    for at in range(0, size, step):
                        writer.write(raw[at : at + step])
                        with contextlib.suppress(ConnectionError):
                            await writer.drain()
                        await asyncio.sleep(0)
                    assert (await read_to_the_end(reader)).startswith(b"HTTP/1.1 200") == served

    run(work())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET http://[::1/ping HTTP/1.1\r\nHost: n\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: n\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /ping HTTP/9\r\n\r\n",
    ],
)
def test_a_request_that_is_none_is_one_line_without_a_trace(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It is no failure of the node's, of which ERROR and a trace of the program speak."""

    async def work() -> None:
        async with serving() as (_, number, _), connected("127.0.0.1", number) as (reader, writer):
            writer.write(sent)
            assert (await read_to_the_end(reader)).startswith(b"HTTP/1.0 400 ")

    run(work())
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)
    assert record.getMessage().startswith("http: closed: a peer's request cannot be read: ")
    assert "\n" not in record.getMessage()


@LOOPS
@pytest.mark.parametrize("most", [1, 2, 5])
def test_as_many_connections_as_the_bound_says_are_served(most: int, loop: str) -> None:
    async def work() -> None:
        async with serving(max_connections=most) as (port, number, _), contextlib.AsyncExitStack() as stack:
            first = [await stack.enter_async_context(connected("127.0.0.1", number)) for _ in range(most)]
            while port.open_connections < most:
                await asyncio.sleep(0)
            async with connected("127.0.0.1", number) as (reader, _):
                assert await read_to_the_end(reader) == b""
            reader, writer = first[-1]
            writer.write(request(60))
            assert (await reader.read()).endswith(b"pong\n")
            while port.open_connections >= most:
                await asyncio.sleep(0)
            assert (await http("127.0.0.1", number, request(60))).status == 200

    run(work(), loop)


@pytest.mark.parametrize("seconds", [0.5, 30.0, 1000.0])
def test_how_long_a_connection_lives_and_metrics_may_take(seconds: float) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        ends: list[asyncio.TimerHandle] = []
        limits = HttpLimits(connection_seconds=seconds)
        factory = _BoundedServer(_unused, limits, logging.getLogger("test"))
        handler = factory()
        transport = SimpleNamespace(abort=lambda: None, get_extra_info=lambda *_: None, close=lambda: None)
        before = loop.time()
        factory.connection_made(handler, transport)  # type: ignore[arg-type]
        ends += factory._timers.values()
        (end,) = ends
        assert before + seconds <= end.when() <= loop.time() + seconds
        factory.connection_lost(handler)
        assert end.cancelled()
        assert factory._timers == {}
        factory.connection_lost(handler)
        factory.connection_made(handler, transport)  # type: ignore[arg-type]
        (again,) = factory._timers.values()
        factory.forget()
        assert again.cancelled()
        assert factory._timers == {}
        async with serving(answer_seconds=seconds) as (_, number, reading):
            answer = await http("127.0.0.1", number, b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n")
            assert answer.status == 503
            assert reading.asked == [seconds]

    run(work())


def test_who_is_connected_when_the_port_closes_is_so_no_longer() -> None:
    async def work() -> None:
        async with serving() as (port, number, reading), connected("127.0.0.1", number) as (answers, writer):
            writer.write(b"GET /ping")
            while not port.open_connections:
                await asyncio.sleep(0)
            factory = port._http
            assert factory is not None
            await port.close(0.0)
            assert (factory.connections, factory._timers, reading.asked) == ([], {}, [0.0])
            assert await read_to_the_end(answers) == b""

    run(work())


def test_nobody_works_for_a_peer_that_is_gone() -> None:
    async def work() -> None:
        begun, given_up = asyncio.Event(), asyncio.Event()

        async def look() -> Any:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                given_up.set()
                raise

        async with serving(look) as (_, number, _):
            async with connected("127.0.0.1", number) as (_, writer):
                writer.write(b"GET /health HTTP/1.1\r\nHost: n\r\n\r\n")
                await begun.wait()
            await asyncio.wait_for(given_up.wait(), 60)

    run(work())


def test_a_free_port_is_one_of_the_first_address_and_any_other_of_all() -> None:
    async def work() -> None:
        async def found(host: str, number: int, **_: Any) -> list[Any]:
            assert host == "two.test"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", number)) for last in (1, 2)]

        (number,) = reserved_ports(1)
        async with serving() as (port, _, _):
            asyncio.get_running_loop().getaddrinfo = found  # type: ignore[assignment]
            for wanted, expected in ((0, 1), (number, 2)):
                await port.close()
                host, given = await port.start("two.test", wanted)
                assert port._server is not None
                hosts = sorted(one.getsockname()[0] for one in port._server.sockets)
                assert hosts == ["127.0.0.1", "127.0.0.2"][:expected]
                assert host in hosts
                assert given == wanted or not wanted

    run(work())


@pytest.mark.parametrize("free", [False, True])
def test_an_address_of_a_kind_that_the_machine_does_not_have_keeps_nobody_from_the_others(free: bool) -> None:
    """``::1 localhost`` in a container without IPv6: the other ports listened, and this one ended the node."""

    async def work() -> None:
        async def found(host: str, number: int, *, flags: int = 0, **_: Any) -> list[Any]:
            last = 1 if host == "127.0.0.1" or flags & socket.AI_ADDRCONFIG else 2
            names = ("127.0.0.1", "203.0.113.1")[:last]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, number)) for one in reversed(names)]

        (number,) = reserved_ports(1)
        async with serving() as (port, _, _):
            asyncio.get_running_loop().getaddrinfo = found  # type: ignore[assignment]
            await port.close()
            host, _ = await port.start("two.test", 0 if free else number)
            assert host == "127.0.0.1"

    run(work())


def test_without_a_host_it_is_every_address() -> None:
    async def work() -> None:
        async with serving() as (port, _, _):
            await port.close()
            _, number = await port.start("", 0)
            assert port._server is not None
            assert "0.0.0.0" in {one.getsockname()[0] for one in port._server.sockets}
            assert number in {one.getsockname()[1] for one in port._server.sockets}

    run(work())


async def _unused(_: web.BaseRequest) -> web.Response:
    raise AssertionError


@pytest.mark.parametrize(
    ("method", "path", "rest", "status"),
    [
        (b"GET", b"/ping", b"", 200),
        (b"HEAD", b"/ping", b"", 200),
        (b"PUT", b"/ping", b"", 405),
        (b"PUT", b"/nothing", b"", 404),
        (b"GET", b"/ping", b"Content-Length: 1\r\n", 413),
        (b"GET", b"/ping", b"Content-Length: 0\r\n", 200),
        (b"GET", b"/health", b"", 200),
        (b"GET", b"/buildinfo", b"", 200),
        (b"GET", b"/metrics", b"", 503),
    ],
)
def test_every_answer_ends_its_connection(method: bytes, path: bytes, rest: bytes, status: int) -> None:
    async def work() -> None:
        async with serving() as (_, number, _):
            raw = method + b" " + path + b" HTTP/1.1\r\nHost: n\r\n" + rest + b"\r\n"
            answer = await http("127.0.0.1", number, raw + (b"x" if status == 413 else b""))
            assert answer.status == status
            assert answer.headers["Server"] == "waltzctl"
            assert answer.headers["Connection"] == "close"
            assert (answer.headers.get("Allow") == "GET, HEAD") == (status == 405)

    run(work())


# --- values that cannot be meant ------------------------------------------------------------------------------------------------

_ALL: list[tuple[Any, str, object, bool]] = [
    (HttpLimits, "max_connections", 1, True),
    (HttpLimits, "max_connections", 0, False),
    (HttpLimits, "max_request_bytes", 1, True),
    (HttpLimits, "max_request_bytes", 0, False),
    (HttpLimits, "connection_seconds", 0.001, True),
    (HttpLimits, "connection_seconds", 0, False),
    (HttpLimits, "answer_seconds", 0.001, True),
    (HttpLimits, "answer_seconds", 0, False),
    (HealthOptions, "min_free_bytes", 0, True),
    (HealthOptions, "min_free_bytes", -1, False),
    (HealthOptions, "max_age", 0, True),
    (HealthOptions, "max_age", -0.001, False),
    (HealthOptions, "deadline", 0.001, True),
    (HealthOptions, "deadline", 0, False),
    (HealthOptions, "max_stall", 0.001, True),
    (HealthOptions, "max_stall", 0, False),
    (ServiceOptions, "stall_seconds", 0.001, True),
    (ServiceOptions, "stall_seconds", 0, False),
    (ServiceOptions, "workers", None, True),
    (ServiceOptions, "workers", 1, True),
    (ServiceOptions, "workers", 0, False),
    (PortLimits, "max_body", 2**31, False),
    (PortLimits, "max_admin_body", 2**31 - 1, True),
    (PortLimits, "max_admin_body", 2**31, False),
    (PortLimits, "memory", 128 << 20, True),
    (PortLimits, "memory", (128 << 20) - 1, False),
    (PortLimits, "max_body", 128 << 20, True),
    (PortLimits, "max_body", (128 << 20) + 1, False),
]
_ALL += [
    (ServiceOptions, name, value, bool(value))
    for name in ("queue_requests", "queue_bytes", "commit_bytes", "max_list_bytes")
    for value in (0, 1)
]
_ALL += [
    (PortLimits, one.name, value, bool(value))
    for one in dataclasses.fields(PortLimits)
    for value in (0, 1)
    if not (one.name == "memory" and value)
]


@pytest.mark.parametrize(("kind", "name", "value", "fits"), _ALL)
def test_options_are_checked_with_one_step_to_each_side(kind: Any, name: str, value: object, fits: bool) -> None:
    kind().check()
    options = kind(**{name: value})
    if fits:
        options.check()
    else:
        with pytest.raises(InvalidRequestError):
            options.check()
    if kind is PortLimits and name == "max_body" and value == 2**31:
        with pytest.raises(InvalidRequestError, match="max_body must be a number of bytes, 1 to 2147483647"):
            PortLimits(max_body=2**31, memory=2**32).check()
        PortLimits(max_body=2**31 - 1, memory=2**32).check()


def test_one_too_many_and_one_that_lives_too_long_are_ended_without_waiting_for_them() -> None:
    """Whoever reads nothing would otherwise keep its place for ever."""

    async def work() -> None:
        async with serving(max_connections=1, connection_seconds=0.001) as (port, _, _):
            assert port._http is not None
            first, second = Wire(), Wire()
            handlers = [Wire(), Wire()]
            for handler, wire in zip(handlers, (first, second), strict=True):
                port._http.connection_made(handler, wire)  # type: ignore[arg-type]
            assert (first.ended, second.ended) == ([], ["aborted"])
            while not first.ended:
                await asyncio.sleep(0.001)
            assert first.ended == ["aborted"]
            for handler in handlers:
                port._http.connection_lost(handler)  # type: ignore[arg-type]

    run(work())


def test_closing_lets_requests_end_and_forgets_the_rest_once() -> None:
    done: list[str] = []

    class Ends:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, what: str) -> Any:
            def plain(*arguments: object) -> Any:
                done.append(" ".join([self.name, what, *map(str, arguments)]))
                return asyncio.sleep(0, True) if what in ("shutdown", "wait_closed", "idle") else what == "is_serving"

            return plain

    async def work() -> None:
        async with serving() as (port, _, _):
            real = port._server, port._http
            port._server, port._http = Ends("server"), Ends("http")  # type: ignore[assignment]
            port._reading = Ends("reading")  # type: ignore[assignment]
            assert port.listening
            await port.close(3.0)
            assert done == [
                "server is_serving", "server close", "http pre_shutdown", "http shutdown 3.0", "http forget",
                "server wait_closed", "reading idle 3.0",
            ]  # fmt: skip
            assert not port.listening
            await port.close(3.0)
            assert done[7:] == ["reading idle 3.0"]
            port._server, port._http = real

    run(work())


@pytest.mark.parametrize(
    ("query", "lines"),
    [({}, 1), ({"pretty": "true"}, 3), ({"pretty": "TRUE"}, 3), ({"pretty": "false"}, 1), ({"pretty": ""}, 1)],
)
def test_health_is_laid_out_for_people_where_that_is_asked_for(query: dict[str, str], lines: int) -> None:
    async def work() -> None:
        async with serving() as (port, _, _):
            request: Any = SimpleNamespace(query=query)
            answer = await port._healthy(request)
            assert answer.text is not None
            assert (len(answer.text.splitlines()) > 1) == (lines > 1)

    run(work())


def test_a_port_that_serves_no_more_does_not_listen() -> None:
    async def work() -> None:
        async with serving() as (port, _, _):
            assert port.listening
            assert port._server is not None
            port._server.close()
            assert not port.listening

    run(work())


def test_a_free_port_is_one_at_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port number for each address would be more than anybody could be told."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo

        async def two(host: object, port: int, **words: Any) -> Any:
            if host != "two":
                return await real(host, port, **words)  # type: ignore[arg-type]
            return [(*(await real(f"127.0.0.{last}", port, **words))[0],) for last in (1, 2)]

        monkeypatch.setattr(loop, "getaddrinfo", two)
        for host in ("two", ""):
            port = HttpPort(
                Well().check,
                read=list,
                collect=lambda *_: pytest.fail("nobody"),
                version="1",
                log=logging.getLogger("test"),
            )  # type: ignore[type-var]
            _, number = await port.start(host, 0)
            assert number > 0
            assert port._server is not None
            if host:
                assert [one.getsockname() for one in port._server.sockets] == [("127.0.0.1", number)]
            await port.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ([], "application/json"),
        (["text/plain"], "text/plain"),
        (["application/json;q=0.1", "text/plain"], "text/plain"),
        (["text/plain;q=0.1", "application/json"], "application/json"),
    ],
)
def test_metrics_are_in_the_form_that_all_accept_headers_together_ask_for(accept: list[str], kind: str) -> None:
    class Nothing(Collector):
        def collect(self) -> list[Metric]:
            return []

    async def work() -> None:
        port = HttpPort(
            Well().check,
            read=lambda: SimpleNamespace(metrics=list),
            collect=lambda *_: Nothing(),
            version="1",
            log=logging.getLogger("test"),
        )
        request: Any = SimpleNamespace(headers=CIMultiDict(("Accept", one) for one in accept), query={})
        answer = await port._metrics(request)
        assert (answer.status, answer.content_type, answer.headers["Vary"]) == (200, kind, "Accept")

        async def no_thread(_: float | None) -> None:
            raise RuntimeError("can't start new thread")

        port._reading.result = no_thread  # type: ignore[method-assign,assignment]
        answer = await port._metrics(request)
        assert (answer.status, answer.text) == (503, "can't start new thread; /health tells more\n")

    asyncio.run(work())


@LOOPS
@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
def test_peers_are_heard_while_metrics_are_written_out(loop: str, accept: str) -> None:
    """Of thousands of partitions that takes seconds; a log server's session with the metadata could end meanwhile."""
    threads = list[threading.Thread]()

    class Many(Collector):
        def collect(self) -> list[Metric]:
            threads.append(threading.current_thread())
            return []

    def metrics() -> list[NamedMetric]:
        threads.append(threading.current_thread())
        return []

    async def work() -> None:
        port = HttpPort(
            Well().check,
            read=lambda: SimpleNamespace(metrics=metrics),
            collect=lambda *_: Many(),
            version="1",
            log=logging.getLogger("test"),
        )
        request: Any = SimpleNamespace(headers=CIMultiDict([("Accept", accept)]), query={})
        answers = await asyncio.gather(*(port._metrics(request) for _ in range(3)))
        assert [one.status for one in answers] == [200] * 3
        assert len(threads) == 3
        assert threading.main_thread() not in threads

    run(work(), loop)


def test_metrics_of_peers_that_have_gone_are_not_written_out_side_by_side() -> None:
    """Who asks and goes, again and again, would have a thread each time, with all metrics in memory."""
    begun, go_on = list[threading.Thread](), threading.Event()

    def metrics() -> list[NamedMetric]:
        begun.append(threading.current_thread())
        go_on.wait(10.0)
        return []

    async def work() -> None:
        port = HttpPort(
            Well().check,
            read=lambda: SimpleNamespace(metrics=metrics),
            collect=lambda *_: pytest.fail("JSON is asked for"),
            version="1",
            log=logging.getLogger("test"),
        )
        request: Any = SimpleNamespace(headers=CIMultiDict(), query={})
        try:
            asked = []
            for _ in range(5):
                asked.append(asyncio.ensure_future(port._metrics(request)))
                await asyncio.sleep(0.05)
                asked[-1].cancel()
            last = asyncio.ensure_future(port._metrics(request))
            await asyncio.sleep(0.05)
            assert [one.is_alive() for one in begun] == [True]
        finally:
            go_on.set()
        assert (await last).status == 200
        assert all(
            isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*asked, return_exceptions=True)
        )
        assert len(begun) == 2

    asyncio.run(work())


def test_a_close_that_is_cancelled_leaves_no_connection() -> None:
    """It lived on for as long as a connection may live; a further close does nothing."""

    async def work() -> None:
        async with serving() as (port, number, _):
            peer = await asyncio.open_connection("127.0.0.1", number)
            peer[1].write(b"GET /metrics HTTP/1.1\r\n")
            while not port.open_connections:
                await asyncio.sleep(0.001)
            http = port._http
            assert http is not None
            while not http._timers:
                await asyncio.sleep(0.001)

            async def shutdown(_: float) -> None:
                await asyncio.Event().wait()

            http.shutdown = shutdown  # type: ignore[method-assign]
            closing = asyncio.ensure_future(port.close(60.0))
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            with contextlib.suppress(ConnectionError):
                assert await peer[0].read() == b""
            peer[1].close()
            assert http._timers == {}

    run(work())
