"""A replica session: one storage node in one store session.

It connects, and tells the recovery what the replica holds; performs what the recovery asks of the replica; and in the open
session sends it the batches, several in flight.  A replica that fails or is slow is left behind: it connects again, copies what
it lacks from the others, every checksum verified, and takes part again.

Everything belongs to one event loop.  Time is the loop's.

Sources: design document *Waltz Server* (replica session); release 0.13.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from waltzctl.engine.errors import DivergedReplicaError, PeerError, ProtocolError, RemoteError, StoreSessionClosedError
from waltzctl.engine.quorum import recovery_actions, recovery_events
from waltzctl.engine.server.server_settings import SessionOptions
from waltzctl.engine.server.storage_nodes import Storage, StorageNodes
from waltzctl.formats.wire.records import PackedRecords, WireRecord

COPIED_BYTES = 1 << 20
"""Bytes of records that a replica which is behind is sent in a frame, unless one record has more.

What another node gives out at once may be longer than what this one takes, each by a setting of its own.
"""


@dataclass(slots=True)
class SentBatch:
    """Records that are appended together, the first of them transaction `first`.

    `committed`: done with the id of the last one.  `voters`: who has written them.
    """

    first: int
    records: PackedRecords
    committed: asyncio.Future[int]
    voters: set[str] = field(default_factory=set)

    def records_from(self, transaction_id: int) -> PackedRecords:
        """The records from a transaction on."""
        return (
            self.records.part(transaction_id - self.first, len(self.records))
            if transaction_id > self.first
            else self.records
        )

    @property
    def last(self) -> int:
        """The id of the last record."""
        return self.first + len(self.records) - 1

    @property
    def size(self) -> int:
        """Bytes of the records."""
        return len(self.records.data)


class StoreSessionView(Protocol):
    """What a replica session needs of its store session (`engine.server.store_session`)."""

    partition: int
    session_id: int
    options: SessionOptions
    nodes: StorageNodes

    @property
    def is_open(self) -> bool:
        """Whether it takes batches."""
        ...

    @property
    def next_transaction_id(self) -> int:
        """The id of the next record that is appended."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something as long as the session lives."""
        ...

    def tell(self, event: recovery_events.Event) -> None:
        """Tell the recovery what happened."""
        ...

    def written(self, node: str, last: int) -> None:
        """A replica has everything up to a transaction."""
        ...

    def lost(self, node: str, error: BaseException, *, with_its_node: bool = False) -> None:
        """A replica cannot be used, or no more; `with_its_node`: as no other there."""
        ...

    def replica_failed(self, node: str, error: BaseException) -> None:
        """Another replica did not give out its records."""
        ...

    def kept_batch(self, transaction_id: int) -> SentBatch | None:
        """The batch that a transaction is in, if it is kept."""
        ...

    async def copied(self, source: str, first: int, count: int) -> tuple[WireRecord, ...]:
        """Records of a replica: at least one, verified.  Raises PeerError, RemoteError."""
        ...

    async def verified(self, storage: Storage, source: str, first: int, count: int) -> tuple[WireRecord, ...]:
        """As `copied`, over a connection that is there."""
        ...

    async def read(self, first: int, count: int) -> tuple[WireRecord, ...]:
        """Committed records, of whichever replica gives them out.  Raises StoreSessionClosedError."""
        ...


class ReplicaSession:
    """One node in one store session.

    `takes_part`: whether it is sent batches.  `acknowledged`: the last transaction that it has written.  `weight`: what it was
    asked to read, in seconds that it took lately; the lightest is asked next.
    """

    _SLOWEST = 3.0

    def __init__(self, session: StoreSessionView, node: str) -> None:
        self.session, self.node = session, node
        self.takes_part = False
        self.acknowledged = -1
        self.weight = 0.0
        self._expected = 0.01
        self._storage: Storage | None = None
        self._sent = -1
        self._in_flight = 0
        self._copying = False
        self._gone = asyncio.Event()
        self._era = 0

    async def live(self) -> None:
        """Connect, for ever again, and tell what the replica holds."""
        session, pause = self.session, 0.0
        while True:
            storage: Storage | None = None
            try:
                storage = await session.nodes.get(self.node)
                info = await storage.last_session_info(session.session_id, session.partition)
                last = await storage.max_transaction_id(session.session_id, session.partition)
            except (PeerError, RemoteError) as error:
                session.lost(self.node, error, with_its_node=storage is None)
                pause = session.options.pause_after(pause)
                if storage is None:
                    await session.nodes.returned(self.node, pause)
                else:
                    await asyncio.sleep(pause)
                continue
            self._gone.clear()  # what failed meanwhile, a read that began before, is not about this connection
            self._storage = storage
            session.tell(recovery_events.Connected(self.node, info.session_id, info.low_water_mark, last))
            begun = asyncio.get_running_loop().time()
            storage.ended.add_done_callback(self._connection_ended)  # also of a session that asks for nothing just now
            try:
                await self._gone.wait()
            finally:
                storage.ended.remove_done_callback(self._connection_ended)
            if asyncio.get_running_loop().time() - begun > session.options.longest_retry:
                pause = 0.0
            pause = session.options.pause_after(pause)
            await asyncio.sleep(pause)

    def _connection_ended(self, ended: asyncio.Future[PeerError]) -> None:
        if self._storage is not None and self._storage.ended is ended:
            self.fail(ended.result())

    def fail(self, error: BaseException) -> None:
        """Whatever was under way is given up; `live` connects again."""
        with_its_node = self._storage is not None and self._storage.closed
        self.takes_part, self._storage = False, None
        self._in_flight, self._copying = 0, False
        self._era += 1
        self.session.lost(self.node, error, with_its_node=with_its_node)
        self._gone.set()

    async def perform(self, action: recovery_actions.Action) -> None:
        """An action of the recovery."""
        session, storage = self.session, self._storage
        if storage is None:
            return  # it failed meanwhile, and the recovery knows
        era = self._era
        try:
            match action:
                case recovery_actions.Truncate(_, to):
                    last = await storage.truncate(session.session_id, session.partition, to)
                    if not -1 <= last <= to:
                        what = f"partition {session.partition} ends with transaction {last} after a cut behind {to}"
                        raise ProtocolError(self.node, what)
                    event: recovery_events.Event = recovery_events.Truncated(self.node, last)
                case recovery_actions.SetLowWaterMark(_, mark):
                    await storage.set_low_water_mark(session.session_id, session.partition, mark)
                    event = recovery_events.MarkSet(self.node)
                case recovery_actions.Compare():
                    event = await self._compare(storage, action)
                case recovery_actions.Exclude(_, other, transaction_id):
                    raise DivergedReplicaError(self.node, session.partition, transaction_id, other)
                case recovery_actions.CatchUp():
                    event = await self._catch_up(storage, action)
                case _:
                    raise AssertionError(action)
        except (PeerError, RemoteError) as error:
            if era == self._era:
                self.fail(error)
            return
        if era == self._era:
            session.tell(event)

    async def _catch_up(self, storage: Storage, action: recovery_actions.CatchUp) -> recovery_events.CaughtUp:
        records = await self._of_other(action.source, action.first, action.last)
        if not records:
            return recovery_events.CaughtUp(self.node, action.first - 1)
        await self._append(storage, records)
        return recovery_events.CaughtUp(self.node, records[-1].transaction_id)

    async def _append(self, storage: Storage, records: Sequence[WireRecord]) -> None:
        for part in portions(records, COPIED_BYTES):
            await storage.append(self.session.session_id, self.session.partition, part)

    async def _compare(self, storage: Storage, action: recovery_actions.Compare) -> recovery_events.Compared:
        """Raises DivergedReplicaError where a transaction is another one than that of the other replica."""
        mine = await self.session.verified(storage, self.node, action.first, action.last - action.first + 1)
        last = action.first - 1
        for one, other in zip(mine, await self._of_other(action.other, action.first, action.last), strict=False):
            if one != other:
                raise DivergedReplicaError(self.node, self.session.partition, one.transaction_id, action.other)
            last = one.transaction_id
        return recovery_events.Compared(self.node, last)

    async def _of_other(self, node: str, first: int, last: int) -> tuple[WireRecord, ...]:
        """Records of another replica, `last` at most the last one; none where that one fails, which it is told."""
        count = last - first + 1
        try:
            return (await self.session.copied(node, first, count))[:count]
        except (PeerError, RemoteError) as error:
            self.session.replica_failed(node, error)
            return ()

    # ---- in the open session -------------------------------------------------------------------------------------------

    def take_part(self, held: int) -> None:
        """The replica holds everything up to `held`, and is sent what follows."""
        self.takes_part = True
        self._sent = self.acknowledged = held
        self.session.written(self.node, held)
        self.pump()

    def pump(self) -> None:
        """Send what is there to be sent, as much as may be in flight."""
        session = self.session
        while (
            self.takes_part
            and session.is_open
            and not self._copying
            and self._in_flight < session.options.in_flight
            and self._sent + 1 < session.next_transaction_id
        ):
            batch = session.kept_batch(self._sent + 1)
            if batch is None:
                if not self._in_flight:
                    self._copying = True
                    session.spawn(self._copy(self._era))
                return
            assert self._storage is not None, "it takes part"
            records = batch.records_from(self._sent + 1)
            written = self._storage.start_append_encoded(
                session.session_id, session.partition, len(records), records.data
            )
            self._sent = batch.last
            self._in_flight += 1
            session.spawn(self._acknowledged(written, self._sent, self._era))

    async def _acknowledged(self, written: asyncio.Future[Any], last: int, era: int) -> None:
        try:
            await written
        except (PeerError, RemoteError) as error:
            if era == self._era:
                self.fail(error)
            return
        if era == self._era:
            self._in_flight -= 1
            self._acknowledge(last)

    async def _copy(self, era: int) -> None:
        """What is kept no more comes from another replica."""
        session, first = self.session, self._sent + 1
        try:
            records = await session.read(first, session.options.copied)
            storage = self._storage
            if era != self._era or storage is None:
                return
            await self._append(storage, records)
        except (StoreSessionClosedError, PeerError, RemoteError) as error:
            if era == self._era:
                self.fail(error)
            return
        if era == self._era:
            self._copying = False
            self._sent = records[-1].transaction_id
            self._acknowledge(self._sent)

    def _acknowledge(self, last: int) -> None:
        self.acknowledged = max(self.acknowledged, last)
        self.session.written(self.node, self.acknowledged)
        self.pump()

    async def read(self, first: int, count: int) -> tuple[WireRecord, ...]:
        """Verified records of this replica, whose share of reads falls with the time that it takes.  Raises as `copied`."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self.weight += self._expected
        records = await self.session.copied(self.node, first, count)
        took = min(max(loop.time() - begun, 0.001), self._SLOWEST)
        self._expected = (self._expected + took) / 2
        return records


def portions(records: Sequence[WireRecord], most: int) -> Iterator[Sequence[WireRecord]]:
    """Records that go in one frame: of `most` bytes together, or a single one."""
    begun = size = 0
    for place, record in enumerate(records):
        if place > begun and size + record.size > most:
            yield records[begun:place]
            begun, size = place, 0
        size += record.size
    if begun < len(records):
        yield records[begun:]
