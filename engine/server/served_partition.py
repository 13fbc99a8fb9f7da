"""A partition on a log server: appends under optimistic locks, feeds, data on demand.

One task takes appends from a queue in the order of their arrival, lets those through whose locks allow it, and sends them to the
store session in batches as large as they come.  What is committed is noted in the lock table and told to the feeds, in the order
of the transactions.

An append is answered by its own appearance in the feed, or by a lock failure; there is no other message.  A flush is answered
when everything queued before it is decided, so that a client knows then that what it has not seen failed.  When a session ends
with batches undecided, the next one tells by the request ids of the records which of them were written (release 0.13.2 goes by
their number, weakness V14).  Those that were not can never come to be in the log any more; they are sent again, under the locks
as they are then, before anything that came behind them (the release forgets them, and their clients wait).

Sources: design document *Waltz Server*; release 0.13.2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from waltzctl.engine.errors import StoreSessionClosedError
from waltzctl.engine.net.connection import OVERHEAD
from waltzctl.engine.net.events import Turns
from waltzctl.engine.net.futures import fail
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.scan.client_appends import NumberedRecords, numbered
from waltzctl.engine.scan.wire_layout import ADMITTED
from waltzctl.engine.server.append_requests import Append
from waltzctl.engine.server.locks import LockTable
from waltzctl.engine.server.server_metrics import CommittedInSecond, ServerPartitionMetrics, ServerPartitionReading
from waltzctl.engine.server.server_settings import CacheOptions, PartitionOptions
from waltzctl.engine.server.store_partition import PartitionClosedError, StorePartition
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.engine.server.transaction_cache import CHUNK, TransactionCache
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.client import UNKNOWN_HIGH_WATER_MARK
from waltzctl.formats.wire.feed_frames import FEED_FRAME, feed_frames


class Mounted(Protocol):
    """A connection through which clients mount."""

    def close(self) -> None:
        """End it; its clients mount through another one."""


_GRANTS_A_SECOND = 4
"""How often a reader of all that a busy partition commits has to ask for more."""
_SESSIONS = 3
"""Sessions in which an append is sent before it is given up: it may be what they end by."""


@dataclass(frozen=True, slots=True)
class _Flush:
    """`waiting`: who is told.  Those that came one behind the other share one, and who gives up leaves nothing in the queue."""

    waiting: dict[asyncio.Future[int], None] = field(default_factory=dict)


_client_of = attrgetter("client")


class Reader(Protocol):
    """Who takes a feed."""

    @property
    def closed(self) -> bool:
        """Whether nobody listens any more."""

    async def writable(self) -> None:
        """Wait until it takes more."""

    def feed(self, frames: bytes) -> None:
        """Send transactions: `FeedData` of the latest version back to back."""


class Partition:
    """One partition; `start` it, `close` it."""

    def __init__(
        self,
        store: StorePartition,
        *,
        log: logging.Logger,
        options: PartitionOptions | None = None,
        cache: TransactionCache | None = None,
        most_bytes: Callable[[], int] = lambda: PortLimits().max_batch,
    ) -> None:
        """`cache`: the server's, which its partitions share.  `most_bytes`: `PortLimits.max_batch` at the moment."""
        self.store, self._log, self._most_bytes = store, log, most_bytes
        self.options = options or PartitionOptions()
        self.metrics = ServerPartitionMetrics()
        self._cache = cache or TransactionCache(CacheOptions())
        self._time = asyncio.get_running_loop().time
        self.high_water_mark = UNKNOWN_HIGH_WATER_MARK
        self._queue: deque[Append | _Flush] = deque()
        self._pending: deque[tuple[int, Append]] = deque()
        self._batches = 0
        self._forgot = False  # what was undecided
        self._anew = False  # assigned, and what another server committed is not known yet
        self._second = CommittedInSecond(self._time())
        self._locks: LockTable | None = None
        self._work = asyncio.Event()
        self._advanced = Turns()
        self._closed = False
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order
        self._connections: dict[int, tuple[int, int, Mounted]] = {}

    @property
    def number(self) -> int:
        """The partition."""
        return self.store.partition

    @property
    def told_mark(self) -> int:
        """The high-water mark for whoever asks: none as long as another server may have committed what is not known here yet."""
        return UNKNOWN_HIGH_WATER_MARK if self._anew else self.high_water_mark

    @property
    def waiting_for_session(self) -> int:
        """Bytes that appends hold, queued or undecided, as long as there is no session; 0 where there is one."""
        if self.store.is_open:
            return 0
        appends = [*(one for one in self._queue if isinstance(one, Append)), *(one for _, one in self._pending)]
        return sum(one.size + OVERHEAD * len(one.records) for one in appends)

    @property
    def reading(self) -> ServerPartitionReading:
        """How it stands, for health and metrics.  Thread-safe: what the loop changes meanwhile is copied in one step."""
        state, queue, pending = self.store.state, tuple(self._queue), tuple(self._pending)
        seconds = None if state.since is None else self._time() - state.since
        return ServerPartitionReading(
            self.number,
            self.metrics,
            state.generation,
            state.session_id,
            self.high_water_mark,
            sum(len(item.records) if isinstance(item, Append) else 1 for item in queue),
            sum(len(item.records) for _, item in pending),
            state.waits_for,
            seconds,
            state.nodes,
        )

    def start(self) -> None:
        """Begin to work.  Another server may have had the partition since something of it was kept here."""
        self._cache.forget(self.number)
        self._spawn(self._appends())

    def raise_generation(self, generation: int) -> None:
        """A later assignment, if it is one: the next session tells what is in the log; whoever asks waits for it.

        Another server may have had the partition meanwhile and told clients, by their mounts there, that what is undecided here
        failed; by now they have appended it there.  So nothing of it is sent any more, nor is what still arrives from those who
        mounted before: their connections end.  Nor is anything known of what was written under locks, or kept for feeds: storage
        may have lost committed transactions while that server had the partition, which it has told of, and others have their ids.
        """
        if not self.store.raise_generation(generation):
            return
        for _, item in self._pending:
            item.lost = _SESSIONS
        self._anew = True
        self._cache.forget(self.number)
        self.end_mounts()

    async def close(self) -> None:
        """Stop: nothing more is answered; feeds and flushes end with PartitionClosedError."""
        self._closed = True
        self._wake()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()
        for item in (*(one for _, one in self._pending), *self._queue):
            if isinstance(item, Append):
                item.over()
            else:
                for done in item.waiting:
                    fail(done, self._closed_error())
        self._pending.clear()
        self._queue.clear()

    def _closed_error(self) -> PartitionClosedError:
        return PartitionClosedError(f"partition {self.number} is closed on this server")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PartitionClosedError):
            self._log.error("partition %d", self.number, exc_info=error)

    # ---- connections ---------------------------------------------------------------------------------------------------

    def register(self, client: int, generation: int, sequence: int, connection: Mounted) -> None:
        """A client mounts through a connection; that of a later generation, or a later one in the same, counts from then on."""
        known = self._connections.get(client)
        if known is None or (generation, sequence) >= known[:2]:
            self._connections[client] = generation, sequence, connection

    def is_registered(self, client: int, connection: Mounted) -> bool:
        """Whether the client mounted through this connection, and through no later one."""
        known = self._connections.get(client)
        return known is not None and known[2] is connection

    def forget(self, connection: Mounted) -> None:
        """A connection is gone."""
        for client in [one for one, known in self._connections.items() if known[2] is connection]:
            del self._connections[client]

    def end_mounts(self) -> None:
        """Have every client mount anew; nothing of what they have queued is sent."""
        for item in (one for one in self._queue if isinstance(one, Append)):
            item.over()
        self._queue = deque(one for one in self._queue if not isinstance(one, Append))
        connections = dict.fromkeys(connection for _, _, connection in self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()

    def give_up(self) -> None:
        """Forget what waits for a session, also what the last one left undecided, and have every client mount anew.

        What of it is in the log the feeds of the next session tell; its locks are not known any more.
        """
        pending, self._pending = self._pending, deque()
        self._forgot = self._forgot or bool(pending)
        for _, item in pending:
            item.over()
        self.end_mounts()

    # ---- appending -----------------------------------------------------------------------------------------------------

    def append(self, request: Append) -> None:
        """Queue appends."""
        self._queue.append(request)
        self._work.set()

    async def flush(self) -> int:
        """The high-water mark when everything queued before this is decided.  Raises PartitionClosedError."""
        if self._closed:
            raise self._closed_error()
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

    async def _appends(self) -> None:
        pause = 0.0
        while True:
            session: StoreSession | None = None
            try:
                session = await self.store.session()
                await self._resolve(session)
                await self._feed_session(session)
                pause = 0.0
            except StoreSessionClosedError as error:
                self._log.warning("%s", error)
            except PartitionClosedError:
                raise
            except Exception as error:  # such as no memory: nobody else takes appends
                self._log.error("partition %d", self.number, exc_info=error)
                if session is not None:
                    await session.close(f"{type(error).__name__}: {error}")
                pause = self.store.pause_after(pause)
                await asyncio.sleep(pause)

    async def _feed_session(self, session: StoreSession) -> None:
        """Send what is queued to a session until a checkpoint is due, and then once all of it is decided.

        Raises StoreSessionClosedError when the session ends before.  The release waits a while at each checkpoint (V13); here
        appends wait as long as a recovery takes in which nothing is missing.
        """
        ended: asyncio.Future[str] = session.closed
        while True:
            if ended.done():
                raise StoreSessionClosedError(f"partition {self.number}: {ended.result()}")
            self._work.clear()
            due = session.next_transaction_id - 1 - session.low_water_mark >= self.options.checkpoint
            if due and not self._pending:
                await session.close("a checkpoint: the next session begins with higher low-water marks")
                return
            if due or not self._send(session):
                waiting: asyncio.Future[Any] = asyncio.ensure_future(self._work.wait())
                try:
                    await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()

    def _send(self, session: StoreSession) -> bool:
        """One step: a batch, or a flush; False when there is nothing to do before something is decided or queued."""
        batch: list[Append] = []
        room, first, left = self.options.batch, session.next_transaction_id, self._most_bytes()
        assert self._locks is not None
        while self._queue and room and self._batches < self.options.in_flight:
            item = self._queue[0]
            if isinstance(item, _Flush):
                if batch or self._pending:
                    break
                self._queue.popleft()
                for done in item.waiting:
                    if not done.done():
                        done.set_result(self.high_water_mark)
                continue
            fitting = item.records.fitting(left)
            if not fitting and batch:
                break
            # so many as fit whichever of them are refused: those behind them are not let in instead
            some = item if fitting >= len(item.records) else item.part(0, max(fitting, 1))
            admitted, refused, judged = self._judge(some, room)
            if not judged:
                if batch or self._pending:
                    break
                self._log.error("partition %d: locks are held by nobody; the table is reset", self.number)
                self._locks.reset(self.high_water_mark)
                continue
            left_over = item.part(judged, len(item.records)) if judged < len(item.records) else None
            self._queue.popleft()  # not before there was memory for what is left of it
            if left_over is not None:
                self._queue.appendleft(left_over)
            for part, written in refused:
                self._refuse(part, written)
            for part in admitted:
                self._pending.append((first + self.options.batch - room, part))
                batch.append(part)
                room -= len(part.records)
                left -= len(part.records.data)
        if not batch:
            return False
        self._batches += 1
        sent = numbered([one.records for one in batch], first)
        committed = session.append(sent.records)
        committed.add_done_callback(lambda future: self._decided(future, sent, session))
        return True

    def _judge(self, item: Append, room: int) -> tuple[list[Append], list[tuple[Append, list[int]]], int]:
        """Those of the first of some appends whose locks allow it, `room` at most; the others; and how many are judged.

        None is when the first one has to wait.  The others with what is in the way of each: they are told once they have left
        the queue, or they were told twice where there is no memory for what is left of it.
        """
        count = len(item.records)
        if item.locks is None:
            return [item if count <= room else item.part(0, room)], [], min(count, room)
        assert self._locks is not None
        verdicts = self._locks.admit(item.locks, room)
        judged, begun = len(verdicts), 0
        if verdicts.count(ADMITTED) == count:
            return [item], [], count
        admitted, refused = list[Append](), list[tuple[Append, list[int]]]()
        for fine, group in groupby(verdicts, ADMITTED.__eq__):
            stop = begun + len(written := [*group])
            part = item.part(begun, stop)
            if fine:
                admitted.append(part)
            else:
                refused.append((part, written))
            begun = stop
        return admitted, refused, judged

    def _refuse(self, item: Append, in_the_way: Sequence[int]) -> None:
        self.metrics.rejected.mark(len(in_the_way))
        for place, transaction_id in enumerate(in_the_way):
            item.client.refused(item.records.request_id(place), transaction_id)
        item.over()

    def _decided(self, committed: asyncio.Future[int], batch: NumberedRecords, session: StoreSession) -> None:
        """A batch is committed; what a session leaves undecided waits for the next one."""
        if committed.cancelled() or committed.exception() is not None:
            return
        self._batches -= 1
        before = self.high_water_mark
        arrived = self._pending[0][1].arrived if self._pending else self._time()
        decided = list[tuple[int, Append]]()
        while self._pending and self._pending[0][0] <= batch.last:
            decided.append(self._pending.popleft())
        try:
            self._commit(decided, batch)
        except Exception as error:
            if self.high_water_mark < batch.last:  # nobody was told: the next session finds it in the log
                self._pending.extendleft(reversed(decided))
                self._forgot = True
                session.end(f"{type(error).__name__}: {error}")
            raise
        finally:  # also where there was no memory to keep it: feeds read it from storage
            count = self.high_water_mark - before
            self.metrics.committed.mark(count)
            self.metrics.latency.update(self._time() - arrived, count)  # of the batch's oldest; they arrived together
            self._wake()

    def _commit(self, appends: Sequence[tuple[int, Append]], batch: NumberedRecords) -> None:
        """Appends, each with the id of its first one, that are the transactions of a batch now."""
        assert self._locks is not None
        for transaction_id, item in appends:
            if item.locks is not None:
                self._locks.commit(item.locks, transaction_id)
        self.high_water_mark = batch.last
        self._second.note(self._time(), len(batch.records))
        for client, items in groupby((item for _, item in appends), _client_of):
            counts = [(len(item.records), item.size) for item in items]
            client.over(sum(count for count, _ in counts), sum(size for _, size in counts))
        self._cache.put(self.number, batch)

    def _wake(self) -> None:
        self._work.set()
        self._advanced.happened()

    async def _resolve(self, session: StoreSession) -> None:
        """Look, in a new session, which of the last one's batches are in the log.

        Raises StoreSessionClosedError where another session took its place meanwhile, whose log ends earlier.
        """
        mark, self._batches = session.high_water_mark, 0
        self._cache.cut(self.number, mark)
        if self._locks is None:
            self._locks = LockTable(mark, self.options.lock_slots)
        elif self._anew or self._forgot or self._pending or mark != self.high_water_mark:
            written: dict[int, RequestId] = {}
            position = self.high_water_mark + 1
            while position <= mark:
                headers = await self.store.headers(position, mark - position + 1)
                if not headers:
                    raise StoreSessionClosedError(
                        f"partition {self.number}: no transaction {position} in a later session"
                    )
                written |= {header.transaction_id: header.request_id for header in headers}
                position = headers[-1].transaction_id + 1
            self._pending = deque(
                (first + place, item.part(place, place + 1))
                for first, item in self._pending
                for place in range(len(item.records))
            )
            self._resolve_each(written)
            if self.high_water_mark > mark:
                self._shorten(mark)
            if self.high_water_mark < mark or self._forgot or self._anew:  # under locks not known here
                self._locks.reset(mark)
            self._forgot = False
        self.high_water_mark = max(self.high_water_mark, mark)
        self._anew = self._anew and not session.is_open  # a later assignment would have ended it
        self._wake()

    def _resolve_each(self, written: Mapping[int, RequestId]) -> None:
        """Settle what is undecided, each transaction by itself; `written`: what the log holds behind the high-water mark.

        Where that fails, without memory, the next session looks once more for those of which nothing is told.
        """
        assert self._locks is not None
        others, again = False, list[tuple[int, Append]]()
        try:
            while self._pending:
                transaction_id, one = self._pending[0]
                if not others and written.get(transaction_id) == one.records.request_id(0):
                    try:
                        self._commit([(transaction_id, one)], numbered([one.records], transaction_id))
                    finally:
                        if self.high_water_mark >= transaction_id:
                            self._pending.popleft()
                    continue
                others = others or transaction_id in written
                if one.locks is not None:
                    self._locks.give_up(one.locks)
                again.append((transaction_id, one))
                self._pending.popleft()
        except BaseException:
            self._pending.extendleft(reversed(again))
            self._forgot = True  # whose locks are settled already
            raise
        sent_again = list[Append]()
        for _, one in again:
            one.lost += 1
            if one.lost < _SESSIONS:
                sent_again.append(one)
            else:
                one.over()
        self._queue.extendleft(reversed(sent_again))

    def _shorten(self, mark: int) -> None:
        """The log ends where it did not: storage has lost what was committed, and clients that have seen it are to hear so."""
        assert self._locks is not None
        self._log.error(
            "partition %d: the log ends at transaction %d, and this server has committed up to %d: what is behind is gone;"
            " waltzctl compare tells which replicas hold it",
            self.number,
            mark,
            self.high_water_mark,
        )
        self._locks.reset(mark)
        self.high_water_mark = mark
        self.end_mounts()  # who has seen more would pass every lock of this table

    # ---- feeds and data ------------------------------------------------------------------------------------------------

    def grant(self, position: int) -> int:
        """How many transactions behind `position` a reader may have who asks for some: all that there are, and some to come.

        The release grants a hundred to come.  A partition that commits 50,000 a second would wait for the reader's next request
        500 times a second, and with it whoever appends there, since an append is answered by the feed.
        """
        waiting = self.high_water_mark - position
        return max(waiting, self.options.feed, self._second.committed // _GRANTS_A_SECOND)

    async def feed(self, reader: Reader, position: int, count: int) -> None:
        """Give a reader `count` transactions behind `position`, as they come to be committed.  Raises PartitionClosedError."""
        position, metrics = max(position, -1), self.metrics
        behind = min(count, self.high_water_mark - position)
        if behind > 0:
            metrics.catchups_added += 1
            try:
                await self._give(reader, position, behind)
            finally:
                metrics.catchups_removed += 1
            position, count = position + behind, count - behind
            if not count:
                return
        metrics.feeds_added += 1
        try:
            await self._give(reader, position, count)
        finally:
            metrics.feeds_removed += 1

    async def _give(self, reader: Reader, position: int, count: int) -> None:
        while count > 0 and not reader.closed:
            await reader.writable()
            if self._closed:
                raise self._closed_error()
            advanced = self._advanced.count
            if position >= self.high_water_mark:
                await self._advanced.beyond(advanced)
                continue
            frames = await self._fed_from(position + 1, min(count, self.high_water_mark - position))
            if not frames:  # the log of a later session ends earlier, which is about to be found
                await self._advanced.beyond(advanced)
                continue
            reader.feed(frames)
            position += len(frames) // FEED_FRAME
            count -= len(frames) // FEED_FRAME

    async def _fed_from(self, first: int, count: int) -> bytes:
        found = self._cache.fed(self.number, first, count)
        if not found:
            losses = self._cache.losses(self.number)
            found = feed_frames(await self.store.headers(first, min(count, CHUNK - first % CHUNK)))
            if losses == self._cache.losses(self.number):
                self._cache.put_fed(self.number, first, found)  # who follows reads the same
        return found

    def cached_data(self, transaction_id: int) -> tuple[bytes, int] | None:
        """A transaction's data and its checksum, where that takes no time."""
        return self._cache.data(self.number, transaction_id)

    async def data(self, transaction_id: int) -> tuple[bytes, int] | None:
        """A transaction's data and its checksum, from storage; None where there is no such one.

        Raises StoreSessionClosedError where there is no session, or it ends: who asks waits for one (`StorePartition.session`).
        """
        found = None
        if transaction_id >= 0:
            losses = self._cache.losses(self.number)
            for record in await self.store.records_now(transaction_id, 1):
                if losses == self._cache.losses(self.number):
                    self._cache.put_data(self.number, record)
                found = record.data, record.data_checksum
        return found
