"""The connection to a log server, which a client's mounts of its partitions share."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import groupby
from operator import itemgetter
from typing import Any

from waltzctl.engine.client.log_connection import LogConnection, Pushed
from waltzctl.engine.client.partition_mount import ClientOptions, Connect, Mount
from waltzctl.engine.errors import PeerError, PeerUnreachableError, WaltzError
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.futures import taken
from waltzctl.formats.wire.feed_frames import FeedRow, feed_rows

_PARTITION: Callable[[FeedRow], int] = itemgetter(2)


class Endpoint:
    """The connection to one server.  Whoever wants it while it is being made waits for the same.

    `failure`: why the last one did not come about; None where it did.
    """

    def __init__(
        self,
        address: Address,
        connect: Connect,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        options: ClientOptions,
        log: logging.Logger,
    ) -> None:
        self.address = address
        self.failure: PeerError | None = None
        self._connect, self._spawn, self._options, self._log = connect, spawn, options, log
        self._current: LogConnection | None = None
        self._making: asyncio.Task[LogConnection] | None = None
        self._mounts: dict[int, Mount] = {}  # by partition, in their order
        self._keeping: asyncio.Task[None] | None = None
        self._losses: deque[tuple[float, PeerError]] = deque(maxlen=2)
        self.sequence = -1
        """Of the present connection: one more with each that is made."""

    def hears(self, seconds: float) -> bool:
        """Whether the connection stands, and something came in the last `seconds`."""
        current = self._current
        return (
            current is not None and not current.closed and asyncio.get_running_loop().time() - current.heard < seconds
        )

    def loss(self, seconds: float) -> PeerError | None:
        """Why the connection was lost at last, where that happened more than once in the last `seconds`."""
        if len(self._losses) < 2 or asyncio.get_running_loop().time() - self._losses[0][0] > seconds:
            return None
        return self._losses[-1][1]

    async def connection(self) -> LogConnection:
        """One that stands.  Raises PeerError."""
        if self._current is not None and not self._current.closed:
            return self._current
        if self._making is None or self._making.done():
            self._making = asyncio.ensure_future(self._make())
            self._making.add_done_callback(taken)  # whoever asked may have given up
        making = self._making
        await asyncio.wait([making])  # whoever is cancelled while waiting for it leaves it to the others
        if making.cancelled():
            raise PeerUnreachableError(str(self.address), "the client was closed while connecting")
        return making.result()

    async def _make(self) -> LogConnection:
        try:
            made = await self._connect(self.address)
        except PeerError as error:
            self.failure = error
            raise
        self.failure = None
        made.fed, made.pushed, made.writable, made.lost = self._fed, self._pushed, self._writable, self._lost
        self._current = made
        self.sequence += 1
        return made

    def attach(self, mount: Mount) -> None:
        """Mount through this connection from now on, also when it is made again; a client id mounts a partition once."""
        self._mounts[mount.partition] = mount
        if self._current is not None and not self._current.closed:
            mount.connected(self._current, self.sequence)
        elif self._keeping is None or self._keeping.done():
            self._keeping = self._spawn(self._keep())

    def detach(self, mount: Mount) -> None:
        """No longer."""
        if self._mounts.get(mount.partition) is mount:
            del self._mounts[mount.partition]

    async def _keep(self) -> None:
        """Connect until it stands, and mount what waits for it; what another attempt would not mend ends those mounts."""
        pause, waited, said = 0.0, 0.0, ""
        while self._mounts:
            try:
                made = await self.connection()
                if not made.closed:  # it may have ended before anybody could be told
                    for mount in [*self._mounts.values()]:
                        mount.connected(made, self.sequence)
                if not made.closed:
                    return
            except PeerError as error:
                if waited >= self._options.nudge and said != (said := str(error)):
                    self._log.warning("a log server is not reached, and is tried again and again: %s", error)
            except WaltzError as error:
                for mount in [*self._mounts.values()]:
                    mount.end(error)
                return
            pause = self._options.pause_after(pause)
            await asyncio.sleep(pause)
            waited += pause

    def _fed(self, frames: bytes) -> None:
        mounts = self._mounts
        for partition, rows in groupby(feed_rows(frames), _PARTITION):  # a server writes them in runs of one partition
            mount = mounts.get(partition)
            if mount is not None:
                mount.fed(rows)

    def _pushed(self, message: Pushed) -> None:
        mount = self._mounts.get(message.request_id.partition)
        if mount is not None:
            mount.pushed(message)

    def _writable(self) -> None:
        for mount in self._mounts.values():
            mount.writable()

    def _lost(self, error: PeerError) -> None:
        self._losses.append((asyncio.get_running_loop().time(), error))
        for mount in self._mounts.values():
            mount.lost()
        if self._mounts and (self._keeping is None or self._keeping.done()):
            self._keeping = self._spawn(self._keep())

    async def close(self) -> None:
        """Forget the mounts and end the connection."""
        self._mounts.clear()
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        if self._current is not None:
            await self._current.close()
