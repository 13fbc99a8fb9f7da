"""A partition that is mounted at a server: what the feed tells, and what becomes of the appends that were sent.

`Mount` is one client's place in a partition's log.  What happens to it, and what follows, is the table in
`engine.client.log_client`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from waltzctl.engine.client.append_call import AppendCall, Numbered
from waltzctl.engine.client.log_connection import LogConnection, Pushed
from waltzctl.engine.client.log_transaction import Draft, Lock, Transaction
from waltzctl.engine.errors import InvalidRequestError, PeerError, RefusedError, WaltzError
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.futures import fail, taken
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.retries import pause_after
from waltzctl.formats.lock_id import lock_id
from waltzctl.formats.request_id import LAST_SEQUENCE, RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.append_frames import append_writer
from waltzctl.formats.wire.feed_frames import FeedRow
from waltzctl.formats.wire.frame import FRAME_HEADER


class ClientAheadError(RefusedError):
    """The log ends in front of what this client has seen of it."""


class OversizedAppendError(InvalidRequestError):
    """A transaction that no server would take; `place`: among what its call appends, from 0."""

    def __init__(self, place: int, size: int, most: int) -> None:
        super().__init__(
            f"an append of {size} bytes; the longest that a server takes is {most}",
            advice="split the transaction, or keep its data elsewhere",
        )
        self.place = place


SPENT_AT = LAST_SEQUENCE - (1 << 20)
"""Behind this sequence number nothing new is appended under a client id; the rest is for mounts and for what is sent again."""
Connect = Callable[[Address], Awaitable[LogConnection]]
"""Connects to a server.  Raises PeerError."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Times are seconds.  `in_flight`: appends of a partition that are undecided at a time; `ahead`: transactions of a feed that
    are kept for a reader who is slower; beyond, nothing is read from the server.

    `max_body`: bytes of an append's frame, about its data, that servers take; ours close the connection at a longer one, with
    all that is under way there (`PortLimits.max_client_body`), those of release 0.13.2 take any.
    """

    timeout: float = 30.0
    in_flight: int = 64
    ahead: int = 4096
    nudge: float = 5.0
    first_retry: float = 0.05
    longest_retry: float = 5.0
    not_ready: float = 0.2
    max_body: int = PortLimits().max_client_body

    def __post_init__(self) -> None:
        times = "timeout", "nudge", "first_retry", "longest_retry", "not_ready"
        for name in (*times, "in_flight", "ahead", "max_body"):
            value, least = getattr(self, name), 0 if name in times else 1
            if not value >= least:  # NaN is not, either
                raise InvalidRequestError(f"{name}={value}: no less than {least} can be meant")

    def pause_after(self, pause: float) -> float:
        """See `engine.net.retries`."""
        return pause_after(pause, first=self.first_retry, longest=self.longest_retry)


class MountPoint(Protocol):
    """What a mount wants of the connection to a server: see `engine.client.server_endpoint.Endpoint`."""

    sequence: int

    def attach(self, mount: Mount) -> None:
        """Mount through it from now on."""

    def detach(self, mount: Mount) -> None:
        """No longer."""


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

    `_pending`: whose appends are under way, by sequence number; `_refused`: the transaction that is in an append's way; `_owed`:
    appends that were refused, or passed over, and are not sent again as yet.  `_calls`: the calls of all these; `_queue`: those
    that have something new to send, in the order of their turns.

    `endpoint_of`: the connection of a client id to a server; `queue`: whom the feed is for; None for a mount that only appends.
    """

    endpoint_of: Callable[[PartitionServer, int], MountPoint]
    options: ClientOptions
    partition: int
    client_id: int
    position: int
    queue: asyncio.Queue[Transaction | WaltzError] | None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    _server: PartitionServer | None = None
    _endpoint: MountPoint | None = None
    _connection: LogConnection | None = None
    _mounted_as: RequestId | None = None
    _sequence: int = 0
    _pending: OrderedDict[int, AppendCall] = field(default_factory=OrderedDict)
    _owed: int = 0
    _refused: dict[int, int] = field(default_factory=dict)
    _flushes: deque[_Flushing] = field(default_factory=deque)
    _error: WaltzError | None = None
    _again: asyncio.TimerHandle | None = None
    _nudge: asyncio.TimerHandle | None = None
    _suspended: bool = False
    _calls: dict[AppendCall, None] = field(default_factory=dict)
    _queue: OrderedDict[AppendCall, None] = field(default_factory=OrderedDict)
    _flushing: int = 0
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
        if self._connection is not None and self.queue is not None:
            self._connection.resume()  # this mount's reader will not come to do it; others pause it again
        if self._endpoint is not None:
            self._endpoint.detach(self)
            self._endpoint = None
        self.lost()

    def connected(self, connection: LogConnection, sequence: int) -> None:
        """The connection to the server stands: mount, once the reader has room for what a mount brings.

        A server ends a connection of which nothing is read; each mount would bring more of what nobody takes.
        """
        if self._server is None or self._error is not None:
            return
        self._connection, self._mounted_as = connection, None
        if not self._has_room:
            return  # `go_on` does it
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
        self._pending.clear()
        for call in self._calls:
            call.end(error)
        for flush in self._flushes:
            fail(flush.done, error)
        self._flushes.clear()
        self.ready.set()
        if self.queue is not None and told:
            self.queue.put_nowait(error)

    def _next_id(self) -> RequestId:
        self._sequence += 1
        assert self._server is not None
        return RequestId(self.client_id, self._server.generation, self.partition, self._sequence)

    # ---- what the server says ------------------------------------------------------------------------------------------

    def writable(self) -> None:
        """The connection takes more again."""
        self._next_turns()

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
        for (
            flush
        ) in self._flushes:  # what was sent before the mount is decided by it, also where the log has lost its mark
            flush.mark = self.position if flush.mark is None else min(flush.mark, self.position)
        self._refused.clear()
        while self._pending:
            self._pass_over()
        self._decide()
        self.ready.set()
        for call in self._calls:  # those that have something to send again, and in front of the others
            call.wake()
        self._suspended = True
        self._ask_for_more()

    def _mount_again(self) -> None:
        if self._connection is not None and self._endpoint is not None:
            self.connected(self._connection, self._endpoint.sequence)

    def fed(self, rows: Iterable[FeedRow]) -> None:
        """Committed transactions of the partition that came together; most are other clients' appends."""
        if self._mounted_as is None:
            return
        pending, queue = self._pending, self.queue
        for client, generation, partition, sequence, transaction_id, header in rows:
            if transaction_id != self.position + 1:
                continue  # of a mount before this one
            self.position = transaction_id
            if client == self.client_id and sequence in pending:
                while next(iter(pending)) != sequence:
                    self._pass_over()  # what was sent before this one can no longer come
                pending.popitem(last=False)[1].committed(sequence, transaction_id, generation, header)
            if queue is not None:
                number = RequestId(client, generation, partition, sequence)
                queue.put_nowait(Transaction(partition, transaction_id, number, header))
        if self._connection is not None and not self._has_room:
            self._connection.pause()
        self._decide()

    def _pass_over(self) -> None:
        """The append that was sent first is not committed, and will not be."""
        sequence, call = self._pending.popitem(last=False)
        self._owed += 1
        call.refused(sequence)

    def _decide(self) -> None:
        """What the feed has come past: flushes, appends in front of them, and appends that a lock refused."""
        while self._flushes and (mark := self._flushes[0].mark) is not None and mark <= self.position:
            flush = self._flushes.popleft()
            passed_over = False
            while self._pending and next(iter(self._pending)) <= flush.sequence:
                self._pass_over()
                passed_over = True
            _set(flush.done, mark)
            if passed_over and flush.nudge and self.ready.is_set():  # the server knows this mount no more
                self.ready.clear()
                self._mount_again()
        if self._refused:
            self._build_again()
        self._next_turns()

    def _build_again(self) -> None:
        """The feed has come to what was in the way of these appends."""
        for sequence in [one for one, in_the_way in self._refused.items() if in_the_way <= self.position]:
            del self._refused[sequence]
            call = self._pending.pop(sequence, None)
            if call is not None:
                self._owed += 1
                call.refused(sequence)

    # ---- the feed ------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """The reader has taken half of what was kept for it."""
        if self._connection is not None:
            self._connection.resume()
            if self._mounted_as is None:
                self._mount_again()
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
        while self._calls or self._flushing:
            self._idle.clear()
            await self._idle.wait()

    def _one_is_over(self) -> None:
        """Of those that `settled` waits for."""
        if not self._calls and not self._flushing:
            self._idle.set()

    def enter(self, call: AppendCall) -> None:
        """A call begins.  Raises the mount's error."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        self._calls[call] = None

    def leave(self, call: AppendCall) -> None:
        """A call is over, and whatever of it is undecided is nobody's any more."""
        self._calls.pop(call, None)
        self._queue.pop(call, None)
        for sequence in call.sent:
            self._pending.pop(sequence, None)
        self._owed -= len(call.again)
        self._next_turns()
        self._one_is_over()

    @property
    def _room(self) -> int:
        """How many new appends can be sent; 0 while there are some to be sent again, because those go in front.

        Nor are there any while the connection takes no more: however long they are, they do not pile up here.
        """
        if self._owed or self._connection is None or self._connection.full or not self.ready.is_set():
            return 0
        return max(0, min(self.options.in_flight - len(self._pending), SPENT_AT - self._sequence))

    def room_for(self, call: AppendCall) -> int:
        """How many new appends a call can send now.  When it is none the call is woken when there are."""
        if self.spent:
            return 0
        self._queue[call] = None
        return self._room if next(iter(self._queue)) is call else 0

    def next_turn(self, call: AppendCall, *, had_one: bool, wants_more: bool) -> None:
        """A call has done what it could; if it had a turn, its next one is behind those of all others."""
        if not wants_more:
            self._queue.pop(call, None)
        elif had_one:
            self._queue.move_to_end(call)
        self._next_turns()

    def _next_turns(self) -> None:
        """Wake those who can send something new, or have to go to the next mount for it."""
        if self._queue:
            for call in islice(self._queue, None if self.spent else self._room):
                call.wake()
            if self.spent:
                self._queue.clear()

    def send_again(self, call: AppendCall) -> None:
        """What was refused is built anew."""
        again, call.again = call.again, []
        self._owed -= len(again)
        self.send(call, sorted(one for one in again if one[0] < call.stops_at))

    def send(self, call: AppendCall, drafts: Iterable[Numbered]) -> None:
        """Build these and send them in one go; what builders raise is the call's."""
        connection, server = self._connection, self._server
        assert connection is not None
        assert server is not None
        write, sent, frames = append_writer(connection.version), call.sent, list[bytes]()
        most = self.options.max_body
        mark, client, generation, partition = self.position, self.client_id, server.generation, self.partition
        for one in drafts:
            place, build = one
            try:
                draft = build if isinstance(build, Draft) else build(mark)
                if draft is None:
                    continue
                self._sequence = sequence = self._sequence + 1
                ids = _ids(draft.write_locks), _ids(draft.read_locks), _ids(draft.append_locks)
                try:
                    frame = write(client, generation, partition, sequence, mark, draft.header, draft.data, *ids)
                except ValueError as error:
                    raise InvalidRequestError(
                        f"an append that cannot be sent: {error}", advice="a header has 32 bits, with a sign"
                    ) from error
                if len(frame) - FRAME_HEADER.size > most:
                    raise OversizedAppendError(place, len(frame) - FRAME_HEADER.size, most)
            except Exception as error:
                call.fail(error, place)
                break
            frames.append(frame)
            sent[sequence] = one
            self._pending[sequence] = call
        if not frames:
            return
        with contextlib.suppress(PeerError):  # then it is told to be lost as well, and the next mount decides them
            connection.send_frames(frames)
        self._watch()

    async def flush(self) -> int:
        """See `LogClient.flush`."""
        self._flushing += 1
        before = self._undecided()
        try:
            while True:
                await self.ready.wait()
                if self._error is not None:
                    raise self._error.with_traceback(None)
                if not self.ready.is_set():  # it was, and the connection was lost before it was this task's turn
                    continue
                with contextlib.suppress(PeerError):
                    mark = await self._flush().done
                    before &= self._undecided()
                    if not before:  # what was refused meanwhile, and is sent again, stands behind that flush
                        return mark
        finally:
            self._flushing -= 1
            self._one_is_over()

    def _undecided(self) -> set[tuple[AppendCall, int]]:
        """Appends that were begun and are neither committed nor given up, by their calls and their places there."""
        return {(call, place) for call in self._calls for place in call.undecided}

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
        self._connection.ask_after(self.options.nudge)
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
