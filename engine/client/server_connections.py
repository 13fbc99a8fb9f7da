"""The connections of one client to the log servers, and its requests outside of mounts.

The directory of servers names the server of each partition.  The client has one connection (`Endpoint`) for each pair of server
and client id.  Requests that need no mount (high-water marks, data) use connections under a client id of their own, -1.

Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.partition_mount import Connect
from waltzctl.engine.client.server_endpoint import Endpoint
from waltzctl.engine.errors import DeadlineError, InvalidRequestError, PeerError, PeerUnreachableError
from waltzctl.engine.metadata.server_directory import OnChange, PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.events import happens_within
from waltzctl.formats.request_id import NO_CLIENT, RequestId
from waltzctl.formats.wire import client as wire

_DATA_SILENCE = 1.0
"""Seconds without a byte from the server after which a request for data is first repeated."""


class Servers(Protocol):
    """The directory of log servers, as `engine.metadata.server_directory.ServerDirectory` provides it."""

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the cluster."""

    async def client_id(self) -> int:
        """A client id that no other client has.  Raises PeerError."""

    async def follow(self, on_change: OnChange) -> None:
        """Call `on_change` with the server of each partition, now and after every change; runs until it is cancelled."""


class ServerConnections:
    """The connections of one client, and the directory that they follow."""

    def __init__(
        self,
        servers: Servers,
        connect: Connect,
        options: ClientOptions,
        log: logging.Logger,
        changed: Callable[[Mapping[int, PartitionServer], Mapping[int, PartitionServer]], object],
    ) -> None:
        """`changed`: called with the server of each partition before and after a change of the directory."""
        self._servers, self._connect, self._options, self._log, self._changed = servers, connect, options, log, changed
        self.server_of: Mapping[int, PartitionServer] = {}
        """The server of each partition, as the directory last reported it."""
        self._directory_changed = asyncio.Event()
        """Set when `server_of` was replaced, and when the client is closed."""
        self._endpoints: dict[tuple[Address, int], Endpoint] = {}
        """By server address and client id."""
        self._tasks: dict[asyncio.Task[None], None] = {}  # an ordered set, in the order of their creation
        self._client_id_failure: tuple[float, PeerError] | None = None
        """Loop time and reason of the last failure to get a client id; None once a client id was issued."""
        self._closed: PeerUnreachableError | None = None
        """The error that calls raise once the client is closed."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that the connections belong to; None before `follow`."""
        self._process = 0
        """The id of the process in which it runs: a process that is forked has the same loop."""

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the cluster."""
        return self._servers.num_partitions

    def follow(self) -> None:
        """Follow the directory from now on, in the event loop that the client belongs to from now on."""
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        self._spawn(self._servers.follow(self._servers_changed))

    def end(self) -> PeerUnreachableError:
        """Refuse all calls from now on; returns the error that they raise."""
        self._closed = PeerUnreachableError("the client", "it was closed")
        self._directory_changed.set()
        return self._closed

    async def close(self) -> None:
        """Close all connections; `end` comes first."""
        for task in [*self._tasks]:
            task.cancel()
        await _wait_for_all([*self._tasks, *_closing(self._endpoints.values())])

    async def close_of(self, client_id: int) -> None:
        """Close the connections of one client id."""
        keys = [key for key in self._endpoints if key[1] == client_id]
        await _wait_for_all(_closing(self._endpoints.pop(key) for key in keys))

    def check_usable(self) -> None:
        """Raise the error of `end`, if it was called, and as `check_loop`."""
        self.check_loop()
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # else the traceback grows with every call that raises it

    def check_loop(self) -> None:
        """Raise InvalidRequestError in another event loop than that of `follow`, and in a process that was forked behind it.

        Its connections would be used beside the loop that has them, and a call would wait for what only that one can do.
        """
        if self._loop is None:
            return
        if asyncio.get_running_loop() is not self._loop or os.getpid() != self._process:
            raise InvalidRequestError(
                "a log client belongs to another event loop",
                advice="open one in each event loop, and in each process that was forked",
            )

    def endpoint(self, server: PartitionServer, client_id: int) -> Endpoint:
        """The connection of a client id to a server, shared by its mounts there.  Raises PeerUnreachableError once closed."""
        self.check_usable()
        key = Address(server.host, server.port), client_id
        if key not in self._endpoints:
            self._endpoints[key] = Endpoint(*key, self._connect, self._spawn, self._options, self._log)
        return self._endpoints[key]

    async def new_client_id(self) -> int:
        """A new client id.  Retries without limit while the metadata does not answer: the deadline is the caller's."""
        pause, logged = 0.0, ""
        while True:
            self.check_usable()
            self._directory_changed.clear()
            try:
                made = await self._servers.client_id()
            except PeerError as error:
                if logged != (logged := str(error)):
                    self._log.warning("the metadata gives no client id, and is asked again and again: %s", error)
                self._client_id_failure = asyncio.get_running_loop().time(), error
            else:
                self._client_id_failure = None
                return made
            pause = self._options.pause_after(pause)
            await happens_within(self._directory_changed, pause)

    async def high_water_mark(self, partition: int) -> int:
        """The high-water mark of a partition.  Retries without limit, as `request`."""
        while True:
            answer = await self.request(partition, wire.HighWaterMarkRequest, wire.HighWaterMarkResponse)
            if answer.transaction_id >= -1:
                return int(answer.transaction_id)
            await asyncio.sleep(self._options.not_ready)  # the server owns the partition, but has no store session yet

    async def request(self, partition: int, make: Callable[[RequestId], Any], expected: type[Any]) -> Any:
        """Send a request to the partition's server and return the response.  Retries without limit: the deadline is the caller's.

        Each attempt goes to the server that the directory names at that time.  How long an attempt waits for its response:

        ===============  ================================================================================================
        request          wait
        ===============  ================================================================================================
        high-water mark  short at first, then longer: a server that does not own the partition does not respond at all
        data             as long as the connection delivers anything: the server always responds, the response may be long,
                         and a second request would only queue another copy after it
        ===============  ================================================================================================
        """
        is_data = expected is wire.TransactionDataResponse
        pause, patience = 0.0, _DATA_SILENCE if is_data else self._options.not_ready
        while True:
            self.check_usable()
            self._directory_changed.clear()
            server = self.server_of.get(partition)
            if server is not None:
                with contextlib.suppress(PeerError):
                    connection = await self.endpoint(server, NO_CLIENT).connection()
                    number = RequestId(NO_CLIENT, server.generation, partition, connection.next_sequence())
                    frame = wire.encode(make(number), connection.version)
                    seconds = min(patience, connection.timeout)
                    patience = max(patience, min(2 * patience, self._options.nudge))
                    return await connection.call(
                        number.sequence, frame, expected, "a question", timeout=seconds, of_silence=is_data
                    )
            pause = self._options.pause_after(pause)
            await happens_within(self._directory_changed, pause)

    def _servers_changed(self, servers: Mapping[int, PartitionServer]) -> None:
        """The directory's callback."""
        before, self.server_of = self.server_of, servers
        self._directory_changed.set()
        self._changed(before, servers)
        self._forget_unused()

    def _forget_unused(self) -> None:
        """Forget what is left of connections to servers that have no partition any more: servers come and go, for months."""
        present = {Address(one.host, one.port) for one in self.server_of.values()}
        for key, endpoint in [*self._endpoints.items()]:
            if key[0] not in present and endpoint.unused:
                del self._endpoints[key]

    def deadline_error(
        self, partition: int, seconds: float, what: str, *, data: bool = False, mounted: bool = False
    ) -> DeadlineError:
        """The error for a call without an answer in time, with the most likely cause that this client knows of.

        `data`: the call asks for a transaction's data, which may be long.  `mounted`: the partition is mounted, so the server has
        answered, and has sent no transaction since.
        """
        server = self.server_of.get(partition)
        address = None if server is None else Address(server.host, server.port)
        endpoints = [one for one in self._endpoints.values() if one.address == address]
        failures = [one.failure for one in endpoints if one.failure]
        losses = [loss for one in endpoints if (loss := one.loss(seconds))]
        if (missed := self._client_id_failure) and asyncio.get_running_loop().time() - missed[0] <= seconds:
            why, advice = f"the metadata does not answer: {missed[1].message}", missed[1].advice
        elif failures:
            why, advice = failures[-1].message, failures[-1].advice
        elif address is None:
            why, advice = "no log server has the partition", "are log servers running? waltzctl cluster verify tells"
        elif losses:
            why = f"server {address} has the partition, and the connection to it is lost again and again: {losses[-1].message}"
            advice = losses[-1].advice or "the log of that server says why"
        elif data and (asked := self._endpoints.get((address, NO_CLIENT))) and asked.hears(_DATA_SILENCE):
            why = f"answers of server {address} were still coming, and this one had not come whole"
            advice = "so much data takes longer on this way: give it a longer timeout, or ask for less at a time"
        elif mounted:
            why = f"server {address} has the partition, and tells of no more: none is committed as yet, or it cannot be read"
            advice = "waltzctl log high-water-mark shows what is committed, waltzctl cluster top who is missing"
        else:
            why = f"server {address} has the partition, and no session for it as yet, or too much to do"
            advice = "waltzctl cluster top shows whom it waits for"
        return DeadlineError("the cluster", f"no answer within {seconds:g} s to {what}: {why}", advice=advice)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s", error, exc_info=error)


def _closing(endpoints: Iterable[Endpoint]) -> list[asyncio.Task[None]]:
    """A task for each endpoint's `close`, so that it is closed even if the task that waits for it is cancelled."""
    return [asyncio.ensure_future(endpoint.close()) for endpoint in endpoints]


async def _wait_for_all(tasks: Collection[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
