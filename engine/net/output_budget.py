"""Memory budget for answers: bounds the length of an answer by the answers that peers have not taken yet.

Worker threads encode list responses, and the event loop sends them; so several threads could count on the same free bytes.
Therefore the bytes of a long answer pass through these states:

========== ======================================================================================
state      meaning
========== ======================================================================================
promised   a worker is encoding the answer, and may use up to that many bytes
made       the answer is encoded (its real size counts) and on its way to the write buffer
queued     the answer is in its connection's write buffer
========== ======================================================================================

If promises use up the budget, an answer of `_MODERATE` bytes is promised all the same, as most answers are much shorter than
their promise; not if made and queued answers use it up.
"""

from __future__ import annotations

import threading

_MODERATE = 512 << 10
"""Bytes that are promised even if other promises use up the budget."""


class OutputBudget:
    """`capacity` bytes for the answers of all connections of a port, `longest` bytes for one connection.  Thread-safe."""

    def __init__(self, capacity: int, longest: int) -> None:
        self.capacity, self.longest = capacity, longest
        self.queued = 0
        """Bytes of answers in the connections' write buffers."""
        self.made = 0
        """Bytes of encoded long answers on their way there."""
        self.promised = 0
        """Bytes promised to long answers that are being encoded."""
        self.lock = threading.Lock()


class Share:
    """The part of an `OutputBudget` that one connection uses."""

    def __init__(self, budget: OutputBudget) -> None:
        self._budget = budget
        self._made = 0
        self.queued = 0
        """Bytes of answers in the connection's write buffer."""

    def queue(self, queued: int) -> None:
        """Set the bytes in the write buffer."""
        with self._budget.lock:
            self._budget.queued += queued - self.queued
            self.queued = queued

    def promise(self) -> int:
        """Promise bytes to one answer; returns how many.  `make` has to follow."""
        budget = self._budget
        with budget.lock:
            here = budget.longest - self.queued - self._made
            everywhere = budget.capacity - budget.queued - budget.made
            promised = max(0, min(here, everywhere, max(everywhere - budget.promised, _MODERATE)))
            budget.promised += promised
            return promised

    def make(self, promised: int, size: int) -> None:
        """The answer is encoded and has `size` bytes; its promise ends.  `send` has to follow."""
        with self._budget.lock:
            self._budget.promised -= promised
            self._budget.made += size
            self._made += size

    def send(self, size: int) -> None:
        """The answer was written to the write buffer, or will not be sent."""
        with self._budget.lock:
            self._budget.made -= size
            self._made -= size
