"""A partition on a log server: it takes appends under optimistic locks and commits them through its store session.

One task takes appends from a queue in the order of their arrival, checks their locks, and sends the admitted ones to the store
session in batches as large as the queue allows.  A committed batch is noted in the lock table, and becomes visible to readers
(`engine.server.committed_transactions`).  An append whose locks conflict with a transaction in flight is set aside (*contended*)
until that is decided; nothing behind it waits.

==================  ============================================================================================
request             answer
==================  ============================================================================================
append, committed   none of its own: the client finds its request id in the feed
append, refused     a lock failure; of a contended one once the transactions in flight in front of it are committed
flush               sent once everything queued before it is decided: an append that the client has seen neither
                    in the feed nor in a lock failure by then has failed
==================  ============================================================================================

When a session ends, its last batches are undecided.  The next session compares the request ids of these appends with those in
its log: a match is committed (release 0.13.2 compares transaction ids only, weakness V14).  An append without a match can no
longer be written by the ended session; it is queued again, in front of all others, and its locks are checked again.  The release
forgets these appends, and their clients wait.

Sources: design document *Waltz Server*; release 0.13.2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from waltzctl.engine.errors import StoreSessionClosedError
from waltzctl.engine.net.connection import OVERHEAD
from waltzctl.engine.net.futures import fail
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.scan.client_appends import NumberedRecords, numbered
from waltzctl.engine.server.append_requests import Append, CheckedAppends, Refused, refuse
from waltzctl.engine.server.committed_transactions import CommittedTransactions
from waltzctl.engine.server.locks import LockTable
from waltzctl.engine.server.mounted_clients import MountedClients
from waltzctl.engine.server.server_metrics import ServerPartitionMetrics, ServerPartitionReading
from waltzctl.engine.server.server_settings import CacheOptions, PartitionOptions
from waltzctl.engine.server.store_partition import PartitionClosedError, StorePartition, closed_error
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.engine.server.transaction_cache import TransactionCache
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.client import UNKNOWN_HIGH_WATER_MARK

_MOST_SESSIONS = 3
"""Sessions in which an append is sent, at most; then it fails, since the append itself may be what ends them."""


@dataclass(frozen=True, slots=True)
class _Flush:
    """Flush requests with no append between them, which share one place in the queue.

    `waiting`: a future for each request, in order of arrival.  A request that is cancelled removes its future.
    """

    waiting: dict[asyncio.Future[int], None] = field(default_factory=dict)


_client_of = attrgetter("client")
_id_of = itemgetter(0)


class Partition:
    """One partition.  Call `start` after construction, and `close` at the end."""

    def __init__(
        self,
        store: StorePartition,
        *,
        log: logging.Logger,
        options: PartitionOptions | None = None,
        cache: TransactionCache | None = None,
        most_bytes: Callable[[], int] = lambda: PortLimits().max_batch,
    ) -> None:
        """`cache`: shared by all partitions of the server.

        `most_bytes`: returns `PortLimits.max_batch` as it is now, the bytes of records in a batch.
        """
        self.store, self._log, self._most_bytes = store, log, most_bytes
        self.options = options or PartitionOptions()
        self.metrics = ServerPartitionMetrics()
        self.committed = CommittedTransactions(
            store, cache or TransactionCache(CacheOptions()), options=self.options, metrics=self.metrics
        )
        self.mounts = MountedClients()
        self._time = asyncio.get_running_loop().time
        self._queue: deque[Append | _Flush] = deque()
        # sent to a session and undecided, each with the transaction id of its first record
        self._pending: deque[tuple[int, Append]] = deque()
        self._batches_in_flight = 0
        # to be refused once the transaction with the id is committed, which was the last in flight in front of them: one of those
        # in flight writes under their locks
        self._contended: deque[tuple[int, Append]] = deque()
        # undecided appends were dropped, or their locks released, though the log may hold them: the next session resets the table
        self._locks_stale = False
        # assigned under a later generation, and no session opened since: another server may have committed meanwhile
        self._reassigned = False
        self._locks: LockTable | None = None  # None before the first session
        # since the last `_send_batch` something was queued or decided, or the session ended
        self._work = asyncio.Event()
        self._closed = False
        self._tasks: dict[asyncio.Task[None], None] = {}  # an insertion-ordered set

    @property
    def number(self) -> int:
        """The partition's number."""
        return self.store.partition

    @property
    def high_water_mark(self) -> int:
        """The last committed transaction; UNKNOWN_HIGH_WATER_MARK before the first session."""
        return self.committed.high_water_mark

    @property
    def announced_mark(self) -> int:
        """The high-water mark for clients that ask: unknown while another server may have committed more than is known here."""
        return UNKNOWN_HIGH_WATER_MARK if self._reassigned else self.high_water_mark

    @property
    def waiting_for_session(self) -> int:
        """Memory in bytes of the appends that are queued or undecided while the partition has no session; 0 if it has one."""
        if self.store.is_open:
            return 0
        queued = (one for one in self._queue if isinstance(one, Append))
        appends = [*queued, *(one for _, one in (*self._pending, *self._contended))]
        return sum(one.size + OVERHEAD * len(one.records) for one in appends)

    @property
    def reading(self) -> ServerPartitionReading:
        """The state for health and metrics.  Thread-safe: it copies the queues in one step each, while the loop changes them."""
        state, queue, undecided = self.store.state, tuple(self._queue), (*tuple(self._pending), *tuple(self._contended))
        seconds = None if state.since is None else self._time() - state.since
        return ServerPartitionReading(
            self.number,
            self.metrics,
            state.generation,
            state.session_id,
            self.high_water_mark,
            sum(len(item.records) if isinstance(item, Append) else 1 for item in queue),
            sum(len(item.records) for _, item in undecided),
            state.waits_for,
            seconds,
        )

    def start(self) -> None:
        """Begin to take appends.  The cache may hold what was read before another server had the partition: forget that."""
        self.committed.forget()
        self._spawn(self._run())

    def raise_generation(self, generation: int) -> None:
        """Continue under a later generation; an equal or earlier one changes nothing.

        Another server may have had the partition in between, and may have told clients that the appends undecided here failed;
        these clients may have appended them there.  Storage may also have lost committed transactions in that time and given
        their ids to others.  Therefore:

        - undecided appends are not sent again, and clients have to mount again before they append;
        - the cache is emptied, and the next session resets the lock table;
        - no high-water mark is told (`announced_mark`) before that session is open.
        """
        if not self.store.raise_generation(generation):
            return
        for _, item in self._pending:
            item.lost = _MOST_SESSIONS
        self._reassigned = True
        self.committed.forget()
        self.end_mounts()

    def is_behind(self, generation: int) -> bool:
        """Whether a client knows a later generation than this server: another server may have committed transactions under it."""
        return generation > self.store.generation

    async def close(self) -> None:
        """Stop: appends are no longer answered; feeds and flushes end with PartitionClosedError.

        Also where the caller is cancelled meanwhile.
        """
        self._closed = True
        self.committed.close()
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            try:
                await self.store.close()
            finally:
                self._forget_undecided()

    def _forget_undecided(self) -> None:
        """Nothing that is queued or undecided is answered any more, nor counts as under way."""
        for item in (*(one for _, one in (*self._pending, *self._contended)), *self._queue):
            if isinstance(item, Append):
                item.over()
            else:
                for done in item.waiting:
                    fail(done, closed_error(self.number))
        self._pending.clear()
        self._contended.clear()
        self._queue.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PartitionClosedError):
            self._log.error("partition %d", self.number, exc_info=error)

    # ---- mounts --------------------------------------------------------------------------------------------------------

    def end_mounts(self) -> None:
        """Drop queued and contended appends and close all connections, so that every client mounts again."""
        for item in (*(one for _, one in self._contended), *self._queue):
            if isinstance(item, Append):
                item.over()
        self._contended.clear()
        self._queue = deque(one for one in self._queue if not isinstance(one, Append))
        self.mounts.close()

    def give_up(self) -> None:
        """Drop all appends, queued and undecided, and have every client mount again.

        The log may hold undecided ones all the same.  The feed will tell them, but the lock table never gets to know their locks.
        """
        pending, self._pending = self._pending, deque()
        self._locks_stale = self._locks_stale or bool(pending)
        for _, item in pending:
            item.over()
        self.end_mounts()

    # ---- appending -----------------------------------------------------------------------------------------------------

    def append(self, request: Append) -> None:
        """Queue appends that arrived together."""
        self._queue.append(request)
        self._work.set()

    async def flush(self) -> int:
        """Wait until everything queued so far is decided; the high-water mark then.  Raises PartitionClosedError."""
        if self._closed:
            raise closed_error(self.number)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        last = self._queue[-1] if self._queue else None
        flush = last if isinstance(last, _Flush) else _Flush()
        if flush is not last:
            self._queue.append(flush)
        flush.waiting[done] = None
        self._work.set()
        try:
            return await done
        finally:
            flush.waiting.pop(done, None)

    async def _run(self) -> None:
        pause = 0.0
        while True:
            session: StoreSession | None = None
            try:
                session = await self.store.session()
                await self._resolve(session)
                await self._send_to(session)
                pause = 0.0
            except StoreSessionClosedError as error:
                self._log.warning("%s", error)
            except PartitionClosedError:
                raise
            except Exception as error:  # for instance MemoryError: no other task takes appends
                self._log.error("partition %d", self.number, exc_info=error)
                if session is not None:
                    await session.close(f"{type(error).__name__}: {error}")
                pause = self.store.pause_after(pause)
                await asyncio.sleep(pause)

    async def _send_to(self, session: StoreSession) -> None:
        """Send the queue to a session.  Once a checkpoint is due, wait until all is decided, close the session, and return.

        Raises StoreSessionClosedError if the session ends by itself.  The release pauses at each checkpoint (V13); here appends
        wait only for the next session's recovery, which is short because no replica lacks anything.
        """
        ended: asyncio.Future[str] = session.closed
        ended.add_done_callback(self._session_ended)
        try:
            while not ended.done():
                self._work.clear()
                checkpoint_due = session.next_transaction_id - 1 - session.low_water_mark >= self.options.checkpoint
                if checkpoint_due and not self._pending:
                    await session.close("a checkpoint: the next session begins with higher low-water marks")
                    return
                if checkpoint_due or not self._send_batch(session):
                    await self._work.wait()
            raise StoreSessionClosedError(f"partition {self.number}: {ended.result()}")
        finally:
            ended.remove_done_callback(self._session_ended)

    def _session_ended(self, _ended: asyncio.Future[str]) -> None:
        self._work.set()

    def _send_batch(self, session: StoreSession) -> bool:
        """Send one batch from the head of the queue and answer the flushes before it, and the appends that are refused.

        False: there was nothing to send, and there will not be until `_work` is set.
        """
        refused = list[Refused]()
        try:
            return self._send_admitted(session, refused)
        finally:
            self._refuse(refused)

    def _send_admitted(self, session: StoreSession, refused: list[Refused]) -> bool:
        """As `_send_batch`; what is refused meanwhile is added to `refused`."""
        batch: list[Append] = []
        # what the batch may still take: appends, and bytes of records
        room, bytes_left = self.options.batch, self._most_bytes()
        first = session.next_transaction_id
        assert self._locks is not None
        while self._queue and room and self._batches_in_flight < self.options.in_flight:
            item = self._queue[0]
            if isinstance(item, _Flush):
                if batch or self._pending or self._contended:
                    break
                self._queue.popleft()
                for done in item.waiting:
                    if not done.done():
                        done.set_result(self.high_water_mark)
                continue
            fitting = item.records.fitting(bytes_left)
            if not fitting and batch:
                break
            # bound the candidates, not the admitted ones: appends that took the place of refused ones might not fit
            candidates = item if fitting >= len(item.records) else item.part(0, max(fitting, 1))
            checked = self._check_locks(candidates, room)
            next_id = first + self.options.batch - room
            contended = [(next_id + in_front - 1, part) for in_front, part in checked.contended]
            if not checked.taken and (batch or self._pending):
                break
            if not checked.taken or (contended and contended[0][0] <= self.high_water_mark):  # and nothing is in flight
                self._log.error("partition %d: locks are held by nobody; the table is reset", self.number)
                self._locks.reset(self.high_water_mark)
                continue
            left_over = item.part(checked.taken, len(item.records)) if checked.taken < len(item.records) else None
            self._queue.popleft()  # only now: `part` may have raised MemoryError
            if left_over is not None:
                self._queue.appendleft(left_over)
            refused += checked.refused
            self._contended += contended
            for part in checked.admitted:
                self._pending.append((first + self.options.batch - room, part))
                batch.append(part)
                room -= len(part.records)
                bytes_left -= len(part.records.data)
        if not batch:
            return False
        self._batches_in_flight += 1
        sent = numbered([one.records for one in batch], first)
        committed = session.append(sent.records)
        committed.add_done_callback(lambda future: self._batch_decided(future, sent, session))
        return True

    def _check_locks(self, item: Append, room: int) -> CheckedAppends:
        """Check the locks of appends in their order, until `room` are admitted, or one has to wait.

        The caller answers refused ones only after it has removed them from the queue: if that raises MemoryError they are checked
        again, and would be answered twice.
        """
        if item.locks is None:
            return CheckedAppends.all_admitted(item if len(item.records) <= room else item.part(0, room))
        assert self._locks is not None
        return CheckedAppends.of(item, self._locks.admit(item.locks, room, self.high_water_mark))

    def _batch_decided(self, committed: asyncio.Future[int], batch: NumberedRecords, session: StoreSession) -> None:
        """A batch is committed, or its session has ended: then its appends stay in `_pending` for the next session."""
        if committed.cancelled() or committed.exception() is not None:
            return
        self._batches_in_flight -= 1
        before = self.high_water_mark
        arrived = self._pending[0][1].arrived if self._pending else self._time()
        decided = list[tuple[int, Append]]()
        while self._pending and self._pending[0][0] <= batch.last:
            decided.append(self._pending.popleft())
        try:
            self._commit(decided, batch)
        except Exception as error:
            if self.high_water_mark < batch.last:  # no reader saw it: the next session will find it in the log
                self._pending.extendleft(reversed(decided))
                self._locks_stale = True
                session.end(f"{type(error).__name__}: {error}")
            raise
        finally:  # also if it could not be cached: feeds will read it from storage
            count = self.high_water_mark - before
            self.metrics.committed.mark(count)
            self.metrics.latency.update(self._time() - arrived, count)  # of the batch's first append
            self._wake()

    def _commit(self, appends: Sequence[tuple[int, Append]], batch: NumberedRecords) -> None:
        """Commit a batch; `appends`: what it consists of, each with the transaction id of its first record.

        What these appends contend is refused, each with the transaction that the release names: as of the commit of what was in
        flight in front of it.
        """
        assert self._locks is not None
        refused = list[Refused]()
        try:
            for transaction_id, item in appends:
                if item.locks is not None:
                    self._locks.commit(item.locks, transaction_id)
                self._decide_contended(transaction_id + len(item.records) - 1, refused)
            self.committed.advance(batch)
            for client, items in groupby((item for _, item in appends), _client_of):
                counts = [(len(item.records), item.size) for item in items]
                client.over(sum(count for count, _ in counts), sum(size for _, size in counts))
            self.committed.keep(batch)
        finally:
            self._refuse(refused)

    def _decide_contended(self, last: int, refused: list[Refused]) -> None:
        """Add the contended appends that are refused once the transactions up to `last` are committed to `refused`."""
        assert self._locks is not None
        while self._contended and self._contended[0][0] <= last:
            in_front, item = self._contended[0]
            assert item.locks is not None
            refused.append((item, self._locks.conflicts(item.locks, in_front)))
            self._contended.popleft()

    def _refuse(self, refused: Sequence[Refused]) -> None:
        if refused:
            self.metrics.rejected.mark(sum(len(conflicts) for _, conflicts in refused))
            refuse(refused)

    def _wake(self) -> None:
        self._work.set()
        self.committed.wake()

    async def _resolve(self, session: StoreSession) -> None:
        """Decide what the last session left undecided, from the log of a new session.

        Raises StoreSessionClosedError if the log cannot be read up to the session's mark: a still later session has begun, whose
        log ends below it.
        """
        mark, self._batches_in_flight = session.high_water_mark, 0
        self.committed.cut(mark)
        if self._locks is None:
            self._locks = LockTable(mark, self.options.lock_slots)
        elif self._reassigned or self._locks_stale or self._pending or mark != self.high_water_mark:
            written: dict[int, RequestId] = {}
            position = self.high_water_mark + 1
            undecided = self._pending[-1][0] + len(self._pending[-1][1].records) - 1 if self._pending else -1
            while position <= mark:
                if position > undecided:
                    position = mark  # another server may have committed millions: the last tells that they are there
                headers = await self.store.headers(position, mark - position + 1)
                if not headers:
                    raise StoreSessionClosedError(
                        f"partition {self.number}: no transaction {position} in a later session"
                    )
                written |= {header.transaction_id: header.request_id for header in headers}
                position = headers[-1].transaction_id + 1
            self._pending = deque(  # one transaction each
                (first + place, item.part(place, place + 1))
                for first, item in self._pending
                for place in range(len(item.records))
            )
            self._resolve_pending(written)
            if self.high_water_mark > mark:
                self._report_lost(mark)
            if self.high_water_mark < mark or self._locks_stale or self._reassigned:  # commits with unknown locks
                self._locks.reset(mark)
            self._locks_stale = False
        self.committed.high_water_mark = max(self.high_water_mark, mark)
        self._reassigned = self._reassigned and not session.is_open  # another reassignment would have ended the session
        self._wake()

    def _resolve_pending(self, written: Mapping[int, RequestId]) -> None:
        """Commit or queue again each transaction of `_pending`.

        `written`: the request id of each transaction that the log holds above the high-water mark.  The entries of `_pending`
        that match are a prefix: behind the first id whose request id differs, none is in the log.  An append that has been sent
        in `_MOST_SESSIONS` sessions fails.

        On an error (for instance MemoryError) the undecided ones stay in `_pending` for the next session.
        """
        assert self._locks is not None
        diverged, unwritten = False, list[tuple[int, Append]]()
        try:
            while self._pending:
                transaction_id, one = self._pending[0]
                if not diverged and written.get(transaction_id) == one.records.request_id(0):
                    try:
                        self._commit([(transaction_id, one)], numbered([one.records], transaction_id))
                    finally:
                        if self.high_water_mark >= transaction_id:
                            self._pending.popleft()
                    continue
                diverged = diverged or transaction_id in written
                if one.locks is not None:
                    self._locks.give_up(one.locks)
                unwritten.append((transaction_id, one))
                self._pending.popleft()
        except BaseException:
            self._pending.extendleft(reversed(unwritten))
            self._locks_stale = True  # the locks of `unwritten` are released already
            raise
        sent_again = list[tuple[int, Append]]()
        for transaction_id, one in unwritten:
            one.lost += 1
            if one.lost < _MOST_SESSIONS:
                sent_again.append((transaction_id, one))
            else:
                one.over()
        # In the order of their arrival: a client takes an append for failed once a later one of it is committed.  What committed
        # transactions contended is refused already.
        again = [one for _, one in merge(sent_again, self._contended, key=_id_of)]
        self._queue.extendleft(reversed(again))
        self._contended.clear()

    def _report_lost(self, mark: int) -> None:
        """Storage has lost committed transactions: the log ends at `mark`.  Clients mount again, which tells them."""
        assert self._locks is not None
        self._log.error(
            "partition %d: the log ends at transaction %d, and this server has committed up to %d: what is behind is gone;"
            " waltzctl compare tells which replicas hold it",
            self.number,
            mark,
            self.high_water_mark,
        )
        self._locks.reset(mark)
        self.committed.high_water_mark = mark
        self.end_mounts()  # a client that has seen more would pass every lock check
