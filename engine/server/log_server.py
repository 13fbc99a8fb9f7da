"""A log server: the partitions that the cluster assigned to it, behind one client port.

Order of a stop: accept no new connections; close the partitions (a recovery that waits for a storage node is given up); end the
clients' connections; end the connections to storage nodes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection, Mapping
from typing import Protocol

from waltzctl.engine.errors import PeerError, RemoteError, WaltzError
from waltzctl.engine.server.client_port import Answers, ClientPort
from waltzctl.engine.server.mounted_clients import MountedClients
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.server_settings import ServerOptions
from waltzctl.engine.server.storage_nodes import Connect, StorageNodes
from waltzctl.engine.server.store_partition import SessionMetadata, StorePartition
from waltzctl.engine.server.transaction_cache import TransactionCache


class ServerMetadata(SessionMetadata, Protocol):
    """The metadata as a server reads it: sessions of each partition, and the storage nodes of all."""

    async def nodes(self) -> frozenset[str]:
        """Every storage node of the assignment, ``host:port``, in one read."""


class LogServer:
    """A running server, bound to the event loop in which it is started."""

    def __init__(
        self,
        metadata: ServerMetadata,
        connect: Connect,
        answers: Answers | None = None,
        *,
        log: logging.Logger,
        options: ServerOptions | None = None,
    ) -> None:
        """`connect`: connects to a storage node and checks the cluster key."""
        self.options = options or ServerOptions()
        self.partitions: dict[int, Partition] = {}
        self.replicas: Mapping[int, tuple[str, ...]] = {}
        """The storage nodes of every partition of the cluster, as last told (`reassign`)."""
        self._storage_nodes: frozenset[str] = frozenset()  # all of these
        self._closing: set[asyncio.Task[None]] = set()  # of partitions that were taken away
        # by partition that was taken away: who may think that it is mounted
        self._left: dict[int, MountedClients] = {}
        self._metadata, self._log = metadata, log
        self._nodes = StorageNodes(connect, log=log)
        self.cache = TransactionCache(self.options.cache)
        self._port = ClientPort(
            self.partitions,
            answers or Answers(self.check_connectivity, _no_preferences),
            limits=self.options.limits,
            log=log,
        )

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None) -> tuple[str, int]:
        """Listen for clients; returns the bound host and port.  Raises ListenError."""
        return await self._port.start(host, port, ssl_context)

    @property
    def port(self) -> ClientPort:
        """The port for clients."""
        return self._port

    async def assign(self, generations: Mapping[int, int]) -> None:
        """Serve these partitions, each under its generation, and no others.

        ==========================  ==========================================================================
        a partition                 what happens
        ==========================  ==========================================================================
        served before, not now      closed; its undecided appends are not answered
        served before, same         nothing: its clients stay mounted
        generation
        served before, later        see `Partition.raise_generation`
        generation
        new                         started
        served once, and again      started; connections through which it was mounted are closed
        ==========================  ==========================================================================

        A client that did not see that a partition went (one of the release mounts it again only when it moves to another server,
        of what it sees) would never notice that its mount is gone.  So if no partition is left, all connections are closed.

        On an error (MemoryError), and where the call is cancelled, removed partitions are closed all the same; after an error the
        call may be repeated.
        """
        gone = [self.partitions.pop(number) for number in [*self.partitions] if number not in generations]
        try:
            self._left.update((one.number, one.mounts) for one in gone)
            for number, generation in generations.items():
                if number in self.partitions:
                    self.partitions[number].raise_generation(generation)
                else:
                    made = self._partition(number, generation)
                    made.start()
                    self.partitions[number] = made
                    if (left := self._left.pop(number, None)) is not None:
                        left.close()
            self._port.opened()
        finally:
            # before the first await: a later call may bring partitions back, without the mounts of their clients
            if not self.partitions:
                self._port.disconnect()
            await asyncio.shield(asyncio.gather(*map(self._close, gone)))

    def _close(self, partition: Partition) -> asyncio.Task[None]:
        """Close a partition in a task of its own, which `stop` waits for."""
        closing = asyncio.ensure_future(partition.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    def _partition(self, number: int, generation: int) -> Partition:
        store = StorePartition(
            number, generation, self._metadata, self._nodes, log=self._log, options=self.options.session
        )
        return Partition(
            store,
            log=self._log,
            options=self.options.partition,
            cache=self.cache,
            most_bytes=lambda: self._port.limits.max_batch,
        )

    async def reassign(self, nodes: Mapping[int, Collection[str]]) -> None:
        """Set the storage nodes of each partition.  Partitions whose nodes changed get a new session, all at the same time."""
        self.replicas = {number: tuple(sorted(names)) for number, names in sorted(nodes.items())}
        served = [(one, nodes.get(number, ())) for number, one in self.partitions.items()]
        await asyncio.gather(*(one.store.reassign(names) for one, names in served))
        now = self._assigned()
        self._nodes.drop(self._storage_nodes - now)  # their sessions are closed
        self._storage_nodes = now

    async def check_connectivity(self) -> tuple[tuple[str, bool], ...]:
        """Whether each storage node of the cluster answers, by name: this server may be given any partition at any moment.

        The names come from the metadata; if it does not answer, from the partitions' sessions.
        """
        try:
            names = await self._metadata.nodes()
            # those that were asked for and left the cluster; `names` may be older than what else is known of the assignment
            if gone := self._nodes.known - names - self._storage_nodes:
                self._nodes.drop(gone - self._in_session() - self._assigned())
        except WaltzError as error:
            self._log.warning("the storage nodes' assignment is not known: %s", error)
            names = self._in_session()

        async def answers(name: str) -> bool:
            try:
                await self._nodes.get(name)
            except (PeerError, RemoteError):
                return False
            return True

        ordered = sorted(names)
        return tuple(zip(ordered, await asyncio.gather(*map(answers, ordered)), strict=True))

    def _assigned(self) -> frozenset[str]:
        """The storage nodes of every partition of the cluster, as last told."""
        return frozenset(name for names in self.replicas.values() for name in names)

    def _in_session(self) -> frozenset[str]:
        """The storage nodes of the partitions' sessions."""
        return frozenset(name for one in self.partitions.values() for name in one.store.state.nodes)

    async def stop(self, seconds: float) -> None:
        """Stop, in the order given above; clients have `seconds` to receive their answers.

        A call that is cancelled waits no longer, and stops everything all the same.
        """
        try:
            await self._port.stop_accepting()
            await self.assign({})
            await asyncio.shield(asyncio.gather(*self._closing))
        finally:  # also where a partition cannot be closed
            try:
                await self._port.drain(seconds)
            finally:
                await self._nodes.close()


async def _no_preferences(partitions: tuple[int, ...], preferred: bool) -> bool:
    """`Answers.prefer` of a server without cluster membership: it keeps no preferences."""
    return False
