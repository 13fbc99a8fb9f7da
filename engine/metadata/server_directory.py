"""The log server of each partition, for clients of a cluster.

An assignment is reported only if it was made for the servers that are registered now; until there is one, the last one reported
stays in force.

Source: release 0.13.2 (its cluster manager, client side).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waltzctl.engine.errors import unforeseen
from waltzctl.engine.metadata.membership import new_client_id, read_servers
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.metadata.partition_sessions import store_parameters
from waltzctl.engine.metadata.watch_loop import PAUSE, watch_loop
from waltzctl.engine.net.events import happens_within

_REREAD_SECONDS = 10.0
"""Seconds after which the assignment is read again even if no watch has fired."""


@dataclass(frozen=True, slots=True)
class PartitionServer:
    """The server of a partition, and the generation under which it has the partition."""

    host: str
    port: int
    generation: int


OnChange = Callable[[Mapping[int, PartitionServer]], None]


class ServerDirectory:
    """The servers of one cluster.  Made by `open`."""

    def __init__(
        self, store: MetadataStore, num_partitions: int, cluster_key: uuid.UUID, *, log: logging.Logger
    ) -> None:
        self._store, self._log = store, log
        self.num_partitions, self.cluster_key = num_partitions, cluster_key

    @classmethod
    async def open(cls, store: MetadataStore, *, log: logging.Logger) -> ServerDirectory:
        """Raises NotWaltzError where there is no cluster, PeerError."""
        found = await store_parameters(store)
        return cls(store, found.num_partitions, found.cluster_key, log=log)

    @property
    def where(self) -> str:
        """The metadata's location, for messages."""
        return self._store.where

    async def client_id(self) -> int:
        """Issue a new client id; none is issued twice."""
        return await new_client_id(self._store)

    async def follow(self, on_change: OnChange) -> None:
        """Call `on_change` with the server of each partition, now and whenever that changes.  Never returns."""
        last: Mapping[int, PartitionServer] | None = None
        last_error = ""
        changed = asyncio.Event()

        async def look() -> None:
            nonlocal last, last_error
            now = await self._read(changed)
            if now is not None and now != last:
                on_change(now)
                last = now
            last_error = ""

        async def failed(error: Exception) -> None:
            nonlocal last_error
            if last_error != (last_error := str(error) or type(error).__name__):
                self._log.warning("who has which partition is not known: %s", last_error, exc_info=unforeseen(error))
            await asyncio.sleep(PAUSE)

        await watch_loop(changed, look=look, wait=lambda: happens_within(changed, _REREAD_SECONDS), failed=failed)

    async def _read(self, changed: asyncio.Event) -> Mapping[int, PartitionServer] | None:
        assignment, _, cversion, servers = await read_servers(self._store, changed.set)
        if assignment.cversion != cversion:
            return {} if not servers else None
        alive = {one.server: one for _, one in servers}
        return {
            held.partition: PartitionServer(alive[one.server].host, alive[one.server].port, held.generation)
            for one in assignment.servers
            if one.server in alive
            for held in one.partitions
        }
