"""A connection to a log server for feeds and appends: answers to calls find who asked, all else goes to its partition.

Most of what comes are transactions of feeds.  No message is made of them: those that came together are given on as their frames.

Source: release 0.13.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from waltzctl.engine.client.client_connection import NodePortConnection
from waltzctl.engine.client.server_client import SERVER_PORT
from waltzctl.engine.errors import PeerError
from waltzctl.formats.request_id import LAST_SEQUENCE
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.feed_frames import FEED_FRAME, feed_prefix
from waltzctl.formats.wire.frame import Magic, keep_alive

Pushed: TypeAlias = wire.FeedSuspended | wire.MountResponse | wire.FlushResponse | wire.LockFailure
"""What a server sends to the one who mounted a partition, besides the transactions themselves."""
_PUSHED = (wire.FeedSuspended, wire.MountResponse, wire.FlushResponse, wire.LockFailure)
PORT = SERVER_PORT


class LogConnection(NodePortConnection[wire.ClientMessage]):
    """Set `fed`, `pushed`, `writable` and `lost` as soon as it stands; all are called in the event loop.

    `fed`: with whole frames of `FeedData` (`formats.wire.feed_frames.feed_rows`).  `writable`: it was full, and takes more.
    """

    fed: Callable[[bytes], None] | None = None
    pushed: Callable[[Pushed], None] | None = None
    writable: Callable[[], None] | None = None
    lost: Callable[[PeerError], None] | None = None

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

    def pause(self) -> None:
        """Read nothing more for now: the server is held up when the connection is full."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

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
