"""A log server: the partitions that the cluster gave it, behind one port.

Stop: nobody new is accepted, the partitions are closed (recoveries that wait for somebody are given up), the connections end, and
those to storage nodes go last.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection, Mapping
from typing import Protocol

from waltzctl.engine.errors import PeerError, RemoteError, WaltzError
from waltzctl.engine.server.client_port import Answers, ClientPort
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.server_settings import ServerOptions
from waltzctl.engine.server.storage_nodes import Connect, StorageNodes
from waltzctl.engine.server.store_partition import SessionMetadata, StorePartition
from waltzctl.engine.server.transaction_cache import TransactionCache


class ServerMetadata(SessionMetadata, Protocol):
    """What a server asks of the metadata, for all of its partitions and for each."""

    async def nodes_of(self, partitions: Collection[int]) -> frozenset[str]:
        """The storage nodes that any of these partitions has, ``host:port``, at one look."""


class LogServer:
    """A running server.  Belongs to the event loop in which it is started."""

    def __init__(
        self,
        metadata: ServerMetadata,
        connect: Connect,
        answers: Answers | None = None,
        *,
        log: logging.Logger,
        options: ServerOptions | None = None,
    ) -> None:
        """`connect` connects to a storage node, the cluster's key checked."""
        self.options = options or ServerOptions()
        self.partitions: dict[int, Partition] = {}
        self._metadata, self._log = metadata, log
        self._nodes = StorageNodes(connect, log=log)
        self.cache = TransactionCache(self.options.cache)
        self._port = ClientPort(
            self.partitions,
            answers or Answers(self.check_connectivity, _nowhere),
            limits=self.options.limits,
            log=log,
        )

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None) -> tuple[str, int]:
        """Listen; the address.  Raises ListenError."""
        return await self._port.start(host, port, ssl_context)

    @property
    def port(self) -> ClientPort:
        """The port for clients."""
        return self._port

    async def assign(self, generations: Mapping[int, int]) -> None:
        """Serve these partitions, each under its generation, and no others.

        A partition that stays keeps its clients, unless its generation rose (`Partition.raise_generation`); one that goes is
        closed, and what it had not decided is not answered.  When none is left the connections end: nobody would tell their
        clients if they all came back unchanged.

        Where it fails, without memory, those that go are closed all the same, and it may be called again.
        """
        gone = [self.partitions.pop(number) for number in [*self.partitions] if number not in generations]
        try:
            for number, generation in generations.items():
                if number in self.partitions:
                    self.partitions[number].raise_generation(generation)
                else:
                    made = self._partition(number, generation)
                    made.start()
                    self.partitions[number] = made
        finally:
            # before anything is waited for: partitions may be back by then, and would be strangers to their clients
            if not self.partitions:
                self._port.disconnect()
            await asyncio.gather(*(one.close() for one in gone))

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
        """The storage nodes of partitions are these now.  Only those whose nodes changed get a new session, all at once."""
        served = [(one, nodes.get(number, ())) for number, one in self.partitions.items()]
        await asyncio.gather(*(one.store.reassign(names) for one, names in served))

    async def check_connectivity(self) -> tuple[tuple[str, bool], ...]:
        """Whether each storage node of the partitions that are served here answers.

        While the metadata does not, it is those that have the partitions' sessions.
        """
        try:
            names = await self._metadata.nodes_of([*self.partitions])
        except WaltzError as error:
            self._log.warning("the storage nodes' assignment is not known: %s", error)
            names = frozenset(name for one in self.partitions.values() for name in one.store.state.nodes)

        async def answers(name: str) -> bool:
            try:
                await self._nodes.get(name)
            except (PeerError, RemoteError):
                return False
            return True

        ordered = sorted(names)
        return tuple(zip(ordered, await asyncio.gather(*map(answers, ordered)), strict=True))

    async def stop(self, seconds: float) -> None:
        """End everything; clients have `seconds` to take their answers."""
        await self._port.stop_accepting()
        await self.assign({})
        await self._port.drain(seconds)
        await self._nodes.close()


async def _nowhere(partitions: tuple[int, ...], preferred: bool) -> bool:
    """Preferences of a server that no cluster manager knows."""
    return False
