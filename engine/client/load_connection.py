"""One connection of a load: each response is followed by the next request, many at a time, and its latency is counted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from waltzctl.engine.client.latency import LatencyHistogram
from waltzctl.engine.client.load_frames import AppendFrames, Frames, LoadPartition, Numbers, ReadFrames
from waltzctl.engine.client.load_options import LoadOptions
from waltzctl.engine.client.remote_failures import remote_error
from waltzctl.engine.errors import DeadlineError, PeerUnreachableError, ProtocolError, WaltzError
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter, SplitStatus
from waltzctl.formats.wire.frame import FrameError, FrameReader, Magic
from waltzctl.formats.wire.hello import STORAGE_CLIENT, Hello, choose_version
from waltzctl.formats.wire.primitives import MessageError
from waltzctl.formats.wire.records import SMALLEST_RECORD, pack_count
from waltzctl.formats.wire.storage import (
    PREFIX,
    STORAGE_VERSION,
    STORAGE_VERSIONS,
    FailureResponse,
    RecordListResponse,
    SuccessResponse,
    decode,
)

_MAX_BODY = 512 << 20
_READ_BUFFER = 1 << 20
_WRITE_BUFFER = 4 << 20
_COUNT_SIZE = len(pack_count(0))


@dataclass(slots=True)
class Measured:
    """What one connection did since the last reset."""

    requests: int
    transactions: int
    data_bytes: int
    latency: LatencyHistogram


class LoadConnection(asyncio.BufferedProtocol):
    """One connection of a load.

    At most `_window` requests are in flight: request `n` is sent once request `n - _window` is answered.  So the time at which a
    request was sent can be kept at index `n % _window` of an array.
    """

    def __init__(self, address: str, places: Sequence[LoadPartition], options: LoadOptions) -> None:
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._address = address
        self._frames: Frames = (
            ReadFrames(places, batch=options.batch)
            if options.read
            else AppendFrames(places, batch=options.batch, data_size=options.data_size)
        )
        self._expected = RecordListResponse.TYPE if options.read else SuccessResponse.TYPE
        self._reading = options.read
        self._batch, self._data_size = options.batch, options.data_size
        self._window = options.in_flight * len(places)
        self._sent = np.zeros(self._window, np.int64)
        """When each request in flight was sent, in nanoseconds of `time.perf_counter_ns`."""
        self._to_send: list[Numbers] = []
        """Sequence numbers of requests that can be sent when the write buffer has room."""
        self._in_flight = 0
        self._running = False
        """Whether a response is followed by a new request."""
        self._finishing = False
        """Whether the connection ends once all requests in flight are answered."""
        self._writable = True
        self._transport: asyncio.Transport | None = None
        self._hello = FrameReader(1 << 16)
        self._splitter = FrameSplitter(magic=Magic.STORAGE, max_body=_MAX_BODY, rows=4096, compiled=True)
        self._buffer = bytearray(_READ_BUFFER)
        self._filled = 0
        """Bytes of `_buffer` that were received and not yet handled."""
        self._progress = time.monotonic()
        self._measured = Measured(0, 0, 0, LatencyHistogram())

    # ---- what the load uses ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Send the first requests of every partition."""
        self._running = True
        self._progress = time.monotonic()
        self._to_send.append(np.arange(self._window, dtype=np.int64))
        self._send()

    def reset(self) -> Measured:
        """Return what was counted, and count from 0 again."""
        measured, self._measured = self._measured, Measured(0, 0, 0, LatencyHistogram())
        return measured

    def finish(self) -> None:
        """Send no more requests; `ended` is done once all those in flight are answered."""
        self._running, self._finishing = False, True
        self._to_send.clear()
        self._end_if_done()

    def expect_progress(self, seconds: float) -> None:
        """Raise DeadlineError when requests are in flight and no response came for `seconds`."""
        if self._in_flight and time.monotonic() - self._progress > seconds:
            raise DeadlineError(
                self._address, f"{self._in_flight} requests wait, and no answer has come for {seconds:g} s"
            )

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        for future in (self.greeted, self.ended):
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()  # retrieved, so that asyncio does not log it: another error was raised before

    # ---- asyncio.BufferedProtocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the Hello."""
        transport = cast("asyncio.Transport", transport)  # uvloop's transport is not derived from asyncio.Transport
        self._transport = transport
        plain = transport.get_extra_info("socket")
        if plain is not None:
            with contextlib.suppress(OSError):
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        transport.write(Hello(STORAGE_VERSIONS, STORAGE_CLIENT).encode())

    def get_buffer(self, sizehint: int) -> memoryview:
        """The free part of the buffer, which the next bytes are received into."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were received."""
        if self.ended.done():
            return
        self._filled += nbytes
        try:
            if not self.greeted.done() and not self._greet():
                return
            self._receive()
        except (FrameError, MessageError) as error:
            self._break_off(ProtocolError(self._address, f"the peer sent what is no answer: {error}"))
        except WaltzError as error:
            self._break_off(error)

    def eof_received(self) -> None:
        """The peer sends no more."""
        self._break_off(PeerUnreachableError(self._address, "the peer closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        why = "the peer closed the connection" if error is None else f"the connection was lost: {error}"
        self._break_off(PeerUnreachableError(self._address, why))

    def pause_writing(self) -> None:
        """The write buffer is full: requests wait here."""
        self._writable = False

    def resume_writing(self) -> None:
        """The write buffer has room again."""
        self._writable = True
        self._send()

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _greet(self) -> bool:
        """Whether the handshake is over; bytes received after the Hello are left in the buffer."""
        received = bytes(memoryview(self._buffer)[: self._filled])
        self._filled = 0
        self._hello.feed(received)
        body = self._hello.next(Magic.HELLO, 0)
        if body is None:
            return False
        hello = Hello.decode(body)
        if choose_version(STORAGE_VERSIONS, hello.versions) is None:
            raise ProtocolError(self._address, f"no common version with {hello.text!r}")
        self.greeted.set_result(None)
        self._filled = self._hello.pending
        self._buffer[: self._filled] = received[len(received) - self._filled :]
        return True

    def _receive(self) -> None:
        now = time.perf_counter_ns()
        start = 0
        while True:
            split = self._splitter.split(self._buffer, start, self._filled, STORAGE_VERSION)
            if len(split.table):
                self._count_responses(split.table, now)
            start = split.consumed
            if split.status is SplitStatus.FULL:
                continue
            if split.status is not SplitStatus.MORE:
                raise ProtocolError(self._address, f"the peer sent a frame with a wrong {split.status.name.lower()}")
            break
        rest = self._filled - start
        if split.needed > len(self._buffer):
            grown = bytearray(split.needed + _READ_BUFFER)
            grown[:rest] = memoryview(self._buffer)[start : self._filled]
            self._buffer = grown
        elif start and rest:
            self._buffer[:rest] = self._buffer[start : self._filled]
        self._filled = rest
        self._send()
        self._end_if_done()

    def _count_responses(self, table: Numbers, now: int) -> None:
        kinds = table[:, FrameColumn.TYPE]
        if (kinds != self._expected).any():
            self._raise_failure(table[int(np.flatnonzero(kinds != self._expected)[0])])
        numbers = table[:, FrameColumn.SEQUENCE]
        count = len(numbers)
        self._progress = time.monotonic()
        self._in_flight -= count
        measured = self._measured
        measured.requests += count
        measured.latency.add(now - self._sent[numbers % self._window])
        if self._reading:
            for body, length in table[:, [FrameColumn.BODY, FrameColumn.LENGTH]].tolist():
                records, size = self._list_at(body, length)
                measured.transactions += records
                measured.data_bytes += size
        else:
            measured.transactions += count * self._batch
            measured.data_bytes += count * self._batch * self._data_size
        if self._running:
            self._to_send.append(numbers + self._window)

    def _list_at(self, body: int, length: int) -> tuple[int, int]:
        """The number of records in a list response, and bytes of their data."""
        at = body + PREFIX.size
        count = int.from_bytes(self._buffer[at : at + _COUNT_SIZE], "big", signed=True)
        if count <= 0:
            raise ProtocolError(self._address, "a list without records, where there are some")
        return count, length - PREFIX.size - _COUNT_SIZE - count * SMALLEST_RECORD

    def _raise_failure(self, row: Numbers) -> None:
        body = int(row[FrameColumn.BODY])
        message = decode(bytes(memoryview(self._buffer)[body : body + int(row[FrameColumn.LENGTH])]))
        if isinstance(message, FailureResponse):
            raise remote_error(self._address, message.failure)
        raise ProtocolError(self._address, f"{type(message).__name__} is no answer to what was asked")

    def _send(self) -> None:
        transport = self._transport
        if transport is None:
            return
        while self._to_send and self._writable:
            numbers = self._to_send[0] if len(self._to_send) == 1 else np.concatenate(self._to_send)
            part, rest = numbers[: self._frames.rows], numbers[self._frames.rows :]
            self._to_send = [rest] if len(rest) else []
            made = self._frames.make(part)
            self._in_flight += len(part)
            self._sent[part % self._window] = time.perf_counter_ns()
            transport.write(made)

    def _end_if_done(self) -> None:
        if self._finishing and not self._in_flight and not self.ended.done():
            self.ended.set_result(None)

    def _break_off(self, error: WaltzError) -> None:
        for future in (self.greeted, self.ended):
            if not future.done():
                future.set_exception(error)
        if self._transport is not None:
            self._transport.abort()
