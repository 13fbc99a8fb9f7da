"""A log server of a cluster, from the first step of its start to the last of its stop.

Start: the metadata (its two counts of partitions have to agree); the keys for TLS; the client and the HTTP port; then this server
stands among the servers, and what the assignment gives it is served.  The release registers before it has a port, and stays
registered when it gets none.

While it runs it follows three things: what it is to serve (`engine.metadata.membership`), which storage nodes hold its
partitions, and its own session with the metadata; when that is lost everything is closed until there is a new one.

Stop: the server leaves the others, so that its partitions are theirs at once (weakness V12); nobody new is accepted, the
partitions are closed, clients take their answers.  Nothing waits for a recovery.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import InvalidRequestError, MismatchError, PeerUnreachableError, WaltzError
from waltzctl.engine.metadata.failure_detector import FailureDetector
from waltzctl.engine.metadata.membership import Membership
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.metadata.partition_sessions import (
    PartitionSessions,
    follow_replicas,
    read_payload,
    store_parameters,
)
from waltzctl.engine.net.addresses import Address, parse_address
from waltzctl.engine.net.loopback import is_loopback
from waltzctl.engine.net.settings import Reloaded, reload_fields, reloadable_fields
from waltzctl.engine.net.tls import client_context, server_context
from waltzctl.engine.scan import wire_code
from waltzctl.engine.server.client_port import Answers
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.server_health import ServerHealthReport
from waltzctl.engine.server.server_metrics import ServerReading
from waltzctl.engine.server.server_settings import ServerOptions
from waltzctl.formats.znodes import ClusterParameters, StoreParameters

if TYPE_CHECKING:
    from waltzctl.engine.net.http_port import HttpPort

RELOADABLE = reloadable_fields(ServerOptions)
"""Fields of `ServerOptions` that `Server.reload` puts into force; every other one needs a restart."""
_PAUSE = 1.0
"""Seconds before partitions that could not be begun are begun again."""


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """Where a server listens.  `http_port` None: HTTP is off."""

    host: str
    port: int
    http_port: int | None


@dataclass(frozen=True, slots=True)
class ServerReadyInfo:
    """What a server has to say when it has started.  `metadata`: where it is; `tls`: whether the client port speaks it."""

    server_id: int
    cluster_key: uuid.UUID
    num_partitions: int
    metadata: str
    addresses: ServerAddresses
    tls: bool


def location_of(options: ServerOptions) -> MetadataLocation:
    """Where the metadata is.  Raises InvalidRequestError."""
    known = options.zookeeper
    if options.metadata is None:
        assert known is not None, "the options were checked"
        return MetadataLocation(known, None)
    if known is None:
        return MetadataLocation.parse(options.metadata)
    return MetadataLocation.parse(
        options.metadata, session_timeout=known.session_timeout, connect_timeout=known.connect_timeout
    )


class Server:
    """A running server.  Made by `start`; belongs to the event loop in which it was started."""

    def __init__(self, options: ServerOptions, *, version: str, log: logging.Logger) -> None:
        self.options = options
        self.version = version
        self.log_server: LogServer
        self.ready_info: ServerReadyInfo
        self._log = log
        self._cluster: ClusterParameters
        self._endpoint = ""
        self._store: MetadataStore
        self._membership: Membership
        self._trusting: ssl.SSLContext | None = None
        self._number: int | None = None
        self._given: Mapping[int, int] = {}
        self._endpoint = ""
        self._draining = False
        self._stopping: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self._open = contextlib.AsyncExitStack()
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order
        self._http: HttpPort[ServerHealthReport, ServerReading] | None = None

    @classmethod
    async def start(cls, options: ServerOptions, *, log: logging.Logger, version: str = "unknown") -> Server:
        """Start a server; it is among the servers of its cluster when this returns.

        Raises what `ServerOptions.check`, `MetadataLocation.open`, `server_context` and `client_context` raise, MismatchError
        and ListenError.  Then nothing is left of it.
        """
        options.check()
        made = cls(options, version=version, log=log)
        try:
            await made._start()
        except BaseException:
            await made._close(0)
            raise
        return made

    async def _start(self) -> None:
        options = self.options
        location = location_of(options)
        self._store = await self._open.enter_async_context(location.open())
        self._cluster, parameters = await self._parameters()
        if beyond := [one for one in options.preferred or () if one >= self._cluster.num_partitions]:
            raise InvalidRequestError(
                f"partition {beyond[0]} is to be preferred, and the cluster has 0 to {self._cluster.num_partitions - 1}"
            )
        self._log.debug("appends are handled by: %s", await asyncio.to_thread(wire_code.prepare))
        context, self._trusting = await asyncio.to_thread(_contexts, options)
        detector = FailureDetector(self._connect_server, lambda path: self._membership.delete(path), log=self._log)
        self._membership = Membership(self._store, log=self._log, seen=detector.watch)
        self.log_server = LogServer(
            PartitionSessions(self._store),
            lambda node: self._connect(node, parameters),
            Answers(self._connectivity, self._prefer),
            log=self._log,
            options=options,
        )
        self._open.push_async_callback(self._stop_serving)
        host, port = await self.log_server.start(options.host, options.port, context)
        advertised = options.advertised_host or _reachable(options.host, host)
        self._endpoint = str(Address(advertised, port))
        http_port = await self._start_http()
        number = self._number = await self._membership.register(advertised, port, options.preferred or ())
        self._open.push_async_callback(self._membership.unregister)
        self._open.push_async_callback(detector.close)
        self.ready_info = ServerReadyInfo(
            number,
            parameters.cluster_key,
            parameters.num_partitions,
            str(location),
            ServerAddresses(host, port, http_port),
            not options.plaintext,
        )
        self._begin(self._membership.follow(self._assigned))
        self._begin(follow_replicas(self._store, self.log_server.reassign, log=self._log))
        self._log.info("server %d of %s: clients find it at %s", number, location, self._endpoint)

    async def _parameters(self) -> tuple[ClusterParameters, StoreParameters]:
        cluster, _ = await read_payload(self._store, "", ClusterParameters)
        parameters = await store_parameters(self._store)
        if cluster.num_partitions != parameters.num_partitions:
            raise MismatchError(
                f"{self._store.where}: the cluster has {cluster.num_partitions} partitions, its store {parameters.num_partitions}"
            )
        return cluster, parameters

    async def _connect(self, node: str, parameters: StoreParameters) -> StorageClient:
        try:
            address = parse_address(node)
        except InvalidRequestError as error:
            raise PeerUnreachableError(node, f"the metadata names a storage node so: {error}") from None
        return await StorageClient.connect(
            address.host,
            address.port,
            ssl_context=None if self.options.storage_plaintext else self._trusting,
            cluster_key=parameters.cluster_key,
            num_partitions=parameters.num_partitions,
            timeout=self.options.session.deadline,
        )

    async def _connect_server(self, address: Address) -> LogConnection:
        return await LogConnection.connect(
            PORT,
            address,
            ssl_context=None if self.options.plaintext else self._trusting,
            timeout=self.options.session.deadline,
        )

    async def _start_http(self) -> int | None:
        if self.options.http_port is None:
            return None
        from waltzctl.engine.net.http_port import HttpPort
        from waltzctl.engine.server.server_collector import ServerCollector

        self._http = HttpPort(
            self.look,
            read=self.read,
            collect=ServerCollector,
            version=self.version,
            log=self._log,
            limits=self.options.http,
        )
        self._open.push_async_callback(self._http.close)
        _, number = await self._http.start(self.options.host, self.options.http_port)
        return number

    # ---- what it follows -----------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s", error, exc_info=error)

    def _assigned(self, generations: Mapping[int, int]) -> None:
        self._log.info("serving %d partitions", len(generations))
        self._given = generations
        self._begin(self._serve(generations))

    async def _serve(self, generations: Mapping[int, int]) -> None:
        while self._given is generations:  # and nobody tells it once more
            try:
                await self.log_server.assign(generations)
            except Exception as error:  # such as no memory
                self._log.error("not all of %d partitions are served", len(generations), exc_info=error)
                await asyncio.sleep(_PAUSE)
            else:
                return

    # ---- what it answers -----------------------------------------------------------------------------------------------

    async def _connectivity(self) -> tuple[tuple[str, bool], ...]:
        return await self.log_server.check_connectivity()

    async def _prefer(self, partitions: tuple[int, ...], preferred: bool) -> bool:
        if any(not 0 <= one < self._cluster.num_partitions for one in partitions):
            return False
        try:
            await self._membership.prefer(partitions, preferred)
        except WaltzError as error:
            self._log.warning("preferences: %s", error)
            return False
        return True

    @property
    def addresses(self) -> ServerAddresses:
        """Where it listens."""
        return self.ready_info.addresses

    def read(self) -> ServerReading:
        """Its metrics."""
        cache = self.log_server.cache
        return ServerReading(
            self.version,
            self._cluster.name,
            -1 if self._number is None else self._number,
            self._endpoint,
            tuple(one.reading for _, one in sorted(dict(self.log_server.partitions).items())),
            cache.feed_misses,
            cache.data_misses,
            cache.used,
            len(self.log_server.port.connections),
        )

    async def look(self) -> ServerHealthReport:
        """Whether it is well."""
        return ServerHealthReport(
            self._membership.present,
            self.log_server.port.listening,
            self.read().partitions,
            self._draining,
            registered=self._number is not None,
        )

    # ---- change and end ------------------------------------------------------------------------------------------------

    async def reload(self, options: ServerOptions) -> Reloaded:
        """Put into force what can change while it runs: certificates, the client port's limits, how long a stop waits.

        Certificates, its own and those that it trusts, are for new connections: of clients, to storage nodes and to other
        servers.  Raises as `ServerOptions.check`, `server_context` and `client_context`; nothing is changed then.
        """
        options.check()
        context, trusting = await asyncio.to_thread(_contexts, options)
        self.log_server.port.limits = options.limits
        if context is not None and not self.options.plaintext:
            self.log_server.port.use_context(context)
        self._trusting = trusting or self._trusting  # whether there is TLS cannot change
        self.options, reloaded = reload_fields(self.options, options, RELOADABLE)
        return reloaded

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Stop; clients have so many seconds to take their answers (None: the options').  A further call waits for the first."""
        if self._stopping is None:
            seconds = self.options.drain_seconds if drain_seconds is None else drain_seconds
            self._stopping = asyncio.ensure_future(self._close(seconds))
        await asyncio.shield(self._stopping)

    async def wait_closed(self) -> None:
        """Wait until it has stopped."""
        await self._closed.wait()

    async def _close(self, seconds: float) -> None:
        self._draining = True
        self.options = replace(self.options, drain_seconds=seconds)
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._open.aclose()
        finally:
            self._closed.set()

    async def _stop_serving(self) -> None:
        await self.log_server.stop(self.options.drain_seconds)


def _reachable(asked: str, bound: str) -> str:
    """The host under which a server that listens at `bound` is found by others."""
    if bound in ("0.0.0.0", "::", ""):
        return socket.getfqdn()
    return asked if asked and is_loopback(asked) else bound


def _contexts(options: ServerOptions) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Of the client port, and of connections to storage nodes and other servers; None where there is no TLS."""
    own = None if options.plaintext else server_context(options.tls)
    unused = options.storage_plaintext and options.plaintext
    trusting = None if unused else client_context(replace(options.tls, verify_names=False), trust_all=True)
    return own, trusting
