"""What a client of the log appends and is told: drafts with their locks, committed transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from waltzctl.formats.request_id import RequestId

Lock = tuple[str, int]
"""A lock's name and number."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be appended: `data`, 32 bits of `header`, and locks, each a name and a number.

    A write lock refuses the append when somebody wrote under it behind what this client has seen, and is written; a read lock
    only refuses; an append lock is only written.
    """

    data: bytes
    header: int = 0
    write_locks: Collection[Lock] = ()
    read_locks: Collection[Lock] = ()
    append_locks: Collection[Lock] = ()


Build = Callable[[int], Draft | None]
"""Called with the high-water mark of what this client has seen; None: there is nothing to append any more."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction, as the feed tells it."""

    partition: int
    transaction_id: int
    request_id: RequestId
    header: int
