"""A client of a cluster's log: appends under optimistic locks, feeds, data on demand.

A partition is mounted through one connection to the server that has it, from a high-water mark on.  From then on the server sends
what is committed, in order and without a gap, and takes appends.  There is no answer to an append: its own appearance in the feed
says that it is committed, and it is known to have failed when the feed has come past a flush, or a mount, that was sent behind
it.  Then, and when a lock was in the way, it is built anew on what the client knows by then, and sent again.  An append is never
sent again while it may still be committed, so that nothing is there twice.  Each feed has a client id and connections of its own.

================  ======================================================================================================
what happens      what follows
================  ======================================================================================================
connection lost   connect again, pausing longer each time; mount; what is undecided is decided by the mount
partition moved   mount at the new server; the same
generation rises  mount again at the same server, which may have closed the partition in between (the release does not)
not ready         ask again after a while
client is ahead   every call of the partition fails: the log has lost what this client has seen, or is another one
lock failure      wait until the feed has come to the transaction that was in the way, build anew, send again
nothing happens   after `nudge` seconds a flush is sent, so that an append that a server passed over is found; then mount again
nothing is heard  ask for what is answered in any case; without a sign of the server in time connect again
================  ======================================================================================================

Every call has a deadline (weaknesses C4, C7 of release 0.13.2); data that does not agree with its checksum is asked for three
times, and then an error (C1).  When the sequence numbers of a client id come to their end, it goes on under a new one, so that no
request id is ever there twice (C10).

Everything belongs to one event loop.  Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Protocol, Self, TypeVar

from waltzctl.engine.amounts import chosen_partitions, format_ranges
from waltzctl.engine.client.append_call import AppendsInBulk, OneAppend
from waltzctl.engine.client.log_transaction import Build, Draft, Transaction
from waltzctl.engine.client.partition_mount import ClientOptions, Connect, Mount
from waltzctl.engine.client.server_endpoint import Endpoint
from waltzctl.engine.errors import (
    CorruptRecordError,
    DeadlineError,
    InvalidRequestError,
    PeerError,
    PeerUnreachableError,
    RefusedError,
    WaltzError,
)
from waltzctl.engine.metadata.server_directory import PartitionServer, Told
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.deadlines import Deadline, Deadlines
from waltzctl.engine.net.events import happens_within
from waltzctl.formats.ids import LAST_TRANSACTION_ID
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire

T = TypeVar("T")
_NO_CLIENT = -1
_DATA_ATTEMPTS = 3
_DATA_SILENCE = 1.0
"""Seconds of silence after which data is asked for again, at first."""


class Servers(Protocol):
    """Who has which partition; `engine.metadata.server_directory.ServerDirectory` is one."""

    @property
    def num_partitions(self) -> int:
        """Of the cluster."""

    async def client_id(self) -> int:
        """A new one."""

    async def follow(self, told: Told) -> None:
        """Tell who has which partition, for ever."""


class LogClient:
    """A client.  `async with LogClient(servers, connect) as client:`."""

    def __init__(
        self, servers: Servers, connect: Connect, *, log: logging.Logger, options: ClientOptions | None = None
    ) -> None:
        self.options = options or ClientOptions()
        self._servers, self._connect, self._log = servers, connect, log
        self._known: Mapping[int, PartitionServer] = {}
        self._news = asyncio.Event()
        self._endpoints: dict[tuple[Address, int], Endpoint] = {}
        self._appending: dict[int, Mount] = {}
        self._opening: dict[int, asyncio.Lock] = {}
        self._mounts: dict[Mount, None] = {}  # in their order
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order
        self._client_id: int | None = None
        self._no_client_id: tuple[float, PeerError] | None = None
        """When, and why, the metadata gave none at last; None where it did."""
        self._silent: set[int] = set()
        """Partitions of which it was said that somebody waits for them."""
        self._deadlines = Deadlines()
        self._closed: PeerUnreachableError | None = None

    async def __aenter__(self) -> Self:
        self._spawn(self._servers.follow(self._told))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything; what waits ends with PeerUnreachableError, and so does what is called from now on."""
        self._closed = PeerUnreachableError("the client", "it was closed")
        self._news.set()
        for mount in [*self._mounts]:
            mount.end(self._closed)
        for task in [*self._tasks]:
            task.cancel()
        try:
            await _ended_all([*self._tasks, *_closing(self._endpoints.values())])
        finally:
            self._deadlines.close()

    @property
    def num_partitions(self) -> int:
        """Of the cluster."""
        return self._servers.num_partitions

    # ---- calls ---------------------------------------------------------------------------------------------------------

    async def append(self, partition: int, build: Build | Draft, *, timeout: float | None = None) -> Transaction | None:
        """Append a transaction, and wait until it is committed; None where `build` gave none.

        `build` is called again whenever the append has failed and is to be sent again.  Raises DeadlineError, after which it may
        or may not be committed, ClientAheadError, OversizedAppendError (see `ClientOptions.max_body`), and what `build` raises.
        """
        with self._within(
            partition, timeout, lambda: f"an append to partition {partition}; it may or may not be committed"
        ):
            call, done = OneAppend(build), False
            while not done:
                mount = self._appending.get(partition)
                done = await call.run(await self._for_appends(partition) if mount is None or mount.spent else mount)
            return call.transaction

    async def append_all(
        self,
        partition: int,
        drafts: Iterable[Build | Draft] | AsyncIterable[Build | Draft],
        *,
        told: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Append what `drafts` gives, many at a time, and wait until all are committed; how many that are.

        That is what `append` does for each, at a quarter of the cost.  Drafts are taken and sent in their order, as soon as fewer
        than `ClientOptions.in_flight` appends of the partition are undecided; one that failed and is sent again may stand behind
        later ones.  `told`: called for each that is committed, with its place in `drafts`, counted from 0, and the id of its
        transaction.  What a builder gives None for is left out.

        Raises DeadlineError when in `timeout` seconds none was committed and none could be sent: what was not told may or may not
        be committed then; and ClientAheadError.  What `drafts` or a builder raises is raised when all in front of it is decided,
        and nothing behind it is sent any more, and so is OversizedAppendError; what `told` raises, at once.
        """
        seconds = self._seconds(timeout)
        what = f"appends to partition {partition}; those that were not told may or may not be committed"
        call = AppendsInBulk(
            drafts,
            told,
            ahead=self.options.in_flight,
            seconds=seconds,
            late=lambda: self._late(partition, seconds, what),
        )
        try:
            while True:
                with self._within(partition, timeout, lambda: what):
                    mount = await self._for_appends(partition)
                if await call.run(mount):
                    return call.done
        finally:
            await call.source.close()

    async def flush(self, partition: int, *, timeout: float | None = None) -> int:
        """Wait until everything that was appended before is decided; the high-water mark then."""
        with self._within(partition, timeout, lambda: f"a flush of partition {partition}"):
            return await (await self._for_appends(partition)).flush()

    def seen(self, partition: int) -> int:
        """Up to which transaction this client has seen the partition to which it appends; -1: none."""
        mount = self._appending.get(partition)
        return -1 if mount is None else mount.position

    async def feed(
        self,
        partitions: int | Collection[int] | Mapping[int, int],
        *,
        after: int = -1,
        until: Callable[[int], int | None] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Transaction, None]:
        """Committed transactions behind `after`, in order, for ever; of several partitions each in its order.

        A mapping gives each partition a transaction of its own behind which to begin, and `after` is not looked at.

        `until`: gives the last transaction that is wanted of a partition, None for no end; with one the feed ends when all
        partitions are there.  Connections that break are made again, and nothing is missing or there twice.  Raises
        ClientAheadError, and DeadlineError when the next transaction has not come in `timeout` seconds; None: it is waited for.
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
        with self._patience(numbers, timeout):
            client_id = await self._new_client_id()
        queue: asyncio.Queue[Transaction | WaltzError] = asyncio.Queue()
        open_ends = {number: None if until is None else until(number) for number in numbers}
        mounts: dict[int, Mount] = {}
        try:
            for number, last in open_ends.items():
                if last is None or last > begins[number]:
                    mounts[number] = Mount(self.endpoint, self.options, number, client_id, begins[number], queue)
                    self._begin(mounts[number])
            while mounts:
                item = await self._next(queue, mounts.values(), timeout)
                if queue.qsize() == self.options.ahead // 2:  # whosever the item is: nobody comes by here again
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
            mine = [key for key in self._endpoints if key[1] == client_id]
            await _ended_all(_closing(self._endpoints.pop(key) for key in mine))

    def _patience(self, numbers: Collection[int], timeout: float | None) -> contextlib.AbstractContextManager[object]:
        """For how long a feed waits until it can begin."""
        if timeout is None or not numbers:
            return contextlib.nullcontext()
        what = f"a feed of partitions {format_ranges(numbers)}, which has not begun"
        return self._deadlines.within(timeout, lambda: self._late(min(numbers), timeout, what))

    async def _next(
        self, queue: asyncio.Queue[Transaction | WaltzError], mounts: Collection[Mount], timeout: float | None
    ) -> Transaction | WaltzError:
        """What comes next for a feed."""
        if not queue.empty():
            return queue.get_nowait()

        def late() -> DeadlineError:
            waits = min(mounts, key=lambda one: one.ready.is_set())
            what = f"a feed of partition {waits.partition} behind transaction {waits.position}"
            return self._late(waits.partition, seconds, what, mounted=waits.ready.is_set())

        seconds = max(self.options.timeout, 1.0) if timeout is None else timeout
        while True:
            try:
                with self._deadlines.within(seconds, late):
                    found = await queue.get()
            except DeadlineError as error:
                if timeout is not None:
                    raise
                for one in mounts:
                    if not one.ready.is_set():  # or else there is nothing new
                        self._say_silent(one.partition, error)
                        break
            else:
                if isinstance(found, Transaction):
                    self._silent.discard(found.partition)
                return found

    async def awaited_data(self, transaction: Transaction) -> bytes:
        """A transaction's data, however long the cluster does not answer; a feed waits as long.  Raises as `data`."""
        partition, number = transaction.partition, transaction.transaction_id
        return await self._awaited(partition, lambda: self.data(partition, number))

    async def awaited_high_water_mark(self, partition: int) -> int:
        """The last committed transaction of a partition, however long the cluster does not answer; -1: none."""
        return await self._awaited(partition, lambda: self.high_water_mark(partition))

    async def _awaited(self, partition: int, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                found = await ask()
            except DeadlineError as error:
                self._say_silent(partition, error)
                await asyncio.sleep(self.options.first_retry)  # the deadline may be a short one
            else:
                self._silent.discard(partition)
                return found

    def _say_silent(self, partition: int, error: DeadlineError) -> None:
        """What somebody waits for who has no deadline; once, until it is over."""
        if partition not in self._silent:
            self._silent.add(partition)
            self._log.warning("%s; it is waited for", error.message)

    async def data(self, partition: int, transaction_id: int, *, timeout: float | None = None) -> bytes:
        """A transaction's data, its checksum verified.  Raises RefusedError where there is none, CorruptRecordError."""
        self._check(partition)
        if not 0 <= transaction_id <= LAST_TRANSACTION_ID:
            raise InvalidRequestError(
                f"partition {partition}: there is no transaction {transaction_id}",
                advice=f"ids are 0 to {LAST_TRANSACTION_ID}",
            )
        what = f"the data of transaction {transaction_id} of partition {partition}"
        with self._within(partition, timeout, lambda: what, data=True):
            wrong = 0
            while True:
                answer = await self._ask(
                    partition,
                    lambda number: wire.TransactionDataRequest(number, transaction_id),
                    wire.TransactionDataResponse,
                )
                outcome = answer.outcome
                if isinstance(outcome, wire.TransactionRefused):
                    if not outcome.message.startswith("partition not ready"):
                        raise RefusedError(f"partition {partition}, transaction {transaction_id}: {outcome.message}")
                    await asyncio.sleep(self.options.not_ready)
                elif outcome.data_ok:
                    return bytes(outcome.data)
                elif (wrong := wrong + 1) == _DATA_ATTEMPTS:
                    raise CorruptRecordError(
                        f"partition {partition}, transaction {transaction_id}: the data came {wrong} times with a wrong checksum"
                    )

    async def high_water_mark(self, partition: int, *, timeout: float | None = None) -> int:
        """The last committed transaction of a partition; -1: none."""
        self._check(partition)
        with self._within(partition, timeout, lambda: f"the high-water mark of partition {partition}"):
            return await self._high_water_mark(partition)

    # ---- inside --------------------------------------------------------------------------------------------------------

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self.options.timeout
        if not timeout >= 0:  # NaN is not, either, and would wait for ever
            raise InvalidRequestError(f"timeout={timeout}: no less than 0 can be meant")
        return timeout

    def _within(
        self, partition: int, timeout: float | None, what: Callable[[], str], *, data: bool = False
    ) -> Deadline:
        """Around a call; raises DeadlineError, and at once PeerUnreachableError when the client is closed."""
        self._refuse_when_closed()
        seconds = self._seconds(timeout)
        return self._deadlines.within(seconds, lambda: self._late(partition, seconds, what(), data=data))

    def _late(
        self, partition: int, seconds: float, what: str, *, data: bool = False, mounted: bool = False
    ) -> DeadlineError:
        """No answer came, and as far as this client knows why.

        `data`: it is what may take long to come.  `mounted`: the server has answered, and told of no transaction since.
        """
        server = self._known.get(partition)
        address = None if server is None else Address(server.host, server.port)
        there = [one for one in self._endpoints.values() if one.address == address]
        failures = [one.failure for one in there if one.failure]
        losses = [loss for one in there if (loss := one.loss(seconds))]
        if (missed := self._no_client_id) and asyncio.get_running_loop().time() - missed[0] <= seconds:
            why, advice = f"the metadata does not answer: {missed[1].message}", missed[1].advice
        elif failures:
            why, advice = failures[-1].message, failures[-1].advice
        elif address is None:
            why, advice = "no log server has the partition", "are log servers running? waltzctl cluster verify tells"
        elif losses:
            why = f"server {address} has the partition, and the connection to it is lost again and again: {losses[-1].message}"
            advice = losses[-1].advice or "the log of that server says why"
        elif data and (asked := self._endpoints.get((address, _NO_CLIENT))) and asked.hears(_DATA_SILENCE):
            why = f"answers of server {address} were still coming, and this one had not come whole"
            advice = "so much data takes longer on this way: give it a longer timeout, or ask for less at a time"
        elif mounted:
            why = f"server {address} has the partition, and tells of no more: none is committed as yet, or it cannot be read"
            advice = "waltzctl log high-water-mark shows what is committed, waltzctl cluster top who is missing"
        else:
            why = f"server {address} has the partition, and no session for it as yet, or too much to do"
            advice = "waltzctl cluster top shows whom it waits for"
        return DeadlineError("the cluster", f"no answer within {seconds:g} s to {what}: {why}", advice=advice)

    def _check(self, partition: int) -> None:
        self._refuse_when_closed()
        chosen_partitions((partition,), self.num_partitions)

    def _refuse_when_closed(self) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # or it would keep everything that was ever refused

    async def _for_appends(self, partition: int) -> Mount:
        """The mount through which this client appends; it begins at the log's end."""
        self._check(partition)
        async with self._opening.setdefault(partition, asyncio.Lock()):
            found = self._appending.get(partition)
            if found is None:
                if self._client_id is None:
                    self._client_id = await self._new_client_id()
                return self._append_as(partition, self._client_id, await self._high_water_mark(partition))
            if found.spent:
                await found.settled()  # what comes later goes behind it
                client_id = await self._new_client_id()
                self._end(found)
                return self._append_as(partition, client_id, found.position)
            return found

    async def _new_client_id(self) -> int:
        """A new one.  For ever, where the metadata does not answer: a deadline is the caller's."""
        pause, said = 0.0, ""
        while True:
            self._refuse_when_closed()
            self._news.clear()
            try:
                made = await self._servers.client_id()
            except PeerError as error:
                if said != (said := str(error)):
                    self._log.warning("the metadata gives no client id, and is asked again and again: %s", error)
                self._no_client_id = asyncio.get_running_loop().time(), error
            else:
                self._no_client_id = None
                return made
            pause = self.options.pause_after(pause)
            await happens_within(self._news, pause)

    async def _high_water_mark(self, partition: int) -> int:
        """For ever, as `_ask`."""
        while True:
            answer = await self._ask(partition, wire.HighWaterMarkRequest, wire.HighWaterMarkResponse)
            if answer.transaction_id >= -1:
                return int(answer.transaction_id)
            await asyncio.sleep(self.options.not_ready)  # the server has the partition, and no session as yet

    def _append_as(self, partition: int, client_id: int, position: int) -> Mount:
        made = self._appending[partition] = Mount(self.endpoint, self.options, partition, client_id, position, None)
        self._client_id = client_id
        self._begin(made)
        return made

    def _begin(self, mount: Mount) -> None:
        self._refuse_when_closed()
        self._mounts[mount] = None
        mount.served_by(self._known.get(mount.partition))

    def _end(self, mount: Mount) -> None:
        self._mounts.pop(mount, None)
        mount.end(PeerUnreachableError("the client", "the feed was ended"), told=False)

    async def _ask(self, partition: int, make: Callable[[RequestId], Any], expected: type[Any]) -> Any:
        """Ask the partition's server, and the next one when that fails.  For ever: a deadline is the caller's.

        A server that has not, or no longer, the partition leaves a question for its mark without an answer; so the first one is
        soon repeated.  One for data is answered in any case, and each answer may be long: while the connection brings anything
        it is not asked again, for that would only queue another copy behind those that are coming.
        """
        is_data = expected is wire.TransactionDataResponse
        pause, patience = 0.0, _DATA_SILENCE if is_data else self.options.not_ready
        while True:
            self._refuse_when_closed()
            self._news.clear()
            server = self._known.get(partition)
            if server is not None:
                with contextlib.suppress(PeerError):
                    connection = await self.endpoint(server, _NO_CLIENT).connection()
                    number = RequestId(_NO_CLIENT, server.generation, partition, connection.next_sequence())
                    frame = wire.encode(make(number), connection.version)
                    seconds = min(patience, connection.timeout)
                    patience = max(patience, min(2 * patience, self.options.nudge))
                    return await connection.call(
                        number.sequence, frame, expected, "a question", timeout=seconds, of_silence=is_data
                    )
            pause = self.options.pause_after(pause)
            await happens_within(self._news, pause)

    def _told(self, servers: Mapping[int, PartitionServer]) -> None:
        wanted = {mount.partition for mount in self._mounts}
        if gone := [number for number in wanted if number in self._known and number not in servers]:
            self._log.warning("no log server any more for partitions: %s; one is waited for", format_ranges(gone))
        self._known = servers
        self._news.set()
        for mount in [*self._mounts]:
            mount.served_by(servers.get(mount.partition))

    def endpoint(self, server: PartitionServer, client_id: int) -> Endpoint:
        """The connection of a client id to a server, shared by its partitions.  Raises PeerUnreachableError once closed."""
        self._refuse_when_closed()
        key = Address(server.host, server.port), client_id
        if key not in self._endpoints:
            self._endpoints[key] = Endpoint(key[0], self._connect, self._spawn, self.options, self._log)
        return self._endpoints[key]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s", error, exc_info=error)


def _closing(endpoints: Iterable[Endpoint]) -> list[asyncio.Task[None]]:
    """Tasks of their own, so that what is closed is closed even if whoever waits for it is cancelled."""
    return [asyncio.ensure_future(endpoint.close()) for endpoint in endpoints]


async def _ended_all(tasks: Collection[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
