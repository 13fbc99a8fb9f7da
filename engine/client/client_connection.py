"""One connection to a port of a node: greeting, frames, and answers that find their way back to whoever asked.

Many calls may be under way at a time.  Frames that are made while others wait leave together, in one write.  A call gets the
answer with its sequence number, which must be of the type that answers it; everything else that a peer can do wrong ends the
connection, and every call that waits ends with the reason.

Nothing here waits for ever: connecting, greeting and every call have a deadline.  Nothing grows with what a peer says: a body
is refused by its length before it is read, and messages are decoded within `Limits`.

Facts of the protocol: release 0.13.2 and its networking library 2.5.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from waltzctl.engine.client.connection_failures import (
    another_port,
    closed_by_peer,
    lost_connection,
    no_common_version,
    no_frame,
    not_connected,
)
from waltzctl.engine.client.remote_failures import remote_error
from waltzctl.engine.errors import DeadlineError, PeerError, PeerUnreachableError, ProtocolError
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.futures import fail
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.frame import FrameError, FrameReader, Magic, keep_alive
from waltzctl.formats.wire.hello import Hello, choose_version
from waltzctl.formats.wire.primitives import Limits, MessageError

DEFAULT_TIMEOUT = 30.0
"""Seconds for a connection, and for each call."""
KEEP_ALIVE_SECONDS = 60.0
"""Seconds without a write after which an empty frame is sent.  The release sends one after 600."""
MAX_BODY = 320 << 20
"""Bytes of the longest body that is read: a record of the longest data that our nodes take, and some."""
LIMITS = Limits(max_data=256 << 20)
WRITE_BUFFER = 1 << 20
"""Bytes that wait in the transport; above it callers wait until half of them are gone."""
_SWEEPS = 8
_LEAST_RATE = 64 << 10
"""Bytes a second at which a frame comes that is not whole within a connection's timeout, as nodes demand it of a request."""
_GOODBYE_SECONDS = 3.0
_MAX_FORGOTTEN = 100_000


class CorrelatedMessage(Protocol):
    """What both protocols' messages have."""

    @property
    def sequence(self) -> int:
        """Which request it is, or answers."""


M = TypeVar("M", bound=CorrelatedMessage)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class NodePort(Generic[M]):
    """One of a node's two protocols, from the client's side.

    `versions` are those that we speak; `client` and `server` the texts of the greetings.  `decode` takes a body and the version
    in use; `failure` is the class of answers that carry a failure, in an attribute of that name.
    """

    magic: Magic
    versions: tuple[int, ...]
    client: str
    server: str
    decode: Callable[[memoryview, int], M]
    failure: type[M]


@dataclass(slots=True)
class _Waiting:
    """A call under way, `begun` at a time of the loop and given up `seconds` later; see `NodePortConnection.start`."""

    future: asyncio.Future[Any]
    expected: type
    begun: float
    seconds: float
    what: str
    of_silence: bool

    def deadline(self, heard: float) -> float:
        return (max(self.begun, heard) if self.of_silence else self.begun) + self.seconds


class NodePortConnection(asyncio.Protocol, Generic[M]):
    """A connection to `address`.  Made by `connect`; used from the loop that it was made in."""

    def __init__(self, port: NodePort[M], address: Address, *, timeout: float, keep_alive_seconds: float) -> None:
        self.address = address
        self.timeout = timeout
        self.version = 0
        self.ended: asyncio.Future[PeerError] = asyncio.get_running_loop().create_future()
        """Done with the reason once nothing can be asked any more."""
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(MAX_BODY)
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._error: PeerError | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._forgotten: set[int] = set()
        self._next_sequence = 0
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._flush_due = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._keep_alive_seconds = keep_alive_seconds
        self._keep_alive: asyncio.TimerHandle | None = None
        self._last_write = self._heard = self._loop.time()
        self._unfinished: float | None = None
        """Since when a part of a frame has been here; None where there is none."""
        self._reading = True
        """Whether what comes is read."""

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
        """Connect and greet.  `ssl_context` None: no TLS.

        Raises PeerUnreachableError, DeadlineError after `timeout` seconds, ProtocolError for a peer that is no such port.
        """
        made: list[Self] = []
        given: Self | None = None

        def make() -> NodePortConnection[M]:
            made.append(cls(port, address, timeout=timeout, keep_alive_seconds=keep_alive_seconds))
            return made[-1]

        try:
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().create_connection(
                    make,
                    address.host,
                    address.port,
                    ssl=ssl_context,
                    server_hostname=address.host if ssl_context is not None else None,
                    ssl_handshake_timeout=timeout if ssl_context is not None else None,
                    ssl_shutdown_timeout=_GOODBYE_SECONDS if ssl_context is not None else None,
                )
                connection = made[-1]
                await connection._greeted
        except (PeerError, OSError, UnicodeError) as failed:  # the last one for what can be no name
            error = not_connected(address, failed, timeout, tls=ssl_context is not None)
        else:
            given = connection
            return connection
        finally:
            for one in made:  # also one that was greeted in the turn of the loop in which whoever waits is cancelled
                if one is not given:
                    one._give_up()
        raise error from None

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._error is not None or self._closed.done()

    @property
    def heard(self) -> float:
        """When something of the peer came last, in the loop's time; before that, when the connection was begun."""
        return self._heard

    @property
    def in_flight(self) -> int:
        """Calls that wait for their answer."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether the transport takes no more for now: see `room`."""
        return not self._writable.is_set()

    def next_sequence(self) -> int:
        """The number of the next request."""
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
    ) -> A:
        """Send a request's frame and wait for its answer, which must be an `expected`.  `what` names the call in errors.

        Raises RemoteError where the node answers with a failure, DeadlineError, PeerUnreachableError, ProtocolError.
        """
        if self.full:
            await self.room(timeout)
        return await self.start(sequence, (frame,), expected, what, timeout=timeout, of_silence=of_silence)

    async def room(self, timeout: float | None = None) -> None:
        """Wait until the transport takes more.  Raises DeadlineError; a lost connection is told by the next call."""
        seconds = self.timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                while self.full:  # whoever was woken first may have filled it again
                    await self._writable.wait()
        except TimeoutError:
            raise DeadlineError(
                str(self.address), f"the node took nothing for {seconds:g} s", advice="it may be overloaded or stopped"
            ) from None

    def start(
        self,
        sequence: int,
        frame: Sequence[bytes],
        expected: type[A],
        what: str,
        *,
        timeout: float | None = None,
        of_silence: bool = False,
    ) -> asyncio.Future[A]:
        """Send a request's frame, given in pieces, now, whether or not the transport is full; the future of its answer.

        `of_silence`: `timeout` begins anew with whatever is heard, which may be a piece of the answer, or of one in front of it.
        """
        future: asyncio.Future[A] = self._loop.create_future()
        if self._error is not None:
            fail(future, self._error_for(what))
            return future
        if sequence in self._waiting:
            raise ValueError(f"request {sequence} is under way already")
        seconds = self.timeout if timeout is None else timeout
        self._waiting[sequence] = _Waiting(future, expected, self._loop.time(), seconds, what, of_silence)
        self._queue(frame)
        if self._sweeper is None or seconds < self.timeout:
            self._schedule_sweep(min(seconds, self.timeout))
        return future

    def _queue(self, pieces: Sequence[bytes]) -> None:
        """Let whole frames, given in pieces, leave with all that are made meanwhile."""
        self._queued += pieces
        self._queued_bytes += sum(map(len, pieces))
        if self._queued_bytes > WRITE_BUFFER:
            self._flush()  # so that the next caller sees that it is full
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    async def close(self) -> None:
        """Close, and wait until that is done.  Calls under way fail."""
        if self._error is None:
            self._break_off(PeerUnreachableError(str(self.address), "the connection was closed here"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await asyncio.shield(self._closed)
                return
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP (and TLS) connection stands: greet."""
        transport = cast("asyncio.Transport", transport)  # uvloop's is one without being derived from it
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER, low=WRITE_BUFFER // 2)
        plain = transport.get_extra_info("socket")
        if plain is not None:
            with contextlib.suppress(OSError):
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.write(Hello(self._port.versions, self._port.client).encode())
        self._last_write = self._loop.time()
        self._keep_alive = self._loop.call_later(self._keep_alive_seconds, self._send_keep_alive)

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer, in pieces of any size."""
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
            if not self._reader.pending:
                self._unfinished = None
            elif self._unfinished is None or self._reader.pending < pending:
                self._unfinished = self._heard
        except FrameError as error:
            self._break_off(no_frame(self.address, error, data, greeted=self._greeted.done()))
        except MessageError as error:
            self._break_off(ProtocolError(str(self.address), f"the peer sent a message that cannot be: {error}"))

    def eof_received(self) -> None:
        """The peer sends no more; whatever waits will not be answered."""
        self._break_off(closed_by_peer(self.address, greeted=self._greeted.done()))

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        if self._error is None:
            self._fail(lost_connection(self.address, error))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The transport is full: callers wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._writable.set()

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
        """The body of the next message that came; None when it is not whole.  Raises FrameError."""
        return self._reader.next(self._port.magic, self.version)

    def _answer(self, message: M) -> None:
        waiting = self._waiting.pop(message.sequence, None)
        if waiting is None:
            if message.sequence in self._forgotten:
                self._forgotten.discard(message.sequence)
                return
            self._break_off(
                ProtocolError(
                    str(self.address),
                    f"an answer to request {message.sequence}, which nobody waits for ({_name(message)})",
                )
            )
            return
        if waiting.future.done():
            return
        if isinstance(message, waiting.expected):
            waiting.future.set_result(message)
        elif isinstance(message, self._port.failure):
            failure = message.failure  # type: ignore[attr-defined]  # both protocols' failures have it
            assert isinstance(failure, Failure)
            fail(waiting.future, remote_error(str(self.address), failure))
        else:
            error = ProtocolError(str(self.address), f"{_name(message)} is no answer to {waiting.what}")
            fail(waiting.future, error)
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
            if self._greeted.done() and self._writable.is_set():
                self._transport.write(keep_alive(self._port.magic, self.version))
            self._last_write = self._loop.time()
            idle = 0.0
        self._keep_alive = self._loop.call_later(max(self._keep_alive_seconds - idle, 0.001), self._send_keep_alive)

    def _schedule_sweep(self, seconds: float) -> None:
        """Look for missed deadlines in a while: one timer for all calls, not one for each."""
        wait = max(seconds / _SWEEPS, 0.001)
        if self._sweeper is not None:
            if self._sweeper.when() <= self._loop.time() + wait:
                return
            self._sweeper.cancel()
        self._sweeper = self._loop.call_later(wait, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._loop.time()
        late = [sequence for sequence, waiting in self._waiting.items() if waiting.deadline(self._heard) <= now]
        silent = False
        for sequence in late:
            waiting = self._waiting.pop(sequence)
            silent = silent or (self._reading and self._heard <= waiting.begun and waiting.seconds >= self.timeout)
            self._forgotten.add(sequence)
            fail(
                waiting.future,
                DeadlineError(
                    str(self.address),
                    f"no answer in time to {waiting.what}",
                    advice="what was asked for may or may not have been done",
                ),
            )
        if silent:  # the system would believe in a lost peer for a quarter of an hour
            self._break_off(DeadlineError(str(self.address), f"nothing was heard for {self.timeout:g} s"))
        elif late and self._stuck(now):  # a length that was garbled on the way swallows whatever is answered
            came = self._reader.pending
            self._break_off(
                DeadlineError(str(self.address), f"{came} bytes of a frame came, which does not come to its end")
            )
        elif len(self._forgotten) > _MAX_FORGOTTEN:
            self._break_off(DeadlineError(str(self.address), f"{len(self._forgotten)} requests without an answer"))
        elif self._waiting:
            next_one = min(waiting.deadline(self._heard) for waiting in self._waiting.values()) - now
            self._sweeper = self._loop.call_later(min(max(next_one, 0.001), self.timeout / _SWEEPS), self._sweep)

    def _stuck(self, now: float) -> bool:
        """Whether what comes is a frame that takes far too long; a call of silence may want just that one."""
        if (
            self._unfinished is None
            or not self._reading
            or any(waiting.of_silence for waiting in self._waiting.values())
        ):
            return False
        return now - self._unfinished >= self.timeout + self._reader.pending / _LEAST_RATE

    def _break_off(self, error: PeerError) -> None:
        """End the connection from our side."""
        self._fail(error)
        if self._transport is not None and not self._transport.is_closing():
            # what is still queued is of no use; a close that waited for it could wait for ever
            self._transport.abort() if isinstance(error, (ProtocolError, DeadlineError)) else self._transport.close()

    def _give_up(self) -> None:
        """Connecting failed: leave nothing behind."""
        self._fail(PeerUnreachableError(str(self.address), "not connected"))
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: PeerError) -> None:
        if self._error is not None:
            return
        self._error = error
        self.ended.set_result(error)
        for timer in (self._sweeper, self._keep_alive):
            if timer is not None:
                timer.cancel()
        self._sweeper = self._keep_alive = None
        self._queued.clear()
        self._writable.set()
        fail(self._greeted, error)
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            fail(one.future, self._error_for(one.what))

    def _error_for(self, what: str) -> PeerError:
        """The reason why the connection ended, told to the caller of `what`."""
        error = self._error
        assert error is not None
        told = type(error)(error.peer, f"{error.message.removeprefix(f'{error.peer}: ')} ({what})", advice=error.advice)
        told.__cause__ = error
        return told


def _name(message: object) -> str:
    return type(message).__name__
