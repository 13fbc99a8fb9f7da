"""A client of a cluster's log: appends under optimistic locks, feeds of committed transactions, and their data on demand.

The client mounts a partition through one connection to the server that owns the partition, and names the high-water mark that it
has seen.  After the mount the server sends every later committed transaction, in order and without a gap, and accepts appends.

An append has no response of its own.  The client learns its outcome from the feed:

==============  ========================================================================================================
outcome         how the client learns of it
==============  ========================================================================================================
committed       the append's request id appears in the feed
not committed   the server answers with a lock failure, or the feed has passed a flush or a mount that was sent after the
                append, and the append's request id has not appeared
undecided       neither is the case so far
==============  ========================================================================================================

An append that is not committed is built again, from the high-water mark that the client has reached by then, and sent again.  An
undecided append is never sent again: it may still be committed, and would then be in the log twice.

Each feed has a client id and connections of its own, the id of a feed that has ended if there is one
(`engine.client.reader_ids`); all appends of a `LogClient` share one client id.

========================  ==============================================================================================
event                     reaction of the client
========================  ==============================================================================================
connection lost           reconnect, with a pause that grows; mount again; the mount decides every undecided append
partition moved           mount at the new server; that mount decides every undecided append
generation rises          mount again at the same server, which may have closed the partition in between (the release
                          does not mount again)
server not ready          mount again after `not_ready` seconds
client ahead of the log   every call for the partition fails: the log has lost transactions that this client has seen, or
                          it is the log of another cluster
lock failure              wait until the feed has reached the conflicting transaction, build the append again, send it again
no append is decided      after `nudge` seconds send a flush, which finds appends that the server dropped; if it finds one,
                          or has no answer after as long, or the feed does not come to where it ends, mount again
mount is not answered     mount again after `nudge` seconds, then after twice as long, and so on (up to five minutes)
a feed brings nothing     ask for the high-water mark after 30 seconds; if it is behind what was fed, and stays so for `nudge`
                          seconds, mount again: the server has passed the feed request over
nothing is received       send a request that a server answers in any case; without a sign of the server in time, reconnect
========================  ==============================================================================================

Every call has a deadline (weaknesses C4, C7 of release 0.13.2).  Data whose checksum is wrong is requested three times, then the
call fails (C1).  When a client id has used up its sequence numbers, the client goes on under a new client id, so that no request
id is used twice (C10).

A client belongs to the event loop in which it is entered, and is refused in another one (InvalidRequestError).  A call may be
cancelled at any time: a cancelled append may or may not be committed, a feed ends.  Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Self, TypeVar

from waltzctl.engine.amounts import check_at_least, chosen_partitions, format_ranges
from waltzctl.engine.client.append_call import AppendsInBulk, OneAppend
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_transaction import Build, Draft, Transaction
from waltzctl.engine.client.partition_mount import Connect, Mount
from waltzctl.engine.client.reader_ids import ReaderIds
from waltzctl.engine.client.server_connections import ServerConnections, Servers
from waltzctl.engine.errors import (
    CorruptRecordError,
    DeadlineError,
    InvalidRequestError,
    PeerUnreachableError,
    RefusedError,
    WaltzError,
)
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.deadlines import Deadline, Deadlines
from waltzctl.formats.ids import LAST_TRANSACTION_ID
from waltzctl.formats.wire import client as wire

T = TypeVar("T")
_DATA_ATTEMPTS = 3
"""How often data is requested whose checksum is wrong."""
_RELEASED = "com.wepay.waltz.store.exception."
_NOT_NOW = ("partition not ready", f"{_RELEASED}StorePartitionClosed", f"{_RELEASED}GenerationMismatch")
"""How a server begins that refuses data because it does not have the partition any more, or has no session at this moment."""


class LogClient:
    """A client of the log: ``async with LogClient(servers, connect, log=log) as client:``."""

    def __init__(
        self,
        servers: Servers,
        connect: Connect,
        *,
        log: logging.Logger,
        options: ClientOptions | None = None,
        reader_ids: ReaderIds | None = None,
    ) -> None:
        """`reader_ids`: client ids for feeds, shared with other clients of the cluster; None: for this client alone."""
        self.options = options or ClientOptions()
        self._reader_ids = reader_ids or ReaderIds()
        self._log = log
        self._connections = ServerConnections(servers, connect, self.options, log, self._servers_changed)
        self._append_mounts: dict[int, Mount] = {}
        """The mount that this client appends through, by partition."""
        self._mount_locks: dict[int, asyncio.Lock] = {}
        """By partition: held while the mount for its appends is made or replaced."""
        self._mounts: dict[Mount, None] = {}  # an ordered set, in the order of their creation
        self._client_id: int | None = None
        """The client id of the appends; None before the first append."""
        self._warned: set[int] = set()
        """Partitions for which a warning about the missing answer was logged and which have not answered since."""
        self._deadlines = Deadlines()

    async def __aenter__(self) -> Self:
        self._connections.follow()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all mounts and connections.  Calls under way and all later calls raise PeerUnreachableError.

        A call that is cancelled does not wait, and closes them all the same.
        """
        self._connections.check_loop()
        error = self._connections.end()
        for mount in [*self._mounts]:
            mount.end(error)
        try:
            await self._connections.close()
        finally:
            self._deadlines.close()

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the cluster."""
        return self._connections.num_partitions

    # ---- calls ---------------------------------------------------------------------------------------------------------

    async def append(self, partition: int, build: Build | Draft, *, timeout: float | None = None) -> Transaction | None:
        """Append a transaction and wait until it is committed; None when `build` returned None.

        `build` is called again each time that the append was not committed and is sent again.  Raises DeadlineError (the append
        may or may not be committed), ClientAheadError, OversizedAppendError (too long, or too many locks), and what `build`
        raises.
        """
        with self._within(
            partition, timeout, lambda: f"an append to partition {partition}; it may or may not be committed"
        ):
            call, done = OneAppend(build), False
            while not done:
                mount = self._append_mounts.get(partition)
                done = await call.run(await self._append_mount(partition) if mount is None or mount.spent else mount)
            return call.transaction

    async def append_all(
        self,
        partition: int,
        drafts: Iterable[Build | Draft] | AsyncIterable[Build | Draft],
        *,
        on_commit: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Append all `drafts`, many at a time, and wait until they are committed; returns how many were committed.

        Each draft is handled as by `append`, at a quarter of the cost.  Drafts are taken and sent in order, while fewer than
        `ClientOptions.in_flight` appends of the partition are undecided; a draft that is sent again may be committed after later
        drafts.  A builder that returns None is skipped.

        `on_commit` is called for each committed draft with its index in `drafts`, from 0, and its transaction id.

        ====================================================  ==============================================================
        raised                                                when
        ====================================================  ==============================================================
        DeadlineError                                         in `timeout` seconds no draft was committed and none could be
                                                              sent; drafts not reported to `on_commit` may or may not be committed
        ClientAheadError                                      at once
        errors of `on_commit`                                      at once
        errors of `drafts` or a builder,                      once every earlier draft is decided; later drafts are not sent
        OversizedAppendError
        ====================================================  ==============================================================
        """
        seconds = self._seconds(timeout)
        what = f"appends to partition {partition}; those that were not told may or may not be committed"
        call = AppendsInBulk(
            drafts,
            on_commit,
            ahead=self.options.in_flight,
            seconds=seconds,
            late=lambda: self._connections.deadline_error(partition, seconds, what),
        )
        try:
            while True:
                with self._within(partition, timeout, lambda: what):
                    mount = await self._append_mount(partition)
                if await call.run(mount):
                    return call.done
        finally:
            await call.source.close()

    async def flush(self, partition: int, *, timeout: float | None = None) -> int:
        """Wait until every append made before this call is decided; returns the high-water mark at that time."""
        with self._within(partition, timeout, lambda: f"a flush of partition {partition}"):
            return await (await self._append_mount(partition)).flush()

    def seen(self, partition: int) -> int:
        """The last transaction that this client has received of a partition it appends to; -1: none."""
        mount = self._append_mounts.get(partition)
        return -1 if mount is None else mount.position

    async def feed(
        self,
        partitions: int | Collection[int] | Mapping[int, int],
        *,
        after: int = -1,
        until: Callable[[int], int | None] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Transaction, None]:
        """The committed transactions after transaction `after`, without end, in order within each partition.

        `partitions`: one partition, several, or a mapping from each partition to its own `after`; with a mapping the parameter
        `after` is ignored.

        `until` returns the last transaction wanted of a partition, or None for no end; the feed ends when every partition has
        reached its last one.  The feed survives lost connections: no transaction is missing or delivered twice.

        Raises ClientAheadError, and DeadlineError when `timeout` seconds pass without a transaction (None: wait without limit).
        """
        self._seconds(timeout)
        numbers = [partitions] if isinstance(partitions, int) else sorted(partitions)
        begins = partitions if isinstance(partitions, Mapping) else dict.fromkeys(numbers, after)
        for number in numbers:
            self._check(number)
            if not -1 <= begins[number] <= LAST_TRANSACTION_ID:
                raise InvalidRequestError(
                    f"partition {number}: a feed begins behind transaction {begins[number]}",
                    advice=f"-1 is the log's beginning, and ids end at {LAST_TRANSACTION_ID}",
                )
        open_ends = {number: None if until is None else until(number) for number in numbers}
        unfinished = [number for number, last in open_ends.items() if last is None or last > begins[number]]
        if not unfinished:  # nor is a client id needed, which is written to the metadata: their disk may be full
            return
        self._connections.check_usable()
        now = asyncio.get_running_loop().time
        client_id = self._reader_ids.take(now())
        if client_id is None:
            with self._start_deadline(unfinished, timeout):
                client_id = await self._connections.new_client_id()
        queue: asyncio.Queue[Transaction | WaltzError] = asyncio.Queue()
        mounts: dict[int, Mount] = {}
        endpoint_of = self._connections.endpoint
        try:
            for number in unfinished:
                mounts[number] = Mount(endpoint_of, self.options, number, client_id, begins[number], queue)
                self._begin(mounts[number])
            while mounts:
                item = await self._next_item(queue, mounts.values(), timeout)
                # Checked for every item, also one of a partition that has ended: the queue has this size only once.
                if queue.qsize() == self.options.ahead // 2:
                    for one in mounts.values():
                        one.go_on()
                if isinstance(item, WaltzError):
                    raise item
                if item.partition not in mounts:
                    continue
                yield item
                if item.transaction_id == open_ends[item.partition]:
                    self._end(mounts.pop(item.partition))
        finally:
            for mount in mounts.values():
                self._end(mount)
            await self._connections.close_of(client_id)
            self._reader_ids.give_back(client_id, now())

    def _start_deadline(
        self, numbers: Collection[int], timeout: float | None
    ) -> contextlib.AbstractContextManager[object]:
        """The deadline within which a feed must get its client id; no deadline when `timeout` is None."""
        if timeout is None:
            return contextlib.nullcontext()
        what = f"a feed of partitions {format_ranges(numbers)}, which has not begun"
        return self._deadlines.within(timeout, lambda: self._connections.deadline_error(min(numbers), timeout, what))

    async def _next_item(
        self, queue: asyncio.Queue[Transaction | WaltzError], mounts: Collection[Mount], timeout: float | None
    ) -> Transaction | WaltzError:
        """The next transaction or error of a feed.

        Without a `timeout` a feed waits without limit; a warning is logged when the server of a partition does not answer.
        """
        if not queue.empty():
            return queue.get_nowait()

        def late() -> DeadlineError:
            waits = min(mounts, key=lambda one: one.ready.is_set())
            what = f"a feed of partition {waits.partition} behind transaction {waits.position}"
            return self._connections.deadline_error(waits.partition, seconds, what, mounted=waits.ready.is_set())

        seconds = max(self.options.timeout, 1.0) if timeout is None else timeout
        while True:
            try:
                with self._deadlines.within(seconds, late):
                    found = await queue.get()
            except DeadlineError as error:
                if timeout is not None:
                    raise
                for one in mounts:
                    if not one.ready.is_set():  # a mounted partition just has no new transactions
                        self._warn_of_silence(one.partition, error)
                        break
            else:
                if isinstance(found, Transaction):
                    self._warned.discard(found.partition)
                return found

    async def awaited_data(self, transaction: Transaction) -> bytes:
        """As `data`, but without a deadline: it waits as long as a feed does, however long the cluster does not answer."""
        partition, number = transaction.partition, transaction.transaction_id
        return await self._awaited(partition, lambda: self.data(partition, number))

    async def awaited_high_water_mark(self, partition: int) -> int:
        """As `high_water_mark`, but without a deadline."""
        return await self._awaited(partition, lambda: self.high_water_mark(partition))

    async def _awaited(self, partition: int, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                found = await ask()
            except DeadlineError as error:
                self._warn_of_silence(partition, error)
                await asyncio.sleep(self.options.first_retry)  # the call's deadline may be shorter than that
            else:
                self._warned.discard(partition)
                return found

    def _warn_of_silence(self, partition: int, error: DeadlineError) -> None:
        """Log that a call without a deadline gets no answer; once for each partition, until it answers."""
        if partition not in self._warned:
            self._warned.add(partition)
            self._log.warning("%s; it is waited for", error.message)

    async def data(self, partition: int, transaction_id: int, *, timeout: float | None = None) -> bytes:
        """A transaction's data, its checksum verified.

        Raises DeadlineError, RefusedError where the server has no such transaction, CorruptRecordError.
        """
        self._check(partition)
        if not 0 <= transaction_id <= LAST_TRANSACTION_ID:
            raise InvalidRequestError(
                f"partition {partition}: there is no transaction {transaction_id}",
                advice=f"ids are 0 to {LAST_TRANSACTION_ID}",
            )
        what = f"the data of transaction {transaction_id} of partition {partition}"
        said = ""
        with self._within(partition, timeout, lambda: what + said, data=True):
            wrong = 0
            while True:
                answer = await self._connections.request(
                    partition,
                    lambda number: wire.TransactionDataRequest(number, transaction_id),
                    wire.TransactionDataResponse,
                )
                outcome = answer.outcome
                if isinstance(outcome, wire.TransactionRefused):
                    reason = outcome.message or "the server names no reason"
                    if not reason.startswith(_NOT_NOW):
                        raise RefusedError(f"partition {partition}, transaction {transaction_id}: {reason}")
                    said = f" (last: {reason})"
                    await asyncio.sleep(self.options.not_ready)
                elif outcome.data_ok:
                    return bytes(outcome.data)
                elif (wrong := wrong + 1) == _DATA_ATTEMPTS:
                    raise CorruptRecordError(
                        f"partition {partition}, transaction {transaction_id}: the data came {wrong} times with a wrong checksum"
                    )

    async def high_water_mark(self, partition: int, *, timeout: float | None = None) -> int:
        """The last committed transaction of a partition; -1: none.  Raises DeadlineError."""
        self._check(partition)
        with self._within(partition, timeout, lambda: f"the high-water mark of partition {partition}"):
            return await self._connections.high_water_mark(partition)

    # ---- inside --------------------------------------------------------------------------------------------------------

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self.options.timeout
        check_at_least("timeout", timeout, 0)
        return timeout

    def _within(
        self, partition: int, timeout: float | None, what: Callable[[], str], *, data: bool = False
    ) -> Deadline:
        """The deadline of one call, as a context manager.  Raises as `ServerConnections.check_usable`."""
        self._connections.check_usable()
        seconds = self._seconds(timeout)
        return self._deadlines.within(
            seconds, lambda: self._connections.deadline_error(partition, seconds, what(), data=data)
        )

    def _check(self, partition: int) -> None:
        self._connections.check_usable()
        chosen_partitions((partition,), self.num_partitions)

    async def _append_mount(self, partition: int) -> Mount:
        """The mount through which this client appends to a partition; a new one begins at the log's end.

        A mount whose request ids are used up is replaced by one under a new client id.
        """
        self._check(partition)
        async with self._mount_locks.setdefault(partition, asyncio.Lock()):
            found = self._append_mounts.get(partition)
            if found is None:
                if self._client_id is None:
                    self._client_id = await self._connections.new_client_id()
                return self._mount_for_appends(
                    partition, self._client_id, await self._connections.high_water_mark(partition)
                )
            if found.spent:
                await found.settled()  # later calls wait for the lock, and then use the new mount
                client_id = await self._connections.new_client_id()
                self._end(found)
                return self._mount_for_appends(partition, client_id, found.position)
            return found

    def _mount_for_appends(self, partition: int, client_id: int, position: int) -> Mount:
        made = Mount(self._connections.endpoint, self.options, partition, client_id, position, None)
        self._client_id = client_id
        try:
            self._begin(made)
        except BaseException:  # for instance MemoryError: the next append makes another one
            self._end(made)
            raise
        self._append_mounts[partition] = made
        return made

    def _begin(self, mount: Mount) -> None:
        self._connections.check_usable()
        self._mounts[mount] = None
        mount.served_by(self._connections.server_of.get(mount.partition))

    def _end(self, mount: Mount) -> None:
        self._mounts.pop(mount, None)
        mount.end(PeerUnreachableError("the client", "the feed was ended"), tell_reader=False)

    def _servers_changed(self, before: Mapping[int, PartitionServer], servers: Mapping[int, PartitionServer]) -> None:
        """The directory has changed: mount at the new servers."""
        mounted = {mount.partition for mount in self._mounts}
        if gone := [number for number in mounted if number in before and number not in servers]:
            self._log.warning("no log server any more for partitions: %s; one is waited for", format_ranges(gone))
        for mount in [*self._mounts]:
            mount.served_by(servers.get(mount.partition))
