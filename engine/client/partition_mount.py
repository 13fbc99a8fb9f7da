"""A partition mounted at a server: its feed, and the outcome of the appends that were sent.

`Mount` is one client id's position in a partition's log.  The tables in `engine.client.log_client` list the events that a mount
reacts to, and how it learns whether an append is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from waltzctl.engine.client.append_bounds import OversizedAppendError, lock_ids
from waltzctl.engine.client.append_call import AppendCall, Numbered
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.feed_watch import FeedWatch
from waltzctl.engine.client.log_connection import LogConnection, Pushed
from waltzctl.engine.client.log_transaction import Draft, Transaction
from waltzctl.engine.client.running_calls import RunningCalls
from waltzctl.engine.client.undecided_appends import UndecidedAppends
from waltzctl.engine.errors import InvalidRequestError, PeerError, RefusedError, WaltzError
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.futures import fail, taken
from waltzctl.formats.request_id import LAST_SEQUENCE, RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.append_frames import append_writer
from waltzctl.formats.wire.feed_frames import FeedRow
from waltzctl.formats.wire.frame import FRAME_HEADER


class ClientAheadError(RefusedError):
    """The log ends before the last transaction that this client has seen."""


SPENT_AT = LAST_SEQUENCE - (1 << 20)
"""After this sequence number a client id makes no new appends; the numbers above are for mounts, flushes and repeated appends."""
Connect = Callable[[Address], Awaitable[LogConnection]]
"""Opens a connection to a log server.  Raises PeerError."""


class MountPoint(Protocol):
    """What a mount needs of the connection to a server, as `engine.client.server_endpoint.Endpoint` provides it."""

    sequence: int

    def attach(self, mount: Mount) -> None:
        """Call `mount.connected` for the present connection and for each later one."""

    def detach(self, mount: Mount) -> None:
        """Stop doing so."""


@dataclass(slots=True)
class _PendingFlush:
    """A flush that waits for its response, or for the feed to reach the high-water mark in that response."""

    sequence: int
    """The flush's sequence number; every append with a lower number was sent before it."""
    done: asyncio.Future[int]
    """Done with `mark` once the feed has reached `mark`."""
    mark: int | None = None
    """The high-water mark in the response; None before the response."""
    nudge: bool = False
    """Whether the mount sent it by itself, because no append was decided for a while."""


@dataclass(eq=False, slots=True)
class Mount:
    """One client id's mount of a partition: its position in the log, its feed, and its undecided appends."""

    endpoint_of: Callable[[PartitionServer, int], MountPoint]
    """The connection of a client id to a server."""
    options: ClientOptions
    partition: int
    client_id: int
    position: int
    """The last transaction that was received; -1: none."""
    queue: asyncio.Queue[Transaction | WaltzError] | None
    """Where the feed's reader takes transactions from; None for a mount that only appends."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the partition is mounted, so that appends can be sent, and for good once the mount has ended."""
    _server: PartitionServer | None = None
    """The server that owns the partition."""
    _endpoint: MountPoint | None = None
    _connection: LogConnection | None = None
    _mount_id: RequestId | None = None
    """The request id of the last mount request on this connection; None before it."""
    _sequence: int = 0
    """The last sequence number that was used."""
    _undecided: UndecidedAppends = field(default_factory=UndecidedAppends)
    _running: RunningCalls = field(default_factory=RunningCalls)
    _flushes: deque[_PendingFlush] = field(default_factory=deque)
    _error: WaltzError | None = None
    """Why the mount has ended; None while it has not."""
    _watch: FeedWatch = field(init=False)
    _mount_timer: asyncio.TimerHandle | None = None
    """Repeats the mount request after a server was not ready."""
    _nudge_timer: asyncio.TimerHandle | None = None
    _feed_suspended: bool = False
    """Whether the server has sent all that was requested, and waits for a feed request."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        self._watch = FeedWatch(self, self.options.answer_seconds)

    # ---- where it is mounted -------------------------------------------------------------------------------------------

    def served_by(self, server: PartitionServer | None) -> None:
        """The directory names this server for the partition; None: no server owns it."""
        if server == self._server or self._error is not None:
            return
        try:
            self._server = server
            self._detach()
            if server is not None:
                self._endpoint = self.endpoint_of(server, self.client_id)
                self._endpoint.attach(self)
        except BaseException:  # for instance MemoryError: the server is named again, and must not seem to be known
            self._server = None
            self._detach()
            raise

    def _detach(self) -> None:
        if self._connection is not None and self.queue is not None:
            self._connection.resume()  # this mount no longer will; other mounts pause it again
        if self._endpoint is not None:
            self._endpoint.detach(self)
            self._endpoint = None
        self.lost()

    def connected(self, connection: LogConnection, sequence: int) -> None:
        """The connection to the server is established: send a mount request.

        While the reader's queue is full the request waits for `go_on`.  A mount makes the server send transactions; if nobody
        read them, the server would close the connection, and each new mount would send more of them.
        """
        if self._server is None or self._error is not None:
            return
        self._connection, self._mount_id = connection, None
        if not self._queue_has_room:
            return  # `go_on` mounts later
        self._cancel_mount_timer()
        self._watch.await_answer()  # first: it asks again also where an error (MemoryError) leaves the request unsent
        self._mount_id = self._next_id()
        with contextlib.suppress(PeerError):  # the connection then calls `lost` as well
            connection.send(wire.MountRequest(self._mount_id, self.position, sequence))

    def mount_again(self) -> None:
        """Send the mount request again, if there is a connection."""
        if self._connection is not None and self._endpoint is not None:
            self.connected(self._connection, self._endpoint.sequence)

    def remount(self) -> None:
        """As `mount_again`; until the answer nothing is sent."""
        self.ready.clear()
        self.mount_again()

    def _cancel_mount_timer(self) -> None:
        if self._mount_timer is not None:
            self._mount_timer.cancel()
            self._mount_timer = None

    def lost(self) -> None:
        """The connection is lost: nothing can be sent before the next mount, which decides the pending appends."""
        self.ready.clear()
        self._connection = self._mount_id = None
        self._feed_suspended = False
        self._watch.stop()
        self._cancel_mount_timer()
        if self._nudge_timer is not None:
            self._nudge_timer.cancel()
            self._nudge_timer = None

    def end(self, error: WaltzError, *, tell_reader: bool = True) -> None:
        """End the mount for good: all calls and flushes raise `error`.  `tell_reader`: the feed's reader gets it as well."""
        if self._error is not None:
            return
        self._error = error
        self._detach()
        self._undecided.sent.clear()
        for call in self._running.appending:
            call.end(error)
        for flush in self._flushes:
            fail(flush.done, error)
        self._flushes.clear()
        self.ready.set()
        if self.queue is not None and tell_reader:
            self.queue.put_nowait(error)

    def _next_id(self) -> RequestId:
        self._sequence += 1
        assert self._server is not None
        return RequestId(self.client_id, self._server.generation, self.partition, self._sequence)

    # ---- messages of the server ----------------------------------------------------------------------------------------

    def writable(self) -> None:
        """The connection's write buffer has room again."""
        self._wake_next()

    def pushed(self, message: Pushed) -> None:
        """A message of the server about this partition."""
        if self._mount_id is None:
            return
        match message:
            case wire.LockFailure():
                if self._is_own(message.request_id) and message.request_id.sequence in self._undecided.sent:
                    self._undecided.conflicts[message.request_id.sequence] = message.transaction_id
                    self._decide_passed()
            case wire.FlushResponse():
                for flush in self._flushes:
                    if self._is_own(message.request_id) and flush.sequence == message.request_id.sequence:
                        flush.mark = message.high_water_mark
                self._decide_passed()
            case wire.FeedSuspended():
                if message.request_id == self._mount_id:
                    self._feed_suspended = True
                    self._request_feed()
            case wire.MountResponse():
                if message.request_id == self._mount_id:
                    self._mount_answered(message.state)

    def _is_own(self, request_id: RequestId) -> bool:
        return request_id.client == self.client_id

    def _mount_answered(self, state: wire.MountState) -> None:
        self._watch.answered()
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
            self._mount_timer = self._loop.call_later(self.options.not_ready, self.mount_again)
            return
        # The mount decides every flush sent before it, also where the log has lost transactions below the flush's mark.
        for flush in self._flushes:
            flush.mark = self.position if flush.mark is None else min(flush.mark, self.position)
        self._undecided.fail_all()
        self._decide_passed()
        self.ready.set()
        for call in self._running.appending:  # every call, as some have appends to send again, which go before new ones
            call.wake()
        self._feed_suspended = True
        self._request_feed()
        if self.queue is not None:
            self._watch.await_feed()

    def fed(self, rows: Iterable[FeedRow]) -> None:
        """Committed transactions of the partition that were received together; most are appends of other clients."""
        if self._mount_id is None:
            return
        pending, queue = self._undecided.sent, self.queue
        before, held = self.position, 0 if queue is None else queue.qsize()
        for client, generation, partition, sequence, transaction_id, header in rows:
            if transaction_id != self.position + 1:
                continue  # sent for an earlier mount request
            # whoever waits for it first: an error (MemoryError) ends the connection, and the next mount goes on behind `position`
            if client == self.client_id and sequence in pending:
                while next(iter(pending)) != sequence:
                    self._undecided.fail_oldest()  # appends commit in the order sent: an earlier one can no longer commit
                pending[sequence].committed(sequence, transaction_id, generation, header)
                del pending[sequence]
            if queue is not None:
                number = RequestId(client, generation, partition, sequence)
                try:
                    queue.put_nowait(Transaction(partition, transaction_id, number, header))
                except BaseException:
                    if queue.qsize() - held > self.position - before:  # it came that far: it must not come twice
                        self.position = transaction_id
                    raise
            self.position = transaction_id
        if self._connection is not None and not self._queue_has_room:
            self._connection.pause()
        self._decide_passed()

    def _decide_passed(self) -> None:
        """Decide what the feed has reached or passed: flushes, appends sent before them, and refused appends.

        A flush is done once the feed has reached the mark of its response; an append sent before it and still pending is then
        not committed.
        """
        while self._flushes and (mark := self._flushes[0].mark) is not None and mark <= self.position:
            flush = self._flushes[0]
            dropped = self._undecided.fail_up_to(flush.sequence)
            self._flushes.popleft()
            if not flush.done.done():
                flush.done.set_result(mark)
            if dropped and flush.nudge and self.ready.is_set():  # the server no longer knows this mount
                self.remount()
        if self._undecided.conflicts:
            self._undecided.return_conflicting(self.position)
        self._wake_next()

    # ---- the feed ------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """The feed's reader has emptied its queue to half: resume reading, mount if that was put off, request more."""
        if self._connection is not None:
            self._connection.resume()
            if self._mount_id is None:
                self.mount_again()
        self._request_feed()

    @property
    def _queue_has_room(self) -> bool:
        return self.queue is None or self.queue.qsize() < self.options.ahead

    @property
    def reads(self) -> bool:
        """Whether what the server sends is read: the reader has room for it, and no reader of this connection holds it up."""
        return self._queue_has_room and (self._connection is None or not self._connection.paused)

    @property
    def feeding(self) -> LogConnection | None:
        """See `WatchedMount.feeding`."""
        return self._connection if self.ready.is_set() and not self._feed_suspended else None

    def ask_high_water_mark(self, timeout: float) -> asyncio.Future[wire.HighWaterMarkResponse]:
        """See `WatchedMount.ask_high_water_mark`."""
        connection, server = self._connection, self._server
        assert connection is not None
        assert server is not None
        number = RequestId(self.client_id, server.generation, self.partition, connection.next_sequence())
        frame = wire.encode(wire.HighWaterMarkRequest(number), connection.version)
        return connection.start(number.sequence, (frame,), wire.HighWaterMarkResponse, "a question", timeout=timeout)

    def _request_feed(self) -> None:
        if self._feed_suspended and self._connection is not None and self._queue_has_room:
            assert self._mount_id is not None
            self._feed_suspended = False
            with contextlib.suppress(PeerError):
                self._connection.send(wire.FeedRequest(self._mount_id, self.position))

    # ---- appends -------------------------------------------------------------------------------------------------------

    @property
    def spent(self) -> bool:
        """Whether the client id has no request ids left for new appends to the partition (weakness C10)."""
        return self._sequence >= SPENT_AT

    async def settled(self) -> None:
        """Wait until no call that appends and no flush is running.  Calls leave by themselves, as the client id is spent."""
        await self._running.settled()

    def enter(self, call: AppendCall) -> None:
        """A call starts here.  Raises the mount's error once the mount has ended."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        self._running.appending[call] = None

    def leave(self, call: AppendCall) -> None:
        """A call leaves: the outcome of its undecided appends is ignored from now on."""
        self._running.leave(call)
        self._undecided.forget(call)
        self._wake_next()
        self._running.signal_idle()

    @property
    def _append_room(self) -> int:
        """How many new appends can be sent now.

        0 while appends have to be sent again (they go first), while the partition is not mounted, and while the connection's
        write buffer is full (else appends of any length would pile up in memory).
        """
        undecided = self._undecided
        if undecided.to_resend or self._connection is None or self._connection.full or not self.ready.is_set():
            return 0
        return max(0, min(self.options.in_flight - len(undecided.sent), SPENT_AT - self._sequence))

    def room_for(self, call: AppendCall) -> int:
        """How many new appends the call can send now.  If 0, the call is woken when there is room."""
        if self.spent:
            return 0
        return self._append_room if self._running.await_turn(call) else 0

    def next_turn(self, call: AppendCall, *, had_one: bool, wants_more: bool) -> None:
        """The call has sent what it could; a call that had a turn goes behind all others that wait."""
        self._running.end_turn(call, had_one=had_one, wants_more=wants_more)
        self._wake_next()

    def _wake_next(self) -> None:
        """Wake the calls that have room for new appends, or all when the client id is spent and they need the next mount."""
        if self._running.turns:
            self._running.wake_next(None if self.spent else self._append_room)

    def send_again(self, call: AppendCall) -> None:
        """Build the call's refused drafts again and send them."""
        again = self._undecided.take_again(call)
        self.send(call, sorted(one for one in again if one[0] < call.stops_at))

    def send(self, call: AppendCall, drafts: Iterable[Numbered]) -> None:
        """Build these drafts and send them in one write; an error of a builder is passed to `call.fail`."""
        connection, server = self._connection, self._server
        assert connection is not None
        assert server is not None
        write, sent, frames = append_writer(connection.version), call.sent, list[bytes]()
        pending, most = self._undecided.sent, self.options.max_body
        mark, client, generation, partition = self.position, self.client_id, server.generation, self.partition
        for one in drafts:
            place, build = one
            try:
                draft = build if isinstance(build, Draft) else build(mark)
                if draft is None:
                    continue
                self._sequence = sequence = self._sequence + 1
                ids = (
                    lock_ids(draft.write_locks, place),
                    lock_ids(draft.read_locks, place),
                    lock_ids(draft.append_locks, place),
                )
                try:
                    frame = write(client, generation, partition, sequence, mark, draft.header, draft.data, *ids)
                except ValueError as error:
                    raise InvalidRequestError(
                        f"an append that cannot be sent: {error}", advice="a header has 32 bits, with a sign"
                    ) from error
                if len(frame) - FRAME_HEADER.size > most:
                    raise OversizedAppendError(
                        place,
                        f"an append of {len(frame) - FRAME_HEADER.size} bytes; the longest that a server takes is {most}",
                        "split the transaction, or keep its data elsewhere",
                    )
            except Exception as error:
                call.fail(error, place)
                break
            frames.append(frame)
            sent[sequence] = one
            pending[sequence] = call
        if not frames:
            return
        # where it raises the connection calls `lost` as well, and the next mount decides them
        with contextlib.suppress(PeerError):
            connection.send_frames(frames)
        self._start_nudge_timer()

    async def flush(self) -> int:
        """See `LogClient.flush`."""
        with self._running.flushing():
            before = self._running.undecided
            while True:
                await self.ready.wait()
                if self._error is not None:
                    raise self._error.with_traceback(None)
                if not self.ready.is_set():  # it was, but the connection was lost before this task ran
                    continue
                with contextlib.suppress(PeerError):
                    mark = await self._flush().done
                    before &= self._running.undecided
                    if not before:  # else some of them were refused and sent again, after that flush
                        return mark

    def _flush(self) -> _PendingFlush:
        assert self._connection is not None
        number = self._next_id()
        self._connection.send(wire.FlushRequest(number))
        flush = _PendingFlush(number.sequence, self._loop.create_future())
        self._flushes.append(flush)
        self._start_nudge_timer()
        return flush

    def _start_nudge_timer(self) -> None:
        """Start the timer that sends a flush if no append is decided in time (`ClientOptions.answer_seconds`).

        If that is not decided in time, either, it mounts again.
        """
        if self._nudge_timer is None:
            reached = self._oldest(), self.position
            self._nudge_timer = self._loop.call_later(self.options.answer_seconds, self._nudge_due, *reached)

    def _oldest(self) -> int:
        """The sequence number of the first append or flush that is not decided; there is one."""
        flushes = (one.sequence for one in islice(self._flushes, 1))
        return min((*flushes, *islice(self._undecided.sent, 1)))

    def _nudge_due(self, oldest: int, position: int) -> None:
        self._nudge_timer = None
        if not (self._undecided.sent or self._flushes) or self._connection is None or not self.ready.is_set():
            return
        self._start_nudge_timer()  # first: an error (MemoryError) below is not the end of it
        self._connection.ask_after(self.options.nudge)
        if self._oldest() == oldest:
            if not self._flushes:
                with contextlib.suppress(PeerError):
                    flush = self._flush()
                    flush.nudge = True
                    flush.done.add_done_callback(taken)
            elif position == self.position and self._queue_has_room:
                # a released server that gets no session for a moment leaves a flush without an answer, and a feed without an end
                self.remount()
