"""A partition's storage as its server sees it: one store session after another, and reads that survive their change.

A session is made when there is none that is open, with the generation that the assignment gave, and by one caller at a time;
whoever else wants one waits for the same.  A failure is retried, the pause doubling, until the partition is closed.

Sources: design document *Waltz Server*; release 0.13.2 (store session manager, store partition).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from waltzctl.engine.errors import PeerError, RefusedError, RemoteError, StoreSessionClosedError, WaltzError
from waltzctl.engine.net.events import Turns, happens_within
from waltzctl.engine.server.server_settings import SessionOptions
from waltzctl.engine.server.storage_nodes import StorageNodes
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.records import WireRecord
from waltzctl.formats.znodes import PartitionMetadata, ReplicaState


class PartitionClosedError(RefusedError):
    """The partition is not, or no longer, served here."""


class SessionMetadata(Protocol):
    """A partition's metadata, where sessions are begun and their replica states kept."""

    async def assigned(self, partition: int) -> tuple[str, ...]:
        """The storage nodes of the partition, ``host:port``."""

    async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
        """Count the session up under this generation, and return what is stored then, the new session in it.

        Raises ConcurrentUpdateError when the stored generation is later.
        """

    async def write_replicas(self, partition: int, session_id: int, replicas: tuple[ReplicaState, ...]) -> None:
        """Write replica states.  Raises ConcurrentUpdateError when the stored session is another one."""


@dataclass(frozen=True, slots=True)
class StorePartitionState:
    """For health and metrics.

    `waits_for`: why no session is open, `since`: when that began, in the loop's time; empty and None when one is.  `nodes`: the
    session's storage nodes.
    """

    generation: int
    session_id: int
    high_water_mark: int
    waits_for: str
    since: float | None
    nodes: tuple[str, ...]


class StorePartition:
    """The sessions of one partition."""

    def __init__(
        self,
        partition: int,
        generation: int,
        metadata: SessionMetadata,
        nodes: StorageNodes,
        *,
        log: logging.Logger,
        options: SessionOptions | None = None,
    ) -> None:
        self.partition, self.generation = partition, generation
        self._metadata, self._nodes, self._log = metadata, nodes, log
        self._options = options or SessionOptions()
        self._session: StoreSession | None = None
        self._told: frozenset[str] | None = None  # by `reassign`, since the last look at the assignment
        self._assigned: frozenset[str] | None = None  # by that look
        self._news = asyncio.Event()  # the last attempt was made under another assignment
        self._opening: asyncio.Task[StoreSession] | None = None
        self._openings = Turns()  # that ended
        self._closed = False
        self._last_error = ""
        self._since = asyncio.get_running_loop().time()

    @property
    def state(self) -> StorePartitionState:
        """How it stands."""
        session = self._session
        if session is None:
            why = self._last_error or "no session was wanted yet"
            return StorePartitionState(self.generation, -1, -1, why, self._since, ())
        waits = "" if session.is_open else session.waits_for or self._last_error or "a new session is being opened"
        return StorePartitionState(
            self.generation,
            session.session_id,
            session.high_water_mark,
            waits,
            self._without_since(session) if waits else None,
            tuple(sorted(session.assigned)),
        )

    def _without_since(self, session: StoreSession) -> float:
        """Since when there is no session, where this was the last one: it may be a while before the next one is begun."""
        return self._since if session.ended_at is None else session.ended_at

    async def reassign(self, nodes: Collection[str]) -> None:
        """The partition's storage nodes are these now: a session over others ends, and the next one is over them."""
        self._told = frozenset(nodes)
        if self._told != self._assigned:
            self._news.set()
        if self._session is not None and self._session.assigned != frozenset(nodes):
            await self._session.close("the partition's storage nodes changed")

    def raise_generation(self, generation: int) -> bool:
        """A session of an earlier assignment, also one that is being opened, ends at once; whether this is a later one.

        Another server may have had the partition meanwhile, so that what such a session knows of the log need not be all.
        """
        if generation <= self.generation:
            return False
        self.generation = generation
        self._news.set()
        if self._session is not None:
            self._session.end("the partition was assigned anew")
        return True

    async def close(self) -> None:
        """End the session and whoever waits for one."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._session is not None:
            await self._session.close("the partition was closed")

    def pause_after(self, pause: float) -> float:
        """Seconds before a further attempt, where `pause` were waited before the last one, 0 before the first."""
        return self._options.pause_after(pause)

    @property
    def is_open(self) -> bool:
        """Whether there is an open session."""
        return self._session is not None and self._session.is_open

    async def session(self) -> StoreSession:
        """An open session.  Waits as long as it takes; raises PartitionClosedError."""
        while True:
            if self._closed:
                raise PartitionClosedError(f"partition {self.partition} is closed on this server")
            if self._session is not None and self._session.is_open:
                return self._session
            if self._opening is None or self._opening.done():
                self._opening = asyncio.ensure_future(self._open())
                self._opening.add_done_callback(lambda _: self._openings.happened())
            opening = self._opening
            await self._openings.beyond(self._openings.count)
            if opening.done() and not opening.cancelled():
                return opening.result()

    async def _open(self) -> StoreSession:
        pause = 0.0
        while True:
            try:
                return await self._try()
            except (StoreSessionClosedError, RefusedError, PeerError, RemoteError) as error:
                self._last_error = str(error)
                self._log.warning("partition %d: no session: %s", self.partition, error)
            except WaltzError as error:
                self._last_error = str(error)
                self._log.error("partition %d: no session: %s", self.partition, error)
            pause = self.pause_after(pause)
            if await happens_within(self._news, pause):
                pause = 0.0

    async def _try(self) -> StoreSession:
        if self._session is not None:
            await self._session.close("a new one is opened")
            self._since = self._without_since(self._session)
        self._told = None
        self._news.clear()
        assigned = await self._metadata.assigned(self.partition)
        self._assigned = frozenset(assigned)
        if not assigned:
            raise PartitionClosedError(
                f"partition {self.partition} is assigned to no storage node", advice="waltzctl cluster assign"
            )
        generation = self.generation
        metadata = await self._metadata.begin_session(self.partition, generation)
        changed = "its storage nodes changed" if self._told not in (None, frozenset(assigned)) else ""
        if self.generation != generation:
            changed = "it was assigned anew"
        if changed:  # there was no session yet that could have been ended
            raise StoreSessionClosedError(
                f"partition {self.partition}: {changed} while session {metadata.session_id} began"
            )

        async def write(replicas: tuple[ReplicaState, ...]) -> None:
            await self._metadata.write_replicas(self.partition, metadata.session_id, replicas)

        self._session = StoreSession(
            metadata.session_id,
            metadata,
            self.partition,
            assigned,
            self._nodes,
            write,
            log=self._log,
            options=self._options,
        )
        await self._session.open()
        self._last_error = ""
        return self._session

    async def records(self, first: int, count: int) -> tuple[WireRecord, ...]:
        """Committed records from a transaction on, verified; perhaps fewer than asked for, none behind the last.

        Waits for a session where there is none.  Raises PartitionClosedError.
        """
        pause = 0.0
        while True:
            await self.session()
            try:
                return await self.records_now(first, count)
            except StoreSessionClosedError:
                pause = self.pause_after(pause)
                await asyncio.sleep(pause)

    async def records_now(self, first: int, count: int) -> tuple[WireRecord, ...]:
        """As `records`, by the session that is open.  Raises StoreSessionClosedError where there is none, or it ends."""
        session = self._session
        if session is None or not session.is_open:
            raise StoreSessionClosedError(f"partition {self.partition} has no session")
        try:
            return await session.read(first, count)
        except StoreSessionClosedError as error:
            self._log.warning("%s", error)
            await session.close(str(error))
            raise

    async def headers(self, first: int, count: int) -> tuple[RecordHeader, ...]:
        """As `records`, without the data."""
        found = await self.records(first, count)
        return tuple(RecordHeader(one.transaction_id, one.request_id, one.header) for one in found)
