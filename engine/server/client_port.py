"""The client port of a log server: it decodes requests, hands them to partitions, and sends the answers.

An append is ignored, as a feed request is (`engine.server.feed_requests`), if its connection has not mounted the partition, or if
the same client has mounted it later through another connection.

A client may be slow to receive.  At most half of the answers that may wait for it (`Port.output_each` bytes) are feeds and data:
beyond that these pause, so that its appends are still read.  The bound of concurrent reads of data from storage follows from the
length of the data read last.

Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from waltzctl.engine.net.budget import Budget
from waltzctl.engine.net.connection import HEADER, OVERHEAD, Connection, Pause, Received
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.port import Port
from waltzctl.engine.scan.client_appends import AppendTaker
from waltzctl.engine.server.append_requests import Append
from waltzctl.engine.server.data_requests import DataRequests
from waltzctl.engine.server.feed_requests import FeedRequests
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.store_partition import PartitionClosedError
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.client import UNKNOWN_HIGH_WATER_MARK
from waltzctl.formats.wire.feed_frames import feed_frames_as
from waltzctl.formats.wire.frame import FRAME_HEADER, FrameError, Magic, body_length
from waltzctl.formats.wire.hello import WALTZ_SERVER, Hello
from waltzctl.formats.wire.primitives import Limits, MessageError

_MOST_MARKS = 1024
"""The most partitions whose high-water marks one connection may wait for; the oldest request beyond is forgotten."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Functions for requests that concern the whole server.

    `connectivity`: whether each storage node of the cluster answers, by its name.  `prefer`: add partitions (True) to those that
    the server prefers, or remove them (False); returns whether the metadata was written.
    """

    connectivity: Callable[[], Coroutine[Any, Any, tuple[tuple[str, bool], ...]]]
    prefer: Callable[[tuple[int, ...], bool], Coroutine[Any, Any, bool]]


class ClientPort(Port):
    """The client port.  `reads`: the slots for reads of data from storage, of all connections."""

    name = "client port"

    def __init__(
        self, partitions: Mapping[int, Partition], answers: Answers, *, limits: PortLimits, log: logging.Logger
    ) -> None:
        """`partitions`: the partitions served now, by number; the log server changes this mapping."""
        self.partitions, self.answers = partitions, answers
        self.appends = AppendTaker()
        self.reads = Budget(limits.reads)
        self._longest_waiting: object | None = None
        super().__init__(limits=limits, log=log, memory=limits.memory)

    def opened(self) -> None:
        """There are new ones among `partitions`: answer those who asked for their high-water marks before."""
        for connection in list(self._connections):
            if isinstance(connection, ClientConnection):
                connection.opened()

    def _follow_limits(self) -> None:
        self.budget.capacity, self.reads.capacity = self.limits.memory, self.limits.reads

    def _connection(self, peer: str) -> Connection:
        return ClientConnection(self, peer)

    def _tick(self) -> None:
        super()._tick()
        first, self._longest_waiting = self._longest_waiting, self.budget.first_in_line
        if first is not None and first is self._longest_waiting:
            self._make_room()

    def _make_room(self) -> None:
        """Free memory for a long frame that has waited since the last tick.

        Appends of partitions without a session may hold memory for ever: drop them, largest partition first, until they hold no
        more than the budget keeps back for small requests.  Their clients mount again, and append once there is a session.
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
    """A connection of a client; the `engine.server.committed_transactions.Reader` of its feeds."""

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
        # in order of start; bytes parked in the budget, and the partition whose place in `standing` it has
        self._tasks: dict[asyncio.Task[None], tuple[int, int | None]] = {}
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._unsent = 0  # bytes of answers since the last `send`
        self._data = DataRequests(self, port.partitions, port.reads, lambda: port.output_each)
        self._feeds = FeedRequests(self, port.partitions, port.complain)
        self._marks: dict[int, wire.HighWaterMarkRequest] = {}  # by partition that is not served here: the last request
        self._handlers: dict[type, Callable[[Any], None]] = {
            wire.MountRequest: self._feeds.mount,
            wire.AppendRequest: self._append,
            wire.FeedRequest: self._feeds.feed,
            wire.TransactionDataRequest: self._data.ask,
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

    def reply(self, message: wire.ServerResponse) -> None:
        """Queue a response for the next `send`."""
        assert self.version is not None
        frame = wire.encode(message, self.version)
        self._unsent += len(frame)
        self.answer(frame)

    def _partition(self, request_id: RequestId) -> Partition | None:
        return self._client_port.partitions.get(request_id.partition)

    def begin_task(
        self, work: Coroutine[Any, Any, None], *, parked: int = 0, standing: int | None = None
    ) -> asyncio.Task[None]:
        """Answer a request in a task; it counts as a request in progress until the task ends.

        `parked`: bytes not charged to the memory budget meanwhile: OVERHEAD for a request that may wait for ever, which would
        block long frames of other connections; 0 for others.  `most_requests` bounds the parked ones.

        `standing`: the partition of a mount or feed.  One of each partition is beside that bound: a client with more partitions
        than the bound has a feed at the end of each, and would never be read again.
        """
        self.begin(1, 0)
        self._port.budget.park(parked)
        if standing in self.standing:
            standing = None
        if standing is not None:
            self.standing.add(standing)
        try:
            task = asyncio.ensure_future(work)
        except BaseException:  # for instance MemoryError: no task ends it, and all connections share the budget
            work.close()
            self._ended(parked, standing)
            raise
        self._tasks[task] = parked, standing
        task.add_done_callback(self._task_done)
        return task

    def _ended(self, parked: int, standing: int | None) -> None:
        """A request of `begin_task` counts no longer."""
        self._port.budget.unpark(parked)
        if standing is not None:
            self.standing.discard(standing)
        self.done(1, 0)

    def release_standing(self, task: asyncio.Task[None]) -> None:
        """A mount or feed is about to end: its place in `standing` is the next one's."""
        parked, standing = self._tasks.get(task, (0, None))
        if standing is not None:
            self._tasks[task] = parked, None
            self.standing.discard(standing)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        parked, standing = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PartitionClosedError):
            self._port.log.info("%s: %s", self.peer, error)
        elif error is not None:
            self._port.log.error("%s", self.peer, exc_info=error)
            self.close()
        try:
            if not self._lost:
                self.send()  # first: unsent answers are not counted when the next read is admitted
        except BaseException:  # for instance MemoryError: the client would wait for what is lost
            self.abort()
            raise
        finally:
            self._ended(parked, standing)

    def _drop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._feeds.drop()
        self._may_send.set()
        self._marks.clear()
        self._data.drop()

    # ---- flow control --------------------------------------------------------------------------------------------------

    def set_water_mark(self, high: int) -> None:
        """Set the bytes of unsent answers beyond which reading stops; feeds and data pause beyond half of them."""
        super().set_water_mark(high // 2)

    def pause_writing(self) -> None:
        """The transport holds more than half of these bytes: feeds and data pause."""
        self._may_send.clear()

    def resume_writing(self) -> None:
        """The client has received most of them: feeds and data go on."""
        self._may_send.set()
        super().resume_writing()

    def _wrote(self) -> None:
        super()._wrote()
        if not self._may_send.is_set() and self.share.queued > self._port.output_each:
            self._pause(Pause.UNREAD_ANSWERS)

    def send(self) -> None:
        """Write all answers to the transport."""
        self._unsent = 0
        super().send()

    # ---- feeds ---------------------------------------------------------------------------------------------------------

    async def writable(self) -> None:
        """Wait until feeds may be sent, or the connection ends."""
        while self.open and not self._may_send.is_set():
            await self._may_send.wait()

    def feed(self, frames: bytes) -> None:
        """Send `FeedData` messages of the latest protocol version, back to back; translates them to the client's version."""
        assert self.version is not None
        self.answer(feed_frames_as(frames, self.version))
        self.send()

    # ---- appends and data ----------------------------------------------------------------------------------------------

    def _appends(self, received: Received, start: int, end: int) -> int:
        """Queue the append frames at `start`, as many as are complete and valid; the end of the last one."""
        assert self.version is not None
        taker = self._client_port.appends
        found, behind = taker.take(received, start, end, self.version, self._max_body, self._limits)
        partitions, count, size = self._client_port.partitions, 0, 0
        try:
            for client, number, records, locks in found:
                partition = partitions.get(number)
                if partition is None or not partition.mounts.is_registered(client, self):
                    continue
                append = Append(records, self, locks, self._heard)
                partition.append(append)
                count += len(records)
                size += append.size
        finally:  # also where one could not be queued (MemoryError): those in front of it will be `over`
            self.begin(count, size)
        return behind

    def _append(self, request: wire.AppendRequest) -> None:
        """An append that decodes, but that `_appends` rejected: the checksum of its data is wrong."""
        self._port.complain(f"{self.peer}: closed: append {request.request_id}: the data's checksum is wrong")
        self.close()

    def refused(self, refusals: Sequence[tuple[RequestId, int]]) -> None:
        """See `engine.server.append_requests.Appender`."""
        if not self._lost:
            for request_id, transaction_id in refusals:
                self.reply(wire.LockFailure(request_id, transaction_id))
            self.send()

    def over(self, count: int, size: int) -> None:
        """See `engine.server.append_requests.Appender`."""
        self.done(count, size)

    def _flush(self, request: wire.FlushRequest) -> None:
        partition = self._partition(request.request_id)
        if partition is not None:
            self.begin_task(self._answer_flush(partition, request), parked=OVERHEAD)

    async def _answer_flush(self, partition: Partition, request: wire.FlushRequest) -> None:
        self.reply(wire.FlushResponse(request.request_id, await partition.flush()))

    def accepts_data(self) -> bool:
        """Whether more data may be answered; sends the answers first if there may be too many."""
        if self._unsent > self._port.output_each // 2:
            self.send()
        return self._may_send.is_set()

    def _go_on(self) -> None:
        self._data.go_on()

    def _high_water_mark(self, request: wire.HighWaterMarkRequest) -> None:
        partition = self._partition(request.request_id)
        self._marks.pop(request.request_id.partition, None)
        if partition is None:
            # the client asks another server if the metadata names one; but it may know of an assignment that is not known here as
            # yet, and one of the release asks only once through a connection
            self._marks[request.request_id.partition] = request
            if len(self._marks) > _MOST_MARKS:
                del self._marks[next(iter(self._marks))]
        else:
            # an unknown mark is answered as well: a client of the release does not ask the same server twice, and would wait
            mark = (
                UNKNOWN_HIGH_WATER_MARK
                if partition.is_behind(request.request_id.generation)
                else partition.announced_mark
            )
            self.reply(wire.HighWaterMarkResponse(request.request_id, mark))

    def opened(self) -> None:
        """See `ClientPort.opened`."""
        served = self._client_port.partitions
        if found := [request for number, request in self._marks.items() if number in served]:
            for request in found:
                self._high_water_mark(request)
            self.send()

    # ---- requests about the server -------------------------------------------------------------------------------------

    def _connectivity(self, request: wire.CheckStorageConnectivityRequest) -> None:
        async def answer() -> None:
            nodes = await self._client_port.answers.connectivity()
            self.reply(wire.CheckStorageConnectivityResponse(request.request_id, nodes))

        self.begin_task(answer())

    def _assignment(self, request: wire.ServerPartitionsAssignmentRequest) -> None:
        numbers = tuple(sorted(self._client_port.partitions))
        self.reply(wire.ServerPartitionsAssignmentResponse(request.request_id, numbers))

    def _prefer(self, request: wire.AddPreferredPartitionRequest | wire.RemovePreferredPartitionRequest) -> None:
        add = isinstance(request, wire.AddPreferredPartitionRequest)
        kind = wire.AddPreferredPartitionResponse if add else wire.RemovePreferredPartitionResponse

        async def answer() -> None:
            done = bool(request.partitions) and await self._client_port.answers.prefer(request.partitions, add)
            self.reply(kind(request.request_id, done=done))

        self.begin_task(answer())

    def _health(self, request: wire.ServerPartitionsHealthRequest) -> None:
        healthy = ((n, not one.store.state.waits_for) for n, one in sorted(self._client_port.partitions.items()))
        self.reply(wire.ServerPartitionsHealthResponse(request.request_id, tuple(healthy)))


def _check_position(position: int) -> None:
    """Raise MessageError for a high-water mark below -1, which stands for an empty log; replicas refuse ids below 0."""
    if position < -1:
        raise MessageError(f"the client has come to transaction {position}; who has seen none is at -1")
