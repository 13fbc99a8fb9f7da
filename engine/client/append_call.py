"""What one call appends: what is to be sent, what is under way, and what became of it.

A call has no task for each append.  Its own task sleeps until something of it is decided or there is room for more; then all that
is decided is told, and what can leave leaves, in one go.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable
from itertools import count, islice
from typing import Any, Protocol

from waltzctl.engine.client.log_transaction import Build, Draft, Transaction
from waltzctl.engine.errors import DeadlineError
from waltzctl.engine.net.deadlines import ANEW, HELD_UP
from waltzctl.formats.request_id import RequestId

Numbered = tuple[int, Build | Draft]
"""What is to be appended, and its place among what the call appends."""
Told = Callable[[int, int], Any]
"""Called with the place of what was appended, from 0, and the id of its transaction."""
AHEAD_BYTES = 16 << 20
"""Bytes of data behind which nothing more is read ahead of an asynchronous iterable."""


class AppendSource(Protocol):
    """Where a call has from what it appends."""

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more, for certain."""

    @property
    def ready(self) -> bool:
        """Whether there is something now, or nobody knows before it is taken."""

    def take(self, most: int, into: list[Numbered]) -> None:
        """What is there now, at most so many.  Raises what the source of it raises; what it gave before that is in the list."""

    async def close(self) -> None:
        """Nothing is taken any more."""


class OneDraft:
    """A single one."""

    ended = False

    def __init__(self, draft: Build | Draft) -> None:
        self._draft = draft

    @property
    def ready(self) -> bool:
        """See `AppendSource`."""
        return not self.ended

    def take(self, _most: int, into: list[Numbered]) -> None:
        """See `AppendSource`."""
        self.ended = True
        into.append((0, self._draft))

    async def close(self) -> None:
        """See `AppendSource`."""


class IteratedDrafts:
    """An iterable, which is asked for no more than can be sent at once."""

    ended = False

    def __init__(self, drafts: Iterable[Build | Draft]) -> None:
        self._drafts = enumerate(drafts)

    @property
    def ready(self) -> bool:
        """See `AppendSource`."""
        return not self.ended

    def take(self, most: int, into: list[Numbered]) -> None:
        """See `AppendSource`."""
        already = len(into)
        into.extend(islice(self._drafts, most))  # which leaves there what came before an error
        self.ended = len(into) - already < most

    async def close(self) -> None:
        """See `AppendSource`."""


class AwaitedDrafts:
    """An asynchronous iterable, read ahead by a task of its own."""

    ended = False

    def __init__(self, drafts: AsyncIterable[Build | Draft], ahead: int, wake: Callable[[], None]) -> None:
        """`ahead`: how many at most; `wake`: called when there is something again, or nothing any more."""
        self._drafts, self._ahead, self._wake = drafts, ahead, wake
        self._found: deque[Build | Draft] = deque()
        self._bytes = 0
        self._count = count()
        self._room = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())
        self._reading.add_done_callback(lambda _: wake())

    async def _read(self) -> None:
        async for draft in self._drafts:
            self._found.append(draft)
            self._bytes += _size(draft)
            self._wake()
            while len(self._found) >= self._ahead or self._bytes >= AHEAD_BYTES:
                self._room.clear()
                await self._room.wait()

    @property
    def ready(self) -> bool:
        """See `AppendSource`."""
        return bool(self._found) or (self._reading.done() and not self.ended)

    def take(self, most: int, into: list[Numbered]) -> None:
        """See `AppendSource`."""
        found, number = self._found, self._count
        for _ in range(min(most, len(found))):
            draft = found.popleft()
            self._bytes -= _size(draft)
            into.append((next(number), draft))
        self._room.set()
        if not found and self._reading.done():
            self.ended = True
            self._reading.result()

    async def close(self) -> None:
        """See `AppendSource`."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        if not self._reading.cancelled():
            self._reading.exception()  # it was raised, or another error was


def _size(draft: Build | Draft) -> int:
    """Of the data; what a builder will give is not known."""
    return len(draft.data) if isinstance(draft, Draft) else 0


class AppendingMount(Protocol):
    """What a call wants of a mount: see `engine.client.partition_mount.Mount`."""

    partition: int
    client_id: int
    ready: asyncio.Event

    @property
    def spent(self) -> bool:
        """Whether this client id has no request ids left for what is new."""

    def enter(self, call: AppendCall) -> None:
        """The call begins.  Raises the mount's error."""

    def leave(self, call: AppendCall) -> None:
        """The call is over, and whatever of it is undecided is nobody's any more."""

    def room_for(self, call: AppendCall) -> int:
        """How many new appends the call can send now.  When it is none the call is woken when there are."""

    def next_turn(self, call: AppendCall, *, had_one: bool, wants_more: bool) -> None:
        """The call has done what it could; if it had a turn, its next one is behind those of all others."""

    def send(self, call: AppendCall, drafts: Iterable[Numbered]) -> None:
        """Build these and send them in one go; what builders raise is the call's."""

    def send_again(self, call: AppendCall) -> None:
        """Build what was refused anew, and send it."""


class AppendCall:
    """`run` it at a mount, and at the next one until it is done.

    `sent`: what is under way, by sequence number; `again`: what was refused, to be built anew.  A mount keeps account of both.
    `stops_at`: what has this place or a later one is not sent again, because one in front of it could not be built.
    """

    def __init__(self, source: AppendSource) -> None:
        self.source = source
        self.sent: dict[int, Numbered] = {}
        self.again: list[Numbered] = []
        self.stops_at = math.inf
        self._failure: Exception | None = None
        self._error: Exception | None = None
        self._mount: AppendingMount | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False

    async def run(self, mount: AppendingMount) -> bool:
        """Append all; False: the mount's client id is spent, and the rest is for the next mount.

        Raises the mount's error at once, and what source and builders raise when everything in front of it is decided.
        """
        self._mount = mount
        mount.enter(self)
        try:
            while not self._go(mount):
                if self._woken:  # by what it did itself; others have their turn first
                    await asyncio.sleep(0)
                else:
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
                self._woken = False
            return self.source.ended
        finally:
            self._waiter = None
            mount.leave(self)

    def _go(self, mount: AppendingMount) -> bool:
        """Do what can be done now; True: nothing is left to do at this mount."""
        self._tell()
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self.again and mount.ready.is_set():
            mount.send_again(self)
        room = mount.room_for(self) if self._wants_more else 0
        if room:
            found: list[Numbered] = []
            try:
                self.source.take(room, found)
            except Exception as error:
                self.fail(error)
            if found:
                mount.send(self, found)
                self._gets_on()
        mount.next_turn(self, had_one=room > 0, wants_more=self._wants_more)
        if self.sent or self.again:
            return False
        if self._failure is not None:
            raise self._failure
        return self.source.ended or mount.spent

    @property
    def undecided(self) -> set[int]:
        """Places of what is under way, or was refused and is sent again."""
        return {place for place, _ in (*self.sent.values(), *self.again)}

    @property
    def _wants_more(self) -> bool:
        return self._failure is None and self.source.ready

    def _gets_on(self) -> None:
        """It sent something new."""

    def _tell(self) -> None:
        """What is decided."""

    def fail(self, error: Exception, place: float = math.inf) -> None:
        """Raise this when all is decided that stands in front: what source (behind all that it gave) or a builder raised."""
        if self._failure is None or place < self.stops_at:
            self.stops_at, self._failure = place, error

    def end(self, error: Exception) -> None:
        """Raise this at once."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """There is something to do."""
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            self._woken = True
        elif not waiter.done():
            waiter.set_result(None)

    def refused(self, sequence: int) -> None:
        """It is certain that what was sent under this number is not committed and will not be."""
        self.again.append(self.sent.pop(sequence))
        self.wake()

    @abstractmethod
    def committed(self, sequence: int, transaction_id: int, generation: int, header: int) -> None:
        """What was sent under this number is committed."""


class OneAppend(AppendCall):
    """A single one; `transaction`: what it became, None where there was nothing to append."""

    def __init__(self, draft: Build | Draft) -> None:
        super().__init__(OneDraft(draft))
        self.transaction: Transaction | None = None

    @property
    def undecided(self) -> set[int]:
        """See `AppendCall`; also what waits for room."""
        return {0} if self.transaction is None else set()

    def committed(self, sequence: int, transaction_id: int, generation: int, header: int) -> None:
        """See `AppendCall`."""
        del self.sent[sequence]
        mount = self._mount
        assert mount is not None
        number = RequestId(mount.client_id, generation, mount.partition, sequence)
        self.transaction = Transaction(mount.partition, transaction_id, number, header)
        self.wake()


class AppendsInBulk(AppendCall):
    """Many, each of which is told when it is committed; `done`: how many are."""

    def __init__(
        self,
        drafts: Iterable[Build | Draft] | AsyncIterable[Build | Draft],
        told: Told | None,
        *,
        ahead: int,
        seconds: float,
        late: Callable[[], DeadlineError],
    ) -> None:
        """`ahead`: how many are read ahead of an asynchronous iterable.

        `seconds`: if none is committed for so long while some are wanted, and nothing more can be sent, `late` makes the error.
        """
        super().__init__(
            AwaitedDrafts(drafts, ahead, self.wake) if isinstance(drafts, AsyncIterable) else IteratedDrafts(drafts)
        )
        self.done = 0
        self._told, self._seconds, self._late = told, seconds, late
        self._committed: list[tuple[int, int]] = []
        self._loop = asyncio.get_running_loop()
        self._progress, self._anew = self._loop.time(), ANEW
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, mount: AppendingMount) -> bool:
        """See `AppendCall`; raises what `late` makes and what `told` raises as well, at once."""
        self._gets_on()
        self._ring_at(self._progress + self._seconds)
        assert self._timer is not None
        try:
            return await super().run(mount)
        finally:
            self._timer.cancel()

    def _gets_on(self) -> None:
        self._progress, self._anew = self._loop.time(), ANEW

    def _ring_at(self, when: float) -> None:
        self._timer = self._loop.call_at(when, self._ring, when)

    def _ring(self, due: float) -> None:
        """Look whether it is late: one timer, whatever is under way.

        A loop that was held up has heard nothing meanwhile: it begins anew, as other deadlines do (`engine.net.deadlines`).
        """
        waits = self.sent or self.again or self._wants_more  # or else for who gives the drafts
        if self._committed or not waits:
            self._gets_on()
        elif self._anew and self._loop.time() - due > HELD_UP:
            self._progress, self._anew = self._loop.time(), self._anew - 1
        when = self._progress + self._seconds
        if when <= self._loop.time():
            self.end(self._late())
        else:
            self._ring_at(when)

    def _tell(self) -> None:
        if not self._committed:
            return
        self._gets_on()
        committed, self._committed = self._committed, []
        self.done += len(committed)
        if self._told is not None:
            for place, transaction_id in committed:
                self._told(place, transaction_id)

    def committed(self, sequence: int, transaction_id: int, generation: int, header: int) -> None:
        """See `AppendCall`."""
        self._committed.append((self.sent.pop(sequence)[0], transaction_id))
        if self._waiter is not None:
            self.wake()
