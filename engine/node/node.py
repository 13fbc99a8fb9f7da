"""A node: a storage directory served by a data, an admin and an HTTP port; its start, reload and stop.

Start, in this order:

1. load the compiled loops (compiled once per machine, which takes some seconds);
2. read the cluster's key and number of partitions from ZooKeeper, if it is configured;
3. load the TLS keys;
4. open the storage directory with all its partitions;
5. listen at the data, the admin and the HTTP port.

If a step fails, the start raises its error, and everything opened before is closed again (release 0.13.2 runs on without a port
that it could not bind, weakness S6).

Stop, in this order; each step is taken even if the one before failed:

1. ``/health`` reports unhealthy, and no connections are accepted;
2. the requests that were read are executed and answered, and the connections are closed;
3. the partitions are closed;
4. the lock on the directory is released.

Blocking work runs in threads of its own; the event loop may be asyncio's or uvloop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.durable.file_status import is_named
from waltzctl.engine.errors import DiskWriteError
from waltzctl.engine.net.metrics_json import registry
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.settings import RELOAD_SECONDS, Reloaded, reload_fields, reloadable_fields
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight, in_daemon_thread
from waltzctl.engine.node.admin_port import AdminPort
from waltzctl.engine.node.data_port import DataPort
from waltzctl.engine.node.health import Health, NodeHealthReport
from waltzctl.engine.node.hosted_storage import HostedStorage
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.node.node_settings import NodeOptions
from waltzctl.engine.node.readings import NodeReading, cluster_metrics, read_node
from waltzctl.engine.scan import wire_code
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.journal_recovery import is_written
from waltzctl.formats.control import Layout

if TYPE_CHECKING:
    from waltzctl.engine.net.http_port import HttpPort

CLOSING_SECONDS = 60.0
"""Time limit for closing the partitions; after that they are left open and the stop goes on."""
RELOADABLE = reloadable_fields(NodeOptions)
"""Fields of `NodeOptions` that `Node.reload` applies; every other one needs a restart."""


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """Where a node listens.  `http_port` None: HTTP is off."""

    host: str
    port: int
    admin_port: int
    http_port: int | None


@dataclass(frozen=True, slots=True)
class NodeReadyInfo:
    """The state of a node that has started.  `tls`: whether the data and the admin port use TLS."""

    directory: Path
    layout: Layout
    cluster_key: uuid.UUID
    num_partitions: int
    assigned: tuple[int, ...]
    quarantined: tuple[int, ...]
    findings: int
    addresses: NodeAddresses
    tls: bool


class Node:
    """A running node, made by `start`.  Belongs to the event loop in which it was started."""

    def __init__(self, options: NodeOptions, *, version: str, log: logging.Logger) -> None:
        self.options = options
        self.version = version
        self.metrics = NodeMetrics()
        self.storage: StorageDirectory
        self.hosted: HostedStorage
        self.data: DataPort
        self.admin: AdminPort
        self.health: Health
        self.addresses: NodeAddresses
        self._log = log
        self._closed = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._open = contextlib.AsyncExitStack()
        self._http: HttpPort[NodeHealthReport, NodeReading] | None = None
        self._close_partitions: Callable[[], None]

    @classmethod
    async def start(cls, options: NodeOptions, *, log: logging.Logger, version: str = "unknown") -> Node:
        """Start a node; it serves when this returns.

        Raises whatever `NodeOptions.check`, `read_cluster_metadata`, `server_context` and `StorageDirectory.open` raise, and
        ListenError.  After an error no lock, socket or thread is left.
        """
        options.check()
        node = cls(options, version=version, log=log)
        try:
            await node._start()
        except BaseException:
            await node._open.aclose()
            raise
        return node

    async def _start(self) -> None:
        options = self.options
        self.storage, context = await self._open_storage()
        self._close_partitions = self.storage.close
        self._open.push_async_callback(self._close_storage)
        self.hosted = await in_daemon_thread(self._make_hosted, name="node-start", undo=_close_hosted)
        self._close_partitions = lambda: _close_hosted(self.hosted)
        self.data = DataPort(self.hosted, limits=options.limits, log=self._log)
        self.admin = AdminPort(self.hosted, limits=options.limits, log=self._log, metrics=self._registry)
        self.health = Health(self.storage, self.hosted, ports=self._listening, options=options.health)
        self._open.push_async_callback(self.health.close, 1.0)
        for port in (self.data, self.admin):
            self._open.push_async_callback(port.close)
        host, number = await self.data.start(options.host, options.ports.data, context)
        _, admin_number = await self.admin.start(options.host, options.ports.admin, context)
        self.addresses = NodeAddresses(host, number, admin_number, await self._start_http())
        self._log.info(
            "serving %s: data port %d, admin port %d, HTTP port %s at %s",
            self.storage.path,
            number,
            admin_number,
            self.addresses.http_port or "off",
            host,
        )

    async def _open_storage(self) -> tuple[StorageDirectory, ssl.SSLContext | None]:
        options = self.options

        def open_directory() -> tuple[StorageDirectory, ssl.SSLContext | None]:
            self._log.debug("frames and records are handled by: %s", wire_code.prepare())
            key, partitions = _expected_cluster(options)
            context = _server_context(options)
            storage = StorageDirectory.open(
                options.storage_directory,
                expected_key=key,
                expected_partitions=partitions,
                options=options.storage,
            )
            self._log_changes(storage)
            try:
                self._begin_journal(storage)
            except BaseException:
                storage.close()
                raise
            return storage, context

        return await in_daemon_thread(open_directory, name="node-start", undo=lambda made: made[0].close())

    def _begin_journal(self, storage: StorageDirectory) -> None:
        if self.options.journal is None:
            return
        written_back = storage.written_back
        if written_back is not None and written_back.failed:  # the other partitions are served all the same
            self._log.error("appends are not journaled until %s could be written back", written_back.path)
            return
        journal = storage.begin_journal(self.options.journal, log=self._log)
        self._log.info("the commit journal %s is in force", journal.path)

    def _log_changes(self, storage: StorageDirectory) -> None:
        """Log what opening the directory changed by itself."""
        if storage.written_back is not None:
            self._log.warning("what the commit journal %s held was written back", storage.written_back.path)
            for number, error in storage.written_back.failed.items():
                self._log.error("partition %d: the commit journal is kept for it: %s", number, error)
            journal = storage.written_back.path
            if not storage.written_back.failed and is_named(journal) and not is_written(journal):
                self._log.warning(
                    "the commit journal %s stays: this directory may be a copy of one that needs it; remove it if it is not",
                    journal,
                )
        for entry in storage.taken_back:
            self._log.warning("the repair %s was interrupted; it was taken back, byte for byte", entry)
        for partition in storage.partitions.values():
            for finding in partition.mended:
                self._log.warning("mended: %s: %s", finding.code, finding.message)
            for entry in partition.undo_ids:
                self._log.warning("what was taken away from partition %d is kept in %s", partition.number, entry)

    def _make_hosted(self) -> HostedStorage:
        options = self.options
        return HostedStorage(
            self.storage, options=options.service, metrics=self.metrics, log=self._log, health=options.health
        )

    async def _start_http(self) -> int | None:
        if self.options.ports.http is None:
            return None
        from waltzctl.engine.net.http_port import HttpPort
        from waltzctl.engine.node.node_collector import NodeCollector, NodeSurroundings

        self._http = HttpPort(
            self.health.check,
            read=self.read,
            collect=lambda reading, report: NodeCollector(reading, NodeSurroundings.of(report, self.connections())),
            version=self.version,
            log=self._log,
            limits=self.options.http,
        )
        self._open.push_async_callback(self._http.close)
        _, number = await self._http.start(self.options.host, self.options.ports.http)
        return number

    # --- what it shows -----------------------------------------------------------------------------------------------

    @property
    def ready_info(self) -> NodeReadyInfo:
        """The node's present state."""
        partitions = dict(self.storage.partitions)
        return NodeReadyInfo(
            directory=self.storage.path,
            layout=self.storage.layout,
            cluster_key=self.storage.cluster_key,
            num_partitions=self.storage.num_partitions,
            assigned=tuple(sorted(partitions)),
            quarantined=tuple(sorted(number for number, one in partitions.items() if one.damaged)),
            findings=len(self.storage.findings),
            addresses=self.addresses,
            tls=not self.options.plaintext,
        )

    def read(self) -> NodeReading:
        """Read the metrics.  Thread-safe; may wait for a partition that is writing its marks."""
        return read_node(self.storage, self.hosted, self.metrics, version=self.version)

    def connections(self) -> list[tuple[str, int]]:
        """For each port, its name and its number of connections."""
        found = [("data", len(self.data.connections)), ("admin", len(self.admin.connections))]
        if self._http is not None:
            found.append(("http", self._http.open_connections))
        return found

    async def check(self) -> NodeHealthReport:
        """Check the node's health."""
        return await self.health.check()

    def _registry(self) -> str:
        of_cluster = cluster_metrics(self.storage.cluster_key, self.storage.num_partitions)
        return registry((*self.read().metrics(), *of_cluster))

    def _listening(self) -> dict[str, bool]:
        found = {"data": self.data.listening, "admin": self.admin.listening}
        if self._http is not None:
            found["http"] = self._http.listening
        return found

    # --- change and end ----------------------------------------------------------------------------------------------

    async def reload(self, options: NodeOptions) -> Reloaded:
        """Apply the options in `RELOADABLE`: TLS certificates and keys, limits of the ports, thresholds of the health check.

        Certificates are read again even if their options are unchanged.  Open connections keep the old certificates, and the old
        bounds on requests under way.  Raises as `NodeOptions.check` and `server_context`, OverdueError; nothing is changed then.
        """
        options.check()
        made = SingleFlight(lambda: _server_context(options), name="reading the certificates")  # no end waits for it
        context = await made.result(RELOAD_SECONDS)
        self._use_limits(options.limits)
        if context is not None and not self.options.plaintext:
            for port in (self.data, self.admin):
                port.use_context(context)
        self.options, reloaded = reload_fields(self.options, options, RELOADABLE)
        self.health.use(options.health)
        self.hosted.use_health(options.health)
        return reloaded

    def _use_limits(self, limits: PortLimits) -> None:
        """Set the limits of both ports, or of neither: setting them may raise MemoryError."""
        before = self.data.limits
        self.data.limits = limits
        try:
            self.admin.limits = limits
        except BaseException:
            self.data.limits = before
            raise

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Stop: execute and answer the requests that were read, within `drain_seconds` (None: as the options say), and close all.

        A further call waits for the first one's end.  Raises DiskError if closing could not write what a next start merely
        profits from (acknowledged records are durable already); everything is closed all the same.
        """
        if self._stopping is None:
            seconds = self.options.drain_seconds if drain_seconds is None else drain_seconds
            self._stopping = asyncio.get_running_loop().create_task(self._stop(seconds))
        await asyncio.shield(self._stopping)

    async def wait_closed(self) -> None:
        """Wait until the node has stopped."""
        await self._closed.wait()

    async def _stop(self, seconds: float) -> None:
        try:
            async with self._open:
                self.health.begin_draining()
                await asyncio.gather(self.data.drain(seconds), self.admin.drain(seconds))
        finally:
            self._closed.set()

    async def _close_storage(self) -> None:
        """Close the partitions and the directory.  Gives up after a time limit: a stuck disk must not keep the process alive."""
        closing = SingleFlight(self._close_partitions, name="closing the partitions")
        try:
            await closing.result(CLOSING_SECONDS + 5)
        except OverdueError as error:
            raise _stuck_error(self.storage.path, str(error)) from None


def _close_hosted(hosted: HostedStorage) -> None:
    if not hosted.close(CLOSING_SECONDS):
        raise _stuck_error(hosted.storage.path, f"partitions did not come to an end within {CLOSING_SECONDS:g} s")


def _stuck_error(path: Path, what: str) -> DiskWriteError:
    return DiskWriteError(path, None, TimeoutError(errno.ETIMEDOUT, what), doing="close")


def _expected_cluster(options: NodeOptions) -> tuple[uuid.UUID | None, int | None]:
    """The cluster key and number of partitions that the directory must have; None, None without ZooKeeper."""
    if options.zookeeper is None:
        return None, None
    from waltzctl.engine.node.cluster_metadata import prepare_directory, read_cluster_metadata

    metadata = read_cluster_metadata(options.zookeeper)
    prepare_directory(options.storage_directory, metadata)
    return metadata.cluster_key, metadata.num_partitions


def _server_context(options: NodeOptions) -> ssl.SSLContext | None:
    if options.plaintext:
        return None
    from waltzctl.engine.net.tls import server_context

    return server_context(options.tls)
