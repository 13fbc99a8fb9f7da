"""The loops over optimistic locks: which of the appends that came together may go on, and what becomes of their locks then.

What the table is, and what a slot holds, is told in `engine.server.locks`.  As those of `engine.scan.wire_loops` these loops are
written once and run interpreted or compiled, and they believe nothing.
"""

from __future__ import annotations

from typing import Any

from waltzctl.engine.scan.wire_layout import (
    ADMITTED,
    APPEND_LOCK,
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
"""Of the release's chain of hashes."""
LINKS = 3
"""Slots of a lock."""


def following(value: Any) -> Any:
    """The next link of a lock's chain of hashes, which begins with its id: unsigned 32-bit integers."""
    return (value * MULTIPLIER + INCREMENT) & LOCK_MASK


def slot(value: Any, slots: Any) -> Any:
    """The slot that a link of the chain stands for, in a table of so many."""
    return remainder(value & POSITIVE, slots)


def mark_slots(in_flight: Any, written: Any, lock: Any, slots: Any, more: Any, transaction: Any) -> Any:
    """In each slot of a lock that is written under: more transactions in flight, or fewer; and this one wrote, unless -1."""
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
    """Mark what appends, FILLED of them, will write, until ROWS are admitted or one has to wait.

    `verdicts` receives, for each that does not wait, ADMITTED, or the last transaction that wrote under one of its locks, which
    its client does not know of.
    """
    filled = get(state, FILLED)
    most = get(state, ROWS)
    known = get(state, LOCKS)
    slots = get(state, SLOTS)
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
        waits = 0
        seen = -1
        at = place
        while at < end:
            lock = get(locks, at)
            value = following(lock & LOCK_MASK)
            one = slot(value, slots)
            value = following(value)
            other = slot(value, slots)
            value = following(value)
            third = slot(value, slots)
            if get(in_flight, one) > 0 and get(in_flight, other) > 0 and get(in_flight, third) > 0:
                waits = 1
                break
            if lock >> LOCK_BITS != APPEND_LOCK:
                least = get(written, one)
                if get(written, other) < least:
                    least = get(written, other)
                if get(written, third) < least:
                    least = get(written, third)
                if least > seen:
                    seen = least
            at += 1
        if waits == 1:
            break
        if seen > mark:
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
    """Appends that were admitted, FILLED of them, are transactions now, from EXPECTED on; -1: none is one."""
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
