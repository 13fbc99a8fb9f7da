"""The calls of a connection that wait for their responses, by sequence number, and those that no longer do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from waltzctl.engine.net.deadlines import ANEW
from waltzctl.engine.net.peer_limits import MIN_FRAME_RATE


class ArrivingFrame:
    """The frame of which a part has come, and how long such frames took in all.  Times are the loop's, in seconds.

    A frame may take `grace` and a second for every `MIN_FRAME_RATE` bytes that came of it, and be silent for less than `grace`.
    So a garbled length is noticed: its bytes do not come, or too slowly, or there are more than a body may have.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self.since: float | None = None
        """Since when a part of a frame is there; None when there is none."""
        self._heard = 0.0
        self._came = 0
        self._before = 0.0  # seconds that earlier frames took

    def received(self, now: float, left: int, *, another: bool) -> None:
        """Bytes came; `left`: those of the frame that is incomplete, 0 for none; `another`: than the one before."""
        if self.since is not None and (another or not left):
            self._before, self.since = self.seconds(now), None
        if left and self.since is None:
            self.since = now
        self._heard, self._came = now, left

    def held_up(self, seconds: float) -> None:
        """Nothing was read for so long, through no fault of the peer's."""
        if self.since is not None:
            self.since += seconds
            self._heard += seconds

    def begin_anew(self, now: float) -> None:
        """The frame, if there is one, is as if it had begun now."""
        if self.since is not None:
            self._before, self.since, self._heard = self.seconds(now), now, now

    def seconds(self, now: float) -> float:
        """How long frames have been arriving, up to `now`; what is stuck does not count."""
        if self.since is None:
            return self._before
        return self._before + max(min(now, self._until(self.since)) - self.since, 0.0)

    def too_slow(self, now: float) -> bool:
        """Whether the frame has taken longer than it may."""
        return self.since is not None and now >= self._slowest(self.since)

    def stuck(self, now: float) -> bool:
        """Whether it has taken longer than it may, or was silent for as long."""
        return self.since is not None and now >= self._until(self.since)

    def _until(self, since: float) -> float:
        return min(self._heard + self._grace, self._slowest(since))

    def _slowest(self, since: float) -> float:
        return since + self._grace + self._came / MIN_FRAME_RATE


@dataclass(slots=True)
class CallInFlight:
    """A call in flight.  `expected`: the type of its response; `what` names it in errors; `begun`: loop time.

    Its deadline is `seconds` after it began, or with `of_silence` after bytes of the peer were received last, if that was later.
    `arrived`: None, or the seconds of `ArrivingFrame` when it began: then the time in which frames arrive does not count.
    `anew`: how often it may still begin anew, and with `of_silence` as often again when more was received since.
    """

    future: asyncio.Future[Any]
    expected: type
    begun: float
    seconds: float
    what: str
    of_silence: bool
    arrived: float | None = None
    anew: int = ANEW

    def deadline(self, heard: float, arrived: float) -> float:
        """Loop time; `heard`: when bytes of the peer were received last; `arrived`: the seconds of `ArrivingFrame` by now."""
        begun = max(self.begun, heard) if self.of_silence else self.begun
        return begun + self.seconds + (0.0 if self.arrived is None else arrived - self.arrived)


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

    @property
    def any_of_long_answers(self) -> bool:
        """Whether any call does not count the time in which frames arrive."""
        return any(call.arrived is not None for call in self._calls.values())

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

    def begin_anew(self, now: float, heard: float, arrived: float) -> None:
        """The loop was blocked, or the process stopped: what has come meanwhile is read before a deadline counts.

        See `engine.net.deadlines`.  `heard`, `arrived`: as for `CallInFlight.deadline`.
        """
        for call in self._calls.values():
            if call.of_silence and heard > call.begun:  # progress, as for a `Watchdog`: it may last for hours
                call.anew = ANEW
            if call.anew:
                call.anew, call.begun = call.anew - 1, now
                call.arrived = None if call.arrived is None else arrived

    def expire(self, now: float, heard: float, arrived: float) -> Iterator[CallInFlight]:
        """End the calls that missed their deadline, one after the other, each when the caller has failed it.

        An error of the caller's (MemoryError) leaves its call in flight.
        """
        for sequence in [one for one, call in self._calls.items() if call.deadline(heard, arrived) <= now]:
            yield self._calls[sequence]
            self._expired.add(sequence)
            del self._calls[sequence]

    def next_deadline(self, heard: float, arrived: float) -> float:
        """Loop time of the earliest deadline; there is a call."""
        return min(call.deadline(heard, arrived) for call in self._calls.values())
