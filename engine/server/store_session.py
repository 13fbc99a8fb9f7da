"""A store session: the period in which one server, and no other, appends to a partition.

It opens by recovery: `engine.quorum.recovery` decides on actions, and this module performs them.  Then it appends batches of
records above the high-water mark.  A batch is sent to every replica that takes part (`engine.server.replica_session`).  It is
committed when a quorum of the assigned replicas has written it and every earlier batch is committed.  When too few replicas are
left for a quorum the session closes; the recovery of the next session decides whether its last batches are committed.

All calls belong to one event loop; times are the loop's, in seconds.

Sources: design document *Waltz Server* (store session); release 0.13.2.  Not in the release: several batches in flight, a replica
that rejoins the open session, deadlines (weaknesses V1, V7, V13).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from waltzctl.engine.client.admin_records import BatchSize
from waltzctl.engine.errors import (
    PeerError,
    ProtocolError,
    RemoteError,
    StoreSessionClosedError,
    WaltzError,
    copy_anew,
)
from waltzctl.engine.net.futures import fail
from waltzctl.engine.quorum import recovery, recovery_actions, recovery_events
from waltzctl.engine.quorum.recovery_state import Phase
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.engine.server.replica_session import ReplicaSession, SentBatch
from waltzctl.engine.server.server_settings import SessionOptions
from waltzctl.engine.server.storage_nodes import Storage, StorageNodes
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.records import PackedRecords, WireRecord
from waltzctl.formats.znodes import PartitionMetadata, ReplicaState

WriteReplicas = Callable[[tuple[ReplicaState, ...]], Awaitable[None]]
"""Writes replica states into the partition's metadata.  Raises ConcurrentUpdateError when the partition has a later session."""


class StoreSession:
    """One session of a partition.  Call `open` once after construction."""

    def __init__(
        self,
        session_id: int,
        metadata: PartitionMetadata,
        partition: int,
        assigned: Sequence[str],
        nodes: StorageNodes,
        write_replicas: WriteReplicas,
        *,
        log: logging.Logger,
        options: SessionOptions | None = None,
    ) -> None:
        """`metadata`: the partition's, as read when `session_id` was written to it; `assigned`: its storage nodes now.

        Raises ValueError when there are none.
        """
        self.partition, self.session_id = partition, session_id
        self.assigned = frozenset(assigned)
        self.options = options or SessionOptions()
        self.high_water_mark = -1
        self.low_water_mark = -1
        self.ended_at: float | None = None  # in the loop's time; None while it is open, or if it never was
        self._recovery = recovery.begin(partition, session_id, metadata, assigned)
        self.nodes, self._write_replicas, self._log = nodes, write_replicas, log
        self._next_id = 0  # of the next record appended
        self._undecided: deque[SentBatch] = deque()  # not committed yet
        self._kept: deque[SentBatch] = deque()  # in memory for replicas that are behind; ends with `_undecided`
        self._kept_bytes = 0
        self._replicas = {node: ReplicaSession(self, node) for node in assigned}
        self._quorum = quorum_of(len(assigned))
        self._read_size = BatchSize(self.options.copied)
        self._tasks: dict[asyncio.Task[None], None] = {}  # an insertion-ordered set
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[int] = loop.create_future()
        self._closed: asyncio.Future[str] = loop.create_future()

    # ---- life ----------------------------------------------------------------------------------------------------------

    async def open(self, timeout: float | None = None) -> int:
        """Recover; returns the high-water mark above which the session appends.

        Raises StoreSessionClosedError when a later session has begun, or after `timeout` seconds; then the message names the
        replicas that recovery waits for.
        """
        for replica in self._replicas.values():
            self.spawn(replica.live())
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self._opened)
        except TimeoutError:
            why = self.waits_for
            await self.close(f"it did not open within {timeout:g} s: {why}")
            raise self._error() from None
        except asyncio.CancelledError:
            await self.close("nobody waits for it any more")
            raise

    @property
    def waits_for(self) -> str:
        """Why the session is not open, as a text; empty if it is."""
        return recovery.waits_for(self._recovery)

    @property
    def late(self) -> tuple[str, ...]:
        """The nodes whose replicas do not take part yet, without those that are known to have failed."""
        return tuple(node for node, one in self._recovery.replicas.items() if not one.joined and not one.is_gone)

    @property
    def is_open(self) -> bool:
        """Whether it takes batches."""
        return self._opened.done() and not self._closed.done()

    @property
    def closed(self) -> asyncio.Future[str]:
        """Resolves to the reason when the session has ended."""
        return self._closed

    async def close(self, reason: str = "it was closed") -> None:
        """End the session and wait for its tasks: undecided batches fail with StoreSessionClosedError."""
        self.end(reason)
        tasks = [one for one in self._tasks if one is not asyncio.current_task()]
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, reason: str) -> None:
        """As `close`, without waiting: tasks are cancelled, but may not have ended on return."""
        if self._closed.done():
            return
        if self.is_open:
            self.ended_at = asyncio.get_running_loop().time()
        self._closed.set_result(reason)
        self._log.info("partition %d: session %d is closed: %s", self.partition, self.session_id, reason)
        fail(self._opened, self._error())
        for batch in self._undecided:
            fail(batch.committed, self._error())
        for task in self._tasks:
            task.cancel()

    def _error(self) -> StoreSessionClosedError:
        reason = self._closed.result() if self._closed.done() else "it is not open"
        return StoreSessionClosedError(f"partition {self.partition}: session {self.session_id} is closed: {reason}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until the session ends; an error in the task ends the session."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end_by(error)

    def when_done(self, awaited: asyncio.Future[Any], call: Callable[[BaseException | None], None]) -> None:
        """Call `call` with the error of a future, or None, once it is done; not after the session has ended.

        As `spawn`, for what is awaited with every batch: no task is made for it.
        """

        def done(future: asyncio.Future[Any]) -> None:
            error = asyncio.CancelledError() if future.cancelled() else future.exception()  # else asyncio would log it
            if self._closed.done():
                return
            try:
                call(error)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as failure:
                self._end_by(failure)

        awaited.add_done_callback(done)

    def _end_by(self, error: BaseException) -> None:
        self._log.error("partition %d: session %d", self.partition, self.session_id, exc_info=error)
        self.end(f"{type(error).__name__}: {error}")

    # ---- recovery ------------------------------------------------------------------------------------------------------

    def tell(self, event: recovery_events.Event) -> None:
        """Pass an event to the recovery, and start the actions that follow from it."""
        if self._closed.done():
            return
        self._recovery, actions = recovery.step(self._recovery, event)
        for action in actions:
            match action:
                case recovery_actions.Open(mark, nodes):
                    self.high_water_mark = self.low_water_mark = mark
                    self._next_id = mark + 1
                    self._opened.set_result(mark)
                    for node in nodes:
                        self._replicas[node].take_part(mark)
                case recovery_actions.Join(node):
                    held = self._recovery.replicas[node].high_water_mark
                    assert held is not None
                    if held < self._next_id:
                        self._drop_lost_votes(node, held)
                        self._replicas[node].take_part(held)
                    else:  # its records would be taken for those appended under the same ids from now on
                        self._replicas[node].fail(self._foreign_records(node, held))
                case recovery_actions.GiveUp(reason):
                    self.end(reason)
                case recovery_actions.WriteMetadata(replicas):
                    self.spawn(self._write(replicas))
                case _:
                    self.spawn(self._replicas[action.node].perform(action))

    def _foreign_records(self, node: str, held: int) -> PeerError:
        what = f"partition {self.partition}: it holds transactions up to {held}, and was never sent those from {self._next_id} on"
        return PeerError(node, what, advice=f"to have it copied anew: {copy_anew(self.partition)}")

    def _drop_lost_votes(self, node: str, held: int) -> None:
        """A replica joins, perhaps again, and holds transactions up to `held`: it no longer votes for batches above that."""
        known = self._replicas[node].acknowledged
        if held < known:
            self._log.error(
                "partition %d: replica %s: it has lost what it had written, transactions %d to %d",
                self.partition,
                node,
                held + 1,
                known,
            )
        for batch in self._undecided:
            if batch.last > held:
                batch.voters.discard(node)

    async def _write(self, replicas: tuple[ReplicaState, ...]) -> None:
        """Write replica states.  In an open session, to which a replica joins late, retry while the metadata does not answer."""
        pause = 0.0
        while True:
            try:
                await self._write_replicas(replicas)
            except WaltzError as error:
                if not (self.is_open and isinstance(error, PeerError)):
                    self.tell(recovery_events.MetadataLost(f"its replica states cannot be written: {error}"))
                    return
                self._log.warning("partition %d: its replica states are not written as yet: %s", self.partition, error)
            else:
                self.tell(recovery_events.MetadataWritten())
                return
            pause = self.options.pause_after(pause)
            await asyncio.sleep(pause)

    async def copied(self, source: str, first: int, count: int) -> tuple[WireRecord, ...]:
        """Records of the replica on `source`: at least one, with consecutive ids from `first` on, data checksums verified.

        Raises PeerError, RemoteError.
        """
        return await self.verified(await self.nodes.get(source), source, first, count)

    async def verified(self, storage: Storage, source: str, first: int, count: int) -> tuple[WireRecord, ...]:
        """See `copied`.  The number asked for follows the size of records, since a released node does not bound its answer."""
        records = await storage.records(self.session_id, self.partition, first, min(count, self._read_size.count))
        if not records:
            raise ProtocolError(source, f"partition {self.partition}: no record from transaction {first} on")
        self._read_size.learn(records)
        for expected, record in enumerate(records, first):
            if record.transaction_id != expected or not record.data_ok:
                what = "has a wrong checksum" if record.transaction_id == expected else f"is {record.transaction_id}"
                raise ProtocolError(source, f"partition {self.partition}: transaction {expected} {what}")
        return records

    # ---- appending -----------------------------------------------------------------------------------------------------

    @property
    def next_transaction_id(self) -> int:
        """The id of the next record that is appended."""
        return self._next_id

    @property
    def undecided(self) -> int:
        """The number of batches that are not committed yet."""
        return len(self._undecided)

    def append(self, records: PackedRecords) -> asyncio.Future[int]:
        """Send a batch.  The future resolves to the new high-water mark when the batch is committed; batches commit in order.

        The future fails with StoreSessionClosedError when the session ends.  Raises StoreSessionClosedError if it has ended
        already, and ValueError if the ids are not consecutive from `next_transaction_id` on.
        """
        if not self.is_open:
            raise self._error()
        count = len(records)
        ends = (records.transaction_id(0), records.transaction_id(count - 1)) if count else ()
        if ends != (self._next_id, self._next_id + count - 1):
            raise ValueError(f"partition {self.partition}: a batch has to begin at {self._next_id} and to go on by one")
        batch = SentBatch(self._next_id, records, asyncio.get_running_loop().create_future())
        self._next_id = batch.last + 1
        self._undecided.append(batch)
        self._kept.append(batch)
        self._kept_bytes += batch.size
        for replica in self._replicas.values():
            replica.pump()
        self._decide()
        return batch.committed

    def _drop_kept(self) -> None:
        """Drop batches from memory, oldest first.

        ==============================================================  ==========================================================
        a batch                                                         is kept
        ==============================================================  ==========================================================
        not committed                                                   always
        not written by a replica that takes part, or that may connect   while all kept ones are within `kept` and `kept_bytes`
        for the first time
        any other                                                       never
        ==============================================================  ==========================================================

        A replica that lacks a batch that was dropped copies its records from another replica.
        """
        options = self.options
        acknowledged = [
            replica.acknowledged if replica.takes_part else -1
            for node, replica in self._replicas.items()
            if replica.takes_part or not self._recovery.replicas[node].is_gone
        ]
        had_by_all = min(acknowledged, default=self.high_water_mark)
        while (
            self._kept
            and self._kept[0].committed.done()
            and (
                self._kept[0].last <= had_by_all
                or len(self._kept) > options.kept
                or self._kept_bytes > options.kept_bytes
            )
        ):
            self._kept_bytes -= self._kept.popleft().size

    def written(self, node: str, last: int) -> None:
        """A replica has written every transaction up to `last`."""
        for batch in self._undecided:
            if batch.last > last:
                break
            batch.voters.add(node)
        self._decide()

    def _decide(self) -> None:
        while self._undecided and len(self._undecided[0].voters) >= self._quorum:
            batch = self._undecided.popleft()
            self.high_water_mark = batch.last
            if not batch.committed.done():
                batch.committed.set_result(batch.last)
        self._drop_kept()
        live = {node for node, replica in self._replicas.items() if replica.takes_part}
        if self._undecided and len(live | self._undecided[0].voters) < self._quorum and self.is_open:
            self.end(f"{len(live)} of {len(self._replicas)} replicas take part, {self._quorum} are a quorum")

    def kept_batch(self, transaction_id: int) -> SentBatch | None:
        """The batch that contains a transaction, if it is still in memory."""
        for batch in reversed(self._kept):  # most replicas need the last one
            if batch.first <= transaction_id <= batch.last:
                return batch
        return None

    def lost(self, node: str, error: BaseException, *, with_its_node: bool = False) -> None:
        """A replica cannot be used; `with_its_node`: because its node cannot be reached, which `StorageNodes` has logged."""
        if isinstance(error, RemoteError) and error.code == FailureCode.SESSION_CHANGED:
            self.end(f"{node} let a later session in: {error}")
            return
        known, reason = self._recovery.replicas[node], str(error).removeprefix(f"{node}: ")
        if known.phase is not Phase.ABSENT or known.reason != reason:  # `waits_for` has to give the latest reason
            level = logging.DEBUG if with_its_node else logging.WARNING
            self._log.log(level, "partition %d: replica %s: %s", self.partition, node, reason)
            self.tell(recovery_events.Failed(node, reason))
        self._decide()

    def replica_failed(self, node: str, error: BaseException) -> None:
        """Another replica could not read records from the replica on `node`."""
        self._replicas[node].fail(error)

    # ---- reading -------------------------------------------------------------------------------------------------------

    async def read(self, first: int, count: int) -> tuple[WireRecord, ...]:
        """Committed records from transaction `first` on, verified: at least one, none only above the high-water mark.

        Raises StoreSessionClosedError when no replica returns them.
        """
        count = min(count, self.high_water_mark - first + 1)
        if count < 1:
            return ()
        errors = []
        for replica in sorted(self._replicas.values(), key=lambda one: one.weight):
            if not replica.takes_part or replica.acknowledged < first:
                continue
            try:
                return await replica.read(first, min(count, replica.acknowledged - first + 1))
            except (PeerError, RemoteError) as error:
                errors.append(str(error))
                replica.fail(error)
        why = "; ".join(errors) or "no replica that takes part has it"
        raise StoreSessionClosedError(f"partition {self.partition}: nobody gives out transaction {first}: {why}")
