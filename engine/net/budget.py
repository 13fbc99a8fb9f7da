"""Memory of the frames that are under way, over all connections of a port: whoever finds none waits in line.

Small requests are counted when they have arrived: a connection that reads them stops reading while the budget is used up.  A
big frame is reserved before it is read, so that many peers which announce big frames cannot fill the memory; frames that
wait are served in the order in which they came, and small requests do not overtake them.

Nobody who waits holds anything that others need: what is counted is either under way to the disk, or a reserved frame, whose
connection ends when it stops arriving.  So the line always moves on.

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
    """`capacity` bytes for everything that was received and is not answered yet."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._used = 0
        self._line: OrderedDict[object, _Waiting] = OrderedDict()

    @property
    def used(self) -> int:
        """Bytes under way or reserved; above the capacity by what arrived at connections before they stopped to read."""
        return self._used

    @property
    def waiting(self) -> int:
        """How many connections stand in line."""
        return len(self._line)

    @property
    def crowded(self) -> bool:
        """Whether a connection should stop reading."""
        return bool(self._line) or self._used >= self.capacity

    def take(self, amount: int) -> None:
        """Count what has arrived already."""
        self._used += amount

    def give(self, amount: int) -> None:
        """Something was answered, or is no longer reserved; whoever is at the head of the line and fits now goes on."""
        self._used -= amount
        assert self._used >= 0, "more was given back than taken"
        self._serve()

    def reserve(self, owner: object, amount: int, go_on: Callable[[], None]) -> bool:
        """Reserve `amount` for `owner` (one wish at a time each): True if it has it now; else `go_on` is called when it has.

        With an amount of 0 the owner only waits for its turn.  What is more than the capacity is given to it when nothing else
        is under way.
        """
        assert owner not in self._line, "one wish at a time"
        if not self._line and self._fits(amount):
            self._used += amount
            return True
        self._line[owner] = _Waiting(amount, go_on)
        return False

    def leave(self, owner: object) -> None:
        """Take `owner` out of the line, if it stands there."""
        if self._line.pop(owner, None) is not None:
            self._serve()

    def _fits(self, amount: int) -> bool:
        return self._used + max(amount, 1) <= self.capacity or not self._used

    def _serve(self) -> None:
        while self._line:
            owner, wish = next(iter(self._line.items()))
            if not self._fits(wish.amount):
                return
            del self._line[owner]
            self._used += wish.amount
            wish.go_on()
