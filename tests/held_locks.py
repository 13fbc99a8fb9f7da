"""What appends say about locks, as a log server finds it in their frames: made from the locks one by one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate, chain

from waltzctl.engine.scan.client_appends import HeldLocks
from waltzctl.engine.scan.wire_layout import LOCK_BITS, LOCK_MASK
from waltzctl.formats.wire.client import AppendLocks


def held_locks(appends: Iterable[tuple[int, AppendLocks]]) -> HeldLocks:
    """Of appends, for each the client's high-water mark and its locks."""
    marks, held = zip(*appends, strict=True)
    words = [[kind << LOCK_BITS | lock & LOCK_MASK for kind, ids in enumerate(one) for lock in ids] for one in held]
    rows = chain.from_iterable(zip(marks, accumulate(map(len, words)), strict=True))
    return HeldLocks(array("q", rows), array("q", chain.from_iterable(words)))
