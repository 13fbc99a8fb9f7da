"""What a client of the log appends and receives: drafts with their locks, and committed transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from waltzctl.formats.request_id import RequestId

Lock = tuple[str, int]
"""A lock's name and its 64-bit number (`formats.lock_id`)."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A transaction to append: `data`, `header` (a signed 32-bit integer of the application's), and its locks.

    A lock is *checked* when the append is refused if a transaction after the client's high-water mark has set that lock; it is
    *set* when the committed append makes other appends conflict.

    ===========  =======  ===
    kind         checked  set
    ===========  =======  ===
    write lock   yes      yes
    read lock    yes      no
    append lock  no       yes
    ===========  =======  ===
    """

    data: bytes
    header: int = 0
    write_locks: Collection[Lock] = ()
    read_locks: Collection[Lock] = ()
    append_locks: Collection[Lock] = ()


Build = Callable[[int], Draft | None]
"""Builds a draft.  Called with the last transaction that this client has seen; None: there is nothing to append any more."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction as the feed delivers it: without its data (see `LogClient.data`)."""

    partition: int
    transaction_id: int
    request_id: RequestId
    header: int
