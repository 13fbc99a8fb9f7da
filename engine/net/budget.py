"""Memory of the frames that are under way, over all connections of a port: whoever finds none waits in line.

Small requests are counted when they have arrived: a connection that reads them stops reading while the budget is used up.  A
big frame is reserved before it is read, so that many peers which announce big frames cannot fill the memory; frames that
wait are served in the order in which they came.  Small requests do not overtake them, but for a share of their own that no
reservation takes: as long as they need no more than that, they wait for nobody's frame.

Nobody who waits holds anything that others need: what keeps them waiting is either under way to the disk, or a reserved frame,
whose connection ends when it does not arrive at a least rate.  So the line always moves on.  What stands still until something
happens that may never happen, such as a feed at the end of its log, is parked: it is used, and keeps nobody waiting.  Appends
that wait for a session of their partition are as large as others and cannot be: where the line stands still their port gives
them up (`engine.server.client_port`).

Not thread-safe: it belongs to the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Waiting:
    amount: int
    go_on: Callable[[], None]


class Budget:
    """`capacity` bytes for everything that was received and is not answered yet, but for what is parked.

    `kept`: the part of the capacity that reservations leave to what has arrived, such as 8 for an eighth; 0: they leave nothing.
    A frame that is too long for the rest is reserved all the same when it is the only one; with it the capacity is exceeded by
    that part at most.
    """

    def __init__(self, capacity: int, *, kept: int = 0) -> None:
        self._capacity = capacity
        self._part = kept
        self._taken = 0
        self._reserved = 0
        self._parked = 0
        self._line: OrderedDict[object, _Waiting] = OrderedDict()
        self._turns: dict[object, None] = {}  # of the line, in their order: who only waits for its turn

    @property
    def capacity(self) -> int:
        """May be changed; whoever is at the head of the line and fits now goes on."""
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self._capacity = capacity
        self._serve()

    @property
    def used(self) -> int:
        """Bytes under way, reserved or parked; above the capacity by what is parked, and by what arrived at connections before
        they stopped to read.
        """
        return self._taken + self._reserved + self._parked

    @property
    def kept(self) -> int:
        """Bytes that reservations leave to what has arrived."""
        return self.capacity // self._part if self._part else 0

    @property
    def waiting(self) -> int:
        """How many connections stand in line."""
        return len(self._line)

    @property
    def first_in_line(self) -> object | None:
        """Who waits for longest."""
        return next(iter(self._line), None)

    @property
    def crowded(self) -> bool:
        """Whether a connection should stop reading."""
        return self._taken >= self.kept and (bool(self._line) or self._full)

    def take(self, amount: int) -> None:
        """Count what has arrived already."""
        self._taken += amount

    def give(self, amount: int) -> None:
        """Something that was taken is answered; whoever is at the head of the line and fits now goes on."""
        self._taken -= amount
        assert self._taken >= 0, "more was given back than taken"
        self._serve()

    def park(self, amount: int) -> None:
        """Something that was taken waits from now on for what may never happen; whoever is at the head of the line and fits now
        goes on.

        Whoever parks has a bound of its own.
        """
        self._parked += amount
        self.give(amount)

    def unpark(self, amount: int) -> None:
        """Something that was parked waits no longer: it is as when it was taken."""
        self._parked -= amount
        assert self._parked >= 0, "more was unparked than parked"
        self.take(amount)

    def release(self, amount: int) -> None:
        """Something is no longer reserved: it has arrived, and was taken, or it never will; whoever fits now goes on."""
        self._reserved -= amount
        assert self._reserved >= 0, "more was released than reserved"
        self._serve()

    def reserve(self, owner: object, amount: int, go_on: Callable[[], None]) -> bool:
        """Reserve `amount` for `owner` (one wish at a time each): True if it has it now; else `go_on` is called when it has.

        With an amount of 0 the owner only waits for its turn.  What is more than reservations may have is given to it when
        nothing else is reserved, and no more under way than is kept from them.
        """
        assert owner not in self._line, "one wish at a time"
        if (not self._line and self._fits(amount)) or (not amount and self._has_kept):
            self._reserved += amount
            return True
        self._line[owner] = _Waiting(amount, go_on)
        if not amount:
            self._turns[owner] = None
        return False

    def leave(self, owner: object) -> None:
        """Take `owner` out of the line, if it stands there."""
        self._turns.pop(owner, None)
        if self._line.pop(owner, None) is not None:
            self._serve()

    @property
    def _has_kept(self) -> bool:
        """Whether there is something left of what is kept from reservations."""
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
        while self._line:
            owner, wish = next(iter(self._line.items()))
            if not self._fits(wish.amount):
                break
            self._admit(owner, wish)
        while self._turns and self._has_kept:
            owner = next(iter(self._turns))
            self._admit(owner, self._line[owner])

    def _admit(self, owner: object, wish: _Waiting) -> None:
        del self._line[owner]
        self._turns.pop(owner, None)
        self._reserved += wish.amount
        wish.go_on()
