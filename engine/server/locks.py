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
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

DEFAULT_SIZE = 30_000
"""Slots of a partition's table, in the release."""
_WORD = 0xFFFFFFFF
_POSITIVE = 0x3FFFFFFF


@dataclass(frozen=True, slots=True)
class Locks:
    """The locks of one append, by kind, as ids (`formats.lock_id`)."""

    write: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    append: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.write or self.read or self.append)


NO_LOCKS = Locks()


@lru_cache(maxsize=1 << 14)
def slots_of(lock: int, size: int) -> tuple[int, int, int]:
    """The three slots of a lock in a table of `size`; some may be one.

    An append asks for them three times, and they cost more than all else about its locks; so some 4 MB of them are kept.
    """
    first = (lock * 1103515245 + 12345) & _WORD
    second = (first * 1103515245 + 12345) & _WORD
    third = (second * 1103515245 + 12345) & _WORD
    return (first & _POSITIVE) % size, (second & _POSITIVE) % size, (third & _POSITIVE) % size


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

    def _slots(self, locks: Iterable[int]) -> list[int]:
        size, found = self.size, list[int]()
        for lock in locks:
            found += slots_of(lock, size)
        return found

    def begin(self, locks: Locks) -> bool:
        """Mark what the append will write; False, and nothing is marked, when one of its locks is in flight already."""
        in_flight, size = self._in_flight, self.size
        for lock in (*locks.write, *locks.read, *locks.append):
            first, second, third = slots_of(lock, size)
            if in_flight[first] and in_flight[second] and in_flight[third]:
                return False
        for slot in self._slots((*locks.write, *locks.append)):
            in_flight[slot] += 1
        return True

    def last_written(self, locks: Locks) -> int:
        """No lower than the last transaction that wrote under one of the write or read locks; -1 without such."""
        written, found = self._written, list[int]()
        for lock in (*locks.write, *locks.read):
            first, second, third = slots_of(lock, self.size)
            found.append(min(written[first], written[second], written[third]))
        return max(found, default=-1)

    def commit(self, locks: Locks, transaction_id: int) -> None:
        """An append that `begin` marked is this transaction, which is later than every one before."""
        for slot in self._slots((*locks.write, *locks.append)):
            self._written[slot] = transaction_id
            self._in_flight[slot] -= 1

    def give_up(self, locks: Locks) -> None:
        """An append that `begin` marked was refused or failed."""
        for slot in self._slots((*locks.write, *locks.append)):
            self._in_flight[slot] -= 1
