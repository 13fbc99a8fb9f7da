"""A log server process in a cluster: start, reload, stop.

========  ==========================================================================================================
phase     steps, in order
========  ==========================================================================================================
start     connect to the metadata, whose two partition counts have to agree; load TLS keys; open the client port and
          the HTTP port; register among the cluster's servers; serve the partitions of the assignment
running   follow, in the metadata: the assignment of partitions (`engine.metadata.membership`), their storage nodes,
          and the server's own session, without which all partitions are closed until there is a new one
stop      unregister, so that other servers get the partitions at once (weakness V12); accept no connections; close
          the partitions, without waiting for a recovery; let clients receive their answers
========  ==========================================================================================================

The release registers before it opens a port, and stays registered if it cannot open one.
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
from waltzctl.engine.errors import InvalidRequestError, MismatchError, WaltzError
from waltzctl.engine.metadata.failure_detector import FailureDetector
from waltzctl.engine.metadata.membership import Membership
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.metadata.partition_sessions import (
    PartitionSessions,
    cluster_parameters,
    follow_replicas,
    store_parameters,
)
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.loopback import is_loopback
from waltzctl.engine.net.settings import RELOAD_SECONDS, Reloaded, reload_fields, reloadable_fields
from waltzctl.engine.net.single_flight import SingleFlight
from waltzctl.engine.net.tls import client_context, server_context
from waltzctl.engine.scan import wire_code
from waltzctl.engine.server.client_port import Answers
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.server_health import ServerHealthReport
from waltzctl.engine.server.server_metrics import ServerReading
from waltzctl.engine.server.server_settings import ServerOptions
from waltzctl.engine.server.storage_nodes import address_of
from waltzctl.formats.znodes import ClusterParameters, StoreParameters

if TYPE_CHECKING:
    from waltzctl.engine.net.http_port import HttpPort

RELOADABLE = reloadable_fields(ServerOptions)
"""Fields of `ServerOptions` that `Server.reload` puts into force; every other one needs a restart."""
_PAUSE = 1.0
"""Seconds before an assignment that could not be applied is applied again."""


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """The addresses a server listens on.  `http_port`: None if HTTP is off."""

    host: str
    port: int
    http_port: int | None


@dataclass(frozen=True, slots=True)
class ServerReadyInfo:
    """What to report after the start.  `metadata`: its location, as in ``--metadata``; `tls`: whether clients use TLS."""

    server_id: int
    cluster_key: uuid.UUID
    num_partitions: int
    metadata: str
    addresses: ServerAddresses
    tls: bool


def location_of(options: ServerOptions) -> MetadataLocation:
    """The metadata's location by `metadata` or the ZooKeeper options.  Raises InvalidRequestError."""
    if options.metadata is not None:
        return MetadataLocation.parse(options.metadata, options.zookeeper_timeouts)
    assert options.zookeeper is not None, "the options were checked"
    return MetadataLocation(ZooKeeperOptions.of(options.zookeeper, options.zookeeper_timeouts), None)


class Server:
    """A running server, made by `start` and bound to the event loop in which it was started."""

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
        self._outgoing_context: ssl.SSLContext | None = None  # for connections to storage nodes and other servers
        self._server_id: int | None = None
        self._assignment: Mapping[int, int] = {}  # the generation of each partition to serve
        self._draining = False
        self._stopping: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self._exit_stack = contextlib.AsyncExitStack()  # what has been started, to be stopped in reverse order
        self._tasks: dict[asyncio.Task[None], None] = {}  # an insertion-ordered set
        self._http: HttpPort[ServerHealthReport, ServerReading] | None = None

    @classmethod
    async def start(cls, options: ServerOptions, *, log: logging.Logger, version: str = "unknown") -> Server:
        """Start a server; on return it is registered in its cluster.

        Raises MismatchError (the metadata's partition counts differ), ListenError, and what `ServerOptions.check`,
        `MetadataLocation.open`, `server_context` and `client_context` raise; then everything started has been stopped.
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
        self._store = await self._exit_stack.enter_async_context(location.open())
        self._cluster, parameters = await self._parameters()
        if beyond := [one for one in options.preferred or () if one >= self._cluster.num_partitions]:
            raise InvalidRequestError(
                f"partition {beyond[0]} is to be preferred, and the cluster has 0 to {self._cluster.num_partitions - 1}"
            )
        self._log.debug("appends are handled by: %s", await asyncio.to_thread(wire_code.prepare))
        context, self._outgoing_context = await asyncio.to_thread(_contexts, options)
        detector = FailureDetector(self._connect_server, lambda path: self._membership.delete(path), log=self._log)
        self._membership = Membership(self._store, log=self._log, seen=detector.watch)
        self.log_server = LogServer(
            PartitionSessions(self._store),
            lambda node: self._connect(node, parameters),
            Answers(self._connectivity, self._prefer),
            log=self._log,
            options=options,
        )
        self._exit_stack.push_async_callback(self._stop_serving)
        host, port = await self.log_server.start(options.host, options.port, context)
        advertised = options.advertised_host or _advertised_host(options.host, host)
        self._endpoint = str(Address(advertised, port))
        http_port = await self._start_http()
        number = self._server_id = await self._membership.register(advertised, port, options.preferred or ())
        self._exit_stack.push_async_callback(self._membership.unregister)
        self._exit_stack.push_async_callback(detector.close)
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
        cluster = await cluster_parameters(self._store)
        parameters = await store_parameters(self._store)
        if cluster.num_partitions != parameters.num_partitions:
            raise MismatchError(
                f"{self._store.where}: the cluster has {cluster.num_partitions} partitions, its store {parameters.num_partitions}"
            )
        return cluster, parameters

    async def _connect(self, node: str, parameters: StoreParameters) -> StorageClient:
        address = address_of(node)
        return await StorageClient.connect(
            address.host,
            address.port,
            ssl_context=None if self.options.storage_plaintext else self._outgoing_context,
            cluster_key=parameters.cluster_key,
            num_partitions=parameters.num_partitions,
            timeout=self.options.session.deadline,
        )

    async def _connect_server(self, address: Address) -> LogConnection:
        return await LogConnection.connect(
            PORT,
            address,
            ssl_context=None if self.options.plaintext else self._outgoing_context,
            timeout=self.options.session.deadline,
        )

    async def _start_http(self) -> int | None:
        if self.options.http_port is None:
            return None
        from waltzctl.engine.net.http_port import HttpPort
        from waltzctl.engine.server.server_collector import ServerCollector

        self._http = HttpPort(
            self.check,
            read=self.read,
            collect=ServerCollector,
            version=self.version,
            log=self._log,
            limits=self.options.http,
        )
        self._exit_stack.push_async_callback(self._http.close)
        _, number = await self._http.start(self.options.host, self.options.http_port)
        return number

    # ---- assignment ----------------------------------------------------------------------------------------------------

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
        self._assignment = generations
        self._begin(self._serve(generations))

    async def _serve(self, generations: Mapping[int, int]) -> None:
        while self._assignment is generations:  # a later one has a task of its own; the same one is not reported again
            try:
                await self.log_server.assign(generations)
            except Exception as error:  # for instance MemoryError
                self._log.error("not all of %d partitions are served", len(generations), exc_info=error)
                await asyncio.sleep(_PAUSE)
            else:
                return

    # ---- requests, metrics, health -------------------------------------------------------------------------------------

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
        """The addresses the server listens on."""
        return self.ready_info.addresses

    def read(self) -> ServerReading:
        """The metrics at this moment."""
        cache = self.log_server.cache
        return ServerReading(
            self.version,
            self._cluster.name,
            -1 if self._server_id is None else self._server_id,
            self._endpoint,
            tuple(one.reading for _, one in sorted(dict(self.log_server.partitions).items())),
            self.log_server.replicas,
            cache.feed_misses,
            cache.data_misses,
            cache.used,
            len(self.log_server.port.connections),
        )

    async def check(self) -> ServerHealthReport:
        """The health at this moment."""
        return ServerHealthReport(
            self._membership.present,
            self.log_server.port.listening,
            self.read().partitions,
            self._draining,
            registered=self._server_id is not None,
        )

    # ---- reload and stop -----------------------------------------------------------------------------------------------

    async def reload(self, options: ServerOptions) -> Reloaded:
        """Apply the reloadable options: certificates, the limits of the client port, the drain time of a stop.

        New certificates, own and trusted, apply to new connections: from clients, to storage nodes, to other servers.  Raises as
        `ServerOptions.check`, `server_context` and `client_context`, and OverdueError; then nothing is changed.
        """
        options.check()
        made = SingleFlight(lambda: _contexts(options), name="reading the certificates")  # no end waits for it
        context, outgoing = await made.result(RELOAD_SECONDS)
        self.log_server.port.limits = options.limits
        if context is not None and not self.options.plaintext:
            self.log_server.port.use_context(context)
        self._outgoing_context = outgoing or self._outgoing_context  # TLS cannot be switched on or off
        self.options, reloaded = reload_fields(self.options, options, RELOADABLE)
        return reloaded

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Stop; clients have `drain_seconds` (None: as in the options) to receive answers.  Later calls wait for the first."""
        if self._stopping is None:
            seconds = self.options.drain_seconds if drain_seconds is None else drain_seconds
            self._stopping = asyncio.ensure_future(self._close(seconds))
        await asyncio.shield(self._stopping)

    async def wait_closed(self) -> None:
        """Wait until the server has stopped."""
        await self._closed.wait()

    async def _close(self, seconds: float) -> None:
        self._draining = True
        self.options = replace(self.options, drain_seconds=seconds)
        for task in [*self._tasks]:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # also where this is cancelled, as at the end of a loop
            try:
                await self._exit_stack.aclose()
            finally:
                self._closed.set()

    async def _stop_serving(self) -> None:
        await self.log_server.stop(self.options.drain_seconds)


def _advertised_host(asked: str, bound: str) -> str:
    """The host to publish for a server that was asked to listen at `asked` and listens at `bound`."""
    if bound in ("0.0.0.0", "::", ""):
        return socket.getfqdn()
    return asked if asked and is_loopback(asked) else bound


def _contexts(options: ServerOptions) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """TLS contexts: of the client port, and of connections to storage nodes and other servers; None without TLS."""
    own = None if options.plaintext else server_context(options.tls)
    unused = options.storage_plaintext and options.plaintext
    outgoing = None if unused else client_context(replace(options.tls, verify_names=False), trust_all=True)
    return own, outgoing
