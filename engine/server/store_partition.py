"""The storage of one partition: one store session after another, and reads that outlast a change of session.

A session is opened under the generation of the assignment, when a caller needs one and none is open.  Further callers wait for
the same attempt.  A failed attempt is repeated after a pause that doubles, until the partition is closed.

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


def closed_error(partition: int) -> PartitionClosedError:
    """The error for calls to a partition after its `close`."""
    return PartitionClosedError(f"partition {partition} is closed on this server")


class SessionMetadata(Protocol):
    """The metadata of partitions: storage nodes, session ids, replica states."""

    async def assigned(self, partition: int) -> tuple[str, ...]:
        """The storage nodes of the partition, ``host:port``."""

    async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
        """Increment the stored session id, store the generation, and return the partition's metadata as stored.

        Raises ConcurrentUpdateError when the stored generation is later.
        """

    async def write_replicas(self, partition: int, session_id: int, replicas: tuple[ReplicaState, ...]) -> None:
        """Write replica states.  Raises ConcurrentUpdateError when the stored session id is not `session_id`."""


@dataclass(frozen=True, slots=True)
class StorePartitionState:
    """A partition's session at one moment, for health and metrics.

    `waits_for`: why no session is open; empty if one is.  `since`: since when none is open, in the loop's time; None if one is.
    `nodes`: the session's storage nodes.  Session id and high-water mark are -1 before the first session.
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
        # storage nodes: as the last attempt read them from the metadata, and as given to `reassign` since that read
        self._last_assigned: frozenset[str] | None = None
        self._reassigned_to: frozenset[str] | None = None
        # nodes or generation changed since the last attempt: repeat it without a pause
        self._retry_now = asyncio.Event()
        self._opening: asyncio.Task[StoreSession] | None = None
        self._openings_ended = Turns()
        self._closed = False
        self._last_error = ""
        self._since = asyncio.get_running_loop().time()  # of the last open session's end; at first, of construction

    @property
    def state(self) -> StorePartitionState:
        """The state for health and metrics."""
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
            self._down_since(session) if waits else None,
            tuple(sorted(session.assigned)),
        )

    def _down_since(self, session: StoreSession) -> float:
        """Since when no session is open, if `session` is the last one: its end if it was ever open."""
        return self._since if session.ended_at is None else session.ended_at

    async def reassign(self, nodes: Collection[str]) -> None:
        """Set the partition's storage nodes.  A session with other nodes is closed; the next one uses these."""
        self._reassigned_to = frozenset(nodes)
        if self._reassigned_to != self._last_assigned:
            self._retry_now.set()
        if self._session is not None and self._session.assigned != frozenset(nodes):
            await self._session.close("the partition's storage nodes changed")

    def raise_generation(self, generation: int) -> bool:
        """Set a later generation and end the session, open or being opened.  Returns False, and does nothing, if it is not later.

        Another server may have had the partition in between and appended to the log, which the session would not know.
        """
        if generation <= self.generation:
            return False
        self.generation = generation
        self._retry_now.set()
        if self._session is not None:
            self._session.end("the partition was assigned anew")
        return True

    async def close(self) -> None:
        """End the session, and the waiting of callers for one; also where the caller is cancelled meanwhile."""
        self._closed = True
        try:
            if self._opening is not None:
                self._opening.cancel()
                await asyncio.gather(self._opening, return_exceptions=True)
        finally:
            if self._session is not None:
                await self._session.close("the partition was closed")

    def pause_after(self, pause: float) -> float:
        """Seconds to wait before the next attempt; `pause`: seconds waited before the last one, 0 if there was none."""
        return self._options.pause_after(pause)

    @property
    def is_open(self) -> bool:
        """Whether there is an open session."""
        return self._session is not None and self._session.is_open

    async def session(self) -> StoreSession:
        """An open session.  Waits for one, without a deadline.  Raises PartitionClosedError."""
        while True:
            if self._closed:
                raise closed_error(self.partition)
            if self._session is not None and self._session.is_open:
                return self._session
            if self._opening is None or self._opening.done():
                self._opening = asyncio.ensure_future(self._open())
                self._opening.add_done_callback(lambda _: self._openings_ended.happened())
            opening = self._opening
            await self._openings_ended.beyond(self._openings_ended.count)
            if opening.done() and not opening.cancelled():
                return opening.result()

    async def _open(self) -> StoreSession:
        pause = 0.0
        while True:
            try:
                return await self._try()
            except WaltzError as error:
                usual = isinstance(error, StoreSessionClosedError | RefusedError | PeerError | RemoteError)
                if self._last_error != str(error):  # told once: thousands of partitions may be tried for days
                    level = logging.WARNING if usual else logging.ERROR
                    self._log.log(level, "partition %d: no session: %s", self.partition, error)
                self._last_error = str(error)
            pause = self.pause_after(pause)
            if await happens_within(self._retry_now, pause):
                pause = 0.0

    async def _try(self) -> StoreSession:
        if self._session is not None:
            await self._session.close("a new one is opened")
            self._since = self._down_since(self._session)
        self._reassigned_to = None
        self._retry_now.clear()
        assigned = await self._metadata.assigned(self.partition)
        self._last_assigned = frozenset(assigned)
        if not assigned:
            raise PartitionClosedError(
                f"partition {self.partition} is assigned to no storage node", advice="waltzctl cluster assign"
            )
        generation = self.generation
        metadata = await self._metadata.begin_session(self.partition, generation)
        changed = "its storage nodes changed" if self._reassigned_to not in (None, frozenset(assigned)) else ""
        if self.generation != generation:
            changed = "it was assigned anew"
        if changed:  # `reassign` and `raise_generation` found no session to end
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
        """Committed records from transaction `first` on, checksums verified: 1 to `count`, none only above the high-water mark.

        Waits for a session if there is none.  Raises PartitionClosedError.
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
        """As `records`, in the open session.  Raises StoreSessionClosedError if there is none, or if it ends."""
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
