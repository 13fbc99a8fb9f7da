"""One call that appends: where its drafts come from, which of them are undecided, and which are committed.

A call has no task for each append.  The call's own task sleeps until some of its appends are decided or there is room for new
ones; then it reports all decided appends and sends all drafts that can be sent, in one write.
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
from waltzctl.engine.net.deadlines import Watchdog
from waltzctl.engine.net.futures import taken
from waltzctl.formats.request_id import RequestId

Numbered = tuple[int, Build | Draft]
"""A draft, or its builder, with its index in the call, from 0 (its *place*)."""
OnCommit = Callable[[int, int], Any]
"""Called for a committed append with its place and its transaction id."""
AHEAD_BYTES = 16 << 20
"""An asynchronous iterable is read ahead until this many bytes of data wait to be sent."""


class AppendSource(Protocol):
    """The source of a call's drafts."""

    @property
    def ended(self) -> bool:
        """Whether it is certain that there are no more drafts."""

    @property
    def ready(self) -> bool:
        """Whether `take` may find a draft now."""

    def take(self, most: int, into: list[Numbered]) -> None:
        """Append the drafts that are available now to `into`, at most `most`.

        Raises what the underlying iterable raises; the drafts that it gave before the error are in `into` then.
        """

    async def close(self) -> None:
        """No drafts are taken any more."""


class OneDraft:
    """The source of a call that appends one draft."""

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
    """An iterable of drafts; no more are taken from it than can be sent at once."""

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
        into.extend(islice(self._drafts, most))  # keeps the drafts that came before an error
        self.ended = len(into) - already < most

    async def close(self) -> None:
        """See `AppendSource`."""


class AwaitedDrafts:
    """An asynchronous iterable of drafts, read ahead by a task of its own."""

    ended = False

    def __init__(self, drafts: AsyncIterable[Build | Draft], ahead: int, wake: Callable[[], None]) -> None:
        """`ahead`: how many drafts are read ahead at most; `wake`: called after each draft and at the end."""
        self._drafts, self._ahead, self._wake = drafts, ahead, wake
        self._found: deque[Build | Draft] = deque()
        self._bytes = 0
        self._count = count()
        self._room = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())
        self._reading.add_done_callback(taken)  # `take` raises its error, unless the call has raised another one
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


def _size(draft: Build | Draft) -> int:
    """Bytes of a draft's data; 0 for a builder, as its draft is not known yet."""
    return len(draft.data) if isinstance(draft, Draft) else 0


class AppendingMount(Protocol):
    """What a call needs of a mount, as `engine.client.partition_mount.Mount` provides it."""

    partition: int
    client_id: int
    ready: asyncio.Event

    @property
    def spent(self) -> bool:
        """Whether the client id has no request ids left for new appends."""

    def enter(self, call: AppendCall) -> None:
        """The call starts here.  Raises the mount's error once the mount has ended."""

    def leave(self, call: AppendCall) -> None:
        """The call leaves: the outcome of its undecided appends is ignored from now on."""

    def room_for(self, call: AppendCall) -> int:
        """How many new appends the call can send now.  If 0, the call is woken when there is room."""

    def next_turn(self, call: AppendCall, *, had_one: bool, wants_more: bool) -> None:
        """The call has sent what it could; a call that had a turn goes behind all others that wait."""

    def send(self, call: AppendCall, drafts: Iterable[Numbered]) -> None:
        """Build these drafts and send them in one write; an error of a builder is passed to `call.fail`."""

    def send_again(self, call: AppendCall) -> None:
        """Build the call's refused drafts again and send them."""


class AppendCall:
    """A call that appends.  `run` it at a mount, and at each following mount until it returns True.

    Two kinds of error end a call:

    ==========  ================================================  ==========================================================
    attribute   error of                                          raised
    ==========  ================================================  ==========================================================
    `_error`    the mount, the deadline                           at once
    `_failure`  the source, a builder, an append that is too      when every append before `stops_at` is decided
                long
    ==========  ================================================  ==========================================================

    `sent`: undecided appends by sequence number.  `again`: drafts that were not committed, to be built and sent again.  The mount
    counts both.  `stops_at`: the place of the draft that failed; no draft with this place or a later one is sent again.
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
        """Append all drafts.  False: the mount's client id is spent, and the remaining drafts need the next mount.

        Raises the errors that the table of the class lists.
        """
        self._mount = mount
        mount.enter(self)
        try:
            while not self._step(mount):
                if self._woken:  # woken by its own step: let other tasks run first
                    await asyncio.sleep(0)
                else:
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
                self._woken = False
            return self.source.ended
        finally:
            self._waiter = None
            mount.leave(self)

    def _step(self, mount: AppendingMount) -> bool:
        """Report and send all that is possible now.  True: nothing is left to do at this mount."""
        self._report()
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
                self._note_progress()
        mount.next_turn(self, had_one=room > 0, wants_more=self._wants_more)
        if self.sent or self.again:
            return False
        if self._failure is not None:
            raise self._failure
        return self.source.ended or mount.spent

    @property
    def undecided(self) -> set[int]:
        """Places of the drafts that were sent and are undecided, or are to be sent again."""
        return {place for place, _ in (*self.sent.values(), *self.again)}

    @property
    def _wants_more(self) -> bool:
        return self._failure is None and self.source.ready

    def _note_progress(self) -> None:
        """Called when new appends were sent."""

    def _report(self) -> None:
        """Report committed appends to the caller."""

    def fail(self, error: Exception, place: float = math.inf) -> None:
        """Raise `error` once every append before `place` is decided.

        `place`: of the draft whose builder raised; infinity for an error of the source, which comes after all its drafts.  Of
        several errors the one with the lowest place is raised.
        """
        if self._failure is None or place < self.stops_at:
            self.stops_at, self._failure = place, error

    def end(self, error: Exception) -> None:
        """Raise `error` at once."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Let `run` take another step."""
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            self._woken = True
        elif not waiter.done():
            waiter.set_result(None)

    def refused(self, sequence: int) -> None:
        """The append with this sequence number is not committed and will not be: send its draft again."""
        self.wake()  # this and the next line may raise MemoryError: then nothing has changed
        self.again.append(self.sent[sequence])
        del self.sent[sequence]

    @abstractmethod
    def committed(self, sequence: int, transaction_id: int, generation: int, header: int) -> None:
        """The append with this sequence number is committed.  An error (MemoryError) leaves it undecided."""


class OneAppend(AppendCall):
    """A call that appends one draft.  `transaction`: the committed transaction; None when the builder returned None."""

    def __init__(self, draft: Build | Draft) -> None:
        super().__init__(OneDraft(draft))
        self.transaction: Transaction | None = None

    @property
    def undecided(self) -> set[int]:
        """See `AppendCall`; here also while the draft waits for room."""
        return {0} if self.transaction is None else set()

    def committed(self, sequence: int, transaction_id: int, generation: int, header: int) -> None:
        """See `AppendCall`."""
        mount = self._mount
        assert mount is not None
        self.wake()
        number = RequestId(mount.client_id, generation, mount.partition, sequence)
        self.transaction = Transaction(mount.partition, transaction_id, number, header)
        del self.sent[sequence]


class AppendsInBulk(AppendCall):
    """A call that appends many drafts and reports each one when it is committed.  `done`: how many are committed."""

    def __init__(
        self,
        drafts: Iterable[Build | Draft] | AsyncIterable[Build | Draft],
        on_commit: OnCommit | None,
        *,
        ahead: int,
        seconds: float,
        late: Callable[[], DeadlineError],
    ) -> None:
        """`ahead`: how many drafts are read ahead of an asynchronous iterable.

        `late` makes the error that the call raises when, for `seconds`, no append was committed and none could be sent although
        there are drafts to send or undecided appends.
        """
        super().__init__(
            AwaitedDrafts(drafts, ahead, self.wake) if isinstance(drafts, AsyncIterable) else IteratedDrafts(drafts)
        )
        self.done = 0
        self._on_commit = on_commit
        self._committed: list[tuple[int, int]] = []
        # one timer serves all appends of the call
        self._watchdog = Watchdog(seconds, fed=self._in_time, expired=lambda: self.end(late()))

    async def run(self, mount: AppendingMount) -> bool:
        """See `AppendCall`; also raises the error of `late` and errors of `on_commit`, both at once."""
        with self._watchdog:
            return await super().run(mount)

    def _note_progress(self) -> None:
        self._watchdog.feed()

    def _in_time(self) -> bool:
        """Whether appends are committed that are not reported yet, or the call waits for its source, which has no deadline."""
        return bool(self._committed) or not (self.sent or self.again or self._wants_more)

    def _report(self) -> None:
        if not self._committed:
            return
        self._note_progress()
        committed, self._committed = self._committed, []
        self.done += len(committed)
        if self._on_commit is not None:
            for place, transaction_id in committed:
                self._on_commit(place, transaction_id)

    def committed(self, sequence: int, transaction_id: int, generation: int, header: int) -> None:
        """See `AppendCall`."""
        if self._waiter is not None:
            self.wake()
        self._committed.append((self.sent[sequence][0], transaction_id))
        del self.sent[sequence]
