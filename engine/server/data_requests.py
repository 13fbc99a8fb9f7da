"""Requests for the data of transactions, through one connection to the client port.

=======================================  ======================================================================================
the transaction's data is in the cache   answered at once, unless too many answers wait for the client already
the partition has no session             asked again once it has one; meanwhile it is not in the queue, so that data of other
                                         partitions is answered
otherwise                                read from storage, as many at a time as `ReadWindow` allows; the rest waits in a queue,
                                         in order of arrival
=======================================  ======================================================================================
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from waltzctl.engine.errors import StoreSessionClosedError, WaltzError
from waltzctl.engine.net.budget import Budget
from waltzctl.engine.net.connection import OVERHEAD
from waltzctl.engine.net.read_window import ReadWindow
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.store_partition import PartitionClosedError
from waltzctl.formats.wire import client as wire


class Asker(Protocol):
    """The connection that asks: `engine.server.client_port.ClientConnection`."""

    @property
    def open(self) -> bool:
        """Whether it may still be read and written."""

    def begin(self, requests: int, size: int) -> None:
        """Count requests as under way."""

    def done(self, requests: int, size: int) -> None:
        """Requests counted by `begin` were answered, or are forgotten."""

    def begin_task(self, work: Coroutine[Any, Any, None], *, parked: int = 0) -> asyncio.Task[None]:
        """Answer a request in a task, which counts as a request under way."""

    def accepts_data(self) -> bool:
        """Whether more data may be answered."""

    def reply(self, message: wire.TransactionDataResponse) -> None:
        """Queue a response for the next `send`."""

    def send(self) -> None:
        """Write the queued responses."""


class DataRequests:
    """Answers the requests for data of one connection.  Belongs to the event loop.

    `partitions`: those that are served now.  `slots`: for reads, of all connections.  `room`: bytes of answers that may wait for
    the client.
    """

    def __init__(
        self, connection: Asker, partitions: Mapping[int, Partition], slots: Budget, room: Callable[[], int]
    ) -> None:
        self._connection, self._partitions, self._room = connection, partitions, room
        self._window = ReadWindow(slots)
        # requests that wait for a read, each with the pause in seconds before its last attempt
        self._queue: deque[tuple[wire.TransactionDataRequest, float]] = deque()

    def ask(self, request: wire.TransactionDataRequest, paused: float = 0.0) -> None:
        """Answer a request, now or later.  `paused`: seconds waited before this attempt; 0 for the first one."""
        partition = self._partitions.get(request.request_id.partition)
        if partition is not None and not partition.store.is_open:
            if not (self._connection.accepts_data() and self._answer_from_cache(request)):
                self._connection.begin_task(self._retry_in_session(partition, request, paused), parked=OVERHEAD)
            return
        if not self._queue and self._connection.accepts_data() and self._answer_or_read(request, paused):
            return
        self._connection.begin(1, 0)
        self._queue.append((request, paused))

    def go_on(self) -> None:
        """Answer requests in the queue, as long as reads and answers may be added."""
        while self._queue and self._connection.open and self._connection.accepts_data():
            if not self._answer_or_read(*self._queue[0]):
                break
            self._queue.popleft()
            self._connection.done(1, 0)

    def drop(self) -> None:
        """The connection is gone: forget what is queued.  Reads in progress are cancelled by the connection."""
        queued, self._queue = len(self._queue), deque()
        self._window.leave()
        self._connection.done(queued, 0)

    def _answer_or_read(self, request: wire.TransactionDataRequest, paused: float) -> bool:
        """Answer from the cache, or begin a read; False: neither is possible now, and `go_on` will be called when it is."""
        if self._answer_from_cache(request):
            return True
        if not self._window.begin(self._on_slot_granted):
            return False
        # the task ends the read, and not its coroutine, which does not run at all if it is cancelled before it begins
        try:
            task = self._connection.begin_task(self._answer_read(request, paused))
        except BaseException:  # for instance MemoryError: no task ends it, and all connections share the slots
            self._window.end()
            raise
        task.add_done_callback(self._read_ended)
        return True

    def _on_slot_granted(self) -> None:
        # later: the caller is handling another connection's answer
        asyncio.get_running_loop().call_soon(self._use_granted_slot)

    def _use_granted_slot(self) -> None:
        self.go_on()
        self._window.return_unused()
        self._connection.send()

    def _read_ended(self, _: asyncio.Task[None]) -> None:
        self._window.end()
        self.go_on()
        self._connection.send()

    def _answer_from_cache(self, request: wire.TransactionDataRequest) -> bool:
        """Answer from the cache; False if the data is not cached."""
        partition = self._partitions.get(request.request_id.partition)
        found = partition.committed.cached_data(request.transaction_id) if partition is not None else None
        if found is not None:
            self._reply(request, wire.TransactionData(*found))
        return found is not None

    def _reply(
        self, request: wire.TransactionDataRequest, outcome: wire.TransactionData | wire.TransactionRefused
    ) -> None:
        self._connection.reply(wire.TransactionDataResponse(request.request_id, request.transaction_id, outcome))

    async def _retry_in_session(
        self, partition: Partition, request: wire.TransactionDataRequest, paused: float, pause: float = 0.0
    ) -> None:
        """Repeat a request after a pause, once the partition has a session."""
        try:
            await asyncio.sleep(pause)
            await partition.store.session()
        except PartitionClosedError as error:
            self._reply(request, _not_ready(error))
        else:
            self.ask(request, paused)

    async def _answer_read(self, request: wire.TransactionDataRequest, paused: float) -> None:
        outcome: wire.TransactionData | wire.TransactionRefused
        try:
            outcome = await self._read(request)
        except StoreSessionClosedError:
            partition = self._partitions.get(request.request_id.partition)
            if partition is not None:
                pause = partition.store.pause_after(paused)  # each failed read ends a session
                self._connection.begin_task(self._retry_in_session(partition, request, pause, pause), parked=OVERHEAD)
                return
            outcome = _not_ready(PartitionClosedError(f"{request.request_id.partition} is not served here"))
        except PartitionClosedError as error:
            outcome = _not_ready(error)
        except WaltzError as error:
            outcome = wire.TransactionRefused(str(error))
        self._reply(request, outcome)
        length = len(outcome.data) if isinstance(outcome, wire.TransactionData) else 0
        self._window.widen(self._room() // max(1, length))  # as if the next answers were as long as this one

    async def _read(self, request: wire.TransactionDataRequest) -> wire.TransactionData | wire.TransactionRefused:
        """Read data from storage.  Raises PartitionClosedError, StoreSessionClosedError."""
        number, transaction_id = request.request_id.partition, request.transaction_id
        partition = self._partitions.get(number)
        if partition is None:
            raise PartitionClosedError(f"{number} is not served here")
        found = await partition.committed.data(transaction_id)
        if found is None and partition.is_behind(request.request_id.generation):
            raise PartitionClosedError(f"{number} was assigned anew, which is not known here as yet")
        if found is None:
            return wire.TransactionRefused(f"partition {number} has no transaction {transaction_id}")
        return wire.TransactionData(*found)


def _not_ready(error: PartitionClosedError) -> wire.TransactionRefused:
    """A refusal whose beginning ("partition not ready") tells clients that another server may have the partition."""
    return wire.TransactionRefused(f"partition not ready: {error}")
