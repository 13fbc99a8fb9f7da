"""One connection of a port: the Hello handshake, framing, flow control and timeouts.

Subclasses (data, admin and client port) decode the messages.

Receive buffers.  All connections of a port share one receive buffer: the event loop fills it and handles it before it reads from
the next connection.  A connection keeps only its last, incomplete frame.  A *big frame* (longer than `PortLimits.big_frame`) gets
a buffer of its own, after the memory budget has reserved its size; no memory is allocated for an announced length before that.

Flow control.  The connection is not read while any reason of `Pause` is set; TCP then slows the peer down.

Minimum rate.  A Hello, and a big frame whose memory is reserved, must arrive at `MIN_FRAME_RATE`.  Otherwise a peer that sends a
byte now and then would never be idle, and would hold its reservation for ever.

Source of the handshake, the framing and the keep-alive: release 0.13.2.  waltzctl adds the limits, keep-alives from this side,
and the detection of idle peers (weaknesses S4 and S11).
"""

from __future__ import annotations

import asyncio
import struct
from abc import abstractmethod
from enum import IntFlag, auto
from typing import TYPE_CHECKING, ClassVar, cast

from waltzctl.engine.net.lingering_close import reset, unacknowledged
from waltzctl.engine.net.output_budget import Share
from waltzctl.engine.net.peer_limits import MIN_FRAME_RATE
from waltzctl.engine.net.port import ConnectionInfo
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, is_tls, keep_alive
from waltzctl.formats.wire.hello import HELLO_VERSION, Hello, choose_version
from waltzctl.formats.wire.primitives import MessageError

if TYPE_CHECKING:
    from waltzctl.engine.net.port import Port

HEADER = FRAME_HEADER.size
OVERHEAD = 256
"""Bytes by which a request under way is counted beyond its body: frame header, table row, Python objects."""
_COALESCED_BYTES = 64 << 10
"""Answers of at most this many bytes in total are copied into one write; longer ones go to `writelines`."""
_LONGEST_HELLO = 4096
"""Bytes of a Hello's body."""
_CLOSE_POLL_SECONDS = 0.02
"""How often a closing connection looks whether the peer has acknowledged everything."""
_LOGGED_BYTES = 32
"""Bytes of a refused frame that the log shows."""

Received = memoryview | bytearray
"""Received bytes: a view of the port's shared receive buffer, valid only during the call, or a big frame's own buffer.

A frame's own buffer may be kept.
"""


class Pause(IntFlag):
    """Why a connection is not read; it is read when no flag is set."""

    NOTHING = 0
    UNDER_WAY = auto()
    """This connection has too many requests, or too many bytes of them, under way."""
    BIG_FRAME = auto()
    """A big frame has begun, and the memory budget has not reserved its size yet."""
    CROWDED = auto()
    """The port's memory budget is used up."""
    UNREAD_ANSWERS = auto()
    """The peer does not take its answers."""
    DRAINING = auto()
    """The port is draining."""


_NOT_BY_PEER = Pause.UNDER_WAY | Pause.BIG_FRAME | Pause.CROWDED | Pause.DRAINING
"""Pauses that the peer did not cause: their time does not count against the minimum rate.  UNREAD_ANSWERS does count."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket, with or without TLS.

    Belongs to the event loop, except for what is marked as thread-safe.  All times are those of `loop.time()`.
    """

    MAGIC: ClassVar[Magic]
    GREETING: ClassVar[Hello]

    def __init__(self, port: Port, peer: str, *, max_body: int, most_requests: int, most_bytes: int) -> None:
        """`max_body`: longest frame body in bytes.  `most_requests`, `most_bytes`: requests under way at which reading stops."""
        self.peer = peer
        self.made = False
        """Whether `connection_made` was called."""
        self.version: int | None = None
        """The agreed protocol version; None before the peer's Hello."""
        self.greeting = ""
        """The free text of the peer's Hello."""
        self.requests = 0
        """Requests under way: received and not answered."""
        self.size = 0
        """Bytes of the bodies of requests under way."""
        self.standing = set[int]()
        """Partitions with a request under way that does not count against `most_requests`, as it may wait for ever."""
        self._port = port
        self._max_body, self._most_requests, self._most_bytes = max_body, most_requests, most_bytes
        self._transport: asyncio.Transport
        self._pauses = Pause.NOTHING
        self._partial_frame = b""  # the received part of an incomplete frame, in front of the next bytes
        self._big_frame: bytearray | None = None  # the buffer of the big frame that is being received
        self._big_frame_received = 0  # bytes that are in it
        self._reserved = 0  # bytes that the budget has reserved for it
        self._deferred_size = 0  # of a big frame that is to be reserved when fewer requests are under way; 0: none
        self._answers: list[bytes] = []  # frames that the next `send` writes
        self.share = Share(port.output_budget)
        # bytes written to the transport, in total; of those, what had left the write buffer when it was last checked
        self._bytes_written = 0
        self._bytes_taken = 0
        # when: accepted; bytes last received; last sent; the peer last took answers
        self._connected = self._heard = self._last_sent = self._last_progress = port.loop.time()
        # when: the Hello or the big frame began, later by each pause in `_NOT_BY_PEER`; the present such pause began
        self._frame_started = self._paused_since = self._connected
        self._broken = False  # a worker has asked for the connection to be closed
        self._closing = False  # nothing more is read; what is written is still sent
        self._lost = False  # the transport is closed

    # --- for subclasses --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _messages(self, received: Received, start: int, end: int) -> tuple[int, int]:
        """Handle the complete frames of ``received[start:end]``.

        Returns the offset of the first incomplete frame, and that frame's size including its header; 0 if the header is
        incomplete, too.  An invalid frame ends the connection (`_refuse`).
        """

    def _may_be_long(self, kind: int) -> bool:
        """Whether a message of type `kind` may be longer than `PortLimits.big_frame`."""
        return True

    def _go_on(self) -> None:
        """Retry requests that waited until the peer takes its answers.  Called when it does, and at every `tick`."""

    def _drop(self) -> None:
        """The connection is lost: drop the requests that wait in it."""

    # --- the peer ----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether answers can no longer reach the peer.  Thread-safe."""
        return self._broken or self._lost

    @property
    def open(self) -> bool:
        """Whether the connection may still be read and written."""
        return not self._closing and not self._lost

    def info(self, now: float) -> ConnectionInfo:
        """The connection's state at the loop's time `now`."""
        connected = now - self._connected
        paused = self._pauses is not Pause.NOTHING
        return ConnectionInfo(self.peer, self.greeting, connected, self.requests, self.size, self.share.queued, paused)

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is accepted, and the TLS handshake done if there is TLS: send this side's Hello, wait for nothing."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the same methods and another base class
        self.set_water_mark(self._port.output_each)
        self._connected = self._heard = self._last_progress = self._frame_started = self._port.loop.time()
        self.made = True
        self._port.add(self)
        self._write(self.GREETING.encode())
        self._port.log.debug("%s: %s: connected", self._port.name, self.peer)

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed: release all memory except that of requests under way; their answers will be discarded."""
        self._lost = self._closing = True
        self._release_buffers()
        self._answers.clear()
        self._drop()
        self._note_queued(0)
        self._port.remove(self)
        self._port.log.debug("%s: %s: gone%s", self._port.name, self.peer, f": {error}" if error else "")

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes: the big frame's, or the shared one behind the incomplete frame."""
        if self._big_frame is not None:
            return memoryview(self._big_frame)[self._big_frame_received :]
        scratch, kept = self._port.scratch, len(self._partial_frame)
        scratch[:kept] = self._partial_frame
        return scratch[kept : kept + self._port.chunk]

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` were received: handle every complete frame, keep the rest."""
        self._heard = self._port.loop.time()
        if self._closing:
            return
        if self._big_frame is None:
            end = len(self._partial_frame) + nbytes
            self._partial_frame = b""
            self._handle(self._port.scratch, end)
        else:
            self._big_frame_received += nbytes
            if self._big_frame_received < len(self._big_frame):
                return
            big, self._big_frame = self._big_frame, None
            self._handle(big, len(big))
            self._release_reservation()
        if self._answers:
            self.send()
        self._check_bounds()

    def eof_received(self) -> bool:
        """The peer has shut down its sending side: close, as the release does; answers to requests under way are discarded."""
        return False

    def pause_writing(self) -> None:
        """The write buffer is above its high-water mark: the peer does not take its answers."""
        self._pause(Pause.UNREAD_ANSWERS)

    def resume_writing(self) -> None:
        """The write buffer is below its low-water mark: the peer took most of its answers."""
        self._note_queued(self._transport.get_write_buffer_size())
        self._resume(Pause.UNREAD_ANSWERS)
        self._go_on()
        self.send()

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _handle(self, received: Received, end: int) -> None:
        start = 0
        if self.version is None:
            greeted = self._read_hello(received, end)
            if greeted is None:
                return
            start = greeted
        start, needed = self._messages(received, start, end)
        if self._closing:
            return
        if needed <= self._port.limits.big_frame or end - start <= HEADER:
            self._partial_frame = bytes(received[start:end])
        elif self._may_be_long(received[start + HEADER]):
            self._partial_frame = bytes(received[start:end])
            self._reserve(needed)
        else:
            kind = received[start + HEADER]
            self._refuse(
                f"{needed - HEADER} bytes of a message of type {kind}, which is never so long", received[start:end]
            )

    def _read_hello(self, received: Received, end: int) -> int | None:
        """Read the peer's Hello and choose the version; keep-alives (empty Hello frames) in front of it are skipped.

        Returns the offset behind the Hello; None when it is incomplete, and then it is kept, or when it was refused.
        """
        start = 0
        length: int
        while end - start >= HEADER:
            magic, version, length = FRAME_HEADER.struct.unpack_from(received, start)
            if magic != Magic.HELLO or version != HELLO_VERSION:
                said = f"not magic 0x{magic:02x} and version {version}"
                if is_tls(received[start:end]):
                    said = "and the peer speaks TLS, which this port is told not to"
                self._refuse(f"a Hello was expected, {said}", received[start:end])
                return None
            if not 0 <= length <= _LONGEST_HELLO:
                self._refuse(f"a Hello of {length} bytes; {_LONGEST_HELLO} are the longest here", received[start:end])
                return None
            if end - start < HEADER + length:
                break
            body = bytes(received[start + HEADER : start + HEADER + length])
            start += HEADER + length
            if length and not self._accept_hello(body):
                return None
            if length:
                return start
        self._partial_frame = bytes(received[start:end])
        return None

    def _accept_hello(self, body: bytes) -> bool:
        """Decode a Hello and choose the version; False: it was refused."""
        try:
            hello = Hello.decode(body)
        except (MessageError, struct.error) as error:
            self._refuse(f"a corrupted Hello: {error}", body)
            return False
        self.greeting = hello.text
        self.version = choose_version(self.GREETING.versions, hello.versions)
        if self.version is None:
            ours, theirs = list(self.GREETING.versions), list(hello.versions)
            self._refuse(f"no common version: {theirs} there ({hello.text!r}), {ours} here", body)
            return False
        self._port.log.debug("%s: %s: %r speaks version %d", self._port.name, self.peer, self.greeting, self.version)
        return True

    def _reserve(self, needed: int) -> None:
        """A big frame has begun: read on once the budget has reserved all its `needed` bytes.

        While the connection is at its bound of requests under way it would not be read, and would owe no minimum rate, so it
        could hold the reservation for ever.  So the reservation waits until at most half of that bound is under way (`done`).
        """
        if self._at_bound:
            self._deferred_size = needed
            self._pause(Pause.UNDER_WAY)
        elif self._port.budget.reserve(self, needed, lambda: self._allocate_big_frame(needed)):
            self._allocate_big_frame(needed)
        else:
            self._pause(Pause.BIG_FRAME)

    def _allocate_big_frame(self, needed: int) -> None:
        """The budget has reserved `needed` bytes: allocate the big frame's buffer and read on."""
        tail, self._partial_frame = self._partial_frame, b""
        self._reserved, self._big_frame_received = needed, len(tail)
        try:
            self._big_frame = bytearray(needed)
        except MemoryError:
            self._refuse(f"no memory for a frame of {needed} bytes", tail)
            return
        self._big_frame[: len(tail)] = tail
        self._frame_started = self._port.loop.time()
        self._resume(Pause.BIG_FRAME)

    def _release_buffers(self) -> None:
        """Nothing more will be read: release the receive buffers and their reservation."""
        self._port.budget.leave(self)
        self._big_frame, self._partial_frame = None, b""
        self._deferred_size = 0
        self._release_reservation()

    def _release_reservation(self) -> None:
        reserved, self._reserved = self._reserved, 0
        if reserved:
            self._port.budget.release(reserved)

    def _refuse(self, why: str, received: Received | bytes) -> None:
        """Log why a frame is invalid, and its first bytes; then close, as the release does."""
        shown = bytes(received[:_LOGGED_BYTES])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in shown)
        self._port.complain(f"{self.peer}: closed: {why}; it begins with {shown.hex(' ')} ({text})")
        self.close()

    # --- requests under way ----------------------------------------------------------------------------------------------

    def begin(self, requests: int, size: int) -> None:
        """Count `requests` requests, of `size` body bytes in total, as under way."""
        self.requests += requests
        self.size += size
        self._port.budget.take(size + OVERHEAD * requests)

    def done(self, requests: int, size: int) -> None:
        """Requests counted by `begin` were answered, or were dropped; read on if that was what reading waited for."""
        self.requests -= requests
        self.size -= size
        self._port.budget.give(size + OVERHEAD * requests)
        if self._pauses is Pause.NOTHING:  # the usual case; `IntFlag` operations are slow
            return
        if self.requests - len(self.standing) <= self._most_requests // 2 and self.size <= self._most_bytes // 2:
            deferred, self._deferred_size = self._deferred_size, 0
            if deferred:
                self._reserve(deferred)
            self._resume(Pause.UNDER_WAY)
        if self._pauses & Pause.DRAINING and not self.requests:
            self.close()

    @property
    def _at_bound(self) -> bool:
        return self.requests - len(self.standing) >= self._most_requests or self.size >= self._most_bytes

    def _check_bounds(self) -> None:
        """Stop reading if this connection is at its bound, or the port's memory budget is used up."""
        if self._at_bound:
            self._pause(Pause.UNDER_WAY)
        budget = self._port.budget
        if not budget.crowded or self._big_frame is not None or self._deferred_size or not self.open:
            return
        in_line = self._pauses & (Pause.BIG_FRAME | Pause.CROWDED)
        if not in_line and not budget.reserve(self, 0, self._uncrowded):
            self._pause(Pause.CROWDED)

    def _uncrowded(self) -> None:
        self._resume(Pause.CROWDED)

    def _pause(self, reason: Pause) -> None:
        if self._pauses is Pause.NOTHING and self.open:
            self._transport.pause_reading()
        if not self._pauses & _NOT_BY_PEER:
            self._paused_since = self._port.loop.time()
        self._pauses |= reason

    def _resume(self, reason: Pause) -> None:
        held = self._pauses & _NOT_BY_PEER
        self._pauses &= ~reason
        if held and not self._pauses & _NOT_BY_PEER:
            self._frame_started += self._port.loop.time() - max(self._paused_since, self._frame_started)
        if self._pauses is Pause.NOTHING and self.open:
            self._heard = self._port.loop.time()  # while paused the peer was not silent, it was not read
            self._transport.resume_reading()

    # --- sending -----------------------------------------------------------------------------------------------------

    def answer(self, frames: bytes | list[bytes]) -> None:
        """Queue complete frames for the next `send`."""
        if not self._lost:
            if isinstance(frames, list):
                self._answers += frames
            else:
                self._answers.append(frames)
            self._port.touch(self)

    def send(self) -> None:
        """Write the queued answers to the transport."""
        answers, self._answers = self._answers, []
        if not answers or not self.open:
            return
        if len(answers) == 1:
            self._write(answers[0])
        elif sum(map(len, answers)) <= _COALESCED_BYTES:
            self._write(b"".join(answers))
        else:
            self._bytes_written += sum(map(len, answers))
            self._transport.writelines(answers)
            self._wrote()

    def _write(self, data: bytes) -> None:
        self._bytes_written += len(data)
        self._transport.write(data)
        self._wrote()

    def _wrote(self) -> None:
        self._last_sent = self._port.loop.time()
        self._note_queued(self._transport.get_write_buffer_size())

    def _note_queued(self, queued: int) -> None:
        if queued != self.share.queued:
            if not self.share.queued:
                self._last_progress = self._port.loop.time()
            self.share.queue(queued)

    def set_water_mark(self, high: int) -> None:
        """Set how many bytes of answers may wait in the write buffer before reading stops."""
        if self.open:
            self._transport.set_write_buffer_limits(high=high, low=high // 4)

    # --- time --------------------------------------------------------------------------------------------------------

    def stood_still(self, seconds: float, now: float) -> None:
        """The loop was blocked, or the process stopped, for so long: nothing was read and written, which is not the peer's delay.

        Where the process was stopped, the loop comes to its timers before it looks at its sockets.
        """
        self._heard = min(self._heard + seconds, now)
        self._frame_started = min(self._frame_started + seconds, now)
        self._last_progress = min(self._last_progress + seconds, now)

    def tick(self, now: float) -> None:
        """Enforce the timeouts at the loop's time `now`, and send a keep-alive where one is due."""
        limits = self._port.limits
        if self._lost:
            return
        self._note_progress(now)
        if self.share.queued and now - self._last_progress > limits.unread_seconds:
            self._port.complain(
                f"{self.peer}: closed: it took none of {self.share.queued} bytes of answers for {limits.unread_seconds:g} s"
            )
            self.abort()
            return
        if self._closing:
            if now - self._last_progress > limits.unread_seconds:
                self.abort()
            return
        overdue = self._overdue(now)
        if overdue:
            self._port.complain(f"{self.peer}: closed: {overdue}")
            self.close()
            return
        if self.version is not None and now - self._last_sent > limits.keep_alive_seconds and not self.share.queued:
            self._write(keep_alive(self.MAGIC, self.version))
        self._go_on()

    def _overdue(self, now: float) -> str:
        """Why the peer is too slow or idle, as text for the log; empty when it is not.

        =====================================================  ==================================================
        state                                                  limit
        =====================================================  ==================================================
        incomplete frame or Hello, not paused                  `stall_seconds` without a byte
        no request under way, not paused                       `idle_seconds` without a byte
        Hello, or big frame whose memory is reserved           `stall_seconds` + received bytes / `MIN_FRAME_RATE`
        =====================================================  ==================================================
        """
        stall, idle = self._port.limits.stall_seconds, self._port.limits.idle_seconds
        silent, taken = now - self._heard, now - self._frame_started
        arrived = self._big_frame_received if self._big_frame is not None else len(self._partial_frame)
        what = "its Hello" if self.version is None else "a frame"
        awaited = self._big_frame is not None or self.version is None
        if self._pauses is Pause.NOTHING:
            if (awaited or self._partial_frame) and silent > stall:
                return f"{arrived} bytes of {what} came, and nothing more for {stall:g} s"
            if silent > idle and not self.requests:
                return f"it was silent for {idle:g} s"
        if awaited and not self._pauses & _NOT_BY_PEER and taken > stall + arrived / MIN_FRAME_RATE:
            least = f"{MIN_FRAME_RATE >> 10} KiB a second are the least after {stall:g} s"
            return f"{arrived} bytes of {what} came in {taken:.0f} s; {least}"
        return ""

    def _note_progress(self, now: float) -> None:
        """Set `_last_progress` if the peer took answers since the last call, or none are queued and nothing is closing."""
        self._note_queued(self._transport.get_write_buffer_size())
        gone = self._bytes_written - self.share.queued
        if gone != self._bytes_taken or (not self.share.queued and not self._closing):
            self._bytes_taken, self._last_progress = gone, now

    def finish(self) -> None:
        """Drain: stop reading, answer the requests under way, then close."""
        self._pause(Pause.DRAINING)
        if not self.requests:
            self.close()

    def close(self) -> None:
        """Send the queued answers and close; bytes that still arrive are discarded."""
        if self.open:
            self.send()
            self._closing = True
            self._last_progress = self._port.loop.time()
            self._release_buffers()
            self._close_when_acknowledged()

    def _close_when_acknowledged(self) -> None:
        """Close the socket once the peer's TCP has acknowledged every answer (`engine.net.lingering_close`)."""
        if self._lost:
            return
        if self._transport.get_write_buffer_size() or unacknowledged(self._transport):
            # `tick` ends this after `unread_seconds`
            self._port.loop.call_later(_CLOSE_POLL_SECONDS, self._close_when_acknowledged)
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, with a reset; unsent answers are discarded."""
        self._closing = True
        if not self._lost:
            self._release_buffers()
            reset(self._transport)
