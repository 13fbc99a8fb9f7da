"""One connection to a port of a node: handshake, frames, and calls with their responses.

Many calls may be in flight at a time.  Frames queued in one turn of the event loop are sent in one write.  A call gets the
response with its sequence number, which must be of the expected type.  A frame, message or response that the protocol does not
allow ends the connection, and every call in flight fails with the reason.

Connecting, the handshake (an exchange of Hello frames) and every call have a deadline.  Memory is bounded whatever the peer
sends: a body is refused by its length before it is read, and messages are decoded within `Limits`.

Facts of the protocol: release 0.13.2 and its networking library 2.5.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Generic, Self, cast

from waltzctl.engine.client.calls_in_flight import ArrivingFrame, CallInFlight, CallsInFlight
from waltzctl.engine.client.connection_failures import (
    another_port,
    closed_by_peer,
    lost_connection,
    no_common_version,
    no_frame,
    not_connected,
)
from waltzctl.engine.client.open_connection import open_connection
from waltzctl.engine.client.port_protocol import LIMITS, A, M, NodePort
from waltzctl.engine.client.remote_failures import remote_error
from waltzctl.engine.client.write_room import WriteRoom
from waltzctl.engine.errors import DeadlineError, PeerError, PeerUnreachableError, ProtocolError
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.deadlines import HELD_UP
from waltzctl.engine.net.futures import fail
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.frame import FrameError, FrameReader, Magic, keep_alive
from waltzctl.formats.wire.hello import Hello, choose_version
from waltzctl.formats.wire.primitives import MessageError

DEFAULT_TIMEOUT = 30.0
"""Seconds for connecting, and for each call."""
KEEP_ALIVE_SECONDS = 60.0
"""Seconds without a write after which an empty frame is sent.  The release sends one after 600."""
MAX_BODY = 320 << 20
"""Bytes of the longest body that is accepted: a record of the longest data that our nodes accept, and some more."""
WRITE_BUFFER = 1 << 20
"""Bytes in the transport's write buffer above which callers wait until half of them are sent."""
_SWEEPS_PER_TIMEOUT = 8
"""How often within a timeout the calls in flight are checked for missed deadlines."""
_CLOSE_TIMEOUT = 3.0
"""Seconds for an orderly close, after which the connection is aborted."""
_MAX_EXPIRED = 100_000
"""Calls without a response in time; with more of them the connection ends."""


class NodePortConnection(asyncio.Protocol, Generic[M]):
    """A connection to `address`.  Made by `connect`; used only from the event loop in which it was made."""

    def __init__(self, port: NodePort[M], address: Address, *, timeout: float, keep_alive_seconds: float) -> None:
        self.address = address
        self.timeout = timeout
        self.version = 0
        self.ended: asyncio.Future[PeerError] = asyncio.get_running_loop().create_future()
        """Done with the reason once the connection has ended, so that no call can be made."""
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(MAX_BODY)
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._error: PeerError | None = None
        self._calls = CallsInFlight()
        self._next_sequence = 0
        self._queued: list[bytes] = []
        """Frames, in pieces, that the next `_flush` sends."""
        self._queued_bytes = 0
        self._flush_due = False
        """Whether a `_flush` is scheduled."""
        self._room = WriteRoom()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._keep_alive_seconds = keep_alive_seconds
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._last_write = self._heard = self._loop.time()
        """Loop times at which something was sent last, and received last."""
        self._arriving = ArrivingFrame(timeout)
        self._reading = True
        """Whether the socket is read; a log client pauses reading while a feed's reader is behind."""

    # ---- what callers use ----------------------------------------------------------------------------------------------

    @classmethod
    async def connect(
        cls,
        port: NodePort[M],
        address: Address,
        *,
        ssl_context: ssl.SSLContext | None,
        timeout: float = DEFAULT_TIMEOUT,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> Self:
        """Connect and do the handshake.  `ssl_context` None: no TLS.

        Raises PeerUnreachableError, DeadlineError after `timeout` seconds, ProtocolError for a peer that is not such a port.
        """
        made: list[Self] = []
        given: Self | None = None

        def make() -> NodePortConnection[M]:
            made.append(cls(port, address, timeout=timeout, keep_alive_seconds=keep_alive_seconds))
            return made[-1]

        try:
            async with asyncio.timeout(timeout):
                await open_connection(
                    make,
                    address,
                    ssl=ssl_context,
                    server_hostname=address.host if ssl_context is not None else None,
                    ssl_handshake_timeout=timeout if ssl_context is not None else None,
                    ssl_shutdown_timeout=_CLOSE_TIMEOUT if ssl_context is not None else None,
                )
                connection = made[-1]
                await connection._greeted
        except (PeerError, OSError, ValueError, OverflowError) as failed:  # the last two: no possible host or port
            error = not_connected(address, failed, timeout, tls=ssl_context is not None)
        else:
            given = connection
            return connection
        finally:
            for one in made:  # also one whose handshake ended in the loop turn in which this task was cancelled
                if one is not given:
                    one._give_up()
        raise error from None

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, so that no call can be made."""
        return self._error is not None or self._closed.done()

    @property
    def heard(self) -> float:
        """Loop time at which bytes of the peer were received last; before the first, the time of the connection's creation."""
        return self._heard

    @property
    def in_flight(self) -> int:
        """Number of calls that wait for their response."""
        return len(self._calls)

    @property
    def full(self) -> bool:
        """Whether the write buffer is full."""
        return self._room.full

    def next_sequence(self) -> int:
        """The sequence number for the next request."""
        number = self._next_sequence
        self._next_sequence += 1
        return number

    async def call(
        self,
        sequence: int,
        frame: bytes,
        expected: type[A],
        what: str,
        *,
        timeout: float | None = None,
        of_silence: bool = False,
        long_answer: bool = False,
    ) -> A:
        """Send a request's frame and wait for its response, which must be an `expected`.

        `what` names the call in errors.  `timeout`: seconds; None for the connection's.  The others: see `start`.  Raises
        RemoteError where the node responds with a failure, DeadlineError, PeerUnreachableError, ProtocolError.
        """
        await self.room(timeout)
        return await self.start(
            sequence, (frame,), expected, what, timeout=timeout, of_silence=of_silence, long_answer=long_answer
        )

    async def room(self, timeout: float | None = None) -> None:
        """Wait until all earlier callers were served and the write buffer has room: calls are sent in the order they were made.

        The caller sends before it waits for anything else.  Raises DeadlineError.  Returns when the connection ends: the next
        call fails.
        """
        if self._room.at_once:
            return
        seconds = self.timeout if timeout is None else timeout

        def late() -> DeadlineError:
            said = f"the node took nothing for {seconds:g} s"
            return DeadlineError(str(self.address), said, advice="it may be overloaded or stopped")

        await self._room.wait(seconds, late)

    def start(
        self,
        sequence: int,
        frame: Sequence[bytes],
        expected: type[A],
        what: str,
        *,
        timeout: float | None = None,
        of_silence: bool = False,
        long_answer: bool = False,
    ) -> asyncio.Future[A]:
        """Send a request's frame, given in pieces, even if the write buffer is full; returns the future of the response.

        `of_silence`: `timeout` limits the time without any byte from the peer, instead of the time until the response.  For long
        responses: a piece of this response, or of one before it, restarts the deadline.

        `long_answer`: the time in which a frame arrives, this response or one before it, does not count; the connection ends with
        a frame that takes longer than `ArrivingFrame` allows.  Unlike with `of_silence`, other responses, however many come, do
        not keep this call waiting: a node may leave one partition's requests without an answer.
        """
        future: asyncio.Future[A] = self._loop.create_future()
        if self._error is not None:
            fail(future, self._error_for(what))
            return future
        seconds = self.timeout if timeout is None else timeout
        now = self._loop.time()
        arrived = self._arriving.seconds(now) if long_answer else None
        self._calls.add(sequence, CallInFlight(future, expected, now, seconds, what, of_silence, arrived))
        self._queue(frame)
        if self._sweep_timer is None or seconds < self.timeout:
            self._schedule_sweep(min(seconds, self.timeout))
        return future

    def _queue(self, pieces: Sequence[bytes]) -> None:
        """Queue whole frames, given in pieces, for one write with all frames of this turn of the event loop."""
        self._queued += pieces
        self._queued_bytes += sum(map(len, pieces))
        if self._queued_bytes > WRITE_BUFFER:
            self._flush()  # now, so that the next caller sees that the write buffer is full
        elif not self._flush_due:
            self._loop.call_soon(self._flush)
            self._flush_due = True  # not before: where that raises MemoryError, the next caller does it

    async def close(self) -> None:
        """Close the connection and wait until it is closed.  Calls in flight fail."""
        if self._error is None:
            self._break_off(PeerUnreachableError(str(self.address), "the connection was closed here"))
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await asyncio.shield(self._closed)
        except TimeoutError:
            pass
        finally:  # also where the caller is cancelled: a peer that takes nothing would keep the connection
            if self._transport is not None and not self._closed.done():
                self._transport.abort()

    # ---- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP (and TLS) connection is established: send the Hello."""
        transport = cast("asyncio.Transport", transport)  # uvloop's transport is not derived from asyncio.Transport
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER, low=WRITE_BUFFER // 2)
        plain = transport.get_extra_info("socket")
        if plain is not None:
            with contextlib.suppress(OSError):
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.write(Hello(self._port.versions, self._port.client).encode())
        self._last_write = self._loop.time()
        self._keep_alive_timer = self._loop.call_later(self._keep_alive_seconds, self._send_keep_alive)

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer; frames may be cut anywhere."""
        if self._error is not None:
            return
        self._heard = self._loop.time()
        self._reader.feed(data)
        pending = self._reader.pending
        try:
            if not self._greeted.done():
                body = self._reader.next(Magic.HELLO, 0)
                if body is None:
                    return
                self._greet(Hello.decode(body, limits=LIMITS))
            while self._error is None and (body := self._next()) is not None:
                self._answer(self._port.decode(body, self.version))
            left = self._reader.pending
            self._arriving.received(self._heard, left, another=left < pending)
        except FrameError as error:
            self._break_off(no_frame(self.address, error, data, greeted=self._greeted.done()))
        except MessageError as error:
            self._break_off(ProtocolError(str(self.address), f"the peer sent a message that cannot be: {error}"))

    def eof_received(self) -> None:
        """The peer sends no more: calls in flight fail."""
        self._break_off(closed_by_peer(self.address, greeted=self._greeted.done()))

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._room.close()
        if self._error is None:
            self._fail(lost_connection(self.address, error))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The write buffer is full: callers wait."""
        self._room.fill()

    def resume_writing(self) -> None:
        """The write buffer has room again."""
        self._room.free()

    # ---- inside --------------------------------------------------------------------------------------------------------

    def _greet(self, hello: Hello) -> None:
        other = another_port(self.address, hello.text, self._port.server)
        if other is not None:
            self._break_off(other)
            return
        version = choose_version(self._port.versions, hello.versions)
        if version is None:
            self._break_off(no_common_version(self.address, hello.versions, self._port.versions))
            return
        self.version = version
        self._greeted.set_result(None)

    def _next(self) -> memoryview | None:
        """The body of the next message in the buffer; None while it is incomplete.  Raises FrameError."""
        return self._reader.next(self._port.magic, self.version)

    def _answer(self, message: M) -> None:
        call = self._calls.take(message.sequence)
        if call is None:
            if self._calls.take_expired(message.sequence):
                return
            self._break_off(
                ProtocolError(
                    str(self.address),
                    f"an answer to request {message.sequence}, which nobody waits for ({_name(message)})",
                )
            )
            return
        if call.future.done():
            return
        if isinstance(message, call.expected):
            call.future.set_result(message)
        elif isinstance(message, self._port.failure):
            failure = message.failure  # type: ignore[attr-defined]  # both protocols' failures have it
            assert isinstance(failure, Failure)
            fail(call.future, remote_error(str(self.address), failure))
        else:
            error = ProtocolError(str(self.address), f"{_name(message)} is no answer to {call.what}")
            fail(call.future, error)
            self._break_off(error)

    def _flush(self) -> None:
        self._flush_due = False
        if self._transport is None or self._error is not None or not self._queued:
            return
        queued, self._queued, self._queued_bytes = self._queued, [], 0
        self._last_write = self._loop.time()
        self._transport.write(queued[0] if len(queued) == 1 else b"".join(queued))

    def _send_keep_alive(self) -> None:
        if self._error is not None or self._transport is None:
            return
        idle = self._loop.time() - self._last_write
        if idle >= self._keep_alive_seconds:
            if self._greeted.done() and not self.full:
                self._transport.write(keep_alive(self._port.magic, self.version))
            self._last_write = self._loop.time()
            idle = 0.0
        self._keep_alive_timer = self._loop.call_later(
            max(self._keep_alive_seconds - idle, 0.001), self._send_keep_alive
        )

    def _schedule_sweep(self, seconds: float) -> None:
        """Schedule the next check for missed deadlines: one timer for all calls, not one for each."""
        wait = max(seconds / _SWEEPS_PER_TIMEOUT, 0.001)
        if self._sweep_timer is not None:
            if self._sweep_timer.when() <= self._loop.time() + wait:
                return
            self._sweep_timer.cancel()
        self._sweep_timer = self._loop.call_later(wait, self._sweep)

    def _sweep(self) -> None:
        timer, self._sweep_timer = self._sweep_timer, None
        now = self._loop.time()
        if timer is not None and now - timer.when() > HELD_UP:
            # where the process was stopped (Ctrl-Z), the loop comes to its timers before it looks at the socket
            self._arriving.held_up(now - timer.when())
            self._calls.begin_anew(now, self._heard, self._arriving.seconds(now))
        try:
            self._end_late_calls()
        except MemoryError:  # nothing else ends them
            if self._error is None:
                self._schedule_sweep(self.timeout)
            raise

    def _end_late_calls(self) -> None:
        """Fail the calls that missed their deadline, end a connection that gives no answers, and look again later."""
        now = self._loop.time()
        late = silent = False
        slow = self._calls.any_of_long_answers and self._reading and self._arriving.stuck(now)
        for call in self._calls.expire(now, self._heard, self._arriving.seconds(now)):
            late = True
            silent = silent or (self._reading and self._heard <= call.begun and call.seconds >= self.timeout)
            fail(
                call.future,
                DeadlineError(
                    str(self.address),
                    f"no answer in time to {call.what}",
                    advice="what was asked for may or may not have been done",
                ),
            )
        if silent:  # TCP itself would give up a lost peer only after a quarter of an hour
            self._break_off(DeadlineError(str(self.address), f"nothing was heard for {self.timeout:g} s"))
        elif slow or (late and self._stuck(now)):  # a frame with a corrupted length would swallow all later responses
            came = self._reader.pending
            self._break_off(
                DeadlineError(str(self.address), f"{came} bytes of a frame came, which does not come to its end")
            )
        elif self._calls.expired > _MAX_EXPIRED:
            self._break_off(DeadlineError(str(self.address), f"{self._calls.expired} requests without an answer"))
        elif self._calls:
            next_one = self._calls.next_deadline(self._heard, self._arriving.seconds(now)) - now
            self._sweep_timer = self._loop.call_later(
                min(max(next_one, 0.001), self.timeout / _SWEEPS_PER_TIMEOUT), self._sweep
            )

    def _stuck(self, now: float) -> bool:
        """Whether a frame has been incomplete for far too long; never while a call `of_silence` may be waiting for it."""
        return self._reading and not self._calls.any_of_silence and self._arriving.too_slow(now)

    def _break_off(self, error: PeerError) -> None:
        """End the connection from our side."""
        self._fail(error)
        if self._transport is not None and not self._transport.is_closing():
            # queued requests are of no use any more, and waiting until they are sent could take for ever
            self._transport.abort() if isinstance(error, (ProtocolError, DeadlineError)) else self._transport.close()

    def _give_up(self) -> None:
        """Connecting failed: release the socket."""
        self._fail(PeerUnreachableError(str(self.address), "not connected"))
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: PeerError) -> None:
        if self._error is not None:
            return
        self._error = error
        if not self.ended.done():  # who waited for it may have been cancelled, and it with them
            self.ended.set_result(error)
        for timer in (self._sweep_timer, self._keep_alive_timer):
            if timer is not None:
                timer.cancel()
        self._sweep_timer = self._keep_alive_timer = None
        self._queued.clear()
        self._room.free()
        fail(self._greeted, error)
        for call in self._calls.take_all():
            try:
                told = self._error_for(call.what)
            except MemoryError:  # nobody else ends this call, nor those behind it
                told = error
            fail(call.future, told)

    def _error_for(self, what: str) -> PeerError:
        """The error for the call named `what`: why the connection ended."""
        error = self._error
        assert error is not None
        told = type(error)(error.peer, f"{error.message.removeprefix(f'{error.peer}: ')} ({what})", advice=error.advice)
        told.__cause__ = error
        return told


def _name(message: object) -> str:
    return type(message).__name__
