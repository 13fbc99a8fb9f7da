"""Notices what a server has passed over of what a mount asked it for, and has the mount ask again.

A released server that gets no session for a moment, say because ZooKeeper does not answer, leaves the mount request or feed
request that it has then without an answer, and goes on with later ones.

=======  ======================================================  ======================================================
request  is taken for passed over when nothing came for          then
=======  ======================================================  ======================================================
mount    `seconds`; each time twice as long, for a server that   the mount asks again
         only waits will answer all of them
feed     30 s; twice as long where a new mount did not help      it is asked how far the log goes; if that is further,
                                                                 and nothing comes in `seconds` more, a new mount
=======  ======================================================  ======================================================

While the connection is paused nothing comes, whatever the server sends, and each new mount would have it send all that is behind
the mount's position once more.  Where the loop was blocked, what came meanwhile is read first (`engine.net.deadlines`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from waltzctl.engine.client.log_connection import LogConnection
from waltzctl.engine.net.deadlines import Watchdog
from waltzctl.formats.wire import client as wire

_LONGEST = 300.0
"""The most seconds that are waited."""
_SILENCE = 30.0
"""Seconds without a transaction after which it is asked how far the log goes."""
_ANEW = 0.05
"""Seconds in which a loop that was blocked reads what came meanwhile."""


class WatchedMount(Protocol):
    """What the watch needs of a mount, as `engine.client.partition_mount.Mount` provides it."""

    position: int

    @property
    def reads(self) -> bool:
        """Whether what the server sends is read at present."""

    @property
    def feeding(self) -> LogConnection | None:
        """The connection through which the feed was asked for, unless the server has sent all of it; None for none."""

    def ask_high_water_mark(self, timeout: float) -> asyncio.Future[wire.HighWaterMarkResponse]:
        """Ask the server, through `feeding`, how far the log goes."""

    def mount_again(self) -> None:
        """Send a mount request in place of one without an answer."""

    def remount(self) -> None:
        """Mount anew: until the answer nothing is sent."""


class FeedWatch:
    """Watches the requests of one mount."""

    def __init__(self, mount: WatchedMount, seconds: float) -> None:
        """`seconds`: how long an answer may take at least."""
        self._mount, self._seconds = mount, seconds
        self._loop = asyncio.get_running_loop()
        self._answer: Watchdog | None = None
        """Of the last mount request; None behind its answer."""
        self._given = 0.0
        """Seconds that the last mount request on this connection was given for its answer; 0 behind an answer."""
        self._seen = -1
        """The mount's position when the answer was looked for last."""
        self._round: asyncio.TimerHandle | None = None
        """The next look at the feed."""
        self._patience = _SILENCE
        self._missing: Watchdog | None = None
        """Of what the feed lacks by the server's answer; None for nothing."""

    def stop(self) -> None:
        """The connection is lost, or the mount has ended: nothing is expected."""
        self.answered()
        if self._round is not None:
            self._round.cancel()
            self._round = None
        self._stop_missing()

    def await_answer(self) -> None:
        """A mount request is sent now: ask again unless its answer comes in time, or transactions come in front of it."""
        given = min(max(self._seconds, 2 * self._given), _LONGEST)
        # first: where there is no memory for it, the one before asks again
        watchdog = Watchdog(given, fed=self._comes, expired=self._mount.mount_again, anew=_ANEW)
        watchdog.start()
        self.answered()
        self._given, self._seen, self._answer = given, self._mount.position, watchdog

    def _comes(self) -> bool:
        seen, self._seen = self._seen, self._mount.position
        return seen != self._seen or not self._mount.reads

    def answered(self) -> None:
        """The mount request has its answer."""
        self._given = 0.0
        if self._answer is not None:
            self._answer.stop()
            self._answer = None

    def await_feed(self) -> None:
        """Somebody reads the feed, which is asked for now: look in a while whether it has brought anything."""
        self._stop_missing()
        self._look_later()

    def _look_later(self) -> None:
        if self._round is not None:
            self._round.cancel()
        self._round = self._loop.call_later(self._patience, self._look, self._mount.position)

    def _look(self, position: int) -> None:
        if position != self._mount.position:
            self._patience = _SILENCE
        self._look_later()  # first: an error (MemoryError) below is not the end of it
        connection = self._mount.feeding
        if connection is not None and self._is_late(connection, position):
            asked = self._mount.ask_high_water_mark(self._seconds)
            asked.add_done_callback(partial(self._heard, connection, position))

    def _is_late(self, connection: LogConnection, position: int) -> bool:
        """Whether the feed has brought nothing behind `position` since it was asked for through this connection."""
        return connection is self._mount.feeding and position == self._mount.position and self._mount.reads

    def _heard(
        self, connection: LogConnection, position: int, mark: asyncio.Future[wire.HighWaterMarkResponse]
    ) -> None:
        # without an answer nothing is known; behind one, what is under way has as much time again to come
        known = not mark.cancelled() and mark.exception() is None
        if known and mark.result().transaction_id > position and self._missing is None:
            came = partial(self._came, connection, position)
            self._missing = Watchdog(self._seconds, fed=came, expired=self._miss, anew=_ANEW)
            self._missing.start()

    def _came(self, connection: LogConnection, position: int) -> bool:
        if self._is_late(connection, position):
            return False
        self._stop_missing()
        return True

    def _miss(self) -> None:
        self._stop_missing()
        self._patience = min(2 * self._patience, _LONGEST)
        self._mount.remount()

    def _stop_missing(self) -> None:
        if self._missing is not None:
            self._missing.stop()
            self._missing = None
