"""The connection to a log server that all mounts of one client id at that server share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count, groupby
from operator import itemgetter
from typing import Any

from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_connection import LogConnection, Pushed
from waltzctl.engine.client.partition_mount import Connect, Mount
from waltzctl.engine.errors import PeerError, PeerUnreachableError, WaltzError
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.futures import taken
from waltzctl.formats.wire.feed_frames import FeedRow, feed_rows

_PARTITION: Callable[[FeedRow], int] = itemgetter(2)
_SEQUENCES = count()


class Endpoint:
    """The connection of a client id to one server; while mounts are attached it is made again whenever it is lost.

    Concurrent callers of `connection` wait for the same attempt.  `failure`: why the last attempt failed; None if it succeeded.
    """

    def __init__(
        self,
        address: Address,
        client_id: int,
        connect: Connect,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        options: ClientOptions,
        log: logging.Logger,
    ) -> None:
        self.address = address
        self._client_id = client_id
        self.failure: PeerError | None = None
        self._connect, self._spawn, self._options, self._log = connect, spawn, options, log
        self._current: LogConnection | None = None
        """The last connection that was made; it may have ended."""
        self._attempt: asyncio.Task[LogConnection] | None = None
        """The last attempt to connect."""
        self._mounts: dict[int, Mount] = {}
        """By partition, in the order in which they were attached."""
        self._keeper: asyncio.Task[None] | None = None
        """The task that connects again for the mounts (`_keep_connected`)."""
        self._losses: deque[tuple[float, PeerError]] = deque(maxlen=2)
        """Loop time and reason of the last two losses of the connection."""
        self.sequence = -1
        """Number of the present connection, above those of all earlier ones of this process; -1: there was none.

        A mount request carries it as its connection sequence: a server takes the client id's mount with the highest one.
        """

    @property
    def unused(self) -> bool:
        """Whether no mount is attached, and no connection is up or being made."""
        connecting = self._attempt is not None and not self._attempt.done()
        return not self._mounts and not connecting and (self._current is None or self._current.closed)

    def hears(self, seconds: float) -> bool:
        """Whether the connection is up and bytes were received in the last `seconds`."""
        current = self._current
        return (
            current is not None and not current.closed and asyncio.get_running_loop().time() - current.heard < seconds
        )

    def loss(self, seconds: float) -> PeerError | None:
        """Why the connection was lost last, if it was lost more than once in the last `seconds`; else None."""
        if len(self._losses) < 2 or asyncio.get_running_loop().time() - self._losses[0][0] > seconds:
            return None
        return self._losses[-1][1]

    async def connection(self) -> LogConnection:
        """The present connection, or a new one.  Raises PeerError."""
        if self._current is not None and not self._current.closed:
            return self._current
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.ensure_future(self._connect_once())
            self._attempt.add_done_callback(taken)  # its caller may have been cancelled
        making = self._attempt
        await asyncio.wait([making])  # a caller that is cancelled does not cancel the attempt: others wait for it
        if making.cancelled():
            raise PeerUnreachableError(str(self.address), "the client was closed while connecting")
        return making.result()

    async def _connect_once(self) -> LogConnection:
        try:
            made = await self._connect(self.address)
        except PeerError as error:
            self.failure = error
            raise
        self.failure = None
        made.fed, made.pushed, made.writable, made.lost = self._fed, self._pushed, self._writable, self._lost
        made.client_id = self._client_id
        self._current = made
        self.sequence = next(_SEQUENCES)
        return made

    def attach(self, mount: Mount) -> None:
        """Call `mount.connected` for the present connection and for each later one.  At most one mount for each partition."""
        self._mounts[mount.partition] = mount
        if self._current is not None and not self._current.closed:
            mount.connected(self._current, self.sequence)
        elif self._keeper is None or self._keeper.done():
            self._keeper = self._spawn(self._keep_connected())

    def _seek(self) -> None:
        """Connect again for the mounts, if there are any; as long as there is no memory for it, later."""
        if self._mounts and (self._keeper is None or self._keeper.done()):
            try:
                self._keeper = self._spawn(self._keep_connected())
            except MemoryError:
                asyncio.get_running_loop().call_later(self._options.first_retry, self._seek)

    def detach(self, mount: Mount) -> None:
        """Stop calling the mount."""
        if self._mounts.get(mount.partition) is mount:
            del self._mounts[mount.partition]

    async def _keep_connected(self) -> None:
        """Connect, with retries, and tell all mounts.

        A PeerError is retried with a growing pause, and so is an error that was not foreseen, by a new connection: a second mount
        request on one takes the appends between request and response for lost.  Any other WaltzError would come again at each
        attempt and ends the mounts.
        """
        pause, waited, logged = 0.0, 0.0, ""
        suspect: LogConnection | None = None  # it is to be closed: some of the mounts may have been told of it
        while self._mounts:
            try:
                if suspect is not None and not suspect.closed:
                    await suspect.close()
                made = await self.connection()
                if not made.closed:  # it may have ended before this task ran
                    for mount in [*self._mounts.values()]:
                        mount.connected(made, self.sequence)
                if not made.closed:
                    return
            except PeerError as error:
                with contextlib.suppress(Exception):  # for instance MemoryError, here and below
                    if waited >= self._options.nudge and logged != (logged := str(error)):
                        self._log.warning("a log server is not reached, and is tried again and again: %s", error)
            except WaltzError as error:
                for mount in [*self._mounts.values()]:
                    mount.end(error)
                return
            except Exception as error:  # for instance MemoryError: nobody else connects for the mounts
                suspect = self._current
                with contextlib.suppress(Exception):
                    if logged != (logged := repr(error)):
                        self._log.error("%s is not reached, and is tried again and again", self.address, exc_info=error)
                with contextlib.suppress(Exception):
                    if suspect is not None:  # a mount that was told of it is not to mount again beside its new appends
                        await suspect.close()
            pause = self._options.pause_after(pause)
            await asyncio.sleep(pause)
            waited += pause

    def _fed(self, frames: bytes) -> None:
        mounts = self._mounts
        for partition, rows in groupby(feed_rows(frames), _PARTITION):  # a server sends runs of one partition
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
        for mount in self._mounts.values():
            mount.lost()
        self._seek()
        self._losses.append((asyncio.get_running_loop().time(), error))

    async def close(self) -> None:
        """Drop the mounts and close the connection; nobody makes another one."""
        self._mounts.clear()
        making = [task for task in (self._attempt, self._keeper) if task is not None]
        for task in making:
            task.cancel()
        try:
            if making:
                await asyncio.wait(making)
        finally:  # also where the caller is cancelled, as at the end of a loop
            if self._current is not None:
                await self._current.close()
