"""A partition that is mounted at a server: what the feed tells, and what becomes of the appends that were sent.

`Mount` is one client's place in a partition's log, `Endpoint` the connection to a server that its mounts share.  What happens to
a mount, and what follows, is the table in `engine.client.log_client`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any

from waltzctl.engine.client.addresses import Address
from waltzctl.engine.client.log_connection import LogConnection, Pushed
from waltzctl.engine.client.log_transaction import Build, Lock, Transaction
from waltzctl.engine.errors import PeerError, RefusedError, WaltzError
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.futures import fail, taken
from waltzctl.formats.checksums import crc32
from waltzctl.formats.lock_id import lock_id
from waltzctl.formats.request_id import LAST_SEQUENCE, RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.feed_frames import feed_rows


class ClientAheadError(RefusedError):
    """The log ends in front of what this client has seen of it."""


SPENT_AT = LAST_SEQUENCE - (1 << 20)
"""Behind this sequence number nothing new is appended under a client id; the rest is for mounts and for what is sent again."""
Connect = Callable[[Address], Awaitable[LogConnection]]
"""Connects to a server.  Raises PeerError."""
_Decided = asyncio.Future[Transaction | None]
"""Of an append: the transaction that it became, or none, and then it is built again."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Times are seconds.  `in_flight`: appends of a partition that are undecided at a time; `ahead`: transactions of a feed that
    are kept for a reader who is slower; beyond, nothing is read from the server.
    """

    timeout: float = 30.0
    in_flight: int = 64
    ahead: int = 4096
    nudge: float = 5.0
    first_retry: float = 0.05
    longest_retry: float = 5.0
    not_ready: float = 0.2


class Endpoint:
    """The connection to one server.  Whoever wants it while it is being made waits for the same."""

    def __init__(
        self,
        address: Address,
        connect: Connect,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        options: ClientOptions,
    ) -> None:
        self.address = address
        self._connect, self._spawn, self._options = connect, spawn, options
        self._current: LogConnection | None = None
        self._making: asyncio.Task[LogConnection] | None = None
        self._mounts: dict[int, Mount] = {}  # by partition, in their order
        self._keeping: asyncio.Task[None] | None = None
        self.sequence = -1
        """Of the present connection: one more with each that is made."""

    async def connection(self) -> LogConnection:
        """One that stands.  Raises PeerError."""
        if self._current is not None and not self._current.closed:
            return self._current
        if self._making is None or self._making.done():
            self._making = asyncio.ensure_future(self._make())
        return await asyncio.shield(self._making)

    async def _make(self) -> LogConnection:
        made = await self._connect(self.address)
        made.fed, made.pushed, made.lost = self._fed, self._pushed, self._lost
        self._current = made
        self.sequence += 1
        return made

    def attach(self, mount: Mount) -> None:
        """Mount through this connection from now on, also when it is made again; a client id mounts a partition once."""
        self._mounts[mount.partition] = mount
        if self._current is not None and not self._current.closed:
            mount.connected(self._current, self.sequence)
        elif self._keeping is None or self._keeping.done():
            self._keeping = self._spawn(self._keep())

    def detach(self, mount: Mount) -> None:
        """No longer."""
        if self._mounts.get(mount.partition) is mount:
            del self._mounts[mount.partition]

    async def _keep(self) -> None:
        """Connect until it stands, and mount what waits for it."""
        pause = self._options.first_retry
        while self._mounts:
            with contextlib.suppress(PeerError):
                made = await self.connection()
                if not made.closed:  # it may have ended before anybody could be told
                    for mount in [*self._mounts.values()]:
                        mount.connected(made, self.sequence)
                if not made.closed:
                    return
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._options.longest_retry)

    def _fed(self, frames: bytes) -> None:
        mounts = self._mounts
        for client, generation, partition, sequence, transaction_id, header in feed_rows(frames):
            mount = mounts.get(partition)
            if mount is not None:
                mount.fed(client, generation, sequence, transaction_id, header)

    def _pushed(self, message: Pushed) -> None:
        mount = self._mounts.get(message.request_id.partition)
        if mount is not None:
            mount.pushed(message)

    def _lost(self, _error: PeerError) -> None:
        for mount in self._mounts.values():
            mount.lost()
        if self._mounts and (self._keeping is None or self._keeping.done()):
            self._keeping = self._spawn(self._keep())

    async def close(self) -> None:
        """Forget the mounts and end the connection."""
        self._mounts.clear()
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        if self._current is not None:
            await self._current.close()


@dataclass(slots=True)
class _Flushing:
    """A flush that is not answered, or whose mark the feed has not come to.  `sequence`: of the last append before it.

    `nudge`: it was sent because nothing happened.
    """

    sequence: int
    done: asyncio.Future[int]
    mark: int | None = None
    nudge: bool = False


@dataclass(eq=False, slots=True)
class Mount:
    """A partition of one client id: where it stands in the log, its feed, and what is undecided.

    `_pending`: appends by their sequence number; `_refused`: the transaction that is in an append's way.

    `endpoint_of`: the connection of a client id to a server; `queue`: whom the feed is for; None for a mount that only appends.
    """

    endpoint_of: Callable[[PartitionServer, int], Endpoint]
    options: ClientOptions
    partition: int
    client_id: int
    position: int
    queue: asyncio.Queue[Transaction | WaltzError] | None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    _server: PartitionServer | None = None
    _endpoint: Endpoint | None = None
    _connection: LogConnection | None = None
    _mounted_as: RequestId | None = None
    _sequence: int = 0
    _pending: OrderedDict[int, _Decided] = field(default_factory=OrderedDict)
    _refused: dict[int, int] = field(default_factory=dict)
    _flushes: deque[_Flushing] = field(default_factory=deque)
    _error: WaltzError | None = None
    _again: asyncio.TimerHandle | None = None
    _nudge: asyncio.TimerHandle | None = None
    _suspended: bool = False
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _calls: int = 0
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    # ---- where it is mounted -------------------------------------------------------------------------------------------

    def served_by(self, server: PartitionServer | None) -> None:
        """Who has the partition now."""
        if server == self._server or self._error is not None:
            return
        self._server = server
        self._leave()
        if server is not None:
            self._endpoint = self.endpoint_of(server, self.client_id)
            self._endpoint.attach(self)

    def _leave(self) -> None:
        if self._endpoint is not None:
            self._endpoint.detach(self)
            self._endpoint = None
        self.lost()

    def connected(self, connection: LogConnection, sequence: int) -> None:
        """The connection to the server stands: mount."""
        if self._server is None or self._error is not None:
            return
        self._connection = connection
        self._mounted_as = self._next_id()
        with contextlib.suppress(PeerError):  # then it is told to be lost as well
            connection.send(wire.MountRequest(self._mounted_as, self.position, sequence))

    def lost(self) -> None:
        """Nothing can be sent before the next mount."""
        self.ready.clear()
        self._connection = self._mounted_as = None
        self._suspended = False
        for timer in (self._again, self._nudge):
            if timer is not None:
                timer.cancel()
        self._again = self._nudge = None

    def end(self, error: WaltzError, *, told: bool = True) -> None:
        """It is not wanted any more, or cannot be; whoever waits is told the error.  `told`: so is whoever reads the feed."""
        if self._error is not None:
            return
        self._error = error
        self._leave()
        pending, self._pending = self._pending, OrderedDict()
        for one in pending.values():
            fail(one, error)
        for flush in self._flushes:
            fail(flush.done, error)
        self._flushes.clear()
        self._room.set()
        self.ready.set()
        if self.queue is not None and told:
            self.queue.put_nowait(error)

    def _next_id(self) -> RequestId:
        self._sequence += 1
        assert self._server is not None
        return RequestId(self.client_id, self._server.generation, self.partition, self._sequence)

    # ---- what the server says ------------------------------------------------------------------------------------------

    def pushed(self, message: Pushed) -> None:
        """A message of the connection about the partition."""
        if self._mounted_as is None:
            return
        match message:
            case wire.LockFailure():
                if self._own(message.request_id) and message.request_id.sequence in self._pending:
                    self._refused[message.request_id.sequence] = message.transaction_id
                    self._decide()
            case wire.FlushResponse():
                for flush in self._flushes:
                    if self._own(message.request_id) and flush.sequence == message.request_id.sequence:
                        flush.mark = message.high_water_mark
                self._decide()
            case wire.FeedSuspended():
                if message.request_id == self._mounted_as:
                    self._suspended = True
                    self._ask_for_more()
            case wire.MountResponse():
                if message.request_id == self._mounted_as:
                    self._answered(message.state)

    def _own(self, request_id: RequestId) -> bool:
        return request_id.client == self.client_id

    def _answered(self, state: wire.MountState) -> None:
        if state is wire.MountState.CLIENT_AHEAD:
            self.end(
                ClientAheadError(
                    f"partition {self.partition}: this client has seen transaction {self.position}, and the log ends in front"
                    " of it",
                    advice="is this the right cluster? if it is, transactions were lost: waltzctl compare tells which replicas"
                    " hold them",
                )
            )
            return
        if state is wire.MountState.NOT_READY:
            self._again = self._loop.call_later(self.options.not_ready, self._mount_again)
            return
        for flush in self._flushes:  # what was sent before the mount is decided by it
            flush.mark = self.position if flush.mark is None else flush.mark
        undecided, self._pending = self._pending, OrderedDict()
        self._refused.clear()
        for one in undecided.values():
            _set(one, None)
        self._decide()
        self.ready.set()
        self._suspended = True
        self._ask_for_more()

    def _mount_again(self) -> None:
        if self._connection is not None and self._endpoint is not None:
            self.connected(self._connection, self._endpoint.sequence)

    def fed(self, client: int, generation: int, sequence: int, transaction_id: int, header: int) -> None:
        """A committed transaction; most are other clients' appends."""
        if self._mounted_as is None or transaction_id != self.position + 1:
            return  # of a mount before this one
        self.position = transaction_id
        own = client == self.client_id and sequence in self._pending
        if own or self.queue is not None:
            request_id = RequestId(client, generation, self.partition, sequence)
            found = Transaction(self.partition, transaction_id, request_id, header)
            if own:
                self._committed(found)
            if self.queue is not None:
                self.queue.put_nowait(found)
                if self._connection is not None and not self._has_room:
                    self._connection.pause()
        self._decide()

    def _committed(self, found: Transaction) -> None:
        """An append of this client is this transaction."""
        while self._pending:
            sequence, one = self._pending.popitem(last=False)
            if sequence == found.request_id.sequence:
                _set(one, found)
                return
            _set(one, None)  # what was sent before this one can no longer come

    def _decide(self) -> None:
        """What the feed has come past: flushes, appends in front of them, and appends that a lock refused."""
        while self._flushes and (mark := self._flushes[0].mark) is not None and mark <= self.position:
            flush = self._flushes.popleft()
            passed_over = False
            while self._pending and next(iter(self._pending)) <= flush.sequence:
                _set(self._pending.popitem(last=False)[1], None)
                passed_over = True
            _set(flush.done, mark)
            if passed_over and flush.nudge and self.ready.is_set():  # the server knows this mount no more
                self.ready.clear()
                self._mount_again()
        if self._refused:  # as seldom; this is asked for each transaction of a feed
            self._build_again()
        if len(self._pending) < self.options.in_flight:
            self._room.set()

    def _build_again(self) -> None:
        """The feed has come to what was in the way of these appends."""
        for sequence in [one for one, in_the_way in self._refused.items() if in_the_way <= self.position]:
            del self._refused[sequence]
            if sequence in self._pending:
                _set(self._pending.pop(sequence), None)

    # ---- the feed ------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """The reader has taken half of what was kept for it."""
        if self._connection is not None:
            self._connection.resume()
        self._ask_for_more()

    @property
    def _has_room(self) -> bool:
        return self.queue is None or self.queue.qsize() < self.options.ahead

    def _ask_for_more(self) -> None:
        if self._suspended and self._connection is not None and self._has_room:
            assert self._mounted_as is not None
            self._suspended = False
            with contextlib.suppress(PeerError):
                self._connection.send(wire.FeedRequest(self._mounted_as, self.position))

    # ---- appends -------------------------------------------------------------------------------------------------------

    @property
    def spent(self) -> bool:
        """Whether this client id has no request ids left for the partition (weakness C10)."""
        return self._sequence >= SPENT_AT

    async def settled(self) -> None:
        """Wait until no append and no flush is under way."""
        while self._calls:
            self._idle.clear()
            await self._idle.wait()

    async def append(self, build: Build) -> Transaction | None:
        """See `LogClient.append`."""
        self._calls += 1
        try:
            return await self._append(build)
        finally:
            self._call_over()

    def _call_over(self) -> None:
        """One of those that `settled` waits for."""
        self._calls -= 1
        if not self._calls:
            self._idle.set()

    async def _append(self, build: Build) -> Transaction | None:
        async with self._turn:  # in the order of the calls; what is sent again goes in front of what is new
            while len(self._pending) >= self.options.in_flight and self._error is None:
                self._room.clear()
                await self._room.wait()
            pending = await self._send(build)
        while pending is not None:
            sequence, one = pending
            try:
                found = await one
            finally:
                self._pending.pop(sequence, None)
            if found is not None:
                return found
            pending = await self._send(build)
        return None

    async def _send(self, build: Build) -> tuple[int, _Decided] | None:
        while True:
            if not self.ready.is_set():
                await self.ready.wait()
            if self._error is not None:
                raise self._error
            assert self._connection is not None
            draft = build(self.position)
            if draft is None:
                return None
            number = self._next_id()
            request = wire.AppendRequest(
                number,
                self.position,
                draft.header,
                draft.data,
                crc32(draft.data),
                _ids(draft.write_locks),
                _ids(draft.read_locks),
                _ids(draft.append_locks),
            )
            try:
                self._connection.send(request)
            except PeerError:  # the mount is told that it is lost, and waits for the next connection
                continue
            one: _Decided = self._loop.create_future()
            self._pending[number.sequence] = one
            self._watch()
            return number.sequence, one

    async def flush(self) -> int:
        """See `LogClient.flush`."""
        self._calls += 1
        try:
            while True:
                await self.ready.wait()
                if self._error is not None:
                    raise self._error
                with contextlib.suppress(PeerError):
                    return await self._flush().done
        finally:
            self._call_over()

    def _flush(self) -> _Flushing:
        assert self._connection is not None
        number = self._next_id()
        self._connection.send(wire.FlushRequest(number))
        flush = _Flushing(number.sequence, self._loop.create_future())
        self._flushes.append(flush)
        return flush

    def _watch(self) -> None:
        """Send a flush when nothing was decided for a while."""
        if self._nudge is None:
            self._nudge = self._loop.call_later(self.options.nudge, self._nudged, next(iter(self._pending)))

    def _nudged(self, oldest: int) -> None:
        self._nudge = None
        if not self._pending or self._connection is None or not self.ready.is_set():
            return
        if next(iter(self._pending)) == oldest and not self._flushes:
            with contextlib.suppress(PeerError):
                flush = self._flush()
                flush.nudge = True
                flush.done.add_done_callback(taken)
        self._watch()


def _ids(locks: Collection[Lock]) -> tuple[int, ...]:
    return tuple([lock_id(*lock) for lock in locks]) if locks else ()


def _set(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
