"""A store session: the time in which one server, and no other, appends to a partition.

It opens by recovery (`engine.quorum.recovery` decides, this performs), and takes batches of records behind the high-water mark.
A batch goes to every replica that takes part (`engine.server.replica_session`); it is committed when a quorum of the assigned
replicas has written it and every batch before it is committed.  When the replicas that are left cannot make a quorum the session
closes, and whether its last batches are committed is for the recovery of the next one to say.

Everything belongs to one event loop.  Time is the loop's.

Sources: design document *Waltz Server* (store session); release 0.13.2.  Ours: several batches in flight, a replica that returns
into the open session, deadlines (weaknesses V1, V7, V13).
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
    """One session of a partition.  Made, then `open`ed once."""

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
        self.ended_at: float | None = None  # in the loop's time; None also where it was never open
        self._state = recovery.begin(partition, session_id, metadata, assigned)
        self.nodes, self._write_replicas, self._log = nodes, write_replicas, log
        self._next = 0
        self._undecided: deque[SentBatch] = deque()
        self._kept: deque[SentBatch] = deque()
        self._kept_bytes = 0
        self._replicas = {node: ReplicaSession(self, node) for node in assigned}
        self._quorum = quorum_of(len(assigned))
        self._read_size = BatchSize(self.options.copied)
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[int] = loop.create_future()
        self._closed: asyncio.Future[str] = loop.create_future()

    # ---- life ----------------------------------------------------------------------------------------------------------

    async def open(self, timeout: float | None = None) -> int:
        """Recover; the high-water mark behind which the session appends.

        Raises StoreSessionClosedError when another session took over, and, with whom it waits for, after `timeout` seconds.
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
        """Why it is not open, for people; empty when it is."""
        return recovery.waits_for(self._state)

    @property
    def late(self) -> tuple[str, ...]:
        """The replicas that do not take part yet and are not known to be unable to."""
        return tuple(node for node, one in self._state.replicas.items() if not one.joined and not one.is_gone)

    @property
    def is_open(self) -> bool:
        """Whether it takes batches."""
        return self._opened.done() and not self._closed.done()

    @property
    def closed(self) -> asyncio.Future[str]:
        """Done with the reason when the session has ended."""
        return self._closed

    async def close(self, reason: str = "it was closed") -> None:
        """End it: nothing is sent any more, and undecided batches end with StoreSessionClosedError."""
        self.end(reason)
        tasks = [one for one in self._tasks if one is not asyncio.current_task()]
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, reason: str) -> None:
        """As `close`, at once: what it has under way is given up, but not waited for."""
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
        """Run something as long as the session lives; what it fails with ends the session."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("partition %d: session %d", self.partition, self.session_id, exc_info=error)
            self.end(f"{type(error).__name__}: {error}")

    # ---- recovery ------------------------------------------------------------------------------------------------------

    def tell(self, event: recovery_events.Event) -> None:
        """Something happened; begin what follows from it."""
        if self._closed.done():
            return
        self._state, actions = recovery.step(self._state, event)
        for action in actions:
            match action:
                case recovery_actions.Open(mark, nodes):
                    self.high_water_mark = self.low_water_mark = mark
                    self._next = mark + 1
                    self._opened.set_result(mark)
                    for node in nodes:
                        self._replicas[node].take_part(mark)
                case recovery_actions.Join(node):
                    held = self._state.replicas[node].high_water_mark
                    assert held is not None
                    if held < self._next:
                        self._returned(node, held)
                        self._replicas[node].take_part(held)
                    else:  # it would be taken for what is given these ids from now on
                        self._replicas[node].fail(self._never_sent(node, held))
                case recovery_actions.GiveUp(reason):
                    self.end(reason)
                case recovery_actions.WriteMetadata(replicas):
                    self.spawn(self._write(replicas))
                case _:
                    self.spawn(self._replicas[action.node].perform(action))

    def _never_sent(self, node: str, held: int) -> PeerError:
        what = f"partition {self.partition}: it holds transactions up to {held}, and was never sent those from {self._next} on"
        return PeerError(node, what, advice=f"to have it copied anew: {copy_anew(self.partition)}")

    def _returned(self, node: str, held: int) -> None:
        """A replica takes part, perhaps again: of what it wrote and does not hold any more it is no voter."""
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
        """An open session, to which a replica comes late, needs no metadata that answers: it goes on, and writes it later."""
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
        """Records of a replica: at least one, each the next one and agreeing with its checksum.

        Raises PeerError, RemoteError.
        """
        return await self.verified(await self.nodes.get(source), source, first, count)

    async def verified(self, storage: Storage, source: str, first: int, count: int) -> tuple[WireRecord, ...]:
        """See `copied`.  A released node gives out as many as it is asked for, however long they are together."""
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
        return self._next

    @property
    def undecided(self) -> int:
        """Batches that are neither committed nor given up."""
        return len(self._undecided)

    def append(self, records: PackedRecords) -> asyncio.Future[int]:
        """Send a batch, whose first record has `next_transaction_id`; done with the new high-water mark when it is committed.

        Batches are committed in order.  The future ends with StoreSessionClosedError when the session does; raises the same
        where it is closed already, and ValueError for ids that do not follow.
        """
        if not self.is_open:
            raise self._error()
        count = len(records)
        ends = (records.transaction_id(0), records.transaction_id(count - 1)) if count else ()
        if ends != (self._next, self._next + count - 1):
            raise ValueError(f"partition {self.partition}: a batch has to begin at {self._next} and to go on by one")
        batch = SentBatch(self._next, records, asyncio.get_running_loop().create_future())
        self._next = batch.last + 1
        self._undecided.append(batch)
        self._kept.append(batch)
        self._kept_bytes += batch.size
        for replica in self._replicas.values():
            replica.pump()
        self._decide()
        return batch.committed

    def _forget(self) -> None:
        """Keep what is not committed, and within bounds what a replica does not have that takes part or is about to.

        One that is further behind copies what it lacks from another one.
        """
        options = self.options
        acknowledged = [
            replica.acknowledged if replica.takes_part else -1
            for node, replica in self._replicas.items()
            if replica.takes_part or not self._state.replicas[node].is_gone
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
        """A replica has everything up to a transaction."""
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
        self._forget()
        live = {node for node, replica in self._replicas.items() if replica.takes_part}
        if self._undecided and len(live | self._undecided[0].voters) < self._quorum and self.is_open:
            self.end(f"{len(live)} of {len(self._replicas)} replicas take part, {self._quorum} are a quorum")

    def kept_batch(self, transaction_id: int) -> SentBatch | None:
        """The batch that a transaction is in, if it is kept."""
        for batch in reversed(self._kept):  # who is not behind wants the last one
            if batch.first <= transaction_id <= batch.last:
                return batch
        return None

    def lost(self, node: str, error: BaseException, *, with_its_node: bool = False) -> None:
        """A replica cannot be used, or no more; `with_its_node`: as no other there, which `StorageNodes` has told."""
        if isinstance(error, RemoteError) and error.code == FailureCode.SESSION_CHANGED:
            self.end(f"{node} let a later session in: {error}")
            return
        known, reason = self._state.replicas[node], str(error).removeprefix(f"{node}: ")
        if known.phase is not Phase.ABSENT or known.reason != reason:  # who waits for it is told what is wrong by now
            level = logging.DEBUG if with_its_node else logging.WARNING
            self._log.log(level, "partition %d: replica %s: %s", self.partition, node, reason)
            self.tell(recovery_events.Failed(node, reason))
        self._decide()

    def replica_failed(self, node: str, error: BaseException) -> None:
        """Another replica, which wanted records of this one, was not given them."""
        self._replicas[node].fail(error)

    # ---- reading -------------------------------------------------------------------------------------------------------

    async def read(self, first: int, count: int) -> tuple[WireRecord, ...]:
        """Committed records from a transaction on, at least one where there is one; verified.

        Raises StoreSessionClosedError when no replica gives them out.
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
