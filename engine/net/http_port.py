"""The HTTP port: ``/ping``, ``/health``, ``/metrics`` and ``/buildinfo``.

Paths, bodies and headers are those of release 0.13.2, except that ``/health`` really checks (the release's result is constant),
and that ``/metrics`` also has Prometheus' text format, by content negotiation.  A connection carries one request of bounded size;
its duration, and the number of connections, are bounded as well.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.registry import Collector

from waltzctl.engine.errors import ListenError
from waltzctl.engine.net.look_up import host_of, look_up
from waltzctl.engine.net.metrics import NamedMetric
from waltzctl.engine.net.metrics_json import Json, compact, indented, report
from waltzctl.engine.net.monitoring_options import HttpLimits
from waltzctl.engine.net.prometheus import exposition, prefers_text
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight, in_daemon_thread

SERVICE_NAME = "waltzctl"
"""The name of this program in ``/buildinfo`` and the header ``Server``."""
_HEADERS = {"Cache-Control": "must-revalidate,no-cache,no-store", "Server": SERVICE_NAME}
_BACKLOG = 64


class HealthReport(Protocol):
    """The outcome of a health check."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""

    def document(self) -> Mapping[str, Json]:
        """The body of ``/health``."""


class MetricsReading(Protocol):
    """A snapshot of the metrics."""

    def metrics(self) -> Iterable[NamedMetric]:
        """All metrics."""


Report = TypeVar("Report", bound=HealthReport)
Read = TypeVar("Read", bound=MetricsReading)
Text = TypeVar("Text")


class HttpPort(Generic[Report, Read]):
    """The HTTP port.  Belongs to the event loop in which `start` was called.

    `look`: checks the server's health.  `read`: reads its metrics; may block.  `collect`: makes a Prometheus collector of both.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Report]],
        *,
        read: Callable[[], Read],
        collect: Callable[[Read, Report], Collector],
        version: str,
        log: logging.Logger,
        limits: HttpLimits = HttpLimits(),  # noqa: B008  # frozen
    ) -> None:
        self._look, self._collect, self._version = look, collect, version
        self._log, self._limits = log, limits
        self._reading = SingleFlight(read, name="the look at the metrics")
        self._writing = asyncio.Lock()  # held while metrics are written out: several at a time would only be slower
        self._server: asyncio.Server | None = None
        self._http: _BoundedServer | None = None
        self._routes: dict[str, Callable[[web.BaseRequest], Awaitable[web.Response]]] = {
            "/ping": self._ping,
            "/buildinfo": self._build_info,
            "/metrics": self._metrics,
            "/health": self._healthy,
        }

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None and self._server.is_serving()

    @property
    def open_connections(self) -> int:
        """How many peers are connected."""
        return len(self._http.connections) if self._http is not None else 0

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen at `host` (port 0: a free one, at its first address only); return the first address.  Raises ListenError."""
        loop = asyncio.get_running_loop()
        http = _BoundedServer(self._answer, self._limits, self._log)
        addresses: list[str] | None = None
        try:
            if host:
                # as the other ports: without addresses of a kind that this machine does not have (``::1 localhost``)
                found = await look_up(host, port, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG)
                addresses = [*dict.fromkeys(host_of(where) for *_, where in found)][: None if port else 1]
            # the call that begins to serve waits for a turn of the loop: cancelled there, it would leave a server to nobody
            server = await loop.create_server(http, addresses, port, backlog=_BACKLOG, start_serving=False)
        except (OSError, ValueError) as error:  # ValueError: no possible name
            raise ListenError(host, port, error) from None
        self._server, self._http = server, http
        try:
            await server.start_serving()
        except BaseException as error:
            await self.close(0.0)
            if isinstance(error, OSError):
                raise ListenError(host, port, error) from None
            raise
        name = server.sockets[0].getsockname()
        return host_of(name), int(name[1])

    async def close(self, seconds: float = 1.0) -> None:
        """Stop listening, wait at most `seconds` for requests under way, and close; a second call does nothing."""
        server, self._server = self._server, None
        http, self._http = self._http, None
        if server is not None:
            server.close()
        if http is not None:
            http.pre_shutdown()
            try:
                await http.shutdown(seconds)
            finally:  # also where the caller is cancelled
                http.forget()
        if server is not None:
            await server.wait_closed()
        await self._reading.idle(seconds)

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        answer = self._routes.get(request.path)
        if answer is None:
            response = web.Response(status=404, text="there are /ping, /health, /metrics and /buildinfo here\n")
        elif request.method not in ("GET", "HEAD"):
            response = web.Response(status=405, headers={"Allow": "GET, HEAD"}, text="GET and HEAD only\n")
        elif request.body_exists:
            response = web.Response(status=413, text="a request here has no body\n")
        else:
            response = await answer(request)
        response.headers.update(_HEADERS)
        response.force_close()
        return response

    async def _ping(self, _: web.BaseRequest) -> web.Response:
        return web.Response(text="pong\n")

    async def _build_info(self, _: web.BaseRequest) -> web.Response:
        return _json(compact({"version": self._version, "service_name": SERVICE_NAME}) + "\n")

    async def _healthy(self, request: web.BaseRequest) -> web.Response:
        found = await self._look()
        document = found.document()
        text = indented(document) if _pretty(request) else compact(document)
        return _json(text, status=200 if found.healthy else 500)

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        accept = ", ".join(request.headers.getall("Accept", []))
        try:
            reading = await self._reading.result(self._limits.answer_seconds)
            if prefers_text(accept):
                collector = self._collect(reading, await self._look())
                body, content_type = await self._written(lambda: exposition(collector, accept))
                return web.Response(body=body, headers={"Content-Type": content_type, "Vary": "Accept"})
            response = _json(await self._written(lambda: report(reading.metrics(), pretty=_pretty(request))))
        except (OverdueError, RuntimeError) as error:
            return web.Response(status=503, text=f"{error}; /health tells more\n")
        response.headers["Vary"] = "Accept"
        return response

    async def _written(self, write: Callable[[], Text]) -> Text:
        """What `write` makes of the metrics, in a thread: with thousands of partitions it takes seconds.

        In the event loop no peer would be heard meanwhile, and a log server's session with the metadata could end.  Its only
        deadline is that of the connection.  The thread of a peer that has gone ends before the next one begins.  Raises
        RuntimeError when no thread can be started.
        """
        async with self._writing:
            return await in_daemon_thread(write, name="writing out the metrics")


def _json(text: str, status: int = 200) -> web.Response:
    return web.Response(status=status, body=text.encode(), content_type="application/json")


def _pretty(request: web.BaseRequest) -> bool:
    return bool(request.query.get("pretty", "").lower() == "true")


class _BoundedServer(web.Server):
    """aiohttp's protocol factory, with limits that aiohttp does not have: duration and number of connections."""

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.Response]], limits: HttpLimits, log: logging.Logger
    ) -> None:
        self._settings: dict[str, Any] = {
            "logger": log,
            "access_log": None,
            "lingering_time": 0.0,
            "max_line_size": limits.max_request_bytes,
            "max_field_size": limits.max_request_bytes,
            "keepalive_timeout": limits.connection_seconds,
        }
        super().__init__(handler, handler_cancellation=True, **self._settings)
        self._limits = limits
        self._timers: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> web.RequestHandler:
        return _BoundedConnection(self, self._limits.max_request_bytes, loop=self._loop, **self._settings)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        if len(self._timers) >= self._limits.max_connections:
            transport.abort()
        super().connection_made(handler, transport)
        self._timers[handler] = self._loop.call_later(self._limits.connection_seconds, transport.abort)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        timer = self._timers.pop(handler, None)
        if timer is not None:
            timer.cancel()
        super().connection_lost(handler, exc)

    def forget(self) -> None:
        """Close the connections that are left, and cancel their timers."""
        for handler, timer in self._timers.items():
            timer.cancel()
            if handler.transport is not None:
                handler.transport.abort()
        self._timers.clear()


class _BoundedConnection(web.RequestHandler):
    """A connection that bounds the bytes it receives."""

    def __init__(self, manager: _BoundedServer, bytes_left: int, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._bytes_left = bytes_left

    def data_received(self, data: bytes) -> None:
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            if self.transport is not None:
                self.transport.close()
            return
        super().data_received(data)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log invalid HTTP of a peer as one line, like the other ports, without a stack trace of this program."""
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError):
            why = (error.message.splitlines() or [type(error).__name__])[0]
            self.logger.warning("http: closed: a peer's request cannot be read: %s", why.rstrip(":"))
        else:
            super().log_exception(*args, **kw)
