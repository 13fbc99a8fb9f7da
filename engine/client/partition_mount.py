"""A partition mounted at a server: its feed, and the outcome of the appends that were sent.

`Mount` is one client id's position in a partition's log.  The tables in `engine.client.log_client` list the events that a mount
reacts to, and how it learns whether an append is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from waltzctl.engine.client.append_bounds import OversizedAppendError, lock_ids
from waltzctl.engine.client.append_call import AppendCall, Numbered
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.feed_watch import FeedWatch
from waltzctl.engine.client.log_connection import LogConnection, Pushed
from waltzctl.engine.client.log_transaction import Draft, Transaction
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
    """One client id's mount of a partition: its position in the log, its feed, and its undecided appends.

    An append belongs to the call in `_calls` that made it.  Until it is committed it is in one of three states:

    ==================  =====================================================  ============================================
    state               meaning                                                recorded in
    ==================  =====================================================  ============================================
    undecided           sent                                                   `_pending`
    refused             sent; the server answered with a lock failure, and     `_pending` and `_conflicts`
                        the feed has not reached the conflicting transaction
    to be sent again    not committed; its draft will be built again           `AppendCall.again`, counted in `_to_resend`
    ==================  =====================================================  ============================================
    """

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
    _pending: OrderedDict[int, AppendCall] = field(default_factory=OrderedDict)
    """The calls of undecided appends by sequence number, in the order in which the appends were sent."""
    _to_resend: int = 0
    """Appends of all calls that are not committed and have to be sent again, before any new append."""
    _conflicts: dict[int, int] = field(default_factory=dict)
    """By an append's sequence number, the transaction that the server named in the lock failure."""
    _flushes: deque[_PendingFlush] = field(default_factory=deque)
    _error: WaltzError | None = None
    """Why the mount has ended; None while it has not."""
    _watch: FeedWatch = field(init=False)
    _mount_timer: asyncio.TimerHandle | None = None
    """Repeats the mount request after a server was not ready."""
    _nudge_timer: asyncio.TimerHandle | None = None
    _feed_suspended: bool = False
    """Whether the server has sent all that was requested, and waits for a feed request."""
    _calls: dict[AppendCall, None] = field(default_factory=dict)
    """Calls that are running, in the order of their start."""
    _turns: OrderedDict[AppendCall, None] = field(default_factory=OrderedDict)
    """Calls that have new appends to send; the first one is next."""
    _flush_calls: int = 0
    """Calls of `flush` that are running."""
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no call is running; `settled` waits for it."""
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
        self._pending.clear()
        for call in self._calls:
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
                if self._is_own(message.request_id) and message.request_id.sequence in self._pending:
                    self._conflicts[message.request_id.sequence] = message.transaction_id
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
        self._conflicts.clear()
        while self._pending:
            self._fail_oldest()
        self._decide_passed()
        self.ready.set()
        for call in self._calls:  # every call, as some have appends to send again, which go before new ones
            call.wake()
        self._feed_suspended = True
        self._request_feed()
        if self.queue is not None:
            self._watch.await_feed()

    def fed(self, rows: Iterable[FeedRow]) -> None:
        """Committed transactions of the partition that were received together; most are appends of other clients."""
        if self._mount_id is None:
            return
        pending, queue = self._pending, self.queue
        before, held = self.position, 0 if queue is None else queue.qsize()
        for client, generation, partition, sequence, transaction_id, header in rows:
            if transaction_id != self.position + 1:
                continue  # sent for an earlier mount request
            # whoever waits for it first: an error (MemoryError) ends the connection, and the next mount goes on behind `position`
            if client == self.client_id and sequence in pending:
                while next(iter(pending)) != sequence:
                    self._fail_oldest()  # appends commit in the order sent: an earlier one can no longer commit
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

    def _fail_oldest(self) -> None:
        """The oldest pending append is not committed and will not be: its call sends it again."""
        self._give_back(next(iter(self._pending)))

    def _give_back(self, sequence: int) -> None:
        """Give a pending append back to its call, which sends it again.  An error (MemoryError) leaves it pending."""
        self._pending[sequence].refused(sequence)
        del self._pending[sequence]
        self._to_resend += 1

    def _decide_passed(self) -> None:
        """Decide what the feed has reached or passed: flushes, appends sent before them, and refused appends.

        A flush is done once the feed has reached the mark of its response; an append sent before it and still pending is then
        not committed.
        """
        while self._flushes and (mark := self._flushes[0].mark) is not None and mark <= self.position:
            flush, dropped = self._flushes[0], False
            while self._pending and next(iter(self._pending)) <= flush.sequence:
                self._fail_oldest()
                dropped = True
            self._flushes.popleft()
            _set_result(flush.done, mark)
            if dropped and flush.nudge and self.ready.is_set():  # the server no longer knows this mount
                self.remount()
        if self._conflicts:
            self._return_conflicting()
        self._wake_next()

    def _return_conflicting(self) -> None:
        """Give appends back to their calls whose conflicting transaction the feed has reached."""
        for sequence in [one for one, conflicting in self._conflicts.items() if conflicting <= self.position]:
            if sequence in self._pending:
                self._give_back(sequence)
            del self._conflicts[sequence]

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
        for call in self._calls:
            call.wake()  # one that waits for its source has nothing else that would wake it
        while self._calls or self._flush_calls:
            self._idle.clear()
            await self._idle.wait()

    def _signal_idle(self) -> None:
        """Wake `settled` when no call is running any more."""
        if not self._calls and not self._flush_calls:
            self._idle.set()

    def enter(self, call: AppendCall) -> None:
        """A call starts here.  Raises the mount's error once the mount has ended."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        self._calls[call] = None

    def leave(self, call: AppendCall) -> None:
        """A call leaves: the outcome of its undecided appends is ignored from now on."""
        self._calls.pop(call, None)
        self._turns.pop(call, None)
        for sequence in call.sent:
            self._pending.pop(sequence, None)
        self._to_resend -= len(call.again)
        self._wake_next()
        self._signal_idle()

    @property
    def _append_room(self) -> int:
        """How many new appends can be sent now.

        0 while appends have to be sent again (they go first), while the partition is not mounted, and while the connection's
        write buffer is full (else appends of any length would pile up in memory).
        """
        if self._to_resend or self._connection is None or self._connection.full or not self.ready.is_set():
            return 0
        return max(0, min(self.options.in_flight - len(self._pending), SPENT_AT - self._sequence))

    def room_for(self, call: AppendCall) -> int:
        """How many new appends the call can send now.  If 0, the call is woken when there is room."""
        if self.spent:
            return 0
        self._turns[call] = None
        return self._append_room if next(iter(self._turns)) is call else 0

    def next_turn(self, call: AppendCall, *, had_one: bool, wants_more: bool) -> None:
        """The call has sent what it could; a call that had a turn goes behind all others that wait."""
        if not wants_more:
            self._turns.pop(call, None)
        elif had_one:
            self._turns.move_to_end(call)
        self._wake_next()

    def _wake_next(self) -> None:
        """Wake the calls that have room for new appends, or all when the client id is spent and they need the next mount."""
        if self._turns:
            for call in islice(self._turns, None if self.spent else self._append_room):
                call.wake()
            if self.spent:
                self._turns.clear()

    def send_again(self, call: AppendCall) -> None:
        """Build the call's refused drafts again and send them."""
        again, call.again = call.again, []
        self._to_resend -= len(again)
        self.send(call, sorted(one for one in again if one[0] < call.stops_at))

    def send(self, call: AppendCall, drafts: Iterable[Numbered]) -> None:
        """Build these drafts and send them in one write; an error of a builder is passed to `call.fail`."""
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
            self._pending[sequence] = call
        if not frames:
            return
        with contextlib.suppress(
            PeerError
        ):  # the connection then calls `lost` as well, and the next mount decides them
            connection.send_frames(frames)
        self._start_nudge_timer()

    async def flush(self) -> int:
        """See `LogClient.flush`."""
        self._flush_calls += 1
        before = self._undecided()
        try:
            while True:
                await self.ready.wait()
                if self._error is not None:
                    raise self._error.with_traceback(None)
                if not self.ready.is_set():  # it was, but the connection was lost before this task ran
                    continue
                with contextlib.suppress(PeerError):
                    mark = await self._flush().done
                    before &= self._undecided()
                    if not before:  # else some of them were refused and sent again, after that flush
                        return mark
        finally:
            self._flush_calls -= 1
            self._signal_idle()

    def _undecided(self) -> set[tuple[AppendCall, int]]:
        """Undecided appends, as pairs of call and index of the draft in that call."""
        return {(call, place) for call in self._calls for place in call.undecided}

    def _flush(self) -> _PendingFlush:
        assert self._connection is not None
        number = self._next_id()
        self._connection.send(wire.FlushRequest(number))
        flush = _PendingFlush(number.sequence, self._loop.create_future())
        self._flushes.append(flush)
        self._start_nudge_timer()
        return flush

    def _start_nudge_timer(self) -> None:
        """Start the timer that sends a flush if no append is decided within `nudge` seconds, and mounts again if that is not."""
        if self._nudge_timer is None:
            reached = self._oldest(), self.position
            self._nudge_timer = self._loop.call_later(self.options.answer_seconds, self._nudge_due, *reached)

    def _oldest(self) -> int:
        """The sequence number of the first append or flush that is not decided; there is one."""
        flushes = (one.sequence for one in islice(self._flushes, 1))
        return min((*flushes, *islice(self._pending, 1)))

    def _nudge_due(self, oldest: int, position: int) -> None:
        self._nudge_timer = None
        if not (self._pending or self._flushes) or self._connection is None or not self.ready.is_set():
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


def _set_result(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
