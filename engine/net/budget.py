"""Memory budget of a port, over all its connections.

The budget's bytes are in one of these states:

========= =====================================================================================================
state     meaning
========= =====================================================================================================
taken     requests that were received and are not answered
reserved  big frames that are being received; reserved before they are read, so that peers cannot fill the
          memory by announcing big frames
parked    requests that wait for an event that may never happen, such as a feed at the end of its log; they are
          not counted against the capacity
========= =====================================================================================================

Queue.  An owner (a connection) whose reservation does not fit waits in a queue, served in order of arrival.  A connection that
reads small requests stops reading while the budget is used up, and waits in the same queue with an amount of 0.  It is served out
of order only within the `kept` part of the capacity, which reservations never use: so small requests that need no more than that
never wait for a big frame.

No deadlock.  An owner that waits holds nothing that others wait for.  They wait either for requests that are being executed, or
for a reserved frame, whose connection is closed if the frame does not arrive at the minimum rate (`engine.net.connection`).
Appends that wait for a session of their partition cannot be parked, as they may be large; if the queue does not advance, their
port fails them (`engine.server.client_port`).

Not thread-safe: belongs to the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Waiting:
    amount: int
    """Bytes; 0: the owner only waits until it may read on."""
    go_on: Callable[[], None]
    """Called when the amount has been reserved."""


class Budget:
    """A budget of `capacity` bytes for taken and reserved memory.

    `kept`: reservations leave the capacity divided by `kept` to taken memory (8: an eighth; 0: nothing).  A frame that is longer
    than the rest is reserved all the same while it is the only one; the capacity is then exceeded by the kept part at most.
    """

    def __init__(self, capacity: int, *, kept: int = 0) -> None:
        self._capacity = capacity
        self._kept_divisor = kept
        self._taken = 0
        self._reserved = 0
        self._parked = 0
        self._queue: OrderedDict[object, _Waiting] = OrderedDict()
        self._turn_waiters: dict[object, None] = {}  # owners in the queue with an amount of 0, in order

    @property
    def capacity(self) -> int:
        """May be set; owners at the head of the queue that fit now are served."""
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self._capacity = capacity
        self._serve()

    @property
    def used(self) -> int:
        """Bytes taken, reserved or parked.

        May exceed the capacity: by the parked bytes, and by those that connections received before they stopped reading.
        """
        return self._taken + self._reserved + self._parked

    @property
    def kept(self) -> int:
        """Bytes that reservations leave to taken memory."""
        return self.capacity // self._kept_divisor if self._kept_divisor else 0

    @property
    def waiting(self) -> int:
        """How many owners are in the queue."""
        return len(self._queue)

    @property
    def first_in_line(self) -> object | None:
        """The owner that has waited longest."""
        return next(iter(self._queue), None)

    @property
    def crowded(self) -> bool:
        """Whether a connection should stop reading."""
        return self._taken >= self.kept and (bool(self._queue) or self._full)

    def take(self, amount: int) -> None:
        """Count a received request."""
        self._taken += amount

    def give(self, amount: int) -> None:
        """A taken request was answered; owners at the head of the queue that fit now are served."""
        self._taken -= amount
        assert self._taken >= 0, "more was given back than taken"
        self._serve()

    def park(self, amount: int) -> None:
        """A taken request waits from now on for an event that may never happen.  The caller bounds parked requests by itself.

        Owners at the head of the queue that fit now are served.
        """
        self._parked += amount
        self.give(amount)

    def unpark(self, amount: int) -> None:
        """A parked request does not wait any more: it is taken again."""
        self._parked -= amount
        assert self._parked >= 0, "more was unparked than parked"
        self.take(amount)

    def release(self, amount: int) -> None:
        """A reservation ends: the frame was received and taken, or will not be.  Owners that fit now are served."""
        self._reserved -= amount
        assert self._reserved >= 0, "more was released than reserved"
        self._serve()

    def reserve(self, owner: object, amount: int, go_on: Callable[[], None]) -> bool:
        """Reserve `amount` bytes for `owner`.  True: done; False: the owner was queued, `go_on` will be called when it is done.

        An owner is queued at most once.  An amount of 0 only waits until the owner may read on.  An amount above what
        reservations may have is reserved when nothing else is, and no more than the kept part is taken.
        """
        assert owner not in self._queue, "an owner is queued at most once"
        if (not self._queue and self._fits(amount)) or (not amount and self._has_kept):
            self._reserved += amount
            return True
        self._queue[owner] = _Waiting(amount, go_on)
        if not amount:
            self._turn_waiters[owner] = None
        return False

    def leave(self, owner: object) -> None:
        """Remove `owner` from the queue, if it is there."""
        self._turn_waiters.pop(owner, None)
        if self._queue.pop(owner, None) is not None:
            self._serve()

    @property
    def _has_kept(self) -> bool:
        """Whether less than the kept part is taken."""
        return self._taken < self.kept

    @property
    def _full(self) -> bool:
        return self._taken + self._reserved >= self.capacity

    def _fits(self, amount: int) -> bool:
        if not amount:
            return self._has_kept or not self._full
        if self._reserved + max(self._taken, self.kept) + amount <= self.capacity:
            return True
        return not self._reserved and self._taken <= self.kept

    def _serve(self) -> None:
        while self._queue:
            owner, entry = next(iter(self._queue.items()))
            if not self._fits(entry.amount):
                break
            self._admit(owner, entry)
        while self._turn_waiters and self._has_kept:
            owner = next(iter(self._turn_waiters))
            self._admit(owner, self._queue[owner])

    def _admit(self, owner: object, entry: _Waiting) -> None:
        del self._queue[owner]
        self._turn_waiters.pop(owner, None)
        self._reserved += entry.amount
        entry.go_on()
