"""A replica session: one storage node in one store session.

It connects to the node and reports to the recovery what the replica holds; it performs the recovery's actions on the replica; and
in the open session it sends the batches, several in flight.  A replica that fails, or misses a deadline, is disconnected.  After
reconnecting it copies the records it lacks from other replicas, every checksum verified, and takes part again.

All calls belong to one event loop; times are the loop's, in seconds.

Sources: design document *Waltz Server* (replica session); release 0.13.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from waltzctl.engine.errors import DivergedReplicaError, PeerError, ProtocolError, RemoteError, StoreSessionClosedError
from waltzctl.engine.quorum import recovery_actions, recovery_events
from waltzctl.engine.server.server_settings import SessionOptions
from waltzctl.engine.server.storage_nodes import Storage, StorageNodes
from waltzctl.formats.wire.records import PackedRecords, WireRecord

COPIED_BYTES = 1 << 20
"""Bytes of copied records per append request; a single longer record goes alone.

A bound of our own is needed because the source may return more than the destination accepts: each node has its own setting.
"""


@dataclass(slots=True)
class SentBatch:
    """Records that are appended together, under consecutive ids from `first` on.

    `committed`: resolves to the id of the last record.  `voters`: the storage nodes that have written the batch.
    """

    first: int
    records: PackedRecords
    committed: asyncio.Future[int]
    voters: set[str] = field(default_factory=set)

    def records_from(self, transaction_id: int) -> PackedRecords:
        """The records of the batch from this id on."""
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
    """The store session (`engine.server.store_session`) as its replica sessions use it."""

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
        """Run a task until the session ends."""
        ...

    def when_done(self, awaited: asyncio.Future[Any], call: Callable[[BaseException | None], None]) -> None:
        """Call `call` with the error of a future, or None, once it is done; not after the session has ended."""
        ...

    def tell(self, event: recovery_events.Event) -> None:
        """Pass an event to the recovery."""
        ...

    def written(self, node: str, last: int) -> None:
        """A replica has written every transaction up to `last`."""
        ...

    def lost(self, node: str, error: BaseException, *, with_its_node: bool = False) -> None:
        """A replica cannot be used; `with_its_node`: because its node cannot be reached, which concerns all replicas there."""
        ...

    def replica_failed(self, node: str, error: BaseException) -> None:
        """Reading records from another replica, on `node`, failed."""
        ...

    def kept_batch(self, transaction_id: int) -> SentBatch | None:
        """The batch that contains a transaction, if the session still has it in memory."""
        ...

    async def copied(self, source: str, first: int, count: int) -> tuple[WireRecord, ...]:
        """Records of the replica on `source`: at least one, verified.  Raises PeerError, RemoteError."""
        ...

    async def verified(self, storage: Storage, source: str, first: int, count: int) -> tuple[WireRecord, ...]:
        """As `copied`, over the given connection."""
        ...

    async def read(self, first: int, count: int) -> tuple[WireRecord, ...]:
        """Committed records, from any replica that has them.  Raises StoreSessionClosedError."""
        ...


class ReplicaSession:
    """One node in one store session.

    `takes_part`: whether batches are sent to the replica.  `acknowledged`: the last transaction that it has written.  `weight`:
    estimated seconds of all its reads so far; the replica with the least weight serves the next read.
    """

    _MOST_SECONDS = 3.0  # a slower read counts as this

    def __init__(self, session: StoreSessionView, node: str) -> None:
        self.session, self.node = session, node
        self.takes_part = False
        self.acknowledged = -1
        self.weight = 0.0
        self._expected_seconds = 0.01  # for the next read: a decaying average
        self._storage: Storage | None = None  # None: not connected
        self._sent = -1  # the last transaction sent
        self._in_flight = 0  # batches
        self._copying = False  # a copy from another replica is in progress: no batches are sent meanwhile
        self._failed = asyncio.Event()
        self._epoch = 0  # counts failures: a result that belongs to an earlier epoch is ignored

    async def live(self) -> None:
        """Connect and report what the replica holds, again after each failure.  Never returns."""
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
            self._failed.clear()  # set meanwhile by a read that began before this connection
            self._storage = storage
            session.tell(recovery_events.Connected(self.node, info.session_id, info.low_water_mark, last))
            begun = asyncio.get_running_loop().time()
            storage.ended.add_done_callback(self._connection_ended)  # notices the end of an idle connection, too
            try:
                await self._failed.wait()
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
        """Give up everything in progress, and let `live` connect again."""
        with_its_node = self._storage is not None and self._storage.closed
        self.takes_part, self._storage = False, None
        self._in_flight, self._copying = 0, False
        self._epoch += 1
        self.session.lost(self.node, error, with_its_node=with_its_node)
        self._failed.set()

    async def perform(self, action: recovery_actions.Action) -> None:
        """Perform an action of the recovery, and report its outcome."""
        session, storage = self.session, self._storage
        if storage is None:
            return  # the replica has failed since; the recovery has been told
        epoch = self._epoch
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
            if epoch == self._epoch:
                self.fail(error)
            return
        if epoch == self._epoch:
            session.tell(event)

    async def _catch_up(self, storage: Storage, action: recovery_actions.CatchUp) -> recovery_events.CaughtUp:
        records = await self._records_of(action.source, action.first, action.last)
        if not records:
            return recovery_events.CaughtUp(self.node, action.first - 1)
        await self._append(storage, records)
        return recovery_events.CaughtUp(self.node, records[-1].transaction_id)

    async def _append(self, storage: Storage, records: Sequence[WireRecord]) -> None:
        for part in portions(records, COPIED_BYTES):
            await storage.append(self.session.session_id, self.session.partition, part)

    async def _compare(self, storage: Storage, action: recovery_actions.Compare) -> recovery_events.Compared:
        """Compare records with those of another replica.  Raises DivergedReplicaError at the first that differs."""
        mine = await self.session.verified(storage, self.node, action.first, action.last - action.first + 1)
        last = action.first - 1
        for one, other in zip(mine, await self._records_of(action.other, action.first, action.last), strict=False):
            if one != other:
                raise DivergedReplicaError(self.node, self.session.partition, one.transaction_id, action.other)
            last = one.transaction_id
        return recovery_events.Compared(self.node, last)

    async def _records_of(self, node: str, first: int, last: int) -> tuple[WireRecord, ...]:
        """Records `first` to at most `last` of another replica; none if reading fails, which counts as that replica's failure."""
        count = last - first + 1
        try:
            return (await self.session.copied(node, first, count))[:count]
        except (PeerError, RemoteError) as error:
            self.session.replica_failed(node, error)
            return ()

    # ---- in the open session -------------------------------------------------------------------------------------------

    def take_part(self, held: int) -> None:
        """Begin to send: the replica holds every transaction up to `held`."""
        self.takes_part = True
        self._sent = self.acknowledged = held
        self.session.written(self.node, held)
        self.pump()

    def pump(self) -> None:
        """Send the batches that the replica lacks, up to the bound of batches in flight."""
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
                    session.spawn(self._copy(self._epoch))
                return
            assert self._storage is not None, "it takes part"
            records = batch.records_from(self._sent + 1)
            written = self._storage.start_append_encoded(
                session.session_id, session.partition, len(records), records.data
            )
            self._sent = batch.last
            self._in_flight += 1
            session.when_done(written, partial(self._answered, self._sent, self._epoch))

    def _answered(self, last: int, epoch: int, error: BaseException | None) -> None:
        """The answer to a batch that ends with transaction `last`; `error`: None if the replica has written it."""
        if epoch != self._epoch:
            return
        if isinstance(error, (PeerError, RemoteError)):
            self.fail(error)
        elif error is not None:
            raise error
        else:
            self._in_flight -= 1
            self._acknowledge(last)

    async def _copy(self, epoch: int) -> None:
        """Copy transactions from another replica whose batches are no longer in memory."""
        session, first = self.session, self._sent + 1
        try:
            records = await session.read(first, session.options.copied)
            storage = self._storage
            if epoch != self._epoch or storage is None:
                return
            await self._append(storage, records)
        except (StoreSessionClosedError, PeerError, RemoteError) as error:
            if epoch == self._epoch:
                self.fail(error)
            return
        if epoch == self._epoch:
            self._copying = False
            self._sent = records[-1].transaction_id
            self._acknowledge(self._sent)

    def _acknowledge(self, last: int) -> None:
        self.acknowledged = max(self.acknowledged, last)
        self.session.written(self.node, self.acknowledged)
        self.pump()

    async def read(self, first: int, count: int) -> tuple[WireRecord, ...]:
        """Verified records of this replica; counts the time in `weight`.  Raises as `StoreSessionView.copied`."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self.weight += self._expected_seconds
        records = await self.session.copied(self.node, first, count)
        took = min(max(loop.time() - begun, 0.001), self._MOST_SECONDS)
        self._expected_seconds = (self._expected_seconds + took) / 2
        return records


def portions(records: Sequence[WireRecord], most: int) -> Iterator[Sequence[WireRecord]]:
    """Split records into consecutive parts of at most `most` bytes each; a longer record is a part of its own."""
    begun = size = 0
    for place, record in enumerate(records):
        if place > begun and size + record.size > most:
            yield records[begun:place]
            begun, size = place, 0
        size += record.size
    if begun < len(records):
        yield records[begun:]
