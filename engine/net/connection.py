"""A connection of a port: Hello, frames, limits and time; what the messages mean is for the data or the admin port to say.

Bytes arrive in a buffer that all connections of the port share (the loop fills and empties it in one go), and only what is not
a whole frame yet is kept for a connection.  A frame that is longer than `PortLimits.big_frame` gets a buffer of its own once the
budget has bytes left for it; nothing is allocated on a peer's word before that.

Reading stops, each for its own reason, and goes on when none is left: too much of this connection is under way; the budget is
used up; the peer does not take its answers; the port is draining.  A peer feels that through TCP.  A Hello, and a frame that has
its place in memory, must arrive at a least rate: who sends a byte now and then is not silent, and would hold that place for ever.

Source of the handshake, of the rules for frames and of the keep-alive: release 0.13.2.  Ours are the bounds, and that this side
sends keep-alives and notices silence as well (weaknesses S4 and S11).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
from abc import abstractmethod
from enum import IntFlag, auto
from typing import TYPE_CHECKING, ClassVar, cast

from waltzctl.engine.net.output_budget import Share
from waltzctl.engine.net.port import ConnectionInfo
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, is_tls, keep_alive
from waltzctl.formats.wire.hello import HELLO_VERSION, Hello, choose_version
from waltzctl.formats.wire.primitives import MessageError

if TYPE_CHECKING:
    from waltzctl.engine.net.port import Port

HEADER = FRAME_HEADER.size
OVERHEAD = 256
"""Bytes that a request which is under way is counted with besides its body: header, table row, objects."""
_JOINED = 64 << 10
"""Answers up to so many bytes together are copied into one write."""
_LONGEST_HELLO = 4096
_LEAST_RATE = 64 << 10
"""Bytes a second at which a Hello, or a frame with its place in memory, arrives once `PortLimits.stall_seconds` are used up."""
_PARTING_SECONDS = 0.02
_SHOWN = 32
_RESET = struct.pack("ii", 1, 0)
"""Linger for no time at all."""

Received = memoryview | bytearray
"""What arrived: a view of the buffer that all share, or a big frame's own buffer, which may be kept."""


class Pause(IntFlag):
    """Why nothing is read from a connection."""

    NOTHING = 0
    UNDER_WAY = auto()
    BIG_FRAME = auto()
    CROWDED = auto()
    UNREAD_ANSWERS = auto()
    DRAINING = auto()


_OURS = Pause.UNDER_WAY | Pause.BIG_FRAME | Pause.CROWDED | Pause.DRAINING
"""What a peer can do nothing about; that it leaves its answers unread is its own time."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket, with or without TLS.  What may be called from other threads says so."""

    MAGIC: ClassVar[Magic]
    GREETING: ClassVar[Hello]

    def __init__(self, port: Port, peer: str, *, max_body: int, most_requests: int, most_bytes: int) -> None:
        """`most_requests`, `most_bytes`: what may be under way before reading stops."""
        self.peer = peer
        self.made = False
        self.version: int | None = None
        self.greeting = ""
        self.requests = 0
        self.size = 0
        self._port = port
        self._max_body, self._most_requests, self._most_bytes = max_body, most_requests, most_bytes
        self._transport: asyncio.Transport
        self._pauses = Pause.NOTHING
        self._tail = b""
        self._big: bytearray | None = None
        self._filled = 0
        self._reserved = 0
        self._deferred = 0
        self._answers: list[bytes] = []
        self.share = Share(port.output_budget)
        self._written = 0
        self._gone = 0
        self._connected = self._heard = self._spoken = self._moved = port.loop.time()
        self._began = self._held = self._connected
        self._broken = False
        self._closing = False
        self._lost = False

    # --- for the data and the admin port ---------------------------------------------------------------------------------

    @abstractmethod
    def _messages(self, received: Received, start: int, end: int) -> tuple[int, int]:
        """Handle the whole frames of ``received[start:end]``; return where the first unfinished one begins, and its size.

        The size is 0 when its header is not whole.  What is wrong ends the connection (`_refuse`).
        """

    def _may_be_long(self, kind: int) -> bool:
        """Whether a message of this type may be longer than `PortLimits.big_frame` at all."""
        return True

    def _go_on(self) -> None:
        """The peer takes its answers again: a chance to do what waited for that.  Also called regularly."""

    def _drop(self) -> None:
        """The connection is gone: let go of what waits in it."""

    # --- the peer ----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether nobody listens any more.  Thread-safe."""
        return self._broken or self._lost

    @property
    def open(self) -> bool:
        """Whether something may still be read and said."""
        return not self._closing and not self._lost

    def info(self, now: float) -> ConnectionInfo:
        """What it is doing at the loop's time `now`."""
        connected = now - self._connected
        paused = self._pauses is not Pause.NOTHING
        return ConnectionInfo(self.peer, self.greeting, connected, self.requests, self.size, self.share.queued, paused)

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is accepted and, where there is TLS, the handshake done: say Hello, wait for nothing."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self.set_water_mark(self._port.output_each)
        self._connected = self._heard = self._moved = self._began = self._port.loop.time()
        self.made = True
        self._port.add(self)
        self._write(self.GREETING.encode())
        self._port.log.debug("%s: %s: connected", self._port.name, self.peer)

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody is there any more: free everything but what is under way, whose answers will find nobody."""
        self._lost = self._closing = True
        self._let_go()
        self._answers.clear()
        self._drop()
        self._note_queued(0)
        self._port.remove(self)
        self._port.log.debug("%s: %s: gone%s", self._port.name, self.peer, f": {error}" if error else "")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._big is not None:
            return memoryview(self._big)[self._filled :]
        scratch, kept = self._port.scratch, len(self._tail)
        scratch[:kept] = self._tail
        return scratch[kept : kept + self._port.chunk]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes are there: handle every whole frame, keep the rest."""
        self._heard = self._port.loop.time()
        if self._closing:
            return
        if self._big is None:
            end = len(self._tail) + nbytes
            self._tail = b""
            self._handle(self._port.scratch, end)
        else:
            self._filled += nbytes
            if self._filled < len(self._big):
                return
            big, self._big = self._big, None
            self._handle(big, len(big))
            self._give_back()
        if self._answers:
            self.send()
        self._check_bounds()

    def eof_received(self) -> bool:
        """The peer will send no more; as in the release that is the end, and what is under way is done for nobody."""
        return False

    def pause_writing(self) -> None:
        """Too many answers wait for the peer."""
        self._pause(Pause.UNREAD_ANSWERS)

    def resume_writing(self) -> None:
        """The peer took most of them."""
        self._note_queued(self._transport.get_write_buffer_size())
        self._resume(Pause.UNREAD_ANSWERS)
        self._go_on()
        self.send()

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _handle(self, received: Received, end: int) -> None:
        start = 0
        if self.version is None:
            greeted = self._greet(received, end)
            if greeted is None:
                return
            start = greeted
        start, needed = self._messages(received, start, end)
        if self._closing:
            return
        if needed <= self._port.limits.big_frame or end - start <= HEADER:
            self._tail = bytes(received[start:end])
        elif self._may_be_long(received[start + HEADER]):
            self._tail = bytes(received[start:end])
            self._reserve(needed)
        else:
            kind = received[start + HEADER]
            self._refuse(
                f"{needed - HEADER} bytes of a message of type {kind}, which is never so long", received[start:end]
            )

    def _greet(self, received: Received, end: int) -> int | None:
        """Take the peer's Hello, and choose the version; where it ends.  None while there is none: an unfinished one is kept."""
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
            if length and not self._agree(body):
                return None
            if length:
                return start
        self._tail = bytes(received[start:end])
        return None

    def _agree(self, body: bytes) -> bool:
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
        """The frame at hand is a big one: go on reading when there is memory for all of it.

        It is not reserved for who would not be read from, and asked for no rate, as long as too much is under way there.
        """
        if self._at_bound:
            self._deferred = needed
            self._pause(Pause.UNDER_WAY)
        elif self._port.budget.reserve(self, needed, lambda: self._make_space(needed)):
            self._make_space(needed)
        else:
            self._pause(Pause.BIG_FRAME)

    def _make_space(self, needed: int) -> None:
        """The budget has reserved all of the frame."""
        tail, self._tail = self._tail, b""
        self._reserved, self._filled = needed, len(tail)
        try:
            self._big = bytearray(needed)
        except MemoryError:
            self._refuse(f"no memory for a frame of {needed} bytes", tail)
            return
        self._big[: len(tail)] = tail
        self._began = self._port.loop.time()
        self._resume(Pause.BIG_FRAME)

    def _let_go(self) -> None:
        """Nothing more will be read: what is kept for it is free."""
        self._port.budget.leave(self)
        self._big, self._tail = None, b""
        self._deferred = 0
        self._give_back()

    def _give_back(self) -> None:
        reserved, self._reserved = self._reserved, 0
        if reserved:
            self._port.budget.release(reserved)

    def _refuse(self, why: str, received: Received | bytes) -> None:
        """Say in the log what came instead of what was agreed on, and close, as the release does."""
        shown = bytes(received[:_SHOWN])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in shown)
        self._port.complain(f"{self.peer}: closed: {why}; it begins with {shown.hex(' ')} ({text})")
        self.close()

    # --- requests under way ----------------------------------------------------------------------------------------------

    def _begin(self, requests: int, size: int) -> None:
        """Requests of together `size` body bytes are under way from now on."""
        self.requests += requests
        self.size += size
        self._port.budget.take(size + OVERHEAD * requests)

    def _done(self, requests: int, size: int) -> None:
        """They are answered, or will not be."""
        self.requests -= requests
        self.size -= size
        self._port.budget.give(size + OVERHEAD * requests)
        if self._pauses is Pause.NOTHING:  # as nearly always; flags are slow
            return
        if self.requests <= self._most_requests // 2 and self.size <= self._most_bytes // 2:
            deferred, self._deferred = self._deferred, 0
            if deferred:
                self._reserve(deferred)
            self._resume(Pause.UNDER_WAY)
        if self._pauses & Pause.DRAINING and not self.requests:
            self.close()

    @property
    def _at_bound(self) -> bool:
        return self.requests >= self._most_requests or self.size >= self._most_bytes

    def _check_bounds(self) -> None:
        if self._at_bound:
            self._pause(Pause.UNDER_WAY)
        budget = self._port.budget
        if not budget.crowded or self._big is not None or self._deferred or not self.open:
            return
        in_line = self._pauses & (Pause.BIG_FRAME | Pause.CROWDED)
        if not in_line and not budget.reserve(self, 0, self._uncrowded):
            self._pause(Pause.CROWDED)

    def _uncrowded(self) -> None:
        self._resume(Pause.CROWDED)

    def _pause(self, reason: Pause) -> None:
        if self._pauses is Pause.NOTHING and self.open:
            self._transport.pause_reading()
        if not self._pauses & _OURS:
            self._held = self._port.loop.time()
        self._pauses |= reason

    def _resume(self, reason: Pause) -> None:
        held = self._pauses & _OURS
        self._pauses &= ~reason
        if held and not self._pauses & _OURS:
            self._began += self._port.loop.time() - max(self._held, self._began)
        if self._pauses is Pause.NOTHING and self.open:
            self._heard = self._port.loop.time()  # the silence was ours
            self._transport.resume_reading()

    # --- sending -----------------------------------------------------------------------------------------------------

    def answer(self, frames: bytes | list[bytes]) -> None:
        """Have whole frames sent with the next `send`."""
        if not self._lost:
            if isinstance(frames, list):
                self._answers += frames
            else:
                self._answers.append(frames)
            self._port.touch(self)

    def send(self) -> None:
        """Write the answers that are there."""
        answers, self._answers = self._answers, []
        if not answers or not self.open:
            return
        if len(answers) == 1:
            self._write(answers[0])
        elif sum(map(len, answers)) <= _JOINED:
            self._write(b"".join(answers))
        else:
            self._written += sum(map(len, answers))
            self._transport.writelines(answers)
            self._wrote()

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)
        self._wrote()

    def _wrote(self) -> None:
        self._spoken = self._port.loop.time()
        self._note_queued(self._transport.get_write_buffer_size())

    def _note_queued(self, queued: int) -> None:
        if queued != self.share.queued:
            if not self.share.queued:
                self._moved = self._port.loop.time()
            self.share.queue(queued)

    def set_water_mark(self, high: int) -> None:
        """How many bytes of answers may wait before reading stops."""
        if self.open:
            self._transport.set_write_buffer_limits(high=high, low=high // 4)

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look at the clock: end what stands still, and show the peer that this end lives."""
        limits = self._port.limits
        if self._lost:
            return
        self._note_progress(now)
        if self.share.queued and now - self._moved > limits.unread_seconds:
            self._port.complain(
                f"{self.peer}: closed: it took none of {self.share.queued} bytes of answers for {limits.unread_seconds:g} s"
            )
            self.abort()
            return
        if self._closing:
            if now - self._moved > limits.unread_seconds:
                self.abort()
            return
        overdue = self._overdue(now)
        if overdue:
            self._port.complain(f"{self.peer}: closed: {overdue}")
            self.close()
            return
        if self.version is not None and now - self._spoken > limits.keep_alive_seconds and not self.share.queued:
            self._write(keep_alive(self.MAGIC, self.version))
        self._go_on()

    def _overdue(self, now: float) -> str:
        """What the peer should have sent by now, for people; empty when it is in time."""
        stall, idle = self._port.limits.stall_seconds, self._port.limits.idle_seconds
        silent, taken = now - self._heard, now - self._began
        arrived = self._filled if self._big is not None else len(self._tail)
        what = "its Hello" if self.version is None else "a frame"
        awaited = self._big is not None or self.version is None
        if self._pauses is Pause.NOTHING:
            if (awaited or self._tail) and silent > stall:
                return f"{arrived} bytes of {what} came, and nothing more for {stall:g} s"
            if silent > idle and not self.requests:
                return f"it was silent for {idle:g} s"
        if awaited and not self._pauses & _OURS and taken > stall + arrived / _LEAST_RATE:
            least = f"{_LEAST_RATE >> 10} KiB a second are the least after {stall:g} s"
            return f"{arrived} bytes of {what} came in {taken:.0f} s; {least}"
        return ""

    def _note_progress(self, now: float) -> None:
        """Whether the peer took some of its answers since the last look."""
        self._note_queued(self._transport.get_write_buffer_size())
        gone = self._written - self.share.queued
        if gone != self._gone or (not self.share.queued and not self._closing):
            self._gone, self._moved = gone, now

    def finish(self) -> None:
        """Read nothing more, answer what is under way, then close."""
        self._pause(Pause.DRAINING)
        if not self.requests:
            self.close()

    def close(self) -> None:
        """Send what is there and close; what still arrives is not looked at."""
        if self.open:
            self.send()
            self._closing = True
            self._moved = self._port.loop.time()
            self._let_go()
            self._part()

    def _part(self) -> None:
        """Close when the peer's system has every answer.

        A socket that is closed while there is something unread in it is reset, and what was on its way to the peer is lost.
        """
        if self._lost:
            return
        if self._transport.get_write_buffer_size() or _unacknowledged(self._transport):
            self._port.loop.call_later(_PARTING_SECONDS, self._part)  # `tick` sees to it that this ends
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, with a reset: what the peer did not take is not kept in the system either."""
        self._closing = True
        if not self._lost:
            self._let_go()
            accepted = self._transport.get_extra_info("socket")
            if accepted is not None:  # under TLS it is gone a little earlier than the connection
                with contextlib.suppress(OSError):
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()


def _unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the system sent, or will send, and that the peer's has not confirmed; 0 where it does not tell."""
    accepted = transport.get_extra_info("socket")
    if accepted is None:
        return 0
    waiting = bytearray(4)
    try:
        fcntl.ioctl(accepted.fileno(), termios.TIOCOUTQ, waiting)
    except (OSError, ValueError):  # it has been closed meanwhile
        return 0
    return int.from_bytes(waiting, sys.byteorder)
