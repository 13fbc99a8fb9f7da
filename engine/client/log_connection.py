"""A connection to a log server for feeds and appends.

A response to a call goes to its caller, every other message to the mount of its partition.  Most messages are transactions of
feeds; they are not decoded here, but passed on as frames, all that were received together.

Appends, mounts and feeds have no deadline here, and a server may leave them without a response for long.  To find half-open
connections, where the server is gone without a sign, the connection sends a *probe* after some time of silence: a request that a
server always answers.

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
from waltzctl.formats.request_id import LAST_SEQUENCE, NO_CLIENT, NO_PARTITION, RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.feed_frames import FEED_FRAME, feed_prefix
from waltzctl.formats.wire.frame import Magic, keep_alive

Pushed: TypeAlias = wire.FeedSuspended | wire.MountResponse | wire.FlushResponse | wire.LockFailure
"""What a server sends to the client of a mount, besides transactions."""
_PUSHED = (wire.FeedSuspended, wire.MountResponse, wire.FlushResponse, wire.LockFailure)
PORT = SERVER_PORT


class LogConnection(NodePortConnection[wire.ClientMessage]):
    """A connection whose user sets four callbacks as soon as it is established; all are called in the event loop.

    ==========  ============================================================================================
    `fed`       received whole frames of `FeedData` (`formats.wire.feed_frames.feed_rows` decodes them)
    `pushed`    received another message for a mount
    `writable`  the write buffer was full and has room again
    `lost`      the connection has ended
    ==========  ============================================================================================
    """

    fed: Callable[[bytes], None] | None = None
    pushed: Callable[[Pushed], None] | None = None
    writable: Callable[[], None] | None = None
    lost: Callable[[PeerError], None] | None = None
    client_id: int = NO_CLIENT
    """The client that all requests are of: a released server takes it from the first one, and the mounts to be of that client."""
    _probe: asyncio.Future[Any] | None = None
    """The response to the last probe."""

    def next_sequence(self) -> int:
        """The next call's sequence number.  It wraps after 2^31 - 1 to 0, whose earlier call has ended long before."""
        return super().next_sequence() & LAST_SEQUENCE

    def send(self, message: wire.ClientRequest) -> None:
        """Send a message that has no response of its own.  Raises PeerError on a connection that has ended."""
        if self._error is not None:
            raise self._error
        self._queue((wire.encode(message, self.version),))

    def send_frames(self, frames: list[bytes]) -> None:
        """As `send`, for several whole frames of this connection's version: all are sent, or none."""
        if self._error is not None:
            raise self._error
        self._queue(frames)

    def ask_after(self, seconds: float) -> None:
        """Send a probe if no whole frame was received for `seconds`; the connection ends when nothing is received after it."""
        since = self._heard if self._arriving.since is None else self._arriving.since
        if self.closed or not self._greeted.done() or not self._reading or self._loop.time() - since < seconds:
            return
        if self._probe is not None and not self._probe.done():
            return
        number = RequestId(self.client_id, 0, NO_PARTITION, self.next_sequence())
        try:
            frame = wire.encode(wire.ServerPartitionsAssignmentRequest(number), self.version)
        except ValueError:  # versions 0 and 1 have no request that is always answered
            return
        self._probe = self.start(
            number.sequence, (frame,), wire.ServerPartitionsAssignmentResponse, "whether it is still there"
        )
        self._probe.add_done_callback(taken)

    @property
    def paused(self) -> bool:
        """Whether nothing is read, since `pause`."""
        return not self._reading

    def pause(self) -> None:
        """Stop reading: TCP flow control then stops the server."""
        if self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again after `pause`."""
        if self._transport is not None and not self._transport.is_closing():
            if not self._reading:
                self._reading, self._heard = True, self._loop.time()  # what arrived meanwhile is only read now
                self._arriving.begin_anew(self._heard)
            self._transport.resume_reading()

    def _send_keep_alive(self) -> None:
        super()._send_keep_alive()
        self.ask_after(self._keep_alive_seconds)

    def resume_writing(self) -> None:
        """The write buffer has room again."""
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
