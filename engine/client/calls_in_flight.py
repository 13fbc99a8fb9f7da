"""The calls of a connection that wait for their responses, by sequence number, and those that no longer do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from waltzctl.engine.net.deadlines import ANEW


@dataclass(slots=True)
class CallInFlight:
    """A call in flight.  `expected`: the type of its response; `what` names it in errors; `begun`: loop time.

    Its deadline is `seconds` after it began, or with `of_silence` after bytes of the peer were received last, if that was later.
    `anew`: how often it may still begin anew, and with `of_silence` as often again when more was received since.
    """

    future: asyncio.Future[Any]
    expected: type
    begun: float
    seconds: float
    what: str
    of_silence: bool
    anew: int = ANEW

    def deadline(self, heard: float) -> float:
        """Loop time; `heard`: when bytes of the peer were received last."""
        return (max(self.begun, heard) if self.of_silence else self.begun) + self.seconds


class CallsInFlight:
    """The calls of one connection.  A response to a call that missed its deadline is still expected, and is dropped."""

    def __init__(self) -> None:
        self._calls: dict[int, CallInFlight] = {}
        self._expired: set[int] = set()
        """Sequence numbers of calls that missed their deadline."""

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def expired(self) -> int:
        """Number of calls that missed their deadline, and whose response has not come either."""
        return len(self._expired)

    @property
    def any_of_silence(self) -> bool:
        """Whether the deadline of any call begins again when bytes are received."""
        return any(call.of_silence for call in self._calls.values())

    def add(self, sequence: int, call: CallInFlight) -> None:
        """A call begins.  Raises ValueError for the sequence number of another one."""
        if sequence in self._calls:
            raise ValueError(f"request {sequence} is under way already")
        self._calls[sequence] = call

    def take(self, sequence: int) -> CallInFlight | None:
        """The call whose response has come, which ends it; None where there is none."""
        return self._calls.pop(sequence, None)

    def take_expired(self, sequence: int) -> bool:
        """Whether the response that has come is one to a call that missed its deadline; it is expected no longer then."""
        if sequence in self._expired:
            self._expired.discard(sequence)
            return True
        return False

    def take_all(self) -> Collection[CallInFlight]:
        """All calls: the connection has ended."""
        calls, self._calls = self._calls, {}
        return calls.values()

    def begin_anew(self, now: float, heard: float) -> None:
        """The loop was blocked, or the process stopped: what has come meanwhile is read before a deadline counts.

        See `engine.net.deadlines`.  `heard`: as for `CallInFlight.deadline`.
        """
        for call in self._calls.values():
            if call.of_silence and heard > call.begun:  # progress, as for a `Watchdog`: it may last for hours
                call.anew = ANEW
            if call.anew:
                call.anew, call.begun = call.anew - 1, now

    def expire(self, now: float, heard: float) -> Iterator[CallInFlight]:
        """End the calls that missed their deadline, one after the other, each when the caller has failed it.

        An error of the caller's (MemoryError) leaves its call in flight.
        """
        for sequence in [one for one, call in self._calls.items() if call.deadline(heard) <= now]:
            yield self._calls[sequence]
            self._expired.add(sequence)
            del self._calls[sequence]

    def next_deadline(self, heard: float) -> float:
        """Loop time of the earliest deadline; there is a call."""
        return min(call.deadline(heard) for call in self._calls.values())
