"""Which log server has which partition, as clients of a cluster ask for it.

Only an assignment that is that of the servers that live is told; in between the last one holds.

Source: release 0.13.2 (its cluster manager, client side).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waltzctl.engine.errors import WaltzError
from waltzctl.engine.metadata.membership import new_client_id, read_servers
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.metadata.partition_sessions import store_parameters
from waltzctl.engine.net.events import happens_within

_PAUSE = 1.0
_LOOK_AGAIN = 10.0
"""Seconds after which the assignment is read even if nobody said that it changed."""


@dataclass(frozen=True, slots=True)
class PartitionServer:
    """The server of a partition, ``host`` and ``port`` of it, and the generation under which it has the partition."""

    host: str
    port: int
    generation: int


Told = Callable[[Mapping[int, PartitionServer]], None]


class ServerDirectory:
    """The servers of one cluster.  Made by `open`."""

    def __init__(self, store: MetadataStore, num_partitions: int, *, log: logging.Logger) -> None:
        self._store, self._log = store, log
        self.num_partitions = num_partitions

    @classmethod
    async def open(cls, store: MetadataStore, *, log: logging.Logger) -> ServerDirectory:
        """Raises NotWaltzError where there is no cluster, PeerError."""
        return cls(store, (await store_parameters(store)).num_partitions, log=log)

    @property
    def where(self) -> str:
        """The metadata, for people."""
        return self._store.where

    async def client_id(self) -> int:
        """A new one; none is ever given twice."""
        return await new_client_id(self._store)

    async def follow(self, told: Told) -> None:
        """Tell who has which partition, now and whenever that changes.  For ever."""
        last: Mapping[int, PartitionServer] | None = None
        said = ""
        changed = asyncio.Event()
        while True:
            changed.clear()
            try:
                now = await self._look(changed)
            except WaltzError as error:
                if said != (said := str(error)):
                    self._log.warning("who has which partition is not known: %s", error)
                await asyncio.sleep(_PAUSE)
                continue
            said = ""
            if now is not None and now != last:
                last = now
                told(now)
            await happens_within(changed, _LOOK_AGAIN)

    async def _look(self, changed: asyncio.Event) -> Mapping[int, PartitionServer] | None:
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
