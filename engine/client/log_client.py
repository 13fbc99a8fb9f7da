"""A client of a cluster's log: appends under optimistic locks, feeds, data on demand.

A partition is mounted through one connection to the server that has it, from a high-water mark on.  From then on the server sends
what is committed, in order and without a gap, and takes appends.  There is no answer to an append: its own appearance in the feed
says that it is committed, and it is known to have failed when the feed has come past a flush, or a mount, that was sent behind
it.  Then, and when a lock was in the way, it is built anew on what the client knows by then, and sent again.  An append is never
sent again while it may still be committed, so that nothing is there twice.  Each feed has a client id and connections of its own.

================  ======================================================================================================
what happens      what follows
================  ======================================================================================================
connection lost   connect again, pausing longer each time; mount; what is undecided is decided by the mount
partition moved   mount at the new server; the same
generation rises  mount again at the same server, which may have closed the partition in between (the release does not)
not ready         ask again after a while
client is ahead   every call of the partition fails: the log has lost what this client has seen, or is another one
lock failure      wait until the feed has come to the transaction that was in the way, build anew, send again
nothing happens   after `nudge` seconds a flush is sent, so that an append that a server passed over is found
================  ======================================================================================================

Every call has a deadline (weaknesses C4, C7 of release 0.13.2); data that does not agree with its checksum is asked for three
times, and then an error (C1).

Everything belongs to one event loop.  Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from waltzctl.engine.client.addresses import Address
from waltzctl.engine.client.log_connection import LogConnection, Pushed
from waltzctl.engine.errors import (
    CorruptRecordError,
    DeadlineError,
    InvalidRequestError,
    PeerError,
    PeerUnreachableError,
    RefusedError,
    WaltzError,
)
from waltzctl.engine.metadata.server_directory import PartitionServer, Told
from waltzctl.formats.checksums import crc32
from waltzctl.formats.lock_id import lock_id
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire

Lock = tuple[str, int]
"""A lock's name and number."""
_NO_CLIENT = -1
_DATA_ATTEMPTS = 3


class ClientAheadError(RefusedError):
    """The log ends in front of what this client has seen of it."""


class Servers(Protocol):
    """Who has which partition; `engine.metadata.server_directory.ServerDirectory` is one."""

    @property
    def num_partitions(self) -> int:
        """Of the cluster."""

    async def client_id(self) -> int:
        """A new one."""

    async def follow(self, told: Told) -> None:
        """Tell who has which partition, for ever."""


Connect = Callable[[Address], Awaitable[LogConnection]]
"""Connects to a server.  Raises PeerError."""


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


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be appended: `data`, 32 bits of `header`, and locks, each a name and a number.

    A write lock refuses the append when somebody wrote under it behind what this client has seen, and is written; a read lock
    only refuses; an append lock is only written.
    """

    data: bytes
    header: int = 0
    write_locks: Collection[Lock] = ()
    read_locks: Collection[Lock] = ()
    append_locks: Collection[Lock] = ()


Build = Callable[[int], Draft | None]
"""Called with the high-water mark of what this client has seen; None: there is nothing to append any more."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction, as the feed tells it."""

    partition: int
    transaction_id: int
    request_id: RequestId
    header: int


class LogClient:
    """A client.  `async with LogClient(servers, connect) as client:`."""

    def __init__(
        self, servers: Servers, connect: Connect, *, log: logging.Logger, options: ClientOptions | None = None
    ) -> None:
        self.options = options or ClientOptions()
        self._servers, self._connect, self._log = servers, connect, log
        self._known: Mapping[int, PartitionServer] = {}
        self._news = asyncio.Event()
        self._endpoints: dict[tuple[Address, int], _Endpoint] = {}
        self._appending: dict[int, _Mount] = {}
        self._opening: dict[int, asyncio.Lock] = {}
        self._mounts: set[_Mount] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._client_id: int | None = None

    async def __aenter__(self) -> Self:
        self._spawn(self._servers.follow(self._told))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything; what waits ends with PeerUnreachableError."""
        for mount in [*self._mounts]:
            mount.end(PeerUnreachableError("the client", "it was closed"))
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints.values()))

    @property
    def num_partitions(self) -> int:
        """Of the cluster."""
        return self._servers.num_partitions

    # ---- calls ---------------------------------------------------------------------------------------------------------

    async def append(self, partition: int, build: Build | Draft, *, timeout: float | None = None) -> Transaction | None:
        """Append a transaction, and wait until it is committed; None where `build` gave none.

        `build` is called again whenever the append has failed and is to be sent again.  Raises DeadlineError, after which it may
        or may not be committed, ClientAheadError, and what `build` raises.
        """
        async with self._within(timeout, f"an append to partition {partition}; it may or may not be committed"):
            mount = await self._for_appends(partition)
            return await mount.append((lambda _mark: build) if isinstance(build, Draft) else build)

    async def flush(self, partition: int, *, timeout: float | None = None) -> int:
        """Wait until everything that was appended before is decided; the high-water mark then."""
        async with self._within(timeout, f"a flush of partition {partition}"):
            return await (await self._for_appends(partition)).flush()

    def seen(self, partition: int) -> int:
        """Up to which transaction this client has seen the partition to which it appends; -1: none."""
        mount = self._appending.get(partition)
        return -1 if mount is None else mount.position

    async def feed(
        self,
        partitions: int | Collection[int] | Mapping[int, int],
        *,
        after: int = -1,
        until: Callable[[int], int | None] | None = None,
    ) -> AsyncGenerator[Transaction, None]:
        """Committed transactions behind `after`, in order, for ever; of several partitions each in its order.

        A mapping gives each partition a transaction of its own behind which to begin, and `after` is not looked at.

        `until`: gives the last transaction that is wanted of a partition, None for no end; with one the feed ends when all
        partitions are there.  Connections that break are made again, and nothing is missing or there twice.  Raises
        ClientAheadError.
        """
        numbers = [partitions] if isinstance(partitions, int) else sorted(partitions)
        begins = partitions if isinstance(partitions, Mapping) else dict.fromkeys(numbers, after)
        for number in numbers:
            self._check(number)
        client_id = await self._servers.client_id()
        queue: asyncio.Queue[Transaction | WaltzError] = asyncio.Queue()
        open_ends = {number: None if until is None else until(number) for number in numbers}
        mounts: dict[int, _Mount] = {}
        try:
            for number, last in open_ends.items():
                if last is None or last > begins[number]:
                    mounts[number] = _Mount(self, number, client_id, begins[number], queue)
                    self._begin(mounts[number])
            while mounts:
                item = await queue.get()
                if isinstance(item, WaltzError):
                    raise item
                mount = mounts.get(item.partition)
                if mount is None:
                    continue
                if queue.qsize() == self.options.ahead // 2:
                    for one in mounts.values():
                        one.go_on()
                yield item
                if item.transaction_id == open_ends[item.partition]:
                    self._end(mounts.pop(item.partition))
        finally:
            for mount in mounts.values():
                self._end(mount)
            mine = [key for key in self._endpoints if key[1] == client_id]
            await asyncio.gather(*(self._endpoints.pop(key).close() for key in mine))

    async def data(self, partition: int, transaction_id: int, *, timeout: float | None = None) -> bytes:
        """A transaction's data, its checksum verified.  Raises RefusedError where there is none, CorruptRecordError."""
        self._check(partition)
        async with self._within(timeout, f"the data of transaction {transaction_id} of partition {partition}"):
            wrong = 0
            while True:
                answer = await self._ask(
                    partition,
                    lambda number: wire.TransactionDataRequest(number, transaction_id),
                    wire.TransactionDataResponse,
                )
                outcome = answer.outcome
                if isinstance(outcome, wire.TransactionRefused):
                    if not outcome.message.startswith("partition not ready"):
                        raise RefusedError(f"partition {partition}, transaction {transaction_id}: {outcome.message}")
                    await asyncio.sleep(self.options.not_ready)
                elif outcome.data_ok:
                    return bytes(outcome.data)
                elif (wrong := wrong + 1) == _DATA_ATTEMPTS:
                    raise CorruptRecordError(
                        f"partition {partition}, transaction {transaction_id}: the data came {wrong} times with a wrong checksum"
                    )

    async def high_water_mark(self, partition: int, *, timeout: float | None = None) -> int:
        """The last committed transaction of a partition; -1: none."""
        self._check(partition)
        async with self._within(timeout, f"the high-water mark of partition {partition}"):
            while True:
                answer = await self._ask(partition, wire.HighWaterMarkRequest, wire.HighWaterMarkResponse)
                if answer.transaction_id >= -1:
                    return int(answer.transaction_id)
                await asyncio.sleep(self.options.not_ready)  # the server has the partition, and no session as yet

    # ---- inside --------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _within(self, timeout: float | None, what: str) -> AsyncIterator[None]:
        seconds = self.options.timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise DeadlineError("the cluster", f"no answer within {seconds:g} s to {what}") from None

    def _check(self, partition: int) -> None:
        if not 0 <= partition < self.num_partitions:
            raise InvalidRequestError(f"partition {partition} does not exist: they are 0 to {self.num_partitions - 1}")

    async def _for_appends(self, partition: int) -> _Mount:
        """The mount through which this client appends; it begins at the log's end."""
        self._check(partition)
        async with self._opening.setdefault(partition, asyncio.Lock()):
            found = self._appending.get(partition)
            if found is None:
                if self._client_id is None:
                    self._client_id = await self._servers.client_id()
                mark = await self.high_water_mark(partition)
                found = self._appending[partition] = _Mount(self, partition, self._client_id, mark, None)
                self._begin(found)
            return found

    def _begin(self, mount: _Mount) -> None:
        self._mounts.add(mount)
        mount.served_by(self._known.get(mount.partition))

    def _end(self, mount: _Mount) -> None:
        self._mounts.discard(mount)
        mount.end(PeerUnreachableError("the client", "the feed was ended"), told=False)

    async def _ask(self, partition: int, make: Callable[[RequestId], Any], expected: type[Any]) -> Any:
        """Ask the partition's server, and the next one when that fails.  For ever: a deadline is the caller's."""
        pause = self.options.first_retry
        while True:
            self._news.clear()
            server = self._known.get(partition)
            if server is not None:
                with contextlib.suppress(PeerError):
                    connection = await self.endpoint(server, _NO_CLIENT).connection()
                    number = RequestId(_NO_CLIENT, server.generation, partition, connection.next_sequence())
                    frame = wire.encode(make(number), connection.version)
                    patience = min(self.options.nudge, connection.timeout)
                    return await connection.call(number.sequence, frame, expected, "a question", timeout=patience)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), pause)
            pause = min(2 * pause, self.options.longest_retry)

    def _told(self, servers: Mapping[int, PartitionServer]) -> None:
        self._known = servers
        self._news.set()
        for mount in [*self._mounts]:
            mount.served_by(servers.get(mount.partition))

    def endpoint(self, server: PartitionServer, client_id: int) -> _Endpoint:
        """The connection of a client id to a server, shared by its partitions."""
        key = Address(server.host, server.port), client_id
        if key not in self._endpoints:
            self._endpoints[key] = _Endpoint(key[0], self._connect, self._spawn, self.options)
        return self._endpoints[key]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s", error, exc_info=error)


class _Endpoint:
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
        self._mounts: set[_Mount] = set()
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
        made.pushed, made.lost = self._pushed, self._lost
        self._current = made
        self.sequence += 1
        return made

    def attach(self, mount: _Mount) -> None:
        """Mount through this connection from now on, also when it is made again."""
        self._mounts.add(mount)
        if self._current is not None and not self._current.closed:
            mount.connected(self._current, self.sequence)
        elif self._keeping is None or self._keeping.done():
            self._keeping = self._spawn(self._keep())

    def detach(self, mount: _Mount) -> None:
        """No longer."""
        self._mounts.discard(mount)

    async def _keep(self) -> None:
        """Connect until it stands, and mount what waits for it."""
        pause = self._options.first_retry
        while self._mounts:
            with contextlib.suppress(PeerError):
                made = await self.connection()
                if not made.closed:  # it may have ended before anybody could be told
                    for mount in [*self._mounts]:
                        mount.connected(made, self.sequence)
                if not made.closed:
                    return
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._options.longest_retry)

    def _pushed(self, message: Pushed) -> None:
        for mount in [*self._mounts]:
            mount.pushed(message)

    def _lost(self, _error: PeerError) -> None:
        for mount in self._mounts:
            mount.lost()
        if self._mounts and (self._keeping is None or self._keeping.done()):
            self._keeping = self._spawn(self._keep())

    async def close(self) -> None:
        self._mounts.clear()
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        if self._current is not None:
            await self._current.close()


@dataclass(slots=True)
class _Pending:
    """An append that is undecided.  `refused_at`: the transaction that was in its way."""

    decided: asyncio.Future[Transaction | None]
    refused_at: int | None = None


@dataclass(slots=True)
class _Flushing:
    """A flush that is not answered, or whose mark the feed has not come to.  `sequence`: of the last append before it."""

    sequence: int
    done: asyncio.Future[int]
    mark: int | None = None


@dataclass(eq=False, slots=True)
class _Mount:
    """A partition of one client id: where it stands in the log, its feed, and what is undecided.

    `queue`: whom the feed is for; None for a mount that only appends.
    """

    client: LogClient
    partition: int
    client_id: int
    position: int
    queue: asyncio.Queue[Transaction | WaltzError] | None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    _server: PartitionServer | None = None
    _endpoint: _Endpoint | None = None
    _connection: LogConnection | None = None
    _mounted_as: RequestId | None = None
    _sequence: int = 0
    _pending: OrderedDict[int, _Pending] = field(default_factory=OrderedDict)
    _flushes: deque[_Flushing] = field(default_factory=deque)
    _error: WaltzError | None = None
    _again: asyncio.TimerHandle | None = None
    _nudge: asyncio.TimerHandle | None = None
    _suspended: bool = False
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    # ---- where it is mounted -------------------------------------------------------------------------------------------

    def served_by(self, server: PartitionServer | None) -> None:
        """Who has the partition now."""
        if server == self._server or self._error is not None:
            return
        self._server = server
        self._leave()
        if server is not None:
            self._endpoint = self.client.endpoint(server, self.client_id)
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
            _fail(one.decided, error)
        for flush in self._flushes:
            _fail(flush.done, error)
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
        """A message of the connection; most are about other partitions, or other clients' appends."""
        if message.request_id.partition != self.partition or self._mounted_as is None:
            return
        match message:
            case wire.FeedData():
                self._fed(message)
            case wire.LockFailure():
                pending = self._pending.get(message.request_id.sequence) if self._own(message.request_id) else None
                if pending is not None:
                    pending.refused_at = message.transaction_id
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
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(self.client.options.not_ready, self._mount_again)
            return
        for flush in self._flushes:  # what was sent before the mount is decided by it
            flush.mark = self.position if flush.mark is None else flush.mark
        undecided, self._pending = self._pending, OrderedDict()
        for one in undecided.values():
            _set(one.decided, None)
        self._decide()
        self.ready.set()
        self._suspended = True
        self._ask_for_more()

    def _mount_again(self) -> None:
        if self._connection is not None and self._endpoint is not None:
            self.connected(self._connection, self._endpoint.sequence)

    def _fed(self, message: wire.FeedData) -> None:
        if message.transaction_id != self.position + 1:
            return  # of a mount before this one
        self.position = message.transaction_id
        found = Transaction(self.partition, message.transaction_id, message.request_id, message.header)
        if self._pending and self._own(message.request_id) and message.request_id.sequence in self._pending:
            while self._pending:
                sequence, one = self._pending.popitem(last=False)
                if sequence == message.request_id.sequence:
                    _set(one.decided, found)
                    break
                _set(one.decided, None)  # what was sent before this one can no longer come
        if self.queue is not None:
            self.queue.put_nowait(found)
            if self._connection is not None and not self._has_room:
                self._connection.pause()
        self._decide()

    def _decide(self) -> None:
        """What the feed has come past: flushes, appends in front of them, and appends that a lock refused."""
        while self._flushes and (mark := self._flushes[0].mark) is not None and mark <= self.position:
            flush = self._flushes.popleft()
            while self._pending and next(iter(self._pending)) <= flush.sequence:
                _set(self._pending.popitem(last=False)[1].decided, None)
            _set(flush.done, mark)
        refused = [
            sequence
            for sequence, one in self._pending.items()
            if one.refused_at is not None and one.refused_at <= self.position
        ]
        for sequence in refused:
            _set(self._pending.pop(sequence).decided, None)
        if len(self._pending) < self.client.options.in_flight:
            self._room.set()

    # ---- the feed ------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """The reader has taken half of what was kept for it."""
        if self._connection is not None:
            self._connection.resume()
        self._ask_for_more()

    @property
    def _has_room(self) -> bool:
        return self.queue is None or self.queue.qsize() < self.client.options.ahead

    def _ask_for_more(self) -> None:
        if self._suspended and self._connection is not None and self._has_room:
            assert self._mounted_as is not None
            self._suspended = False
            with contextlib.suppress(PeerError):
                self._connection.send(wire.FeedRequest(self._mounted_as, self.position))

    # ---- appends -------------------------------------------------------------------------------------------------------

    async def append(self, build: Build) -> Transaction | None:
        """See `LogClient.append`."""
        async with self._turn:  # in the order of the calls; what is sent again goes in front of what is new
            while len(self._pending) >= self.client.options.in_flight and self._error is None:
                self._room.clear()
                await self._room.wait()
            pending = await self._send(build)
        while pending is not None:
            sequence, one = pending
            try:
                found = await one.decided
            finally:
                self._pending.pop(sequence, None)
            if found is not None:
                return found
            pending = await self._send(build)
        return None

    async def _send(self, build: Build) -> tuple[int, _Pending] | None:
        while True:
            await self.ready.wait()
            if self._error is not None:
                raise self._error
            assert self._connection is not None
            draft = build(self.position)
            if draft is None:
                return None
            number = self._next_id()
            one = _Pending(asyncio.get_running_loop().create_future())
            with contextlib.suppress(PeerError):
                self._connection.send(
                    wire.AppendRequest(
                        number,
                        self.position,
                        draft.header,
                        draft.data,
                        crc32(draft.data),
                        _ids(draft.write_locks),
                        _ids(draft.read_locks),
                        _ids(draft.append_locks),
                    )
                )
                self._pending[number.sequence] = one
                self._watch()
                return number.sequence, one

    async def flush(self) -> int:
        """See `LogClient.flush`."""
        while True:
            await self.ready.wait()
            if self._error is not None:
                raise self._error
            with contextlib.suppress(PeerError):
                return await self._flush().done

    def _flush(self) -> _Flushing:
        assert self._connection is not None
        number = self._next_id()
        self._connection.send(wire.FlushRequest(number))
        flush = _Flushing(number.sequence, asyncio.get_running_loop().create_future())
        self._flushes.append(flush)
        return flush

    def _watch(self) -> None:
        """Send a flush when nothing was decided for a while."""
        if self._nudge is None:
            loop = asyncio.get_running_loop()
            self._nudge = loop.call_later(self.client.options.nudge, self._nudged, next(iter(self._pending)))

    def _nudged(self, oldest: int) -> None:
        self._nudge = None
        if not self._pending or self._connection is None or not self.ready.is_set():
            return
        if next(iter(self._pending)) == oldest and not self._flushes:
            with contextlib.suppress(PeerError):
                self._flush().done.add_done_callback(_heard)
        self._watch()


def _ids(locks: Collection[Lock]) -> tuple[int, ...]:
    return tuple(lock_id(*lock) for lock in locks)


def _set(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: WaltzError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # whoever waits hears of it; if nobody does, nothing is lost


def _heard(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
