"""A budget of memory for answers: how long an answer may become, with regard to all that wait for peers to take them.

A list of records is made by one thread and sent by the event loop, so many threads could find the same bytes free.  Whoever is
about to make a long answer is therefore promised its bytes beforehand; once the answer is made only its own size counts, until
the system has taken it.  When everything is promised a moderate answer may be made all the same, as long as it is promises
and not answers that use up the budget: most promises are kept with much less.
"""

from __future__ import annotations

import threading

_MODERATE = 512 << 10


class OutputBudget:
    """`capacity` bytes for the answers of all connections of a port, `longest` for one of them.  Thread-safe."""

    def __init__(self, capacity: int, longest: int) -> None:
        self.capacity, self.longest = capacity, longest
        self.queued = 0
        """Bytes of answers in the connections' write buffers."""
        self.made = 0
        """Bytes of long answers on their way there."""
        self.promised = 0
        """Bytes for long answers that are being made."""
        self.lock = threading.Lock()


class Share:
    """What one connection has of the budget."""

    def __init__(self, budget: OutputBudget) -> None:
        self._budget = budget
        self._made = 0
        self.queued = 0
        """Bytes of answers in the connection's write buffer."""

    def queue(self, queued: int) -> None:
        """So many bytes are in the write buffer now."""
        with self._budget.lock:
            self._budget.queued += queued - self.queued
            self.queued = queued

    def promise(self) -> int:
        """Bytes that one answer may have; followed by `make`."""
        budget = self._budget
        with budget.lock:
            here = budget.longest - self.queued - self._made
            everywhere = budget.capacity - budget.queued - budget.made
            promised = max(0, min(here, everywhere, max(everywhere - budget.promised, _MODERATE)))
            budget.promised += promised
            return promised

    def make(self, promised: int, size: int) -> None:
        """The answer is made, it has `size` bytes; followed by `send`."""
        with self._budget.lock:
            self._budget.promised -= promised
            self._budget.made += size
            self._made += size

    def send(self, size: int) -> None:
        """The answer is in the write buffer, or will not be sent."""
        with self._budget.lock:
            self._budget.made -= size
            self._made -= size
