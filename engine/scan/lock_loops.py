"""The loops over optimistic locks: `admit_appends` decides which appends may be written, `settle_appends` records the outcome.

The lock table and its slots are described in `engine.server.locks`.  Like those of `engine.scan.wire_loops` these loops are
written once, run interpreted or compiled, and trust none of their input.
"""

from __future__ import annotations

from typing import Any

from waltzctl.engine.scan.wire_layout import (
    ADMITTED,
    APPEND_LOCK,
    CONTENDED,
    EXPECTED,
    FILLED,
    FINE,
    HELD_COLUMNS,
    HELD_MARK,
    HELD_STOP,
    LOCK_BITS,
    LOCK_MASK,
    LOCKS,
    MALFORMED,
    READ_LOCK,
    RECORDS,
    ROWS,
    SLOTS,
    TAKEN,
)
from waltzctl.engine.scan.wire_memory import get, put, remainder

MULTIPLIER, INCREMENT, POSITIVE = 1103515245, 12345, 0x3FFFFFFF
"""Constants of the linear congruential generator with which the release hashes a lock's id."""
LINKS = 3
"""Number of slots for each lock: the slots of so many successive hash values."""


def following(value: Any) -> Any:
    """The next hash value of a lock; the first one is made from the lock's id.  Values are unsigned 32-bit integers."""
    return (value * MULTIPLIER + INCREMENT) & LOCK_MASK


def slot(value: Any, slots: Any) -> Any:
    """The slot of a hash value, in a table of `slots` slots."""
    return remainder(value & POSITIVE, slots)


def mark_slots(in_flight: Any, written: Any, lock: Any, slots: Any, more: Any, transaction: Any) -> Any:
    """Update the slots of a lock, unless it is a read lock.

    `more`: change of the number of transactions in flight, 1 or -1.  `transaction`: the id of the last transaction that wrote
    under the lock, to be stored; -1: none.
    """
    if lock >> LOCK_BITS != READ_LOCK:
        value = lock & LOCK_MASK
        link = 0
        while link < LINKS:
            value = following(value)
            one = slot(value, slots)
            put(in_flight, one, get(in_flight, one) + more)
            if transaction >= 0:
                put(written, one, transaction)
            link += 1
    return 0


def admit_appends(state: Any, written: Any, in_flight: Any, appends: Any, locks: Any, verdicts: Any) -> int:
    """Decide FILLED appends in their order, until ROWS of them are admitted or one has to wait; mark the locks of admitted ones.

    Transactions from EXPECTED on may be in flight.

    ================================================================= ===========================================
    the append                                                        its word in `verdicts`
    ================================================================= ===========================================
    has a write or read lock of which all slots have a transaction    CONTENDED
    in flight, and the client's high-water mark is below EXPECTED
    the same, and the mark is EXPECTED or higher                      none: it waits, and the loop stops
    has a write or read lock of which all slots have a written        the id of the last such transaction
    transaction above the client's high-water mark
    otherwise                                                         ADMITTED
    ================================================================= ===========================================

    Out: TAKEN, appends decided; RECORDS, appends admitted.
    """
    filled = get(state, FILLED)
    most = get(state, ROWS)
    known = get(state, LOCKS)
    slots = get(state, SLOTS)
    first = get(state, EXPECTED)
    number = 0
    admitted = 0
    place = 0
    status = FINE
    if slots < 1:
        status = MALFORMED
    while status == FINE and number < filled and admitted < most:
        mark = get(appends, number * HELD_COLUMNS + HELD_MARK)
        end = get(appends, number * HELD_COLUMNS + HELD_STOP)
        if end < place or end > known:
            status = MALFORMED
            break
        contended = 0
        seen = -1
        at = place
        while at < end:
            lock = get(locks, at)
            if lock >> LOCK_BITS != APPEND_LOCK:
                value = following(lock & LOCK_MASK)
                one = slot(value, slots)
                value = following(value)
                other = slot(value, slots)
                value = following(value)
                third = slot(value, slots)
                if get(in_flight, one) > 0 and get(in_flight, other) > 0 and get(in_flight, third) > 0:
                    contended = 1
                    break
                least = get(written, one)
                if get(written, other) < least:
                    least = get(written, other)
                if get(written, third) < least:
                    least = get(written, third)
                if least > seen:
                    seen = least
            at += 1
        if contended == 1 and mark >= first:
            break
        if contended == 1:
            put(verdicts, number, CONTENDED)
        elif seen > mark:
            put(verdicts, number, seen)
        else:
            put(verdicts, number, ADMITTED)
            admitted += 1
            at = place
            while at < end:
                mark_slots(in_flight, written, get(locks, at), slots, 1, -1)
                at += 1
        place = end
        number += 1
    put(state, TAKEN, number)
    put(state, RECORDS, admitted)
    return status


def settle_appends(state: Any, written: Any, in_flight: Any, appends: Any, locks: Any) -> int:
    """Record the outcome of FILLED admitted appends: written as transactions from EXPECTED on, or not written if that is -1."""
    filled = get(state, FILLED)
    known = get(state, LOCKS)
    slots = get(state, SLOTS)
    transaction = get(state, EXPECTED)
    number = 0
    place = 0
    status = FINE
    if slots < 1:
        status = MALFORMED
    while status == FINE and number < filled:
        end = get(appends, number * HELD_COLUMNS + HELD_STOP)
        if end < place or end > known:
            status = MALFORMED
            break
        while place < end:
            mark_slots(in_flight, written, get(locks, place), slots, -1, transaction)
            place += 1
        number += 1
        if transaction >= 0:
            transaction += 1
    put(state, TAKEN, number)
    return status
