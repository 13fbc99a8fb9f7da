"""A connection to a log server for feeds and appends: answers to calls find who asked, all else goes to its partition.

Most of what comes are transactions of feeds.  No message is made of them: those that came together are given on as their frames.

Appends, mounts and feeds have no deadline here, and a server may leave them without an answer for long.  So where nothing was
heard for a while it is asked something that it answers in any case: a connection of which only this end is left is found out.

Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from waltzctl.engine.client.client_connection import NodePortConnection
from waltzctl.engine.client.server_client import SERVER_PORT
from waltzctl.engine.errors import PeerError
from waltzctl.engine.net.futures import taken
from waltzctl.formats.request_id import LAST_SEQUENCE, RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.feed_frames import FEED_FRAME, feed_prefix
from waltzctl.formats.wire.frame import Magic, keep_alive

Pushed: TypeAlias = wire.FeedSuspended | wire.MountResponse | wire.FlushResponse | wire.LockFailure
"""What a server sends to the one who mounted a partition, besides the transactions themselves."""
_PUSHED = (wire.FeedSuspended, wire.MountResponse, wire.FlushResponse, wire.LockFailure)
PORT = SERVER_PORT
_NO_CLIENT = -1
_NO_PARTITION = -1


class LogConnection(NodePortConnection[wire.ClientMessage]):
    """Set `fed`, `pushed`, `writable` and `lost` as soon as it stands; all are called in the event loop.

    `fed`: with whole frames of `FeedData` (`formats.wire.feed_frames.feed_rows`).  `writable`: it was full, and takes more.
    """

    fed: Callable[[bytes], None] | None = None
    pushed: Callable[[Pushed], None] | None = None
    writable: Callable[[], None] | None = None
    lost: Callable[[PeerError], None] | None = None
    _asked: asyncio.Future[Any] | None = None

    def next_sequence(self) -> int:
        """The number of the next question, of 32 bits here: behind the last comes 0, which nobody waits for any more."""
        return super().next_sequence() & LAST_SEQUENCE

    def send(self, message: wire.ClientRequest) -> None:
        """Send what has no answer of its own.  Raises PeerError on a connection that has ended."""
        if self._error is not None:
            raise self._error
        self._queue((wire.encode(message, self.version),))

    def send_frames(self, frames: list[bytes]) -> None:
        """Send whole frames of this version that have no answer of their own, all or none.  Raises PeerError as `send`."""
        if self._error is not None:
            raise self._error
        self._queue(frames)

    def ask_after(self, seconds: float) -> None:
        """Where nothing whole was heard for so many seconds, ask the server something; without a sign of it this ends."""
        since = self._heard if self._unfinished is None else self._unfinished
        if self.closed or not self._greeted.done() or not self._reading or self._loop.time() - since < seconds:
            return
        if self._asked is not None and not self._asked.done():
            return
        number = RequestId(_NO_CLIENT, 0, _NO_PARTITION, self.next_sequence())
        try:
            frame = wire.encode(wire.ServerPartitionsAssignmentRequest(number), self.version)
        except ValueError:  # versions 0 and 1 know nothing that is answered in any case
            return
        self._asked = self.start(
            number.sequence, (frame,), wire.ServerPartitionsAssignmentResponse, "whether it is still there"
        )
        self._asked.add_done_callback(taken)

    def pause(self) -> None:
        """Read nothing more for now: the server is held up when the connection is full."""
        if self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading."""
        if self._transport is not None and not self._transport.is_closing():
            if not self._reading:
                self._reading, self._heard = True, self._loop.time()  # what came meanwhile is only read now
                self._unfinished = None if self._unfinished is None else self._heard
            self._transport.resume_reading()

    def _send_keep_alive(self) -> None:
        super()._send_keep_alive()
        self.ask_after(self._keep_alive_seconds)

    def resume_writing(self) -> None:
        """There is room again."""
        super().resume_writing()
        if self.writable is not None:
            self.writable()

    def _next(self) -> memoryview | None:
        empty = keep_alive(Magic.CLIENT, self.version)
        frames = self._reader.run(feed_prefix(self.version), FEED_FRAME, empty)
        if frames and self.fed is not None:
            self.fed(frames)
        return super()._next()

    def _answer(self, message: Any) -> None:
        if isinstance(message, _PUSHED):
            if self.pushed is not None:
                self.pushed(message)
            return
        super()._answer(message)

    def _fail(self, error: PeerError) -> None:
        first = self._error is None
        super()._fail(error)
        if first and self.lost is not None:
            self.lost(error)
