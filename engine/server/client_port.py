"""The port for clients of a log server: from frames to partitions, and what they have to say back.

Feeds are granted and never pushed: a client says how far it is and is sent what follows, then told that the feed is suspended,
and asks again.  An append, and a request for a feed, of a connection that has not mounted the partition, or that a later
connection of the same client has replaced, is passed over; the client learns of it by its next mount.

Feeds and data wait for a peer that does not take what it asked for: half of what may wait for it (`Port.output_each`) is for
them, so that its appends are read meanwhile.  How much data is read from storage at a time follows from how long the last was.

Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from waltzctl.engine.errors import StoreSessionClosedError, WaltzError
from waltzctl.engine.net.connection import HEADER, OVERHEAD, Connection, Pause, Received
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.port import Port
from waltzctl.engine.scan.client_appends import AppendTaker
from waltzctl.engine.server.append_requests import Append
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.store_partition import PartitionClosedError
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.client import UNKNOWN_HIGH_WATER_MARK
from waltzctl.formats.wire.feed_frames import feed_frames_as
from waltzctl.formats.wire.frame import FRAME_HEADER, FrameError, Magic, body_length
from waltzctl.formats.wire.hello import WALTZ_SERVER, Hello
from waltzctl.formats.wire.primitives import Limits, MessageError

_MOST_READS = 64
"""Transactions whose data is read from storage for one connection at a time, at most."""
_MOST_CLIENTS = 64
"""Clients that mount through one connection, at most: partitions remember each as long as it lasts.  Usually it is one."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a server knows beside its partitions.

    `connectivity`: whether each storage node of the cluster answers.  `prefer`: hold partitions by preference, or no longer;
    returns whether that could be noted.
    """

    connectivity: Callable[[], Coroutine[Any, Any, tuple[tuple[str, bool], ...]]]
    prefer: Callable[[tuple[int, ...], bool], Coroutine[Any, Any, bool]]


class ClientPort(Port):
    """The port for clients.  `reads`: from storage, of data; those that wait are served in their order."""

    name = "client port"

    def __init__(
        self, partitions: Mapping[int, Partition], answers: Answers, *, limits: PortLimits, log: logging.Logger
    ) -> None:
        """`partitions`: those that are served here now; whoever owns the mapping changes it."""
        self.partitions, self.answers = partitions, answers
        self.appends = AppendTaker()
        self._first_in_line: object | None = None
        super().__init__(limits=limits, log=log, memory=limits.memory)

    def _follow_limits(self) -> None:
        self.budget.capacity = self.limits.memory
        self.reads = asyncio.Semaphore(self.limits.reads)  # what is under way by now counts in the one before

    def _connection(self, peer: str) -> Connection:
        return ClientConnection(self, peer)

    def _tick(self) -> None:
        super()._tick()
        first, self._first_in_line = self._first_in_line, self.budget.first_in_line
        if first is not None and first is self._first_in_line:
            self._make_room()

    def _make_room(self) -> None:
        """Somebody's long frame stands still: appends that wait for a session, perhaps for ever, leave it its place.

        Their clients mount anew, and wait for the session before they append again.
        """
        waiting = {one: size for one in self.partitions.values() if (size := one.waiting_for_session)}
        for partition in sorted(waiting, key=waiting.__getitem__, reverse=True):
            if sum(waiting.values()) <= self.budget.kept:
                break
            size = waiting.pop(partition)
            self.log.warning(
                "partition %d has no session, and %d bytes of appends that wait for one keep those of other partitions"
                " waiting: they are given up, and their clients mount anew",
                partition.number,
                size,
            )
            partition.give_up()


class ClientConnection(Connection):
    """A client; a reader of feeds (`engine.server.served_partition.Reader`) for each that it was granted."""

    MAGIC: ClassVar[Magic] = Magic.CLIENT
    GREETING: ClassVar[Hello] = Hello(wire.CLIENT_VERSIONS, WALTZ_SERVER)

    def __init__(self, port: ClientPort, peer: str) -> None:
        limits = port.limits
        super().__init__(
            port,
            peer,
            max_body=limits.max_client_body,
            most_requests=limits.connection_requests,
            most_bytes=limits.connection_bytes,
        )
        self._client_port = port
        self._limits = Limits(max_data=limits.max_body)
        self._tasks: dict[asyncio.Task[None], int] = {}  # in their order; bytes of the budget that are parked for each
        self._taken = asyncio.Event()
        self._taken.set()
        self._asked: deque[tuple[wire.TransactionDataRequest, float]] = deque()  # and the pause before it
        self._unsent = 0  # bytes of the answers that are to be sent with the next `send`
        self._reads, self._read_window = 0, 1
        self._clients = set[int]()
        self._handlers: dict[type, Callable[[Any], None]] = {
            wire.MountRequest: self._mount,
            wire.AppendRequest: self._append,
            wire.FeedRequest: self._feed,
            wire.TransactionDataRequest: self._data,
            wire.FlushRequest: self._flush,
            wire.HighWaterMarkRequest: self._high_water_mark,
            wire.CheckStorageConnectivityRequest: self._connectivity,
            wire.ServerPartitionsAssignmentRequest: self._assignment,
            wire.AddPreferredPartitionRequest: self._prefer,
            wire.RemovePreferredPartitionRequest: self._prefer,
            wire.ServerPartitionsHealthRequest: self._health,
        }

    # ---- frames --------------------------------------------------------------------------------------------------------

    def _may_be_long(self, kind: int) -> bool:
        return kind == wire.AppendRequest.TYPE

    def _messages(self, received: Received, start: int, end: int) -> tuple[int, int]:
        assert self.version is not None
        while end - start >= HEADER:
            try:
                length = body_length(received, start, self.MAGIC, self.version, self._max_body)
            except FrameError as error:
                self._refuse(str(error), received[start:end])
                return end, 0
            behind = start + HEADER + length
            if behind > end:
                return start, HEADER + length
            if length and received[start + HEADER] == wire.AppendRequest.TYPE:
                taken = self._appends(received, start, end)
                if taken > start:
                    start = taken
                    continue
            if length:
                self._message(bytes(received[start + HEADER : behind]))
                if self._closing:
                    return end, 0
            start = behind
        return start, FRAME_HEADER.size if start < end else 0

    def _message(self, body: bytes) -> None:
        assert self.version is not None
        try:
            message = wire.decode(body, self.version, limits=self._limits)
            handler = self._handlers.get(type(message))
            if handler is None:
                raise MessageError(f"{type(message).__name__} is nothing that a client sends")
            if isinstance(message, wire.MountRequest | wire.FeedRequest):
                _check_position(message.client_high_water_mark)
        except MessageError as error:
            self._refuse(f"a corrupted message: {error}", body)
            return
        handler(message)

    def _say(self, message: wire.ServerResponse) -> None:
        assert self.version is not None
        frame = wire.encode(message, self.version)
        self._unsent += len(frame)
        self.answer(frame)

    def _partition(self, request_id: RequestId) -> Partition | None:
        return self._client_port.partitions.get(request_id.partition)

    def _mine(self, request_id: RequestId) -> Partition | None:
        """The partition, if this connection is the one through which the client mounted it."""
        found = self._partition(request_id)
        return found if found is not None and found.is_registered(request_id.client, self) else None

    def _begin_task(self, work: Coroutine[Any, Any, None], *, parked: int = 0) -> None:
        """Do something that takes time; it counts as a request under way.

        `parked`: OVERHEAD for what may wait for ever, so that nobody's long frame does meanwhile; `most_requests` bounds it.
        """
        self._begin(1, 0)
        self._port.budget.park(parked)
        task = asyncio.ensure_future(work)
        self._tasks[task] = parked
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._port.budget.unpark(self._tasks.pop(task))
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PartitionClosedError):
            self._port.log.info("%s: %s", self.peer, error)
        elif error is not None:
            self._port.log.error("%s", self.peer, exc_info=error)
            self.close()
        if not self._lost:
            self.send()  # before more is read: what waits for the peer counts once it was sent
        if self._asked:
            self._read_on()
            if not self._lost:
                self.send()
        self._done(1, 0)

    def _drop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for partition in self._client_port.partitions.values():
            partition.forget(self)
        self._taken.set()
        asked, self._asked = len(self._asked), deque()
        self._done(asked, 0)

    # ---- what the peer takes -------------------------------------------------------------------------------------------

    def set_water_mark(self, high: int) -> None:
        """How many bytes of answers may wait before reading stops; feeds and data wait from half of it on."""
        super().set_water_mark(high // 2)

    def pause_writing(self) -> None:
        """Half of what may wait does."""
        self._taken.clear()

    def resume_writing(self) -> None:
        """The peer took most of it."""
        self._taken.set()
        super().resume_writing()

    def _wrote(self) -> None:
        super()._wrote()
        if not self._taken.is_set() and self.share.queued > self._port.output_each:
            self._pause(Pause.UNREAD_ANSWERS)

    def send(self) -> None:
        """Write the answers that are there."""
        self._unsent = 0
        super().send()

    # ---- feeds ---------------------------------------------------------------------------------------------------------

    async def writable(self) -> None:
        """Wait until the peer takes more."""
        while self.open and not self._taken.is_set():
            await self._taken.wait()

    def feed(self, frames: bytes) -> None:
        """Send transactions: `FeedData` of the latest version back to back."""
        assert self.version is not None
        self.answer(feed_frames_as(frames, self.version))
        self.send()

    def _mount(self, request: wire.MountRequest) -> None:
        partition = self._partition(request.request_id)
        if partition is None or _is_behind(partition, request.request_id):
            self._say(wire.MountResponse(request.request_id, wire.MountState.NOT_READY))
            return
        asked = request.request_id
        self._clients.add(asked.client)
        if len(self._clients) > _MOST_CLIENTS:
            self._port.complain(
                f"{self.peer}: closed: {len(self._clients)} clients mount through it, {_MOST_CLIENTS} may"
            )
            self.close()
            return
        partition.register(asked.client, asked.generation, request.connection_sequence, self)
        self._begin_task(self._mounted(partition, request), parked=OVERHEAD)

    async def _mounted(self, partition: Partition, request: wire.MountRequest) -> None:
        try:
            behind = await partition.flush() - request.client_high_water_mark
            state = wire.MountState.READY if behind >= 0 else wire.MountState.CLIENT_AHEAD
            await partition.feed(self, request.client_high_water_mark, behind)
        except PartitionClosedError:
            state = wire.MountState.NOT_READY
        self._say(wire.MountResponse(request.request_id, state))

    def _feed(self, request: wire.FeedRequest) -> None:
        partition = self._mine(request.request_id)
        if partition is not None:
            self._begin_task(self._granted(partition, request), parked=OVERHEAD)

    async def _granted(self, partition: Partition, request: wire.FeedRequest) -> None:
        position = request.client_high_water_mark
        if position > partition.high_water_mark:
            self.close()  # it is ahead of the log
            return
        with contextlib.suppress(PartitionClosedError):  # the client hears of the partition's new server
            await partition.feed(self, position, partition.grant(position))
            self._say(wire.FeedSuspended(request.request_id))

    # ---- appends and data ----------------------------------------------------------------------------------------------

    def _appends(self, received: Received, start: int, end: int) -> int:
        """Hand over the appends that are next, as many as are whole and right; where they end."""
        assert self.version is not None
        taker = self._client_port.appends
        found, behind = taker.take(received, start, end, self.version, self._max_body, self._limits)
        partitions, count, size = self._client_port.partitions, 0, 0
        for client, number, records, locks in found:
            partition = partitions.get(number)
            if partition is None or not partition.is_registered(client, self):
                continue
            append = Append(records, self, locks, self._heard)
            count += len(records)
            size += append.size
            partition.append(append)
        self._begin(count, size)
        return behind

    def _append(self, request: wire.AppendRequest) -> None:
        """One that `_appends` did not take though it can be read."""
        self._port.complain(f"{self.peer}: closed: append {request.request_id}: the data's checksum is wrong")
        self.close()

    def refused(self, request_id: RequestId, transaction_id: int) -> None:
        """See `engine.server.append_requests.Appender`."""
        if not self._lost:
            self._say(wire.LockFailure(request_id, transaction_id))
            self.send()

    def over(self, count: int, size: int) -> None:
        """See `engine.server.append_requests.Appender`."""
        self._done(count, size)

    def _flush(self, request: wire.FlushRequest) -> None:
        partition = self._partition(request.request_id)
        if partition is not None:
            self._begin_task(self._flushed(partition, request), parked=OVERHEAD)

    async def _flushed(self, partition: Partition, request: wire.FlushRequest) -> None:
        self._say(wire.FlushResponse(request.request_id, await partition.flush()))

    def _data(self, request: wire.TransactionDataRequest, paused: float = 0.0) -> None:
        """`paused`: seconds before this attempt, because the one before ended a session."""
        partition = self._partition(request.request_id)
        if partition is not None and not partition.store.is_open:
            if not (self._takes_data() and self._cached(request)):
                self._begin_task(self._awaited(partition, request, paused), parked=OVERHEAD)
            return
        if not self._asked and self._takes_data():
            if self._cached(request):
                return
            if self._reads < self._read_window:
                self._begin_read(request, paused)
                return
        self._begin(1, 0)
        self._asked.append((request, paused))

    def _takes_data(self) -> bool:
        """Whether the peer takes more; what is to be sent is sent when it may be too much."""
        if self._unsent > self._port.output_each // 2:
            self.send()
        return self._taken.is_set()

    def _go_on(self) -> None:
        self._read_on()

    def _read_on(self) -> None:
        """Answer the requests for data that wait, as many as may be read and sent now."""
        while self._asked and self.open and self._reads < self._read_window and self._takes_data():
            request, paused = self._asked.popleft()
            if not self._cached(request):
                self._begin_read(request, paused)
            self._done(1, 0)

    def _begin_read(self, request: wire.TransactionDataRequest, paused: float) -> None:
        self._reads += 1
        self._begin_task(self._found(request, paused))

    def _cached(self, request: wire.TransactionDataRequest) -> bool:
        """Answer from the cache; whether it could be."""
        partition = self._partition(request.request_id)
        found = partition.cached_data(request.transaction_id) if partition is not None else None
        if found is not None:
            answer = wire.TransactionData(*found)
            self._say(wire.TransactionDataResponse(request.request_id, request.transaction_id, answer))
        return found is not None

    async def _awaited(
        self, partition: Partition, request: wire.TransactionDataRequest, paused: float, pause: float = 0.0
    ) -> None:
        """Ask again, after a pause, once the partition has a session.

        What waits for one keeps nobody's data of other partitions waiting.
        """
        try:
            await asyncio.sleep(pause)
            await partition.store.session()
        except PartitionClosedError as error:
            outcome = _not_ready(error)
            self._say(wire.TransactionDataResponse(request.request_id, request.transaction_id, outcome))
        else:
            self._data(request, paused)

    async def _found(self, request: wire.TransactionDataRequest, paused: float) -> None:
        outcome: wire.TransactionData | wire.TransactionRefused
        try:
            async with self._client_port.reads:
                outcome = await self._read(request)
        except StoreSessionClosedError:
            partition = self._partition(request.request_id)
            if partition is not None:
                pause = partition.store.pause_after(paused)  # each attempt ends a session
                self._begin_task(self._awaited(partition, request, pause, pause), parked=OVERHEAD)
                return
            outcome = _not_ready(PartitionClosedError(f"{request.request_id.partition} is not served here"))
        except PartitionClosedError as error:
            outcome = _not_ready(error)
        except WaltzError as error:
            outcome = wire.TransactionRefused(str(error))
        finally:
            self._reads -= 1
        self._say(wire.TransactionDataResponse(request.request_id, request.transaction_id, outcome))
        length = len(outcome.data) if isinstance(outcome, wire.TransactionData) else 0
        ahead = self._port.output_each // max(1, length)  # as if all were as long as this one
        self._read_window = min(_MOST_READS, self._read_window * 2, 1 + ahead)

    async def _read(self, request: wire.TransactionDataRequest) -> wire.TransactionData | wire.TransactionRefused:
        """From storage.  Raises PartitionClosedError, StoreSessionClosedError."""
        number, transaction_id = request.request_id.partition, request.transaction_id
        partition = self._partition(request.request_id)
        if partition is None:
            raise PartitionClosedError(f"{number} is not served here")
        found = await partition.data(transaction_id)
        if found is None and _is_behind(partition, request.request_id):
            raise PartitionClosedError(f"{number} was assigned anew, which is not known here as yet")
        if found is None:
            return wire.TransactionRefused(f"partition {number} has no transaction {transaction_id}")
        return wire.TransactionData(*found)

    def _high_water_mark(self, request: wire.HighWaterMarkRequest) -> None:
        partition = self._partition(request.request_id)
        if partition is not None:  # otherwise the client hears of the partition's new server and asks there
            # a client of the release asks once and waits for ever, unless its server is another one by then
            mark = UNKNOWN_HIGH_WATER_MARK if _is_behind(partition, request.request_id) else partition.told_mark
            self._say(wire.HighWaterMarkResponse(request.request_id, mark))

    # ---- about the server ----------------------------------------------------------------------------------------------

    def _connectivity(self, request: wire.CheckStorageConnectivityRequest) -> None:
        async def answer() -> None:
            nodes = await self._client_port.answers.connectivity()
            self._say(wire.CheckStorageConnectivityResponse(request.request_id, nodes))

        self._begin_task(answer())

    def _assignment(self, request: wire.ServerPartitionsAssignmentRequest) -> None:
        numbers = tuple(sorted(self._client_port.partitions))
        self._say(wire.ServerPartitionsAssignmentResponse(request.request_id, numbers))

    def _prefer(self, request: wire.AddPreferredPartitionRequest | wire.RemovePreferredPartitionRequest) -> None:
        add = isinstance(request, wire.AddPreferredPartitionRequest)
        kind = wire.AddPreferredPartitionResponse if add else wire.RemovePreferredPartitionResponse

        async def answer() -> None:
            done = bool(request.partitions) and await self._client_port.answers.prefer(request.partitions, add)
            self._say(kind(request.request_id, done=done))

        self._begin_task(answer())

    def _health(self, request: wire.ServerPartitionsHealthRequest) -> None:
        healthy = ((n, not one.store.state.waits_for) for n, one in sorted(self._client_port.partitions.items()))
        self._say(wire.ServerPartitionsHealthResponse(request.request_id, tuple(healthy)))


def _not_ready(error: PartitionClosedError) -> wire.TransactionRefused:
    """By these words clients know that another server may have the partition."""
    return wire.TransactionRefused(f"partition not ready: {error}")


def _is_behind(partition: Partition, asked: RequestId) -> bool:
    """Whether a client knows of a later assignment: another server may have committed meanwhile what it has seen."""
    return asked.generation > partition.store.generation


def _check_position(position: int) -> None:
    """Raise MessageError for a client that has come to where nobody can be: every replica refuses what is in front of 0."""
    if position < -1:
        raise MessageError(f"the client has come to transaction {position}; who has seen none is at -1")
