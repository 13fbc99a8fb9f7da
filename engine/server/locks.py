"""Optimistic locks of a partition: which transaction last wrote under a lock, estimated from above, in bounded memory.

A table of `size` slots.  A lock has three of them, by a chain of hashes.  Each slot holds the highest transaction that wrote
under any of its locks, and how many transactions are in flight that will write.  The estimate for a lock is the least of its
three slots: never too low, so that no conflict is missed; too high when others share all three, which refuses an append for
nothing, or lets it wait.

=======  ============================================  ================================  ====================
kind     marked while in flight                        refuses when written since        its commit is noted
=======  ============================================  ================================  ====================
write    yes                                           yes                               yes
read     no                                            yes                               no
append   yes                                           no                                yes
=======  ============================================  ================================  ====================

A transaction has to wait, whatever its kind, while one is in flight that writes under one of its locks: while all three slots of
a lock are in flight.  The release lets it wait for any one of them, that is, of some 250 transactions in flight every thirteenth
for nothing, and whatever is behind it in the queue.

The table is gone over by loops that are compiled, for all appends that came together at once (`engine.scan.lock_loops`).

Source: release 0.13.2; the design document describes the purpose.
"""

from __future__ import annotations

from array import array

from waltzctl.engine.scan import wire_code
from waltzctl.engine.scan.client_appends import HeldLocks
from waltzctl.engine.scan.wire_layout import EXPECTED, FILLED, LOCKS, ROWS, SLOTS, TAKEN, FrameVerdict
from waltzctl.engine.scan.wire_loops import State, new_state

DEFAULT_SIZE = 30_000
"""Slots of a partition's table, in the release."""
_NONE = -1


class LockTable:
    """The locks of one partition.  Every slot begins at the high-water mark: who wrote before is not known any more."""

    def __init__(self, high_water_mark: int, size: int = DEFAULT_SIZE, *, compiled: bool | None = None) -> None:
        """`compiled`: as for `engine.scan.frames.FrameSplitter`.  Raises ValueError for a table without slots."""
        if size < 1:
            raise ValueError(f"a table of locks with {size} slots")
        self.size = size
        self._loops = wire_code.chooser(compiled)
        self._written = array("q")
        self._in_flight = array("q")
        self.reset(high_water_mark)

    def reset(self, high_water_mark: int) -> None:
        """Forget everything: every lock counts as written by this transaction, and nothing is in flight."""
        self._written = array("q", [high_water_mark]) * self.size
        self._in_flight = array("q", bytes(8)) * self.size

    def admit(self, held: HeldLocks, most: int) -> list[int]:
        """Mark what appends will write, one by one, until `most` are admitted or one has to wait for what is in flight.

        Of those that need not wait, for each: `engine.scan.wire_layout.ADMITTED`, or, and nothing is marked then, a transaction
        that its client does not know, no lower than the last one that wrote under one of its write or read locks.
        """
        state = self._state(held)
        state[ROWS] = most
        verdicts = array("q", bytes(8 * len(held)))
        loops = self._loops()
        self._check(loops.admit_appends(state, self._written, self._in_flight, held.appends, held.locks, verdicts))
        return verdicts[: state[TAKEN]].tolist()

    def commit(self, held: HeldLocks, transaction_id: int) -> None:
        """Appends that were admitted are transactions, from this one on, which is later than every one before."""
        self._settle(held, transaction_id)

    def give_up(self, held: HeldLocks) -> None:
        """Appends that were admitted will be no transactions."""
        self._settle(held, _NONE)

    def _settle(self, held: HeldLocks, transaction_id: int) -> None:
        state = self._state(held)
        state[EXPECTED] = transaction_id
        self._check(self._loops().settle_appends(state, self._written, self._in_flight, held.appends, held.locks))

    def _state(self, held: HeldLocks) -> State:
        state = new_state()
        state[FILLED], state[LOCKS], state[SLOTS] = len(held), len(held.locks), self.size
        return state

    def _check(self, verdict: int) -> None:
        if verdict != FrameVerdict.DONE:
            raise ValueError("the locks of appends end elsewhere than they should")
