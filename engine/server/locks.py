"""Optimistic locks of a partition: for each lock an upper bound of the last transaction that wrote under it, in bounded memory.

The table has `size` slots.  A lock is hashed to three of them.  A slot holds the highest id of a transaction that wrote under any
of its locks, and the number of transactions in flight that will write under one.  The bound for a lock is the minimum over its
three slots.  It is never too low, so that no conflict is missed.  It is too high if other locks share all three slots; then an
append is refused without need.

=========  ===============================  ==============================================  =======================
lock kind  counted as in flight until it    refused if another transaction wrote under the  its commit updates the
           is decided                       lock above the client's high-water mark         slots
=========  ===============================  ==============================================  =======================
write      yes                              yes                                             yes
read       no                               yes                                             no
append     yes                              no                                              yes
=========  ===============================  ==============================================  =======================

An append with a write or read lock of which all three slots count a transaction in flight is *contended*: it is refused as
soon as these transactions are committed, since its client knows none of them.  Nothing behind it waits meanwhile.  (An append
whose client claims to know a transaction that is not committed may turn out to be admitted, and waits.)  In the release an
append with a lock of any kind waits while any of the three slots counts one, and the queue waits behind it: with some 250
transactions in flight and a lock for each, one append in 13 does so without need.

Compiled loops go over the table, one call for all appends that arrived together (`engine.scan.lock_loops`).

Source: release 0.13.2; the design document describes the purpose.
"""

from __future__ import annotations

from array import array
from functools import cache

from waltzctl.engine.scan import wire_code
from waltzctl.engine.scan.client_appends import HeldLocks
from waltzctl.engine.scan.wire_layout import EXPECTED, FILLED, LOCKS, RECORDS, ROWS, SLOTS, TAKEN, FrameVerdict
from waltzctl.engine.scan.wire_loops import State, new_state

DEFAULT_SIZE = 30_000
"""Slots of a partition's table in the release."""
_NONE = -1  # no transaction id: the append was given up


@cache
def _nothing_in_flight(size: int) -> array[int]:
    """Slots that count nothing in flight, shared by all tables of that size: nobody writes to them."""
    return array("q", bytes(8 * size))


class LockTable:
    """The locks of one partition.  Every slot begins at the high-water mark: earlier writes are not known in detail."""

    def __init__(self, high_water_mark: int, size: int = DEFAULT_SIZE, *, compiled: bool | None = None) -> None:
        """`compiled`: as for `engine.scan.frames.FrameSplitter`.  Raises ValueError for a table without slots."""
        if size < 1:
            raise ValueError(f"a table of locks with {size} slots")
        self.size = size
        self._loops = wire_code.chooser(compiled)
        self._mark = high_water_mark
        self._table: tuple[array[int], array[int]] | None = None

    def reset(self, high_water_mark: int) -> None:
        """Set every lock to "written by transaction `high_water_mark`", with nothing in flight."""
        self._mark, self._table = high_water_mark, None

    def _slots(self) -> tuple[array[int], array[int]]:
        """Last writers and transactions in flight; made for the first locks: half a megabyte that many partitions never need."""
        if self._table is None:
            self._table = array("q", [self._mark]) * self.size, array("q", bytes(8)) * self.size
        return self._table

    def admit(self, held: HeldLocks, most: int, committed: int) -> list[int]:
        """Check appends in their order, until `most` are admitted, or one has to wait.

        `committed`: the last committed transaction; what is in flight is above it.  Returns a verdict for each append that was
        checked.

        ======================================  ==================================================================
        verdict                                 meaning
        ======================================  ==================================================================
        `engine.scan.wire_layout.ADMITTED`      it may be written; its locks count as in flight
        `engine.scan.wire_layout.CONTENDED`     to be refused once all that was in flight in front of it is committed;
                                                if it is not, the append has to be checked again
        a transaction id                        refused; an upper bound, above its client's high-water mark, of the
                                                last transaction that wrote under one of its write or read locks
        ======================================  ==================================================================
        """
        state = self._state(held)
        state[ROWS], state[EXPECTED] = most, committed + 1
        verdicts = array("q", bytes(8 * len(held)))
        loops = self._loops()
        self._check(loops.admit_appends(state, *self._slots(), held.appends, held.locks, verdicts))
        return verdicts[: state[TAKEN]].tolist()

    def conflicts(self, held: HeldLocks, last: int) -> list[int]:
        """For each of some contended appends the transaction with which it is refused, whatever is in flight by now.

        `last`: the last transaction that was in flight in front of them, and is committed; no conflict is above it.
        """
        written, _ = self._slots()
        state = self._state(held)
        state[ROWS] = 1
        verdicts = array("q", bytes(8 * len(held)))
        nothing = _nothing_in_flight(self.size)
        self._check(self._loops().admit_appends(state, written, nothing, held.appends, held.locks, verdicts))
        if state[RECORDS]:  # behind a reset; it is refused all the same, as later ones may be written
            _nothing_in_flight.cache_clear()  # its locks were marked there
            return [last] * len(held)
        return verdicts.tolist()

    def commit(self, held: HeldLocks, transaction_id: int) -> None:
        """Admitted appends are committed under consecutive ids from `transaction_id` on, which is above all earlier ones."""
        self._settle(held, transaction_id)

    def give_up(self, held: HeldLocks) -> None:
        """Admitted appends will not be committed: they are no longer in flight."""
        self._settle(held, _NONE)

    def _settle(self, held: HeldLocks, transaction_id: int) -> None:
        state = self._state(held)
        state[EXPECTED] = transaction_id
        self._check(self._loops().settle_appends(state, *self._slots(), held.appends, held.locks))

    def _state(self, held: HeldLocks) -> State:
        state = new_state()
        state[FILLED], state[LOCKS], state[SLOTS] = len(held), len(held.locks), self.size
        return state

    def _check(self, verdict: int) -> None:
        if verdict != FrameVerdict.DONE:
            raise ValueError("the locks of appends end elsewhere than they should")
