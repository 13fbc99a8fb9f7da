"""The HTTP port: is it there, is it well, what does it count, which version is it.

Paths, bodies and headers are those of release 0.13.2 (``/ping``, ``/health``, ``/metrics``, ``/buildinfo``), except that
``/health`` looks before it speaks, and that ``/metrics`` answers Prometheus' text to whoever asks for it.  A connection carries
one request, of bounded size, and lives for a bounded time; there is a bounded number of them.
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
from waltzctl.engine.net.metrics import NamedMetric
from waltzctl.engine.net.metrics_json import Json, compact, indented, report
from waltzctl.engine.net.monitoring_options import HttpLimits
from waltzctl.engine.net.prometheus import exposition, prefers_text
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight

SERVICE_NAME = "waltzctl"
"""What ``/buildinfo`` calls this program."""
_HEADERS = {"Cache-Control": "must-revalidate,no-cache,no-store", "Server": SERVICE_NAME}
_BACKLOG = 64


class HealthReport(Protocol):
    """What a look at the server's health found."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""

    def document(self) -> Mapping[str, Json]:
        """What ``/health`` answers."""


class MetricsReading(Protocol):
    """Metrics as they stood at one moment."""

    def metrics(self) -> Iterable[NamedMetric]:
        """All of them."""


Report = TypeVar("Report", bound=HealthReport)
Read = TypeVar("Read", bound=MetricsReading)


class HttpPort(Generic[Report, Read]):
    """The port.  Belongs to the event loop in which `start` was called.

    `look` looks at the server's health, `read` at its metrics, and may block; `collect` makes of both what Prometheus is shown.
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
        self._server: asyncio.Server | None = None
        self._http: _Http | None = None
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
        http = _Http(self._answer, self._limits, self._log)
        addresses: str | list[str] | None = host or None
        try:
            if port == 0 and host:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = [str(found[0][4][0])]
            self._server = await loop.create_server(http, addresses, port, backlog=_BACKLOG)
        except (OSError, ValueError) as error:  # the latter for what can be no name
            raise ListenError(host, port, error) from None
        self._http = http
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def close(self, seconds: float = 1.0) -> None:
        """Stop listening, let requests under way end, at most so long, and close; a second call does nothing."""
        server, self._server = self._server, None
        http, self._http = self._http, None
        if server is not None:
            server.close()
        if http is not None:
            http.pre_shutdown()
            await http.shutdown(seconds)
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
        try:
            reading = await self._reading.result(self._limits.answer_seconds)
        except (OverdueError, RuntimeError) as error:
            return web.Response(status=503, text=f"{error}; /health tells more\n")
        accept = ", ".join(request.headers.getall("Accept", []))
        if prefers_text(accept):
            body, content_type = exposition(self._collect(reading, await self._look()), accept)
            return web.Response(body=body, headers={"Content-Type": content_type, "Vary": "Accept"})
        response = _json(report(reading.metrics(), pretty=_pretty(request)))
        response.headers["Vary"] = "Accept"
        return response


def _json(text: str, status: int = 200) -> web.Response:
    return web.Response(status=status, body=text.encode(), content_type="application/json")


def _pretty(request: web.BaseRequest) -> bool:
    return bool(request.query.get("pretty", "").lower() == "true")


class _Http(web.Server):
    """aiohttp's protocol factory with bounds of our own: it has none for slow peers and for the number of connections."""

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
        self._ends: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._limits.max_request_bytes, loop=self._loop, **self._settings)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        if len(self._ends) >= self._limits.max_connections:
            transport.abort()
        super().connection_made(handler, transport)
        self._ends[handler] = self._loop.call_later(self._limits.connection_seconds, transport.abort)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        end = self._ends.pop(handler, None)
        if end is not None:
            end.cancel()
        super().connection_lost(handler, exc)

    def forget(self) -> None:
        """Whatever is left of the connections ends now."""
        for end in self._ends.values():
            end.cancel()
        self._ends.clear()


class _Connection(web.RequestHandler):
    """A connection that counts what it is sent."""

    def __init__(self, manager: _Http, bytes_left: int, **settings: Any) -> None:
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
        """What a peer sends that is no HTTP is its own mistake: one line, as of the other ports, and no trace of this program."""
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError):
            why = (error.message.splitlines() or [type(error).__name__])[0]
            self.logger.warning("http: closed: a peer's request cannot be read: %s", why.rstrip(":"))
        else:
            super().log_exception(*args, **kw)
