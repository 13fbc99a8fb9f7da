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

Source: release 0.13.2; the design document describes the purpose.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from waltzctl.formats.wire.client import AppendLocks

DEFAULT_SIZE = 30_000
"""Slots of a partition's table, in the release."""
_WORD = 0xFFFFFFFF
_POSITIVE = 0x3FFFFFFF


Slots = tuple[int, int, int]
"""Of one lock."""


def slots_of(lock: int, size: int) -> Slots:
    """The three slots of a lock in a table of `size`; some may be one."""
    first = (lock * 1103515245 + 12345) & _WORD
    second = (first * 1103515245 + 12345) & _WORD
    third = (second * 1103515245 + 12345) & _WORD
    return (first & _POSITIVE) % size, (second & _POSITIVE) % size, (third & _POSITIVE) % size


class LockSlots(NamedTuple):
    """The slots of one append's locks: of each of them, of those by which it may be refused, and all that it marks."""

    each: Sequence[Slots]
    refusing: Sequence[Slots]
    marked: Sequence[int]

    @classmethod
    def of(cls, locks: AppendLocks, size: int) -> LockSlots:
        """In a table of `size`."""
        if len(locks.write) == 1 and not locks.read and not locks.append:  # as most have it
            slots = slots_of(locks.write[0], size)
            return cls((slots,), (slots,), slots)
        write, read, append = ([slots_of(lock, size) for lock in kind] for kind in locks)
        return cls(write + read + append, write + read, [*chain(*write, *append)])


class LockTable:
    """The locks of one partition.  Every slot begins at the high-water mark: who wrote before is not known any more."""

    def __init__(self, high_water_mark: int, size: int = DEFAULT_SIZE) -> None:
        """Raises ValueError for a table without slots."""
        if size < 1:
            raise ValueError(f"a table of locks with {size} slots")
        self.size = size
        self._written = array("q")
        self._in_flight = array("q")
        self.reset(high_water_mark)

    def reset(self, high_water_mark: int) -> None:
        """Forget everything: every lock counts as written by this transaction, and nothing is in flight."""
        self._written = array("q", [high_water_mark]) * self.size
        self._in_flight = array("q", bytes(8)) * self.size

    def begin(self, locks: LockSlots) -> bool:
        """Mark what the append will write; False, and nothing is marked, when one of its locks is in flight already."""
        in_flight = self._in_flight
        for first, second, third in locks.each:
            if in_flight[first] and in_flight[second] and in_flight[third]:
                return False
        for slot in locks.marked:
            in_flight[slot] += 1
        return True

    def last_written(self, locks: LockSlots) -> int:
        """No lower than the last transaction that wrote under one of the write or read locks; -1 without such."""
        written, found = self._written, -1
        for first, second, third in locks.refusing:
            found = max(found, min(written[first], written[second], written[third]))
        return found

    def commit(self, locks: LockSlots, transaction_id: int) -> None:
        """An append that `begin` marked is this transaction, which is later than every one before."""
        for slot in locks.marked:
            self._written[slot] = transaction_id
            self._in_flight[slot] -= 1

    def give_up(self, locks: LockSlots) -> None:
        """An append that `begin` marked was refused or failed."""
        for slot in locks.marked:
            self._in_flight[slot] -= 1
