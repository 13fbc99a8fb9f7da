"""The calls that are running at a mount: those that append, their turns to send new appends, and flushes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from waltzctl.engine.client.append_call import AppendCall


class RunningCalls:
    """`appending`: calls that append, in the order of their start.  `turns`: those of them that have new appends to send.

    Only the first one of `turns` may send; one that had its turn goes behind all others.
    """

    def __init__(self) -> None:
        self.appending: dict[AppendCall, None] = {}
        self.turns: OrderedDict[AppendCall, None] = OrderedDict()
        self.flushes = 0
        """Calls of `flush` that are running."""
        self._idle = asyncio.Event()

    def leave(self, call: AppendCall) -> None:
        """A call that appends ends; `signal_idle` is to be called behind all that follows from it."""
        self.appending.pop(call, None)
        self.turns.pop(call, None)

    @contextlib.contextmanager
    def flushing(self) -> Iterator[None]:
        """A flush is running."""
        self.flushes += 1
        try:
            yield
        finally:
            self.flushes -= 1
            self.signal_idle()

    async def settled(self) -> None:
        """Wait until no call is running.  Those that append are woken, and have to leave by themselves."""
        for call in self.appending:
            call.wake()  # one that waits for its source has nothing else that would wake it
        while self.appending or self.flushes:
            self._idle.clear()
            await self._idle.wait()

    def signal_idle(self) -> None:
        """Wake `settled` when no call is running any more."""
        if not self.appending and not self.flushes:
            self._idle.set()

    @property
    def undecided(self) -> set[tuple[AppendCall, int]]:
        """Undecided appends, as pairs of call and index of the draft in that call."""
        return {(call, place) for call in self.appending for place in call.undecided}

    def await_turn(self, call: AppendCall) -> bool:
        """The call has new appends to send: whether it is its turn.  If not, `wake_next` wakes it."""
        self.turns[call] = None
        return next(iter(self.turns)) is call

    def end_turn(self, call: AppendCall, *, had_one: bool, wants_more: bool) -> None:
        """The call has sent what it could; a call that had a turn goes behind all others that wait."""
        if not wants_more:
            self.turns.pop(call, None)
        elif had_one:
            self.turns.move_to_end(call)

    def wake_next(self, room: int | None) -> None:
        """Wake as many calls as there is room for new appends; None: all, and no turn is left, as there will be no room here."""
        for call in islice(self.turns, room):
            call.wake()
        if room is None:
            self.turns.clear()
